//! urxe: a software RoCEv2 NIC in userspace.
