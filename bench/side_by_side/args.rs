//! Command line of the benchmark.

use std::path::PathBuf;

use clap::Parser;

/// Compares urxe with raw UDP, raw packet sockets, TCP, UCX and memory, in alternation within one run.
#[derive(Parser)]
#[command(
    name = "cargo bench --package urxe-bench --profile dist --bench side_by_side --",
    disable_version_flag = true
)]
pub struct Args {
    /// Takes about four minutes: three rounds of most rows that targets refer to, one short round of some of
    /// the others, without clients and busy pairs.
    #[arg(long)]
    pub quick: bool,
    /// Measures only rows whose name contains PATTERN.
    #[arg(long, value_name = "PATTERN")]
    pub only: Option<String>,
    /// Directory for side_by_side.json and side_by_side.svg.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_TARGET_TMPDIR"), "/side_by_side"))]
    pub out: PathBuf,
    /// Option that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}
