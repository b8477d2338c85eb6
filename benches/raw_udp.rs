//! Measures raw UDP on this machine's loopback.

#[path = "support/raw.rs"]
#[allow(dead_code, reason = "each bench uses some of it")]
mod raw;

use std::time::Duration;

fn main() -> std::io::Result<()> {
    let t = raw::throughput(4172, 15, Duration::from_secs(2))?;
    println!("raw UDP, 15 x 4172 bytes per call: {:.1} Gb/s, {:.3} % lost", t.gbps, t.lost * 100.0);
    let c = raw::burst_cost(4172, 15)?;
    println!("raw UDP, CPU time of such a call: sending {} ns, receiving {} ns", c.send, c.receive);
    for bytes in [8, 64, 4172] {
        let l = raw::ping_pong(bytes, 50_000)?;
        println!("raw UDP, {bytes} bytes, half round trip: p50 {} ns, p99 {} ns", l.p50, l.p99);
    }
    Ok(())
}
