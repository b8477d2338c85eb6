//! Payloads of received packets, in a link's buffer or still in the sender's memory.

use std::ops::Range;

use crate::memory::{CopySource, Faulted, HostSlice};
use crate::wire::BTH_LEN;

/// Source of the payload of the packet being processed.
#[derive(Clone, Copy, Debug)]
pub enum PayloadSource<'a> {
    /// The packet itself. The value tells whether its bytes have been read just before.
    Packet(CopySource),
    /// Memory of the sender, which is a NIC of the same process. The payload of the packet has the right length, but its
    /// bytes are meaningless.
    Sender(&'a [HostSlice]),
}

impl PayloadSource<'_> {
    /// Reports whether the payload can no longer be read: the program has unmapped, protected or truncated the memory since
    /// the packet was queued.
    #[cold]
    pub fn is_lost(self) -> bool {
        match self {
            PayloadSource::Packet(_) => false,
            PayloadSource::Sender(slices) => slices.iter().any(|slice| slice.probe().is_err()),
        }
    }
}

/// Payloads in the sender's memory, of consecutive packets.
#[derive(Debug, Default)]
pub struct SenderPayloads {
    slices: Vec<HostSlice>,
    /// For each packet, the end of its slices; it has none if it contains its payload.
    ends: Vec<usize>,
}

impl SenderPayloads {
    /// Removes all packets.
    pub(super) fn clear(&mut self) {
        self.slices.clear();
        self.ends.clear();
    }

    /// Adds a slice of the payload of the packet that [`end_packet`](Self::end_packet) ends.
    #[inline]
    pub(super) fn add(&mut self, slice: HostSlice) {
        self.slices.push(slice);
    }

    /// Ends a packet, whose payload consists of the slices added since the last one.
    pub(super) fn end_packet(&mut self) {
        self.ends.push(self.slices.len());
    }

    /// Returns the source of the payload of packet `index`.
    #[inline]
    pub fn source(&self, index: usize) -> PayloadSource<'_> {
        match &self.slices[self.start(index)..self.ends[index]] {
            [] => PayloadSource::Packet(CopySource::Unread),
            slices => PayloadSource::Sender(slices),
        }
    }

    /// Reports whether the payload of packet `index` is among them.
    #[inline]
    pub fn contain(&self, index: usize) -> bool {
        self.start(index) < self.ends[index]
    }

    /// Returns the slices of consecutive packets.
    pub fn slices_of(&self, packets: Range<usize>) -> &[HostSlice] {
        &self.slices[self.start(packets.start)..self.start(packets.end)]
    }

    /// Returns the index of a packet's first slice.
    #[inline]
    fn start(&self, packet: usize) -> usize {
        packet.checked_sub(1).map_or(0, |before| self.ends[before])
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
            PayloadSource::Sender(slices) => store_slices(slices, self.offset, target.split_at(self.len()).0),
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
            Some((payloads, first)) => {
                for slice in joined(payloads.slices_of(first..first + count)) {
                    let (now, later) = rest.split_at(slice.len());
                    now.store_host(slice)?;
                    rest = later;
                }
            }
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
