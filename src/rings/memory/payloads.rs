//! Payloads that stay in the writer's memory, which the reader has mapped: the memory that both know, and the descriptors in
//! records.
//!
//! The writer offers memory when it first sends from it, and leaves payloads out after the reader has accepted the offer. It
//! withdraws the offer when the program has freed the memory and the reader has read the last record that refers to it.

use std::ops::Range;
use std::sync::Arc;

use crate::burst::{LeftOut, SenderPayloads};
use crate::memory::{Faulted, HostSlice, PeerMemory, ShareableMemory, all_shareable, shareable_generation};
use crate::wire::{BTH_LEN, Bth, ICRC_LEN, Opcode};

/// Maximum number of memories that a writer shares with its reader at a time. A process has at most 512 connections, and
/// Linux permits 65,530 mappings.
pub(crate) const MAX_SHARED: usize = 32;

/// Length in bytes up to which the reader copies whole packets. The payloads of longer ones are copied once, from the record to
/// their destination. Not measured against other values.
const SHORT: usize = 512;

/// Number of words of a descriptor.
pub(super) const DESCRIPTOR_WORDS: usize = 6;

/// Returns the descriptor of parts that are left out of a record.
pub(super) fn descriptor(parts: &LeftOut) -> [u32; DESCRIPTOR_WORDS] {
    let LeftOut { at, len, count, memory, offset, .. } = *parts;
    [at, len, count, memory, offset as u32, (offset >> 32) as u32]
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
pub(super) struct WriterMemory {
    /// Value of [`shareable_generation`] when `all` was last brought up to date.
    generation: u64,
    all: Vec<Shared>,
}

impl WriterMemory {
    /// Reports whether the reader can read any of the slices. Notes which memory they are in. `head` is the end of the last
    /// record.
    #[inline]
    pub fn contains_any(&mut self, slices: impl Iterator<Item = HostSlice>, head: u64) -> bool {
        let generation = shareable_generation();
        if generation != self.generation {
            self.refresh(generation, head);
        }
        !self.all.is_empty() && self.find_any(slices)
    }

    fn find_any(&mut self, slices: impl Iterator<Item = HostSlice>) -> bool {
        let mut found = false;
        for slice in slices {
            let shared = self.all.iter_mut().find(|shared| slice.offset_in(&shared.range).is_some());
            match shared {
                Some(Shared { state: State::Accepted, .. }) => found = true,
                Some(shared) if shared.state == State::Known => shared.state = State::Wanted,
                _ => {}
            }
        }
        found
    }

    /// Returns the number of the accepted memory that contains a slice, and the slice's offset.
    #[inline]
    pub fn locate(&self, slice: HostSlice) -> Option<(u32, u64)> {
        let accepted = self.all.iter().filter(|shared| shared.state == State::Accepted);
        accepted.map(|shared| Some((shared.id, slice.offset_in(&shared.range)?))).find_map(|at| at)
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

    /// Returns the next change of the shared memory, which the caller must report to the reader. The reader has read all
    /// records up to `tail`.
    pub fn next_change(&mut self, head: u64, tail: u64) -> Option<Change> {
        let generation = shareable_generation();
        if generation != self.generation {
            self.refresh(generation, head);
        }
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

    /// Records that a change could not be sent to the reader. If `is_transient` is set, it will be sent later.
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

    /// Reports whether [`next_change`](Self::next_change) may return something without a change of the program's memory.
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

/// Memory of the writer that a reader has mapped, and the last burst with payloads there.
#[derive(Debug, Default)]
pub(super) struct ReaderMemory {
    all: Vec<(u32, Arc<PeerMemory>)>,
    /// The packets, with unspecified bytes in place of the payloads in `payloads`.
    packets: Vec<u8>,
    pub payloads: SenderPayloads,
}

impl ReaderMemory {
    pub fn contains(&self, id: u32) -> bool {
        self.all.iter().any(|(of, _)| *of == id)
    }

    /// Reports whether the writer may not share any more.
    pub fn is_full(&self) -> bool {
        self.all.len() >= MAX_SHARED
    }

    pub fn add(&mut self, id: u32, memory: PeerMemory) {
        self.all.push((id, Arc::new(memory)));
    }

    /// Unmaps memory. Returns false if it is not mapped.
    pub fn remove(&mut self, id: u32) -> bool {
        let before = self.all.len();
        self.all.retain(|(of, _)| *of != id);
        self.all.len() < before
    }

    /// Copies the packets of a burst from a record that contains all of them, in segments of the given length. If they are long and
    /// have no ICRCs to verify, copies only their headers and returns true: `payloads` then locates the payloads in the record.
    pub fn copy(&mut self, segment: usize, packets: HostSlice, elides_icrcs: bool) -> Result<bool, Faulted> {
        self.make_room(packets.len());
        let copies = &mut self.packets[..packets.len()];
        if !elides_icrcs || segment <= SHORT {
            return packets.load(copies).map(|()| false);
        }
        self.payloads.clear();
        for (at, copy) in (0..packets.len()).step_by(segment).zip(copies.chunks_mut(segment)) {
            let (bth, behind) =
                packets.split_at(at).1.split_at(copy.len()).0.split_at(copy.len().min(BTH_LEN));
            let (copied, rest) = copy.split_at_mut(bth.len());
            bth.load(copied)?;
            // Most packets are middle ones, without extension headers.
            let extensions = Opcode(copied[0]).row().headers.wire_len().min(rest.len());
            let (headers, payload) = behind.split_at(extensions);
            if extensions > 0 {
                headers.load(&mut rest[..extensions])?;
            }
            let pad = copied.first_chunk::<BTH_LEN>().map_or(0, |bth| Bth::read(bth).pad);
            // A packet that is too short has no payload; the NIC drops it.
            if let Some(len @ 1..) = payload.len().checked_sub(usize::from(pad) + ICRC_LEN) {
                let (payload, padding) = payload.split_at(len);
                if pad > 0 {
                    padding.load(&mut rest[extensions + len..])?;
                }
                self.payloads.add(payload);
            }
            self.payloads.end_packet();
        }
        Ok(true)
    }

    /// Makes room for a burst of `len` bytes.
    fn make_room(&mut self, len: usize) {
        if self.packets.len() < len {
            self.packets.resize(len, 0);
        }
    }

    /// Reassembles the packets of a burst of `len` bytes from the `bytes` that the record contains. The descriptors locate the
    /// payloads that were left out, which are valid in the given epoch. Returns `None` if the descriptors contradict the
    /// bytes or exceed the mapped memory.
    ///
    /// The NIC checks that the parts of a packet begin where its payload begins, because the NIC parses the headers.
    pub fn expand(
        &mut self,
        (len, segment): (usize, usize),
        bytes: HostSlice,
        epoch: u32,
        descriptors: impl Iterator<Item = [u32; DESCRIPTOR_WORDS]>,
    ) -> Option<()> {
        self.make_room(len);
        self.payloads.clear();
        // Positions of the next byte and of the current packet in the burst, and of the end of its last part in the packet.
        let (mut pos, mut packet, mut part_end, mut rest) = (0, 0, None, bytes);
        for [at, part_len, count, id, low, high] in descriptors {
            let (_, memory) = self.all.iter().find(|(of, _)| *of == id)?;
            let (mut start, part) = (at as usize, part_len as usize);
            let mut offset = u64::from(high) << 32 | u64::from(low);
            for _ in 0..count {
                while start >= packet + segment && packet + segment < len {
                    end_packet(&mut self.payloads, &self.packets[packet..packet + segment], part_end.take())?;
                    packet += segment;
                }
                let end = start.checked_add(part)?;
                let is_next = part_end.is_none_or(|end| packet + end == start);
                if part == 0 || !is_next || start < packet + BTH_LEN || end > (packet + segment).min(len) {
                    return None;
                }
                let gap = start.checked_sub(pos).filter(|gap| *gap <= rest.len())?;
                let (before, after) = rest.split_at(gap);
                before.load(&mut self.packets[pos..start]).ok()?;
                (pos, part_end, rest) = (end, Some(end - packet), after);
                self.payloads.add_of_peer(memory, offset, part_len, epoch).then_some(())?;
                offset += u64::from(part_len);
                start += segment;
            }
        }
        if rest.len() != len - pos {
            return None;
        }
        rest.load(&mut self.packets[pos..len]).ok()?;
        while packet < len {
            let bytes = &self.packets[packet..(packet + segment).min(len)];
            end_packet(&mut self.payloads, bytes, part_end.take())?;
            packet += segment;
        }
        Some(())
    }

    /// Returns the packets that were reassembled last.
    pub fn packets(&self, len: usize) -> &[u8] {
        &self.packets[..len]
    }
}

/// Ends a packet. Returns `None` if the parts that are left out of it, if any, do not end where its payload ends.
#[inline]
fn end_packet(payloads: &mut SenderPayloads, packet: &[u8], part_end: Option<usize>) -> Option<()> {
    payloads.end_packet();
    let Some(part_end) = part_end else { return Some(()) };
    let pad = usize::from(Bth::read(packet.first_chunk::<BTH_LEN>()?).pad);
    (part_end + pad + ICRC_LEN == packet.len()).then_some(())
}

#[cfg(test)]
mod tests;
