//! Handles of shared receive queues and XRC domains.

/// Handle of a shared receive queue, unique within its NIC. It is 24 bits wide, like the SRQ number in XRC
/// packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SrqId(pub u32);

/// Handle of an XRC domain, unique within its NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct XrcdId(pub u32);
