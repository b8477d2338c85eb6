//! The half of a connection that sends: when it may, from where, and to where. It knows of no queue pair: it is told what
//! happened, and says what is to be posted.

use std::collections::VecDeque;
use std::ops::Range;

use super::protocol::{Message, PLACES, Place, ProtocolError};

/// What one write takes at most, so that the first bytes are under way while the next are copied.
const LARGEST: usize = 1 << 16;
/// Messages of credits that are outstanding at most.
const CREDIT_MESSAGES: usize = 4;
/// Internal messages at most: the credits, two of the end, and one that keeps the connection alive.
pub const INTERNAL: usize = CREDIT_MESSAGES + 3;

/// A write to be posted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Where its bytes are in the send buffer, which is a ring; the second part may be empty.
    pub from: [Range<usize>; 2],
    /// Where they go: `len` is theirs.
    pub to: Place,
    /// What comes with it. What goes into mapped memory comes without a word.
    pub message: Option<Message>,
}

/// What was posted and is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flight {
    /// So many bytes of the send buffer.
    Bytes(usize),
    /// An internal message, which takes none.
    Credits,
    Other,
}

/// See the module.
#[derive(Debug)]
pub struct Outgoing {
    /// Bytes of the send buffer, where the next go, and how many are in use.
    size: usize,
    at: usize,
    used: usize,
    /// Data messages sent, and how many may be, both modulo 65536.
    sent: u16,
    limit: u16,
    /// Places at the peer that are not full, the one in use first.
    places: VecDeque<Place>,
    /// Work requests that may be outstanding beside internal messages.
    slots: usize,
    /// In the order in which they were posted, which is the one in which they get done.
    flights: VecDeque<Flight>,
    /// How many of them tell of credits.
    credits: usize,
}

impl Outgoing {
    /// With a send buffer of `size` bytes, and a send queue of `slots` work requests.
    pub fn new(size: usize, slots: usize) -> Outgoing {
        Outgoing {
            size,
            at: 0,
            used: 0,
            sent: 0,
            limit: 0,
            places: VecDeque::new(),
            slots,
            flights: VecDeque::new(),
            credits: 0,
        }
    }

    /// The peer has a place for more.
    ///
    /// # Errors
    /// [`ProtocolError::Places`], above those that it can have.
    pub fn add_place(&mut self, place: Place) -> Result<(), ProtocolError> {
        if self.places.len() >= PLACES {
            return Err(ProtocolError::Places);
        }
        if place.len > 0 {
            self.places.push_back(place);
        }
        Ok(())
    }

    /// The peer takes data messages up to this one.
    pub fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Whether there is a credit for a data message. A peer may give nearly all that the number can say.
    fn has_credit(&self) -> bool {
        self.limit != self.sent
    }

    fn outstanding(&self) -> usize {
        self.flights.len()
    }

    /// How many bytes can go into one write now.
    pub fn room(&self) -> usize {
        let place = self.places.front().map_or(0, |place| place.len as usize);
        if self.has_credit() { place.min(self.ring_room()) } else { 0 }
    }

    /// How many bytes of the send buffer one write can take now.
    fn ring_room(&self) -> usize {
        if self.outstanding() < self.slots { (self.size - self.used).min(LARGEST) } else { 0 }
    }

    /// Whether it is worth a program's while to be told that it may send.
    pub fn is_writable(&self) -> bool {
        let enough = self.places.front().map_or(0, |place| place.len as usize).min(self.size / 4).min(2048);
        self.has_credit() && enough > 0 && self.ring_room() >= enough
    }

    /// The next data message, of at most `len` bytes, if it can go now.
    pub fn transfer(&mut self, len: usize) -> Option<Transfer> {
        let len = len.min(self.room());
        let place = self.places.front_mut().filter(|_| len > 0)?;
        let to = Place { len: len as u32, ..*place };
        place.addr = place.addr.wrapping_add(len as u64);
        place.len -= len as u32;
        if place.len == 0 {
            self.places.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        Some(Transfer { from: self.take(len), to, message: Some(Message::Data(len)) })
    }

    /// A write of at most `to.len` bytes to memory that the peer has mapped.
    pub fn direct(&mut self, to: Place) -> Option<Transfer> {
        let len = (to.len as usize).min(self.ring_room());
        let to = Place { len: len as u32, ..to };
        (len > 0).then(|| Transfer { from: self.take(len), to, message: None })
    }

    /// Takes bytes of the send buffer, which are there.
    fn take(&mut self, len: usize) -> [Range<usize>; 2] {
        let first = len.min(self.size - self.at);
        let from = [self.at..self.at + first, 0..len - first];
        self.at = (self.at + len) % self.size;
        self.used += len;
        self.flights.push_back(Flight::Bytes(len));
        from
    }

    /// Whether the peer may be told of credits: a few such messages at a time have their own room in the queues of both.
    pub fn may_give_credits(&self) -> bool {
        self.credits < CREDIT_MESSAGES
    }

    pub fn gave_credits(&mut self) {
        self.credits += 1;
        self.flights.push_back(Flight::Credits);
    }

    /// Whether the peer may be told of mapped memory, which counts as data.
    pub fn may_tell_mapping(&self) -> bool {
        self.has_credit() && self.outstanding() < self.slots
    }

    pub fn told_mapping(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.flights.push_back(Flight::Other);
    }

    /// The peer is told of this end's end: at most twice in a connection's life, for which both have room.
    pub fn told_end(&mut self) {
        self.flights.push_back(Flight::Other);
    }

    /// Something was written that is for the transport alone. Only while nothing else is under way.
    pub fn kept_alive(&mut self) {
        debug_assert!(self.is_idle());
        self.flights.push_back(Flight::Other);
    }

    /// The oldest work request is done.
    pub fn done(&mut self) {
        match self.flights.pop_front() {
            Some(Flight::Bytes(len)) => self.used -= len,
            Some(Flight::Credits) => self.credits -= 1,
            Some(Flight::Other) | None => {}
        }
    }

    /// Whether everything that was posted is done.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(addr: u64, len: u32) -> Place {
        Place { addr, key: 7, len }
    }

    fn ready(size: usize, slots: usize, credits: u16, len: u32) -> Outgoing {
        let mut out = Outgoing::new(size, slots);
        out.set_limit(credits);
        out.add_place(place(0x1000, len)).unwrap();
        out
    }

    #[test]
    fn nothing_goes_before_the_peer_has_a_place_and_credits() {
        let mut out = Outgoing::new(100, 4);
        assert_eq!((out.transfer(10), out.is_writable()), (None, false));
        out.set_limit(1);
        assert_eq!(out.transfer(10), None);
        out.add_place(place(0, 0)).unwrap();
        assert_eq!(out.transfer(10), None);
        out.add_place(place(0x1000, 50)).unwrap();
        assert!(out.is_writable());
        let went = Transfer { from: [0..10, 0..0], to: place(0x1000, 10), message: Some(Message::Data(10)) };
        assert_eq!((out.transfer(10), out.transfer(10)), (Some(went), None));
    }

    #[test]
    fn credits_are_counted_modulo_65536() {
        let mut out = ready(1 << 20, 1 << 20, 3, u32::MAX);
        let sent = |out: &mut Outgoing| std::iter::from_fn(|| out.transfer(1)).count();
        assert_eq!(sent(&mut out), 3);
        let mut limit = 3u16;
        for more in [20_000, 20_000, 40_000, 0xfffe] {
            limit = limit.wrapping_add(more);
            out.set_limit(limit);
            assert_eq!(sent(&mut out), usize::from(more));
            (0..more).for_each(|_| out.done());
        }
    }

    #[test]
    fn a_place_is_filled_before_the_next_is_used() {
        let mut out = ready(100, 9, 9, 15);
        out.add_place(place(0x2000, 20)).unwrap();
        let to = |t: Option<Transfer>| t.map(|t| (t.to.addr, t.to.len));
        // A peer has no more than two.
        assert_eq!(out.add_place(place(0x3000, 20)), Err(ProtocolError::Places));
        assert_eq!(to(out.transfer(10)), Some((0x1000, 10)));
        assert_eq!(to(out.transfer(10)), Some((0x100a, 5)));
        assert_eq!(out.add_place(place(0x3000, 20)), Ok(()));
        assert_eq!(to(out.transfer(10)), Some((0x2000, 10)));
        assert_eq!(to(out.transfer(100)), Some((0x200a, 10)));
        assert_eq!(to(out.transfer(100)), Some((0x3000, 20)));
        assert_eq!(to(out.transfer(1)), None);
    }

    #[test]
    fn the_ring_wraps_and_is_freed_in_order() {
        let mut out = ready(10, 9, 99, 1000);
        assert_eq!(out.transfer(7).unwrap().from, [0..7, 0..0]);
        assert_eq!(out.transfer(7).unwrap().from, [7..10, 0..0]);
        assert_eq!(out.transfer(7), None);
        out.done();
        assert_eq!(out.transfer(5).unwrap().from, [0..5, 0..0]);
        out.done();
        assert_eq!(out.transfer(9).unwrap().from, [5..10, 0..0]);
        (0..2).for_each(|_| out.done());
        assert_eq!(out.transfer(4).unwrap().from, [0..4, 0..0]);
        assert_eq!(out.transfer(4).unwrap().from, [4..8, 0..0]);
        (0..2).for_each(|_| out.done());
        assert_eq!(out.transfer(4).unwrap().from, [8..10, 0..2]);
        assert!(!out.is_idle());
        out.done();
        assert!(out.is_idle());
    }

    #[test]
    fn the_send_queue_has_an_end_but_room_for_internal_messages() {
        let mut out = ready(100, 2, 99, 1000);
        assert!(out.transfer(1).is_some() && out.transfer(1).is_some());
        assert_eq!((out.transfer(1), out.may_tell_mapping(), out.is_writable()), (None, false, false));
        for _ in 0..CREDIT_MESSAGES {
            assert!(out.may_give_credits());
            out.gave_credits();
        }
        assert!(!out.may_give_credits());
        out.told_end();
        (0..3).for_each(|_| out.done());
        assert!(out.may_give_credits() && !out.is_idle());
        (0..CREDIT_MESSAGES).for_each(|_| out.done());
        assert!(out.is_idle() && out.transfer(1).is_some());
    }

    #[test]
    fn what_goes_into_mapped_memory_takes_no_credit() {
        let mut out = Outgoing::new(100, 2);
        let went = out.direct(place(0x5000, 30)).unwrap();
        assert_eq!((went.to, went.message), (place(0x5000, 30), None));
        assert_eq!(out.direct(place(0x5000, 300)).unwrap().to.len, 70);
        assert_eq!(out.direct(place(0x5000, 1)), None);
    }

    #[test]
    fn places_of_any_kind_do_no_harm() {
        let mut out = Outgoing::new(100, 200);
        out.set_limit(u16::MAX / 2);
        out.add_place(place(u64::MAX - 3, u32::MAX)).unwrap();
        for _ in 0..50 {
            assert_eq!(out.transfer(2).map(|t| t.to.len), Some(2));
        }
        assert_eq!(out.transfer(2), None);
    }

    #[test]
    fn large_writes_are_cut() {
        let mut out = ready(1 << 20, 9, 9, u32::MAX);
        assert_eq!(out.transfer(1 << 20).unwrap().to.len as usize, LARGEST);
    }
}
