//! Scatter and gather lists over the buffers that the program passes to a call, consumed piece by piece.

use std::net::SocketAddr;

/// Gather list of the data to send.
#[derive(Clone)]
pub(super) struct Source<'a> {
    parts: &'a [&'a [u8]],
    /// Number of bytes taken from the first buffer in `parts`.
    first_offset: usize,
    /// Number of bytes taken in total.
    position: usize,
    /// Number of bytes not yet taken.
    remaining: usize,
}

impl<'a> Source<'a> {
    pub(super) fn new(parts: &'a [&'a [u8]]) -> Source<'a> {
        Source { parts, first_offset: 0, position: 0, remaining: parts.iter().map(|part| part.len()).sum() }
    }

    /// Returns the number of bytes not yet taken.
    pub(super) fn remaining(&self) -> usize {
        self.remaining
    }

    /// Returns the number of bytes taken.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Skips `len` bytes, or all remaining ones if they are fewer.
    pub(super) fn skip(&mut self, len: usize) {
        let end = self.position + len;
        while self.position < end && !self.next_piece(end - self.position).is_empty() {}
    }

    /// Takes the next piece, of at most `len` bytes. The piece is empty only if nothing is left or `len` is
    /// 0.
    pub(super) fn next_piece(&mut self, len: usize) -> &'a [u8] {
        while let [first, rest @ ..] = self.parts {
            if self.first_offset < first.len() {
                let piece = &first[self.first_offset..];
                let piece = &piece[..len.min(piece.len())];
                self.first_offset += piece.len();
                self.position += piece.len();
                self.remaining -= piece.len();
                return piece;
            }
            (self.parts, self.first_offset) = (rest, 0);
        }
        &[]
    }
}

/// Scatter list for received data.
pub(super) struct Sink<'a> {
    parts: Vec<&'a mut [u8]>,
    /// Index of the buffer being filled.
    part: usize,
    /// Number of bytes filled in that buffer.
    part_offset: usize,
    /// Number of bytes filled in total.
    position: usize,
    /// Number of bytes not yet filled.
    remaining: usize,
}

impl<'a> Sink<'a> {
    pub(super) fn new(parts: Vec<&'a mut [u8]>) -> Sink<'a> {
        let remaining = parts.iter().map(|part| part.len()).sum();
        Sink { parts, part: 0, part_offset: 0, position: 0, remaining }
    }

    /// Returns the number of bytes not yet filled.
    pub(super) fn remaining(&self) -> usize {
        self.remaining
    }

    /// Returns the number of bytes filled.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Skips `len` bytes, or all remaining ones if they are fewer.
    pub(super) fn skip(&mut self, len: usize) {
        let end = self.position + len;
        while self.position < end && !self.next_piece(end - self.position).is_empty() {}
    }

    /// Takes the next piece, of at most `len` bytes. The piece is empty only if nothing is left or `len` is
    /// 0.
    pub(super) fn next_piece(&mut self, len: usize) -> &mut [u8] {
        while self.parts.get(self.part).is_some_and(|part| part.len() == self.part_offset) {
            (self.part, self.part_offset) = (self.part + 1, 0);
        }
        let Some(part) = self.parts.get_mut(self.part) else { return &mut [] };
        let len = len.min(part.len() - self.part_offset);
        let piece = &mut part[self.part_offset..self.part_offset + len];
        self.part_offset += len;
        self.position += len;
        self.remaining -= len;
        piece
    }
}

/// Result of a receive call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Received {
    /// Number of bytes received.
    pub bytes: usize,
    /// Sender of the datagram; `None` for a stream.
    pub from: Option<SocketAddr>,
    /// Whether the datagram was longer than the buffer (`MSG_TRUNC`).
    pub is_truncated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_source_end_at_the_end_of_each_buffer() {
        let parts: [&[u8]; 4] = [b"abc", b"", b"de", b"f"];
        let mut rest = Source::new(&parts);
        rest.skip(4);
        assert_eq!((rest.position(), rest.remaining(), rest.next_piece(9)), (4, 2, &b"e"[..]));
        let mut source = Source::new(&parts);
        assert_eq!(
            (source.remaining(), source.next_piece(2), source.next_piece(9), source.next_piece(1)),
            (6, &b"ab"[..], &b"c"[..], &b"d"[..])
        );
        assert_eq!((source.remaining(), source.position()), (2, 4));
        assert_eq!(
            (source.next_piece(9), source.next_piece(9), source.next_piece(9)),
            (&b"e"[..], &b"f"[..], &b""[..])
        );
        assert_eq!((source.remaining(), source.position()), (0, 6));
    }

    #[test]
    fn pieces_of_a_sink_end_at_the_end_of_each_buffer() {
        let (mut a, mut b, mut c) = ([0; 2], [0; 0], [0; 3]);
        let mut sink = Sink::new(vec![&mut a, &mut b, &mut c]);
        sink.next_piece(1).copy_from_slice(b"1");
        sink.next_piece(5).copy_from_slice(b"2");
        assert_eq!((sink.remaining(), sink.position()), (3, 2));
        sink.next_piece(2).copy_from_slice(b"34");
        sink.next_piece(2).copy_from_slice(b"5");
        assert!(sink.next_piece(2).is_empty());
        assert_eq!((sink.remaining(), sink.position()), (0, 5));
        assert_eq!((&a, &c), (b"12", b"345"));
        let mut rest = Sink::new(vec![&mut a, &mut b, &mut c]);
        rest.skip(3);
        assert_eq!((rest.position(), rest.remaining(), &*rest.next_piece(9)), (3, 2, &b"45"[..]));
    }
}
