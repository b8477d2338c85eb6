//! A NIC's shards: their background threads, operations on several shards, and the distribution of objects
//! among them.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::pthread::pthread_self;
use parking_lot::Mutex;

use super::policy::Policy;
use super::shard::ShardGuard;
use super::{ActiveObjectFault, AttachError, Clock, Shard, ShardState};
use crate::fabric::FabricHandle;
use crate::link::LinkCounters;
use crate::memory::Table;
use crate::nic::{Limits, MulticastError, MulticastTable, Nic};
use crate::sys::fork::ForkGeneration;
use crate::sys::thread::spawn_background;
#[cfg(feature = "live")]
use crate::transport::Instant;
use crate::transport::{Congestion, Counters};
use crate::wire::{Gid, Qpn};

/// All shards of a NIC and their background threads.
pub(crate) struct Shards {
    all: Box<[Arc<Shard>]>,
    threads: Vec<JoinHandle<()>>,
    /// The process that the threads run in; a forked child does not have them.
    process: ForkGeneration,
    next_qp: AtomicUsize,
    next_srq: AtomicUsize,
    /// Multicast attachments of all shards, in a single table because the limits apply to the device.
    groups: Mutex<MulticastTable>,
}

/// Set of shards, with one bit per shard index.
pub(crate) type ShardSet = u64;

/// All shards of a NIC, however many it has.
pub(crate) const ALL_SHARDS: ShardSet = ShardSet::MAX;

impl Shards {
    /// Starts one background thread per shard, except in virtual time, where the fabric drives the NIC.
    pub fn start(all: Vec<Arc<Shard>>) -> io::Result<Shards> {
        let mut shards = Shards {
            all: all.into(),
            threads: Vec::new(),
            process: ForkGeneration::current(),
            next_qp: AtomicUsize::new(0),
            next_srq: AtomicUsize::new(0),
            groups: Mutex::default(),
        };
        if shards.first().policy != Policy::Clock {
            for (i, shard) in shards.all.iter().enumerate() {
                let name = if i == 0 { "urxe".into() } else { format!("urxe-{i}") };
                let shard = shard.clone();
                shards.threads.push(spawn_background(name, move || shard.run())?);
            }
        }
        Ok(shards)
    }

    /// Reports whether this process is a forked child of the one that opened the NIC, which alone drives it.
    pub fn are_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns the first shard, which has the objects that cannot be distributed, and answers queries about
    /// state common to all shards.
    pub fn first(&self) -> &Arc<Shard> {
        &self.all[0]
    }

    /// Returns the shard that a queue pair belongs to.
    pub fn of(&self, qpn: Qpn) -> &Arc<Shard> {
        &self.all[qpn.get() as usize & (self.all.len() - 1)]
    }

    /// Returns the shard for the next queue pair to be created: that of the queue pairs that already complete
    /// to `cq`, or for an unused completion queue the next in round-robin order. A thread with a
    /// completion queue of its own then takes the lock of one shard only, and polls only that one. With
    /// queue pairs distributed without regard to completion queues, 26 of the 36 measurements of
    /// `benches/shards.rs` were below the rate of one shard, the lowest at 0.59 times that rate; with
    /// this rule, 8 are, the lowest at 0.89 times.
    pub fn next_for_qp(&self, cq: &CqUsers) -> &Arc<Shard> {
        match cq.count() {
            0 => self.next(&self.next_qp),
            _ => &self.all[cq.shards().trailing_zeros() as usize],
        }
    }

    /// Returns the shard for the next shared receive queue to be created, in round-robin order; queue pairs
    /// that use the shared receive queue are created in the same shard.
    pub fn next_for_srq(&self) -> &Arc<Shard> {
        self.next(&self.next_srq)
    }

    fn next(&self, counter: &AtomicUsize) -> &Arc<Shard> {
        &self.all[counter.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }

    pub fn clock(&self) -> &Clock {
        &self.first().clock
    }

    pub fn virtual_fabric(&self) -> Option<&FabricHandle> {
        self.first().virtual_fabric()
    }

    /// Runs `f` with the first shard's NIC, to read state that is the same in all shards.
    pub fn with_nic<R>(&self, f: impl FnOnce(&mut Nic) -> R) -> R {
        self.first().with_nic(f)
    }

    /// Runs `f` with the NICs of all shards, holding all of their locks.
    pub fn with_all_nics<R>(&self, f: impl FnOnce(&mut [&mut Nic]) -> R) -> R {
        self.with_all_states(|states| {
            let mut nics: Vec<&mut Nic> = states.iter_mut().map(|state| &mut state.nic).collect();
            f(&mut nics)
        })
    }

    /// Runs `f` with all shards locked, so that none can add a completion.
    pub fn without_completions<R>(&self, f: impl FnOnce() -> R) -> R {
        self.with_all_states(|_| f())
    }

    /// Runs `f` with the locks of all shards held.
    fn with_all_states<R>(&self, f: impl FnOnce(&mut [ShardGuard<'_>]) -> R) -> R {
        // Always in this order, and no other thread waits for one shard's lock while it holds another, so
        // this cannot deadlock.
        let mut states: Vec<_> = self.all.iter().map(|shard| shard.lock_fairly()).collect();
        let result = f(&mut states);
        // Release all locks before any shard is driven.
        let now = self.clock().now();
        let unlock = |(shard, state): (&Arc<Shard>, _)| shard.unlock(state, now);
        let more: Vec<bool> = self.all.iter().zip(states).map(unlock).collect();
        self.all.iter().zip(more).for_each(|(shard, more)| shard.drive_remaining(more));
        result
    }

    /// Changes the table of regions and windows for all shards at once. No shard is in the middle of a turn,
    /// so nothing uses a removed entry afterwards.
    pub fn change_memory<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        self.with_all_states(|states| {
            let (first, others) = states.split_first_mut().expect("a NIC has a shard");
            // All shards but the first give up their reference; the placeholder is not used while all are
            // locked.
            let nothing = Arc::new(Table::new());
            others.iter_mut().for_each(|state| state.memory = nothing.clone());
            let result =
                f(Arc::get_mut(&mut first.memory).expect("none but shards hold it, and all are locked"));
            others.iter_mut().for_each(|state| state.memory = first.memory.clone());
            result
        })
    }

    /// Wakes the background threads.
    pub fn wake(&self) {
        self.all.iter().for_each(|shard| shard.wake_thread());
    }

    /// Adds a fault on an object, which every shard applies to its part of the device.
    pub fn add_object_fault(&self, fault: &Arc<ActiveObjectFault>) {
        self.all.iter().for_each(|shard| shard.add_object_fault(fault.clone()));
    }

    /// Polls the given shards, for an application that keeps polling.
    pub fn poll(&self, some: ShardSet) {
        self.for_each_in(some, Shard::poll);
    }

    /// Polls the given shards once, for an application that will not poll again.
    pub fn poll_once(&self, some: ShardSet) {
        self.for_each_in(some, Shard::poll_once);
    }

    /// Sends all delayed acknowledgements, except those of a shard whose lock is held for longer than
    /// `timeout`.
    pub fn acknowledge(&self, timeout: Duration) {
        for shard in &self.all {
            shard.with_state_within(timeout, |state, now| shard.send(state, now, false));
        }
    }

    /// Returns the sums of all shards' NIC and link counters, or `None` if any shard's lock is held for
    /// longer than `timeout`.
    pub fn all_counters_within(&self, timeout: Duration) -> Option<(Counters, LinkCounters)> {
        self.all.iter().try_fold((Counters::default(), LinkCounters::default()), |mut sum, shard| {
            shard.with_state_within(timeout, |state, _| {
                sum.0 += *state.nic.counters();
                sum.1 += state.link_status().0;
                sum
            })
        })
    }

    /// Runs `f` with each shard's NIC and link in turn, except those whose lock is held for longer than `timeout`. Returns
    /// whether there were none of these.
    #[cfg(feature = "live")]
    pub fn for_each_within(&self, timeout: Duration, mut f: impl FnMut(&mut ShardState, Instant)) -> bool {
        let run = |shard: &Arc<Shard>| shard.with_state_within(timeout, &mut f).is_some();
        let complete: Vec<bool> = self.all.iter().map(run).collect();
        !complete.contains(&false)
    }

    /// Replaces the congestion control of all shards. Returns false if any shard's lock is held for longer
    /// than `timeout`; other shards may have been changed.
    pub fn set_congestion_within(&self, congestion: Congestion, timeout: Duration) -> bool {
        let set = |state: &mut ShardState, _| state.nic.set_congestion(congestion);
        self.all.iter().all(|shard| shard.with_state_within(timeout, set).is_some())
    }

    /// Announces that the application is about to wait for the given shards.
    pub fn stop_polling(&self, some: ShardSet) {
        self.for_each_in(some, Shard::stop_polling);
    }

    #[inline]
    fn for_each_in(&self, some: ShardSet, f: impl Fn(&Shard)) {
        let mut some = some & (ALL_SHARDS >> (ShardSet::BITS as usize - self.all.len()));
        while some != 0 {
            f(&self.all[some.trailing_zeros() as usize]);
            some &= some - 1;
        }
    }

    /// Returns the sum of all shards' counters.
    pub fn counters(&self) -> Counters {
        self.with_all_nics(|nics| {
            let mut sum = Counters::default();
            nics.iter().for_each(|nic| sum += *nic.counters());
            sum
        })
    }

    /// Returns the sum of the links' counters and, if a link is lost, the reason.
    pub fn link_state(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        let mut sum = LinkCounters::default();
        let mut lost = None;
        for shard in &self.all {
            let (counters, why) = shard.with_state(|state, _| state.link_status());
            sum += counters;
            lost = lost.or(why);
        }
        (sum, lost)
    }

    /// Reports whether packets have taken rings in shared memory.
    pub fn have_used_rings(&self) -> bool {
        let has_used_rings =
            |state: &mut ShardState, _| state.host_memory().is_some_and(|mut memory| memory.has_used_rings());
        self.all.iter().any(|shard| shard.with_state(has_used_rings))
    }

    /// Attaches the shard's queue pair to a multicast group.
    pub fn attach_mcast(
        &self,
        shard: &Shard,
        qpn: Qpn,
        gid: Gid,
        limits: &Limits,
    ) -> Result<(), AttachError> {
        let mut groups = self.groups.lock();
        shard.with_state(|state, now| state.attach_mcast(now, qpn, gid))?;
        if let Err(e) = groups.attach(qpn, gid, limits) {
            shard.with_state(|state, _| state.detach_mcast(qpn, gid))?;
            return Err(e.into());
        }
        Ok(())
    }

    /// Detaches the shard's queue pair from a multicast group.
    pub fn detach_mcast(&self, shard: &Shard, qpn: Qpn, gid: Gid) -> Result<(), MulticastError> {
        let mut groups = self.groups.lock();
        shard.with_state(|state, _| state.detach_mcast(qpn, gid))?;
        groups.detach(qpn, gid).map(drop)
    }

    /// Destroys the shard's queue pair, and detaches it from its multicast groups.
    pub fn destroy_qp(&self, shard: &Shard, qpn: Qpn) {
        let mut groups = self.groups.lock();
        shard.with_state(|state, _| state.destroy_qp(qpn));
        groups.detach_all(qpn);
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        if self.are_inherited() {
            // Dropping a handle would detach the thread, and in a child of fork the handle may refer to an
            // unrelated thread.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.all.iter().for_each(|shard| shard.stop());
        for thread in self.threads.drain(..) {
            // The last handle may be dropped by a callback on the background thread, which must not join
            // itself. `thread::current` is not available in a thread that is ending, hence `pthread_self`.
            if thread.as_pthread_t() != pthread_self() {
                let _ = thread.join();
            }
        }
    }
}

/// The users of a completion queue: the number of work queues that complete to it, by shard.
pub(crate) struct CqUsers {
    by_shard: Mutex<[u32; ShardSet::BITS as usize]>,
    shards: AtomicU64,
}

impl CqUsers {
    pub fn new() -> CqUsers {
        CqUsers {
            by_shard: Mutex::new([0; ShardSet::BITS as usize]),
            shards: AtomicU64::new(CqUsers::UNUSED),
        }
    }

    /// Shards to poll for a completion queue without users: the first, so that polling still drives the NIC.
    const UNUSED: ShardSet = 1;

    /// Returns the shards that add completions to the queue; the first shard if there are none.
    pub fn shards(&self) -> ShardSet {
        self.shards.load(Ordering::Acquire)
    }

    pub fn add(&self, shard: &Shard) {
        self.change(shard, |n| *n += 1);
    }

    pub fn remove(&self, shard: &Shard) {
        self.change(shard, |n| *n -= 1);
    }

    fn change(&self, shard: &Shard, f: impl FnOnce(&mut u32)) {
        let mut counts = self.by_shard.lock();
        f(&mut counts[shard.index()]);
        let shards = counts.iter().rev().fold(0, |set: ShardSet, n| set << 1 | ShardSet::from(*n > 0));
        self.shards.store(shards.max(CqUsers::UNUSED), Ordering::Release);
    }

    pub fn count(&self) -> u32 {
        self.by_shard.lock().iter().sum()
    }
}
