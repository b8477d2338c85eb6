//! Work requests of the model, with their effect and expected result.

use urxe::transport::{SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::{QKey, RKey};

use super::grants::GrantedRange;
use super::memory::{Arena, Piece};
use urxe_test_support::engine::Rng;

/// Maximum number of inline bytes in a work request.
pub const MAX_INLINE: u32 = 200;

/// Symbolic key of a work request: its value is not known until the NICs have been created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Key {
    /// No key is needed.
    #[default]
    None,
    /// Key of the region that covers all memory of a side.
    Region(usize),
    /// Key of one of a side's windows or fast-registered regions; `age` counts its binds or registrations
    /// from 1.
    Grant { side: usize, id: usize, age: u8 },
    /// A key that belongs to no object.
    Wrong,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct To {
    pub target: Target,
    pub qkey: QKey,
}

#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// Queue pair with the given index.
    Qp(usize),
    /// Queue pair number that does not exist on the side with the given index.
    UnknownQp(usize),
}

#[derive(Debug)]
pub struct Send {
    /// Operation; its keys are set when the work request is posted.
    pub op: WrOp,
    pub key: Key,
    pub pieces: Vec<Piece>,
    pub inline: bool,
    pub flags: SendFlags,
    pub to: Option<To>,
    /// Number of messages that must have been received before the work request is posted.
    pub after: usize,
    /// Data that the work request transfers to the other side, or fetches into its pieces.
    pub data: Vec<u8>,
    /// Address on the other side at which a WRITE or ATOMIC WRITE stores `data`.
    pub place: Option<usize>,
    /// Address of the word on the other side that an atomic modifies, and the word's new value.
    pub word: Option<(usize, u64)>,
    /// Fast-registered region whose key the scatter/gather elements use; with `None`, they use the region
    /// that covers all memory.
    pub under: Option<GrantedRange>,
    /// Whether the scatter/gather elements have an invalid key.
    pub bad_lkey: bool,
    /// Status with which the work request fails, unless an earlier one has failed.
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

    /// Returns the opcode of the receive completion at the other side, if the work request consumes a
    /// receive.
    pub fn receive_opcode(&self) -> Option<WcOpcode> {
        match self.op {
            WrOp::WriteWithImm { .. } => Some(WcOpcode::RecvRdmaWithImm),
            _ => self.is_send().then_some(WcOpcode::Recv),
        }
    }

    /// Returns the number of PSNs that the work request uses.
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
    pub fn capacity(&self) -> usize {
        self.pieces.iter().map(|p| p.len as usize).sum()
    }
}

/// Replaces the key in an operation, if the operation has one.
pub fn set_key(op: &mut WrOp, key: RKey) {
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

/// Returns a random message length: mostly short or close to a multiple of the path MTU, sometimes up to 64
/// KiB.
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

/// Returns a SEND of `len` bytes from `from`, or a WRITE to the address `place` of the other side. Some are
/// inline, some have immediate data.
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

/// Makes the last work request signaled, because its completion shows that all have completed.
pub fn signal_last(sends: &mut [Send]) {
    if let Some(last) = sends.last_mut() {
        last.flags.signaled = true;
    }
}
