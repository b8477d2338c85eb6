//! Congestion marks, CNPs, pauses and slow receivers.

use super::context::Capture;
use crate::finding::{Diagnosis, Finding, Severity};
use crate::text::{count, duration, is};
use crate::track::path::Paused;
use crate::track::stream::Stream;

/// Number of CNPs from which their effect on the rate is judged.
const MANY_CNPS: u64 = 8;

/// Share of the rate before the CNPs, in percent, above which they had no effect. DCQCN halves the rate at
/// its first CNP.
const NO_EFFECT: u64 = 75;

/// Least time of all acknowledgements, in nanoseconds, above which it is worth a note: adapters take
/// microseconds; a wide-area network or an emulated machine takes milliseconds.
const LATE_ACK: u64 = 1_000_000;

/// Number of acknowledgements from which their time is judged.
const MANY_ACKS: u64 = 4;

/// Share of late acknowledgements in percent from which a receiver is slow: any host is busy now and then.
const MANY_LATE: u64 = 20;

/// Number of acknowledgements without credits in succession that is a finding.
const MANY_WITHOUT_CREDITS: u64 = 3;

pub(super) fn findings(capture: &Capture<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for stream in &capture.tracker.streams {
        findings.extend(marks_without_cnps(capture, stream));
        findings.extend(cnps_without_effect(capture, stream));
        findings.extend(slow_receiver(capture, stream));
        findings.extend(no_credits(capture, stream));
    }
    findings.extend(pauses(capture));
    findings
}

fn marks_without_cnps(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let (marked, first) = stream.marked;
    let is_cnp = |other: &Stream| {
        (other.key.src, other.key.dst) == (stream.key.dst, stream.key.src) && other.cnps.0 > 0
    };
    if marked == 0 || capture.tracker.streams.iter().any(is_cnp) {
        return None;
    }
    Some(Finding {
        text: format!(
            "{} from packet {} on {} marked CE, and {} sends no CNP: the sender does not learn of the congestion",
            count(marked, "packet"),
            first.packet,
            is(marked),
            stream.key.dst
        ),
        remedy: "enable the notification point of the receiver (DCQCN, roce_np); rxe sends no CNPs".into(),
        count: marked,
        ..capture.of_stream(Diagnosis::CongestionIgnored, Severity::Problem, stream, first)
    })
}

fn cnps_without_effect(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let (cnps, first, _) = capture.peer(stream).map(|peer| peer.cnps).filter(|cnps| cnps.0 >= MANY_CNPS)?;
    // In bits per second: before the first CNP, and in the second half of the time of the CNPs.
    let rate = |bytes: u64, nanos: u64| (8 * bytes * 1000).checked_div(nanos).map(|rate| rate * 1_000_000);
    // CNPs that come after the last packet say nothing about its rate.
    let sent = stream.reactions.partition_point(|(time, _)| *time <= stream.last.time);
    let reactions = &stream.reactions[..sent];
    let (first_time, first_bytes) = *reactions.first()?;
    let (middle_time, middle_bytes) = *reactions.get(sent / 2)?;
    let (last_time, last_bytes) = *reactions.last()?;
    let before = rate(first_bytes, first_time.saturating_sub(stream.first.time))?;
    let after = rate(last_bytes - middle_bytes, last_time.saturating_sub(middle_time))?;
    if before == 0 || 100 * after / before < NO_EFFECT {
        return None;
    }
    let gigabits = |rate: u64| rate as f64 / 1e9;
    Some(Finding {
        text: format!(
            "{} from packet {} on have no effect: {:.2} Gb/s before, {:.2} Gb/s after",
            count(cnps, "CNP"),
            first.packet,
            gigabits(before),
            gigabits(after)
        ),
        remedy: "enable the reaction point of the sender (DCQCN, roce_rp)".into(),
        count: cnps,
        packets: [first, stream.marked.1]
            .iter()
            .filter(|at| at.packet > 0)
            .map(|at| capture.packet(*at))
            .collect(),
        ..capture.of_stream(Diagnosis::CongestionIgnored, Severity::Problem, stream, first)
    })
}

fn slow_receiver(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let latency = stream.requests.facts.latency;
    let average = latency.sum.checked_div(latency.count)?;
    let (late, late_sum, first_late) = latency.late;
    if late >= MANY_ACKS && 100 * late >= MANY_LATE * latency.count {
        return Some(Finding {
            text: format!(
                "slow receiver: {} acknowledges {late} of {} after {} on average, from packet {} on, and others after {} already",
                stream.key.dst,
                count(latency.count, "request"),
                duration(late_sum / late),
                first_late.packet,
                duration(latency.min)
            ),
            remedy:
                "see what the receiving host does at that time: CPU, memory, a program that polls too rarely"
                    .into(),
            count: late,
            ..capture.of_stream(Diagnosis::SlowReceiver, Severity::Problem, stream, first_late)
        });
    }
    if latency.count < MANY_ACKS || latency.min < LATE_ACK {
        return None;
    }
    let (most, at) = latency.max;
    // A path has a constant latency.
    let severity = if most < 2 * latency.min { Severity::Note } else { Severity::Problem };
    Some(Finding {
        text: format!(
            "slow receiver{}: {} acknowledges after {} on average, at least {}, at most {} (packet {})",
            if severity == Severity::Note { ", or a long path" } else { "" },
            stream.key.dst,
            duration(average),
            duration(latency.min),
            duration(most),
            at.packet
        ),
        remedy: "if the network is not that slow, see what the receiving host does instead: CPU, interrupt moderation, a program that polls too rarely".into(),
        count: latency.count,
        ..capture.of_stream(Diagnosis::SlowReceiver, severity, stream, at)
    })
}

fn no_credits(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let none = stream.requests.facts.no_credits.filter(|none| none.count >= MANY_WITHOUT_CREDITS)?;
    Some(Finding {
        text: format!(
            "credits 0 since packet {}: {} has no receive posted, in {} in succession",
            none.at.packet,
            stream.key.dst,
            count(none.count, "ACK")
        ),
        remedy: "post more receives, or earlier".into(),
        count: none.count,
        ..capture.of_stream(Diagnosis::SlowReceiver, Severity::Problem, stream, none.at)
    })
}

fn pauses(capture: &Capture<'_>) -> Vec<Finding> {
    let tracker = capture.tracker;
    let end = tracker.totals.last_time;
    let mut used: Vec<u8> = Vec::new();
    for stream in tracker.streams.iter().filter(|stream| stream.requests.first.is_some()) {
        // The class is the VLAN priority or, without a tag, by habit the upper bits of the DSCP.
        let tagged = stream.priorities.0.iter().map(|(priority, ..)| *priority);
        match stream.priorities.0.is_empty() {
            false => used.extend(tagged),
            true => used.extend(stream.dscps.0.iter().map(|(dscp, ..)| dscp >> 3)),
        }
    }
    let frames = |paused: &Paused| paused.frames.first.iter().map(|at| capture.packet(*at)).collect();
    let mut findings = Vec::new();
    for paused in &tracker.path.paused {
        let total = paused.total(end);
        let subject =
            paused.priority.map_or_else(|| "the link".into(), |priority| format!("priority {priority}"));
        findings.push(Finding {
            text: format!(
                "{subject} was paused {} of {} by {}, in {} from packet {} on (at 100 Gb/s)",
                duration(total),
                duration(capture.length()),
                paused.by,
                count(paused.frames.count, "pause frame"),
                paused.first.packet
            ),
            remedy: "look behind the device that pauses: its receiver does not keep up".into(),
            count: paused.frames.count,
            packets: frames(paused),
            ..capture.finding(Diagnosis::Paused, Severity::Problem, subject.clone(), paused.first)
        });
    }
    let is_used = |paused: &&Paused| paused.priority.is_none_or(|p| used.contains(&p));
    if let (Some(paused), Some(class)) = (tracker.path.paused.first(), used.first())
        && !tracker.path.paused.iter().any(|paused| is_used(&paused))
    {
        findings.push(Finding {
            text: format!(
                "the data is in priority {class}, and the pauses are for priority {}: they do not stop it, and it is dropped",
                paused.priority.unwrap_or_default()
            ),
            remedy: "use the same priority: traffic class of the queue pair (tclass, DSCP), VLAN priority and PFC configuration".into(),
            packets: frames(paused),
            ..capture.finding(Diagnosis::PriorityMismatch, Severity::Problem, format!("priority {class}"), paused.first)
        });
    }
    findings
}
