//! Rules: from the facts of a capture to findings.

mod congestion;
mod datagram;
mod integrity;
mod loss;
mod management;
mod refusal;
mod silence;

use std::net::IpAddr;

use urxe::wire::{Psn, Transport};

use crate::finding::{Diagnosis, Finding, PacketRef, Severity};
use crate::track::Tracker;
use crate::track::facts::At;
use crate::track::stream::Stream;

/// A capture to draw conclusions from.
pub(crate) struct Capture<'a> {
    pub(crate) tracker: &'a Tracker,
    pub(crate) file: usize,
}

/// Comments that a finding shows.
const MAX_COMMENTS: usize = 4;

/// Returns the findings of a capture, the gravest first, then by time.
pub(crate) fn findings(capture: &Capture<'_>) -> Vec<Finding> {
    let mut findings = integrity::findings(capture);
    findings.extend(silence::unresolved(capture));
    findings.extend(management::findings(capture));
    findings.extend(congestion::findings(capture));
    for stream in &capture.tracker.streams {
        match stream.transport {
            Transport::Rc | Transport::Xrc => {
                findings.extend(silence::findings(capture, stream));
                findings.extend(refusal::findings(capture, stream));
                findings.extend(loss::findings(capture, stream));
            }
            Transport::Uc => findings.extend(loss::unreliable(capture, stream)),
            Transport::Ud => findings.extend(datagram::findings(capture, stream)),
            _ => {}
        }
    }
    for finding in &mut findings {
        let comments =
            finding.packets.iter().filter_map(|p| Some((p.packet, capture.tracker.comments.get(&p.packet)?)));
        finding.comments = comments.map(|(packet, text)| format!("packet {packet}: {text}")).collect();
        finding.comments.dedup();
        finding.comments.truncate(MAX_COMMENTS);
    }
    findings.sort_by_key(|finding| (finding.severity, finding.time));
    findings
}

impl Capture<'_> {
    /// Starts a finding that `at` shows.
    fn finding(&self, diagnosis: Diagnosis, severity: Severity, subject: String, at: At) -> Finding {
        let packets = vec![self.packet(at)];
        Finding { packets, time: at.time, ..Finding::new(diagnosis, severity, subject) }
    }

    /// Starts a finding about a request of a stream.
    fn of_request(
        &self,
        diagnosis: Diagnosis,
        severity: Severity,
        stream: &Stream,
        psn: Psn,
        at: At,
    ) -> Finding {
        Finding { psn: Some(psn), ..self.of_stream(diagnosis, severity, stream, at) }
    }

    /// Starts a finding about a stream.
    fn of_stream(&self, diagnosis: Diagnosis, severity: Severity, stream: &Stream, at: At) -> Finding {
        let finding = self.finding(diagnosis, severity, self.name(stream), at);
        Finding { stream: Some(stream.key), ..finding }
    }

    /// Names the end of a stream that its packets go to.
    fn receiver(&self, stream: &Stream) -> String {
        format!("QP {} at {}", stream.key.qpn, stream.key.dst)
    }

    /// Names the end of a stream that its packets come from.
    fn sender(&self, stream: &Stream) -> String {
        let peer = stream.peer.map(|peer| self.tracker.streams[peer].key.qpn);
        let known = peer.or_else(|| self.tracker.management.connection_to(stream.key).map(|c| c.2.qpn));
        match known.or_else(|| stream.sources.first()) {
            Some(qpn) => format!("QP {qpn} at {}", stream.key.src),
            None => format!("a QP at {}", stream.key.src),
        }
    }

    /// Names a stream.
    fn name(&self, stream: &Stream) -> String {
        format!("{} → {}", self.sender(stream), self.receiver(stream))
    }

    /// Returns the time from the first packet of the capture to `at`, as text.
    fn when(&self, at: At) -> String {
        crate::text::duration(at.time.saturating_sub(self.tracker.totals.first_time))
    }

    /// Returns the length of the capture in nanoseconds.
    fn length(&self) -> u64 {
        self.tracker.totals.last_time.saturating_sub(self.tracker.totals.first_time)
    }

    /// Returns the stream of the other direction.
    fn peer(&self, stream: &Stream) -> Option<&Stream> {
        stream.peer.map(|peer| &self.tracker.streams[peer])
    }

    /// Reports whether an address has sent anything in this capture.
    fn is_alive(&self, ip: IpAddr) -> bool {
        self.tracker.last_from(ip).is_some()
            || self.tracker.path.hosts.get(&ip).is_some_and(|host| host.answered)
    }

    fn packet(&self, at: At) -> PacketRef {
        PacketRef { file: self.file, packet: at.packet }
    }
}

/// Returns the code of the ACK timeout, 4.096 µs · 2^t, that a retransmission after `nanos` suggests: a
/// requester waits between one and four times as long (IBA 9.7.6.1.3).
fn timeout_code(nanos: u64) -> u8 {
    let units = (nanos as f64 / 4096.0).max(1.0);
    // The largest power of two that is not above the time, with a little tolerance for a coarse clock.
    ((units * 1.02).log2().floor() as u8).min(31)
}

/// Formats a timeout with the code that it suggests.
fn timeout_text(nanos: u64) -> String {
    format!("{}, 4.096 µs · 2^{}", crate::text::duration(nanos), timeout_code(nanos))
}
