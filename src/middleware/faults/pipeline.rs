//! The rules for one direction, applied packet by packet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::answer::{self, Responders};
use super::applied::Record;
use super::counters::FaultCounters;
use super::event::{FaultEvent, Observer};
use super::packet::{HeldPacket, exact_ident};
use crate::burst::RxBurst;
use crate::fault_rules::{
    Action, Alteration, AppliedRule, Direction, FailedPackets, Rule, Seen, is_acknowledged_request,
};
use crate::middleware::packets::{ident_of, packets_of};
use crate::sys::rng::SimRng;
use crate::transport::Instant;
use crate::wire::{Ecn, Packet, Qpn};

/// Maximum time for which a packet to reorder is held back, waiting for the next packet. Without this limit,
/// the last packet before a pause would be lost rather than reordered.
pub(super) const REORDER_TIMEOUT: Duration = Duration::from_millis(5);

/// Receiver of packets.
type Sink<'a> = dyn FnMut(RxBurst<'_>) + 'a;

/// A rule with the state that determines which packets it applies to.
struct ActiveRule {
    rule: Rule,
    /// Index among all rules.
    index: usize,
    rng: SimRng,
    record: Record,
}

impl ActiveRule {
    /// Counts the packet if it matches the rule's filter, and reports whether the rule applies to it.
    fn applies(&mut self, packet: &Seen<'_>, matched: &AtomicU64) -> bool {
        if !self.rule.matches_filter(packet) {
            return false;
        }
        let number = matched.fetch_add(1, Ordering::Relaxed) + 1;
        self.rule.when.selects(number, |p| self.rng.bernoulli(p))
    }
}

/// The faults that apply to one packet. Without faults it has no allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Verdict {
    drop: bool,
    /// Number of additional copies.
    copies: u32,
    reorder: bool,
    /// In the order of the rules.
    alterations: Vec<Alteration>,
    mark: bool,
    /// Sum of all delays.
    delay: Option<Duration>,
    /// Times until the packet passes again.
    replays: Vec<Duration>,
}

/// The rules for one direction, and the packets being held back.
#[derive(Default)]
pub(super) struct Pipeline {
    rules: Vec<ActiveRule>,
    /// Counters of the rules of both directions.
    pub counters: FaultCounters,
    /// Time at which the link was opened, or first used if the NIC has not reported that.
    opened: Option<Instant>,
    /// Packet to reorder, held back until the next packet arrives, or at the latest until the given instant.
    reorder_slot: Option<(Instant, HeldPacket)>,
    /// Delayed packets by due time and order of arrival, and whether they are to be reordered then.
    delayed: BTreeMap<(Instant, u64), (HeldPacket, bool)>,
    delays: u64,
    /// Where requests go, if a rule answers some.
    responders: Option<Responders>,
    /// Answers to packets of this direction, which belong into the other direction.
    answers: Vec<HeldPacket>,
    /// Scratch buffer for a packet with alterations.
    altered: Vec<u8>,
}

impl Pipeline {
    /// Creates the pipeline for those rules in `counters` that apply to one direction. The random numbers of
    /// a rule depend on `seed` and on its position among all rules.
    pub fn new(counters: &FaultCounters, direction: Direction, seed: u64) -> Pipeline {
        let active_rule = |(index, rule): (usize, &Rule)| ActiveRule {
            rule: rule.clone(),
            index,
            rng: SimRng::new(seed, index as u64),
            record: Record::default(),
        };
        let rules = counters.0.iter().map(|counter| &counter.rule).enumerate();
        let rules: Vec<ActiveRule> =
            rules.filter(|(_, rule)| rule.direction == direction).map(active_rule).collect();
        let sends_naks = rules.iter().any(|active| active.rule.action.nak_syndrome().is_some());
        let responders = sends_naks.then(|| Responders::new(direction));
        Pipeline { rules, counters: counters.clone(), responders, ..Pipeline::default() }
    }

    /// Starts the clock of the rules, if it is not running.
    pub fn open(&mut self, now: Instant) {
        self.opened.get_or_insert(now);
    }

    /// Notes a new connection of a local queue pair.
    pub fn on_connected(&mut self, local: Qpn, address: IpAddr, remote: Qpn) {
        if let Some(responders) = &mut self.responders {
            responders.on_connected(local, address, remote);
        }
        for ActiveRule { rule, record, .. } in &mut self.rules {
            record.forget(address, if rule.direction == Direction::Tx { remote } else { local });
        }
    }

    /// Returns the rules that were applied to packets that may explain a failure.
    pub fn applied_rules(&self, failed: &FailedPackets) -> impl Iterator<Item = AppliedRule> {
        let find = |ActiveRule { rule, record, .. }: &ActiveRule| {
            record.find(rule, rule.direction == Direction::Tx, failed)
        };
        self.rules.iter().filter_map(find)
    }

    pub fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.reorder_slot.is_none()
    }

    /// Applies the rules to a burst. Returns true if all its packets pass unchanged; the caller then forwards
    /// the burst. Otherwise passes the resulting packets to `emit`, those without faults in the longest
    /// possible runs.
    pub fn pass_unchanged(
        &mut self,
        now: Instant,
        burst: &RxBurst<'_>,
        observer: &mut Option<Observer>,
        emit: &mut Sink<'_>,
    ) -> bool {
        if self.is_idle() {
            return true;
        }
        let pass_run = |from: usize, to: usize, emit: &mut Sink<'_>| {
            if from < to {
                let end = (to * burst.segment).min(burst.data.len());
                let data = &burst.data[from * burst.segment..end];
                emit(RxBurst::new(burst.flow, ident_of(burst.ident, from as u16), burst.segment, data));
            }
        };
        let (mut first, mut next) = (0, 0);
        for packet in packets_of(burst) {
            let verdict = self.evaluate(now, packet, observer);
            next += 1;
            if self.reorder_slot.is_some() || verdict != Verdict::default() {
                pass_run(first, next - 1, emit);
                first = next;
                self.apply(now, packet, &verdict, emit);
            }
        }
        if first > 0 {
            pass_run(first, next, emit);
        }
        first == 0
    }

    /// Determines the faults that apply to a packet, updates the counters, and calls the observer.
    fn evaluate(&mut self, now: Instant, packet: RxBurst<'_>, observer: &mut Option<Observer>) -> Verdict {
        let RxBurst { flow, ident, data, .. } = packet;
        let mut verdict = Verdict::default();
        let mut request = self.responders.as_mut().and_then(|responders| {
            let request = Packet::parse(data).ok().filter(is_acknowledged_request)?;
            Some((responders, request))
        });
        if let Some((responders, request)) = &mut request
            && responders.discards(&flow, request)
        {
            return Verdict { drop: true, ..verdict };
        }
        let elapsed = now.since(*self.opened.get_or_insert(now));
        let seen = Seen { elapsed, flow: &flow, bytes: data };
        for active_rule in &mut self.rules {
            let peer = if active_rule.rule.direction == Direction::Tx { flow.dst } else { flow.src };
            active_rule.record.on_packet(peer, data);
            let counter = &self.counters.0[active_rule.index];
            let mut applies = active_rule.applies(&seen, counter.tally.matched());
            let rule = &active_rule.rule;
            if applies && rule.action.is_answer() {
                let answer = answer_to(rule.action, &seen, request.as_mut());
                applies = answer.is_some();
                self.answers.extend(answer);
            }
            if !applies {
                continue;
            }
            counter.tally.struck().fetch_add(1, Ordering::Relaxed);
            if rule.action != Action::Mark {
                active_rule.record.add(now, peer, data);
            }
            match rule.action {
                Action::Drop | Action::Nak(_) | Action::RnrNak(_) | Action::Reject(_) => verdict.drop = true,
                Action::Duplicate => verdict.copies += 1,
                Action::Repeat(copies) => verdict.copies = verdict.copies.saturating_add(copies),
                Action::Reorder => verdict.reorder = true,
                Action::Corrupt => verdict.alterations.push(Alteration::CORRUPTION),
                Action::Alter(alteration) => verdict.alterations.push(alteration),
                Action::Mark => verdict.mark = true,
                Action::Delay(by) => {
                    verdict.delay = Some(verdict.delay.unwrap_or_default().saturating_add(by));
                }
                Action::Replay(by) => verdict.replays.push(by),
            }
            if let Some(observer) = observer {
                let count = counter.tally.matched().load(Ordering::Relaxed);
                let packet = Bytes::copy_from_slice(data);
                observer(&FaultEvent { at: now, rule, count, flow, ident, packet });
            }
        }
        if let (Some((responders, request)), false) = (request, verdict.drop) {
            responders.on_request(&flow, &request);
        }
        verdict
    }

    /// Applies a verdict to a packet: drops it, holds it back, or passes it to `emit`, followed by the packet
    /// held back for reordering, if any.
    fn apply(&mut self, now: Instant, packet: RxBurst<'_>, verdict: &Verdict, emit: &mut Sink<'_>) {
        if verdict.drop {
            return;
        }
        let mut altered = std::mem::take(&mut self.altered);
        let RxBurst { mut flow, mut ident, data, .. } = packet;
        let data = if verdict.alterations.is_empty() {
            data
        } else {
            // Otherwise the receiver might find an identification for which the ICRC is correct again.
            ident = exact_ident(&packet);
            altered.clear();
            altered.extend_from_slice(data);
            for alteration in &verdict.alterations {
                alteration.apply(&flow, ident, &mut altered);
            }
            &altered
        };
        if verdict.mark {
            // The ICRC does not cover the traffic class.
            flow.traffic_class |= Ecn::Ce as u8;
        }
        let packet = RxBurst::new(flow, ident, data.len(), data);
        // Copies continue at once, whatever happens to the packet itself.
        for _ in 0..verdict.copies {
            emit(packet);
        }
        for by in &verdict.replays {
            self.hold(now + *by, HeldPacket::new(&packet), false);
        }
        match verdict.delay {
            Some(by) => self.hold(now + by, HeldPacket::new(&packet), verdict.reorder),
            None => self.pass(now, packet, verdict.reorder, emit),
        }
        self.altered = altered;
    }

    fn hold(&mut self, until: Instant, packet: HeldPacket, reorder: bool) {
        self.delays += 1;
        self.delayed.insert((until, self.delays), (packet, reorder));
    }

    /// Holds a packet back for reordering, or emits it, followed by the packet held back, if any.
    fn pass(&mut self, now: Instant, packet: RxBurst<'_>, reorder: bool, emit: &mut Sink<'_>) {
        if reorder && self.reorder_slot.is_none() {
            self.reorder_slot = Some((now + REORDER_TIMEOUT, HeldPacket::new(&packet)));
            return;
        }
        emit(packet);
        if let Some((_, held)) = self.reorder_slot.take() {
            emit(held.single());
        }
    }

    /// Moves the answers to packets of the direction `from` into this one.
    pub fn take_answers(&mut self, now: Instant, from: &mut Pipeline) {
        from.answers.drain(..).for_each(|answer| self.hold(now, answer, false));
    }

    /// Emits the held-back packets that are due, and returns the number of packets emitted.
    pub fn release(&mut self, now: Instant, emit: &mut Sink<'_>) -> usize {
        let mut released = 0;
        let mut emit = |packet: RxBurst<'_>| {
            released += 1;
            emit(packet);
        };
        if let Some((_, held)) = self.reorder_slot.take_if(|(until, _)| *until <= now) {
            emit(held.single());
        }
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            let (held, reorder) = first.remove();
            self.pass(now, held.single(), reorder, &mut emit);
        }
        released
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let reorder_slot = self.reorder_slot.as_ref().map(|(until, _)| *until);
        reorder_slot.into_iter().chain(self.delayed.first_key_value().map(|((at, _), _)| *at)).min()
    }
}

/// Returns the answer that `action` gives to a packet, or `None` if the packet cannot be answered. `request`
/// is the packet, if it is a request that its destination acknowledges, together with the responders.
fn answer_to(
    action: Action,
    seen: &Seen<'_>,
    request: Option<&mut (&mut Responders, Packet<'_>)>,
) -> Option<HeldPacket> {
    if let Action::Reject(reason) = action {
        return answer::reject(seen.flow, &Packet::parse(seen.bytes).ok()?, reason);
    }
    let (responders, request) = request?;
    responders.refuse(seen.flow, request, action.nak_syndrome()?)
}
