//! Interface between a fabric in virtual time and a network that takes the place of its single switch.

use std::sync::Arc;

use parking_lot::Mutex;

use super::port_queue::PortQueue;
use super::port_shared::PortShared;
use crate::burst::TxBurst;
use crate::transport::Instant;

/// A network, and the queue to which it adds each port whose due time it changes.
pub type QueuedNetwork = (Arc<PortQueue>, Arc<Mutex<dyn Network>>);

/// A network of hosts in virtual time, each of which can have one NIC. The package `urxe-netsim` implements
/// it.
pub trait Network: Send {
    /// Attaches a NIC's new port to a host or, with `None`, to the first one without a NIC. Returns the host;
    /// `None` if it does not exist or has a NIC.
    fn attach(&mut self, host: Option<usize>, port: &Arc<PortShared>) -> Option<u32>;

    /// Detaches a host's port, which no longer exists.
    fn detach(&mut self, host: u32);

    /// Returns the bandwidth of a host's wire in bits per second.
    fn speed(&self, host: u32) -> u64;

    /// Reports whether an event is pending.
    fn has_events(&self) -> bool;

    /// Processes the events up to `limit`, or up to the first nanosecond in which one of them affects a NIC.
    /// Returns the time of the last one; `None` if there was none.
    fn run(&mut self, limit: Instant) -> Option<Instant>;

    /// Takes a burst from a NIC at `now`, for each of `targets`.
    fn send(&mut self, host: u32, now: Instant, burst: &TxBurst<'_>, targets: &mut dyn Iterator<Item = u32>);

    /// Takes back the buffers of packets that a NIC has read.
    fn recycle(&mut self, read: &mut dyn Iterator<Item = Vec<u8>>);
}
