//! Connections that the connection manager refuses, delays or does not end.

use urxe::wire::mad::{RejReason, Rejected, SidrStatus};

use super::context::Capture;
use super::silence;
use crate::finding::{Diagnosis, Finding, PacketRef, Severity};
use crate::text::{count, duration, is};
use crate::track::management::{Connection, Reject};
use crate::track::stream::Stream;

pub(super) fn findings(capture: &Capture<'_>) -> Vec<Finding> {
    let management = &capture.tracker.management;
    let mut findings: Vec<Finding> =
        management.connections.iter().flat_map(|c| of_connection(capture, c)).collect();
    let refused = management.resolutions.first.iter().filter(|r| r.status != SidrStatus::Valid);
    findings.extend(refused.map(|resolution| Finding {
        text: format!(
            "{} does not resolve the datagram service, SIDR_REP in packet {}: {}",
            resolution.ip, resolution.at.packet, resolution.status
        ),
        remedy: "start the server, or use its port".into(),
        ..capture.finding(
            Diagnosis::ConnectionRefused,
            Severity::Failure,
            format!("datagram service at {}", resolution.ip),
            resolution.at,
        )
    }));
    findings
}

fn service(connection: &Connection) -> String {
    match connection.service.ip_port() {
        Some((_, port)) => format!("port {port}"),
        None => connection.service.to_string(),
    }
}

fn of_connection(capture: &Capture<'_>, c: &Connection) -> Vec<Finding> {
    let subject = format!("{} → {} {}", c.active.ip, c.destination, service(c));
    let (requests, first, last) = c.requests;
    let mut findings = Vec::new();
    // An end that gives up waiting sends a REJ, too.
    let has_given_up = |reject: &&Reject| reject.from == c.active.ip && c.reply.is_none();
    if let Some(reject) = c.reject.as_ref().filter(|reject| !has_given_up(reject)) {
        let (text, remedy) = rejected(c, reject);
        findings.push(Finding {
            text,
            remedy,
            packets: vec![capture.packet(reject.at), capture.packet(first)],
            ..capture.finding(Diagnosis::ConnectionRefused, Severity::Failure, subject.clone(), reject.at)
        });
    } else if c.reply.is_none()
        && let Some(finding) = silence::icmp_between(capture, c.active.ip, c.destination, first)
    {
        findings.push(Finding { subject: subject.clone(), ..finding });
    } else if c.reply.is_none() && c.delay.is_none() && requests > 1 {
        let is_alive = capture.is_alive(c.destination);
        findings.push(Finding {
            text: format!(
                "{} {} to its request for a connection: {} from packet {} to packet {}, {} apart",
                c.destination,
                if is_alive { "is alive and does not answer" } else { "never answered" },
                count(requests, "REQ"),
                first.packet,
                last.packet,
                duration(last.time.saturating_sub(first.time) / (requests - 1))
            ),
            remedy: format!(
                "check that {} runs a connection manager, and that UDP port 4791 reaches it",
                c.destination
            ),
            packets: vec![capture.packet(first), capture.packet(last)],
            ..capture.finding(Diagnosis::PeerSilent, Severity::Failure, subject.clone(), first)
        });
    } else if requests > 1 {
        let reply = c.reply.map_or_else(String::new, |at| format!(", answered in packet {}", at.packet));
        findings.push(Finding {
            text: format!("the REQ was sent {requests} times{reply}: the first or its answer was lost, or the listener was slow"),
            packets: vec![capture.packet(first), capture.packet(last)],
            ..capture.finding(Diagnosis::ConnectionDelayed, Severity::Problem, subject.clone(), first)
        });
    }
    if let Some((at, from, time)) = c.delay {
        let time = time
            .duration()
            .map_or("without a limit".into(), |t| format!("for up to {}", duration(t.as_nanos() as u64)));
        findings.push(Finding {
            text: format!("{from} asks for more time with an MRA in packet {}: {time}", at.packet),
            ..capture.finding(Diagnosis::ConnectionDelayed, Severity::Note, subject.clone(), at)
        });
    }
    if let Some((disconnects, first, last, from)) = c.disconnects
        && (disconnects > 1
            || c.disconnected.is_none() && capture.tracker.totals.last_time > first.time + 1_000_000_000)
    {
        let end = match c.disconnected {
            Some(at) => format!(
                "the DREP came late, in packet {}, {} after the first",
                at.packet,
                duration(at.time.saturating_sub(first.time))
            ),
            None => "no DREP came".into(),
        };
        findings.push(Finding {
            text: format!(
                "{from} asked {} for the end of the connection (DREQ in packets {} to {}): {end}",
                times(disconnects),
                first.packet,
                last.packet
            ),
            remedy: "the other end was gone, or did not call rdma_disconnect when the event came".into(),
            packets: vec![capture.packet(first), capture.packet(last)],
            ..capture.finding(Diagnosis::Disconnected, Severity::Problem, subject, first)
        });
    }
    findings.extend(in_use(capture, c));
    findings
}

/// The end of a connection that has unacknowledged requests.
fn in_use(capture: &Capture<'_>, c: &Connection) -> Option<Finding> {
    let (_, first, _, from) = c.disconnects?;
    let passive = c.passive?;
    let is_of = |stream: &&Stream| {
        let key = stream.key;
        (key.src, key.dst, key.qpn) == (c.active.ip, passive.ip, passive.qpn)
            || (key.src, key.dst, key.qpn) == (passive.ip, c.active.ip, c.active.qpn)
    };
    let is_waiting =
        |stream: &&Stream| !stream.requests.window.is_empty() && stream.requests.facts.fatal.is_none();
    let stream = capture.tracker.streams.iter().filter(is_of).find(is_waiting)?;
    // A request that was sent again before is a loss.
    let oldest = stream.requests.window.oldest().filter(|request| request.sends == 1)?;
    let waiting = stream.requests.window.len() as u64;
    Some(Finding {
        text: format!(
            "{from} ends the connection in packet {} (DREQ), while {} of {} from packet {} on {} not acknowledged",
            first.packet,
            count(waiting, "request"),
            stream.key.src,
            oldest.packet,
            is(waiting),
        ),
        remedy: "look at the program that called rdma_disconnect or exited; wait for all completions before"
            .into(),
        packets: vec![capture.packet(first), PacketRef { file: capture.file, packet: oldest.packet }],
        ..capture.of_stream(Diagnosis::Disconnected, Severity::Problem, stream, first)
    })
}

fn times(n: u64) -> String {
    match n {
        1 => "once".into(),
        2 => "twice".into(),
        n => format!("{n} times"),
    }
}

/// Explains a REJ.
fn rejected(c: &Connection, reject: &Reject) -> (String, String) {
    let code = reject.reason.code();
    let (meaning, remedy) = match reject.reason {
        RejReason::InvalidServiceId => (
            format!("no program listens on {}", service(c)),
            format!(
                "start the server, or use its port; it must listen on {} or on any address",
                c.destination
            ),
        ),
        RejReason::StaleConnection => (
            "the peer still has a connection with this queue pair number, of an earlier run".into(),
            "try again: both ends drop the old connection; do not reuse the number at once".into(),
        ),
        RejReason::Consumer => (
            format!("the application refused it (rdma_reject){}", private_data(&reject.private_data)),
            "ask the application: its reason is in the private data or in its log".into(),
        ),
        RejReason::Timeout => ("an end gave up waiting".into(), "see which message is missing above".into()),
        reason => (reason.to_string(), String::new()),
    };
    let message = match reject.message {
        Rejected::Req => "the REQ",
        Rejected::Rep => "the REP",
        _ => "the connection",
    };
    (
        format!("{} rejects {message} in packet {}, reason {code}: {meaning}", reject.from, reject.at.packet),
        remedy,
    )
}

fn private_data(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        _ if bytes.is_empty() => String::new(),
        Ok(text) if text.chars().all(|c| !c.is_control()) => format!(", with the text {text:?}"),
        _ => {
            let hex: String = bytes.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
            format!(", with the private data {hex}{}", if bytes.len() > 32 { "…" } else { "" })
        }
    }
}
