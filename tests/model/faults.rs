//! Faults on a connection: one work request or receive fails, after which everything is flushed.

use urxe::memory::Access;
use urxe::transport::{WcOpcode, WcStatus, WrOp};
use urxe::wire::RKey;

use crate::conversation::Conversation;
use crate::grants::{KINDS, PEER};
use crate::program::{Key, Send, flags};

impl Conversation<'_> {
    /// Inserts a fault. If the randomly chosen kind does not apply to any work request, an invalid key is
    /// invalidated.
    pub fn fault(&mut self) {
        let side = self.rng.below(2) as usize;
        let done = match self.rng.below(9) {
            0 => self.spoil_elements(side),
            1 => self.spoil_key(side),
            2 | 3 => self.use_wrongly(side),
            4 => self.manage_wrongly(side),
            5 => self.bind_what_is_bound(side),
            6 => self.invalidate_wrongly(side),
            7 => self.spoil_receive(side, WcStatus::LocLenErr, WcStatus::RemInvReqErr),
            _ => self.spoil_receive(side, WcStatus::LocProtErr, WcStatus::RemOpErr),
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

    /// Picks a random work request of a side for which `fits` holds.
    fn pick(&mut self, side: usize, fits: impl Fn(&Send) -> bool) -> Option<&mut Send> {
        let sends = &mut self.parts[side].sends;
        let found: Vec<_> = (0..sends.len()).filter(|i| fits(&sends[*i])).collect();
        (!found.is_empty()).then(|| &mut sends[self.rng.pick(&found)])
    }

    fn spoil_elements(&mut self, side: usize) -> bool {
        let send = self.pick(side, |s| !s.inline && s.pieces.iter().any(|p| p.at.is_some() && p.len > 0));
        send.map(|s| (s.bad_lkey, s.fault) = (true, Some(WcStatus::LocProtErr))).is_some()
    }

    fn spoil_key(&mut self, side: usize) -> bool {
        let send =
            self.pick(side, |s| matches!(s.key, Key::Region(_)) && (!s.data.is_empty() || flushes_bytes(s)));
        send.map(|s| (s.key, s.fault) = (Key::Wrong, Some(WcStatus::RemAccessErr))).is_some()
    }

    /// Uses a key that is stale, or beyond its range, or without the right for the operation.
    fn use_wrongly(&mut self, side: usize) -> bool {
        let owner = 1 - side;
        let (id, kind) = (self.grants[owner].len(), self.rng.pick(&KINDS[1..]));
        self.grants[owner].push(kind);
        let way = self.rng.below(4);
        let allowed = if way == 3 { Access(0) } else { PEER };
        let lease = self.open(owner, id, 1, allowed);
        // The bytes behind the range are allocated but belong to no work request.
        self.arenas[owner].take(8, 1, self.rng);
        self.tell(owner);
        self.wait(side);
        let (offset, len) = match way {
            0 => {
                self.use_all(&lease);
                self.shut(owner, id, &lease);
                self.tell(owner);
                self.wait(side);
                (0, 1 + self.rng.below(8) as usize)
            }
            1 => (lease.len, 1),
            2 => (0, lease.len + 1),
            _ => (0, lease.len),
        };
        self.use_part(&lease, offset, len, way != 2);
        let last = self.parts[side].sends.last_mut();
        last.map(|s| s.fault = Some(WcStatus::RemAccessErr)).is_some()
    }

    /// Invalidates a key that must not be invalidated.
    fn manage_wrongly(&mut self, side: usize) -> bool {
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

    /// Binds a bound window of type 2, or registers a valid fast region, a second time.
    fn bind_what_is_bound(&mut self, side: usize) -> bool {
        let kind = self.rng.pick(&KINDS[1..]);
        let id = self.grants[side].len();
        self.grants[side].push(kind);
        self.open(side, id, 1, PEER);
        self.open(side, id, 2, PEER);
        let last = self.parts[side].sends.last_mut();
        last.map(|s| s.fault = Some(WcStatus::MwBindErr)).is_some()
    }

    /// Sends a message with an invalid invalidation: it is received and acknowledged, but the receive fails.
    fn invalidate_wrongly(&mut self, side: usize) -> bool {
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

    /// Makes a receive of a side too short for its message, or gives it an invalid key.
    fn spoil_receive(&mut self, side: usize, here: WcStatus, there: WcStatus) -> bool {
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
        message.fault = Some(here);
        self.parts[1 - side].sends[message.send].fault = Some(there);
        true
    }
}

fn flushes_bytes(s: &Send) -> bool {
    matches!(s.op, WrOp::Flush { len, whole_region, .. } if len > 0 || whole_region)
}
