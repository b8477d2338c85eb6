//! The transmit queue of a NIC for one turn, grouped into bursts that the kernel can segment (GSO, USO).

mod train;

use std::ops::Range;

use super::tx_burst::{BurstLimits, Piece, Stored, TxBurst, dest_of_first, group_of, is_acknowledged};
use crate::memory::{Faulted, HostSlice, payload_epoch};
use crate::wire::icrc::{self, Icrc, Prefixes};
use crate::wire::{BTH_LEN, Flow, Headers, ICRC_LEN, IpIdent, Opcode, Qpn, pad_count};

/// Maximum length of a payload that is copied first, before the whole packet's ICRC is computed. A longer
/// payload is copied and included in the ICRC in a single pass.
const SHORT: usize = 512;

/// Location of a packet's payload.
#[derive(Clone, Copy, Debug)]
enum Payload<'a> {
    /// Bytes in the NIC's memory: inline data or the result of an atomic.
    Bytes(&'a [u8]),
    /// Bytes in user memory. The ICRC covers the copy, so the application may write to the memory at any
    /// time.
    Host(&'a [HostSlice]),
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    flow: Flow,
    /// [`group_of`] all packets in the burst.
    group: u8,
    /// UDP payload length of every packet except the last, which may be shorter.
    segment: usize,
    packets: usize,
    bytes: usize,
    /// Index of the burst's first entry in `pieces`.
    first_piece: usize,
    /// Whether the burst accepts no more packets, for example because its last one is shorter than
    /// `segment`.
    closed: bool,
    /// Whether the ICRCs of all packets are deferred, rather than of none.
    defers_icrcs: bool,
}

/// Number of queued bytes at which a turn is full: few enough to be still in the core's cache when the kernel
/// reads them.
const TURN: usize = 256 << 10;
/// Number of queued bytes at which a turn with deferred ICRCs is full. It is lower, because the copy made at
/// transmission must fit into the cache too, until the receiver has read it.
const DEFERRED_TURN: usize = 128 << 10;
/// Number of queued bytes at which a turn for direct delivery is full. Payload is copied once, from region to
/// region, so no intermediate copy has to stay in the cache, and longer turns spread the fixed cost of a
/// turn: a stream of 1 MiB WRITEs reaches 116, 131 and 140 Gb/s with 128, 256 and 512 KiB (medians of 50
/// seconds, in ten alternating runs).
const DIRECT_TURN: usize = 512 << 10;

/// Packets to transmit in one turn. The buffers are reused, so that nothing is allocated once they have
/// reached their final size.
///
/// Payload is copied next to its headers, in one pass with the ICRC. Letting the kernel gather it from user
/// memory would save nothing: each slice costs the kernel as much as the copy, and user memory may change
/// meanwhile.
#[derive(Debug)]
pub struct TxQueue {
    limits: BurstLimits,
    /// Whether ICRCs are deferred: they are computed, and long payloads copied, only at transmission.
    with_deferred_icrc: bool,
    /// Number of queued bytes at which a turn is full.
    turn: usize,
    /// Packet buffer, whose first `used` bytes are in use. The rest is not cleared, because clearing it
    /// would cost more than filling it.
    arena: Vec<u8>,
    used: usize,
    pieces: Vec<Stored>,
    bursts: Vec<Burst>,
    packets: usize,
    bytes: usize,
    prefixes: Prefixes,
    /// Number of bursts when `prefixes` was last used. If it has not changed, the next use is for the same
    /// flow.
    prefixed: usize,
    /// Whether the ICRC of FLUSH packets covers the headers twice (a quirk of rxe).
    pub(crate) flush_icrc_twice: bool,
    /// Epoch of the payloads in user memory when the first of them was added.
    epoch: Option<u32>,
}

impl TxQueue {
    /// Creates an empty queue for a link with the given limits.
    pub fn new(limits: BurstLimits) -> TxQueue {
        TxQueue {
            limits,
            with_deferred_icrc: false,
            turn: TURN,
            arena: Vec::new(),
            used: 0,
            pieces: Vec::new(),
            bursts: Vec::new(),
            packets: 0,
            bytes: 0,
            prefixes: Prefixes::default(),
            prefixed: 0,
            flush_icrc_twice: false,
            epoch: None,
        }
    }

    /// Creates a queue with deferred ICRCs, for a link that always copies packets: [`TxBurst::copy_to`]
    /// computes the ICRCs as it copies. Links of [`middleware`](crate::middleware) panic when they send it.
    pub fn with_deferred_icrc(limits: BurstLimits) -> TxQueue {
        TxQueue { with_deferred_icrc: true, turn: DEFERRED_TURN, ..TxQueue::new(limits) }
    }

    /// Creates a queue with deferred ICRCs for a link that delivers to another NIC of the process, which
    /// usually copies payloads from the sender's memory.
    pub fn with_direct_delivery(limits: BurstLimits) -> TxQueue {
        TxQueue { turn: DIRECT_TURN, ..TxQueue::with_deferred_icrc(limits) }
    }

    /// Defers the ICRCs of packets added from now on.
    pub fn defer_icrcs(&mut self) {
        if !self.with_deferred_icrc {
            (self.with_deferred_icrc, self.turn) = (true, DEFERRED_TURN);
        }
    }

    /// Reports whether ICRCs are deferred.
    pub fn defers_icrcs(&self) -> bool {
        self.with_deferred_icrc
    }

    /// Reports whether the turn is full: the queue should be transmitted before anything is added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.bytes >= self.turn
    }

    /// Returns the number of packets with `payload` bytes each needed to fill the turn.
    pub fn room_for(&self, payload: usize) -> usize {
        self.turn.saturating_sub(self.bytes) / payload + 1
    }

    /// Removes all packets, and keeps the buffers for reuse.
    pub fn clear(&mut self) {
        self.used = 0;
        self.pieces.clear();
        self.bursts.clear();
        self.prefixed = 0;
        self.packets = 0;
        self.bytes = 0;
        self.epoch = None;
    }

    /// Reports whether the queue has no packets.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns the number of packets queued.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Returns the number of UDP payload bytes queued.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a packet to the last burst or to a new one, with padding and ICRC.
    ///
    /// `headers.bth.pad` must be 0: the pad count is set here.
    #[inline]
    pub fn push(&mut self, flow: &Flow, headers: Headers, payload: &[u8]) {
        // Cannot fail: user memory is not read.
        let _ = self.add(flow, &headers, Payload::Bytes(payload));
    }

    internal! {
        /// Adds a packet like [`push`](Self::push), with its payload in user memory.
        ///
        /// # Errors
        /// If that memory cannot be read; then no packet is added.
        #[inline]
        fn push_host(&mut self, flow: &Flow, headers: &Headers, slices: &[HostSlice]) -> Result<(), Faulted> {
            self.add(flow, headers, Payload::Host(slices))
        }
    }

    /// Adds a packet. Takes the headers by reference, because they are about a hundred bytes long.
    fn add(&mut self, flow: &Flow, headers: &Headers, payload: Payload<'_>) -> Result<(), Faulted> {
        let payload_len = match payload {
            Payload::Bytes(b) => b.len(),
            Payload::Host(s) => s.iter().map(|s| s.len()).sum(),
        };
        let pad = pad_count(payload_len);
        let header_len = headers.len();
        let packet_len = header_len + payload_len + pad + ICRC_LEN;
        let twice = self.flush_icrc_twice && headers.bth.opcode == Opcode::FLUSH;
        let dest = headers.bth.dest_qp;
        // A burst of its own: packets to QP1 may be for different processes at the peer, and middleware that
        // splits bursts never has to adjust the ICRC of a FLUSH that covers the headers twice.
        let (defers_icrc, group) = (self.with_deferred_icrc && !twice, group_of(headers.bth.opcode, dest));
        let is_alone = twice || dest == Qpn::GSI;
        let index = self.join_burst(flow, group, is_alone, packet_len, defers_icrc);

        match payload {
            Payload::Host(slices) if payload_len > SHORT => {
                return self.push_long(flow, index, headers, slices, packet_len, pad);
            }
            _ => {
                let start = self.take(packet_len);
                let packet = &mut self.arena[start..start + packet_len];
                emit(headers, pad, packet);
                let mut room = &mut packet[header_len..];
                match payload {
                    Payload::Bytes(b) => {
                        room[..b.len()].copy_from_slice(b);
                        room = &mut room[b.len()..];
                    }
                    Payload::Host(s) => {
                        for slice in s {
                            if let Err(e) = slice.load(&mut room[..slice.len()]) {
                                self.take_back(start, packet_len);
                                return Err(e);
                            }
                            room = &mut room[slice.len()..];
                        }
                    }
                }
                if pad > 0 {
                    room[..pad].fill(0);
                }
                if defers_icrc {
                    room[pad..].fill(0);
                    self.add_arena_piece(start);
                    return Ok(());
                }
                let covered = start..start + packet_len - ICRC_LEN;
                let mut icrc = self.icrc_after(flow, index, packet_len, covered.clone());
                if twice {
                    icrc.update(&self.arena[covered.clone()]);
                }
                self.arena[covered.end..][..ICRC_LEN].copy_from_slice(&icrc.value().to_le_bytes());
                self.add_arena_piece(start);
            }
        }
        Ok(())
    }

    /// Removes the last packet, whose payload turned out to be unreadable, from its burst. `start` is the end
    /// of the arena without the packet.
    #[cold]
    fn take_back(&mut self, start: usize, packet_len: usize) {
        self.used = start;
        self.packets -= 1;
        self.bytes -= packet_len;
        let Some(burst) = self.bursts.last_mut() else { return };
        burst.packets -= 1;
        burst.bytes -= packet_len;
        burst.closed = false;
        if burst.packets == 0 {
            self.bursts.pop();
        }
        self.prefixed = 0;
    }

    /// Stores a packet whose payload is in user memory and longer than `SHORT`, after
    /// [`join_burst`](Self::join_burst) has counted it.
    #[inline]
    fn push_long(
        &mut self,
        flow: &Flow,
        index: u16,
        headers: &Headers,
        slices: &[HostSlice],
        packet_len: usize,
        pad: usize,
    ) -> Result<(), Faulted> {
        let header_len = headers.len();
        if self.with_deferred_icrc {
            // If the memory is unmapped before the copy, the packet is lost: its ICRC is invalidated, or the
            // receiver finds that it cannot read the payload.
            if let Err(e) = slices.iter().try_for_each(|slice| slice.probe()) {
                self.take_back(self.used, packet_len);
                return Err(e);
            }
            self.epoch.get_or_insert_with(payload_epoch);
            let start = self.take(header_len);
            emit(headers, pad, &mut self.arena[start..start + header_len]);
            self.add_arena_piece(start);
            let is_acknowledged = is_acknowledged(headers.bth.opcode);
            let slices = slices.iter().filter(|s| !s.is_empty());
            self.pieces.extend(slices.map(|slice| Piece::Host { slice: *slice, is_acknowledged }));
            let tail = self.take(pad + ICRC_LEN);
            self.arena[tail..self.used].fill(0);
            self.add_arena_piece(tail);
            return Ok(());
        }
        let start = self.take(packet_len);
        let mut at = start + header_len;
        emit(headers, pad, &mut self.arena[start..at]);
        let mut icrc = self.icrc_after(flow, index, packet_len, start..at);
        for slice in slices {
            match slice.load_and_crc(&mut self.arena[at..at + slice.len()], icrc) {
                Ok(after) => icrc = after,
                Err(e) => {
                    self.take_back(start, packet_len);
                    return Err(e);
                }
            }
            at += slice.len();
        }
        let tail = &mut self.arena[at..start + packet_len];
        tail[..pad].fill(0);
        icrc.update(&tail[..pad]);
        tail[pad..].copy_from_slice(&icrc.value().to_le_bytes());
        self.add_arena_piece(start);
        Ok(())
    }

    /// Computes the ICRC over the headers that precede the BTH and over `bytes` of the arena, which start at
    /// the BTH.
    #[inline]
    fn icrc_after(&mut self, flow: &Flow, index: u16, packet_len: usize, bytes: Range<usize>) -> Icrc {
        let is_next = std::mem::replace(&mut self.prefixed, self.bursts.len()) == self.bursts.len();
        let prefix = self.prefixes.of(flow, packet_len, is_next);
        // Links number the identifications from 0 in every burst, with don't-fragment set.
        prefix.after_headers(index, IpIdent::DONT_FRAGMENT, &self.arena[bytes])
    }

    /// Allocates `len` bytes of the arena, with unspecified contents, and returns their offset.
    #[inline]
    fn take(&mut self, len: usize) -> usize {
        let start = self.used;
        self.used += len;
        if self.arena.len() < self.used {
            self.arena.resize(self.used.next_power_of_two(), 0);
        }
        start
    }

    /// Adds a complete packet (BTH to ICRC) that was at `index` in another burst, for middleware that splits
    /// bursts. Adjusts its ICRC to the new index; a wrong ICRC stays wrong.
    pub fn push_raw(&mut self, flow: &Flow, index: u16, packet: &[u8]) {
        let opcode = packet.first().map_or(Opcode(0), |opcode| Opcode(*opcode));
        let dest = dest_of_first(packet);
        let is_alone = opcode == Opcode::FLUSH || dest == Qpn::GSI;
        let new_index = self.join_burst(flow, group_of(opcode, dest), is_alone, packet.len(), false);
        let start = self.take(packet.len());
        let copy = start..self.used;
        self.arena[copy.clone()].copy_from_slice(packet);
        let body = packet.len().saturating_sub(ICRC_LEN);
        // Anything too short for a packet has no ICRC to adjust.
        if body >= BTH_LEN && index != new_index {
            let mut mend = icrc::compute(flow, index, IpIdent::DONT_FRAGMENT, packet);
            mend ^= icrc::compute(flow, new_index, IpIdent::DONT_FRAGMENT, packet);
            let tail = self.arena[start + body..copy.end].iter_mut();
            tail.zip(mend.to_le_bytes()).for_each(|(byte, change)| *byte ^= change);
        }
        self.add_arena_piece(start);
    }

    /// Adds a whole burst from another queue unchanged, for links and middleware that distribute a queue's
    /// bursts. Deferred ICRCs are computed.
    pub fn push_burst(&mut self, burst: &TxBurst<'_>) {
        let TxBurst { flow, segment, packets, bytes, group, .. } = *burst;
        let start = self.used;
        self.arena.truncate(start);
        burst.copy_to(&mut self.arena);
        self.used = self.arena.len();
        self.packets += packets;
        self.bytes += bytes;
        // Closed, because its packets keep their indices.
        let first_piece = self.pieces.len();
        self.bursts.push(Burst {
            flow,
            group,
            segment,
            packets,
            bytes,
            first_piece,
            closed: true,
            defers_icrcs: false,
        });
        self.pieces.push(Piece::Inline(start as u32..self.used as u32));
    }

    /// Counts a packet as part of the last burst or, if it does not fit there, of a new one. Returns the
    /// packet's index in the burst.
    #[inline(always)]
    fn join_burst(
        &mut self,
        flow: &Flow,
        group: u8,
        is_alone: bool,
        packet_len: usize,
        defers_icrcs: bool,
    ) -> u16 {
        self.packets += 1;
        self.bytes += packet_len;
        let limits = self.limits;
        if let Some(b) = self.bursts.last_mut()
            && !b.closed
            && !is_alone
            && packet_len <= b.segment
            && b.packets < limits.packets
            && b.bytes + packet_len <= limits.bytes
            && b.group == group
            && b.defers_icrcs == defers_icrcs
            && b.flow == *flow
        {
            let index = b.packets as u16;
            b.packets += 1;
            b.bytes += packet_len;
            b.closed = packet_len < b.segment;
            return index;
        }
        self.bursts.push(Burst {
            flow: *flow,
            group,
            segment: packet_len,
            packets: 1,
            bytes: packet_len,
            first_piece: self.pieces.len(),
            closed: is_alone,
            defers_icrcs,
        });
        0
    }

    /// Adds the arena bytes from `start` on to the last burst, merging them with the burst's last piece if
    /// they are adjacent.
    fn add_arena_piece(&mut self, start: usize) {
        let (start, end) = (start as u32, self.used as u32);
        let first = self.bursts.last().map_or(0, |b| b.first_piece);
        let joined = self.pieces.len() > first;
        match self.pieces.last_mut() {
            Some(Piece::Inline(range)) if joined && range.end == start => range.end = end,
            _ => self.pieces.push(Piece::Inline(start..end)),
        }
    }

    /// Iterates over the bursts in the order in which they were pushed.
    pub fn bursts(&self) -> impl ExactSizeIterator<Item = TxBurst<'_>> {
        self.bursts.iter().enumerate().map(|(i, b)| {
            let end = self.bursts.get(i + 1).map_or(self.pieces.len(), |n| n.first_piece);
            TxBurst {
                flow: b.flow,
                segment: b.segment,
                packets: b.packets,
                bytes: b.bytes,
                group: b.group,
                defers_icrcs: b.defers_icrcs,
                epoch: self.epoch.unwrap_or_default(),
                arena: &self.arena,
                pieces: &self.pieces[b.first_piece..end],
            }
        })
    }
}

/// Writes the headers to the start of `packet`, with the pad count `pad`.
#[inline]
fn emit(headers: &Headers, pad: usize, packet: &mut [u8]) {
    headers.emit(packet);
    if pad != 0 {
        packet[1] |= (pad as u8) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Bth, Opcode, Packet};

    fn flow(port: u16) -> Flow {
        Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), port)
    }

    fn send(len: usize) -> (Headers, Vec<u8>) {
        let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
        (headers, (0..len).map(|i| i as u8).collect())
    }

    #[test]
    fn packets_of_equal_length_share_a_burst_and_a_shorter_one_ends_it() {
        let mut q = TxQueue::new(BurstLimits::SEGMENTED);
        for len in [100, 100, 40, 100, 100] {
            let (h, p) = send(len);
            q.push(&flow(1), h, &p);
        }
        let (h, p) = send(100);
        q.push(&flow(2), h, &p);
        let shapes: Vec<_> = q.bursts().map(|b| (b.packets, b.segment, b.bytes)).collect();
        assert_eq!(shapes, [(3, 116, 116 * 2 + 56), (2, 116, 232), (1, 116, 116)]);
        assert_eq!(q.packets(), 6);
        // Headers and small payloads of one burst are contiguous.
        assert!(q.bursts().all(|b| b.as_bytes().is_some()));
    }

    #[test]
    fn destinations_of_different_groups_share_no_burst() {
        let mut q = TxQueue::new(BurstLimits::SEGMENTED);
        let qpns = [0x04_0011, 0x04_0012, 0x08_0011, 0x0b_ffff, 0x04_0011].map(Qpn::new);
        for dest_qp in qpns {
            let (mut h, p) = send(100);
            h.bth.dest_qp = dest_qp;
            q.push(&flow(1), h, &p);
        }
        assert_eq!(q.bursts().map(|b| b.packets).collect::<Vec<_>>(), [2, 2, 1]);
        // Middleware that puts the packets together again keeps the groups apart too.
        let mut again = TxQueue::new(BurstLimits::SEGMENTED);
        for burst in q.bursts() {
            let (mut bytes, mut index) = (Vec::new(), 0);
            burst.copy_to(&mut bytes);
            for packet in bytes.chunks(burst.segment) {
                again.push_raw(&burst.flow, index, packet);
                index += 1;
            }
        }
        assert_eq!(again.bursts().map(|b| b.packets).collect::<Vec<_>>(), [2, 2, 1]);
    }

    #[test]
    fn flush_whose_icrc_covers_its_headers_twice_gets_its_own_burst_and_keeps_its_icrc() {
        let mut q = TxQueue::new(BurstLimits::SEGMENTED);
        q.flush_icrc_twice = true;
        for opcode in [Opcode(4), Opcode::FLUSH, Opcode::FLUSH, Opcode(4)] {
            let bth = Bth { opcode, ..Bth::default() };
            q.push(&flow(1), Headers { bth, ..Headers::default() }, &[]);
        }
        let mut again = TxQueue::new(BurstLimits::SEGMENTED);
        q.bursts().for_each(|b| again.push_raw(&b.flow, 0, b.bytes()));
        for queue in [&q, &again] {
            assert_eq!(queue.bursts().len(), 4);
            let (mut lenient, mut strict) = (icrc::Verifier::new(true), icrc::Verifier::new(false));
            for b in queue.bursts() {
                let flush = b.bytes()[0] == Opcode::FLUSH.0;
                assert!(lenient.verify(&b.flow, IpIdent::SENT, 0, b.bytes()));
                assert_eq!(strict.verify(&b.flow, IpIdent::SENT, 0, b.bytes()), !flush);
            }
        }
    }

    #[test]
    fn every_packet_of_a_burst_passes_the_icrc_check_at_its_index() {
        let mut q = TxQueue::new(BurstLimits { bytes: 60_000, packets: 3 });
        for len in [33, 33, 33, 33, 1] {
            let (h, p) = send(len);
            q.push(&flow(7), h, &p);
        }
        assert_eq!(q.bursts().map(|b| b.packets).collect::<Vec<_>>(), [3, 2]);
        for b in q.bursts() {
            let mut bytes = Vec::new();
            b.copy_to(&mut bytes);
            assert_eq!(bytes.len(), b.bytes);
            for (i, packet) in bytes.chunks(b.segment).enumerate() {
                assert!(icrc::verify(&b.flow, IpIdent::SENT, i as u16, packet));
                let view = Packet::parse(packet).unwrap();
                assert_eq!(view.payload(), &send(view.payload().len()).1);
            }
        }
    }

    #[test]
    fn raw_packet_with_valid_icrc_is_valid_at_its_new_index() {
        let mut q = TxQueue::new(BurstLimits::SEGMENTED);
        for _ in 0..4 {
            let (h, p) = send(20);
            q.push(&flow(7), h, &p);
        }
        let b = q.bursts().next().unwrap();
        let mut bytes = Vec::new();
        b.copy_to(&mut bytes);
        let mut other = TxQueue::new(BurstLimits::SEGMENTED);
        bytes[b.segment + 15] ^= 0x20;
        for i in [3, 1, 2] {
            other.push_raw(&b.flow, i, &bytes[i as usize * b.segment..][..b.segment]);
        }
        let mut raw = Vec::new();
        let burst = other.bursts().next().unwrap();
        burst.copy_to(&mut raw);
        let holds = |raw: &[u8]| -> Vec<bool> {
            let packets = raw.chunks(b.segment).enumerate();
            packets.map(|(i, p)| icrc::verify(&b.flow, IpIdent::SENT, i as u16, p)).collect()
        };
        assert_eq!(holds(&raw), [true, false, true]);
        let mut again = TxQueue::new(BurstLimits::SEGMENTED);
        for (i, p) in raw.chunks(b.segment).enumerate().skip(1) {
            again.push_raw(&b.flow, i as u16, p);
        }
        let mut raw = Vec::new();
        again.bursts().next().unwrap().copy_to(&mut raw);
        assert_eq!(holds(&raw), [false, true]);
    }

    #[test]
    fn clear_removes_all_packets() {
        let mut q = TxQueue::new(BurstLimits::SINGLE);
        let (h, p) = send(10);
        q.push(&flow(1), h, &p);
        q.clear();
        assert!(q.is_empty());
        assert_eq!(q.bursts().len(), 0);
        assert_eq!(q.bytes(), 0);
    }
}
