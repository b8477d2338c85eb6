//! Other programs that measure, and TCP by iperf3.

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

/// Returns the command with a time limit, so that a client that hangs does not stop the benchmark.
fn limited(command: &Command) -> Command {
    let mut limited = Command::new("timeout");
    limited.args(["-k", "5", "60"]).arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

/// Runs the client repeatedly until it reaches the server, and returns what `parse` extracts from its output.
pub fn client<T>(command: &mut Command, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let Output { status, stdout, stderr } = limited(command).stdin(Stdio::null()).output()?;
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
