//! Findings: the faults in a capture, each with its evidence and a remedy.

use serde::{Serialize, Serializer};
use urxe::wire::Psn;

use crate::track::stream::Key;

/// Cause that a finding names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Diagnosis {
    /// Nothing at all comes from the peer.
    PeerSilent,
    /// ICMP says that UDP port 4791 cannot be reached.
    PortUnreachable,
    /// The peer is alive and does not know the queue pair.
    UnknownQp,
    /// Small packets pass, larger ones never do.
    MtuBlackHole,
    /// The ends have different path MTUs.
    PathMtuDiffers,
    /// The first PSN is not the one that the responder expects.
    StartPsnDiffers,
    /// A request was lost.
    RequestLost,
    /// An acknowledgement was lost.
    AckLost,
    /// The last packet in flight was lost, or its acknowledgement.
    TailLost,
    /// Responses of a READ were lost.
    ReadResponseLost,
    /// Packets arrived in another order than they were sent in.
    Reordered,
    /// The connection waits for timeouts most of its time.
    TimeoutBound,
    /// The responder had no receive.
    ReceiverNotReady,
    /// The responder refused access to its memory.
    RemoteAccessError,
    /// More READs and atomics were in flight than the responder accepts.
    TooManyReads,
    /// The responder refused a request that it considers invalid.
    InvalidRequest,
    /// The responder failed.
    RemoteOperationalError,
    /// Requests behind a refused one.
    Flushed,
    /// An ICRC is wrong.
    WrongIcrc,
    /// Congestion marks without CNPs, or CNPs without effect.
    CongestionIgnored,
    /// Pauses are for another priority than the data.
    PriorityMismatch,
    /// Pauses stopped the sender.
    Paused,
    /// The responder is slow, or has no receives left.
    SlowReceiver,
    /// Datagrams that their receiver drops.
    DatagramDropped,
    /// The connection manager refused the connection, or got no answer.
    ConnectionRefused,
    /// The connection manager ended the connection while it was in use, or the end was not confirmed in time.
    Disconnected,
    /// The connection manager needed more time than usual.
    ConnectionDelayed,
    /// A packet was repeated until the retry counter was exceeded.
    RetryExceeded,
    /// A packet was sent again although its acknowledgement was on its way.
    UnnecessaryRetransmission,
    /// A packet appears twice.
    Copies,
    /// The capture lacks packets.
    CaptureIncomplete,
}

/// Weight of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The connection ended, or never worked.
    Failure,
    /// Something went wrong and was repaired, or costs time.
    Problem,
    /// Unusual, and no fault of its own.
    Note,
}

/// A packet of one of the captures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct PacketRef {
    /// Index of the capture, from 0.
    pub file: usize,
    /// Number of the packet in it, from 1.
    pub packet: u64,
}

/// Conclusion about a capture: the fault, its evidence, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Cause.
    pub diagnosis: Diagnosis,
    /// Weight.
    pub severity: Severity,
    /// The queue pair or host concerned.
    pub subject: String,
    /// PSN of the request concerned.
    #[serde(serialize_with = "number")]
    pub psn: Option<Psn>,
    /// Stream of the packets concerned.
    #[serde(skip)]
    pub(crate) stream: Option<Key>,
    /// One sentence with the evidence.
    pub text: String,
    /// Comments that the capture has on its packets.
    pub comments: Vec<String>,
    /// Remedy; empty if there is none.
    pub remedy: String,
    /// Packets that show it, the most telling one first.
    pub packets: Vec<PacketRef>,
    /// Time of the first packet that shows it, in nanoseconds since 1970.
    pub time: u64,
    /// Number of occurrences.
    pub count: u64,
}

impl Finding {
    /// Starts a finding.
    pub(crate) fn new(diagnosis: Diagnosis, severity: Severity, subject: String) -> Finding {
        Finding {
            diagnosis,
            severity,
            subject,
            psn: None,
            stream: None,
            text: String::new(),
            comments: Vec::new(),
            remedy: String::new(),
            packets: Vec::new(),
            time: 0,
            count: 1,
        }
    }
}

fn number<S: Serializer>(psn: &Option<Psn>, serializer: S) -> Result<S::Ok, S::Error> {
    psn.map(Psn::get).serialize(serializer)
}
