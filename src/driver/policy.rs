//! Which threads drive a shard.

use crate::fabric::FabricHandle;

/// Policy that decides which threads run a shard's turns; see the table in [`driver`](super). It follows from
/// the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// The thread that advances the virtual time of a fabric.
    Clock,
    /// On a fabric in real time, the thread that sends: it drives the receiving NIC too. The background
    /// thread does only what is left over or due later: two threads that alternate would move all data
    /// from core to core.
    Sender,
    /// On other links, application threads in their calls, and the background thread
    /// [adaptively](super::adaptive::Adaptive).
    Adaptive,
}

impl Policy {
    /// Returns the policy for a shard whose link is the given port of a fabric, if any.
    pub fn of(fabric: Option<&FabricHandle>) -> Policy {
        match fabric {
            Some(handle) if handle.fabric().is_virtual() => Policy::Clock,
            Some(_) => Policy::Sender,
            None => Policy::Adaptive,
        }
    }
}
