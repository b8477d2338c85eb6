//! Conversion between bytes and headers, without I/O. Only ICRC verification ([`icrc`]) keeps state.
//!
//! [`opcode`] is the single table of the contents of each of the 256 opcodes. [`Packet`] is a zero-copy view
//! of a UDP payload that the table accepts, [`Headers`] its owned counterpart that encodes into a caller's
//! buffer, and [`icrc`] the invariant CRC over both.
#![forbid(unsafe_code)]

mod crc_short;
mod flow;
pub mod frame;
pub mod grh;
mod headers;
pub mod icrc;
mod icrc_ident;
mod icrc_senders;
mod ids;
mod ip;
mod mac;
pub mod mad;
mod numbers;
pub mod opcode;
mod packet;
mod permutation;
mod psn;

pub use flow::{Ecn, Flow, IpIdent, ROCE_PORT};
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, CNP_PAYLOAD_LEN, Deth, Feth, Headers, MAX_HEADERS_LEN,
    NakCode, Reth, Syndrome,
};
pub use ids::{AckTimeout, Gid, LKey, Mtu, PKey, QKey, Qpn, RKey, RnrTimer};
pub use mac::{Mac, MacError, solicited_node};
pub(crate) use numbers::Counted;
pub use opcode::{HeaderSet, Opcode, Operation, Position, Transport};
pub use packet::{ICRC_LEN, Packet, WireError, pad_count};
pub(crate) use permutation::Permutation;
pub use psn::Psn;
