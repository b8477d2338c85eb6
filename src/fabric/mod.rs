//! In-memory switch that connects NICs in one process, with or without impairments.
//!
//! [`Fabric::new`] carries bursts whole: it passes them directly to a NIC that is not running at the moment,
//! and keeps them in a single copy for one that is. [`Fabric::with_config`] adds latency, a bandwidth with a
//! queue, and random loss, duplication, reordering and corruption ([`FabricConfig`]). Both run on the
//! machine's clock. [`Fabric::virtual_time`] has a clock of its own, which only [`Fabric::step`],
//! [`Fabric::run_until_idle`] and [`Fabric::advance`] move: a simulation that replays byte by
//! byte from its seed.
#![forbid(unsafe_code)]

mod agenda;
mod config;
mod driver;
mod handle;
#[cfg(feature = "unstable-internals")]
pub mod hosts;
mod inbox;
mod model;
mod network;
mod port;
mod port_queue;
mod port_shared;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};

use agenda::Agenda;
pub use config::{FabricConfig, FabricError};
pub(crate) use driver::{BurstSource, Driver};
pub(crate) use handle::FabricHandle;
pub use handle::Outcome;
pub use model::FabricCounters;
pub use port::FabricPort;
pub(crate) use threads::{Threads, Wake};

use crate::link::JoinError;
use crate::transport::{AsyncEvent, Instant};
use network::{Network, QueuedNetwork};
use port_queue::PortQueue;
use port_shared::PortShared;

/// In-memory switch. Clones refer to the same switch.
///
/// ```
/// # use std::time::Duration;
/// use urxe::verbs::*;
///
/// // In virtual time no time passes while the program computes, and runs with the same seed are identical.
/// let config = FabricConfig::default().latency(Duration::from_micros(10)).loss(0.1).seed(3);
/// let fabric = Fabric::virtual_time(config)?;
/// let (a, b) = fabric.pair()?;
/// b.qp.post_recv(&RecvWr::empty(1))?;
/// a.qp.post_send(&SendWr::send(2, &[]))?;
/// b.cq.wait(Duration::from_secs(1))?;
/// assert!(b.context.clock() >= 10_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Fabric(Arc<Shared>);

struct Shared {
    /// Virtual time in nanoseconds; `None` in real time.
    clock: Option<AtomicU64>,
    config: FabricConfig,
    ports: Mutex<Ports>,
    /// Incremented at every change of `ports`, to invalidate the routes that senders cache.
    generation: AtomicU64,
    /// Ports to look at, for the drivers or the agenda.
    queue: Arc<PortQueue>,
    /// Auxiliary drivers, which have no port.
    auxiliaries: Mutex<Vec<Weak<dyn Driver>>>,
    /// Agenda of virtual time, locked while time is being advanced.
    agenda: Mutex<Agenda>,
    /// Simulated network, in place of a single switch.
    network: Option<Arc<Mutex<dyn Network>>>,
    /// Sum of the counters of ports that no longer exist.
    counters: Mutex<FabricCounters>,
    /// Threads that take turns, in virtual time.
    threads: Threads,
}

#[derive(Default)]
struct Ports {
    /// Ports with their addresses, by number.
    by_id: HashMap<u32, (Arc<PortShared>, Vec<IpAddr>)>,
    by_address: HashMap<IpAddr, Arc<PortShared>>,
    /// Members of multicast groups, by group and number.
    groups: BTreeMap<(IpAddr, u32), Arc<PortShared>>,
    overrides: HashMap<(u32, u32), FabricConfig>,
    last_id: u32,
    last_auto: u32,
}

impl Ports {
    /// Checks that a port can have the given addresses, some of which port number `own` may already have.
    fn check(&self, addresses: &[IpAddr], own: Option<u32>) -> Result<(), FabricError> {
        if addresses.is_empty() {
            return Err(FabricError::NoAddress);
        }
        for (i, address) in addresses.iter().enumerate() {
            if address.is_multicast() || address.is_unspecified() || *address == Ipv4Addr::BROADCAST {
                return Err(FabricError::NotUnicast(*address));
            }
            let in_use = self.by_address.get(address).is_some_and(|port| Some(port.id) != own);
            if in_use || addresses[..i].contains(address) {
                return Err(FabricError::AddressInUse(*address));
            }
        }
        Ok(())
    }

    /// Adds a port, or replaces its addresses.
    fn set_addresses(&mut self, port: &Arc<PortShared>, addresses: &[IpAddr]) {
        if let Some((_, before)) = self.by_id.insert(port.id, (port.clone(), addresses.to_vec())) {
            self.by_address.retain(|address, _| !before.contains(address));
        }
        self.by_address.extend(addresses.iter().map(|address| (*address, port.clone())));
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Fabric::new()
    }
}

impl Fabric {
    /// Returns a number that identifies the fabric while it exists.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Creates a fabric in real time that does not impair packets.
    pub fn new() -> Fabric {
        Fabric::build(FabricConfig::default(), None, None)
    }

    /// Creates a fabric in real time with the given impairments.
    ///
    /// # Errors
    /// See [`FabricConfig::check`].
    pub fn with_config(config: FabricConfig) -> Result<Fabric, FabricError> {
        config.check()?;
        Ok(Fabric::build(config, None, None))
    }

    /// Creates a fabric in virtual time. Its clock starts at 0, and only [`step`](Self::step),
    /// [`run_until_idle`](Self::run_until_idle) and [`advance`](Self::advance) move it.
    ///
    /// # Errors
    /// See [`FabricConfig::check`].
    pub fn virtual_time(config: FabricConfig) -> Result<Fabric, FabricError> {
        config.check()?;
        Ok(Fabric::build(config, Some(AtomicU64::new(0)), None))
    }

    fn build(config: FabricConfig, clock: Option<AtomicU64>, network: Option<QueuedNetwork>) -> Fabric {
        let (queue, network) = network.unzip();
        Fabric(Arc::new(Shared {
            clock,
            threads: Threads::new(config.seed),
            config,
            ports: Mutex::default(),
            generation: AtomicU64::new(1),
            queue: queue.unwrap_or_default(),
            auxiliaries: Mutex::default(),
            agenda: Mutex::default(),
            network,
            counters: Mutex::default(),
        }))
    }

    /// Returns the current time: virtual time by the fabric's clock, or real time since the first call in
    /// this process.
    pub fn now(&self) -> Instant {
        match &self.0.clock {
            Some(clock) => Instant(clock.load(Ordering::SeqCst)),
            None => {
                static EPOCH: OnceLock<std::time::Instant> = OnceLock::new();
                let epoch = EPOCH.get_or_init(std::time::Instant::now);
                // Starts at 1, because 0 means "immediately" for deliveries.
                Instant(1 + epoch.elapsed().as_nanos() as u64)
            }
        }
    }

    /// Reports whether the fabric is in virtual time.
    pub fn is_virtual(&self) -> bool {
        self.0.clock.is_some()
    }

    /// Returns the configuration of all directions that [`set_path`](Self::set_path) has not configured
    /// separately.
    pub fn config(&self) -> &FabricConfig {
        &self.0.config
    }

    /// Creates a port with the given addresses. In a simulated network, the port is that of the first host
    /// without one.
    ///
    /// # Errors
    /// If there is no address, or one is not a unicast address or is in use; in a simulated network,
    /// [`FabricError::NoHost`] if every host has a port.
    pub fn port(&self, addresses: &[IpAddr]) -> Result<FabricPort, FabricError> {
        self.port_of_host(addresses, None)
    }

    fn port_of_host(&self, addresses: &[IpAddr], host: Option<usize>) -> Result<FabricPort, FabricError> {
        let mut ports = self.0.ports.lock();
        ports.check(addresses, None)?;
        let id = ports.last_id + 1;
        let shared = Arc::new(PortShared::new(id));
        if let Some(network) = &self.0.network {
            let host = network.lock().attach(host, &shared).ok_or(FabricError::NoHost)?;
            let _ = shared.host.set(host);
        }
        ports.last_id = id;
        ports.set_addresses(&shared, addresses);
        drop(ports);
        self.changed();
        Ok(FabricPort::new(self.clone(), shared, addresses))
    }

    /// Returns an IPv6 (ULA) and an IPv4 address that no port has and that were not returned before. The IPv4
    /// address is from 198.18.0.0/15, which is reserved for benchmarks and never used on the Internet.
    pub fn auto_address(&self) -> [IpAddr; 2] {
        let mut ports = self.0.ports.lock();
        loop {
            ports.last_auto += 1;
            let n = ports.last_auto;
            let [_, b, c, d] = n.to_be_bytes();
            let v4 = IpAddr::V4(Ipv4Addr::new(198, 18 | b & 1, c, d));
            let (high, low) = ((n >> 16) as u16, n as u16);
            let v6 = IpAddr::V6(Ipv6Addr::new(0xfd75, 0x7278, 0x6500, 0, 0, 0, high, low));
            if ![v6, v4].iter().any(|a| ports.by_address.contains_key(a)) {
                return [v6, v4];
            }
        }
    }

    /// Gives the direction from the port with address `from` to the port with address `to` its own
    /// configuration and, if that limits the bandwidth, its own wire. The direction's random number generator
    /// restarts. Packets in flight are not affected; `window` is ignored.
    ///
    /// # Errors
    /// If the configuration is invalid, or no port has one of the addresses; [`FabricError::Simulated`] in a
    /// simulated network.
    pub fn set_path(&self, from: IpAddr, to: IpAddr, config: FabricConfig) -> Result<(), FabricError> {
        config.check()?;
        if self.0.network.is_some() {
            return Err(FabricError::Simulated);
        }
        let mut ports = self.0.ports.lock();
        let id =
            |a: IpAddr| ports.by_address.get(&a).map(|port| port.id).ok_or(FabricError::UnknownAddress(a));
        let direction = (id(from)?, id(to)?);
        ports.overrides.insert(direction, config);
        drop(ports);
        self.changed();
        Ok(())
    }

    /// Unplugs the cable of the port with the given address, or plugs it in. While unplugged, the port
    /// neither sends nor receives. The NIC is notified and raises `PortError` or `PortActive`.
    ///
    /// # Errors
    /// [`FabricError::UnknownAddress`] if no port has the address.
    pub fn set_port_up(&self, address: IpAddr, up: bool) -> Result<(), FabricError> {
        self.set_up(&*self.port_of(address)?, up);
        Ok(())
    }

    fn set_up(&self, port: &PortShared, up: bool) {
        port.up.store(up, Ordering::SeqCst);
        self.changed();
        if let Some(driver) = port.driver() {
            driver.port_up(up);
        }
    }

    /// Replaces all addresses of the port with address `of`, as the system may do to an interface. The NIC is
    /// notified and raises `GidChange`; addresses that remain keep their index.
    ///
    /// # Errors
    /// See [`port`](Self::port); also [`FabricError::UnknownAddress`].
    pub fn set_addresses(&self, of: IpAddr, addresses: &[IpAddr]) -> Result<(), FabricError> {
        let port = self.port_of(of)?;
        let mut ports = self.0.ports.lock();
        ports.check(addresses, Some(port.id))?;
        ports.set_addresses(&port, addresses);
        drop(ports);
        self.changed();
        if let Some(driver) = port.driver() {
            driver.addresses_changed(addresses);
        }
        Ok(())
    }

    /// Removes the device on the port with the given address, as if an adapter were unplugged: its queue
    /// pairs go to ERR, its contexts get [`AsyncEvent::DeviceFatal`], and from then on, the only operations
    /// that succeed are destroying its objects, polling, and reading their contents. The address becomes
    /// free.
    ///
    /// # Errors
    /// [`FabricError::UnknownAddress`], [`FabricError::NoDevice`].
    pub fn remove_device(&self, address: IpAddr) -> Result<(), FabricError> {
        let driver = self.driver_of(address)?;
        driver.device_lost(io::Error::other("the device was removed from the fabric"));
        Ok(())
    }

    /// Raises an asynchronous event on the NIC at the given address, with the effect that the event reports.
    /// `QpFatal`, `QpRequestError` and `QpAccessError` move the queue pair to ERR, `CqError` all queue pairs
    /// that complete to the queue. `DeviceFatal` acts like [`remove_device`](Self::remove_device),
    /// `PortError` and `PortActive` like [`set_port_up`](Self::set_port_up), which raises no event if the
    /// port is already in that state. All other events have no effect besides being raised.
    ///
    /// # Errors
    /// [`FabricError::UnknownAddress`], [`FabricError::NoDevice`], and [`FabricError::NoObject`] if the NIC
    /// has no such queue pair or shared receive queue, or no queue pair completes to the completion queue.
    pub fn inject_event(&self, address: IpAddr, event: AsyncEvent) -> Result<(), FabricError> {
        match event {
            AsyncEvent::DeviceFatal => self.remove_device(address),
            AsyncEvent::PortActive => self.set_port_up(address, true),
            AsyncEvent::PortError => self.set_port_up(address, false),
            _ if self.driver_of(address)?.inject_event(event) => Ok(()),
            _ => Err(FabricError::NoObject { address, event }),
        }
    }

    fn driver_of(&self, address: IpAddr) -> Result<Arc<dyn Driver>, FabricError> {
        self.port_of(address)?.driver().ok_or(FabricError::NoDevice(address))
    }

    fn port_of(&self, address: IpAddr) -> Result<Arc<PortShared>, FabricError> {
        let port = self.0.ports.lock().by_address.get(&address).cloned();
        port.ok_or(FabricError::UnknownAddress(address))
    }

    /// Returns the packet counters since the fabric was created.
    pub fn counters(&self) -> FabricCounters {
        let ports: Vec<_> = self.0.ports.lock().by_id.values().map(|(port, _)| port.clone()).collect();
        let mut sum = *self.0.counters.lock();
        for port in ports {
            sum += port.inbox.lock().counters;
        }
        sum
    }

    fn changed(&self) {
        self.0.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    pub(crate) fn threads(&self) -> &Threads {
        &self.0.threads
    }

    pub(crate) fn queue(&self) -> &PortQueue {
        &self.0.queue
    }

    /// Acquires the exclusive right to advance virtual time, with an agenda that is up to date; `None` in
    /// real time.
    pub(crate) fn agenda(&self) -> Option<MutexGuard<'_, Agenda>> {
        self.is_virtual().then(|| {
            let mut agenda = self.0.agenda.lock();
            agenda.update(&self.0.queue);
            agenda
        })
    }

    /// Calls `f` with the simulated network, if there is one.
    pub(crate) fn with_network<R>(&self, f: impl FnOnce(&mut dyn Network) -> R) -> Option<R> {
        self.0.network.as_ref().map(|network| f(&mut *network.lock()))
    }

    /// Announces that the due time of a port may have changed. Has no effect in real time.
    pub(crate) fn touch(&self, port: &Arc<PortShared>) {
        if self.is_virtual() {
            self.0.queue.push(port);
        }
    }

    /// Advances virtual time to `at`, unless it is already later.
    pub(crate) fn set_time(&self, at: Instant) {
        if let Some(clock) = &self.0.clock {
            clock.fetch_max(at.0, Ordering::SeqCst);
        }
    }

    /// Returns the ports reached by packets from the port `from` to `dst`, each with the direction's own
    /// configuration, if it has one.
    fn targets(&self, from: &PortShared, dst: IpAddr) -> Vec<(Arc<PortShared>, Option<FabricConfig>)> {
        let is_up = |port: &PortShared| port.up.load(Ordering::SeqCst);
        let ports = self.0.ports.lock();
        let members = ports.groups.range((dst, 0)..=(dst, u32::MAX)).map(|(_, port)| port);
        let reached = members.chain(ports.by_address.get(&dst)).filter(|port| is_up(from) && is_up(port));
        let config = |to: &PortShared| ports.overrides.get(&(from.id, to.id)).cloned();
        reached.map(|port| (port.clone(), config(port))).collect()
    }

    fn join(&self, port: &Arc<PortShared>, group: IpAddr) -> Result<(), JoinError> {
        if !group.is_multicast() {
            return Err(JoinError::NotMulticast(group));
        }
        self.0.ports.lock().groups.insert((group, port.id), port.clone());
        self.changed();
        Ok(())
    }

    fn leave(&self, id: u32, group: IpAddr) {
        self.0.ports.lock().groups.remove(&(group, id));
        self.changed();
    }

    /// Removes a port, and adds its counters to the fabric's.
    fn remove(&self, port: &Arc<PortShared>) {
        port.earliest.store(u64::MAX, Ordering::SeqCst);
        *port.driver.lock() = None;
        self.touch(port);
        if let (Some(network), Some(host)) = (&self.0.network, port.host()) {
            network.lock().detach(host);
        }
        let mut ports = self.0.ports.lock();
        for address in ports.by_id.remove(&port.id).into_iter().flat_map(|(_, addresses)| addresses) {
            ports.by_address.remove(&address);
        }
        ports.groups.retain(|(_, member), _| *member != port.id);
        ports.overrides.retain(|(a, b), _| *a != port.id && *b != port.id);
        drop(ports);
        *self.0.counters.lock() += port.inbox.lock().counters;
        self.changed();
    }
}
