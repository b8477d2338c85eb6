//! A drop-in `librdmacm.so.1`: the C interface of the RDMA connection manager over [`urxe::verbs::cm`].
//!
//! It is the same file as `libibverbs.so.1` under a second name, as whoever has a connection has its queue pair: both must be
//! of one NIC.

mod address;
mod addrinfo;
mod channel;
mod connection;
mod endpoint;
mod event;
mod id;
mod multicast;
mod options;
pub mod process;
mod queues;
pub mod sockaddr;
