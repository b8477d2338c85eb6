use std::time::Duration;

use super::{ListenerId, LocalQp, Path, State};
use crate::transport::{AddressVector, Instant, QpType};
use crate::wire::mad::{CommId, MAD_LEN, MessageKind, ServiceId};
use crate::wire::{AckTimeout, Gid, Psn, Qpn};

/// Identity of the other end: its channel adapter, at one of its addresses. Adapters with several are told apart as if they were as
/// many, and so are those that wrongly have one number.
pub(super) type Peer = (u64, Gid);

/// A connection, or a service ID resolution, from the first message to the end of time-wait.
#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    /// No program cares for it any more: nothing of it is reported.
    pub released: bool,
    /// The listener whose backlog it is in.
    pub waits_at: Option<ListenerId>,
    pub service: ServiceId,
    /// Where its messages go, and come from.
    pub to: AddressVector,
    /// The peer's ID; 0 while it is not known.
    pub remote: CommId,
    pub remote_guid: u64,
    /// Of the messages that make the connection.
    pub transaction: u64,
    pub wait: Patience,
    pub repeat: Option<Repeat>,
    pub answer: Option<Answer>,
    pub offer: Offer,
    pub probe: Option<Probe>,
    pub deadline: Option<Instant>,
    pub ends: Ends,
}

/// The two queue pairs, and what they have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub qp_type: QpType,
    /// Ours; none yet at a server that has not answered.
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

/// How long an answer may take, and how often is asked for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub response: Duration,
    pub retries: u8,
}

/// A message that wants an answer.
#[derive(Debug)]
pub(super) struct Repeat {
    pub kind: MessageKind,
    pub mad: Box<[u8; MAD_LEN]>,
    pub left: u8,
}

/// What was answered last, should the question come again.
#[derive(Debug)]
pub(super) struct Answer {
    /// To which message.
    pub to: MessageKind,
    pub with: MessageKind,
    pub mad: Box<[u8; MAD_LEN]>,
}

/// The last question whether the peer still has an established connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub transaction: u64,
    pub at: Instant,
}

/// An alternate path that one end has offered and the other has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offer {
    None,
    /// By us. `delayed`: the peer has asked for patience.
    Sent {
        transaction: u64,
        delayed: bool,
    },
    /// By the peer, and the program has it.
    Received {
        transaction: u64,
    },
}

/// The time of a 5-bit code: 4.096 µs · 2^code. 0 is the shortest, and not for ever as in a queue pair.
pub(super) const fn time_of(code: AckTimeout) -> Duration {
    Duration::from_nanos(4096 << code.code())
}

/// The local ACK timeout for a path there and back and a peer's delay, as a code: the sum of two powers of two, rounded to one
/// (IBA 12.7.34).
pub(super) fn ack_timeout(packet_life: AckTimeout, ack_delay: AckTimeout) -> AckTimeout {
    let (there_and_back, delay) = (packet_life.code() + 1, ack_delay.code());
    let (larger, smaller) = (there_and_back.max(delay), there_and_back.min(delay));
    AckTimeout::new((larger + u8::from(smaller + 1 >= larger)).min(31))
}

impl Ends {
    /// Ends of which only the path is known.
    pub fn of(path: Path) -> Ends {
        Ends {
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
    /// One of which the rest is to be filled in.
    pub fn new(state: State, to: AddressVector, ends: Ends) -> Connection {
        Connection {
            state,
            released: false,
            waits_at: None,
            service: ServiceId::default(),
            to,
            remote: CommId(0),
            remote_guid: 0,
            transaction: 0,
            wait: Patience { response: Duration::ZERO, retries: 0 },
            repeat: None,
            answer: None,
            offer: Offer::None,
            probe: None,
            deadline: None,
            ends,
        }
    }

    /// The other end, once its adapter is known.
    pub fn peer(&self) -> Peer {
        (self.remote_guid, self.to.dgid)
    }

    /// In time-wait: nothing is left of it but packets that may be on their way.
    pub fn is_over(&self) -> bool {
        self.state == State::TimeWait
    }

    /// How long packets may live once nobody sends any more.
    pub fn time_wait(&self) -> Duration {
        time_of(self.ends.ack_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_timeout_is_the_next_power_of_two_where_both_count() {
        let of = |life, delay| ack_timeout(AckTimeout::new(life), AckTimeout::new(delay)).code();
        // As the kernel's, of a path life of a second and rxe's delay.
        assert_eq!(of(18, 15), 19);
        assert_eq!(of(14, 15), 16);
        assert_eq!(of(10, 15), 15);
        assert_eq!(of(13, 15), 16);
        assert_eq!(of(31, 31), 31);
    }
}
