//! Handles of shared receive queues and XRC domains.

/// Handle of a shared receive queue, unique in its NIC: 24 bits, as in XRC packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SrqId(pub u32);

/// Handle of an XRC domain, unique in its NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct XrcdId(pub u32);
