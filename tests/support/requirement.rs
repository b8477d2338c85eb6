//! Requirements that only some machines meet; a test whose requirement is not met prints the reason and ends
//! early.

use std::io::Write;

/// Reports whether a test can run because `condition` holds. If it does not, prints the requirement,
/// bypassing the test harness's output capture.
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
