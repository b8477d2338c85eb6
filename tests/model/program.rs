//! Work requests as the model knows them: what they do, and what must come of them.

use urxe::transport::{SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::{QKey, RKey};

use crate::grants::Lease;
use crate::memory::{Arena, Piece};
use crate::support::Rng;

/// Inline bytes that a queue takes.
pub const MAX_INLINE: u32 = 200;

/// Which key a work request names; its number is known when there are NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Key {
    /// It needs none.
    #[default]
    None,
    /// That of the region that is all of a side's memory.
    Region(usize),
    /// That of a window or fast region of a side, as of its so-manieth opening.
    Grant { side: usize, id: usize, age: u8 },
    /// Of nothing.
    Wrong,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct To {
    pub target: Target,
    pub qkey: QKey,
}

#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// To a queue pair, by its place in the world's list.
    Qp(usize),
    /// To a side that has no queue pair of the number.
    Nobody(usize),
}

#[derive(Debug)]
pub struct Send {
    /// Its keys of this and the other side are put in when it is posted.
    pub op: WrOp,
    pub key: Key,
    pub pieces: Vec<Piece>,
    pub inline: bool,
    pub flags: SendFlags,
    pub to: Option<To>,
    /// So many messages must have come in before it is posted.
    pub after: usize,
    /// What it carries there, or brings back to its pieces.
    pub data: Vec<u8>,
    /// Where at the other side `data` goes, if it is a WRITE.
    pub place: Option<usize>,
    /// The word at the other side that it changes, and its value then.
    pub word: Option<(usize, u64)>,
    /// The fast region of its own side that its elements are named by, if not that of all memory.
    pub under: Option<Lease>,
    /// Its elements have a wrong key.
    pub bad_lkey: bool,
    /// It does not succeed; it fails so, if nothing else has failed before.
    pub fault: Option<WcStatus>,
}

impl Send {
    pub fn new(op: WrOp) -> Send {
        Send {
            op,
            key: Key::None,
            pieces: Vec::new(),
            inline: false,
            flags: SendFlags::default(),
            to: None,
            after: 0,
            data: Vec::new(),
            place: None,
            word: None,
            under: None,
            bad_lkey: false,
            fault: None,
        }
    }

    pub fn imm(&self) -> Option<u32> {
        match self.op {
            WrOp::SendWithImm(imm) | WrOp::WriteWithImm { imm, .. } => Some(imm),
            _ => None,
        }
    }

    pub fn is_send(&self) -> bool {
        matches!(self.op, WrOp::Send | WrOp::SendWithImm(_) | WrOp::SendWithInv(_))
    }

    /// How its receive completes, if it takes one.
    pub fn receive_opcode(&self) -> Option<WcOpcode> {
        match self.op {
            WrOp::WriteWithImm { .. } => Some(WcOpcode::RecvRdmaWithImm),
            _ => self.is_send().then_some(WcOpcode::Recv),
        }
    }

    /// PSNs that it takes.
    pub fn packets(&self, mtu: usize) -> u32 {
        if self.op.is_local() {
            return 0;
        }
        if self.to.is_some() { 1 } else { self.data.len().div_ceil(mtu).max(1) as u32 }
    }
}

/// A receive work request.
#[derive(Debug)]
pub struct Recv {
    pub pieces: Vec<Piece>,
    pub bad_lkey: bool,
}

impl Recv {
    pub fn room(&self) -> usize {
        self.pieces.iter().map(|p| p.len as usize).sum()
    }
}

/// The number of the key is `key` from now on, wherever the operation has it.
pub fn put_key(op: &mut WrOp, key: RKey) {
    match op {
        WrOp::Write { rkey, .. }
        | WrOp::WriteWithImm { rkey, .. }
        | WrOp::Read { rkey, .. }
        | WrOp::Atomic { rkey, .. }
        | WrOp::AtomicWrite { rkey, .. }
        | WrOp::Flush { rkey, .. }
        | WrOp::SendWithInv(rkey)
        | WrOp::LocalInv(rkey) => *rkey = key,
        WrOp::BindMw(bind) => bind.rkey = key,
        WrOp::RegMr(reg) => reg.key = urxe::wire::LKey(key.0),
        WrOp::Send | WrOp::SendWithImm(_) => {}
    }
}

/// A message length: mostly short, at the edges of packets, sometimes up to 64 KiB.
pub fn length(mtu: usize, rng: &mut Rng) -> u32 {
    let mtu = mtu as u64;
    let edge = mtu * rng.below(4);
    (match rng.below(20) {
        0 => rng.below(65_537),
        1..3 => rng.below(8192),
        3..8 => (edge + rng.below(3)).saturating_sub(1),
        8 => 0,
        _ => rng.below(2 * mtu),
    }) as u32
}

pub fn flags(rng: &mut Rng) -> SendFlags {
    SendFlags { signaled: rng.percent(60), solicited: rng.percent(20), fence: rng.percent(20) }
}

/// A SEND of `len` bytes from `from` or, with a `place` at the other side, a WRITE to there; some are inline, some with
/// immediate.
pub fn transfer(place: Option<usize>, len: u32, from: &mut Arena, rng: &mut Rng) -> Send {
    let inline = len <= MAX_INLINE && rng.percent(25);
    let pieces = from.scatter(len, !inline, rng);
    let data = from.gather(&pieces);
    let imm = rng.percent(40).then(|| rng.next() as u32);
    let op = match (place, imm) {
        (None, None) => WrOp::Send,
        (None, Some(imm)) => WrOp::SendWithImm(imm),
        (Some(at), None) => WrOp::Write { va: at as u64, rkey: RKey(0) },
        (Some(at), Some(imm)) => WrOp::WriteWithImm { va: at as u64, rkey: RKey(0), imm },
    };
    Send { pieces, inline, flags: flags(rng), data, place, ..Send::new(op) }
}

/// The last work request shows that all are done.
pub fn close(sends: &mut [Send]) {
    if let Some(last) = sends.last_mut() {
        last.flags.signaled = true;
    }
}
