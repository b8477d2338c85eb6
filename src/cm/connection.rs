//! State of one connection or service ID resolution, and the timeouts derived from its path.

use std::time::Duration;

use super::{LocalQp, Path, State};
use crate::transport::{AddressVector, Instant, QpType};
use crate::wire::mad::{CommId, Mad, MessageKind, ServiceId};
use crate::wire::{AckTimeout, Gid, Psn, Qpn};

/// Identity of the other end: CA GUID and GID. A channel adapter with several GIDs counts as several peers,
/// and adapters that wrongly share a GUID are distinguished by GID.
pub(super) type Peer = (u64, Gid);

/// A connection or a service ID resolution, from its first message to the end of time-wait.
#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    /// Whether the program has released the connection, so that no more events are reported.
    pub released: bool,
    pub service: ServiceId,
    /// Address vector to the peer; messages from other GIDs are dropped.
    pub to: AddressVector,
    /// The peer's communication ID; 0 while unknown.
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
    /// Our queue pair; `None` on a server that has not yet accepted the request.
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

/// Response timeout and maximum number of retransmissions of messages that expect a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    pub response_timeout: Duration,
    pub retries: u8,
}

impl RetryPolicy {
    /// Creates a policy. A response is awaited for `response_timeout` and a round trip of twice
    /// `packet_life`.
    pub fn new(response_timeout: AckTimeout, packet_life: AckTimeout, retries: u8) -> RetryPolicy {
        let response_timeout = timeout_duration(response_timeout) + 2 * timeout_duration(packet_life);
        RetryPolicy { response_timeout, retries }
    }
}

/// A message awaiting its response, retransmitted after each timeout.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub mad: Box<Mad>,
    pub retries_left: u8,
}

/// The last response sent, replayed if the peer retransmits its request.
#[derive(Debug)]
pub(super) struct CachedResponse {
    /// Kind of the request.
    pub to: MessageKind,
    pub mad: Box<Mad>,
}

/// The last probe sent to find out whether the peer still considers the connection established.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub transaction: u64,
    pub at: Instant,
}

/// An alternate path offered by one end, to which the other has not yet responded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offer {
    None,
    /// Offered by us. `delayed` is set once the peer has requested more time (MRA).
    Sent {
        transaction: u64,
        delayed: bool,
    },
    /// Offered by the peer and reported to the program.
    Received {
        transaction: u64,
    },
}

/// Converts a 5-bit timeout code to a duration: 4.096 µs * 2^code. Code 0 means the shortest time, not
/// infinity as for a queue pair.
pub(super) const fn timeout_duration(code: AckTimeout) -> Duration {
    Duration::from_nanos(4096 << code.code())
}

/// Computes the local ACK timeout from the path's packet lifetime and the peer's ACK delay: the sum of
/// round-trip time and delay, both powers of two, rounded to a power of two (IBA 12.7.34).
pub(super) fn ack_timeout(packet_life: AckTimeout, ack_delay: AckTimeout) -> AckTimeout {
    let (round_trip, delay) = (packet_life.code() + 1, ack_delay.code());
    let (larger, smaller) = (round_trip.max(delay), round_trip.min(delay));
    AckTimeout::new((larger + u8::from(smaller + 1 >= larger)).min(31))
}

impl QpParams {
    /// Creates parameters with the given path, and default values for everything else.
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
    /// Creates a connection with the given fields, and default values for the others, for use with struct
    /// update syntax.
    pub fn new(state: State, to: AddressVector, qp_params: QpParams) -> Connection {
        Connection {
            state,
            released: false,
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

    /// Returns the peer's identity, which is meaningful only once its CA GUID is known.
    pub fn peer(&self) -> Peer {
        (self.remote_guid, self.to.dgid)
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
