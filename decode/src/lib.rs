//! Analysis of RoCE captures: which queue pairs talk to each other, whether every ICRC is right, and why
//! something failed, with the packets that show it.
//!
//! [`capture`] reads pcap and pcapng files, [`layers`] finds the RoCE packets in their frames, [`track`]
//! follows the queue pairs, and the rules behind [`Report`] turn what happened into [`Finding`]s.
//!
//! ```no_run
//! use urxe_decode::{Capture, Report};
//!
//! let report = Report::read([Capture::open("client.pcapng".as_ref())]);
//! print!("{report}");
//! ```

pub mod capture;
pub mod finding;
pub mod icrc;
mod join;
mod ladder;
pub mod layers;
mod report;
mod rules;
pub mod segments;
mod text;
pub mod track;

pub use capture::Capture;
pub use finding::{Diagnosis, Finding, PacketRef, Severity};
pub use ladder::Ladder;
pub use report::{CaptureReport, QueuePairs, Report};
