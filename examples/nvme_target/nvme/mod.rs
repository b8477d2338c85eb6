//! An NVMe over Fabrics target: a file as a namespace, over RDMA.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`capsule`] | commands, responses, status codes, SGL descriptors |
//! | [`private_data`] | what both sides say in the connection manager's messages |
//! | [`request`] | commands that make sense, and what data each moves |
//! | [`subsystem`], [`controller`] | who may connect to what, and what is known of each host |
//! | [`queue`] | executes commands, whatever brought them |
//! | [`identify`], [`log`], [`namespace`] | what they answer with |
//! | [`connection`], [`server`] | a queue pair for each queue: SENDs, RDMA READs and WRITEs |
//!
//! All but the last row is without I/O but the file's.
#![forbid(unsafe_code)]

pub mod capsule;
pub mod connection;
pub mod controller;
pub mod identify;
pub mod log;
pub mod namespace;
pub mod private_data;
pub mod queue;
pub mod request;
pub mod server;
pub mod subsystem;

/// The subsystem that every target has, which tells of the others.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Commands in a queue at most.
pub const QUEUE_DEPTH: u16 = 128;
/// I/O queues of a controller at most.
pub const IO_QUEUES: u16 = 16;
/// Data that a command moves at most, in bytes, and the same as a power of two of 4 KiB pages.
pub const MAX_TRANSFER: usize = 4096 << MDTS;
/// See [`MAX_TRANSFER`].
pub const MDTS: u8 = 8;
/// Data that comes within a command's capsule at most, in bytes.
pub const IN_CAPSULE: usize = 4096;
/// What this implements: NVMe 1.4.
pub const VERSION: u32 = 0x0001_0400;
