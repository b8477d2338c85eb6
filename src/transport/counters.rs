//! Counters of a NIC.

use crate::sys::counters::counters;

counters! {
    /// NIC counters. A counter with an equivalent in the kernel's `hw_counters` has the same name.
    "" Counters {
        /// Packets sent.
        sent_pkts,
        /// Packets received, counted before any check.
        rcvd_pkts,
        /// Bytes sent, counted from the BTH through the ICRC.
        sent_bytes,
        /// Bytes received, counted from the BTH through the ICRC.
        rcvd_bytes,
        /// Messages that the NIC completed as the requester.
        rdma_sends,
        /// Messages that the NIC completed as the responder.
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
        /// Number of times the requester went back to an earlier PSN (go-back-N), or retransmitted one packet alone (selective
        /// repeat).
        requester_retry,
        /// Missing responses, detected by the arrival of a later response (implied NAK).
        implied_nak_seq_err,
        /// Work requests that failed because the retry count was exhausted.
        retry_exceeded_err,
        /// Work requests that failed because the RNR retry count was exhausted.
        retry_rnr_exceeded_err,
        /// NAKs sent for invalid requests.
        resp_invalid_request,
        /// NAKs sent for denied memory accesses.
        resp_remote_access_err,
        /// NAKs sent because a valid request could not be executed locally.
        resp_local_err,
        /// NAKs received that are fatal to the QP.
        req_remote_err,
        /// Responses that match no outstanding request.
        unexpected_response,
        /// Packets dropped because of a wrong ICRC.
        rx_icrc_err,
        /// Packets dropped because they are too short for a BTH and an ICRC, or for their opcode's headers and
        /// their padding.
        rx_truncated,
        /// Packets dropped because their length is not a multiple of 4 bytes, which means that the pad count is
        /// wrong.
        rx_bad_pad,
        /// Packets dropped because the transport header version is not 0.
        rx_bad_version,
        /// Packets dropped because of an unassigned opcode.
        rx_reserved_opcode,
        /// Packets dropped because the destination QP does not exist or uses another transport service.
        rx_unknown_qp,
        /// Packets dropped because only one of the destination address and the QPN is multicast, or because a
        /// multicast packet is not a datagram.
        rx_not_multicast,
        /// Packets dropped because no QP is attached to the multicast group.
        rx_unknown_group,
        /// Packets dropped because the source address is not the connected peer's.
        rx_wrong_source,
        /// Packets dropped because of a partition key mismatch.
        rx_pkey_violation,
        /// Packets dropped because of a queue key mismatch.
        rx_qkey_violation,
        /// Packets of unreliable services dropped because no receive was posted or the next one was too short.
        rx_no_receive,
        /// Packets of unreliable services dropped because their message was incomplete or not permitted.
        rx_dropped_message,
        /// Packets dropped because the QP was not ready to receive.
        rx_wrong_state,
        /// Congestion notification packets (CNPs) received and handled by congestion control.
        rp_cnp_handled,
        /// CNPs received that congestion control ignores.
        rp_cnp_ignored,
        /// Packets received with the mark "congestion experienced" and accepted by a QP; CNPs are not counted.
        np_ecn_marked_roce_packets,
        /// Congestion notification packets sent.
        np_cnp_sent,
        /// Packets received by one shard of the NIC and handed over to another.
        rx_handed_over,
        /// RDMA WRITE and ATOMIC WRITE requests executed; a request of several packets counts once.
        rx_write_requests,
        /// RDMA READ requests executed.
        rx_read_requests,
        /// Compare-and-swap and fetch-and-add requests executed.
        rx_atomic_requests,
        /// Multicast packets sent.
        sent_mcast_pkts,
        /// Multicast packets received.
        rcvd_mcast_pkts,
        /// Error completions of send work requests.
        req_cqe_error,
        /// Send work requests flushed.
        req_cqe_flush_error,
        /// Error completions because the peer denied a memory access.
        req_remote_access_errors,
        /// Error completions because the peer rejected a request as invalid.
        req_remote_invalid_request,
        /// Error completions of receives.
        resp_cqe_error,
        /// Receives flushed.
        resp_cqe_flush_error,
        /// Error completions of receives that were shorter than the message.
        resp_local_length_error,
    }
}

counters! {
    /// Counters of a queue pair since it was created. A counter of [`Counters`] has the same name.
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
    QpCounters {
        /// Packets sent.
        sent_pkts,
        /// Packets received for the queue pair.
        rcvd_pkts,
        /// Bytes sent, counted from the BTH through the ICRC.
        sent_bytes,
        /// Bytes received, counted from the BTH through the ICRC.
        rcvd_bytes,
        /// Packets retransmitted after a loss or a timeout.
        retransmitted_pkts,
        /// Tail loss probes sent.
        ack_probe,
        /// Local ACK timeouts.
        local_ack_timeout_err,
        /// Sequence error NAKs received.
        rcvd_seq_err,
        /// Missing responses (implied NAKs).
        implied_nak_seq_err,
        /// RNR NAKs received, without those that arrived during an RNR wait.
        rcvd_rnr_err,
        /// NAKs received that are fatal.
        req_remote_err,
        /// Sequence error NAKs sent: gaps in the requests of the peer.
        sent_seq_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// NAKs sent that are fatal to the peer's queue pair.
        sent_nak_err,
        /// Congestion notification packets (CNPs) received and handled by congestion control.
        rp_cnp_handled,
        /// CNPs received that congestion control ignores.
        rp_cnp_ignored,
        /// Congestion notification packets sent.
        np_cnp_sent,
        /// Packets received with the mark "congestion experienced".
        np_ecn_marked_roce_packets,
        /// Packets of a UC peer that did not arrive: the sum of the gaps in their PSNs.
        rx_missing,
        /// Packets of unreliable services dropped because no receive was posted or the next one was too short.
        rx_no_receive,
        /// Packets of unreliable services dropped because their message was incomplete or not permitted.
        rx_dropped_message,
        /// Packets dropped because the queue pair was not ready to receive.
        rx_wrong_state,
        /// Packets dropped because the source address is not the connected peer's.
        rx_wrong_source,
        /// Packets dropped because of a partition key mismatch.
        rx_pkey_violation,
        /// Packets dropped because of a queue key mismatch.
        rx_qkey_violation,
    }
}

impl Counters {
    /// Returns the number of malformed packets dropped: truncated, wrongly padded, of an unknown
    /// header version, or with an unassigned opcode.
    pub fn rx_malformed(&self) -> u64 {
        self.rx_truncated + self.rx_bad_pad + self.rx_bad_version + self.rx_reserved_opcode
    }

    /// Iterates over counter names and values, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.named()
    }
}

/// Retransmitted packets by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Retransmissions {
    /// Packets retransmitted after a loss or a timeout ([`Counters::retransmitted_pkts`]).
    pub after_loss: u64,
    /// Tail loss probes ([`Counters::ack_probe`]). If the packet was lost, its probe repairs the loss.
    pub probes: u64,
}

impl From<Counters> for Retransmissions {
    fn from(counters: Counters) -> Retransmissions {
        Retransmissions { after_loss: counters.retransmitted_pkts, probes: counters.ack_probe }
    }
}

impl std::ops::AddAssign for Retransmissions {
    fn add_assign(&mut self, other: Retransmissions) {
        self.after_loss += other.after_loss;
        self.probes += other.probes;
    }
}

impl std::fmt::Display for Retransmissions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Retransmissions { after_loss, probes } = self;
        write!(
            f,
            "packets retransmitted: {} ({after_loss} after a loss, {probes} as probes)",
            after_loss + probes
        )
    }
}
