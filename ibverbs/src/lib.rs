//! A drop-in `libibverbs.so.1` and `librdmacm.so.1`: the C interfaces of verbs and of the connection manager over
//! [`urxe::verbs`], so that programs that were linked against them run on urxe as they are.
//!
//! Each exported function is a thin one over its counterpart there. [`abi`] has the structs as C lays them out; `object`
//! says how what C has a pointer to belongs to what Rust keeps; `export!` gives a function its name and version.

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
