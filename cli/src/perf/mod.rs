//! `urxe perf`: measures bandwidth and latency, with another `urxe perf` or a perftest program at the other
//! end.
#![forbid(unsafe_code)]

mod control;
mod perftest;
mod plan;
mod report;
mod runner;
mod side;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::CliError;
use super::exchange::perftest::Role;
use super::interrupt::Interrupt;
use super::link::{LinkArgs, LinkSpec};
use super::oob::{OobArgs, TimeoutStream, parse_seconds};
use control::Control;
use plan::{Amount, Measure, Sizes, Verb};
use runner::{Plan, Runner};
use side::CQ_MOD;
use urxe::verbs::{AckTimeout, ConnectOptions};

/// Default number of work requests in flight per queue pair, as in perftest.
const DEPTH: usize = 128;

/// Measure bandwidth or latency between two `urxe perf`, or with a perftest program as the peer
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("measure").args(["bw", "lat"]))]
pub struct PerfArgs {
    /// Operation to measure; a server without --perftest uses that of its client
    #[arg(value_enum)]
    verb: Option<Verb>,
    #[command(flatten)]
    oob: OobArgs,
    /// Measure bandwidth (default)
    #[arg(long)]
    bw: bool,
    /// Measure latency: half a round trip of SEND and WRITE, a full round trip of READ and atomics
    #[arg(long)]
    lat: bool,
    /// Message size in bytes, such as 8, 64K or 1M; several separated by commas; `all` for the powers of two
    /// up to 8M [default: 64K for bandwidth, 8 for latency; with --perftest the default of perftest]
    #[arg(short, long)]
    size: Option<Sizes>,
    /// Number of messages per queue pair and size [default: 5000; with --perftest the default of perftest]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Duration of the measurement of each size in seconds, instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "iters")]
    duration: Option<Duration>,
    /// Number of queue pairs, for bandwidth
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    qps: u32,
    /// Work requests in flight per queue pair
    #[arg(long, default_value_t = DEPTH as u32, value_parser = clap::value_parser!(u32).range(1..=8192))]
    depth: u32,
    /// Number of messages that are posted together and have one completion (-Q of perftest); reduced if
    /// --depth is less than twice (latency: four times) this number
    #[arg(short = 'Q', long, value_name = "N", default_value_t = CQ_MOD, conflicts_with = "perftest",
        value_parser = clap::value_parser!(u32).range(1..=8192))]
    cq_mod: u32,
    /// Local ACK timeout: 4.096 us x 2^N (-u of perftest)
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    ack_timeout: u8,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
    /// The peer is ib_write_bw, ib_read_bw, ib_send_bw, ib_atomic_bw, ib_write_lat or ib_send_lat of perftest
    /// 4.5, started with the same size (-s), iterations (-n) and queue pairs (-q)
    #[arg(long)]
    perftest: bool,
    /// With --perftest: write this side's memory to FILE at the end, for comparison with that of the peer.
    /// The first half holds the buffers of SENDs, WRITEs and READ responses, the second half the buffers that
    /// the peer accesses: max(--size, 4096) bytes per queue pair, in which messages of up to 2048 bytes
    /// follow one another
    #[arg(long, value_name = "FILE", requires = "perftest")]
    dump_memory: Option<PathBuf>,
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs a measurement.
///
/// # Errors
/// [`CliError`].
pub fn run(args: &PerfArgs, interrupt: &Interrupt) -> Result<(), CliError> {
    let result = args.run(interrupt);
    if let Some(faults) = args.link.fault_report() {
        if !args.json {
            faults.lines().for_each(|line| println!("{line}"));
        }
        faults.warn();
    }
    args.link.finish().and(result)
}

impl PerfArgs {
    fn measure(&self) -> Measure {
        if self.lat { Measure::Lat } else { Measure::Bw }
    }

    fn amount(&self) -> Option<Amount> {
        match (self.iters, self.duration) {
            (_, Some(d)) => Some(Amount::Duration(d)),
            (Some(n), None) => Some(Amount::Iterations(n)),
            (None, None) => None,
        }
    }

    fn run(&self, interrupt: &Interrupt) -> Result<(), CliError> {
        if self.measure() == Measure::Lat && self.qps != 1 {
            return Err(CliError::Usage("latency is measured on one queue pair: omit --qps".into()));
        }
        if self.link.link == LinkSpec::Fabric {
            return self.run_on_fabric(interrupt);
        }
        if self.perftest {
            return self.run_perftest(interrupt);
        }
        if self.oob.host.is_none() {
            let context = self.link.open()?;
            let stream = self.oob.open("urxe perf", interrupt)?;
            let mut control = Control::new(stream, interrupt, self.oob.peer_timeout())?;
            let result = self.runner(&context, interrupt).server(&mut control);
            return with_counters(&context, result);
        }
        let plan = self.plan()?;
        let context = self.link.open()?;
        let stream = self.oob.open("urxe perf", interrupt)?;
        let mut control = Control::new(stream, interrupt, self.oob.peer_timeout())?;
        let result = self.runner(&context, interrupt).client(&mut control, &plan);
        with_counters(&context, result)
    }

    fn runner<'a>(&'a self, context: &'a urxe::verbs::Context, interrupt: &'a Interrupt) -> Runner<'a> {
        let timeout = AckTimeout::new(self.ack_timeout);
        let connect = ConnectOptions { timeout, ..self.link.connect_options() };
        Runner { context, link: &self.link, connect, interrupt, timeout: self.oob.peer_timeout() }
    }

    fn verb(&self) -> Result<Verb, CliError> {
        self.verb.ok_or_else(|| {
            CliError::Usage("no operation: specify send, write, read or atomic (urxe perf write …)".into())
        })
    }

    fn plan(&self) -> Result<Plan, CliError> {
        let (verb, measure) = (self.verb()?, self.measure());
        let default = match (verb, measure) {
            (Verb::Atomic, _) | (_, Measure::Lat) => 8,
            (_, Measure::Bw) => 65_536,
        };
        let sizes = self.size.clone().map_or(vec![default], |s| s.0);
        check_sizes(verb, &sizes)?;
        let amount = self.amount().unwrap_or(Amount::Iterations(5000));
        let (qps, depth) = (self.qps as usize, self.depth as usize);
        Ok(Plan { verb, measure, sizes, amount, qps, depth, cq_mod: self.cq_mod, json: self.json })
    }

    /// Runs both ends in this process, on a fabric.
    fn run_on_fabric(&self, interrupt: &Interrupt) -> Result<(), CliError> {
        if self.oob.host.is_some() || self.perftest {
            return Err(CliError::Usage(
                "--link fabric runs both ends in this process: omit the host and --perftest, or choose \
                 another --link"
                    .into(),
            ));
        }
        let plan = self.plan()?;
        let fabric = urxe::verbs::Fabric::new();
        let (a, b) = (self.link.open_on(&fabric, "client")?, self.link.open_on(&fabric, "server")?);
        let pair = UnixStream::pair();
        let (c, s) =
            pair.map_err(|source| CliError::Io { what: "cannot create a socket pair".into(), source })?;
        let mut client = Control::new(c, interrupt, self.oob.peer_timeout())?;
        let mut server = Control::new(s, interrupt, self.oob.peer_timeout())?;
        std::thread::scope(|scope| {
            let server = scope.spawn(move || self.runner(&b, interrupt).server(&mut server));
            let result = self.runner(&a, interrupt).client(&mut client, &plan);
            drop(client);
            let served =
                server.join().unwrap_or_else(|_| Err(CliError::Failed("the server thread panicked".into())));
            result.and(served)
        })
    }

    fn run_perftest(&self, interrupt: &Interrupt) -> Result<(), CliError> {
        let verb = self.verb()?;
        let test = perftest::test_of(verb, self.measure())?;
        let size = match self.size.as_ref().map(|s| s.0.as_slice()) {
            None => test.default_size(),
            Some(&[one]) => one,
            Some(_) => return Err(CliError::Usage("--perftest supports one --size only".into())),
        };
        check_sizes(verb, &[size])?;
        let plan = perftest::PerftestPlan {
            test,
            size,
            iterations: perftest::iterations(self.amount(), test)?,
            qps: self.qps as usize,
            depth: self.depth as usize,
            json: self.json,
            dump: self.dump_memory.as_deref(),
        };
        let context = self.link.open()?;
        let stream = self.oob.open(program(test), interrupt)?;
        let role = if self.oob.host.is_some() { Role::Client } else { Role::Server };
        let stream = TimeoutStream::new(stream, interrupt, self.oob.peer_timeout())?;
        let result = perftest::run(&self.runner(&context, interrupt), &plan, stream, role);
        with_counters(&context, result)
    }
}

/// Prints the NIC's counters if a run has failed.
fn with_counters(context: &urxe::verbs::Context, result: Result<(), CliError>) -> Result<(), CliError> {
    if result.is_err() {
        let counters = context.counters();
        let nonzero: Vec<String> =
            counters.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}={n}")).collect();
        eprintln!("counters: {}", nonzero.join(" "));
    }
    result
}

fn program(test: super::exchange::perftest::Test) -> &'static str {
    use super::exchange::perftest::Test;
    match test {
        Test::WriteBw => "ib_write_bw",
        Test::ReadBw => "ib_read_bw",
        Test::SendBw => "ib_send_bw",
        Test::AtomicBw => "ib_atomic_bw",
        Test::WriteLat => "ib_write_lat",
        Test::SendLat => "ib_send_lat",
    }
}

fn check_sizes(verb: Verb, sizes: &[u32]) -> Result<(), CliError> {
    match sizes.iter().find(|s| verb == Verb::Atomic && **s != 8) {
        Some(size) => Err(CliError::Usage(format!("--size {size}: atomic operations require 8 bytes"))),
        None => Ok(()),
    }
}
