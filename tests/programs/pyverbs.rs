//! Test suite of python3-pyverbs, run on the library: no test may fail, and exactly those listed in
//! `pyverbs-skips.txt` must be skipped.
//!
//! Repeated over sockets.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use urxe_test_support::huge_pages;
use urxe_test_support::programs::{Library, Running, addresses, text};

/// Directory in which Debian installs the test suite.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

/// Reports whether a test is generic, rather than specific to one vendor's devices or memory.
fn is_generic(name: &str) -> bool {
    let module = name.split('.').nth(1).unwrap();
    !["mlx5", "efa", "cuda"].iter().any(|vendor| module.contains(vendor))
}

/// Returns the names of the tests that are listed as skipped on this machine.
fn listed() -> BTreeSet<&'static str> {
    let huge_pages = reserved_pages() >= HugePages::ENOUGH;
    let mut skipped = BTreeSet::new();
    let mut condition_in_force = None;
    let lines = include_str!("pyverbs-skips.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some((condition, reason)) = line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
            assert!(!reason.is_empty(), "section {line} has no reason");
            condition_in_force = Some(condition);
            continue;
        }
        let is_here = match condition_in_force.expect("a test is listed before the first section") {
            "always" => true,
            "no-huge-pages" => !huge_pages,
            "no-dma-buf" => !Path::new("/dev/dri/renderD128").exists(),
            other => panic!("unknown condition [{other}]"),
        };
        assert!(!is_here || skipped.insert(line), "{line} is listed twice");
    }
    skipped
}

/// File that contains the number of reserved huge pages.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

fn reserved_pages() -> usize {
    let number = std::fs::read_to_string(HUGE_PAGES).ok();
    number.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

/// Reservation of enough huge pages for the duration of a test, if the process is permitted to reserve them.
struct HugePages {
    previous: usize,
}

impl HugePages {
    /// Maximum number of huge pages that the suite uses at a time.
    const ENOUGH: usize = 16;

    fn reserve() -> HugePages {
        let previous = reserved_pages();
        if previous < Self::ENOUGH {
            let written = std::fs::write(HUGE_PAGES, Self::ENOUGH.to_string());
            println!("{} huge pages ({written:?})", reserved_pages());
        }
        HugePages { previous }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if self.previous < Self::ENOUGH {
            let _ = std::fs::write(HUGE_PAGES, self.previous.to_string());
        }
    }
}

#[test]
fn pyverbs_suite_passes_except_for_listed_skips() {
    assert!(
        Path::new(SUITE).join("run_tests.py").exists(),
        "this test needs {SUITE} (apt-get install python3-pyverbs; dpkg must not exclude /usr/share/doc)"
    );
    let _others_wait = huge_pages::take();
    let _huge_pages = HugePages::reserve();
    let (library, scratch) = (Library::new(), tempfile::tempdir().unwrap());
    let [address, _] = addresses();
    // Debian's Python, which has its modules.
    let mut command = library.program("/usr/bin/python3", &address);
    command
        .arg(concat!(env!("URXE_REPOSITORY"), "/tests/programs/pyverbs/suite.py"))
        .args([Path::new(SUITE), scratch.path()])
        .arg(&address)
        .args(["--dev", "urxe0"]);
    let out = Running::new(command).finish(Duration::from_secs(600));
    let printed = text(&out);
    assert!(out.status.success(), "{:?}\n{printed}", out.status);
    let results: Vec<Vec<&str>> = printed
        .lines()
        .filter_map(|line| Some(line.strip_prefix("RESULT\t")?.split('\t').collect()))
        .collect();
    let names_of =
        |what: &str| results.iter().filter(|fields| fields[0] == what).map(|fields| fields[1]).collect();
    let [passed, skipped, failed] =
        ["passed", "skipped", "failed"].map(|what| -> BTreeSet<&str> { names_of(what) });
    assert!(failed.is_empty(), "failed tests: {failed:#?}\n{printed}");

    let generic = results.iter().filter(|fields| is_generic(fields[1])).count();
    let skipped: BTreeSet<_> = skipped.into_iter().filter(|name| is_generic(name)).collect();
    let listed = listed();
    let unlisted: Vec<_> = skipped.difference(&listed).collect();
    assert!(unlisted.is_empty(), "skipped tests that are not in pyverbs-skips.txt: {unlisted:#?}\n{printed}");
    let stale: Vec<_> = listed.difference(&skipped).collect();
    assert!(stale.is_empty(), "tests in pyverbs-skips.txt that are not skipped: {stale:#?}");
    assert!(listed.len() <= 30, "{} of {generic} are skipped", listed.len());
    assert!(generic >= 170 && passed.len() > 130, "{generic} tests, of which {} passed", passed.len());
}
