//! `urxe ps`: the NICs of this host and their queue pairs.

use std::io::{self, Write};

use clap::Args;

use super::CliError;
use super::live::{View, table};
use crate::json;

/// List the NICs of this host and their queue pairs: state, peer, losses, and what they wait for
#[derive(Args)]
#[command(after_help = "\
Examples:
  urxe ps
  urxe ps --json | jq '.nics[].qps[] | {qpn, state, why}'

Shows the programs of this user, and of all users to root. A program need not cooperate: it may hang or sleep. `urxe top` \
adds rates and details; `man urxe-top` describes the columns.")]
pub struct Ps {
    /// Show this process alone
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Print all that is known of each queue pair: PSNs, retries, counters, recent events
    #[arg(long)]
    details: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Ps {
    /// Prints the NICs.
    pub fn run(&self) -> Result<(), CliError> {
        let view = View::take(self.pid, &View::default());
        if self.json {
            return json::print(&view.to_json());
        }
        let text = if self.details { table::detailed_text(&view) } else { table::text(&view) };
        Ok(io::stdout().write_all(text.as_bytes())?)
    }
}
