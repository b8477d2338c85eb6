//! Facts about the requests of a stream, from which the rules draw their conclusions.

use urxe::wire::{Mtu, NakCode, Opcode, Psn, RnrTimer};

use super::window::{Request, Target};

/// A packet of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct At {
    /// Number of the packet in its file.
    pub packet: u64,
    /// Time in nanoseconds.
    pub time: u64,
}

/// A list that keeps the first elements and counts the others.
#[derive(Clone, Debug)]
pub struct Bounded<T> {
    /// First elements.
    pub first: Vec<T>,
    /// Number of all elements.
    pub count: u64,
}

/// Elements that a [`Bounded`] list keeps.
const MAX_KEPT: usize = 64;

impl<T> Default for Bounded<T> {
    fn default() -> Bounded<T> {
        Bounded { first: Vec::new(), count: 0 }
    }
}

impl<T> Bounded<T> {
    /// Adds an element.
    pub fn push(&mut self, element: T) {
        self.push_with(|| element);
    }

    /// Adds an element, which is made only if the list keeps it.
    pub fn push_with(&mut self, element: impl FnOnce() -> T) {
        self.count += 1;
        if self.first.len() < MAX_KEPT {
            self.first.push(element());
        }
    }

    /// Removes the oldest elements until `keep` are left, and forgets that they were counted.
    pub fn take_oldest(&mut self, keep: usize) -> impl Iterator<Item = T> {
        let excess = self.first.len().saturating_sub(keep);
        self.count -= excess as u64;
        self.first.drain(..excess)
    }

    /// Returns the newest element, unless it was only counted.
    pub fn newest(&mut self) -> Option<&mut T> {
        (self.count as usize == self.first.len()).then(|| self.first.last_mut()).flatten()
    }
}

/// PSNs that the capture lacks: what came before and behind them is present.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// First PSN.
    pub psn: Psn,
    /// Number of PSNs.
    pub len: u32,
    /// Packet behind the gap.
    pub at: At,
    /// First packet that fills the gap, and whether it was resent or only late.
    pub filled: Option<(At, Filled)>,
    /// Whether the responder asked for the PSN by a NAK.
    pub nak: Option<At>,
}

/// How a [`Gap`] was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// By the original, out of order: the packets behind it were not sent again.
    Late,
    /// By a retransmission.
    Resent,
    /// By the original, after which the retransmission arrived, too.
    LateAndResent,
}

/// Reason of a retransmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// NAK with PSN sequence error.
    SequenceNak(At),
    /// RNR NAK.
    ReceiverNotReady(At),
    /// Nothing came for the given time in nanoseconds.
    Timeout(u64),
    /// A response was missing: the requester asks for it again at once.
    ResponseGap(At),
}

/// Requests that were sent again, from one PSN on.
#[derive(Clone, Copy, Debug)]
pub struct Resend {
    /// First PSN.
    pub psn: Psn,
    /// First packet that was sent again.
    pub at: At,
    /// First transmission of that packet.
    pub original: At,
    /// Reason.
    pub cause: Cause,
    /// Number of packets sent again.
    pub packets: u64,
    /// Whether the capture contains an earlier acknowledgement of the first PSN.
    pub acknowledged_before: Option<At>,
    /// First response to the retransmission: its packet, and its PSN.
    pub answer: Option<(At, Psn)>,
    /// Number of responses with the PSN of the first: a responder acknowledges each duplicate.
    pub answers: u64,
    /// Request behind those that the first response acknowledges: its PSN and packet.
    pub not_answered: Option<(Psn, At)>,
    /// PSN behind the newest request at that time.
    pub next: Psn,
    /// PSN of the last packet sent again.
    pub last: Psn,
    /// Opcode of the first packet.
    pub opcode: Opcode,
    /// Whether the first packet was the last one in flight.
    pub is_tail: bool,
    /// Whether the last request in flight was not the end of a message.
    pub is_incomplete: bool,
}

/// NAK that ends the connection.
#[derive(Clone, Copy, Debug)]
pub struct Fatal {
    /// The NAK.
    pub at: At,
    /// PSN of the NAK.
    pub psn: Psn,
    /// Code of the NAK.
    pub code: NakCode,
    /// The refused request, if the capture contains it.
    pub request: Option<Request>,
    /// Requests in flight behind the refused one.
    pub flushed: u64,
    /// READs and atomics in flight, with the refused one.
    pub reads: u64,
}

/// RNR NAKs of a stream.
#[derive(Clone, Copy, Debug)]
pub struct NotReady {
    /// First RNR NAK.
    pub first: At,
    /// Timer of the first.
    pub timer: RnrTimer,
    /// Number of RNR NAKs.
    pub count: u64,
    /// The last RNR NAK, and its PSN.
    pub last: (At, Psn),
    /// Number of RNR NAKs in succession for one PSN, at most.
    pub most: u64,
    /// Number of RNR NAKs in succession for the last PSN.
    pub current: u64,
}

/// Missing responses of a READ.
#[derive(Clone, Copy, Debug)]
pub struct ResponseGap {
    /// First missing PSN.
    pub psn: Psn,
    /// Number of missing responses.
    pub len: u32,
    /// Response behind the gap.
    pub at: At,
    /// The request that asked for them again.
    pub asked_again: Option<At>,
    /// Requests for the first missing PSN, and responses with it.
    pub counts: (u32, u32),
    /// The response that is one more than were asked for again: the original, which came late.
    pub late: Option<At>,
}

/// Times from a request with AckReq to its acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Number of measured acknowledgements.
    pub count: u64,
    /// Least time in nanoseconds.
    pub min: u64,
    /// Greatest time in nanoseconds, and the acknowledgement.
    pub max: (u64, At),
    /// Sum of all times.
    pub sum: u64,
    /// Number and sum of the times that are much longer than the least so far, and the first of them.
    pub late: (u64, u64, At),
}

/// Factor by which a late acknowledgement takes longer than the fastest one.
const LATE_FACTOR: u64 = 8;

/// Nanoseconds that a late acknowledgement takes at least: a host that is merely busy takes less.
const LATE_AT_LEAST: u64 = 5_000_000;

impl Latency {
    pub(super) fn add(&mut self, nanos: u64, at: At) {
        if self.count > 0 && nanos > LATE_AT_LEAST.max(LATE_FACTOR * self.min) {
            let (count, sum, first) = self.late;
            self.late = (count + 1, sum + nanos, if count == 0 { at } else { first });
        }
        self.min = if self.count == 0 { nanos } else { self.min.min(nanos) };
        if nanos > self.max.0 || self.count == 0 {
            self.max = (nanos, at);
        }
        self.count += 1;
        self.sum += nanos;
    }
}

/// Time in which acknowledgements told of no receive.
#[derive(Clone, Copy, Debug)]
pub struct NoCredits {
    /// First acknowledgement with 0 credits.
    pub at: At,
    /// Number of acknowledgements with 0 credits since.
    pub count: u64,
}

/// Memory that a peer has accessed with success through one key.
#[derive(Clone, Copy, Debug)]
pub struct Accessed {
    /// Union of the ranges, as the target of one request.
    pub target: Target,
}

/// Facts about the requests of a stream.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Requests that were seen for the first time.
    pub requests: u64,
    /// Requests that were sent again.
    pub resent: u64,
    /// Largest payload of an acknowledged request.
    pub largest_acknowledged: u32,
    /// Whether a message of several packets was acknowledged.
    pub had_long_message: bool,
    /// Largest payload of a READ response.
    pub largest_response: u32,
    /// Sequence NAKs.
    pub sequence_naks: u64,
    /// Missing requests.
    pub gaps: Bounded<Gap>,
    /// Retransmissions.
    pub resends: Bounded<Resend>,
    /// Number of retransmissions after a timeout, and nanoseconds spent waiting for it.
    pub timeouts: (u64, u64),
    /// Packets that arrived twice at once: copies made on the path or by the capture.
    pub copies: Bounded<At>,
    /// RNR NAKs.
    pub not_ready: Option<NotReady>,
    /// NAK that ends the connection.
    pub fatal: Option<Fatal>,
    /// Missing READ responses.
    pub response_gaps: Bounded<ResponseGap>,
    /// Acknowledgement times.
    pub latency: Latency,
    /// Acknowledgements without credits, after some with credits.
    pub no_credits: Option<NoCredits>,
    /// Whether an acknowledgement had credits.
    pub had_credits: bool,
    /// Path MTU of requests, and of responses: payload of the packets that have to be full.
    pub mtus: [Option<Mtu>; 2],
    /// Memory accessed with success.
    pub accessed: Vec<Accessed>,
    /// NAK for the first PSN of the stream, and the PSN that the responder expects.
    pub first_refused: Option<(At, Psn)>,
    /// First response, if it acknowledges a PSN that was not sent yet.
    pub ahead: Option<(At, Psn)>,
    /// READs and atomics in flight.
    pub reads: u64,
}
