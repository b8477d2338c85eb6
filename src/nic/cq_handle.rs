//! Handle of a completion queue. The queue itself belongs to the driver.

/// Number that the driver has given to a completion queue. The NIC only returns it to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqHandle(pub u32);
