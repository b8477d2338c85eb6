//! What a queue pair is given for one step.

use std::time::Duration;

use super::{AsyncEvent, Completion, Instant, SharedReceives, SrqId, TxQueue};
use crate::memory::{HostSlice, Table};

/// What a queue pair reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// For the send completion queue.
    Sent(Completion),
    /// For the send completion queue, once the link has taken the packets of this turn: nobody will acknowledge them.
    Emitted(Completion),
    /// For the receive completion queue.
    Received(Completion),
    /// For the completion queue of a shared receive queue of XRC.
    ReceivedFrom(SrqId, Completion),
    /// For the asynchronous event queue.
    Event(AsyncEvent),
}

/// How a NIC behaves where the specification leaves it open.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Bytes that are kept in flight to one peer, headers counted: what its receive buffer holds.
    pub window: usize,
    /// The longest part of a READ that is asked for at once: a longer one goes out as several requests,
    /// so that its responses do not overrun our own receive buffer.
    pub read_chunk: u32,
    /// The shortest retransmission timeout, whatever the QP asks for.
    pub min_timeout: Duration,
    /// How long a request may be in flight, at most, before an acknowledgement is asked for; a quarter of the
    /// timeout if that is less.
    pub max_ack_silence: Duration,
    /// Packets that one QP sends before the next one has its turn.
    pub turn: usize,
    /// Whether UC and UD send no more in a millisecond than the window: for peers whose receive buffer overflows.
    pub pace_unacknowledged: bool,
    /// How soon, at the earliest, an answer that is late, as answers have been so far, is asked for again.
    pub min_patience: Duration,
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
            min_patience: Duration::from_micros(100),
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a NIC counts; names as in the kernel's `hw_counters` where those have one.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Packets dropped for their form: no whole packet of an assigned opcode.
            pub fn rx_malformed(&self) -> u64 {
                self.rx_truncated + self.rx_bad_pad + self.rx_bad_version + self.rx_reserved_opcode
            }

            /// Names and values, in order.
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
    /// Requests that came again.
    duplicate_request,
    /// Requests ahead of the expected PSN.
    out_of_seq_request,
    /// Sequence error NAKs received.
    rcvd_seq_err,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent.
    send_rnr_err,
    /// Requester timeouts.
    local_ack_timeout_err,
    /// Packets sent again after a loss or a timeout.
    retransmitted_pkts,
    /// Packets sent again only to ask for an acknowledgement.
    ack_probe,
    /// Times that the requester went back to an earlier PSN.
    requester_retry,
    /// Responses missing: a later one came first.
    implied_nak_seq_err,
    /// Work requests given up after all retries.
    retry_exceeded_err,
    /// Work requests given up as the peer never was ready to receive.
    retry_rnr_exceeded_err,
    /// NAKs for invalid requests sent.
    resp_invalid_request,
    /// NAKs for refused accesses sent.
    resp_remote_access_err,
    /// NAKs for failures of our own sent.
    resp_local_err,
    /// Fatal NAKs received.
    req_remote_err,
    /// Responses that fit nothing outstanding.
    unexpected_response,
    /// Dropped: the ICRC is wrong.
    rx_icrc_err,
    /// Dropped: too short for a packet, or for the headers and padding of its opcode.
    rx_truncated,
    /// Dropped: not a multiple of 4 bytes, so the pad count is wrong.
    rx_bad_pad,
    /// Dropped: a transport header version that is not 0.
    rx_bad_version,
    /// Dropped: an opcode that is not assigned.
    rx_reserved_opcode,
    /// Dropped: no such QP, or not of this service.
    rx_unknown_qp,
    /// Dropped: a multicast address without the multicast QP or the other way round, or no datagram.
    rx_not_multicast,
    /// Dropped: to a multicast group that no QP is attached to.
    rx_unknown_group,
    /// Dropped: not from the address that the QP is connected to.
    rx_wrong_source,
    /// Dropped: the partition key is not the QP's.
    rx_pkey_violation,
    /// Dropped: the queue key is not the QP's.
    rx_qkey_violation,
    /// Dropped: an unreliable message that found no receive, or none that is long enough.
    rx_no_receive,
    /// Dropped: an unreliable message that is not whole, or not allowed.
    rx_dropped_message,
    /// Dropped: the QP is not ready to receive.
    rx_wrong_state,
    /// Congestion notification packets received.
    cnp_handled,
    /// Packets that came to one shard of the NIC and were handed over to another.
    rx_handed_over,
}

/// The world as a queue pair sees it in one step.
#[derive(Debug)]
pub struct Env<'a> {
    /// The time.
    pub now: Instant,
    /// The NIC's regions.
    pub memory: &'a Table,
    /// The shared receive queue of the queue pair, if it has one.
    pub srq: Option<&'a mut SharedReceives>,
    /// Where packets go.
    pub tx: &'a mut TxQueue,
    /// Where completions and events go.
    pub out: &'a mut Vec<Output>,
    /// A buffer for gathering, empty between uses.
    pub scratch: &'a mut Vec<HostSlice>,
    /// A buffer for inline data, empty between uses.
    pub bytes: &'a mut Vec<u8>,
    /// The NIC's counters.
    pub counters: &'a mut Counters,
    /// The NIC's habits.
    pub tuning: &'a Tuning,
    /// Flight cost of what other queue pairs have on the way to the same peer.
    pub others_in_flight: u64,
}
