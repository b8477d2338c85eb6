//! Rsockets: sockets whose streams go over RDMA, with librdmacm's protocol, so that its programs are peers.
//!
//! Each end has a buffer that the other writes to, and tells it which part of that is free, by writes to a table of the
//! other's. Four bytes come with each write and say what it was ([`protocol`]). [`outgoing`], [`incoming`] and [`mappings`]
//! are the protocol without input and output; a [`link`] has them with a queue pair; a [`socket`] has the connection
//! manager's part and what calls on it do; [`keepalive`] finds out whether a silent peer is there; [`wait`] is how calls wait, [`poll`] how programs wait for several. [`calls`] is
//! the C interface.

mod buffers;
mod calls;
mod data;
mod incoming;
mod keepalive;
mod link;
mod mappings;
mod options;
mod outgoing;
mod poll;
mod protocol;
mod socket;
mod table;
mod wait;

pub use table::close_all;
