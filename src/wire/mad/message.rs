//! The messages of the communication manager, each as its table in the specification lays it out.

use super::code::{
    Acknowledged, AprStatus, CommId, RejReason, Rejected, ServiceId, SidrStatus, TransportService,
};
use super::field::{DATA_BITS, DATA_LEN, Data, Field};
use crate::wire::{AckTimeout, Gid, Mtu, PKey, Psn, QKey, Qpn};

/// Structs from tables: each field with its byte, bit within it from the left, and width in bits.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty = $byte:literal, $bit:literal, $width:expr;)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name {
                $($(#[$fdoc])* pub $field: $ty,)*
            }

            impl Field for $name {
                fn read(data: &Data, at: usize, _: usize) -> $name {
                    $name { $($field: Field::read(data, at + $byte * 8 + $bit, $width),)* }
                }

                fn write(&self, data: &mut Data, at: usize, _: usize) {
                    $(self.$field.write(data, at + $byte * 8 + $bit, $width);)*
                }
            }

            impl Default for $name {
                /// All bits zero.
                fn default() -> $name {
                    $name::read(&[0; DATA_LEN], 0, DATA_BITS)
                }
            }
        )*
    };
}

layouts! {
    /// Request for communication (IBA 12.6.5).
    Req {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// Vendor of [`Ece`](super::Ece).
        vendor_id: u32 = 5, 0, 24;
        /// What is asked for.
        service: ServiceId = 8, 0, 64;
        /// The sender's channel adapter.
        ca_guid: u64 = 16, 0, 64;
        /// The sender's queue key (RD only).
        qkey: QKey = 28, 0, 32;
        /// The sender's queue pair.
        qpn: Qpn = 32, 0, 24;
        /// READs and atomics that the sender answers at once.
        responder_resources: u8 = 35, 0, 8;
        /// The sender's end-to-end context (RD only).
        eecn: u32 = 36, 0, 24;
        /// READs and atomics that the sender asks at once.
        initiator_depth: u8 = 39, 0, 8;
        /// The recipient's end-to-end context (RD only).
        remote_eecn: u32 = 40, 0, 24;
        /// How long the recipient may take to answer.
        remote_response_timeout: AckTimeout = 43, 0, 5;
        /// The service of the queue pairs.
        transport: TransportService = 43, 5, 2;
        /// The sender does end-to-end flow control.
        flow_control: bool = 43, 7, 1;
        /// The first PSN that the recipient is to send.
        psn: Psn = 44, 0, 24;
        /// How long the sender takes to answer.
        local_response_timeout: AckTimeout = 47, 0, 5;
        /// Retries after a timeout or a sequence error.
        retry_count: u8 = 47, 5, 3;
        /// The partition.
        pkey: PKey = 48, 0, 16;
        /// The path MTU; `None` for a code that is none.
        mtu: Option<Mtu> = 50, 0, 4;
        /// RD only.
        rdc_exists: bool = 50, 4, 1;
        /// Retries after a receiver-not-ready.
        rnr_retry_count: u8 = 50, 5, 3;
        /// How often the sender repeats a message.
        max_cm_retries: u8 = 51, 0, 4;
        /// The sender's queue pair has a shared receive queue.
        srq: bool = 51, 4, 1;
        /// 1 for XRC, with [`TransportService::Extended`].
        extended_transport: u8 = 51, 5, 3;
        /// The path to use.
        primary: PathInfo = 52, 0, PATH_BITS;
        /// Another one, or zeros.
        alternate: PathInfo = 96, 0, PATH_BITS;
        /// For the program.
        private_data: [u8; 92] = 140, 0, 92 * 8;
    }

    /// Message receipt acknowledgement: be patient (IBA 12.6.6).
    Mra {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// The recipient's ID.
        remote: CommId = 4, 0, 32;
        /// Which message came.
        message: Acknowledged = 8, 0, 2;
        /// How long the answer may take from now on.
        service_timeout: AckTimeout = 9, 0, 5;
        /// For the program.
        private_data: [u8; 222] = 10, 0, 222 * 8;
    }

    /// Reject (IBA 12.6.7).
    Rej {
        /// The sender's ID; 0 if it has none.
        local: CommId = 0, 0, 32;
        /// The recipient's ID; 0 if the sender never learned it.
        remote: CommId = 4, 0, 32;
        /// Which message is refused.
        message: Rejected = 8, 0, 2;
        /// Bytes of `info` that count.
        info_len: u8 = 9, 0, 7;
        /// Why.
        reason: RejReason = 10, 0, 16;
        /// What would have been right, by the reason.
        info: [u8; 72] = 12, 0, 72 * 8;
        /// For the program.
        private_data: [u8; 148] = 84, 0, 148 * 8;
    }

    /// Reply to a request for communication (IBA 12.6.8).
    Rep {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// The recipient's ID.
        remote: CommId = 4, 0, 32;
        /// The sender's queue key (RD only).
        qkey: QKey = 8, 0, 32;
        /// The sender's queue pair, but for a target of XRC.
        qpn: Qpn = 12, 0, 24;
        /// Highest byte of the vendor of [`Ece`](super::Ece).
        vendor_id_high: u8 = 15, 0, 8;
        /// The sender's end-to-end context (RD), or its target of XRC.
        eecn: u32 = 16, 0, 24;
        /// Middle byte of the vendor.
        vendor_id_middle: u8 = 19, 0, 8;
        /// The first PSN that the recipient is to send.
        psn: Psn = 20, 0, 24;
        /// Lowest byte of the vendor.
        vendor_id_low: u8 = 23, 0, 8;
        /// READs and atomics that the sender answers at once.
        responder_resources: u8 = 24, 0, 8;
        /// READs and atomics that the sender asks at once.
        initiator_depth: u8 = 25, 0, 8;
        /// The longest that the sender's adapter takes to acknowledge.
        target_ack_delay: AckTimeout = 26, 0, 5;
        /// What became of the alternate path: 0 accepted, 1 not supported, 2 rejected.
        failover: u8 = 26, 5, 2;
        /// The sender does end-to-end flow control.
        flow_control: bool = 26, 7, 1;
        /// Retries after a receiver-not-ready.
        rnr_retry_count: u8 = 27, 0, 3;
        /// The sender's queue pair has a shared receive queue.
        srq: bool = 27, 3, 1;
        /// The sender's channel adapter.
        ca_guid: u64 = 28, 0, 64;
        /// For the program.
        private_data: [u8; 196] = 36, 0, 196 * 8;
    }

    /// Ready to use: the reply came (IBA 12.6.9).
    Rtu {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// The recipient's ID.
        remote: CommId = 4, 0, 32;
        /// For the program.
        private_data: [u8; 224] = 8, 0, 224 * 8;
    }

    /// Request for communication release (IBA 12.6.10).
    Dreq {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// The recipient's ID.
        remote: CommId = 4, 0, 32;
        /// The recipient's queue pair.
        remote_qpn: Qpn = 8, 0, 24;
        /// For the program.
        private_data: [u8; 220] = 12, 0, 220 * 8;
    }

    /// Reply to a request for communication release (IBA 12.6.11).
    Drep {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// The recipient's ID.
        remote: CommId = 4, 0, 32;
        /// For the program.
        private_data: [u8; 224] = 8, 0, 224 * 8;
    }

    /// Load alternate path (IBA 12.8.1).
    Lap {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// The recipient's ID.
        remote: CommId = 4, 0, 32;
        /// The recipient's queue pair.
        remote_qpn: Qpn = 12, 0, 24;
        /// How long the recipient may take to answer.
        remote_response_timeout: AckTimeout = 15, 0, 5;
        /// The sender's LID.
        local_lid: u16 = 20, 0, 16;
        /// The recipient's LID.
        remote_lid: u16 = 22, 0, 16;
        /// The sender's GID.
        local_gid: Gid = 24, 0, 128;
        /// The recipient's GID.
        remote_gid: Gid = 40, 0, 128;
        /// Flow label.
        flow_label: u32 = 56, 0, 20;
        /// Traffic class.
        traffic_class: u8 = 59, 0, 8;
        /// Hop limit.
        hop_limit: u8 = 60, 0, 8;
        /// Rate.
        rate: u8 = 61, 2, 6;
        /// Service level.
        sl: u8 = 62, 0, 4;
        /// Not through a router.
        subnet_local: bool = 62, 4, 1;
        /// Local ACK timeout.
        ack_timeout: AckTimeout = 63, 0, 5;
        /// For the program.
        private_data: [u8; 168] = 64, 0, 168 * 8;
    }

    /// Alternate path response (IBA 12.8.2).
    Apr {
        /// The sender's ID.
        local: CommId = 0, 0, 32;
        /// The recipient's ID.
        remote: CommId = 4, 0, 32;
        /// Bytes of `info` that count.
        info_len: u8 = 8, 0, 8;
        /// What became of the path.
        status: AprStatus = 9, 0, 8;
        /// What would have been right, by the status.
        info: [u8; 72] = 12, 0, 72 * 8;
        /// For the program.
        private_data: [u8; 148] = 84, 0, 148 * 8;
    }

    /// Service ID resolution request: which queue pair serves that? (IBA 12.11.1)
    SidrReq {
        /// The sender's name for the request.
        request: CommId = 0, 0, 32;
        /// The partition.
        pkey: PKey = 4, 0, 16;
        /// What is asked for.
        service: ServiceId = 8, 0, 64;
        /// For the program.
        private_data: [u8; 216] = 16, 0, 216 * 8;
    }

    /// Service ID resolution reply (IBA 12.11.2).
    SidrRep {
        /// The name that the requester gave.
        request: CommId = 0, 0, 32;
        /// The answer.
        status: SidrStatus = 4, 0, 8;
        /// Bytes of `info` that count.
        info_len: u8 = 5, 0, 8;
        /// Upper two bytes of the vendor of [`Ece`](super::Ece).
        vendor_id_high: u16 = 6, 0, 16;
        /// The queue pair.
        qpn: Qpn = 8, 0, 24;
        /// Lowest byte of the vendor.
        vendor_id_low: u8 = 11, 0, 8;
        /// What was asked for.
        service: ServiceId = 12, 0, 64;
        /// The key that its datagrams need.
        qkey: QKey = 20, 0, 32;
        /// What would have been right, by the status.
        info: [u8; 72] = 24, 0, 72 * 8;
        /// For the program.
        private_data: [u8; 136] = 96, 0, 136 * 8;
    }

    /// A path in a REQ, as its sender sees it (IBA 12.6.5).
    PathInfo {
        /// The sender's LID.
        local_lid: u16 = 0, 0, 16;
        /// The recipient's LID.
        remote_lid: u16 = 2, 0, 16;
        /// The sender's GID.
        local_gid: Gid = 4, 0, 128;
        /// The recipient's GID.
        remote_gid: Gid = 20, 0, 128;
        /// Flow label.
        flow_label: u32 = 36, 0, 20;
        /// Rate.
        rate: u8 = 39, 2, 6;
        /// Traffic class.
        traffic_class: u8 = 40, 0, 8;
        /// Hop limit.
        hop_limit: u8 = 41, 0, 8;
        /// Service level.
        sl: u8 = 42, 0, 4;
        /// Not through a router.
        subnet_local: bool = 42, 4, 1;
        /// Local ACK timeout.
        ack_timeout: AckTimeout = 43, 0, 5;
    }
}

/// Bits of a path in a REQ.
const PATH_BITS: usize = 44 * 8;
