//! Counters of a NIC.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a NIC, named as in the kernel's `hw_counters` where those have an equivalent.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
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
