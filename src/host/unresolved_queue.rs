//! Queue of frames that wait for their next hop to be resolved.

use std::net::IpAddr;

use super::frame_queue::FrameQueue;
use crate::wire::Mac;

/// Frames whose destination MAC is not yet known, each with its next hop, and the outbox of frames to send.
#[derive(Debug, Default)]
pub(crate) struct UnresolvedQueue {
    frames: FrameQueue<IpAddr>,
    /// Frames to send: those whose next hop was resolved, and those of the stack itself.
    pub outbox: FrameQueue,
    /// Number of frames dropped because the next hop did not reply, there was no route, or the queue was
    /// full.
    pub dropped: u64,
}

/// Size of the queue in bytes, across all next hops, at which further frames are rejected.
pub(crate) const MAX_UNRESOLVED_BYTES: usize = 1 << 20;

impl UnresolvedQueue {
    /// Queues a frame for the next hop `hop`; `write` appends the frame. Without a next hop or room, counts
    /// the frame as dropped and returns false without calling `write`.
    pub fn push(&mut self, hop: Option<IpAddr>, write: &mut dyn FnMut(&mut Vec<u8>)) -> bool {
        let hop = hop.filter(|_| self.frames.byte_len() < MAX_UNRESOLVED_BYTES);
        match hop {
            Some(hop) => self.frames.push_tagged(hop, write),
            None => self.dropped += 1,
        }
        hop.is_some()
    }

    /// Iterates over the next hops of the queued frames, with repetitions.
    pub fn hops(&self) -> impl Iterator<Item = IpAddr> {
        self.frames.tags().copied()
    }

    /// Moves all frames for `hop` to the outbox, with `mac` as their destination MAC. If `mac` is `None`,
    /// drops and counts them.
    pub fn finish(&mut self, hop: IpAddr, mac: Option<Mac>) {
        if !self.hops().any(|queued| queued == hop) {
            return;
        }
        // Rotates the queue once, which keeps the order of the other frames.
        for _ in 0..self.frames.len() {
            let Some((next_hop, frame)) = self.frames.front_tagged() else { return };
            match mac {
                _ if *next_hop != hop => {
                    let (next_hop, frame) = (*next_hop, frame.to_vec());
                    self.frames.push_tagged(next_hop, |out| out.extend_from_slice(&frame));
                }
                Some(mac) => self.outbox.push_with(|out| {
                    out.extend_from_slice(&mac.0);
                    out.extend_from_slice(&frame[mac.0.len()..]);
                }),
                None => self.dropped += 1,
            }
            self.frames.pop();
        }
    }
}
