//! Memory windows and fast-registered regions: a side grants access to a part of its memory and sends a
//! message, the other side accesses that part, and one of them revokes the access.

use urxe::memory::{Access, Bind, FastReg, WindowKind};
use urxe::transport::WrOp;
use urxe::wire::{LKey, RKey};

use super::exchange::Exchange;
use super::memory::Piece;
use super::program::{Key, Send, flags, length};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantKind {
    Window(WindowKind),
    Fast,
}

impl GrantKind {
    /// Reports whether access is revoked by an invalidation, as for all but type 1 windows.
    pub fn is_invalidated(self) -> bool {
        self != GrantKind::Window(WindowKind::Type1)
    }
}

/// A part of a side's memory to which peers have access.
#[derive(Clone, Copy, Debug)]
pub struct GrantedRange {
    side: usize,
    pub key: Key,
    pub at: usize,
    pub len: usize,
    /// Remote address of the first byte.
    pub base: u64,
}

pub const KINDS: [GrantKind; 4] = [
    GrantKind::Window(WindowKind::Type1),
    GrantKind::Window(WindowKind::Type2A),
    GrantKind::Window(WindowKind::Type2B),
    GrantKind::Fast,
];

pub const REMOTE_ALL: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl Exchange<'_> {
    /// Adds a window or fast-registered region, and one to three rounds in which the owner grants access, the
    /// other side uses it, and one of them revokes it.
    pub fn grant(&mut self, owner: usize) {
        let (id, kind) = (self.grants[owner].len(), self.rng.pick(&KINDS));
        self.grants[owner].push(kind);
        for age in 1..=1 + self.rng.below(3) as u8 {
            let range = self.grant_access(owner, id, age, REMOTE_ALL);
            self.notify(owner);
            self.wait(1 - owner);
            self.use_all(&range);
            self.revoke(owner, id, &range);
        }
        if self.rng.percent(30) {
            self.grant_access(owner, id, 9, REMOTE_ALL);
        }
    }

    fn maybe_any(&mut self) {
        if self.rng.percent(40) {
            let side = self.rng.below(2) as usize;
            self.any(side);
        }
    }

    /// Adds a SEND from a side. Its arrival tells the other side that the earlier requests have taken effect.
    pub fn notify(&mut self, side: usize) {
        let send = self.send(side);
        self.push(side, send);
    }

    /// Adds a request of `owner` that grants peers the rights `allowed` to a new part of its memory.
    pub fn grant_access(&mut self, owner: usize, id: usize, age: u8, allowed: Access) -> GrantedRange {
        let len = 8 + length(self.mtu, self.rng).min(8192) as usize;
        let at = self.arenas[owner].alloc(len, 8, self.rng);
        let key = Key::Grant { side: owner, id, age };
        let (op, base) = match self.grants[owner][id] {
            GrantKind::Fast => {
                let iova = self.rng.next() & 0xffff_ffff_fff8;
                let access = allowed | Access::LOCAL_WRITE;
                let reg = FastReg { key: LKey(0), offset: at as u64, len: len as u64, iova, access };
                (WrOp::RegMr(reg), iova)
            }
            GrantKind::Window(kind) => {
                let zero = kind.is_type_2() && self.rng.percent(40);
                let access = if zero { allowed | Access::ZERO_BASED } else { allowed };
                let addr = at as u64;
                let bind = Bind { rkey: RKey(0), region: LKey(0), addr, len: len as u64, access };
                (WrOp::BindMw(bind), if zero { 0 } else { addr })
            }
        };
        let flags = flags(self.rng);
        self.push(owner, Send { key, flags, ..Send::new(op) });
        GrantedRange { side: owner, key, at, len, base }
    }

    /// Adds requests that use a fast-registered region for their local data. A LOCAL_INV directly follows
    /// them, while they may still have to be retransmitted.
    pub fn own_fast_region(&mut self, side: usize) {
        let id = self.grants[side].len();
        self.grants[side].push(GrantKind::Fast);
        let range = self.grant_access(side, id, 1, REMOTE_ALL);
        let mut at = 0;
        for _ in 0..1 + self.rng.below(3) {
            let len = self.rng.below((range.len - at) as u64 + 1) as usize;
            let piece = Piece { at: Some(range.at + at), len: len as u32 };
            let send = self.any_of(side, piece);
            self.push(side, Send { under: Some(range), ..send });
            at += len;
        }
        let flags = flags(self.rng);
        self.push(side, Send { key: range.key, flags, ..Send::new(WrOp::LocalInv(RKey(0))) });
    }

    /// Adds requests of the other side that together access the whole range.
    pub fn use_all(&mut self, range: &GrantedRange) {
        let mut at = 0;
        let uses = 1 + self.rng.below(3);
        for i in 1..=uses {
            self.maybe_any();
            let len =
                if i == uses { range.len - at } else { self.rng.below((range.len - at) as u64) as usize };
            self.use_part(range, at, len, true);
            at += len;
        }
        self.maybe_any();
    }

    /// Adds a WRITE or READ of a part of the range. With `words`, may instead add an atomic or an ATOMIC
    /// WRITE on the first 8 bytes of the part.
    pub fn use_part(&mut self, range: &GrantedRange, offset: usize, len: usize, words: bool) {
        let (user, at) = (1 - range.side, range.at + offset);
        let word = words && len >= 8 && at.is_multiple_of(8);
        let send = match self.rng.below(6) {
            0 if word => self.atomic(user, at),
            1 if word => self.atomic_write(user, at),
            2..4 => self.read_of(user, at, len as u32),
            _ => self.write_to(user, at, len as u32),
        };
        let mut op = send.op;
        match &mut op {
            WrOp::Write { va, .. }
            | WrOp::WriteWithImm { va, .. }
            | WrOp::Read { va, .. }
            | WrOp::Atomic { va, .. }
            | WrOp::AtomicWrite { va, .. } => *va = range.base + offset as u64,
            other => panic!("{other:?} has no remote address"),
        }
        self.push(user, Send { op, key: range.key, ..send });
    }

    /// Adds a message from the other side after its last access, and a request that revokes the access: the
    /// message itself (SEND with invalidate) or a later request of the owner.
    pub fn revoke(&mut self, owner: usize, id: usize, range: &GrantedRange) {
        let kind = self.grants[owner][id];
        let mut last = self.send(1 - owner);
        // The fence ensures that READ data has arrived before the key is invalidated.
        last.flags.fence = true;
        if kind.is_invalidated() && self.rng.percent(50) {
            last.op = WrOp::SendWithInv(RKey(0));
            last.key = range.key;
            self.push(1 - owner, last);
            self.wait(owner);
            return;
        }
        self.push(1 - owner, last);
        self.wait(owner);
        let flags = flags(self.rng);
        let op = if kind.is_invalidated() {
            WrOp::LocalInv(RKey(0))
        } else if self.rng.percent(50) {
            // A window of type 1 may be bound again without being unbound.
            return;
        } else {
            let (addr, access) = (range.at as u64, REMOTE_ALL);
            WrOp::BindMw(Bind { rkey: RKey(0), region: LKey(0), addr, len: 0, access })
        };
        self.push(owner, Send { key: range.key, flags, ..Send::new(op) });
    }
}
