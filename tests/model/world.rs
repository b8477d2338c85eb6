//! Two NICs, a bad wire between them, virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use urxe::memory::{Access, Table};
use urxe::nic::{CompletionQueue, Nic, NicConfig, Personality, PortAddresses};
use urxe::transport::{
    AddressVector, BurstLimits, Completion, Habits, Instant, PostError, QpAttr, QpInit, QpState, QpType,
    RecvCaps, RecvWr, RxBurst, SendCaps, SendWr, Sge, Tuning, TxQueue, WrData, WrOp,
};
use urxe::wire::{AckTimeout, Flow, IpIdent, LKey, Mtu, Psn, Qpn, RKey, RnrTimer};

use crate::program::{Arena, Piece, Program};
use crate::support::{self, PD, Region, Rng};

/// How bad the wire is (in percent), and how the NICs are tuned.
#[derive(Clone, Debug)]
pub struct Knobs {
    pub loss: u64,
    pub dup: u64,
    pub reorder: u64,
    pub corrupt: u64,
    /// Index of the path MTU; any for each QP if `None`.
    pub mtu: Option<usize>,
    pub window: usize,
    pub read_chunk: u32,
    pub ack_silence_us: u64,
    pub turn: usize,
    pub qps: usize,
    /// One connection gets a work request that fails.
    pub poison: bool,
}

impl Knobs {
    pub fn of(seed: u64) -> Knobs {
        let mut rng = Rng(seed ^ 0x5eed);
        let clean = rng.percent(20);
        let mut percent = |max: u64| if clean { 0 } else { rng.below(max + 1) };
        let (loss, dup, reorder, corrupt) = (percent(12), percent(8), percent(15), percent(4));
        Knobs {
            loss,
            dup,
            reorder,
            corrupt,
            mtu: None,
            window: rng.pick(&[1, 5_000, 30_000, 1 << 20]),
            read_chunk: rng.pick(&[1, 3_000, 10_000, 1 << 30]),
            ack_silence_us: rng.pick(&[0, 20, 1000]),
            turn: rng.pick(&[1, 7, 256]),
            qps: 1 + rng.below(3) as usize,
            poison: rng.percent(20),
        }
    }
}

/// The wire is bad for so long and then as long good: no retry count outlasts an endless bad one.
const PHASE: u64 = 2_000_000;
/// 4.096 µs · 2^8.
const TIMEOUT: u8 = 8;
/// Nothing takes this long.
const STUCK: Duration = Duration::from_secs(20);
const MAX_INLINE: u32 = 200;

struct Side {
    ip: IpAddr,
    nic: Nic,
    memory: Table,
    region: Region,
    tx: TxQueue,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    qpns: Vec<Qpn>,
    /// By QP: how many of its work requests are posted, and what came of them.
    posted: Vec<(usize, usize)>,
    sent: Vec<Vec<Completion>>,
    received: Vec<Vec<Completion>>,
}

/// One connection: what each side sends.
struct Pair {
    programs: [Program; 2],
    mtu: Mtu,
    depth: u8,
    caps: (u32, u32),
    psns: [u32; 2],
    rnr_timer: u8,
    poisoned: bool,
    /// When both ends are told that it has failed.
    close_at: Option<Instant>,
    closed: bool,
}

/// When, in which order, to which side, from which UDP port, which bytes.
type Flight = Reverse<(Instant, u64, usize, u16, Vec<u8>)>;

struct World {
    now: Instant,
    sides: [Side; 2],
    pairs: Vec<Pair>,
    knobs: Knobs,
    rng: Rng,
    wire: BinaryHeap<Flight>,
    sequence: u64,
    next_post: Instant,
    trace: crc32fast::Hasher,
}

/// Runs a seed to its end, checks everything, and returns a hash of all packets and their times.
pub fn run(seed: u64, knobs: &Knobs) -> u32 {
    let mut rng = Rng(seed);
    let mut arenas = [Arena::default(), Arena::default()];
    let poisoned = knobs.poison.then(|| rng.below(knobs.qps as u64) as usize);
    let pairs: Vec<_> =
        (0..knobs.qps).map(|i| Pair::new(&mut arenas, poisoned == Some(i), knobs, &mut rng)).collect();
    let mut world = World::new(pairs, &arenas, knobs, rng);
    world.connect();
    world.go();
    world.check(&arenas);
    world.trace.finalize()
}

impl Pair {
    fn new(arenas: &mut [Arena; 2], poison: bool, knobs: &Knobs, rng: &mut Rng) -> Pair {
        let mtu = Mtu::ALL[knobs.mtu.unwrap_or_else(|| rng.below(5) as usize)];
        let [a, b] = arenas;
        let mut program = |from: &mut Arena, to: &mut Arena| {
            let count = rng.below(16);
            let (bytes, inline) = (mtu.bytes() as u64, MAX_INLINE as u64);
            let mut p = Program::new(count, 0, bytes, inline, from, to, rng);
            let poisoned = poison && count > 0 && p.poison(rng);
            (p, poisoned)
        };
        let (there, bad) = program(a, b);
        let (back, worse) = program(b, a);
        let poisoned = bad || worse;
        if poisoned {
            there.vague(a, b);
            back.vague(b, a);
        }
        let mut psn = || if rng.percent(50) { 0x100_0000 - rng.below(50) as u32 } else { rng.next() as u32 };
        Pair {
            programs: [there, back],
            psns: [psn(), psn()],
            mtu,
            depth: 1 + rng.below(8) as u8,
            caps: (1 + rng.below(16) as u32, 1 + rng.below(16) as u32),
            rnr_timer: 1 + rng.below(8) as u8,
            poisoned,
            close_at: None,
            closed: false,
        }
    }
}

impl World {
    fn new(pairs: Vec<Pair>, arenas: &[Arena; 2], knobs: &Knobs, mut rng: Rng) -> World {
        let sides = [0, 1].map(|i| {
            let ip = IpAddr::from([10, 0, 0, 1 + i as u8]);
            let tuning = Tuning {
                window: knobs.window,
                read_chunk: knobs.read_chunk,
                turn: knobs.turn,
                min_timeout: Duration::ZERO,
                max_ack_silence: Duration::from_micros(knobs.ack_silence_us),
            };
            let port = PortAddresses { gids: vec![ip.into()], src_port: None };
            let mut memory = Table::new();
            let region = Region::new(&mut memory, PD, arenas[i].initial.len(), 0, Access::ALL);
            region.write(0, &arenas[i].initial);
            let send_cq = Arc::new(CompletionQueue::new(4096));
            let recv_cq = Arc::new(CompletionQueue::new(4096));
            let mut nic =
                Nic::new(NicConfig { personality: Personality::STRICT, tuning, port, seed: i as u64 });
            let qpn = |p: &Pair| {
                let init = QpInit {
                    qp_type: QpType::Rc,
                    pd: PD,
                    send: SendCaps { max_wr: p.caps.0, max_sge: 4, max_inline: MAX_INLINE },
                    recv: RecvCaps { max_wr: p.caps.1, max_sge: 4 },
                    signal_all: false,
                    srq: None,
                    domain: None,
                    habits: Habits::STRICT,
                    port_mtu: urxe::wire::Mtu::Mtu4096,
                };
                nic.create_qp(&init, send_cq.clone(), recv_cq.clone()).unwrap()
            };
            let qpns: Vec<_> = pairs.iter().map(qpn).collect();
            let limits = BurstLimits { bytes: 65_000, packets: 1 + rng.below(64) as usize };
            let n = qpns.len();
            Side {
                ip,
                nic,
                memory,
                region,
                tx: TxQueue::new(limits),
                send_cq,
                recv_cq,
                qpns,
                posted: vec![(0, 0); n],
                sent: vec![Vec::new(); n],
                received: vec![Vec::new(); n],
            }
        });
        World {
            now: Instant(1),
            sides,
            pairs,
            knobs: knobs.clone(),
            rng,
            wire: BinaryHeap::new(),
            sequence: 0,
            next_post: Instant(0),
            trace: crc32fast::Hasher::new(),
        }
    }

    fn modify(&mut self, side: usize, qp: usize, attr: &QpAttr) {
        let s = &mut self.sides[side];
        s.nic.modify_qp(self.now, s.qpns[qp], attr, &s.memory, &mut s.tx).unwrap().unwrap();
    }

    fn connect(&mut self) {
        for i in 0..self.pairs.len() {
            for side in 0..2 {
                let (p, peer) = (&self.pairs[i], &self.sides[1 - side]);
                let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
                let init = QpAttr {
                    pkey_index: Some(0),
                    port: Some(1),
                    access: Some(Access::ALL),
                    ..to(QpState::Init)
                };
                let rtr = QpAttr {
                    av: Some(AddressVector::to(peer.ip.into())),
                    path_mtu: Some(p.mtu),
                    dest_qpn: Some(peer.qpns[i]),
                    rq_psn: Some(Psn::new(p.psns[1 - side])),
                    max_dest_rd_atomic: Some(p.depth),
                    min_rnr_timer: Some(RnrTimer::new(p.rnr_timer)),
                    ..to(QpState::Rtr)
                };
                let rts = QpAttr {
                    sq_psn: Some(Psn::new(p.psns[side])),
                    timeout: Some(AckTimeout::new(TIMEOUT)),
                    retry_cnt: Some(7),
                    rnr_retry: Some(7),
                    max_rd_atomic: Some(p.depth),
                    ..to(QpState::Rts)
                };
                [init, rtr, rts].iter().for_each(|attr| self.modify(side, i, attr));
            }
        }
    }

    fn go(&mut self) {
        loop {
            if self.now >= self.next_post {
                for side in 0..2 {
                    (0..self.pairs.len()).for_each(|qp| self.post(side, qp));
                }
                self.next_post = self.now + Duration::from_nanos(1 + self.rng.below(200_000));
            }
            (0..2).for_each(|side| self.transmit(side));
            self.close_failed();
            self.poll();
            if self.wire.is_empty() && self.done() {
                return;
            }
            self.advance();
        }
    }

    /// To the next moment at which something happens, and what happens then.
    fn advance(&mut self) {
        let flight = self.wire.peek().map(|Reverse(f)| f.0);
        let closings = self.pairs.iter().filter_map(|p| p.close_at);
        let posting = (!self.all_posted()).then_some(self.next_post);
        let timers = self.sides.iter().filter_map(|s| s.nic.next_deadline());
        let next = flight.into_iter().chain(closings).chain(posting).chain(timers).min();
        let next = next.unwrap_or(Instant(u64::MAX));
        assert!(next.since(Instant(0)) < STUCK, "stuck: {}", self.describe());
        self.now = self.now.max(next);
        while let Some(Reverse(f)) = self.wire.peek()
            && f.0 <= self.now
        {
            let Some(Reverse((_, _, side, src_port, bytes))) = self.wire.pop() else { return };
            let flow = Flow::new(self.sides[1 - side].ip, self.sides[side].ip, src_port);
            let s = &mut self.sides[side];
            let burst = RxBurst { flow, ident: IpIdent::SENT, segment: bytes.len(), data: &bytes };
            s.nic.handle_burst(self.now, &burst, &s.memory, &mut s.tx);
        }
        for s in &mut self.sides {
            s.nic.handle_timeouts(self.now, &s.memory, &mut s.tx);
        }
    }

    /// Some time after one end has failed, both are told: what an application would do.
    fn close_failed(&mut self) {
        for qp in 0..self.pairs.len() {
            let dead = self.sides.iter().any(|s| s.nic.qp_state(s.qpns[qp]) == Some(QpState::Err));
            let p = &mut self.pairs[qp];
            if dead && !p.closed && p.close_at.is_none() {
                p.close_at = Some(self.now + Duration::from_nanos(self.rng.below(3_000_000)));
            }
            if p.close_at.is_some_and(|at| at <= self.now) {
                (p.close_at, p.closed) = (None, true);
                let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
                (0..2).for_each(|side| self.modify(side, qp, &err));
            }
        }
    }

    fn transmit(&mut self, side: usize) {
        let s = &mut self.sides[side];
        loop {
            let more = s.nic.transmit(self.now, &s.memory, &mut s.tx);
            let (now, knobs, rng) = (self.now, &self.knobs, &mut self.rng);
            let (wire, sequence, trace) = (&mut self.wire, &mut self.sequence, &mut self.trace);
            support::drain(&mut s.tx, |flow, bytes| {
                trace.update(&now.0.to_le_bytes());
                trace.update(&bytes);
                let bad = (now.0 / PHASE).is_multiple_of(2);
                let mut hits = |percent| bad && rng.percent(percent);
                if hits(knobs.loss) {
                    return;
                }
                let copies = 1 + hits(knobs.dup) as u32;
                for _ in 0..copies {
                    let mut bytes = bytes.clone();
                    let mut hits = |percent| bad && rng.percent(percent);
                    let (corrupt, late) = (hits(knobs.corrupt), hits(knobs.reorder));
                    if corrupt {
                        let bit = rng.below(bytes.len() as u64 * 8) as usize;
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                    let delay = 3_000 + if late { rng.below(300_000) } else { 0 };
                    *sequence += 1;
                    let at = now + Duration::from_nanos(delay);
                    wire.push(Reverse((at, *sequence, 1 - side, flow.src_port, bytes)));
                }
            });
            if !more {
                return;
            }
        }
    }

    /// Posts some more of what is to be posted, as far as the queues take it.
    fn post(&mut self, side: usize, qp: usize) {
        let peer_key = self.sides[1 - side].region.info.rkey;
        let (s, p, rng) = (&mut self.sides[side], &self.pairs[qp], &mut self.rng);
        let sges = |pieces: &[Piece], bad: bool| {
            let key = |sge: Sge| if bad { Sge { lkey: LKey(0xffff_ff00), ..sge } } else { sge };
            pieces.iter().map(|p| key(s.region.sge(p.at, p.len))).collect::<Vec<_>>()
        };
        let recvs = &p.programs[1 - side].recvs;
        while let Some(r) = recvs.get(s.posted[qp].1)
            && rng.percent(70)
        {
            let wr = RecvWr { wr_id: r.wr_id, sges: &sges(&r.pieces, false) };
            match s.nic.post_recv(self.now, s.qpns[qp], &wr).unwrap() {
                Ok(()) => s.posted[qp].1 += 1,
                Err(e) => {
                    assert!(matches!(e, PostError::QueueFull(_)), "{e}");
                    break;
                }
            }
        }
        let sends = &p.programs[side].sends;
        while let Some(w) = sends.get(s.posted[qp].0)
            && rng.percent(80)
        {
            let list = sges(&w.pieces, w.bad_lkey);
            let inline: Vec<u8> = w.pieces.iter().flat_map(|p| s.region.read(p.at, p.len as usize)).collect();
            let data = if w.inline { WrData::Inline(&inline) } else { WrData::Sges(&list) };
            let key = if w.bad_rkey { RKey(0xffff_ff00) } else { peer_key };
            let mut op = w.op;
            if let WrOp::Write { rkey, .. }
            | WrOp::WriteWithImm { rkey, .. }
            | WrOp::Read { rkey, .. }
            | WrOp::Atomic { rkey, .. } = &mut op
            {
                *rkey = key;
            }
            let wr = SendWr { wr_id: w.wr_id, op, data, flags: w.flags, to: None };
            match s.nic.post_send(self.now, s.qpns[qp], &wr).unwrap() {
                Ok(()) => s.posted[qp].0 += 1,
                Err(e) => {
                    assert!(matches!(e, PostError::QueueFull(_)), "{e}");
                    break;
                }
            }
        }
    }

    fn poll(&mut self) {
        for s in &mut self.sides {
            let mut got = Vec::new();
            for (cq, lists) in [(&s.send_cq, &mut s.sent), (&s.recv_cq, &mut s.received)] {
                cq.poll(usize::MAX, &mut got).unwrap();
                for c in got.drain(..) {
                    let qp = s.qpns.iter().position(|q| *q == c.qpn).expect("one of our QPs");
                    lists[qp].push(c);
                }
            }
        }
    }

    fn all_posted(&self) -> bool {
        let full = |side: usize, s: &Side| {
            s.posted.iter().zip(&self.pairs).all(|(posted, p)| {
                *posted == (p.programs[side].sends.len(), p.programs[1 - side].recvs.len())
            })
        };
        self.sides.iter().enumerate().all(|(i, s)| full(i, s))
    }

    /// For whoever has to find out why it is stuck.
    fn describe(&self) -> String {
        let mut text = format!("{:?} at {:?}\n", self.knobs, self.now);
        for (side, s) in self.sides.iter().enumerate() {
            text += &format!("side {side}: {:?}\n", s.nic.counters());
            for (qp, p) in self.pairs.iter().enumerate() {
                let (sends, recvs) = (p.programs[side].sends.len(), p.programs[1 - side].recvs.len());
                let (_, state) = s.nic.query_qp(s.qpns[qp]).unwrap();
                text += &format!("qp {qp} poisoned {}: {sends} sends, {recvs} recvs, ", p.poisoned);
                text +=
                    &format!("posted {:?}, {:?}\nsends {:?}\n", s.posted[qp], state, p.programs[side].sends);
            }
        }
        text
    }

    /// Whether every work request has come to its end. The last of each program makes a completion always.
    fn done(&self) -> bool {
        let ended = |side: usize, s: &Side| {
            self.pairs.iter().enumerate().all(|(qp, p)| {
                let last = p.programs[side].sends.last().map(|w| w.wr_id);
                s.received[qp].len() >= p.programs[1 - side].recvs.len()
                    && s.sent[qp].last().map(|c| c.wr_id) == last
            })
        };
        let closed = self.pairs.iter().all(|p| p.closed || !p.poisoned);
        closed && self.all_posted() && self.sides.iter().enumerate().all(|(i, s)| ended(i, s))
    }

    fn check(&self, arenas: &[Arena; 2]) {
        for (side, s) in self.sides.iter().enumerate() {
            for (qp, p) in self.pairs.iter().enumerate() {
                p.programs[side].check_sends(&s.sent[qp], p.poisoned);
                p.programs[1 - side].check_recvs(&s.received[qp], p.poisoned);
                let state = s.nic.qp_state(s.qpns[qp]).unwrap();
                assert!(state == if p.poisoned { QpState::Err } else { QpState::Rts }, "{state}");
            }
            assert!(s.region.guards_hold(), "guards of side {side}");
            let (mut got, mut expected) = (s.region.read(0, s.region.len()), arenas[side].bytes.clone());
            for (at, len) in &arenas[side].vague {
                got[*at..][..*len].fill(0);
                expected[*at..][..*len].fill(0);
            }
            let differs = got.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(differs, None, "memory of side {side} differs from the model there");
        }
    }
}
