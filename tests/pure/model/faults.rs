//! Faults on a connection: one work request or receive fails, and all later ones are flushed.

use urxe::memory::Access;
use urxe::transport::{WcOpcode, WcStatus, WrOp};
use urxe::wire::RKey;

use super::exchange::Exchange;
use super::grants::{KINDS, REMOTE_ALL};
use super::program::{Key, Send, flags};

impl Exchange<'_> {
    /// Inserts a random fault. If that kind of fault does not apply to any work request, adds a LOCAL_INV of
    /// an invalid key instead.
    pub fn fault(&mut self) {
        let side = self.rng.below(2) as usize;
        let done = match self.rng.below(9) {
            0 => self.invalidate_lkey(side),
            1 => self.invalidate_rkey(side),
            2 | 3 => self.violate_grant(side),
            4 => self.invalid_local_invalidate(side),
            5 => self.bind_twice(side),
            6 => self.invalid_remote_invalidate(side),
            7 => self.fail_receive(side, WcStatus::LocLenErr, WcStatus::RemInvReqErr),
            _ => self.fail_receive(side, WcStatus::LocProtErr, WcStatus::RemOpErr),
        };
        if !done {
            let op = WrOp::LocalInv(RKey(0));
            self.fail(side, Send { key: Key::Wrong, ..Send::new(op) }, WcStatus::MwBindErr);
        }
    }

    fn fail(&mut self, side: usize, send: Send, fault: WcStatus) -> usize {
        let flags = flags(self.rng);
        self.push(side, Send { fault: Some(fault), flags, ..send })
    }

    /// Picks a random one of a side's work requests that satisfy `fits`.
    fn pick(&mut self, side: usize, fits: impl Fn(&Send) -> bool) -> Option<&mut Send> {
        let sends = &mut self.parts[side].sends;
        let found: Vec<_> = (0..sends.len()).filter(|i| fits(&sends[*i])).collect();
        (!found.is_empty()).then(|| &mut sends[self.rng.pick(&found)])
    }

    fn invalidate_lkey(&mut self, side: usize) -> bool {
        let send = self.pick(side, |s| !s.inline && s.pieces.iter().any(|p| p.at.is_some() && p.len > 0));
        send.map(|s| (s.bad_lkey, s.fault) = (true, Some(WcStatus::LocProtErr))).is_some()
    }

    fn invalidate_rkey(&mut self, side: usize) -> bool {
        let send =
            self.pick(side, |s| matches!(s.key, Key::Region(_)) && (!s.data.is_empty() || flushes_bytes(s)));
        send.map(|s| (s.key, s.fault) = (Key::Wrong, Some(WcStatus::RemAccessErr))).is_some()
    }

    /// Adds a work request that violates a grant: it uses a stale key, exceeds the granted range, or needs an
    /// access right that was not granted.
    fn violate_grant(&mut self, side: usize) -> bool {
        let owner = 1 - side;
        let (id, grant) = (self.grants[owner].len(), self.rng.pick(&KINDS[1..]));
        self.grants[owner].push(grant);
        let kind = self.rng.below(4);
        let allowed = if kind == 3 { Access::LOCAL_READ } else { REMOTE_ALL };
        let range = self.grant_access(owner, id, 1, allowed);
        // The bytes after the range are allocated, but no work request uses them.
        self.arenas[owner].alloc(8, 1, self.rng);
        self.notify(owner);
        self.wait(side);
        let (offset, len) = match kind {
            0 => {
                self.use_all(&range);
                self.revoke(owner, id, &range);
                self.notify(owner);
                self.wait(side);
                (0, 1 + self.rng.below(8) as usize)
            }
            1 => (range.len, 1),
            2 => (0, range.len + 1),
            _ => (0, range.len),
        };
        self.use_part(&range, offset, len, kind != 2);
        let last = self.parts[side].sends.last_mut();
        last.map(|s| s.fault = Some(WcStatus::RemAccessErr)).is_some()
    }

    /// Adds a LOCAL_INV of a key that cannot be invalidated.
    fn invalid_local_invalidate(&mut self, side: usize) -> bool {
        let key = match self.rng.below(3) {
            0 => Key::Region(side),
            1 => self.last_grant(side).map_or(Key::Wrong, |id| Key::Grant { side, id, age: 77 }),
            _ => Key::Wrong,
        };
        self.fail(side, Send { key, ..Send::new(WrOp::LocalInv(RKey(0))) }, WcStatus::MwBindErr);
        true
    }

    fn last_grant(&self, side: usize) -> Option<usize> {
        self.grants[side].len().checked_sub(1)
    }

    /// Adds two binds of a type 2 window, or two registrations of a fast-registered region, without an
    /// invalidation in between: the second fails.
    fn bind_twice(&mut self, side: usize) -> bool {
        let kind = self.rng.pick(&KINDS[1..]);
        let id = self.grants[side].len();
        self.grants[side].push(kind);
        self.grant_access(side, id, 1, REMOTE_ALL);
        self.grant_access(side, id, 2, REMOTE_ALL);
        let last = self.parts[side].sends.last_mut();
        last.map(|s| s.fault = Some(WcStatus::MwBindErr)).is_some()
    }

    /// Adds a SEND with invalidate whose key cannot be invalidated: the message is acknowledged, but its
    /// receive fails.
    fn invalid_remote_invalidate(&mut self, side: usize) -> bool {
        let owner = 1 - side;
        let mut send = self.send(side);
        send.op = WrOp::SendWithInv(RKey(0));
        send.key = match self.rng.below(3) {
            0 => Key::Region(owner),
            1 => self.last_grant(owner).map_or(Key::Wrong, |id| Key::Grant { side: owner, id, age: 77 }),
            _ => Key::Wrong,
        };
        self.push(side, send);
        let message = self.parts[owner].incoming.last_mut();
        message.map(|m| m.fault = Some(WcStatus::RemInvReqErr)).is_some()
    }

    /// Makes one of a side's receives too short for its message, or gives it an invalid key.
    fn fail_receive(&mut self, side: usize, recv_status: WcStatus, send_status: WcStatus) -> bool {
        if self.longest[side] != u32::MAX {
            return false;
        }
        let incoming = &mut self.parts[side].incoming;
        let fits = |i: &usize| incoming[*i].opcode == WcOpcode::Recv && incoming[*i].byte_len > 0;
        let found: Vec<_> = (0..incoming.len()).filter(fits).collect();
        if found.is_empty() {
            return false;
        }
        let message = &mut incoming[self.rng.pick(&found)];
        message.fault = Some(recv_status);
        self.parts[1 - side].sends[message.send].fault = Some(send_status);
        true
    }
}

fn flushes_bytes(s: &Send) -> bool {
    matches!(s.op, WrOp::Flush { len, whole_region, .. } if len > 0 || whole_region)
}
