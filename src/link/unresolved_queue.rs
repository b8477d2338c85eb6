//! Frames that wait for the resolution of their next hop.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::frame_queue::FrameQueue;
use crate::wire::Mac;

/// Queue of frames without a destination MAC, each with the next hop whose MAC it needs.
#[derive(Debug, Default)]
pub(crate) struct UnresolvedQueue {
    frames: FrameQueue,
    waits_for: VecDeque<IpAddr>,
}

/// Maximum number of queued bytes, for all next hops together.
pub(crate) const MAX_UNRESOLVED_BYTES: usize = 1 << 20;

impl UnresolvedQueue {
    /// Queues a frame that `write` appends. Without room, returns false and does not call `write`.
    pub fn push(&mut self, hop: IpAddr, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let room = self.frames.byte_len() < MAX_UNRESOLVED_BYTES;
        if room {
            self.frames.push_with(write);
            self.waits_for.push_back(hop);
        }
        room
    }

    /// Returns the next hops whose MACs the queued frames need.
    pub fn hops(&self) -> impl Iterator<Item = IpAddr> {
        self.waits_for.iter().copied()
    }

    /// Moves all frames for `hop` to `out` with the MAC filled in.
    pub fn release(&mut self, hop: IpAddr, mac: Mac, out: &mut FrameQueue) {
        self.take(hop, |frame| {
            out.push_with(|out| {
                out.extend_from_slice(&mac.0);
                out.extend_from_slice(&frame[mac.0.len()..]);
            });
        });
    }

    /// Drops all frames for `hop` and returns their number.
    pub fn drop_frames_for(&mut self, hop: IpAddr) -> u64 {
        let mut gone = 0;
        self.take(hop, |_| gone += 1);
        gone
    }

    fn take(&mut self, hop: IpAddr, mut each: impl FnMut(&[u8])) {
        if !self.waits_for.contains(&hop) {
            return;
        }
        // Rotates the queue once, which keeps the order of the other frames.
        for _ in 0..self.waits_for.len() {
            let (Some(waits_for), Some(frame)) = (self.waits_for.pop_front(), self.frames.front()) else {
                return;
            };
            if waits_for == hop {
                each(frame);
            } else {
                let frame = frame.to_vec();
                self.frames.push(&frame);
                self.waits_for.push_back(waits_for);
            }
            self.frames.pop();
        }
    }
}
