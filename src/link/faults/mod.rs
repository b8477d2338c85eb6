//! Fault injection: a link wrapper that drops, duplicates, reorders, corrupts and delays packets by rule.
//!
//! Bursts that no rule matches pass through unchanged.
#![forbid(unsafe_code)]

mod rule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

pub use rule::{Action, Direction, Rule, RuleError, When};

use super::rng::SimRng;
use super::{Link, LinkInfo, RxBurst};
use crate::transport::{Instant, TxQueue};
use crate::wire::{BTH_LEN, Flow, ICRC_LEN, IpIdent};

/// Maximum time for which a packet to reorder is held back, waiting for the next packet. Without this limit,
/// the last packet before a pause would be lost rather than reordered.
const REORDER_TIMEOUT: Duration = Duration::from_millis(5);

/// An injected fault.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FaultEvent<'a> {
    /// Time of the fault.
    pub at: Instant,
    /// The rule that was applied.
    pub rule: &'a Rule,
    /// Number of packets that have matched the rule's filter, including this one.
    pub count: u64,
    /// The packet's addresses, source port and traffic class.
    pub flow: Flow,
    /// The packet's IPv4 identification, as far as it is known.
    pub ident: IpIdent,
    /// The packet from BTH to ICRC, before the fault was applied.
    pub packet: Bytes,
}

/// Callback for every injected fault.
pub type Observer = Box<dyn FnMut(&FaultEvent<'_>) + Send>;

/// Number of faults injected in one direction, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Packets dropped.
    pub dropped: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets delivered after the packet that followed them.
    pub reordered: u64,
    /// Packets corrupted.
    pub corrupted: u64,
    /// Packets delayed.
    pub delayed: u64,
}

/// A rule's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RuleCount {
    /// The rule in textual form.
    pub rule: String,
    /// Packets that matched the rule's filter.
    pub matched: u64,
    /// Packets that the fault was applied to.
    pub struck: u64,
}

impl RuleCount {
    /// Returns a warning if no packet has matched the rule.
    pub fn warning(&self) -> Option<String> {
        let rule = &self.rule;
        (self.matched == 0)
            .then(|| format!("warning: fault rule '{rule}' matched no packet and had no effect"))
    }

    /// Returns each rule's counters, summed over several links with the same rules.
    pub fn sum<'a>(links: impl IntoIterator<Item = &'a FaultCounters>) -> Vec<RuleCount> {
        let mut sum: Vec<RuleCount> = Vec::new();
        for link in links {
            for (i, count) in link.rules().enumerate() {
                match sum.get_mut(i) {
                    Some(to) => {
                        (to.matched, to.struck) = (to.matched + count.matched, to.struck + count.struck)
                    }
                    None => sum.push(count),
                }
            }
        }
        sum
    }
}

impl fmt::Display for RuleCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleCount { rule, matched, struck } = self;
        write!(f, "fault {rule}: matched {matched} packets, affected {struck}")
    }
}

/// Handle to the counters of a [`Faults`] link, usable from any thread.
#[derive(Clone, Debug)]
pub struct FaultCounters(Arc<[RuleCounter]>);

#[derive(Debug)]
struct RuleCounter {
    rule: Rule,
    matched: AtomicU64,
    struck: AtomicU64,
}

impl FaultCounters {
    fn new(rules: &[Rule]) -> FaultCounters {
        let counter = |rule: &Rule| RuleCounter { rule: rule.clone(), matched: 0.into(), struck: 0.into() };
        FaultCounters(rules.iter().map(counter).collect())
    }

    /// Returns the counters of each rule, in the order given to [`Faults::new`].
    pub fn rules(&self) -> impl Iterator<Item = RuleCount> {
        self.0.iter().map(|RuleCounter { rule, matched, struck }| RuleCount {
            rule: rule.to_string(),
            matched: matched.load(Ordering::Relaxed),
            struck: struck.load(Ordering::Relaxed),
        })
    }

    /// Returns the number of faults injected in one direction, summed over all rules for it.
    pub fn get(&self, direction: Direction) -> FaultCounts {
        let mut counts = FaultCounts::default();
        for RuleCounter { rule, struck, .. } in self.0.iter().filter(|c| c.rule.direction == direction) {
            let count = match rule.action {
                Action::Drop => &mut counts.dropped,
                Action::Duplicate => &mut counts.duplicated,
                Action::Reorder => &mut counts.reordered,
                Action::Corrupt => &mut counts.corrupted,
                Action::Delay(_) => &mut counts.delayed,
            };
            *count += struck.load(Ordering::Relaxed);
        }
        counts
    }
}

/// A rule with the state that determines which packets it applies to.
struct ActiveRule {
    rule: Rule,
    /// Index among all rules.
    index: usize,
    count: u64,
    rng: SimRng,
}

impl ActiveRule {
    /// Counts the packet if it matches the rule's filter, and reports whether the rule applies to it.
    fn applies(&mut self, packet: &[u8]) -> bool {
        if !self.rule.matches_filter(packet) {
            return false;
        }
        self.count += 1;
        match self.rule.when {
            When::Nth(n) => self.count == n,
            When::Every(n) => n > 0 && self.count.is_multiple_of(n),
            When::Probability(p) => self.rng.bernoulli(p),
        }
    }
}

/// The faults that apply to one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Verdict {
    drop: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: bool,
    delay: Option<Duration>,
}

/// A single packet of a burst.
#[derive(Clone, Copy)]
struct Single<'a> {
    flow: Flow,
    /// Always exact, never unknown.
    ident: IpIdent,
    data: &'a [u8],
    /// Offset of the byte to corrupt, if any.
    flip: Option<usize>,
}

/// Copy of a packet being held back.
struct DelayedPacket {
    flow: Flow,
    ident: IpIdent,
    data: Vec<u8>,
    flip: Option<usize>,
}

impl DelayedPacket {
    fn new(s: &Single<'_>) -> DelayedPacket {
        DelayedPacket { flow: s.flow, ident: s.ident, data: s.data.to_vec(), flip: s.flip }
    }

    fn single(&self) -> Single<'_> {
        Single { flow: self.flow, ident: self.ident, data: &self.data, flip: self.flip }
    }
}

/// The rules for one direction, and the packets being held back.
struct Pipeline {
    rules: Vec<ActiveRule>,
    verdicts: Vec<Verdict>,
    /// Packet to reorder, held back until the next packet arrives, or at the latest until the given instant.
    reorder_slot: Option<(Instant, DelayedPacket)>,
    /// Delayed packets by due time and order of arrival.
    delayed: BTreeMap<(Instant, u64), DelayedPacket>,
    delays: u64,
}

impl Pipeline {
    fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.reorder_slot.is_none()
    }

    /// Determines the faults that apply to a packet, updates the counters, and calls the observer.
    fn evaluate_rules(
        &mut self,
        now: Instant,
        (flow, ident): (Flow, IpIdent),
        packet: &[u8],
        counters: &FaultCounters,
        observer: &mut Option<Observer>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        for active_rule in &mut self.rules {
            let before = active_rule.count;
            let applies = active_rule.applies(packet);
            let counter = &counters.0[active_rule.index];
            counter.matched.fetch_add(active_rule.count - before, Ordering::Relaxed);
            if !applies {
                continue;
            }
            counter.struck.fetch_add(1, Ordering::Relaxed);
            let rule = &active_rule.rule;
            match rule.action {
                Action::Drop => verdict.drop = true,
                Action::Duplicate => verdict.duplicate = true,
                Action::Reorder => verdict.reorder = true,
                Action::Corrupt => verdict.corrupt = true,
                Action::Delay(by) => verdict.delay = Some(by),
            }
            if let Some(observer) = observer {
                let (count, packet) = (active_rule.count, Bytes::copy_from_slice(packet));
                observer(&FaultEvent { at: now, rule, count, flow, ident, packet });
            }
        }
        verdict
    }

    /// Applies a verdict to a packet: drops it, holds it back, or passes it to `emit`, followed by the packet
    /// held back for reordering, if any.
    fn apply(
        &mut self,
        now: Instant,
        packet: Single<'_>,
        verdict: Verdict,
        emit: &mut dyn FnMut(Single<'_>),
    ) {
        if verdict.drop {
            return;
        }
        let flip = verdict.corrupt.then(|| corrupt_offset(packet.data.len()));
        let packet = Single { flip: flip.or(packet.flip), ..packet };
        if verdict.duplicate {
            // One of the two copies continues at once, whatever happens to the other.
            emit(packet);
        }
        if let Some(by) = verdict.delay {
            self.delays += 1;
            self.delayed.insert((now + by, self.delays), DelayedPacket::new(&packet));
            return;
        }
        if verdict.reorder && self.reorder_slot.is_none() {
            self.reorder_slot = Some((now + REORDER_TIMEOUT, DelayedPacket::new(&packet)));
            return;
        }
        emit(packet);
        if let Some((_, delayed_packet)) = self.reorder_slot.take() {
            emit(delayed_packet.single());
        }
    }

    /// Emits the held-back packets that are due, and returns their number.
    fn release(&mut self, now: Instant, emit: &mut dyn FnMut(Single<'_>)) -> usize {
        let mut released = 0;
        if let Some((_, delayed_packet)) = self.reorder_slot.take_if(|(until, _)| *until <= now) {
            emit(delayed_packet.single());
            released += 1;
        }
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            emit(first.remove().single());
            released += 1;
        }
        released
    }

    fn next_deadline(&self) -> Option<Instant> {
        let reorder_slot = self.reorder_slot.as_ref().map(|(until, _)| *until);
        reorder_slot.into_iter().chain(self.delayed.first_key_value().map(|((at, _), _)| *at)).min()
    }
}

/// Returns the offset of the byte to corrupt, which lies after the BTH, because the ICRC does not cover all
/// of the BTH.
fn corrupt_offset(len: usize) -> usize {
    (BTH_LEN + len.saturating_sub(BTH_LEN + ICRC_LEN) / 2).min(len.saturating_sub(1))
}

/// A link wrapper that injects faults by rule.
///
/// [`Fabric::pair_builder`](crate::verbs::Fabric::pair_builder) is the short form for two NICs.
///
/// ```
/// use urxe::link::faults::{Direction, Faults, Rule};
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
    counters: FaultCounters,
    observer: Option<Observer>,
    /// Scratch queue for the bursts to send, with the faults applied.
    queue: TxQueue,
    /// Scratch buffer for a burst to send, or for a received packet to corrupt.
    scratch: Vec<u8>,
}

impl<L: Link> Faults<L> {
    /// Wraps a link. `seed` seeds the random number generators of rules with a probability.
    ///
    /// If several rules apply to a packet, all their faults are applied; a dropped packet is only dropped.
    pub fn new(inner: L, rules: Vec<Rule>, seed: u64) -> Faults<L> {
        let counters = FaultCounters::new(&rules);
        let active_rule =
            |(i, rule)| ActiveRule { rule, index: i, count: 0, rng: SimRng::new(seed, i as u64) };
        let (tx, rx) =
            rules.into_iter().enumerate().map(active_rule).partition(|c| c.rule.direction == Direction::Tx);
        let pipeline = |rules| Pipeline {
            rules,
            verdicts: Vec::new(),
            reorder_slot: None,
            delayed: BTreeMap::new(),
            delays: 0,
        };
        Faults {
            queue: TxQueue::new(inner.info().burst),
            inner,
            tx: pipeline(tx),
            rx: pipeline(rx),
            counters,
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
        self.counters.clone()
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
    fn info(&self) -> &LinkInfo {
        self.inner.info()
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.release_tx(now)?;
        if self.tx.is_idle() {
            return self.inner.transmit(now, queue);
        }
        self.tx.verdicts.clear();
        for burst in queue.bursts() {
            self.scratch.clear();
            burst.copy_to(&mut self.scratch);
            for (i, packet) in self.scratch.chunks(burst.segment.max(1)).enumerate() {
                let flow_and_ident = (burst.flow, ident_of(IpIdent::SENT, i as u16));
                let verdict =
                    self.tx.evaluate_rules(now, flow_and_ident, packet, &self.counters, &mut self.observer);
                self.tx.verdicts.push(verdict);
            }
        }
        let no_faults = self.tx.verdicts.iter().all(|v| *v == Verdict::default());
        if no_faults && self.tx.reorder_slot.is_none() {
            return self.inner.transmit(now, queue);
        }
        self.queue.clear();
        let verdicts = std::mem::take(&mut self.tx.verdicts);
        let mut next = verdicts.iter().copied();
        for burst in queue.bursts() {
            self.scratch.clear();
            burst.copy_to(&mut self.scratch);
            for (i, data) in self.scratch.chunks(burst.segment.max(1)).enumerate() {
                let ident = ident_of(IpIdent::SENT, i as u16);
                let packet = Single { flow: burst.flow, ident, data, flip: None };
                let out = &mut self.queue;
                self.tx.apply(now, packet, next.next().unwrap_or_default(), &mut |s| {
                    push(out, s);
                });
            }
        }
        self.tx.verdicts = verdicts;
        self.inner.transmit(now, &self.queue)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        self.release_tx(now)?;
        let Faults { inner, rx, counters, observer, scratch, .. } = self;
        let mut released = rx.release(now, &mut |s| deliver(s, scratch, sink));
        released += inner.receive(now, &mut |burst| {
            if rx.is_idle() {
                return sink(burst);
            }
            rx.verdicts.clear();
            for (i, packet) in burst.packets() {
                let flow_and_ident = (burst.flow, ident_of(burst.ident, i));
                let verdict = rx.evaluate_rules(now, flow_and_ident, packet, counters, observer);
                rx.verdicts.push(verdict);
            }
            receive_with_faults(now, &burst, rx, scratch, sink);
        })?;
        Ok(released)
    }

    delegate_link_methods!(self => self.inner);

    fn next_deadline(&self) -> Option<Instant> {
        let pipelines = [self.tx.next_deadline(), self.rx.next_deadline()];
        pipelines.into_iter().chain([self.inner.next_deadline()]).flatten().min()
    }
}

/// Returns the IPv4 identification of packet `i` in a burst.
fn ident_of(burst: IpIdent, i: u16) -> IpIdent {
    match burst {
        IpIdent::Exact { id, flags } => IpIdent::Exact { id: id.wrapping_add(i), flags },
        // The ICRC check assumes the same of an identification that is not visible.
        IpIdent::Unknown => IpIdent::Exact { id: i, flags: IpIdent::DONT_FRAGMENT },
    }
}

/// Applies faults to a received burst and delivers it. Packets without faults are delivered in the longest
/// possible runs.
fn receive_with_faults(
    now: Instant,
    burst: &RxBurst<'_>,
    pipeline: &mut Pipeline,
    scratch: &mut Vec<u8>,
    sink: &mut dyn FnMut(RxBurst<'_>),
) {
    let verdicts = std::mem::take(&mut pipeline.verdicts);
    let whole = verdicts.iter().all(|v| *v == Verdict::default()) && pipeline.reorder_slot.is_none();
    if whole {
        sink(*burst);
        pipeline.verdicts = verdicts;
        return;
    }
    let mut first = 0;
    let forward = |from: usize, to: usize, sink: &mut dyn FnMut(RxBurst<'_>)| {
        if from < to {
            let end = (to * burst.segment).min(burst.data.len());
            let data = &burst.data[from * burst.segment..end];
            let ident = ident_of(burst.ident, from as u16);
            sink(RxBurst { flow: burst.flow, ident, segment: burst.segment, data });
        }
    };
    for ((i, data), verdict) in burst.packets().zip(&verdicts) {
        if *verdict == Verdict::default() && pipeline.reorder_slot.is_none() {
            continue;
        }
        forward(first, i as usize, sink);
        first = i as usize + 1;
        let packet = Single { flow: burst.flow, ident: ident_of(burst.ident, i), data, flip: None };
        pipeline.apply(now, packet, *verdict, &mut |s| deliver(s, scratch, sink));
    }
    forward(first, verdicts.len(), sink);
    pipeline.verdicts = verdicts;
}

/// Appends one packet to a queue.
fn push(queue: &mut TxQueue, s: Single<'_>) {
    if let IpIdent::Exact { id, .. } = s.ident {
        queue.push_raw(&s.flow, id, s.data, s.flip);
    }
}

/// Delivers one packet to the NIC, corrupting it if `flip` is set.
fn deliver(s: Single<'_>, scratch: &mut Vec<u8>, sink: &mut dyn FnMut(RxBurst<'_>)) {
    let mut data = s.data;
    if let Some(at) = s.flip {
        scratch.clear();
        scratch.extend_from_slice(data);
        if let Some(byte) = scratch.get_mut(at) {
            *byte ^= 0x20;
        }
        data = scratch;
    }
    sink(RxBurst { flow: s.flow, ident: s.ident, segment: data.len(), data });
}
