//! Requirements that only some machines fulfil: tests without them end early and print the reason.

use std::io::Write;

/// Reports whether a test that has this requirement can run. If not, prints the requirement, bypassing the
/// output capture of the test harness.
///
/// # Panics
/// If it cannot and the environment has CI=true.
pub fn is_met(condition: bool, requirement: &str) -> bool {
    if condition {
        return true;
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{requirement}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // A failure to write to standard error must not fail the test.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {requirement}");
    false
}
