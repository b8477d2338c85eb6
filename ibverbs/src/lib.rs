//! A drop-in `libibverbs.so.1` and `librdmacm.so.1`: the C interfaces of verbs and of the RDMA connection
//! manager over [`urxe::verbs`], so that programs linked against these libraries run on urxe unmodified.
//!
//! Each exported function is a thin wrapper around its counterpart in [`urxe::verbs`]. [`abi`] defines the C
//! structs, `object` ties each C struct to the Rust state behind it, and `export!` assigns the C symbol name
//! and version.

#[macro_use]
mod export;

pub mod abi;
mod address;
mod cancel;
mod channel;
mod cm;
mod context;
mod device;
mod dm;
mod domain;
mod entry;
mod errno;
mod event;
mod known;
mod object;
mod opening;
mod pair;
mod parent;
mod polling;
mod port;
mod post;
mod private;
mod queue;
mod region;
mod rsocket;
mod session;
mod settings;
mod shared;
mod text;
