//! Rsockets: stream and datagram sockets over RDMA. The wire protocol is that of librdmacm, so that programs
//! using librdmacm can be peers.
//!
//! This crate is internal to the drop-in library of [`urxe`], and its API changes without notice. Of the
//! workspace it depends on `urxe` alone. The package `urxe-ibverbs` depends on it, and is the C interface: the symbols of
//! `rdma/rsocket.h`, pointers of the program, socket addresses in C structs, faults on calls, thread
//! cancellation, and `errno`. Here, a call reports an error number in `Err`. A call that may block gets a
//! [`Call`]: it makes one attempt, and fails with [`PENDING`] if another attempt is due after a
//! [wait](Call::wait).
//!
//! Each end of a stream has a receive buffer that the peer writes to by RDMA, and announces the free part of
//! it by writes to a table in the peer's memory (target SGL). The immediate data of each write is the message
//! (`protocol`). `outgoing`, `incoming` and `mappings` are the protocol without I/O; a `connection`
//! combines them with a queue pair; a `stream` adds connection management and implements the calls;
//! `keepalive` detects a dead peer.
//!
//! Datagrams have a protocol of their own: a `datagram` socket has a UDP socket (`udp`), through which it
//! resolves its `peers`, and UD queue pairs (`ud_qp`); `headers` precede the data. The traits in
//! `socket` have the calls of both kinds, `sockets` their common steps. `wait` blocks calls, `watchers` wakes
//! them, `poll` waits for several descriptors, [`repoll`] for sets of them, by the calls named after `epoll`.
//! `link_polls` decides which sockets poll the link.
#![warn(unreachable_pub)]

mod buffers;
mod call;
mod common;
mod connection;
mod data;
mod datagram;
mod headers;
mod incoming;
mod keepalive;
mod link_polls;
mod mappings;
mod options;
mod outgoing;
mod peers;
mod poll;
mod protocol;
pub mod repoll;
mod socket;
mod sockets;
mod stream;
mod table;
mod ud_qp;
mod udp;
mod wait;
mod watchers;

pub use buffers::{Received, Sink, Source};
pub use call::{Call, PENDING};
pub use options::{Options, duration};
pub use poll::wait_for;
pub use socket::Socket;
pub use sockets::{accept, create, get_for, option, set_option, stream};
pub use stream::Stream;
pub use table::{close, close_all, get};
