//! urxe: a software RoCEv2 NIC in userspace.

pub mod cli;
