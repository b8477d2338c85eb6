//! Sending half of a connection: decides when data may be sent, from where, and to where. It does no I/O: it
//! takes events and returns the work requests to post.

use std::collections::VecDeque;
use std::ops::Range;

use crate::protocol::{Message, ProtocolError, TARGET_SGL_LEN, TargetSge};

/// Maximum length of an RDMA WRITE, so that the first bytes are in flight while the next ones are copied.
const MAX_WRITE_LEN: usize = 1 << 16;
/// Maximum number of outstanding credit messages.
const CREDIT_MESSAGES: usize = 4;
/// Maximum number of outstanding internal work requests: credit messages, two shutdown messages, and one
/// keepalive write.
pub(crate) const INTERNAL: usize = CREDIT_MESSAGES + 3;

/// An RDMA WRITE to be posted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    /// Ranges of the data in the send buffer, a ring. The second is empty unless the data wraps around.
    pub from: [Range<usize>; 2],
    /// Destination at the peer; `len` is the length of the write.
    pub to: TargetSge,
    /// Message in the immediate data. `None` for a write to mapped memory, which does not notify the peer.
    pub message: Option<Message>,
}

/// An outstanding work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InFlight {
    /// Data that occupies the given number of bytes in the send buffer.
    Bytes(usize),
    /// A credit message, which uses no send buffer space.
    Credits,
    /// Any other message, which uses no send buffer space.
    Other,
}

/// State of the sending half.
#[derive(Default, Debug)]
pub(crate) struct Outgoing {
    /// Size of the send buffer, in bytes.
    size: usize,
    /// Offset of the next data in the send buffer.
    at: usize,
    /// Number of send buffer bytes in use.
    used: usize,
    /// Number of data messages sent, modulo 65536.
    sent: u16,
    /// Total number of data messages that the peer has granted, modulo 65536.
    pub limit: u16,
    /// The peer's targets that still have room; the first one is filled first.
    targets: VecDeque<TargetSge>,
    /// Maximum number of outstanding work requests for data. The queue has additional room for internal
    /// messages.
    slots: usize,
    /// Outstanding work requests, in posting order, which is also the order of completion.
    in_flight: VecDeque<InFlight>,
    /// Number of outstanding credit messages.
    credits: usize,
}

impl Outgoing {
    /// Creates the state for a send buffer of `size` bytes and a send queue of `slots` work requests.
    pub(crate) fn new(size: usize, slots: usize) -> Outgoing {
        Outgoing { size, slots, ..Outgoing::default() }
    }

    /// Adds a target announced by the peer. Ignores a target of length 0.
    ///
    /// # Errors
    /// [`ProtocolError::TooManyTargets`] if the peer announces more targets than it can have.
    pub(crate) fn add_target(&mut self, target: TargetSge) -> Result<(), ProtocolError> {
        if self.targets.len() >= TARGET_SGL_LEN {
            return Err(ProtocolError::TooManyTargets);
        }
        if target.len > 0 {
            self.targets.push_back(target);
        }
        Ok(())
    }

    /// Reports whether a credit for a data message is available. The counters are only compared for equality,
    /// because a peer may grant almost 65536 credits.
    fn has_credit(&self) -> bool {
        self.limit != self.sent
    }

    /// Returns the number of bytes that a single RDMA WRITE of stream data can currently carry.
    pub(crate) fn room(&self) -> usize {
        let target = self.targets.front().map_or(0, |target| target.len as usize);
        if self.has_credit() { target.min(self.ring_room()) } else { 0 }
    }

    /// Returns the number of send buffer bytes that a single RDMA WRITE can currently use.
    fn ring_room(&self) -> usize {
        if self.in_flight.len() < self.slots { (self.size - self.used).min(MAX_WRITE_LEN) } else { 0 }
    }

    /// Reports whether enough data can be sent to justify waking the program.
    pub(crate) fn is_writable(&self) -> bool {
        let min_len =
            self.targets.front().map_or(0, |target| target.len as usize).min(self.size / 4).min(2048);
        self.has_credit() && min_len > 0 && self.ring_room() >= min_len
    }

    /// Allocates the next data message, of at most `len` bytes. Returns `None` if nothing can currently be
    /// sent.
    pub(crate) fn transfer(&mut self, len: usize) -> Option<Transfer> {
        let len = len.min(self.room());
        let target = self.targets.front_mut().filter(|_| len > 0)?;
        let to = TargetSge { len: len as u32, ..*target };
        target.addr = target.addr.wrapping_add(len as u64);
        target.len -= len as u32;
        if target.len == 0 {
            self.targets.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        Some(Transfer { from: self.reserve(len), to, message: Some(Message::Data(len)) })
    }

    /// Allocates an RDMA WRITE of at most `to.len` bytes to memory that the peer has mapped.
    pub(crate) fn direct(&mut self, to: TargetSge) -> Option<Transfer> {
        let len = (to.len as usize).min(self.ring_room());
        let to = TargetSge { len: len as u32, ..to };
        (len > 0).then(|| Transfer { from: self.reserve(len), to, message: None })
    }

    /// Allocates `len` bytes of the send buffer, which must be free.
    fn reserve(&mut self, len: usize) -> [Range<usize>; 2] {
        let first = len.min(self.size - self.at);
        let from = [self.at..self.at + first, 0..len - first];
        self.at = (self.at + len) % self.size;
        self.used += len;
        self.in_flight.push_back(InFlight::Bytes(len));
        from
    }

    /// Reports whether a credit message may be sent. Both ends reserve room in their queues for a few of
    /// them.
    pub(crate) fn can_send_credits(&self) -> bool {
        self.credits < CREDIT_MESSAGES
    }

    /// Records a credit message.
    pub(crate) fn on_credits_sent(&mut self) {
        self.credits += 1;
        self.in_flight.push_back(InFlight::Credits);
    }

    /// Reports whether a mapping may be announced. Like data, the announcement consumes a credit.
    pub(crate) fn can_announce_mapping(&self) -> bool {
        self.has_credit() && self.in_flight.len() < self.slots
    }

    /// Records the announcement of a mapping.
    pub(crate) fn on_mapping_announced(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.in_flight.push_back(InFlight::Other);
    }

    /// Records a shutdown message or a keepalive write. Each end sends at most two shutdown messages; both
    /// ends reserve queue entries for them, so they need no credit. A keepalive write carries no data and
    /// causes no completion at the peer; it is sent only while nothing else is outstanding.
    pub(crate) fn on_other_sent(&mut self) {
        self.in_flight.push_back(InFlight::Other);
    }

    /// Records the completion of the oldest work request.
    pub(crate) fn on_completion(&mut self) {
        match self.in_flight.pop_front() {
            Some(InFlight::Bytes(len)) => self.used -= len,
            Some(InFlight::Credits) => self.credits -= 1,
            Some(InFlight::Other) | None => {}
        }
    }

    /// Reports whether no work request is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(addr: u64, len: u32) -> TargetSge {
        TargetSge { addr, key: 7, len }
    }

    fn ready(size: usize, slots: usize, credits: u16, len: u32) -> Outgoing {
        let mut out = Outgoing::new(size, slots);
        out.limit = credits;
        out.add_target(target(0x1000, len)).unwrap();
        out
    }

    #[test]
    fn nothing_is_sent_without_a_target_or_without_credits() {
        let mut out = Outgoing::new(100, 4);
        assert_eq!((out.transfer(10), out.is_writable()), (None, false));
        out.limit = 1;
        assert_eq!(out.transfer(10), None);
        out.add_target(target(0, 0)).unwrap();
        assert_eq!(out.transfer(10), None);
        out.add_target(target(0x1000, 50)).unwrap();
        assert!(out.is_writable());
        let transfer =
            Transfer { from: [0..10, 0..0], to: target(0x1000, 10), message: Some(Message::Data(10)) };
        assert_eq!((out.transfer(10), out.transfer(10)), (Some(transfer), None));
    }

    #[test]
    fn credits_are_counted_modulo_65536() {
        let mut out = ready(1 << 20, 1 << 20, 3, u32::MAX);
        let sent = |out: &mut Outgoing| std::iter::from_fn(|| out.transfer(1)).count();
        assert_eq!(sent(&mut out), 3);
        let mut limit = 3u16;
        for more in [20_000, 20_000, 40_000, 0xfffe] {
            limit = limit.wrapping_add(more);
            out.limit = limit;
            assert_eq!(sent(&mut out), usize::from(more));
            (0..more).for_each(|_| out.on_completion());
        }
    }

    #[test]
    fn target_is_filled_before_the_next_one_is_used() {
        let mut out = ready(100, 9, 9, 15);
        out.add_target(target(0x2000, 20)).unwrap();
        let to = |t: Option<Transfer>| t.map(|t| (t.to.addr, t.to.len));
        // A peer has at most two targets at a time.
        assert_eq!(out.add_target(target(0x3000, 20)), Err(ProtocolError::TooManyTargets));
        assert_eq!(to(out.transfer(10)), Some((0x1000, 10)));
        assert_eq!(to(out.transfer(10)), Some((0x100a, 5)));
        assert_eq!(out.add_target(target(0x3000, 20)), Ok(()));
        assert_eq!(to(out.transfer(10)), Some((0x2000, 10)));
        assert_eq!(to(out.transfer(100)), Some((0x200a, 10)));
        assert_eq!(to(out.transfer(100)), Some((0x3000, 20)));
        assert_eq!(to(out.transfer(1)), None);
    }

    #[test]
    fn send_buffer_wraps_and_is_freed_in_order() {
        let mut out = ready(10, 9, 99, 1000);
        assert_eq!(out.transfer(7).unwrap().from, [0..7, 0..0]);
        assert_eq!(out.transfer(7).unwrap().from, [7..10, 0..0]);
        assert_eq!(out.transfer(7), None);
        out.on_completion();
        assert_eq!(out.transfer(5).unwrap().from, [0..5, 0..0]);
        out.on_completion();
        assert_eq!(out.transfer(9).unwrap().from, [5..10, 0..0]);
        (0..2).for_each(|_| out.on_completion());
        assert_eq!(out.transfer(4).unwrap().from, [0..4, 0..0]);
        assert_eq!(out.transfer(4).unwrap().from, [4..8, 0..0]);
        (0..2).for_each(|_| out.on_completion());
        assert_eq!(out.transfer(4).unwrap().from, [8..10, 0..2]);
        assert!(!out.is_idle());
        out.on_completion();
        assert!(out.is_idle());
    }

    #[test]
    fn full_send_queue_still_accepts_credit_and_shutdown_messages() {
        let mut out = ready(100, 2, 99, 1000);
        assert!(out.transfer(1).is_some() && out.transfer(1).is_some());
        assert_eq!((out.transfer(1), out.can_announce_mapping(), out.is_writable()), (None, false, false));
        for _ in 0..CREDIT_MESSAGES {
            assert!(out.can_send_credits());
            out.on_credits_sent();
        }
        assert!(!out.can_send_credits());
        out.on_other_sent();
        (0..3).for_each(|_| out.on_completion());
        assert!(out.can_send_credits() && !out.is_idle());
        (0..CREDIT_MESSAGES).for_each(|_| out.on_completion());
        assert!(out.is_idle() && out.transfer(1).is_some());
    }

    #[test]
    fn write_to_mapped_memory_consumes_no_credit() {
        let mut out = Outgoing::new(100, 2);
        let transfer = out.direct(target(0x5000, 30)).unwrap();
        assert_eq!((transfer.to, transfer.message), (target(0x5000, 30), None));
        assert_eq!(out.direct(target(0x5000, 300)).unwrap().to.len, 70);
        assert_eq!(out.direct(target(0x5000, 1)), None);
    }

    #[test]
    fn target_that_exceeds_the_address_space_causes_no_overflow() {
        let mut out = Outgoing::new(100, 200);
        out.limit = u16::MAX / 2;
        out.add_target(target(u64::MAX - 3, u32::MAX)).unwrap();
        for _ in 0..50 {
            assert_eq!(out.transfer(2).map(|t| t.to.len), Some(2));
        }
        assert_eq!(out.transfer(2), None);
    }

    #[test]
    fn large_write_is_split_at_the_maximum_write_length() {
        let mut out = ready(1 << 20, 9, 9, u32::MAX);
        assert_eq!(out.transfer(1 << 20).unwrap().to.len as usize, MAX_WRITE_LEN);
    }
}
