//! Payloads of received packets, in a link's buffer, or still in the sender's memory or in a ring.

use std::ops::Range;
use std::sync::Arc;

use crate::memory::{CopySource, Faulted, HostSlice, PeerMemory};
use crate::wire::BTH_LEN;

/// Source of the payload of the packet being processed.
#[derive(Clone, Copy, Debug)]
pub enum PayloadSource<'a> {
    /// The packet itself. The value tells whether its bytes have been read just before.
    Packet(CopySource),
    /// Memory of the sender, or a ring. The index is that of the packet among the payloads. The payload of the packet has the
    /// right length, but its bytes are meaningless.
    Sender(&'a SenderPayloads, usize),
}

impl PayloadSource<'_> {
    /// Copies the payload to `payload`, which is as long, unless the packet contains it.
    pub fn fill(self, payload: &mut [u8]) -> Result<(), Faulted> {
        match self {
            PayloadSource::Packet(_) => Ok(()),
            PayloadSource::Sender(payloads, packet) => payloads.load(packet, payload),
        }
    }

    /// Reports whether the payload can no longer be read: since the packet was queued, the program has unmapped, protected
    /// or truncated the memory, or the sender has withdrawn the payload.
    #[cold]
    pub fn is_lost(self) -> bool {
        match self {
            PayloadSource::Packet(_) => false,
            PayloadSource::Sender(payloads, packet) => {
                let slices = payloads.slices_of(packet..packet + 1);
                slices.iter().any(|slice| slice.probe().is_err()) || !payloads.are_valid()
            }
        }
    }
}

/// Payloads in the sender's memory, or in a ring, of consecutive packets.
#[derive(Debug, Default)]
pub struct SenderPayloads {
    slices: Vec<HostSlice>,
    /// For each packet, the end of its slices; it has none if it contains its payload.
    ends: Vec<usize>,
    /// Memory of another process in which the slices are, with the epoch in which they are valid. Empty if the sender is in
    /// this process, or if the slices are in a ring.
    memory: Vec<(Arc<PeerMemory>, u32)>,
}

impl SenderPayloads {
    /// Removes all packets.
    pub(crate) fn clear(&mut self) {
        self.slices.clear();
        self.ends.clear();
        self.memory.clear();
    }

    /// Adds a slice of the payload of the packet that [`end_packet`](Self::end_packet) ends.
    #[inline]
    pub(crate) fn add(&mut self, slice: HostSlice) {
        self.slices.push(slice);
    }

    /// Adds `len` bytes of another process's memory like [`add`](Self::add), which are valid in the given epoch. Returns
    /// false if they exceed the memory.
    pub(crate) fn add_of_peer(
        &mut self,
        memory: &Arc<PeerMemory>,
        offset: u64,
        len: u32,
        epoch: u32,
    ) -> bool {
        let Some(slice) = memory.slice(offset, len) else { return false };
        let is_last = |(last, of): &(Arc<PeerMemory>, u32)| Arc::ptr_eq(last, memory) && *of == epoch;
        if !self.memory.last().is_some_and(is_last) {
            self.memory.push((memory.clone(), epoch));
        }
        self.add(slice);
        true
    }

    /// Ends a packet, whose payload consists of the slices added since the last one.
    pub(crate) fn end_packet(&mut self) {
        self.ends.push(self.slices.len());
    }

    /// Reports whether the bytes copied from the slices so far are valid: the sender has not withdrawn the payloads.
    #[inline]
    fn are_valid(&self) -> bool {
        self.memory.iter().all(|(memory, epoch)| memory.is_in(*epoch))
    }

    /// Returns the source of the payload of packet `index`.
    #[inline]
    pub fn source(&self, index: usize) -> PayloadSource<'_> {
        match self.len_of(index) {
            0 => PayloadSource::Packet(CopySource::Unread),
            _ => PayloadSource::Sender(self, index),
        }
    }

    /// Returns the length of the payload of packet `index`; 0 if it is not among them.
    #[inline]
    pub fn len_of(&self, index: usize) -> usize {
        self.slices_of(index..index + 1).iter().map(|slice| slice.len()).sum()
    }

    /// Returns the slices of consecutive packets.
    #[inline]
    fn slices_of(&self, packets: Range<usize>) -> &[HostSlice] {
        &self.slices[self.start(packets.start)..self.start(packets.end)]
    }

    /// Returns the index of a packet's first slice.
    #[inline]
    fn start(&self, packet: usize) -> usize {
        packet.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Fills `target` with the payload of packet `index` from `offset` on. If this fails, part of it may have been stored.
    fn store(&self, index: usize, offset: usize, target: HostSlice) -> Result<(), Faulted> {
        store_slices(self.slices_of(index..index + 1), offset, target)?;
        self.are_valid().then_some(()).ok_or(Faulted)
    }

    /// Fills `target`, which is as long, with the payloads of consecutive packets like [`store`](Self::store).
    fn store_all(&self, packets: Range<usize>, target: HostSlice) -> Result<(), Faulted> {
        let mut rest = target;
        for slice in joined(self.slices_of(packets)) {
            let (now, later) = rest.split_at(slice.len());
            now.store_host(slice)?;
            rest = later;
        }
        self.are_valid().then_some(()).ok_or(Faulted)
    }

    /// Copies the payload of packet `index` to `out`, which is as long.
    pub(super) fn load(&self, index: usize, out: &mut [u8]) -> Result<(), Faulted> {
        let mut rest = out;
        for slice in self.slices_of(index..index + 1) {
            let (now, later) = rest.split_at_mut(slice.len());
            slice.load(now)?;
            rest = later;
        }
        self.are_valid().then_some(()).ok_or(Faulted)
    }
}

/// Payload of a received packet, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedPayload<'a> {
    bytes: &'a [u8],
    source: PayloadSource<'a>,
    /// Offset of the part in the slices of the sender.
    offset: usize,
}

impl<'a> ReceivedPayload<'a> {
    /// Returns the payload of a packet that contains `bytes` in its place.
    #[inline]
    pub fn new(bytes: &'a [u8], source: PayloadSource<'a>) -> ReceivedPayload<'a> {
        ReceivedPayload { bytes, source, offset: 0 }
    }

    /// Returns `bytes`, which were made just before, as a payload.
    pub fn of(bytes: &'a [u8]) -> ReceivedPayload<'a> {
        ReceivedPayload::new(bytes, PayloadSource::Packet(CopySource::Read))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Splits the payload into its first `n` bytes and the rest.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    pub fn split_at(self, n: usize) -> (ReceivedPayload<'a>, ReceivedPayload<'a>) {
        let (first, rest) = self.bytes.split_at(n);
        (
            ReceivedPayload { bytes: first, ..self },
            ReceivedPayload { bytes: rest, offset: self.offset + n, ..self },
        )
    }

    /// Copies the payload to the start of `target`. If this fails, part of it may have been stored.
    ///
    /// # Panics
    /// If the payload is longer than the slice.
    #[inline]
    pub fn store_to(self, target: HostSlice) -> Result<(), Faulted> {
        match self.source {
            PayloadSource::Packet(source) => target.store(self.bytes, source),
            PayloadSource::Sender(payloads, packet) => {
                payloads.store(packet, self.offset, target.split_at(self.len()).0)
            }
        }
    }
}

/// Payloads of consecutive packets of the same length, which have no headers but the BTH.
#[derive(Clone, Copy, Debug)]
pub struct PayloadRun<'a> {
    /// The packets, one after the other.
    pub packets: &'a [u8],
    /// Length of each packet.
    pub segment: usize,
    /// If the payloads are in the sender's memory: all those of the burst, and the index of the first packet.
    pub sender: Option<(&'a SenderPayloads, usize)>,
}

impl PayloadRun<'_> {
    /// Returns the number of packets.
    pub fn count(&self) -> usize {
        self.packets.len() / self.segment
    }

    /// Copies the payloads of the first packets, of `each` bytes, to `target`, which they fill. If this fails, some of them
    /// may have been stored.
    pub fn store_to(&self, target: HostSlice, each: usize) -> Result<(), Faulted> {
        let (count, mut rest) = (target.len() / each, target);
        match self.sender {
            Some((payloads, first)) => payloads.store_all(first..first + count, target)?,
            None => {
                for packet in self.packets.chunks_exact(self.segment).take(count) {
                    let (now, later) = rest.split_at(each);
                    now.store(&packet[BTH_LEN..][..each], CopySource::Unread)?;
                    rest = later;
                }
            }
        }
        Ok(())
    }
}

/// Iterates over slices, with those joined that follow one another in memory.
fn joined(slices: &[HostSlice]) -> impl Iterator<Item = HostSlice> {
    let mut slices = slices.iter().copied().peekable();
    std::iter::from_fn(move || {
        let mut first = slices.next()?;
        while let Some(longer) = slices.peek().and_then(|next| first.join(*next)) {
            first = longer;
            slices.next();
        }
        Some(first)
    })
}

/// Fills `target` with the bytes of `slices` from `offset` on.
fn store_slices(slices: &[HostSlice], mut offset: usize, target: HostSlice) -> Result<(), Faulted> {
    let mut rest = target;
    for slice in slices {
        if offset >= slice.len() {
            offset -= slice.len();
            continue;
        }
        let from = slice.split_at(std::mem::take(&mut offset)).1;
        let len = from.len().min(rest.len());
        let (now, later) = rest.split_at(len);
        now.store_host(from.split_at(len).0)?;
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    Ok(())
}
