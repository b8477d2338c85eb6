//! A drop-in `libibverbs.so.1` and `librdmacm.so.1`: the C interfaces of verbs and of the RDMA connection
//! manager over [`urxe::verbs`], so that programs linked against these libraries run on urxe unmodified.
//!
//! Each exported function is a thin wrapper around its counterpart in [`urxe::verbs`]. `abi` defines the C
//! structs, `object` ties each C struct to the Rust state behind it, `entry_points!` defines the C functions,
//! and `export!` assigns the C symbol name and version. Nothing is public in Rust.
//!
//! The sockets behind `rsocket` are in the package `urxe-rsockets`.
//!
//! Imports go in one direction, which `.ci/layers` checks: `rsocket`, `rdmacm`, the files of verbs objects,
//! `abi`. Among the files of verbs objects, the order is: `ops` and `open`, the files that create queues, the
//! files of the objects, then `context`, `object` and the files that these two import.
#![warn(unreachable_pub)]

#[macro_use]
mod call_faults;
#[macro_use]
mod symver;
#[macro_use]
mod entry_points;

mod abi;
mod address;
mod allocator;
mod buf;
mod buffers;
mod cancel;
mod channel;
mod comp_cntr;
mod congestion_files;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod create_cq;
mod create_qp;
mod device;
mod dm;
mod dma_buf;
mod dmah;
mod env;
mod errno;
mod event;
mod event_objects;
mod explain;
mod fault_watch;
mod live_objects;
mod log;
mod mr;
mod object;
mod open;
mod ops;
mod parent;
mod pd;
mod post;
mod provider_stubs;
mod qp;
mod qp_ex;
mod query;
mod rdmacm;
mod rsocket;
mod shared_context;
mod srq;
mod strings;
mod td;
mod trusted_file;
mod unmapping;
mod wr_session;
