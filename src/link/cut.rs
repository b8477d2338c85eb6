use crate::transport::{Piece, TxBurst};

/// Cuts the bytes of a burst into its packets without copying them.
pub(crate) struct Cutter<'a, I> {
    pieces: I,
    rest: Option<Piece<'a>>,
    left: usize,
    segment: usize,
}

/// A cutter at the first packet of `burst`.
pub(crate) fn cutter<'a>(burst: &TxBurst<'a>) -> Cutter<'a, impl Iterator<Item = Piece<'a>> + use<'a>> {
    Cutter { pieces: burst.pieces(), rest: None, left: burst.bytes, segment: burst.segment }
}

impl<'a, I: Iterator<Item = Piece<'a>>> Cutter<'a, I> {
    /// Bytes of the next packet; `None` behind the last.
    pub fn next_len(&self) -> Option<usize> {
        (self.left > 0).then(|| self.left.min(self.segment))
    }

    /// Gives the slices of the next packet to `each`.
    pub fn next_packet(&mut self, mut each: impl FnMut(Piece<'a>)) {
        let mut wanted = self.next_len().unwrap_or(0);
        self.left -= wanted;
        while wanted > 0 {
            let Some(piece) = self.rest.take().or_else(|| self.pieces.next()) else { return };
            let n = piece.len().min(wanted);
            let (head, tail) = match piece {
                Piece::Bytes(b) => {
                    let (head, tail) = b.split_at(n);
                    (Piece::Bytes(head), Piece::Bytes(tail))
                }
                Piece::Host(slice) => {
                    let (head, tail) = slice.split_at(n);
                    (Piece::Host(head), Piece::Host(tail))
                }
            };
            wanted -= n;
            self.rest = (!tail.is_empty()).then_some(tail);
            each(head);
        }
    }

    /// Appends the next packet to `out`.
    pub fn copy_next(&mut self, out: &mut Vec<u8>) {
        self.next_packet(|piece| match piece {
            Piece::Bytes(b) => out.extend_from_slice(b),
            Piece::Host(slice) => slice.append_to(out),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, Accessor, PdId, Span, Table};
    use crate::wire::Qpn;

    const BY: Accessor = Accessor { pd: PdId(1), qpn: Qpn::new(2) };
    use crate::transport::{BurstLimits, Payload, TxQueue};
    use crate::wire::{Bth, Flow, Headers, Opcode};

    #[test]
    fn packets_are_cut_where_they_end() {
        let mut memory: Vec<u8> = (0..3001u32).map(|i| i as u8).collect();
        let mut table = Table::new();
        let addr = memory.as_mut_ptr().expose_provenance();
        // SAFETY: `memory` outlives the table and is not touched meanwhile.
        let mr = unsafe {
            table.register(PdId(1), Span { addr, len: memory.len(), iova: 0, access: Access::ALL })
        }
        .unwrap();
        let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
        let flow = Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 1);
        let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
        for (start, len) in [(0, 1024), (1024, 1024), (2048, 953)] {
            let first = table.local(BY, mr.lkey, start, 500, Access::LOCAL_READ).unwrap();
            let rest = table.local(BY, mr.lkey, start + 500, len - 500, Access::LOCAL_READ).unwrap();
            queue.push(&flow, headers, Payload::Gather(&[first, rest]));
        }
        let burst = queue.bursts().next().unwrap();
        assert_eq!(burst.packets, 3);
        let mut whole = Vec::new();
        burst.copy_to(&mut whole);
        let mut cutter = cutter(&burst);
        for packet in whole.chunks(burst.segment) {
            assert_eq!(cutter.next_len(), Some(packet.len()));
            let mut got = Vec::new();
            cutter.copy_next(&mut got);
            assert_eq!(got, packet);
        }
        assert_eq!(cutter.next_len(), None);
    }
}
