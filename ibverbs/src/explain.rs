//! Reports of failed work requests on standard error, if `URXE_EXPLAIN` is 1 (`urxe run --explain`).

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use urxe::verbs::{Completion, Cq, FailureCause, FailureReport, Qpn, WcStatus};

static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Queue pair and time of the failure that was reported last.
static LAST: Mutex<Option<(Qpn, u64)>> = Mutex::new(None);

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
    let this = Some((failure.qpn, failure.at));
    let is_known = std::mem::replace(&mut *LAST.lock(), this) == this;
    if !report.is_flushed() || !is_known && failure.cause != FailureCause::Modified {
        eprintln!("urxe: {report}");
    }
}
