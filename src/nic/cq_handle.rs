//! Handle of a completion queue. The queue itself belongs to the driver.

/// Completion queue, by the number that the driver has given it. The NIC only returns the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqHandle(pub u32);
