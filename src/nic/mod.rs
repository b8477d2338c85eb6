//! One NIC: its queue pairs, shared receive queues, counters and limits, and the dispatch of packets to them.
//!
//! The NIC is sans-I/O: it has no socket, thread, lock or clock, and it makes no callbacks. Its driver passes
//! in packets, work requests and the time, and takes out packets, completions and events. All calls of one
//! turn get the same memory table, which must not change between [`Nic::transmit_within`] and the moment when
//! the [`TxQueue`] is cleared, because the queue may still refer to user memory.
//!
//! A turn of the driver consists of these calls, in this order; each may be omitted if there is nothing for
//! it to do:
//!
//! 1. [`Nic::handle_burst`] for each received burst, or [`Nic::handle_part`] for each part of it.
//! 2. [`Nic::handle_timeouts_unless_deferred`], which does nothing before [`Nic::next_deadline`]; or
//!    [`Nic::handle_timeouts`], which serves expired timers even while packets keep arriving.
//! 3. [`Nic::transmit_within`], which fills the [`TxQueue`]. If it returns true, another turn must follow
//!    soon. It can delay acknowledgements that have no request to travel with
//!    ([`Nic::held_acknowledgements`]), until the next call that does not, which must follow soon too.
//! 4. The link sends the packets, and the driver clears the [`TxQueue`].
//! 5. [`Nic::emitted`], in every turn, even if the link has dropped the packets: only now do the sends of
//!    unreliable services complete, since the application may reuse their memory from then on.
//! 6. [`Nic::next_deadline`], the time at which the next turn is due without another reason. It may have
//!    become earlier or later with any call.
//!
//! Calls of the application ([`Nic::create_qp`], [`Nic::modify_qp`], [`Nic::post_send_list`],
//! [`Nic::post_recv`], ...) may be made between two turns. Afterwards, a turn must follow from step 3 on if
//! [`Nic::wants_to_transmit`]; the driver may delay it while [`QueuePair::may_batch`].
//!
//! Every call may leave completions and events in the output queue. The driver takes them with
//! [`Nic::poll_output`], in this order and until it returns `None`, best after each step of a turn and each
//! call of the application. It must do so before it gives the [`CqHandle`] of a completion queue to another
//! one. For a completion that finds its completion queue full, the driver calls [`Nic::on_cq_overflow`]; then
//! there is something to transmit. An overflow that is found before step 3 fails the queue pair before it
//! acknowledges the message.
#![forbid(unsafe_code)]

mod cnp;
mod cq_handle;
mod dropped;
mod egress;
mod gsi;
mod inject;
mod multicast;
mod outputs;
mod peer_share;
mod peers;
mod personality;
mod port_speed;
mod qpn_partition;
mod room;
mod rx;
mod schedule;
mod scratch;
mod shard_id;
mod srq;
mod table;
mod tx;

pub use crate::transport::PortAddresses;
pub use cq_handle::CqHandle;
pub use multicast::MulticastError;
pub(crate) use multicast::MulticastTable;
pub use outputs::NicOutput;
pub use personality::{Limits, Personality};
pub use port_speed::PortSpeed;
pub use qpn_partition::QpnPartition;
pub use shard_id::ShardId;

use std::borrow::Borrow;
use std::sync::Arc;

use crate::burst::TxQueue;
use crate::memory::{PdId, Table};
use crate::transport::state::check_ranges;
use crate::transport::{
    AsyncEvent, AttachCounterError, CompCounter, Congestion, CountedOps, Counters, FailureCause, Instant,
    LastAcks, ModifyError, Observer, Output, PeerChange, PostError, PostListError, QpAttr, QpInit,
    QpObserver, QpState, QueuePair, RecvCaps, RecvWr, SendWr, SharedReceives, SrqId, TimerDeferral, Tuning,
    XrcdId,
};
use crate::wire::icrc::Verifier;
use crate::wire::{Gid, PKey, Qpn};
use cnp::NotificationPoints;
use outputs::OutputQueue;
use peers::PeerWindows;
use room::Egress;
use schedule::Schedule;
use scratch::Scratch;
use srq::SrqTable;
use table::{Entry, QpTable};

/// Configuration of a NIC.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Limits and quirks.
    pub personality: Personality,
    /// Window and timer parameters.
    pub tuning: Tuning,
    /// GID table and UDP source port.
    pub port: PortAddresses,
    /// Seed from which queue pair numbers are derived.
    pub seed: u64,
}

/// A NIC without a link, threads or completion queues, which the driver provides. The [module](self)
/// documentation describes the order of calls.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    shard: ShardId,
    table: QpTable,
    srqs: SrqTable,
    multicast: MulticastTable,
    schedule: Schedule,
    egress: Egress,
    deferral: TimerDeferral,
    peers: PeerWindows,
    notifications: NotificationPoints,
    state: Scratch,
    outputs: OutputQueue,
    verifier: Verifier,
    pkeys: Vec<PKey>,
    port_up: bool,
    port_speed: PortSpeed,
    /// Whether the device has failed, because its link is permanently gone.
    failed: bool,
    observer: Observer,
}

/// Error for a queue pair number that is not in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no QP {0}")]
pub struct UnknownQp(pub Qpn);

/// Error for a partition key table of unsuitable length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given} partition keys: it must be {needed} (the highest index in use) to {max}")]
pub struct PKeyTableSize {
    /// Number of entries given.
    pub given: usize,
    /// Minimum number of entries: one more than the highest index that a queue pair uses.
    pub needed: usize,
    /// Limit of the personality.
    pub max: usize,
}

impl Nic {
    /// Creates a NIC without queue pairs.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn new(config: NicConfig) -> Nic {
        Nic::shard(config, ShardId::WHOLE)
    }

    /// Creates one shard of a NIC. Each shard applies the limits only to itself; the owner of the shards has
    /// to enforce them for the whole NIC.
    pub fn shard(config: NicConfig, shard: ShardId) -> Nic {
        Nic {
            table: QpTable::new(shard, config.personality.limits.max_qp, config.seed),
            verifier: Verifier::new(config.personality.quirks.flush_icrc_twice),
            shard,
            srqs: SrqTable::new(shard),
            multicast: MulticastTable::default(),
            schedule: Schedule::default(),
            egress: Egress::default(),
            deferral: TimerDeferral::default(),
            peers: PeerWindows::new(config.tuning.window),
            notifications: NotificationPoints::default(),
            state: Scratch::default(),
            outputs: OutputQueue::default(),
            pkeys: vec![PKey::DEFAULT],
            port_up: true,
            port_speed: config.personality.port_speed,
            config,
            failed: false,
            observer: Observer::default(),
        }
    }

    /// Sets the observer of the queue pairs that are created from now on, and of dropped packets.
    pub fn set_observer(&mut self, observer: Arc<dyn QpObserver>) {
        self.observer = Observer::new(observer);
    }

    /// Returns the observer.
    #[inline]
    pub fn observer(&self) -> Option<&Arc<dyn QpObserver>> {
        self.observer.receiver()
    }

    /// Raises an event for the NIC as a whole. Only the first shard does so, to report the event once.
    fn announce(&mut self, event: AsyncEvent) {
        if self.shard.is_first() {
            self.outputs.raise(event);
        }
    }

    /// Counts packets that this shard received and handed over to another.
    pub fn count_handed_over(&mut self, packets: u64) {
        self.state.counters.rx_handed_over += packets;
    }

    /// Returns the configuration of the NIC, with its current GIDs.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Replaces the congestion control. Changed parameters take effect at once, another algorithm for queue
    /// pairs that enter RTR later.
    pub fn set_congestion(&mut self, congestion: Congestion) {
        self.config.tuning.congestion.control = congestion;
    }

    /// Adapts to a change of the path to a peer.
    pub fn on_peer_change(&mut self, change: PeerChange) {
        match change {
            PeerChange::Window(address, window) => {
                self.peers.set_window(address, self.config.tuning.peer_window(window));
            }
            PeerChange::Full(path) => {
                self.egress.full.entry(path).or_default();
            }
            PeerChange::Room(path) => {
                for qpn in self.egress.full.remove(&path).unwrap_or_default() {
                    self.unpark(qpn);
                }
            }
        }
    }

    /// Reports whether queue pairs are held back, or would be, because a path is [full](PeerChange::Full).
    pub fn has_full_paths(&self) -> bool {
        self.egress.has_full_paths()
    }

    /// Counters of the NIC.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// Returns the maximum number of queue pairs: the personality's limit or the number of available queue
    /// pair numbers, whichever is lower.
    pub fn max_qp(&self) -> u32 {
        self.table.max()
    }

    /// Sets the memory in which the last acknowledgements are recorded from now on.
    pub fn record_last_acks(&mut self, records: LastAcks) {
        self.state.last_acks = Some(records);
    }

    /// Creates a queue pair in RESET, with completions going to `send_cq` and `recv_cq`. Returns `None` if
    /// the NIC has the maximum number of queue pairs.
    pub fn create_qp(&mut self, init: &QpInit, send_cq: CqHandle, recv_cq: CqHandle) -> Option<Qpn> {
        let observer = &self.observer;
        let make = |qpn| {
            let mut qp = QueuePair::new(qpn, init);
            qp.set_observer(observer.clone());
            Entry::new(qp, send_cq, recv_cq, init.srq)
        };
        let qpn = self.table.insert(make)?;
        self.schedule.reserve(self.table.slots());
        Some(qpn)
    }

    /// Destroys a queue pair. Its outstanding work requests end without completions, as in verbs; outputs not
    /// yet taken remain. Returns its send and receive completion queues, or `None` if there is no such queue
    /// pair.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Option<(CqHandle, CqHandle)> {
        self.multicast.forget(qpn);
        self.outputs.forget(qpn);
        let mut entry = self.table.remove(qpn)?;
        entry.qp.withdraw();
        self.peers.remove(&mut entry);
        Some((entry.send_cq, entry.recv_cq))
    }

    /// Changes the attributes and the state of a queue pair.
    ///
    /// # Errors
    /// Outer: [`UnknownQp`]. Inner: [`ModifyError`].
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> Result<Result<(), ModifyError>, UnknownQp> {
        if self.failed {
            return Ok(Err(ModifyError::DeviceFatal));
        }
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        if let Err(e) = check_values(attr, &self.config.personality.limits, self.pkeys.len()) {
            return Ok(Err(e));
        }
        let srq = entry.srq.and_then(|id| self.srqs.get_mut(id));
        let mut env =
            self.state.env(now, memory, srq, tx, &self.config.tuning, self.peers.window(&entry.share));
        let result = entry.qp.modify(attr, &self.config.port, &mut env);
        entry.qp.set_pkeys(|index| self.pkeys[usize::from(index)]);
        self.outputs.add(&mut self.state, entry, &self.srqs);
        self.peers.settle(entry);
        self.schedule.schedule_pending(entry);
        Ok(result)
    }

    /// Attaches a completion counter to a queue pair.
    ///
    /// # Errors
    /// [`UnknownQp`]; in the inner result [`AttachCounterError`].
    pub fn attach_counter(
        &mut self,
        qpn: Qpn,
        counter: &CompCounter,
        ops: CountedOps,
    ) -> Result<Result<(), AttachCounterError>, UnknownQp> {
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        Ok(entry.qp.attach_counter(counter, ops))
    }

    /// Returns the attributes of a queue pair.
    ///
    /// # Errors
    /// [`UnknownQp`].
    pub fn query_qp(&self, qpn: Qpn) -> Result<(QpAttr, &QueuePair), UnknownQp> {
        self.table.get(qpn).map(|e| (e.qp.query(), &e.qp)).ok_or(UnknownQp(qpn))
    }

    /// Returns a queue pair; `None` if it does not exist.
    pub fn qp(&self, qpn: Qpn) -> Option<&QueuePair> {
        self.table.get(qpn).map(|entry| &entry.qp)
    }

    /// Returns a queue pair that had to refuse a message because no receive has ever been posted to it.
    pub fn qp_without_receives(&self) -> Option<Qpn> {
        let refused = self.state.counters.send_rnr_err > 0;
        let mut entries = self.table.iter().filter(|_| refused);
        entries.find(|e| e.qp.lacks_receives()).map(|e| e.qp.qpn())
    }

    /// Returns the state of all queue pairs.
    #[cfg(feature = "live")]
    pub fn snapshots(&self, now: Instant) -> Vec<crate::transport::QpSnapshot> {
        let receives = |id: SrqId| self.srqs.get(id).map_or(0, SharedReceives::len);
        let snapshot = |e: &table::Entry| e.qp.snapshot(now, e.srq.map(receives), &self.config.tuning);
        self.table.iter().map(snapshot).collect()
    }

    /// Returns the state of a queue pair; `None` if there is no such queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        self.table.get(qpn).map(|e| e.qp.state())
    }

    /// Posts a send work request, which the next [`transmit_within`](Self::transmit_within) sends.
    ///
    /// # Errors
    /// Outer: [`UnknownQp`]. Inner: [`PostError`].
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<Result<(), PostError>, UnknownQp> {
        self.post_send_list(qpn, std::slice::from_ref(wr)).map(|posted| posted.map_err(|e| e.error))
    }

    /// Posts send work requests in order, up to the first that is rejected.
    ///
    /// # Errors
    /// Outer: [`UnknownQp`]. Inner: [`PostListError`] of the first that is rejected; those before it are
    /// posted.
    pub fn post_send_list<'w>(
        &mut self,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = impl Borrow<SendWr<'w>>>,
    ) -> Result<Result<(), PostListError>, UnknownQp> {
        self.post(qpn, |qp, port, out| {
            wrs.into_iter().enumerate().try_for_each(|(index, wr)| {
                let posted = qp.post_send(wr.borrow(), port, out);
                posted.map_err(|error| PostListError { index, error })
            })
        })
    }

    /// Posts a list of send work requests, either all of them or none.
    ///
    /// # Errors
    /// Outer: [`UnknownQp`]. Inner: [`PostListError`] of the first that is rejected.
    pub fn post_send_all<'w>(
        &mut self,
        qpn: Qpn,
        wrs: impl Iterator<Item = SendWr<'w>>,
    ) -> Result<Result<(), PostListError>, UnknownQp> {
        self.post(qpn, |qp, port, out| qp.post_send_all(wrs, port, out))
    }

    /// Posts sends to a queue pair, and schedules it.
    #[inline(always)]
    fn post(
        &mut self,
        qpn: Qpn,
        post: impl FnOnce(&mut QueuePair, &PortAddresses, &mut Vec<Output>) -> Result<(), PostListError>,
    ) -> Result<Result<(), PostListError>, UnknownQp> {
        if self.failed {
            return Ok(Err(PostListError { index: 0, error: PostError::DeviceFatal }));
        }
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        let result = post(&mut entry.qp, &self.config.port, &mut self.state.out);
        self.outputs.add(&mut self.state, entry, &self.srqs);
        self.schedule.schedule_pending(entry);
        Ok(result)
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// Outer: [`UnknownQp`]. Inner: [`PostError`].
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<Result<(), PostError>, UnknownQp> {
        if self.failed {
            return Ok(Err(PostError::DeviceFatal));
        }
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        let result = entry.qp.post_recv(wr, &mut self.state.out);
        self.outputs.add(&mut self.state, entry, &self.srqs);
        Ok(result)
    }

    /// Handles all timers that have expired at `now`.
    pub fn handle_timeouts(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) {
        while let Some((at, qpn)) = self.schedule.next_expired(now) {
            // Superseded by an earlier heap entry for the queue pair: putting this one back would keep both
            // forever.
            let Some(entry) = self.table.get_mut(qpn).filter(|e| e.timer_at == Some(at)) else { continue };
            entry.timer_at = None;
            if entry.qp.next_deadline().is_some_and(|at| at <= now) {
                let srq = entry.srq.and_then(|id| self.srqs.get_mut(id));
                let window = self.peers.window(&entry.share);
                let mut env = self.state.env(now, memory, srq, tx, &self.config.tuning, window);
                entry.qp.handle_timeout(&mut env);
                self.outputs.add(&mut self.state, entry, &self.srqs);
                self.peers.settle(entry);
            }
            self.schedule.schedule_pending(entry);
            self.schedule.arm(entry);
        }
    }

    /// Handles expired timers like [`handle_timeouts`](Self::handle_timeouts), but [defers](TimerDeferral)
    /// those of loss recovery while packets keep arriving. `received` tells whether any have arrived in this
    /// turn.
    pub fn handle_timeouts_unless_deferred(
        &mut self,
        now: Instant,
        received: bool,
        memory: &Table,
        tx: &mut TxQueue,
    ) {
        if self.next_deadline().is_none_or(|at| at > now) {
            return;
        }
        match self.deferral.defers(received) {
            true => self.expire_pacers(now),
            false => self.handle_timeouts(now, memory, tx),
        }
    }

    /// Schedules the queue pairs whose pacer permits more packets, and leaves their other timers.
    fn expire_pacers(&mut self, now: Instant) {
        let mut expired = self.schedule.take_expired(now);
        for (at, qpn) in expired.drain(..) {
            let Some(entry) = self.table.get_mut(qpn).filter(|e| e.timer_at == Some(at)) else { continue };
            entry.timer_at = None;
            if entry.qp.expire_pacer(now) {
                self.schedule.schedule_pending(entry);
            }
            self.schedule.arm(entry);
        }
        self.schedule.expired = expired;
    }

    /// Returns the time at which [`handle_timeouts`](Self::handle_timeouts) must next be called. That call
    /// may find that no timer has expired.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.schedule.next_deadline()
    }

    /// Completes the sends of unreliable services whose packets have all been passed to the link; from now on
    /// the application may reuse their memory. Clears the records of the acknowledgements among these
    /// packets.
    pub fn emitted(&mut self) {
        self.outputs.release_emitted();
        if let Some(last_acks) = &self.state.last_acks {
            self.state.acknowledged.drain(..).for_each(|qpn| last_acks.clear(qpn));
        }
    }

    /// Takes the oldest output, a completion or an event. After each call that may produce outputs, the
    /// driver calls this until it returns `None`.
    #[inline]
    pub fn poll_output(&mut self) -> Option<NicOutput> {
        self.outputs.poll()
    }

    /// Reports whether [`poll_output`](Self::poll_output) has something to return.
    #[inline]
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Records that a completion for a queue pair was lost because the completion queue is full. The queue
    /// pair enters ERR at the next [`transmit_within`](Self::transmit_within).
    pub fn on_cq_overflow(&mut self, qpn: Qpn) {
        if let Some(entry) = self.table.get_mut(qpn) {
            entry.must_enter_error = true;
            self.schedule.enqueue(entry);
        }
    }

    /// Returns the port's partition key table.
    pub fn pkeys(&self) -> &[PKey] {
        &self.pkeys
    }

    /// Returns the minimum length of the partition key table: one more than the highest index that a queue
    /// pair uses.
    pub fn pkeys_needed(&self) -> usize {
        let highest = |e: &Entry| {
            let (path, alternate) = e.qp.pkey_indices();
            usize::from(alternate.map_or(path, |a| a.max(path))) + 1
        };
        self.table.iter().map(highest).max().unwrap_or(1)
    }

    /// Replaces the partition key table, as a subnet manager does. Queue pairs use the new keys at their
    /// indices from then on.
    ///
    /// # Errors
    /// [`PKeyTableSize`] if an index of a queue pair would be out of range, or the table exceeds the
    /// personality's limit.
    pub fn set_pkeys(&mut self, pkeys: &[PKey]) -> Result<(), PKeyTableSize> {
        let needed = self.pkeys_needed();
        let max = usize::from(self.config.personality.limits.max_pkeys);
        if !(needed..=max).contains(&pkeys.len()) {
            return Err(PKeyTableSize { given: pkeys.len(), needed, max });
        }
        self.pkeys = pkeys.to_vec();
        for entry in self.table.iter_mut() {
            entry.qp.set_pkeys(|index| pkeys[usize::from(index)]);
        }
        self.announce(AsyncEvent::PKeyChange);
        Ok(())
    }

    /// Creates a shared receive queue. Returns `None` if the maximum number of shared receive queues is in
    /// use.
    pub fn create_srq(&mut self, pd: PdId, caps: RecvCaps) -> Option<SrqId> {
        self.srqs.insert(pd, None, caps, self.config.personality.limits.max_srq)
    }

    /// Creates a shared receive queue for the target queue pairs of an XRC domain, with receive completions
    /// going to `cq`. Returns `None` if the maximum number of shared receive queues is in use.
    pub fn create_xrc_srq(
        &mut self,
        pd: PdId,
        domain: XrcdId,
        cq: CqHandle,
        caps: RecvCaps,
    ) -> Option<SrqId> {
        self.srqs.insert(pd, Some((domain, cq)), caps, self.config.personality.limits.max_srq)
    }

    /// Destroys a shared receive queue, which no queue pair may still be using. Returns its completion queue
    /// if it is an XRC shared receive queue.
    pub fn destroy_srq(&mut self, id: SrqId) -> Option<CqHandle> {
        self.srqs.remove(id)
    }

    /// Returns the shared receive queue with the number `id`.
    pub fn srq(&self, id: SrqId) -> Option<&SharedReceives> {
        self.srqs.get(id)
    }

    /// Runs `f` on a shared receive queue, and adds the events that it raises to the outputs. Returns the
    /// result of `f`, or `None` if there is no such queue.
    pub fn with_srq<R>(
        &mut self,
        id: SrqId,
        f: impl FnOnce(&mut SharedReceives, &mut Vec<Output>) -> R,
    ) -> Option<R> {
        let result = f(self.srqs.get_mut(id)?, &mut self.state.out);
        for output in self.state.out.drain(..) {
            if let Output::Event(e) = output {
                self.outputs.raise(e);
            }
        }
        Some(result)
    }

    /// Returns the tuning parameters for modification, for tests that have to rule out timeouts.
    #[cfg(test)]
    pub(crate) fn tuning_mut(&mut self) -> &mut Tuning {
        &mut self.config.tuning
    }

    /// Reports whether the port is active: it is up, and the device has not failed.
    pub fn port_is_up(&self) -> bool {
        self.port_up && !self.failed
    }

    /// Sets the port up or down. Queue pairs keep their states, but lose their packets while the port is
    /// down.
    pub fn set_port_up(&mut self, up: bool) {
        if std::mem::replace(&mut self.port_up, up) != up && !self.failed {
            self.announce(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
    }

    /// Returns the speed that the port reports.
    pub fn port_speed(&self) -> PortSpeed {
        self.port_speed
    }

    /// Changes the speed that the port reports, which does not affect the rate at which packets are sent. The
    /// port goes down and up, if it is up. Returns whether the speed is another one.
    pub fn set_port_speed(&mut self, speed: PortSpeed) -> bool {
        let is_changed = std::mem::replace(&mut self.port_speed, speed) != speed;
        if is_changed && self.port_up {
            self.set_port_up(false);
            self.set_port_up(true);
        }
        is_changed
    }

    /// Replaces the GID at `index`, or removes it if `gid` is zero. Returns whether the table has changed, or
    /// `None` if it has no such entry.
    pub fn set_gid(&mut self, index: usize, gid: Gid) -> Option<bool> {
        let entry = self.config.port.gids.get_mut(index)?;
        let is_changed = std::mem::replace(entry, gid) != gid;
        if is_changed {
            self.announce(AsyncEvent::GidChange);
        }
        Some(is_changed)
    }

    /// Replaces the port's GIDs. A GID that remains keeps its index; queue pairs and address handles keep the
    /// source address that they were set up with.
    pub fn set_gids(&mut self, gids: &[Gid]) {
        if self.config.port.replace_gids(gids) {
            self.announce(AsyncEvent::GidChange);
        }
    }

    /// Reports whether the device has failed ([`fail`](Self::fail)), in which case work requests and queue
    /// pair modifications are rejected.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Marks the device as failed because its link is permanently gone: all queue pairs enter ERR, and a
    /// `DeviceFatal` event is raised. Must be called only once.
    pub fn fail(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) {
        let used = self.table.iter().filter(|e| e.qp.state() != QpState::Reset);
        let qpns: Vec<Qpn> = used.map(|e| e.qp.qpn()).collect();
        qpns.into_iter().for_each(|qpn| self.move_to_err(now, qpn, FailureCause::DeviceFatal, memory, tx));
        self.failed = true;
        self.announce(AsyncEvent::DeviceFatal);
    }

    /// Moves a queue pair to ERR for the given cause.
    fn move_to_err(&mut self, now: Instant, qpn: Qpn, cause: FailureCause, memory: &Table, tx: &mut TxQueue) {
        if let Some(entry) = self.table.get(qpn) {
            entry.qp.record_injected_failure(cause, now);
        }
        let to_err = QpAttr::new(QpState::Err);
        // Every state has this transition, so it is rejected only if the device has failed, whose queue pairs
        // in use are in ERR already.
        let _ = self.modify_qp(now, qpn, &to_err, memory, tx);
    }

    /// Iterates over the numbers of all existing queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.table.iter().map(|e| e.qp.qpn())
    }
}

fn check_values(attr: &QpAttr, limits: &Limits, pkeys: usize) -> Result<(), ModifyError> {
    let (max_pkey, max_rd) = (pkeys as u32 - 1, limits.max_qp_rd_atom);
    check_ranges([
        ("pkey_index", attr.pkey_index.map(u32::from), 0, max_pkey),
        ("alt_path.pkey_index", attr.alt_path.map(|a| a.pkey_index.into()), 0, max_pkey),
        ("max_rd_atomic", attr.max_rd_atomic.map(u32::from), 0, max_rd),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic.map(u32::from), 0, max_rd),
    ])
}
