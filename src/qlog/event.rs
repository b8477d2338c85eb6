//! Events of a log. Their fields are those of docs/qlog/rdma.schema.json.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::wire::{NakCode, Qpn};

type Text = Cow<'static, str>;

/// Event with its time and its queue pair.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Time in milliseconds since the reference time.
    pub time: f64,
    /// Name and fields.
    #[serde(flatten)]
    pub data: EventData,
    /// Queue pair: its address and number, as [`group`] makes it. `None` if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
}

/// Returns the group of a queue pair's events.
pub fn group(ip: IpAddr, qpn: Qpn) -> String {
    format!("{ip} {qpn}")
}

/// Converts nanoseconds to milliseconds.
pub fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// Defines [`EventData`] from names in the namespace `rdma`.
macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident($fields:ty) = $name:literal;)*) => {
        /// Name and fields of an event.
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
        #[serde(tag = "name", content = "data")]
        pub enum EventData {
            $($(#[$doc])* #[serde(rename = $name)] $variant($fields),)*
        }

        impl EventData {
            /// Names of all events.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Returns the name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(EventData::$variant(_) => $name,)*
                }
            }
        }
    };
}

events! {
    /// A packet was sent.
    PacketSent(PacketData) = "rdma:packet_sent";
    /// A packet was received.
    PacketReceived(PacketData) = "rdma:packet_received";
    /// A packet was dropped.
    PacketDropped(PacketDropped) = "rdma:packet_dropped";
    /// A congestion notification packet was sent.
    CnpSent(Notification) = "rdma:cnp_sent";
    /// A congestion notification packet was received.
    CnpReceived(Notification) = "rdma:cnp_received";
    /// A packet marked "congestion experienced" was received.
    CeReceived(Notification) = "rdma:ce_received";
    /// A message of the connection manager was sent.
    CmSent(Cm) = "rdma:cm_sent";
    /// A message of the connection manager was received.
    CmReceived(Cm) = "rdma:cm_received";
    /// A work request was posted.
    WorkRequestPosted(WorkRequest) = "rdma:work_request_posted";
    /// A work request completed.
    WorkRequestCompleted(WorkRequest) = "rdma:work_request_completed";
    /// Packets are missing.
    Gap(Gap) = "rdma:gap";
    /// A NAK was sent.
    NakSent(Nak) = "rdma:nak_sent";
    /// A NAK was received.
    NakReceived(Nak) = "rdma:nak_received";
    /// An RNR NAK was sent.
    RnrNakSent(RnrNak) = "rdma:rnr_nak_sent";
    /// An RNR NAK was received.
    RnrNakReceived(RnrNak) = "rdma:rnr_nak_received";
    /// The local ACK timer expired.
    Timeout(Timer) = "rdma:timeout";
    /// A probe timer expired.
    Probe(Timer) = "rdma:probe";
    /// Packets are sent again.
    Retransmission(Resend) = "rdma:retransmission";
    /// Congestion control has changed what may be sent.
    CongestionUpdated(Congestion) = "rdma:congestion_updated";
    /// A request asks for access to memory.
    MemoryAccess(Memory) = "rdma:memory_access";
    /// A check of a request failed.
    CheckFailed(Check) = "rdma:check_failed";
    /// A queue pair changed its state.
    QpStateUpdated(QpStateChange) = "rdma:qp_state_updated";
}

/// Lengths of a packet in bytes (`RawInfo` of the main schema).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// From BTH to ICRC.
    pub length: u64,
    /// Payload.
    pub payload_length: u64,
}

/// Memory that a packet or a request refers to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// PSN of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Operation: `read`, `write`, `atomic` or `flush`.
    pub operation: Text,
    /// Virtual address in hexadecimal digits, because JSON numbers have 53 bits.
    pub va: String,
    /// Remote key.
    pub rkey: u32,
    /// Length in bytes.
    pub length: u32,
}

/// Contents of an acknowledgement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// `ack`, `nak`, `rnr_nak` or `reserved`.
    pub syndrome: Text,
    /// Message sequence number.
    pub msn: u32,
}

/// Fields of a packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketData {
    /// Name of the opcode in the specification.
    pub opcode: Text,
    /// Packet sequence number.
    pub psn: u32,
    /// Destination queue pair.
    pub dest_qp: u32,
    /// Address of the other end.
    pub peer: IpAddr,
    /// Lengths.
    pub raw: Raw,
    /// Whether an acknowledgement is requested.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ack_req: bool,
    /// Memory of the RETH or AtomicETH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// AETH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aeth: Option<Response>,
}

/// Side of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// This end: sent, or of the send queue.
    Send,
    /// The other end: received, or of the receive queue.
    Receive,
}

/// A dropped packet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketDropped {
    /// Reason: `icrc`, `unknown_qp` and so on, or `fault`.
    pub trigger: Text,
    /// The rule of a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// Direction of the packet.
    pub direction: Side,
    /// Address of the other end.
    pub peer: IpAddr,
    /// Name of the opcode; `None` if there is no header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode: Option<Text>,
    /// Packet sequence number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Destination queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dest_qp: Option<u32>,
}

/// A CNP, or a packet marked CE.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notification {
    /// Address of the other end.
    pub peer: IpAddr,
    /// Destination queue pair.
    pub dest_qp: u32,
    /// PSN of the marked packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
}

/// A message of the connection manager.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cm {
    /// Name of the message: `REQ`, `REP` and so on.
    pub message: Text,
    /// Address of the other end.
    pub peer: IpAddr,
    /// Communication ID of the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_id: Option<u32>,
    /// Communication ID of the recipient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_id: Option<u32>,
    /// Queue pair of the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    /// First PSN that the sender expects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Reason of a REJ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A work request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkRequest {
    /// Queue of the work request.
    pub queue: Side,
    /// Kind, such as `RDMA_WRITE`, as in `enum ibv_wc_opcode`.
    pub opcode: Text,
    /// Identifier, which captures do not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wr_id: Option<u64>,
    /// Length in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Whether a posted send generates a completion on success, which captures do not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signaled: Option<bool>,
    /// Status, once it has completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Text>,
    /// First PSN, which captures tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
}

/// Kind of the packets that are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapOf {
    /// Requests, which the responder misses.
    Requests,
    /// Responses, which the requester misses.
    Responses,
}

/// Missing packets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// Their kind.
    pub of: GapOf,
    /// First missing PSN.
    pub psn: u32,
    /// Number of PSNs, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// A NAK.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nak {
    /// PSN of the refused request, or the expected one.
    pub psn: u32,
    /// Code, as [`nak_name`] names it.
    pub code: Text,
}

/// Returns the name of a NAK code.
pub fn nak_name(code: NakCode) -> Text {
    match code {
        NakCode::PsnSequenceError => "psn_sequence_error".into(),
        NakCode::InvalidRequest => "invalid_request".into(),
        NakCode::RemoteAccessError => "remote_access_error".into(),
        NakCode::RemoteOperationalError => "remote_operational_error".into(),
        NakCode::InvalidRdRequest => "invalid_rd_request".into(),
        NakCode::Reserved(code) => format!("reserved_{code}").into(),
    }
}

/// An RNR NAK.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RnrNak {
    /// PSN of the request without a receive.
    pub psn: u32,
    /// Time to wait in milliseconds.
    pub wait: f64,
}

/// A timer that expired.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timer {
    /// Oldest PSN that is not acknowledged.
    pub psn: u32,
    /// Time for which the timer ran, or nothing came, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
}

/// A retransmission.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resend {
    /// First PSN.
    pub psn: u32,
    /// Cause: `nak`, `rnr_nak`, `missing_response`, `timeout`, `probe` or `new_path`.
    pub trigger: Text,
}

/// Limits of congestion control.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Congestion {
    /// Rate in bits per second; `None` if it is not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// α of DCQCN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Congestion window in bytes.
    pub window: u64,
}

/// A failed check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// PSN of the request.
    pub psn: u32,
    /// Code of the NAK, or `local` without one.
    pub trigger: Text,
    /// Cause in words, which captures do not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// A state change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpStateChange {
    /// State before.
    pub old: Text,
    /// State after.
    pub new: Text,
    /// Cause.
    pub trigger: Text,
    /// Address of the peer, once there is a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// Queue pair of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_qp: Option<u32>,
}
