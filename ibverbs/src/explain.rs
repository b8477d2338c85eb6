//! Reports of failed work requests on standard error, if `URXE_EXPLAIN` is 1 (`urxe run --explain`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use urxe::verbs::explain::{FailureCause, FailureReport};
use urxe::verbs::{Completion, Cq, Qpn, WcStatus};

use crate::log::warn;

/// Number of failures that are remembered.
const REMEMBERED: usize = 64;

static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Queue pair and time of a failure.
type Failure = (Qpn, u64);

/// The newest failures found in completions, oldest first.
static FAILURES: Mutex<VecDeque<Failure>> = Mutex::new(VecDeque::new());

/// Adds a failure. Returns whether it is new.
fn add(failures: &mut VecDeque<Failure>, failure: Failure) -> bool {
    let is_new = !failures.contains(&failure);
    if is_new {
        if failures.len() == REMEMBERED {
            failures.pop_front();
        }
        failures.push_back(failure);
    }
    is_new
}

/// Switches the reports on.
pub(crate) fn enable() {
    IS_ENABLED.store(true, Ordering::Relaxed);
}

/// Reports the failed ones among completions that the program has polled from `cq`.
#[inline]
pub(crate) fn explain(cq: &Cq, completions: &[Completion]) {
    if IS_ENABLED.load(Ordering::Relaxed) {
        completions.iter().filter(|c| c.status != WcStatus::Success).for_each(|c| report(cq, c));
    }
}

/// Reports a failed completion. The work requests that are flushed after it are not reported, nor are those
/// that the program itself flushed.
fn report(cq: &Cq, completion: &Completion) {
    let Some(report) = cq.explain(completion) else { return };
    let FailureReport { failure, .. } = &report;
    let is_new = add(&mut FAILURES.lock(), (failure.qpn, failure.at));
    if !report.is_flushed() || is_new && failure.cause != FailureCause::Modified {
        warn(&report.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_several_queue_pairs_are_remembered_and_the_oldest_is_forgotten() {
        let mut failures = VecDeque::new();
        let mut add = |qpn: u32, at| super::add(&mut failures, (Qpn::new(qpn), at));
        assert_eq!([add(1, 10), add(2, 20), add(1, 10), add(2, 20)], [true, true, false, false]);
        assert!(add(1, 11), "a queue pair may fail again after a reset");
        for qpn in 3..REMEMBERED as u32 + 1 {
            assert!(add(qpn, 30));
        }
        assert!(add(1, 10));
        assert!(!add(1, 11));
    }
}
