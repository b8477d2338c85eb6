//! urxe: a software RoCEv2 NIC in userspace.
//!
//! The InfiniBand transport over UDP, with the verbs API on top: linked in a test it is a mock NIC, over a
//! socket it talks to the kernel's rxe and to hardware. A map of the rooms, from the ground up; each leans
//! only on those above it:
//!
//! | room | what it does |
//! | --- | --- |
//! | [`wire`] | bytes to headers and back: the opcode table, the ICRC |
//! | [`memory`] | regions, keys and access checks; the one place that touches user memory |
//! | [`transport`] | queue pairs, sans I/O: requester, responder, PSNs, timers, states |
//! | [`nic`] | one NIC, still sans I/O: tables, counters, dispatch |
//! | [`cm`] | the connection manager over QP1, sans I/O too |
//! | [`link`] | how packets leave and arrive: fabric, UDP, packet sockets, frames; capture and faults |
//! | [`verbs`] | the public API, and who drives a NIC |
//! | `cli` | the `urxe` command (feature `cli`, on by default) |
//!
//! Two connected NICs and an RDMA WRITE between them, with no network, no root and no hardware:
//!
//! ```
//! use std::time::Duration;
//! use urxe::verbs::*;
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
//! [`verbs::Fabric::virtual_time`] runs the same program in one thread on a simulated clock, with latency,
//! loss, duplication, reordering and corruption from a seed, and replays to the same bytes.

#[cfg(feature = "cli")]
pub mod cli;
pub mod cm;
pub mod link;
pub mod memory;
pub mod nic;
pub mod transport;
pub mod verbs;
pub mod wire;

/// Compiles and runs the README's examples as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
