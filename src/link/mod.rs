//! Links: the layer that carries packets in bursts between a NIC and a socket or an in-memory queue.
//!
//! A [`Link`] takes the whole [`TxQueue`] of one NIC turn and delivers received packets as [`RxBurst`]s.
//! Every link guarantees two properties of the IPv4 headers that it sends: the don't-fragment flag is set,
//! and packet `i` of a burst has the identification `i`. The ICRC covers both. The NIC above computes and
//! checks the ICRC, or leaves it out between NICs that exchange packets through memory ([`Link::elide_icrcs`]).

/// Forwards the methods of [`Link`] that a middleware link does not change: `delegate_link_methods!(self =>
/// self.inner)`.
macro_rules! delegate_link_methods {
    ($self:ident => $inner:expr) => {
        fn join(&mut $self, now: Instant, group: std::net::IpAddr) -> Result<(), $crate::link::JoinError> {
            $inner.join(now, group)
        }
        fn leave(&mut $self, group: std::net::IpAddr) {
            $inner.leave(group);
        }
        fn shared_address(&mut $self) -> Option<&mut dyn $crate::link::SharedAddress> {
            $inner.shared_address()
        }
        fn poll_fd(&$self) -> Option<std::os::fd::BorrowedFd<'_>> {
            $inner.poll_fd()
        }
        fn group_fd(&$self) -> Option<std::os::fd::BorrowedFd<'_>> {
            $inner.group_fd()
        }
        fn fds(&$self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            $inner.fds()
        }
        fn is_up(&mut $self) -> bool {
            $inner.is_up()
        }
        fn state_fd(&$self) -> Option<std::os::fd::BorrowedFd<'_>> {
            $inner.state_fd()
        }
        fn egress_room(&$self) -> Option<$crate::link::EgressRoom> {
            $inner.egress_room()
        }
        fn prepare_to_sleep(&mut $self) -> bool {
            $inner.prepare_to_sleep()
        }
        fn has_used_rings(&$self) -> bool {
            $inner.has_used_rings()
        }
        fn next_peer_change(&mut $self) -> Option<$crate::link::PeerChange> {
            $inner.next_peer_change()
        }
        fn counters(&$self) -> $crate::link::LinkCounters {
            $inner.counters()
        }
    };
}

mod frames;
mod link_spec;
mod loopback;
mod multihomed;
mod options;
mod packet;
mod shared_address;
pub mod udp;

use std::io;
use std::net::IpAddr;
use std::ops::AddAssign;
use std::os::fd::BorrowedFd;

pub use crate::burst::{BurstLimits, PeerPath, RxBurst, TxBurst, TxQueue};
use crate::fault_rules::{AppliedRule, FailedPackets};
pub use crate::host::membership::JoinError;
pub use crate::nic::QpnPartition;
use crate::sys::setters::setters;
pub use crate::transport::{EgressRoom, Instant, LastAcks, PeerChange, PeerWindow};
use crate::wire::Qpn;
use crate::wire::frame::{FrameError, PRIORITIES};
pub(crate) use delegate_link_methods;
pub use frames::{FramesConfig, FramesError, FramesLink, FramesWire};
pub(crate) use link_spec::boxed;
pub use link_spec::{BindError, LinkSpec, default_address};
pub use multihomed::Multihomed;
pub use options::{MAX_MTU, MIN_MTU, SpecError};
pub use packet::{PacketConfig, PacketError, PacketLink};
pub use shared_address::{ClaimError, SharedAddress};

/// Speed of a link without a nominal speed, in bits per second.
pub(crate) const DEFAULT_SPEED: u64 = 100_000_000_000;

/// Properties of a link.
///
/// ```
/// # use urxe::link::*;
/// let info = LinkInfo::new("loopback", vec!["192.0.2.1".parse()?]).mtu(4096).src_port(4791);
/// assert_eq!((info.mtu, info.burst), (4096, BurstLimits::SINGLE));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Short name for display: `udp 127.0.0.1`, `packet eth0`.
    pub name: String,
    /// The IP addresses, in the order of the GID table.
    pub addresses: Vec<IpAddr>,
    /// The MAC address, all zeros if the link has none.
    pub mac: [u8; 6],
    /// VLAN ID in the tags that the link adds to its frames; `None` if it adds none.
    pub vlan: Option<u16>,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// UDP source port of all packets that the link sends; `None` if it can choose the port per packet.
    pub src_port: Option<u16>,
    /// Largest burst that the link accepts.
    pub burst: BurstLimits,
    /// Receive buffer size of a peer with the same kind of link, in bytes: the limit on the data in flight to
    /// it. Short packets are charged more than their length ([`udp::MIN_CHARGE`]).
    pub window: usize,
    /// Speed in bits per second, at which congestion control begins to send. Software has no nominal speed; the
    /// default is 100 Gb/s.
    pub speed: u64,
}

setters!(LinkInfo { speed: u64, mac: [u8; 6], mtu: usize, burst: BurstLimits, window: usize } optional { vlan: u16, src_port: u16 });

impl LinkInfo {
    /// Returns the properties of a link that sends packets one by one, has no MAC address, an MTU of 1500 bytes
    /// and a window of 1 MiB, and chooses the source port per packet.
    pub fn new(name: impl Into<String>, addresses: Vec<IpAddr>) -> LinkInfo {
        LinkInfo {
            name: name.into(),
            addresses,
            mac: [0; 6],
            vlan: None,
            mtu: 1500,
            src_port: None,
            burst: BurstLimits::SINGLE,
            window: 1 << 20,
            speed: DEFAULT_SPEED,
        }
    }
}

/// Packets that a link received but did not deliver, or could not send, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Frames that are neither RoCEv2 packets for this link nor neighbour discovery.
    pub rx_foreign: u64,
    /// RoCEv1 packets with a valid ICRC; only RoCEv2 is supported.
    pub rx_roce_v1: u64,
    /// RoCEv1 packets with an invalid ICRC.
    pub rx_roce_v1_corrupt: u64,
    /// Frames that are truncated or have inconsistent lengths.
    pub rx_truncated: u64,
    /// IPv4 packets with options, which RoCEv2 does not allow.
    pub rx_ip_options: u64,
    /// Fragments of IP packets.
    pub rx_fragments: u64,
    /// Frames with an invalid IP, UDP or ICMP checksum.
    pub rx_bad_checksum: u64,
    /// Frames that are malformed in any other way.
    pub rx_malformed: u64,
    /// Packets, or coalesced runs of packets, that arrived while the receive buffer was full.
    pub rx_overflow: u64,
    /// Packets that the kernel or a full queue rejected.
    pub tx_dropped: u64,
    /// Packets larger than the path MTU.
    pub tx_oversized: u64,
    /// Packets to a destination without a route or without a listener.
    pub tx_unreachable: u64,
    /// Packets to an address whose MAC is not (yet) known.
    pub tx_unresolved: u64,
    /// Packets to another process of this host for which a ring in shared memory is required, and there was none.
    pub tx_no_ring: u64,
    /// Pause frames received that name a priority, resumptions included, by priority.
    pub rx_prio_pause: [u64; PRIORITIES],
    /// Pause frames sent that name a priority, resumptions included, by priority.
    pub tx_prio_pause: [u64; PRIORITIES],
}

/// Names of the counters by priority, as the driver of ConnectX adapters gives them to ethtool.
const RX_PRIO_PAUSE: [&str; PRIORITIES] = [
    "rx_prio0_pause",
    "rx_prio1_pause",
    "rx_prio2_pause",
    "rx_prio3_pause",
    "rx_prio4_pause",
    "rx_prio5_pause",
    "rx_prio6_pause",
    "rx_prio7_pause",
];
const TX_PRIO_PAUSE: [&str; PRIORITIES] = [
    "tx_prio0_pause",
    "tx_prio1_pause",
    "tx_prio2_pause",
    "tx_prio3_pause",
    "tx_prio4_pause",
    "tx_prio5_pause",
    "tx_prio6_pause",
    "tx_prio7_pause",
];

impl LinkCounters {
    /// Counts a frame that was dropped because of a parse error.
    pub(crate) fn count(&mut self, error: &FrameError) {
        *match error {
            FrameError::Truncated { .. }
            | FrameError::LengthTooShort { .. }
            | FrameError::NeighborOption
            | FrameError::UdpLength { .. } => &mut self.rx_truncated,
            FrameError::Ipv4Options { .. } => &mut self.rx_ip_options,
            FrameError::Fragment => &mut self.rx_fragments,
            FrameError::Ipv4Checksum { .. }
            | FrameError::UdpChecksum { .. }
            | FrameError::IcmpChecksum { .. } => &mut self.rx_bad_checksum,
            FrameError::IpVersion { .. } => &mut self.rx_malformed,
        } += 1;
    }

    /// Counts a dropped RoCEv1 packet. `intact` tells whether its ICRC is valid.
    pub(crate) fn count_roce_v1(&mut self, intact: bool) {
        *(if intact { &mut self.rx_roce_v1 } else { &mut self.rx_roce_v1_corrupt }) += 1;
    }

    /// Iterates over the counters as name-value pairs, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("link_rx_foreign", self.rx_foreign),
            ("link_rx_roce_v1", self.rx_roce_v1),
            ("link_rx_roce_v1_corrupt", self.rx_roce_v1_corrupt),
            ("link_rx_truncated", self.rx_truncated),
            ("link_rx_ip_options", self.rx_ip_options),
            ("link_rx_fragments", self.rx_fragments),
            ("link_rx_bad_checksum", self.rx_bad_checksum),
            ("link_rx_malformed", self.rx_malformed),
            ("link_rx_overflow", self.rx_overflow),
            ("link_tx_dropped", self.tx_dropped),
            ("link_tx_oversized", self.tx_oversized),
            ("link_tx_unreachable", self.tx_unreachable),
            ("link_tx_unresolved", self.tx_unresolved),
            ("link_tx_no_ring", self.tx_no_ring),
        ]
        .into_iter()
        .chain(RX_PRIO_PAUSE.into_iter().zip(self.rx_prio_pause))
        .chain(TX_PRIO_PAUSE.into_iter().zip(self.tx_prio_pause))
    }
}

impl AddAssign for LinkCounters {
    fn add_assign(&mut self, other: LinkCounters) {
        let LinkCounters {
            rx_foreign,
            rx_roce_v1,
            rx_roce_v1_corrupt,
            rx_truncated,
            rx_ip_options,
            rx_fragments,
            rx_bad_checksum,
            rx_malformed,
            rx_overflow,
            tx_dropped,
            tx_oversized,
            tx_unreachable,
            tx_unresolved,
            tx_no_ring,
            rx_prio_pause,
            tx_prio_pause,
        } = other;
        self.rx_foreign += rx_foreign;
        self.rx_roce_v1 += rx_roce_v1;
        self.rx_roce_v1_corrupt += rx_roce_v1_corrupt;
        self.rx_truncated += rx_truncated;
        self.rx_ip_options += rx_ip_options;
        self.rx_fragments += rx_fragments;
        self.rx_bad_checksum += rx_bad_checksum;
        self.rx_malformed += rx_malformed;
        self.rx_overflow += rx_overflow;
        self.tx_dropped += tx_dropped;
        self.tx_oversized += tx_oversized;
        self.tx_unreachable += tx_unreachable;
        self.tx_unresolved += tx_unresolved;
        self.tx_no_ring += tx_no_ring;
        self.rx_prio_pause.iter_mut().zip(rx_prio_pause).for_each(|(sum, n)| *sum += n);
        self.tx_prio_pause.iter_mut().zip(tx_prio_pause).for_each(|(sum, n)| *sum += n);
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

/// The path through which a NIC sends and receives packets.
pub trait Link: Send {
    /// Returns the properties of the link.
    fn info(&self) -> &LinkInfo;

    /// Sends all bursts, in order. A packet that cannot be sent now is dropped and counted, and the transport
    /// recovers as from any loss.
    ///
    /// # Errors
    /// Only if the link itself no longer works (socket closed, interface removed).
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()>;

    /// Reports whether the link copies the bytes of all packets, as [`TxBurst::copy_to`] does, in which case the computation
    /// of ICRCs can be deferred until then. A link may begin to do so when it has transmitted.
    fn supports_deferred_icrc(&self) -> bool {
        false
    }

    /// Reports whether packets have taken rings in shared memory.
    fn has_used_rings(&self) -> bool {
        false
    }

    /// Returns the next change of the path to a peer. At first, all peers have the window of the link
    /// ([`LinkInfo::window`]), and all paths have room.
    fn next_peer_change(&mut self) -> Option<PeerChange> {
        None
    }

    /// Permits packets without ICRCs ([`IpIdent::Elided`](crate::wire::IpIdent::Elided)) in both directions, for NICs of
    /// one host that exchange packets through memory. Without this call, all packets have ICRCs.
    ///
    /// A context calls this method of its links only: middleware, which may read or change packets, does not pass the call
    /// on.
    fn elide_icrcs(&mut self) {}

    /// Passes a bounded batch of received packets to `sink`, and returns their number. Never blocks.
    ///
    /// # Errors
    /// Only if the link itself no longer works.
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize>;

    /// Joins a multicast group: packets to the group are received from now on, including those that this link
    /// sends itself. Joining a group again has no effect. If the link needs a socket for this, it opens the
    /// socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`JoinError`]; the group is then not joined.
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError>;

    /// Leaves a multicast group. Has no effect if the group was not joined.
    fn leave(&mut self, group: IpAddr);

    /// Returns the link as a [`SharedAddress`] if its addresses can be shared with other processes; `None` if
    /// no other process can use them.
    fn shared_address(&mut self) -> Option<&mut dyn SharedAddress> {
        None
    }

    /// Returns the number of packets that the link takes now, if it sends at the rate of a wire or if its peer can
    /// pause priorities; the NIC is then run again when there is more room. `None` if the link takes whatever it gets. A link does not change
    /// between both.
    fn egress_room(&self) -> Option<EgressRoom> {
        None
    }

    /// Returns the time at which `receive` has to be called even if no descriptor is readable, such as for a
    /// delayed delivery or an ARP retry.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Makes the link's descriptors signal packets that arrive from now on. Returns true if some have arrived already,
    /// which no descriptor signals. A link whose descriptors always signal packets does nothing.
    fn prepare_to_sleep(&mut self) -> bool {
        false
    }

    /// Returns a descriptor that is readable when packets may have arrived. `None` if the sender wakes the
    /// receiver itself.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns a descriptor that is readable when multicast packets may have arrived, if those do not arrive
    /// on [`poll_fd`](Self::poll_fd). The descriptor never changes.
    fn group_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns all descriptors that a sleeping thread has to wait on. By default these are
    /// [`poll_fd`](Self::poll_fd) and [`group_fd`](Self::group_fd); a link with more sockets overrides this
    /// method.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.poll_fd().into_iter().chain(self.group_fd()).collect()
    }

    /// Reports whether the port carries packets: the cable is plugged in and the interface is up.
    fn is_up(&mut self) -> bool {
        true
    }

    /// Returns a descriptor that is readable when the result of [`is_up`](Self::is_up) may have changed.
    /// `None` if it never changes, or if the code that changes it also sends a notification.
    fn state_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the counters of dropped packets.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    /// Informs the link of an event of the NIC above it. Only fault injection uses this.
    fn on_nic_event(&mut self, _now: Instant, _event: &NicEvent) {}

    /// Returns the fault rules that were applied to packets that may explain the failure of a queue pair. Only
    /// fault injection has any.
    fn applied_rules(&self, _failed: &FailedPackets) -> Vec<AppliedRule> {
        Vec::new()
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn info(&self) -> &LinkInfo {
        (**self).info()
    }
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        (**self).transmit(now, queue)
    }
    fn supports_deferred_icrc(&self) -> bool {
        (**self).supports_deferred_icrc()
    }
    fn elide_icrcs(&mut self) {
        (**self).elide_icrcs();
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        (**self).receive(now, sink)
    }
    delegate_link_methods!(self => (**self));

    fn next_deadline(&self) -> Option<Instant> {
        (**self).next_deadline()
    }
    fn on_nic_event(&mut self, now: Instant, event: &NicEvent) {
        (**self).on_nic_event(now, event);
    }
    fn applied_rules(&self, failed: &FailedPackets) -> Vec<AppliedRule> {
        (**self).applied_rules(failed)
    }
}
