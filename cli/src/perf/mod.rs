//! `urxe perf`: measures bandwidth and latency between two `urxe perf` processes, or between two NICs on a
//! fabric.

mod control;
mod endpoint;
mod plan;
mod report;
mod runner;

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::CliError;
use super::interrupt::Interrupt;
use super::link::{LinkArgs, LinkSpec};
use super::oob::{OobArgs, parse_seconds};
use control::Control;
use plan::{Amount, Measure, Params, Sizes, Verb};
use runner::{Plan, Runner};

/// Default number of work requests in flight per queue pair, as in perftest.
const DEPTH: u32 = 128;
/// Default number of messages per completion, if the queue depth permits.
const CQ_MOD: u32 = 32;

const EXAMPLES: &str = "\
Examples:
  urxe perf write --link fabric                      both ends in this process
  urxe perf --link udp:10.0.0.1                      a server, for one client
  urxe perf read --lat --link udp:10.0.0.2 10.0.0.1  its client
  urxe perf write -s all --json --link fabric        all sizes, as JSON";

/// Measure bandwidth or latency between two `urxe perf` processes
///
/// For perftest programs as peers, run the same program at this end: urxe run -- ib_write_bw
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("measure").args(["bw", "lat"]), after_help = EXAMPLES)]
pub struct PerfArgs {
    /// Operation to measure, by a client
    #[arg(value_enum)]
    verb: Option<Verb>,
    #[command(flatten)]
    oob: OobArgs,
    /// Measure bandwidth (default)
    #[arg(long)]
    bw: bool,
    /// Measure latency
    ///
    /// Half a round trip of SEND and WRITE, a full round trip of READ and atomics.
    #[arg(long)]
    lat: bool,
    /// Message sizes, such as 8,64K, or all [default: 64K, --lat: 8]
    ///
    /// Sizes in bytes, with suffix K or M, separated by commas; `all` for the powers of two up to 8M.
    #[arg(short, long)]
    size: Option<Sizes>,
    /// Number of messages per queue pair and size [default: 5000]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Seconds to measure each size, instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "iters")]
    duration: Option<Duration>,
    /// Number of queue pairs, for bandwidth
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    qps: u32,
    /// Work requests in flight per queue pair
    #[arg(long, default_value_t = DEPTH, value_parser = clap::value_parser!(u32).range(1..=8192))]
    depth: u32,
    /// Number of messages posted together, with one completion
    ///
    /// As -Q of perftest; reduced if --depth is less than twice (latency: four times) this number.
    #[arg(short = 'Q', long, value_name = "N", default_value_t = CQ_MOD,
        value_parser = clap::value_parser!(u32).range(1..=8192))]
    cq_mod: u32,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs a measurement.
pub fn run(args: &PerfArgs, interrupt: &Interrupt) -> Result<(), CliError> {
    args.link.conclude(args.json, args.run(interrupt))
}

impl PerfArgs {
    fn measure(&self) -> Measure {
        if self.lat { Measure::Lat } else { Measure::Bw }
    }

    fn run(&self, interrupt: &Interrupt) -> Result<(), CliError> {
        if self.measure() == Measure::Lat && self.qps != 1 {
            return Err(CliError::Usage("latency is measured on one queue pair: omit --qps".into()));
        }
        if self.link.link() == LinkSpec::Fabric {
            return self.run_on_fabric(interrupt);
        }
        let plan = if self.oob.is_client() { Some(self.plan()?) } else { None };
        let context = self.link.open()?;
        let runner = self.runner(&context, interrupt);
        let control = |stream| Control::new(stream, interrupt, self.oob.peer_timeout());
        let result = match plan {
            Some(plan) => runner.client(&mut self.oob.open("urxe perf", interrupt, control)?, &plan),
            None => {
                let serve = |stream| runner.session(control(stream)?);
                self.oob.open("urxe perf", interrupt, serve)?.run()
            }
        };
        if result.is_err() {
            let (nic, (link, _)) = (context.counters(), context.link_state());
            let counters = nic.iter().chain(link.iter());
            let nonzero: Vec<String> =
                counters.filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}={n}")).collect();
            if !nonzero.is_empty() {
                eprintln!("counters: {}", nonzero.join(" "));
            }
        }
        result
    }

    fn runner<'a>(&'a self, context: &'a urxe::verbs::Context, interrupt: &'a Interrupt) -> Runner<'a> {
        Runner { context, link: &self.link, interrupt, timeout: self.oob.peer_timeout() }
    }

    fn plan(&self) -> Result<Plan, CliError> {
        let verb = self.verb.ok_or_else(|| {
            CliError::Usage("no operation: specify send, write, read or atomic (urxe perf write …)".into())
        })?;
        let measure = self.measure();
        let default = match (verb, measure) {
            (Verb::Atomic, _) | (_, Measure::Lat) => 8,
            (_, Measure::Bw) => 65_536,
        };
        let sizes = self.size.clone().map_or(vec![default], |s| s.0);
        if let Some(size) = sizes.iter().find(|s| verb == Verb::Atomic && **s != 8) {
            return Err(CliError::Usage(format!("--size {size}: atomic operations require 8 bytes")));
        }
        let amount = match (self.iters, self.duration) {
            (_, Some(d)) => Amount::Duration(d),
            (n, None) => Amount::Iterations(n.unwrap_or(5000)),
        };
        let max_size = sizes.iter().copied().max().unwrap_or(1);
        let (qps, depth, cq_mod) = (self.qps, self.depth, self.cq_mod);
        let params = Params { verb, measure, max_size, qps, depth, cq_mod };
        Ok(Plan { params, sizes, amount, json: self.json })
    }

    /// Runs both ends in this process, on a fabric.
    fn run_on_fabric(&self, interrupt: &Interrupt) -> Result<(), CliError> {
        if self.oob.host.is_some() {
            let text =
                "--link fabric runs both ends in this process: omit the host, or choose another --link";
            return Err(CliError::Usage(text.into()));
        }
        let plan = self.plan()?;
        let fabric = urxe::verbs::Fabric::new();
        let (a, b) = (self.link.open_on(&fabric, "client")?, self.link.open_on(&fabric, "server")?);
        let [mut client, server] = Control::pair(interrupt, self.oob.peer_timeout())?;
        std::thread::scope(|scope| {
            let server = scope.spawn(move || self.runner(&b, interrupt).session(server)?.run());
            let result = self.runner(&a, interrupt).client(&mut client, &plan);
            drop(client);
            let served =
                server.join().unwrap_or_else(|_| Err(CliError::Failed("the server thread panicked".into())));
            result.and(served)
        })
    }
}
