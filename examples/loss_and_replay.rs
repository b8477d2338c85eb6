//! Loss and replay: a wire loses a tenth of the packets, and a second run with the same seed loses the same
//! ones.
//!
//! Shows fabric impairments, loss recovery counters, and how to replay a failing test. Run it with `cargo run
//! --example loss_and_replay [SEED]`.

use std::time::Duration;

use urxe::verbs::*;

/// Sends 200 messages over a lossy wire, and returns the number of lost packets and the number of recoveries
/// from losses.
fn run(seed: u64) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    let latency = Duration::from_micros(10);
    let config = FabricConfig::default().seed(seed).latency(latency).loss(0.1).duplicate(0.02).reorder(0.02);
    let fabric = Fabric::virtual_time(config)?;
    let (a, b) = fabric.pair()?;
    for message in 0..200 {
        b.qp.post_recv(&RecvWr::empty(message))?;
        a.qp.post_send(&SendWr::send_imm(message, &[], message as u32))?;
        let received = b.cq.wait(Duration::from_secs(10))?;
        assert_eq!(received.imm, Some(message as u32), "every message arrives once and in order");
        a.cq.wait(Duration::from_secs(10))?;
    }
    Ok((fabric.counters().lost, a.context.counters().requester_retry))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(42), |seed| seed.parse())?;
    let first = run(seed)?;
    println!(
        "seed {seed}: 200 messages arrived; {} packets were lost, and the requester went back {} times",
        first.0, first.1
    );
    let again = run(seed)?;
    println!("seed {seed} again: {} lost, {} times back", again.0, again.1);
    assert_eq!(first, again, "a seed replays the run");
    assert!(first.0 > 0, "nothing was lost");
    Ok(())
}
