//! Queue of frames that wait for their next hop to be resolved.

use std::net::IpAddr;

use super::frame_queue::FrameQueue;
use crate::wire::Mac;

/// Queue of frames whose destination MAC is still missing, each with its next hop.
#[derive(Debug, Default)]
pub(crate) struct UnresolvedQueue(FrameQueue<IpAddr>);

/// Size of the queue in bytes, across all next hops, at which further frames are rejected.
pub(crate) const MAX_UNRESOLVED_BYTES: usize = 1 << 20;

impl UnresolvedQueue {
    /// Queues a frame for the next hop `hop`; `write` appends the frame. If there is no room, returns false
    /// without calling `write`.
    pub fn push(&mut self, hop: IpAddr, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let has_room = self.0.byte_len() < MAX_UNRESOLVED_BYTES;
        if has_room {
            self.0.push_tagged(hop, write);
        }
        has_room
    }

    /// Iterates over the next hops of the queued frames, with repetitions.
    pub fn hops(&self) -> impl Iterator<Item = IpAddr> {
        self.0.tags().copied()
    }

    /// Moves all frames for `hop` to `out`, with `mac` as the destination MAC.
    pub fn release(&mut self, hop: IpAddr, mac: Mac, out: &mut FrameQueue) {
        self.remove_frames_for(hop, |frame| {
            out.push_with(|out| {
                out.extend_from_slice(&mac.0);
                out.extend_from_slice(&frame[mac.0.len()..]);
            });
        });
    }

    /// Drops all frames for `hop` and returns their number.
    pub fn drop_frames_for(&mut self, hop: IpAddr) -> u64 {
        let mut dropped = 0;
        self.remove_frames_for(hop, |_| dropped += 1);
        dropped
    }

    fn remove_frames_for(&mut self, hop: IpAddr, mut each: impl FnMut(&[u8])) {
        if !self.hops().any(|queued| queued == hop) {
            return;
        }
        // Rotates the queue once, which keeps the order of the other frames.
        for _ in 0..self.0.len() {
            let Some((next_hop, frame)) = self.0.front_tagged() else { return };
            if *next_hop == hop {
                each(frame);
            } else {
                let (next_hop, frame) = (*next_hop, frame.to_vec());
                self.0.push_tagged(next_hop, |out| out.extend_from_slice(&frame));
            }
            self.0.pop();
        }
    }
}
