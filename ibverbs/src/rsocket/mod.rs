//! Rsockets: stream and datagram sockets over RDMA. The wire protocol is that of librdmacm, so that programs
//! using librdmacm can be peers.
//!
//! Each end of a stream has a receive buffer that the peer writes to by RDMA, and announces the free part of
//! it by writes to a table in the peer's memory (target SGL). The immediate data of each write is the message
//! ([`protocol`]). [`outgoing`], [`incoming`] and [`mappings`] are the protocol without I/O; a [`connection`]
//! combines them with a queue pair; a [`stream`] adds connection management and implements the calls;
//! [`keepalive`] detects a dead peer.
//!
//! Datagrams have a protocol of their own: a [`datagram`] socket has a UDP socket ([`udp`]), through which it
//! resolves its [`peers`], and UD queue pairs ([`ud_qp`]); [`headers`] precede the data. The trait in
//! [`socket`] has the calls of both kinds. [`wait`] blocks calls, [`watchers`] wakes them, [`poll`]
//! implements `rpoll` and `rselect`, [`repoll`] the calls named after `epoll`, and [`calls`] is the C
//! interface. [`link_polls`] decides which sockets poll the link.

mod buffers;
mod calls;
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
mod repoll;
mod socket;
mod sockets;
mod stream;
mod table;
mod ud_qp;
mod udp;
mod wait;
mod watchers;
