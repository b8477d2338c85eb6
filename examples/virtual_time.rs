//! Virtual time: one thread, a simulated clock, and a wire with latency, limited bandwidth and seeded jitter.
//!
//! Shows that a transfer takes the virtual time that the model predicts, and that a seed reproduces it. Run
//! it with `cargo run --example virtual_time [SEED]`.

use std::time::{Duration, Instant};

use urxe::verbs::*;

const LEN: usize = 1 << 20;

/// Transfers a mebibyte, and returns the virtual time that the transfer took.
fn transfer(seed: u64) -> Result<Duration, Box<dyn std::error::Error>> {
    let fabric = Fabric::virtual_time(
        FabricConfig::default()
            .seed(seed)
            .latency(Duration::from_micros(50))
            .jitter(Duration::from_micros(20))
            .bandwidth(10_000_000_000),
    )?;
    let (a, b) = fabric.pair()?;
    let (source, target) = (a.pd.reg_mr(LEN, Access::LOCAL_WRITE)?, b.pd.reg_mr(LEN, Access::ALL)?);
    source.write(0, &vec![0x5a; LEN])?;
    let begin = fabric.now();
    a.qp.post_send(&SendWr::write(1, &[source.sge(0..LEN)], target.remote(0)))?;
    a.cq.wait(Duration::from_secs(1))?;
    assert_eq!(target.to_vec(), vec![0x5a; LEN]);
    Ok(Duration::from_nanos(fabric.now().0 - begin.0))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(7), |seed| seed.parse())?;
    let begin = Instant::now();
    let (first, again, other) = (transfer(seed)?, transfer(seed)?, transfer(seed.wrapping_add(1))?);
    println!("seed {seed}: 1 MiB in {first:?} of virtual time, and again in {again:?}");
    println!("seed {}: {other:?}", seed.wrapping_add(1));
    println!("real time for all of it: {:?}", begin.elapsed());
    assert_eq!(first, again, "a seed determines the run");
    assert_ne!(first, other, "another seed has another jitter");
    assert!(first > Duration::from_micros(900), "1 MiB takes 839 µs at 10 Gb/s, and the latency twice");
    Ok(())
}
