//! Event log of RDMA on the qlog main schema (draft-ietf-quic-qlog-main-schema): the events, and their records
//! in the format JSON-SEQ (RFC 7464).
//!
//! An [`Event`] is what a log contains besides its [`Header`]; [`append`] makes a record of either. A NIC writes
//! a log as it runs ([`QlogFile`](crate::middleware::qlog::QlogFile)), `urxe decode --qlog` from captures.
//! docs/guide/qlog.md describes the events, docs/qlog/rdma.schema.json defines them for programs.
#![forbid(unsafe_code)]

mod event;
mod header;
mod packet;

pub use event::{
    Check, Cm, Congestion, Event, EventData, Gap, GapOf, Memory, Nak, Notification, PacketData,
    PacketDropped, QpStateChange, Raw, Resend, Response, RnrNak, Side, Timer, WorkRequest, group, millis,
    nak_name,
};
pub use header::{EVENT_SCHEMA, Header, Reference, Trace, VantagePoint, rfc3339, seconds_of};
pub use packet::{dropped, observed};

use serde::Serialize;

/// Byte before each record.
pub const RECORD_SEPARATOR: u8 = 0x1e;

/// Appends a header or an event as a record.
pub fn append(out: &mut Vec<u8>, record: &impl Serialize) {
    let start = out.len();
    out.push(RECORD_SEPARATOR);
    match serde_json::to_writer(&mut *out, record) {
        Ok(()) => out.push(b'\n'),
        // Writing to memory succeeds, and the types contain nothing that JSON lacks.
        Err(_) => out.truncate(start),
    }
}
