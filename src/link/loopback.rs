use super::RxBurst;
use super::frame_queue::FrameQueue;
use crate::transport::TxBurst;
use crate::wire::{Flow, IpIdent};
use std::collections::VecDeque;

/// Packets to an address of the link's own: they go round here, as in a NIC's own loopback.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    data: FrameQueue,
    heads: VecDeque<(Flow, usize)>,
}

/// What waits here at most.
const MAX_BYTES: usize = 16 << 20;

impl Loopback {
    /// Takes a burst, or refuses it for want of room.
    pub fn push(&mut self, burst: &TxBurst<'_>) -> bool {
        if self.data.byte_len() + burst.bytes > MAX_BYTES {
            return false;
        }
        self.data.push_with(|out| burst.copy_to(out));
        self.heads.push_back((burst.flow, burst.segment));
        true
    }

    /// Hands over up to `max` bursts; returns how many packets that was.
    pub fn deliver(&mut self, max: usize, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let mut packets = 0;
        for _ in 0..max {
            let (Some((flow, segment)), Some(data)) = (self.heads.pop_front(), self.data.front()) else {
                break;
            };
            packets += data.len().div_ceil(segment.max(1));
            sink(RxBurst { flow, ident: IpIdent::SENT, segment, data });
            self.data.pop();
        }
        packets
    }

    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
}
