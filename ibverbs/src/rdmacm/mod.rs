//! A drop-in `librdmacm.so.1`: the C interface of the RDMA connection manager over [`urxe::verbs::cm`].
//!
//! It is the same file as `libibverbs.so.1` under a second name, because a connection and its queue pair must
//! belong to the same NIC.

mod address;
mod addrinfo;
mod channel;
mod connection;
mod create;
mod endpoint;
mod event;
mod id;
mod multicast;
mod options;
pub(crate) mod process;
mod queues;
mod resolve;
pub(crate) mod sockaddr;
mod sync;
