//! Model of UC and UD responders. It predicts the effect of each arriving packet, so the expected result is
//! exact.
//!
//! UC: the packets of a message arrive consecutively and in order, or the message is dropped (IBA 9.8.2.2). A
//! FIRST packet with any PSN begins a message, so a message that the wire duplicates completely is received
//! twice, and messages that the wire reorders completely are received in the new order. Data that a dropped
//! SEND has stored remains stored; its receive is used for the next message of the same queue pair.

use std::net::IpAddr;

use urxe::memory::{Access, FastReg};
use urxe::transport::{Completion, WcOpcode, WcStatus, WrOp};
use urxe::wire::{LKey, QKey, Qpn, RKey};

use super::grants::GrantKind;
use super::memory::{self, Arena};
use super::program::{Key, Send, Target, To, flags, length, signal_last, transfer};
use super::receives::Pool;
use urxe_test_support::engine::Rng;

/// Length of the GRH area in bytes.
pub const GRH_LEN: usize = 40;

/// Model of a queue pair's responder.
#[derive(Default)]
pub struct Responder {
    /// Index of the message in progress, and index of its next packet.
    in_progress: Option<(usize, u32)>,
    /// Receive consumed by the message in progress or by a dropped one.
    consumed: Option<usize>,
    /// Whether the queue pair has entered ERR or been destroyed.
    pub failed: bool,
    /// Expected completions on the receive CQ.
    pub expected: Vec<Completion>,
}

/// A packet that arrives at a queue pair.
pub struct Arrival<'a> {
    pub send: &'a Send,
    /// Index of the sender's work request; `packet` is the index of the packet within the message.
    pub message: usize,
    pub packet: u32,
    pub mtu: usize,
    pub from: Qpn,
}

/// Returns a successful receive completion of QP `qpn` for a message from QP `src_qpn`, with defaults in all
/// other fields.
pub fn completion(qpn: Qpn, src_qpn: Qpn) -> Completion {
    let mut completion = Completion::new(0, qpn, WcOpcode::Recv, WcStatus::Success);
    completion.src_qpn = src_qpn;
    completion
}

impl Responder {
    /// Returns the receive for the next packet: the one already consumed, or the oldest posted one.
    fn receive(&self, pool: &Pool) -> Option<usize> {
        self.consumed.or(pool.waiting.front().copied())
    }

    fn consume(&mut self, pool: &mut Pool) {
        if self.consumed.is_none() {
            self.consumed = pool.waiting.pop_front();
        }
    }

    fn complete(&mut self, pool_index: usize, pool: &mut Pool, completion: Completion) {
        self.consume(pool);
        let index = self.consumed.take().expect("the receive was found before");
        let mut expected = completion;
        expected.wr_id = Pool::wr_id(pool_index, index);
        self.expected.push(expected);
    }

    /// Processes a packet of a UC message, and updates `bytes`, the expected memory of the receiving side.
    pub fn connected(
        &mut self,
        a: &Arrival<'_>,
        us: Qpn,
        (index, pool): (usize, &mut Pool),
        bytes: &mut [u8],
    ) {
        let s = a.send;
        let continues = self.in_progress.take() == Some((a.message, a.packet));
        if self.failed || !(continues || a.packet == 0) {
            return;
        }
        let at = a.packet as usize * a.mtu;
        let part = &s.data[at..s.data.len().min(at + a.mtu)];
        let last = a.packet + 1 == s.packets(a.mtu);
        let receive = self.receive(pool);
        if s.is_send() {
            let Some(receive) = receive else { return };
            if at + part.len() > pool.recvs[receive].capacity() {
                return;
            }
            self.consume(pool);
            memory::store(bytes, &pool.recvs[receive].pieces, at, part);
        } else {
            if s.key == Key::Wrong && !s.data.is_empty() || last && s.imm().is_some() && receive.is_none() {
                return;
            }
            let place = s.place.expect("a WRITE has a target address");
            bytes[place + at..][..part.len()].copy_from_slice(part);
        }
        if !last {
            self.in_progress = Some((a.message, a.packet + 1));
        } else if let Some(opcode) = s.receive_opcode() {
            let mut done = completion(us, a.from);
            (done.opcode, done.byte_len, done.imm) = (opcode, s.data.len() as u32, s.imm());
            done.solicited = s.flags.solicited;
            self.complete(index, pool, done);
        }
    }

    /// Processes a datagram with a valid Q_Key, and stores `grh` and its data. A datagram longer than its
    /// receive is dropped.
    pub fn datagram(
        &mut self,
        a: &Arrival<'_>,
        grh: &[u8; GRH_LEN],
        us: Qpn,
        (index, pool): (usize, &mut Pool),
        bytes: &mut [u8],
    ) {
        let s = a.send;
        let Some(receive) = self.receive(pool).filter(|_| !self.failed) else { return };
        let recv = &pool.recvs[receive];
        let len = GRH_LEN + s.data.len();
        let mut done = completion(us, a.from);
        (done.byte_len, done.imm, done.solicited) = (len as u32, s.imm(), s.flags.solicited);
        (done.grh, done.over_ipv4) = (true, grh[0] == 0);
        if len > recv.capacity() {
            return;
        }
        memory::store(bytes, &recv.pieces, 0, grh);
        memory::store(bytes, &recv.pieces, GRH_LEN, &s.data);
        self.complete(index, pool, done);
    }

    /// Records that a receive was posted; a failed queue pair flushes it.
    pub fn posted(&mut self, receive: usize, us: Qpn, (index, pool): (usize, &mut Pool)) {
        pool.waiting.push_back(receive);
        if self.failed && !pool.shared {
            self.complete(index, pool, flushed(us));
        }
    }

    /// Records that the queue pair has entered ERR, which flushes its receives.
    pub fn fail(&mut self, us: Qpn, (index, pool): (usize, &mut Pool)) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        self.in_progress = None;
        let flushed = flushed(us);
        while self.consumed.is_some() || !pool.shared && !pool.waiting.is_empty() {
            self.complete(index, pool, flushed);
        }
    }
}

/// Returns the completion of a receive that QP `qpn` flushes.
fn flushed(qpn: Qpn) -> Completion {
    let mut flushed = completion(qpn, qpn);
    flushed.status = WcStatus::WrFlushErr;
    flushed
}

/// Returns the 40-byte GRH area for a packet: its IPv6 header, or its IPv4 header in the last 20 bytes (annex
/// A17.4.5.1).
pub fn grh(src: IpAddr, dst: IpAddr, udp_payload: usize) -> [u8; GRH_LEN] {
    let mut h = [0; GRH_LEN];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut h[20..];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(20 + 8 + udp_payload as u16).to_be_bytes());
            // Don't Fragment; 64 hops; UDP.
            (ip[6], ip[8], ip[9]) = (0x40, 64, 17);
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[10..12].copy_from_slice(&folded.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            h[0] = 0x60;
            h[4..6].copy_from_slice(&(8 + udp_payload as u16).to_be_bytes());
            (h[6], h[7]) = (17, 64);
            h[8..24].copy_from_slice(&src.octets());
            h[24..].copy_from_slice(&dst.octets());
        }
        _ => panic!("{src} and {dst} are of different IP versions"),
    }
    h
}

/// Returns the work requests that `side` posts on a UC connection. With `faulty`, some fail locally, which
/// stops the send queue.
pub fn stream(
    faulty: bool,
    mtu: usize,
    side: usize,
    arenas: &mut [Arena; 2],
    grants: &mut Vec<GrantKind>,
    rng: &mut Rng,
) -> Vec<Send> {
    let [from, to] = arenas.get_disjoint_mut([side, 1 - side]).expect("the sides are distinct");
    let mut sends = Vec::new();
    for _ in 0..rng.below(20) {
        if rng.percent(6) {
            sends.extend(register_and_invalidate(!faulty, side, grants, rng));
            continue;
        }
        let mut s = if rng.percent(50) {
            transfer(None, length(mtu, rng), from, rng)
        } else {
            let len = length(mtu, rng);
            let place = to.alloc(len as usize, 1, rng);
            let key = if rng.percent(8) { Key::Wrong } else { Key::Region(1 - side) };
            Send { key, ..transfer(Some(place), len, from, rng) }
        };
        if faulty && rng.percent(10) {
            make_local_error(&mut s);
        }
        sends.push(s);
    }
    signal_last(&mut sends);
    sends
}

/// Returns a work request that registers a new fast-registered region, which no other request uses, and, with
/// `invalidate`, another that invalidates it.
fn register_and_invalidate(
    invalidate: bool,
    side: usize,
    grants: &mut Vec<GrantKind>,
    rng: &mut Rng,
) -> Vec<Send> {
    let key = Key::Grant { side, id: grants.len(), age: 1 };
    grants.push(GrantKind::Fast);
    let reg = FastReg { key: LKey(0), offset: 0, len: 1, iova: 0, access: Access::LOCAL_READ };
    let ops = [WrOp::RegMr(reg), WrOp::LocalInv(RKey(0))].into_iter().take(1 + usize::from(invalidate));
    ops.map(|op| Send { key, flags: flags(rng), ..Send::new(op) }).collect()
}

/// Replaces the work request's L_Key, if it uses one, with an invalid one, so that the request fails locally.
fn make_local_error(s: &mut Send) {
    if !s.inline && s.pieces.iter().any(|p| p.at.is_some() && p.len > 0) {
        (s.bad_lkey, s.fault) = (true, Some(WcStatus::LocProtErr));
    }
}

/// Index and Q_Key of a UD queue pair, as a destination of datagrams.
#[derive(Clone, Copy)]
pub struct UdQp {
    pub qp: usize,
    pub qkey: QKey,
}

/// Returns datagrams from one queue pair to random ones of `ud_qps`, and a few to an unknown queue pair.
pub fn datagrams(faulty: bool, mtu: usize, ud_qps: &[UdQp], from: &mut Arena, rng: &mut Rng) -> Vec<Send> {
    let mut sends = Vec::new();
    for _ in 0..rng.below(24) {
        let len = length(mtu, rng);
        let too_long = len as usize > mtu && faulty && rng.percent(30);
        let len = if too_long { len } else { len.min(mtu as u32) };
        let mut s = transfer(None, len, from, rng);
        if too_long {
            s.fault = Some(WcStatus::LocLenErr);
        } else if faulty && rng.percent(8) {
            make_local_error(&mut s);
        }
        let ud_qp = rng.pick(ud_qps);
        let target =
            if rng.percent(4) { Target::UnknownQp(rng.below(2) as usize) } else { Target::Qp(ud_qp.qp) };
        let qkey = match rng.below(10) {
            0 => QKey(rng.next() as u32 >> 1),
            // The sender's own Q_Key is sent.
            1 => QKey(1 << 31 | rng.next() as u32),
            _ => ud_qp.qkey,
        };
        s.to = Some(To { target, qkey });
        sends.push(s);
    }
    signal_last(&mut sends);
    sends
}

/// Returns the Q_Key that a datagram carries: the sender's Q_Key `own` if the most significant bit of the
/// requested one is set.
pub fn qkey_on_wire(to: &To, own: QKey) -> QKey {
    if to.qkey.0 >> 31 == 1 { own } else { to.qkey }
}
