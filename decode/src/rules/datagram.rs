//! Datagrams that their receiver drops.

use urxe::wire::PKey;

use super::context::Capture;
use crate::finding::{Diagnosis, Finding, Severity};
use crate::text::{count, has};
use crate::track::stream::Stream;

pub(super) fn findings(capture: &Capture<'_>, stream: &Stream) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(wrong_qkey(capture, stream));
    findings.extend(wrong_pkey(capture, stream));
    findings
}

/// Number of datagrams in both directions that shows that they arrive.
const MANY_ANSWERS: u64 = 3;

/// Returns the queue key that the receiver of a stream has, as far as the capture tells: from the resolution
/// of its service, or from its own datagrams to the sender.
fn wrong_qkey(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let tracker = capture.tracker;
    let resolutions = &tracker.management.resolutions.first;
    let resolved = resolutions.iter().rev().find(|r| (r.ip, r.qpn) == (stream.key.dst, stream.key.qpn));
    // Queue pairs that exchange datagrams have one key.
    let back = tracker.streams.iter().find(|other| {
        (other.key.src, other.key.dst) == (stream.key.dst, stream.key.src)
            && other.sources.0.iter().any(|(qpn, ..)| *qpn == stream.key.qpn)
    });
    let others = tracker.streams.iter().find(|other| {
        (other.key.dst, other.key.qpn) == (stream.key.dst, stream.key.qpn) && other.key.src != stream.key.src
    });
    // Datagrams that are answered again and again have an effect: each end has a key of its own.
    let back = back.filter(|back| stream.packets.min(back.packets) < MANY_ANSWERS);
    let expected = resolved
        .map(|r| (r.qkey, format!("its SIDR_REP in packet {} tells", r.at.packet)))
        .or_else(|| {
            back.and_then(|b| Some((b.qkeys.first()?, format!("it uses itself (packet {})", b.first.packet))))
        })
        .or_else(|| {
            (stream.qkeys.0.len() > 1)
                .then(|| stream.qkeys.first().map(|key| (key, "the first datagrams have".to_owned())))
                .flatten()
        })
        .or_else(|| others.and_then(|o| Some((o.qkeys.first()?, format!("{} uses", o.key.src)))));
    let (expected, source) = expected?;
    let (key, at, n) = stream.qkeys.0.iter().find(|(key, ..)| *key != expected)?;
    Some(Finding {
        text: format!(
            "{} from packet {} on {} no effect: Q_Key {:#010x} instead of {:#010x}, which {source}",
            count(*n, "datagram"),
            at.packet,
            has(*n),
            key.0,
            expected.0
        ),
        remedy: "use the receiver's qkey as remote_qkey of the work request (bit 31 set means: that of the sender's queue pair)".into(),
        count: *n,
        ..capture.of_stream(Diagnosis::DatagramDropped, Severity::Failure, stream, *at)
    })
}

/// A partition key that cannot match that of the other direction.
fn wrong_pkey(capture: &Capture<'_>, stream: &Stream) -> Option<Finding> {
    let tracker = capture.tracker;
    let of_receiver =
        tracker.streams.iter().find(|other| other.key.src == stream.key.dst && !other.pkeys.0.is_empty());
    let first = || (stream.pkeys.0.len() > 1).then(|| stream.pkeys.first()).flatten();
    let expected: PKey = of_receiver.and_then(|other| other.pkeys.first()).or_else(first)?;
    let (key, at, n) = stream.pkeys.0.iter().find(|(key, ..)| !key.admits(expected))?;
    Some(Finding {
        text: format!(
            "{} from packet {} on {} no effect: P_Key {:#06x} is not of the receiver's partition, {:#06x}",
            count(*n, "datagram"),
            at.packet,
            has(*n),
            key.0,
            expected.0
        ),
        remedy: "use a pkey_index with the receiver's partition key".into(),
        count: *n,
        ..capture.of_stream(Diagnosis::DatagramDropped, Severity::Failure, stream, *at)
    })
}
