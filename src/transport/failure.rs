//! Failure of a queue pair: the cause, the work request, and each transmission of it.

use std::net::IpAddr;
use std::time::Duration;

use super::slow_event::{EventKind, SlowEvent};
use super::{Instant, QpState, QpType, WcOpcode, WcStatus};
use crate::memory::{Access, AccessError, ManagementError, NearestKey};
use crate::wire::{Counted, NakCode, Opcode, Position, Psn, Qpn, RKey};

/// Record of the failure of a queue pair, kept until the queue pair is reset or destroyed. All times are
/// relative to the failure: durations before it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Time of the failure on the clock of [`Context::clock`](crate::verbs::Context::clock), in nanoseconds.
    pub at: u64,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Transport service of the queue pair.
    pub qp_type: QpType,
    /// Address and queue pair number of the peer; `None` if the queue pair is not connected.
    pub peer: Option<(IpAddr, Qpn)>,
    /// Cause.
    pub cause: FailureCause,
    /// Send work request that failed; `None` if the queue pair failed for another reason.
    pub request: Option<FailedRequest>,
    /// Transmissions of the oldest unacknowledged packet, oldest first. The 24 newest events of a queue pair
    /// are remembered, so the first transmissions may be missing.
    pub transmissions: Vec<Transmission>,
    /// Last acknowledgement of a new packet; `None` if there was none since RTS.
    pub last_ack: Option<LastAck>,
    /// Time since which the peer has sent no acknowledgement and no NAK, if that caused the failure.
    pub silence: Option<Duration>,
    /// Sizes of the lost packet and of those that arrived, if losses caused the failure.
    pub path: Option<PathSizes>,
    /// Retries at the time of the failure.
    pub retries: RetryLimits,
    /// Newest slow events of the queue pair, oldest first.
    pub events: Vec<PastEvent>,
}

/// Cause of a [`Failure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FailureCause {
    /// The peer did not respond before the retries were used up.
    #[error("the peer did not respond before the retries were used up")]
    NoResponse,
    /// The peer reported lost packets (sequence error NAK) until the retries were used up.
    #[error("the peer reported lost packets until the retries were used up")]
    SequenceNaks,
    /// Responses of the peer were lost until the retries were used up.
    #[error("responses of the peer were lost until the retries were used up")]
    MissingResponses,
    /// The peer had no receive posted until the RNR retries were used up.
    #[error("the peer had no receive posted until the RNR retries were used up")]
    ReceiverNotReady,
    /// The peer refused the request with this NAK code.
    #[error("the peer refused the request: NAK {0}")]
    Nak(NakCode),
    /// A local check of the work request failed.
    #[error(transparent)]
    Local(LocalCheck),
    /// The peer sent a READ response of the wrong length.
    #[error("the peer sent a READ response of the wrong length")]
    BadResponse,
    /// The service does not support the work request, or its address handle belongs to another protection
    /// domain.
    #[error(
        "the service does not support the operation, or its address handle is from another protection domain"
    )]
    Unsupported,
    /// This queue pair refused a request of its peer.
    #[error("{0}")]
    Refused(Refusal),
    /// The application or the connection manager moved the queue pair to ERR.
    #[error("the application or the connection manager moved the QP to ERR")]
    Modified,
    /// A completion queue of the queue pair was full, and a completion was lost.
    #[error("a completion queue of the QP was full, and a completion was lost")]
    CqOverflow,
    /// A fault rule, or [`Fabric::inject_event`](crate::verbs::Fabric::inject_event), moved the queue pair to
    /// ERR.
    #[error("an error was injected, by a fault rule or Fabric::inject_event")]
    Injected,
    /// The device failed, or was removed.
    #[error("the device failed, or was removed")]
    DeviceFatal,
    /// Another cause.
    #[error("{0}")]
    Other(&'static str),
}

impl FailureCause {
    /// Reports whether packets were lost, of requests or responses, until the retries were used up.
    pub fn is_loss(&self) -> bool {
        matches!(self, FailureCause::NoResponse | FailureCause::SequenceNaks | FailureCause::MissingResponses)
    }
}

/// Local check that a work request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalCheck {
    /// A key, range or permission.
    #[error("scatter/gather element {sge}: {error}")]
    Access {
        /// Index of the scatter/gather element.
        sge: usize,
        /// Failed check, with its key and range.
        error: AccessError,
    },
    /// The memory was accessible by its key, but not mapped when it was read or written.
    #[error("memory of the work request is not mapped")]
    Faulted,
    /// A bind, a fast registration or an invalidation.
    #[error(transparent)]
    Management(ManagementError),
    /// A datagram longer than the path MTU.
    #[error("a datagram of {len} bytes exceeds the path MTU of {mtu} bytes")]
    TooLong {
        /// Length of the message in bytes.
        len: u32,
        /// Path MTU in bytes.
        mtu: u32,
    },
}

/// Refusal of a request of the peer by this queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// PSN of the request.
    pub psn: Psn,
    /// NAK code that the peer received; `None` for a message that was executed but failed afterwards, and
    /// for an unreliable service.
    pub code: Option<NakCode>,
    /// Status of the receive in use, if any.
    pub receive_status: WcStatus,
    /// Memory check that failed, if the failure was one of memory.
    pub access: Option<AccessError>,
    /// Key that the peer may have meant, if the failure was one of memory.
    pub nearest: Option<NearestKey>,
    /// Other check that failed.
    pub invalid: Option<InvalidRequest>,
    /// Operation of the request.
    pub opcode: Opcode,
    /// Range and key that the request names: address, length in bytes, and key.
    pub range: Option<(u64, u32, RKey)>,
}

/// Check of a request that failed, other than one of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The packet does not continue the message in progress, or continues none.
    #[error("the packet does not fit the sequence of First, Middle, Last and Only packets")]
    Sequence,
    /// Responders execute no such request.
    #[error("the operation is not supported")]
    Unsupported,
    /// The access flags of the queue pair do not permit the operation.
    #[error("the access flags of the QP are {allowed}: {} is missing", needed.difference(*allowed))]
    Flags {
        /// Operations that the queue pair permits.
        allowed: Access,
        /// Permissions that the operation needs.
        needed: Access,
    },
    /// The shared receive queue of an XRC packet.
    #[error("the SRQ that the packet names is not one of the QP's XRC domain, or not that of the message")]
    Srq,
    /// Too many outstanding READs and atomics.
    #[error("more READs and atomics are outstanding than max_dest_rd_atomic, {max}, permits")]
    Depth {
        /// Limit.
        max: u8,
    },
    /// The length of the payload does not fit the path MTU and the position of the packet in its message.
    #[error("{} of payload do not fit a {position:?} packet at a path MTU of {mtu} bytes: compare the path MTUs of both QPs", Counted(*len, "byte"))]
    Payload {
        /// Length of the payload in bytes.
        len: usize,
        /// Position of the packet in its message.
        position: Position,
        /// Path MTU of this queue pair in bytes.
        mtu: usize,
    },
    /// The address of an atomic.
    #[error("the address {va:#x} of an atomic is not a multiple of 8")]
    Unaligned {
        /// The address.
        va: u64,
    },
    /// The length of the message differs from the one announced, or exceeds the limit.
    #[error("the length of the message is not the one that it announced, or exceeds 2^31 bytes")]
    Length,
    /// The message is longer than the receive.
    #[error("the message is longer than the receive: {} or more, {} of buffers", Counted(*len, "byte"), Counted(*room, "byte"))]
    ReceiveTooShort {
        /// Length of the message up to this packet, in bytes.
        len: u64,
        /// Length of the receive's buffers in bytes.
        room: u64,
    },
    /// A key that the message names for invalidation.
    #[error("key {key} cannot be invalidated")]
    Invalidation {
        /// The key.
        key: RKey,
    },
}

/// Send work request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedRequest {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Operation.
    pub opcode: WcOpcode,
    /// Status of the completion.
    pub status: WcStatus,
    /// Length of the message in bytes.
    pub len: u32,
    /// First and last PSN; `None` for a local operation.
    pub psns: Option<(Psn, Psn)>,
    /// Number of packets that the peer has acknowledged.
    pub acknowledged: u32,
    /// Number of packets of the message; for a READ, of its responses.
    pub packets: u32,
    /// Remote address and key, if the operation has them.
    pub remote: Option<(u64, RKey)>,
}

/// Transmission of the packets from the oldest unacknowledged one on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Transmission {
    /// Time at which the oldest packet was sent, or at which the peer last acknowledged a packet before it;
    /// `None` if it is not known.
    pub sent: Option<Duration>,
    /// Number of single packets that were sent again because an acknowledgement was overdue.
    pub probes: u32,
    /// Number of equal transmissions in succession, this one included.
    pub times: u32,
    /// Event that ended the transmission, and its time.
    pub end: Option<(Duration, TransmissionEnd)>,
}

/// Event that ended a [`Transmission`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TransmissionEnd {
    /// Local ACK timeout, with the length of the timeout.
    AckTimeout(Duration),
    /// Sequence error NAK.
    SequenceNak,
    /// A later response revealed that one was lost.
    MissingResponse,
    /// RNR NAK, with the time to wait that the peer requested.
    RnrNak(Duration),
    /// NAK with another code.
    Nak(NakCode),
}

/// Last acknowledgement of a new packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LastAck {
    /// Last acknowledged PSN.
    pub psn: Psn,
    /// Time of the acknowledgement.
    pub ago: Duration,
}

/// Sizes of packets on the path of a queue pair, in bytes of payload: of requests, or of the responses to a READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathSizes {
    /// Path MTU.
    pub mtu: u32,
    /// Payload of the oldest unacknowledged packet.
    pub lost: u32,
    /// Largest payload of a packet that was acknowledged; `None` if none was since RTS.
    pub acknowledged: Option<u32>,
}

impl PathSizes {
    /// Reports whether the path may lose packets because of their size: smaller ones were acknowledged, but none
    /// of this size.
    pub fn is_black_hole(&self) -> bool {
        self.acknowledged.is_some_and(|largest| largest < self.lost)
    }
}

/// Retries of a queue pair, with their limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RetryLimits {
    /// Local ACK timeout in use; `None` if it is infinite.
    pub ack_timeout: Option<Duration>,
    /// Limit of transport retries, 0..=7.
    pub retry_cnt: u8,
    /// Transport retries used since the last acknowledgement.
    pub retries_used: u8,
    /// Limit of RNR retries, 0..=7; 7 stands for no limit.
    pub rnr_retry: u8,
    /// RNR retries used since the last acknowledgement; 0 if they are unlimited.
    pub rnr_retries_used: u8,
}

/// Slow event before a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PastEvent {
    /// Time of the event, for repeated events of the last one.
    pub ago: Duration,
    /// Oldest unacknowledged PSN or, for a NAK that was sent, PSN of the refused request.
    pub psn: Psn,
    /// Number of times that the event has occurred in succession.
    pub times: u32,
    /// Time at which the packet with this PSN had last been sent, or a packet before it acknowledged; `None`
    /// if it is not known.
    pub sent: Option<Duration>,
    /// Kind of event.
    pub kind: EventKind,
}

impl PastEvent {
    /// Converts an event that precedes a failure at `failed`.
    pub(super) fn new(event: &SlowEvent, failed: Instant) -> PastEvent {
        let SlowEvent { at, psn, times, sent, kind } = *event;
        PastEvent { ago: failed.since(at), psn, times, sent: sent.map(|sent| failed.since(sent)), kind }
    }
}

/// Returns the transmissions of the packet `psn`, the oldest unacknowledged one, from the events before a
/// failure.
pub(super) fn transmissions(events: &[PastEvent], psn: Psn) -> Vec<Transmission> {
    let since =
        events.iter().rposition(|e| matches!(e.kind, EventKind::StateChange { to: QpState::Rts, .. }));
    let events = &events[since.map_or(0, |index| index + 1)..];
    let (mut all, mut open) = (Vec::new(), Transmission { times: 1, ..Transmission::default() });
    for event in events.iter().filter(|e| e.psn == psn) {
        let end = match event.kind {
            EventKind::AckTimeout { after } => TransmissionEnd::AckTimeout(after),
            EventKind::SequenceNak => TransmissionEnd::SequenceNak,
            EventKind::MissingResponse => TransmissionEnd::MissingResponse,
            EventKind::RnrNak { wait, .. } => TransmissionEnd::RnrNak(wait),
            EventKind::Nak(code) => TransmissionEnd::Nak(code),
            EventKind::Probe => {
                open.probes += event.times;
                continue;
            }
            EventKind::Resent { .. } => {
                let wait = match all.last() {
                    Some(Transmission { end: Some((_, TransmissionEnd::RnrNak(wait))), .. }) => *wait,
                    _ => Duration::ZERO,
                };
                open.sent = event.ago.checked_sub(wait);
                continue;
            }
            EventKind::StateChange { .. } | EventKind::NakSent(_) | EventKind::RnrNakSent(_) => continue,
        };
        let sent = event.sent.or(open.sent);
        all.push(Transmission { sent, end: Some((event.ago, end)), times: event.times, ..open });
        open = Transmission { times: 1, ..Transmission::default() };
    }
    if open.sent.is_some() {
        all.push(open);
    }
    all
}
