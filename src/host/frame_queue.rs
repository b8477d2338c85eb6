//! Queue of Ethernet frames in one contiguous buffer.

use std::collections::VecDeque;

/// FIFO of frames in one contiguous, reused buffer, which no longer allocates once it has grown to its usual
/// size. Each frame has a tag.
#[derive(Debug)]
pub(crate) struct FrameQueue<T = ()> {
    bytes: Vec<u8>,
    /// Offset of the first frame in `bytes`.
    head: usize,
    /// Length and tag of each frame.
    frames: VecDeque<(usize, T)>,
}

impl<T> Default for FrameQueue<T> {
    fn default() -> FrameQueue<T> {
        FrameQueue { bytes: Vec::new(), head: 0, frames: VecDeque::new() }
    }
}

/// Number of consumed bytes at the front of the buffer above which it may be compacted.
const COMPACT_ABOVE: usize = 256 * 1024;

impl<T> FrameQueue<T> {
    /// Appends a frame, which `write` must append to the buffer passed to it.
    pub fn push_tagged(&mut self, tag: T, write: impl FnOnce(&mut Vec<u8>)) {
        if self.frames.is_empty() {
            self.bytes.clear();
            self.head = 0;
        } else if self.head > COMPACT_ABOVE && self.head > self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.frames.push_back((self.bytes.len() - start, tag));
    }

    pub fn front_tagged(&self) -> Option<(&T, &[u8])> {
        self.frames.front().map(|(len, tag)| (tag, &self.bytes[self.head..][..*len]))
    }

    pub fn tags(&self) -> impl Iterator<Item = &T> {
        self.frames.iter().map(|(_, tag)| tag)
    }

    pub fn pop(&mut self) {
        if let Some((len, _)) = self.frames.pop_front() {
            self.head += len;
        }
    }

    /// Returns all frames, concatenated.
    pub fn as_bytes(&self) -> &[u8] {
        if self.frames.is_empty() { &[] } else { &self.bytes[self.head..] }
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn byte_len(&self) -> usize {
        self.as_bytes().len()
    }

    pub fn clear(&mut self) {
        self.frames.clear();
    }
}

impl FrameQueue {
    /// Appends a frame, which `write` must append to the buffer passed to it.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.push_tagged((), write);
    }

    pub fn push(&mut self, frame: &[u8]) {
        self.push_with(|out| out.extend_from_slice(frame));
    }

    pub fn front(&self) -> Option<&[u8]> {
        self.front_tagged().map(|(_, frame)| frame)
    }

    /// Removes the first `n` bytes, which may end within a frame.
    pub fn consume(&mut self, n: usize) {
        self.head += n;
        let mut remaining = n;
        while let Some((len, _)) = self.frames.front_mut() {
            if remaining < *len {
                *len -= remaining;
                return;
            }
            remaining -= *len;
            self.frames.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_dequeued_in_order_and_unchanged() {
        let mut q = FrameQueue::default();
        let mut next = 0u32;
        for i in 0..5000u32 {
            q.push(&i.to_be_bytes().repeat(100));
            if i % 3 != 0 {
                assert_eq!(q.front().unwrap(), next.to_be_bytes().repeat(100));
                q.pop();
                next += 1;
            }
        }
        assert_eq!(q.byte_len(), q.len() * 400);
        while let Some(frame) = q.front() {
            assert_eq!(frame, next.to_be_bytes().repeat(100));
            q.pop();
            next += 1;
        }
        assert_eq!((next, q.byte_len()), (5000, 0));
    }
}
