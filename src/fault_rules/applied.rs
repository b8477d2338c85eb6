//! Applications of rules that may explain the failure of a queue pair.

use std::net::IpAddr;

use super::rule::Rule;
use crate::transport::{Failure, FailureCause, Instant};
use crate::wire::{Opcode, Psn, Qpn};

/// Packets that may explain the failure of a queue pair: requests from the oldest one that was not
/// acknowledged, or from the refused one, and their responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedPackets {
    /// The queue pair.
    pub qpn: Qpn,
    /// Address and queue pair number of the peer.
    pub peer: (IpAddr, Qpn),
    /// Whether the queue pair sent the requests; otherwise the peer did.
    pub is_requester: bool,
    /// PSN of the oldest request.
    pub first: Psn,
    /// Time of the failure.
    pub until: Instant,
}

impl FailedPackets {
    /// Returns the packets that may explain a failure; `None` if packets did not cause it.
    pub fn of(failure: &Failure) -> Option<FailedPackets> {
        let (is_requester, first) = match (failure.cause, failure.request) {
            (FailureCause::Refused(refusal), _) => (false, refusal.psn),
            (
                FailureCause::NoResponse
                | FailureCause::SequenceNaks
                | FailureCause::MissingResponses
                | FailureCause::ReceiverNotReady
                | FailureCause::Nak(_)
                | FailureCause::BadResponse,
                Some(request),
            ) => (true, request.psns?.0 + request.acknowledged),
            _ => return None,
        };
        let (qpn, until) = (failure.qpn, Instant(failure.at));
        Some(FailedPackets { qpn, peer: failure.peer?, is_requester, first, until })
    }
}

/// Application of a rule to packets of a failed queue pair.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AppliedRule {
    /// The rule.
    pub rule: Rule,
    /// Number of the queue pair's packets to which the rule had been applied, including the last one.
    pub packets: u64,
    /// PSN of the last packet.
    pub psn: Psn,
    /// Opcode of the last packet.
    pub opcode: Opcode,
    /// Time of the last packet.
    pub at: Instant,
}
