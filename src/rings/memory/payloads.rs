//! Payloads in a gathered record: behind the headers, or in the writer's memory, which the reader has mapped.
//!
//! The writer offers memory when it first sends from it, and leaves payloads out after the reader has
//! accepted the offer. It withdraws the offer when the program has freed the memory and the reader has read
//! the last record that refers to it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::burst::{GatheredPackets, Piece};
use crate::memory::{
    HostSlice, PeerMemory, PeerMemoryError, ShareableMemory, all_shareable, shareable_generation,
};
use crate::wire::BTH_LEN;

/// Maximum number of memories that a writer shares with its reader at a time. A process has at most 512
/// connections, and Linux permits 65,530 mappings.
pub(crate) const MAX_SHARED: usize = 32;

/// Number that stands for the record itself in place of that of a memory.
const RECORD: u32 = 0;

/// Parts of payloads that a record has apart from the packets: one, or one in each of several consecutive
/// packets, which follow one another in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rings) struct Parts {
    /// Offset of the first part in the burst; those of the others are a segment apart.
    at: u32,
    /// Length of each part in bytes.
    len: u32,
    /// Number of parts.
    count: u32,
    /// Number of the memory that contains the bytes; [`RECORD`] if the record contains them.
    memory: u32,
    /// Offset of the first part in that memory, or behind the header of the record.
    offset: u64,
}

impl Parts {
    pub const WORDS: usize = 6;

    pub fn to_words(self) -> [u32; Parts::WORDS] {
        let Parts { at, len, count, memory, offset } = self;
        [at, len, count, memory, offset as u32, (offset >> 32) as u32]
    }

    pub fn from_words([at, len, count, memory, low, high]: [u32; Parts::WORDS]) -> Parts {
        Parts { at, len, count, memory, offset: u64::from(high) << 32 | u64::from(low) }
    }

    /// Returns the offset of the byte behind the last part in the memory.
    fn end(&self) -> u64 {
        self.offset + u64::from(self.count) * u64::from(self.len)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not offered.
    Known,
    /// To be offered, because the writer has sent from it.
    Wanted,
    Offered,
    Accepted,
    Refused,
    /// No longer in use. The value is the end of the last record that may refer to it.
    Freed(u64),
}

#[derive(Debug)]
struct Shared {
    id: u32,
    range: Range<usize>,
    state: State,
}

/// Change of the memory that a writer shares.
#[derive(Debug)]
pub(crate) enum Change {
    /// Offers memory.
    Offer(Arc<ShareableMemory>),
    /// Withdraws memory that the reader has accepted, by number.
    Withdraw(u32),
}

/// This process's memory, as far as a reader knows it.
#[derive(Debug, Default)]
pub(in crate::rings) struct WriterMemory {
    /// Value of [`shareable_generation`] when `all` was last brought up to date.
    generation: u64,
    all: Vec<Shared>,
}

impl WriterMemory {
    /// Stores a gather list in `room`, which is part of a ring and as long as the burst: first the bytes of
    /// the list, then the payloads that the reader does not read from this process's memory. Returns the
    /// number of bytes stored, with the payloads in `parts`; `None` if user memory could not be read.
    /// `head` is the end of the last record.
    pub fn store<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<&'a [u8]>> + Clone,
        segment: usize,
        room: HostSlice,
        head: u64,
        parts: &mut Vec<Parts>,
    ) -> Option<usize> {
        self.refresh_if_changed(head);
        parts.clear();
        let inline =
            pieces.clone().map(|piece| if let Piece::Inline(bytes) = piece { bytes.len() } else { 0 });
        let (mut at, mut stored) = (0, inline.sum());
        let (mut bytes_room, mut payload_room) = room.split_at(stored);
        for piece in pieces {
            match piece {
                Piece::Inline(bytes) => {
                    bytes_room.store_in_ring(bytes).ok()?;
                    (at, bytes_room) = (at + bytes.len(), bytes_room.split_at(bytes.len()).1);
                }
                Piece::Host { slice, is_acknowledged } => {
                    let shared = if is_acknowledged { self.locate(slice) } else { None };
                    let (memory, offset) = match shared {
                        Some(place) => place,
                        None => {
                            let (now, later) = payload_room.split_at(slice.len());
                            now.store_host_in_ring(slice).ok()?;
                            payload_room = later;
                            stored += slice.len();
                            (RECORD, (stored - slice.len()) as u64)
                        }
                    };
                    let (next, len) = (at as u32, slice.len() as u32);
                    at += slice.len();
                    match parts.last_mut() {
                        Some(last)
                            if (last.len, last.memory, last.end()) == (len, memory, offset)
                                && last.at + last.count * segment as u32 == next =>
                        {
                            last.count += 1;
                        }
                        _ => parts.push(Parts { at: next, len, count: 1, memory, offset }),
                    }
                }
            }
        }
        Some(stored)
    }

    /// Returns the number of the accepted memory that contains a slice, and the slice's offset. Notes that
    /// memory is to be offered.
    #[inline]
    fn locate(&mut self, slice: HostSlice) -> Option<(u32, u64)> {
        let with_offset = self.all.iter_mut().map(|shared| Some((slice.offset_in(&shared.range)?, shared)));
        let (offset, shared) = with_offset.flatten().next()?;
        if shared.state == State::Known {
            shared.state = State::Wanted;
        }
        (shared.state == State::Accepted).then_some((shared.id, offset))
    }

    /// Brings the list up to date if the program has allocated or freed memory. `head` is the end of the last
    /// record.
    #[inline]
    fn refresh_if_changed(&mut self, head: u64) {
        let generation = shareable_generation();
        if generation != self.generation {
            self.refresh(generation, head);
        }
    }

    #[cold]
    fn refresh(&mut self, generation: u64, head: u64) {
        self.generation = generation;
        let now = all_shareable();
        for shared in &mut self.all {
            if now.iter().all(|memory| memory.id() != shared.id) {
                shared.range = 0..0;
                shared.state = match shared.state {
                    State::Offered | State::Accepted => State::Freed(head),
                    State::Freed(end) => State::Freed(end),
                    State::Known | State::Wanted | State::Refused => State::Refused,
                };
            }
        }
        self.all.retain(|shared| !(shared.range.is_empty() && shared.state == State::Refused));
        for memory in now {
            if self.all.iter().all(|shared| shared.id != memory.id()) {
                self.all.push(Shared { id: memory.id(), range: memory.range(), state: State::Known });
            }
        }
    }

    /// Returns the next change of the shared memory, which the caller must report to the reader. The reader
    /// has read all records up to `tail`.
    pub fn next_change(&mut self, head: u64, tail: u64) -> Option<Change> {
        self.refresh_if_changed(head);
        let is_free = |shared: &Shared| matches!(shared.state, State::Freed(end) if end <= tail);
        if let Some(index) = self.all.iter().position(is_free) {
            return Some(Change::Withdraw(self.all.swap_remove(index).id));
        }
        let is_shared =
            |shared: &&Shared| matches!(shared.state, State::Offered | State::Accepted | State::Freed(_));
        if self.all.iter().filter(is_shared).count() >= MAX_SHARED {
            return None;
        }
        let wanted = self.all.iter_mut().find(|shared| shared.state == State::Wanted)?;
        wanted.state = State::Refused;
        let memory = all_shareable().into_iter().find(|memory| memory.id() == wanted.id)?;
        wanted.state = State::Offered;
        Some(Change::Offer(memory))
    }

    /// Records that a change could not be sent to the reader. If `is_transient` is set, it will be sent
    /// later.
    pub fn on_unsent(&mut self, change: &Change, is_transient: bool) {
        match change {
            Change::Offer(memory) => {
                let state = if is_transient { State::Wanted } else { State::Refused };
                let offered = self.all.iter_mut().filter(|shared| shared.id == memory.id());
                offered.for_each(|shared| shared.state = state);
            }
            Change::Withdraw(id) => self.all.push(Shared { id: *id, range: 0..0, state: State::Freed(0) }),
        }
    }

    /// Reports whether [`next_change`](Self::next_change) may return something without a change of the
    /// program's memory.
    #[inline]
    pub fn may_change(&self) -> bool {
        self.all.iter().any(|shared| matches!(shared.state, State::Wanted | State::Freed(_)))
            || shareable_generation() != self.generation
    }

    /// Notes the answer to an offer. Returns false if there was no such offer.
    pub fn on_answer(&mut self, id: u32, accepts: bool) -> bool {
        let Some(shared) = self.all.iter_mut().find(|shared| shared.id == id) else { return false };
        match (shared.state, accepts) {
            (State::Offered, true) => shared.state = State::Accepted,
            (State::Offered, false) => shared.state = State::Refused,
            (State::Freed(_), true) => {}
            // The reader has not mapped it, so there is nothing to withdraw.
            (State::Freed(_), false) => self.all.retain(|shared| shared.id != id),
            _ => return false,
        }
        true
    }
}

/// Memory of the writer that a reader has mapped, and the last burst.
#[derive(Debug, Default)]
pub(in crate::rings) struct ReaderMemory {
    all: Vec<(u32, Arc<PeerMemory>)>,
    pub packets: GatheredPackets,
}

impl ReaderMemory {
    /// Maps memory that the writer offers, for payloads that stay there. Returns `None` if it is shared
    /// already, which breaks the protocol.
    ///
    /// # Errors
    /// Reason why this process has not mapped the memory; the caller must refuse the offer.
    pub fn share(&mut self, id: u32, fd: &OwnedFd) -> Option<Result<(), PeerMemoryError>> {
        if self.all.iter().any(|(of, _)| *of == id) {
            return None;
        }
        if self.all.len() >= MAX_SHARED {
            return Some(Err(PeerMemoryError::TooMany));
        }
        Some(PeerMemory::open(fd).map(|memory| self.all.push((id, Arc::new(memory)))))
    }

    /// Unmaps memory that the writer withdraws. Returns false if it is not mapped, which breaks the protocol.
    pub fn withdraw(&mut self, id: u32) -> bool {
        let before = self.all.len();
        self.all.retain(|(of, _)| *of != id);
        self.all.len() < before
    }

    /// Reassembles a burst of `len` bytes, in packets of `segment` bytes, from the bytes that the record
    /// contains and from the payloads, which are valid in the given epoch. Returns `None` if the parts
    /// contradict the bytes, or exceed the record or the mapped memory.
    ///
    /// The NIC checks that the parts of a packet begin where its payload begins, because the NIC parses the
    /// headers.
    pub fn gather(
        &mut self,
        (len, segment): (usize, usize),
        record: HostSlice,
        epoch: u32,
        parts: impl Iterator<Item = Parts>,
    ) -> Option<()> {
        let packets = &mut self.packets;
        packets.begin(segment);
        // The bytes not yet taken, those of payloads included, and the packet and the end of the last part.
        let (mut bytes, mut left, mut last) = (record, record.len(), None);
        for Parts { at, len: part, count, memory, offset } in parts {
            let total = part.checked_mul(count)?;
            let mut rest = if memory == RECORD {
                left = left.checked_sub(total as usize)?;
                let offset = usize::try_from(offset).ok().filter(|offset| *offset <= record.len())?;
                record.split_at(offset).1
            } else {
                let (_, memory) = self.all.iter().find(|(of, _)| *of == memory)?;
                packets.payloads.keep_mapped(memory, epoch);
                memory.slice(offset, total)?
            };
            let (part, mut start) = (part as usize, at as usize);
            let mut packet = start - start % segment;
            for _ in 0..count {
                let end = start.checked_add(part)?;
                if part == 0
                    || start < packet + BTH_LEN
                    || end > (packet + segment).min(len)
                    || rest.len() < part
                {
                    return None;
                }
                let before = start.checked_sub(packets.len()).filter(|before| *before <= bytes.len())?;
                let (now, later) = bytes.split_at(before);
                packets.load(now).ok()?;
                (bytes, left) = (later, left.checked_sub(before)?);
                // The parts of a packet follow one another, and the last one ends the payload.
                if let Some((of, ended)) = last.replace((packet, end)) {
                    let is_next = if of == packet { ended == start } else { packets.ends_payload(of, ended) };
                    is_next.then_some(())?;
                }
                let (payload, behind) = rest.split_at(part);
                packets.leave(payload);
                (rest, start, packet) = (behind, start + segment, packet + segment);
            }
        }
        // The bytes behind the last part are the rest of the record.
        if len - packets.len() != left {
            return None;
        }
        packets.load(bytes.split_at(left).0).ok()?;
        last.is_none_or(|(packet, end)| packets.ends_payload(packet, end)).then_some(())
    }
}

#[cfg(test)]
mod tests;
