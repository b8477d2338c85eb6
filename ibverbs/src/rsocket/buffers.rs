//! Scatter and gather lists: the program's buffers, of which a call may have several, taken piece by piece.

/// Gather list of the data to send.
#[derive(Clone)]
pub struct Source<'a> {
    parts: &'a [&'a [u8]],
    /// Number of bytes taken of the first part.
    of_first: usize,
    /// Number of bytes taken in total.
    taken: usize,
    /// Number of bytes not yet taken.
    left: usize,
}

impl<'a> Source<'a> {
    pub fn new(parts: &'a [&'a [u8]]) -> Source<'a> {
        Source { parts, of_first: 0, taken: 0, left: parts.iter().map(|part| part.len()).sum() }
    }

    /// Returns the number of bytes not yet taken.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns the number of bytes taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Skips `len` bytes, or all that are left.
    pub fn skip(&mut self, len: usize) {
        let end = self.taken + len;
        while self.taken < end && !self.take(end - self.taken).is_empty() {}
    }

    /// Takes the next piece, of at most `len` bytes; it is empty only if nothing is left or `len` is 0.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        while let [first, rest @ ..] = self.parts {
            if self.of_first < first.len() {
                let piece = &first[self.of_first..];
                let piece = &piece[..len.min(piece.len())];
                self.of_first += piece.len();
                self.taken += piece.len();
                self.left -= piece.len();
                return piece;
            }
            (self.parts, self.of_first) = (rest, 0);
        }
        &[]
    }
}

/// Scatter list for received data.
pub struct Sink<'a> {
    parts: Vec<&'a mut [u8]>,
    /// Index of the part in use.
    part: usize,
    /// Number of bytes filled of that part.
    of_part: usize,
    /// Number of bytes filled in total.
    taken: usize,
    /// Number of bytes not yet filled.
    left: usize,
}

impl<'a> Sink<'a> {
    pub fn new(parts: Vec<&'a mut [u8]>) -> Sink<'a> {
        let left = parts.iter().map(|part| part.len()).sum();
        Sink { parts, part: 0, of_part: 0, taken: 0, left }
    }

    /// Returns the number of bytes not yet filled.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns the number of bytes filled.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Skips `len` bytes, or all that are left.
    pub fn skip(&mut self, len: usize) {
        let end = self.taken + len;
        while self.taken < end && !self.take(end - self.taken).is_empty() {}
    }

    /// Takes the next piece, of at most `len` bytes; it is empty only if nothing is left or `len` is 0.
    pub fn take(&mut self, len: usize) -> &mut [u8] {
        while self.parts.get(self.part).is_some_and(|part| part.len() == self.of_part) {
            (self.part, self.of_part) = (self.part + 1, 0);
        }
        let Some(part) = self.parts.get_mut(self.part) else { return &mut [] };
        let len = len.min(part.len() - self.of_part);
        let piece = &mut part[self.of_part..self.of_part + len];
        self.of_part += len;
        self.taken += len;
        self.left -= len;
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_taken_in_pieces_across_buffers() {
        let parts: [&[u8]; 4] = [b"abc", b"", b"de", b"f"];
        let mut rest = Source::new(&parts);
        rest.skip(4);
        assert_eq!((rest.taken(), rest.left(), rest.take(9)), (4, 2, &b"e"[..]));
        let mut source = Source::new(&parts);
        assert_eq!(
            (source.left(), source.take(2), source.take(9), source.take(1)),
            (6, &b"ab"[..], &b"c"[..], &b"d"[..])
        );
        assert_eq!((source.left(), source.taken()), (2, 4));
        assert_eq!((source.take(9), source.take(9), source.take(9)), (&b"e"[..], &b"f"[..], &b""[..]));
        assert_eq!((source.left(), source.taken()), (0, 6));
    }

    #[test]
    fn sink_is_filled_in_pieces_across_buffers() {
        let (mut a, mut b, mut c) = ([0; 2], [0; 0], [0; 3]);
        let mut sink = Sink::new(vec![&mut a, &mut b, &mut c]);
        sink.take(1).copy_from_slice(b"1");
        sink.take(5).copy_from_slice(b"2");
        assert_eq!((sink.left(), sink.taken()), (3, 2));
        sink.take(2).copy_from_slice(b"34");
        sink.take(2).copy_from_slice(b"5");
        assert!(sink.take(2).is_empty());
        assert_eq!((sink.left(), sink.taken()), (0, 5));
        assert_eq!((&a, &c), (b"12", b"345"));
        let mut rest = Sink::new(vec![&mut a, &mut b, &mut c]);
        rest.skip(3);
        assert_eq!((rest.taken(), rest.left(), &*rest.take(9)), (3, 2, &b"45"[..]));
    }
}
