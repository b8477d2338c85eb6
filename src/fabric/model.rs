//! Switch model, a deterministic function of its seed and inputs: it has no clock and no threads, and does
//! not look at packet contents.

use std::time::Duration;

use super::FabricConfig;
use crate::burst::TxBurst;
use crate::sys::counters::counters;
use crate::sys::rng::SimRng;
use crate::transport::Instant;
use crate::wire::Ecn;

counters! {
    /// Packet counters, summed over all of a fabric's ports.
    "" FabricCounters {
        /// Packets forwarded to ports, including duplicates.
        carried,
        /// Packets lost at random.
        lost,
        /// Duplicates created.
        duplicated,
        /// Packets delayed so that later packets could overtake them.
        reordered,
        /// Packets with one bit flipped.
        corrupted,
        /// Packets marked "congestion experienced".
        marked,
        /// Packets dropped because the queue in front of a wire, or the inbox of a port that is not being read,
        /// was full.
        queue_full,
        /// Packets dropped because they exceed the MTU.
        too_big,
        /// Packets dropped because no port has the destination address.
        unknown,
        /// Packets lost in flight to a port whose cable was unplugged.
        unplugged,
    }
}

impl FabricCounters {
    /// Iterates over counter names and values, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.named()
    }
}

/// A decision by the model: packets `first..first + count` of the burst arrive together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Time of arrival.
    pub at: Instant,
    /// Index of the first packet.
    pub first: u16,
    /// Number of packets.
    pub count: u16,
    /// Whether the switch marks the packets "congestion experienced".
    pub mark: bool,
    /// Index of the UDP payload bit to flip, if any; the run is then a single packet.
    pub flip: Option<u32>,
}

/// Wire to a port, with the queue in front of it.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    /// Time in picoseconds at which the last queued bit will have been sent. Nanoseconds would be too
    /// coarse: a byte takes only 20 ps at 400 Gb/s.
    busy_until: u128,
}

/// Picoseconds per nanosecond.
const PICOS: u128 = 1000;

impl Egress {
    /// Returns the number of bytes still queued at `now`.
    fn backlog(&self, now: Instant, bandwidth: u64) -> u128 {
        let wait = self.busy_until.saturating_sub(now.0 as u128 * PICOS);
        wait * bandwidth as u128 / (8 * PICOS * 1_000_000_000)
    }

    /// Queues `bytes` bytes, and returns the time at which they will have been sent.
    fn send(&mut self, now: Instant, bandwidth: u64, bytes: usize) -> Instant {
        let duration = bytes as u128 * 8 * PICOS * 1_000_000_000 / bandwidth as u128;
        self.busy_until = self.busy_until.max(now.0 as u128 * PICOS) + duration;
        Instant(u64::try_from(self.busy_until.div_ceil(PICOS)).unwrap_or(u64::MAX))
    }
}

/// One direction through the switch, with its own random number generator and packet order.
#[derive(Clone, Debug)]
pub struct Path {
    pub config: FabricConfig,
    rng: SimRng,
    /// Arrival time of the last packet that was not reordered.
    last: Instant,
    /// The direction's own wire, if it does not share the destination's.
    own_egress: Option<Egress>,
}

impl Path {
    /// Creates the direction from port number `from` to port number `to`. With `own_queue`, the direction has
    /// a wire of its own, instead of sharing the destination's with other directions.
    pub fn new(config: FabricConfig, from: u32, to: u32, own_queue: bool) -> Path {
        let rng = SimRng::new(config.seed, (from as u64) << 32 | to as u64);
        Path { rng, config, last: Instant(0), own_egress: own_queue.then(Egress::default) }
    }

    /// Decides the fate of each packet in a burst that reaches the switch at `now`, and appends the arrivals
    /// to `runs`, in packet order. `shared` is the destination's wire.
    pub fn offer(
        &mut self,
        now: Instant,
        shared: &mut Egress,
        burst: &TxBurst<'_>,
        runs: &mut Vec<Run>,
        counters: &mut FabricCounters,
    ) {
        if self.config.is_uniform() {
            // Keeps the order: not before any earlier packet of this direction.
            self.last = self.last.max(now + self.config.latency);
            counters.carried += burst.packets as u64;
            runs.push(Run { at: self.last, first: 0, count: burst.packets as u16, mark: false, flip: None });
            return;
        }
        for i in 0..burst.packets {
            if self.rng.bernoulli(self.config.loss) {
                counters.lost += 1;
                continue;
            }
            let payload = burst.segment.min(burst.bytes - i * burst.segment);
            let mut at = now;
            let mut mark = false;
            if let Some(bandwidth) = self.config.bandwidth {
                let egress = self.own_egress.as_mut().unwrap_or(shared);
                let len = payload + burst.flow.header_len();
                let backlog = egress.backlog(now, bandwidth);
                if self.config.queue_bytes.is_some_and(|limit| backlog + len as u128 > limit as u128) {
                    counters.queue_full += 1;
                    continue;
                }
                mark = self.config.ecn_threshold.is_some_and(|limit| backlog > limit as u128)
                    && matches!(burst.flow.ecn(), Ecn::Ect0 | Ecn::Ect1);
                counters.marked += mark as u64;
                at = egress.send(now, bandwidth, len);
            }
            at = at + self.config.latency;
            let jitter = nanos(self.config.jitter);
            if jitter > 0 {
                at = at + Duration::from_nanos(self.rng.below(jitter.saturating_add(1)));
            }
            at = at.max(self.last);
            if self.rng.bernoulli(self.config.reorder) {
                counters.reordered += 1;
                at = at + self.config.reorder_by;
            } else {
                self.last = at;
            }
            let flip = self.rng.bernoulli(self.config.corrupt).then(|| {
                counters.corrupted += 1;
                self.bit_under_icrc(payload)
            });
            let run = Run { at, first: i as u16, count: 1, mark, flip };
            add_run(runs, run);
            counters.carried += 1;
            if self.rng.bernoulli(self.config.duplicate) {
                counters.duplicated += 1;
                counters.carried += 1;
                add_run(runs, run);
            }
        }
    }

    /// Picks a random bit to flip in a packet, excluding BTH byte 4, which the ICRC does not cover.
    fn bit_under_icrc(&mut self, len: usize) -> u32 {
        let byte = self.rng.below(len.max(2) as u64 - 1) as u32;
        let byte = if byte >= 4 { byte + 1 } else { byte };
        byte * 8 + self.rng.below(8) as u32
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Appends a run, or merges it with the last one if it continues that run and arrives at the same time.
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
