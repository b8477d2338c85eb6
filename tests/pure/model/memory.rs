//! Reference model of the memory of a side, and of the ranges that work requests use.

use crate::support::Rng;

/// Memory of one side. Each piece is used by one work request only, so that the result does not depend on
/// reordering; guard bytes separate the pieces.
#[derive(Default)]
pub struct Arena {
    /// Contents before the run.
    pub initial: Vec<u8>,
    /// Contents after all work requests generated so far, where the result is predictable.
    pub bytes: Vec<u8>,
}

/// A range of a side's memory, or of its null region.
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

    /// Allocates `len` bytes in one to four pieces. With `nulls`, some pieces may be in the null region.
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

    /// Returns the contents of the pieces, where the null region reads as zeros.
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

/// Splits `data` into the parts that are stored in each piece if `data` begins at byte `at` of the pieces;
/// yields each part with its address (`None` in the null region).
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

/// Stores `data` in the pieces, beginning at their byte `at`.
pub fn store(bytes: &mut [u8], pieces: &[Piece], at: usize, data: &[u8]) {
    for (at, data) in parts(pieces, at, data) {
        if let Some(at) = at {
            bytes[at..][..data.len()].copy_from_slice(data);
        }
    }
}

/// Reports whether the contents of the pieces begin with `data`; `read` returns a number of bytes at an
/// address.
pub fn holds(read: impl Fn(usize, usize) -> Vec<u8>, pieces: &[Piece], data: &[u8]) -> bool {
    parts(pieces, 0, data).all(|(at, data)| at.is_none_or(|at| read(at, data.len()) == data))
}

/// Returns how many bytes of `data` have been stored in the pieces between the memory contents `before` and
/// `now`; `None` if that is not a number of whole packets.
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
