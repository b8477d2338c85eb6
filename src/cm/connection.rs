//! State of one connection or service ID resolution, and the timeouts derived from its path.

use std::time::Duration;

use super::{ListenerId, LocalQp, Path, State};
use crate::transport::{AddressVector, Instant, QpType};
use crate::wire::mad::{CommId, MAD_LEN, MessageKind, ServiceId};
use crate::wire::{AckTimeout, Gid, Psn, Qpn};

/// Identity of the other end: CA GUID and GID. A channel adapter with several addresses counts as several
/// peers, and adapters that wrongly share a GUID are distinguished by address.
pub(super) type Peer = (u64, Gid);

/// A connection or a service ID resolution, from its first message to the end of time-wait.
#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    /// Whether the program has released the connection; no events are reported any more.
    pub released: bool,
    /// The listener whose backlog holds this request.
    pub backlog_of: Option<ListenerId>,
    pub service: ServiceId,
    /// Address vector to the peer; messages from another GID are dropped.
    pub to: AddressVector,
    /// Communication ID of the peer; 0 while unknown.
    pub remote: CommId,
    pub remote_guid: u64,
    /// Transaction ID of the messages that establish the connection.
    pub transaction: u64,
    pub retry_policy: RetryPolicy,
    pub pending_request: Option<PendingRequest>,
    pub cached_response: Option<CachedResponse>,
    pub offer: Offer,
    pub probe: Option<Probe>,
    pub deadline: Option<Instant>,
    pub qp_params: QpParams,
}

impl Connection {
    /// Changes the state.
    pub fn enter(&mut self, id: CommId, state: State) {
        if self.state != state {
            trace_event!(DEBUG, "urxe::cm", "state change", id = ?id, from = %self.state, to = %state);
            self.state = state;
        }
    }
}

/// The two queue pairs and the parameters negotiated for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpParams {
    pub qp_type: QpType,
    /// Our queue pair; `None` at a server that has not accepted yet.
    pub qp: Option<LocalQp>,
    pub remote_qpn: Qpn,
    pub remote_psn: Psn,
    pub path: Path,
    pub alternate: Option<Path>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub ack_timeout: AckTimeout,
}

/// Response timeout and number of retransmissions of messages that expect a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    pub response_timeout: Duration,
    pub retries: u8,
}

/// A message that expects a response and is retransmitted.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub kind: MessageKind,
    pub mad: Box<[u8; MAD_LEN]>,
    pub retries_left: u8,
}

/// The last response, kept to be replayed if the request is retransmitted.
#[derive(Debug)]
pub(super) struct CachedResponse {
    /// Kind of the request.
    pub to: MessageKind,
    pub with: MessageKind,
    pub mad: Box<[u8; MAD_LEN]>,
}

/// The last probe that was sent to find out whether the peer still has an established connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub transaction: u64,
    pub at: Instant,
}

/// An alternate path that one end has offered and to which the other has not responded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offer {
    None,
    /// Offered by us. `delayed`: the peer has requested more time (MRA).
    Sent {
        transaction: u64,
        delayed: bool,
    },
    /// Offered by the peer and reported to the program.
    Received {
        transaction: u64,
    },
}

/// Converts a 5-bit timeout code: 4.096 µs * 2^code. Code 0 is the shortest time, not infinity as in a queue
/// pair.
pub(super) const fn timeout_duration(code: AckTimeout) -> Duration {
    Duration::from_nanos(4096 << code.code())
}

/// Returns the code of the local ACK timeout, from the packet lifetime of a path and the ACK delay of a peer:
/// the sum of the round trip and the delay, both powers of two, rounded to a power of two (IBA 12.7.34).
pub(super) fn ack_timeout(packet_life: AckTimeout, ack_delay: AckTimeout) -> AckTimeout {
    let (round_trip, delay) = (packet_life.code() + 1, ack_delay.code());
    let (larger, smaller) = (round_trip.max(delay), round_trip.min(delay));
    AckTimeout::new((larger + u8::from(smaller + 1 >= larger)).min(31))
}

impl QpParams {
    /// Creates the parameters of a connection for which only the path is known; the others have default
    /// values.
    pub fn of(path: Path) -> QpParams {
        QpParams {
            qp_type: QpType::Ud,
            qp: None,
            remote_qpn: Qpn::default(),
            remote_psn: Psn::default(),
            path,
            alternate: None,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            ack_timeout: ack_timeout(path.packet_life, AckTimeout::new(0)),
        }
    }
}

impl Connection {
    /// Creates a connection with the given fields, as the base of a struct update expression.
    pub fn new(state: State, to: AddressVector, qp_params: QpParams) -> Connection {
        Connection {
            state,
            released: false,
            backlog_of: None,
            service: ServiceId::default(),
            to,
            remote: CommId(0),
            remote_guid: 0,
            transaction: 0,
            retry_policy: RetryPolicy { response_timeout: Duration::ZERO, retries: 0 },
            pending_request: None,
            cached_response: None,
            offer: Offer::None,
            probe: None,
            deadline: None,
            qp_params,
        }
    }

    /// Returns the identity of the peer; meaningful once its CA GUID is known.
    pub fn peer(&self) -> Peer {
        (self.remote_guid, self.to.dgid)
    }

    /// Reports whether the connection is in time-wait: only its late packets may still be in flight.
    pub fn is_in_time_wait(&self) -> bool {
        self.state == State::TimeWait
    }

    /// Returns how long packets of the connection may remain in flight after the last transmission.
    pub fn time_wait(&self) -> Duration {
        timeout_duration(self.qp_params.ack_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeout_is_rounded_up_when_round_trip_and_delay_are_comparable() {
        let of = |life, delay| ack_timeout(AckTimeout::new(life), AckTimeout::new(delay)).code();
        // The kernel's value for a packet lifetime of one second and rxe's ACK delay.
        assert_eq!(of(18, 15), 19);
        assert_eq!(of(14, 15), 16);
        assert_eq!(of(10, 15), 15);
        assert_eq!(of(13, 15), 16);
        assert_eq!(of(31, 31), 31);
    }
}
