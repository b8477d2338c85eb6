//! `urxe top`: a live view of the NICs of this host.

#[cfg(feature = "top")]
mod screen;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::CliError;
use super::live::{View, metrics, table};
use super::oob::parse_seconds;
use crate::json;

const LONG_ABOUT: &str = "\
Shows the NICs of this host's programs and their queue pairs, with rates, and says what each queue pair waits for. A program \
need not cooperate: a thread of the library answers, while the program's own threads hang or sleep. A program that is stopped \
cannot answer and is shown as stopped.

Columns: TX and RX, rates including headers; OUT, send work requests that are not complete; RECV, receives posted; RETX, \
packets retransmitted; RNR, RNR NAKs received and sent; CNP, congestion notifications; DROP, packets dropped or, of a UC \
peer, lost; LAST, time since the last packet.

Keys: arrows or j and k select a queue pair, Enter shows its details, Esc returns, p pauses, q quits.";

/// Watch the NICs of this host and their queue pairs
#[derive(Args)]
#[command(long_about = LONG_ABOUT, after_help = "\
Examples:
  urxe top
  urxe top --once                      as text, with the rates of a second
  urxe top --once --json | jq -r '.nics[].qps[].why'
  urxe top --metrics 127.0.0.1:9515    for Prometheus")]
pub struct Top {
    /// Print the view once, as text
    #[arg(long)]
    once: bool,
    /// Print the view once, as one JSON document
    #[arg(long)]
    json: bool,
    /// Time between two views
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
    /// Show this process alone
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Serve the counters to Prometheus at this address
    ///
    /// A port alone stands for the loopback address. Ports have the metrics of node_exporter, node_infiniband_*, queue pairs \
    /// urxe_qp_*.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = metrics::parse_address, conflicts_with_all = ["once", "json"])]
    metrics: Option<SocketAddr>,
}

impl Top {
    /// Shows the NICs until the user quits; with `--once` or `--json`, once.
    pub fn run(&self) -> Result<(), CliError> {
        if let Some(address) = self.metrics {
            return metrics::serve(address, || View::take(self.pid, &View::default()));
        }
        if !self.once && !self.json {
            return self.show();
        }
        let before = View::take(self.pid, &View::default());
        std::thread::sleep(self.interval);
        let view = View::take(self.pid, &before);
        if self.json {
            return json::print(&view.to_json());
        }
        Ok(io::stdout().write_all(table::text(&view).as_bytes())?)
    }

    #[cfg(feature = "top")]
    fn show(&self) -> Result<(), CliError> {
        screen::show(self.interval, |before| View::take(self.pid, before))
    }

    #[cfg(not(feature = "top"))]
    fn show(&self) -> Result<(), CliError> {
        Err(CliError::Usage(
            "this urxe was built without the terminal view: use `urxe top --once`, or build it with \
             `cargo build --release -p urxe-cli --features top`"
                .into(),
        ))
    }
}
