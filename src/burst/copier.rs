//! The gather list of a burst, and copies of its packets with the ICRCs that were deferred.

use std::ops::Range;

use crate::memory::HostSlice;
use crate::wire::icrc::Prefixes;
use crate::wire::{Flow, ICRC_LEN, IpIdent};

/// Entry of the gather list of a burst. The entries of all its packets follow one another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<B> {
    /// Bytes of the queue: headers, short payloads, padding and ICRCs.
    Inline(B),
    /// User memory with a payload, or a part of it, which is read when the packet leaves.
    Host {
        slice: HostSlice,
        /// Whether the packet is a request of a service with acknowledgements. Its payload can stay where it is until the
        /// peer has executed the packet.
        is_acknowledged: bool,
    },
}

/// Entry as a queue stores it, with a range of the queue's arena.
pub(super) type Stored = Piece<Range<u32>>;

impl Stored {
    /// Returns the entry with its bytes.
    #[inline]
    pub fn in_arena<'a>(&self, arena: &'a [u8]) -> Piece<&'a [u8]> {
        match *self {
            Piece::Inline(Range { start, end }) => Piece::Inline(&arena[start as usize..end as usize]),
            Piece::Host { slice, is_acknowledged } => Piece::Host { slice, is_acknowledged },
        }
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
    /// Whether the ICRCs are deferred.
    computes_icrcs: bool,
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
        }
    }

    /// Replaces the contents of `out` with the next packets, at most `packets`.
    pub(crate) fn copy_step(&mut self, packets: usize, out: &mut Vec<u8>) {
        out.clear();
        let _ = (0..packets).all(|_| self.copy_next(out));
    }

    /// Appends the next packet to `out`, and computes its ICRC if it is deferred: a wrong one if user memory cannot be read.
    /// Returns false if there are no more packets.
    #[inline]
    pub fn copy_next(&mut self, out: &mut Vec<u8>) -> bool {
        let packet_len = self.left.min(self.segment);
        if packet_len == 0 {
            return false;
        }
        self.left -= packet_len;
        let index = self.index;
        self.index += 1;
        if !self.computes_icrcs {
            // All bytes are in one piece.
            out.extend_from_slice(self.take(packet_len));
            return true;
        }
        let end = out.len() + packet_len - ICRC_LEN;
        let headers = self.take(packet_len - ICRC_LEN);
        let prefix = self.prefixes.of(&self.flow, packet_len, false);
        let mut icrc = prefix.after_headers(index, IpIdent::DONT_FRAGMENT, headers);
        out.extend_from_slice(headers);
        let mut gone = false;
        while out.len() < end {
            match self.pieces.next().map(|piece| piece.in_arena(self.arena)) {
                Some(Piece::Host { slice, .. }) if slice.append(out, Some(&mut icrc)).is_err() => {
                    gone = true;
                    out.resize(out.len() + slice.len(), 0);
                }
                Some(Piece::Host { .. }) => {}
                Some(Piece::Inline(bytes)) => {
                    self.rest = bytes;
                    let pad = self.take(end - out.len());
                    icrc.update(pad);
                    out.extend_from_slice(pad);
                }
                None => break,
            }
        }
        // The deferred ICRC itself.
        self.take(ICRC_LEN);
        let value = icrc.value();
        // The receiver must not accept the zeros as the sender's data.
        out.extend_from_slice(&(if gone { !value } else { value }).to_le_bytes());
        true
    }

    /// Returns the next bytes of the current piece, at most `max`; of the next piece, if the current one has none left.
    #[inline]
    fn take(&mut self, max: usize) -> &'a [u8] {
        if self.rest.is_empty()
            && let Some(Piece::Inline(bytes)) = self.pieces.next().map(|piece| piece.in_arena(self.arena))
        {
            self.rest = bytes;
        }
        let (taken, rest) = self.rest.split_at(self.rest.len().min(max));
        self.rest = rest;
        taken
    }
}
