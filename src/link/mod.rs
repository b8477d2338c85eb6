//! Links: the layer that carries packets in bursts between a NIC and a socket or an in-memory queue.
//!
//! A [`Link`] takes the whole [`TxQueue`] of one NIC turn and delivers received packets as [`RxBurst`]s.
//! Every link guarantees two properties of the IPv4 headers that it sends: the don't-fragment flag is set,
//! and packet `i` of a burst has the identification `i`. The ICRC covers both. The NIC above computes and
//! checks the ICRC, or leaves it out between NICs that exchange packets through memory
//! ([`MemoryPath::elide_icrcs`]).

/// Implements, in an `impl Link` block, the accessors of capabilities that the link itself has:
/// `own_capabilities!(multicast: Multicast, port_state: PortState)`.
macro_rules! own_capabilities {
    ($($name:ident: $capability:ident),*) => {
        $(
            fn $name(&mut self) -> Option<&mut dyn $capability> {
                Some(self)
            }
        )*
    };
}

/// Forwards properties, descriptors and capabilities of a link to the link inside it, whose `HostMemory`
/// passes through `$memory`: `delegate_link_methods!(self => self.inner, HostMemory::with_icrcs)`. Middleware
/// needs the ICRCs of the packets that it reads. With `all`, also the deadline and the observer.
macro_rules! delegate_link_methods {
    ($self:ident => $inner:expr, $memory:expr, all) => {
        $crate::link::delegate_link_methods!($self => $inner, $memory);
        fn next_deadline(&$self) -> Option<$crate::link::Instant> {
            $inner.next_deadline()
        }
        fn nic_observer(&mut $self) -> Option<&mut dyn $crate::link::NicObserver> {
            $inner.nic_observer()
        }
    };
    ($self:ident => $inner:expr, $memory:expr) => {
        fn info(&$self) -> &$crate::link::LinkInfo {
            $inner.info()
        }
        fn fds(&$self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            $inner.fds()
        }
        fn multicast(&mut $self) -> Option<&mut dyn $crate::link::Multicast> {
            $inner.multicast()
        }
        fn port_state(&mut $self) -> Option<&mut dyn $crate::link::PortState> {
            $inner.port_state()
        }
        fn shared_address(&mut $self) -> Option<&mut dyn $crate::link::SharedAddress> {
            $inner.shared_address()
        }
        fn host_memory(&mut $self) -> Option<$crate::link::HostMemory<'_>> {
            $inner.host_memory().map($memory)
        }
    };
}

mod capabilities;
mod counters;
mod frame_endpoint;
mod frames;
mod host_memory;
mod link_spec;
mod loopback;
mod multihomed;
mod options;
mod packet;
mod shared_address;
pub mod udp;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

pub use crate::burst::{BurstLimits, PeerPath, RxBurst, TxBurst, TxQueue};
pub use crate::host::membership::JoinError;
pub use crate::nic::QpnPartition;
use crate::sys::setters::setters;
pub use crate::transport::{
    CongestionState, EgressRoom, Instant, LastAcks, ObservedQp, PeerChange, PeerWindow, QpEvent, QpObserver,
};
pub use capabilities::{Multicast, NicEvent, NicObserver, PortState};
pub use counters::LinkCounters;
pub(crate) use delegate_link_methods;
pub use frames::{FramesConfig, FramesError, FramesLink, FramesWire};
pub use host_memory::{HostMemory, MemoryPath};
pub(crate) use link_spec::boxed;
pub use link_spec::{BindError, LinkSpec, default_address};
pub use multihomed::Multihomed;
pub use options::{MAX_MTU, MIN_MTU, SpecError};
pub(crate) use own_capabilities;
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
    /// Receive buffer size of a peer with the same kind of link, in bytes: the limit on the data in flight
    /// to it. Short packets are charged more than their length ([`udp::MIN_CHARGE`]).
    pub window: usize,
    /// Speed in bits per second, at which congestion control begins to send. Software has no nominal speed;
    /// the default is 100 Gb/s.
    pub speed: u64,
}

setters!(LinkInfo { speed: u64, mac: [u8; 6], mtu: usize, burst: BurstLimits, window: usize } optional { vlan: u16, src_port: u16 });

impl LinkInfo {
    /// Returns the properties of a link that sends packets one by one, has no MAC address, an MTU of 1500
    /// bytes and a window of 1 MiB, and chooses the source port per packet.
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

/// The path through which a NIC sends and receives packets. Beyond that, a link has capabilities, each of
/// which is a trait: a method returns the link as an implementation of the trait, or `None`.
pub trait Link: Send {
    /// Returns the properties of the link.
    fn info(&self) -> &LinkInfo;

    /// Sends all bursts, in order. A packet that cannot be sent now is dropped and counted, and the transport
    /// recovers as from any loss.
    ///
    /// # Errors
    /// Only if the link itself no longer works (socket closed, interface removed).
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()>;

    /// Passes a bounded batch of received packets to `sink`, and returns their number. Never blocks.
    ///
    /// # Errors
    /// Only if the link itself no longer works.
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize>;

    /// Returns the time at which `receive` has to be called even if no descriptor is readable, such as for a
    /// delayed delivery or an ARP retry.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns the descriptors that are readable when packets may have arrived, all of which a sleeping
    /// thread has to wait on. They never change. Empty if the sender wakes the receiver itself.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns the multicast groups of the link; `None` if the link has no multicast.
    fn multicast(&mut self) -> Option<&mut dyn Multicast> {
        None
    }

    /// Returns the state of the link's port; `None` if the port is always up, takes whatever it gets, and
    /// counts nothing.
    fn port_state(&mut self) -> Option<&mut dyn PortState> {
        None
    }

    /// Returns the link as a [`SharedAddress`] if its addresses can be shared with other processes; `None` if
    /// no other process can use them.
    fn shared_address(&mut self) -> Option<&mut dyn SharedAddress> {
        None
    }

    /// Returns the exchange of packets through the memory of the host; `None` if all packets leave it.
    /// Middleware, which reads or changes packets, restricts that of its inner link
    /// ([`HostMemory::with_icrcs`]).
    fn host_memory(&mut self) -> Option<HostMemory<'_>> {
        None
    }

    /// Returns the link's reactions to the NIC above it; `None` if it has none.
    fn nic_observer(&mut self) -> Option<&mut dyn NicObserver> {
        None
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        (**self).transmit(now, queue)
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        (**self).receive(now, sink)
    }
    delegate_link_methods!(self => (**self), std::convert::identity, all);
}
