//! Communication manager messages, laid out as in the specification's tables.

use super::code::{
    Acknowledged, AprStatus, CommId, RejReason, Rejected, ServiceId, SidrStatus, TransportService,
};
use super::field::{Bits, Field};
use super::{MAD_HEADER_LEN, MAD_LEN};
use crate::wire::{AckTimeout, Gid, Mtu, PKey, Psn, QKey, Qpn};

/// Position of the message in a MAD.
const DATA: &[Bits] = &[(MAD_HEADER_LEN, 0, (MAD_LEN - MAD_HEADER_LEN) * 8)];

/// Recipient of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipient {
    /// The listener on the given service ID.
    Service(ServiceId),
    /// The end that assigned the given ID to a connection or a service ID resolution. The ID is 0 in a REJ
    /// whose sender never received it.
    Connection(CommId),
}

/// Defines a struct, itself a [`Field`], from a table of its fields' positions. A field in several parts has
/// the position of each, highest bits first.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty = $($bits:tt),+;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
        }

        impl Field for $name {
            fn read(data: &[u8], at: &[Bits]) -> $name {
                let data = &data[at[0].0..];
                $name { $($field: Field::read(data, &[$($bits),+]),)* }
            }

            fn write(&self, data: &mut [u8], at: &[Bits]) {
                let data = &mut data[at[0].0..];
                $(self.$field.write(data, &[$($bits),+]);)*
            }
        }

        impl Default for $name {
            /// Returns the value with all bits zero.
            fn default() -> $name {
                $name::read(&[0; MAD_LEN], DATA)
            }
        }
    };
}

/// Defines the messages from tables that give each one's attribute ID, name, recipient and layout.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $attribute:literal, $text:literal, to $to:ident($id:ident) { $($layout:tt)* })*) => {
        $(layout! { $(#[$doc])* $name { $($layout)* } })*

        /// Communication manager message.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant, reason = "most variants have the size of a MAD")]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        /// Kind of a message.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum MessageKind {
            $($(#[$doc])* $name,)*
        }

        impl MessageKind {
            /// All kinds.
            pub const ALL: &'static [MessageKind] = &[$(MessageKind::$name),*];

            /// Returns the message's name in the specification.
            pub const fn name(self) -> &'static str {
                [$($text),*][self as usize]
            }

            /// Returns the attribute ID.
            pub const fn attribute(self) -> u16 {
                [$($attribute),*][self as usize]
            }
        }

        impl Message {
            /// Returns the message's kind.
            pub const fn kind(&self) -> MessageKind {
                match self {
                    $(Message::$name(_) => MessageKind::$name,)*
                }
            }

            /// Returns the recipient, which determines the process that gets the message if several share
            /// QP1.
            pub const fn recipient(&self) -> Recipient {
                match self {
                    $(Message::$name(m) => Recipient::$to(m.$id),)*
                }
            }

            pub(super) fn read(attribute: u16, mad: &[u8]) -> Option<Message> {
                match attribute {
                    $($attribute => Some(Message::$name(Field::read(mad, DATA))),)*
                    _ => None,
                }
            }

            pub(super) fn write(&self, mad: &mut [u8]) {
                match self {
                    $(Message::$name(m) => m.write(mad, DATA),)*
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}

layout! {
    /// Path in a REQ, described from the sender's point of view (IBA 12.6.5).
    PathInfo {
        /// LID of the sender.
        local_lid: u16 = (0, 0, 16);
        /// LID of the recipient.
        remote_lid: u16 = (2, 0, 16);
        /// GID of the sender.
        local_gid: Gid = (4, 0, 128);
        /// GID of the recipient.
        remote_gid: Gid = (20, 0, 128);
        /// Flow label.
        flow_label: u32 = (36, 0, 20);
        /// Rate.
        rate: u8 = (39, 2, 6);
        /// Traffic class.
        traffic_class: u8 = (40, 0, 8);
        /// Hop limit.
        hop_limit: u8 = (41, 0, 8);
        /// Service level.
        sl: u8 = (42, 0, 4);
        /// Whether the path stays within the subnet and passes no router.
        subnet_local: bool = (42, 4, 1);
        /// Local ACK timeout.
        ack_timeout: AckTimeout = (43, 0, 5);
    }
}

messages! {
    /// Request for communication (IBA 12.6.5).
    Req = 0x10, "REQ", to Service(service) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Vendor ID for enhanced connection establishment ([`Ece`](super::Ece)).
        vendor_id: u32 = (5, 0, 24);
        /// Requested service ID.
        service: ServiceId = (8, 0, 64);
        /// GUID of the sender's channel adapter.
        ca_guid: u64 = (16, 0, 64);
        /// Sender's queue key (RD only).
        qkey: QKey = (28, 0, 32);
        /// Sender's queue pair number.
        qpn: Qpn = (32, 0, 24);
        /// Maximum number of outstanding READs and atomics that the sender accepts as a responder.
        responder_resources: u8 = (35, 0, 8);
        /// Sender's end-to-end context (RD only).
        eecn: u32 = (36, 0, 24);
        /// Maximum number of READs and atomics that the sender has outstanding as a requester.
        initiator_depth: u8 = (39, 0, 8);
        /// Recipient's end-to-end context (RD only).
        remote_eecn: u32 = (40, 0, 24);
        /// Time within which the recipient is expected to respond.
        remote_response_timeout: AckTimeout = (43, 0, 5);
        /// Transport service of the queue pairs.
        transport: TransportService = (43, 5, 2);
        /// Whether the sender implements end-to-end flow control.
        flow_control: bool = (43, 7, 1);
        /// Starting PSN of the recipient's send queue.
        psn: Psn = (44, 0, 24);
        /// Time within which the sender will respond.
        local_response_timeout: AckTimeout = (47, 0, 5);
        /// Number of retries after a timeout or a sequence error.
        retry_count: u8 = (47, 5, 3);
        /// Partition key.
        pkey: PKey = (48, 0, 16);
        /// Path MTU; `None` for an unassigned code.
        mtu: Option<Mtu> = (50, 0, 4);
        /// Whether the reliable datagram channel already exists (RD only).
        rdc_exists: bool = (50, 4, 1);
        /// Number of retries after an RNR NAK.
        rnr_retry_count: u8 = (50, 5, 3);
        /// Maximum number of times that the sender retransmits a message.
        max_cm_retries: u8 = (51, 0, 4);
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = (51, 4, 1);
        /// Extended transport type: 1 for XRC, with [`TransportService::Extended`].
        extended_transport: u8 = (51, 5, 3);
        /// Primary path.
        primary: PathInfo = (52, 0, 44 * 8);
        /// Alternate path; all zeros if there is none.
        alternate: PathInfo = (96, 0, 44 * 8);
        /// Private data from the application.
        private_data: [u8; 92] = (140, 0, 92 * 8);
    }

    /// Message receipt acknowledgement (IBA 12.6.6), which announces that the response will take longer.
    Mra = 0x11, "MRA", to Connection(remote) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID.
        remote: CommId = (4, 0, 32);
        /// Message whose receipt is acknowledged.
        message: Acknowledged = (8, 0, 2);
        /// Maximum time from this message to the response.
        service_timeout: AckTimeout = (9, 0, 5);
        /// Private data from the application.
        private_data: [u8; 222] = (10, 0, 222 * 8);
    }

    /// Reject (IBA 12.6.7).
    Rej = 0x12, "REJ", to Connection(remote) {
        /// Sender's communication ID; 0 if it has none.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID; 0 if the sender never received it.
        remote: CommId = (4, 0, 32);
        /// Message that is rejected.
        message: Rejected = (8, 0, 2);
        /// Number of significant bytes in `info`.
        info_len: u8 = (9, 0, 7);
        /// Reason for the rejection.
        reason: RejReason = (10, 0, 16);
        /// Additional information: for some reasons, the value that would be accepted.
        info: [u8; 72] = (12, 0, 72 * 8);
        /// Private data from the application.
        private_data: [u8; 148] = (84, 0, 148 * 8);
    }

    /// Reply to a request for communication (IBA 12.6.8).
    Rep = 0x13, "REP", to Connection(remote) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID.
        remote: CommId = (4, 0, 32);
        /// Sender's queue key (RD only).
        qkey: QKey = (8, 0, 32);
        /// Sender's queue pair number, except for an XRC target.
        qpn: Qpn = (12, 0, 24);
        /// Vendor ID for enhanced connection establishment ([`Ece`](super::Ece)).
        vendor_id: u32 = (15, 0, 8), (19, 0, 8), (23, 0, 8);
        /// Sender's end-to-end context (RD) or XRC target queue pair number.
        eecn: u32 = (16, 0, 24);
        /// Starting PSN of the recipient's send queue.
        psn: Psn = (20, 0, 24);
        /// Maximum number of outstanding READs and atomics that the sender accepts as a responder.
        responder_resources: u8 = (24, 0, 8);
        /// Maximum number of READs and atomics that the sender has outstanding as a requester.
        initiator_depth: u8 = (25, 0, 8);
        /// Maximum time until the sender's channel adapter acknowledges a packet.
        target_ack_delay: AckTimeout = (26, 0, 5);
        /// Status of the alternate path: 0 accepted, 1 not supported, 2 rejected.
        failover: u8 = (26, 5, 2);
        /// Whether the sender implements end-to-end flow control.
        flow_control: bool = (26, 7, 1);
        /// Number of retries after an RNR NAK.
        rnr_retry_count: u8 = (27, 0, 3);
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = (27, 3, 1);
        /// GUID of the sender's channel adapter.
        ca_guid: u64 = (28, 0, 64);
        /// Private data from the application.
        private_data: [u8; 196] = (36, 0, 196 * 8);
    }

    /// Ready to use: acknowledges the REP (IBA 12.6.9).
    Rtu = 0x14, "RTU", to Connection(remote) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID.
        remote: CommId = (4, 0, 32);
        /// Private data from the application.
        private_data: [u8; 224] = (8, 0, 224 * 8);
    }

    /// Request for communication release (IBA 12.6.10).
    Dreq = 0x15, "DREQ", to Connection(remote) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID.
        remote: CommId = (4, 0, 32);
        /// Recipient's queue pair number.
        remote_qpn: Qpn = (8, 0, 24);
        /// Private data from the application.
        private_data: [u8; 220] = (12, 0, 220 * 8);
    }

    /// Reply to a request for communication release (IBA 12.6.11).
    Drep = 0x16, "DREP", to Connection(remote) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID.
        remote: CommId = (4, 0, 32);
        /// Private data from the application.
        private_data: [u8; 224] = (8, 0, 224 * 8);
    }

    /// Service ID resolution request, which asks for a service's queue pair (IBA 12.11.1).
    SidrReq = 0x17, "SIDR_REQ", to Service(service) {
        /// ID that the sender assigns to the request.
        request: CommId = (0, 0, 32);
        /// Partition key.
        pkey: PKey = (4, 0, 16);
        /// Requested service ID.
        service: ServiceId = (8, 0, 64);
        /// Private data from the application.
        private_data: [u8; 216] = (16, 0, 216 * 8);
    }

    /// Service ID resolution reply (IBA 12.11.2).
    SidrRep = 0x18, "SIDR_REP", to Connection(request) {
        /// ID of the request.
        request: CommId = (0, 0, 32);
        /// Status of the resolution.
        status: SidrStatus = (4, 0, 8);
        /// Number of significant bytes in `info`.
        info_len: u8 = (5, 0, 8);
        /// Vendor ID for enhanced connection establishment ([`Ece`](super::Ece)).
        vendor_id: u32 = (6, 0, 16), (11, 0, 8);
        /// The service's queue pair number.
        qpn: Qpn = (8, 0, 24);
        /// Service ID from the request.
        service: ServiceId = (12, 0, 64);
        /// Queue key that datagrams to the queue pair must carry.
        qkey: QKey = (20, 0, 32);
        /// Additional information: for some status codes, the value that would be accepted.
        info: [u8; 72] = (24, 0, 72 * 8);
        /// Private data from the application.
        private_data: [u8; 136] = (96, 0, 136 * 8);
    }

    /// Load alternate path (IBA 12.8.1).
    Lap = 0x19, "LAP", to Connection(remote) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID.
        remote: CommId = (4, 0, 32);
        /// Recipient's queue pair number.
        remote_qpn: Qpn = (12, 0, 24);
        /// Time within which the recipient is expected to respond.
        remote_response_timeout: AckTimeout = (15, 0, 5);
        /// LID of the sender.
        local_lid: u16 = (20, 0, 16);
        /// LID of the recipient.
        remote_lid: u16 = (22, 0, 16);
        /// GID of the sender.
        local_gid: Gid = (24, 0, 128);
        /// GID of the recipient.
        remote_gid: Gid = (40, 0, 128);
        /// Flow label.
        flow_label: u32 = (56, 0, 20);
        /// Traffic class.
        traffic_class: u8 = (59, 0, 8);
        /// Hop limit.
        hop_limit: u8 = (60, 0, 8);
        /// Rate.
        rate: u8 = (61, 2, 6);
        /// Service level.
        sl: u8 = (62, 0, 4);
        /// Whether the path stays within the subnet and passes no router.
        subnet_local: bool = (62, 4, 1);
        /// Local ACK timeout.
        ack_timeout: AckTimeout = (63, 0, 5);
        /// Private data from the application.
        private_data: [u8; 168] = (64, 0, 168 * 8);
    }

    /// Alternate path response (IBA 12.8.2).
    Apr = 0x1a, "APR", to Connection(remote) {
        /// Sender's communication ID.
        local: CommId = (0, 0, 32);
        /// Recipient's communication ID.
        remote: CommId = (4, 0, 32);
        /// Number of significant bytes in `info`.
        info_len: u8 = (8, 0, 8);
        /// Status of the alternate path.
        status: AprStatus = (9, 0, 8);
        /// Additional information: for some status codes, the value that would be accepted.
        info: [u8; 72] = (12, 0, 72 * 8);
        /// Private data from the application.
        private_data: [u8; 148] = (84, 0, 148 * 8);
    }
}

macro_rules! info {
    ($($name:ident)*) => {
        $(impl $name {
            /// Returns the significant bytes of `info`.
            pub fn info(&self) -> &[u8] {
                &self.info[..usize::from(self.info_len).min(self.info.len())]
            }
        })*
    };
}

info!(Rej Apr SidrRep);
