//! Fault injection: a link wrapper that drops, duplicates, replays, reorders, corrupts, marks and delays packets by
//! rule, or answers them in place of their destination.
//!
//! Bursts that no rule matches pass through unchanged.

mod answer;
mod applied;
mod counters;
mod event;
mod file;
mod packet;
mod pipeline;
mod seeds;
#[cfg(test)]
mod tests;

use std::io;

pub use counters::{FaultCount, FaultCounters, FaultCounts};
pub use event::{FaultEvent, Observer};
pub use file::{Rules, RulesError};
pub use seeds::FaultSeeds;

pub use crate::fault_rules::{
    Action, Alteration, AppliedRule, Direction, FailedPackets, HeaderField, Place, Rule, RuleError, When,
};

use super::packets::{copied, ident_of, packets_of};
use crate::burst::{RxBurst, TxQueue};
use crate::link::{HostMemory, Link, NicEvent, NicObserver, delegate_link_methods, own_capabilities};
use crate::transport::Instant;
use crate::wire::IpIdent;
use pipeline::{Pipeline, Sink};

/// A link wrapper that injects faults by rule.
///
/// [`Fabric::pair_builder`](crate::verbs::Fabric::pair_builder) is the short form for two NICs.
///
/// ```
/// use urxe::middleware::faults::{Direction, Faults, Rule};
/// use urxe::verbs::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::new();
/// let port = fabric.port(&fabric.auto_address())?;
/// let rules: Vec<Rule> = vec!["drop=3".parse()?, "rx:delay=every:10,by=2ms".parse()?];
/// let faults = Faults::new(port, rules, 1);
/// let counters = faults.fault_counters();
/// # drop(faults);
/// assert_eq!(counters.get(Direction::Tx).dropped, 0);
/// # Ok(())
/// # }
/// ```
pub struct Faults<L> {
    inner: L,
    tx: Pipeline,
    rx: Pipeline,
    observer: Option<Observer>,
    /// Scratch queue for the bursts to send, with the faults applied.
    queue: TxQueue,
    /// Scratch buffer for a burst to send.
    scratch: Vec<u8>,
}

impl<L: Link> Faults<L> {
    /// Wraps a link. `seed` seeds the random number generators of rules with a probability.
    ///
    /// If several rules apply to a packet, all their faults are applied; a dropped packet is only dropped. Alterations are
    /// made in the order of the rules, delays add up, and a packet to delay and to reorder is reordered after its delay.
    pub fn new(inner: L, rules: Vec<Rule>, seed: u64) -> Faults<L> {
        let counters = FaultCounters::new(&rules);
        let pipeline = |direction| Pipeline::new(&counters, direction, seed);
        Faults {
            queue: TxQueue::new(inner.info().burst),
            inner,
            tx: pipeline(Direction::Tx),
            rx: pipeline(Direction::Rx),
            observer: None,
            scratch: Vec::new(),
        }
    }

    /// Sets an observer, which is called for every injected fault.
    #[must_use]
    pub fn with_observer(mut self, observer: impl FnMut(&FaultEvent<'_>) + Send + 'static) -> Faults<L> {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Returns a handle to the counters, usable from any thread.
    pub fn fault_counters(&self) -> FaultCounters {
        self.tx.counters.clone()
    }

    /// Sends the held-back packets that are due.
    fn release_tx(&mut self, now: Instant) -> io::Result<()> {
        if self.tx.next_deadline().is_none_or(|at| at > now) {
            return Ok(());
        }
        self.queue.clear();
        let queue = &mut self.queue;
        self.tx.release(now, &mut |s| push(queue, s));
        self.inner.transmit(now, &self.queue)
    }
}

impl<L: Link> Link for Faults<L> {
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.release_tx(now)?;
        if self.tx.is_idle() {
            return self.inner.transmit(now, queue);
        }
        self.tx.verdicts.clear();
        for burst in queue.bursts() {
            for packet in packets_of(&copied(&burst, &mut self.scratch)) {
                let verdict = self.tx.evaluate(now, packet, &mut self.observer);
                self.tx.verdicts.push(verdict);
            }
        }
        self.rx.take_answers(now, &mut self.tx);
        if self.tx.passes_all() {
            return self.inner.transmit(now, queue);
        }
        self.queue.clear();
        let verdicts = std::mem::take(&mut self.tx.verdicts);
        let mut next = verdicts.iter();
        for burst in queue.bursts() {
            for (packet, verdict) in packets_of(&copied(&burst, &mut self.scratch)).zip(&mut next) {
                let out = &mut self.queue;
                self.tx.apply(now, packet, verdict, &mut |s| push(out, s));
            }
        }
        self.tx.verdicts = verdicts;
        self.inner.transmit(now, &self.queue)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        self.release_tx(now)?;
        let Faults { inner, rx, observer, .. } = self;
        let mut released = rx.release(now, sink);
        released += inner.receive(now, &mut |burst| {
            if rx.is_idle() {
                return sink(burst);
            }
            rx.verdicts.clear();
            for packet in packets_of(&burst) {
                let verdict = rx.evaluate(now, packet, observer);
                rx.verdicts.push(verdict);
            }
            receive_with_faults(now, &burst, rx, sink);
        })?;
        self.tx.take_answers(now, &mut self.rx);
        self.release_tx(now)?;
        Ok(released)
    }

    delegate_link_methods!(self => self.inner, HostMemory::with_icrcs);

    own_capabilities!(nic_observer: NicObserver);

    fn next_deadline(&self) -> Option<Instant> {
        let pipelines = [self.tx.next_deadline(), self.rx.next_deadline()];
        pipelines.into_iter().chain([self.inner.next_deadline()]).flatten().min()
    }
}

impl<L: Link> NicObserver for Faults<L> {
    fn on_nic_event(&mut self, now: Instant, event: &NicEvent) {
        match event {
            NicEvent::Opened => {
                self.tx.open(now);
                self.rx.open(now);
            }
            NicEvent::Connected { local, remote, peer } => {
                self.tx.on_connected(*local, *peer, *remote);
                self.rx.on_connected(*local, *peer, *remote);
            }
        }
        if let Some(inner) = self.inner.nic_observer() {
            inner.on_nic_event(now, event);
        }
    }

    fn applied_rules(&mut self, failed: &FailedPackets) -> Vec<AppliedRule> {
        let own = self.tx.applied_rules(failed).chain(self.rx.applied_rules(failed));
        let inner = self.inner.nic_observer().map(|inner| inner.applied_rules(failed));
        own.chain(inner.into_iter().flatten()).collect()
    }
}

/// Applies faults to a received burst and delivers it. Packets without faults are delivered in the longest
/// possible runs.
fn receive_with_faults(now: Instant, burst: &RxBurst<'_>, pipeline: &mut Pipeline, sink: &mut Sink<'_>) {
    if pipeline.passes_all() {
        return sink(*burst);
    }
    let verdicts = std::mem::take(&mut pipeline.verdicts);
    let mut first = 0;
    let forward = |from: usize, to: usize, sink: &mut Sink<'_>| {
        if from < to {
            let end = (to * burst.segment).min(burst.data.len());
            let data = &burst.data[from * burst.segment..end];
            let ident = ident_of(burst.ident, from as u16);
            sink(RxBurst::new(burst.flow, ident, burst.segment, data));
        }
    };
    for (i, (packet, verdict)) in packets_of(burst).zip(&verdicts).enumerate() {
        if pipeline.passes(verdict) {
            continue;
        }
        forward(first, i, sink);
        first = i + 1;
        pipeline.apply(now, packet, verdict, sink);
    }
    forward(first, verdicts.len(), sink);
    pipeline.verdicts = verdicts;
}

/// Appends one packet to a queue.
fn push(queue: &mut TxQueue, packet: RxBurst<'_>) {
    if let IpIdent::Exact { id, .. } = packet.ident {
        queue.push_raw(&packet.flow, id, packet.data);
    }
}
