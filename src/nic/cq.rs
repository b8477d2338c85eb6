use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use super::cq_ring::{Entry, Place, Ring};
use crate::transport::{Completion, CqId, Instant, WcOpcode, WcStatus};
use crate::wire::{Qpn, RKey};

/// No completion raises an event; below the others, of which the larger is the wider wish.
const NOT_ARMED: u8 = 0;
const SOLICITED: u8 = 1;
const ANY: u8 = 2;

/// Which completions raise an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// The next one.
    Any,
    /// The next that the peer marked as solicited, or that is an error.
    Solicited,
}

/// A listener to the events of a completion queue.
pub trait CqListener: Send + Sync {
    /// The event that was asked for by [`CompletionQueue::arm`]; called once for each.
    fn completion(&self);
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// It waits in the queue.
    Stored,
    /// The queue was full.
    Lost {
        /// For the first time.
        first: bool,
    },
}

/// A completion queue: filled by the NIC, emptied by the application, from any thread and without a lock.
pub struct CompletionQueue {
    id: CqId,
    ring: Ring,
    /// A completion that finds it full takes the place of the oldest.
    overwrites: bool,
    overflow: AtomicBool,
    /// Which completion raises an event: 0 for none.
    armed: AtomicU8,
    /// Completions up to the last that raised one.
    told: AtomicU64,
    listener: OnceLock<Arc<dyn CqListener>>,
}

/// A completion and when it was put into its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamped {
    /// What ended.
    pub completion: Completion,
    /// By the NIC's clock.
    pub at: Instant,
}

/// The queue was full when a completion came, so completions are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the completion queue of {capacity} entries has overflowed")]
pub struct CqOverflow {
    /// Its size.
    pub capacity: usize,
}

impl CompletionQueue {
    /// A queue for `capacity` completions, at least one.
    ///
    /// # Panics
    /// Above 2^31.
    pub fn new(capacity: usize) -> CompletionQueue {
        CompletionQueue::numbered(CqId::default(), capacity)
    }

    /// [`new`](Self::new) with a number, by which events name it.
    pub fn numbered(id: CqId, capacity: usize) -> CompletionQueue {
        CompletionQueue {
            id,
            ring: Ring::new(capacity.max(1)),
            overwrites: false,
            overflow: AtomicBool::new(false),
            armed: AtomicU8::new(NOT_ARMED),
            told: AtomicU64::new(0),
            listener: OnceLock::new(),
        }
    }

    /// This queue, but a completion that finds it full takes the place of the oldest; none counts as lost.
    pub fn overwriting(mut self) -> CompletionQueue {
        self.overwrites = true;
        self
    }

    /// Its number.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Entries that it holds at most.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Changes how many entries it holds; those that wait stay. Nothing may be [pushed](Self::push) meanwhile.
    ///
    /// # Errors
    /// How many wait, if those are more.
    pub fn resize(&self, capacity: usize) -> Result<(), usize> {
        self.ring.resize(capacity)
    }

    /// Sets who is told; once, at creation.
    pub fn set_listener(&self, listener: Arc<dyn CqListener>) {
        // The verbs layer calls this once, before the queue is shared; a second call would lose its listener.
        let first = self.listener.set(listener).is_ok();
        debug_assert!(first, "a completion queue has one listener");
    }

    /// Entries waiting.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether none is waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a completion at the time `now`.
    pub fn push(&self, now: Instant, completion: Completion) -> Pushed {
        let entry = pack(&Stamped { completion, at: now });
        let place = loop {
            match self.ring.push(&entry) {
                Some(place) => break place,
                None if !self.overwrites => {
                    return Pushed::Lost { first: !self.overflow.swap(true, Ordering::AcqRel) };
                }
                // Another shard may be about to fill the oldest.
                None if self.ring.pop().is_none() => std::thread::yield_now(),
                None => {}
            }
        };
        if self.is_awaited(&completion, place) {
            self.tell();
        }
        Pushed::Stored
    }

    /// Raises an event, of all that waits.
    fn tell(&self) {
        self.told.store(self.ring.count(), Ordering::Relaxed);
        if let Some(listener) = self.listener.get() {
            listener.completion();
        }
    }

    /// Whether a completion that was just added raises an event; if so, no other does.
    fn is_awaited(&self, completion: &Completion, place: Place) -> bool {
        // Against the order in `arm`: whoever arms and then finds the queue empty is seen here.
        fence(Ordering::SeqCst);
        loop {
            let wish = self.armed.load(Ordering::Relaxed);
            let wanted = match wish {
                NOT_ARMED => false,
                // Behind this one may be another shard's that was asked for, which nobody could take before this one was
                // there: whoever armed then has seen an empty queue.
                SOLICITED => {
                    completion.solicited
                        || completion.status != WcStatus::Success
                        || !self.ring.is_last(place)
                }
                _ => true,
            };
            if !wanted {
                return false;
            }
            let taken = self.armed.compare_exchange(wish, NOT_ARMED, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                return true;
            }
        }
    }

    /// Moves up to `max` completions to the end of `out`; returns how many.
    ///
    /// # Errors
    /// [`CqOverflow`] once all entries from before the overflow are taken.
    pub fn poll(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        let before = out.len();
        // What comes meanwhile is for the next time, or a call might never end.
        let max = max.min(self.len());
        while out.len() - before < max
            && let Some(entry) = self.ring.pop()
        {
            out.push(unpack(&entry).completion);
        }
        match out.len() - before {
            0 => self.check_overflow().map(|()| 0),
            n => Ok(n),
        }
    }

    /// Takes the oldest completion with its time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn take(&self) -> Result<Option<Stamped>, CqOverflow> {
        match self.ring.pop() {
            None => self.check_overflow().map(|()| None),
            Some(entry) => Ok(Some(unpack(&entry))),
        }
    }

    fn check_overflow(&self) -> Result<(), CqOverflow> {
        // In this order: those that were lost came after a queue that was full.
        match self.overflow.load(Ordering::Acquire) && self.is_empty() {
            true => Err(CqOverflow { capacity: self.capacity() }),
            false => Ok(()),
        }
    }

    /// Asks for one event at the next completion of that kind. A completion that is already there raises
    /// none: poll once more after arming, as in verbs.
    pub fn arm(&self, notify: Notify) {
        let wish = match notify {
            Notify::Solicited => SOLICITED,
            Notify::Any => ANY,
        };
        // Asking for any completion is the wider wish; it stays until an event answers it.
        self.armed.fetch_max(wish, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// [`arm`](Self::arm) as hardware does it: a completion that came while nothing was asked for, and still waits, raises
    /// the event at once. One that has raised an event before does not do so again.
    pub fn arm_with_missed(&self, notify: Notify) {
        self.arm(notify);
        if notify == Notify::Any && self.ring.waits_behind(self.told.load(Ordering::Relaxed)) {
            // Whoever adds another one meanwhile may be raising it.
            let taken = self.armed.compare_exchange(ANY, NOT_ARMED, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                self.tell();
            }
        }
    }

    /// Whether the next completion, or the next of a kind, raises an event.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != NOT_ARMED
    }

    /// Forgets the completions of a queue pair that is gone, as destroying it does in verbs. Nothing may be
    /// [pushed](Self::push) meanwhile.
    pub fn purge(&self, qpn: Qpn) {
        self.ring.retain(|entry| unpack(entry).completion.qpn != qpn);
    }
}

/// An entry of the ring.
fn pack(stamped: &Stamped) -> Entry {
    let Stamped { completion: c, at } = stamped;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let flags = [c.solicited, c.grh, c.imm.is_some(), c.invalidated.is_some(), c.over_ipv4];
    let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u32::from(*flag));
    [
        c.wr_id,
        at.0,
        pair(c.status as u32, c.opcode as u32),
        pair(c.byte_len, c.vendor_err),
        pair(c.imm.unwrap_or(0), c.invalidated.map_or(0, |key| key.0)),
        pair(c.qpn.get(), c.src_qpn.get()),
        pair(c.pkey_index.into(), flags),
    ]
}

/// The completion of an entry of the ring.
fn unpack(entry: &Entry) -> Stamped {
    let [wr_id, at, what, lengths, extras, qpns, rest] = *entry;
    let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
    let flag = |bit: u32| high(rest) >> bit & 1 != 0;
    let completion = Completion {
        wr_id,
        status: WcStatus::from_repr(low(what)).expect("a status was packed"),
        opcode: WcOpcode::from_repr(high(what)).expect("an opcode was packed"),
        byte_len: low(lengths),
        vendor_err: high(lengths),
        imm: flag(2).then_some(low(extras)),
        invalidated: flag(3).then_some(RKey(high(extras))),
        qpn: Qpn::new(low(qpns)),
        src_qpn: Qpn::new(high(qpns)),
        pkey_index: low(rest) as u16,
        solicited: flag(0),
        grh: flag(1),
        over_ipv4: flag(4),
    };
    Stamped { completion, at: Instant(at) }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::transport::WcOpcode;
    use crate::wire::Qpn;

    const EMPTY: Completion = Completion {
        wr_id: 0,
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qpn: Qpn::new(0),
        src_qpn: Qpn::new(0),
        vendor_err: 0,
        solicited: false,
        grh: false,
        over_ipv4: false,
        pkey_index: 0,
    };

    #[derive(Default)]
    struct Rung(AtomicU32);

    impl CqListener for Rung {
        fn completion(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_completion_comes_out_as_it_went_in() {
        let all_ones = Completion {
            wr_id: u64::MAX,
            status: WcStatus::RnrRetryExcErr,
            opcode: WcOpcode::RegMr,
            byte_len: u32::MAX,
            imm: Some(u32::MAX),
            invalidated: Some(RKey(u32::MAX)),
            qpn: Qpn::new(0xff_ffff),
            src_qpn: Qpn::new(0xff_fffe),
            vendor_err: 0xffff_fffd,
            solicited: true,
            grh: true,
            over_ipv4: true,
            pkey_index: u16::MAX,
        };
        // Each field by itself, so that none takes another's place.
        let one_by_one: [fn(&mut Completion, &Completion); 13] = [
            |c, o| c.wr_id = o.wr_id,
            |c, o| c.status = o.status,
            |c, o| c.opcode = o.opcode,
            |c, o| c.byte_len = o.byte_len,
            |c, o| c.imm = o.imm,
            |c, o| c.invalidated = o.invalidated,
            |c, o| c.qpn = o.qpn,
            |c, o| c.src_qpn = o.src_qpn,
            |c, o| c.vendor_err = o.vendor_err,
            |c, o| c.solicited = o.solicited,
            |c, o| c.grh = o.grh,
            |c, o| c.over_ipv4 = o.over_ipv4,
            |c, o| c.pkey_index = o.pkey_index,
        ];
        let mut completions = vec![all_ones, EMPTY];
        for set in one_by_one {
            for (from, to) in [(all_ones, EMPTY), (EMPTY, all_ones)] {
                let mut completion = to;
                set(&mut completion, &from);
                assert_ne!(completion, to);
                completions.push(completion);
            }
        }
        let queue = CompletionQueue::new(completions.len());
        for (i, c) in completions.iter().enumerate() {
            assert_eq!(queue.push(Instant(i as u64), *c), Pushed::Stored);
        }
        for (i, completion) in completions.into_iter().enumerate() {
            assert_eq!(queue.take(), Ok(Some(Stamped { completion, at: Instant(i as u64) })));
        }
        assert_eq!(queue.take(), Ok(None));
    }

    /// One shard has claimed a place and is kept from filling it while another fills the next with what is asked for.
    #[test]
    fn what_was_asked_for_is_told_of_though_it_could_not_be_taken_at_first() {
        let (rung, queue) = (Arc::new(Rung::default()), CompletionQueue::new(8));
        queue.set_listener(rung.clone());
        let solicited = Completion { solicited: true, ..EMPTY };
        let first = queue.ring.claim().unwrap();
        assert_eq!(queue.push(Instant(1), solicited), Pushed::Stored);
        queue.arm(Notify::Solicited);
        assert_eq!(queue.take(), Ok(None), "nobody waits for the first");
        queue.ring.fill(first, &pack(&Stamped { completion: EMPTY, at: Instant(1) }));
        assert!(queue.is_awaited(&EMPTY, first.0));
        assert!(!queue.is_awaited(&EMPTY, first.0), "it is asked for once");
    }

    #[test]
    fn an_overflow_is_told_once_all_before_it_are_taken() {
        let queue = CompletionQueue::new(2);
        for _ in 0..2 {
            assert_eq!(queue.push(Instant(1), EMPTY), Pushed::Stored);
        }
        assert_eq!(queue.push(Instant(1), EMPTY), Pushed::Lost { first: true });
        assert_eq!(queue.push(Instant(1), EMPTY), Pushed::Lost { first: false });
        assert_eq!(queue.check_overflow(), Ok(()), "two are waiting");
        assert_eq!(queue.poll(8, &mut Vec::new()), Ok(2));
        assert_eq!(queue.poll(8, &mut Vec::new()), Err(CqOverflow { capacity: 2 }));
        assert_eq!(queue.take(), Err(CqOverflow { capacity: 2 }));
    }

    #[test]
    fn one_that_overwrites_keeps_the_newest() {
        let queue = CompletionQueue::new(2).overwriting();
        for wr_id in 0..5 {
            assert_eq!(queue.push(Instant(1), Completion { wr_id, ..EMPTY }), Pushed::Stored);
        }
        let mut out = Vec::new();
        assert_eq!(queue.poll(8, &mut out), Ok(2));
        assert_eq!(out.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn an_error_answers_the_wish_for_solicited_completions() {
        let (rung, queue) = (Arc::new(Rung::default()), CompletionQueue::new(8));
        queue.set_listener(rung.clone());
        queue.arm(Notify::Solicited);
        let completion = |status, solicited| Completion { status, solicited, ..EMPTY };
        let rings_after = |status, solicited| {
            queue.push(Instant(1), completion(status, solicited));
            rung.0.load(Ordering::Relaxed)
        };
        assert_eq!(rings_after(WcStatus::Success, false), 0);
        assert_eq!(rings_after(WcStatus::LocLenErr, false), 1);
        assert_eq!(rings_after(WcStatus::LocLenErr, true), 1, "it is asked for once");
    }

    #[test]
    fn what_came_unasked_is_told_of_once_when_it_is_asked_for_as_of_hardware() {
        let (rung, queue) = (Arc::new(Rung::default()), CompletionQueue::new(8));
        queue.set_listener(rung.clone());
        let rings = || rung.0.load(Ordering::Relaxed);
        queue.arm_with_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (0, true), "nothing waits");
        queue.push(Instant(1), EMPTY);
        queue.arm_with_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (1, true), "the one that waits has raised its event");
        queue.push(Instant(2), EMPTY);
        queue.push(Instant(3), EMPTY);
        queue.arm_with_missed(Notify::Solicited);
        assert_eq!((rings(), queue.is_armed()), (2, true), "nothing was solicited");
        queue.arm_with_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (3, false), "the third had raised none");
        queue.push(Instant(4), EMPTY);
        assert_eq!(queue.poll(8, &mut Vec::new()), Ok(4));
        queue.arm_with_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (3, true), "the fourth was taken before");
    }
}
