//! Receiving half of a connection: a buffer of two halves. Each half is granted to the peer as a target to
//! write to, and granted again once the peer has filled it and the program has read it.

use std::ops::Range;

use crate::protocol::{ProtocolError, TARGET_SGE_LEN, TargetSge};

/// Update of credits and buffer space for the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    /// Total number of data messages that the peer may send, modulo 65536.
    pub limit: u16,
    /// Offset of the buffer half granted to the peer, and the location of the entry in the peer's target SGL
    /// that announces it.
    pub half: Option<(usize, TargetSge)>,
}

/// State of the receiving half.
#[derive(Default, Debug)]
pub(crate) struct Incoming {
    /// Size of half the buffer, in bytes.
    half: usize,
    /// Number of bytes that the peer may still write.
    granted: usize,
    /// Number of unread bytes.
    pub unread: usize,
    /// Offset of the first unread byte.
    read_at: usize,
    /// Offset of the next half to grant to the peer.
    next_half: usize,
    /// Number of received messages that consume a credit, modulo 65536.
    messages: u16,
    /// Total number of messages that the peer may send according to the last update, modulo 65536.
    limit: u16,
    /// Number of credits that an update grants beyond the messages already received.
    pub credits: u16,
    /// The peer's target SGL.
    table: TargetSge,
    /// Index of the next entry to write in the peer's target SGL.
    entry: u32,
}

impl Incoming {
    /// Creates a buffer of two halves of `half` bytes. The first half and `credits` credits are granted to
    /// the peer.
    pub(crate) fn new(half: usize, credits: u16) -> Incoming {
        Incoming {
            half,
            granted: half,
            next_half: half,
            limit: credits,
            credits,
            entry: 1,
            ..Incoming::default()
        }
    }

    /// Sets the location of the peer's target SGL. The handshake has announced the target for its first
    /// entry, so the second entry is written first.
    pub(crate) fn connect(&mut self, table: TargetSge) {
        self.table = table;
        self.entry = 1 % table.len.max(1);
    }

    /// Returns the size of the buffer, in bytes.
    fn size(&self) -> usize {
        2 * self.half
    }

    /// Records data that the peer has written.
    ///
    /// # Errors
    /// [`ProtocolError::Overrun`] if it exceeds the granted buffer space.
    pub(crate) fn on_data(&mut self, len: usize) -> Result<(), ProtocolError> {
        if len > self.granted {
            return Err(ProtocolError::Overrun { got: len, room: self.granted });
        }
        self.granted -= len;
        self.unread += len;
        self.count_message();
        Ok(())
    }

    /// Counts a received message that consumes a credit.
    pub(crate) fn count_message(&mut self) {
        self.messages = self.messages.wrapping_add(1);
    }

    /// Returns the buffer ranges of the next unread bytes, at most `len` in total. The second range is empty
    /// unless the bytes wrap around the end of the buffer.
    pub(crate) fn ranges(&self, len: usize) -> [Range<usize>; 2] {
        let len = len.min(self.unread);
        let first = len.min(self.size() - self.read_at);
        [self.read_at..self.read_at + first, 0..len - first]
    }

    /// Frees the space of `len` bytes that have been read.
    pub(crate) fn consume(&mut self, len: usize) {
        let len = len.min(self.unread);
        self.unread -= len;
        self.read_at = (self.read_at + len) % self.size();
    }

    /// Returns an update for the peer if half of the buffer is free or half of the credits are used, and
    /// records it as sent.
    pub(crate) fn grant(&mut self) -> Option<Grant> {
        let limit = self.messages.wrapping_add(self.credits);
        let has_half = self.size() - self.granted - self.unread >= self.half;
        if !has_half && limit.wrapping_sub(self.limit) < self.credits.div_ceil(2) {
            return None;
        }
        self.limit = limit;
        let half = has_half.then(|| {
            let at = self.next_half;
            self.next_half = (at + self.half) % self.size();
            self.granted += self.half;
            let addr = self.table.addr.wrapping_add(u64::from(self.entry) * TARGET_SGE_LEN as u64);
            self.entry = (self.entry + 1) % self.table.len.max(1);
            (at, TargetSge { addr, key: self.table.key, len: TARGET_SGE_LEN as u32 })
        });
        Some(Grant { limit, half })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TargetSge = TargetSge { addr: 0x9000, key: 5, len: 2 };

    fn connected(half: usize, credits: u16) -> Incoming {
        let mut inc = Incoming::new(half, credits);
        inc.connect(TABLE);
        let second = TargetSge { addr: 0x9010, key: 5, len: 16 };
        assert_eq!(inc.grant(), Some(Grant { limit: credits, half: Some((half, second)) }));
        assert_eq!(inc.grant(), None);
        inc
    }

    #[test]
    fn half_of_the_buffer_is_granted_again_once_it_is_read() {
        let mut inc = connected(100, 50);
        inc.on_data(100).unwrap();
        inc.on_data(30).unwrap();
        assert_eq!((inc.unread, inc.grant()), (130, None));
        inc.consume(99);
        assert_eq!(inc.grant(), None);
        inc.consume(1);
        let first = TargetSge { addr: 0x9000, key: 5, len: 16 };
        assert_eq!(inc.grant(), Some(Grant { limit: 52, half: Some((0, first)) }));
        assert_eq!(inc.ranges(50), [100..130, 0..0]);
    }

    #[test]
    fn read_wraps_around_the_end_of_the_buffer() {
        let mut inc = connected(10, 50);
        inc.on_data(10).unwrap();
        inc.on_data(8).unwrap();
        inc.consume(17);
        assert!(inc.grant().unwrap().half.is_some());
        inc.on_data(2).unwrap();
        inc.on_data(4).unwrap();
        assert_eq!(inc.ranges(100), [17..20, 0..4]);
        assert_eq!(inc.ranges(2), [17..19, 0..0]);
        inc.consume(5);
        assert_eq!((inc.ranges(100), inc.unread), ([2..4, 0..0], 2));
        inc.consume(100);
        assert_eq!((inc.ranges(1), inc.unread), ([4..4, 0..0], 0));
    }

    #[test]
    fn credits_are_granted_once_half_of_them_are_used() {
        let mut inc = connected(1000, 10);
        for _ in 0..4 {
            inc.on_data(1).unwrap();
        }
        assert_eq!(inc.grant(), None);
        inc.count_message();
        assert_eq!(inc.grant(), Some(Grant { limit: 15, half: None }));
        assert_eq!(inc.grant(), None);
    }

    #[test]
    fn credits_are_counted_modulo_65536() {
        let mut inc = connected(1 << 20, 1000);
        let mut limit = 1000u16;
        for _ in 0..300 {
            (0..500).for_each(|_| inc.on_data(0).unwrap());
            limit = limit.wrapping_add(500);
            assert_eq!(inc.grant(), Some(Grant { limit, half: None }));
        }
    }

    #[test]
    fn data_that_exceeds_the_grant_yields_an_overrun_error() {
        let mut inc = Incoming::new(100, 50);
        assert_eq!(inc.on_data(101), Err(ProtocolError::Overrun { got: 101, room: 100 }));
        let mut inc = connected(100, 50);
        inc.on_data(150).unwrap();
        assert_eq!(inc.on_data(usize::MAX), Err(ProtocolError::Overrun { got: usize::MAX, room: 50 }));
        assert_eq!(inc.ranges(usize::MAX), [0..150, 0..0]);
    }

    #[test]
    fn every_grant_uses_the_only_entry_of_a_table_of_length_1() {
        let mut inc = Incoming::new(4, 2);
        inc.connect(TargetSge { len: 1, ..TABLE });
        assert_eq!(inc.grant().unwrap().half.unwrap().1.addr, 0x9000);
        inc.on_data(4).unwrap();
        inc.consume(4);
        assert_eq!(inc.grant().unwrap().half.unwrap(), (0, TargetSge { addr: 0x9000, key: 5, len: 16 }));
    }
}
