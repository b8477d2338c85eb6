//! State of a simulated network, and its events: frames that have been sent, and frames that arrive.
//!
//! Time within the network is in picoseconds: at 400 Gb/s, a byte takes 20 ps.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use urxe::burst::TxBurst;
use urxe::fabric::hosts::{BufferPool, Network, PortQueue, PortShared};
use urxe::sys::rng::SimRng;
use urxe::transport::{EgressRoom, Instant};
use urxe::wire::{Ecn, Flow};

use super::config::{Node, Scheduler, SwitchConfig, Wire};
use super::input::{Admission, ETHERNET, GAP, Input, PAUSE_FRAME};
use super::queues::{Output, PRIORITIES, Packet, PriorityPause};
use super::routes::{Edge, Routes};
use super::topology::{Topology, picos};

/// Capacity of a buffer for a short packet, such as an acknowledgement, in bytes.
const SHORT: usize = 128;

/// Shortest Ethernet frame in bytes.
const MIN_FRAME: u64 = 64;

/// Input of packets that come from a NIC.
const NO_INPUT: u32 = u32::MAX;

/// Number of packets of a priority that wait in front of a host's wire before its NIC must stop, and to which
/// they must have fallen before it continues.
const ROOM: usize = 4;
const LOW_WATER: usize = 2;

/// Counters of a whole network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NetworkCounters {
    /// Packets delivered to NICs.
    pub delivered: u64,
    /// Packets marked "congestion experienced".
    pub marked: u64,
    /// Packets dropped by full queues, switches or headrooms.
    pub dropped: u64,
    /// Packets lost at random, and those on a wire or in the queue before it when it went down.
    pub lost: u64,
    /// Packets without a path to their destination, or to a host without a NIC.
    pub unroutable: u64,
    /// Pause frames that switches have sent.
    pub pauses: u64,
}

/// A deadlock: each of the wires is paused until the switch at its end has sent packets over the next one,
/// and the last one waits for the first. Nothing but a wire that goes down ends it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Deadlock {
    /// Virtual time in nanoseconds at which it was found.
    pub at_ns: u64,
    /// Priority of the packets.
    pub priority: u8,
    /// The wires, each as the nodes from and to which the packets want to go.
    pub wires: Vec<(Node, Node)>,
}

#[derive(Debug)]
enum Frame {
    Packet(Packet),
    Pause(PriorityPause),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// The last bit has been sent; the next frame can follow.
    Sent,
    /// The last bit has arrived at the other end.
    Arrived,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Event {
    at: u64,
    sequence: u64,
    direction: u32,
    epoch: u32,
    kind: Kind,
}

/// One direction of a wire, with the output in front of it.
#[derive(Debug)]
pub(super) struct Direction {
    pub edge: Edge,
    wire: Wire,
    latency: u64,
    losses: SimRng,
    marks: SimRng,
    pub output: Output,
    /// Account of the switch at which this direction ends.
    pub input: Option<Box<Input>>,
    in_flight: VecDeque<Frame>,
    /// Number of times that the wire has gone down. Events of frames before that are void.
    epoch: u32,
}

#[derive(Debug)]
pub(super) struct Switch {
    pub config: SwitchConfig,
    /// Bytes in the shared memory.
    used: u64,
    /// Directions from this switch.
    pub outputs: Vec<u32>,
}

pub(super) struct Host {
    uplink: u32,
    pub port: Option<Arc<PortShared>>,
    /// Priorities whose queue has been full and has not fallen to the low-water mark since, as a bit mask.
    exhausted: u8,
}

/// State of a network.
pub(super) struct State {
    /// Time of the last event or packet.
    pub(super) now: u64,
    events: BinaryHeap<Reverse<Event>>,
    sequence: u64,
    pub(super) directions: Vec<Direction>,
    pub(super) switches: Vec<Switch>,
    pub(super) hosts: Vec<Host>,
    routes: Routes,
    seed: u64,
    buffers: BufferPool<2>,
    /// Every host before this one has a port.
    first_free: usize,
    pub deadlocks: Vec<Deadlock>,
    pub counters: NetworkCounters,
    /// Whether the current event affects a NIC.
    affects_nic: bool,
    /// Ports whose due times have changed.
    touched: Arc<PortQueue>,
}

impl State {
    /// Creates the network of a topology that has been checked.
    pub fn new(topology: &Topology, seed: u64, touched: Arc<PortQueue>) -> State {
        let switch = |config: &SwitchConfig| Switch { config: *config, used: 0, outputs: Vec::new() };
        let mut switches: Vec<Switch> = topology.switches.iter().map(switch).collect();
        let mut uplinks = vec![0; topology.hosts];
        let mut directions = Vec::with_capacity(2 * topology.wires.len());
        for (a, b, wire) in &topology.wires {
            for (from, to) in [(*a, *b), (*b, *a)] {
                let index = directions.len() as u32;
                match from {
                    Node::Host(host) => uplinks[host] = index,
                    Node::Switch(i) => switches[i].outputs.push(index),
                }
                let input = match to {
                    Node::Switch(i) => Some(Box::new(Input::new(&switches[i].config, wire, topology.mtu))),
                    Node::Host(_) => None,
                };
                directions.push(Direction {
                    edge: Edge { from, to, up: true },
                    wire: *wire,
                    latency: picos(wire.latency),
                    losses: SimRng::new(seed, u64::from(index)),
                    marks: SimRng::new(seed, 1 << 32 | u64::from(index)),
                    output: Output::default(),
                    input,
                    in_flight: VecDeque::new(),
                    epoch: 0,
                });
            }
        }
        let host = |uplink| Host { uplink, port: None, exhausted: 0 };
        let mut state = State {
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            directions,
            switches,
            hosts: uplinks.into_iter().map(host).collect(),
            routes: Routes::default(),
            seed,
            // Two sizes, so that many packets in the network occupy little more memory than their bytes.
            buffers: BufferPool::new([(SHORT, usize::MAX), (topology.mtu.max(2 * SHORT), usize::MAX)]),
            first_free: 0,
            deadlocks: Vec::new(),
            counters: NetworkCounters::default(),
            affects_nic: false,
            touched,
        };
        state.compute_routes();
        state
    }

    fn compute_routes(&mut self) {
        let edges: Vec<Edge> = self.directions.iter().map(|d| d.edge).collect();
        self.routes = Routes::new(self.hosts.len(), self.switches.len(), &edges);
    }

    /// Tells a host's NIC how many packets it may send.
    fn publish_room(&self, host: usize) {
        let Host { uplink, port, exhausted } = &self.hosts[host];
        let output = &self.directions[*uplink as usize].output;
        let room = EgressRoom::new(|priority| match exhausted >> priority & 1 {
            0 => ROOM.saturating_sub(output.queues[priority].packets.len()),
            _ => 0,
        });
        if let Some(port) = port {
            port.set_room(room);
        }
    }

    /// Starts to send the next frame in a direction, unless one is being sent or none may be.
    fn start(&mut self, direction: u32) {
        let d = &mut self.directions[direction as usize];
        if d.output.busy || !d.edge.up {
            return;
        }
        let (frame, len) = match d.output.pause_frames.pop_front() {
            Some(pause) => (Frame::Pause(pause), PAUSE_FRAME),
            None => {
                let scheduler = match d.edge.from {
                    Node::Switch(i) => self.switches[i].config.scheduler,
                    Node::Host(_) => Scheduler::RoundRobin,
                };
                let Some(packet) = d.output.pop(scheduler, self.now) else { return };
                // Before the packet's memory is released, which may resume this very input and start its
                // output.
                d.output.busy = true;
                let len = packet.frame;
                (Frame::Packet(self.leave(direction, packet)), len)
            }
        };
        let d = &mut self.directions[direction as usize];
        let duration = u128::from(len + GAP) * 8_000_000_000_000 / u128::from(d.wire.bandwidth);
        let sent = self.now.saturating_add(u64::try_from(duration).unwrap_or(u64::MAX));
        let arrived = sent.saturating_add(d.latency);
        d.output.busy = true;
        d.in_flight.push_back(frame);
        let epoch = d.epoch;
        for (at, kind) in [(sent, Kind::Sent), (arrived, Kind::Arrived)] {
            self.sequence += 1;
            self.events.push(Reverse(Event { at, sequence: self.sequence, direction, epoch, kind }));
        }
    }

    /// Does what has to be done when a packet leaves its queue: the NIC may send more, or the switch marks
    /// the packet and has more memory.
    fn leave(&mut self, direction: u32, mut packet: Packet) -> Packet {
        let priority = packet.priority();
        let d = &mut self.directions[direction as usize];
        let queue = &mut d.output.queues[priority];
        match d.edge.from {
            Node::Host(host) => {
                let bit = 1 << priority;
                if self.hosts[host].exhausted & bit != 0 && queue.packets.len() <= LOW_WATER {
                    self.hosts[host].exhausted &= !bit;
                    self.publish_room(host);
                    self.notify(host);
                }
            }
            Node::Switch(i) => {
                if let Some(red) = &self.switches[i].config.ecn
                    && matches!(packet.flow.ecn(), Ecn::Ect0 | Ecn::Ect1)
                    && d.marks.bernoulli(red.probability(queue.counters.queued))
                {
                    packet.flow = Flow { traffic_class: packet.flow.traffic_class | 3, ..packet.flow };
                    queue.counters.marked += 1;
                    self.counters.marked += 1;
                }
                self.release(i, &packet);
            }
        }
        packet
    }

    /// Releases a packet's memory in a switch, and resumes its input if it may continue.
    fn release(&mut self, switch: usize, packet: &Packet) {
        let (input, priority) = (packet.input, packet.priority());
        let Switch { config, used, .. } = &mut self.switches[switch];
        let Some(account) = self.directions.get_mut(input as usize).and_then(|d| d.input.as_mut()) else {
            return;
        };
        if account.release(config, used, priority, packet.frame) {
            self.send_pause(input, priority, false);
        }
    }

    /// Sends a pause or resume frame to the other end of the wire on which `input` arrives.
    fn send_pause(&mut self, input: u32, priority: usize, pause: bool) {
        let back = input ^ 1;
        self.counters.pauses += u64::from(pause);
        let frame = PriorityPause { priority: priority as u8, pause };
        self.directions[back as usize].output.pause_frames.push_back(frame);
        self.start(back);
    }

    fn arrive(&mut self, direction: u32) {
        let d = &mut self.directions[direction as usize];
        let to = d.edge.to;
        match d.in_flight.pop_front() {
            Some(Frame::Packet(packet)) => {
                if d.losses.bernoulli(d.wire.loss) {
                    self.counters.lost += 1;
                    return self.buffers.put(packet.data);
                }
                match to {
                    Node::Host(_) => self.deliver(packet),
                    Node::Switch(i) => self.forward(i, direction, packet),
                }
            }
            Some(Frame::Pause(frame)) => {
                let back = direction ^ 1;
                if self.directions[back as usize].output.set_paused(frame, self.now) {
                    match frame.pause {
                        true => self.check_deadlock(back, frame.priority.into()),
                        false => self.start(back),
                    }
                }
            }
            None => {}
        }
    }

    /// Queues a packet in a switch for the next wire on its path.
    fn forward(&mut self, switch: usize, input: u32, mut packet: Packet) {
        let Some(direction) = self.routes.next(switch, packet.host, &packet.flow, self.seed) else {
            self.counters.unroutable += 1;
            return self.buffers.put(packet.data);
        };
        let priority = packet.priority();
        let queued = self.directions[direction as usize].output.queues[priority].counters.queued;
        let Switch { config, used, .. } = &mut self.switches[switch];
        let Some(account) = &mut self.directions[input as usize].input else { return };
        let admission = account.admit(config, used, queued, priority, packet.frame);
        if matches!(admission, Admission::Dropped | Admission::DroppedPause) {
            self.directions[direction as usize].output.queues[priority].counters.dropped += 1;
            self.counters.dropped += 1;
            self.buffers.put(packet.data);
            if admission == Admission::DroppedPause {
                self.send_pause(input, priority, true);
            }
            return;
        }
        packet.input = input;
        self.directions[direction as usize].output.push(packet, self.now);
        match admission {
            Admission::AcceptedPause => self.send_pause(input, priority, true),
            Admission::AcceptedPaused => self.check_deadlock(input, priority),
            Admission::Accepted | Admission::Dropped | Admission::DroppedPause => {}
        }
        self.start(direction);
    }

    /// Passes a packet to its host's NIC.
    fn deliver(&mut self, packet: Packet) {
        let Packet { flow, index, data, host, .. } = packet;
        let Some(port) = &self.hosts[host as usize].port else {
            self.counters.unroutable += 1;
            return self.buffers.put(data);
        };
        if let Err(data) = port.deliver(to_nanos(self.now), flow, index, data) {
            self.counters.dropped += 1;
            return self.buffers.put(data);
        }
        self.counters.delivered += 1;
        self.notify(host as usize);
    }

    fn notify(&mut self, host: usize) {
        if let Some(port) = &self.hosts[host].port {
            self.touched.push(port);
            self.affects_nic = true;
        }
    }

    /// Takes both directions of a wire down or up. Frames on the wire and in the queues before it are lost.
    pub fn set_up(&mut self, direction: u32, up: bool) {
        for direction in [direction, direction ^ 1] {
            let d = &mut self.directions[direction as usize];
            if d.edge.up == up {
                continue;
            }
            d.edge.up = up;
            d.epoch += 1;
            let is_packet = |frame| match frame {
                Frame::Packet(packet) => Some(packet),
                Frame::Pause(_) => None,
            };
            let on_wire: Vec<Packet> = d.in_flight.drain(..).filter_map(is_packet).collect();
            let (queued, from) = (d.output.take_all(self.now), d.edge.from);
            if let Some(input) = &mut d.input {
                input.forget_pauses();
            }
            self.counters.lost += (on_wire.len() + queued.len()) as u64;
            for packet in queued {
                if let Node::Switch(i) = from {
                    self.release(i, &packet);
                }
                self.buffers.put(packet.data);
            }
            if let Node::Host(host) = from {
                self.hosts[host].exhausted = 0;
                self.publish_room(host);
                self.notify(host);
            }
            on_wire.into_iter().for_each(|packet| self.buffers.put(packet.data));
        }
        self.affects_nic = false;
        self.compute_routes();
    }

    /// Brings the network's time up to that of the clock.
    pub fn set_now(&mut self, now: Instant) {
        self.now = self.now.max(now.0.saturating_mul(1000));
    }

    /// Returns the time of the last event in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        to_nanos(self.now).0
    }
}

impl Network for State {
    fn attach(&mut self, host: Option<usize>, port: &Arc<PortShared>) -> Option<u32> {
        let host = match host {
            Some(host) => host,
            None => {
                let free = self.hosts[self.first_free..].iter().position(|host| host.port.is_none())?;
                self.first_free += free;
                self.first_free
            }
        };
        let free = self.hosts.get_mut(host).filter(|host| host.port.is_none())?;
        free.port = Some(port.clone());
        self.publish_room(host);
        Some(host as u32)
    }

    fn recycle(&mut self, read: &mut dyn Iterator<Item = Vec<u8>>) {
        read.for_each(|buffer| self.buffers.put(buffer));
    }

    fn detach(&mut self, host: u32) {
        self.hosts[host as usize].port = None;
        self.first_free = self.first_free.min(host as usize);
    }

    fn speed(&self, host: u32) -> u64 {
        self.directions[self.hosts[host as usize].uplink as usize].wire.bandwidth
    }

    fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    fn run(&mut self, limit: Instant) -> Option<Instant> {
        let mut end = limit.0.saturating_mul(1000);
        let mut last = None;
        while let Some(Reverse(event)) = self.events.peek().copied()
            && event.at <= end
        {
            self.events.pop();
            self.now = event.at;
            last = Some(to_nanos(event.at));
            if self.directions[event.direction as usize].epoch != event.epoch {
                continue;
            }
            match event.kind {
                Kind::Sent => {
                    self.directions[event.direction as usize].output.busy = false;
                    self.start(event.direction);
                }
                Kind::Arrived => self.arrive(event.direction),
            }
            if std::mem::take(&mut self.affects_nic) {
                end = end.min(to_nanos(event.at).0.saturating_mul(1000));
            }
        }
        last
    }

    fn send(&mut self, host: u32, now: Instant, burst: &TxBurst<'_>, targets: &mut dyn Iterator<Item = u32>) {
        self.set_now(now);
        let uplink = self.hosts[host as usize].uplink;
        let is_up = self.directions[uplink as usize].edge.up;
        for target in targets {
            let mut copier = burst.copier();
            for index in 0..burst.packets as u16 {
                let mut data = self.buffers.take(burst.segment);
                copier.copy_next(&mut data);
                let flow = burst.flow;
                let frame = ((data.len() + flow.header_len()) as u64 + ETHERNET).max(MIN_FRAME);
                let packet = Packet { flow, index, data, frame, host: target, input: NO_INPUT };
                if target == host {
                    self.deliver(packet);
                } else if is_up {
                    self.directions[uplink as usize].output.push(packet, self.now);
                } else {
                    self.counters.lost += 1;
                    self.buffers.put(packet.data);
                }
            }
        }
        let output = &self.directions[uplink as usize].output;
        let full = (0..PRIORITIES).filter(|p| output.queues[*p].packets.len() >= ROOM);
        let exhausted = full.fold(0, |mask, priority| mask | 1 << priority);
        self.hosts[host as usize].exhausted |= exhausted;
        self.start(uplink);
        self.publish_room(host as usize);
    }
}

fn to_nanos(picos: u64) -> Instant {
    Instant(picos.div_ceil(1000))
}
