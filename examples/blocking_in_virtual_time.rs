//! Blocking code in virtual time: a client and a server with blocking calls, each in a thread of its own,
//! over a wire that loses packets.
//!
//! Shows `Fabric::spawn`: the threads run one at a time, in an order that the seed determines, so that a run
//! repeats exactly. Run it with `cargo run --example blocking_in_virtual_time [SEED]`.

use std::time::{Duration, Instant};

use urxe::verbs::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const REQUESTS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(10);

/// Answers each request with its number plus one. Ordinary code with blocking calls: it knows nothing of
/// virtual time.
fn serve(node: &TestEndpoint) -> Result<()> {
    for n in 0..REQUESTS {
        node.qp.post_recv(&RecvWr::empty(n))?;
        let number = node.cq.wait(LIMIT)?.imm.ok_or("a request without a number")?;
        node.qp.post_send(&SendWr::send_imm(n, &[], number + 1))?;
        node.cq.wait(LIMIT)?;
    }
    Ok(())
}

/// Sends requests, and waits for the answer to each.
fn call(node: &TestEndpoint) -> Result<()> {
    for n in 0..REQUESTS {
        node.qp.post_recv(&RecvWr::empty(n))?;
        node.qp.post_send(&SendWr::send_imm(n, &[], n as u32))?;
        // The completions of the request and of its answer, in any order.
        let answers = [node.cq.wait(LIMIT)?.imm, node.cq.wait(LIMIT)?.imm];
        assert!(answers.contains(&Some(n as u32 + 1)), "request {n}: {answers:?}");
    }
    Ok(())
}

/// Runs both over a wire with loss. Returns the virtual time that the conversation took.
fn conversation(seed: u64) -> Result<Duration> {
    let config = FabricConfig::default().latency(Duration::from_micros(10)).loss(0.02).seed(seed);
    let fabric = Fabric::virtual_time(config)?;
    let (client, server) = fabric.pair()?;
    let server = fabric.spawn(move || serve(&server));
    let client = fabric.spawn(move || call(&client));
    client.join()?;
    server.join()?;
    Ok(Duration::from_nanos(fabric.now().0))
}

fn main() -> Result<()> {
    let seed = std::env::args().nth(1).map_or(Ok(7), |seed| seed.parse())?;
    let begin = Instant::now();
    let (first, again) = (conversation(seed)?, conversation(seed)?);
    println!("seed {seed}: {REQUESTS} requests in {first:?} of virtual time, and again in {again:?}");
    println!("real time for both: {:?}", begin.elapsed());
    assert_eq!(first, again, "a seed determines the run");
    Ok(())
}
