//! Reports of connection requests that the peer does not answer or rejects.

use std::fmt;
use std::net::SocketAddr;

use crate::wire::ROCE_PORT;
use crate::wire::mad::RejReason;

/// Report of a connection request of the connection manager, of one line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Problem.
    pub problem: ConnectionProblem,
    /// Error that the peer's host or a router reports by ICMP for a datagram to the RoCE port, if the request
    /// is unanswered.
    pub icmp_error: Option<String>,
}

/// Problem of a connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectionProblem {
    /// Two requests (REQ or SIDR_REQ) were not answered.
    Unanswered {
        /// Number of requests that are still to be sent, unless one is answered.
        left: u8,
    },
    /// The peer has rejected the connection.
    Rejected(RejReason),
}

impl ConnectionReport {
    pub(in crate::verbs) fn new(peer: SocketAddr, problem: ConnectionProblem) -> ConnectionReport {
        ConnectionReport { peer, problem, icmp_error: None }
    }
}

impl fmt::Display for ConnectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection with {}: ", self.peer)?;
        match (self.problem, &self.icmp_error) {
            (ConnectionProblem::Unanswered { left }, icmp_error) => {
                write!(f, "two requests (REQ) were not answered, {left} more may follow: ")?;
                match icmp_error {
                    Some(error) => f.write_str(error),
                    None => write!(
                        f,
                        "the host is down or runs no RDMA program, or UDP port {ROCE_PORT} is filtered"
                    ),
                }
            }
            (ConnectionProblem::Rejected(reason), _) => {
                write!(f, "rejected by the peer: {reason} (REJ {})", reason.code())?;
                explanation(reason).map_or(Ok(()), |text| write!(f, ": {text}"))
            }
        }
    }
}

/// Returns the meaning of a reason, for the frequent ones.
fn explanation(reason: RejReason) -> Option<&'static str> {
    Some(match reason {
        RejReason::InvalidServiceId => "no program listens on this port, or in another port space",
        RejReason::Consumer => "the peer's program refused the connection",
        RejReason::StaleConnection => {
            "the peer still has a connection with this QP number: repeat the attempt"
        }
        RejReason::Timeout => "the peer received no response in time",
        RejReason::NoQp | RejReason::NoResources => "a limit of the peer is reached",
        RejReason::UnsupportedRequest | RejReason::InvalidTransport => {
            "the peer does not offer this transport service on this port"
        }
        RejReason::InvalidMtu => "the peer's port has a smaller path MTU",
        _ => return None,
    })
}
