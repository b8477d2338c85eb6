//! Test that runs random sequences of verbs calls for all services over a faulty wire, and checks them
//! against a reference model: every completion is correct, in order and generated exactly once; memory has
//! the predicted contents; no queue pair hangs; after an error all work requests are flushed.
//!
//! `URXE_SEEDS` sets the number of seeds (default 20,000), `URXE_SEED` runs a single one.

#[path = "../support/mod.rs"]
mod support;

#[path = "model/check.rs"]
mod check;
#[path = "model/exchange.rs"]
mod exchange;
#[path = "model/faults.rs"]
mod faults;
#[path = "model/grants.rs"]
mod grants;
#[path = "model/lifecycle.rs"]
mod lifecycle;
#[path = "model/memory.rs"]
mod memory;
#[path = "model/plan.rs"]
mod plan;
#[path = "model/program.rs"]
mod program;
#[path = "model/receives.rs"]
mod receives;
#[path = "model/unreliable.rs"]
mod unreliable;
#[path = "model/wire.rs"]
mod wire;
#[path = "model/world.rs"]
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use plan::Params;
use proptest::prelude::*;
use urxe::transport::Quirks;
use wire::Faults;
use world::run;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v:?} is not a number")))
}

/// Runs the test with a seed, and prints the seed if the test panics.
fn run_seed(seed: u64) -> u32 {
    struct SeedReport(u64);
    impl Drop for SeedReport {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("\nseed {0} failed; repeat it with URXE_SEED={0}", self.0);
            }
        }
    }
    let _report = SeedReport(seed);
    run(seed, &Params::of(seed))
}

#[test]
fn results_of_random_verbs_calls_match_the_model() {
    if let Some(seed) = env("URXE_SEED") {
        run_seed(seed);
        return;
    }
    let seeds = env("URXE_SEEDS").unwrap_or(20_000);
    let start = std::time::Instant::now();
    let next = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        seed if seed < seeds => run_seed(seed),
                        _ => return,
                    };
                }
            });
        }
    });
    println!("{:.0} seeds/s", seeds as f64 / start.elapsed().as_secs_f64());
}

#[test]
fn same_seed_gives_the_same_packets() {
    for seed in 0..40 {
        assert_eq!(run_seed(seed), run_seed(seed), "seed {seed}");
    }
    assert_ne!(run_seed(1), run_seed(2));
}

fn faults() -> impl Strategy<Value = Faults> {
    (0u64..20, 0u64..20, 0u64..30, 0u64..10).prop_map(|(loss, dup, reorder, corrupt)| Faults {
        loss,
        dup,
        reorder,
        corrupt,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn results_of_random_verbs_calls_match_the_model_under_any_wire_faults(
        seed: u64,
        faults in faults(),
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
    ) {
        let equal_packets = equal_packets && !errors;
        let (mtu, quirks) = (Some(mtu), Quirks { credits, equal_packets, ..Quirks::STRICT });
        let params = Params {
            faults, mtu, window, read_chunk, ack_silence_us, turn, rc, uc, ud, xrc, share, errors, ipv6,
            quirks,
        };
        run(seed, &params);
    }
}
