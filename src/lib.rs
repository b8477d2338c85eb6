//! urxe: a software RoCEv2 NIC in userspace.
//!
//! Implements the InfiniBand transport over UDP, with the verbs API on top. Linked into a test it is a mock
//! NIC; over a socket it interoperates with the kernel's rxe and with hardware. The modules, from the bottom
//! up; each depends only on those above it in this table:
//!
//! | module | contents |
//! | --- | --- |
//! | [`wire`] | packet formats: parsing and building headers, the opcode table, the ICRC |
//! | [`memory`] | regions, keys and access checks; the only module that accesses user memory |
//! | [`transport`] | queue pairs, sans I/O: requester, responder, PSNs, timers, states |
//! | [`nic`] | one NIC, sans I/O: tables, counters, dispatch |
//! | [`cm`] | the connection manager over QP1, sans I/O |
//! | [`link`] | packet transmission: fabric, UDP, packet sockets, frames; capture and fault injection |
//! | [`verbs`] | the public API, and the driver that runs a NIC |
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
//! loss, duplication, reordering and corruption determined by a seed; a replay produces the same bytes.

pub mod cm;
mod driver;
pub mod link;
pub mod memory;
pub mod nic;
mod sys;
pub mod transport;
pub mod verbs;
pub mod wire;

/// Holder of the README's examples, which are compiled and run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
