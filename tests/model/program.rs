//! What the two sides of a connection do, and what must come of it.

use urxe::memory::AtomicOp;
use urxe::transport::{Completion, MAX_MESSAGE, SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::RKey;

use crate::support::Rng;

/// The reference memory of one side. Each piece of it is used by one work request only, so that nothing
/// depends on what overtakes what; between the pieces lie bytes that nobody may touch.
#[derive(Default)]
pub struct Arena {
    /// As it is before anything happens.
    pub initial: Vec<u8>,
    /// As it is after all that was programmed so far.
    pub bytes: Vec<u8>,
    /// Pieces that requests of a poisoned connection may or may not have written.
    pub vague: Vec<(usize, usize)>,
}

impl Arena {
    fn take(&mut self, len: usize, align: usize, rng: &mut Rng) -> usize {
        let at = (self.bytes.len() + 1 + rng.below(9) as usize).next_multiple_of(align);
        let end = at + len + 1;
        while self.bytes.len() < end {
            let byte = rng.next() as u8;
            self.initial.push(byte);
            self.bytes.push(byte);
        }
        at
    }
}

/// A run of a side's memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub at: usize,
    pub len: u32,
}

#[derive(Debug)]
pub struct Send {
    pub wr_id: u64,
    /// Its `rkey` is put in when the regions are there.
    pub op: WrOp,
    pub pieces: Vec<Piece>,
    pub inline: bool,
    pub flags: SendFlags,
    pub bad_lkey: bool,
    pub bad_rkey: bool,
    len: u32,
}

#[derive(Debug)]
pub struct Recv {
    pub wr_id: u64,
    pub pieces: Vec<Piece>,
    opcode: WcOpcode,
    byte_len: u32,
    imm: Option<u32>,
    solicited: bool,
}

/// One direction of a connection: the sends of one side, the receives of the other.
pub struct Program {
    pub sends: Vec<Send>,
    pub recvs: Vec<Recv>,
}

/// A message length: mostly short, at the edges of packets, sometimes up to 64 KiB.
fn length(mtu: u64, rng: &mut Rng) -> u32 {
    let edge = mtu * rng.below(4);
    (match rng.below(20) {
        0 => rng.below(65_537),
        1..3 => rng.below(8192),
        3..8 => (edge + rng.below(3)).saturating_sub(1),
        8 => 0,
        _ => rng.below(2 * mtu),
    }) as u32
}

/// `len` bytes of an arena in one to four pieces, in any order in memory.
fn scatter(arena: &mut Arena, len: u32, rng: &mut Rng) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut left = len;
    for _ in 0..rng.below(4) {
        let n = rng.below(left as u64 + 1) as u32;
        pieces.push(n);
        left -= n;
    }
    pieces.push(left);
    let mut pieces: Vec<_> =
        pieces.into_iter().map(|len| Piece { at: arena.take(len as usize, 1, rng), len }).collect();
    if len == 0 && rng.percent(30) {
        pieces.clear();
    }
    pieces
}

fn gather(arena: &Arena, pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(|p| &arena.bytes[p.at..][..p.len as usize]).copied().collect()
}

fn store(arena: &mut Arena, pieces: &[Piece], data: &[u8]) {
    let mut rest = data;
    for p in pieces {
        let (now, later) = rest.split_at(rest.len().min(p.len as usize));
        arena.bytes[p.at..][..now.len()].copy_from_slice(now);
        rest = later;
    }
}

impl Program {
    /// A program of `count` sends from `from` to `to`, whose effects are applied to both.
    pub fn new(
        count: u64,
        first_id: u64,
        mtu: u64,
        max_inline: u64,
        from: &mut Arena,
        to: &mut Arena,
        rng: &mut Rng,
    ) -> Program {
        let mut p = Program { sends: Vec::new(), recvs: Vec::new() };
        let word = to.take(8, 8, rng);
        let mut written: Option<(usize, u32)> = None;
        for i in 0..count {
            let flags = SendFlags {
                signaled: rng.percent(60) || i + 1 == count,
                solicited: rng.percent(20),
                fence: rng.percent(20),
            };
            let imm = rng.percent(40).then(|| rng.next() as u32);
            let mut len = length(mtu, rng);
            let rkey = RKey(0);
            let mut inline = false;
            let (op, pieces) = match rng.below(10) {
                0..3 => {
                    inline = rng.percent(20);
                    len = if inline { len.min(max_inline as u32) } else { len };
                    let source = scatter(from, len, rng);
                    p.receive(WcOpcode::Recv, &gather(from, &source), imm, flags, to, rng);
                    (imm.map_or(WrOp::Send, WrOp::SendWithImm), source)
                }
                3..6 => {
                    let source = scatter(from, len, rng);
                    let data = gather(from, &source);
                    let at = to.take(data.len(), 1, rng);
                    to.bytes[at..][..data.len()].copy_from_slice(&data);
                    written = Some((at, len));
                    if imm.is_some() {
                        p.receive(WcOpcode::RecvRdmaWithImm, &data, imm, flags, to, rng);
                    }
                    let va = at as u64;
                    (imm.map_or(WrOp::Write { va, rkey }, |imm| WrOp::WriteWithImm { va, rkey, imm }), source)
                }
                6..8 => {
                    // Fresh memory, or what an earlier WRITE of this queue has put there.
                    let source = match written.filter(|_| rng.percent(50)) {
                        Some(w) => w,
                        None => (to.take(len as usize, 1, rng), len),
                    };
                    len = source.1;
                    let data = to.bytes[source.0..][..len as usize].to_vec();
                    let sink = scatter(from, len, rng);
                    store(from, &sink, &data);
                    (WrOp::Read { va: source.0 as u64, rkey }, sink)
                }
                _ => {
                    len = 8;
                    let old = u64::from_ne_bytes(to.bytes[word..][..8].try_into().unwrap());
                    let operand = rng.next();
                    let (op, new) = match rng.below(3) {
                        0 => (AtomicOp::FetchAdd(operand), old.wrapping_add(operand)),
                        1 => (AtomicOp::CompareSwap { compare: old, swap: operand }, operand),
                        _ => (AtomicOp::CompareSwap { compare: !old, swap: operand }, old),
                    };
                    to.bytes[word..][..8].copy_from_slice(&new.to_ne_bytes());
                    let sink = scatter(from, 8, rng);
                    store(from, &sink, &old.to_ne_bytes());
                    (WrOp::Atomic { va: word as u64, rkey, op }, sink)
                }
            };
            let wr_id = first_id + i;
            let (bad_lkey, bad_rkey) = (false, false);
            p.sends.push(Send { wr_id, op, pieces, inline, flags, bad_lkey, bad_rkey, len });
        }
        p
    }

    /// The receive that a message of `data` goes into.
    fn receive(
        &mut self,
        opcode: WcOpcode,
        data: &[u8],
        imm: Option<u32>,
        flags: SendFlags,
        to: &mut Arena,
        rng: &mut Rng,
    ) {
        let byte_len = data.len() as u32;
        let room = if rng.percent(50) { byte_len } else { byte_len + rng.below(100) as u32 };
        let pieces = scatter(to, room, rng);
        if opcode == WcOpcode::Recv {
            store(to, &pieces, data);
        }
        let wr_id = self.recvs.len() as u64;
        self.recvs.push(Recv { wr_id, pieces, opcode, byte_len, imm, solicited: flags.solicited });
    }

    /// Spoils one work request, so that the connection fails there. Not if the one that chance picks needs
    /// no key.
    pub fn poison(&mut self, rng: &mut Rng) -> bool {
        let i = rng.below(self.sends.len() as u64) as usize;
        let send = &mut self.sends[i];
        let bytes = send.len > 0 && !send.inline;
        let remote = !matches!(send.op, WrOp::Send | WrOp::SendWithImm(_));
        (send.bad_rkey, send.bad_lkey) =
            if remote && bytes && rng.percent(50) { (true, false) } else { (false, bytes) };
        bytes
    }

    /// Bytes that a failure leaves open: all that any of its requests may write.
    pub fn vague(&self, from: &mut Arena, to: &mut Arena) {
        for s in &self.sends {
            match s.op {
                WrOp::Send | WrOp::SendWithImm(_) => {}
                WrOp::Write { va, .. } | WrOp::WriteWithImm { va, .. } => {
                    to.vague.push((va as usize, s.len as usize));
                }
                WrOp::Read { .. } => from.vague.extend(s.pieces.iter().map(|p| (p.at, p.len as usize))),
                WrOp::Atomic { va, .. } => {
                    to.vague.push((va as usize, 8));
                    from.vague.extend(s.pieces.iter().map(|p| (p.at, p.len as usize)));
                }
                ref other => panic!("{other:?} is in no program"),
            }
        }
        to.vague.extend(self.recvs.iter().flat_map(|r| &r.pieces).map(|p| (p.at, p.len as usize)));
    }

    /// Checks the send completions of the whole run. `failed`: the connection was to fail.
    pub fn check_sends(&self, got: &[Completion], failed: bool) {
        let mut got = got.iter();
        let mut flushing = false;
        let mut next = got.next();
        for s in &self.sends {
            let mine = next.filter(|c| c.wr_id == s.wr_id);
            match mine {
                Some(c) if c.status == WcStatus::Success => {
                    assert!(!flushing, "success behind an error: {c:?}");
                    assert!(s.flags.signaled, "a completion of an unsignaled request: {c:?}");
                    assert_eq!((c.opcode, c.byte_len), (s.op.completion_opcode(), s.len), "{c:?}");
                    assert!(!s.bad_lkey && !s.bad_rkey, "a spoilt request succeeded: {c:?}");
                }
                Some(c) => {
                    assert!(failed, "{c:?} of {s:?}");
                    assert!(!flushing || c.status == WcStatus::WrFlushErr, "two errors: {c:?}");
                    flushing = true;
                }
                None => {
                    assert!(!s.flags.signaled && !flushing, "no completion of {s:?}, but {next:?}");
                }
            }
            if mine.is_some() {
                next = got.next();
            }
        }
        assert_eq!(next, None, "too many completions");
        assert!(self.sends.iter().all(|s| s.len as u64 <= MAX_MESSAGE));
    }

    /// Checks the receive completions of the whole run.
    pub fn check_recvs(&self, got: &[Completion], failed: bool) {
        assert_eq!(got.len(), self.recvs.len(), "receive completions");
        let mut flushing = false;
        for (c, r) in got.iter().zip(&self.recvs) {
            assert_eq!(c.wr_id, r.wr_id, "order of receives");
            if c.status == WcStatus::Success {
                assert!(!flushing);
                let expected = (r.opcode, r.byte_len, r.imm, r.solicited);
                assert_eq!((c.opcode, c.byte_len, c.imm, c.solicited), expected, "{c:?}");
            } else {
                assert!(failed, "{c:?}");
                flushing = true;
            }
        }
    }
}
