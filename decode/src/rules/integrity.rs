//! Wrong ICRCs.

use std::net::IpAddr;

use super::context::Capture;
use crate::finding::{Diagnosis, Finding, Severity};
use crate::icrc::Cause;
use crate::text::count;

pub(super) fn findings(capture: &Capture<'_>) -> Vec<Finding> {
    let wrong = &capture.tracker.wrong_icrcs;
    let mut findings: Vec<Finding> = Vec::new();
    let mut causes: Vec<Cause> = Vec::new();
    for packet in &wrong.first {
        // Bit errors differ in their position only.
        let is_same = |known: &Cause| match (known, packet.cause) {
            (Cause::Rewritten(a, _), Cause::Rewritten(b, _)) => *a == b,
            (known, cause) => *known == cause,
        };
        match causes.iter().position(is_same) {
            Some(known) => {
                findings[known].count += 1;
                findings[known].packets.push(capture.packet(packet.at));
            }
            None => {
                causes.push(packet.cause);
                findings.push(Finding {
                    text: format!(
                        "the ICRC of packet {} (PSN {}) is wrong, so that its receiver drops it: {}",
                        packet.at.packet, packet.psn, packet.cause
                    ),
                    remedy: remedy(packet.cause).into(),
                    ..capture.finding(
                        Diagnosis::WrongIcrc,
                        Severity::Problem,
                        format!("{} → QP {} at {}", packet.key.src, packet.key.qpn, packet.key.dst),
                        packet.at,
                    )
                });
            }
        }
    }
    let all = findings.len();
    for finding in findings.iter_mut().filter(|finding| finding.count > 1) {
        finding.text += &format!("; {} alike", count(finding.count - 1, "more packet"));
    }
    if let Some(last) = findings.last_mut().filter(|_| wrong.count > wrong.first.len() as u64) {
        last.text += &format!("; {} in all, of {} causes", count(wrong.count, "packet"), all);
    }
    findings
}

/// Reports whether `to` drops packets of `from` because of their ICRCs.
pub(super) fn drops_from(capture: &Capture<'_>, from: IpAddr, to: IpAddr) -> bool {
    capture.tracker.wrong_icrcs.first.iter().any(|packet| (packet.key.src, packet.key.dst) == (from, to))
}

fn remedy(cause: Cause) -> &'static str {
    match cause {
        Cause::BitError(..) | Cause::Unknown => {
            "look for bad cables, memory or a broken device on the path; compare with a capture nearer to the sender"
        }
        Cause::Zero => "capture at the receiver, or mirror the port at the switch",
        Cause::Rewritten(..) => "exempt UDP port 4791 from NAT and rewriting",
        Cause::ByteOrder | Cause::NotMasked(_) | Cause::CoveredTwice => {
            "an error of the sender's implementation: update it"
        }
    }
}
