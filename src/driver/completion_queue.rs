//! Completion queues.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use super::cq_ring::{Entry, Place, Ring};
use crate::transport::{Completion, CqId, Instant, PolledSends, WcOpcode, WcStatus};
use crate::wire::{Qpn, RKey};

/// Arming state: no completion raises an event. Arming states are ordered: a larger value covers more
/// completions.
const NOT_ARMED: u8 = 0;
const SOLICITED: u8 = Notify::Solicited as u8;
const ANY: u8 = Notify::Any as u8;

/// Kind of completion to arm a queue for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// The next completion.
    Any = 2,
    /// The next completion that is solicited or reports an error.
    Solicited = 1,
}

/// Listener for a completion queue's events.
pub trait CqListener: Send + Sync {
    /// Called once for each event armed with [`CompletionQueue::arm`].
    fn completion(&self);
}

/// Result of adding a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The completion is in the queue.
    Stored,
    /// The queue was full, so the completion is lost.
    Overflow {
        /// Whether this is the queue's first overflow.
        first: bool,
    },
}

/// Completion queue: the NIC adds completions and the application polls them, from any thread and without
/// locks.
pub struct CompletionQueue {
    id: CqId,
    ring: Ring,
    /// Whether a completion added to a full queue replaces the oldest one, and no overflow is reported.
    pub overwrites: bool,
    overflow: AtomicBool,
    /// Arming state: which completions raise an event.
    armed: AtomicU8,
    /// Number of completions ever added, as of the last event.
    notified: AtomicU64,
    /// Notified of events; set before the queue is shared.
    pub listener: Option<Arc<dyn CqListener>>,
    /// Queue pairs whose send queues have room once their completions are polled; not used by most devices.
    senders: OnceLock<RwLock<HashMap<Qpn, PolledSends>>>,
}

/// A completion with its timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimestampedCompletion {
    /// The completion.
    pub completion: Completion,
    /// Time on the NIC's clock at which the completion was added to its queue.
    pub at: Instant,
}

/// The completion queue has overflowed, so completions are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the completion queue of {capacity} entries has overflowed")]
pub struct CqOverflow {
    /// Capacity of the queue.
    pub capacity: usize,
}

impl CompletionQueue {
    /// Creates a queue with room for `capacity` completions, or for one if `capacity` is 0. Events identify
    /// the queue by `id`.
    ///
    /// # Panics
    /// If `capacity` exceeds 2^31.
    pub fn new(id: CqId, capacity: usize) -> CompletionQueue {
        CompletionQueue {
            id,
            ring: Ring::new(capacity.max(1)),
            overwrites: false,
            overflow: AtomicBool::new(false),
            armed: AtomicU8::new(NOT_ARMED),
            notified: AtomicU64::new(0),
            listener: None,
            senders: OnceLock::new(),
        }
    }

    /// Handle of the queue.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Maximum number of entries.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Changes the capacity, and keeps the queued completions. Must not run concurrently with
    /// [`push`](Self::push).
    ///
    /// # Errors
    /// Number of queued entries, if it exceeds `capacity`.
    pub fn resize(&self, capacity: usize) -> Result<(), usize> {
        self.ring.resize(capacity)
    }

    /// Number of queued entries.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Reports whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reports whether a poll would find neither a completion nor an overflow.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn is_quiet(&self) -> bool {
        self.is_empty() && !self.overflow.load(Ordering::Acquire)
    }

    /// Adds a completion with timestamp `now`, and raises an event if the queue is armed for it.
    pub fn push(&self, now: Instant, completion: Completion) -> Pushed {
        let entry = pack(&completion, now);
        let place = loop {
            match self.ring.push(&entry) {
                Some(place) => break place,
                None if !self.overwrites => {
                    return Pushed::Overflow { first: self.mark_overflow() };
                }
                // Another shard may be about to fill the oldest entry.
                None if self.pop().is_none() => std::thread::yield_now(),
                None => {}
            }
        };
        if self.should_notify(&completion, place) {
            self.notify_listener();
        }
        Pushed::Stored
    }

    /// Records an overflow. Returns whether it is the queue's first.
    pub fn mark_overflow(&self) -> bool {
        !self.overflow.swap(true, Ordering::AcqRel)
    }

    /// Raises an event that covers all completions queued so far.
    fn notify_listener(&self) {
        self.notified.store(self.ring.count(), Ordering::Relaxed);
        if let Some(listener) = &self.listener {
            listener.completion();
        }
    }

    /// Reports whether a completion just added raises an event; if so, disarms the queue.
    fn should_notify(&self, completion: &Completion, place: Place) -> bool {
        // Pairs with the fence in `arm`: a thread that arms and then finds the queue empty is seen here.
        fence(Ordering::SeqCst);
        loop {
            let wish = self.armed.load(Ordering::Relaxed);
            let wanted = match wish {
                NOT_ARMED => false,
                // Another shard's solicited completion may follow this one. It could not be polled before
                // this one was filled, so a thread that armed then has seen an empty queue.
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

    /// Moves up to `max` completions from the queue to the end of `out`, and returns their number.
    ///
    /// # Errors
    /// [`CqOverflow`] once all completions from before the overflow have been polled.
    pub fn poll(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        let before = out.len();
        // Completions that arrive meanwhile are left for the next call; otherwise a call might never end.
        let max = max.min(self.len());
        while out.len() - before < max
            && let Some(entry) = self.pop()
        {
            out.push(entry.completion);
        }
        match out.len() - before {
            0 => self.check_overflow().map(|()| 0),
            n => Ok(n),
        }
    }

    /// Removes and returns the oldest completion, with its timestamp.
    ///
    /// # Errors
    /// [`CqOverflow`] as for [`poll`](Self::poll).
    pub fn take(&self) -> Result<Option<TimestampedCompletion>, CqOverflow> {
        match self.pop() {
            None => self.check_overflow().map(|()| None),
            entry => Ok(entry),
        }
    }

    #[inline]
    fn pop(&self) -> Option<TimestampedCompletion> {
        let entry = unpack(&self.ring.pop()?);
        if let Some(senders) = self.senders.get()
            && !entry.completion.opcode.is_receive()
            && let Some(polled) = senders.read().get(&entry.completion.qpn)
        {
            polled.count();
        }
        Some(entry)
    }

    /// Counts the completions of a queue pair's send queue that are polled from now on.
    pub fn count_polled_sends(&self, qpn: Qpn, polled: PolledSends) {
        self.senders.get_or_init(RwLock::default).write().insert(qpn, polled);
    }

    /// Stops counting the completions of a queue pair that is destroyed.
    pub fn forget_polled_sends(&self, qpn: Qpn) {
        if let Some(senders) = self.senders.get() {
            senders.write().remove(&qpn);
        }
    }

    fn check_overflow(&self) -> Result<(), CqOverflow> {
        // The order matters: completions were lost only after the queue was full.
        let has_overflowed = self.overflow.load(Ordering::Acquire) && self.is_empty();
        if has_overflowed { Err(CqOverflow { capacity: self.capacity() }) } else { Ok(()) }
    }

    /// Arms one event for the next completion of the given kind. Completions already queued raise no event,
    /// so the caller must poll once more after arming, as in verbs.
    pub fn arm(&self, notify: Notify) {
        // `ANY` covers more than `SOLICITED` and stays until an event is raised.
        self.armed.fetch_max(notify as u8, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Arms the queue as hardware does: like [`arm`](Self::arm), but with [`Notify::Any`], completions that
    /// were added while the queue was not armed and that no event has covered raise the event at once.
    pub fn arm_and_report_missed(&self, notify: Notify) {
        self.arm(notify);
        if notify == Notify::Any && self.ring.waits_behind(self.notified.load(Ordering::Relaxed)) {
            // A thread that adds another completion meanwhile may already be raising the event.
            let taken = self.armed.compare_exchange(ANY, NOT_ARMED, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                self.notify_listener();
            }
        }
    }

    /// Reports whether the queue is armed.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != NOT_ARMED
    }

    /// Removes the completions of a destroyed queue pair, as in verbs. Must not run concurrently with
    /// [`push`](Self::push).
    pub fn purge(&self, qpn: Qpn) {
        self.ring.retain(|entry| unpack(entry).completion.qpn != qpn);
    }
}

/// Encodes a completion as a ring entry.
fn pack(c: &Completion, at: Instant) -> Entry {
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

/// Decodes a ring entry.
fn unpack(entry: &Entry) -> TimestampedCompletion {
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
    TimestampedCompletion { completion, at: Instant(at) }
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

    fn queue_with_listener() -> (Arc<Rung>, CompletionQueue) {
        let rung = Arc::new(Rung::default());
        (rung.clone(), CompletionQueue { listener: Some(rung), ..CompletionQueue::new(CqId(1), 8) })
    }

    #[test]
    fn completion_is_unchanged_after_passing_through_the_ring() {
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
        // Sets each field by itself, so that no field replaces another.
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
        let queue = CompletionQueue::new(CqId(1), completions.len());
        for (i, c) in completions.iter().enumerate() {
            assert_eq!(queue.push(Instant(i as u64), *c), Pushed::Stored);
        }
        for (i, completion) in completions.into_iter().enumerate() {
            assert_eq!(queue.take(), Ok(Some(TimestampedCompletion { completion, at: Instant(i as u64) })));
        }
        assert_eq!(queue.take(), Ok(None));
    }

    /// One shard has claimed a slot but not yet filled it, while another shard fills the next slot with a
    /// solicited completion.
    #[test]
    fn solicited_completion_after_an_unfilled_slot_still_raises_the_event() {
        let (_, queue) = queue_with_listener();
        let solicited = Completion { solicited: true, ..EMPTY };
        let first = queue.ring.claim().unwrap();
        assert_eq!(queue.push(Instant(1), solicited), Pushed::Stored);
        queue.arm(Notify::Solicited);
        assert_eq!(queue.take(), Ok(None), "the first place is not filled yet");
        queue.ring.fill(first, &pack(&EMPTY, Instant(1)));
        assert!(queue.should_notify(&EMPTY, first.0));
        assert!(!queue.should_notify(&EMPTY, first.0), "it is asked for once");
    }

    #[test]
    fn overflow_is_reported_after_the_earlier_completions_are_polled() {
        let queue = CompletionQueue::new(CqId(1), 2);
        for _ in 0..2 {
            assert_eq!(queue.push(Instant(1), EMPTY), Pushed::Stored);
        }
        assert_eq!(queue.push(Instant(1), EMPTY), Pushed::Overflow { first: true });
        assert_eq!(queue.push(Instant(1), EMPTY), Pushed::Overflow { first: false });
        assert_eq!(queue.check_overflow(), Ok(()), "two are waiting");
        assert_eq!(queue.poll(8, &mut Vec::new()), Ok(2));
        assert!(!queue.is_quiet());
        assert_eq!(queue.poll(8, &mut Vec::new()), Err(CqOverflow { capacity: 2 }));
        assert_eq!(queue.take(), Err(CqOverflow { capacity: 2 }));
    }

    #[test]
    fn queue_in_overwrite_mode_keeps_the_newest_completions() {
        let queue = CompletionQueue { overwrites: true, ..CompletionQueue::new(CqId(1), 2) };
        for wr_id in 0..5 {
            assert_eq!(queue.push(Instant(1), Completion { wr_id, ..EMPTY }), Pushed::Stored);
        }
        let mut out = Vec::new();
        assert_eq!(queue.poll(8, &mut out), Ok(2));
        assert_eq!(out.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn error_raises_the_event_armed_for_solicited_completions() {
        let (rung, queue) = queue_with_listener();
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
    fn completion_added_before_hardware_style_arming_raises_exactly_one_event() {
        let (rung, queue) = queue_with_listener();
        let rings = || rung.0.load(Ordering::Relaxed);
        queue.arm_and_report_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (0, true), "nothing waits");
        queue.push(Instant(1), EMPTY);
        queue.arm_and_report_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (1, true), "the one that waits has raised its event");
        queue.push(Instant(2), EMPTY);
        queue.push(Instant(3), EMPTY);
        queue.arm_and_report_missed(Notify::Solicited);
        assert_eq!((rings(), queue.is_armed()), (2, true), "nothing was solicited");
        queue.arm_and_report_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (3, false), "the third had raised none");
        queue.push(Instant(4), EMPTY);
        assert_eq!(queue.poll(8, &mut Vec::new()), Ok(4));
        queue.arm_and_report_missed(Notify::Any);
        assert_eq!((rings(), queue.is_armed()), (3, true), "the fourth was taken before");
    }
}
