//! redis-benchmark and redis-server over rsockets, and over TCP.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::carrier::{Carrier, IP};
use crate::control::TIMEOUT;
use crate::job::Metrics;
use crate::tools::{Server, client, free_port};

/// Library that makes rsockets of a program's sockets.
pub const RSOCKETS: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Measures SETs of values of `size` bytes by the 50 connections that redis-benchmark has by default. `shim`
/// is a library with the calls that `RSOCKETS` does not redirect.
pub fn set(shim: &Path, carrier: Carrier, size: usize, seconds: f64) -> Result<Metrics> {
    let (port, ip) = (free_port()?, if carrier.is_urxe() { IP } else { "127.0.0.1" });
    let command = |program: &str| -> Command {
        let mut command = carrier.command(program);
        if carrier.is_urxe() {
            command.env("LD_PRELOAD", format!("{}:{RSOCKETS}", shim.display()));
        }
        command
    };
    let log = tempfile::NamedTempFile::new()?;
    let mut server = command("redis-server");
    server.args(["--bind", ip, "--port", &port, "--save", "", "--protected-mode", "no", "--logfile"]);
    let _server = Server::start(server.arg(log.path()))?;
    // redis-benchmark hangs if the server does not listen yet.
    let deadline = Instant::now() + TIMEOUT;
    while !std::fs::read_to_string(log.path())?.contains("Ready to accept connections") {
        if Instant::now() > deadline {
            return Err(
                format!("{server:?} does not listen: {}", std::fs::read_to_string(log.path())?).into()
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
    // TCP reaches this rate on an idle machine.
    let requests = ((seconds * 1e5) as usize).to_string();
    let mut benchmark = command("redis-benchmark");
    benchmark.args(["-h", ip, "-p", &port, "-t", "set", "-d", &size.to_string(), "-n", &requests, "--csv"]);
    let rate = client(&mut benchmark, |out| {
        let line = out.lines().find(|line| line.starts_with("\"SET\""))?;
        line.split(',').nth(1)?.trim_matches('"').parse().ok()
    })?;
    Ok(Metrics::from([("requests/s".into(), rate)]))
}
