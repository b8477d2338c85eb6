//! Plan of a run: queue pairs, connections, work requests, receives and failures.

use std::time::Duration;

use urxe::transport::{AckRequests, Quirks};
use urxe::wire::{Mtu, QKey};

use super::exchange::{Exchange, Message, Part};
use super::grants::GrantKind;
use super::memory::Arena;
use super::program::{Recv, Send};
use super::receives::Pool;
use super::unreliable::{UdQp, datagrams, stream};
use super::wire::Faults;
use urxe_test_support::engine::Rng;

/// Carrier of the packets between the sides.
#[derive(Clone, Copy, Debug)]
pub enum Carrier {
    /// A wire with faults.
    Wire(Faults),
    /// Rings in shared memory, one in each direction.
    Rings,
}

/// Parameters of a run: what carries packets, tuning of the NICs, number of connections.
#[derive(Clone, Debug)]
pub struct Params {
    pub carrier: Carrier,
    /// Index of the path MTU in `Mtu::ALL`; with `None`, each connection has a random one.
    pub mtu: Option<usize>,
    pub window: usize,
    pub read_chunk: u32,
    pub ack_silence_us: u64,
    pub turn: usize,
    /// Number of RC connections; `uc` and `xrc` are the numbers of UC and XRC connections.
    pub rc: usize,
    pub uc: usize,
    pub xrc: usize,
    /// Number of UD queue pairs.
    pub ud: usize,
    /// Whether some queue pairs share receive queues.
    pub share: bool,
    /// Whether some work requests fail, and some queue pairs enter ERR or are destroyed.
    pub errors: bool,
    pub ipv6: bool,
    pub quirks: Quirks,
}

impl Params {
    pub fn of(seed: u64) -> Params {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let clean = rng.percent(20);
        let mut percent = |max: u64| if clean { 0 } else { rng.below(max + 1) };
        let faults = Faults { loss: percent(12), dup: percent(8), reorder: percent(15), corrupt: percent(4) };
        let errors = rng.percent(50);
        // In a train that is refused, some packets may have been executed, which the model does not predict.
        let equal_packets = !errors && rng.percent(50);
        let (credits, coalesces_acks) = (rng.percent(70), rng.percent(70));
        let selective_repeat = rng.percent(50);
        let tail_loss_probes = rng.percent(70);
        // Without probes, unsignaled requests must ask for their acknowledgement.
        let ack_requests = match tail_loss_probes {
            true => AckRequests::Needed,
            false => rng.pick(&[AckRequests::Signaled, AckRequests::Messages]),
        };
        Params {
            carrier: Carrier::Wire(faults),
            mtu: None,
            window: rng.pick(&[1, 5_000, 30_000, 1 << 20]),
            read_chunk: rng.pick(&[1, 3_000, 10_000, 1 << 30]),
            ack_silence_us: rng.pick(&[0, 20, 1000]),
            turn: rng.pick(&[1, 7, 256]),
            rc: rng.pick(&[0, 1, 1, 2, 3]),
            uc: rng.pick(&[0, 0, 1, 2]),
            ud: rng.pick(&[0, 0, 0, 2, 5]),
            xrc: rng.pick(&[0, 0, 1, 2]),
            share: rng.percent(40),
            errors,
            ipv6: rng.percent(30),
            quirks: Quirks {
                credits,
                coalesces_acks,
                equal_packets,
                selective_repeat,
                ack_requests,
                tail_loss_probes,
                send_slots_until_polled: false,
                ..Quirks::STRICT
            },
        }
    }
}

/// Service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Rc,
    Uc,
    Ud,
    /// XRC: one end is an initiator, the other a target.
    Xrc,
}

impl Kind {
    pub fn is_reliable(self) -> bool {
        matches!(self, Kind::Rc | Kind::Xrc)
    }
}

/// Planned failure of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    Error,
    Destroyed,
}

/// A queue pair and its planned actions.
pub struct QpPlan {
    pub kind: Kind,
    pub side: usize,
    /// Index of the queue pair to which this one is connected.
    pub peer: Option<usize>,
    pub pool: usize,
    pub mtu: Mtu,
    pub psn: u32,
    pub depth: u8,
    pub max_send: u32,
    pub signal_all: bool,
    pub rnr_timer: u8,
    pub qkey: QKey,
    pub sends: Vec<Send>,
    /// Messages that the queue pair must receive, if the service makes them predictable.
    pub incoming: Vec<Message>,
    pub failure: Option<(Duration, Failure)>,
}

/// Queue pairs that start and end together.
pub struct Group {
    pub kind: Kind,
    pub qps: Vec<usize>,
    /// Index of a group that must have ended before this one starts.
    pub after: Option<usize>,
    /// Whether a failure of a queue pair or work request is planned.
    pub failing: bool,
}

#[derive(Default)]
pub struct Plan {
    pub arenas: [Arena; 2],
    pub grants: [Vec<GrantKind>; 2],
    pub pools: Vec<Pool>,
    pub qps: Vec<QpPlan>,
    pub groups: Vec<Group>,
}

/// Minimum length of a shared receive, and thus the maximum length of a SEND that consumes one.
const SHARED_ROOM: u32 = 5000;

/// Indices of each side's shared receive queues, one for reliable services and one for unreliable ones.
type SharedPools = [[Option<usize>; 2]; 2];

impl Plan {
    pub fn new(params: &Params, rng: &mut Rng) -> Plan {
        let mut plan = Plan::default();
        // A FLUSH needs at least some memory.
        plan.arenas.iter_mut().for_each(|arena| {
            arena.alloc(8, 8, rng);
        });
        let mut shared = SharedPools::default();
        for (side, class) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            if params.share && rng.percent(60) {
                shared[side][class] = Some(plan.pools.len());
                plan.pools.push(Pool::new(side, true, 1 + rng.below(16) as u32));
            }
        }
        for _ in 0..params.rc {
            plan.reliable(params, &shared, rng);
        }
        for _ in 0..params.uc {
            plan.unreliable(params, &shared, rng);
        }
        if params.ud > 0 {
            plan.datagrams(params, &shared, rng);
        }
        let mut targets = [None; 2];
        for _ in 0..params.xrc {
            plan.xrc(params, &mut targets, rng);
        }
        for pool in plan.pools.iter().enumerate().filter(|(_, p)| p.xrc).map(|(i, _)| i).collect::<Vec<_>>() {
            plan.fill_shared(pool, rng);
        }
        for pool in [shared[0][0], shared[1][0]].into_iter().flatten() {
            plan.fill_shared(pool, rng);
        }
        for pool in [shared[0][1], shared[1][1]].into_iter().flatten() {
            let recvs = plan.any_receives(plan.pools[pool].side, 4 * rng.below(20), 4200, rng);
            plan.pools[pool].fill(recvs);
        }
        plan
    }

    /// Sets the receives of a receive queue that is not shared.
    fn fill_own(&mut self, qp: usize, recvs: Vec<Recv>) {
        let pool = self.qps[qp].pool;
        self.pools[pool].fill(recvs);
    }

    /// Sets the receives of a shared receive queue: one for every message, and another for each queue pair,
    /// which may fail in the middle of a message.
    fn fill_shared(&mut self, pool: usize, rng: &mut Rng) {
        let users = &self.pools[pool].users;
        let count = users.iter().map(|q| self.qps[*q].incoming.len() + 1).sum::<usize>();
        let arena = &mut self.arenas[self.pools[pool].side];
        let room = |rng: &mut Rng| SHARED_ROOM + rng.below(50) as u32;
        let recvs = (0..count)
            .map(|_| Recv {
                pieces: {
                    let n = room(rng);
                    arena.scatter(n, false, rng)
                },
                bad_lkey: false,
            })
            .collect();
        self.pools[pool].fill(recvs);
    }

    /// Returns receives of random lengths, most of which are at least `room` bytes long.
    fn any_receives(&mut self, side: usize, count: u64, room: u32, rng: &mut Rng) -> Vec<Recv> {
        let arena = &mut self.arenas[side];
        (0..count)
            .map(|_| {
                let len = if rng.percent(97) { room + rng.below(100) as u32 } else { rng.below(100) as u32 };
                Recv { pieces: arena.scatter(len, true, rng), bad_lkey: false }
            })
            .collect()
    }

    /// Adds a queue pair without work requests. It usually uses the receive queue `shared` if there is one,
    /// and otherwise its own.
    fn qp(&mut self, kind: Kind, side: usize, mtu: Mtu, shared: Option<usize>, rng: &mut Rng) -> usize {
        let (qp, pool) = (self.qps.len(), shared.filter(|_| rng.percent(70)).unwrap_or(self.pools.len()));
        if pool == self.pools.len() {
            self.pools.push(Pool::new(side, false, 1 + rng.below(16) as u32));
        }
        self.pools[pool].users.push(qp);
        self.qps.push(QpPlan {
            kind,
            side,
            peer: None,
            pool,
            mtu,
            psn: if rng.percent(50) {
                0x100_0000 - rng.below(50) as u32
            } else {
                rng.next() as u32 & 0xff_ffff
            },
            depth: 1 + rng.below(8) as u8,
            max_send: 1 + rng.below(16) as u32,
            signal_all: rng.percent(20),
            rnr_timer: 1 + rng.below(8) as u8,
            qkey: QKey::default(),
            sends: Vec::new(),
            incoming: Vec::new(),
            failure: None,
        });
        qp
    }

    fn is_shared(&self, qp: usize) -> bool {
        self.pools[self.qps[qp].pool].shared
    }

    /// Adds two connected queue pairs.
    fn pair(&mut self, kind: Kind, params: &Params, shared: &SharedPools, rng: &mut Rng) -> [usize; 2] {
        let mtu = Mtu::ALL[params.mtu.unwrap_or_else(|| rng.below(5) as usize)];
        let class = usize::from(!kind.is_reliable());
        let qps = [0, 1].map(|side| self.qp(kind, side, mtu, shared[side][class], rng));
        for (a, b) in [(0, 1), (1, 0)] {
            self.qps[qps[a]].peer = Some(qps[b]);
        }
        self.qps[qps[1]].depth = self.qps[qps[0]].depth;
        qps
    }

    /// Groups the queue pairs `qps`. Some groups start only when another group has ended.
    fn group(&mut self, kind: Kind, qps: &[usize], failing: bool, rng: &mut Rng) {
        let count = self.groups.len() as u64;
        let after = (count > 0 && kind != Kind::Ud && rng.percent(30)).then(|| rng.below(count) as usize);
        self.groups.push(Group { kind, qps: qps.to_vec(), after, failing });
    }

    /// Plans the failure of a randomly selected queue pair from `qps`.
    fn plan_failure(&mut self, qps: &[usize], rng: &mut Rng) {
        let order = rng.below(24);
        let at = Duration::from_nanos(rng.below(1 << order));
        let failure = if rng.percent(50) { Failure::Error } else { Failure::Destroyed };
        self.qps[rng.pick(qps)].failure = Some((at, failure));
    }

    fn reliable(&mut self, params: &Params, shared: &SharedPools, rng: &mut Rng) {
        let qps = self.pair(Kind::Rc, params, shared, rng);
        let (faulty, failing) =
            if params.errors { (rng.percent(50), rng.percent(25)) } else { (false, false) };
        let longest = qps.map(|q| if self.is_shared(q) { SHARED_ROOM } else { u32::MAX });
        let parts = Exchange {
            arenas: &mut self.arenas,
            grants: &mut self.grants,
            rng,
            mtu: self.qps[qps[0]].mtu.bytes(),
            longest,
            sender: None,
            parts: Default::default(),
        }
        .generate(faulty && !failing);
        for (part, q) in parts.into_iter().zip(qps) {
            if longest[self.qps[q].side] == u32::MAX {
                let recvs = Exchange::receives(&part, &mut self.arenas[self.qps[q].side], rng);
                self.fill_own(q, recvs);
            }
            let Part { sends, incoming, .. } = part;
            (self.qps[q].sends, self.qps[q].incoming) = (sends, incoming);
        }
        if failing {
            self.plan_failure(&qps, rng);
        }
        self.group(Kind::Rc, &qps, faulty || failing, rng);
    }

    /// Adds an XRC initiator and an XRC target. Messages to the target consume receives of a shared receive
    /// queue on the target's side.
    fn xrc(&mut self, params: &Params, targets: &mut [Option<usize>; 2], rng: &mut Rng) {
        let mtu = Mtu::ALL[params.mtu.unwrap_or_else(|| rng.below(5) as usize)];
        let from = rng.below(2) as usize;
        let pool = *targets[1 - from].filter(|_| rng.percent(70)).get_or_insert(self.pools.len());
        if pool == self.pools.len() {
            self.pools.push(Pool { xrc: true, ..Pool::new(1 - from, true, 1 + rng.below(16) as u32) });
            targets[1 - from] = Some(pool);
        }
        let initiator = self.qp(Kind::Xrc, from, mtu, None, rng);
        let target = self.qp(Kind::Xrc, 1 - from, mtu, None, rng);
        // The target does not use the pool that `qp` has created for it.
        self.pools[self.qps[target].pool].users.clear();
        self.pools[pool].users.push(target);
        self.qps[target].pool = pool;
        self.qps[target].depth = self.qps[initiator].depth;
        (self.qps[initiator].peer, self.qps[target].peer) = (Some(target), Some(initiator));
        let parts = Exchange {
            arenas: &mut self.arenas,
            grants: &mut self.grants,
            rng,
            mtu: mtu.bytes(),
            longest: [SHARED_ROOM; 2],
            sender: Some(from),
            parts: Default::default(),
        }
        .generate(false);
        for (part, side) in parts.into_iter().zip(0..) {
            let qp = if side == from { initiator } else { target };
            (self.qps[qp].sends, self.qps[qp].incoming) = (part.sends, part.incoming);
        }
        let failing = params.errors && rng.percent(25);
        if failing {
            self.plan_failure(&[initiator, target], rng);
        }
        self.group(Kind::Xrc, &[initiator, target], failing, rng);
    }

    fn unreliable(&mut self, params: &Params, shared: &SharedPools, rng: &mut Rng) {
        let qps = self.pair(Kind::Uc, params, shared, rng);
        let mtu = self.qps[qps[0]].mtu.bytes();
        for (side, q) in qps.into_iter().enumerate() {
            let grants = &mut self.grants[side];
            self.qps[q].sends = stream(params.errors, mtu, side, &mut self.arenas, grants, rng);
        }
        for q in qps {
            if !self.is_shared(q) {
                let room = rng.pick(&[500, 5000, 66_000]);
                let recvs = self.any_receives(self.qps[q].side, rng.below(20), room, rng);
                self.fill_own(q, recvs);
            }
        }
        if params.errors && rng.percent(30) {
            self.plan_failure(&qps, rng);
        }
        self.group(Kind::Uc, &qps, false, rng);
    }

    fn datagrams(&mut self, params: &Params, shared: &SharedPools, rng: &mut Rng) {
        let mtu = Mtu::ALL[params.mtu.unwrap_or_else(|| rng.below(5) as usize)];
        let common = QKey(rng.next() as u32 >> 1);
        let mut ud_qps = Vec::new();
        for _ in 0..params.ud {
            let side = rng.below(2) as usize;
            let qp = self.qp(Kind::Ud, side, mtu, shared[side][1], rng);
            let qkey = if rng.percent(80) { common } else { QKey(rng.next() as u32 >> 1) };
            self.qps[qp].qkey = qkey;
            ud_qps.push(UdQp { qp, qkey });
        }
        for s in &ud_qps {
            let side = self.qps[s.qp].side;
            self.qps[s.qp].sends =
                datagrams(params.errors, mtu.bytes(), &ud_qps, &mut self.arenas[side], rng);
            if !self.is_shared(s.qp) {
                let room = mtu.bytes() as u32 + 40;
                let count = rng.below(50);
                let len =
                    |rng: &mut Rng| if params.errors && rng.percent(3) { rng.below(60) as u32 } else { room };
                let arena = &mut self.arenas[side];
                let recvs = (0..count)
                    .map(|_| Recv {
                        pieces: {
                            let n = len(rng);
                            arena.scatter(n, true, rng)
                        },
                        bad_lkey: false,
                    })
                    .collect();
                self.fill_own(s.qp, recvs);
            }
        }
        let qps: Vec<_> = ud_qps.iter().map(|s| s.qp).collect();
        if params.errors && rng.percent(40) {
            self.plan_failure(&qps, rng);
        }
        self.group(Kind::Ud, &qps, false, rng);
    }
}
