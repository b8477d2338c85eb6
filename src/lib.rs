//! urxe: a software RoCEv2 NIC in userspace.
//!
//! Implements the InfiniBand transport over UDP, with the verbs API on top. Linked into a test it is a mock
//! NIC; over a socket it interoperates with the kernel's rxe and with hardware. The public modules, from the
//! bottom up:
//!
//! | module | contents |
//! | --- | --- |
//! | [`wire`] | packet formats: parsing and building headers, the opcode table, the ICRC |
//! | [`host`] | the host's interfaces; the host stack of links with an address of their own; priority flow control |
//! | [`link`] | packet transmission: UDP, packet sockets, frames |
//! | [`fabric`] | links in memory: a switch between NICs of one process |
//! | [`middleware`] | links around a link: packet capture, fault injection, traces |
//! | `qlog` | records of event logs (feature `qlog`) |
//! | [`broker`] | sharing of an address between processes, each with a part of the queue pair numbers |
//! | [`verbs`] | the verbs API: contexts, regions, completion queues, queue pairs, connection manager |
//!
//! The engine between [`wire`] and [`verbs`] is private. `ARCHITECTURE.md` in the repository describes it.
//!
//! Two connected NICs and an RDMA WRITE between them, with no network, no root and no hardware:
//!
//! ```
//! use std::time::Duration;
//! use urxe::verbs::*;
//! use urxe::verbs::errors::WaitError;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = Fabric::new().pair()?;
//! let source = a.pd.reg_mr(4096, Access::LOCAL_WRITE)?;
//! let target = b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! source.write(0, b"hello")?;
//! a.qp.post_send(&SendWr::write(1, &[source.sge(0..5)], target.remote(100)))?;
//! a.cq.wait(Duration::from_secs(1))?;
//! assert_eq!(&target.to_vec()[100..105], b"hello");
//!
//! // What hardware would refuse is refused: this region gives peers no right to READ.
//! a.qp.post_send(&SendWr::read(2, &[source.sge(0..5)], target.remote(0)))?;
//! let Err(WaitError::Failed(completion)) = a.cq.wait(Duration::from_secs(1)) else { panic!() };
//! assert_eq!(completion.status, WcStatus::RemAccessErr);
//! # Ok(())
//! # }
//! ```
//!
//! [`verbs::Fabric::virtual_time`] runs the same program on a simulated clock, with latency,
//! loss, duplication, reordering and corruption determined by a seed; a replay produces the same bytes.

// A user can name every type of a public signature. The feature makes internal modules public.
#![cfg_attr(not(feature = "unstable-internals"), warn(unnameable_types))]

#[macro_use]
mod trace_event;

pub mod broker;
mod driver;
pub mod fabric;
mod fault_rules;
pub mod host;
pub mod link;
pub mod middleware;
#[cfg(test)]
#[path = "../tests/support/netns.rs"]
mod netns;
#[cfg(feature = "qlog")]
pub mod qlog;
pub mod verbs;
pub mod wire;

pub use verbs::any_error::Error;

// Internals of the engine, for the other packages of the workspace and the tests of this one. Not subject to
// semantic versioning.
#[cfg(not(feature = "unstable-internals"))]
mod burst;
#[cfg(feature = "unstable-internals")]
pub mod burst;
#[cfg(not(feature = "unstable-internals"))]
mod cm;
#[cfg(feature = "unstable-internals")]
pub mod cm;
#[cfg(not(feature = "unstable-internals"))]
mod memory;
#[cfg(feature = "unstable-internals")]
pub mod memory;
#[cfg(not(feature = "unstable-internals"))]
mod nic;
#[cfg(feature = "unstable-internals")]
pub mod nic;
#[cfg(not(feature = "unstable-internals"))]
mod rings;
#[cfg(feature = "unstable-internals")]
pub mod rings;
#[cfg(not(feature = "unstable-internals"))]
mod sys;
#[cfg(feature = "unstable-internals")]
pub mod sys;
#[cfg(not(feature = "unstable-internals"))]
mod transport;
#[cfg(feature = "unstable-internals")]
pub mod transport;

/// Placeholder whose documentation is the README, so that the README's examples are run as documentation
/// tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Placeholder like [`Readme`], for the pages of the guide that have examples in Rust.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/mock-nic.md")]
#[doc = include_str!("../docs/guide/faults.md")]
#[doc = include_str!("../docs/guide/captures.md")]
#[doc = include_str!("../docs/guide/congestion.md")]
struct Guide;
