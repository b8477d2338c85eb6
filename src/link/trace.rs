//! Middleware that passes every packet of a link to a callback.
#![forbid(unsafe_code)]

use std::io;

use super::faults::Direction;
use super::{Link, LinkInfo, RxBurst};
use crate::transport::{Instant, TxQueue};
use crate::wire::{Flow, IpIdent};

/// A packet in transit.
#[derive(Clone, Copy, Debug)]
pub struct TracedPacket<'a> {
    /// The time.
    pub at: Instant,
    /// The direction.
    pub direction: Direction,
    /// Addresses, source port and traffic class.
    pub flow: Flow,
    /// The known part of the IPv4 identification; with `index` added, it is what the ICRC of the packet
    /// covers.
    pub ident: IpIdent,
    /// Index of the packet in its burst.
    pub index: u16,
    /// The bytes from BTH to ICRC.
    pub bytes: &'a [u8],
}

/// Callback for every packet.
pub type Tracer = Box<dyn FnMut(&TracedPacket<'_>) + Send>;

/// A link whose packets are passed to a callback. Sent packets are traced after the inner link has accepted
/// them, so that faults injected there are known by then; received packets are traced before they reach the
/// NIC.
pub struct Trace<L> {
    inner: L,
    tracer: Tracer,
    scratch: Vec<u8>,
}

impl<L: Link> Trace<L> {
    /// Wraps a link; `tracer` is called for every packet.
    pub fn new(inner: L, tracer: impl FnMut(&TracedPacket<'_>) + Send + 'static) -> Trace<L> {
        Trace { inner, tracer: Box::new(tracer), scratch: Vec::new() }
    }
}

impl<L: Link> Link for Trace<L> {
    fn info(&self) -> &LinkInfo {
        self.inner.info()
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.inner.transmit(now, queue)?;
        for burst in queue.bursts() {
            self.scratch.clear();
            burst.copy_to(&mut self.scratch);
            for (i, bytes) in self.scratch.chunks(burst.segment.max(1)).enumerate() {
                let (flow, ident, index) = (burst.flow, IpIdent::SENT, i as u16);
                (self.tracer)(&TracedPacket { at: now, direction: Direction::Tx, flow, ident, index, bytes });
            }
        }
        Ok(())
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let Trace { inner, tracer, .. } = self;
        inner.receive(now, &mut |burst| {
            for (index, bytes) in burst.packets() {
                let (flow, ident) = (burst.flow, burst.ident);
                tracer(&TracedPacket { at: now, direction: Direction::Rx, flow, ident, index, bytes });
            }
            sink(burst);
        })
    }

    delegate_link_methods!(self => self.inner);

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::link::fabric::{Fabric, FabricConfig};
    use crate::verbs::{Access, Context, ContextOptions, SendWr, TestEndpoint};
    use crate::wire::{Packet, icrc};

    #[test]
    fn packets_of_both_directions_are_traced_with_valid_icrcs() {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let traced = Arc::new(Mutex::new(Vec::new()));
        let log = traced.clone();
        let port = fabric.port(&fabric.auto_address()).unwrap();
        let context = Context::on_port(port, &ContextOptions::default(), |port| {
            Box::new(Trace::new(port, move |t| {
                assert!(icrc::verify(&t.flow, t.ident, t.index, t.bytes));
                let name = Packet::parse(t.bytes).unwrap().bth().opcode.to_string();
                log.lock().unwrap().push((t.direction, name));
            }))
        })
        .unwrap();
        let (a, b) = (
            TestEndpoint::new(context).unwrap(),
            TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap(),
        );
        a.qp.connect(&b.qp.endpoint(), &Default::default()).unwrap();
        b.qp.connect(&a.qp.endpoint(), &Default::default()).unwrap();
        let (src, dst) = (a.pd.reg_mr(64, Access::ALL).unwrap(), b.pd.reg_mr(64, Access::ALL).unwrap());
        a.qp.post_send(&SendWr::write(1, &[src.sge(0..64)], dst.remote(0))).unwrap();
        a.cq.wait(Duration::from_secs(1)).unwrap();
        let traced = traced.lock().unwrap();
        let expected = [(Direction::Tx, "RC RDMA WRITE Only"), (Direction::Rx, "RC Acknowledge")];
        assert!(traced.iter().map(|(d, n)| (*d, n.as_str())).eq(expected), "{traced:?}");
    }
}
