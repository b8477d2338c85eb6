//! Warnings of configurations that cause trouble later: each kind once for a device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::memory::Access;
use crate::transport::{PostError, QpAttr, QpState, QpType};
use crate::wire::Qpn;

/// Total time of all retries from which on a timeout is warned of.
const LONG: Duration = Duration::from_secs(3600);

/// Defines the kinds of warnings, each with its name and consequence.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $consequence:literal)*) => {
        /// Kind of a [`Warning`].
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum WarningKind { $($(#[$doc])* $kind,)* }

        impl WarningKind {
            /// Returns all kinds.
            pub fn all() -> impl Iterator<Item = WarningKind> {
                [$(WarningKind::$kind),*].into_iter()
            }

            /// Returns the name, such as `retry-cnt-zero`.
            pub fn name(self) -> &'static str {
                match self { $(WarningKind::$kind => $name,)* }
            }

            /// Returns the consequence of the configuration, and the remedy.
            pub fn consequence(self) -> &'static str {
                match self { $(WarningKind::$kind => $consequence,)* }
            }
        }
    };
}

kinds! {
    /// `min_rnr_timer` is 0, the longest wait, and RNR retries are unlimited.
    RnrTimerZero "rnr-timer-zero"
        "code 0 stands for 655.36 ms, so a message without a receive stalls the connection that long, \
         without end: choose a code from 1 to 31"
    /// `timeout` is 0, which stands for infinity.
    AckTimeoutInfinite "ack-timeout-infinite"
        "code 0 stands for infinity, so a lost packet or a dead peer may never be noticed: choose a \
         code from 1 to 31"
    /// All retries together take an hour or more.
    AckTimeoutHours "ack-timeout-hours"
        "a dead peer is noticed only after that time: lower timeout or retry_cnt"
    /// `retry_cnt` is 0.
    RetryCntZero "retry-cnt-zero"
        "a single lost packet fails the connection: choose a retry_cnt from 1 to 7"
    /// `rnr_retry` is 0.
    RnrRetryZero "rnr-retry-zero"
        "a message for which the peer has no receive yet fails the connection: choose an rnr_retry \
         from 1 to 7"
    /// A message arrived at a queue pair to which no receive has ever been posted.
    ReceiveQueueEmpty "receive-queue-empty"
        "messages of the peer are refused until a receive is posted: post receives before RTR"
    /// `max_dest_rd_atomic` is 0, although the peer may READ or execute atomics.
    RdAtomicZero "rd-atomic-zero"
        "READs and atomics of the peer fail: raise max_dest_rd_atomic"
    /// A work request had more inline data than the queue pair accepts.
    InlineLimit "inline-limit"
        "such work requests are rejected: raise max_inline_data, or use registered memory"
    /// A completion queue is smaller than the queues in use that complete to it.
    CqOverrun "cq-overrun"
        "a completion may be lost, which moves the QP to the error state: create a larger completion \
         queue"
    /// Packets were dropped because a ring in shared memory is required
    /// ([`SharedMemory::Require`](crate::broker::SharedMemory::Require)), and there was none.
    RingMissing "ring-missing"
        "connections to that process fail: start it with shared memory too, as the same user, or \
         choose shared memory `auto`"
}

/// Warning of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Warning {
    /// Kind.
    pub kind: WarningKind,
    /// First object that has the configuration, with its values.
    pub detail: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.kind.name(), self.detail, self.kind.consequence())
    }
}

pub(super) type Callback = Arc<dyn Fn(&Warning) + Send + Sync>;

/// Warnings of a device.
#[derive(Default)]
pub(super) struct Warnings {
    /// Kinds that have been raised, a bit for each.
    raised: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    warnings: Vec<Warning>,
    callbacks: Vec<Callback>,
}

impl Warnings {
    /// Raises a warning unless its kind has been raised. The caller holds no lock, because callbacks run.
    #[cold]
    pub fn raise(&self, kind: WarningKind, detail: impl FnOnce() -> String) {
        let bit = 1 << kind as u32;
        if self.raised.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let warning = Warning { kind, detail: detail() };
        let mut state = self.state.lock();
        state.warnings.push(warning.clone());
        let callbacks = state.callbacks.clone();
        drop(state);
        callbacks.iter().for_each(|callback| callback(&warning));
    }

    /// Checks the attributes of a queue pair that has entered RTR or RTS.
    pub fn check_qp(&self, qp_type: QpType, attr: &QpAttr, qp: Qpn) {
        let access = attr.access.unwrap_or(Access::LOCAL_READ);
        let reads = access.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        let depth = (attr.state, attr.max_dest_rd_atomic);
        if qp_type == QpType::Rc && reads && depth == (Some(QpState::Rtr), Some(0)) {
            let detail = || format!("QP {qp} permits {access} with max_dest_rd_atomic 0");
            self.raise(WarningKind::RdAtomicZero, detail);
        }
        let (Some(QpState::Rts), QpType::Rc | QpType::XrcSend) = (attr.state, qp_type) else { return };
        let (Some(timeout), Some(retry_cnt), Some(rnr_retry)) =
            (attr.timeout, attr.retry_cnt, attr.rnr_retry)
        else {
            return;
        };
        match timeout.duration() {
            None => self.raise(WarningKind::AckTimeoutInfinite, || format!("QP {qp} has timeout 0")),
            Some(each) => {
                let total = each * (u32::from(retry_cnt) + 1);
                if total >= LONG {
                    let hours = total.as_secs_f64() / 3600.0;
                    let detail = || {
                        format!(
                            "QP {qp} has timeout {} and retry_cnt {retry_cnt}, {hours:.1} hours",
                            timeout.code()
                        )
                    };
                    self.raise(WarningKind::AckTimeoutHours, detail);
                }
            }
        }
        if retry_cnt == 0 {
            self.raise(WarningKind::RetryCntZero, || format!("QP {qp} has retry_cnt 0"));
        }
        if rnr_retry == 0 {
            self.raise(WarningKind::RnrRetryZero, || format!("QP {qp} has rnr_retry 0"));
        }
        if rnr_retry == 7 && attr.min_rnr_timer.is_some_and(|timer| timer.code() == 0) {
            self.raise(WarningKind::RnrTimerZero, || format!("QP {qp} has min_rnr_timer 0 and rnr_retry 7"));
        }
    }

    /// Checks why a work request was rejected.
    pub fn check_post(&self, error: &PostError, qp: Qpn) {
        if let PostError::InlineTooLong { got, max } = error {
            let detail =
                || format!("{got} bytes of inline data were posted to QP {qp}, whose limit is {max}");
            self.raise(WarningKind::InlineLimit, detail);
        }
    }

    /// Checks the size of a completion queue to which work requests complete.
    pub fn check_cq(&self, capacity: u64, work_requests: u64) {
        if capacity < work_requests {
            let detail = || {
                format!(
                    "a completion queue holds {capacity} completions of up to {work_requests} work requests"
                )
            };
            self.raise(WarningKind::CqOverrun, detail);
        }
    }

    /// Reports whether a kind has been raised.
    pub fn has_raised(&self, kind: WarningKind) -> bool {
        self.raised.load(Ordering::Relaxed) & 1 << kind as u32 != 0
    }

    /// Returns the warnings raised so far.
    pub fn all(&self) -> Vec<Warning> {
        self.state.lock().warnings.clone()
    }

    /// Calls `callback` for the warnings raised so far and for all later ones.
    pub fn add_callback(&self, callback: Callback) {
        let mut state = self.state.lock();
        state.callbacks.push(callback.clone());
        let raised = state.warnings.clone();
        drop(state);
        raised.iter().for_each(|warning| callback(warning));
    }
}
