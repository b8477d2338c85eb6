//! Fault injection: a link wrapper that drops, duplicates, replays, reorders, corrupts, marks and delays
//! packets by rule, or answers them in place of their destination.
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
use std::sync::Arc;

pub use counters::{FaultCount, FaultCounters, FaultCounts};
pub use event::{FaultEvent, Observer};
pub use file::{Rules, RulesError};
pub use seeds::FaultSeeds;

pub use crate::fault_rules::{
    Action, Alteration, AppliedRule, Direction, FailedPackets, HeaderField, Place, Rule, RuleError, When,
};

use super::packets::{as_received, packets_of};
use crate::burst::{RxBurst, TxQueue};
use crate::link::{HostMemory, Link, NicEvent, NicObserver, delegate_link_methods, own_capabilities};
use crate::transport::{Instant, QpObserver};
use crate::wire::IpIdent;
use pipeline::Pipeline;

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
}

impl<L: Link> Faults<L> {
    /// Wraps a link. `seed` seeds the random number generators of rules with a probability.
    ///
    /// If several rules apply to a packet, all their faults are applied; a dropped packet is only dropped.
    /// Alterations are made in the order of the rules, delays add up, and a packet to delay and to
    /// reorder is reordered after its delay.
    pub fn new(inner: L, rules: Vec<Rule>, seed: u64) -> Faults<L> {
        let counters = FaultCounters::new(&rules);
        let pipeline = |direction| Pipeline::new(&counters, direction, seed);
        Faults {
            queue: TxQueue::new(inner.info().burst),
            inner,
            tx: pipeline(Direction::Tx),
            rx: pipeline(Direction::Rx),
            observer: None,
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
        let Faults { inner, tx, rx, observer, queue: out } = self;
        out.clear();
        for burst in queue.bursts() {
            if tx.pass_unchanged(now, &as_received(&burst), observer, &mut |packets| push(out, packets)) {
                out.push_burst(&burst);
            }
        }
        rx.take_answers(now, tx);
        inner.transmit(now, out)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        self.release_tx(now)?;
        let Faults { inner, rx, observer, .. } = self;
        let mut released = rx.release(now, sink);
        released += inner.receive(now, &mut |burst| {
            if rx.pass_unchanged(now, &burst, observer, sink) {
                sink(burst);
            }
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
        for pipeline in [&mut self.tx, &mut self.rx] {
            match event {
                NicEvent::Opened => pipeline.open(now),
                NicEvent::Connected { local, remote, peer } => pipeline.on_connected(*local, *peer, *remote),
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

    fn qp_observer(&mut self) -> Option<Arc<dyn QpObserver>> {
        self.inner.nic_observer()?.qp_observer()
    }
}

/// Appends packets to a queue.
fn push(queue: &mut TxQueue, packets: RxBurst<'_>) {
    for packet in packets_of(&packets) {
        if let IpIdent::Exact { id, .. } = packet.ident {
            queue.push_raw(&packet.flow, id, packet.data);
        }
    }
}
