//! Errors of calls that fault rules make fail.

use std::io;

/// Error of a call in place of its execution, by a fault rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} ({call}, by the fault rule '{rule}')", io::Error::from_raw_os_error(*errno))]
pub struct InjectedError {
    /// `errno` value with which the call fails.
    pub errno: i32,
    /// Name of the call in the C library.
    pub call: &'static str,
    /// Text of the rule.
    pub rule: &'static str,
}
