//! Snapshot of a queue pair: its state for people and programs that look at it from outside.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::requester::Requester;
use super::responder::Responder;
use super::{Instant, QpCounters, QpType, QueuePair, Tuning};

/// State of a queue pair at one moment. Durations are in nanoseconds; PSNs and numbers of queue pairs have 24 bits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QpSnapshot {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Transport service: `RC`, `UC`, `UD`, `XRC-INI` or `XRC-TGT`.
    pub service: String,
    /// State, such as `RTS`.
    pub state: String,
    /// Peer; `None` before RTR and for UD.
    pub peer: Option<PeerSnapshot>,
    /// PSN of the next packet to send.
    pub next_psn: u32,
    /// Oldest unacknowledged PSN. Equal to `next_psn` if nothing is outstanding, and for an unreliable service.
    pub unacked_psn: u32,
    /// PSN that is expected of the peer's next request.
    pub expected_psn: u32,
    /// Number of posted send work requests that are not complete.
    pub posted_sends: u64,
    /// Number of those of which no packet has been sent.
    pub unsent: u64,
    /// Number of those of which packets have been sent.
    pub outstanding: u64,
    /// Bytes of the messages of outstanding work requests.
    pub outstanding_bytes: u64,
    /// Number of receives in the receive queue; in the shared receive queue, if `shared_receives` is true.
    pub posted_receives: u64,
    /// Whether receives are taken from a shared receive queue.
    pub shared_receives: bool,
    /// Whether a message of several packets has begun to arrive, and its end has not arrived.
    pub is_receiving: bool,
    /// Whether a receive belongs to a message that ended incomplete, and waits for the next message.
    pub has_incomplete_receive: bool,
    /// Whether the queue pair waits for the end of an RNR wait.
    pub is_in_rnr_wait: bool,
    /// Transport retries left, of `retry_cnt`.
    pub retries_left: u8,
    /// Limit of transport retries.
    pub retry_cnt: u8,
    /// RNR retries left, of `rnr_retry`.
    pub rnr_retries_left: u8,
    /// Limit of RNR retries; 7 stands for no limit.
    pub rnr_retry: u8,
    /// Local ACK timeout; `None` if it is infinite, or before RTS.
    pub ack_timeout: Option<u64>,
    /// Configured rate limit in bits per second; `None` if there is none.
    pub rate_limit: Option<f64>,
    /// Time since the last packet was sent; `None` if none was.
    pub last_sent: Option<u64>,
    /// Time since the last packet was received; `None` if none was.
    pub last_received: Option<u64>,
    /// Time since the peer last acknowledged a new packet; `None` if it has not since RTS.
    pub last_progress: Option<u64>,
    /// Why the queue pair failed; `None` if it has not since RESET or RTS.
    pub failure: Option<String>,
    /// Newest slow events, oldest first: state changes, timeouts, NAKs and retransmissions.
    pub events: Vec<String>,
    /// Counters.
    pub counters: QpCounters,
}

/// Peer of a connected queue pair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerSnapshot {
    /// Address.
    pub address: IpAddr,
    /// Number of the peer's queue pair.
    pub qpn: u32,
}

fn service(of: QpType) -> &'static str {
    match of {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC-INI",
        QpType::XrcRecv => "XRC-TGT",
    }
}

impl QueuePair {
    /// Returns the state of the queue pair. `shared` is the number of receives in its shared receive queue, if it uses one.
    pub fn snapshot(&self, now: Instant, shared: Option<usize>, tuning: &Tuning) -> QpSnapshot {
        let (conn, traffic) = (&self.conn, &self.traffic);
        let Requester { queue, recovery, .. } = &self.requester;
        let Responder { receives, expected, .. } = &self.responder;
        let ago = |at: Option<Instant>| at.map(|at| now.since(at).as_nanos() as u64);
        let (retries_left, rnr_retries_left) = recovery.retries();
        let begun = self.requester.begun();
        let is_receiving = self.responder.is_receiving();
        let counters = QpCounters {
            sent_pkts: traffic.sent_pkts,
            sent_bytes: traffic.sent_bytes,
            rcvd_pkts: traffic.rcvd_pkts,
            rcvd_bytes: traffic.rcvd_bytes,
            retransmitted_pkts: traffic.retransmitted_pkts,
            ..conn.history.counters()
        };
        QpSnapshot {
            qpn: conn.qpn.get(),
            service: service(conn.qp_type).into(),
            state: conn.state.to_string(),
            peer: conn.flow.map(|flow| PeerSnapshot { address: flow.dst, qpn: conn.attr.dest_qpn.get() }),
            next_psn: self.requester.next_psn().get(),
            unacked_psn: self.requester.unacknowledged().get(),
            expected_psn: expected.get(),
            posted_sends: queue.end() - queue.start(),
            unsent: queue.end() - begun.end,
            outstanding: begun.end - begun.start,
            outstanding_bytes: begun.filter_map(|index| queue.get(index)).map(|wqe| u64::from(wqe.len)).sum(),
            posted_receives: shared.unwrap_or(receives.posted()) as u64,
            shared_receives: shared.is_some(),
            is_receiving,
            has_incomplete_receive: receives.has_current() && !is_receiving,
            is_in_rnr_wait: recovery.is_in_rnr_wait(),
            retries_left,
            retry_cnt: conn.attr.retry_cnt,
            rnr_retries_left,
            rnr_retry: conn.attr.rnr_retry,
            ack_timeout: recovery.ack_timeout(conn, tuning).map(|timeout| timeout.as_nanos() as u64),
            rate_limit: self.pacer.rate(None).map(|rate| rate.bits_per_second()),
            last_sent: ago(traffic.last_sent),
            last_received: ago(traffic.last_received),
            last_progress: ago(recovery.last_progress),
            failure: conn.history.failure().map(|failure| failure.cause.to_string()),
            events: conn.history.past(now).iter().map(ToString::to_string).collect(),
            counters,
        }
    }
}
