//! Lost, late and repeated packets.

use urxe::wire::{Operation, Psn};

use super::context::{Capture, timeout_text};
use super::silence;
use crate::finding::{Diagnosis, Finding, PacketRef, Severity};
use crate::text::{count, duration, was};
use crate::track::facts::{At, Cause, Filled, Gap, Resend};
use crate::track::stream::Stream;

/// Remedy of reordering.
const SEVERAL_PATHS: &str =
    "look for several paths between the hosts: ECMP by packet, adaptive routing, bonding";

/// Share of its time that a connection waits for timeouts, in percent, above which that is the finding.
const MUCH_WAITING: u64 = 20;

/// Number of timeouts from which their share of the time is judged.
const MANY_TIMEOUTS: u64 = 3;

pub(super) fn findings(capture: &Capture<'_>, stream: &Stream) -> Vec<Finding> {
    if silence::is_unanswered(stream) && !silence::is_one_way(stream) {
        return Vec::new();
    }
    let facts = &stream.requests.facts;
    let mut findings: Vec<Finding> = Vec::new();
    let exceeded = retry_exceeded(capture, stream);
    let given_up = exceeded.as_ref().and_then(|_| stream.requests.window.oldest()).map(|r| r.psn);
    findings.extend(exceeded);
    // A packet with a wrong ICRC has a finding of its own.
    let is_damaged = |gap: &&Gap| {
        let wrong = &capture.tracker.wrong_icrcs.first;
        wrong.iter().any(|packet| packet.key == stream.key && (packet.psn.since(gap.psn) as u32) < gap.len)
    };
    for gap in facts.gaps.first.iter().filter(|gap| !is_damaged(gap)) {
        findings.extend(of_gap(capture, stream, gap));
    }
    // What follows a refusal is not a loss.
    let start_differs = facts.first_refused.or(facts.ahead).map(|(at, _)| at);
    let refused = facts.fatal.map(|fatal| fatal.at).or(start_differs);
    let mut previous = None;
    let is_other_mtu = super::refusal::responses_of_another_mtu(capture, stream).is_some();
    let is_explained =
        |resend: &Resend| is_other_mtu && resend.opcode.row().operation == Operation::ReadRequest;
    for resend in facts.resends.first.iter().filter(|resend| !is_explained(resend)) {
        let is_repeated =
            previous.replace(resend.psn) == Some(resend.psn) && matches!(resend.cause, Cause::Timeout(_));
        let is_refused = refused.is_some_and(|refusal| resend.at.time >= refusal.time);
        // Behind a request that is missing here, nothing can be acknowledged.
        let is_behind_gap =
            facts.gaps.first.iter().any(|gap| gap.filled.is_none() && gap.psn.is_before(resend.psn));
        if given_up == Some(resend.psn) || is_repeated || is_refused || is_behind_gap {
            continue;
        }
        let in_gap = |gap: &Gap| (resend.psn.since(gap.psn) as u32) < gap.len;
        let is_late = |gap: &Gap| matches!(gap.filled, Some((_, Filled::Late | Filled::LateAndResent)));
        let is_told = |gap: &Gap| in_gap(gap) && (is_late(gap) || resend.acknowledged_before.is_none());
        if !facts.gaps.first.iter().any(is_told) {
            findings.extend(of_resend(capture, stream, resend));
        }
    }
    for gap in &facts.response_gaps.first {
        if let (Some(late), Some(asked)) = (gap.late, gap.asked_again) {
            findings.push(Finding {
                text: format!(
                    "reordered, not lost: the READ response with PSN {} came late, in packet {} after packet {}; it was asked for again in packet {} for nothing",
                    gap.psn, late.packet, gap.at.packet, asked.packet
                ),
                remedy: SEVERAL_PATHS.into(),
                packets: [gap.at, asked, late].map(|at| capture.packet(at)).into(),
                ..capture.of_request(Diagnosis::Reordered, Severity::Problem, stream, gap.psn, gap.at)
            });
            continue;
        }
        let asked = gap
            .asked_again
            .map_or_else(String::new, |at| format!("; asked for again in packet {}", at.packet));
        findings.push(Finding {
            text: format!(
                "{} of a READ {} lost before packet {}: PSN {}{asked}",
                count(gap.len.into(), "response"),
                was(gap.len.into()),
                gap.at.packet,
                gap.psn
            ),
            packets: [Some(gap.at), gap.asked_again]
                .into_iter()
                .flatten()
                .map(|at| capture.packet(at))
                .collect(),
            ..capture.of_request(Diagnosis::ReadResponseLost, Severity::Problem, stream, gap.psn, gap.at)
        });
    }
    let mut findings = merged(findings);
    findings.extend(timeout_bound(capture, stream));
    if facts.copies.count > 0 {
        let at = facts.copies.first[0];
        findings.push(Finding {
            text: format!(
                "{} of an earlier packet, the first is packet {}: made on the path, or captured twice",
                match facts.copies.count {
                    1 => "1 copy".into(),
                    n => format!("{n} copies"),
                },
                at.packet
            ),
            count: facts.copies.count,
            ..capture.of_stream(Diagnosis::Copies, Severity::Note, stream, at)
        });
    }
    findings
}

/// Findings that one list keeps in full before it becomes one finding.
const MAX_SEPARATE: usize = 4;

/// Merges findings of the same kind if there are many: the first one keeps its sentence, and tells the number.
fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::new();
    let mut extra: Vec<(Diagnosis, u64, Vec<PacketRef>)> = Vec::new();
    for finding in findings {
        let same = kept.iter().filter(|f| f.diagnosis == finding.diagnosis).count();
        if same < MAX_SEPARATE {
            kept.push(finding);
            continue;
        }
        match extra.iter_mut().find(|(diagnosis, ..)| *diagnosis == finding.diagnosis) {
            Some((_, count, packets)) => {
                *count += 1;
                packets.extend(finding.packets);
            }
            None => extra.push((finding.diagnosis, 1, finding.packets)),
        }
    }
    for (diagnosis, more, packets) in extra {
        if let Some(last) = kept.iter_mut().rev().find(|f| f.diagnosis == diagnosis) {
            last.text += &format!("; and {more} more of this kind");
            last.count += more;
            last.packets.extend(packets);
        }
    }
    kept
}

fn of_gap(capture: &Capture<'_>, stream: &Stream, gap: &Gap) -> Option<Finding> {
    let psns = match gap.len {
        1 => format!("request with PSN {}", gap.psn),
        n => format!("{n} requests from PSN {} on", gap.psn),
    };
    let mut packets = vec![capture.packet(gap.at)];
    packets.extend(gap.nak.map(|at| capture.packet(at)));
    packets.extend(gap.filled.map(|(at, _)| capture.packet(at)));
    let start = |diagnosis, severity| Finding {
        packets: packets.clone(),
        ..capture.of_request(diagnosis, severity, stream, gap.psn, gap.at)
    };
    let nak = gap.nak.map_or_else(String::new, |at| format!(", NAK in packet {}", at.packet));
    // A NAK makes the requester send again: without a second copy, that is the retransmission, and the requester resends
    // only what is missing.
    let is_resent = |at: At| gap.nak.is_some_and(|nak| nak.packet < at.packet);
    let filled = match gap.filled {
        Some((at, Filled::Late)) if is_resent(at) => Some((at, Filled::Resent)),
        filled => filled,
    };
    match filled {
        Some((at, Filled::Late)) => Some(Finding {
            text: format!(
                "reordered, not lost: the {psns} came late, in packet {} after packet {}{nak}, and nothing behind it was sent again",
                at.packet, gap.at.packet
            ),
            remedy: SEVERAL_PATHS.into(),
            ..start(Diagnosis::Reordered, Severity::Problem)
        }),
        Some((at, Filled::LateAndResent)) => Some(Finding {
            text: format!(
                "reordered, not lost: the {psns} came late, in packet {} after packet {}{nak}; the retransmission that it caused was for nothing",
                at.packet, gap.at.packet
            ),
            remedy: SEVERAL_PATHS.into(),
            ..start(Diagnosis::Reordered, Severity::Problem)
        }),
        Some((at, Filled::Resent)) => {
            let resend = stream
                .requests
                .facts
                .resends
                .first
                .iter()
                .find(|r| r.at.packet >= at.packet || r.psn == gap.psn);
            let resent = resend.map_or(1, |r| r.packets).max(gap.len.into());
            Some(Finding {
                text: format!(
                    "the {psns} {} lost before this capture: packet {} came in its place{nak}; {} resent from packet {} on",
                    was(gap.len.into()),
                    gap.at.packet,
                    count(resent, "packet"),
                    at.packet
                ),
                remedy: "look for drops between the sender and here: port counters, rx overflow, PFC".into(),
                ..start(Diagnosis::RequestLost, Severity::Problem)
            })
        }
        None if gap.nak.is_some() => Some(Finding {
            text: format!(
                "the {psns} {} lost before this capture: packet {} came in its place{nak}, and it was not resent",
                was(gap.len.into()),
                gap.at.packet
            ),
            ..start(Diagnosis::RequestLost, Severity::Failure)
        }),
        // Acknowledged all the same: only the capture lacks it.
        None if stream.requests.acknowledged.is_some_and(|(_, psn)| !psn.is_before(gap.psn)) => {
            Some(Finding {
                text: format!(
                    "the capture lacks the {psns} before packet {}, which the peer acknowledged",
                    gap.at.packet
                ),
                remedy: "capture with a larger buffer (tcpdump -B), or fewer bytes per packet (-s 96)".into(),
                ..start(Diagnosis::CaptureIncomplete, Severity::Note)
            })
        }
        None => Some(Finding {
            text: format!(
                "the {psns} {} lost before this capture: packet {} came in its place",
                was(gap.len.into()),
                gap.at.packet
            ),
            ..start(Diagnosis::RequestLost, Severity::Problem)
        }),
    }
}

fn of_resend(capture: &Capture<'_>, stream: &Stream, resend: &Resend) -> Option<Finding> {
    let start = |diagnosis, at| {
        let mut packets = vec![capture.packet(at), capture.packet(resend.at)];
        if resend.original.packet != 0 {
            packets.push(capture.packet(resend.original));
        }
        packets.dedup();
        Finding { packets, ..capture.of_request(diagnosis, Severity::Problem, stream, resend.psn, at) }
    };
    let original = match resend.original.packet {
        0 => String::new(),
        n => format!(" (packet {n})"),
    };
    let resent = format!("{} resent from packet {} on", count(resend.packets, "packet"), resend.at.packet);
    match resend.cause {
        // RNR NAKs and missing responses have findings of their own.
        Cause::ReceiverNotReady(_) | Cause::ResponseGap(_) => None,
        Cause::SequenceNak(nak) => Some(Finding {
            text: format!(
                "the request with PSN {}{original} was lost behind this capture: NAK in packet {}; {resent}",
                resend.psn, nak.packet
            ),
            remedy: "look for drops between here and the receiver: port counters, rx overflow, PFC".into(),
            ..start(Diagnosis::RequestLost, nak)
        }),
        Cause::Timeout(waited) => {
            let wait = timeout_text(waited);
            let is_read = resend.opcode.row().operation == Operation::ReadRequest;
            if let Some(ack) = resend.acknowledged_before {
                return Some(acknowledged_before(
                    capture,
                    stream,
                    resend,
                    ack,
                    waited,
                    start(Diagnosis::AckLost, ack),
                ));
            }
            if let Some((answer, _)) = resend.answer
                && 2 * answer.time.saturating_sub(resend.at.time) < path_latency(capture, stream)
            {
                return Some(Finding {
                    severity: Severity::Note,
                    text: format!(
                        "PSN {}{original} was resent in packet {} after {wait}, and the answer in packet {} comes too early to be one to that: the timer expired while the ACK was on its way",
                        resend.psn, resend.at.packet, answer.packet
                    ),
                    remedy: "a longer ACK timeout avoids it".into(),
                    ..start(Diagnosis::UnnecessaryRetransmission, resend.at)
                });
            }
            let answer = resend.answer;
            let has_duplicates = |psn: Psn| psn == resend.last && resend.packets > 1 && resend.answers > 1;
            // What came first after the retransmission began does not count.
            let was_in_flight = |psn: Psn| psn.is_before(resend.next);
            let is_all_there = answer.is_some_and(|(_, psn)| {
                was_in_flight(psn) && (psn.is_after(resend.last) || has_duplicates(psn))
            });
            let answered = answer.map_or_else(String::new, |(at, psn)| {
                format!(", answered in packet {} up to PSN {psn}", at.packet)
            });
            // A duplicate is acknowledged with all that has arrived.
            let not_answered = resend.not_answered.filter(|_| is_all_there);
            match () {
                () if is_all_there && resend.is_incomplete => Some(Finding {
                    text: format!(
                        "the end of a message was lost before this capture, from PSN {} on, and no later packet showed it: waited {wait}; {resent}{answered}",
                        resend.next
                    ),
                    remedy: "a shorter ACK timeout costs less here".into(),
                    psn: Some(resend.next),
                    ..start(Diagnosis::TailLost, resend.at)
                }),
                () if not_answered.is_some() => not_answered.map(|(psn, at)| Finding {
                    text: format!(
                        "the request with PSN {psn} (packet {}) was lost, and no later packet showed it: waited {wait}; {resent}{answered}",
                        at.packet
                    ),
                    remedy: "a shorter ACK timeout costs less here".into(),
                    packets: [resend.at, at].map(|at| capture.packet(at)).into(),
                    psn: Some(psn),
                    ..start(Diagnosis::TailLost, resend.at)
                }),
                () if is_read => Some(Finding {
                    text: format!(
                        "the READ with PSN {}{original} or all its responses were lost: waited {wait}; {resent}{answered}",
                        resend.psn
                    ),
                    ..start(Diagnosis::ReadResponseLost, resend.at)
                }),
                () if is_all_there => Some(Finding {
                    text: format!(
                        "the ACK was lost: PSN {}{original} was resent after {wait}{answered}, so the peer had all of it",
                        resend.psn
                    ),
                    ..start(Diagnosis::AckLost, resend.at)
                }),
                () if resend.is_tail => Some(Finding {
                    text: format!(
                        "the last packet in flight or its ACK was lost: no later packet showed the loss, so the requester waited {wait} and resent {} from PSN {} on{original}{answered}",
                        count(resend.packets, "packet"),
                        resend.psn
                    ),
                    remedy: "a shorter ACK timeout costs less here".into(),
                    ..start(Diagnosis::TailLost, resend.at)
                }),
                () => Some(Finding {
                    text: format!(
                        "requests from PSN {}{original} on, or their ACKs, were lost without a NAK: waited {wait}; {resent}{answered}",
                        resend.psn
                    ),
                    ..start(Diagnosis::RequestLost, resend.at)
                }),
            }
        }
    }
}

/// Returns the least time of an acknowledgement in either direction, in nanoseconds: the latency of the path, unless the
/// capture was made in its middle.
fn path_latency(capture: &Capture<'_>, stream: &Stream) -> u64 {
    let least = |stream: &Stream| stream.requests.facts.latency.min;
    least(stream).max(capture.peer(stream).map_or(0, least))
}

/// A request that was sent again after its acknowledgement, or the response of a READ, which `ack` is.
fn acknowledged_before(
    capture: &Capture<'_>,
    stream: &Stream,
    resend: &Resend,
    ack: At,
    waited: u64,
    start: Finding,
) -> Finding {
    let resent = format!("{} resent from packet {} on", count(resend.packets, "packet"), resend.at.packet);
    let packets = vec![capture.packet(ack), capture.packet(resend.at)];
    let age = resend.at.time.saturating_sub(ack.time);
    // The time that a response needs from here to the requester is a small part of a timeout that is longer than that of the path.
    let is_short = resend.original.packet != 0 && 4 * waited < 5 * path_latency(capture, stream);
    if 4 * age < waited || is_short {
        return Finding {
            diagnosis: Diagnosis::UnnecessaryRetransmission,
            severity: Severity::Note,
            text: format!(
                "PSN {} came again in packet {}, {} after its acknowledgement in packet {}: the timer expired while that was on its way",
                resend.psn,
                resend.at.packet,
                duration(age),
                ack.packet
            ),
            remedy: "a longer ACK timeout avoids it".into(),
            packets,
            ..start
        };
    }
    if resend.opcode.row().operation == Operation::ReadRequest {
        return Finding {
            diagnosis: Diagnosis::ReadResponseLost,
            text: format!(
                "the READ response with PSN {} was lost behind this capture, which has all up to packet {}: asked for again in packet {}",
                resend.psn, ack.packet, resend.at.packet
            ),
            remedy: "look for drops on the way back to the requester".into(),
            packets,
            ..start
        };
    }
    Finding {
        text: format!(
            "the ACK was lost: packet {} acknowledges PSN {} and did not reach the requester, which waited {}; {resent}",
            ack.packet,
            resend.psn,
            timeout_text(waited)
        ),
        remedy: "look for drops on the way back to the requester".into(),
        packets,
        ..start
    }
}

/// A request that was repeated until the requester gave up.
fn retry_exceeded(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let requests = &stream.requests;
    let oldest = requests.window.oldest().filter(|r| r.sends >= 2)?;
    // An RNR NAK or a refusal is a reason of its own.
    let is_refused = requests.facts.fatal.is_some()
        || requests.facts.first_refused.is_some()
        || requests.facts.ahead.is_some()
        // Behind a request that is missing here, nothing can be acknowledged.
        || requests.facts.gaps.first.iter().any(|gap| gap.filled.is_none() && gap.psn.is_before(oldest.psn))
        || requests.facts.not_ready.is_some_and(|rnr| rnr.last.1 == oldest.psn)
        || super::integrity::drops_from(capture, stream.key.dst, stream.key.src)
        || super::refusal::responses_of_another_mtu(capture, stream).is_some();
    let interval = oldest.time.saturating_sub(oldest.first_time) / u64::from(oldest.sends - 1);
    let since = capture.tracker.totals.last_time.saturating_sub(oldest.time);
    let retries = oldest.sends - 1;
    let granted = capture.tracker.management.connection_to(stream.key).map(|(c, ..)| u32::from(c.retry.1));
    // Nothing new was sent or acknowledged after the last repetition.
    let is_last = requests
        .last
        .is_some_and(|(at, psn)| at.time < oldest.time + interval.max(1) && psn.is_before(requests.next))
        && requests.acknowledged.is_none_or(|(ack, _)| ack.time < oldest.time);
    let is_over = retries >= granted.unwrap_or(7) || is_last && (retries >= 2 || since > 4 * interval.max(1));
    if is_refused || !is_over {
        return None;
    }
    let size = oldest.payload;
    let largest = requests.facts.largest_acknowledged;
    let at = At { packet: oldest.packet, time: oldest.first_time };
    let budget = format!(
        "sent {} times, {} apart; retry budget {} × {} = {}",
        oldest.sends,
        timeout_text(interval),
        duration(interval),
        oldest.sends,
        duration(interval * u64::from(oldest.sends))
    );
    if let Some(finding) = silence::of_icmp(capture, stream, at) {
        return Some(finding);
    }
    let is_black_hole = size > largest && largest > 0;
    let packets = vec![capture.packet(at), PacketRef { file: capture.file, packet: stream.last.packet }];
    if is_black_hole {
        return Some(Finding {
            text: format!(
                "packets above {largest} bytes of payload do not pass: PSN {} with {size} bytes (packet {}) was {budget}, and smaller ones were acknowledged",
                oldest.psn, oldest.packet
            ),
            remedy: format!(
                "path MTU {m} needs packets of {n} bytes ({m} + 58) on every link: raise the MTU of the path, or lower path_mtu",
                m = size,
                n = size + 58
            ),
            packets,
            ..capture.of_request(Diagnosis::MtuBlackHole, Severity::Failure, stream, oldest.psn, at)
        });
    }
    let responses = requests.facts.largest_response;
    let is_read = oldest.opcode.row().operation == Operation::ReadRequest;
    if is_read && responses > 0 && oldest.target.is_some_and(|target| target.len > responses.into()) {
        return Some(Finding {
            text: format!(
                "responses above {responses} bytes of payload do not arrive: the READ of {} with PSN {} (packet {}) was {budget}, and shorter ones were answered",
                crate::text::bytes(oldest.target.map_or(0, |target| target.len)), oldest.psn, oldest.packet
            ),
            remedy: "raise the MTU of the path from the responder, or lower path_mtu; compare with a capture at the responder".into(),
            packets,
            ..capture.of_request(Diagnosis::MtuBlackHole, Severity::Failure, stream, oldest.psn, at)
        });
    }
    let is_other = |other: &&Stream| {
        other.key.src == stream.key.dst
            && Some(other.key.qpn) != capture.peer(stream).map(|peer| peer.key.qpn)
            && other.last.time > oldest.first_time
    };
    let others = || capture.tracker.streams.iter().filter(is_other);
    // A host that is silent on the queue pair and starts others: its process was restarted.
    if let Some(other) = others().find(|other| other.first.time > oldest.first_time) {
        return Some(Finding {
            text: format!(
                "the peer has no such QP any more, or it is in the error state (restarted?): PSN {} (packet {}) was {budget}, while {} answers other queue pairs (packet {} to QP {})",
                oldest.psn, oldest.packet, stream.key.dst, other.last.packet, other.key.qpn
            ),
            remedy: "connect again after a restart of the peer; look at the peer's completions and events"
                .into(),
            packets,
            ..capture.of_request(Diagnosis::UnknownQp, Severity::Failure, stream, oldest.psn, at)
        });
    }
    let alive = others().next().map_or_else(String::new, |other| {
        format!(
            "; {} answers other queue pairs (packet {} to QP {}): this one is in the error state or gone, or its packets take another path",
            stream.key.dst, other.last.packet, other.key.qpn
        )
    });
    let last = requests.acknowledged.map_or_else(String::new, |(ack, psn)| {
        format!(
            "; nothing comes from {} after packet {} (PSN {psn}, {} after the start)",
            stream.key.dst,
            ack.packet,
            capture.when(ack)
        )
    });
    Some(Finding {
        text: format!(
            "retry counter exceeded for PSN {} (packet {}): {budget}{last}{alive}",
            oldest.psn, oldest.packet
        ),
        remedy: format!(
            "see whether {} still runs, and what is dropped on the way in both directions",
            stream.key.dst
        ),
        packets,
        ..capture.of_request(Diagnosis::RetryExceeded, Severity::Failure, stream, oldest.psn, at)
    })
}

fn timeout_bound(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let (timeouts, waited) = stream.requests.facts.timeouts;
    let active = stream.last.time.saturating_sub(stream.first.time);
    let percent = (100 * waited).checked_div(active)?;
    // One packet that is repeated until the requester gives up is another fault.
    let mut psns: Vec<_> = stream.requests.facts.resends.first.iter().map(|r| r.psn.get()).collect();
    psns.sort_unstable();
    psns.dedup();
    if (psns.len() as u64) < MANY_TIMEOUTS || timeouts < MANY_TIMEOUTS || percent < MUCH_WAITING {
        return None;
    }
    let resends = stream.requests.facts.resends.first.iter();
    let after_timeouts: Vec<At> =
        resends.filter(|r| matches!(r.cause, Cause::Timeout(_))).map(|r| r.at).collect();
    let first = *after_timeouts.first()?;
    Some(Finding {
        text: format!(
            "idle {} % of the time in timeouts: {} of {} each; packets overflow somewhere, again and again, and the timer is not the cause",
            percent.min(100),
            count(timeouts, "timeout"),
            timeout_text(waited / timeouts)
        ),
        remedy: "find what overflows: receive buffers, a switch port, a slow receiver; use congestion control or flow control".into(),
        count: timeouts,
        // Before the findings about single timeouts.
        time: stream.first.time,
        packets: after_timeouts.iter().map(|at| capture.packet(*at)).collect(),
        ..capture.of_stream(Diagnosis::TimeoutBound, Severity::Problem, stream, first)
    })
}

/// Losses of UC, which repeats nothing.
pub(super) fn unreliable(capture: &Capture<'_>, stream: &Stream) -> Vec<Finding> {
    let gaps = &stream.requests.facts.gaps;
    let Some(first) = gaps.first.first() else { return Vec::new() };
    let lost: u64 = gaps.first.iter().map(|gap| u64::from(gap.len)).sum();
    vec![Finding {
        text: format!(
            "{} lost in {} before this capture, the first is PSN {} before packet {}: UC does not repeat them, and drops their messages",
            count(lost, "packet"),
            count(gaps.count, "gap"),
            first.psn,
            first.at.packet
        ),
        remedy: "use RC where messages must arrive; look for drops between the sender and here".into(),
        count: gaps.count,
        packets: gaps.first.iter().map(|gap| capture.packet(gap.at)).collect(),
        ..capture.of_stream(Diagnosis::RequestLost, Severity::Problem, stream, first.at)
    }]
}
