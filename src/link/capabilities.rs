//! Capabilities of links besides the exchange of packets: multicast, the port below, and reactions to the NIC
//! above.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::counters::LinkCounters;
use crate::fault_rules::{AppliedRule, FailedPackets};
use crate::host::membership::JoinError;
use crate::transport::{EgressRoom, Instant, QpObserver};
use crate::wire::Qpn;

/// Multicast groups of a link ([`Link::multicast`](super::Link::multicast)). All links of this crate
/// implement this trait; the driver calls it when the first queue pair is attached to a group, and when the
/// last one is detached.
pub trait Multicast {
    /// Joins a multicast group: packets to the group are received from now on, including those that this link
    /// sends itself. Joining a group again has no effect. If the link needs a socket for this, it opens the
    /// socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`JoinError`]; the group is then not joined.
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError>;

    /// Leaves a multicast group. Has no effect if the group was not joined.
    fn leave(&mut self, group: IpAddr);
}

/// State, room and counters of the port that a link uses ([`Link::port_state`](super::Link::port_state)). All
/// links of this crate implement this trait; the driver calls it, and middleware passes on that of its inner
/// link.
pub trait PortState {
    /// Reports whether the port carries packets: the cable is plugged in and the interface is up.
    fn is_up(&mut self) -> bool {
        true
    }

    /// Returns a descriptor that is readable when the result of [`is_up`](Self::is_up) may have changed.
    /// `None` if it never changes, or if the code that changes it also sends a notification.
    fn state_fd(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the number of packets that the link takes now, if it sends at the rate of a wire or if its
    /// peer can pause priorities; the NIC is then run again when there is more room. `None` if the link takes
    /// whatever it gets. A link does not change between both.
    fn egress_room(&self) -> Option<EgressRoom> {
        None
    }

    /// Returns the counters of dropped packets.
    fn counters(&mut self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// Event of a NIC that its links are told of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NicEvent {
    /// The NIC was opened on the link.
    Opened,
    /// A queue pair was connected (moved to RTR).
    Connected {
        /// The queue pair.
        local: Qpn,
        /// The peer's queue pair.
        remote: Qpn,
        /// The peer's address.
        peer: IpAddr,
    },
}

/// Reactions of a link to the NIC above it ([`Link::nic_observer`](super::Link::nic_observer)). Fault
/// injection implements this trait, and links with rings in shared memory, which look for a ring when a queue
/// pair is connected; the driver calls it, and other middleware passes on that of its inner link.
pub trait NicObserver {
    /// Informs the link of an event of the NIC.
    fn on_nic_event(&mut self, _now: Instant, _event: &NicEvent) {}

    /// Returns the fault rules that were applied to packets that may explain the failure of a queue pair.
    /// Only fault injection has any.
    fn applied_rules(&mut self, _failed: &FailedPackets) -> Vec<AppliedRule> {
        Vec::new()
    }

    /// Returns the observer of the NIC's queue pairs; it is asked for once, when the NIC is opened. Only event
    /// logs have one.
    fn qp_observer(&mut self) -> Option<Arc<dyn QpObserver>> {
        None
    }
}
