//! Step context of a queue pair: inputs, effects, tuning and counters.

use std::time::Duration;

use super::{AsyncEvent, Completion, Instant, SharedReceives, SrqId, TxQueue};
use crate::memory::{HostSlice, Table};

/// Effect of a step that the NIC carries out for the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Completion for the send completion queue.
    Sent(Completion),
    /// Completion for the send completion queue once the link has accepted the packets of this turn, because
    /// no acknowledgement will follow.
    Emitted(Completion),
    /// Completion for the receive completion queue.
    Received(Completion),
    /// Completion for the completion queue of an XRC shared receive queue.
    ReceivedFrom(SrqId, Completion),
    /// Event for the asynchronous event queue.
    Event(AsyncEvent),
}

/// Tuning parameters of a NIC, which the specification leaves open.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Per-peer window: bytes in flight to one peer, headers included; what the peer's receive buffer holds.
    pub window: usize,
    /// Longest part of a READ that one request covers, in bytes. A longer READ is sent as several requests,
    /// so that its responses do not overrun the local receive buffer.
    pub read_chunk: u32,
    /// Lower bound of the local ACK timeout, whatever the QP is configured with.
    pub min_timeout: Duration,
    /// Longest time that a request is in flight before an acknowledgement is requested; a quarter of the
    /// local ACK timeout if that is shorter.
    pub max_ack_silence: Duration,
    /// Number of packets that one QP sends before the next one has its turn.
    pub turn: usize,
    /// Paces UC and UD to one window per millisecond, for peers whose receive buffer overflows.
    pub pace_unacknowledged: bool,
    /// Lower bound of the retransmission/probe timeout (RTO/PTO).
    pub min_probe_timeout: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            window: 1 << 20,
            read_chunk: 1 << 30,
            min_timeout: Duration::from_millis(1),
            max_ack_silence: Duration::from_millis(1),
            turn: 256,
            pace_unacknowledged: false,
            min_probe_timeout: Duration::from_micros(100),
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a NIC, named as in the kernel's `hw_counters` where those have an equivalent.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Number of packets dropped as malformed: not a complete packet of an assigned opcode.
            pub fn rx_malformed(&self) -> u64 {
                self.rx_truncated + self.rx_bad_pad + self.rx_bad_version + self.rx_reserved_opcode
            }

            /// Iterates over names and values, in declaration order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl std::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Counters) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets received, before any check.
    rcvd_pkts,
    /// Bytes sent, BTH to ICRC.
    sent_bytes,
    /// Bytes received, BTH to ICRC.
    rcvd_bytes,
    /// Messages completed as a requester.
    rdma_sends,
    /// Messages completed as a responder.
    rdma_recvs,
    /// Duplicate requests.
    duplicate_request,
    /// Requests ahead of the expected PSN.
    out_of_seq_request,
    /// Sequence error NAKs received.
    rcvd_seq_err,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent.
    send_rnr_err,
    /// Local ACK timeouts of the requester.
    local_ack_timeout_err,
    /// Packets retransmitted after a loss or a timeout.
    retransmitted_pkts,
    /// Tail loss probes: packets retransmitted only to request an acknowledgement.
    ack_probe,
    /// Go-backs of the requester to an earlier PSN (go-back-N).
    requester_retry,
    /// Missing responses, detected because a later response arrived (implied NAK).
    implied_nak_seq_err,
    /// Work requests failed because the retry count was exhausted.
    retry_exceeded_err,
    /// Work requests failed because the RNR retry count was exhausted.
    retry_rnr_exceeded_err,
    /// NAKs sent for invalid requests.
    resp_invalid_request,
    /// NAKs sent for denied memory accesses.
    resp_remote_access_err,
    /// NAKs sent for local failures.
    resp_local_err,
    /// NAKs received that are fatal to the QP.
    req_remote_err,
    /// Responses that match no outstanding request.
    unexpected_response,
    /// Dropped: wrong ICRC.
    rx_icrc_err,
    /// Dropped: too short for a packet, or for the headers and padding of its opcode.
    rx_truncated,
    /// Dropped: length not a multiple of 4 bytes, so the pad count is wrong.
    rx_bad_pad,
    /// Dropped: transport header version other than 0.
    rx_bad_version,
    /// Dropped: unassigned opcode.
    rx_reserved_opcode,
    /// Dropped: no such QP, or not of this service.
    rx_unknown_qp,
    /// Dropped: multicast address without the multicast QPN or the reverse, or not a datagram.
    rx_not_multicast,
    /// Dropped: multicast group without attached QP.
    rx_unknown_group,
    /// Dropped: source address other than that of the connected peer.
    rx_wrong_source,
    /// Dropped: partition key mismatch.
    rx_pkey_violation,
    /// Dropped: queue key mismatch.
    rx_qkey_violation,
    /// Dropped: unreliable message without a receive, or without one that is long enough.
    rx_no_receive,
    /// Dropped: unreliable message that is incomplete or not allowed.
    rx_dropped_message,
    /// Dropped: QP not ready to receive.
    rx_wrong_state,
    /// Congestion notification packets received.
    cnp_handled,
    /// Packets handed over from the receiving shard of the NIC to another.
    rx_handed_over,
}

/// Step context: everything that a queue pair sees and affects in one step.
#[derive(Debug)]
pub struct Env<'a> {
    /// Current time.
    pub now: Instant,
    /// Memory table of the NIC.
    pub memory: &'a Table,
    /// Shared receive queue of the queue pair, if it has one.
    pub srq: Option<&'a mut SharedReceives>,
    /// Queue for packets to transmit.
    pub tx: &'a mut TxQueue,
    /// List for the effects: completions and events.
    pub out: &'a mut Vec<Output>,
    /// Scratch buffer for gathering, empty between uses.
    pub scratch: &'a mut Vec<HostSlice>,
    /// Scratch buffer for inline data, empty between uses.
    pub bytes: &'a mut Vec<u8>,
    /// Counters of the NIC.
    pub counters: &'a mut Counters,
    /// Tuning parameters of the NIC.
    pub tuning: &'a Tuning,
    /// Flight cost of what other queue pairs have in flight to the same peer.
    pub others_in_flight: u64,
}
