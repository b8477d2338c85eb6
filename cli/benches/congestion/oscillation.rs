//! DCQCN's timer and byte counter: which of them makes the rates oscillate.

use std::time::Duration;

use urxe::link::fabric::Node::{Host, Switch};
use urxe::link::fabric::{Topology, Wire};
use urxe::verbs::*;

use crate::Result;
use crate::network::{LongFlows, PRIORITY, STEP, contexts, jain, mean, switch, variation};
use crate::plot::{Line, Panel, Plots};

const BANDWIDTH: u64 = 40_000_000_000;
const SENDERS: usize = 4;
const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(100);

/// Prints the variation of the rates for each combination, and plots rates over time.
pub fn run(plots: &Plots) -> Result<()> {
    println!(
        "| rpg_time_reset, µs | rpg_byte_reset | Jain | utilisation | variation of a rate over time | pauses |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut panels = Vec::new();
    for timer in [1500, 55] {
        for bytes in [150_000, 10_000_000] {
            panels.push(measure(timer, bytes)?);
        }
    }
    let title = "DCQCN with the parameters of SIGCOMM 2015 but for timer and byte counter, 4:1 at 40 Gb/s";
    plots.write("oscillation.svg", title, 2, panels)
}

fn measure(timer: u32, bytes: u32) -> Result<Panel> {
    let control = Congestion::DCQCN_SIGCOMM15
        .with(CongestionParameter::RpgTimeReset, timer)?
        .with(CongestionParameter::RpgByteReset, bytes)?;
    let wire = Wire::default().bandwidth(BANDWIDTH);
    let topology = Topology::incast(SENDERS).wires(wire).switches(switch(BANDWIDTH, true));
    let simulation = Fabric::simulate(&topology, 1)?;
    let contexts = contexts(&simulation, SENDERS + 1, control)?;
    let pairs: Vec<_> = (1..=SENDERS).map(|sender| (sender, 0)).collect();
    let mut flows = LongFlows::start(&simulation, &contexts, &pairs, |_| 0)?;
    flows.run(WARM_UP)?;
    let (sent, pauses) =
        (simulation.queue(Switch(0), Host(0), PRIORITY)?.bytes, simulation.counters().pauses);
    flows.run(MEASURED)?;
    let sent = simulation.queue(Switch(0), Host(0), PRIORITY)?.bytes - sent;
    let first = (WARM_UP.as_micros() / STEP.as_micros()) as usize;
    let variations: Vec<f64> = flows.rates.iter().map(|rates| variation(&rates[first..])).collect();
    println!(
        "| {timer} | {bytes} | {:.4} | {:.4} | {:.3} | {} |",
        jain(&flows.means(first)),
        sent as f64 * 8.0 / (MEASURED.as_secs_f64() * BANDWIDTH as f64),
        mean(&variations),
        simulation.counters().pauses - pauses,
    );
    let lines = flows
        .rates
        .iter()
        .enumerate()
        .map(|(i, rates)| Line::over_time(&format!("sender {}", i + 1), STEP, rates));
    Ok(Panel::new(&format!("timer {timer} µs, byte counter {bytes}"), "ms", "Gb/s", lines.collect()))
}
