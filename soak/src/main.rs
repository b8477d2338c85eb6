//! Soak test: several processes exchange and verify messages while they are killed, stopped and restarted,
//! and packets are lost.
#![forbid(unsafe_code)]

mod connection;
mod exchange;
mod plan;
mod progress;
mod report;
mod schedule;
mod supervisor;
mod usage;
mod worker;

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};

use urxe_cli::broker::Broker;
use urxe_cli::interrupt::Interrupt;
use urxe_cli::{CliError, json};

use report::Totals;
use supervisor::Supervisor;
use usage::Usage;
use worker::Config;

const EXAMPLES: &str = "\
Examples:
  urxe-soak --seconds 60              a minute, with a new seed
  urxe-soak --seconds 60 --seed 7     the same schedule of faults, to repeat a failure
  urxe-soak --seconds 7200 --json     two hours, with the results as JSON";

/// Exchange and verify messages between processes that are killed, stopped and restarted, over links that
/// lose packets
///
/// Starts several processes, each with a NIC on a loopback address; two of every four share one address
/// through the broker, and exchange packets through rings in shared memory if the seed is odd. They connect
/// to each other, by the connection manager and by an exchange over TCP, and post SENDs, WRITEs, READs and
/// atomic operations, whose bytes both sides verify. All but the first process are killed at random, all are
/// stopped at random, and most drop, duplicate, reorder, corrupt and delay packets. The seed determines
/// links, faults and shared memory, so there are no options for them. The run fails if a byte is wrong, a
/// message is delivered twice or lost although its work request succeeded, a work request does not complete,
/// a process ends by itself, or memory, threads or descriptors of a process grow.
#[derive(Parser)]
#[command(name = "urxe-soak", version, max_term_width = 100, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Soak {
    /// Duration in seconds, after which connections end, which takes some seconds more
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: u64,
    /// Seed of the schedule of faults and of all data [default: new for each run]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Number of processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=16))]
    processes: u8,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
    /// Plant an error that must be found
    #[arg(long, hide = true)]
    plant: Option<Plant>,
    #[command(subcommand)]
    process: Option<Process>,
}

/// Processes that this executable also is.
#[derive(Subcommand)]
enum Process {
    /// Process of the soak test, which starts it
    #[command(hide = true)]
    SoakWorker {
        /// Configuration in JSON
        #[arg(value_parser = |text: &str| serde_json::from_str::<Config>(text))]
        config: Config,
    },
    // Started by the first process that opens a shared address.
    #[command(hide = true)]
    Broker(Broker),
}

/// Error that a test plants, to see that it is found.
#[derive(clap::ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    /// A byte of some messages is changed before they are sent.
    Corrupt,
    /// An initiator counts a message more than it has sent.
    Lose,
    /// A process opens a descriptor every 20 ms.
    Leak,
}

/// Results of a run.
#[derive(Serialize, Default)]
struct Summary {
    seed: u64,
    seconds: f64,
    processes: u8,
    #[serde(flatten)]
    totals: Totals,
    kills: u64,
    restarts: u64,
    stalls: u64,
    broker_kills: u64,
    /// Peaks over all processes.
    peak: Usage,
}

fn main() -> ExitCode {
    let args = Soak::parse();
    urxe_cli::execute(ExitCode::FAILURE, |interrupt| match &args.process {
        Some(Process::SoakWorker { config }) => worker::run(config.clone()),
        Some(Process::Broker(broker)) => broker.run(),
        None => {
            *interrupt = Interrupt::install()?;
            run(&args, interrupt)
        }
    })
}

/// Runs the processes for the given time, and prints the results.
fn run(args: &Soak, interrupt: &Interrupt) -> Result<(), CliError> {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
    let seed = args.seed.unwrap_or_else(clock);
    let summary = Summary { seed, processes: args.processes, ..Summary::default() };
    let mut supervisor = Supervisor::start(summary, args.plant)?;
    let result = supervisor.run(Duration::from_secs(args.seconds), interrupt);
    let summary = supervisor.end();
    match args.json {
        true => json::print(&summary)?,
        false => summary.print()?,
    }
    result.map_err(|reason| {
        let (seconds, processes) = (args.seconds, args.processes);
        CliError::Failed(format!(
            "soak failed: {reason}; to repeat it: urxe-soak --seconds {seconds} --seed {seed} --processes \
             {processes}"
        ))
    })
}

impl Summary {
    fn print(&self) -> Result<(), CliError> {
        let Summary { totals, peak, .. } = self;
        let mut out = stdout();
        writeln!(
            out,
            "soak of {} processes for {:.1} s, seed {}: {} connections by the connection manager, {} by exchange; \
             {} messages, {:.1} MB verified",
            self.processes,
            self.seconds,
            self.seed,
            totals.connections_by_cm,
            totals.connections_by_exchange,
            totals.messages,
            totals.bytes as f64 / 1e6,
        )?;
        writeln!(
            out,
            "  {} kills, {} restarts, {} stalls, {} kills of the broker, {} reconnects",
            self.kills, self.restarts, self.stalls, self.broker_kills, totals.reconnects
        )?;
        let f = totals.faults;
        writeln!(
            out,
            "  packets: {} dropped, {} duplicated, {} reordered, {} corrupted, {} delayed",
            f.dropped, f.duplicated, f.reordered, f.corrupted, f.delayed
        )?;
        writeln!(out, "  failed connections: {}", list(&totals.errors))?;
        writeln!(
            out,
            "  peaks of a process: {:.1} MB resident, {} threads, {} descriptors",
            peak.resident as f64 / 1e6,
            peak.threads,
            peak.descriptors
        )?;
        Ok(())
    }
}

fn list(errors: &BTreeMap<String, u64>) -> String {
    if errors.is_empty() {
        return "none".into();
    }
    errors.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ")
}
