//! Send queue: holds work requests from posting to completion.

use super::congestion::packet_cost;
use super::connection::Connection;
use super::fifo::Fifo;
use super::send_slots::SendSlots;
use super::sge_list::gather;
use super::work::MAX_MESSAGE;
use super::{Destination, Env, PostError, Quirks, SendCaps, SendFlags, SendWr, Sge, SrqId, WrData, WrOp};
use crate::burst::ReceivedPayload;
use crate::memory::{AccessError, Accessor, Faulted, Table};
use crate::wire::{Flow, Mtu, Psn, QKey, Qpn};

/// Position of a work request in the packet stream: message number, PSNs and flight cost.
struct Place {
    number: u32,
    first_psn: Psn,
    packets: u32,
    cost_before: u64,
}

/// Queued send work request.
#[derive(Debug)]
pub(super) struct SendWqe {
    pub wr_id: u64,
    /// Message number since the transition to RTS, modulo 2^24; that of the last message of a train.
    pub number: u32,
    pub op: WrOp,
    pub flags: SendFlags,
    /// Whether the work request completes with LOC_QP_OP_ERR in its turn, because the queue pair cannot
    /// execute it.
    pub fails: bool,
    /// Index in `destinations`; `None` if the work request is not a datagram.
    to: Option<u64>,
    /// Shared receive queue at the peer (XRC).
    pub srq: Option<SrqId>,
    /// Length of the message in bytes.
    pub len: u32,
    source: Source,
    /// Number of scatter/gather elements or inline bytes.
    count: u32,
    /// PSN of the first packet; for a READ, of the first response.
    pub first_psn: Psn,
    /// Number of PSNs consumed; 0 for a local operation.
    pub packets: u32,
    /// Flight cost of everything posted before this work request, since the queue was created.
    cost_before: u64,
}

/// Destination of a datagram.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram {
    pub flow: Flow,
    pub qpn: Qpn,
    pub qkey: QKey,
}

/// Index in `sges` or `inline` at which a work request's data begins.
#[derive(Debug, Clone, Copy)]
enum Source {
    Sges(u64),
    Inline(u64),
}

impl SendWqe {
    /// Reports whether the work request sends a datagram.
    pub fn is_datagram(&self) -> bool {
        self.to.is_some()
    }

    /// Returns the PSN that follows the last packet.
    pub fn end_psn(&self) -> Psn {
        self.first_psn + self.packets
    }

    /// Reports whether the work request is executed only after all earlier ones are complete.
    pub fn waits_for_all(&self) -> bool {
        matches!(self.op, WrOp::LocalInv(_))
    }

    /// Returns the flight cost of everything posted before packet `packet` of this work request.
    pub fn cost_at(&self, packet: u32, mtu: Mtu) -> u64 {
        self.cost_before + message_cost(self.len, self.packets, packet, mtu)
    }
}

/// Reports whether a WRITE is sent as a train of messages of one packet each. A WRITE with immediate is never
/// one: the completion of its receive has the length of the message.
pub(super) fn is_train(op: &WrOp, conn: &Connection) -> bool {
    matches!(op, WrOp::Write { .. }) && conn.quirks().equal_packets && conn.qp_type.is_reliable()
}

/// Returns the flight cost of the first `n` packets of a message that has `packets` packets.
fn message_cost(len: u32, packets: u32, n: u32, mtu: Mtu) -> u64 {
    if n == 0 {
        return 0;
    }
    let full = n.min(packets - 1) as u64;
    let cost = full * packet_cost(mtu.bytes() as u64);
    if n < packets { cost } else { cost + packet_cost(len as u64 - full * mtu.bytes() as u64) }
}

/// Send queue position to roll back to.
#[derive(Debug)]
pub(super) struct Mark {
    wqes: u64,
    sges: u64,
    inline: u64,
    destinations: u64,
    next_psn: Psn,
    messages: u32,
    cost: u64,
}

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    pub caps: SendCaps,
    wqes: Fifo<SendWqe>,
    sges: Fifo<Sge>,
    inline: Fifo<u8>,
    destinations: Fifo<Datagram>,
    /// PSN of the next work request to be posted.
    pub next_psn: Psn,
    /// Number of messages posted since the transition to RTS, modulo 2^24.
    pub messages: u32,
    /// Flight cost of everything posted since the queue was created.
    pub cost: u64,
    /// Occupied slots, if they are not those of the incomplete work requests.
    pub slots: Option<Box<SendSlots>>,
}

impl SendQueue {
    pub fn new(caps: SendCaps, quirks: &Quirks) -> SendQueue {
        let slots = quirks.send_slots_until_polled.then(Box::default);
        SendQueue { caps, slots, ..SendQueue::default() }
    }

    /// Queues a work request and, unless it `fails`, assigns PSNs to it.
    #[inline(always)]
    pub fn post(
        &mut self,
        wr: &SendWr<'_>,
        to: Option<Datagram>,
        fails: bool,
        conn: &Connection,
    ) -> Result<(), PostError> {
        if self.occupied_slots() >= self.caps.max_wr as usize {
            return Err(PostError::QueueFull(self.caps.max_wr));
        }
        let len = match wr.data {
            WrData::Sges(sges) => {
                if sges.len() > self.caps.max_sge as usize {
                    return Err(PostError::TooManySges { got: sges.len(), max: self.caps.max_sge });
                }
                sges.iter().map(|s| s.length as u64).sum()
            }
            WrData::Inline(_) | WrData::InlineList(_) => {
                if wr.op.brings_data() {
                    return Err(PostError::InlineNotAllowed(wr.op.completion_opcode()));
                }
                let got = wr.data.inline().iter().map(|piece| piece.len()).sum();
                if got > self.caps.max_inline as usize {
                    return Err(PostError::InlineTooLong { got, max: self.caps.max_inline });
                }
                got as u64
            }
        };
        if !wr.op.has_data() && !wr.data.is_empty() {
            return Err(PostError::NoData(wr.op.completion_opcode()));
        }
        if matches!(wr.op, WrOp::Flush { placement, .. } if placement.is_empty()) {
            return Err(PostError::NoPlacement);
        }
        if len > MAX_MESSAGE {
            return Err(PostError::TooLong(len));
        }
        let is_atomic = matches!(wr.op, WrOp::Atomic { .. });
        if is_atomic && (len < 8 || len > 8 && !conn.quirks().long_atomics) {
            return Err(PostError::AtomicLength(len));
        }
        let len = if is_atomic { 8 } else { len };
        let (source, count) = match wr.data {
            WrData::Sges(sges) => {
                let first = self.sges.end();
                self.sges.extend(sges);
                (Source::Sges(first), sges.len() as u32)
            }
            WrData::Inline(_) | WrData::InlineList(_) => {
                let first = self.inline.end();
                wr.data.inline().iter().for_each(|piece| self.inline.extend(piece));
                (Source::Inline(first), len as u32)
            }
        };
        let to = to.map(|to| {
            self.destinations.push(to);
            self.destinations.end() - 1
        });
        let place = self.place(&wr.op, len as u32, to.is_some(), fails, conn);
        self.wqes.push(SendWqe {
            wr_id: wr.wr_id,
            number: place.number,
            op: wr.op,
            flags: wr.flags,
            fails,
            to,
            srq: match wr.to {
                Some(Destination::Srq(srq)) => Some(srq),
                _ => None,
            },
            len: len as u32,
            source,
            count,
            first_psn: place.first_psn,
            packets: place.packets,
            cost_before: place.cost_before,
        });
        Ok(())
    }

    /// Assigns a work request its message number, PSNs and flight cost, which continue from the previous work
    /// request.
    #[inline]
    fn place(&mut self, op: &WrOp, len: u32, is_datagram: bool, fails: bool, conn: &Connection) -> Place {
        let mtu = conn.attr.mtu;
        // A datagram has one packet; a longer one fails.
        let packets = match op {
            op if op.is_local() || fails => 0,
            WrOp::Atomic { .. } => 1,
            _ if is_datagram => 1,
            _ => mtu.packets(len),
        };
        let messages = if packets > 1 && is_train(op, conn) { packets } else { packets.min(1) };
        self.messages = (self.messages + messages) & 0xff_ffff;
        let place =
            Place { number: self.messages, first_psn: self.next_psn, packets, cost_before: self.cost };
        self.next_psn += packets;
        self.cost += message_cost(len, packets, packets, mtu);
        place
    }

    /// Assigns message numbers, PSNs and flight costs to the work requests posted before RTS, when the
    /// connection begins. Returns the flight cost of everything posted before them.
    pub fn begin(&mut self, conn: &Connection) -> u64 {
        (self.next_psn, self.messages) = (conn.attr.sq_psn, 0);
        self.cost = self.wqes.front().map_or(self.cost, |wqe| wqe.cost_before);
        let before = self.cost;
        let mut wqes = std::mem::take(&mut self.wqes);
        for wqe in wqes.iter_mut() {
            wqe.fails |= wqe.op.awaits_response() && conn.attr.max_rd_atomic == 0;
            let place = self.place(&wqe.op, wqe.len, wqe.is_datagram(), wqe.fails, conn);
            (wqe.number, wqe.first_psn) = (place.number, place.first_psn);
            (wqe.packets, wqe.cost_before) = (place.packets, place.cost_before);
        }
        self.wqes = wqes;
        before
    }

    fn occupied_slots(&mut self) -> usize {
        match &mut self.slots {
            None => self.wqes.len(),
            Some(slots) => (self.wqes.end() - slots.start()) as usize,
        }
    }

    /// Records that the oldest work request has completed with a completion, before it is retired.
    pub fn on_completion(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.on_completion(self.wqes.start());
        }
    }

    /// Returns the current end of the queue, for use with [`roll_back`](Self::roll_back).
    pub fn mark(&self) -> Mark {
        let (wqes, sges, inline) = (self.wqes.end(), self.sges.end(), self.inline.end());
        let SendQueue { next_psn, messages, cost, .. } = *self;
        Mark { wqes, sges, inline, destinations: self.destinations.end(), next_psn, messages, cost }
    }

    /// Removes all work requests posted since `mark`, none of which may have been sent.
    pub fn roll_back(&mut self, mark: &Mark) {
        self.wqes.truncate(mark.wqes);
        self.sges.truncate(mark.sges);
        self.inline.truncate(mark.inline);
        self.destinations.truncate(mark.destinations);
        (self.next_psn, self.messages, self.cost) = (mark.next_psn, mark.messages, mark.cost);
    }

    pub fn front(&self) -> Option<&SendWqe> {
        self.wqes.front()
    }

    pub fn get(&self, index: u64) -> Option<&SendWqe> {
        self.wqes.get(index)
    }

    /// Returns the index of the oldest incomplete work request.
    pub fn start(&self) -> u64 {
        self.wqes.start()
    }

    pub fn end(&self) -> u64 {
        self.wqes.end()
    }

    /// Removes the oldest work request.
    pub fn retire(&mut self) {
        let Some(wqe) = self.wqes.front() else { return };
        let count = wqe.count as usize;
        match wqe.source {
            Source::Sges(_) => self.sges.release(count),
            Source::Inline(_) => self.inline.release(count),
        }
        if wqe.is_datagram() {
            self.destinations.release(1);
        }
        self.wqes.release(1);
    }

    /// Returns the destination of a work request; `None` if it is not a datagram.
    pub fn destination(&self, wqe: &SendWqe) -> Option<&Datagram> {
        wqe.to.and_then(|index| self.destinations.get(index))
    }

    /// Appends bytes `at..at + len` of a work request's inline data to `out`. Returns false if the data is
    /// not inline.
    pub fn inline_data(&self, wqe: &SendWqe, at: u32, len: u32, out: &mut Vec<u8>) -> bool {
        let Source::Inline(first) = wqe.source else { return false };
        out.extend(self.inline.range(first + at as u64, len as usize));
        true
    }

    /// Replaces `env.scratch` with the memory slices that hold bytes `at..at + len` of a work request's
    /// message.
    pub fn gather(
        &self,
        wqe: &SendWqe,
        at: u32,
        len: u32,
        by: Accessor,
        env: &mut Env<'_>,
    ) -> Result<(), Faulted> {
        env.scratch.clear();
        let Source::Sges(first) = wqe.source else { return Ok(()) };
        let access = wqe.op.local_access();
        let mut add = |sge: &Sge, addr, n| {
            let found = env.memory.local(by, sge.lkey, addr, n, access);
            found.map(|slice| env.scratch.push(slice)).map_err(|_| Faulted)
        };
        if wqe.count == 1
            && len > 0
            && let Some(sge) = self.sges.get(first)
        {
            // A single scatter/gather element: the message is contiguous in it.
            return add(sge, sge.addr.wrapping_add(at.into()), len);
        }
        gather(self.sges.range(first, wqe.count as usize), at, len, add)
    }

    /// Returns the index of the first scatter/gather element of a work request to which access is denied, and
    /// the reason.
    pub fn denied(&self, wqe: &SendWqe, by: Accessor, memory: &Table) -> Option<(usize, AccessError)> {
        let Source::Sges(first) = wqe.source else { return None };
        let access = wqe.op.local_access();
        let denied = |s: &Sge| memory.local(by, s.lkey, s.addr, s.length, access).err();
        let sges = self.sges.range(first, wqe.count as usize).enumerate();
        sges.filter_map(|(index, sge)| Some((index, denied(sge)?))).next()
    }

    /// Stores `data` in the memory of a work request's scatter/gather list, from byte offset `at` on. If an
    /// element's key does not permit the access, nothing is stored.
    pub fn scatter(
        &self,
        wqe: &SendWqe,
        at: u32,
        data: ReceivedPayload<'_>,
        by: Accessor,
        env: &mut Env<'_>,
    ) -> Result<(), Faulted> {
        self.gather(wqe, at, data.len() as u32, by, env)?;
        let mut rest = data;
        for slice in env.scratch.iter() {
            let (now, later) = rest.split_at(slice.len());
            now.store_to(*slice)?;
            rest = later;
        }
        Ok(())
    }

    pub fn clear(&mut self) {
        self.wqes.clear();
        if let Some(slots) = &mut self.slots {
            slots.clear(self.wqes.end());
        }
        self.sges.clear();
        self.inline.clear();
        self.destinations.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::AtomicOp;
    use crate::transport::QpInit;
    use crate::wire::RKey;

    #[test]
    fn roll_back_restores_the_send_queue() {
        let init = QpInit { send: SendCaps { max_wr: 8, max_sge: 4, max_inline: 64 }, ..QpInit::rc() };
        let (conn, mut queue) =
            (Connection::new(&init, Qpn::new(7)), SendQueue::new(init.send, &init.quirks));
        let sges = [Sge { length: 5000, ..Sge::default() }, Sge::default()];
        let word = [Sge { length: 8, ..Sge::default() }];
        let atomic = WrOp::Atomic { va: 0, rkey: RKey(0), op: AtomicOp::FetchAdd(1) };
        let post = |queue: &mut SendQueue| {
            for (op, data) in [
                (WrOp::Send, WrData::Sges(&sges)),
                (WrOp::Send, WrData::InlineList(&[b"ab", b"", b"cde"])),
                (atomic, WrData::Sges(&word)),
            ] {
                let wr = SendWr::new(1, op, &[]).data(data);
                queue.post(&wr, None, false, &conn).unwrap();
            }
        };
        post(&mut queue);
        queue.retire();
        let (before, mark) = (format!("{queue:?}"), queue.mark());
        post(&mut queue);
        assert_ne!(format!("{queue:?}"), before);
        queue.roll_back(&mark);
        assert_eq!(format!("{queue:?}"), before);

        let mut inline = Vec::new();
        let wqe = queue.front().unwrap();
        assert!(queue.inline_data(wqe, 1, 3, &mut inline));
        assert_eq!((wqe.len, &inline[..]), (5, &b"bcd"[..]));
    }
}
