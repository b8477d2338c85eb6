//! Output of the results as a table or as JSON.

use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::{Measure, Params, Verb};
use crate::link::TrafficReport;
use crate::{CliError, json};

/// Result for one message size.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Bytes per message.
    pub size: u32,
    /// Number of messages, over all queue pairs.
    pub messages: u64,
    /// Duration in seconds.
    pub seconds: f64,
    #[serde(flatten)]
    figures: Figures,
}

/// Measured quantities.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    /// Throughput in 10^9 bits of payload per second, and message rate in 10^6 messages per second.
    Bandwidth { gbit_s: f64, mmsg_s: f64 },
    /// Latency in microseconds: half a round trip for SEND and WRITE, a full round trip for READ and atomics.
    Latency { latency_us: Latency },
}

/// Latency percentiles in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Minimum.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// Maximum.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
}

impl Outcome {
    /// Returns the result of a bandwidth run.
    pub fn bandwidth(size: u32, messages: u64, elapsed: Duration) -> Outcome {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let (gbit_s, mmsg_s) =
            (size as f64 * messages as f64 * 8e-9 / seconds, messages as f64 * 1e-6 / seconds);
        Outcome { size, messages, seconds, figures: Figures::Bandwidth { gbit_s, mmsg_s } }
    }

    /// Returns the result of a latency run. The measured times are divided by `divisor`, which is 2 to report
    /// half round trips.
    pub fn latency(size: u32, times: &Histogram<u64>, elapsed: Duration, divisor: f64) -> Outcome {
        let us = |ns: u64| ns as f64 / 1e3 / divisor;
        let at = |q| us(times.value_at_quantile(q));
        let latency_us = Latency {
            min: us(times.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: us(times.max()),
            mean: times.mean() / 1e3 / divisor,
        };
        let seconds = elapsed.as_secs_f64();
        Outcome { size, messages: times.len(), seconds, figures: Figures::Latency { latency_us } }
    }
}

/// Returns an empty histogram for times from a nanosecond to a minute, with three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}

/// Column headings, aligned with the rows that [`Report::add`] prints.
const BANDWIDTH_COLUMNS: &str = "     bytes     messages   seconds     Gbit/s      MiB/s    Mmsg/s";
const LATENCY_COLUMNS: &str =
    "     bytes   messages       min       p50       p90       p99     p99.9       max      mean";

/// Report of a run: prints each result as it is added, or all results as one JSON object at the end.
pub struct Report {
    json: bool,
    document: Document,
    /// Whether the line of progress is shown.
    shows_progress: bool,
}

/// JSON document of `urxe perf --json`.
#[derive(Serialize)]
struct Document {
    verb: Verb,
    measure: Measure,
    link: String,
    qps: u32,
    path_mtu: usize,
    results: Vec<Outcome>,
    #[serde(flatten)]
    end: TrafficReport,
}

impl Report {
    /// Creates a report and prints its heading.
    pub fn new(json: bool, params: Params, link: &str, mtu: usize) -> Result<Report, CliError> {
        let Params { verb, measure, qps, .. } = params;
        if !json {
            let description = match measure {
                Measure::Bw => "bandwidth",
                Measure::Lat if verb.is_pingpong() => "latency, half round trips in microseconds",
                Measure::Lat => "latency, full round trips in microseconds",
            };
            let verb = verb.name();
            writeln!(stdout(), "RC {verb} {description}; {link}, {qps} queue pair(s), path MTU {mtu}")?;
            let columns = if measure == Measure::Bw { BANDWIDTH_COLUMNS } else { LATENCY_COLUMNS };
            writeln!(stdout(), "{columns}")?;
        }
        let (link, results, end) = (link.to_owned(), Vec::new(), TrafficReport::default());
        let document = Document { verb, measure, link, qps, path_mtu: mtu, results, end };
        Ok(Report { json, document, shows_progress: false })
    }

    /// Updates the line of progress, which appears on a terminal if the run takes longer than a second.
    pub fn progress(&mut self, size: u32, fraction: f64, spent: Duration) {
        let is_long = self.shows_progress || fraction < 1.0 && spent >= Duration::from_secs(1);
        if !is_long || !std::io::stderr().is_terminal() {
            return;
        }
        self.shows_progress = true;
        let left = spent.as_secs_f64() * (1.0 / fraction.max(0.001) - 1.0);
        eprint!("\r\x1b[K{size:>10} bytes {:>3.0} %, {left:.0} s left", fraction * 100.0);
    }

    /// Adds the result of one message size.
    pub fn add(&mut self, o: Outcome) -> Result<(), CliError> {
        if std::mem::take(&mut self.shows_progress) {
            eprint!("\r\x1b[K");
        }
        if !self.json {
            let Outcome { size, messages, seconds, figures } = &o;
            match figures {
                Figures::Bandwidth { gbit_s, mmsg_s } => {
                    // The unit that perftest reports.
                    let mib_s = gbit_s * 1e9 / 8.0 / f64::from(1 << 20);
                    writeln!(
                        stdout(),
                        "{size:>10} {messages:>12} {seconds:>9.3} {gbit_s:>10.3} {mib_s:>10.1} {mmsg_s:>9.4}"
                    )
                }
                Figures::Latency { latency_us: Latency { min, p50, p90, p99, p99_9, max, mean } } => {
                    writeln!(
                        stdout(),
                        "{size:>10} {messages:>10} {min:>9.2} {p50:>9.2} {p90:>9.2} {p99:>9.2} {p99_9:>9.2} \
                     {max:>9.2} {mean:>9.2}"
                    )
                }
            }?;
        }
        self.document.results.push(o);
        Ok(())
    }

    /// Prints the JSON object if JSON was requested, and otherwise whether packets passed through rings in
    /// shared memory.
    pub fn finish(mut self, end: TrafficReport) -> Result<(), CliError> {
        if self.json {
            self.document.end = end;
            json::print(&self.document)?;
        } else if let Some(line) = end.rings_line() {
            writeln!(stdout(), "{line}")?;
        }
        Ok(())
    }
}
