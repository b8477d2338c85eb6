//! Contexts: opening a device on a link, and its tables, counters and clock.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::event_signal::EventSignal;
use super::quota::Quota;
use super::{CreateError, OpenError};
use crate::driver::{Clock, EventReader, Events, Shard, ShardMailbox, Shards};
use crate::link::fabric::{Driver, Fabric, FabricHandle, FabricPort};
use crate::link::rng::splitmix64;
use crate::link::{Link, LinkCounters, LinkInfo};
use crate::memory::Table;
use crate::nic::{Limits, Nic, NicConfig, PKeyTableSize, Personality, PortAddresses, QpnPartition};
use crate::sys::setters::setters;
use crate::transport::{Counters, CqId, Quirks, Tuning};
use crate::wire::{Gid, ICRC_LEN, MAX_HEADERS_LEN, Mtu, PKey};

/// First address of the crate's own regions. Host addresses are not used, because they differ from run to
/// run, and every run of a program should send the same packets.
const FIRST_IOVA: u64 = 0x1000_0000;

/// Options for opening a context.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContextOptions {
    /// Limits and quirks of the NIC; [`Personality::DEFAULT`] unless chosen.
    pub personality: Personality,
    /// Seed of queue pair numbers, keys, the connection manager's IDs and first PSNs. `None` stands for a
    /// random seed, or on a fabric for one derived from the fabric's seed and the port's address, so that
    /// every run of a program uses the same values.
    pub seed: Option<u64>,
    /// Maximum number of bytes in flight to a peer. `None`: what the link's peers can buffer.
    pub window: Option<usize>,
    /// Lower bound of the local ACK timeout, whatever a queue pair requests, so that a peer that is stopped
    /// for a while is not treated as failed. `None`: the personality's bound; a lower value has no effect.
    pub min_ack_timeout: Option<Duration>,
}

setters!(ContextOptions { personality: Personality } optional { seed: u64, window: usize, min_ack_timeout: Duration });

impl Default for ContextOptions {
    /// Returns options for the default personality and a random seed.
    fn default() -> Self {
        ContextOptions { personality: Personality::DEFAULT, seed: None, window: None, min_ack_timeout: None }
    }
}

/// An open device: one NIC on one link. Cheap to clone; the NIC lives as long as anything created from it.
///
/// ```
/// # use urxe::verbs::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::new();
/// let context = Context::on_fabric(&fabric)?;
/// assert!(context.query_device().limits.max_qp >= 1024);
///
/// // The full form: a port with an address of choice, options, and a link around the port.
/// let port = fabric.port(&["10.0.0.1".parse()?])?;
/// let options = ContextOptions::default().personality(Personality::RXE).seed(1);
/// let rxe = Context::on_port(port, &options, |port| Box::new(port))?;
/// assert_eq!(rxe.gids().len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Context(pub(super) Arc<Handle>);

/// State of one opening of a device, which owns the objects created from it.
pub(super) struct Handle {
    device: Arc<Inner>,
    /// Reader of the asynchronous events of this opening's objects.
    pub reader: EventReader,
    pub events: Arc<EventSignal>,
}

impl Deref for Handle {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.device
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.reader != EventReader::FIRST {
            self.asynchronous.remove_reader(self.reader);
        }
    }
}

/// Handle that does not keep the device open.
#[derive(Clone)]
pub struct WeakContext(Weak<Inner>);

pub(super) struct Inner {
    pub shards: Shards,
    pub limits: Limits,
    pub quirks: Quirks,
    pub personality: &'static str,
    pub info: LinkInfo,
    pub mtu: Mtu,
    /// QPN partition that contains the numbers of the device's queue pairs.
    pub partition: QpnPartition,
    pub seed: u64,
    pub qps: Quota,
    pub srqs: Quota,
    pub pds: Quota,
    pub cqs: Quota,
    pub next_pd: AtomicU32,
    next_cq: AtomicU32,
    /// Address that the next region of memory allocated by the crate gets, as work requests use it.
    next_iova: AtomicU64,
    /// Number of allocated bytes of device memory.
    pub dm_used: AtomicU64,
    /// Position in the random sequence from which first PSNs are drawn.
    random_draws: AtomicU64,
    /// Asynchronous events of all contexts of the device.
    pub asynchronous: Events,
}

impl Context {
    /// Opens a NIC on a link.
    ///
    /// # Errors
    /// [`OpenError::NoAddress`] for a link without an address; [`OpenError::MtuTooSmall`] for a link whose
    /// packets cannot hold a path MTU of 256; [`OpenError::System`] if the system is out of descriptors or
    /// threads.
    pub fn open(link: Box<dyn Link>, options: &ContextOptions) -> Result<Context, OpenError> {
        Self::build(vec![link], None, options)
    }

    /// Opens a NIC of several shards, each with a link, a lock, timers and a background thread of its own, so
    /// that threads whose queue pairs are in different shards never wait for each other. Queue pairs are
    /// assigned to the shards round-robin, except that those with a shared receive queue go to its shard, and
    /// all XRC objects to the first shard.
    ///
    /// There must be 1, 2, 4 ... 64 links that belong together, as from
    /// [`UdpLink::bind_shards`](crate::link::udp::UdpLink::bind_shards). Each shard gets an equal part of
    /// what may be in flight to a peer.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); [`OpenError::Shards`] for another number of links.
    pub fn open_shards(links: Vec<Box<dyn Link>>, options: &ContextOptions) -> Result<Context, OpenError> {
        Self::build(links, None, options)
    }

    /// Opens a NIC on a new port of an in-memory fabric, with an address that the fabric chooses: the mock
    /// NIC.
    ///
    /// # Errors
    /// [`OpenError::MtuTooSmall`] if packets of the fabric cannot hold a path MTU of 256;
    /// [`OpenError::System`] if the system is out of descriptors or threads.
    pub fn on_fabric(fabric: &Fabric) -> Result<Context, OpenError> {
        let port = fabric.port(&fabric.auto_address())?;
        Self::on_port(port, &ContextOptions::default(), |port| Box::new(port))
    }

    /// Opens a NIC on a port of a fabric; `wrap` may put middleware around it, such as a capture or injected
    /// faults.
    ///
    /// # Errors
    /// [`OpenError::NoAddress`] for a link without an address; [`OpenError::MtuTooSmall`] for a link whose
    /// packets cannot hold a path MTU of 256; [`OpenError::System`] if the system is out of descriptors or
    /// threads.
    pub fn on_port(
        port: FabricPort,
        options: &ContextOptions,
        wrap: impl FnOnce(FabricPort) -> Box<dyn Link>,
    ) -> Result<Context, OpenError> {
        let handle = port.handle();
        Self::build(vec![wrap(port)], Some(handle), options)
    }

    fn build(
        mut links: Vec<Box<dyn Link>>,
        fabric: Option<FabricHandle>,
        options: &ContextOptions,
    ) -> Result<Context, OpenError> {
        let count = links.len();
        let partition = links
            .first_mut()
            .and_then(|link| link.shared_address())
            .map_or(QpnPartition::WHOLE, |shared| shared.partition());
        let mailbox = ShardMailbox::new(count, partition)?.ok_or(OpenError::Shards(count))?;
        let info = links[0].info().clone();
        if info.addresses.is_empty() {
            return Err(OpenError::NoAddress(info.name));
        }
        let longest = if info.addresses.iter().any(IpAddr::is_ipv6) { 48 } else { 28 };
        let mtu = Mtu::largest_within(info.mtu, longest + MAX_HEADERS_LEN + ICRC_LEN)
            .ok_or_else(|| OpenError::MtuTooSmall { name: info.name.clone(), mtu: info.mtu })?;
        let seed = options.seed.unwrap_or_else(|| match &fabric {
            Some(f) => f.fabric().config().seed ^ hash_of_address(info.addresses[0]),
            None => random_seed(),
        });
        // A peer may have only one receive buffer for the packets of all shards.
        let window = options.window.unwrap_or(info.window) / links.len();
        let config = NicConfig {
            personality: options.personality,
            tuning: Tuning {
                window,
                read_chunk: (window / 2).max(mtu.bytes()) as u32,
                min_timeout: options
                    .min_ack_timeout
                    .map_or(options.personality.min_timeout, |t| t.max(options.personality.min_timeout)),
                // On a fabric the only losses are the configured ones, so pacing would not avoid any.
                pace_unacknowledged: fabric.is_none(),
                ..Tuning::default()
            },
            port: PortAddresses {
                gids: info.addresses.iter().map(|ip| Gid::from(*ip)).collect(),
                src_port: info.src_port,
            },
            seed,
        };
        let clock = fabric.as_ref().map_or(Clock::Real, |f| Clock::Fabric(f.fabric().clone()));
        let events = Arc::new(EventSignal::new()?);
        let nics: Vec<Nic> = mailbox.iter().map(|mailbox| Nic::shard(config.clone(), mailbox.id())).collect();
        let asynchronous = Events::default();
        asynchronous.set_listener(events.clone());
        let max_qp: u32 = nics.iter().map(Nic::max_qp).sum();
        let memory = Arc::new(Table::seeded(seed.rotate_left(32)));
        let mut shards = Vec::with_capacity(links.len());
        for ((nic, link), mailbox) in nics.into_iter().zip(links).zip(mailbox) {
            let (memory, events) = (memory.clone(), asynchronous.clone());
            let (clock, fabric) = (clock.clone(), fabric.clone());
            shards.push(Arc::new(Shard::new(nic, link, mailbox, memory, events, clock, fabric)?));
        }
        if let Some(fabric) = &fabric {
            let driver: Arc<dyn Driver> = shards[0].clone();
            fabric.attach(Arc::downgrade(&driver));
        }
        let shards = Shards::start(shards)?;
        let Personality { name: personality, limits, quirks, .. } = options.personality;
        let limits = Limits { max_qp: limits.max_qp.min(max_qp), ..limits };
        let device = Inner {
            shards,
            limits,
            quirks,
            personality,
            info,
            mtu,
            partition,
            seed,
            qps: Quota::new("QPs", limits.max_qp),
            srqs: Quota::new("SRQs", limits.max_srq),
            pds: Quota::new("PDs", limits.max_pd),
            cqs: Quota::new("CQs", limits.max_cq),
            next_pd: AtomicU32::new(1),
            next_cq: AtomicU32::new(1),
            next_iova: AtomicU64::new(FIRST_IOVA),
            dm_used: AtomicU64::new(0),
            random_draws: AtomicU64::new(0),
            asynchronous,
        };
        Ok(Context(Arc::new(Handle { device: Arc::new(device), reader: EventReader::FIRST, events })))
    }

    /// Opens the device once more, like a second `ibv_open_device`. Both contexts use the same NIC and share
    /// its limits. Objects of one opening cannot be used with those of another, and each opening receives the
    /// asynchronous events of its own queues and those of the port.
    ///
    /// # Errors
    /// [`OpenError`] if no descriptor is left.
    pub fn reopen(&self) -> Result<Context, OpenError> {
        Context::of(self.0.device.clone())
    }

    fn of(device: Arc<Inner>) -> Result<Context, OpenError> {
        let events = Arc::new(EventSignal::new()?);
        let reader = device.asynchronous.add_reader(events.clone());
        Ok(Context(Arc::new(Handle { device, reader, events })))
    }

    /// Returns the shards, for tests of the driver.
    #[cfg(test)]
    pub(crate) fn shards(&self) -> &Shards {
        &self.0.shards
    }

    /// Returns a handle that does not keep the device open.
    pub fn downgrade(&self) -> WeakContext {
        WeakContext(Arc::downgrade(&self.0.device))
    }

    /// Returns [`CreateError::DeviceFatal`] if the device has failed, so that nothing more is created.
    pub(super) fn check_device(&self) -> Result<(), CreateError> {
        match self.0.shards.with_nic(|nic| nic.has_failed()) {
            true => Err(CreateError::DeviceFatal),
            false => Ok(()),
        }
    }

    /// Returns an entry of the GID table, or `None` beyond its end.
    pub fn query_gid(&self, index: usize) -> Option<Gid> {
        self.0.shards.with_nic(|nic| nic.config().port.gid(index))
    }

    /// Returns the address at which peers reach this device: that of its [`main_gid`](Self::main_gid). `None`
    /// while the device has no address.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// let fabric = Fabric::new();
    /// let port = fabric.port(&["192.0.2.7".parse()?])?;
    /// let context = Context::on_port(port, &ContextOptions::default(), |port| Box::new(port))?;
    /// assert_eq!(context.address(), Some("192.0.2.7".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn address(&self) -> Option<IpAddr> {
        Some(self.query_gid(self.main_gid()?.into())?.ip())
    }

    /// Returns the index of the GID for peers of which nothing is known: the first one that is not
    /// link-local, or the first one if all are.
    pub fn main_gid(&self) -> Option<u8> {
        self.0.shards.with_nic(|nic| u8::try_from(nic.config().port.main_gid()?).ok())
    }

    /// Returns the index of the GID that suits a peer best: of its IP version, and then by scope and longest
    /// common prefix. `None` if there is no GID of that version.
    pub fn gid_towards(&self, peer: Gid) -> Option<u8> {
        self.0.shards.with_nic(|nic| u8::try_from(nic.config().port.gid_towards(peer)?).ok())
    }

    /// Returns the GID table, which holds the port's addresses. An entry of zeros belonged to a removed
    /// address.
    pub fn gids(&self) -> Vec<Gid> {
        self.0.shards.with_nic(|nic| nic.config().port.gids.clone())
    }

    /// Changes the GID table, as the system does when it changes the addresses of an interface, and raises
    /// [`AsyncEvent::GidChange`](super::AsyncEvent::GidChange). Addresses that stay keep their index. The
    /// link is not notified; on a fabric, [`Fabric::set_addresses`] does that as well.
    pub fn set_gids(&self, gids: &[Gid]) {
        self.0.shards.with_all_nics(|nics| nics.iter_mut().for_each(|nic| nic.set_gids(gids)));
    }

    /// Returns an entry of the partition key table, or `None` beyond its end. Initially the table has one
    /// entry, full membership of the default partition.
    pub fn query_pkey(&self, index: usize) -> Option<PKey> {
        self.0.shards.with_nic(|nic| nic.pkeys().get(index).copied())
    }

    /// Changes the partition key table, as a subnet manager would, and raises
    /// [`AsyncEvent::PKeyChange`](super::AsyncEvent::PKeyChange).
    ///
    /// # Errors
    /// [`PKeyTableSize`] if the table is above the device's limit, or does not contain an index that a queue
    /// pair uses; then it has not changed.
    pub fn set_pkeys(&self, pkeys: &[PKey]) -> Result<(), PKeyTableSize> {
        self.0.shards.with_all_nics(|nics| {
            let needed = nics.iter().map(|nic| nic.pkeys_needed()).max().unwrap_or(1);
            let max = usize::from(self.0.limits.max_pkeys);
            if !(needed..=max).contains(&pkeys.len()) {
                return Err(PKeyTableSize { given: pkeys.len(), needed, max });
            }
            nics.iter_mut().try_for_each(|nic| nic.set_pkeys(pkeys))
        })
    }

    /// Returns the time of the NIC's clock, which stamps completions (`ibv_query_rt_values_ex`): nanoseconds
    /// from an arbitrary origin, never decreasing. In virtual time it is the fabric's clock.
    pub fn clock(&self) -> u64 {
        self.0.shards.clock().now().0
    }

    /// Returns the link's description of itself when the context was opened.
    pub fn link_info(&self) -> &LinkInfo {
        &self.0.info
    }

    /// Returns the NIC's counters. Waits for the locks of all shards.
    pub fn counters(&self) -> Counters {
        self.0.shards.counters()
    }

    /// Returns the link's counters of dropped packets and, once the link is lost, the reason.
    pub fn link_state(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        self.0.shards.link_state()
    }

    /// Reports whether this context is the copy that a child of fork has of its parent's. No packet is sent
    /// or received by the copy, and objects created in it have no effect in the parent. A device that is
    /// opened in the child is the child's own. Leave objects of the parent's context alone or forget them: a
    /// thread that does not exist in the child may have held their lock.
    pub fn is_inherited(&self) -> bool {
        self.0.shards.are_inherited()
    }

    /// Polls the link once on this thread, as polling a completion queue does, for a program that polls
    /// memory.
    pub fn poll(&self) {
        self.0.shards.poll_all();
    }

    /// Returns the number for a new completion queue; numbers repeat after 2^32 queues.
    pub(super) fn next_cq(&self) -> CqId {
        CqId(self.0.next_cq.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reports whether both contexts belong to the same device, which may have been opened twice.
    pub(super) fn is_same_device(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0.device, &other.0.device)
    }

    /// Allocates a page-aligned address range for a region of `len` bytes, followed by a gap, and returns its
    /// start.
    pub(super) fn alloc_iova(&self, len: usize) -> u64 {
        self.0.next_iova.fetch_add((len as u64 | 0xfff) + 1 + 0x1000, Ordering::Relaxed)
    }

    /// Returns the next number of the context's pseudorandom sequence.
    pub(super) fn next_random(&self) -> u64 {
        splitmix64(self.0.seed, self.0.random_draws.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl WeakContext {
    /// Returns the device if it is still open.
    pub(super) fn get(&self) -> Option<Arc<Inner>> {
        self.0.upgrade()
    }

    /// Opens the device once more, like [`Context::reopen`]. Returns `None` if the device is no longer open.
    ///
    /// # Errors
    /// As for [`Context::reopen`].
    pub fn reopen(&self) -> Option<Result<Context, OpenError>> {
        self.0.upgrade().map(Context::of)
    }

    /// Sends the delayed acknowledgements if the device is open, for a process that exits without closing it.
    /// Waits up to `timeout` for the lock of each shard, and skips a shard whose lock is held for longer.
    pub fn acknowledge(&self, timeout: Duration) {
        if let Some(inner) = self.0.upgrade() {
            inner.shards.acknowledge(timeout);
        }
    }

    /// Returns the device's counters, for a process that exits. `None` if the device is no longer open, or a
    /// thread holds the lock of a shard for longer than `timeout`.
    pub fn counters_within(&self, timeout: Duration) -> Option<Counters> {
        self.0.upgrade()?.shards.counters_within(timeout)
    }
}

impl fmt::Debug for WeakContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeakContext({} references)", self.0.strong_count())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.0.info.name)
    }
}

/// Returns the FNV-1a hash of an address, which is the same in every run and on every machine.
fn hash_of_address(ip: IpAddr) -> u64 {
    let step = |h: u64, b: u8| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3);
    Gid::from(ip).0.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns a seed from the system's entropy, which the standard library uses for the keys of its hashers.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
