//! Flow completion times on a fat tree: a load of 30 % with the flow sizes of a web search, and incasts of 60
//! senders. The slowdown of a flow is its completion time divided by the time that it takes on an idle
//! network.

use std::collections::HashMap;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use urxe::verbs::*;
use urxe_netsim::plot::{Line, Panel};
use urxe_netsim::stats::percentile;
use urxe_netsim::{Simulation, Topology};

use crate::Plots;
use crate::Result;
use crate::network::{Flow, contexts, switch};

/// Ports of a switch of the fat tree, which has K³/4 hosts.
const K: usize = 8;
const HOSTS: usize = K * K * K / 4;
const BANDWIDTH: u64 = 100_000_000_000;
/// Part of the bandwidth of all hosts that flows take up.
const LOAD: f64 = 0.3;
/// Time in which flows start.
const TIME: Duration = Duration::from_millis(5);
/// Senders of an incast, bytes of each, and time between two incasts.
const INCAST: usize = 60;
const INCAST_LEN: usize = 500_000;
const INCAST_INTERVAL: Duration = Duration::from_micros(1500);
/// Bytes of the largest flow and of a message; longer flows consist of several messages.
const LONGEST: usize = 30_000_000;
const MESSAGE: usize = 1_000_000;

/// Flow sizes of a web search: bytes, and the part of flows that have at most so many (Alizadeh et al., "Data
/// Center TCP", SIGCOMM 2010, figure 4, read off at these points).
const SIZES: [(f64, f64); 12] = [
    (1e3, 0.0),
    (1e4, 0.15),
    (2e4, 0.2),
    (3e4, 0.3),
    (5e4, 0.4),
    (8e4, 0.53),
    (2e5, 0.6),
    (1e6, 0.7),
    (2e6, 0.8),
    (5e6, 0.9),
    (1e7, 0.97),
    (LONGEST as f64, 1.0),
];

/// Upper bounds of the sizes of each row of the table.
const CLASSES: [usize; 6] = [10_000, 50_000, 200_000, 1_000_000, 5_000_000, LONGEST];

/// A flow that starts at a time in nanoseconds.
struct Start {
    at: u64,
    from: usize,
    to: usize,
    len: usize,
}

/// Prints slowdowns by size for each control, and plots them.
pub fn run(plots: &Plots) -> Result<()> {
    let starts = starts();
    println!("{} flows, {} hosts", starts.len(), HOSTS);
    println!("| control | size up to, kB | flows | slowdown p50 | p95 | p99 |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut lines = [(50.0, Vec::new()), (95.0, Vec::new()), (99.0, Vec::new())];
    for control in [Congestion::NONE, Congestion::DCQCN_CONNECTX, Congestion::DCQCN_SIGCOMM15] {
        let slowdowns = measure(&starts, control)?;
        let mut points = [const { Vec::new() }; 3];
        let mut least = 0;
        for most in CLASSES {
            let mut class: Vec<f64> = slowdowns
                .iter()
                .filter(|(len, _)| (least..=most).contains(len))
                .map(|(_, slowdown)| *slowdown)
                .collect();
            class.sort_unstable_by(f64::total_cmp);
            let values = lines.each_ref().map(|(percent, _)| percentile(&class, *percent));
            if let [Some(p50), Some(p95), Some(p99)] = values {
                println!(
                    "| {control} | {} | {} | {p50:.2} | {p95:.2} | {p99:.2} |",
                    most / 1000,
                    class.len()
                );
                points
                    .iter_mut()
                    .zip([p50, p95, p99])
                    .for_each(|(points, value)| points.push((most as f64, value)));
            }
            least = most + 1;
        }
        lines
            .iter_mut()
            .zip(points)
            .for_each(|((_, lines), points)| lines.push(Line::new(&control.to_string(), points)));
    }
    let panels = lines.into_iter().map(|(percent, lines)| {
        Panel::new(&format!("slowdown, p{percent}"), "bytes of a flow, up to", "slowdown", lines)
            .logarithmic()
    });
    let title = format!(
        "Flow completion times, fat tree of {HOSTS} hosts at 100 Gb/s, load 30 %, incasts of {INCAST}"
    );
    plots.write("completion-times.svg", &title, 3, &panels.collect::<Vec<_>>())
}

/// Returns the flows in order of time; the same in every run.
fn starts() -> Vec<Start> {
    let mut rng = Pcg64Mcg::new(1);
    let mut uniform = move || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mean: f64 = SIZES.windows(2).map(|w| (w[1].1 - w[0].1) * (w[0].0 + w[1].0) / 2.0).sum();
    // Mean time between two flows, in nanoseconds.
    let interval = mean * 8.0 * 1e9 / (BANDWIDTH as f64 * HOSTS as f64 * LOAD);
    let (mut starts, mut at) = (Vec::new(), 0.0);
    loop {
        at -= (1.0 - uniform()).ln() * interval;
        if at > TIME.as_nanos() as f64 {
            break;
        }
        let part = uniform();
        let i = SIZES.iter().position(|(_, most)| part < *most).unwrap_or(SIZES.len() - 1);
        let ((low, from), (high, to)) = (SIZES[i - 1], SIZES[i]);
        let len = low + (high - low) * (part - from) / (to - from);
        let from = (uniform() * HOSTS as f64) as usize;
        let to = (from + 1 + (uniform() * (HOSTS - 1) as f64) as usize) % HOSTS;
        starts.push(Start { at: at as u64, from, to, len: len as usize });
    }
    for round in 1..(TIME.as_nanos() / INCAST_INTERVAL.as_nanos()) as u64 {
        let to = (uniform() * HOSTS as f64) as usize;
        let at = round * INCAST_INTERVAL.as_nanos() as u64;
        starts.extend((1..=INCAST).map(|i| Start { at, from: (to + i * 2) % HOSTS, to, len: INCAST_LEN }));
    }
    starts.sort_by_key(|start| start.at);
    starts
}

/// Runs all flows, and returns length and slowdown of each.
fn measure(starts: &[Start], control: Congestion) -> Result<Vec<(usize, f64)>> {
    let topology = Topology::fat_tree(K).switches(switch(BANDWIDTH, control.uses_marks()));
    let simulation = Simulation::new(&topology, 1)?;
    let contexts = contexts(&simulation, HOSTS, control)?;
    let fabric = simulation.fabric();
    // Queue pairs without a flow, by their hosts, and running flows with their numbers.
    let mut idle: HashMap<(usize, usize), Vec<Flow>> = HashMap::new();
    // Their messages without a completion are the third value.
    let mut running: Vec<(usize, Flow, usize)> = Vec::new();
    let mut slowdowns = Vec::new();
    let mut next = starts.iter().enumerate().peekable();
    let step = Duration::from_micros(2);
    let begin = fabric.now();
    let end = begin + Duration::from_secs(5);
    while next.peek().is_some() || !running.is_empty() {
        while let Some((number, start)) =
            next.next_if(|(_, start)| start.at <= fabric.now().since(begin).as_nanos() as u64)
        {
            let flow = match idle.get_mut(&(start.from, start.to)).and_then(Vec::pop) {
                Some(flow) => flow,
                None => Flow::new(&contexts[start.from], &contexts[start.to], MESSAGE)?,
            };
            let messages = start.len.div_ceil(MESSAGE).max(1);
            for i in 0..messages {
                flow.post(number as u64, MESSAGE.min(start.len - i * MESSAGE))?;
            }
            running.push((number, flow, messages));
        }
        fabric.advance(step);
        let mut completions = Vec::new();
        let mut i = 0;
        while let Some((number, flow, messages)) = running.get_mut(i) {
            completions.clear();
            *messages -= flow.from.cq.poll(*messages, &mut completions)?;
            let Start { at, from, to, len } = starts[*number];
            if let Some(failed) = completions.iter().find(|completion| completion.status != WcStatus::Success)
            {
                return Err(format!("flow from {from} to {to}: {}", failed.status).into());
            }
            if *messages > 0 {
                i += 1;
                continue;
            }
            let time = fabric.now().since(begin).as_nanos() as u64 - at;
            slowdowns.push((len, time as f64 / ideal(len)));
            let (_, flow, _) = running.swap_remove(i);
            idle.entry((from, to)).or_default().push(flow);
        }
        if fabric.now() > end {
            return Err(format!("{} flows have not ended after 5 s", running.len()).into());
        }
    }
    Ok(slowdowns)
}

/// Returns the time in nanoseconds that a flow takes on an idle network with six wires between its hosts.
fn ideal(len: usize) -> f64 {
    // Headers of IPv6, UDP, BTH, ICRC and Ethernet, preamble and gap.
    let wire = len + len.div_ceil(4096).max(1) * (48 + 12 + 4 + 18 + 20);
    // Propagation of a packet and of its acknowledgement, and a packet stored and forwarded by five switches.
    wire as f64 * 8.0 / (BANDWIDTH as f64 / 1e9)
        + 12.0 * 1000.0
        + 5.0 * len.min(4096) as f64 * 8.0 / (BANDWIDTH as f64 / 1e9)
}
