//! Analysis of RoCE captures: which queue pairs talk to each other, whether every ICRC is right, and why
//! something failed, with the packets that show it.
//!
//! A [`Capture`] is a pcap or pcapng file that is being read. A [`Report`] is the result of its analysis: queue
//! pairs and [`Finding`]s. A [`Ladder`] shows the packets around a finding, a [`Message`] the payload of a message.
//! A [`Page`] shows everything in a browser, and [`Live`] analyses a capture that grows.
//! [`Events`] are what an event log of the NICs would contain.
//!
//! ```no_run
//! use urxe_decode::{Capture, Report};
//!
//! let report = Report::read([Capture::open("client.pcapng".as_ref())]);
//! print!("{report}");
//! ```

mod capture;
mod finding;
mod icrc;
mod join;
mod ladder;
mod layers;
mod live;
mod message;
mod page;
mod qlog;
mod report;
mod rules;
mod segments;
mod text;
mod track;

pub use capture::{Capture, CaptureError};
pub use finding::{Diagnosis, Finding, PacketRef, Severity};
pub use ladder::Ladder;
pub use live::Live;
pub use message::{Message, MessageError};
pub use page::Page;
pub use qlog::{Events, EventsError};
pub use report::{CaptureReport, QueuePairs, Report};
