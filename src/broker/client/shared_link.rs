//! Links on addresses that several processes share through the broker.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::SharingError;
use super::lease::Lease;
use super::service_registry::ServiceRegistry;
use crate::broker::Sharing;
use crate::broker::steering::has_mixed_partitions;
use crate::burst::{RxBurst, TxQueue};
use crate::host::unix_sockets::SocketNames;
use crate::link::udp::{self, BindAddr, UdpLink, UdpOptions};
use crate::link::{
    ClaimError, HostMemory, Link, LinkCounters, LinkInfo, LinkSpec, MemoryPath, Multicast, NicEvent,
    NicObserver, PortState, SharedAddress, boxed, default_address, own_capabilities,
};
use crate::nic::QpnPartition;
use crate::rings::{Rings, Route, SharedMemory, can_have_rings};
use crate::transport::{Instant, LastAcks, PeerChange};
use crate::wire::Qpn;
use crate::wire::mad::ServiceId;

impl Sharing {
    /// Opens the link described by a specification, like [`LinkSpec::bind_with`], but shares the addresses of
    /// a UDP link with other processes.
    ///
    /// # Errors
    /// [`SharingError::Link`] if the link cannot be opened; [`SharingError::Refused`] if the broker has no
    /// QPN partition for this process; [`SharingError::NoRings`] if rings are required and impossible;
    /// [`SharingError::System`] if the broker cannot be started or reached.
    pub fn bind(
        &self,
        spec: &LinkSpec,
        shards: usize,
        offload: bool,
    ) -> Result<Vec<Box<dyn Link>>, SharingError> {
        let options = UdpOptions { segmentation: offload, ..UdpOptions::default() };
        match spec {
            LinkSpec::Udp(ip) => {
                let ip = ip.unwrap_or_else(default_address);
                Ok(boxed(SharedUdpLink::bind(ip, &options, shards, self)?))
            }
            LinkSpec::UdpOn { interface, address } => {
                let (addresses, options) = udp::find_interface(interface, &options)?;
                match address {
                    Some(ip) => Ok(boxed(SharedUdpLink::bind(*ip, &options, shards, self)?)),
                    None => Ok(boxed(udp::combine(interface, share(&addresses, &options, shards, self)?)?)),
                }
            }
            LinkSpec::Fabric | LinkSpec::Packet(_) | LinkSpec::Frames(_) => match self.shared_memory {
                SharedMemory::Require => Err(no_rings(spec, "it is not a udp link")),
                SharedMemory::Off | SharedMemory::Auto => Ok(spec.bind_with(shards, offload)?),
            },
        }
    }
}

/// Returns the error for a link of a kind that has no rings, although they are required.
fn no_rings(link: &impl fmt::Display, reason: &str) -> SharingError {
    let (link, reason) = (link.to_string(), reason.to_owned());
    SharingError::NoRings { link, errno: libc::EOPNOTSUPP, reason }
}

/// A [`UdpLink`] on an address shared with other processes. It receives the packets for one QPN partition,
/// and the requests for the services that this process has registered.
pub struct SharedUdpLink {
    inner: UdpLink,
    /// Rings to and from other processes of this host; `None` without shared memory. Dropped before the
    /// lease, after which another process may have the partition.
    rings: Option<Rings>,
    lease: Arc<Lease>,
    /// Registry of the services that this process has claimed; present only in the link of the shard that
    /// has QP1.
    registry: Option<ServiceRegistry>,
    last_acks: Option<LastAcks>,
    /// Bursts without a ring.
    to_socket: TxQueue,
    /// Time at which the socket was last polled.
    last_socket_poll: Instant,
    /// Time at which the socket last had packets.
    last_socket_packet: Instant,
    /// Packets that neither the socket nor the registry counts.
    counters: LinkCounters,
}

/// Minimum time between two polls of the socket while other processes write to rings: if the socket had
/// packets less than [`ACTIVE_SOCKET`] ago, and otherwise. A poll is a system call, which takes longer than a
/// short packet through a ring: with 2 µs in all cases, `ib_write_lat` takes 1.17 instead of 1.10 µs.
const MIN_SOCKET_POLL_INTERVAL: [Duration; 2] = [Duration::from_micros(2), Duration::from_micros(20)];

/// Time for which the socket is expected to have further packets. Not measured against other values.
const ACTIVE_SOCKET: Duration = Duration::from_millis(1);

impl SharedUdpLink {
    /// Binds this process's share of UDP port 4791 on `ip`, which other processes use too. The queue pair
    /// numbers of this process are those in the QPN partition returned by [`SharedAddress::partition`].
    /// Returns a link for each of `count` shards (1, 2, 4 ... 32) of one NIC, like [`UdpLink::bind_shards`].
    ///
    /// # Errors
    /// See [`UdpLink::bind`]. Also fails if all partitions are in use, or if the processes that share the
    /// address do not share it with this user.
    pub fn bind(
        ip: IpAddr,
        options: &UdpOptions,
        count: usize,
        sharing: &Sharing,
    ) -> Result<Vec<SharedUdpLink>, SharingError> {
        Ok(share(&[ip], options, count, sharing)?.swap_remove(0))
    }
}

/// Leases partitions of the addresses from the broker. Returns the links for each address, one per shard.
fn share(
    ips: &[IpAddr],
    options: &UdpOptions,
    count: usize,
    sharing: &Sharing,
) -> Result<Vec<Vec<SharedUdpLink>>, SharingError> {
    let count = count.next_power_of_two().min(QpnPartition::COUNT / 2);
    if sharing.shared_memory == SharedMemory::Require && !ips.iter().any(|ip| can_have_rings(*ip)) {
        let all = ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        return Err(no_rings(&all, "wildcard and IPv6 link-local addresses have none"));
    }
    let bind_addrs: Vec<BindAddr> = ips.iter().map(|ip| BindAddr::new(*ip, options)).collect();
    let (lease, sockets) = Lease::acquire(bind_addrs.clone(), count, sharing)?;
    let mut by_address = Vec::new();
    for (n, (bind_addr, sockets)) in bind_addrs.iter().zip(sockets).enumerate() {
        let mut links = Vec::new();
        for (shard, socket) in sockets.into_iter().enumerate() {
            let has_qp1 = shard == Qpn::GSI.get() as usize & (count - 1);
            let mut link = new_link(bind_addr, options, socket, &lease, (shard, has_qp1), sharing)?;
            // The first link monitors the state of the port for all shards and addresses.
            if n > 0 || shard > 0 {
                link.inner.ignore_link_state();
            }
            links.push(link);
        }
        by_address.push(links);
    }
    Ok(by_address)
}

fn new_link(
    bind_addr: &BindAddr,
    options: &UdpOptions,
    socket: OwnedFd,
    lease: &Arc<Lease>,
    (shard, has_qp1): (usize, bool),
    sharing: &Sharing,
) -> Result<SharedUdpLink, SharingError> {
    let ip = bind_addr.ip();
    let inner = UdpLink::from_socket(ip, socket, options)?;
    let failed = |source| SharingError::System { ip, what: "finding the names of sockets", source };
    let names = SocketNames::of(lease.shared.any_user).map_err(failed)?;
    // The queue pair numbers of all shards begin with the first partition, so one link has the rings of all.
    let shared_memory = sharing.shared_memory;
    let rings =
        Rings::new(bind_addr.clone(), lease.partition.index(), names.clone(), shard == 0, shared_memory);
    let add = |rings: Option<Rings>| {
        rings.iter().try_for_each(|rings| inner.add_to_group_fd(rings))?;
        Ok(rings)
    };
    let rings = match rings.and_then(add) {
        Ok(rings) => rings,
        Err(error) if shared_memory == SharedMemory::Require => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            return Err(SharingError::NoRings { link: ip.to_string(), errno, reason: error.to_string() });
        }
        // Without rings, the link works all the same.
        Err(error) => {
            trace_event!(WARN, "urxe::link", "no rings", reason = %error);
            None
        }
    };
    let failed = |source| SharingError::System { ip, what: "creating the service registry", source };
    let registry = has_qp1.then(|| ServiceRegistry::new(bind_addr.clone(), names, sharing.any_user));
    let registry = registry.transpose().map_err(failed)?;
    registry.iter().try_for_each(|registry| inner.add_to_group_fd(registry)).map_err(failed)?;
    let to_socket = TxQueue::new(inner.info().burst);
    Ok(SharedUdpLink {
        inner,
        lease: lease.clone(),
        last_acks: lease.last_acks(shard),
        registry,
        rings,
        to_socket,
        last_socket_poll: Instant(0),
        last_socket_packet: Instant(0),
        counters: LinkCounters::default(),
    })
}

impl Link for SharedUdpLink {
    fn info(&self) -> &LinkInfo {
        self.inner.info()
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        let Some(rings) = &mut self.rings else { return self.inner.transmit(now, queue) };
        // Number of bursts so far, if all are for the socket: it needs no copy of packets with ICRCs.
        let mut only_socket = (!queue.defers_icrcs()).then_some(0);
        for burst in queue.bursts() {
            let route = rings.route_of(&burst);
            if let (Route::Socket { .. }, Some(count)) = (route, &mut only_socket) {
                *count += 1;
                continue;
            }
            if let Some(count) = only_socket.take() {
                queue.bursts().take(count).for_each(|burst| self.to_socket.push_burst(&burst));
            }
            match route {
                Route::Ring(ring) if rings.write(now, ring, &burst) => {}
                Route::Ring(_) => self.counters.tx_dropped += burst.packets as u64,
                Route::Nowhere => self.counters.tx_no_ring += burst.packets as u64,
                Route::Socket { .. } => self.to_socket.push_burst(&burst),
            }
        }
        if only_socket.is_some() {
            return self.inner.transmit(now, queue);
        }
        rings.publish();
        if self.to_socket.is_empty() {
            return Ok(());
        }
        let sent = self.inner.transmit(now, &self.to_socket);
        self.to_socket.clear();
        sent
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.rings.as_ref()?.next_deadline()
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let SharedUdpLink { inner, lease, registry, rings, last_socket_poll, last_socket_packet, .. } = self;
        let mut from_rings = 0;
        if let Some(rings) = rings {
            from_rings = rings.receive(now, sink);
            let is_idle = now.since(*last_socket_packet) >= ACTIVE_SOCKET;
            let interval = MIN_SOCKET_POLL_INTERVAL[usize::from(is_idle)];
            if rings.readers > 0 && now.since(*last_socket_poll) < interval {
                return Ok(from_rings);
            }
            *last_socket_poll = now;
        }
        let from_socket = inner.receive(now, &mut |burst| {
            if has_mixed_partitions(&burst, lease.partition) {
                lease.stop_coalescing();
            }
            sink(burst);
        })?;
        let from_broker = registry.as_mut().map_or(0, |registry| registry.receive(now, sink));
        if from_socket + from_broker > 0 {
            *last_socket_packet = now;
        }
        Ok(from_rings + from_socket + from_broker)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.fds()
    }

    fn multicast(&mut self) -> Option<&mut dyn Multicast> {
        Some(&mut self.inner)
    }

    own_capabilities!(port_state: PortState, shared_address: SharedAddress, nic_observer: NicObserver);

    fn host_memory(&mut self) -> Option<HostMemory<'_>> {
        Some(HostMemory::new(self))
    }
}

impl PortState for SharedUdpLink {
    fn is_up(&mut self) -> bool {
        self.inner.is_up()
    }

    fn state_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.state_fd()
    }

    fn counters(&mut self) -> LinkCounters {
        let mut all = self.inner.counters();
        all += self.counters;
        all.rx_foreign += self.registry.as_ref().map_or(0, |registry| registry.rejected);
        all
    }
}

impl MemoryPath for SharedUdpLink {
    /// Returns true once packets have taken a ring. Until then they are queued for the socket.
    fn supports_deferred_icrc(&mut self) -> bool {
        self.has_used_rings()
    }

    fn has_used_rings(&mut self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.has_written)
    }

    fn next_peer_change(&mut self) -> Option<PeerChange> {
        self.rings.as_mut()?.next_peer_change()
    }

    fn elide_icrcs(&mut self) {
        if let Some(rings) = &mut self.rings {
            rings.elides_icrcs = true;
        }
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.rings.as_mut().is_some_and(Rings::prepare_to_sleep)
    }
}

impl NicObserver for SharedUdpLink {
    fn on_nic_event(&mut self, _: Instant, event: &NicEvent) {
        if let (NicEvent::Connected { remote, peer, .. }, Some(rings)) = (event, &mut self.rings) {
            rings.on_connected(*peer, *remote);
        }
    }
}

impl SharedAddress for SharedUdpLink {
    fn partition(&self) -> QpnPartition {
        self.lease.partition
    }

    fn last_acks(&self) -> Option<LastAcks> {
        self.last_acks.clone()
    }

    fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
        self.registry.as_mut().map_or(Ok(()), |registry| registry.claim(service, address))
    }

    fn release(&mut self, service: ServiceId, _address: Option<IpAddr>) {
        if let Some(registry) = &mut self.registry {
            registry.release(service);
        }
    }
}
