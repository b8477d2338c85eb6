//! Writer and reader of a ring.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use super::error::RingError;
use super::mapping::Mapping;
use super::payloads::{Change, Parts, ReaderMemory, WriterMemory};
use crate::burst::{RxBurst, TxBurst};
use crate::wire::{BTH_LEN, Flow, ICRC_LEN, IpIdent, ROCE_PORT};

/// Alignment of records, a cache line: a short packet with its record header fits into one.
const ALIGN: usize = 64;

/// Length of the shortest packet.
const MIN_PACKET: usize = BTH_LEN + ICRC_LEN;
/// Maximum length in bytes of the packets of a record. Writers form bursts of at most
/// [`BurstLimits::SEGMENTED`] bytes.
const MAX_BURST: usize = 64 << 10;

/// Length of the description of parts of payloads.
const PARTS_LEN: usize = 4 * Parts::WORDS;

/// Header of a record, which the packets of a burst follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecordHeader {
    /// Length of all packets in bytes, wherever their payloads are.
    len: u32,
    /// Length of each packet except the last, in bytes.
    segment: u16,
    src_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    /// Whether the packets have no ICRCs.
    elides_icrcs: bool,
    /// Whether payloads are apart from the packets. Then three more words follow: the number of bytes in the
    /// record, the number of [`Parts`] behind them, and the epoch in which payloads in the writer's
    /// memory are valid.
    is_gathered: bool,
}

impl RecordHeader {
    const WORDS: usize = 3;
    const LEN: usize = 4 * RecordHeader::WORDS;
    const LONG_LEN: usize = RecordHeader::LEN + 12;

    fn of(burst: &TxBurst<'_>) -> Option<RecordHeader> {
        let Flow { src_port, traffic_class, hop_limit, .. } = burst.flow;
        let (len, segment) = (burst.bytes.try_into().ok()?, burst.segment.try_into().ok()?);
        let (elides_icrcs, is_gathered) = (false, false);
        Some(RecordHeader { len, segment, src_port, traffic_class, hop_limit, elides_icrcs, is_gathered })
    }

    fn to_words(self) -> [u32; RecordHeader::WORDS] {
        [
            self.len,
            u32::from(self.src_port) << 16 | u32::from(self.segment),
            u32::from(self.is_gathered) << 17
                | u32::from(self.elides_icrcs) << 16
                | u32::from(self.hop_limit) << 8
                | u32::from(self.traffic_class),
        ]
    }

    fn from_words([len, ports, fields]: [u32; RecordHeader::WORDS]) -> RecordHeader {
        RecordHeader {
            len,
            segment: ports as u16,
            src_port: (ports >> 16) as u16,
            traffic_class: fields as u8,
            hop_limit: (fields >> 8) as u8,
            elides_icrcs: fields >> 16 & 1 != 0,
            is_gathered: fields >> 17 & 1 != 0,
        }
    }

    /// Returns the length of a gathered record with `stored` bytes and `count` parts.
    fn long_record_len(stored: u32, count: u32) -> u64 {
        let parts = u64::from(count) * PARTS_LEN as u64;
        (RecordHeader::parts_at(stored) + parts).next_multiple_of(ALIGN as u64)
    }

    /// Returns the offset of the parts in a gathered record with `stored` bytes.
    fn parts_at(stored: u32) -> u64 {
        RecordHeader::LONG_LEN as u64 + u64::from(stored).next_multiple_of(4)
    }
}

/// Returns the length of a record with `len` bytes of whole packets.
fn record_len(len: u32) -> u64 {
    (RecordHeader::LEN as u64 + u64::from(len)).next_multiple_of(ALIGN as u64)
}

/// Stores words from a position on, which is a multiple of 4.
fn put_words(mapping: &Mapping, position: u64, words: impl IntoIterator<Item = u32>) {
    for (at, word) in (position..).step_by(4).zip(words) {
        mapping.word(at).store(word, Ordering::Relaxed);
    }
}

/// Writing end of a ring.
#[derive(Debug)]
pub struct RingWriter {
    mapping: Mapping,
    head: u64,
    /// The reader's position when it was last looked up.
    tail: u64,
    /// Whether ICRCs that are deferred are left out.
    elides_icrcs: bool,
    pub(in crate::rings) memory: WriterMemory,
    /// Payloads of a gathered record.
    parts: Vec<Parts>,
    /// Packets of a burst with ICRCs that were deferred.
    with_icrcs: Vec<u8>,
}

impl RingWriter {
    /// Creates an empty ring for `capacity` bytes, a power of two and a multiple of the page size. With
    /// `elides_icrcs`, ICRCs that are deferred are left out. Also returns the descriptor of the ring's
    /// memory, for the reader.
    pub fn create(capacity: usize, elides_icrcs: bool) -> io::Result<(RingWriter, OwnedFd)> {
        let (mapping, fd) = Mapping::create(capacity)?;
        let memory = WriterMemory::default();
        let (parts, with_icrcs) = (Vec::new(), Vec::new());
        Ok((RingWriter { mapping, head: 0, tail: 0, elides_icrcs, memory, parts, with_icrcs }, fd))
    }

    /// Writes a burst, which the reader sees after [`publish`](Self::publish). Returns false if there is no
    /// room.
    ///
    /// # Errors
    /// [`RingError::Position`] if the reader has broken the protocol; [`RingError::System`] if the memory
    /// cannot be accessed.
    pub fn write(&mut self, burst: &TxBurst<'_>) -> Result<bool, RingError> {
        // Longer than any IP packet: no link takes it.
        let Some(mut header) = RecordHeader::of(burst) else { return Ok(false) };
        if !self.has_room(self.room_for(burst))? {
            return Ok(false);
        }
        if self.gathers(burst) && self.write_gathered(burst, header) {
            return Ok(true);
        }
        let without_icrcs = burst.as_bytes_without_icrcs().filter(|_| self.elides_icrcs);
        header.elides_icrcs = without_icrcs.is_some();
        let whole = without_icrcs.or_else(|| burst.as_bytes());
        let bytes = whole.unwrap_or_else(|| {
            self.with_icrcs.clear();
            burst.copy_to(&mut self.with_icrcs);
            &self.with_icrcs
        });
        self.mapping.slice(self.head + RecordHeader::LEN as u64, burst.bytes).store_in_ring(bytes)?;
        put_words(&self.mapping, self.head, header.to_words());
        self.head += record_len(header.len);
        Ok(true)
    }

    /// Returns the number of bytes that the record of a burst takes at most.
    #[inline]
    pub fn room_for(&self, burst: &TxBurst<'_>) -> u64 {
        let len = burst.bytes as u32;
        match self.gathers(burst) {
            true => RecordHeader::long_record_len(len, burst.pieces().len() as u32),
            false => record_len(len),
        }
    }

    /// Reports whether the payloads of a burst are apart from its packets in the ring.
    #[inline]
    fn gathers(&self, burst: &TxBurst<'_>) -> bool {
        self.elides_icrcs && burst.pieces().len() > 1
    }

    /// Writes a burst with its payloads apart from the packets. Returns false if user memory could not be
    /// read.
    fn write_gathered(&mut self, burst: &TxBurst<'_>, header: RecordHeader) -> bool {
        let room = self.mapping.slice(self.head + RecordHeader::LONG_LEN as u64, burst.bytes);
        let stored = self.memory.store(burst.pieces(), burst.segment, room, self.head, &mut self.parts);
        let Some(stored) = stored.map(|stored| stored as u32) else { return false };
        let (count, words) = (self.parts.len() as u32, self.parts.iter().flat_map(|parts| parts.to_words()));
        put_words(&self.mapping, self.head + RecordHeader::parts_at(stored), words);
        let header = RecordHeader { elides_icrcs: true, is_gathered: true, ..header };
        put_words(
            &self.mapping,
            self.head,
            header.to_words().into_iter().chain([stored, count, burst.epoch]),
        );
        self.head += RecordHeader::long_record_len(stored, count);
        true
    }

    /// Returns the next change of the shared memory, which the caller must report to the reader.
    ///
    /// # Errors
    /// [`RingError::Position`] if the reader has broken the protocol.
    pub(crate) fn next_change(&mut self) -> Result<Option<Change>, RingError> {
        if !self.elides_icrcs || !self.memory.may_change() {
            return Ok(None);
        }
        let tail = self.reader_position()?;
        Ok(self.memory.next_change(self.head, tail))
    }

    /// Reports whether there is room for `len` bytes.
    ///
    /// # Errors
    /// [`RingError::Position`] if the reader has broken the protocol.
    pub fn has_room(&mut self, len: u64) -> Result<bool, RingError> {
        let (head, capacity) = (self.head, self.mapping.capacity());
        let fits = |tail| head - tail + len <= capacity;
        if fits(self.tail) {
            return Ok(true);
        }
        Ok(fits(self.reader_position()?))
    }

    /// Returns the position up to which the reader has read.
    ///
    /// # Errors
    /// [`RingError::Position`] if the reader has broken the protocol.
    pub fn reader_position(&mut self) -> Result<u64, RingError> {
        let tail = self.mapping.control().tail.load(Ordering::Acquire);
        if tail < self.tail || tail > self.head || !tail.is_multiple_of(ALIGN as u64) {
            return Err(RingError::Position { head: self.head, tail });
        }
        self.tail = tail;
        Ok(tail)
    }

    /// Makes what was written visible to the reader. Returns true if the reader sleeps and must be notified.
    pub fn publish(&mut self) -> bool {
        let control = self.mapping.control();
        control.head.store(self.head, Ordering::Release);
        // Pairs with the fence in `RingReader::prepare_to_sleep`.
        fence(Ordering::SeqCst);
        control.reader_sleeps.load(Ordering::Relaxed) != 0
            && control.reader_sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// Takes back that the reader was notified: the next [`publish`](Self::publish) returns true again.
    pub fn cancel_notification(&mut self) {
        self.mapping.control().reader_sleeps.store(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl RingWriter {
    /// Stores a position that was never written, as a process that breaks the protocol might.
    pub fn forge_head(&self, head: u64) {
        self.mapping.control().head.store(head, Ordering::SeqCst);
    }

    /// Appends a record with arbitrary contents.
    pub fn forge_record(&mut self, words: &[u32]) {
        let len = 4 * words.len();
        put_words(&self.mapping, self.head, words.iter().copied());
        self.head += (len as u64).next_multiple_of(ALIGN as u64);
    }

    pub(crate) fn head(&self) -> u64 {
        self.head
    }
}

/// Reading end of a ring.
#[derive(Debug)]
pub struct RingReader {
    mapping: Mapping,
    /// Flow of the last burst: all have the same addresses.
    flow: Flow,
    tail: u64,
    pub(in crate::rings) memory: ReaderMemory,
}

impl RingReader {
    /// Opens a ring that another process has created with `capacity`, for packets from `src` to `dst`.
    ///
    /// # Errors
    /// [`RingError`] if the descriptor is not one of a ring.
    pub fn open(fd: &OwnedFd, capacity: usize, src: IpAddr, dst: IpAddr) -> Result<RingReader, RingError> {
        let mapping = Mapping::open(fd, capacity)?;
        let flow = Flow::new(src, dst, ROCE_PORT);
        Ok(RingReader { mapping, flow, tail: 0, memory: ReaderMemory::default() })
    }

    /// Returns the number of bytes of memory that the reader needs: shared memory, and that of its own for a
    /// burst.
    pub fn memory(&self) -> u64 {
        self.mapping.file_len() + MAX_BURST as u64
    }

    /// Source address of the packets.
    pub fn src(&self) -> IpAddr {
        self.flow.src
    }

    /// Passes bursts to `sink` until they total `limit` bytes, and returns the number of packets.
    ///
    /// The other process can change payloads of a burst during the call.
    ///
    /// # Errors
    /// [`RingError`] if the writer has broken the protocol.
    pub fn receive(&mut self, limit: u64, sink: &mut dyn FnMut(RxBurst<'_>)) -> Result<usize, RingError> {
        let head = self.mapping.control().head.load(Ordering::Acquire);
        let (mut packets, mut read, begin) = (0, 0, self.tail);
        if head.wrapping_sub(begin) > self.mapping.capacity() || !head.is_multiple_of(ALIGN as u64) {
            return Err(RingError::Position { head, tail: begin });
        }
        while self.tail != head && read < limit {
            let (count, bytes) = self.read_record(head - self.tail, sink)?;
            (packets, read) = (packets + count, read + bytes);
            self.mapping.control().tail.store(self.tail, Ordering::Release);
        }
        Ok(packets)
    }

    /// Reads the next record from the `available` bytes. Returns the number of packets and their total
    /// length.
    fn read_record(
        &mut self,
        available: u64,
        sink: &mut dyn FnMut(RxBurst<'_>),
    ) -> Result<(usize, u64), RingError> {
        let at = self.tail;
        let header = RecordHeader::from_words([0, 4, 8].map(|offset| self.word(at + offset)));
        let (len, segment) = (header.len as usize, usize::from(header.segment));
        let [stored, count, epoch] = match header.is_gathered {
            true => [12, 16, 20].map(|offset| self.word(at + offset)),
            false => [0; 3],
        };
        let record_len = match header.is_gathered {
            true => RecordHeader::long_record_len(stored, count),
            false => record_len(header.len),
        };
        let is_valid = len <= MAX_BURST
            && (MIN_PACKET..=len).contains(&segment)
            && (header.elides_icrcs || !header.is_gathered);
        if record_len > available || !is_valid {
            return Err(RingError::Record { len: header.len, segment: header.segment, available });
        }
        self.set_flow(header);
        if header.is_gathered {
            let parts_at = at + RecordHeader::parts_at(stored);
            let parts = (0..u64::from(count)).map(|part| {
                let start = parts_at + part * PARTS_LEN as u64;
                let word = |word| self.mapping.word(start + 4 * word as u64).load(Ordering::Relaxed);
                Parts::from_words(std::array::from_fn(word))
            });
            let bytes = self.mapping.slice(at + RecordHeader::LONG_LEN as u64, stored as usize);
            let gathered = self.memory.gather((len, segment), bytes, epoch, parts);
            gathered.ok_or(RingError::Payloads { len: header.len, count })?;
            sink(self.memory.packets.burst(self.flow));
            self.memory.packets.payloads.clear();
        } else {
            let data = self.mapping.slice(at + RecordHeader::LEN as u64, len);
            let data = self.memory.packets.load_whole(data)?;
            let ident = if header.elides_icrcs { IpIdent::Elided } else { IpIdent::SENT };
            sink(RxBurst::new(self.flow, ident, segment, data));
        }
        self.tail += record_len;
        Ok((len.div_ceil(segment), len as u64))
    }

    fn word(&self, position: u64) -> u32 {
        self.mapping.word(position).load(Ordering::Relaxed)
    }

    /// Stores the flow of a record if it differs from that of the previous record. A store to a single field
    /// would delay the copy of the whole flow that follows, because the processor cannot forward it.
    #[inline]
    fn set_flow(&mut self, header: RecordHeader) {
        let RecordHeader { src_port, traffic_class, hop_limit, .. } = header;
        let flow = &mut self.flow;
        if (flow.src_port, flow.traffic_class, flow.hop_limit) != (src_port, traffic_class, hop_limit) {
            (flow.src_port, flow.traffic_class, flow.hop_limit) = (src_port, traffic_class, hop_limit);
        }
    }

    /// Reports whether bursts are waiting.
    pub fn has_bursts(&self) -> bool {
        self.mapping.control().head.load(Ordering::Acquire) != self.tail
    }

    /// Requests that the writer notifies this end of the next burst. Returns true if one is already waiting.
    pub fn prepare_to_sleep(&self) -> bool {
        self.mapping.control().reader_sleeps.store(1, Ordering::Relaxed);
        // Pairs with the fence in `RingWriter::publish`: either the writer sees the request, or this end the
        // burst.
        fence(Ordering::SeqCst);
        self.has_bursts()
    }
}
