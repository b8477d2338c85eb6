//! redis-benchmark and redis-server over rsockets, and over TCP.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::carrier::{Carrier, IP};
use crate::job::Metrics;
use crate::tools::{Server, client, free_port};

/// Library that makes rsockets of a program's sockets.
pub const RSOCKETS: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Measures GETs of values of `size` bytes by the 50 connections that redis-benchmark has by default. `shim` is a library
/// with the calls that `RSOCKETS` does not redirect.
pub fn get(shim: &Path, carrier: Carrier, size: usize, seconds: f64) -> Result<Metrics> {
    let (port, ip) = (free_port()?, if carrier.is_urxe() { IP } else { "127.0.0.1" });
    let command = |program: &str| -> Command {
        let mut command = carrier.command(program);
        if carrier.is_urxe() {
            command.env("LD_PRELOAD", format!("{}:{RSOCKETS}", shim.display()));
        }
        command
    };
    let mut server = command("redis-server");
    server.args(["--bind", ip, "--port", &port, "--save", "", "--protected-mode", "no"]);
    let _server = Server::start(&mut server)?;
    // TCP reaches this rate on an idle machine.
    let requests = ((seconds * 1e5) as usize).to_string();
    let mut benchmark = command("redis-benchmark");
    benchmark.args(["-h", ip, "-p", &port, "-t", "get", "-d", &size.to_string(), "-n", &requests, "--csv"]);
    let rate = client(&mut benchmark, |out| {
        let line = out.lines().find(|line| line.starts_with("\"GET\""))?;
        line.split(',').nth(1)?.trim_matches('"').parse().ok()
    })?;
    Ok(Metrics::from([("requests/s".into(), rate)]))
}
