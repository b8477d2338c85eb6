//! One NIC: its queue pairs, completion queues, counters and limits, and the dispatch of packets to them.
//!
//! Still sans-I/O: [`Nic::handle_burst`] takes packets in, [`Nic::transmit`] fills a [`TxQueue`], and
//! [`Nic::next_deadline`] says when [`Nic::handle_timeouts`] wants to be called.
#![forbid(unsafe_code)]

mod arrival;
mod cq;
mod cq_ring;
mod events;
mod gsi;
mod inject;
mod multicast;
mod path;
mod peers;
mod personality;
mod schedule;
mod seat;
mod shard_id;
mod srq;
mod table;

use std::sync::Arc;

pub use cq::{CompletionQueue, CqListener, CqOverflow, Notify, Pushed, Stamped};
pub use events::{EventListener, EventReader, EventSubject, Events};
pub use multicast::MulticastError;
pub(crate) use multicast::MulticastTable;
pub use path::PortAddresses;
pub use personality::{Limits, Personality};
pub use seat::Seat;
pub use shard_id::ShardId;

use crate::memory::{HostSlice, PdId, Table};
use crate::transport::{
    AddressVector, AsyncEvent, Completion, Counters, CqId, Env, Instant, ModifyError, Output, Pending,
    PostBatchError, PostError, QpAttr, QpInit, QpState, QueuePair, RecvCaps, RecvWr, SendWr, SharedReceives,
    SrqId, Tuning, TxQueue, XrcdId,
};
use crate::wire::icrc::Verifier;
use crate::wire::{Gid, PKey, Qpn};
use peers::Peers;
use schedule::Schedule;
use srq::SrqTable;
use table::{Entry, QpTable};

/// What a NIC is made with.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Limits and habits.
    pub personality: Personality,
    /// Window and timer settings.
    pub tuning: Tuning,
    /// GIDs and UDP source port.
    pub port: PortAddresses,
    /// Seeds the queue pair numbers.
    pub seed: u64,
}

/// One NIC, without its link and its threads.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    shard: ShardId,
    table: QpTable,
    srqs: SrqTable,
    multicast: MulticastTable,
    schedule: Schedule,
    peers: Peers,
    state: Scratch,
    reports: Reports,
    verifier: Verifier,
    pkeys: Vec<PKey>,
    port_up: bool,
    /// The link is gone for good.
    failed: bool,
}

/// What a step of a queue pair borrows beside the queue pair.
#[derive(Debug, Default)]
struct Scratch {
    counters: Counters,
    out: Vec<Output>,
    slices: Vec<HostSlice>,
    bytes: Vec<u8>,
}

impl Scratch {
    fn env<'a>(
        &'a mut self,
        now: Instant,
        memory: &'a Table,
        srq: Option<&'a mut SharedReceives>,
        tx: &'a mut TxQueue,
        tuning: &'a Tuning,
    ) -> Env<'a> {
        Env {
            now,
            memory,
            srq,
            tx,
            out: &mut self.out,
            scratch: &mut self.slices,
            bytes: &mut self.bytes,
            counters: &mut self.counters,
            tuning,
            others_in_flight: 0,
        }
    }
}

/// No queue pair of that number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no QP {0}")]
pub struct UnknownQp(pub Qpn);

/// A partition key table that does not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given} partition keys: it must be {needed} (the highest index in use) to {max}")]
pub struct PKeyTableSize {
    /// Entries given.
    pub given: usize,
    /// Entries that queue pairs refer to.
    pub needed: usize,
    /// The personality's limit.
    pub max: usize,
}

/// The NIC has as many queue pairs as its personality allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all {0} QPs are in use")]
pub struct TooManyQps(pub u32);

impl Nic {
    /// A NIC without queue pairs.
    pub fn new(config: NicConfig) -> Nic {
        Nic::shard(config, ShardId::WHOLE)
    }

    /// One of several that make up one NIC. The limits are of each: whoever has them all is to see to their sum.
    pub fn shard(config: NicConfig, shard: ShardId) -> Nic {
        Nic {
            table: QpTable::new(shard, config.personality.limits.max_qp, config.seed),
            verifier: Verifier::new(config.personality.habits.flush_icrc_twice),
            config,
            shard,
            srqs: SrqTable::new(shard),
            multicast: MulticastTable::default(),
            schedule: Schedule::default(),
            peers: Peers::default(),
            state: Scratch::default(),
            reports: Reports::default(),
            pkeys: vec![PKey::DEFAULT],
            port_up: true,
            failed: false,
        }
    }

    /// Whether the ICRCs of the FLUSHes that it sends cover their headers twice.
    pub fn sends_flush_icrc_twice(&self) -> bool {
        self.config.personality.habits.flush_icrc_twice
    }

    /// From now on its asynchronous events are in one queue with another's; to be called before there are any.
    pub fn share_events(&mut self, with: &Nic) {
        self.reports.events = with.reports.events.clone();
    }

    /// An event of the whole NIC, which one shard tells of.
    fn announce(&mut self, event: AsyncEvent) {
        if self.shard.is_first() {
            self.reports.events.raise(event);
        }
    }

    /// Packets for other shards have come here, and were handed over.
    pub fn count_handed_over(&mut self, packets: u64) {
        self.state.counters.rx_handed_over += packets;
    }

    /// What it was made with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// How many queue pairs it can have at once: what its personality allows, as far as there are numbers.
    pub fn max_qp(&self) -> u32 {
        self.table.max()
    }

    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// [`TooManyQps`].
    pub fn create_qp(
        &mut self,
        init: &QpInit,
        send_cq: Arc<CompletionQueue>,
        recv_cq: Arc<CompletionQueue>,
    ) -> Result<Qpn, TooManyQps> {
        let limit = self.table.max();
        let make = |qpn| Entry::new(QueuePair::new(qpn, init), send_cq, recv_cq, init.srq);
        let qpn = self.table.insert(make).ok_or(TooManyQps(limit))?;
        self.schedule.reserve(self.table.slots());
        Ok(qpn)
    }

    /// Removes a queue pair; its outstanding work ends without completions, as in verbs, and its events go with
    /// it. Its queues, if it was there.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Option<(Arc<CompletionQueue>, Arc<CompletionQueue>)> {
        self.multicast.forget(qpn);
        self.reports.events.forget(EventSubject::Qp(qpn));
        let mut entry = self.table.remove(qpn)?;
        self.peers.remove(&mut entry, self.config.tuning.window);
        Some((entry.send_cq, entry.recv_cq))
    }

    /// Changes attributes and state of a queue pair.
    ///
    /// # Errors
    /// [`UnknownQp`] outside, [`ModifyError`] inside.
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
        self.change_qp(now, qpn, attr, memory, tx)
    }

    fn change_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> Result<Result<(), ModifyError>, UnknownQp> {
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        if let Err(e) = check_values(attr, &self.config.personality.limits, self.pkeys.len()) {
            return Ok(Err(e));
        }
        let srq = entry.srq.and_then(|id| self.srqs.get_mut(id));
        let mut env = self.state.env(now, memory, srq, tx, &self.config.tuning);
        let port = &self.config.port;
        let result = entry.qp.modify(attr, |av, src, dst| port.flow(av, src, dst), &mut env);
        entry.qp.set_pkeys(|index| self.pkeys[usize::from(index)]);
        self.reports.deliver(now, &mut self.state.out, entry, &self.srqs);
        self.peers.settle(entry, self.config.tuning.window);
        self.schedule.touch(entry);
        Ok(result)
    }

    /// The attributes of a queue pair.
    ///
    /// # Errors
    /// [`UnknownQp`].
    pub fn query_qp(&self, qpn: Qpn) -> Result<(QpAttr, &QueuePair), UnknownQp> {
        self.table.get(qpn).map(|e| (e.qp.query(), &e.qp)).ok_or(UnknownQp(qpn))
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        self.table.get(qpn).map(|e| e.qp.state())
    }

    /// Posts a send work request; it leaves with the next [`transmit`](Self::transmit).
    ///
    /// # Errors
    /// [`UnknownQp`] outside, [`PostError`] inside.
    pub fn post_send(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr: &SendWr<'_>,
    ) -> Result<Result<(), PostError>, UnknownQp> {
        self.post_send_list(now, qpn, std::slice::from_ref(wr)).map(|posted| posted.map_err(|e| e.error))
    }

    /// Posts send work requests one after the other.
    ///
    /// # Errors
    /// [`UnknownQp`] outside, [`PostBatchError`] of the first that is refused inside; those before it are posted.
    pub fn post_send_list(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wrs: &[SendWr<'_>],
    ) -> Result<Result<(), PostBatchError>, UnknownQp> {
        if self.failed {
            return Ok(Err(PostBatchError { index: 0, error: PostError::DeviceFatal }));
        }
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        let port = &self.config.port;
        let path = |av: &AddressVector, src, dst| port.flow(av, src, dst);
        let mut posts = wrs.iter().map(|wr| entry.qp.post_send(wr, path, &mut self.state.out)).enumerate();
        let result =
            posts.try_for_each(|(index, posted)| posted.map_err(|error| PostBatchError { index, error }));
        self.reports.deliver(now, &mut self.state.out, entry, &self.srqs);
        self.schedule.touch(entry);
        Ok(result)
    }

    /// Posts send work requests, all or none.
    ///
    /// # Errors
    /// [`UnknownQp`] outside, [`PostBatchError`] of the first that is refused inside.
    pub fn post_send_all<'w>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wrs: impl Iterator<Item = SendWr<'w>>,
    ) -> Result<Result<(), PostBatchError>, UnknownQp> {
        if self.failed {
            return Ok(Err(PostBatchError { index: 0, error: PostError::DeviceFatal }));
        }
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        let port = &self.config.port;
        let path = |av: &AddressVector, src, dst| port.flow(av, src, dst);
        let result = entry.qp.post_send_all(wrs, path, &mut self.state.out);
        self.reports.deliver(now, &mut self.state.out, entry, &self.srqs);
        self.schedule.touch(entry);
        Ok(result)
    }

    /// Whether what was posted to be sent by a queue pair may wait for company without loss.
    pub fn may_gather(&self, qpn: Qpn) -> bool {
        self.table.get(qpn).is_some_and(|entry| entry.qp.may_gather())
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`UnknownQp`] outside, [`PostError`] inside.
    pub fn post_recv(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr: &RecvWr<'_>,
    ) -> Result<Result<(), PostError>, UnknownQp> {
        if self.failed {
            return Ok(Err(PostError::DeviceFatal));
        }
        let entry = self.table.get_mut(qpn).ok_or(UnknownQp(qpn))?;
        let result = entry.qp.post_recv(wr, &mut self.state.out);
        self.reports.deliver(now, &mut self.state.out, entry, &self.srqs);
        Ok(result)
    }

    fn release_acknowledgements(&mut self) {
        while let Some(qpn) = self.schedule.next_held() {
            if let Some(entry) = self.table.get_mut(qpn) {
                entry.held = false;
                if entry.qp.pending() != Pending::Nothing {
                    self.schedule.enqueue(entry);
                }
            }
        }
    }

    /// Whether acknowledgements wait since [`transmit_urgent`](Self::transmit_urgent).
    pub fn has_held_acknowledgements(&self) -> bool {
        self.schedule.has_held()
    }

    /// Fills `tx` with what is due, QP after QP, as far as one turn goes. True if there is more.
    pub fn transmit(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) -> bool {
        self.release_acknowledgements();
        self.transmit_urgent(now, memory, tx)
    }

    /// [`transmit`](Self::transmit) without acknowledgements of queue pairs that have nothing else to send: they wait for a
    /// request to travel with, or for the next [`transmit`](Self::transmit).
    pub fn transmit_urgent(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) -> bool {
        let (packets, bytes) = (tx.packets(), tx.bytes());
        while !tx.is_full()
            && let Some((qpn, woken)) = self.next_turn()
        {
            let Some(entry) = self.table.get_mut(qpn) else { continue };
            match woken {
                true => entry.share.wake(),
                false => entry.queued = false,
            }
            let srq = entry.srq.and_then(|id| self.srqs.get_mut(id));
            let mut env = self.state.env(now, memory, srq, tx, &self.config.tuning);
            if std::mem::take(&mut entry.lost) {
                entry.qp.fail(&mut env);
            }
            env.others_in_flight = self.peers.others(&entry.share);
            let more = entry.qp.transmit(self.config.tuning.turn, &mut env);
            self.peers.settle_turn(entry, self.config.tuning.window);
            self.reports.deliver(now, &mut self.state.out, entry, &self.srqs);
            if more {
                self.schedule.enqueue(entry);
            }
            self.schedule.arm(entry);
        }
        let c = &mut self.state.counters;
        c.sent_pkts += (tx.packets() - packets) as u64;
        c.sent_bytes += (tx.bytes() - bytes) as u64;
        self.wants_to_transmit_urgently()
    }

    /// The queue pair whose turn it is, and whether that is because there is room for it again: those have waited longer.
    fn next_turn(&mut self) -> Option<(Qpn, bool)> {
        let woken = self.peers.next_woken().map(|qpn| (qpn, true));
        woken.or_else(|| self.schedule.next_ready().map(|qpn| (qpn, false)))
    }

    /// Acts on all timers that have expired at `now`.
    pub fn handle_timeouts(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) {
        while let Some((at, qpn)) = self.schedule.next_expired(now) {
            // An earlier one has taken this one's place: putting it back would keep both for ever.
            let Some(entry) = self.table.get_mut(qpn).filter(|e| e.timer_at == Some(at)) else { continue };
            entry.timer_at = None;
            if entry.qp.next_deadline().is_some_and(|at| at <= now) {
                let srq = entry.srq.and_then(|id| self.srqs.get_mut(id));
                let mut env = self.state.env(now, memory, srq, tx, &self.config.tuning);
                entry.qp.handle_timeout(&mut env);
                self.reports.deliver(now, &mut self.state.out, entry, &self.srqs);
                self.peers.settle(entry, self.config.tuning.window);
            }
            self.schedule.touch(entry);
            self.schedule.arm(entry);
        }
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) wants to be called. It may find that nothing has
    /// expired yet.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.schedule.next_deadline()
    }

    /// Whether [`transmit`](Self::transmit) has something to do.
    pub fn wants_to_transmit(&self) -> bool {
        self.wants_to_transmit_urgently() || self.schedule.has_held()
    }

    /// Whether [`transmit_urgent`](Self::transmit_urgent) has something to do.
    pub fn wants_to_transmit_urgently(&self) -> bool {
        self.schedule.has_ready() || self.peers.has_woken()
    }

    /// The link has taken all packets that were transmitted: what nobody will acknowledge is complete, and its
    /// memory is the application's again.
    pub fn emitted(&mut self, now: Instant) {
        if self.reports.emitted.is_empty() {
            return;
        }
        let mut emitted = std::mem::take(&mut self.reports.emitted);
        for (cq, completion) in emitted.drain(..) {
            if !self.reports.complete(now, &cq, completion)
                && let Some(entry) = self.table.get_mut(completion.qpn)
            {
                entry.lost = true;
                self.schedule.enqueue(entry);
            }
        }
        // Its room is used again.
        self.reports.emitted = emitted;
    }

    /// The partition keys, by index.
    pub fn pkeys(&self) -> &[PKey] {
        &self.pkeys
    }

    /// How long the partition key table has to be, for what queue pairs refer to.
    pub fn pkeys_needed(&self) -> usize {
        let highest = |e: &Entry| {
            let (path, alternate) = e.qp.pkey_indices();
            usize::from(alternate.map_or(path, |a| a.max(path))) + 1
        };
        self.table.iter().map(highest).max().unwrap_or(1)
    }

    /// Changes the partition key table, as a subnet manager does: queue pairs go on with what is at their index.
    ///
    /// # Errors
    /// [`PKeyTableSize`] if a queue pair's index would lie outside, or it is longer than the personality allows.
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

    /// Makes a shared receive queue. `None` if all of the device are in use.
    pub fn create_srq(&mut self, pd: PdId, caps: RecvCaps) -> Option<SrqId> {
        self.srqs.insert(pd, None, caps, self.config.personality.limits.max_srq)
    }

    /// Makes a shared receive queue for the targets of an XRC domain; `cq` is where its receives complete. `None` if
    /// all of the device are in use.
    pub fn create_xrc_srq(
        &mut self,
        pd: PdId,
        domain: XrcdId,
        cq: Arc<CompletionQueue>,
        caps: RecvCaps,
    ) -> Option<SrqId> {
        self.srqs.insert(pd, Some((domain, cq)), caps, self.config.personality.limits.max_srq)
    }

    /// Removes a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, id: SrqId) {
        self.reports.events.forget(EventSubject::Srq(id));
        self.srqs.remove(id);
    }

    /// A shared receive queue.
    pub fn srq(&self, id: SrqId) -> Option<&SharedReceives> {
        self.srqs.get(id)
    }

    /// Runs `f` with a shared receive queue; what it reports goes to the event queue.
    pub fn with_srq<R>(
        &mut self,
        id: SrqId,
        f: impl FnOnce(&mut SharedReceives, &mut Vec<Output>) -> R,
    ) -> Option<R> {
        let result = f(self.srqs.get_mut(id)?, &mut self.state.out);
        for output in self.state.out.drain(..) {
            if let Output::Event(e) = output {
                self.reports.events.raise(e);
            }
        }
        Some(result)
    }

    /// The oldest asynchronous event that the first reader, which may be the only one, has not taken.
    pub fn next_event(&mut self) -> Option<AsyncEvent> {
        self.reports.events.next(EventReader::FIRST)
    }

    /// Its asynchronous events.
    pub fn events(&self) -> &Events {
        &self.reports.events
    }

    /// For tests that no timer may disturb.
    #[cfg(test)]
    pub(crate) fn tuning_mut(&mut self) -> &mut Tuning {
        &mut self.config.tuning
    }

    /// Sets who is told when events of the first reader wait; once, at creation.
    pub fn set_event_listener(&mut self, listener: Arc<dyn EventListener>) {
        self.reports.events.set_listener(listener);
    }

    /// Forgets the events of a completion queue that is gone.
    pub fn forget_cq(&mut self, id: CqId) {
        self.reports.events.forget(EventSubject::Cq(id));
    }

    /// Whether the port carries packets.
    pub fn port_is_up(&self) -> bool {
        self.port_up && !self.failed
    }

    /// The port carries packets from now on, or none: queue pairs stay as they are, and lose what they send.
    pub fn set_port_up(&mut self, up: bool) {
        if std::mem::replace(&mut self.port_up, up) != up && !self.failed {
            self.announce(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
    }

    /// The port's addresses are these from now on: those that it had keep their index. Queue pairs and address
    /// handles keep the address that they were set up with.
    pub fn set_gids(&mut self, gids: &[Gid]) {
        if self.config.port.replace_gids(gids) {
            self.announce(AsyncEvent::GidChange);
        }
    }

    /// Whether [`fail`](Self::fail) was called: from then on posting and modifying are refused.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The link is gone for good: all queue pairs go to ERR, and whoever reads events is told. To be called once.
    pub fn fail(&mut self, now: Instant, memory: &Table, tx: &mut TxQueue) {
        self.failed = true;
        let used = self.table.iter().filter(|e| e.qp.state() != QpState::Reset);
        let qpns: Vec<Qpn> = used.map(|e| e.qp.qpn()).collect();
        qpns.into_iter().for_each(|qpn| self.move_to_err(now, qpn, memory, tx));
        self.announce(AsyncEvent::DeviceFatal);
    }

    fn move_to_err(&mut self, now: Instant, qpn: Qpn, memory: &Table, tx: &mut TxQueue) {
        let to_err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        // Every state has this transition, so nothing is refused.
        let _ = self.change_qp(now, qpn, &to_err, memory, tx);
    }

    /// Numbers of all queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.table.iter().map(|e| e.qp.qpn())
    }
}

/// What queue pairs reported, on its way to completion queues and whoever reads events.
#[derive(Debug, Default)]
struct Reports {
    events: Events,
    /// For when the link has the packets of this turn.
    emitted: Vec<(Arc<CompletionQueue>, Completion)>,
}

impl Reports {
    #[inline]
    fn deliver(&mut self, now: Instant, out: &mut Vec<Output>, entry: &mut Entry, srqs: &SrqTable) {
        if !out.is_empty() {
            self.deliver_all(now, out, entry, srqs);
        }
    }

    fn deliver_all(&mut self, now: Instant, out: &mut Vec<Output>, entry: &mut Entry, srqs: &SrqTable) {
        for output in out.drain(..) {
            let stored = match output {
                // Behind those that wait for the link: completions of a queue are in its order.
                Output::Sent(c) if self.emitted.iter().any(|(_, e)| e.qpn == c.qpn) => {
                    self.emitted.push((entry.send_cq.clone(), c));
                    true
                }
                Output::Sent(c) => self.complete(now, &entry.send_cq, c),
                Output::Received(c) => self.complete(now, &entry.recv_cq, c),
                // Gone with its queue: nobody waits for it.
                Output::ReceivedFrom(srq, c) => srqs.cq(srq).is_none_or(|cq| self.complete(now, cq, c)),
                Output::Emitted(c) => {
                    self.emitted.push((entry.send_cq.clone(), c));
                    true
                }
                Output::Event(e) => {
                    self.events.raise(e);
                    true
                }
            };
            entry.lost |= !stored;
        }
    }

    /// False if the queue was full.
    fn complete(&mut self, now: Instant, cq: &CompletionQueue, completion: Completion) -> bool {
        let pushed = cq.push(now, completion);
        if pushed == (Pushed::Lost { first: true }) {
            self.events.raise(AsyncEvent::CqError(cq.id()));
        }
        pushed == Pushed::Stored
    }
}

fn check_values(attr: &QpAttr, limits: &Limits, pkeys: usize) -> Result<(), ModifyError> {
    let max_rd = limits.max_qp_rd_atom;
    let values = [
        ("pkey_index", attr.pkey_index.map(u32::from), pkeys as u32 - 1),
        ("alt_path.pkey_index", attr.alt_path.map(|a| a.pkey_index.into()), pkeys as u32 - 1),
        ("max_rd_atomic", attr.max_rd_atomic.map(u32::from), max_rd),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic.map(u32::from), max_rd),
    ];
    for (name, value, max) in values {
        if let Some(value) = value.filter(|v| *v > max) {
            return Err(ModifyError::Value { name, value, max });
        }
    }
    Ok(())
}
