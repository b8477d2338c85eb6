//! Unfairness and victims of priority flow control, as in "Congestion Control for Large-Scale RDMA
//! Deployments" (SIGCOMM 2015, figures 3 and 4), and their cure by DCQCN, on the same seed.

use std::time::Duration;

use urxe::verbs::*;
use urxe_netsim::Node::Switch;
use urxe_netsim::plot::{Line, Panel};
use urxe_netsim::stats::{jain, mean};
use urxe_netsim::{Simulation, Topology, Wire};

use crate::Plots;
use crate::Result;
use crate::network::{LongFlows, STEP, contexts, switch};

const WARM_UP: Duration = Duration::from_millis(60);
const MEASURED: Duration = Duration::from_millis(40);
const BANDWIDTH: u64 = 40_000_000_000;

/// Flows between hosts of a dumbbell with four hosts at either switch.
struct Case {
    name: &'static str,
    /// Bandwidth of the wire between the switches.
    trunk: u64,
    pairs: &'static [(usize, usize)],
    names: &'static [&'static str],
}

const CASES: [Case; 2] = [
    // Hosts 0 to 2 share an input of the receiver's switch; host 5 has one of its own.
    Case {
        name: "parking lot",
        trunk: BANDWIDTH,
        pairs: &[(0, 4), (1, 4), (2, 4), (5, 4)],
        names: &["far 1", "far 2", "far 3", "near"],
    },
    // Host 3 sends to host 7, whose wire is idle. It shares with the incast only the wire between the
    // switches, which is not a bottleneck.
    Case {
        name: "victim",
        trunk: 4 * BANDWIDTH,
        pairs: &[(0, 4), (1, 4), (2, 4), (5, 4), (6, 4), (3, 7)],
        names: &["incast 1", "incast 2", "incast 3", "incast 4", "incast 5", "victim"],
    },
];

/// Prints the mean rate of each flow, and plots the rates over time.
pub fn run(plots: &Plots) -> Result<()> {
    println!("| case | control | pauses | rates, Gb/s | Jain |");
    println!("| --- | --- | --- | --- | --- |");
    let mut panels = Vec::new();
    for case in &CASES {
        let controls = [("PFC alone", Congestion::NONE), ("PFC and DCQCN", Congestion::DCQCN_CONNECTX)];
        for (name, control) in controls {
            panels.push(measure(case, name, control)?);
        }
    }
    plots.write("fairness.svg", "Flow control without and with DCQCN, 40 Gb/s", 2, &panels)
}

fn measure(case: &Case, name: &str, control: Congestion) -> Result<Panel> {
    let wire = Wire::default().bandwidth(BANDWIDTH);
    let topology = Topology::dumbbell(4).wires(wire).wire(Switch(0), Switch(1), wire.bandwidth(case.trunk));
    let simulation = Simulation::new(&topology.switches(switch(BANDWIDTH, control.uses_marks())), 1)?;
    let contexts = contexts(&simulation, 8, control)?;
    let mut flows = LongFlows::start(&simulation, &contexts, case.pairs, |host| host / 4)?;
    flows.run(WARM_UP)?;
    let pauses = simulation.counters().pauses;
    flows.run(MEASURED)?;
    let means = flows.means((WARM_UP.as_micros() / STEP.as_micros()) as usize);
    let rates: Vec<String> =
        case.names.iter().zip(&means).map(|(name, rate)| format!("{name} {rate:.1}")).collect();
    let pauses = simulation.counters().pauses - pauses;
    println!("| {} | {name} | {pauses} | {} | {:.3} |", case.name, rates.join(", "), jain(&means));
    let lines =
        flows.rates.iter().zip(case.names).map(|(rates, name)| Line::over_time(name, STEP, rates, mean));
    Ok(Panel::new(&format!("{}, {name}", case.name), "ms", "Gb/s", lines.collect()))
}
