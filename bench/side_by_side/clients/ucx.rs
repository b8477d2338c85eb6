//! UCX, by ucx_perftest.

use crate::Result;
use crate::carrier::{Carrier, IP};
use crate::job::Metrics;
use crate::tools::{Server, client, free_port};

/// Runs a test and returns two fields from the last line of output: a latency percentile in microseconds, and
/// MiB per second.
fn run(carrier: Carrier, test: &str, size: usize, messages: usize, percentile: &str) -> Result<(f64, f64)> {
    let port = free_port()?;
    let ucx = || {
        let mut command = carrier.ucx_command("ucx_perftest");
        command.args(["-p", &port]);
        command
    };
    let _server = Server::start(&mut ucx())?;
    let (n, warm_up) = (messages.to_string(), (messages / 10).max(1).to_string());
    let mut command = ucx();
    command.arg(if carrier.is_urxe() { IP } else { "127.0.0.1" });
    command.args(["-f", "-v", "-t", test, "-s", &size.to_string()]);
    command.args(["-n", &n, "-w", &warm_up, "-R", percentile]);
    client(&mut command, |out| {
        let last: Vec<f64> = out.lines().last()?.split(',').filter_map(|f| f.trim().parse().ok()).collect();
        match last[..] {
            [_, percentile, _, _, _, bandwidth, ..] => Some((percentile, bandwidth)),
            _ => None,
        }
    })
}

/// Measures PUTs of `size` bytes for about `seconds`.
pub fn put(carrier: Carrier, size: usize, seconds: f64) -> Result<Metrics> {
    let messages = |rate: f64, seconds: f64| ((rate * seconds) as usize).clamp(10, 10_000_000);
    let rate = |mib: f64| mib * f64::from(1 << 20) / size as f64;
    // A short run determines how many messages to request.
    let probe = run(carrier, "ucp_put_bw", size, messages((500e6 / size as f64).min(500e3), 0.02), "50")?.1;
    let mib = run(carrier, "ucp_put_bw", size, messages(rate(probe), seconds), "50")?.1;
    let messages = rate(mib);
    Ok(Metrics::from([("Gb/s".into(), messages * size as f64 * 8.0 / 1e9), ("M/s".into(), messages / 1e6)]))
}

/// Measures the half round-trip time of messages in nanoseconds, in one run per percentile.
pub fn ping(carrier: Carrier, size: usize, seconds: f64) -> Result<Metrics> {
    // Few on an idle machine, where a round trip takes 10 µs, because it takes milliseconds on a busy one.
    let (rounds, mut metrics) = ((seconds * 3e4) as usize, Metrics::new());
    for (name, percentile) in [("p50", "50"), ("p99", "99")] {
        metrics.insert(name.into(), run(carrier, "tag_lat", size, rounds, percentile)?.0 * 1e3);
    }
    Ok(metrics)
}
