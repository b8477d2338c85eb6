//! Writer and reader of a ring.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use super::error::RingError;
use super::mapping::Mapping;
use crate::link::RxBurst;
use crate::sys::fork::ForkGeneration;
use crate::transport::TxBurst;
use crate::wire::{BTH_LEN, Flow, ICRC_LEN, IpIdent};

/// Alignment of records, a cache line: a short packet with its record header fits into one.
const ALIGN: usize = 64;

/// Length of the shortest packet.
const MIN_PACKET: usize = BTH_LEN + ICRC_LEN;

/// Header of a record, which the packets of a burst follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecordHeader {
    /// Length of all packets in bytes.
    len: u32,
    /// Length of each packet except the last, in bytes.
    segment: u16,
    src_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    /// Whether the packets have no ICRCs.
    elides_icrcs: bool,
}

impl RecordHeader {
    const WORDS: usize = 3;
    const LEN: usize = 4 * RecordHeader::WORDS;

    fn of(burst: &TxBurst<'_>) -> Option<RecordHeader> {
        let Flow { src_port, traffic_class, hop_limit, .. } = burst.flow;
        let (len, segment) = (burst.bytes.try_into().ok()?, burst.segment.try_into().ok()?);
        Some(RecordHeader { len, segment, src_port, traffic_class, hop_limit, elides_icrcs: false })
    }

    fn to_words(self) -> [u32; RecordHeader::WORDS] {
        [
            self.len,
            u32::from(self.src_port) << 16 | u32::from(self.segment),
            u32::from(self.elides_icrcs) << 16
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
        }
    }

    /// Returns the length of the whole record in the ring.
    fn record_len(self) -> u64 {
        (RecordHeader::LEN as u64 + u64::from(self.len)).next_multiple_of(ALIGN as u64)
    }
}

/// Writing end of a ring.
#[derive(Debug)]
pub struct RingWriter {
    mapping: Guard,
    head: u64,
    /// The reader's position when it was last looked up.
    tail: u64,
    /// Whether ICRCs that are deferred are left out.
    elides_icrcs: bool,
}

impl RingWriter {
    /// Creates an empty ring for `capacity` bytes, a power of two and a multiple of the page size. With `elides_icrcs`,
    /// ICRCs that are deferred are left out. Also returns the descriptor of the ring's memory, for the reader.
    pub fn create(capacity: usize, elides_icrcs: bool) -> io::Result<(RingWriter, OwnedFd)> {
        let (mapping, fd) = Mapping::create(capacity)?;
        Ok((RingWriter { mapping: Guard::new(mapping), head: 0, tail: 0, elides_icrcs }, fd))
    }

    /// Writes a burst, which the reader sees after [`publish`](Self::publish). Returns false if there is no room.
    ///
    /// # Errors
    /// [`RingError::Position`] if the reader has broken the protocol.
    pub fn write(&mut self, burst: &TxBurst<'_>) -> Result<bool, RingError> {
        // Longer than any IP packet: no link takes it.
        let Some(mut header) = RecordHeader::of(burst) else { return Ok(false) };
        let len = header.record_len();
        if !self.has_room(len)? {
            return Ok(false);
        }
        let record = self.mapping.data_mut(self.head, RecordHeader::LEN + burst.bytes);
        let (head, packets) = record.split_at_mut(RecordHeader::LEN);
        match self.elides_icrcs {
            true => header.elides_icrcs = burst.copy_eliding_icrcs(packets),
            false => burst.copy_to_slice(packets),
        }
        head.chunks_exact_mut(4)
            .zip(header.to_words())
            .for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
        self.head += len;
        Ok(true)
    }

    fn has_room(&mut self, len: u64) -> Result<bool, RingError> {
        let capacity = self.mapping.capacity();
        if self.head - self.tail + len <= capacity {
            return Ok(true);
        }
        let tail = self.mapping.control().tail.load(Ordering::Acquire);
        if tail < self.tail || tail > self.head || !tail.is_multiple_of(ALIGN as u64) {
            return Err(RingError::Position { head: self.head, tail });
        }
        self.tail = tail;
        Ok(self.head - tail + len <= capacity)
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
}

/// Reading end of a ring.
#[derive(Debug)]
pub struct RingReader {
    mapping: Guard,
    src: IpAddr,
    dst: IpAddr,
    tail: u64,
}

impl RingReader {
    /// Opens a ring that another process has created with `capacity`, for packets from `src` to `dst`.
    ///
    /// # Errors
    /// [`RingError`] if the descriptor is not one of a ring.
    pub fn open(fd: &OwnedFd, capacity: usize, src: IpAddr, dst: IpAddr) -> Result<RingReader, RingError> {
        Ok(RingReader { mapping: Guard::new(Mapping::open(fd, capacity)?), src, dst, tail: 0 })
    }

    /// Passes bursts to `sink` until `limit` bytes have been read, and returns the number of packets.
    ///
    /// The other process can change the bytes of a burst during the call.
    ///
    /// # Errors
    /// [`RingError`] if the writer has broken the protocol.
    pub fn receive(&mut self, limit: u64, sink: &mut dyn FnMut(RxBurst<'_>)) -> Result<usize, RingError> {
        let head = self.mapping.control().head.load(Ordering::Acquire);
        let (mut packets, begin) = (0, self.tail);
        if head.wrapping_sub(begin) > self.mapping.capacity() || !head.is_multiple_of(ALIGN as u64) {
            return Err(RingError::Position { head, tail: begin });
        }
        while self.tail != head && self.tail - begin < limit {
            packets += self.read_record(head - self.tail, sink)?;
            self.mapping.control().tail.store(self.tail, Ordering::Release);
        }
        Ok(packets)
    }

    /// Reads the next of the `available` bytes' records.
    fn read_record(&mut self, available: u64, sink: &mut dyn FnMut(RxBurst<'_>)) -> Result<usize, RingError> {
        let header = RecordHeader::from_words([0, 4, 8].map(|at| self.mapping.word(self.tail + at)));
        let (len, segment) = (header.len as usize, usize::from(header.segment));
        if header.record_len() > available || segment < MIN_PACKET || segment > len {
            return Err(RingError::Record { len: header.len, segment: header.segment, available });
        }
        let mut flow = Flow::new(self.src, self.dst, header.src_port);
        (flow.traffic_class, flow.hop_limit) = (header.traffic_class, header.hop_limit);
        let data = &self.mapping.data(self.tail, RecordHeader::LEN + len)[RecordHeader::LEN..];
        let ident = if header.elides_icrcs { IpIdent::Elided } else { IpIdent::SENT };
        sink(RxBurst { flow, ident, segment, data });
        self.tail += header.record_len();
        Ok(len.div_ceil(segment))
    }

    /// Reports whether bursts are waiting.
    pub fn has_bursts(&self) -> bool {
        self.mapping.control().head.load(Ordering::Acquire) != self.tail
    }

    /// Requests that the writer notifies this end of the next burst. Returns true if one is already waiting.
    pub fn prepare_to_sleep(&self) -> bool {
        self.mapping.control().reader_sleeps.store(1, Ordering::Relaxed);
        // Pairs with the fence in `RingWriter::publish`: either the writer sees the request, or this end the burst.
        fence(Ordering::SeqCst);
        self.has_bursts()
    }
}

/// A mapping that only the process that made it unmaps: a forked child does not have it.
#[derive(Debug)]
struct Guard {
    mapping: std::mem::ManuallyDrop<Mapping>,
    process: ForkGeneration,
}

impl Guard {
    fn new(mapping: Mapping) -> Guard {
        Guard { mapping: std::mem::ManuallyDrop::new(mapping), process: ForkGeneration::current() }
    }
}

impl std::ops::Deref for Guard {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Mapping {
        &mut self.mapping
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: `drop` runs once, and nothing uses the mapping afterwards.
            unsafe { std::mem::ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
