//! DCQCN's timer, byte counter and feedback delay: which of them make rates and queue oscillate. A long delay
//! does so with the paper's own parameters (Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN
//! and TIMELY", CoNEXT 2016).

use std::time::Duration;

use urxe::verbs::*;
use urxe_netsim::Node::{Host, Switch};
use urxe_netsim::plot::{Line, Panel};
use urxe_netsim::stats::{jain, mean, variation};
use urxe_netsim::{Simulation, Topology, Wire};

use crate::Plots;
use crate::Result;
use crate::network::{LongFlows, PRIORITY, STEP, contexts, switch};

const BANDWIDTH: u64 = 40_000_000_000;
const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(100);

/// Time between two samples of the queue.
const SAMPLED: Duration = Duration::from_micros(10);

/// `rpg_time_reset` in µs, `rpg_byte_reset`, number of senders, latency of a wire in µs.
struct Setup(u32, u32, usize, u64);

const SETUPS: [Setup; 6] = [
    Setup(1500, 150_000, 4, 1),
    Setup(1500, 10_000_000, 4, 1),
    Setup(55, 150_000, 4, 1),
    Setup(55, 10_000_000, 4, 1),
    Setup(55, 10_000_000, 10, 1),
    Setup(55, 10_000_000, 10, 20),
];

/// Prints the variation of rates and queue for each setup, and plots rates over time.
pub fn run(plots: &Plots) -> Result<()> {
    println!(
        "| rpg_time_reset, µs | rpg_byte_reset | senders | latency of a wire, µs | Jain | utilisation | variation of a rate | queue, kB | variation | pauses |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut panels = Vec::new();
    for setup in &SETUPS {
        panels.extend(measure(setup)?);
    }
    let title = "DCQCN with the parameters of SIGCOMM 2015 but for timer and byte counter, 40 Gb/s";
    plots.write("oscillation.svg", title, 2, &panels)
}

fn measure(setup: &Setup) -> Result<[Panel; 2]> {
    let &Setup(timer, bytes, senders, latency) = setup;
    let control = Congestion::DCQCN_SIGCOMM15
        .with(CongestionParameter::RpgTimeReset, timer)?
        .with(CongestionParameter::RpgByteReset, bytes)?;
    let wire = Wire::new(BANDWIDTH, Duration::from_micros(latency));
    let topology = Topology::incast(senders).wires(wire).switches(switch(BANDWIDTH, true));
    let simulation = Simulation::new(&topology, 1)?;
    let contexts = contexts(&simulation, senders + 1, control)?;
    let pairs: Vec<_> = (1..=senders).map(|sender| (sender, 0)).collect();
    let mut flows = LongFlows::start(&simulation, &contexts, &pairs, |_| 0)?;
    flows.run(WARM_UP)?;
    let (sent, pauses) =
        (simulation.queue(Switch(0), Host(0), PRIORITY)?.bytes, simulation.counters().pauses);
    simulation.sample(Switch(0), Host(0), PRIORITY, SAMPLED)?;
    flows.run(MEASURED)?;
    let samples = simulation.take_samples(Switch(0), Host(0), PRIORITY)?;
    let lengths: Vec<f64> = samples.iter().map(|bytes| *bytes as f64 / 1e3).collect();
    let sent = simulation.queue(Switch(0), Host(0), PRIORITY)?.bytes - sent;
    let first = (WARM_UP.as_micros() / STEP.as_micros()) as usize;
    let variations: Vec<f64> = flows.rates.iter().map(|rates| variation(&rates[first..])).collect();
    println!(
        "| {timer} | {bytes} | {senders} | {latency} | {:.4} | {:.4} | {:.3} | {:.0} | {:.2} | {} |",
        jain(&flows.means(first)),
        sent as f64 * 8.0 / (MEASURED.as_secs_f64() * BANDWIDTH as f64),
        mean(&variations),
        mean(&lengths),
        variation(&lengths),
        simulation.counters().pauses - pauses,
    );
    let lines = flows
        .rates
        .iter()
        .enumerate()
        .map(|(i, rates)| Line::over_time(&format!("sender {}", i + 1), STEP, rates, mean));
    let setup = format!("timer {timer} µs, byte counter {bytes}, {senders} senders, wires of {latency} µs");
    let queue = Line::over_time("queue", SAMPLED, &lengths, mean);
    Ok([
        Panel::new(&setup, "ms", "Gb/s", lines.collect()),
        Panel::new(&setup, "ms from the end of convergence", "kB", vec![queue]),
    ])
}
