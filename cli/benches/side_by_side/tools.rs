//! Alternatives to RDMA, measured by other programs: TCP by iperf3, and UCX over TCP and shared memory by ucx_perftest.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;
use crate::job::Metrics;

/// Server process, killed when this handle is dropped.
pub struct Server(Child);

impl Server {
    pub fn start(command: &mut Command) -> Result<Server> {
        Ok(Server(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server for a single client has exited by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

pub fn free_port() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string())
}

/// Runs the client repeatedly until it reaches the server, and returns what `parse` extracts from its output.
pub fn client<T>(command: &mut Command, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output()?;
        let out = String::from_utf8_lossy(&stdout);
        // iperf3 exits successfully in any case when it prints JSON.
        if let Some(parsed) = parse(&out).filter(|_| status.success()) {
            return Ok(parsed);
        }
        if Instant::now() > deadline {
            let err = String::from_utf8_lossy(&stderr);
            return Err(format!("{command:?}: {status}: {}{}", out.trim(), err.trim()).into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Measures one TCP stream on loopback for a second, the shortest duration that iperf3 supports, with `len`
/// bytes per call (128 KiB if `None`).
pub fn iperf3(len: Option<usize>) -> Result<Metrics> {
    let port = free_port()?;
    let _server = Server::start(Command::new("iperf3").args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]))?;
    let mut command = Command::new("iperf3");
    command.args(["-c", "127.0.0.1", "-J", "-t", "1", "-p", &port]);
    if let Some(len) = len {
        command.args(["-l", &len.to_string()]);
    }
    let rate = client(&mut command, |out| {
        let out: Value = serde_json::from_str(out).ok()?;
        out["end"]["sum_received"]["bits_per_second"].as_f64()
    })?;
    Ok(Metrics::from([("Gb/s".into(), rate / 1e9)]))
}

/// Runs a `ucx_perftest` test on loopback and returns two fields from the last line of output: a latency percentile in
/// microseconds, and MiB per second. `transport` is `tcp` or `posix`, UCX's shared memory.
fn ucx(transport: &str, test: &str, size: usize, messages: usize, percentile: &str) -> Result<(f64, f64)> {
    let port = free_port()?;
    let ucx = || {
        let mut command = Command::new("ucx_perftest");
        command.args(["-p", &port]);
        let quiet = [("UCX_WARN_UNUSED_ENV_VARS", "n"), ("UCX_LOG_LEVEL", "error")];
        command.envs([("UCX_TLS", transport)]).envs(quiet);
        if transport == "tcp" {
            command.env("UCX_NET_DEVICES", "lo");
        }
        command
    };
    let _server = Server::start(&mut ucx())?;
    let (n, warm_up) = (messages.to_string(), (messages / 10).max(1).to_string());
    let mut command = ucx();
    command.args(["127.0.0.1", "-f", "-v", "-t", test, "-s", &size.to_string()]);
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
pub fn ucx_put(transport: &str, size: usize, seconds: f64) -> Result<Metrics> {
    let messages = |rate: f64, seconds: f64| ((rate * seconds) as usize).clamp(10, 10_000_000);
    let rate = |mib: f64| mib * f64::from(1 << 20) / size as f64;
    // A short run determines how many messages to request.
    let probe = ucx(transport, "ucp_put_bw", size, messages((500e6 / size as f64).min(500e3), 0.02), "50")?.1;
    let mib = ucx(transport, "ucp_put_bw", size, messages(rate(probe), seconds), "50")?.1;
    let messages = rate(mib);
    Ok(Metrics::from([("Gb/s".into(), messages * size as f64 * 8.0 / 1e9), ("M/s".into(), messages / 1e6)]))
}

/// Measures the half round-trip time of eight-byte messages in nanoseconds, in one run per percentile.
pub fn ucx_ping(rounds: usize) -> Result<Metrics> {
    let mut metrics = Metrics::new();
    for (name, percentile) in [("p50", "50"), ("p99", "99")] {
        metrics.insert(name.into(), ucx("tcp", "tag_lat", 8, rounds, percentile)?.0 * 1e3);
    }
    Ok(metrics)
}
