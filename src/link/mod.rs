//! How packets leave a NIC and reach it: in bursts, over sockets or memory.
//!
//! A [`Link`] takes the [`TxQueue`] of a turn whole and hands over what arrived as [`RxBurst`]s. Every link
//! keeps two promises about IPv4: don't-fragment is set, and the identification of packet `i` of a burst is
//! `i`. The ICRC, which covers both, is made and checked by the NIC above, never by a link.

/// The methods of [`Link`] that whatever wraps a link passes on as they are: `pass_on!(self => self.inner)`.
macro_rules! pass_on {
    ($self:ident => $inner:expr) => {
        fn join(&mut $self, now: Instant, group: std::net::IpAddr) -> Result<(), $crate::link::JoinError> {
            $inner.join(now, group)
        }
        fn leave(&mut $self, group: std::net::IpAddr) {
            $inner.leave(group);
        }
        fn seat(&$self) -> $crate::nic::Seat {
            $inner.seat()
        }
        fn claim(
            &mut $self,
            service: $crate::wire::mad::ServiceId,
            address: Option<std::net::IpAddr>,
        ) -> Result<(), $crate::link::ClaimError> {
            $inner.claim(service, address)
        }
        fn release(&mut $self, service: $crate::wire::mad::ServiceId, address: Option<std::net::IpAddr>) {
            $inner.release(service, address);
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
        fn counters(&$self) -> $crate::link::LinkCounters {
            $inner.counters()
        }
    };
}

pub(crate) mod background;
pub mod capture;
mod chance;
mod claim;
pub mod fabric;
pub mod faults;
mod frame_queue;
mod frames;
mod held;
mod interfaces;
mod link_spec;
mod loopback;
mod membership;
mod multihomed;
mod packet;
pub(crate) mod process;
pub mod route;
mod spec;
pub mod station;
mod system_udp;
pub mod trace;
pub mod udp;
mod watch;
mod wrapping;

use std::io;
use std::net::IpAddr;
use std::ops::AddAssign;
use std::os::fd::BorrowedFd;

use crate::nic::Seat;
pub use crate::transport::RxBurst;
use crate::transport::{BurstLimits, Instant, TxQueue};
use crate::wire::frame::FrameError;
use crate::wire::mad::ServiceId;

pub use claim::ClaimError;
pub use frames::{FramesConfig, FramesError, FramesLink, FramesWire};
use interfaces::place_in_gid_table;
pub use interfaces::{Interface, interfaces, main_address};
pub use link_spec::{BindError, LinkSpec, default_address};
pub use membership::JoinError;
pub use multihomed::Multihomed;
pub use packet::{PacketConfig, PacketError, PacketLink};
pub use spec::{MAX_MTU, MIN_MTU, SpecError};
pub use wrapping::Wrapping;

/// What a link is like.
#[derive(Clone, Debug)]
pub struct LinkInfo {
    /// A short name for people: `udp 127.0.0.1`, `packet eth0`.
    pub name: String,
    /// Its IP addresses, the GID table in order.
    pub addresses: Vec<IpAddr>,
    /// Its MAC address, zeros where it has none.
    pub mac: [u8; 6],
    /// The VLAN that it is in, where it is the link that tags frames.
    pub vlan: Option<u16>,
    /// The largest IP packet.
    pub mtu: usize,
    /// The UDP source port of all it sends, where it cannot choose.
    pub src_port: Option<u16>,
    /// How large a burst it takes.
    pub burst: BurstLimits,
    /// Bytes that a peer of the same kind can have in its receive buffer unread: what may be in flight. Short
    /// packets take more than their length ([`udp::MIN_CHARGE`]).
    pub window: usize,
}

/// Packets that a link saw and did not hand over, or could not send, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Frames that are no RoCEv2 packet for this link (and no neighbour discovery either).
    pub rx_foreign: u64,
    /// RoCEv1 packets, whose ICRC holds: only RoCEv2 is spoken here.
    pub rx_roce_v1: u64,
    /// RoCEv1 packets whose ICRC is wrong.
    pub rx_roce_v1_corrupt: u64,
    /// Frames that end too early, or whose lengths do not go together.
    pub rx_truncated: u64,
    /// IPv4 packets with options, which RoCEv2 does not have.
    pub rx_ip_options: u64,
    /// Parts of IP packets that were cut.
    pub rx_fragments: u64,
    /// Frames with a wrong IP, UDP or ICMP checksum.
    pub rx_bad_checksum: u64,
    /// Frames that are wrong in another way.
    pub rx_malformed: u64,
    /// Packets (or coalesced runs of them) that came when the receive buffer was full.
    pub rx_overflow: u64,
    /// Packets that the kernel or a full queue refused.
    pub tx_dropped: u64,
    /// Packets above the MTU of the path.
    pub tx_oversized: u64,
    /// Packets to where no route leads, or where nobody listens.
    pub tx_unreachable: u64,
    /// Packets to an address whose MAC is not known (yet).
    pub tx_unresolved: u64,
}

impl LinkCounters {
    /// A frame was dropped for its form.
    pub(crate) fn count(&mut self, why: &FrameError) {
        *match why {
            FrameError::Truncated { .. }
            | FrameError::LengthTooShort { .. }
            | FrameError::UdpLength { .. } => &mut self.rx_truncated,
            FrameError::Ipv4Options { .. } => &mut self.rx_ip_options,
            FrameError::Fragment => &mut self.rx_fragments,
            FrameError::Ipv4Checksum { .. }
            | FrameError::UdpChecksum { .. }
            | FrameError::IcmpChecksum { .. } => &mut self.rx_bad_checksum,
            FrameError::IpVersion { .. } => &mut self.rx_malformed,
        } += 1;
    }

    /// A RoCEv1 packet was dropped.
    pub(crate) fn count_roce_v1(&mut self, intact: bool) {
        *(if intact { &mut self.rx_roce_v1 } else { &mut self.rx_roce_v1_corrupt }) += 1;
    }

    /// Names and values, in order.
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
        ]
        .into_iter()
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
    }
}

/// A way for packets to leave a NIC and to reach it.
pub trait Link: Send {
    /// What it is like.
    fn info(&self) -> &LinkInfo;

    /// Sends all bursts, in order. A packet that cannot leave now is lost and counted: the transport
    /// recovers, as from any loss.
    ///
    /// # Errors
    /// Only where the link itself is gone (socket closed, interface removed).
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()>;

    /// Whether it takes the bytes of a queue by [`crate::transport::TxBurst::copy_to`] and in no other way: then they
    /// may be without ICRCs until then.
    fn only_copies(&self) -> bool {
        false
    }

    /// Hands what has arrived to `sink`, a bounded batch of it, and returns how many packets that was:
    /// 0 when there was none. Never waits.
    ///
    /// # Errors
    /// Only where the link itself is gone.
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize>;

    /// Joins a multicast group: from now on its packets arrive, those that this link sends itself among them. Joining
    /// again changes nothing. (A socket that this takes is of the calling thread's network namespace.)
    ///
    /// # Errors
    /// [`JoinError`]; then it is not joined.
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError>;

    /// Leaves a multicast group; nothing happens if it was not joined.
    fn leave(&mut self, group: IpAddr);

    /// The queue pair numbers whose packets it gets: not all, where others have the same address.
    fn seat(&self) -> Seat {
        Seat::WHOLE
    }

    /// Has requests for a service of the connection manager's come here, as sent to one of the link's addresses or to any of
    /// them; for where others have the same addresses. All come anyway where none has.
    ///
    /// # Errors
    /// [`ClaimError`]; then nothing has changed.
    fn claim(&mut self, _service: ServiceId, _address: Option<IpAddr>) -> Result<(), ClaimError> {
        Ok(())
    }

    /// Ends such a claim.
    fn release(&mut self, _service: ServiceId, _address: Option<IpAddr>) {}

    /// When it wants `receive` to be called though nothing is readable: a delayed delivery, an ARP retry.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Readable when there may be something to receive. `None` where whoever sends also wakes the receiver.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Readable when there may be packets to groups, if they do not come on [`poll_fd`](Self::poll_fd); the descriptor
    /// stays the same.
    fn group_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// All that is to be watched, where it has more sockets than these: whoever sleeps until something comes sleeps on it.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.poll_fd().into_iter().chain(self.group_fd()).collect()
    }

    /// Whether its port carries packets: the cable is plugged in, the interface is up.
    fn is_up(&mut self) -> bool {
        true
    }

    /// Readable when [`is_up`](Self::is_up) is to be asked again. `None` where nothing changes, or whoever changes
    /// it also tells.
    fn state_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What it dropped so far.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn info(&self) -> &LinkInfo {
        (**self).info()
    }
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        (**self).transmit(now, queue)
    }
    fn only_copies(&self) -> bool {
        (**self).only_copies()
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        (**self).receive(now, sink)
    }
    pass_on!(self => (**self));

    fn next_deadline(&self) -> Option<Instant> {
        (**self).next_deadline()
    }
}
