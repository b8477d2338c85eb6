//! Output of a node onto a wire: a queue for each priority, their scheduling, and pauses.

use std::collections::VecDeque;

use urxe::wire::Flow;
pub(super) use urxe::wire::frame::PRIORITIES;

use super::config::Scheduler;

/// Bytes that a packet gives a queue in a round of the deficit round robin; longer packets wait for several
/// rounds.
const QUANTUM: u64 = 1600;

/// A packet on its way through the network.
#[derive(Debug)]
pub(super) struct Packet {
    pub flow: Flow,
    /// Index in the burst, which is the IPv4 identification.
    pub index: u16,
    /// UDP payload.
    pub data: Vec<u8>,
    /// Length of the Ethernet frame in bytes.
    pub frame: u64,
    /// Destination host.
    pub host: u32,
    /// Direction through which the packet has entered the switch in which it is.
    pub input: u32,
}

impl Packet {
    pub fn priority(&self) -> usize {
        usize::from(self.flow.traffic_class >> 5)
    }
}

/// A pause or resume frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PriorityPause {
    pub priority: u8,
    pub pause: bool,
}

/// Counters of a queue. Sizes are lengths of Ethernet frames in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueCounters {
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets marked "congestion experienced".
    pub marked: u64,
    /// Packets dropped because the queue or the switch was full.
    pub dropped: u64,
    /// Bytes in the queue now.
    pub queued: u64,
    /// Largest number of bytes that were in the queue.
    pub max_queued: u64,
    /// Pause frames received, which stop the queue; resume frames are not counted.
    pub pauses: u64,
    /// Time for which the queue was paused, in nanoseconds, without a pause that lasts.
    pub paused_ns: u64,
}

/// Queue of one priority.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub packets: VecDeque<Packet>,
    pub counters: QueueCounters,
    deficit: u64,
    /// Time in picoseconds at which the queue was paused.
    paused_at: u64,
    pub samples: Option<Box<Samples>>,
}

/// Lengths of a queue, at regular intervals.
#[derive(Debug)]
pub(super) struct Samples {
    /// Interval in picoseconds.
    pub interval: u64,
    /// Time of the next sample, in picoseconds.
    pub next: u64,
    pub lengths: Vec<u64>,
}

impl Queue {
    /// Takes the samples that are due, before the length changes.
    pub fn sample(&mut self, now: u64) {
        if let Some(samples) = &mut self.samples {
            while samples.next <= now {
                samples.lengths.push(self.counters.queued);
                samples.next += samples.interval;
            }
        }
    }
}

/// The queues of an output, and what it sends before them: pause frames.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub queues: [Queue; PRIORITIES],
    pub pause_frames: VecDeque<PriorityPause>,
    /// Priorities whose queues hold packets, as a bit mask.
    backlogged: u8,
    /// Priorities that are paused, as a bit mask.
    paused: u8,
    /// Priority that is being served.
    turn: usize,
    /// Whether a frame is being sent.
    pub busy: bool,
}

impl Output {
    pub fn push(&mut self, packet: Packet, now: u64) {
        let priority = packet.priority();
        self.backlogged |= 1 << priority;
        let queue = &mut self.queues[priority];
        queue.sample(now);
        queue.counters.queued += packet.frame;
        queue.counters.max_queued = queue.counters.max_queued.max(queue.counters.queued);
        queue.packets.push_back(packet);
    }

    /// Takes the next packet to send, unless all queues are empty or paused.
    pub fn pop(&mut self, scheduler: Scheduler, now: u64) -> Option<Packet> {
        let ready = self.backlogged & !self.paused;
        if ready == 0 {
            return None;
        }
        let priority = match scheduler {
            Scheduler::Strict => ready.ilog2() as usize,
            // A single queue needs no deficit.
            Scheduler::RoundRobin if ready.is_power_of_two() => ready.trailing_zeros() as usize,
            Scheduler::RoundRobin => self.next_in_round(ready),
        };
        let queue = &mut self.queues[priority];
        queue.sample(now);
        let packet = queue.packets.pop_front()?;
        queue.deficit = queue.deficit.saturating_sub(packet.frame);
        queue.counters.queued -= packet.frame;
        queue.counters.packets += 1;
        queue.counters.bytes += packet.frame;
        if queue.packets.is_empty() {
            queue.deficit = 0;
            self.backlogged &= !(1 << priority);
        }
        Some(packet)
    }

    fn next_in_round(&mut self, ready: u8) -> usize {
        loop {
            let queue = &self.queues[self.turn];
            if ready >> self.turn & 1 != 0
                && let Some(first) = queue.packets.front()
                && first.frame <= queue.deficit
            {
                return self.turn;
            }
            self.turn = (self.turn + 1) % PRIORITIES;
            if ready >> self.turn & 1 != 0 {
                self.queues[self.turn].deficit += QUANTUM;
            }
        }
    }

    /// Carries out a pause or resume frame at `now`, in picoseconds. Reports whether this changes anything.
    pub fn set_paused(&mut self, frame: PriorityPause, now: u64) -> bool {
        let PriorityPause { priority, pause } = frame;
        let was_paused = self.is_paused(priority.into());
        let queue = &mut self.queues[usize::from(priority)];
        match (was_paused, pause) {
            (false, true) => {
                queue.counters.pauses += 1;
                queue.paused_at = now;
            }
            (true, false) => queue.counters.paused_ns += (now - queue.paused_at) / 1000,
            _ => return false,
        }
        self.paused ^= 1 << priority;
        true
    }

    pub fn is_paused(&self, priority: usize) -> bool {
        self.paused >> priority & 1 != 0
    }

    /// Removes all packets and pauses, as when the wire goes down.
    pub fn take_all(&mut self, now: u64) -> Vec<Packet> {
        self.pause_frames.clear();
        for priority in 0..PRIORITIES as u8 {
            self.set_paused(PriorityPause { priority, pause: false }, now);
        }
        (self.backlogged, self.busy) = (0, false);
        let mut all = Vec::new();
        for queue in &mut self.queues {
            queue.sample(now);
            queue.counters.queued = 0;
            queue.deficit = 0;
            all.extend(queue.packets.drain(..));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(priority: u8, frame: u64) -> Packet {
        let address = "10.0.0.1".parse().unwrap();
        let mut flow = Flow::new(address, address, 0);
        flow.traffic_class = priority << 5;
        Packet { flow, index: 0, data: Vec::new(), frame, host: 0, input: 0 }
    }

    #[test]
    fn round_robin_shares_bytes_and_strict_order_prefers_the_highest_priority() {
        let mut output = Output::default();
        for _ in 0..1000 {
            output.push(packet(1, 4000), 0);
            output.push(packet(5, 500), 0);
        }
        let mut bytes = [0; PRIORITIES];
        while bytes[1] + bytes[5] < 400_000 {
            let packet = output.pop(Scheduler::RoundRobin, 0).unwrap();
            bytes[packet.priority()] += packet.frame;
        }
        assert!(bytes[1].abs_diff(bytes[5]) <= 8000, "{bytes:?}");
        assert!((0..100).all(|_| output.pop(Scheduler::Strict, 0).is_some_and(|p| p.priority() == 5)));
    }

    #[test]
    fn paused_queue_sends_nothing_until_it_is_resumed() {
        let mut output = Output::default();
        output.push(packet(3, 100), 0);
        assert!(output.set_paused(PriorityPause { priority: 3, pause: true }, 1000));
        assert!(!output.set_paused(PriorityPause { priority: 3, pause: true }, 2000));
        output.push(packet(4, 100), 0);
        assert_eq!(output.pop(Scheduler::RoundRobin, 0).map(|p| p.priority()), Some(4));
        assert!(output.pop(Scheduler::RoundRobin, 0).is_none());
        assert!(output.set_paused(PriorityPause { priority: 3, pause: false }, 9000));
        assert_eq!(output.pop(Scheduler::Strict, 0).map(|p| p.priority()), Some(3));
        let counters = output.queues[3].counters;
        assert_eq!((counters.pauses, counters.paused_ns, counters.queued), (1, 8, 0));
    }
}
