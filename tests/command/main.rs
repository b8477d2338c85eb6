//! Tests of the `urxe` command and of the shared libraries that need nothing but what builds the workspace.

mod bundled;
mod cli;
mod cli_help;
mod cli_perf;
mod connection_manager;
mod decode;
mod doctor;
mod live;
mod preload;
mod qlog;
mod shards;
mod shareable_processes;
mod shareable_regions;
mod shared_qp1;
mod symbols;
