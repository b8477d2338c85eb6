//! Reference model of a side's memory, and of the ranges that work requests use.

use urxe_test_support::engine::Rng;

/// Model of one side's memory. Each piece is used by only one work request, so that the order of execution
/// does not affect the result; guard bytes separate the pieces.
#[derive(Default)]
pub struct Arena {
    /// Contents before the run.
    pub initial: Vec<u8>,
    /// Contents after all work requests generated so far, except where the result is unpredictable.
    pub bytes: Vec<u8>,
}

/// A range of a side's memory, or of its null region if `at` is `None`.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub at: Option<usize>,
    pub len: u32,
}

impl Arena {
    pub fn alloc(&mut self, len: usize, align: usize, rng: &mut Rng) -> usize {
        let at = (self.bytes.len() + 1 + rng.below(9) as usize).next_multiple_of(align);
        let end = at + len + 1;
        while self.initial.len() < end {
            self.initial.extend(rng.next().to_le_bytes());
        }
        self.initial.truncate(end);
        self.bytes.extend_from_slice(&self.initial[self.bytes.len()..]);
        at
    }

    /// Allocates `len` bytes in up to four pieces. With `nulls`, some pieces may be in the null region.
    pub fn scatter(&mut self, len: u32, nulls: bool, rng: &mut Rng) -> Vec<Piece> {
        let mut lens = Vec::new();
        let mut remaining = len;
        for _ in 0..rng.below(4) {
            let n = rng.below(remaining as u64 + 1) as u32;
            lens.push(n);
            remaining -= n;
        }
        lens.push(remaining);
        if len == 0 && rng.percent(30) {
            lens.clear();
        }
        let null = |rng: &mut Rng| nulls && rng.percent(8);
        lens.into_iter()
            .map(|len| {
                let at = if null(rng) { None } else { Some(self.alloc(len as usize, 1, rng)) };
                Piece { at, len }
            })
            .collect()
    }

    /// Returns the contents of the pieces; the null region reads as zeros.
    pub fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut out = Vec::new();
        for p in pieces {
            match p.at {
                Some(at) => out.extend_from_slice(&self.bytes[at..][..p.len as usize]),
                None => out.resize(out.len() + p.len as usize, 0),
            }
        }
        out
    }
}

/// Splits `data`, which begins at byte `at` of the concatenated pieces, at their boundaries. Yields for each
/// piece the address of its part (`None` in the null region) and the part.
fn parts<'a>(
    pieces: &'a [Piece],
    at: usize,
    data: &'a [u8],
) -> impl Iterator<Item = (Option<usize>, &'a [u8])> {
    let (mut skip, mut rest) = (at, data);
    pieces.iter().map(move |p| {
        let skipped = skip.min(p.len as usize);
        skip -= skipped;
        let (now, later) = rest.split_at(rest.len().min(p.len as usize - skipped));
        rest = later;
        (p.at.map(|at| at + skipped), now)
    })
}

/// Stores `data` at offset `at` of the concatenated pieces.
pub fn store(bytes: &mut [u8], pieces: &[Piece], at: usize, data: &[u8]) {
    for (at, data) in parts(pieces, at, data) {
        if let Some(at) = at {
            bytes[at..][..data.len()].copy_from_slice(data);
        }
    }
}

/// Reports whether the pieces contain `data`; `read(at, len)` returns `len` bytes of memory at offset `at`.
pub fn holds(read: impl Fn(usize, usize) -> Vec<u8>, pieces: &[Piece], data: &[u8]) -> bool {
    parts(pieces, 0, data).all(|(at, data)| at.is_none_or(|at| read(at, data.len()) == data))
}

/// Returns how many bytes of `data` have been stored in the pieces between the memory contents `before` and
/// `now`; `None` if it is not a whole number of packets.
pub fn stored_packets(before: &[u8], now: &[u8], pieces: &[Piece], data: &[u8], mtu: usize) -> Option<usize> {
    let (mut changed, mut same, mut end) = (0, None, 0);
    for (at, data) in parts(pieces, 0, data) {
        if let Some(at) = at {
            let (before, now) = (&before[at..][..data.len()], &now[at..][..data.len()]);
            if let Some(last) = (0..data.len()).rev().find(|i| before[*i] != now[*i]) {
                changed = end + last + 1;
            }
            let first = (0..data.len()).find(|i| data[*i] != now[*i]);
            same = same.or(first.map(|i| end + i));
        }
        end += data.len();
    }
    let n = changed.next_multiple_of(mtu).min(data.len());
    (n <= same.unwrap_or(data.len())).then_some(n)
}
