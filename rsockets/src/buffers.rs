//! Scatter and gather lists over the buffers that the program passes to a call, consumed piece by piece.

use std::net::SocketAddr;
use std::ops::{Deref, Range};
use std::vec;

/// A buffer from whose beginning pieces are taken.
pub trait Buffer: Default + Deref<Target = [u8]> {
    /// Takes the first `len` bytes, which the buffer must have.
    fn take_first(&mut self, len: usize) -> Self;
}

impl Buffer for &[u8] {
    fn take_first(&mut self, len: usize) -> Self {
        self.split_off(..len).unwrap_or_default()
    }
}

impl Buffer for &mut [u8] {
    fn take_first(&mut self, len: usize) -> Self {
        self.split_off_mut(..len).unwrap_or_default()
    }
}

/// List of buffers.
#[derive(Clone)]
pub struct Buffers<B> {
    first: B,
    rest: vec::IntoIter<B>,
    /// Number of bytes taken in total.
    position: usize,
    /// Number of bytes not yet taken.
    remaining: usize,
}

/// Gather list of the data to send.
pub type Source<'a> = Buffers<&'a [u8]>;

/// Scatter list for received data.
pub type Sink<'a> = Buffers<&'a mut [u8]>;

impl<B: Buffer> Buffers<B> {
    pub fn new(parts: Vec<B>) -> Buffers<B> {
        let remaining = parts.iter().map(|part| part.len()).sum();
        Buffers { first: B::default(), rest: parts.into_iter(), position: 0, remaining }
    }

    /// Returns the number of bytes not yet taken.
    pub(crate) fn remaining(&self) -> usize {
        self.remaining
    }

    /// Returns the number of bytes taken.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Skips `len` bytes, or all remaining ones if they are fewer.
    pub fn skip(&mut self, len: usize) {
        self.take(0..len, |_, _| ());
    }

    /// Takes the next piece, of at most `len` bytes. The piece is empty only if nothing is left or `len` is
    /// 0.
    pub(crate) fn next_piece(&mut self, len: usize) -> B {
        while self.first.is_empty()
            && let Some(next) = self.rest.next()
        {
            self.first = next;
        }
        let piece = self.first.take_first(len.min(self.first.len()));
        self.position += piece.len();
        self.remaining -= piece.len();
        piece
    }

    /// Takes as many bytes as the range is long, or all remaining ones if they are fewer, and calls `f` with
    /// each piece and its position in the range. Returns the position behind the last one.
    pub(crate) fn take(&mut self, range: Range<usize>, mut f: impl FnMut(usize, B)) -> usize {
        let mut at = range.start;
        while at < range.end && self.remaining > 0 {
            let piece = self.next_piece(range.end - at);
            let len = piece.len();
            f(at, piece);
            at += len;
        }
        at
    }
}

/// Result of a receive call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
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
        let mut rest = Source::new(parts.to_vec());
        rest.skip(4);
        assert_eq!((rest.position(), rest.remaining(), rest.next_piece(9)), (4, 2, &b"e"[..]));
        let mut source = Source::new(parts.to_vec());
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
