//! Test bench: one NIC under test, a scripted peer, and virtual time.
//!
//! A case must expect every output of the NIC: an unexpected packet, completion or event, or a modified guard
//! byte, fails the case when the bench is dropped.

use std::collections::VecDeque;
use std::time::Duration;

use urxe::memory::{Access, Accessor, HostSlice, PdId, Table};
use urxe::nic::{Nic, NicConfig, Personality, PortAddresses};
use urxe::transport::state::accepted_attrs;
use urxe::transport::{
    AckRequests, AddressVector, AsyncEvent, BurstLimits, Completion, Counters, Destination, EgressRoom,
    GatheredPackets, Instant, ModifyError, PostError, QpAttr, QpInit, QpState, QpType, Quirks, RecvCaps,
    RecvWr, RxBurst, SendCaps, SendFlags, SendWr, Sge, SrqId, Tuning, TxQueue, WcOpcode, WcStatus, WrOp,
    XrcdId,
};
use urxe::wire::{AckTimeout, Flow, IpIdent, Mtu, Psn, QKey, Qpn, RnrTimer};

use super::pkt::{Pkt, Remote, message, resp};
use urxe_test_support::engine::{self, PD, Region, TestCq};

const LOCAL_IP: [u8; 4] = [10, 0, 0, 1];
const PEER_IP: [u8; 4] = [10, 0, 0, 2];
/// Alternate path: local address and peer address.
pub const ALTERNATE: ([u8; 4], [u8; 4]) = ([10, 0, 1, 1], [10, 0, 1, 2]);
/// QPN to which the first local QP is connected; each further local QP is connected to the next QPN.
const PEER_QPN: u32 = 0x77;
/// Q_Key of the QPs on both sides.
pub const QKEY: u32 = 0x1111_1111;
/// XRC domain of target QPs; `TARGET_PD` is their protection domain. `PEER_SRQ` is the number of the shared
/// receive queue to which initiators send.
pub const DOMAIN: XrcdId = XrcdId(5);
const TARGET_PD: PdId = PdId(50);
pub const PEER_SRQ: SrqId = SrqId(0x12_3456);
/// First PSN that a local QP sends.
pub const SQ: u32 = 0x500;
/// First PSN that a local QP expects.
pub const RQ: u32 = 0x100;

/// A duration longer than any case takes.
pub const NEVER: Duration = Duration::from_secs(1 << 20);

pub struct Setup {
    pub qp_type: QpType,
    /// Whether the QPs share one receive queue.
    pub shared: bool,
    pub qkey: u32,
    /// Capacity of each completion queue in entries.
    pub cqe: usize,
    pub mtu: Mtu,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub access: Access,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub max_rd: u8,
    pub max_dest_rd: u8,
    pub signal_all: bool,
    /// Tuning parameters of the NIC. By default the probe timeout is longer than any case; cases that test
    /// probes set a shorter one.
    pub tuning: Tuning,
    /// Quirks of the NIC. By default end-to-end credits are disabled, because every acknowledgement would
    /// carry them; cases that test credits enable them.
    pub quirks: Quirks,
    pub qps: usize,
    /// State of the QPs when the case starts.
    pub state: QpState,
}

pub struct Bench {
    pub nic: Nic,
    pub memory: Table,
    pub tx: TxQueue,
    pub now: Instant,
    pub qpns: Vec<Qpn>,
    /// Region of 64 KiB at [`Bench::IOVA`] with all access rights.
    pub mr: Region,
    pub regions: Vec<Region>,
    pub srq: Option<SrqId>,
    pub send_cq: TestCq,
    pub recv_cq: TestCq,
    /// Asynchronous events not yet taken by the case.
    events: VecDeque<AsyncEvent>,
    /// Path that all packets take in both directions: local address and peer address.
    pub path: ([u8; 4], [u8; 4]),
    /// Traffic class of the peer's packets.
    pub traffic_class: u8,
    setup: Setup,
}

/// A completion reduced to the fields that cases compare: for an error, only `wr_id` and `status`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wc {
    wr_id: u64,
    status: WcStatus,
    rest: Option<(WcOpcode, u32, Option<u32>, bool)>,
}

pub fn ok(wr_id: u64, opcode: WcOpcode, len: u32) -> Wc {
    Wc { wr_id, status: WcStatus::Success, rest: Some((opcode, len, None, false)) }
}

pub fn bad(wr_id: u64, status: WcStatus) -> Wc {
    Wc { wr_id, status, rest: None }
}

pub fn flushed(wr_id: u64) -> Wc {
    bad(wr_id, WcStatus::WrFlushErr)
}

impl Wc {
    pub fn imm(mut self, imm: u32) -> Wc {
        self.rest.as_mut().unwrap().2 = Some(imm);
        self
    }

    pub fn solicited(mut self) -> Wc {
        self.rest.as_mut().unwrap().3 = true;
        self
    }
}

impl From<Completion> for Wc {
    fn from(c: Completion) -> Wc {
        let rest = (c.status == WcStatus::Success).then_some((c.opcode, c.byte_len, c.imm, c.solicited));
        Wc { wr_id: c.wr_id, status: c.status, rest }
    }
}

impl Bench {
    pub const IOVA: u64 = 0x10_0000;

    /// Returns a bench with one QP in RTS: MTU 256, an ACK timeout of 67 ms, 3 retries of each kind, and 4
    /// outstanding READs in each direction.
    pub fn new() -> Bench {
        Bench::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Setup)) -> Bench {
        let mut setup = Setup {
            qp_type: QpType::Rc,
            shared: false,
            qkey: QKEY,
            cqe: 1024,
            mtu: Mtu::Mtu256,
            rq_psn: RQ,
            sq_psn: SQ,
            access: Access::ALL,
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 3,
            rnr_timer: 12,
            max_rd: 4,
            max_dest_rd: 4,
            signal_all: false,
            tuning: Tuning { min_probe_timeout: NEVER, ..Tuning::default() },
            quirks: Quirks {
                credits: false,
                ack_requests: AckRequests::Needed,
                tail_loss_probes: true,
                send_slots_until_polled: false,
                ..Quirks::STRICT
            },
            qps: 1,
            state: QpState::Rts,
        };
        change(&mut setup);
        let port = PortAddresses {
            gids: [LOCAL_IP, ALTERNATE.0].map(|ip| std::net::IpAddr::from(ip).into()).into(),
            src_port: None,
        };
        let personality = Personality::STRICT.quirks(setup.quirks);
        let nic = Nic::new(NicConfig { personality, tuning: setup.tuning, port, seed: 1 });
        let mut memory = Table::new();
        let mr = Region::new(&mut memory, PD, 1 << 16, Bench::IOVA, Access::ALL);
        let mut bench = Bench {
            nic,
            memory,
            tx: TxQueue::new(BurstLimits::SEGMENTED),
            now: Instant(1_000_000_000),
            qpns: Vec::new(),
            mr,
            regions: Vec::new(),
            srq: None,
            send_cq: TestCq::new(1, setup.cqe),
            recv_cq: TestCq::new(2, setup.cqe),
            events: VecDeque::new(),
            path: (LOCAL_IP, PEER_IP),
            traffic_class: 0,
            setup,
        };
        let recv = RecvCaps { max_wr: 64, max_sge: 4 };
        bench.srq = match bench.setup.qp_type {
            QpType::XrcRecv => Some(bench.xrc_srq(PD, DOMAIN)),
            _ => bench.setup.shared.then(|| bench.nic.create_srq(PD, recv).unwrap()),
        };
        for i in 0..bench.setup.qps {
            let init = QpInit {
                qp_type: bench.setup.qp_type,
                pd: if bench.setup.qp_type == QpType::XrcRecv { TARGET_PD } else { PD },
                send: SendCaps { max_wr: 64, max_sge: 4, max_inline: 600 },
                recv: if bench.setup.shared { RecvCaps::default() } else { recv },
                signal_all: bench.setup.signal_all,
                srq: bench.srq.filter(|_| bench.setup.qp_type != QpType::XrcRecv),
                domain: (bench.setup.qp_type == QpType::XrcRecv).then_some(DOMAIN),
                quirks: bench.setup.quirks,
                port_mtu: Mtu::Mtu1024,
            };
            let qpn = bench.nic.create_qp(&init, bench.send_cq.handle, bench.recv_cq.handle).unwrap();
            bench.qpns.push(qpn);
            bench.connect(i, bench.setup.state);
        }
        bench
    }

    /// Returns a bench, the range of a READ whose response is too long for one transmit turn, and the packets
    /// of that response.
    pub fn long_read() -> (Bench, Remote, Vec<Pkt>) {
        let mut b = Bench::with(|s| s.mtu = Mtu::Mtu4096);
        let len = 3 << 19;
        b.region(PD, len, 0, Access::ALL);
        let response = message(4096, &b.regions[0].read(0, len), |p, n, d| resp(p, n, 1, d), RQ);
        let from = (0, b.regions[0].info.rkey, len as u32);
        (b, from, response)
    }

    /// Returns the attributes for the transition to `state` from the preceding state.
    pub fn attr(&self, qp: usize, state: QpState) -> QpAttr {
        let (s, base) = (&self.setup, QpAttr::new(state));
        let first = base.pkey_index(0).port(1);
        let path = base
            .av(AddressVector::to(std::net::IpAddr::from(PEER_IP).into()))
            .path_mtu(s.mtu)
            .dest_qpn(Qpn::new(PEER_QPN + qp as u32))
            .rq_psn(Psn::new(s.rq_psn));
        let (before, attr) = match state {
            QpState::Init => (QpState::Reset, first.access(s.access).qkey(QKey(s.qkey))),
            QpState::Rtr => {
                let min_rnr_timer = Some(RnrTimer::new(s.rnr_timer));
                (QpState::Init, path.max_dest_rd_atomic(s.max_dest_rd).min_rnr_timer(min_rnr_timer))
            }
            QpState::Rts => (
                QpState::Rtr,
                base.sq_psn(Psn::new(s.sq_psn))
                    .timeout(AckTimeout::new(s.timeout))
                    .retry_cnt(s.retry_cnt)
                    .rnr_retry(s.rnr_retry)
                    .max_rd_atomic(s.max_rd),
            ),
            _ => return base,
        };
        attr.only(accepted_attrs(s.qp_type, before, state))
    }

    /// Moves a QP from RESET up to `state`.
    pub fn connect(&mut self, qp: usize, state: QpState) {
        for step in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
            if step as u32 <= state as u32 {
                let attr = self.attr(qp, step);
                self.modify(qp, attr).unwrap();
            }
        }
        if state == QpState::Err {
            self.modify(qp, self.attr(qp, QpState::Err)).unwrap();
        }
    }

    pub fn modify(&mut self, qp: usize, attr: QpAttr) -> Result<(), ModifyError> {
        let modified = self.nic.modify_qp(self.now, self.qpns[qp], &attr, &self.memory, &mut self.tx);
        self.take_outputs();
        modified.unwrap()
    }

    pub fn set_state(&mut self, state: QpState) {
        self.modify(0, QpAttr::new(state)).unwrap();
    }

    pub fn region(&mut self, pd: PdId, len: usize, iova: u64, access: Access) -> usize {
        self.regions.push(Region::new(&mut self.memory, pd, len, iova, access));
        self.regions.len() - 1
    }

    /// Creates an XRC shared receive queue whose completions go to [`Bench::recv_cq`].
    pub fn xrc_srq(&mut self, pd: PdId, domain: XrcdId) -> SrqId {
        let caps = RecvCaps { max_wr: 64, max_sge: 4 };
        self.nic.create_xrc_srq(pd, domain, self.recv_cq.handle, caps).unwrap()
    }

    /// Returns the first QP's identity for access checks in the memory table.
    pub fn accessor(&self) -> Accessor {
        Accessor { pd: PD, qpn: self.qpns[0] }
    }

    /// Posts a signaled work request without scatter/gather elements.
    pub fn post_no_data(&mut self, wr_id: u64, op: WrOp) {
        self.post_sges(wr_id, op, &[], SendFlags::SIGNALED).unwrap();
    }

    /// Returns the first PSN that each local QP sends.
    pub fn first_psn(&self) -> u32 {
        self.setup.sq_psn
    }

    /// Returns the RETH contents for `len` bytes at offset `at` of [`Bench::mr`].
    pub fn remote(&self, at: usize, len: u32) -> Remote {
        (self.mr.va(at), self.mr.info.rkey, len)
    }

    // ---- Application side ----

    pub fn recv(&mut self, wr_id: u64, at: usize, len: u32) {
        let sge = self.mr.sge(at, len);
        self.recv_sges(wr_id, &[sge]).unwrap();
    }

    pub fn recv_sges(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let wr = RecvWr::new(wr_id, sges);
        let posted = match self.srq {
            Some(srq) => self.nic.with_srq(srq, |queue, _| queue.post(&wr)).unwrap(),
            None => self.nic.post_recv(self.qpns[0], &wr).unwrap(),
        };
        self.take_outputs();
        posted
    }

    /// Posts a signaled work request for `len` bytes at offset `at` of [`Bench::mr`].
    pub fn post(&mut self, wr_id: u64, op: WrOp, at: usize, len: u32) {
        let sges = [self.mr.sge(at, len)];
        self.post_sges(wr_id, op, &sges, SendFlags::SIGNALED).unwrap();
    }

    pub fn post_sges(
        &mut self,
        wr_id: u64,
        op: WrOp,
        sges: &[Sge],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let to = match self.setup.qp_type {
            QpType::Ud => Some(self.to(QKEY)),
            QpType::XrcSend => Some(Destination::Srq(PEER_SRQ)),
            _ => None,
        };
        self.post_on(0, &SendWr::new(wr_id, op, sges).flags(flags).to(to))
    }

    /// Returns the destination of datagrams to the peer's first QP.
    pub fn to(&self, qkey: u32) -> Destination {
        let av = AddressVector::to(std::net::IpAddr::from(PEER_IP).into());
        Destination::Qp { pd: PD, av, qpn: Qpn::new(PEER_QPN), qkey: QKey(qkey) }
    }

    pub fn post_on(&mut self, qp: usize, wr: &SendWr<'_>) -> Result<(), PostError> {
        let posted = self.nic.post_send(self.qpns[qp], wr).unwrap();
        self.take_outputs();
        posted
    }

    /// Moves the NIC's completions and events to the bench's queues.
    fn take_outputs(&mut self) {
        let cqs = &mut [&mut self.send_cq, &mut self.recv_cq];
        engine::take_outputs(&mut self.nic, cqs, &mut self.events);
    }

    #[track_caller]
    pub fn sends(&mut self, expected: &[Wc]) {
        self.take_outputs();
        assert_eq!(poll(&mut self.send_cq), expected, "send completions");
    }

    #[track_caller]
    pub fn recvs(&mut self, expected: &[Wc]) {
        assert_eq!(self.received(), expected, "receive completions");
    }

    /// Polls the receive CQ until it is empty.
    pub fn received(&mut self) -> Vec<Wc> {
        self.take_outputs();
        poll(&mut self.recv_cq)
    }

    /// Polls the send CQ until it is empty, and returns the opcodes of the completions.
    pub fn sent_opcodes(&mut self) -> Vec<WcOpcode> {
        self.take_outputs();
        let mut out = Vec::new();
        self.send_cq.poll(usize::MAX, &mut out).expect("the CQ has overflowed");
        out.iter().map(|c| c.opcode).collect()
    }

    /// Polls the receive CQ, which must contain exactly one completion, and returns that completion.
    pub fn raw_recv(&mut self) -> Completion {
        self.take_outputs();
        let mut out = Vec::new();
        self.recv_cq.poll(2, &mut out).expect("the CQ has overflowed");
        assert_eq!(out.len(), 1);
        out[0]
    }

    /// Takes the oldest event.
    pub fn next_event(&mut self) -> Option<AsyncEvent> {
        self.take_outputs();
        self.events.pop_front()
    }

    #[track_caller]
    pub fn events(&mut self, expected: &[fn(Qpn) -> AsyncEvent]) {
        let got: Vec<_> = std::iter::from_fn(|| self.next_event()).collect();
        let expected: Vec<_> = expected.iter().map(|e| e(self.qpns[0])).collect();
        assert_eq!(got, expected, "events");
    }

    #[track_caller]
    pub fn state(&self, expected: QpState) {
        assert_eq!(self.nic.qp_state(self.qpns[0]), Some(expected));
    }

    pub fn count(&self) -> &Counters {
        self.nic.counters()
    }

    // ---- Peer side ----

    pub fn flow(&self) -> Flow {
        let (local, peer) = self.path;
        Flow { traffic_class: self.traffic_class, ..Flow::new(peer.into(), local.into(), 0xc000) }
    }

    /// Delivers `packets` from the peer without transmitting the responses. Packets of equal length, and a
    /// shorter one after them, arrive as one burst.
    pub fn deliver(&mut self, packets: &[Pkt]) {
        self.deliver_as(IpIdent::Unknown, packets);
    }

    /// Delivers `packets` like [`deliver`](Self::deliver), as packets with the given identification.
    pub fn deliver_as(&mut self, ident: IpIdent, packets: &[Pkt]) {
        let flow = self.flow();
        let (mut burst, mut segment) = (Vec::new(), 0);
        for p in packets {
            let mut h = p.h;
            h.bth.dest_qp = self.qpns[p.qp];
            let bytes = engine::encode(&h, &p.data, &flow);
            let ends_burst = !burst.len().is_multiple_of(segment.max(1));
            if !burst.is_empty() && (ends_burst || bytes.len() > segment) {
                self.burst(&flow, ident, segment, &burst);
                burst.clear();
            }
            if burst.is_empty() {
                segment = bytes.len();
            }
            burst.extend_from_slice(&bytes);
        }
        self.burst(&flow, ident, segment, &burst);
    }

    fn burst(&mut self, flow: &Flow, ident: IpIdent, segment: usize, data: &[u8]) {
        let burst = RxBurst::new(*flow, ident, segment, data);
        self.nic.handle_burst(self.now, &burst, &self.memory, &mut self.tx);
        self.take_outputs();
    }

    /// Delivers packets of a NIC of the same process, whose payloads are in the given slices, or in the
    /// packet if there are none. `before` runs when the packets have been queued.
    pub fn deliver_directly(&mut self, flow: &Flow, packets: &[(Pkt, &[HostSlice])], before: impl FnOnce()) {
        let mut queue = TxQueue::with_deferred_icrc(BurstLimits::SEGMENTED);
        for (p, slices) in packets {
            let mut h = p.h;
            let dest_qp = if flow.dst.is_multicast() { Qpn::MULTICAST } else { self.qpns[p.qp] };
            (h.bth.dest_qp, h.bth.pad) = (dest_qp, 0);
            match slices {
                [] => queue.push(flow, h, &p.data),
                slices => queue.push_host(flow, &h, slices).unwrap(),
            }
        }
        before();
        let mut direct = GatheredPackets::default();
        for burst in queue.bursts() {
            direct.deliver(&burst, &mut |burst| {
                assert!(burst.leaves_payloads_out(), "the payloads are in the sender's memory");
                self.nic.handle_burst(self.now, &burst, &self.memory, &mut self.tx);
            });
        }
        self.take_outputs();
    }

    pub fn raw(&mut self, flow: &Flow, bytes: &[u8]) {
        let burst = RxBurst::new(*flow, IpIdent::SENT, bytes.len(), bytes);
        self.nic.handle_burst(self.now, &burst, &self.memory, &mut self.tx);
        self.take_outputs();
    }

    /// Returns the packets that the NIC sends in one transmit turn.
    pub fn turn(&mut self) -> Vec<Pkt> {
        self.nic.transmit(self.now, &self.memory, &mut self.tx);
        self.drain()
    }

    /// Returns the packets that the NIC sends in one transmit turn to a link with room for certain
    /// priorities.
    pub fn turn_within(&mut self, room: EgressRoom) -> Vec<Pkt> {
        self.nic.transmit_within(self.now, Some(room), false, &self.memory, &mut self.tx);
        self.drain()
    }

    fn drain(&mut self) -> Vec<Pkt> {
        self.take_outputs();
        let mut got = Vec::new();
        let path = self.path;
        engine::drain(&mut self.tx, |flow, bytes| {
            assert_eq!((flow.src, flow.dst), (path.0.into(), path.1.into()));
            let (mut h, data) = engine::decode(&bytes);
            let qp = (h.bth.dest_qp.get() - PEER_QPN) as usize;
            h.bth.dest_qp = Qpn::default();
            got.push(Pkt { h, data, qp });
        });
        self.nic.emitted();
        self.take_outputs();
        got
    }

    /// Destroys the queue pairs, so that their remaining packets and completions are not checked.
    pub fn discard(mut self) {
        for qpn in self.qpns.clone() {
            self.nic.destroy_qp(qpn);
        }
        self.sent_opcodes();
    }

    /// Runs transmit turns until the NIC sends nothing more, and returns all packets sent.
    pub fn sent(&mut self) -> Vec<Pkt> {
        let mut got = self.turn();
        while self.nic.wants_to_transmit() {
            got.extend(self.turn());
        }
        got
    }

    /// Asserts that the NIC now sends exactly `expected`.
    #[track_caller]
    pub fn expect(&mut self, expected: &[Pkt]) {
        let got = self.sent();
        if got != expected {
            panic!("sent:\n  {}\nexpected:\n  {}", lines(&got), lines(expected));
        }
    }

    /// Asserts that the NIC now sends nothing.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        self.expect(&[]);
    }

    /// Delivers `packets` from the peer and asserts that the NIC responds with exactly `expected`.
    #[track_caller]
    pub fn exchange(&mut self, packets: &[Pkt], expected: &[Pkt]) {
        self.deliver(packets);
        self.expect(expected);
    }

    /// Advances the clock by `by`, and handles each timer when it expires.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.nic.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.nic.handle_timeouts(self.now, &self.memory, &mut self.tx);
            self.take_outputs();
        }
        self.now = end;
        self.nic.handle_timeouts(self.now, &self.memory, &mut self.tx);
        self.take_outputs();
    }
}

fn poll(cq: &mut TestCq) -> Vec<Wc> {
    let mut out = Vec::new();
    // The error reports lost completions; cases on overflow check for it themselves.
    let _ = cq.poll(usize::MAX, &mut out);
    out.into_iter().map(Wc::from).collect()
}

fn lines(packets: &[Pkt]) -> String {
    let lines: Vec<_> = packets.iter().map(|p| format!("{p:?}")).collect();
    lines.join("\n  ")
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.expect_nothing();
            self.sends(&[]);
            self.recvs(&[]);
            self.events(&[]);
            assert!(
                self.mr.guards_intact() && self.regions.iter().all(Region::guards_intact),
                "guard bytes were modified"
            );
        }
    }
}
