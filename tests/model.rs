//! Random programs over a bad wire, against a reference model: every completion right, in order, once; memory
//! as the model has it; nothing stuck; after an error everything flushed.
//!
//! `URXE_SEEDS` says how many seeds (default 2000), `URXE_SEED` runs a single one.

mod support;

#[path = "model/program.rs"]
mod program;
#[path = "model/world.rs"]
mod world;

use proptest::prelude::*;
use world::{Knobs, run};

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name} is a number, not {v:?}")))
}

/// Runs a seed; a panic in it says which one it was.
fn run_seed(seed: u64) -> u32 {
    struct Name(u64);
    impl Drop for Name {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("\nfailing seed: run it again with URXE_SEED={}", self.0);
            }
        }
    }
    let _name = Name(seed);
    run(seed, &Knobs::of(seed))
}

#[test]
fn random_programs_do_what_the_model_says() {
    if let Some(seed) = env("URXE_SEED") {
        run_seed(seed);
        return;
    }
    let seeds = env("URXE_SEEDS").unwrap_or(2000);
    let start = std::time::Instant::now();
    for seed in 0..seeds {
        run_seed(seed);
    }
    println!("{:.0} seeds/s", seeds as f64 / start.elapsed().as_secs_f64());
}

#[test]
fn a_seed_replays_to_the_same_packets() {
    for seed in 0..40 {
        assert_eq!(run_seed(seed), run_seed(seed), "seed {seed}");
    }
    assert_ne!(run_seed(1), run_seed(2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_wire_will_do(
        seed: u64,
        loss in 0u64..20,
        dup in 0u64..20,
        reorder in 0u64..30,
        corrupt in 0u64..10,
        mtu in 0usize..5,
        window in 300usize..100_000,
        read_chunk in 1u32..40_000,
        ack_silence_us in 0u64..2_000,
        turn in 1usize..64,
        qps in 1usize..4,
        poison: bool,
    ) {
        run(seed, &Knobs { loss, dup, reorder, corrupt, mtu: Some(mtu), window, read_chunk, ack_silence_us, turn, qps, poison });
    }
}
