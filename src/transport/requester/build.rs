//! Builds request packets from the send queue.

use std::ops::Range;

use super::{Cursor, Requester, ack_request};
use crate::memory::{AtomicOp, Faulted};
use crate::transport::congestion::packet_cost;
use crate::transport::connection::Connection;
use crate::transport::recovery::Probe;
use crate::transport::send_queue::{SendWqe, is_train};
use crate::transport::{AckRequests, Env, Output, QpState, Tuning, WcStatus, WrOp};
use crate::wire::{AtomicEth, Deth, Feth, HeaderSet, Headers, Operation, Position, Reth};

/// Maximum number of PSNs in flight: less than half of the PSN space, so that old and new PSNs can be
/// distinguished (IBA 9.7.2).
pub(super) const MAX_PSNS: u32 = 1 << 22;

/// Maximum number of response packets of a READ that is requested in pairs of packets. Each pair uses up one
/// of the READs that may be in flight: with 16 of these and a path MTU of 4096, pairs raise READs of 16 KiB
/// from 20 to 32 Gb/s, and lower those of 64 KiB from 37 to 32.
const MAX_PAIRED_PACKETS: u32 = 8;

/// Reason why no packet was sent.
pub(super) enum Blocked {
    /// Nothing can be sent until a packet arrives, a timer expires or a work request is posted.
    Idle,
    /// A probe must first request the acknowledgement of the newest packet in flight.
    Probe,
    /// The work request failed locally.
    Failed(WcStatus),
}

impl Requester {
    /// Sends up to `budget` packets, subject to the congestion window, max_rd_atomic, fences and other
    /// limits. Returns `Ok(true)` if only the budget or a full transmit queue held back further packets.
    pub fn transmit(
        &mut self,
        conn: &Connection,
        budget: usize,
        env: &mut Env<'_>,
    ) -> Result<bool, super::Fatal> {
        self.is_blocked_by_peer_window = false;
        let mut left = budget;
        while left > 0 && !env.tx.is_full() {
            if self.snd_nxt.packet > 0
                && let Some(sent) = self.send_bulk(conn, left, env)
            {
                left -= sent;
                continue;
            }
            // While the newest packet is due as a probe, the next one serves as well, if it may go (RFC 8985,
            // 7.3).
            let mut at = self.snd_nxt;
            let mut sent = match self.recovery.probe_due() {
                Some(Probe::Missing | Probe::Oldest) => Err(Blocked::Idle),
                _ => self.send_one(conn, env),
            };
            if matches!(sent, Err(Blocked::Idle | Blocked::Probe))
                && let Some(probe) = self.next_probe(conn, env)
            {
                (at, sent) = (probe, self.retransmit_one(probe, conn, env));
            }
            match sent {
                Ok(()) => left -= 1,
                Err(Blocked::Idle) => return Ok(false),
                Err(Blocked::Probe) => {
                    self.recovery.schedule_probe(Probe::Newest);
                    left -= 1;
                }
                Err(Blocked::Failed(status)) => {
                    self.record_failed_check(at.wqe, status, conn, env);
                    self.failed = Some((at.wqe, status));
                    return self.settle_failure(conn, env).map(|()| false);
                }
            }
        }
        Ok(self.has_unsent())
    }

    /// Completes the work request that failed locally, once all earlier ones are complete.
    pub(super) fn settle_failure(
        &mut self,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), super::Fatal> {
        match self.failed {
            Some((index, status)) if index == self.queue.start() => Err(self.fail_oldest(status, conn, env)),
            _ => Ok(()),
        }
    }

    fn send_one(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Blocked> {
        let Cursor { wqe: index, packet } = self.snd_nxt;
        let Some(wqe) = self.queue.get(index) else { return Err(Blocked::Idle) };
        if self.is_held {
            return Err(Blocked::Idle);
        }
        if wqe.fails {
            let is_stopped = conn.state == QpState::Sqd;
            return Err(if is_stopped { Blocked::Idle } else { Blocked::Failed(WcStatus::LocQpOpErr) });
        }
        let psn = wqe.first_psn + packet;
        if wqe.op.is_local() {
            return self.execute_local_op(conn, env);
        }
        if !conn.qp_type.is_reliable() {
            return self.emit(conn, env);
        }
        // A message that was never sent before. In SQD, messages already begun are finished and
        // retransmitted.
        let fresh = packet == 0 && !psn.is_before(self.snd_max);
        if self.recovery.is_behind_rnr_nak(index)
            || self.failed.is_some()
            || fresh && conn.state == QpState::Sqd
            || fresh && wqe.flags.fence && !self.reads.is_empty()
            || wqe.op.awaits_response() && self.reads.len() >= conn.attr.max_rd_atomic as usize
        {
            return Err(Blocked::Idle);
        }

        // A message beyond the peer's end-to-end credit limit is sent alone: its first packet once everything
        // before it is acknowledged, the rest once the first is acknowledged (IBA 9.7.7.2.5).
        let limited = wqe.op.takes_receive() && self.credit.excludes(wqe.number);
        let is_alone =
            || if packet == 0 { self.snd_una == psn } else { self.snd_una.is_after(wqe.first_psn) };
        if limited && !is_alone() {
            return Err(if self.recovery.awaits_ack_request() { Blocked::Probe } else { Blocked::Idle });
        }

        let mtu = conn.attr.mtu.bytes() as u32;
        let psns = psns_at(wqe, packet, conn, env.tuning);
        let start_cost = wqe.cost_at(packet, conn.attr.mtu);
        let end_cost = wqe.cost_at(packet + psns, conn.attr.mtu);
        let (window, whole) = (self.congestion.window(env.window as u64), env.window as u64);
        let (begins, flight) = (start_cost <= self.acked_cost, end_cost - self.acked_cost);
        if !begins && flight > window || psn.since(self.snd_una) as u32 + psns > MAX_PSNS {
            return Err(Blocked::Idle);
        }
        // A QP with nothing in flight may overdraw the per-peer window with one request, but only while the
        // window has room.
        let others = env.others_in_flight;
        if others > 0 && flight + others > whole && !(begins && others < whole) {
            self.is_blocked_by_peer_window = true;
            return Err(Blocked::Idle);
        }

        let next = packet_cost(mtu.into());
        let closes = flight + next > window || flight + others + next > whole;
        let position = ack_request::PacketPosition { start_cost, packet, psn };
        let marked =
            closes || conn.quirks().ack_requests.is_marked(position, end_cost, env.window, conn.attr.mtu);
        let ack_request = self.requests_ack(wqe, packet + psns, index, conn)
            || marked
            || limited && packet == 0
            || self.recovery.is_ack_request_overdue(env.now);
        self.push(wqe, packet..packet + psns, ack_request, conn, env)?;
        env.counters.retransmitted_pkts += u64::from(self.recovery.is_retransmission(psn));
        let awaits_response = wqe.op.awaits_response();
        if awaits_response {
            self.reads.push_back(psn + (psns - 1));
        }
        if awaits_response || ack_request {
            self.recovery.on_sent_with_ack_req(psn, psn + (psns - 1), conn, env.now, env.tuning);
        } else {
            self.recovery.on_sent_without_ack_req(conn, env.now, env.tuning);
        }
        let ended = packet + psns == wqe.packets;
        self.snd_nxt = if ended {
            Cursor { wqe: index + 1, packet: 0 }
        } else {
            Cursor { wqe: index, packet: packet + psns }
        };
        if self.snd_max.is_before(psn + psns) {
            self.snd_max = psn + psns;
        }
        Ok(())
    }

    /// Sends a packet of an unreliable service, which is never acknowledged. The work request completes with
    /// the last packet of its message.
    fn emit(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Blocked> {
        let Cursor { wqe: index, packet } = self.snd_nxt;
        let Some(wqe) = self.queue.get(index) else { return Err(Blocked::Idle) };
        if packet == 0 && conn.state == QpState::Sqd {
            return Err(Blocked::Idle);
        }
        if wqe.is_datagram() && wqe.len > conn.attr.mtu.bytes() as u32 {
            return Err(Blocked::Failed(WcStatus::LocLenErr));
        }
        self.push(wqe, packet..packet + 1, false, conn, env)?;
        self.snd_una = wqe.first_psn + (packet + 1);
        self.snd_max = self.snd_una;
        if packet + 1 == wqe.packets {
            self.snd_nxt = Cursor { wqe: index + 1, packet: 0 };
            self.retire(conn, Output::Emitted, env);
        } else {
            self.snd_nxt = Cursor { wqe: index, packet: packet + 1 };
        }
        Ok(())
    }

    /// Reports whether a packet of a work request must carry AckReq. `end` is the number of PSNs from the
    /// start of the work request through the packet.
    fn requests_ack(&self, wqe: &SendWqe, end: u32, index: u64, conn: &Connection) -> bool {
        let next = || self.queue.get(index + 1);
        let by_rule = || match conn.quirks().ack_requests {
            AckRequests::Needed => ack_request::fills_a_part(index, self.queue.caps.max_wr),
            AckRequests::Signaled => {
                next().is_none_or(|n| n.op.takes_receive() && self.credit.excludes(n.number))
            }
            AckRequests::Messages => true,
        };
        end == wqe.packets
            && (wqe.flags.signaled
                || conn.signal_all
                || wqe.first_psn.is_before(self.snd_una)
                || self.recovery.is_retransmission(wqe.first_psn)
                || by_rule()
                || next().is_some_and(|next| next.waits_for_all()))
    }

    /// Returns the position of the packet to retransmit as a probe, if such a packet is in flight.
    pub(super) fn position_of_probe(&self, probe: Probe) -> Option<Cursor> {
        match probe {
            Probe::Missing | Probe::Oldest => {
                self.snd_una.is_before(self.next_psn()).then(|| self.position_of_snd_una())
            }
            Probe::Newest => (self.queue.start()..=self.snd_nxt.wqe).rev().find_map(|index| {
                let wqe = self.queue.get(index).filter(|w| !w.op.awaits_response())?;
                let sent = if index == self.snd_nxt.wqe { self.snd_nxt.packet } else { wqe.packets };
                let packet = sent.checked_sub(1)?;
                (!(wqe.first_psn + packet).is_before(self.snd_una)).then_some(Cursor { wqe: index, packet })
            }),
        }
    }

    /// Takes the pending probe and returns the packet to retransmit, or `None` if no probe is pending or the
    /// packet is no longer in flight. The probe detects a loss that no later packet reveals, and frees send
    /// queue slots even if no thread waits for a completion.
    #[inline]
    fn next_probe(&mut self, conn: &Connection, env: &mut Env<'_>) -> Option<Cursor> {
        let probe = self.recovery.take_probe(env.now, env.tuning)?;
        self.recovery.on_probe_sent(self.next_psn(), conn, env.now, env.tuning);
        let at = self.position_of_probe(probe);
        if probe != Probe::Newest && self.position_of_probe(Probe::Newest) != at {
            self.recovery.schedule_probe(Probe::Newest);
        }
        let counter = match probe {
            Probe::Missing => &mut env.counters.retransmitted_pkts,
            Probe::Oldest | Probe::Newest => &mut env.counters.ack_probe,
        };
        *counter += u64::from(at.is_some());
        at
    }

    /// Retransmits one packet in flight with AckReq.
    #[cold]
    fn retransmit_one(&self, at: Cursor, conn: &Connection, env: &mut Env<'_>) -> Result<(), Blocked> {
        let Some(wqe) = self.queue.get(at.wqe) else { return Ok(()) };
        let psns = psns_at(wqe, at.packet, conn, env.tuning);
        self.push(wqe, at.packet..at.packet + psns, true, conn, env)
    }

    /// Builds the packet for the PSNs `part`, relative to the first PSN of the work request. `ack_request`
    /// tells whether to set AckReq.
    fn push(
        &self,
        wqe: &SendWqe,
        part: Range<u32>,
        ack_request: bool,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Blocked> {
        let mtu = conn.attr.mtu.bytes() as u32;
        let offset = (part.start as u64 * mtu as u64) as u32;
        let len = (wqe.len - offset).min((part.end - part.start) * mtu);
        let position = match wqe.op {
            WrOp::Read { .. } => Position::Only,
            _ => Position::of(part.start, wqe.packets),
        };
        let psn = wqe.first_psn + part.start;
        // Local operations have no packets.
        let Some(on_wire) = wqe.op.on_wire() else { return Err(Blocked::Idle) };
        let mut headers = request_headers(conn, wqe, on_wire, position, psn, offset, len);
        headers.bth.ack_req = ack_request || wqe.op.awaits_response();
        let flow = match self.queue.destination(wqe) {
            Some(to) => {
                headers.bth.dest_qp = to.qpn;
                headers.deth = Deth { qkey: to.qkey, src_qp: conn.qpn };
                env.counters.sent_mcast_pkts += u64::from(to.flow.dst.is_multicast());
                &to.flow
            }
            None => conn.data_flow.as_ref().ok_or(Blocked::Idle)?,
        };
        if wqe.op.awaits_response() {
            let payload: &[u8] = match &wqe.op {
                WrOp::AtomicWrite { value, .. } => value,
                _ => &[],
            };
            env.tx.push(flow, headers, payload);
            return Ok(());
        }
        env.bytes.clear();
        if self.queue.inline_data(wqe, offset, len, env.bytes) {
            env.tx.push(flow, headers, env.bytes);
        } else {
            let gathered = self.queue.gather(wqe, offset, len, conn.accessor(), env);
            gathered
                .and_then(|()| env.tx.push_host(flow, &headers, env.scratch))
                .map_err(|Faulted| Blocked::Failed(WcStatus::LocProtErr))?;
        }
        Ok(())
    }
}

/// Returns the number of PSNs that the request packet at PSN offset `packet` of a work request consumes: one
/// or, for a READ, the number of its response packets.
///
/// The parts of a READ end at fixed positions: a repeated request must lie within one request that the
/// responder remembers, so a remainder never reaches into the next part.
fn psns_at(wqe: &SendWqe, packet: u32, conn: &Connection, tuning: &Tuning) -> u32 {
    match wqe.op {
        WrOp::Read { .. } => {
            let longest = (tuning.read_chunk / conn.attr.mtu.bytes() as u32).clamp(1, MAX_PSNS);
            let is_paired = conn.quirks().equal_packets && wqe.packets <= MAX_PAIRED_PACKETS;
            let part = if is_paired { longest.min(2) } else { longest };
            (wqe.packets - packet).min(part - packet % part)
        }
        _ => 1,
    }
}

/// Builds the headers of a packet of a request, which is `on_wire` as [`WrOp::on_wire`] returns it. Always
/// inline, because a call would copy the headers twice.
#[inline(always)]
pub(super) fn request_headers(
    conn: &Connection,
    wqe: &SendWqe,
    (operation, tail): (Operation, HeaderSet),
    position: Position,
    psn: crate::wire::Psn,
    offset: u32,
    len: u32,
) -> Headers {
    let extra = if position.ends() { tail } else { HeaderSet::NONE };
    let is_train = position != Position::Only && is_train(&wqe.op, conn);
    let mut h = conn.headers(operation, if is_train { Position::Only } else { position }, extra, psn);
    match wqe.op {
        WrOp::Send | WrOp::BindMw(_) | WrOp::RegMr(_) | WrOp::LocalInv(_) => {}
        WrOp::SendWithImm(imm) => h.imm = imm,
        WrOp::SendWithInv(rkey) => h.ieth = rkey,
        WrOp::Write { va, rkey } if is_train => {
            h.reth = Reth { va: va.wrapping_add(offset as u64), rkey, dma_len: len };
        }
        WrOp::Write { va, rkey } => h.reth = Reth { va, rkey, dma_len: wqe.len },
        WrOp::WriteWithImm { va, rkey, imm } => {
            h.reth = Reth { va, rkey, dma_len: wqe.len };
            h.imm = imm;
        }
        WrOp::Read { va, rkey } => h.reth = Reth { va: va.wrapping_add(offset as u64), rkey, dma_len: len },
        WrOp::Atomic { va, rkey, op } => {
            let (swap_or_add, compare) = match op {
                AtomicOp::CompareSwap { compare, swap } => (swap, compare),
                AtomicOp::FetchAdd(n) => (n, 0),
            };
            h.atomic = AtomicEth { va, rkey, swap_or_add, compare };
        }
        WrOp::AtomicWrite { va, rkey, value } => {
            h.reth = Reth { va, rkey, dma_len: value.len() as u32 };
        }
        WrOp::Flush { va, rkey, len, placement, whole_region } => {
            h.feth = Feth::new(placement.bits(), whole_region);
            h.reth = Reth { va, rkey, dma_len: len };
        }
    }
    if let Some(srq) = wqe.srq {
        h.xrceth = srq.0;
    }
    // Solicited events apply to messages that consume a receive at the peer (IBA 9.2.3).
    let takes_receive = operation == Operation::Send || extra == HeaderSet::IMMDT;
    h.bth.solicited = wqe.flags.solicited && position.ends() && takes_receive;
    h
}
