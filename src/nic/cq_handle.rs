//! Completion queue handles. The queues themselves are implemented by the driver.

/// Number that the driver has assigned to a completion queue. The NIC only passes it back with each
/// completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqHandle(pub u32);
