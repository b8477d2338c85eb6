use std::collections::VecDeque;
use std::net::IpAddr;

use super::frame_queue::FrameQueue;
use crate::wire::Mac;

/// Frames without a destination MAC, and whose MAC each waits for.
#[derive(Debug, Default)]
pub(crate) struct Held {
    frames: FrameQueue,
    waits_for: VecDeque<IpAddr>,
}

/// Bytes that wait at most, for all neighbours together.
pub(crate) const MAX_HELD_BYTES: usize = 1 << 20;

impl Held {
    /// Keeps a frame that `write` appends; without room, does not call it and says false.
    pub fn push(&mut self, hop: IpAddr, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let room = self.frames.byte_len() < MAX_HELD_BYTES;
        if room {
            self.frames.push_with(write);
            self.waits_for.push_back(hop);
        }
        room
    }

    /// Next hops whose MAC the frames wait for.
    pub fn hops(&self) -> impl Iterator<Item = IpAddr> {
        self.waits_for.iter().copied()
    }

    /// Moves all that waited for `hop` to `out`, with its MAC filled in.
    pub fn release(&mut self, hop: IpAddr, mac: Mac, out: &mut FrameQueue) {
        self.take(hop, |frame| {
            out.push_with(|out| {
                out.extend_from_slice(&mac.0);
                out.extend_from_slice(&frame[mac.0.len()..]);
            });
        });
    }

    /// Drops all that waited for `hop`; returns how many that was.
    pub fn give_up(&mut self, hop: IpAddr) -> u64 {
        let mut gone = 0;
        self.take(hop, |_| gone += 1);
        gone
    }

    fn take(&mut self, hop: IpAddr, mut each: impl FnMut(&[u8])) {
        if !self.waits_for.contains(&hop) {
            return;
        }
        // Once round, so that the others stay in order.
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
