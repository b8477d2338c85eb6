//! Unmodified programs of perftest, run by `urxe run`.

use std::process::Command;

use crate::Result;
use crate::carrier::{Carrier, IP};
use crate::job::Metrics;
use crate::tools::{Server, client, free_port};

/// A program with its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Perftest {
    /// `ib_write_bw`, `ib_send_bw` or `ib_write_lat`.
    pub program: &'static str,
    pub size: usize,
    /// Number of messages, or of round trips of a latency measurement. With `-e`, the programs do not
    /// measure for a given time.
    pub messages: usize,
    /// Whether the program sleeps until a completion channel notifies it (`-e`), instead of polling.
    pub events: bool,
    /// Whether packets take rings in shared memory instead of sockets.
    pub shared_memory: bool,
}

impl Perftest {
    /// Returns the name of the series.
    pub fn series(&self) -> String {
        let events = if self.events { " -e" } else { "" };
        let link = if self.shared_memory { "shared memory" } else { "udp/IPv4" };
        format!("{}{events} over {link}", self.program)
    }

    fn is_latency(&self) -> bool {
        self.program.ends_with("_lat")
    }

    /// Measures the throughput in Gb/s, or half round-trip times in nanoseconds.
    pub fn measure(&self) -> Result<Metrics> {
        let port = free_port()?;
        let _server = Server::start(&mut self.command(&port))?;
        client(self.command(&port).arg(IP), |out| self.parse(out))
    }

    fn command(&self, port: &str) -> Command {
        let carrier = if self.shared_memory { Carrier::SharedMemory } else { Carrier::Sockets };
        let mut command = carrier.command(self.program);
        command.args(["-F", "-p", port, "-s", &self.size.to_string()]);
        if self.events {
            command.arg("-e");
        }
        command.args(["-n", &self.messages.to_string()]);
        if !self.is_latency() {
            command.arg("--report_gbits");
        }
        command
    }

    /// Returns the average throughput, or the typical latency, which is the median, and the 99th percentile,
    /// from the only line of numbers.
    fn parse(&self, out: &str) -> Option<Metrics> {
        let numbers = |line: &str| {
            let fields: std::result::Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
            fields.ok().filter(|fields| fields.first() == Some(&(self.size as f64)))
        };
        let fields = out.lines().find_map(numbers)?;
        let columns: &[(&str, usize, f64)] = match self.is_latency() {
            true => &[("p50", 4, 1e3), ("p99", 7, 1e3)],
            false => &[("Gb/s", 3, 1.0)],
        };
        columns
            .iter()
            .map(|&(name, column, scale)| Some((name.into(), fields.get(column)? * scale)))
            .collect()
    }
}
