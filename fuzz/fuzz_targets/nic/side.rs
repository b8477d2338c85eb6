//! One of the two NICs, with its memory regions, the guard areas around them, and the work requests posted to
//! it.

use std::collections::VecDeque;
use std::time::Duration;

use urxe::memory::{Access, AtomicOp, Bind, Buffer, Extent, FastReg, PdId, RegionInfo, Table, WindowKind};
use urxe::nic::{CqHandle, Nic, NicConfig, NicOutput, Personality, PortAddresses};
use urxe::transport::state::accepted_attrs;
use urxe::transport::{
    AckRequests, AddressVector, BurstLimits, Completion, Destination, Instant, Placement, QpAttr, QpInit,
    QpState, QpType, Quirks, RecvCaps, RecvWr, RxBurst, SendCaps, SendFlags, SendWr, Sge, SrqId, Tuning,
    TxQueue, WcOpcode, WcStatus, WrData, WrOp, XrcdId,
};
use urxe::wire::{AckTimeout, Flow, Gid, IpIdent, LKey, Mtu, Packet, Psn, QKey, Qpn, RKey, RnrTimer, icrc};

use crate::input::Input;

/// Type of each connected queue pair, at the first side and at the second.
const SERVICES: [[QpType; 2]; PAIRS] = [
    [QpType::Rc, QpType::Rc],
    [QpType::Rc, QpType::Rc],
    [QpType::Rc, QpType::Rc],
    [QpType::Uc, QpType::Uc],
    [QpType::Ud, QpType::Ud],
    [QpType::XrcSend, QpType::XrcRecv],
    [QpType::XrcRecv, QpType::XrcSend],
];
/// Number of queue pairs that connect the two sides. Each side has one more, for a third peer.
pub const PAIRS: usize = 7;
const QKEY: QKey = QKey(0x1111_1111);
const DOMAIN: XrcdId = XrcdId(1);
/// All access rights.
const ALL_ACCESS: Access = Access::ALL.union(Access::FLUSH_GLOBAL).union(Access::FLUSH_PERSISTENT);
/// Length of the fast-registered region in bytes.
const FAST_REGION_LEN: usize = 256;
pub const MTU: usize = 256;

const GUARD: usize = 512;
/// Lengths in bytes of the three regions: one that grants peers all access rights, a read-only one, and one
/// in another protection domain.
const SIZES: [usize; 3] = [2560, 1024, 512];
const FILL: [u8; 4] = [0x11, 0x5a, 0x3c, 0xa5];
/// Virtual addresses of the regions, used by peers and in scatter/gather elements.
pub const IOVA: [u64; 3] = [0x1_0000, 0x7fff_ffff_f000, u64::MAX - 511];

const OWN_PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);

/// Handles of each side's completion queues: for sends, for receives, and for the third peer's queue pair.
const SEND_CQ: CqHandle = CqHandle(0);
const RECV_CQ: CqHandle = CqHandle(1);
const OTHER_CQ: CqHandle = CqHandle(2);
/// Number of completions that each queue holds.
const CQ_CAPACITY: usize = 512;

/// A completion queue of fixed capacity.
struct Cq {
    completions: Vec<Completion>,
    overflowed: bool,
}

#[derive(Default)]
struct Queue {
    /// `wr_id` of each outstanding send, and whether it is signaled; `recvs` holds the `wr_id` and the
    /// length of each outstanding receive.
    sends: VecDeque<(u64, bool)>,
    recvs: VecDeque<(u64, u32)>,
    next_id: u64,
}

pub struct Side {
    pub nic: Nic,
    number: u8,
    quirks: u8,
    memory: Table,
    tx: TxQueue,
    arena: Box<[u64]>,
    pub regions: [RegionInfo; 3],
    /// Initial R_Key of the memory window; `fast` is the initial L_Key of the fast-registered region.
    pub window: RKey,
    pub fast: LKey,
    _fast_memory: Buffer,
    /// Shared receive queue for XRC, with the same number as the peer's.
    pub srq: SrqId,
    /// Queue pair numbers of the peer.
    peers: Vec<Qpn>,
    pub qpns: Vec<Qpn>,
    psn: Psn,
    queues: Vec<Queue>,
    /// Completion queues by handle.
    cqs: [Cq; 3],
    delivered: u64,
    burst_bytes: Vec<u8>,
    completions: Vec<Completion>,
}

fn gid(number: u8) -> Gid {
    Gid::from(std::net::IpAddr::from([10, 0, 0, number + 1]))
}

/// Returns the offset of region `n` in the arena; `start(3)` is the arena's length.
fn start(n: usize) -> usize {
    SIZES[..n].iter().map(|s| s + GUARD).sum::<usize>() + GUARD
}

impl Side {
    pub fn new(number: u8, quirks: u8) -> Side {
        let small = quirks & 1 != 0;
        let mut nic = Nic::new(NicConfig {
            personality: Personality::STRICT,
            tuning: Tuning {
                window: if small { 1500 } else { 1 << 20 },
                read_chunk: if small { 512 } else { 1 << 30 },
                min_timeout: Duration::from_micros(10),
                max_ack_silence: Duration::from_micros(if small { 5 } else { 100 }),
                turn: if small { 3 } else { 256 },
                pace_unacknowledged: quirks & 64 != 0,
                min_probe_timeout: Duration::from_micros(if quirks & 32 != 0 { 5 } else { 1000 }),
                ..Tuning::default()
            },
            port: PortAddresses { gids: vec![gid(number)], src_port: None },
            seed: number.into(),
        });
        let mut arena = vec![u64::from_ne_bytes([FILL[3]; 8]); start(3) / 8].into_boxed_slice();
        for n in 0..3 {
            arena[start(n) / 8..(start(n) + SIZES[n]) / 8].fill(u64::from_ne_bytes([FILL[n]; 8]));
        }
        let mut memory = Table::new();
        let base = arena.as_mut_ptr().expose_provenance();
        let grants =
            [(OWN_PD, ALL_ACCESS | Access::MW_BIND), (OWN_PD, Access::REMOTE_READ), (OTHER_PD, Access::ALL)];
        let regions = [0, 1, 2].map(|n| {
            let (pd, access) = grants[n];
            // SAFETY: the arena lives as long as the table, and is read only after the last use of the NIC.
            unsafe {
                memory.register(pd, Extent { addr: base + start(n), len: SIZES[n], iova: IOVA[n], access })
            }
            .unwrap()
        });
        let window = memory.alloc_window(OWN_PD, WindowKind::Type2B).unwrap();
        let fast_memory = Buffer::zeroed(FAST_REGION_LEN);
        // SAFETY: the buffer is stored beside the table and lives as long.
        let fast = unsafe { memory.register_fast(OWN_PD, fast_memory.addr(), FAST_REGION_LEN) }.unwrap().lkey;
        let caps = RecvCaps { max_wr: 8, max_sge: 2 };
        let srq = nic.create_xrc_srq(OWN_PD, DOMAIN, RECV_CQ, caps).unwrap();
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: OWN_PD,
            send: SendCaps { max_wr: 8, max_sge: 3, max_inline: 64 },
            recv: caps,
            signal_all: false,
            srq: None,
            domain: None,
            quirks: Quirks {
                ack_requests: AckRequests::Needed,
                tail_loss_probes: true,
                send_slots_until_polled: false,
                ..Quirks::STRICT
            },
            port_mtu: Mtu::Mtu256,
        };
        let mut create = |qp: usize| {
            let qp_type = SERVICES[qp][usize::from(number)];
            let domain = (qp_type == QpType::XrcRecv).then_some(DOMAIN);
            let init = QpInit { qp_type, domain, ..init };
            nic.create_qp(&init, SEND_CQ, RECV_CQ).unwrap()
        };
        let mut qpns: Vec<Qpn> = (0..PAIRS).map(&mut create).collect();
        let init = QpInit { pd: OTHER_PD, ..init };
        qpns.push(nic.create_qp(&init, OTHER_CQ, OTHER_CQ).unwrap());
        let mut side = Side {
            nic,
            number,
            quirks,
            memory,
            tx: TxQueue::new(if small { BurstLimits::SINGLE } else { BurstLimits::SEGMENTED }),
            arena,
            regions,
            window,
            fast,
            _fast_memory: fast_memory,
            srq,
            peers: vec![Qpn::default(); PAIRS],
            qpns,
            // Close to the wraparound.
            psn: Psn::new(0xff_fff0 + number as u32),
            queues: (0..PAIRS).map(|_| Queue::default()).collect(),
            cqs: [(); 3].map(|()| Cq { completions: Vec::new(), overflowed: false }),
            delivered: 0,
            burst_bytes: Vec::new(),
            completions: Vec::new(),
        };
        side.connect_to(Instant(1), PAIRS, gid(8), Qpn::new(0x77), Psn::new(0x100));
        let sges = [Sge { addr: IOVA[2], length: 512, lkey: side.regions[2].lkey }];
        side.nic.post_recv(side.qpns[PAIRS], &RecvWr::new(1, &sges)).unwrap().unwrap();
        side
    }

    /// Returns the queue pair's number and its initial PSN, which the peer needs to connect.
    pub fn endpoint(&self, qp: usize) -> (Qpn, Psn) {
        (self.qpns[qp], self.psn)
    }

    /// Returns the flow that packets from the peer to this side belong to.
    pub fn flow_from_peer(&self) -> Flow {
        Flow::new(gid(1 - self.number).ip(), gid(self.number).ip(), 50_000)
    }

    pub fn connect(&mut self, now: Instant, qp: usize, peer: Qpn, peer_psn: Psn) {
        self.peers[qp] = peer;
        self.connect_to(now, qp, gid(1 - self.number), peer, peer_psn);
    }

    fn connect_to(&mut self, now: Instant, qp: usize, dgid: Gid, peer: Qpn, peer_psn: Psn) {
        // The second QP allows no WRITEs.
        let access = if qp == 1 { Access::REMOTE_READ } else { ALL_ACCESS };
        let init = QpAttr::new(QpState::Init).access(access).qkey(QKEY).pkey_index(0).port(1);
        let rtr = QpAttr::new(QpState::Rtr)
            .av(AddressVector::to(dgid))
            .path_mtu(Mtu::Mtu256)
            .dest_qpn(peer)
            .rq_psn(peer_psn)
            .max_dest_rd_atomic(3)
            .min_rnr_timer(RnrTimer::new(1));
        let rts = QpAttr::new(QpState::Rts)
            .sq_psn(self.psn)
            .timeout(AckTimeout::new(if self.quirks & 2 != 0 { 0 } else { 3 }))
            .retry_cnt(self.quirks >> 2 & 7)
            .rnr_retry(self.quirks >> 5)
            .max_rd_atomic(2);
        let service = self.service(qp);
        for (from, attr) in [(QpState::Reset, init), (QpState::Init, rtr), (QpState::Rtr, rts)] {
            self.modify_qp(now, qp, &attr.only(accepted_attrs(service, from, attr.state.unwrap())));
        }
    }

    pub fn service(&self, qp: usize) -> QpType {
        SERVICES.get(qp).map_or(QpType::Rc, |s| s[usize::from(self.number)])
    }

    fn modify_qp(&mut self, now: Instant, qp: usize, attr: &QpAttr) {
        let Side { nic, memory, tx, .. } = self;
        nic.modify_qp(now, self.qpns[qp], attr, memory, tx).unwrap().unwrap();
        self.take_outputs();
    }

    /// Moves a queue pair to ERR, to SQD or back to RTS, or through RESET to RTS.
    pub fn modify(&mut self, now: Instant, qp: usize, action: u8, peer: Qpn, peer_psn: Psn) {
        self.collect();
        let to = |state| QpAttr::new(state);
        let state = self.nic.qp_state(self.qpns[qp]).unwrap();
        match (action % 8, state) {
            (0, _) => self.modify_qp(now, qp, &to(QpState::Err)),
            (1, QpState::Rts) => self.modify_qp(now, qp, &to(QpState::Sqd)),
            (3, QpState::Sqe) | (_, QpState::Sqd) => self.modify_qp(now, qp, &to(QpState::Rts)),
            (2, _) | (_, QpState::Err | QpState::Sqe) => {
                self.modify_qp(now, qp, &to(QpState::Reset));
                self.queues[qp].sends.clear();
                // Receives of a shared queue remain, except one that a message has consumed.
                if self.service(qp) != QpType::XrcRecv {
                    self.queues[qp].recvs.clear();
                }
                self.connect(now, qp, peer, peer_psn);
            }
            _ => {}
        }
    }

    fn sge(&self, p: &mut Input<'_>, lengths: usize) -> Sge {
        let region = match p.u8() % 16 {
            14 => 1,
            15 => 2,
            _ => 0,
        };
        let addr = IOVA[region].wrapping_add(p.u8() as u64 * 8);
        let length = (p.u16() as usize % lengths) as u32;
        let lkey = if p.chance(32) { LKey(p.u16() as u32) } else { self.regions[region].lkey };
        Sge { addr, length, lkey }
    }

    pub fn post_send(&mut self, p: &mut Input<'_>) {
        let qp = p.below(PAIRS);
        let (va, rkey) = crate::craft::remote(&self.regions, p);
        let mut sges: Vec<Sge> = (0..p.below(4)).map(|_| self.sge(p, 900)).collect();
        let selector = p.u8();
        let key_variant = |key: u32, p: &mut Input<'_>| key & !0xff | u32::from(p.u8() & 3);
        let op = match selector & 7 {
            0 if selector & 0x18 == 0x10 => match p.u8() % 8 {
                0 => WrOp::SendWithInv(rkey),
                1 => WrOp::AtomicWrite { va: va & !7, rkey, value: [3; 8] },
                2 | 3 => WrOp::Flush {
                    va,
                    rkey,
                    len: p.u16().into(),
                    placement: Placement::GLOBAL,
                    whole_region: p.chance(4),
                },
                4 => WrOp::BindMw(Bind {
                    rkey: RKey(key_variant(self.window.0, p)),
                    region: self.regions[0].lkey,
                    addr: IOVA[0] + u64::from(p.u8()),
                    len: p.u16().into(),
                    access: Access::REMOTE_READ | Access::REMOTE_WRITE,
                }),
                5 => WrOp::RegMr(FastReg {
                    key: LKey(key_variant(self.fast.0, p)),
                    offset: p.u8().into(),
                    len: p.u8().into(),
                    iova: IOVA[0],
                    access: Access::ALL,
                }),
                6 => WrOp::LocalInv(RKey(key_variant(self.window.0, p))),
                _ => WrOp::LocalInv(RKey(key_variant(self.fast.0, p))),
            },
            0 => WrOp::Send,
            1 => WrOp::SendWithImm(7),
            2 => WrOp::Write { va, rkey },
            3 => WrOp::WriteWithImm { va, rkey, imm: 8 },
            4 | 5 => WrOp::Read { va, rkey },
            6 => WrOp::Atomic { va: va & !7, rkey, op: AtomicOp::FetchAdd(1) },
            _ => WrOp::Atomic { va, rkey, op: AtomicOp::CompareSwap { compare: 0, swap: 1 } },
        };
        if matches!(op, WrOp::Atomic { .. }) {
            sges.truncate(1);
            sges.iter_mut().for_each(|s| s.length = 8);
        }
        if !op.has_data() {
            sges.clear();
        }
        let inline = [9; 70];
        let data = match selector >> 3 & 3 {
            3 => WrData::Inline(&inline[..p.below(70)]),
            _ => WrData::Sges(&sges),
        };
        let flags = SendFlags {
            signaled: selector & 0x20 == 0,
            solicited: selector & 0x40 != 0,
            fence: selector & 0x80 != 0,
        };
        let to = match self.service(qp) {
            QpType::Ud => {
                let av = AddressVector::to(gid(1 - self.number));
                Some(Destination::Qp { pd: OWN_PD, av, qpn: self.peers[qp], qkey: QKEY })
            }
            QpType::XrcSend => Some(Destination::Srq(self.srq)),
            _ => None,
        };
        let queue = &mut self.queues[qp];
        let wr = SendWr::new(queue.next_id, op, &[]).data(data).flags(flags).to(to);
        // The request is recorded before it is posted, since a queue pair in ERR completes it at once.
        queue.sends.push_back((wr.wr_id, flags.signaled));
        queue.next_id += 1;
        if self.nic.post_send(self.qpns[qp], &wr).unwrap().is_err() {
            self.queues[qp].sends.pop_back();
        }
        self.take_outputs();
    }

    pub fn post_recv(&mut self, p: &mut Input<'_>) {
        let qp = p.below(PAIRS);
        let sges: Vec<Sge> = (0..p.below(3)).map(|_| self.sge(p, 1500)).collect();
        let queue = &mut self.queues[qp];
        queue.recvs.push_back((queue.next_id, sges.iter().map(|s| s.length).sum()));
        let wr = RecvWr::new(queue.next_id, &sges);
        queue.next_id += 1;
        let posted = match SERVICES[qp][usize::from(self.number)] {
            QpType::XrcRecv => self.nic.with_srq(self.srq, |queue, _| queue.post(&wr)).unwrap(),
            _ => self.nic.post_recv(self.qpns[qp], &wr).unwrap(),
        };
        if posted.is_err() {
            self.queues[qp].recvs.pop_back();
        }
        self.take_outputs();
    }

    pub fn receive(&mut self, now: Instant, burst: &RxBurst<'_>) {
        self.delivered += burst.packets().count() as u64;
        self.nic.handle_burst(now, burst, &self.memory, &mut self.tx);
        self.take_outputs();
        assert_eq!(self.nic.counters().rcvd_pkts, self.delivered);
    }

    pub fn timeouts(&mut self, now: Instant) {
        self.nic.handle_timeouts(now, &self.memory, &mut self.tx);
        self.take_outputs();
    }

    /// Transmits all pending packets, and calls `sink` with each packet's flow, IPv4 identification and
    /// bytes.
    pub fn transmit(&mut self, now: Instant, mut sink: impl FnMut(Flow, u16, &[u8])) {
        for turn in 0.. {
            assert!(turn < 2000, "the NIC still has packets to send after 2000 turns");
            let more = self.nic.transmit(now, &self.memory, &mut self.tx);
            for burst in self.tx.bursts() {
                self.burst_bytes.clear();
                burst.copy_to(&mut self.burst_bytes);
                for (i, bytes) in self.burst_bytes.chunks(burst.segment).enumerate() {
                    check_sent(&burst.flow, i as u16, bytes);
                    sink(burst.flow, i as u16, bytes);
                }
            }
            self.tx.clear();
            self.nic.emitted();
            self.take_outputs();
            if !more {
                break;
            }
        }
    }

    /// Moves the NIC's completions to the completion queues, and drops its other outputs.
    fn take_outputs(&mut self) {
        while let Some(output) = self.nic.poll_output() {
            if let NicOutput::Completion { cq, completion } = output {
                let Cq { completions, overflowed } = &mut self.cqs[cq.0 as usize];
                if completions.len() < CQ_CAPACITY {
                    completions.push(completion);
                } else {
                    *overflowed = true;
                    self.nic.on_cq_overflow(completion.qpn);
                }
            }
        }
    }

    /// Takes all completions of a queue. The caller empties the vector and returns it to `self.completions`,
    /// for reuse.
    fn take_completions(&mut self, cq: CqHandle) -> Vec<Completion> {
        let Cq { completions, overflowed } = &mut self.cqs[cq.0 as usize];
        assert!(!*overflowed || !completions.is_empty(), "a completion queue has overflowed");
        std::mem::replace(completions, std::mem::take(&mut self.completions))
    }

    /// Takes all completions, and checks them against the posted work requests.
    pub fn collect(&mut self) {
        let mut completions = self.take_completions(SEND_CQ);
        for c in completions.drain(..) {
            let queue = &mut self.queues[self.qpns.iter().position(|q| *q == c.qpn).unwrap()];
            loop {
                let (wr_id, signaled) =
                    queue.sends.pop_front().expect("a completion of a send that was not posted");
                if wr_id == c.wr_id {
                    assert!(signaled || c.status != WcStatus::Success, "{c:?} was not signaled");
                    break;
                }
                assert!(!signaled, "{c:?} completes before {wr_id}");
            }
            self.check_status(&c);
        }
        self.completions = completions;
        let mut completions = self.take_completions(RECV_CQ);
        for c in completions.drain(..) {
            let qp = self.qpns.iter().position(|q| *q == c.qpn).unwrap();
            let shared = self.service(qp) == QpType::XrcRecv;
            let recvs = &mut self.queues[qp].recvs;
            // A receive that a message had consumed is lost when its queue pair is reset.
            while shared && recvs.front().is_some_and(|(wr_id, _)| *wr_id < c.wr_id) {
                recvs.pop_front();
            }
            let (wr_id, capacity) = recvs.pop_front().expect("a completion of a receive that was not posted");
            assert_eq!(wr_id, c.wr_id, "{c:?} is not of the oldest receive");
            let fits = c.status != WcStatus::Success || c.opcode != WcOpcode::Recv || c.byte_len <= capacity;
            assert!(fits, "{c:?} is longer than its receive of {capacity}");
            self.check_status(&c);
        }
        self.completions = completions;
    }

    fn check_status(&self, c: &Completion) {
        let state = self.nic.qp_state(c.qpn).unwrap();
        let stopped = matches!(state, QpState::Err | QpState::Sqe);
        assert!(c.status == WcStatus::Success || stopped, "{c:?} in state {state}");
    }

    /// Checks that all posted work has completed, and that no memory was modified except where the peer may
    /// write.
    pub fn finish(&mut self, now: Instant) {
        self.collect();
        for qp in 0..PAIRS {
            self.modify_qp(now, qp, &QpAttr::new(QpState::Err));
        }
        self.collect();
        for (qp, queue) in self.queues.iter().enumerate() {
            let shared = self.service(qp) == QpType::XrcRecv;
            assert!(shared || queue.recvs.is_empty(), "receives {:?} are lost", queue.recvs);
            let lost: Vec<_> = queue.sends.iter().filter(|(_, signaled)| *signaled).collect();
            assert!(lost.is_empty(), "sends {lost:?} are lost");
        }
        assert_eq!(
            self.nic.qp_state(self.qpns[PAIRS]),
            Some(QpState::Rts),
            "the queue pair of the other protection domain"
        );
        assert!(
            self.cqs[OTHER_CQ.0 as usize].completions.is_empty(),
            "a completion of the other protection domain"
        );

        let fills = [(0, FILL[3]), (1, FILL[1]), (2, FILL[2])];
        let bytes: Vec<u8> = self.arena.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let assert_unmodified = |from: usize, len: usize, fill: u8| {
            let at = bytes[from..from + len].iter().position(|b| *b != fill);
            assert_eq!(at, None, "memory outside all regions was modified, at offset {from} of the arena");
        };
        for n in 0..4 {
            assert_unmodified(start(n) - GUARD, GUARD, FILL[3]);
        }
        for (n, fill) in fills.into_iter().skip(1) {
            assert_unmodified(start(n), SIZES[n], fill);
        }
    }
}

/// Checks that a sent packet is valid, which must hold whatever the NIC has received.
fn check_sent(flow: &Flow, index: u16, bytes: &[u8]) {
    assert!(icrc::verify(flow, IpIdent::SENT, index, bytes), "sent a wrong ICRC");
    let packet = Packet::parse(bytes).expect("a sent packet is valid");
    let (row, len) = (packet.row(), packet.payload().len());
    assert!(row.payload.allows(len, MTU), "{} with {len} bytes was sent", packet.bth().opcode);
}

/// Q_Key of all datagrams.
pub const PEER_QKEY: QKey = QKEY;

/// Returns the R_Key with which peers access region `n`.
pub fn rkey(regions: &[RegionInfo; 3], n: usize) -> RKey {
    regions[n].rkey
}
