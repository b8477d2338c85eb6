//! Simulated networks of [`urxe`] NICs, and traffic on them: flows between hosts, and what becomes of them.
//!
//! The network, its switches and all NICs run in virtual time, so that the results are the same on every
//! machine. [`Simulation`] is the network of a [`Topology`], for any program written against [`urxe::verbs`];
//! [`Traffic`] runs flows on one. A 16:1 incast:
//!
//! ```
//! # use std::time::Duration;
//! use urxe_netsim::{Pfc, Red, SwitchConfig, Topology, Traffic};
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

// The example of the guide, as a documentation test.
#![cfg_attr(doctest, doc = include_str!("../../docs/guide/simulation.md"))]

mod network;
pub mod plot;
mod report;
pub mod stats;
mod traffic;

pub use network::*;
pub use report::{FlowReport, QueueReport, Report};
pub use traffic::{Flow, Traffic, TrafficError};
