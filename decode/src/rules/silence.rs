//! Requests that nothing answers.

use std::net::IpAddr;

use urxe::wire::Qpn;

use super::context::{Capture, timeout_text};
use crate::finding::{Diagnosis, Finding, Severity};
use crate::layers::{IcmpError, IcmpKind, Version};
use crate::text::{count, duration};
use crate::track::facts::{At, Cause};
use crate::track::path::Host;
use crate::track::stream::Stream;

/// Time without an answer after which a peer is taken for silent if nothing was resent: longer than the
/// round trip of any path.
const LONG: u64 = 1_000_000_000;

/// Reports whether no response to a stream's requests was seen.
pub(super) fn is_unanswered(stream: &Stream) -> bool {
    let requests = &stream.requests;
    let facts = &requests.facts;
    requests.first.is_some()
        && requests.acknowledged.is_none()
        && facts.not_ready.is_none()
        && facts.fatal.is_none()
        && facts.sequence_naks == 0
        && facts.response_gaps.count == 0
        && facts.ahead.is_none()
        && requests.window.iter().all(|r| r.next_response == r.psn)
}

/// Reports whether the capture lacks the responses to a stream's requests: its sender goes on, and never starts again
/// from its first request, so that something answers.
pub(super) fn is_one_way(stream: &Stream) -> bool {
    let facts = &stream.requests.facts;
    let Some((_, first)) = stream.requests.first.filter(|_| is_unanswered(stream)) else { return false };
    facts.resent == 0 || facts.resends.first.iter().all(|resend| resend.psn.is_after(first))
}

/// Number of requests for a link-layer address without an answer from which the host is taken for absent.
const MANY_REQUESTS: u64 = 3;

/// Address resolution that fails before any RoCE packet is sent: those wait in the kernel for the answer.
pub(super) fn unresolved(capture: &Capture<'_>) -> Vec<Finding> {
    let tracker = capture.tracker;
    // Hosts ask for addresses for other reasons, too: only those of hosts with RoCE count, if there are any.
    let is_asked_for_roce = |host: &Host| {
        tracker.totals.roce == 0 || host.asked_by.is_some_and(|ip| tracker.last_from(ip).is_some())
    };
    let is_peer = |ip: IpAddr| tracker.streams.iter().any(|stream| stream.key.dst == ip);
    let absent = tracker.path.hosts.iter().filter(|(ip, host)| {
        !host.answered && host.unanswered.0 >= MANY_REQUESTS && is_asked_for_roce(host) && !is_peer(**ip)
    });
    let finding = |(ip, host): (&IpAddr, &Host)| Finding {
        text: format!(
            "the peer never answered: no host has the address {ip}: {} for it from packet {} on, unanswered, and no RoCE packet was sent to it",
            requests_for(*ip, host.unanswered.0),
            host.unanswered.1.packet
        ),
        remedy: format!("check the address {ip}: is its host up, on this network, in this VLAN?"),
        ..capture.finding(Diagnosis::PeerSilent, Severity::Failure, ip.to_string(), host.unanswered.1)
    };
    absent.map(finding).collect()
}

fn requests_for(ip: IpAddr, number: u64) -> String {
    count(number, if ip.is_ipv4() { "ARP request" } else { "neighbour solicitation" })
}

pub(super) fn findings(capture: &Capture<'_>, stream: &Stream) -> Vec<Finding> {
    let tracker = capture.tracker;
    let Some((first, _)) = stream.requests.first.filter(|_| is_unanswered(stream)) else { return Vec::new() };
    let waited = tracker.totals.last_time.saturating_sub(first.time);
    let facts = &stream.requests.facts;
    let is_about = |src: IpAddr, dst: IpAddr| src == stream.key.src && dst == stream.key.dst;
    let icmp = tracker.path.icmp.first.iter().find(|(_, error)| is_about(error.src, error.dst));
    if facts.resent == 0 && waited < LONG && icmp.is_none() {
        return Vec::new();
    }
    let sent = format!(
        "{} sent {} from packet {} on{}, and nothing answers",
        stream.key.src,
        count(facts.requests, "request"),
        first.packet,
        match facts.resent {
            0 => String::new(),
            n => format!(", resent {n} of them"),
        }
    );
    let start = |diagnosis| capture.of_stream(diagnosis, Severity::Failure, stream, first);
    let dst = stream.key.dst;
    // The answers have wrong ICRCs, which is a finding of its own.
    if super::integrity::drops_from(capture, dst, stream.key.src) {
        return Vec::new();
    }
    if let Some(finding) = of_icmp(capture, stream, first) {
        return vec![finding];
    }
    let unanswered = tracker.path.hosts.get(&dst).filter(|host| host.unanswered.0 > 0 && !host.answered);
    if let Some(host) = unanswered {
        return vec![Finding {
            text: format!(
                "the peer never answered: no host has the address {dst}: {} for it, from packet {} on, unanswered",
                requests_for(dst, host.unanswered.0),
                host.unanswered.1.packet
            ),
            remedy: format!("check the address {dst}: is its host up, on this network, in this VLAN?"),
            packets: vec![capture.packet(host.unanswered.1), capture.packet(first)],
            ..start(Diagnosis::PeerSilent)
        }];
    }
    if is_one_way(stream) {
        return vec![Finding {
            severity: Severity::Note,
            text: format!(
                "the capture has no response to {} of {}, which goes on all the same: it lacks the packets from {dst}",
                count(facts.requests, "request"),
                stream.key.src
            ),
            remedy: "capture both directions: at a mirror port, ingress and egress".into(),
            ..start(Diagnosis::CaptureIncomplete)
        }];
    }
    if stream.version == Version::V1 {
        return vec![Finding {
            text: format!("the peer never answered: your GID is of RoCEv1: {sent}"),
            remedy: "use a GID of type RoCE v2 at both ends (`show_gids`; `-x INDEX` for perftest, NCCL_IB_GID_INDEX, UCX_IB_GID_INDEX)".into(),
            ..start(Diagnosis::PeerSilent)
        }];
    }
    if is_link_local(dst) {
        return vec![Finding {
            text: format!(
                "the peer never answered: your GID is link-local ({dst}), which routers do not forward: {sent}"
            ),
            remedy: "use a GID with a routable address at both ends".into(),
            ..start(Diagnosis::PeerSilent)
        }];
    }
    if let Some((reason, at)) = unknown_qp(capture, stream, first) {
        return vec![Finding {
            text: format!("the peer has no such QP: {reason}; {sent}"),
            remedy: "exchange the queue pair numbers again after each restart, and before RTR".into(),
            packets: vec![capture.packet(first), capture.packet(at)],
            ..start(Diagnosis::UnknownQp)
        }];
    }
    let waits = facts.resends.first.iter().find_map(|resend| match resend.cause {
        Cause::Timeout(nanos) if nanos > 0 => {
            Some(format!("; retransmission timeout {}", timeout_text(nanos)))
        }
        _ => None,
    });
    vec![Finding {
        text: format!(
            "the peer never answered: {sent} within {}{}{}",
            duration(waited),
            waits.unwrap_or_default(),
            match stream.requests.window.oldest().map_or(0, |r| r.sends) {
                0..=1 => String::new(),
                n => format!(
                    "; packet {} was sent {n} times, then the retry counter was exceeded",
                    first.packet
                ),
            }
        ),
        remedy: format!(
            "check that {dst} runs an RDMA device with this address, and that no firewall drops UDP port 4791"
        ),
        ..start(Diagnosis::PeerSilent)
    }]
}

/// Explains requests that are not answered by an ICMP error about them.
pub(super) fn of_icmp(capture: &Capture<'_>, stream: &Stream, first: At) -> Option<Finding> {
    let finding = icmp_between(capture, stream.key.src, stream.key.dst, first)?;
    Some(Finding { subject: capture.name(stream), stream: Some(stream.key), ..finding })
}

/// Explains packets from `src` to `dst`, of which `first` is the first, by an ICMP error about them.
pub(super) fn icmp_between(capture: &Capture<'_>, src: IpAddr, dst: IpAddr, first: At) -> Option<Finding> {
    let is_about = |(_, error): &&(At, IcmpError)| (error.src, error.dst) == (src, dst);
    let (at, error) = capture.tracker.path.icmp.first.iter().find(is_about)?;
    let start = |diagnosis| capture.finding(diagnosis, Severity::Failure, format!("{src} → {dst}"), first);
    let (what, remedy) = match error.kind {
        IcmpKind::PortUnreachable => (
            "UDP port 4791 is not open there".to_owned(),
            format!(
                "start the RDMA device at {dst} (rxe: `rdma link add`; urxe: the peer process), or open the port"
            ),
        ),
        IcmpKind::Prohibited => {
            ("a firewall forbids it".to_owned(), "allow UDP port 4791 in the firewall".to_owned())
        }
        IcmpKind::HostUnreachable => (
            "there is no route, or no such host".to_owned(),
            format!("check the route to {dst}: `ip route get {dst}`"),
        ),
        IcmpKind::TooBig(mtu) => {
            return Some(Finding {
                text: format!(
                    "packets of this size do not pass: {} reports in packet {} that a link on the path takes at most {}",
                    error.from,
                    at.packet,
                    crate::text::bytes(mtu.into()),
                ),
                remedy: format!("use a path MTU of at most {mtu} bytes less 58 for headers and ICRC"),
                packets: vec![capture.packet(*at), capture.packet(first)],
                ..start(Diagnosis::MtuBlackHole)
            });
        }
        IcmpKind::HopLimit => {
            ("the hop limit is too small".to_owned(), "raise hop_limit of the address vector".to_owned())
        }
    };
    Some(Finding {
        text: format!(
            "UDP port 4791 does not reach {dst}: {} answers packet {} with an ICMP error in packet {}: {what}",
            error.from, first.packet, at.packet
        ),
        remedy,
        packets: vec![capture.packet(*at), capture.packet(first)],
        ..start(Diagnosis::PortUnreachable)
    })
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Returns why the destination has no queue pair of the stream's number, and a packet that shows it.
fn unknown_qp(capture: &Capture<'_>, stream: &Stream, first: At) -> Option<(String, At)> {
    let (key, tracker) = (stream.key, capture.tracker);
    let ends = |qpn: Qpn| {
        tracker.management.connections.iter().rev().find_map(|c| {
            let passive = c.passive?;
            let is_pair = |a: IpAddr, b: IpAddr| (a, b) == (key.src, key.dst) || (b, a) == (key.src, key.dst);
            is_pair(c.active.ip, passive.ip).then_some(())?;
            [c.active, passive].into_iter().find(|end| end.qpn == qpn).map(|end| (end, c))
        })
    };
    if let Some((end, connection)) = ends(key.qpn) {
        if end.ip == key.src {
            let at = connection.requests.1;
            return Some((
                format!("the numbers are swapped: {} is the QP at {} itself", key.qpn, key.src),
                at,
            ));
        }
        if let Some((_, at, ..)) = connection.disconnects.filter(|d| d.1.time < first.time) {
            return Some((
                format!("{} is that of a connection that ended with packet {}", key.qpn, at.packet),
                at,
            ));
        }
    }
    let back = |other: &&Stream| (other.key.src, other.key.dst) == (key.dst, key.src);
    let opposite = tracker.streams.iter().filter(back).collect::<Vec<_>>();
    // Each end sends to its own number.
    if let Some(other) = opposite.iter().find(|other| is_unanswered(other) && other.peer.is_none()) {
        let numbers = format!(
            "both ends send to a QP that does not answer: {} to {}, {} to {}",
            key.src, key.qpn, key.dst, other.key.qpn
        );
        return Some((format!("{numbers}: the numbers are swapped or old"), other.first));
    }
    if let Some(other) = opposite.iter().find(|other| other.packets > 0) {
        return Some((
            format!(
                "{} is alive (packet {} to QP {}) and does not answer for QP {}",
                key.dst, other.first.packet, other.key.qpn, key.qpn
            ),
            other.first,
        ));
    }
    let last = tracker.last_from(key.dst)?;
    let reason =
        format!("{} is alive (packet {}) and does not answer for QP {}", key.dst, last.packet, key.qpn);
    Some((reason, last))
}
