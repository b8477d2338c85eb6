//! Tests that random sequences of verbs calls in virtual time complete exactly once, with the expected
//! results: over faulty wires, on all transports, and with sides that stop. Runs with the same seed are
//! identical, end in bounded virtual time, and leave nothing allocated.
//!
//! `URXE_SEEDS=N` runs N seeds (5000), `URXE_SEED=S` just one, with a log. `URXE_BLESS=1` rewrites the golden
//! grid: check its diff before committing it.

#[allow(dead_code, reason = "the test uses a part of the generator")]
#[path = "../support/rng.rs"]
mod rng;

#[path = "simulation/grid.rs"]
mod grid;
#[path = "simulation/scenario.rs"]
mod scenario;
#[path = "simulation/side.rs"]
mod side;
#[path = "simulation/world.rs"]
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v:?} is not a number")))
}

/// Runs a simulation, and checks that nothing stays allocated.
fn run(seed: u64) -> u64 {
    let mut digest = 0;
    let allocated = allocation_counter::measure(|| digest = world::run(seed, false));
    assert_eq!((allocated.count_current, allocated.bytes_current), (0, 0), "seed {seed} leaks memory");
    digest
}

/// Runs a seed; one in eight twice, because nondeterminism would affect almost every seed.
fn run_and_repeat(seed: u64) {
    let digest = run(seed);
    assert!(!seed.is_multiple_of(8) || run(seed) == digest, "seed {seed}: two runs differ");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn random_verbs_calls_complete_exactly_once_and_are_reproducible_from_their_seed() {
    if let Some(seed) = number("URXE_SEED") {
        println!("seed {seed}: {:016x}", world::run(seed, true));
        return;
    }
    let seeds = number("URXE_SEEDS").unwrap_or(5000);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (begin, before, next) = (Instant::now(), open_descriptors(), AtomicU64::new(0));
    let mut failed = std::thread::scope(|scope| {
        let worker = || {
            // The first run of a thread initializes what the thread keeps. If it panics, so does seed 0 below.
            let _ = std::panic::catch_unwind(|| world::run(0, false));
            let mut failed = Vec::new();
            loop {
                match next.fetch_add(1, Ordering::Relaxed) {
                    seed if seed >= seeds => return failed,
                    seed if std::panic::catch_unwind(|| run_and_repeat(seed)).is_err() => failed.push(seed),
                    _ => {}
                }
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    failed.sort();
    assert!(
        failed.is_empty(),
        "{} of {seeds} seeds failed: {failed:?}; repeat the first one with URXE_SEED={}",
        failed.len(),
        failed[0]
    );
    // The other test of this process has a few open.
    let after = open_descriptors();
    assert!(after < before + 100, "{before} descriptors were open before, and {after} after the simulations");
    let rate = begin.elapsed().as_secs_f64() * 1000.0 / seeds as f64;
    println!("{seeds} seeds passed, {rate:.1} s per 1,000 seeds on {workers} processors");
}

#[test]
fn cost_of_transfers_matches_the_golden_grid() {
    let path = concat!(env!("URXE_REPOSITORY"), "/tests/pure/simulation_grid.golden");
    let now = grid::grid();
    if std::env::var_os("URXE_BLESS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    let differences: Vec<_> =
        golden.lines().zip(now.lines()).filter(|(old, new)| old != new).take(20).collect();
    assert!(
        golden == now,
        "the cost of transfers differs from {path}; if the change is intended, rewrite the file with \
         URXE_BLESS=1. First differences (expected, actual): {differences:#?}"
    );
}
