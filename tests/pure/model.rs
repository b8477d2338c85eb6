//! Tests that run random sequences of verbs calls for all services over a faulty wire, and over rings in
//! shared memory, and check them against a reference model: every completion is correct, in order and
//! generated exactly once; memory has the predicted contents; no queue pair hangs; after an error all work
//! requests are flushed.
//!
//! `URXE_SEEDS` sets the number of seeds (default 20,000 over the wire, 5,000 over rings), `URXE_SEED` runs a
//! single one.

mod check;
mod exchange;
mod faults;
mod grants;
mod lifecycle;
mod memory;
mod plan;
mod program;
mod receives;
mod rings;
mod unreliable;
mod wire;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use plan::{Carrier, Params};
use proptest::prelude::*;
use urxe::transport::{AckRequests, Quirks};
use urxe_test_support::ring;
use wire::Faults;
use world::run;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v:?} is not a number")))
}

/// Returns the random parameters of a seed.
fn over_wire(seed: u64) -> Params {
    Params::of(seed)
}

/// Returns the random parameters of a seed, with rings in place of the wire.
fn over_rings(seed: u64) -> Params {
    Params { carrier: Carrier::Rings, ..Params::of(seed) }
}

/// Runs the test with a seed, and prints the seed if the test panics.
fn run_seed(seed: u64, params: fn(u64) -> Params) -> u32 {
    struct SeedReport(u64);
    impl Drop for SeedReport {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("\nseed {0} failed; repeat it with URXE_SEED={0}", self.0);
            }
        }
    }
    let _report = SeedReport(seed);
    run(seed, &params(seed))
}

/// Runs the seeds that the environment selects, by default those below `count`. Returns whether these were at
/// least `count`.
fn run_seeds(count: u64, params: fn(u64) -> Params) -> bool {
    if let Some(seed) = env("URXE_SEED") {
        run_seed(seed, params);
        return false;
    }
    let seeds = env("URXE_SEEDS").unwrap_or(count);
    let start = std::time::Instant::now();
    let next = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        seed if seed < seeds => run_seed(seed, params),
                        _ => return,
                    };
                }
            });
        }
    });
    println!("{:.0} seeds/s", seeds as f64 / start.elapsed().as_secs_f64());
    seeds >= count
}

#[test]
fn results_of_random_verbs_calls_match_the_model() {
    run_seeds(20_000, over_wire);
}

#[test]
fn results_of_random_verbs_calls_match_the_model_over_rings_in_shared_memory() {
    if run_seeds(5_000, over_rings) {
        ring::check_that_everything_happened();
    }
}

#[test]
fn same_seed_gives_the_same_packets() {
    for params in [over_wire, over_rings] {
        for seed in 0..40 {
            assert_eq!(run_seed(seed, params), run_seed(seed, params), "seed {seed}");
        }
        assert_ne!(run_seed(1, params), run_seed(2, params));
    }
}

fn carrier() -> impl Strategy<Value = Carrier> {
    let faults = (0u64..20, 0u64..20, 0u64..30, 0u64..10);
    let faults = faults.prop_map(|(loss, dup, reorder, corrupt)| Faults { loss, dup, reorder, corrupt });
    prop_oneof![3 => faults.prop_map(Carrier::Wire), 1 => Just(Carrier::Rings)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn results_of_random_verbs_calls_match_the_model_over_any_carrier(
        seed: u64,
        carrier in carrier(),
        mtu in 0usize..5,
        window in 300usize..100_000,
        read_chunk in 1u32..40_000,
        ack_silence_us in 0u64..2_000,
        turn in 1usize..64,
        (rc, uc, ud, xrc) in (0usize..4, 0usize..3, 0usize..6, 0usize..3),
        share: bool,
        errors: bool,
        ipv6: bool,
        credits: bool,
        equal_packets: bool,
        selective_repeat: bool,
        tail_loss_probes: bool,
        signaled: bool,
    ) {
        let equal_packets = equal_packets && !errors;
        let ack_requests = match (tail_loss_probes, signaled) {
            (true, _) => AckRequests::Needed,
            (false, true) => AckRequests::Signaled,
            (false, false) => AckRequests::Messages,
        };
        let quirks = Quirks {
            credits,
            equal_packets,
            selective_repeat,
            ack_requests,
            tail_loss_probes,
            send_slots_until_polled: false,
            ..Quirks::STRICT
        };
        let mtu = Some(mtu);
        let params = Params {
            carrier, mtu, window, read_chunk, ack_silence_us, turn, rc, uc, ud, xrc, share, errors, ipv6,
            quirks,
        };
        run(seed, &params);
    }
}
