//! Reports of failures: as texts, and on standard error if the variable `URXE_EXPLAIN` is 1.

use std::env;
use std::sync::LazyLock;

use urxe::verbs::explain::Reporter;
use urxe::verbs::{Completion, Context, Cq};

/// The reporter, if failures are printed.
static REPORTER: LazyLock<Option<Reporter>> = LazyLock::new(|| {
    let is_enabled = env::var("URXE_EXPLAIN").is_ok_and(|value| value == "1");
    is_enabled.then(|| Reporter::new(|report| eprintln!("{report}")))
});

/// Prints the failures of a device from now on, if the variable is set.
pub(crate) fn watch(context: &Context) {
    if let Some(reporter) = &*REPORTER
        && let Err(error) = reporter.watch(context)
    {
        eprintln!("refused requests are not explained: {error}");
    }
}

/// Prints a failed completion that the program has taken, if the variable is set.
pub(crate) fn completion(cq: &Cq, completion: &Completion) {
    if let Some(reporter) = &*REPORTER {
        reporter.report_completion(cq, completion);
    }
}
