//! Copying of bursts, with the ICRCs that were deferred until then, or without them.

use crate::memory::{Faulted, HostSlice};
use crate::wire::icrc::{Icrc, Prefixes};
use crate::wire::{Flow, ICRC_LEN, IpIdent};

/// A contiguous piece of a burst.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stored {
    Arena { start: u32, len: u32 },
    Host(HostSlice),
}

/// Destination of a [`Copier`].
pub(super) trait PacketBuffer {
    /// Returns the number of bytes in the buffer.
    fn len(&self) -> usize;

    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends bytes of user memory, and extends `icrc`, if there is one, over exactly the bytes copied. Appends zeros if
    /// the memory cannot be read. A buffer for packets without ICRCs may keep the slice instead.
    fn put_host(&mut self, slice: HostSlice, icrc: Option<&mut Icrc>) -> Result<(), Faulted>;
}

impl PacketBuffer for Vec<u8> {
    #[inline]
    fn len(&self) -> usize {
        Vec::len(self)
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn put_host(&mut self, slice: HostSlice, icrc: Option<&mut Icrc>) -> Result<(), Faulted> {
        slice.append(self, icrc).inspect_err(|_| self.resize(Vec::len(self) + slice.len(), 0))
    }
}

/// Slice that is filled from the start.
pub(super) struct Filled<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Filled<'a> {
    pub fn new(room: &'a mut [u8]) -> Filled<'a> {
        Filled { room, len: 0 }
    }

    #[inline]
    fn take(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;
        &mut self.room[start..self.len]
    }
}

impl PacketBuffer for Filled<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.take(bytes.len()).copy_from_slice(bytes);
    }

    #[inline]
    fn put_host(&mut self, slice: HostSlice, icrc: Option<&mut Icrc>) -> Result<(), Faulted> {
        let room = self.take(slice.len());
        let copied = match icrc {
            Some(icrc) => slice.load_and_crc(room, *icrc).map(|after| *icrc = after),
            None => slice.load(room),
        };
        copied.inspect_err(|_| room.fill(0))
    }
}

/// Part of a ring that is filled from the start with packets without ICRCs. Other processes access the memory too.
pub(super) struct FilledRing {
    room: HostSlice,
    len: usize,
    /// Whether bytes could not be stored.
    has_faulted: bool,
}

impl FilledRing {
    pub fn new(room: HostSlice) -> FilledRing {
        FilledRing { room, len: 0, has_faulted: false }
    }

    pub fn has_faulted(&self) -> bool {
        self.has_faulted
    }

    #[inline]
    fn take(&mut self, len: usize) -> HostSlice {
        self.len += len;
        let (taken, room) = self.room.split_at(len);
        self.room = room;
        taken
    }
}

impl PacketBuffer for FilledRing {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.has_faulted |= self.take(bytes.len()).store_in_ring(bytes).is_err();
    }

    /// Leaves the room as it is if the user memory cannot be read.
    #[inline]
    fn put_host(&mut self, slice: HostSlice, icrc: Option<&mut Icrc>) -> Result<(), Faulted> {
        debug_assert!(icrc.is_none(), "the packets have no ICRCs");
        self.take(slice.len()).store_host_in_ring(slice)
    }
}

/// Copier that writes out the packets of a burst one at a time.
#[derive(Debug)]
pub struct Copier<'a> {
    flow: Flow,
    segment: usize,
    /// Number of remaining bytes.
    left: usize,
    /// Index of the next packet.
    index: u16,
    prefixes: Prefixes,
    arena: &'a [u8],
    pieces: std::slice::Iter<'a, Stored>,
    /// Bytes of the current piece not yet copied.
    rest: &'a [u8],
    /// Whether the ICRCs are deferred, and not left out.
    computes_icrcs: bool,
    /// Whether user memory could not be read.
    has_faulted: bool,
}

impl<'a> Copier<'a> {
    /// Returns a copier of a burst with `bytes` bytes, in packets of `segment` bytes, which consists of `pieces`. It computes
    /// the ICRCs if `defers_icrcs` is set.
    pub(super) fn new(
        flow: Flow,
        (segment, bytes): (usize, usize),
        defers_icrcs: bool,
        arena: &'a [u8],
        pieces: &'a [Stored],
    ) -> Copier<'a> {
        Copier {
            flow,
            segment,
            left: bytes,
            index: 0,
            prefixes: Prefixes::default(),
            arena,
            pieces: pieces.iter(),
            rest: &[],
            computes_icrcs: defers_icrcs,
            has_faulted: false,
        }
    }

    /// Leaves out the ICRCs that are deferred: the copies are for [`IpIdent::Elided`].
    pub(crate) fn eliding_icrcs(self) -> Copier<'a> {
        Copier { computes_icrcs: false, ..self }
    }

    /// Reports whether user memory could not be read. The copies are then invalid, and without ICRCs the receiver would
    /// not notice.
    pub(crate) fn has_faulted(&self) -> bool {
        self.has_faulted
    }

    /// Appends the next packet to `out`, and computes its ICRC if it is deferred. Returns false if there are
    /// no more packets.
    pub fn copy_next(&mut self, out: &mut Vec<u8>) -> bool {
        self.copy_packet(out)
    }

    /// Replaces the contents of `out` with the next packets, at most `packets`.
    pub(crate) fn copy_step(&mut self, packets: usize, out: &mut Vec<u8>) {
        out.clear();
        let _ = (0..packets).all(|_| self.copy_packet(out));
    }

    #[inline]
    pub(super) fn copy_packet(&mut self, out: &mut impl PacketBuffer) -> bool {
        let packet_len = self.left.min(self.segment);
        if packet_len == 0 {
            return false;
        }
        self.left -= packet_len;
        let index = self.index;
        self.index += 1;
        let end = out.len() + packet_len;
        if self.rest.is_empty() {
            self.gather(|_| {});
        }
        // The headers, or the complete packet.
        let (first, later) = self.rest.split_at(self.rest.len().min(packet_len));
        self.rest = later;
        let is_complete = first.len() == packet_len;
        if is_complete && !self.computes_icrcs {
            out.put(first);
            return true;
        }
        let first = if is_complete { &first[..packet_len - ICRC_LEN] } else { first };
        out.put(first);
        let mut icrc = self.computes_icrcs.then(|| {
            let prefix = self.prefixes.of(&self.flow, packet_len);
            prefix.after_headers(index, IpIdent::DONT_FRAGMENT, first)
        });
        if is_complete {
            out.put(&icrc.unwrap_or_default().value().to_le_bytes());
            return true;
        }
        let mut gone = false;
        self.gather(|slice| gone |= out.put_host(slice, icrc.as_mut()).is_err());
        self.has_faulted |= gone;
        let (pad, later) = self.rest.split_at(end - ICRC_LEN - out.len());
        if !pad.is_empty() {
            if let Some(icrc) = &mut icrc {
                icrc.update(pad);
            }
            out.put(pad);
        }
        let value = icrc.unwrap_or_default().value();
        // The receiver must not accept the zeros as the sender's data.
        let value = if gone { !value } else { value };
        out.put(&value.to_le_bytes());
        self.rest = &later[ICRC_LEN..];
        true
    }

    /// Passes slices of user memory to `each`, up to the next arena piece.
    #[inline]
    fn gather(&mut self, mut each: impl FnMut(HostSlice)) {
        for piece in self.pieces.by_ref() {
            match *piece {
                Stored::Host(slice) => each(slice),
                Stored::Arena { start, len } => {
                    self.rest = &self.arena[start as usize..][..len as usize];
                    return;
                }
            }
        }
    }
}
