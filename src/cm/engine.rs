//! What every exchange is made of: sending, repeating, answering, reporting, time-wait.

use std::time::Duration;

use rand_pcg::rand_core::Rng;

use super::connection::{Answer, Connection, Repeat, time_of};
use super::{Cm, CmError, ConnId, Event, Outgoing, State};
use crate::transport::{AddressVector, Instant};
use crate::wire::Gid;
use crate::wire::mad::{CommId, MAD_LEN, Mad, Message, MessageKind};

/// `bytes` in a message's private data, zeros behind them.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> Result<[u8; N], CmError> {
    let mut whole = [0; N];
    let Some(front) = whole.get_mut(..bytes.len()) else {
        return Err(CmError::PrivateData { len: bytes.len(), max: N });
    };
    front.copy_from_slice(bytes);
    Ok(whole)
}

/// Additional information, and how much of it counts.
pub(super) fn information(bytes: &[u8]) -> Result<([u8; 72], u8), CmError> {
    let info = padded(bytes).map_err(|_| CmError::Info(bytes.len()))?;
    Ok((info, bytes.len() as u8))
}

impl Cm {
    /// A number for an exchange that we begin.
    pub(super) fn new_transaction(&mut self, id: CommId) -> u64 {
        u64::from(self.random.next_u32()) << 32 | u64::from(id.0)
    }

    /// Sends what a program or a deadline has called for.
    pub(super) fn send(&mut self, to: AddressVector, mad: [u8; MAD_LEN], kind: MessageKind) {
        self.counters.sent[kind as usize] += 1;
        self.outbox.push_back(Outgoing { to, mad });
    }

    /// Sends what the peer has called for, unless so much waits that it would only grow: then it is as if lost.
    pub(super) fn answer(&mut self, to: AddressVector, mad: [u8; MAD_LEN], kind: MessageKind) {
        if self.outbox.len() >= self.config.max_answers {
            self.counters.answers_dropped += 1;
        } else {
            self.send(to, mad, kind);
        }
    }

    /// An answer that nothing is kept of.
    pub(super) fn answer_once(&mut self, to: AddressVector, transaction: u64, message: impl Into<Message>) {
        let mad = Mad { transaction, modifier: 0, message: message.into() };
        self.answer(to, mad.bytes(), mad.message.kind());
    }

    /// Sends a message until it is answered.
    pub(super) fn ask(&mut self, now: Instant, id: CommId, mad: &Mad) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let bytes = mad.bytes();
        conn.repeat =
            Some(Repeat { kind: mad.message.kind(), mad: Box::new(bytes), left: conn.wait.retries });
        let (to, wait) = (conn.to, conn.wait.response);
        self.arm(id, Some(now + wait));
        self.send(to, bytes, mad.message.kind());
    }

    /// Sends an answer, and keeps it should the question `to` come again.
    pub(super) fn reply(&mut self, id: CommId, to: MessageKind, mad: &Mad) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let bytes = mad.bytes();
        conn.answer = Some(Answer { to, with: mad.message.kind(), mad: Box::new(bytes) });
        let peer = conn.to;
        self.send(peer, bytes, mad.message.kind());
    }

    /// The question is answered: it is not repeated.
    pub(super) fn settle(&mut self, id: CommId) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.repeat = None;
        }
        self.arm(id, None);
    }

    /// Sets the deadline of a connection, or none.
    pub(super) fn arm(&mut self, id: CommId, deadline: Option<Instant>) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let timers = if conn.is_over() { &mut self.time_waits } else { &mut self.timers };
        if let Some(old) = std::mem::replace(&mut conn.deadline, deadline) {
            timers.remove(&(old, id));
        }
        if let Some(new) = deadline {
            timers.insert((new, id));
        }
    }

    /// Reports something, if a program cares.
    pub(super) fn emit(&mut self, id: CommId, event: Event) {
        if self.connections.get(&id).is_none_or(|c| !c.released) {
            self.events.push_back((ConnId(id), event));
        }
    }

    /// The last thing that is reported.
    pub(super) fn end(&mut self, id: CommId, event: Event) {
        self.emit(id, event);
        self.forget(id);
    }

    /// Nothing is kept.
    pub(super) fn forget(&mut self, id: CommId) {
        self.settle(id);
        self.leave_backlog(id);
        self.unlink_qp(id);
        let Some(conn) = self.connections.remove(&id) else { return };
        self.by_remote.retain_not((conn.peer(), conn.remote), id);
        self.by_asker.retain_not((conn.to.dgid, conn.remote), id);
        self.crossing.remove(&(conn.service, conn.to.dgid, id));
    }

    /// Nobody's queue pair: another connection may have it.
    pub(super) fn unlink_qp(&mut self, id: CommId) {
        if let Some(conn) = self.connections.get(&id) {
            self.by_qpn.retain_not((conn.peer(), conn.ends.remote_qpn), id);
        }
    }

    /// A request that a program has answered, or taken, is in nobody's backlog.
    pub(super) fn leave_backlog(&mut self, id: CommId) {
        let Some(listener) = self.connections.get_mut(&id).and_then(|c| c.waits_at.take()) else { return };
        if let Some(listener) = self.listeners.get_mut(&listener) {
            listener.waiting -= 1;
        }
    }

    /// The connection ends; its ID stays for as long as packets of it may be on their way.
    pub(super) fn enter_time_wait(&mut self, now: Instant, id: CommId, at_least: Duration) {
        self.settle(id);
        self.leave_backlog(id);
        self.unlink_qp(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.state = State::TimeWait;
        let longest = time_of(self.config.max_timeout);
        let wait = conn.time_wait().min(longest).max(at_least).max(self.config.min_time_wait);
        let crossing = (conn.service, conn.to.dgid, id);
        self.crossing.remove(&crossing);
        self.arm(id, Some(now + wait));
        while self.time_waits.len() > self.config.max_time_wait {
            let Some((_, oldest)) = self.time_waits.first().copied() else { break };
            self.counters.time_waits_cut += 1;
            self.end(oldest, Event::TimeWaitOver);
        }
    }

    /// Nobody cares any more: no event comes, nor one that waits.
    pub(super) fn disown(&mut self, id: CommId) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.released = true;
        }
        self.events.retain(|(of, _)| of.0 != id);
    }

    /// Which connections are not in time-wait.
    pub(super) fn live(&self) -> usize {
        self.connections.len() - self.time_waits.len()
    }

    /// An ID for a new connection.
    pub(super) fn new_id(&mut self) -> CommId {
        self.pool.pick(|id| self.connections.contains_key(&id))
    }

    /// One of our GIDs.
    pub(super) fn gid(&self, index: u8) -> Option<Gid> {
        self.config.gids.get(usize::from(index)).copied().filter(|g| !g.is_unset())
    }

    /// The index of one of our GIDs; of two that are alike, `hint` if it is one.
    pub(super) fn gid_index(&self, gid: Gid, hint: u8) -> Option<u8> {
        if gid.is_unset() {
            return None;
        }
        if self.gid(hint) == Some(gid) {
            return Some(hint);
        }
        self.config.gids.iter().position(|g| *g == gid).and_then(|i| u8::try_from(i).ok())
    }

    /// The connection of an ID, for what a program may do in some states.
    pub(super) fn conn(
        &mut self,
        id: ConnId,
        states: &[State],
        action: &'static str,
    ) -> Result<&mut Connection, CmError> {
        let conn = self.connections.get_mut(&id.0).filter(|c| !c.released).ok_or(CmError::Unknown(id))?;
        if !states.contains(&conn.state) {
            return Err(CmError::State { connection: id, state: conn.state, action });
        }
        Ok(conn)
    }
}

/// Maps whose keys may have gone over to another connection.
pub(super) trait RetainNot<K> {
    /// Removes a key, if it still stands for `id`.
    fn retain_not(&mut self, key: K, id: CommId);
}

impl<K: Ord> RetainNot<K> for std::collections::BTreeMap<K, CommId> {
    fn retain_not(&mut self, key: K, id: CommId) {
        if self.get(&key) == Some(&id) {
            self.remove(&key);
        }
    }
}
