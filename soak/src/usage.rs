//! Memory, threads and descriptors of a process, and their bounds.

use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Bounds of a process, about twice what a run of 16 processes uses.
const LIMIT: Usage = Usage { resident: 256 << 20, threads: 16, descriptors: 400 };

/// Time after which memory of a process should no longer grow.
const WARM_UP: Duration = Duration::from_secs(20);

/// Growth after [`WARM_UP`] that is allowed, in addition to half of the memory then in use.
const GROWTH: u64 = 32 << 20;

/// Memory, threads and descriptors of a process.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Resident memory in bytes.
    pub resident: u64,
    pub threads: u64,
    pub descriptors: u64,
}

impl Usage {
    /// Returns the usage of a process; `None` if it has ended.
    fn of(pid: i32) -> Option<Usage> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        Some(Usage {
            resident: field("VmRSS:")? << 10,
            threads: field("Threads:")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
        })
    }

    /// Raises each value to that of `other`.
    pub fn raise(&mut self, other: Usage) {
        self.resident = self.resident.max(other.resident);
        self.threads = self.threads.max(other.threads);
        self.descriptors = self.descriptors.max(other.descriptors);
    }
}

/// Usage of one process over its life.
pub struct Monitor {
    since: Instant,
    /// Maximum during [`WARM_UP`].
    warm: Usage,
}

impl Monitor {
    pub fn new() -> Monitor {
        Monitor { since: Instant::now(), warm: Usage::default() }
    }

    /// Measures the process, raises `peak`, and compares the usage with the bounds.
    ///
    /// # Errors
    /// The text of a violation.
    pub fn check(&mut self, pid: i32, peak: &mut Usage) -> Result<(), String> {
        let Some(usage) = Usage::of(pid) else { return Ok(()) };
        peak.raise(usage);
        if self.since.elapsed() < WARM_UP {
            self.warm.raise(usage);
        }
        check(usage, self.warm)
    }
}

fn check(usage: Usage, warm: Usage) -> Result<(), String> {
    let bounds = [
        ("bytes of memory", usage.resident, LIMIT.resident.min(warm.resident * 3 / 2 + GROWTH)),
        ("threads", usage.threads, LIMIT.threads),
        ("descriptors", usage.descriptors, LIMIT.descriptors),
    ];
    match bounds.into_iter().find(|(_, used, bound)| used > bound) {
        Some((what, used, bound)) => Err(format!("{used} {what} are in use, more than {bound}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_after_the_warm_up_and_too_many_descriptors_are_found() {
        let warm = Usage { resident: 20 << 20, threads: 6, descriptors: 40 };
        assert_eq!(check(warm, warm), Ok(()));
        let grown = Usage { resident: 63 << 20, ..warm };
        assert!(check(grown, warm).unwrap_err().contains("bytes of memory"));
        assert!(check(Usage { descriptors: 401, ..warm }, warm).unwrap_err().contains("401 descriptors"));
    }

    #[test]
    fn usage_of_this_process_is_measured() {
        let usage = Usage::of(std::process::id() as i32).unwrap();
        assert!(usage.resident > 0 && usage.threads > 0 && usage.descriptors > 2, "{usage:?}");
    }
}
