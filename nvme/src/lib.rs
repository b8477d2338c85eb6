//! NVMe over Fabrics target that serves a file as a namespace over RDMA.
//!
//! | module | contents |
//! | --- | --- |
//! | [`capsule`] | commands, responses, status codes, SGL descriptors |
//! | [`private_data`] | private data of the connection manager's messages |
//! | [`request`] | parsed commands, and the data that each transfers |
//! | [`subsystem`], [`controller`] | access to the subsystem, and the state of each host |
//! | [`queue`] | execution of commands, independent of the transport |
//! | [`identify`], [`log`], [`namespace`] | the data that commands return or store |
//! | [`connection`], [`server`] | a queue pair for each queue: SENDs, RDMA READs and WRITEs |
//!
//! Only the modules in the last row perform I/O, apart from access to the file.
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

/// NQN of the discovery subsystem, which exists on every target and lists the other subsystems.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Maximum number of commands in a queue.
pub const QUEUE_DEPTH: u16 = 128;
/// Maximum number of I/O queues per controller.
pub const IO_QUEUES: u16 = 16;
/// Maximum amount of data that a command transfers, in bytes.
pub const MAX_TRANSFER: usize = 4096 << MDTS;
/// Maximum data transfer size (MDTS) as NVMe encodes it: the base-2 logarithm of [`MAX_TRANSFER`] in units of
/// 4 KiB pages.
pub const MDTS: u8 = 8;
/// Maximum amount of in-capsule data, in bytes.
pub const IN_CAPSULE: usize = 4096;
/// Implemented version of the specification: NVMe 1.4.
pub const VERSION: u32 = 0x0001_0400;
