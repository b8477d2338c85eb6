//! Copying of bursts with payloads left out that the receiver can read from the sender's memory.

use super::TxBurst;
use super::copier::{FilledRing, PacketBuffer};
use crate::memory::{Faulted, HostSlice};
use crate::wire::icrc::Icrc;
use crate::wire::{Opcode, Transport};

/// Parts of payloads that are left out of the copy of a burst: one, or one in each of several consecutive packets, which
/// follow one another in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeftOut {
    /// Offset of the first part in the burst; those of the others are a segment apart.
    pub at: u32,
    /// Length of each part in bytes.
    pub len: u32,
    /// Number of parts.
    pub count: u32,
    /// Number of the memory that contains the bytes.
    pub memory: u32,
    /// Offset of the first part in that memory.
    pub offset: u64,
    slice: HostSlice,
}

impl TxBurst<'_> {
    /// Returns the slices of user memory that the burst contains.
    pub(crate) fn user_slices(&self) -> impl Iterator<Item = HostSlice> + '_ {
        self.host_pieces().filter(|_| self.defers_icrcs())
    }

    /// Copies the bytes of all packets, without the deferred ICRCs, to `out`, which is part of a ring, except payloads of acknowledged requests in
    /// memory that `locate` knows by number and offset: these are listed in `left_out`. Returns the number of bytes
    /// copied; `None` if user memory could not be read.
    ///
    /// Responses are always copied, because the peer does not acknowledge them.
    ///
    /// # Panics
    /// If `out` is shorter than the burst.
    pub(crate) fn copy_by_reference(
        &self,
        out: HostSlice,
        left_out: &mut Vec<LeftOut>,
        locate: impl Fn(HostSlice) -> Option<(u32, u64)>,
    ) -> Option<usize> {
        left_out.clear();
        let bytes = FilledRing::new(out);
        let mut copy = Copy { bytes, left_out, locate, end: 0, packet: 0, first: 0, leaves_out: false };
        let mut copier = self.copier().eliding_icrcs();
        while copier.copy_packet(&mut copy) {
            copy.end_packet(self.segment);
        }
        (!copier.has_faulted() && !copy.bytes.has_faulted()).then(|| copy.bytes.len())
    }
}

struct Copy<'a, F> {
    bytes: FilledRing,
    left_out: &'a mut Vec<LeftOut>,
    locate: F,
    /// Offset in the burst of the next byte.
    end: usize,
    /// Offset in the burst of the current packet.
    packet: usize,
    /// Number of entries for the packets before.
    first: usize,
    /// Whether payloads of the current packet may be left out. All of them are, or none.
    leaves_out: bool,
}

impl<F> Copy<'_, F> {
    #[inline]
    fn end_packet(&mut self, segment: usize) {
        let is_single = self.left_out.len() == self.first + 1;
        if let ([.., run, part], true) = (&mut self.left_out[..], is_single) {
            let next = LeftOut {
                at: run.at + run.count * segment as u32,
                offset: run.offset + u64::from(run.count) * u64::from(run.len),
                count: 1,
                slice: part.slice,
                ..*run
            };
            if *part == next {
                run.count += 1;
                self.left_out.pop();
            }
        }
        (self.packet, self.first) = (self.end, self.left_out.len());
    }

    #[cold]
    fn put_what_was_left_out(&mut self) -> Result<(), Faulted> {
        self.leaves_out = false;
        let mut result = Ok(());
        for part in self.left_out.drain(self.first..) {
            result = result.and(self.bytes.put_host(part.slice, None));
        }
        result
    }
}

impl<F: Fn(HostSlice) -> Option<(u32, u64)>> PacketBuffer for Copy<'_, F> {
    /// Includes the payloads that are left out.
    #[inline]
    fn len(&self) -> usize {
        self.end
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.end == self.packet {
            let row = bytes.first().map(|opcode| Opcode(*opcode).row());
            let is_acknowledged = |transport| matches!(transport, Transport::Rc | Transport::Xrc);
            self.leaves_out =
                row.is_some_and(|row| is_acknowledged(row.transport) && row.operation.is_request());
        }
        self.bytes.put(bytes);
        self.end += bytes.len();
    }

    #[inline]
    fn put_host(&mut self, slice: HostSlice, _: Option<&mut Icrc>) -> Result<(), Faulted> {
        let (at, len) = (self.end as u32, slice.len() as u32);
        self.end += slice.len();
        if self.leaves_out {
            if let Some((memory, offset)) = (self.locate)(slice) {
                self.left_out.push(LeftOut { at, len, count: 1, memory, offset, slice });
                return Ok(());
            }
            let put = self.put_what_was_left_out();
            return put.and(self.bytes.put_host(slice, None));
        }
        self.bytes.put_host(slice, None)
    }
}
