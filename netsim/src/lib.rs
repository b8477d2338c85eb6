//! Traffic on simulated networks of [`urxe`]: flows between hosts, and what becomes of them.
//!
//! The network, its switches and all NICs run in virtual time, so that the results are the same on every
//! machine. A 16:1 incast:
//!
//! ```
//! # use std::time::Duration;
//! use urxe::fabric::{Pfc, Red, SwitchConfig, Topology};
//! use urxe_netsim::Traffic;
//!
//! let switch = SwitchConfig::default().ecn(Red::new(40_000, 200_000, 0.3)).pfc(Pfc::default());
//! let mut traffic = Traffic::new(&Topology::incast(16).switches(switch), 1)?;
//! for sender in 1..=16 {
//!     traffic.flow(sender, 0).bytes(100_000);
//! }
//! let report = traffic.run(Duration::from_millis(10))?;
//! println!("{report}");
//! assert!(report.flows.iter().all(|flow| flow.completed_at.is_some()) && report.network.dropped == 0);
//! # report.write_csv(&mut Vec::new())?;
//! # Ok::<(), urxe_netsim::TrafficError>(())
//! ```
//!
//! [`Report::write_csv`] writes rates and queue lengths over time, [`Report::plot`] draws them.

pub mod plot;
mod report;
pub mod stats;
mod traffic;

pub use report::{FlowReport, QueueReport, Report};
pub use traffic::{Flow, Traffic, TrafficError};
