//! Incasts of 2 to 16 senders at 40 and 100 Gb/s, with DCQCN and flow control.

use std::time::Duration;

use urxe::verbs::*;
use urxe_netsim::Node::{Host, Switch};
use urxe_netsim::plot::{Line, Panel};
use urxe_netsim::stats::{jain, maximum, mean, percentile};
use urxe_netsim::{Simulation, Topology, Wire};

use crate::Plots;
use crate::Result;
use crate::network::{LongFlows, PRIORITY, STEP, contexts, k_range, switch};

/// Time after which the rates have converged.
const WARM_UP: Duration = Duration::from_millis(60);
/// Time of measurement. With `dcqcn:sigcomm15`, a sender gets as few as three CNPs per millisecond, so that
/// its mean rate over 40 ms still depends on chance: Jain's index of two or four senders was 0.965 to 1 in
/// 112 windows of 40 ms, and 0.986 to 1 in 16 of 240 ms.
const MEASURED: Duration = Duration::from_millis(240);

/// Time between two samples of the queue.
const SAMPLED: Duration = Duration::from_micros(1);

/// Prints a row for each incast, and plots rates and queue.
pub fn run(plots: &Plots) -> Result<()> {
    println!(
        "| Gb/s | senders | control | Jain | utilisation | queue p50, kB | queue p99, kB | Kmax, kB | CNPs | pauses | drops |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for gigabits in [40, 100] {
        for control in [Congestion::DCQCN_CONNECTX, Congestion::DCQCN_SIGCOMM15] {
            let mut panels = Vec::new();
            for senders in [2, 4, 8, 16] {
                panels.extend(incast(gigabits, senders, control)?);
            }
            let name = control.to_string().replace("dcqcn:", "");
            let title = format!(
                "Incasts at {gigabits} Gb/s with {control}: rate of each sender, length of the queue"
            );
            plots.write(&format!("incast-{gigabits}g-{name}.svg"), &title, 2, &panels)?;
        }
    }
    Ok(())
}

fn incast(gigabits: u64, senders: usize, control: Congestion) -> Result<[Panel; 2]> {
    let bandwidth = gigabits * 1_000_000_000;
    let wire = Wire::default().bandwidth(bandwidth);
    let topology = Topology::incast(senders).wires(wire).switches(switch(bandwidth, true));
    let simulation = Simulation::new(&topology, 1)?;
    let contexts = contexts(&simulation, senders + 1, control)?;
    let pairs: Vec<_> = (1..=senders).map(|sender| (sender, 0)).collect();
    let mut flows = LongFlows::start(&simulation, &contexts, &pairs, |_| 0)?;
    let queue = || simulation.queue(Switch(0), Host(0), PRIORITY);
    simulation.sample(Switch(0), Host(0), PRIORITY, SAMPLED)?;
    flows.run(WARM_UP)?;
    let mut lengths = simulation.take_samples(Switch(0), Host(0), PRIORITY)?;
    let (sent, network) = (queue()?.bytes, simulation.counters());
    flows.run(MEASURED)?;
    let mut measured = simulation.take_samples(Switch(0), Host(0), PRIORITY)?;
    lengths.extend(&measured);
    measured.sort_unstable();
    let utilisation = (queue()?.bytes - sent) as f64 * 8.0 / (MEASURED.as_secs_f64() * bandwidth as f64);
    let kilobytes = |percent| percentile(&measured, percent).unwrap_or_default() as f64 / 1e3;
    let now = simulation.counters();
    println!(
        "| {gigabits} | {senders} | {control} | {:.4} | {utilisation:.4} | {:.0} | {:.0} | {} | {} | {} | {} |",
        jain(&flows.means((WARM_UP.as_micros() / STEP.as_micros()) as usize)),
        kilobytes(50.0),
        kilobytes(99.0),
        k_range(bandwidth).k_max / 1000,
        contexts[0].counters().np_cnp_sent,
        now.pauses - network.pauses,
        now.dropped,
    );
    let rates = flows
        .rates
        .iter()
        .enumerate()
        .map(|(i, rates)| Line::over_time(&format!("sender {}", i + 1), STEP, rates, mean));
    let lengths: Vec<f64> = lengths.iter().map(|bytes| *bytes as f64 / 1e3).collect();
    Ok([
        Panel::new(&format!("{senders}:1"), "ms", "Gb/s", rates.collect()),
        Panel::new(
            &format!("{senders}:1"),
            "ms",
            "kB",
            vec![Line::over_time("largest queue", SAMPLED, &lengths, maximum)],
        )
        .logarithmic_y(),
    ])
}
