//! Building blocks of the exchanges: requests with retransmission, cached responses, events, time-wait.

use std::collections::BTreeMap;
use std::time::Duration;

use rand_pcg::rand_core::Rng;

use super::connection::{CachedResponse, Connection, PendingRequest, RetryPolicy, timeout_duration};
use super::{Cm, CmError, ConnId, Event, State};
use crate::transport::{AddressVector, Instant};
use crate::wire::Gid;
use crate::wire::mad::{CommId, Mad, Message, MessageKind};

/// Pads `bytes` with zeros to the length of a private data field.
///
/// # Errors
/// [`CmError::PrivateData`] if `bytes` is longer than the field.
pub fn padded<const N: usize>(bytes: &[u8]) -> Result<[u8; N], CmError> {
    let mut field = [0; N];
    let Some(front) = field.get_mut(..bytes.len()) else {
        return Err(CmError::PrivateData { len: bytes.len(), max: N });
    };
    front.copy_from_slice(bytes);
    Ok(field)
}

/// Pads additional information with zeros to the length of its field, and returns it with the number of valid
/// bytes.
pub(super) fn information(bytes: &[u8]) -> Result<([u8; 72], u8), CmError> {
    let info = padded(bytes).map_err(|_| CmError::Info(bytes.len()))?;
    Ok((info, bytes.len() as u8))
}

impl Cm {
    /// Draws a transaction ID for an exchange that we begin: a random number in the upper half, the
    /// connection's communication ID in the lower half.
    pub(super) fn new_transaction(&mut self, id: CommId) -> u64 {
        u64::from(self.random.next_u32()) << 32 | u64::from(id.0)
    }

    /// Queues a message for transmission. Only responses to received messages are limited in number: see
    /// [`send_response`](Self::send_response).
    pub(super) fn send(&mut self, to: AddressVector, mad: &Mad) {
        self.counters.sent[mad.message.kind() as usize] += 1;
        self.outbox.push_back((to, mad.bytes()));
    }

    /// Sends a response to a received message. Drops it, as if it were lost, when the outbox already holds
    /// `max_queued_responses` MADs: a flood must not make the outbox grow.
    pub(super) fn send_response(&mut self, to: AddressVector, mad: &Mad) {
        if self.outbox.len() >= self.config.max_queued_responses {
            self.counters.responses_dropped += 1;
        } else {
            self.send(to, mad);
        }
    }

    /// Sends a response without keeping a copy for replay.
    pub(super) fn send_uncached_response(
        &mut self,
        to: AddressVector,
        transaction: u64,
        message: impl Into<Message>,
    ) {
        self.send_response(to, &Mad { transaction, modifier: 0, message: message.into() });
    }

    /// Sends a message that expects a response, and retransmits it until the response arrives or the retries
    /// are exhausted.
    pub(super) fn send_request(&mut self, now: Instant, id: CommId, mad: &Mad) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let RetryPolicy { response_timeout, retries } = conn.retry_policy;
        conn.pending_request = Some(PendingRequest { mad: Box::new(*mad), retries_left: retries });
        let to = conn.to;
        self.arm(id, Some(now + response_timeout));
        self.send(to, mad);
    }

    /// Sends a response, and keeps a copy to replay if the peer retransmits its message of kind `to`.
    pub(super) fn send_cached_response(
        &mut self,
        id: CommId,
        to: MessageKind,
        transaction: u64,
        message: impl Into<Message>,
    ) {
        self.send_cached_mad(id, to, &Mad { transaction, modifier: 0, message: message.into() });
    }

    /// Sends a response like [`send_cached_response`](Self::send_cached_response), with a modifier.
    pub(super) fn send_cached_mad(&mut self, id: CommId, to: MessageKind, mad: &Mad) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.cached_response = Some(CachedResponse { to, mad: Box::new(*mad) });
        let peer = conn.to;
        self.send(peer, mad);
    }

    /// Stops the retransmission of the pending message and clears the deadline.
    pub(super) fn stop_retransmission(&mut self, id: CommId) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.pending_request = None;
        }
        self.arm(id, None);
    }

    /// Sets or clears the connection's deadline.
    pub(super) fn arm(&mut self, id: CommId, deadline: Option<Instant>) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let timers = if conn.state == State::TimeWait { &mut self.time_waits } else { &mut self.timers };
        if let Some(old) = std::mem::replace(&mut conn.deadline, deadline) {
            timers.remove(&(old, id));
        }
        if let Some(new) = deadline {
            timers.insert((new, id));
        }
    }

    /// Queues an event, unless the program has released the connection.
    pub(super) fn push_event(&mut self, id: CommId, event: Event) {
        if self.connections.get(&id).is_none_or(|c| !c.released) {
            self.events.push_back((ConnId(id), event));
        }
    }

    /// Queues the last event of a connection, and removes the connection.
    pub(super) fn close_connection(&mut self, id: CommId, event: Event) {
        self.push_event(id, event);
        self.remove_connection(id);
    }

    /// Removes a connection from all tables.
    pub(super) fn remove_connection(&mut self, id: CommId) {
        self.stop_retransmission(id);
        self.unlink_qp(id);
        let Some(conn) = self.connections.remove(&id) else { return };
        trace_event!(DEBUG, "urxe::cm", "connection closed", id = ?id, state = %conn.state);
        remove_entry(&mut self.by_remote, &(conn.peer(), conn.remote), id);
        remove_entry(&mut self.by_sidr_request, &(conn.to.dgid, conn.remote), id);
        self.peer_to_peer.remove(&(conn.service, conn.to.dgid, id));
    }

    /// Unregisters the peer's queue pair, so that another connection may use it.
    pub(super) fn unlink_qp(&mut self, id: CommId) {
        if let Some(conn) = self.connections.get(&id) {
            remove_entry(&mut self.by_qpn, &(conn.peer(), conn.qp_params.remote_qpn), id);
        }
    }

    /// Puts a connection in time-wait: its ID remains in use as long as its packets may be in flight, and for
    /// at least the duration `at_least`.
    pub(super) fn enter_time_wait(&mut self, now: Instant, id: CommId, at_least: Duration) {
        self.stop_retransmission(id);
        self.unlink_qp(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.enter(id, State::TimeWait);
        let max_wait = timeout_duration(self.config.max_timeout);
        // Packets of the connection may be in flight for this time after the last transmission.
        let in_flight = timeout_duration(conn.qp_params.ack_timeout);
        let wait = in_flight.min(max_wait).max(at_least).max(self.config.min_time_wait);
        let peer_to_peer = (conn.service, conn.to.dgid, id);
        self.peer_to_peer.remove(&peer_to_peer);
        self.arm(id, Some(now + wait));
        while self.time_waits.len() > self.config.max_time_wait {
            let Some((_, oldest)) = self.time_waits.first().copied() else { break };
            self.counters.time_waits_cut += 1;
            self.close_connection(oldest, Event::TimeWaitOver);
        }
    }

    /// Marks a connection as released: no further events are reported, and the queued ones are discarded.
    pub(super) fn mark_released(&mut self, id: CommId) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.released = true;
        }
        self.events.retain(|(of, _)| of.0 != id);
    }

    /// Allocates the ID of a new connection.
    pub(super) fn new_id(&mut self) -> CommId {
        self.pool.allocate(|id| self.connections.contains_key(&id))
    }

    /// Returns the GID at `index` in our GID table, or `None` if that entry is zero.
    pub(super) fn gid(&self, index: u8) -> Option<Gid> {
        self.config.gids.get(usize::from(index)).copied().filter(|g| !g.is_unset())
    }

    /// Returns the index of `gid` in our GID table; prefers the index `hint` if the table has duplicates.
    pub(super) fn gid_index(&self, gid: Gid, hint: u8) -> Option<u8> {
        if gid.is_unset() {
            return None;
        }
        if self.gid(hint) == Some(gid) {
            return Some(hint);
        }
        self.config.gids.iter().position(|g| *g == gid).and_then(|i| u8::try_from(i).ok())
    }

    /// Returns the connection if it is in one of `states`; otherwise, returns an error that names `action`.
    pub(super) fn conn(
        &mut self,
        id: ConnId,
        states: &[State],
        action: &'static str,
    ) -> Result<&mut Connection, CmError> {
        let state = self.live_conn(id)?.state;
        if !states.contains(&state) {
            return Err(CmError::State { connection: id, state, action });
        }
        self.connections.get_mut(&id.0).ok_or(CmError::Unknown(id))
    }

    /// Returns the connection unless the program has released it.
    pub(super) fn live_conn(&self, id: ConnId) -> Result<&Connection, CmError> {
        self.connections.get(&id.0).filter(|c| !c.released).ok_or(CmError::Unknown(id))
    }
}

/// Removes the entry `key` from an index of connections, unless a connection other than `id` has taken it
/// over.
fn remove_entry<K: Ord>(index: &mut BTreeMap<K, CommId>, key: &K, id: CommId) {
    if index.get(key) == Some(&id) {
        index.remove(key);
    }
}
