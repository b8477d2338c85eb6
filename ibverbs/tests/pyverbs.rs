//! The test-suite of python3-pyverbs on the library: nothing fails, and what is skipped is what `pyverbs-skips.txt` lists.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use support::{Library, Running, addresses, text};

/// Where Debian has it.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

/// Whether a test is of this library: not of devices of one make, nor of memory of one.
fn is_generic(name: &str) -> bool {
    let module = name.split('.').nth(1).unwrap();
    !["mlx5", "efa", "cuda"].iter().any(|make| module.contains(make))
}

/// Names of tests that are to be skipped here, and of those that wait for a connection manager.
fn listed() -> (BTreeSet<&'static str>, BTreeSet<&'static str>) {
    let huge_pages = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").is_ok_and(|n| n.trim() != "0");
    let (mut skipped, mut waiting) = (BTreeSet::new(), BTreeSet::new());
    let mut when = None;
    let lines = include_str!("pyverbs-skips.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some((condition, why)) = line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
            assert!(!why.is_empty(), "{line} says no reason");
            when = Some(condition);
            continue;
        }
        let (is_here, of) = match when.expect("tests come after the reason") {
            "always" => (true, &mut skipped),
            "no-huge-pages" => (!huge_pages, &mut skipped),
            "no-dma-buf" => (!Path::new("/dev/dri/renderD128").exists(), &mut skipped),
            "before-cm" => (true, &mut waiting),
            other => panic!("[{other}] is no condition"),
        };
        assert!(!is_here || of.insert(line), "{line} is listed twice");
    }
    (skipped, waiting)
}

#[test]
fn the_suite_of_pyverbs() {
    assert!(
        Path::new(SUITE).join("run_tests.py").exists(),
        "this test needs {SUITE} (apt-get install python3-pyverbs; where dpkg leaves out /usr/share/doc, let it have that)"
    );
    let (library, scratch) = (Library::new(), tempfile::tempdir().unwrap());
    let [address, _] = addresses();
    // That of Debian, which has its modules.
    let mut command = library.program("/usr/bin/python3", &address);
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pyverbs/suite.py"))
        .args([Path::new(SUITE), scratch.path()])
        .args(["--dev", "urxe0"]);
    let out = Running::new(command).finish(Duration::from_secs(115));
    let told = text(&out);
    assert!(out.status.success(), "{:?}\n{told}", out.status);
    let results: Vec<Vec<&str>> =
        told.lines().filter_map(|line| Some(line.strip_prefix("RESULT\t")?.split('\t').collect())).collect();
    let of = |what: &str| results.iter().filter(|fields| fields[0] == what).map(|fields| fields[1]).collect();
    let [passed, skipped, failed] =
        ["passed", "skipped", "failed"].map(|what| -> BTreeSet<&str> { of(what) });
    assert!(failed.is_empty(), "{failed:#?} failed:\n{told}");

    let generic = results.iter().filter(|fields| is_generic(fields[1])).count();
    let skipped: BTreeSet<_> = skipped.into_iter().filter(|name| is_generic(name)).collect();
    let (listed, waiting) = listed();
    let all: BTreeSet<_> = listed.union(&waiting).copied().collect();
    let unlisted: Vec<_> = skipped.difference(&all).collect();
    assert!(unlisted.is_empty(), "skipped, and not in the list: {unlisted:#?}\n{told}");
    let stale: Vec<_> = all.difference(&skipped).collect();
    assert!(stale.is_empty(), "in the list, and not skipped any more: {stale:#?}");
    assert!(listed.len() <= 30, "{} of {generic} are skipped", listed.len());
    assert!(generic >= 170 && passed.len() > 130, "{generic} tests, of which {} passed", passed.len());
}
