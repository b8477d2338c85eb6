//! A 16:1 incast in ten lines: sixteen hosts send to one, with DCQCN and flow control.
//!
//! Shows `Traffic`, its table, CSV and plot. Run it with `cargo run --package urxe-netsim --example incast
//! [DIRECTORY]`, which writes `incast.csv` and `incast.svg` there.

use std::path::PathBuf;
use std::time::Duration;

use urxe_netsim::{Pfc, Red, SwitchConfig, Topology, Traffic, TrafficError};

fn main() -> Result<(), TrafficError> {
    let directory = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let switch = SwitchConfig::default().ecn(Red::new(40_000, 200_000, 0.3)).pfc(Pfc::default());
    let mut traffic = Traffic::new(&Topology::incast(16).switches(switch), 1)?;
    for sender in 1..=16 {
        traffic.flow(sender, 0).bytes(2_000_000).start(Duration::from_micros(20 * sender as u64));
    }
    let report = traffic.run(Duration::from_millis(100))?;
    println!("{report}");
    report.write_csv(&mut std::fs::File::create(directory.join("incast.csv"))?)?;
    report.plot(directory.join("incast.svg"))?;
    assert!(report.flows.iter().all(|flow| flow.completed_at.is_some()) && report.network.dropped == 0);
    Ok(())
}
