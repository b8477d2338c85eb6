//! The rules for one direction, applied packet by packet.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::counters::FaultCounters;
use super::event::{FaultEvent, Observer};
use super::filter::Seen;
use super::rule::{Action, Direction, Rule, When};
use crate::link::rng::SimRng;
use crate::transport::Instant;
use crate::wire::{BTH_LEN, Flow, ICRC_LEN, IpIdent};

/// Maximum time for which a packet to reorder is held back, waiting for the next packet. Without this limit,
/// the last packet before a pause would be lost rather than reordered.
pub(super) const REORDER_TIMEOUT: Duration = Duration::from_millis(5);

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
    fn applies(&mut self, packet: &Seen<'_>) -> bool {
        if !self.rule.matches_filter(packet) {
            return false;
        }
        self.count += 1;
        match self.rule.when {
            When::Nth(n) => self.count == n,
            When::Every(n) => n > 0 && self.count.is_multiple_of(n),
            When::Probability(p) => self.rng.bernoulli(p),
            When::Range { first, last } => self.count >= first && last.is_none_or(|last| self.count <= last),
        }
    }
}

/// The faults that apply to one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Verdict {
    drop: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: bool,
    delay: Option<Duration>,
}

/// A single packet of a burst.
#[derive(Clone, Copy)]
pub(super) struct Single<'a> {
    pub flow: Flow,
    /// Always exact, never unknown.
    pub ident: IpIdent,
    pub data: &'a [u8],
    /// Offset of the byte to corrupt, if any.
    pub flip: Option<usize>,
}

/// Copy of a packet being held back.
pub(super) struct DelayedPacket {
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
pub(super) struct Pipeline {
    rules: Vec<ActiveRule>,
    /// Time at which the link was opened, or first used if the NIC has not reported that.
    opened: Option<Instant>,
    pub verdicts: Vec<Verdict>,
    /// Packet to reorder, held back until the next packet arrives, or at the latest until the given instant.
    pub reorder_slot: Option<(Instant, DelayedPacket)>,
    /// Delayed packets by due time and order of arrival.
    delayed: BTreeMap<(Instant, u64), DelayedPacket>,
    delays: u64,
}

impl Pipeline {
    /// Creates the pipeline for the rules of one direction. A rule's random numbers depend on `seed` and its
    /// position among all rules.
    pub fn new(rules: &[Rule], direction: Direction, seed: u64) -> Pipeline {
        let active_rule = |(index, rule): (usize, &Rule)| ActiveRule {
            rule: rule.clone(),
            index,
            count: 0,
            rng: SimRng::new(seed, index as u64),
        };
        let of_direction = rules.iter().enumerate().filter(|(_, rule)| rule.direction == direction);
        Pipeline {
            rules: of_direction.map(active_rule).collect(),
            opened: None,
            verdicts: Vec::new(),
            reorder_slot: None,
            delayed: BTreeMap::new(),
            delays: 0,
        }
    }

    /// Starts the clock of the rules, if it is not running.
    pub fn open(&mut self, now: Instant) -> Instant {
        *self.opened.get_or_insert(now)
    }

    pub fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.reorder_slot.is_none()
    }

    /// Determines the faults that apply to a packet, updates the counters, and calls the observer.
    pub fn evaluate_rules(
        &mut self,
        now: Instant,
        (flow, ident): (Flow, IpIdent),
        packet: &[u8],
        counters: &FaultCounters,
        observer: &mut Option<Observer>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let seen = Seen { elapsed: now.since(self.open(now)), flow: &flow, bytes: packet };
        for active_rule in &mut self.rules {
            let before = active_rule.count;
            let applies = active_rule.applies(&seen);
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
    pub fn apply(
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
    pub fn release(&mut self, now: Instant, emit: &mut dyn FnMut(Single<'_>)) -> usize {
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

    pub fn next_deadline(&self) -> Option<Instant> {
        let reorder_slot = self.reorder_slot.as_ref().map(|(until, _)| *until);
        reorder_slot.into_iter().chain(self.delayed.first_key_value().map(|((at, _), _)| *at)).min()
    }
}

/// Returns the offset of the byte to corrupt, which lies after the BTH, because the ICRC does not cover all
/// of the BTH.
fn corrupt_offset(len: usize) -> usize {
    (BTH_LEN + len.saturating_sub(BTH_LEN + ICRC_LEN) / 2).min(len.saturating_sub(1))
}
