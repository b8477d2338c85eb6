//! Reports of failed work requests and refused requests on standard error, if `URXE_EXPLAIN` is 1
//! (`urxe run --explain`).

use std::sync::{LazyLock, OnceLock};

use urxe::verbs::errors::InjectedError;
use urxe::verbs::explain::Reporter;
use urxe::verbs::{Completion, Context, Cq, WcStatus};

use crate::log::warn;

/// The reporter, once a device is open that is to be explained.
static REPORTER: OnceLock<Reporter> = OnceLock::new();

/// Reports the failures of a device from now on.
pub(crate) fn watch(nic: &Context) {
    let reporter = REPORTER.get_or_init(|| Reporter::new(|report| warn(&report.to_string())));
    if let Err(error) = reporter.watch(nic) {
        warn(&format!("refused requests are not explained: {error}"));
    }
}

/// Reports the failed ones among completions that the program has polled from `cq`.
#[inline]
pub(crate) fn explain(cq: &Cq, completions: &[Completion]) {
    if let Some(reporter) = REPORTER.get() {
        let failed = completions.iter().filter(|c| c.status != WcStatus::Success);
        failed.for_each(|completion| reporter.report_completion(cq, completion));
    }
}

/// Reports that a rule makes a call fail, with `URXE_EXPLAIN`.
pub(crate) fn injected(error: &InjectedError) {
    // A setting that cannot be read is reported when the devices are listed.
    static IS_ENABLED: LazyLock<bool> = LazyLock::new(|| crate::env::explain().unwrap_or(false));
    if *IS_ENABLED {
        warn(&error.line());
    }
}

/// Reports what is still to be reported, at process exit.
pub(crate) fn finish() {
    if let Some(reporter) = REPORTER.get() {
        reporter.finish();
    }
}
