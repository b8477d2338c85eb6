//! Payloads of received packets, in a link's buffer, or still in the sender's memory or in a ring.

use std::sync::Arc;

use crate::memory::{CopySource, Faulted, HostSlice, PeerMemory};
use crate::wire::BTH_LEN;

/// Source of the payload of the packet being processed.
#[derive(Clone, Copy, Debug)]
pub enum PayloadSource<'a> {
    /// The packet itself. The value tells whether its bytes have been read just before.
    Packet(CopySource),
    /// Memory of the sender, or a ring. The index is that of the packet among the payloads. The payload of
    /// the packet has the right length, but its bytes are meaningless.
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

    /// Reports whether the payload can no longer be read: since the packet was queued, the program has
    /// unmapped, protected or truncated the memory, or the sender has withdrawn the payload.
    #[cold]
    pub fn is_lost(self) -> bool {
        match self {
            PayloadSource::Packet(_) => false,
            PayloadSource::Sender(payloads, packet) => {
                let mut parts = payloads.parts(payloads.start(packet), payloads.len_of(packet));
                parts.any(|part| part.probe().is_err()) || !payloads.are_valid()
            }
        }
    }
}

/// Payloads in the sender's memory, or in a ring, of consecutive packets.
#[derive(Debug, Default)]
pub struct SenderPayloads {
    /// The payloads one after the other, in slices of memory. Each has the end of its bytes in that
    /// sequence.
    slices: Vec<(usize, HostSlice)>,
    /// For each packet, the end of its payload in that sequence. A packet that contains its payload has none
    /// there.
    ends: Vec<usize>,
    /// Memory of another process in which slices are, and the epoch in which they are valid.
    memory: Vec<Arc<PeerMemory>>,
    epoch: u32,
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
    pub(super) fn add(&mut self, slice: HostSlice) {
        let end = self.len() + slice.len();
        if let Some((before, last)) = self.slices.last_mut()
            && let Some(longer) = last.join(slice)
        {
            (*before, *last) = (end, longer);
        } else {
            self.slices.push((end, slice));
        }
    }

    /// Keeps memory of another process mapped, in which slices are that are valid in the given epoch.
    pub(crate) fn keep_mapped(&mut self, memory: &Arc<PeerMemory>, epoch: u32) {
        self.epoch = epoch;
        if !self.memory.iter().any(|known| Arc::ptr_eq(known, memory)) {
            self.memory.push(memory.clone());
        }
    }

    /// Ends a packet, whose payload consists of the slices added since the last one.
    #[inline]
    pub(super) fn end_packet(&mut self) {
        self.ends.push(self.len());
    }

    fn len(&self) -> usize {
        self.slices.last().map_or(0, |(end, _)| *end)
    }

    /// Reports whether the bytes copied from the slices so far are valid: the sender has not withdrawn the
    /// payloads.
    #[inline]
    fn are_valid(&self) -> bool {
        self.memory.iter().all(|memory| memory.is_in(self.epoch))
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
        self.ends[index] - self.start(index)
    }

    /// Returns the start of a packet's payload in the sequence of all payloads.
    #[inline]
    fn start(&self, packet: usize) -> usize {
        packet.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Iterates over the slices with the `len` bytes of the sequence from `start` on.
    fn parts(&self, start: usize, len: usize) -> impl Iterator<Item = HostSlice> {
        let first = self.slices.partition_point(|(end, _)| *end <= start);
        let (mut at, end) = (start, start + len);
        self.slices[first..].iter().map_while(move |(slice_end, slice)| {
            let from = (at < end).then(|| slice.len() - (slice_end - at))?;
            let rest = slice.split_at(from).1;
            let part = rest.split_at(rest.len().min(end - at)).0;
            at += part.len();
            Some(part)
        })
    }

    /// Fills `target` with the bytes of the sequence from the given offset in the payload of packet `index`
    /// on. If this fails, part of it may have been stored.
    fn store(&self, index: usize, offset: usize, target: HostSlice) -> Result<(), Faulted> {
        let mut rest = target;
        for part in self.parts(self.start(index) + offset, target.len()) {
            let (now, later) = rest.split_at(part.len());
            now.store_host(part)?;
            rest = later;
        }
        self.are_valid().then_some(()).ok_or(Faulted)
    }

    /// Copies the payload of packet `index` to `out`, which is as long.
    pub(super) fn load(&self, index: usize, out: &mut [u8]) -> Result<(), Faulted> {
        let mut rest = &mut *out;
        for part in self.parts(self.start(index), rest.len()) {
            let (now, later) = rest.split_at_mut(part.len());
            part.load(now)?;
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
    /// If the payloads are in the sender's memory: all those of the burst, and the index of the first
    /// packet.
    pub sender: Option<(&'a SenderPayloads, usize)>,
}

impl PayloadRun<'_> {
    /// Returns the number of packets.
    pub fn count(&self) -> usize {
        self.packets.len() / self.segment
    }

    /// Copies the payloads of the first packets, of `each` bytes, to `target`, which they fill. If this
    /// fails, some of them may have been stored.
    pub fn store_to(&self, target: HostSlice, each: usize) -> Result<(), Faulted> {
        let (count, mut rest) = (target.len() / each, target);
        match self.sender {
            Some((payloads, first)) => payloads.store(first, 0, target)?,
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
