//! Loopback of packets that a link sends to its own addresses or to groups that it has joined.

use crate::burst::{RxBurst, TxBurst};
use crate::host::frame_queue::FrameQueue;
use crate::wire::{Flow, IpIdent};

/// Queue of packets that a link delivers to itself, like the loopback of a hardware NIC.
#[derive(Debug, Default)]
pub(crate) struct Loopback(FrameQueue<(Flow, usize)>);

/// Maximum number of queued bytes.
const MAX_BYTES: usize = 16 << 20;

impl Loopback {
    /// Queues a burst; returns false if there is no room.
    pub fn push(&mut self, burst: &TxBurst<'_>) -> bool {
        let has_room = self.0.byte_len() + burst.bytes <= MAX_BYTES;
        if has_room {
            self.0.push_tagged((burst.flow, burst.segment), |out| burst.copy_to(out));
        }
        has_room
    }

    /// Delivers up to `max` bursts and returns the number of packets.
    pub fn deliver(&mut self, max: usize, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let mut packets = 0;
        for _ in 0..max {
            let Some((&(flow, segment), data)) = self.0.front_tagged() else { break };
            packets += data.len().div_ceil(segment.max(1));
            sink(RxBurst::new(flow, IpIdent::SENT, segment, data));
            self.0.pop();
        }
        packets
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
