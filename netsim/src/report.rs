//! Results: a table, CSV and plots.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::network::{NetworkCounters, Node, QueueCounters};
use crate::plot::{Line, Panel, write};
use crate::stats::{jain, maximum, mean, percentile};
use crate::traffic::TrafficError;

/// Result of [`Traffic::run`](crate::Traffic::run).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Time between two points of rates and queue lengths.
    pub interval: Duration,
    /// Virtual time that was simulated.
    pub duration: Duration,
    /// The flows, in the order in which they were added.
    pub flows: Vec<FlowReport>,
    /// The queues that were recorded.
    pub queues: Vec<QueueReport>,
    /// Counters of the network.
    pub network: NetworkCounters,
    /// Packets retransmitted by all NICs after losses and timeouts.
    pub retransmitted: u64,
}

/// Result of a flow.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlowReport {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Time at which the flow has begun.
    pub start: Duration,
    /// Bytes that the receiver has acknowledged.
    pub bytes: u64,
    /// Time at which the last byte was acknowledged; `None` if the flow is not complete.
    pub completed_at: Option<Duration>,
    /// Acknowledged bits per second, for each interval.
    pub rates: Vec<f64>,
}

/// Record of a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueReport {
    /// Node at which packets wait.
    pub from: Node,
    /// End of the wire for which they wait.
    pub to: Node,
    /// Priority, 0 to 7.
    pub priority: u8,
    /// Length in bytes, for each interval.
    pub lengths: Vec<u64>,
    /// Counters at the end.
    pub counters: QueueCounters,
}

impl FlowReport {
    /// Returns the mean rate from the start to the completion, or to `end` if the flow is not complete, in
    /// bits per second.
    pub fn rate(&self, end: Duration) -> f64 {
        let time = self.completed_at.unwrap_or(end).saturating_sub(self.start);
        if time.is_zero() { 0.0 } else { self.bytes as f64 * 8.0 / time.as_secs_f64() }
    }

    fn name(&self) -> String {
        format!("{} to {}", self.from, self.to)
    }
}

impl QueueReport {
    /// Returns a percentile of the length in bytes.
    pub fn percentile(&self, percent: f64) -> u64 {
        let mut sorted = self.lengths.clone();
        sorted.sort_unstable();
        percentile(&sorted, percent).unwrap_or(0)
    }

    fn name(&self) -> String {
        format!("{} to {}, priority {}", node(self.from), node(self.to), self.priority)
    }
}

fn node(node: Node) -> String {
    match node {
        Node::Host(n) => format!("host {n}"),
        Node::Switch(n) => format!("switch {n}"),
    }
}

/// A Markdown table of the flows, one of the queues, and sums.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| flow | start, µs | bytes | completed, µs | Gb/s |")?;
        writeln!(f, "| --- | --- | --- | --- | --- |")?;
        let micros = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
        for flow in &self.flows {
            let completed = flow.completed_at.map_or("-".to_owned(), micros);
            let rate = flow.rate(self.duration) / 1e9;
            writeln!(
                f,
                "| {} | {} | {} | {completed} | {rate:.2} |",
                flow.name(),
                micros(flow.start),
                flow.bytes
            )?;
        }
        writeln!(f, "\n| queue | p50, kB | p99, kB | largest, kB | marked | dropped |")?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- |")?;
        for queue in &self.queues {
            let kilobytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e3);
            let [p50, p99] = [50.0, 99.0].map(|percent| kilobytes(queue.percentile(percent)));
            let QueueCounters { max_queued, marked, dropped, .. } = queue.counters;
            writeln!(
                f,
                "| {} | {p50} | {p99} | {} | {marked} | {dropped} |",
                queue.name(),
                kilobytes(max_queued)
            )?;
        }
        let rates: Vec<f64> = self.flows.iter().map(|flow| flow.rate(self.duration)).collect();
        let NetworkCounters { delivered, pauses, dropped, lost, .. } = self.network;
        writeln!(
            f,
            "\n{} of virtual time, Jain's index {:.3}; packets: {delivered} delivered, {dropped} dropped, {lost} lost, {} retransmitted; \
             {pauses} pause frames",
            micros(self.duration) + " µs",
            jain(&rates),
            self.retransmitted,
        )
    }
}

impl Report {
    /// Writes comma-separated values: a line for each interval, with the time in seconds, the rate of each
    /// flow in bits per second, and the length of each queue in bytes.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_csv(&self, out: &mut impl Write) -> io::Result<()> {
        let flows = self.flows.iter().map(|flow| format!("flow {}", flow.name()));
        let queues = self.queues.iter().map(|queue| format!("queue {}", queue.name().replace(',', "")));
        writeln!(out, "time,{}", flows.chain(queues).collect::<Vec<_>>().join(","))?;
        let rows = self.flows.iter().map(|flow| flow.rates.len()).max().unwrap_or(0);
        for row in 0..rows {
            let time = self.interval.as_secs_f64() * (row + 1) as f64;
            let rates = self.flows.iter().map(|flow| flow.rates.get(row).copied().unwrap_or(0.0).round());
            let lengths = self.queues.iter().map(|queue| queue.lengths.get(row).copied().unwrap_or(0) as f64);
            let values: Vec<String> = rates.chain(lengths).map(|value| value.to_string()).collect();
            writeln!(out, "{time:.9},{}", values.join(","))?;
        }
        Ok(())
    }

    /// Draws the rates of the flows and the lengths of the queues over time, as an SVG file.
    ///
    /// # Errors
    /// [`TrafficError::Plot`].
    pub fn plot(&self, path: impl AsRef<Path>) -> Result<(), TrafficError> {
        let gigabits = |flow: &FlowReport| flow.rates.iter().map(|rate| rate / 1e9).collect::<Vec<_>>();
        let kilobytes =
            |queue: &QueueReport| queue.lengths.iter().map(|bytes| *bytes as f64 / 1e3).collect::<Vec<_>>();
        let line =
            |name: &str, values: &[f64], combine| Line::over_time(name, self.interval, values, combine);
        let rates = self.flows.iter().map(|flow| line(&flow.name(), &gigabits(flow), mean)).collect();
        let lengths =
            self.queues.iter().map(|queue| line(&queue.name(), &kilobytes(queue), maximum)).collect();
        let panels = [
            Panel::new("Rate of each flow", "ms", "Gb/s", rates),
            Panel::new("Length of each queue", "ms", "kB", lengths),
        ];
        Ok(write(path.as_ref(), "Flows and queues", 2, &panels)?)
    }
}
