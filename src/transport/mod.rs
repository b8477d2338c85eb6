//! The sans-I/O heart: bytes and instants in; bytes, deadlines and completions out.
//!
//! No socket, no thread, no clock, no lock.
#![forbid(unsafe_code)]

mod burst;
mod time;

pub use burst::{BurstLimits, Payload, Piece, TxBurst, TxQueue};
pub use time::Instant;
