//! Dispatch of received bursts: checks each packet, and passes it to its queue pair together with any packets
//! for the same queue pair that immediately follow.

use super::dropped::DropWatch;
use super::table::{Entry, QpTable};
use super::{Nic, gsi};
use crate::burst::{PayloadRun, PayloadSource, RxBurst, TxQueue};
use crate::memory::{CopySource, Table};
use crate::transport::{Counters, Instant, PathMatch, SrqId};
use crate::wire::icrc::Verifier;
use crate::wire::{
    BTH_LEN, Bth, Ecn, Flow, ICRC_LEN, IpIdent, Opcode, Operation, PKey, Packet, Qpn, Transport, WireError,
};

/// Opcodes of packets that are processed in runs: the middle packets of long messages.
const RUN_OPCODES: [Opcode; 3] =
    [Opcode::RC_SEND_MIDDLE, Opcode::RC_WRITE_MIDDLE, Opcode::RC_READ_RESPONSE_MIDDLE];

/// Cursor over the packets of a received burst that are still to be processed.
pub(super) struct BurstPackets<'a> {
    pub burst: &'a RxBurst<'a>,
    rest: &'a [u8],
    /// Index of the next packet.
    index: u16,
    /// Whether the verifier has already checked a packet of the burst, and can continue from it.
    begun: bool,
    /// Source of the payload of the packet that was taken last.
    source: PayloadSource<'a>,
}

impl<'a> BurstPackets<'a> {
    /// Returns a cursor at the first packet of `burst`; `first` is the index of that packet in the burst as
    /// sent.
    fn new(burst: &'a RxBurst<'a>, first: u16) -> BurstPackets<'a> {
        let source = match burst.ident {
            IpIdent::Elided => CopySource::Unread,
            _ => CopySource::Read,
        };
        let source = PayloadSource::Packet(source);
        BurstPackets { burst, rest: burst.data, index: first, begun: false, source }
    }

    /// Returns the cursor after the packet that was taken last, with no packets left.
    pub fn without_rest(&self) -> BurstPackets<'a> {
        BurstPackets { rest: &[], ..*self }
    }

    /// Returns the payloads of the next packets that repeat `packet`, the one taken last, with consecutive
    /// PSNs; `None` if there are none, or if the packets have ICRCs to verify.
    #[inline]
    fn repeats(&self, packet: &Packet<'a>) -> Option<PayloadRun<'a>> {
        let (segment, first) = (self.burst.segment, usize::from(self.index));
        let is_full = BTH_LEN + packet.payload().len() + ICRC_LEN == segment;
        if self.burst.ident != IpIdent::Elided || !is_full || self.rest.len() < segment {
            return None;
        }
        let with_sender = |index| self.burst.payloads.map_or(0, |payloads| payloads.len_of(index));
        let each = with_sender(first);
        let mut expected = packet.bth();
        let repeats = self.rest.chunks_exact(segment).zip(first..).take_while(|(bytes, index)| {
            expected.psn = expected.psn.next();
            Bth::read(bytes) == expected && with_sender(*index) == each
        });
        let packets = &self.rest[..repeats.count() * segment];
        if each > 0 && each != packet.payload().len() {
            return None;
        }
        let sender = self.burst.payloads.filter(|_| each > 0).map(|payloads| (payloads, first));
        (!packets.is_empty()).then_some(PayloadRun { packets, segment, sender })
    }

    /// Takes the next `count` packets, which have been processed.
    fn skip(&mut self, count: usize, c: &mut Counters) {
        let (taken, rest) = self.rest.split_at(count * self.burst.segment);
        (self.rest, self.index) = (rest, self.index.wrapping_add(count as u16));
        c.rcvd_pkts += count as u64;
        c.rcvd_bytes += taken.len() as u64;
    }

    /// Returns the bytes of the next packet; none if there is none.
    fn peek(&self) -> &'a [u8] {
        &self.rest[..self.rest.len().min(self.burst.segment.max(1))]
    }

    /// Takes the next packet. Returns it if it is well-formed and its ICRC is valid; otherwise counts it as
    /// dropped.
    #[inline]
    fn next(&mut self, verifier: &mut Verifier, c: &mut Counters) -> Option<Packet<'a>> {
        let (bytes, rest) = self.rest.split_at(self.peek().len());
        let index = self.index;
        (self.rest, self.index) = (rest, index.wrapping_add(1));
        if let Some(payloads) = self.burst.payloads {
            self.source = payloads.source(index.into());
        }
        c.rcvd_pkts += 1;
        c.rcvd_bytes += bytes.len() as u64;
        if bytes.len() < BTH_LEN + ICRC_LEN {
            c.rx_truncated += 1;
            return None;
        }
        let RxBurst { flow, ident, .. } = self.burst;
        let is_next = std::mem::replace(&mut self.begun, true);
        if !verifier.verify_in_burst(flow, *ident, index, bytes, is_next) {
            c.rx_icrc_err += 1;
            return None;
        }
        match Packet::parse(bytes) {
            Ok(packet) if self.has_payload_of(&packet, index) => return Some(packet),
            // The parts that another process shares are longer or shorter than the payload.
            Ok(_) => c.rx_truncated += 1,
            Err(WireError::Truncated { .. }) => c.rx_truncated += 1,
            Err(WireError::Unaligned(_)) => c.rx_bad_pad += 1,
            Err(WireError::ReservedOpcode(_)) => c.rx_reserved_opcode += 1,
            Err(WireError::Version(_)) => c.rx_bad_version += 1,
        }
        None
    }

    /// Reports whether the payload of the packet with the given index is in the packet, or whole in the
    /// sender's memory.
    #[inline]
    fn has_payload_of(&self, packet: &Packet<'_>, index: u16) -> bool {
        let len = self.burst.payloads.map_or(0, |payloads| payloads.len_of(index.into()));
        len == 0 || len == packet.payload().len()
    }
}

/// Reports whether a packet with the given header is for the queue pair that has accepted `before`, which is
/// in the same burst. The addresses need no check: they are the same for the whole burst.
#[inline]
fn is_same_path(bth: &Bth, before: &Packet<'_>) -> bool {
    let transport = bth.opcode.row().transport;
    bth.dest_qp == before.bth().dest_qp
        && bth.pkey == before.bth().pkey
        && transport == before.row().transport
        // XRC packets each name a shared receive queue, and an XRC queue pair takes either requests or
        // responses.
        && transport != Transport::Xrc
}

/// Returns a packet's destination queue pair and the path that the packet took, if the queue pair accepts it;
/// otherwise counts the packet as dropped.
#[inline]
fn find_qp<'t>(
    table: &'t mut QpTable,
    dest: Qpn,
    packet: &Packet<'_>,
    flow: &Flow,
    pkeys: &[PKey],
    c: &mut Counters,
) -> Option<(&'t mut Entry, PathMatch)> {
    let row = packet.row();
    let is_cnp = row.operation == Operation::Cnp;
    let takes = |e: &&mut Entry| is_cnp || e.qp.takes(row.transport, row.operation.is_request());
    let Some(entry) = table.get_mut(dest).filter(takes) else {
        c.rx_unknown_qp += 1;
        return None;
    };
    let mut via = PathMatch::Primary;
    if entry.qp.qp_type().is_connected() {
        if entry.qp.flow().is_none() {
            c.rx_wrong_state += 1;
            entry.qp.count(|c| c.rx_wrong_state += 1);
            return None;
        }
        let Some(known) = entry.qp.classify_path(flow) else {
            c.rx_wrong_source += 1;
            entry.qp.count(|c| c.rx_wrong_source += 1);
            return None;
        };
        via = known;
    } else if dest == Qpn::GSI && !is_cnp {
        gsi::admit(entry, packet, pkeys, c)?;
    }
    if !packet.bth().pkey.admits(entry.qp.pkey_via(via)) {
        c.rx_pkey_violation += 1;
        entry.qp.count(|c| c.rx_pkey_violation += 1);
        return None;
    }
    Some((entry, via))
}

impl Nic {
    /// Processes a received burst. Responses are sent by the next [`transmit_within`](Self::transmit_within).
    pub fn handle_burst(&mut self, now: Instant, burst: &RxBurst<'_>, memory: &Table, tx: &mut TxQueue) {
        self.handle_part(now, burst, 0, memory, tx);
    }

    /// Processes a part of a burst; `burst` contains the packets of the original burst from index `first` on.
    pub fn handle_part(
        &mut self,
        now: Instant,
        burst: &RxBurst<'_>,
        first: u16,
        memory: &Table,
        tx: &mut TxQueue,
    ) {
        let (mut packets, mut behind) = (BurstPackets::new(burst, first), None);
        while behind.is_some() || !packets.rest.is_empty() {
            let watch =
                self.observer.receiver().map(|_| DropWatch::new(packets.peek(), &self.state.counters));
            let packet = behind.take().or_else(|| packets.next(&mut self.verifier, &mut self.state.counters));
            if let Some(packet) = packet {
                behind = self.handle_packet(now, &packet, &mut packets, memory, tx);
            }
            if let (Some(watch), Some(observer)) = (watch, self.observer.receiver()) {
                watch.report(now, &burst.flow, &self.state.counters, &**observer);
            }
        }
        while let Some(qpn) = self.schedule.dirty.pop_front() {
            if let Some(entry) = self.table.get_mut(qpn) {
                entry.dirty = false;
                self.peers.settle(entry);
                self.schedule.schedule_pending(entry);
                // Progress shortens the timeout again that an ACK timeout had extended.
                self.schedule.arm(entry);
            }
        }
    }

    /// Processes a packet, together with any packets for the same queue pair that immediately follow. If the
    /// packet behind these is for another queue pair, returns that packet, which has been taken.
    fn handle_packet<'a>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        packets: &mut BurstPackets<'a>,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> Option<Packet<'a>> {
        let c = &mut self.state.counters;
        let row = packet.row();
        let dest = packet.bth().dest_qp;
        if row.operation == Operation::Cnp {
            let flow = &packets.burst.flow;
            if let Some((entry, _)) = find_qp(&mut self.table, dest, packet, flow, &self.pkeys, c) {
                entry.qp.handle_cnp(now, &self.config.tuning, c);
            }
            return None;
        }
        let to_group = packets.burst.flow.dst.is_multicast();
        match (to_group, dest == Qpn::MULTICAST && row.transport == Transport::Ud) {
            (false, false) => return self.deliver_to_qp(dest, now, packet, packets, memory, tx),
            (true, true) => {
                c.rcvd_mcast_pkts += 1;
                self.deliver_to_group(now, packets, packet, memory, tx);
            }
            // A group address and the multicast QPN go together, and for datagrams only (IBA 9.6, 10.5.2).
            _ => c.rx_not_multicast += 1,
        }
        None
    }

    /// Passes a packet to queue pair `dest`, together with any packets for the same queue pair that
    /// immediately follow. If the packet behind these is for another queue pair, returns that packet, which
    /// has been taken.
    pub(super) fn deliver_to_qp<'a>(
        &mut self,
        dest: Qpn,
        now: Instant,
        packet: &Packet<'_>,
        packets: &mut BurstPackets<'a>,
        memory: &Table,
        tx: &mut TxQueue,
    ) -> Option<Packet<'a>> {
        let flow = &packets.burst.flow;
        let admitted = find_qp(&mut self.table, dest, packet, flow, &self.pkeys, &mut self.state.counters);
        let (entry, via) = admitted?;
        let srq = packet.xrceth().map(SrqId).or(entry.srq).and_then(|id| self.srqs.get_mut(id));
        let mut env =
            self.state.env(now, memory, srq, tx, &self.config.tuning, self.peers.window(&entry.share));
        env.payload = packets.source;
        // With an alternate path, each packet may cause a migration; and each packet to QP1 is checked by
        // itself.
        // An observer needs each dropped packet, so packets are processed one by one.
        let one_path = !entry.qp.has_alternate() && dest != Qpn::GSI && self.observer.receiver().is_none();
        let (mut accepted, unread) = (1, packets.rest.len());
        // After a refused run, the packets are not searched for further ones: the search compares all packets
        // that are left.
        let mut accepts_runs = true;
        entry.qp.handle_packet(packet, flow, via, &mut env);
        let mut behind = None;
        while one_path && !packets.rest.is_empty() {
            let Some(next) = packets.next(&mut self.verifier, env.counters) else { continue };
            if !is_same_path(&next.bth(), packet) {
                behind = Some(next);
                break;
            }
            env.payload = packets.source;
            entry.qp.handle_packet(&next, flow, via, &mut env);
            accepted += 1;
            if accepts_runs
                && RUN_OPCODES.contains(&next.bth().opcode)
                && let Some(run) = packets.repeats(&next)
            {
                let processed = entry.qp.handle_repeated(&next, &run, &mut env);
                accepts_runs = processed > 0;
                packets.skip(processed, env.counters);
                accepted += processed as u64;
            }
        }
        entry.qp.end_packets(&mut env);
        let others = behind.as_ref().map_or(0, Packet::wire_len);
        let bytes = packet.wire_len() + unread - packets.rest.len() - others;
        entry.qp.traffic.on_received(accepted, bytes, now);
        if flow.ecn() == Ecn::Ce {
            env.counters.np_ecn_marked_roce_packets += accepted;
            entry.qp.count(|c| c.np_ecn_marked_roce_packets += accepted);
            if let Some(scope) = self.config.personality.quirks.cnp_scope {
                let congestion = &self.config.tuning.congestion.control;
                self.notifications.on_marked(now, flow, via, entry, scope, congestion);
            }
        }
        if dest == Qpn::GSI {
            gsi::settle(entry, &self.pkeys);
        }
        self.outputs.add(&mut self.state, entry, &self.srqs);
        self.schedule.mark_dirty(entry);
        behind
    }
}
