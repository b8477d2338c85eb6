//! Copies of the packets of a burst, with the ICRCs that were deferred.

use super::tx_burst::{Piece, Stored, TxBurst};
use crate::wire::icrc::Prefixes;
use crate::wire::{ICRC_LEN, IpIdent};

/// Copier that writes out the packets of a burst one at a time.
#[derive(Debug)]
pub struct Copier<'a> {
    burst: TxBurst<'a>,
    /// Number of remaining bytes.
    left: usize,
    /// Index of the next packet.
    index: u16,
    prefixes: Prefixes,
    pieces: std::slice::Iter<'a, Stored>,
    /// Bytes of the current piece not yet copied.
    rest: &'a [u8],
}

impl<'a> TxBurst<'a> {
    /// Appends the bytes of all packets to `out`, with packet `i` at `i * segment` of the appended bytes.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        match self.as_bytes() {
            Some(bytes) => out.extend_from_slice(bytes),
            None => {
                let mut copier = self.copier();
                while copier.copy_next(out) {}
            }
        }
    }

    internal! {
        /// Returns a copier that writes out the packets one at a time, with their ICRCs.
        fn copier(&self) -> Copier<'a> {
            let (left, pieces) = (self.bytes, self.pieces.iter());
            Copier { burst: *self, left, index: 0, prefixes: Prefixes::default(), pieces, rest: &[] }
        }
    }
}

impl<'a> Copier<'a> {
    /// Replaces the contents of `out` with the next packets, at most `packets`.
    pub(crate) fn copy_step(&mut self, packets: usize, out: &mut Vec<u8>) {
        out.clear();
        let _ = (0..packets).all(|_| self.copy_next(out));
    }

    /// Appends the next packet to `out`, and computes its ICRC if it is deferred: a wrong one if user memory
    /// cannot be read. Returns false if there are no more packets.
    #[inline]
    pub fn copy_next(&mut self, out: &mut Vec<u8>) -> bool {
        let packet_len = self.left.min(self.burst.segment);
        if packet_len == 0 {
            return false;
        }
        self.left -= packet_len;
        let index = self.index;
        self.index += 1;
        if !self.burst.defers_icrcs {
            // All bytes are in one piece.
            out.extend_from_slice(self.take(packet_len));
            return true;
        }
        let end = out.len() + packet_len - ICRC_LEN;
        let headers = self.take(packet_len - ICRC_LEN);
        let prefix = self.prefixes.of(&self.burst.flow, packet_len, false);
        let mut icrc = prefix.after_headers(index, IpIdent::DONT_FRAGMENT, headers);
        out.extend_from_slice(headers);
        let mut gone = false;
        while out.len() < end {
            match self.pieces.next().map(|piece| piece.in_arena(self.burst.arena)) {
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

    /// Returns the next bytes of the current piece, at most `max`; of the next piece, if the current one has
    /// none left.
    #[inline]
    fn take(&mut self, max: usize) -> &'a [u8] {
        if self.rest.is_empty()
            && let Some(Piece::Inline(bytes)) =
                self.pieces.next().map(|piece| piece.in_arena(self.burst.arena))
        {
            self.rest = bytes;
        }
        let (taken, rest) = self.rest.split_at(self.rest.len().min(max));
        self.rest = rest;
        taken
    }
}
