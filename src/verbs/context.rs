//! Contexts: opening a device on a link, and accessing the device's GID and partition key tables, counters
//! and clock.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::eventfd::EventFd;

use super::channel_wait::WaitingThreads;
use super::explain::ConnectionReport;
use super::faults::{Call, CallFaults, DeviceFaults, Fault, FaultCount, Injector, ObjectFault};
use super::quota::Quota;
use super::warnings::Warnings;
use super::{CreateError, OpenError};
use crate::driver::{ALL_SHARDS, Clock, EventReader, Events, Records, Shard, ShardMailbox, Shards};
use crate::fabric::{Driver, Fabric, FabricHandle, FabricPort};
use crate::link::{Link, LinkCounters, LinkInfo};
use crate::memory::Table;
use crate::middleware::Middleware;
use crate::middleware::capture::CaptureFile;
use crate::middleware::faults::FaultSeeds;
#[cfg(feature = "qlog")]
use crate::middleware::qlog::QlogFile;
use crate::nic::{Limits, Nic, NicConfig, PKeyTableSize, Personality, PortAddresses, QpnPartition};
use crate::sys::rng::splitmix64;
use crate::sys::setters::setters;
use crate::transport::{Congestion, CongestionConfig, Counters, Failure, PacingLimits, Quirks, Rate, Tuning};
use crate::wire::{Gid, ICRC_LEN, MAX_HEADERS_LEN, Mtu, PKey};

/// Address of the first region whose memory the crate allocates. It is not a host address: those differ from
/// run to run, and every run of a program should send the same packets.
const FIRST_IOVA: u64 = 0x1000_0000;

/// Maximum length of a READ request, in bytes: half the window of a peer whose packets take rings in shared
/// memory.
const MAX_READ_CHUNK: usize = crate::rings::CAPACITY / 4;

/// Options for opening a context.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContextOptions {
    /// Limits and quirks of the NIC; [`Personality::DEFAULT`] by default.
    pub personality: Personality,
    /// Seed for queue pair numbers, keys, starting PSNs and the connection manager's IDs. With `None`, the
    /// seed is random, except that on a fabric it is derived from the fabric's seed and the port's address,
    /// so that every run of a program uses the same values.
    pub seed: Option<u64>,
    /// Maximum number of bytes in flight to a peer. `None` stands for the amount that the link's peers can
    /// buffer.
    pub window: Option<usize>,
    /// Lower bound for the local ACK timeouts of all queue pairs, so that a temporarily stopped peer is not
    /// treated as failed. `None` stands for the personality's bound, and lower values have no effect.
    pub min_ack_timeout: Option<Duration>,
    /// Whether packets between NICs of this host that exchange them through memory (on a fabric in real
    /// time, or through rings in shared memory) go without ICRCs, and are not verified; true by default.
    /// Captures and fault injection always see ICRCs. To have all verified, set this to false at both ends.
    pub elide_icrcs: bool,
    /// Congestion control of the queue pairs; [`Congestion::LOSS_DRIVEN`] by default.
    pub congestion: Congestion,
    /// Faults to inject. Packet rules apply between the links and the NIC; the time of a fault on an object
    /// begins when the context is opened; probabilities are derived from the seed.
    pub faults: Vec<Fault>,
    /// File for the packets, as the NIC sends and receives them, and the name of their interface in the
    /// file. Each packet to which a fault is applied carries a comment.
    pub capture: Option<(CaptureFile, String)>,
    /// File for the events of the NIC, and the NIC's name in its header if it is the first one in the file.
    #[cfg(feature = "qlog")]
    pub qlog: Option<(QlogFile, String)>,
}

setters!(ContextOptions { personality: Personality, elide_icrcs: bool, congestion: Congestion } optional { seed: u64, window: usize, min_ack_timeout: Duration });

impl ContextOptions {
    /// Adds faults to inject: see [`faults`](Self#structfield.faults).
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// # use urxe::verbs::faults::Fault;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fabric = Fabric::virtual_time(FabricConfig::default())?;
    /// let faults: [Fault; 2] = ["call:ibv_alloc_pd=ENOMEM@1".parse()?, "port=down@5ms".parse()?];
    /// let context = fabric.open(&ContextOptions::default().faults(faults))?;
    /// let error = context.alloc_pd().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "Cannot allocate memory (os error 12) (ibv_alloc_pd, by the fault rule 'call:ibv_alloc_pd=ENOMEM@1', first call)"
    /// );
    /// context.alloc_pd()?;
    /// fabric.advance(std::time::Duration::from_millis(5));
    /// assert_eq!(context.next_event(), Some(AsyncEvent::PortError));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn faults(mut self, faults: impl IntoIterator<Item = impl Into<Fault>>) -> ContextOptions {
        self.faults.extend(faults.into_iter().map(Into::into));
        self
    }

    /// Sets the file for the packets, and the name of their interface: see
    /// [`capture`](Self#structfield.capture).
    #[must_use]
    pub fn capture(mut self, file: &CaptureFile, name: &str) -> ContextOptions {
        self.capture = Some((file.clone(), name.into()));
        self
    }

    /// Sets the file for the events, and the name of the NIC: see [`qlog`](Self#structfield.qlog).
    #[cfg(feature = "qlog")]
    #[must_use]
    pub fn qlog(mut self, file: &QlogFile, name: &str) -> ContextOptions {
        self.qlog = Some((file.clone(), name.into()));
        self
    }
}

impl Default for ContextOptions {
    /// Returns options for the default personality, without a fixed seed.
    fn default() -> Self {
        ContextOptions {
            personality: Personality::DEFAULT,
            seed: None,
            window: None,
            min_ack_timeout: None,
            elide_icrcs: true,
            congestion: Congestion::default(),
            faults: Vec::new(),
            capture: None,
            #[cfg(feature = "qlog")]
            qlog: None,
        }
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

/// State of one context: the device, which other contexts may share, and the context's own event queue.
pub(super) struct Handle {
    device: Arc<Inner>,
    /// Reader for the asynchronous events of this context's objects and of the port.
    pub reader: EventReader,
    pub events: Arc<EventFd>,
    /// Faults on calls of this context and its objects.
    pub calls: Injector,
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

/// Weak handle to a device, which does not keep the device open.
#[derive(Clone)]
pub struct WeakContext(pub(super) Weak<Inner>);

pub(super) struct Inner {
    pub shards: Shards,
    pub limits: Limits,
    pub quirks: Quirks,
    pub personality: &'static str,
    pub info: LinkInfo,
    pub mtu: Mtu,
    /// Part of the QPN space from which the device's queue pairs get their numbers.
    pub partition: QpnPartition,
    pub seed: u64,
    pub qps: Quota,
    pub srqs: Quota,
    pub pds: Quota,
    pub cqs: Quota,
    pub next_pd: AtomicU32,
    /// Number of the next completion queue. Numbers repeat after 2^32 queues.
    pub next_cq: AtomicU32,
    /// I/O virtual address of the next region whose memory the crate allocates.
    next_iova: AtomicU64,
    pub device_memory: Quota,
    /// Number of values drawn so far from the context's pseudorandom sequence.
    random_draws: AtomicU64,
    pub waiting_threads: WaitingThreads,
    /// Asynchronous events for all contexts that share the device.
    pub asynchronous: Events,
    /// Records of the queue pairs that refused requests.
    pub refusals: Records<Failure>,
    /// Reports of connection requests that were not answered or were rejected.
    pub connections: Records<ConnectionReport>,
    pub warnings: Warnings,
    pub faults: Arc<DeviceFaults>,
}

impl Fabric {
    /// Opens a mock NIC: a NIC on a new port of the fabric, with addresses chosen by the fabric.
    /// [`Context::on_port`] opens one with addresses of choice.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// # use urxe::verbs::errors::OpenError;
    /// let fabric = Fabric::new();
    /// let context = fabric.open(&ContextOptions::default().personality(Personality::MLX5))?;
    /// assert_eq!(context.query_device().limits, Personality::MLX5.limits);
    /// assert_eq!(context.gids().len(), 2, "an IPv4 and an IPv6 address");
    /// # Ok::<(), OpenError>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::MtuTooSmall`] if packets of the fabric cannot hold a path MTU of 256;
    /// [`OpenError::System`] if the system is out of descriptors or threads; [`OpenError::Injected`].
    pub fn open(&self, options: &ContextOptions) -> Result<Context, OpenError> {
        let port = self.port(&self.auto_address())?;
        Context::on_port(port, options, |port| Box::new(port))
    }
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

    /// Opens a NIC with several shards. Each shard has its own link, lock, timers and background thread, so
    /// that threads whose queue pairs are in different shards never wait for each other. Queue pairs that
    /// complete their sends to one completion queue are in one shard, so each thread needs a completion
    /// queue of its own. Completion queues, and shared receive queues with their queue pairs, are
    /// assigned to shards round-robin, and all XRC objects to the first shard.
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

    /// Opens a mock NIC with default options: see [`Fabric::open`].
    ///
    /// # Errors
    /// [`OpenError::MtuTooSmall`] if packets of the fabric cannot hold a path MTU of 256;
    /// [`OpenError::System`] if the system is out of descriptors or threads.
    pub fn on_fabric(fabric: &Fabric) -> Result<Context, OpenError> {
        fabric.open(&ContextOptions::default())
    }

    /// Opens a NIC on a fabric port. `wrap` may put middleware around the port, such as packet capture or
    /// fault injection.
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
        let clock = fabric.as_ref().map_or(Clock::Real, |f| Clock::Fabric(f.fabric().clone()));
        let calls = Injector::new(CallFaults::new(Fault::call_faults(&options.faults), seed), &clock);
        calls.inject(Call::ibv_open_device).map_err(OpenError::Injected)?;
        let (capture, name) = options.capture.clone().unzip();
        #[cfg(feature = "qlog")]
        let (qlog, name) =
            options.qlog.clone().map_or((None, name.clone()), |(file, of)| (Some(file), name.or(Some(of))));
        let (faults, seeds) = (Fault::packet_rules(&options.faults), FaultSeeds::new(Some(seed)));
        let middleware = Middleware {
            capture,
            captures_at_nic: true,
            faults,
            seeds,
            #[cfg(feature = "qlog")]
            qlog,
        };
        let (mut links, packet_counters) = middleware.wrap(links, &name.unwrap_or_default());
        if options.elide_icrcs {
            let paths = links.iter_mut().filter_map(|link| link.host_memory());
            paths.for_each(|mut memory| memory.elide_icrcs());
        }
        // A peer may have only one receive buffer for the packets of all shards.
        let window = options.window.unwrap_or(info.window) / links.len();
        let config = NicConfig {
            personality: options.personality,
            tuning: Tuning {
                window,
                max_peer_window: options.window.map_or(usize::MAX, |window| window / links.len()),
                read_chunk: (window / 2).clamp(mtu.bytes(), MAX_READ_CHUNK) as u32,
                min_timeout: options
                    .min_ack_timeout
                    .map_or(options.personality.min_timeout, |t| t.max(options.personality.min_timeout)),
                // On a fabric the only losses are the configured ones, so pacing would not avoid any.
                pace_unacknowledged: fabric.is_none(),
                congestion: CongestionConfig {
                    control: options.congestion,
                    line_rate: Rate::from_bits_per_second(info.speed as f64),
                },
                pacing: match &fabric {
                    Some(f) if f.fabric().is_virtual() => PacingLimits::VIRTUAL_TIME,
                    _ => PacingLimits::REAL_TIME,
                },
                ..Tuning::default()
            },
            port: PortAddresses {
                gids: info.addresses.iter().map(|ip| Gid::from(*ip)).collect(),
                src_port: info.src_port,
            },
            seed,
        };
        let new_nic = |(mailbox, link): (&ShardMailbox, &mut Box<dyn Link>)| {
            let mut nic = Nic::shard(config.clone(), mailbox.id());
            if let Some(records) = link.shared_address().and_then(|shared| shared.last_acks()) {
                nic.record_last_acks(records);
            }
            nic
        };
        let nics: Vec<Nic> = mailbox.iter().zip(&mut links).map(new_nic).collect();
        let (asynchronous, refusals) = (Events::default(), Records::default());
        let (reader, events) = asynchronous.add_reader()?;
        let max_qp: u32 = nics.iter().map(Nic::max_qp).sum();
        let memory = Arc::new(Table::seeded(seed.rotate_left(32)));
        let mut shards = Vec::with_capacity(links.len());
        for ((nic, link), mailbox) in nics.into_iter().zip(links).zip(mailbox) {
            let (memory, reports) = (memory.clone(), (asynchronous.clone(), refusals.clone()));
            let (clock, fabric) = (clock.clone(), fabric.clone());
            shards.push(Arc::new(Shard::new(nic, link, mailbox, memory, reports, clock, fabric)?));
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
            qps: Quota::new("QPs", limits.max_qp.into()),
            srqs: Quota::new("SRQs", limits.max_srq.into()),
            pds: Quota::new("PDs", limits.max_pd.into()),
            cqs: Quota::new("CQs", limits.max_cq.into()),
            next_pd: AtomicU32::new(1),
            next_cq: AtomicU32::new(1),
            next_iova: AtomicU64::new(FIRST_IOVA),
            device_memory: Quota::new("bytes of device memory", limits.max_dm_size),
            random_draws: AtomicU64::new(0),
            waiting_threads: WaitingThreads::default(),
            asynchronous,
            refusals,
            connections: Records::default(),
            warnings: Warnings::default(),
            faults: Arc::new(DeviceFaults::new(calls, packet_counters)),
        };
        for fault in Fault::object_faults(&options.faults) {
            device.faults.add(fault, &device.shards);
        }
        let calls = device.faults.calls.clone();
        let device = Arc::new(device);
        device.list();
        Ok(Context(Arc::new(Handle { device, reader, events, calls })))
    }

    /// Opens the device again, like a second `ibv_open_device`. Both contexts use the same NIC and share its
    /// limits. Objects of different contexts cannot be used together. Each context receives the asynchronous
    /// events of its own queues and of the port.
    ///
    /// # Errors
    /// [`OpenError`] if no descriptor is left.
    pub fn reopen(&self) -> Result<Context, OpenError> {
        Context::of(self.0.device.clone(), self.0.calls.clone())
    }

    /// Opens the device again, for calls that the program does not make, so that no faults apply to them.
    pub(super) fn reopen_internally(&self) -> Result<Context, OpenError> {
        Context::of(self.0.device.clone(), Injector::default())
    }

    fn of(device: Arc<Inner>, calls: Injector) -> Result<Context, OpenError> {
        let (reader, events) = device.asynchronous.add_reader()?;
        Ok(Context(Arc::new(Handle { device, reader, events, calls })))
    }

    /// Adds a fault on an object of the device, whose time begins now.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use urxe::verbs::*;
    /// # use urxe::verbs::faults::{ObjectChange, ObjectFault, Trigger};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fabric = Fabric::virtual_time(FabricConfig::default())?;
    /// let (a, _b) = fabric.pair()?;
    /// let (failure, after) = (ObjectChange::QpError(Some(a.qp.qpn())), Trigger::After(Duration::from_millis(1)));
    /// a.context.add_fault(ObjectFault::new(failure, after));
    /// fabric.advance(Duration::from_millis(1));
    /// assert_eq!(a.qp.state(), QpState::Err);
    /// # Ok(())
    /// # }
    /// ```
    pub fn add_fault(&self, fault: ObjectFault) {
        self.0.faults.add(fault, &self.0.shards);
    }

    /// Returns the counters of the device's faults: of packet rules, faults on calls and faults on objects,
    /// in this order.
    pub fn fault_counts(&self) -> Vec<FaultCount> {
        self.0.faults.counts()
    }

    /// Returns the faults of the device, with their counters. They do not keep the device open.
    #[doc(hidden)]
    pub fn device_faults(&self) -> Arc<DeviceFaults> {
        self.0.faults.clone()
    }

    /// Applies the faults on a call.
    #[inline]
    pub(super) fn inject(&self, call: Call) -> Result<(), CreateError> {
        self.0.calls.inject(call).map_err(CreateError::Injected)
    }

    /// Returns the shards, for the driver's tests.
    #[cfg(test)]
    pub(crate) fn shards(&self) -> &Shards {
        &self.0.shards
    }

    /// Returns a handle that does not keep the device open.
    pub fn downgrade(&self) -> WeakContext {
        WeakContext(Arc::downgrade(&self.0.device))
    }

    /// Fails with [`CreateError::DeviceFatal`] if the device has failed and can create no more objects.
    pub(super) fn check_device(&self) -> Result<(), CreateError> {
        match self.0.shards.with_nic(|nic| nic.has_failed()) {
            true => Err(CreateError::DeviceFatal),
            false => Ok(()),
        }
    }

    /// Returns the GID table entry at `index`, or `None` beyond the end of the table.
    pub fn query_gid(&self, index: usize) -> Option<Gid> {
        self.0.shards.with_nic(|nic| nic.config().port.gid(index))
    }

    /// Returns the address at which peers reach this device: the IP address of its
    /// [`main_gid`](Self::main_gid). `None` while the device has no address.
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

    /// Returns the index of the GID to use if nothing is known about the peer: the first one that is not
    /// link-local, or the first one if all are link-local.
    pub fn main_gid(&self) -> Option<u8> {
        self.0.shards.with_nic(|nic| u8::try_from(nic.config().port.main_gid()?).ok())
    }

    /// Returns the index of the GID from which to reach `peer`: one of the same IP version, preferably of the
    /// same scope, and among those the one with the longest common prefix. `None` if there is no GID of the
    /// peer's IP version.
    pub fn gid_towards(&self, peer: Gid) -> Option<u8> {
        self.0.shards.with_nic(|nic| u8::try_from(nic.config().port.gid_towards(peer)?).ok())
    }

    /// Returns the GID table, which holds the port's addresses. Entries of removed addresses are all zeros.
    pub fn gids(&self) -> Vec<Gid> {
        self.0.shards.with_nic(|nic| nic.config().port.gids.clone())
    }

    /// Replaces the GID table, as the system does when an interface's addresses change, and raises
    /// [`AsyncEvent::GidChange`](super::AsyncEvent::GidChange). Remaining addresses keep their index. The
    /// link is not notified; on a fabric, use [`Fabric::set_addresses`], which changes both.
    pub fn set_gids(&self, gids: &[Gid]) {
        self.0.shards.with_all_nics(|nics| nics.iter_mut().for_each(|nic| nic.set_gids(gids)));
    }

    /// Returns the partition key table entry at `index`, or `None` beyond the end of the table. Initially,
    /// the only entry is the key of a full member of the default partition.
    pub fn query_pkey(&self, index: usize) -> Option<PKey> {
        self.0.shards.with_nic(|nic| nic.pkeys().get(index).copied())
    }

    /// Replaces the partition key table, as a subnet manager would, and raises
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

    /// Returns the current time of the clock that timestamps completions (`ibv_query_rt_values_ex`), in
    /// nanoseconds since an arbitrary origin. It never decreases. In virtual time it is the fabric's clock.
    pub fn clock(&self) -> u64 {
        self.0.shards.clock().now().0
    }

    /// Returns the properties that the link had when the context was opened.
    pub fn link_info(&self) -> &LinkInfo {
        &self.0.info
    }

    /// Returns the NIC's counters. May block, because it takes every shard's lock.
    pub fn counters(&self) -> Counters {
        self.0.shards.counters()
    }

    /// Returns the link's counters of dropped packets and, once the link is lost, the error that caused the
    /// loss.
    pub fn link_state(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        self.0.shards.link_state()
    }

    /// Reports whether packets of this context have taken rings in shared memory
    /// ([`Sharing::shared_memory`](crate::broker::Sharing::shared_memory)).
    pub fn has_used_rings(&self) -> bool {
        self.0.shards.have_used_rings()
    }

    /// Reports whether this context was inherited from the parent process by `fork`. An inherited context
    /// sends and receives no packets, and objects created in it do not affect the parent. A device opened in
    /// the child is the child's own. Do not use or drop inherited objects (`std::mem::forget` is safe): their
    /// locks may be held by threads that do not exist in the child.
    pub fn is_inherited(&self) -> bool {
        self.0.shards.are_inherited()
    }

    /// Polls the link once on the calling thread, as polling a completion queue does. Intended for programs
    /// that wait for data by polling memory.
    pub fn poll(&self) {
        self.0.shards.poll(ALL_SHARDS);
    }

    pub(super) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reports whether both contexts were opened on the same device.
    pub(super) fn is_same_device(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0.device, &other.0.device)
    }

    /// Allocates a page-aligned address range for a region of `len` bytes, followed by a gap, and returns its
    /// start.
    pub(super) fn alloc_iova(&self, len: usize) -> u64 {
        self.0.next_iova.fetch_add((len as u64 | 0xfff) + 1 + 0x1000, Ordering::Relaxed)
    }

    /// Returns the next number in the context's pseudorandom sequence.
    pub(super) fn next_random(&self) -> u64 {
        splitmix64(self.0.seed, self.0.random_draws.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl WeakContext {
    /// Opens the device again, like [`Context::reopen`]. Returns `None` if the device is no longer open.
    ///
    /// # Errors
    /// As for [`Context::reopen`].
    pub fn reopen(&self) -> Option<Result<Context, OpenError>> {
        self.0.upgrade().map(|device| {
            let calls = device.faults.calls.clone();
            Context::of(device, calls)
        })
    }

    /// Sends the device's delayed acknowledgements if it is open. Intended for processes that exit without
    /// closing the device. Waits up to `timeout` for each shard's lock, and skips a shard whose lock is held
    /// for longer.
    pub fn acknowledge(&self, timeout: Duration) {
        if let Some(inner) = self.0.upgrade() {
            inner.shards.acknowledge(timeout);
        }
    }

    /// Returns the device's counters, for a process about to exit. `None` if the device is no longer open or
    /// a shard's lock is held for longer than `timeout`.
    pub fn counters_within(&self, timeout: Duration) -> Option<Counters> {
        Some(self.0.upgrade()?.shards.all_counters_within(timeout)?.0)
    }
}

impl WeakContext {
    /// Returns the NIC's and the link's counters, under the conditions of
    /// [`counters_within`](Self::counters_within).
    #[doc(hidden)]
    pub fn all_counters_within(&self, timeout: Duration) -> Option<(Counters, LinkCounters)> {
        self.0.upgrade()?.shards.all_counters_within(timeout)
    }

    /// Reports whether the device is open.
    #[doc(hidden)]
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
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

/// Returns the FNV-1a hash of an IP address. Unlike the standard library's default hash, it is the same in
/// every run and on every machine.
fn hash_of_address(ip: IpAddr) -> u64 {
    let step = |h: u64, b: u8| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3);
    Gid::from(ip).0.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns a seed from the system's entropy, by way of the standard library's randomly keyed hasher.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
