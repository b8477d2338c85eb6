//! Two NICs in virtual time, connected by a faulty wire or by rings in shared memory.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use urxe::memory::{Access, Table};
use urxe::nic::{Nic, NicConfig, Personality, PortAddresses};
use urxe::transport::{
    AsyncEvent, BurstLimits, Completion, Instant, QpState, RecvCaps, RxBurst, Tuning, TxQueue, WcStatus,
    XrcdId,
};
use urxe::wire::{Flow, IpIdent, LKey, Qpn, RKey};

use super::grants::GrantKind;
use super::memory;
use super::plan::{Carrier, Failure, Kind, Params, Plan};
use super::program::{Key, Target};
use super::receives::Pool;
use super::rings::Rings;
use super::unreliable::{self, Arrival, Responder};
use super::wire::{Faults, Wire};
use urxe_test_support::engine::{self, PD, Region, Rng, TestCq};
use urxe_test_support::ring;

/// Access rights that regions and queue pairs grant to peers.
pub const ACCESS: Access =
    Access::ALL.union(Access::MW_BIND).union(Access::FLUSH_GLOBAL).union(Access::FLUSH_PERSISTENT);

/// XRC domain of XRC targets and their shared receive queues.
pub const DOMAIN: XrcdId = XrcdId(4);

/// Virtual time after which a run counts as hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(20);

pub struct Side {
    pub ip: IpAddr,
    pub nic: Nic,
    pub memory: Table,
    /// Region that covers all memory of the side.
    pub region: Region,
    pub null: LKey,
    /// Initial key of each window and fast-registered region.
    grants: Vec<u32>,
    pub tx: TxQueue,
    pub send_cq: TestCq,
    pub recv_cq: TestCq,
    events: VecDeque<AsyncEvent>,
    /// Expected memory contents, without the effects of transfers in progress.
    pub expected: Vec<u8>,
}

/// State of a queue pair during the run.
#[derive(Default)]
pub struct Qp {
    /// Queue pair number; `None` before creation and after destruction.
    pub qpn: Option<Qpn>,
    /// Queue pair number, kept after destruction.
    pub number: Qpn,
    /// Number of send work requests posted; the first `applied` of them are known to be complete.
    pub posted: usize,
    pub applied: usize,
    pub sent: Vec<Completion>,
    pub received: Vec<Completion>,
    /// Number of messages received.
    pub arrived: usize,
    /// First PSN of each work request, relative to the queue pair's initial PSN, and the index of the
    /// request.
    pub psns: Vec<(u32, usize)>,
    pub next_psn: u32,
    /// Model of the responder; used only if the service is unreliable.
    pub responder: Responder,
    pub failure_at: Option<(Instant, Failure)>,
    pub destroyed: bool,
    /// Number of last-WQE-reached events.
    pub last_wqe_events: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stage {
    #[default]
    Waiting,
    Running,
    Ended,
}

#[derive(Default)]
pub struct Group {
    pub stage: Stage,
    /// Time at which both ends are moved to ERR after a failure.
    pub close_at: Option<Instant>,
    pub closed: bool,
    /// Time at which all work requests of the group were first found to be complete.
    pub idle_since: Option<Instant>,
}

pub struct World {
    pub now: Instant,
    pub params: Params,
    pub rng: Rng,
    pub plan: Plan,
    pub sides: [Side; 2],
    pub qps: Vec<Qp>,
    pub groups: Vec<Group>,
    wire: Wire,
    /// Rings that carry all packets in place of the wire.
    rings: Option<Rings>,
    next_tick: Instant,
}

/// Runs the test with a seed, checks all results, and returns a hash of all packets and their transmission
/// times.
pub fn run(seed: u64, params: &Params) -> u32 {
    let mut rng = Rng::new(seed);
    let plan = Plan::new(params, &mut rng);
    let mut world = World::new(plan, params, rng);
    world.run();
    world.check_memory();
    let over_rings = world.rings.map_or(0, |rings| rings.trace.finalize());
    world.wire.trace.finalize() ^ over_rings
}

impl Side {
    fn new(i: usize, plan: &Plan, params: &Params, rng: &mut Rng) -> Side {
        let host = 1 + i as u8;
        let ip = match params.ipv6 {
            true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host.into()]),
            false => IpAddr::from([10, 0, 0, host]),
        };
        let tuning = Tuning {
            window: params.window,
            read_chunk: params.read_chunk,
            turn: params.turn,
            min_timeout: Duration::ZERO,
            max_ack_silence: Duration::from_micros(params.ack_silence_us),
            pace_unacknowledged: true,
            min_probe_timeout: Duration::from_micros(params.ack_silence_us),
            ..Tuning::default()
        };
        let port = PortAddresses { gids: vec![ip.into()], src_port: None };
        let initial = &plan.arenas[i].initial;
        let mut memory = Table::new();
        let region = Region::new(&mut memory, PD, initial.len(), 0, ACCESS);
        region.write(0, initial);
        let null = memory.register_null(PD).expect("the memory table is full");
        let grants = plan.grants[i].iter().map(|kind| match kind {
            GrantKind::Window(kind) => memory.alloc_window(PD, *kind).map(|key| key.0),
            GrantKind::Fast => {
                // SAFETY: the region lives in the same `Side` as the table and is dropped with it, so the
                // memory outlives every access through the table.
                let fast = unsafe { memory.register_fast(PD, region.addr(), region.len()) };
                fast.map(|f| f.rkey.0)
            }
        });
        let grants = grants.map(|key| key.expect("the memory table is full")).collect();
        let personality = Personality::STRICT;
        Side {
            ip,
            nic: Nic::new(NicConfig { personality, tuning, port, seed: i as u64 }),
            memory,
            region,
            null,
            grants,
            tx: TxQueue::new(match params.carrier {
                Carrier::Wire(_) => BurstLimits { bytes: 65_000, packets: 1 + rng.below(64) as usize },
                Carrier::Rings => ring::LIMITS,
            }),
            send_cq: TestCq::new(0, 4096),
            recv_cq: TestCq::new(1, 4096),
            events: VecDeque::new(),
            expected: initial.clone(),
        }
    }

    /// Moves the NIC's completions and events to the side's queues.
    fn take_outputs(&mut self) {
        let Side { nic, send_cq, recv_cq, events, .. } = self;
        engine::take_outputs(nic, &mut [send_cq, recv_cq], events);
    }
}

impl World {
    fn new(mut plan: Plan, params: &Params, mut rng: Rng) -> World {
        let mut sides = [0, 1].map(|i| Side::new(i, &plan, params, &mut rng));
        for pool in plan.pools.iter_mut().filter(|p| p.shared) {
            let caps = RecvCaps { max_wr: pool.depth, max_sge: 4 };
            let Side { nic, recv_cq, .. } = &mut sides[pool.side];
            pool.srq = match pool.xrc {
                true => nic.create_xrc_srq(PD, DOMAIN, recv_cq.handle, caps),
                false => nic.create_srq(PD, caps),
            };
        }
        let (faults, rings) = match params.carrier {
            Carrier::Wire(faults) => (faults, None),
            Carrier::Rings => {
                let ips = sides.each_ref().map(|side| side.ip);
                (Faults::NONE, Some(Rings::new(ips, Rng::new(rng.next()))))
            }
        };
        World {
            now: Instant(1),
            params: params.clone(),
            rng,
            sides,
            qps: plan.qps.iter().map(|_| Qp::default()).collect(),
            groups: plan.groups.iter().map(|_| Group::default()).collect(),
            wire: Wire::new(faults),
            rings,
            next_tick: Instant(0),
            plan,
        }
    }

    /// Returns the value of a symbolic key.
    pub fn rkey(&self, key: Key) -> RKey {
        match key {
            Key::None => RKey(0),
            Key::Wrong => RKey(0xffff_ff00),
            Key::Region(side) => self.sides[side].region.info.rkey,
            Key::Grant { side, id, age } => {
                let first = self.sides[side].grants[id];
                RKey(first & !0xff | (first + u32::from(age)) & 0xff)
            }
        }
    }

    fn run(&mut self) {
        while self.groups.iter().any(|g| g.stage != Stage::Ended) {
            if self.now >= self.next_tick {
                self.tick();
                self.next_tick = self.now + Duration::from_nanos(1 + self.rng.below(200_000));
            }
            self.apply_failures();
            (0..2).for_each(|side| self.transmit(side));
            self.poll();
            self.end_groups();
            self.advance();
        }
    }

    /// Advances the clock to the next event, and processes arrived packets and expired timers.
    fn advance(&mut self) {
        let closings = self.groups.iter().filter_map(|g| g.close_at);
        let failures = self.qps.iter().filter_map(|q| q.failure_at.map(|d| d.0));
        let timers = self.sides.iter().filter_map(|s| s.nic.next_deadline());
        let next = self
            .wire
            .next()
            .into_iter()
            .chain(self.rings.as_ref().and_then(Rings::next))
            .chain(closings)
            .chain(failures)
            .chain(timers)
            .chain([self.next_tick]);
        let next = next.min().unwrap_or(self.next_tick);
        assert!(next.since(Instant(0)) < HANG_TIMEOUT, "no progress: {}", self.describe());
        self.now = self.now.max(next);
        while let Some(flight) = self.wire.arrived(self.now) {
            let (flow, data) = (flight.flow, &flight.bytes[..]);
            let burst = RxBurst::new(flow, IpIdent::SENT, data.len(), data);
            self.deliver(&burst, flight.corrupt);
        }
        if let Some(mut rings) = self.rings.take() {
            rings.read(self.now, &mut |burst| self.deliver(&burst, false));
            self.rings = Some(rings);
        }
        for s in &mut self.sides {
            s.nic.handle_timeouts(self.now, &s.memory, &mut s.tx);
            s.take_outputs();
        }
    }

    fn deliver(&mut self, burst: &RxBurst<'_>, is_corrupt: bool) {
        let side = usize::from(burst.flow.dst != self.sides[0].ip);
        if !is_corrupt {
            burst.packets().for_each(|(_, packet)| self.predict(side, &burst.flow, packet));
        }
        let s = &mut self.sides[side];
        s.nic.handle_burst(self.now, burst, &s.memory, &mut s.tx);
        s.take_outputs();
    }

    /// Returns the index of a side's queue pair with the number `qpn`.
    fn find(&self, side: usize, qpn: Qpn) -> Option<usize> {
        (0..self.qps.len()).find(|q| self.plan.qps[*q].side == side && self.qps[*q].qpn == Some(qpn))
    }

    /// Passes a packet to the model of the queue pair that receives it, if its service is unreliable.
    fn predict(&mut self, side: usize, flow: &Flow, b: &[u8]) {
        let word = |at: usize| u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]]);
        let Some(to) = self.find(side, Qpn::new(word(5))) else { return };
        let datagram = b[0] >> 5 == 0b011;
        let from = match self.plan.qps[to].kind {
            Kind::Uc if !datagram => self.plan.qps[to].peer,
            Kind::Ud if datagram => {
                let sender_side = usize::from(flow.src != self.sides[0].ip);
                let number = Qpn::new(word(17));
                (0..self.qps.len())
                    .find(|q| self.plan.qps[*q].side == sender_side && self.qps[*q].number == number)
            }
            _ => return,
        };
        let from = from.expect("the sender of the packet is a known QP");
        let (sender, plan) = (&self.qps[from], &self.plan.qps[from]);
        let offset = word(9).wrapping_sub(plan.psn) & 0xff_ffff;
        let (first, message) = sender.psns[sender.psns.partition_point(|p| p.0 <= offset) - 1];
        let (send, mtu) = (&plan.sends[message], plan.mtu.bytes());
        let arrival = Arrival { send, message, packet: offset - first, mtu, from: sender.number };
        let (us, pool) = (self.qps[to].number, self.plan.qps[to].pool);
        let bytes = &mut self.sides[side].expected;
        let recvs = (pool, &mut self.plan.pools[pool]);
        if !datagram {
            return self.qps[to].responder.connected(&arrival, us, recvs, bytes);
        }
        let destination = send.to.as_ref().expect("a datagram has a destination");
        assert!(
            matches!(destination.target, Target::Qp(q) if q == to),
            "a datagram for {:?} arrived at QP {to}",
            destination.target
        );
        if unreliable::qkey_on_wire(destination, plan.qkey) != self.plan.qps[to].qkey {
            return;
        }
        let grh = unreliable::grh(flow.src, flow.dst, b.len());
        self.qps[to].responder.datagram(&arrival, &grh, us, recvs, bytes);
    }

    fn transmit(&mut self, side: usize) {
        let s = &mut self.sides[side];
        loop {
            let more = s.nic.transmit(self.now, &s.memory, &mut s.tx);
            let (now, wire, rng) = (self.now, &mut self.wire, &mut self.rng);
            let to_wire = |flow, bytes| wire.send(now, flow, bytes, rng);
            match &mut self.rings {
                Some(rings) => rings.send(now, 1 - side, &mut s.tx, to_wire),
                None => engine::drain(&mut s.tx, to_wire),
            }
            s.nic.emitted();
            s.take_outputs();
            if !more {
                return;
            }
        }
    }

    /// Polls completions and events.
    pub fn poll(&mut self) {
        for side in 0..2 {
            let mut got = Vec::new();
            self.sides[side].take_outputs();
            self.sides[side].send_cq.poll(usize::MAX, &mut got).expect("the CQ has overflowed");
            for c in got.drain(..) {
                let qp =
                    self.find(side, c.qpn).unwrap_or_else(|| panic!("completion of an unknown QP: {c:?}"));
                self.sent(qp, c);
            }
            self.sides[side].recv_cq.poll(usize::MAX, &mut got).expect("the CQ has overflowed");
            for c in got.drain(..) {
                let qp =
                    self.find(side, c.qpn).unwrap_or_else(|| panic!("completion of an unknown QP: {c:?}"));
                self.received(qp, c);
            }
            while let Some(event) = self.sides[side].events.pop_front() {
                if let AsyncEvent::LastWqeReached(qpn) = event {
                    let qp =
                        self.find(side, qpn).unwrap_or_else(|| panic!("event of an unknown QP: {event:?}"));
                    self.qps[qp].last_wqe_events += 1;
                }
            }
        }
    }

    /// Processes a send completion. On a reliable queue pair, a successful one shows that its request and all
    /// earlier ones have completed.
    fn sent(&mut self, qp: usize, c: Completion) {
        self.qps[qp].sent.push(c);
        if c.status == WcStatus::Success && self.plan.qps[qp].kind.is_reliable() {
            let last = c.wr_id as usize;
            for i in self.qps[qp].applied..=last {
                self.apply(qp, i);
            }
            self.qps[qp].applied = last + 1;
        }
    }

    /// Processes a receive completion. On a reliable queue pair, checks that the receive contains the data of
    /// the next expected message.
    fn received(&mut self, qp: usize, c: Completion) {
        let (plan, q) = (&self.plan.qps[qp], &mut self.qps[qp]);
        let s = &mut self.sides[plan.side];
        let recv = self.plan.pools[plan.pool].finish(plan.pool, c.wr_id);
        if c.status == WcStatus::Success && plan.kind.is_reliable() {
            let message = plan.incoming.get(q.arrived).unwrap_or_else(|| panic!("unexpected message: {c:?}"));
            let pieces = &self.plan.pools[plan.pool].recvs[recv].pieces;
            memory::store(&mut s.expected, pieces, 0, &message.data);
            let read = |at, len| s.region.read(at, len);
            assert!(
                memory::holds(read, pieces, &message.data),
                "wrong data of message {} of QP {qp}: {c:?}",
                q.arrived
            );
            q.arrived += 1;
        }
        q.received.push(c);
    }

    /// Describes the state of the run, for the diagnosis of a hang.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?} at {:?}\n", self.params, self.now);
        for s in &self.sides {
            text += &format!("{:?}\n", s.nic.counters());
        }
        for (i, (g, p)) in self.groups.iter().zip(&self.plan.groups).enumerate() {
            text += &format!("group {i}: {:?} of {:?}, {:?}\n", p.kind, p.qps, g.stage);
        }
        for (i, (q, p)) in self.qps.iter().zip(&self.plan.qps).enumerate() {
            let state = q.qpn.and_then(|n| self.sides[p.side].nic.qp_state(n)).unwrap_or(QpState::Reset);
            let pool: &Pool = &self.plan.pools[p.pool];
            text += &format!(
                "QP {i} {state}: posted {} of {}, {} messages of {}, receives {} of {}, last {:?}\n{:?}\n",
                q.posted,
                p.sends.len(),
                q.arrived,
                p.incoming.len(),
                pool.posted,
                pool.recvs.len(),
                q.sent.last(),
                p.sends.get(q.posted),
            );
        }
        text
    }
}
