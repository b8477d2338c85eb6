//! Test that sends malicious packets with valid ICRCs to a NIC with connected QPs: the NIC must not panic or
//! write memory that the peer may not write, and another QP of the NIC must keep working.
//!
//! The service of the attacked QP depends on the seed, and whether it uses a shared receive queue.
//!
//! `URXE_SEEDS` sets the number of seeds, `URXE_SEED` runs a single one.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use urxe::memory::{Access, AtomicOp, Bind, Buffer, FastReg, PdId, Table, WindowKind};
use urxe::nic::{Nic, NicConfig, Personality, PortAddresses};
use urxe::transport::state::accepted_attrs;
use urxe::transport::{
    AckRequests, AddressVector, BurstLimits, Destination, Instant, Placement, QpAttr, QpInit, QpState,
    QpType, Quirks, RecvCaps, RecvWr, RxBurst, SendCaps, SendWr, SrqId, Tuning, TxQueue, WcStatus, WrOp,
    XrcdId,
};
use urxe::wire::{
    AckTimeout, Aeth, AtomicEth, Bth, Deth, Feth, Flow, Headers, IpIdent, LKey, Mtu, Opcode, PKey, Psn, QKey,
    Qpn, RKey, Reth, RnrTimer, Syndrome,
};
use urxe_test_support::engine::{self, PD, Region, Rng, TestCq};

const LOCAL_IP: [u8; 4] = [10, 0, 0, 1];
const PEER_IP: [u8; 4] = [10, 0, 0, 2];
const GROUP: [u8; 4] = [239, 0, 0, 1];
const QKEY: QKey = QKey(0x1111_1111);
const SERVICES: [QpType; 6] =
    [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcRecv, QpType::XrcSend];
const DOMAIN: XrcdId = XrcdId(3);
/// All access rights.
const ALL_ACCESS: Access = Access::ALL.union(Access::FLUSH_GLOBAL).union(Access::FLUSH_PERSISTENT);
const VICTIM: usize = 0;
const BYSTANDER: usize = 1;

struct Target {
    nic: Nic,
    memory: Table,
    tx: TxQueue,
    now: Instant,
    qpns: Vec<Qpn>,
    cqs: [TestCq; 2],
    /// Regions with, in this order: all access rights, remote read only, another protection domain, local
    /// write only.
    regions: Vec<Region>,
    bystander: Region,
    bystander_psn: u32,
    service: QpType,
    srq: Option<SrqId>,
    xrc_srq: Option<SrqId>,
    /// Initial key of the window; `fast` is the initial key of the fast-registered region of 256 bytes.
    window: RKey,
    fast: LKey,
    _fast_memory: Buffer,
    /// Destination address of the peer's packets.
    dst: IpAddr,
    rng: Rng,
}

impl Target {
    fn new(seed: u64) -> Target {
        let mut memory = Table::new();
        let mut region = |pd, iova, access| Region::new(&mut memory, pd, 8192, iova, access);
        let regions = vec![
            region(PD, 0x1000, ALL_ACCESS | Access::MW_BIND),
            region(PD, 0x10_0000, Access::REMOTE_READ),
            region(PdId(9), 0x20_0000, Access::ALL),
            region(PD, 0x30_0000, Access::LOCAL_WRITE),
        ];
        // The peer of the attacked QP does not know this key, and random keys are different.
        let bystander = region(PdId(7), 0, Access::ALL);
        let tuning = Tuning { min_timeout: Duration::ZERO, ..Tuning::default() };
        let port = PortAddresses { gids: vec![IpAddr::from(LOCAL_IP).into()], src_port: None };
        let nic = Nic::new(NicConfig { personality: Personality::STRICT, tuning, port, seed });
        let cqs = [0, 1].map(|handle| TestCq::new(handle, 1 << 16));
        let service = SERVICES[seed as usize % SERVICES.len()];
        let window = memory.alloc_window(PD, WindowKind::Type2B).unwrap();
        let fast_memory = Buffer::zeroed(256);
        // SAFETY: the buffer is stored in the same `Target` as the table, so the memory outlives every access
        // through the table.
        let fast = unsafe { memory.register_fast(PD, fast_memory.addr(), 256) }.unwrap().lkey;
        let mut t = Target {
            nic,
            service,
            srq: None,
            xrc_srq: None,
            window,
            fast,
            _fast_memory: fast_memory,
            memory,
            tx: TxQueue::new(BurstLimits::SEGMENTED),
            now: Instant(1),
            qpns: Vec::new(),
            cqs,
            regions,
            bystander,
            bystander_psn: 0,
            dst: LOCAL_IP.into(),
            rng: Rng::new(seed),
        };
        let recv = RecvCaps { max_wr: 8, max_sge: 2 };
        let xrc = matches!(service, QpType::XrcSend | QpType::XrcRecv);
        let shared = seed as usize % (2 * SERVICES.len()) >= SERVICES.len();
        t.srq = if shared && !xrc { t.nic.create_srq(PD, recv) } else { None };
        t.xrc_srq = if xrc { t.nic.create_xrc_srq(PD, DOMAIN, t.cqs[VICTIM].handle, recv) } else { None };
        for i in [VICTIM, BYSTANDER] {
            let init = QpInit {
                qp_type: if i == VICTIM { service } else { QpType::Rc },
                pd: if i == VICTIM { PD } else { PdId(7) },
                send: SendCaps { max_wr: 8, max_sge: 2, max_inline: 64 },
                recv,
                signal_all: true,
                srq: t.srq.filter(|_| i == VICTIM),
                domain: (i == VICTIM && service == QpType::XrcRecv).then_some(DOMAIN),
                quirks: Quirks {
                    ack_requests: AckRequests::Needed,
                    tail_loss_probes: true,
                    send_slots_until_polled: false,
                    ..Quirks::STRICT
                },
                port_mtu: Mtu::Mtu4096,
            };
            let qpn = t.nic.create_qp(&init, t.cqs[i].handle, t.cqs[i].handle).unwrap();
            t.qpns.push(qpn);
            t.connect(i);
        }
        if service == QpType::Ud {
            t.nic.attach_mcast(t.qpns[VICTIM], IpAddr::from(GROUP).into()).unwrap().unwrap();
        }
        t
    }

    fn connect(&mut self, qp: usize) {
        let to = |state| QpAttr::new(state);
        let psn = |rng: &mut Rng| Some(Psn::new(rng.next() as u32));
        let (rq, sq) = if qp == VICTIM {
            (psn(&mut self.rng), psn(&mut self.rng))
        } else {
            (Some(Psn::new(0)), Some(Psn::new(0)))
        };
        let first = to(QpState::Init).pkey_index(0).port(1);
        let path = to(QpState::Rtr)
            .av(AddressVector::to(IpAddr::from(PEER_IP).into()))
            .path_mtu(Mtu::Mtu256)
            .dest_qpn(Qpn::new(0x77))
            .rq_psn(rq);
        let start = to(QpState::Rts).sq_psn(sq);
        let init = first.access(ALL_ACCESS).qkey(QKEY);
        let rtr = path.max_dest_rd_atomic(4).min_rnr_timer(RnrTimer::new(1));
        let rts = start.timeout(AckTimeout::new(1)).retry_cnt(7).rnr_retry(7).max_rd_atomic(4);
        let service = if qp == VICTIM { self.service } else { QpType::Rc };
        let only =
            |from, attr: QpAttr| attr.only(accepted_attrs(service, from, attr.state.unwrap_or_default()));
        let steps = [
            to(QpState::Reset),
            only(QpState::Reset, init),
            only(QpState::Init, rtr),
            only(QpState::Rtr, rts),
        ];
        for attr in steps {
            self.nic.modify_qp(self.now, self.qpns[qp], &attr, &self.memory, &mut self.tx).unwrap().unwrap();
        }
    }

    fn flow(&self) -> Flow {
        Flow::new(PEER_IP.into(), self.dst, 0xc000)
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let burst = RxBurst::new(self.flow(), IpIdent::SENT, bytes.len().max(1), bytes);
        self.nic.handle_burst(self.now, &burst, &self.memory, &mut self.tx);
        self.take_outputs();
    }

    /// Moves the NIC's completions to the completion queues, and drops its events.
    fn take_outputs(&mut self) {
        let [victim, neighbour] = &mut self.cqs;
        engine::take_outputs(&mut self.nic, &mut [victim, neighbour], &mut VecDeque::new());
    }

    /// Transmits all pending packets, which must be well-formed, and returns their headers.
    fn transmit(&mut self) -> Vec<Headers> {
        let mut sent = Vec::new();
        while self.nic.wants_to_transmit() || self.nic.held_acknowledgements() > 0 {
            self.nic.transmit(self.now, &self.memory, &mut self.tx);
            engine::drain(&mut self.tx, |_, bytes| sent.push(engine::decode(&bytes).0));
            self.nic.emitted();
            self.take_outputs();
        }
        sent
    }

    /// Returns a random length, often at or near a limit such as the MTU.
    fn length(&mut self) -> u32 {
        let any = self.rng.next() as u32;
        let near = self.rng.below(600) as u32;
        self.rng.pick(&[0, 1, 8, 255, 256, 257, 512, near, near, 1 << 31, (1 << 31) + 1, u32::MAX, any])
    }

    fn key_and_address(&mut self) -> (RKey, u64) {
        let r = self.rng.below(self.regions.len() as u64) as usize;
        let region = &self.regions[r];
        let (key, iova, any) = (region.info.rkey, region.iova, self.rng.next());
        let offset = self.rng.below(8300) & !(self.rng.pick(&[0, 7]));
        let low = self.rng.next() as u32 & 3;
        let (window, fast) = (RKey(self.window.0 & !0xff | low), RKey(self.fast.0 & !0xff | low));
        if self.rng.percent(20) {
            return self.rng.pick(&[(window, self.regions[0].iova + 20), (fast, 0x9000)]);
        }
        let key =
            self.rng.pick(&[key, key, key, key, RKey(key.0 ^ 1), RKey(0), RKey(any as u32 | 0xff00_0000)]);
        (
            key,
            self.rng.pick(&[iova + offset, iova + offset, iova.wrapping_sub(offset), any, u64::MAX - offset]),
        )
    }

    /// Returns a packet with a random opcode, and fields that are likely to pass the checks.
    fn plausible(&mut self) -> Vec<u8> {
        let (attr, _) = self.nic.query_qp(self.qpns[VICTIM]).unwrap();
        let any_psn = Psn::new(self.rng.next() as u32);
        let (rq, sq) = (attr.rq_psn.unwrap(), attr.sq_psn.unwrap());
        let back = self.rng.below(6) as u32;
        let psn = self.rng.pick(&[rq, rq, rq, rq, rq + back, rq - back, sq - 1, sq - back, sq, any_psn]);
        let service = match self.service {
            QpType::Rc => 0,
            QpType::Uc => 0x20,
            QpType::Ud => 0x60,
            QpType::XrcSend | QpType::XrcRecv => 0xa0,
        };
        let opcode =
            if self.rng.percent(80) { service | self.rng.below(0x20) } else { self.rng.next() } as u8;
        let (rkey, va) = self.key_and_address();
        let dma_len = self.length();
        let syndrome = Syndrome::from_byte(self.rng.next() as u8);
        let group = self.dst.is_multicast() == self.rng.percent(95);
        let dest_qp = if group { Qpn::MULTICAST } else { self.qpns[VICTIM] };
        let bth = Bth {
            opcode: Opcode(opcode),
            solicited: self.rng.percent(20),
            pkey: if self.rng.percent(98) { PKey::DEFAULT } else { PKey(self.rng.next() as u16) },
            dest_qp,
            ack_req: self.rng.percent(50),
            psn,
            ..Bth::default()
        };
        let headers = Headers {
            bth,
            reth: Reth { va, rkey, dma_len },
            atomic: AtomicEth { va, rkey, swap_or_add: self.rng.next(), compare: self.rng.next() },
            aeth: Aeth { syndrome, msn: self.rng.next() as u32 },
            deth: Deth {
                qkey: if self.rng.percent(90) { QKEY } else { QKey(self.rng.next() as u32) },
                src_qp: Qpn::new(self.rng.next() as u32),
            },
            imm: self.rng.next() as u32,
            ieth: rkey,
            feth: Feth(if self.rng.percent(90) {
                1 + self.rng.below(3) as u32
            } else {
                self.rng.next() as u32
            }),
            xrceth: match self.xrc_srq {
                Some(srq) if self.rng.percent(95) => srq.0,
                _ => self.rng.next() as u32,
            },
            ..Headers::default()
        };
        let near = self.rng.below(600) as usize;
        let len = self.rng.pick(&[0, 0, 8, 256, 256, 256, 255, 260, near, dma_len as usize % 1024]);
        let payload: Vec<u8> = (0..len).map(|_| self.rng.next() as u8).collect();
        engine::encode(&headers, &payload, &self.flow())
    }

    /// Overwrites, truncates or appends some bytes of a packet, and then updates its ICRC.
    fn mutate(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..1 + self.rng.below(4) {
            match self.rng.below(6) {
                0 => bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize),
                1 => bytes.extend(vec![7; self.rng.below(64) as usize]),
                _ if bytes.is_empty() => {}
                _ => {
                    let at = self.rng.below(bytes.len().min(64) as u64) as usize;
                    bytes[at] = self.rng.next() as u8;
                }
            }
        }
        if bytes.len() >= 16 {
            if bytes[5..8] == self.qpns[BYSTANDER].get().to_be_bytes()[1..] {
                bytes[7] ^= 0x80;
            }
            engine::write_icrc(&mut bytes, &self.flow());
        }
        bytes
    }

    /// Returns a random local operation: a bind of the window, a registration of the fast-registered region,
    /// or an invalidation of either, often with a valid key.
    fn local_op(&mut self) -> WrOp {
        let (window, fast) = (self.window, self.fast);
        let key = |first: u32, low: u64| first & !0xff | low as u32 & 3;
        let (low, at) = (self.rng.next(), self.rng.below(64));
        let access = ALL_ACCESS;
        match self.rng.below(4) {
            0 => WrOp::BindMw(Bind {
                rkey: RKey(key(window.0, low)),
                region: self.regions[0].info.lkey,
                addr: self.regions[0].iova + at,
                len: 64,
                access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            }),
            1 => WrOp::LocalInv(RKey(key(window.0, low))),
            2 => WrOp::RegMr(FastReg {
                key: LKey(key(fast.0, low)),
                offset: at,
                len: 64,
                iova: 0x9000,
                access,
            }),
            _ => WrOp::LocalInv(RKey(key(fast.0, low))),
        }
    }

    /// Posts a random work request to the attacked QP, after reconnecting the QP if it has failed.
    fn post_random(&mut self) {
        let qpn = self.qpns[VICTIM];
        if matches!(self.nic.qp_state(qpn), Some(QpState::Err | QpState::Sqe)) {
            self.connect(VICTIM);
        }
        let (rkey, va) = self.key_and_address();
        let len = self.rng.below(700) as u32;
        let op = match self.rng.below(11) {
            0 => WrOp::Send,
            1 => WrOp::Write { va, rkey },
            2 | 3 => WrOp::Read { va, rkey },
            4 => WrOp::SendWithInv(rkey),
            5 => WrOp::AtomicWrite { va: va & !7, rkey, value: [1; 8] },
            6 => WrOp::Flush {
                va,
                rkey,
                len,
                placement: Placement::GLOBAL,
                whole_region: self.rng.percent(20),
            },
            7 | 8 => self.local_op(),
            _ => WrOp::Atomic { va, rkey, op: AtomicOp::FetchAdd(1) },
        };
        let len = if matches!(op, WrOp::Atomic { .. }) { 8 } else { len };
        let local = [self.regions[3].sge(self.rng.below(8192 - 700) as usize, len)];
        let av = AddressVector::to(IpAddr::from(PEER_IP).into());
        let to = Destination::Qp { pd: PD, av, qpn: Qpn::new(0x77), qkey: QKEY };
        let to = (self.service == QpType::Ud).then_some(to);
        let to = to.or(self.xrc_srq.map(Destination::Srq));
        let sges = if op.has_data() { &local[..] } else { &[] };
        let wr = SendWr::new(1, op, sges).to(to);
        let recv = RecvWr::new(2, &local);
        // Errors are expected: full queues, and operations that the service lacks.
        if self.rng.percent(50) {
            let _ = self.nic.post_send(qpn, &wr).unwrap();
        } else if let Some(srq) = self.srq.or(self.xrc_srq) {
            let _ = self.nic.with_srq(srq, |queue, _| queue.post(&recv)).unwrap();
        } else {
            let _ = self.nic.post_recv(qpn, &recv).unwrap();
        }
    }

    /// Delivers an 8-byte WRITE to the bystander QP, and checks the acknowledgement and the data.
    fn check_bystander(&mut self) {
        let (psn, stamp) = (self.bystander_psn, self.rng.next().to_ne_bytes());
        self.bystander_psn += 1;
        let bth = Bth {
            opcode: Opcode(0x0a),
            dest_qp: self.qpns[BYSTANDER],
            ack_req: true,
            psn: Psn::new(psn),
            ..Bth::default()
        };
        let reth = Reth { va: 16, rkey: self.bystander.info.rkey, dma_len: 8 };
        let bytes = engine::encode(&Headers { bth, reth, ..Headers::default() }, &stamp, &self.flow());
        self.transmit();
        self.deliver(&bytes);
        let sent = self.transmit();
        assert_eq!(sent.len(), 1, "expected one acknowledgement: {sent:?}");
        assert_eq!((sent[0].bth.opcode, sent[0].bth.psn), (Opcode(0x11), Psn::new(psn)));
        assert_eq!(sent[0].aeth, Aeth { syndrome: Syndrome::Ack { credits: 0 }, msn: psn + 1 });
        assert_eq!(self.bystander.read(16, 8), stamp);
        self.bystander.write(16, &(16..24).map(engine::pattern).collect::<Vec<_>>());
    }

    fn check_memory(&self) {
        let fresh: Vec<u8> = (0..8192).map(engine::pattern).collect();
        assert!(
            self.regions.iter().all(Region::guards_intact) && self.bystander.guards_intact(),
            "guard bytes"
        );
        assert!(self.regions[1].read(0, 8192) == fresh, "a read-only region was written");
        assert!(self.regions[2].read(0, 8192) == fresh, "a region of another protection domain was written");
        assert!(self.bystander.read(0, 8192) == fresh, "the region of the other QP was written");
    }
}

fn run(seed: u64) {
    let mut t = Target::new(seed);
    for round in 0..150 {
        if t.rng.percent(40) {
            t.post_random();
        }
        if t.rng.percent(60) {
            t.transmit();
        }
        t.dst = if t.rng.percent(20) { GROUP } else { LOCAL_IP }.into();
        let bytes = t.plausible();
        let bytes = match t.rng.below(10) {
            0..6 => bytes,
            6..9 => t.mutate(bytes),
            _ => {
                let noise = (0..t.rng.below(200)).map(|_| t.rng.next() as u8).collect();
                t.mutate(noise)
            }
        };
        t.deliver(&bytes);
        t.dst = LOCAL_IP.into();
        if t.rng.percent(10) {
            t.now = t.now + Duration::from_nanos(t.rng.below(40_000));
            t.nic.handle_timeouts(t.now, &t.memory, &mut t.tx);
        }
        if round % 16 == 0 {
            t.check_bystander();
        }
    }
    t.check_bystander();
    t.check_memory();
    t.take_outputs();
    assert_eq!(t.nic.qp_state(t.qpns[BYSTANDER]), Some(QpState::Rts));
    let mut out = Vec::new();
    t.cqs[BYSTANDER].poll(1, &mut out).unwrap();
    assert!(out.is_empty(), "unexpected completion of the other QP");
    t.cqs[VICTIM].poll(usize::MAX, &mut out).unwrap();
    assert!(out.iter().all(|c| c.status != WcStatus::Success || c.byte_len <= 1 << 31));
}

#[test]
fn hostile_packets_do_not_affect_other_memory_or_qps() {
    let env = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|v| v.parse::<u64>().unwrap_or_else(|_| panic!("{name}={v:?} is not a number")))
    };
    let range = match env("URXE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env("URXE_SEEDS").unwrap_or(2000),
    };
    for seed in range {
        let result = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = result {
            eprintln!("seed {seed} failed; repeat it with URXE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
