//! Tests of unmodified programs and C programs on the drop-in libraries. Need packages of Debian or Ubuntu,
//! and some root.

mod broker;
mod call_faults;
mod calls;
mod cancel;
mod captures;
mod cargo_runner;
mod connections;
mod counters;
mod datagram_rsockets;
mod devinfo;
mod documents;
mod explain;
mod faults;
mod libfabric;
mod live;
mod loaders;
mod memcheck;
mod nccl_calls;
mod openmpi;
mod page;
mod perftest;
mod personalities;
mod programs;
mod pyverbs;
mod qperf;
mod rdmacm;
mod release65;
mod ring_fallback;
mod rsockets;
mod run;
mod sandbox;
mod shared_memory;
mod sharing;
mod sysfs;
mod ucx;
