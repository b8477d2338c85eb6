//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// urxe beside raw UDP, raw packet sockets, TCP, UCX and memory, in one run, in turns.
#[derive(Parser)]
#[command(name = "cargo bench --bench side_by_side --", disable_version_flag = true)]
pub struct Args {
    /// What bars are about three times, the rest once and little of it: below a minute.
    #[arg(long)]
    pub quick: bool,
    /// Measures only rows whose name contains this.
    #[arg(long, value_name = "PATTERN")]
    pub only: Option<String>,
    /// Where side_by_side.json and side_by_side.svg go.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_TARGET_TMPDIR"), "/side_by_side"))]
    pub out: PathBuf,
    /// What cargo says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}
