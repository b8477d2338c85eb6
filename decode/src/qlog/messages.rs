//! Messages of a stream: where they begin and end, and when they are acknowledged.

use std::collections::{HashSet, VecDeque};

use urxe::wire::{HeaderSet, Operation, Packet, Psn};

use crate::track::requests::Requests;

/// Messages that are remembered per stream, and first PSNs.
const MAX: usize = 1 << 16;

/// READs that are remembered: more than a queue pair may have in flight.
const MAX_READS: usize = 256;

/// The last packet of a message.
#[derive(Clone, Copy, Debug)]
struct End {
    psn: Psn,
    operation: Operation,
    has_immediate: bool,
    /// Length of a READ or atomic in bytes, otherwise of the last packet's payload.
    length: u32,
    /// PSN of the next response packet of a READ or atomic; `None` for other operations, which an
    /// acknowledgement completes.
    next_response: Option<Psn>,
}

impl End {
    /// Returns the PSN behind the message.
    fn next(&self, requests: &Requests) -> Psn {
        let span = match (self.operation, requests.mtu) {
            (Operation::ReadRequest, Some(mtu)) => mtu.packets(self.length),
            _ => 1,
        };
        self.psn + span
    }

    /// Reports whether a response is still missing.
    fn awaits_response(&self, requests: &Requests) -> bool {
        self.next_response.is_some_and(|next| next.is_before(self.next(requests)))
    }
}

/// An acknowledged message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// First PSN.
    pub psn: Psn,
    /// Operation.
    pub operation: Operation,
    /// Whether it has immediate data.
    pub has_immediate: bool,
    /// Length in bytes.
    pub length: u64,
}

/// Messages of a stream that are not acknowledged.
#[derive(Debug, Default)]
pub struct Messages {
    starts: HashSet<Psn>,
    ends: VecDeque<End>,
    /// First PSNs and lengths of the newest READs, which may be repeated from their middle.
    reads: VecDeque<(Psn, u32)>,
    /// First PSN of the oldest message.
    next: Option<Psn>,
    /// First response that is known to be missing; a requester reacts once to its loss.
    missing: Option<Psn>,
    /// Whether the requester has asked for that response again.
    is_asked_again: bool,
}

impl Messages {
    /// Takes a request. Reports whether it begins a message that was not seen before.
    pub fn request(&mut self, packet: &Packet<'_>, requests: &Requests) -> bool {
        let (psn, row) = (packet.bth().psn, packet.row());
        let is_repeated = row.operation == Operation::ReadRequest && self.is_within_read(psn, requests);
        let is_start = row.position.starts() && !is_repeated && self.starts.insert(psn);
        if let (true, Operation::ReadRequest, Some(reth)) = (is_start, row.operation, packet.reth()) {
            self.reads.push_back((psn, reth.dma_len));
            if self.reads.len() > MAX_READS {
                self.reads.pop_front();
            }
        }
        if self.starts.len() > MAX {
            self.starts.clear();
        }
        self.next.get_or_insert(psn);
        self.is_asked_again |= self.missing == Some(psn);
        let is_acknowledged = self.next.is_some_and(|next| psn.is_before(next));
        if row.position.ends() && !is_repeated && !is_acknowledged {
            let target = packet.reth().map(|reth| reth.dma_len);
            let length = match row.operation {
                Operation::ReadRequest => target.unwrap_or(0),
                Operation::CompareSwap | Operation::FetchAdd => 8,
                _ => packet.payload().len() as u32,
            };
            let has_immediate = row.headers.contains(HeaderSet::IMMDT);
            let next_response = row.operation.takes_read_resource().then_some(psn);
            let end = End { psn, operation: row.operation, has_immediate, length, next_response };
            let at = self.ends.partition_point(|known| known.psn.is_before(psn));
            if self.ends.get(at).is_none_or(|known| known.psn != psn) {
                self.ends.insert(at, end);
            }
            if self.ends.len() > MAX {
                self.ends.pop_front();
            }
        }
        is_start
    }

    /// Reports whether a request with this PSN would ask for the first time for a response that is known to be missing.
    pub fn misses(&self, psn: u32) -> bool {
        !self.is_asked_again && self.missing.is_some_and(|missing| missing.get() == psn)
    }

    /// Reports whether a PSN is that of a response to an earlier READ, but not the first.
    fn is_within_read(&self, psn: Psn, requests: &Requests) -> bool {
        let is_within = |(start, length): &(Psn, u32)| {
            let span = requests.mtu.map_or(1, |mtu| mtu.packets(*length));
            (1..span as i32).contains(&psn.since(*start))
        };
        self.reads.iter().any(is_within)
    }

    /// Takes a response. Returns the first missing PSN if the response shows that earlier ones are missing, which was
    /// not known.
    pub fn response(&mut self, packet: &Packet<'_>, requests: &Requests) -> Option<Psn> {
        let psn = packet.bth().psn;
        let waiting = self.ends.iter_mut().find(|end| end.awaits_response(requests))?;
        let next = waiting.next_response.filter(|next| !psn.is_before(*next))?;
        let answers = packet.row().operation != Operation::Acknowledge;
        // A NAK for the request itself is no loss.
        if psn == next {
            waiting.next_response = if answers { Some(psn.next()) } else { Some(next) };
            return None;
        }
        let is_new = self.missing.replace(next) != Some(next);
        self.is_asked_again &= !is_new;
        is_new.then_some(next)
    }

    /// Removes the oldest message if it is acknowledged, and returns it.
    pub fn acknowledged(&mut self, requests: &Requests) -> Option<Message> {
        let end = self.ends.front()?;
        let (_, acked) = requests.acknowledged?;
        if acked.is_before(end.psn) || end.awaits_response(requests) {
            return None;
        }
        self.pop(requests)
    }

    /// Removes the oldest message and returns it.
    pub fn pop(&mut self, requests: &Requests) -> Option<Message> {
        let end = self.ends.pop_front()?;
        let psn = self.next.unwrap_or(end.psn);
        let before = end.psn.since(psn).max(0) as u64;
        let mtu = requests.mtu.map_or(0, |mtu| mtu.bytes() as u64);
        self.next = Some(end.next(requests));
        let length = before * mtu + u64::from(end.length);
        Some(Message { psn, operation: end.operation, has_immediate: end.has_immediate, length })
    }
}
