//! Sentence that says what a queue pair waits for: that of the first rule that applies.

use urxe::verbs::live::{NicSnapshot, QpSnapshot};

use super::table::time;

/// Time without a packet after which a connection counts as quiet.
const QUIET: u64 = 1_000_000_000;

/// A queue pair, its NIC, and its peer if that is on this host.
struct Situation<'a> {
    nic: &'a NicSnapshot,
    qp: &'a QpSnapshot,
    peer: Option<&'a QpSnapshot>,
}

type Rule = fn(&Situation<'_>) -> Option<String>;

/// Rules, the most important one first.
const RULES: [Rule; 13] = [
    failed,
    management,
    not_connected,
    port_down,
    receiver_not_ready,
    peer_silent,
    drained,
    unreliable_loss,
    peer_lost_datagrams,
    refused_packets,
    in_progress,
    unsent,
    waits_for_peer,
];

/// Returns what the queue pair waits for, or why it failed. `peer` is the state of its peer, if that is on this host.
pub fn why(nic: &NicSnapshot, qp: &QpSnapshot, peer: Option<&QpSnapshot>) -> String {
    let situation = Situation { nic, qp, peer };
    RULES.iter().find_map(|rule| rule(&situation)).unwrap_or_else(|| {
        let is_sender = qp.counters.sent_pkts > 0;
        let done = if is_sender { "all sent and complete" } else { "nothing outstanding" };
        format!("{done}: the program has posted nothing{}", since(qp.last_sent.max(qp.last_received)))
    })
}

impl Situation<'_> {
    fn is_reliable(&self) -> bool {
        !matches!(self.qp.service.as_str(), "UC" | "UD")
    }

    /// Reports whether no packet has been received for a while.
    fn is_quiet(&self) -> bool {
        self.qp.last_received.is_none_or(|ago| ago > QUIET)
    }

    /// Returns the number of packets that the peer has sent and that have not arrived, after the last that has.
    fn missing_at_end(&self) -> u32 {
        // Before RTS, the peer's next PSN has no meaning.
        let is_sender = |peer: &&QpSnapshot| {
            self.qp.service == "UC" && matches!(peer.state.as_str(), "RTS" | "SQD" | "SQE")
        };
        let Some(peer) = self.peer.filter(is_sender) else { return 0 };
        let ahead = peer.next_psn.wrapping_sub(self.qp.expected_psn) & 0xff_ffff;
        if ahead < 1 << 23 { ahead } else { 0 }
    }
}

fn failed(Situation { qp, .. }: &Situation<'_>) -> Option<String> {
    let cause = qp.failure.as_deref().unwrap_or("no failure is recorded");
    match qp.state.as_str() {
        "ERR" => Some(format!("ERR: {cause}")),
        "SQE" => Some(format!("SQE: sends are flushed after a failed one: {cause}")),
        _ => None,
    }
}

fn management(Situation { qp, .. }: &Situation<'_>) -> Option<String> {
    (qp.qpn == 1).then(|| "QP1: messages of the connection manager".into())
}

fn not_connected(Situation { qp, .. }: &Situation<'_>) -> Option<String> {
    match qp.state.as_str() {
        "RESET" => Some("RESET: the program has not set it up".into()),
        "INIT" => Some("INIT: not connected; packets for it are dropped".into()),
        "RTR" if qp.posted_sends > 0 => Some(format!("RTR: {} for RTS", waiting_requests(qp.posted_sends))),
        _ => None,
    }
}

fn port_down(Situation { nic, .. }: &Situation<'_>) -> Option<String> {
    match &nic.lost_link {
        Some(reason) => Some(format!("the link is lost: {reason}")),
        None => (!nic.is_up).then(|| "the port is down: all packets are lost".into()),
    }
}

fn receiver_not_ready(Situation { qp, .. }: &Situation<'_>) -> Option<String> {
    let naks = qp.counters.rcvd_rnr_err;
    let uses_retries = qp.rnr_retry < 7 && qp.rnr_retries_left < qp.rnr_retry;
    let waits = qp.outstanding > 0 && naks > 0 && (qp.is_in_rnr_wait || uses_retries);
    let limit = match qp.rnr_retry {
        7 => "no limit".into(),
        all => format!("retry {} of {all}", all.saturating_sub(qp.rnr_retries_left)),
    };
    waits.then(|| format!("waits: the peer has posted no receive, {naks} RNR NAKs ({limit})"))
}

fn peer_silent(situation: &Situation<'_>) -> Option<String> {
    let qp = situation.qp;
    if !situation.is_reliable() || qp.outstanding == 0 {
        return None;
    }
    let used = qp.retry_cnt.saturating_sub(qp.retries_left);
    let silence = [qp.last_received, qp.last_progress].into_iter().flatten().min();
    let silence =
        silence.map_or_else(|| "has not answered".into(), |ago| format!("has been silent for {}", time(ago)));
    match qp.ack_timeout {
        _ if used > 0 => Some(format!("the peer {silence}, retry {used} of {}", qp.retry_cnt)),
        None if situation.is_quiet() => Some(format!(
            "the peer {silence}, and the ACK timeout is infinite (timeout 0): a lost packet is never resent"
        )),
        _ => None,
    }
}

fn drained(Situation { qp, .. }: &Situation<'_>) -> Option<String> {
    (qp.state == "SQD")
        .then(|| format!("SQD: the program has stopped the send queue; {}", waiting_requests(qp.unsent)))
}

/// A lost packet of an unreliable connection, for whose message the receiver waits in vain.
fn unreliable_loss(situation: &Situation<'_>) -> Option<String> {
    let qp = situation.qp;
    let at_end = if situation.is_quiet() { u64::from(situation.missing_at_end()) } else { 0 };
    let lost = qp.counters.rx_missing + at_end;
    let ended_incomplete = qp.has_incomplete_receive || qp.is_receiving && situation.is_quiet();
    if qp.service != "UC" || lost == 0 && !ended_incomplete {
        return None;
    }
    let (what, message) = match lost {
        0 => ("the end of a message did not arrive".into(), "it"),
        1 => ("1 packet of the peer was lost".into(), "its message"),
        n => (format!("{n} packets of the peer were lost"), "their messages"),
    };
    Some(format!(
        "UC: {what}; the transport does not resend, so {message} ended incomplete; {}{}",
        waiting(qp),
        since(qp.last_received)
    ))
}

/// The sender's view of such a loss, if the peer is on this host.
fn peer_lost_datagrams(situation: &Situation<'_>) -> Option<String> {
    let (qp, peer) = (situation.qp, situation.peer?);
    let reverse = Situation { nic: situation.nic, qp: peer, peer: Some(qp) };
    let lost = peer.counters.rx_missing + u64::from(reverse.missing_at_end());
    let is_lost = qp.service == "UC" && qp.posted_sends == 0 && lost > 0 && reverse.is_quiet();
    is_lost.then(|| format!("UC: all sent and complete, but {lost} of the packets did not reach the peer; the transport does not resend{}", since(qp.last_sent)))
}

fn refused_packets(situation: &Situation<'_>) -> Option<String> {
    let c = &situation.qp.counters;
    let drops = [
        (c.rx_no_receive, "no receive was posted, or it was too short"),
        (c.rx_qkey_violation, "their queue key is wrong"),
        (c.rx_pkey_violation, "their partition key is wrong"),
        (c.rx_wrong_source, "they are not from the connected peer's address"),
        (c.rx_wrong_state, "the QP was not ready to receive"),
        (c.rx_dropped_message, "their message is incomplete or not permitted"),
    ];
    let (count, reason) =
        drops.into_iter().max_by_key(|(count, _)| *count).filter(|(count, _)| *count > 0)?;
    situation.is_quiet().then(|| format!("dropped {count} packets: {reason}; {}", waiting(situation.qp)))
}

fn in_progress(situation: &Situation<'_>) -> Option<String> {
    let qp = situation.qp;
    let c = &qp.counters;
    let retransmitted = match c.retransmitted_pkts {
        0 => String::new(),
        n => format!("; {n} packets retransmitted"),
    };
    (qp.outstanding > 0).then(|| {
        format!("in progress: {}, {} bytes{retransmitted}", requests(qp.outstanding), qp.outstanding_bytes)
    })
}

fn unsent(Situation { qp, .. }: &Situation<'_>) -> Option<String> {
    let limit = qp.rate_limit.map_or_else(
        || "the congestion window, credits or pacing".into(),
        |rate| format!("the rate limit of {:.3} Gb/s", rate * 1e-9),
    );
    (qp.unsent > 0).then(|| format!("{} for {limit}", waiting_requests(qp.unsent)))
}

fn waits_for_peer(situation: &Situation<'_>) -> Option<String> {
    let qp = situation.qp;
    (qp.posted_receives > 0)
        .then(|| format!("{} for a message of the peer{}", waiting(qp), since(qp.last_received)))
}

/// Returns what the receiver waits with.
fn waiting(qp: &QpSnapshot) -> String {
    let shared = if qp.shared_receives { "in the SRQ" } else { "posted" };
    match qp.posted_receives {
        0 => "no receive is posted".into(),
        1 => format!("waits with 1 receive {shared}"),
        n => format!("waits with {n} receives {shared}"),
    }
}

fn waiting_requests(count: u64) -> String {
    format!("{} {}", requests(count), if count == 1 { "waits" } else { "wait" })
}

fn requests(count: u64) -> String {
    if count == 1 { "1 work request".into() } else { format!("{count} work requests") }
}

/// Returns the time since the last packet, unless it is short.
fn since(last: Option<u64>) -> String {
    match last {
        Some(ago) if ago > QUIET => format!(", last packet {} ago", time(ago)),
        Some(_) => String::new(),
        None => ", no packet so far".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a queue pair in RTS over which nothing has been sent, with the given changes.
    fn qp(changes: Value) -> QpSnapshot {
        let mut qp = json!({
            "qpn": 17, "service": "RC", "state": "RTS", "peer": null, "next_psn": 0, "unacked_psn": 0, "expected_psn": 0,
            "posted_sends": 0, "unsent": 0, "outstanding": 0, "outstanding_bytes": 0, "posted_receives": 0,
            "shared_receives": false, "is_receiving": false, "has_incomplete_receive": false, "is_in_rnr_wait": false,
            "retries_left": 7, "retry_cnt": 7, "rnr_retries_left": 7, "rnr_retry": 7, "ack_timeout": 67_000_000,
            "rate_limit": null, "last_sent": null, "last_received": null, "last_progress": null, "failure": null,
            "events": [], "counters": {},
        });
        for (name, value) in changes.as_object().unwrap() {
            assert!(qp.get(name).is_some(), "{name}");
            qp[name] = value.clone();
        }
        serde_json::from_value(qp).unwrap()
    }

    fn nic(is_up: bool) -> NicSnapshot {
        serde_json::from_value(json!({
            "pid": 1, "command": "", "device": "urxe0", "link": "", "addresses": [], "is_up": is_up, "lost_link": null,
            "speed": 0, "clock": 0, "is_complete": true, "counters": {}, "faults": [], "qps": [],
        }))
        .unwrap()
    }

    fn reason(changes: Value) -> String {
        why(&nic(true), &qp(changes), None)
    }

    #[test]
    fn reason_names_the_state_or_what_is_waited_for() {
        let second = 1_000_000_000u64;
        for (changes, expected) in [
            (json!({}), "nothing outstanding: the program has posted nothing, no packet so far"),
            (json!({"state": "RESET"}), "RESET: the program has not set it up"),
            (json!({"state": "RTR", "posted_sends": 2}), "RTR: 2 work requests wait for RTS"),
            (json!({"state": "ERR", "failure": "it broke"}), "ERR: it broke"),
            (
                json!({"state": "SQD", "unsent": 3}),
                "SQD: the program has stopped the send queue; 3 work requests wait",
            ),
            (
                json!({"outstanding": 1, "is_in_rnr_wait": true, "counters": {"rcvd_rnr_err": 12}}),
                "waits: the peer has posted no receive, 12 RNR NAKs (no limit)",
            ),
            (
                json!({"outstanding": 1, "rnr_retry": 3, "rnr_retries_left": 1, "counters": {"rcvd_rnr_err": 2}}),
                "waits: the peer has posted no receive, 2 RNR NAKs (retry 2 of 3)",
            ),
            (
                json!({"outstanding": 1, "retries_left": 5, "last_received": 3 * second}),
                "the peer has been silent for 3.0 s, retry 2 of 7",
            ),
            (
                json!({"outstanding": 1, "ack_timeout": null}),
                "the peer has not answered, and the ACK timeout is infinite (timeout 0): a lost packet is never resent",
            ),
            (
                json!({"outstanding": 2, "outstanding_bytes": 8192, "counters": {"retransmitted_pkts": 3}}),
                "in progress: 2 work requests, 8192 bytes; 3 packets retransmitted",
            ),
            (
                json!({"unsent": 1, "rate_limit": 1e9}),
                "1 work request waits for the rate limit of 1.000 Gb/s",
            ),
            (
                json!({"posted_receives": 64, "last_received": 90 * second}),
                "waits with 64 receives posted for a message of the peer, last packet 90 s ago",
            ),
            (
                json!({"service": "UD", "last_received": 2 * second, "counters": {"rx_qkey_violation": 4}}),
                "dropped 4 packets: their queue key is wrong; no receive is posted",
            ),
            (json!({"qpn": 1, "service": "UD"}), "QP1: messages of the connection manager"),
        ] {
            assert_eq!(reason(changes.clone()), expected, "{changes}");
        }
        assert_eq!(why(&nic(false), &qp(json!({})), None), "the port is down: all packets are lost");
    }

    #[test]
    fn loss_on_an_unreliable_connection_is_shown_at_both_ends() {
        let second = 1_000_000_000u64;
        let quiet = json!({
            "service": "UC", "expected_psn": 90, "last_received": 3 * second, "posted_receives": 63, "is_receiving": true,
        });
        assert_eq!(
            reason(quiet.clone()),
            "UC: the end of a message did not arrive; the transport does not resend, so it ended incomplete; waits with 63 \
             receives posted, last packet 3.0 s ago"
        );
        // The last packets are missing, as only the sender shows.
        let (receiver, sender) =
            (qp(quiet), qp(json!({"service": "UC", "next_psn": 92, "last_sent": second / 2})));
        assert!(
            why(&nic(true), &receiver, Some(&sender)).starts_with("UC: 2 packets of the peer were lost; ")
        );
        assert_eq!(
            why(&nic(true), &sender, Some(&receiver)),
            "UC: all sent and complete, but 2 of the packets did not reach the peer; the transport does not resend"
        );
        // While packets arrive, those on the way are not lost.
        let receiver =
            qp(json!({"service": "UC", "expected_psn": 90, "last_received": 1000, "posted_receives": 63}));
        assert_eq!(
            why(&nic(true), &receiver, Some(&sender)),
            "waits with 63 receives posted for a message of the peer"
        );
    }
}
