//! urxe: a software RoCEv2 NIC in userspace.

pub mod cli;
pub mod link;
pub mod memory;
pub mod nic;
pub mod transport;
pub mod verbs;
pub mod wire;
