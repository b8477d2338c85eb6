//! Middleware that passes every packet on a link to a callback.

use std::io;

use bytes::Bytes;

use super::faults::Direction;
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
    tracer: Tracer,
    buffer: BurstBuffer,
}

/// Copy of a burst, which the packets passed to the tracer share. The memory is reused once the tracer has
/// dropped them all.
#[derive(Default)]
struct BurstBuffer(Bytes);

impl BurstBuffer {
    /// Replaces the contents with the bytes that `write` appends.
    fn fill(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> &Bytes {
        let mut buffer = std::mem::take(&mut self.0).try_into_mut().map_or_else(|_| Vec::new(), Vec::from);
        buffer.clear();
        write(&mut buffer);
        self.0 = buffer.into();
        &self.0
    }
}

/// Properties common to all packets of a burst.
struct OfBurst {
    at: Instant,
    direction: Direction,
    flow: Flow,
    ident: IpIdent,
}

impl OfBurst {
    /// Splits the burst into packets, and passes each to the tracer.
    fn trace(self, burst: &Bytes, segment: usize, tracer: &mut Tracer) {
        let OfBurst { at, direction, flow, ident } = self;
        for (index, packet) in burst.chunks(segment.max(1)).enumerate() {
            let (index, bytes) = (index as u16, burst.slice_ref(packet));
            tracer(TracedPacket { at, direction, flow, ident, index, bytes });
        }
    }
}

impl<L: Link> Trace<L> {
    /// Wraps a link. `tracer` is called for every packet.
    pub fn new(inner: L, tracer: impl FnMut(TracedPacket) + Send + 'static) -> Trace<L> {
        Trace { inner, tracer: Box::new(tracer), buffer: BurstBuffer::default() }
    }
}

impl<L: Link> Link for Trace<L> {
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.inner.transmit(now, queue)?;
        for burst in queue.bursts() {
            let bytes = self.buffer.fill(|buffer| burst.copy_to(buffer));
            let of_burst =
                OfBurst { at: now, direction: Direction::Tx, flow: burst.flow, ident: IpIdent::SENT };
            of_burst.trace(bytes, burst.segment, &mut self.tracer);
        }
        Ok(())
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let Trace { inner, tracer, buffer } = self;
        inner.receive(now, &mut |burst| {
            let bytes = buffer.fill(|buffer| buffer.extend_from_slice(burst.data));
            let of_burst =
                OfBurst { at: now, direction: Direction::Rx, flow: burst.flow, ident: burst.ident };
            of_burst.trace(bytes, burst.segment, tracer);
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
        let mut buffer = BurstBuffer::default();
        let kept = buffer.fill(|out| out.extend([1; 64])).slice(60..);
        let second = buffer.fill(|out| out.extend([2; 64])).as_ptr();
        assert_eq!(kept, [1; 4][..]);
        let third = buffer.fill(|out| out.extend([3; 64]));
        assert_eq!((third.as_ptr(), &third[..]), (second, &[3; 64][..]));
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
