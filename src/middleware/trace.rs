//! Middleware that passes every packet on a link to a callback.

use std::io;

use bytes::Bytes;

use super::faults::Direction;
use super::packets::as_received;
use crate::burst::{RxBurst, TxQueue};
use crate::link::{HostMemory, Link, delegate_link_methods};
use crate::transport::Instant;
use crate::wire::{Flow, IpIdent};

/// A packet in transit. A tracer may keep it or send it to another thread: the bytes are shared, not copied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TracedPacket {
    /// The time.
    pub at: Instant,
    /// The direction.
    pub direction: Direction,
    /// Addresses, source port and traffic class.
    pub flow: Flow,
    /// IPv4 identification of the burst's first packet, as far as it is known. The packet's ICRC covers the
    /// sum of this and `index`.
    pub ident: IpIdent,
    /// Index of the packet in its burst.
    pub index: u16,
    /// The packet from the BTH to the ICRC.
    pub bytes: Bytes,
}

/// Callback for every packet.
pub type Tracer = Box<dyn FnMut(TracedPacket) + Send>;

/// A link whose packets are passed to a callback. Sent packets are traced only after the inner link has
/// accepted them, so that the faults that it injects are already known; received packets are traced before
/// they reach the NIC.
pub struct Trace<L> {
    inner: L,
    recorder: Recorder,
}

struct Recorder {
    tracer: Tracer,
    /// Copy of a burst, which the packets passed to the tracer share. The memory is reused once the tracer
    /// has dropped them all.
    buffer: Bytes,
}

impl Recorder {
    /// Passes the packets of a burst to the tracer.
    fn trace(&mut self, at: Instant, direction: Direction, burst: &RxBurst<'_>) {
        let RxBurst { flow, ident, segment, data, .. } = *burst;
        let buffer = std::mem::take(&mut self.buffer).try_into_mut();
        let mut buffer = buffer.map_or_else(|_| Vec::new(), Vec::from);
        buffer.clear();
        buffer.extend_from_slice(data);
        self.buffer = buffer.into();
        for (index, packet) in self.buffer.chunks(segment.max(1)).enumerate() {
            let (index, bytes) = (index as u16, self.buffer.slice_ref(packet));
            (self.tracer)(TracedPacket { at, direction, flow, ident, index, bytes });
        }
    }
}

impl<L: Link> Trace<L> {
    /// Wraps a link. `tracer` is called for every packet.
    pub fn new(inner: L, tracer: impl FnMut(TracedPacket) + Send + 'static) -> Trace<L> {
        Trace { inner, recorder: Recorder { tracer: Box::new(tracer), buffer: Bytes::new() } }
    }
}

impl<L: Link> Link for Trace<L> {
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.inner.transmit(now, queue)?;
        queue.bursts().for_each(|burst| self.recorder.trace(now, Direction::Tx, &as_received(&burst)));
        Ok(())
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let Trace { inner, recorder } = self;
        inner.receive(now, &mut |burst| {
            recorder.trace(now, Direction::Rx, &burst);
            sink(burst);
        })
    }

    delegate_link_methods!(self => self.inner, HostMemory::with_icrcs, all);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;
    use crate::fabric::{Fabric, FabricConfig};
    use crate::verbs::{Access, Context, ContextOptions, SendWr, TestEndpoint};
    use crate::wire::{Packet, icrc};

    #[test]
    fn buffer_of_a_burst_is_reused_only_if_none_of_its_packets_is_kept() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let log = kept.clone();
        let tracer = move |packet: TracedPacket| {
            let is_kept = packet.bytes[0] == 1;
            log.lock().push((packet.bytes.as_ptr().addr(), is_kept.then_some(packet.bytes)));
        };
        let mut recorder = Recorder { tracer: Box::new(tracer), buffer: Bytes::new() };
        let flow = Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 4791);
        for fill in 1..4 {
            recorder.trace(Instant(0), Direction::Tx, &RxBurst::new(flow, IpIdent::SENT, 64, &[fill; 64]));
        }
        let kept = kept.lock();
        assert_eq!(kept[0].1.as_deref(), Some(&[1; 64][..]));
        assert_ne!(kept[0].0, kept[1].0);
        assert_eq!(kept[1].0, kept[2].0);
    }

    #[test]
    fn packets_of_both_directions_are_traced_with_valid_icrcs() {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let traced = Arc::new(Mutex::new(Vec::new()));
        let log = traced.clone();
        let port = fabric.port(&fabric.auto_address()).unwrap();
        let context = Context::on_port(port, &ContextOptions::default(), |port| {
            Box::new(Trace::new(port, move |t| {
                assert!(icrc::verify(&t.flow, t.ident, t.index, &t.bytes));
                let name = Packet::parse(&t.bytes).unwrap().bth().opcode.to_string();
                log.lock().push((t.direction, name));
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
        let traced = traced.lock();
        let expected = [(Direction::Tx, "RC RDMA WRITE Only"), (Direction::Rx, "RC Acknowledge")];
        assert!(traced.iter().map(|(d, n)| (*d, n.as_str())).eq(expected), "{traced:?}");
    }
}
