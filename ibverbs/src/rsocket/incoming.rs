//! The half of a connection that receives: a buffer of two halves, each of which the peer gets as a place to write to, fills,
//! and gets again once it is read.

use std::ops::Range;

use super::protocol::{PLACE_LEN, Place, ProtocolError};

/// What the peer is to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Data messages that it may have sent, modulo 65536.
    pub limit: u16,
    /// The half of the buffer that it may fill, by its offset, and where the peer's table has the entry for that.
    pub half: Option<(usize, Place)>,
}

/// See the module.
#[derive(Debug)]
pub struct Incoming {
    half: usize,
    /// Bytes that the peer may write still.
    given: usize,
    /// Bytes that came and nobody has read, and where they begin.
    unread: usize,
    read_at: usize,
    /// Where the half begins that the peer gets next.
    give_at: usize,
    /// Data messages that came, and how many the peer was told that it may send.
    messages: u16,
    limit: u16,
    credits: u16,
    /// The peer's table, and which of its entries is next.
    table: Place,
    entry: u32,
}

impl Incoming {
    /// With a buffer of two halves, of which the peer has the first, and credits for so many messages.
    pub fn new(half: usize, credits: u16) -> Incoming {
        Incoming {
            half,
            given: half,
            unread: 0,
            read_at: 0,
            give_at: half,
            messages: 0,
            limit: credits,
            credits,
            table: Place::default(),
            entry: 1,
        }
    }

    /// The peer has its table there. What it was told first is in the first entry.
    pub fn connect(&mut self, table: Place) {
        self.table = table;
        self.entry = 1 % table.len.max(1);
    }

    /// Those that the peer has from the beginning.
    pub fn credits(&self) -> u16 {
        self.credits
    }

    fn size(&self) -> usize {
        2 * self.half
    }

    /// The peer says that it wrote data.
    ///
    /// # Errors
    /// [`ProtocolError::Overrun`].
    pub fn arrived(&mut self, len: usize) -> Result<(), ProtocolError> {
        if len > self.given {
            return Err(ProtocolError::Overrun { got: len, room: self.given });
        }
        self.given -= len;
        self.unread += len;
        self.counted();
        Ok(())
    }

    /// A message came that takes a credit.
    pub fn counted(&mut self) {
        self.messages = self.messages.wrapping_add(1);
    }

    /// Bytes that nobody has read.
    pub fn unread(&self) -> usize {
        self.unread
    }

    /// Where the first of them are in the buffer, at most `len`; the second part may be empty.
    pub fn ranges(&self, len: usize) -> [Range<usize>; 2] {
        let len = len.min(self.unread);
        let first = len.min(self.size() - self.read_at);
        [self.read_at..self.read_at + first, 0..len - first]
    }

    /// So many of them are read.
    pub fn consume(&mut self, len: usize) {
        let len = len.min(self.unread);
        self.unread -= len;
        self.read_at = (self.read_at + len) % self.size();
    }

    /// What the peer is to be told now: that it has half a buffer more, or half its credits.
    pub fn grant(&mut self) -> Option<Grant> {
        let limit = self.messages.wrapping_add(self.credits);
        let has_half = self.size() - self.given - self.unread >= self.half;
        if !has_half && limit.wrapping_sub(self.limit) < self.credits.div_ceil(2) {
            return None;
        }
        self.limit = limit;
        let half = has_half.then(|| {
            let at = self.give_at;
            self.give_at = (at + self.half) % self.size();
            self.given += self.half;
            let addr = self.table.addr.wrapping_add(u64::from(self.entry) * PLACE_LEN as u64);
            self.entry = (self.entry + 1) % self.table.len.max(1);
            (at, Place { addr, key: self.table.key, len: PLACE_LEN as u32 })
        });
        Some(Grant { limit, half })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Place = Place { addr: 0x9000, key: 5, len: 2 };

    fn connected(half: usize, credits: u16) -> Incoming {
        let mut inc = Incoming::new(half, credits);
        inc.connect(TABLE);
        let second = Place { addr: 0x9010, key: 5, len: 16 };
        assert_eq!(inc.grant(), Some(Grant { limit: credits, half: Some((half, second)) }));
        assert_eq!(inc.grant(), None);
        inc
    }

    #[test]
    fn a_half_is_given_again_when_it_is_read() {
        let mut inc = connected(100, 50);
        inc.arrived(100).unwrap();
        inc.arrived(30).unwrap();
        assert_eq!((inc.unread(), inc.grant()), (130, None));
        inc.consume(99);
        assert_eq!(inc.grant(), None);
        inc.consume(1);
        let first = Place { addr: 0x9000, key: 5, len: 16 };
        assert_eq!(inc.grant(), Some(Grant { limit: 52, half: Some((0, first)) }));
        assert_eq!(inc.ranges(50), [100..130, 0..0]);
    }

    #[test]
    fn reading_wraps_around_the_buffer() {
        let mut inc = connected(10, 50);
        inc.arrived(10).unwrap();
        inc.arrived(8).unwrap();
        inc.consume(17);
        assert!(inc.grant().unwrap().half.is_some());
        inc.arrived(2).unwrap();
        inc.arrived(4).unwrap();
        assert_eq!(inc.ranges(100), [17..20, 0..4]);
        assert_eq!(inc.ranges(2), [17..19, 0..0]);
        inc.consume(5);
        assert_eq!((inc.ranges(100), inc.unread()), ([2..4, 0..0], 2));
        inc.consume(100);
        assert_eq!((inc.ranges(1), inc.unread()), ([4..4, 0..0], 0));
    }

    #[test]
    fn credits_come_back_by_halves() {
        let mut inc = connected(1000, 10);
        for _ in 0..4 {
            inc.arrived(1).unwrap();
        }
        assert_eq!(inc.grant(), None);
        inc.counted();
        assert_eq!(inc.grant(), Some(Grant { limit: 15, half: None }));
        assert_eq!(inc.grant(), None);
    }

    #[test]
    fn credits_are_counted_modulo_65536() {
        let mut inc = connected(1 << 20, 1000);
        let mut limit = 1000u16;
        for _ in 0..300 {
            (0..500).for_each(|_| inc.arrived(0).unwrap());
            limit = limit.wrapping_add(500);
            assert_eq!(inc.grant(), Some(Grant { limit, half: None }));
        }
    }

    #[test]
    fn a_peer_that_writes_more_than_it_may_is_found_out() {
        let mut inc = Incoming::new(100, 50);
        assert_eq!(inc.arrived(101), Err(ProtocolError::Overrun { got: 101, room: 100 }));
        let mut inc = connected(100, 50);
        inc.arrived(150).unwrap();
        assert_eq!(inc.arrived(usize::MAX), Err(ProtocolError::Overrun { got: usize::MAX, room: 50 }));
        assert_eq!(inc.ranges(usize::MAX), [0..150, 0..0]);
    }

    #[test]
    fn a_table_may_have_one_entry() {
        let mut inc = Incoming::new(4, 2);
        inc.connect(Place { len: 1, ..TABLE });
        assert_eq!(inc.grant().unwrap().half.unwrap().1.addr, 0x9000);
        inc.arrived(4).unwrap();
        inc.consume(4);
        assert_eq!(inc.grant().unwrap().half.unwrap(), (0, Place { addr: 0x9000, key: 5, len: 16 }));
    }
}
