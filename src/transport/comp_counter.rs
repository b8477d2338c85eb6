//! Completion counters: counts of completed and failed operations, which an application reads without polling
//! for completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bitflags::bitflags;

use super::{QpState, WrOp};

bitflags! {
    /// Operations that a completion counter counts, with the bits of `enum ibv_qp_attach_comp_cntr_op`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CountedOps: u32 {
        /// Completed SENDs.
        const SEND = 1 << 0;
        /// Completed receives.
        const RECV = 1 << 1;
        /// Completed READs.
        const READ = 1 << 2;
        /// The peer's READs, each of which is counted when its last response is queued.
        const REMOTE_READ = 1 << 3;
        /// Completed WRITEs.
        const WRITE = 1 << 4;
        /// The peer's WRITEs, each of which is counted when its last packet is executed.
        const REMOTE_WRITE = 1 << 5;
    }
}

impl CountedOps {
    /// Returns the operation of a posted work request; empty for those that no counter counts.
    pub(super) fn of(op: &WrOp) -> CountedOps {
        match op {
            WrOp::Send | WrOp::SendWithImm(_) | WrOp::SendWithInv(_) => CountedOps::SEND,
            WrOp::Write { .. } | WrOp::WriteWithImm { .. } => CountedOps::WRITE,
            WrOp::Read { .. } => CountedOps::READ,
            _ => CountedOps::empty(),
        }
    }
}

/// Unit in which a completion counter counts successful operations. Failures are always counted in
/// operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CountUnit {
    /// Operations.
    #[default]
    Operations,
    /// Bytes of payload.
    Bytes,
}

/// A completion counter (`ibv_comp_cntr`). The handle is cheap to clone. It counts the operations of each
/// queue pair to which it is attached, signaled or not.
///
/// ```
/// # use std::time::Duration;
/// use urxe::verbs::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::new();
/// # let (a, b) = (TestEndpoint::new(Context::on_fabric(&fabric)?)?, TestEndpoint::new(Context::on_fabric(&fabric)?)?);
/// let (sends, bytes) = (CompCounter::new(CountUnit::Operations), CompCounter::new(CountUnit::Bytes));
/// a.qp.attach_counter(&sends, CountedOps::SEND)?;
/// b.qp.attach_counter(&bytes, CountedOps::RECV)?;
/// a.connect(&b, &ConnectOptions::default())?;
/// b.qp.post_recv(&RecvWr::empty(1))?;
/// a.qp.post_send(&SendWr::send(2, &[]))?;
/// a.cq.wait(Duration::from_secs(5))?;
/// assert_eq!((sends.completed(), bytes.completed()), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CompCounter(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    unit: CountUnit,
    completed: AtomicU64,
    failed: AtomicU64,
    /// Number of attachments to queue pairs.
    attachments: AtomicUsize,
}

impl CompCounter {
    /// Creates a counter whose values are both 0.
    pub fn new(unit: CountUnit) -> CompCounter {
        CompCounter(Arc::new(Inner { unit, ..Inner::default() }))
    }

    /// Returns the number of operations completed successfully, or of their bytes.
    pub fn completed(&self) -> u64 {
        self.0.completed.load(Ordering::Acquire)
    }

    /// Returns the number of failed operations, including flushed ones.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Acquire)
    }

    /// Sets the value of [`completed`](Self::completed).
    pub fn set_completed(&self, value: u64) {
        self.0.completed.store(value, Ordering::Release);
    }

    /// Sets the value of [`failed`](Self::failed).
    pub fn set_failed(&self, value: u64) {
        self.0.failed.store(value, Ordering::Release);
    }

    /// Adds to the value of [`completed`](Self::completed), which wraps around.
    pub fn add_completed(&self, amount: u64) {
        self.0.completed.fetch_add(amount, Ordering::AcqRel);
    }

    /// Adds to the value of [`failed`](Self::failed), which wraps around.
    pub fn add_failed(&self, amount: u64) {
        self.0.failed.fetch_add(amount, Ordering::AcqRel);
    }

    /// Reports whether the counter is attached to a queue pair.
    pub fn is_attached(&self) -> bool {
        self.0.attachments.load(Ordering::Acquire) > 0
    }
}

/// Reason why a completion counter was not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachCounterError {
    /// The queue pair is in the given state.
    #[error("a completion counter can be attached in RESET and INIT, but the queue pair is in {0}")]
    State(QpState),
    /// The set of operations is empty or has unknown bits.
    #[error("the operations {0:#x} are none that a completion counter counts: give some of 0x3f")]
    Operations(u32),
    /// Another counter counts some of the operations.
    #[error("another completion counter of the queue pair already counts {0:?}")]
    Occupied(CountedOps),
}

/// Attachment of a counter to a queue pair, ended on drop.
#[derive(Debug)]
struct Attachment {
    counter: CompCounter,
    ops: CountedOps,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.counter.0.attachments.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The counters attached to a queue pair.
#[derive(Debug, Default)]
pub(super) struct OpCounters(Vec<Attachment>);

impl OpCounters {
    /// Attaches a counter.
    ///
    /// # Errors
    /// [`AttachCounterError`].
    pub fn attach(
        &mut self,
        counter: &CompCounter,
        ops: CountedOps,
        state: QpState,
    ) -> Result<(), AttachCounterError> {
        if ops.is_empty() || !CountedOps::all().contains(ops) {
            return Err(AttachCounterError::Operations(ops.bits()));
        }
        if !matches!(state, QpState::Reset | QpState::Init) {
            return Err(AttachCounterError::State(state));
        }
        let taken = self.0.iter().fold(CountedOps::empty(), |all, one| all | one.ops) & ops;
        if !taken.is_empty() {
            return Err(AttachCounterError::Occupied(taken));
        }
        counter.0.attachments.fetch_add(1, Ordering::AcqRel);
        self.0.push(Attachment { counter: counter.clone(), ops });
        Ok(())
    }

    /// Counts an operation that completed with the given number of bytes.
    #[inline]
    pub fn completed(&self, op: CountedOps, bytes: u32) {
        // Most queue pairs have no counters.
        if !self.0.is_empty() {
            self.count(op, |counter| match counter.0.unit {
                CountUnit::Operations => counter.add_completed(1),
                CountUnit::Bytes => counter.add_completed(bytes.into()),
            });
        }
    }

    /// Counts a failed operation.
    pub fn failed(&self, op: CountedOps) {
        self.count(op, |counter| counter.add_failed(1));
    }

    #[cold]
    fn count(&self, op: CountedOps, count: impl Fn(&CompCounter)) {
        // Each operation has at most one counter.
        self.0.iter().filter(|one| one.ops.intersects(op)).for_each(|one| count(&one.counter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_has_at_most_one_counter_and_a_dropped_queue_pair_detaches_it() {
        let [first, second] = [CountUnit::Operations, CountUnit::Bytes].map(CompCounter::new);
        let mut counters = OpCounters::default();
        counters.attach(&first, CountedOps::SEND | CountedOps::WRITE, QpState::Reset).unwrap();
        let both = CountedOps::WRITE | CountedOps::READ;
        let refused = counters.attach(&second, both, QpState::Init);
        assert_eq!(refused, Err(AttachCounterError::Occupied(CountedOps::WRITE)));
        let refused = counters.attach(&second, CountedOps::READ, QpState::Rtr);
        assert_eq!(refused, Err(AttachCounterError::State(QpState::Rtr)));
        for bits in [0, 1 << 6] {
            let refused = counters.attach(&second, CountedOps::from_bits_retain(bits), QpState::Init);
            assert_eq!(refused, Err(AttachCounterError::Operations(bits)));
        }
        assert!(!second.is_attached());
        counters.attach(&second, CountedOps::READ, QpState::Init).unwrap();
        for op in
            [CountedOps::SEND, CountedOps::WRITE, CountedOps::READ, CountedOps::RECV, CountedOps::empty()]
        {
            counters.completed(op, 100);
            counters.failed(op);
        }
        assert_eq!((first.completed(), first.failed()), (2, 2));
        assert_eq!((second.completed(), second.failed()), (100, 1));
        assert!(first.is_attached() && second.is_attached());
        drop(counters);
        assert!(!first.is_attached() && !second.is_attached());
    }
}
