//! Requests that the responder refused: NAKs other than for a sequence error, and RNR NAKs.

use urxe::wire::{NakCode, Operation, Position};

use super::context::Capture;
use crate::finding::{Diagnosis, Finding, Severity};
use crate::text::{bytes, count, duration, is};
use crate::track::facts::{Facts, Fatal, Resend};
use crate::track::stream::Stream;
use crate::track::window::{Request, Target};

pub(super) fn findings(capture: &Capture<'_>, stream: &Stream) -> Vec<Finding> {
    let mut findings = Vec::new();
    let facts = &stream.requests.facts;
    if let Some((nak, expected)) = facts.first_refused {
        let first = stream.requests.first.map_or(expected, |(_, psn)| psn);
        findings.push(Finding {
            text: format!(
                "the start PSN differs: {} begins with PSN {first}, and the peer expects {expected} (NAK in packet {})",
                stream.key.src, nak.packet
            ),
            remedy: "give the sender's sq_psn to the receiver as rq_psn, in both directions".into(),
            packets: vec![capture.packet(nak), capture.packet(stream.first)],
            ..capture.of_stream(Diagnosis::StartPsnDiffers, Severity::Failure, stream, nak)
        });
    } else if let Some((ack, psn)) =
        facts.ahead.filter(|_| facts.resent > 0 && stream.requests.acknowledged.is_none())
    {
        let first = stream.requests.first.map_or(psn, |(_, psn)| psn);
        findings.push(Finding {
            text: format!(
                "the start PSN differs: {} begins with PSN {first}, and the peer, which expects {} and takes that for a duplicate, acknowledges {psn} in packet {}",
                stream.key.src, psn.next(), ack.packet
            ),
            remedy: "give the sender's sq_psn to the receiver as rq_psn, in both directions".into(),
            packets: vec![capture.packet(ack), capture.packet(stream.first)],
            ..capture.of_stream(Diagnosis::StartPsnDiffers, Severity::Failure, stream, ack)
        });
    } else if let Some(finding) = differs_from_connection(capture, stream) {
        findings.push(finding);
    }
    if let Some(fatal) = &facts.fatal {
        findings.push(refused(capture, stream, fatal));
        if fatal.flushed > 0 {
            findings.push(Finding {
                text: format!(
                    "the NAK in packet {} is the first error: {} in flight behind the refused one {} flushed, which says nothing about the cause",
                    fatal.at.packet,
                    count(fatal.flushed, "request"),
                    is(fatal.flushed),
                ),
                remedy: "look at the first completion with an error, not at those with WR_FLUSH_ERR".into(),
                ..capture.of_stream(Diagnosis::Flushed, Severity::Note, stream, fatal.at)
            });
        }
    }
    findings.extend(responses_of_another_mtu(capture, stream));
    findings.extend(not_ready(capture, stream));
    findings
}

/// READ responses that pass here, and that the requester does not accept because they have another length than it expects.
pub(super) fn responses_of_another_mtu(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let facts = &stream.requests.facts;
    let responses = facts.mtus[1]?;
    let is_refused = |resend: &&Resend| {
        resend.opcode.row().operation == Operation::ReadRequest && resend.acknowledged_before.is_some()
    };
    let resend = facts.resends.first.iter().find(is_refused)?;
    // The path MTU of another queue pair between the two hosts is a guess, so it comes last.
    let agreed = capture.tracker.management.connection_to(stream.key).and_then(|(c, ..)| c.mtu);
    let is_alike = |other: &&Stream| (other.key.src, other.key.dst) == (stream.key.src, stream.key.dst);
    let others =
        capture.tracker.streams.iter().filter(is_alike).filter_map(|other| other.requests.facts.mtus[0]);
    let expected = facts.mtus[0].or(agreed).or_else(|| others.max()).filter(|mtu| *mtu != responses)?;
    Some(Finding {
        text: format!(
            "the ends disagree on the path MTU: the READ responses of {} have {} bytes, and {} uses {}: it asks for the READ with PSN {} again in packet {}, although all its responses pass here",
            stream.key.dst,
            responses.bytes(),
            stream.key.src,
            expected.bytes(),
            resend.psn,
            resend.at.packet
        ),
        remedy: "set the same path_mtu at both ends".into(),
        packets: [resend.at, resend.original].map(|at| capture.packet(at)).into(),
        ..capture.of_request(Diagnosis::PathMtuDiffers, Severity::Failure, stream, resend.psn, resend.at)
    })
}

/// The first PSN is not the one of the connection manager's messages.
fn differs_from_connection(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let (at, first) = stream.requests.first?;
    let (connection, end, _) = capture.tracker.management.connection_to(stream.key)?;
    // A request that the capture lacks shows as a gap behind PSNs of the right start.
    let is_wrong =
        first != end.psn && stream.requests.acknowledged.is_none() && super::silence::is_unanswered(stream);
    let is_ended = connection.disconnects.is_some_and(|(_, first, ..)| first.time < at.time);
    let reply = connection.reply.filter(|_| is_wrong && !is_ended)?;
    Some(Finding {
        text: format!(
            "the start PSN differs: {} begins with PSN {first}, and the peer announced {} in its {}",
            stream.key.src,
            end.psn,
            if end.ip == connection.active.ip { "REQ" } else { "REP" }
        ),
        remedy: "use the PSN of the connection manager's message as sq_psn".into(),
        packets: vec![capture.packet(at), capture.packet(reply)],
        ..capture.of_stream(Diagnosis::StartPsnDiffers, Severity::Failure, stream, at)
    })
}

fn describe(request: &Request) -> String {
    let name = request.opcode.to_string();
    let short = name.strip_prefix("RC RDMA ").or(name.strip_prefix("RC ")).unwrap_or(&name).to_owned();
    match request.target {
        Some(Target { va, rkey, len }) => {
            format!(
                "{short} of {} at {va:#x} with key {rkey} (packet {}, PSN {})",
                bytes(len),
                request.packet,
                request.psn
            )
        }
        None => format!("{short} (packet {}, PSN {})", request.packet, request.psn),
    }
}

fn refused(capture: &Capture<'_>, stream: &Stream, fatal: &Fatal) -> Finding {
    let what = fatal.request.map_or_else(|| format!("the request with PSN {}", fatal.psn), |r| describe(&r));
    let responder = stream.key.dst;
    let (diagnosis, cause, remedy) = match fatal.code {
        NakCode::RemoteAccessError => {
            let (cause, remedy) = access(&stream.requests.facts, fatal);
            (Diagnosis::RemoteAccessError, cause, remedy)
        }
        NakCode::InvalidRequest => invalid(capture, stream, fatal),
        NakCode::RemoteOperationalError => (
            Diagnosis::RemoteOperationalError,
            "it failed at the responder: its receive has a wrong key or length, or memory that is gone"
                .to_owned(),
            format!("look at the completions of {responder}: the cause is there"),
        ),
        code => (Diagnosis::InvalidRequest, format!("NAK {code}"), String::new()),
    };
    let mut packets = vec![capture.packet(fatal.at)];
    packets.extend(fatal.request.map(|r| crate::finding::PacketRef { file: capture.file, packet: r.packet }));
    Finding {
        text: format!("{responder} refuses {what} in packet {}: {cause}", fatal.at.packet),
        remedy,
        packets,
        ..capture.of_stream(diagnosis, Severity::Failure, stream, fatal.at)
    }
}

/// Explains a remote access error.
fn access(facts: &Facts, fatal: &Fatal) -> (String, String) {
    let Some(target) = fatal.request.and_then(|r| r.target) else {
        return (
            "remote access error; the capture lacks the packet with address and key".into(),
            "compare address, length and key with what the responder registered".into(),
        );
    };
    let known = facts.accessed.iter().map(|a| a.target).collect::<Vec<_>>();
    let range = |t: &Target| format!("{:#x} to {:#x}", t.va, t.va.saturating_add(t.len));
    let has = |t: &Target, va: u64| va >= t.va && va < t.va.saturating_add(t.len.max(1));
    if let Some(good) = known.iter().find(|good| good.rkey == target.rkey) {
        let swapped = target.va.swap_bytes();
        let near = |va: u64| va >= good.va.saturating_sub(1 << 32) && va < good.va.saturating_add(1 << 32);
        if !near(target.va) && near(swapped) {
            return (
                format!(
                    "the address looks byte-swapped: {swapped:#x} would be near the range {} that the key reached before",
                    range(good)
                ),
                "convert the address with be64toh when it comes from the peer".into(),
            );
        }
        return (
            format!(
                "address and length exceed what the key allows, or the access is not permitted: before, this key reached {}",
                range(good)
            ),
            "check offset and length against the region, and its access flags".into(),
        );
    }
    if let Some(other) = known.iter().find(|good| has(good, target.va)) {
        return (
            format!("the key is unknown: the same memory was reached with key {} before", other.rkey),
            format!(
                "use the rkey {} that the peer announced; the lkey, or the key of an earlier registration, is not valid there",
                other.rkey
            ),
        );
    }
    if looks_swapped(target.va) {
        return (
            format!(
                "the address looks byte-swapped: {:#x} would be an ordinary user address",
                target.va.swap_bytes()
            ),
            "convert the address with be64toh when it comes from the peer".into(),
        );
    }
    (
        "no access with this key succeeded in the capture: the key is unknown, of another protection domain, \
         the range exceeds the region, or the region or the queue pair lacks the access flag"
            .into(),
        "compare address, length and key with what the responder registered, and its access flags".into(),
    )
}

/// Reports whether an address is one of user space only with its bytes in the opposite order.
fn looks_swapped(va: u64) -> bool {
    let is_user = |va: u64| (0x1_0000..1 << 47).contains(&va);
    !is_user(va) && is_user(va.swap_bytes())
}

/// Explains an invalid request.
fn invalid(capture: &Capture<'_>, stream: &Stream, fatal: &Fatal) -> (Diagnosis, String, String) {
    let connection = capture.tracker.management.connection_to(stream.key);
    let requests = &stream.requests;
    let takes_resource = fatal.request.is_some_and(|r| r.opcode.row().operation.takes_read_resource());
    let granted = connection.map(|(_, end, _)| u64::from(end.responder_resources));
    // READs that were answered before the NAK arrived were still in flight when the responder took the request.
    let reads = fatal.request.map_or(0, |request| request.reads).max(fatal.reads);
    if takes_resource && granted.is_none_or(|granted| reads > granted) && reads > 1 {
        let limit = granted
            .map_or("the responder accepts fewer (max_dest_rd_atomic)".to_owned(), |granted| {
                format!("the responder granted {granted} (responder_resources)")
            });
        return (
            Diagnosis::TooManyReads,
            format!("{reads} READs and atomics were in flight, and {limit}"),
            "set the requester's max_rd_atomic to what the responder grants".into(),
        );
    }
    let own = requests.mtu.map(|mtu| mtu.bytes());
    let others = capture.peer(stream).and_then(|peer| peer.requests.mtu).map(|mtu| mtu.bytes());
    let agreed = connection.and_then(|(c, ..)| c.mtu).map(|mtu| mtu.bytes());
    let size = fatal.request.map(|r| (r.payload as usize, r.opcode.row().position));
    let differs = |other: Option<usize>| match (size, other) {
        (Some((len, Position::First | Position::Middle)), Some(other)) => len != other,
        (Some((len, _)), Some(other)) => len > other,
        _ => false,
    };
    if let Some(other) = others.or(agreed).filter(|other| differs(Some(*other))) {
        return (
            Diagnosis::PathMtuDiffers,
            format!(
                "the ends disagree on the path MTU: this packet has {} of payload, the peer uses {other}",
                count(size.map_or(0, |s| s.0 as u64), "byte")
            ),
            "set the same path_mtu at both ends".into(),
        );
    }
    let is_first_full = match size {
        Some((_, Position::First)) => requests.facts.largest_acknowledged < own.unwrap_or(0) as u32,
        Some((_, Position::Middle)) => !requests.facts.had_long_message,
        _ => false,
    };
    if is_first_full {
        return (
            Diagnosis::PathMtuDiffers,
            format!(
                "the ends disagree on the path MTU, or the message is longer than the receive: no message with full packets, of {} of payload, was accepted before",
                count(size.map_or(0, |s| s.0 as u64), "byte")
            ),
            "set the same path_mtu at both ends; post receives that are long enough".into(),
        );
    }
    let is_send = fatal.request.is_some_and(|r| r.opcode.row().operation == Operation::Send);
    match is_send {
        true => (
            Diagnosis::InvalidRequest,
            "the message is longer than the receive that it found".into(),
            "post receives at least as long as the longest message".into(),
        ),
        false => (
            Diagnosis::InvalidRequest,
            "the responder does not accept this operation, its length or its alignment".into(),
            "check the queue pair's access flags, the length, and the alignment of atomics".into(),
        ),
    }
}

fn not_ready(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let rnr = stream.requests.facts.not_ready?;
    let is_pending = stream.requests.acknowledged.is_none_or(|(_, psn)| psn.is_before(rnr.last.1))
        && stream.last.time <= rnr.last.0.time;
    // A requester waits at least as long as the timer says, and some wait twice as long.
    let wait = 2 * rnr.timer.duration().as_nanos() as u64;
    let is_over = is_pending && capture.tracker.totals.last_time > rnr.last.0.time + wait;
    let timer = duration(rnr.timer.duration().as_nanos() as u64);
    let end = match is_over {
        _ if is_pending && !is_over => "; then the capture ends".to_owned(),
        true => format!("; the request (PSN {}) was not sent again: RNR retry counter exceeded", rnr.last.1),
        false => "; then a receive was there".to_owned(),
    };
    Some(Finding {
        text: format!(
            "no receive posted at {}: {} from packet {} on, at most {} in succession; timer code {} = {timer}{end}",
            stream.key.dst,
            count(rnr.count, "RNR NAK"),
            rnr.first.packet,
            rnr.most,
            rnr.timer.code(),
        ),
        remedy: "post more receives, or earlier; rnr_retry 7 retries without end, and min_rnr_timer 0 means 655 ms".into(),
        packets: vec![capture.packet(rnr.first), capture.packet(rnr.last.0)],
        count: rnr.count,
        ..capture.of_stream(Diagnosis::ReceiverNotReady, if is_over { Severity::Failure } else { Severity::Problem }, stream, rnr.first)
    })
}
