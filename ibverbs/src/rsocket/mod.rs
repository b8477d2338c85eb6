//! Rsockets: sockets whose streams and datagrams go over RDMA, with librdmacm's protocol, so that its programs are peers.
//!
//! Of a stream each end has a buffer that the other writes to, and tells it which part of that is free, by writes to a table of the
//! other's. Four bytes come with each write and say what it was ([`protocol`]). [`outgoing`], [`incoming`] and [`mappings`]
//! are the protocol without input and output; a [`link`] has them with a queue pair; a [`stream`] has the connection
//! manager's part and what calls on it do; [`keepalive`] finds out whether a silent peer is there.
//!
//! Datagrams have a protocol of their own: a [`datagram`] socket has a UDP socket ([`udp`]), by which it learns of its
//! [`peers`], and UD queue pairs ([`pair`]); [`headers`] is what it puts before data. A [`socket`] is one of either kind;
//! [`wait`] is how calls wait, [`poll`] how programs wait for several. [`calls`] is the C interface.

mod buffers;
mod calls;
mod data;
mod datagram;
mod headers;
mod incoming;
mod keepalive;
mod link;
mod mappings;
mod options;
mod outgoing;
mod pair;
mod peers;
mod poll;
mod protocol;
mod socket;
mod stream;
mod table;
mod udp;
mod wait;

pub use table::close_all;
