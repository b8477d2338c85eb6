//! What the switch does to packets, as a pure function of its seed: no clock, no thread, no bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::FabricConfig;
use crate::link::chance::Chance;
use crate::transport::Instant;
use crate::wire::Ecn;

/// What happened to packets, summed over all that a fabric saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FabricCounters {
    /// Put on their way to a port, copies included.
    pub carried: u64,
    /// Lost at random.
    pub lost: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Held up so that others pass.
    pub reordered: u64,
    /// Altered in one bit.
    pub corrupted: u64,
    /// Marked "congestion experienced".
    pub marked: u64,
    /// Dropped at the end of a full queue, the model's or a port's that nobody reads.
    pub queue_full: u64,
    /// Dropped as larger than the MTU.
    pub too_big: u64,
    /// Dropped as nobody has the destination address.
    pub unknown: u64,
    /// On their way to a port whose cable was pulled meanwhile.
    pub unplugged: u64,
}

impl FabricCounters {
    pub(super) fn add(&mut self, other: &FabricCounters) {
        self.carried += other.carried;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.marked += other.marked;
        self.queue_full += other.queue_full;
        self.too_big += other.too_big;
        self.unknown += other.unknown;
        self.unplugged += other.unplugged;
    }
}

/// The outside of a burst: all that its fate depends on.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// UDP payload bytes of every packet but the last.
    pub segment: usize,
    /// Packets.
    pub packets: usize,
    /// UDP payload bytes of all of them.
    pub bytes: usize,
    /// Bytes of IP and UDP headers.
    pub header_len: usize,
    /// The ECN field that all of them carry.
    pub ecn: Ecn,
}

impl Shape {
    /// UDP payload bytes of packet `i`.
    pub fn len_of(&self, i: usize) -> usize {
        self.segment.min(self.bytes - i * self.segment)
    }
}

/// A verdict: packets `first..first + count` of the burst arrive together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// When they arrive.
    pub at: Instant,
    /// The first one's index.
    pub first: u16,
    /// How many.
    pub count: u16,
    /// Whether the switch marks them.
    pub mark: bool,
    /// The bit of the UDP payload that flips, in the one packet that this is.
    pub flip: Option<u32>,
}

/// The wire to a port, and the queue before it.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    /// When the last bit of the queue will have left, in picoseconds: at 400 Gb/s a byte takes 20 of them.
    busy_until: u128,
}

const PICOS: u128 = 1000;

impl Egress {
    /// Bytes that wait at `now`.
    fn backlog(&self, now: Instant, bandwidth: u64) -> u128 {
        let wait = self.busy_until.saturating_sub(now.0 as u128 * PICOS);
        wait * bandwidth as u128 / (8 * PICOS * 1_000_000_000)
    }

    /// Sends `bytes` behind all that wait; returns when they are through.
    fn send(&mut self, now: Instant, bandwidth: u64, bytes: usize) -> Instant {
        let takes = bytes as u128 * 8 * PICOS * 1_000_000_000 / bandwidth as u128;
        self.busy_until = self.busy_until.max(now.0 as u128 * PICOS) + takes;
        Instant(u64::try_from(self.busy_until.div_ceil(PICOS)).unwrap_or(u64::MAX))
    }
}

/// One direction through the switch: the state of its random generator and of its order.
#[derive(Clone, Debug)]
pub struct Path {
    config: FabricConfig,
    chance: Chance,
    /// When the last packet arrives that keeps the order.
    last: Instant,
    /// A queue of this direction's own, where it has a configuration of its own.
    own: Option<Egress>,
}

impl Path {
    /// The direction between two ports by their numbers. With `own_queue` it shares the destination's
    /// wire with nobody.
    pub fn new(config: FabricConfig, from: u32, to: u32, own_queue: bool) -> Path {
        let chance = Chance::new(config.seed, (from as u64) << 32 | to as u64);
        Path { chance, config, last: Instant(0), own: own_queue.then(Egress::default) }
    }

    /// Its configuration.
    pub fn config(&self) -> &FabricConfig {
        &self.config
    }

    /// Decides on every packet of a burst that reaches the switch at `now`; appends to `runs` what
    /// arrives, in the order of the packets. `shared` is the destination's wire.
    pub fn offer(
        &mut self,
        now: Instant,
        shared: &mut Egress,
        shape: &Shape,
        runs: &mut Vec<Run>,
        count: &mut FabricCounters,
    ) {
        if self.config.is_uniform() {
            // Behind what an earlier configuration may still have on its way.
            self.last = self.last.max(now + self.config.latency);
            count.carried += shape.packets as u64;
            runs.push(Run { at: self.last, first: 0, count: shape.packets as u16, mark: false, flip: None });
            return;
        }
        for i in 0..shape.packets {
            self.offer_one(now, shared, shape, i, runs, count);
        }
    }

    fn offer_one(
        &mut self,
        now: Instant,
        shared: &mut Egress,
        shape: &Shape,
        i: usize,
        runs: &mut Vec<Run>,
        count: &mut FabricCounters,
    ) {
        if self.chance.hit(self.config.loss) {
            count.lost += 1;
            return;
        }
        let mut at = now;
        let mut mark = false;
        if let Some(bandwidth) = self.config.bandwidth {
            let egress = self.own.as_mut().unwrap_or(shared);
            let len = shape.len_of(i) + shape.header_len;
            let backlog = egress.backlog(now, bandwidth);
            if self.config.queue_bytes.is_some_and(|limit| backlog + len as u128 > limit as u128) {
                count.queue_full += 1;
                return;
            }
            mark = self.config.ecn_threshold.is_some_and(|limit| backlog > limit as u128)
                && matches!(shape.ecn, Ecn::Ect0 | Ecn::Ect1);
            count.marked += mark as u64;
            at = egress.send(now, bandwidth, len);
        }
        at = at + self.config.latency;
        let jitter = nanos(self.config.jitter);
        if jitter > 0 {
            at = at + Duration::from_nanos(self.chance.below(jitter.saturating_add(1)));
        }
        at = at.max(self.last);
        if self.chance.hit(self.config.reorder) {
            count.reordered += 1;
            at = at + self.config.reorder_by;
        } else {
            self.last = at;
        }
        let flip = self.chance.hit(self.config.corrupt).then(|| {
            count.corrupted += 1;
            self.bit_under_icrc(shape.len_of(i))
        });
        let run = Run { at, first: i as u16, count: 1, mark, flip };
        add_run(runs, run);
        count.carried += 1;
        if self.chance.hit(self.config.duplicate) {
            count.duplicated += 1;
            count.carried += 1;
            add_run(runs, run);
        }
    }

    /// A bit of a packet whose change the ICRC reveals: any but those of BTH byte 4, which it skips.
    fn bit_under_icrc(&mut self, len: usize) -> u32 {
        let byte = self.chance.below(len.max(2) as u64 - 1) as u32;
        let byte = if byte >= 4 { byte + 1 } else { byte };
        byte * 8 + self.chance.below(8) as u32
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Appends a run, as part of the last one where both arrive together.
fn add_run(runs: &mut Vec<Run>, run: Run) {
    if let Some(last) = runs.last_mut()
        && last.at == run.at
        && last.mark == run.mark
        && last.flip.is_none()
        && run.flip.is_none()
        && last.first + last.count == run.first
    {
        last.count += run.count;
        return;
    }
    runs.push(run);
}

/// What is on its way to one port, handed out in the order of time, then of arrival at the switch.
#[derive(Debug)]
pub struct Schedule<T> {
    /// In order as they came, which is nearly all.
    line: VecDeque<Entry<T>>,
    /// Those that came after one that is due later.
    others: BinaryHeap<Entry<T>>,
    next: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    seq: u64,
    what: T,
}

impl<T> Entry<T> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.seq)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<T> Eq for Entry<T> {}
impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Entry<T> {
    /// The earlier is the greater, as the heap hands out its greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Schedule { line: VecDeque::new(), others: BinaryHeap::new(), next: 0 }
    }
}

impl<T> Schedule<T> {
    /// Adds something that is due at `at`.
    pub fn push(&mut self, at: Instant, what: T) {
        let entry = Entry { at, seq: self.next, what };
        self.next += 1;
        match self.line.back() {
            Some(back) if back.at > at => self.others.push(entry),
            _ => self.line.push_back(entry),
        }
    }

    /// Adds something that is due at once, and behind all that came in order before it.
    pub fn push_now(&mut self, what: T) {
        let at = self.line.back().map_or(Instant(0), |back| back.at);
        self.push(at, what);
    }

    /// When the first is due.
    pub fn earliest(&self) -> Option<Instant> {
        match (self.line.front(), self.others.peek()) {
            (Some(a), Some(b)) => Some(a.at.min(b.at)),
            (Some(a), None) => Some(a.at),
            (None, b) => b.map(|b| b.at),
        }
    }

    /// Takes the first, if it is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        let from_others = match (self.line.front(), self.others.peek()) {
            (Some(a), Some(b)) => b.key() < a.key(),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if from_others {
            if self.others.peek().is_some_and(|e| e.at <= now) {
                return self.others.pop().map(|e| e.what);
            }
            return None;
        }
        if self.line.front().is_some_and(|e| e.at <= now) {
            return self.line.pop_front().map(|e| e.what);
        }
        None
    }
}
