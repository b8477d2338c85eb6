//! The capture that rules draw conclusions from, and the names and times in their texts.

use std::net::IpAddr;

use urxe::wire::Psn;

use crate::finding::{Diagnosis, Finding, PacketRef, Severity};
use crate::track::Tracker;
use crate::track::facts::At;
use crate::track::stream::Stream;

/// A capture to draw conclusions from.
pub(crate) struct Capture<'a> {
    pub(crate) tracker: &'a Tracker,
    pub(crate) file: usize,
}

impl Capture<'_> {
    /// Starts a finding that `at` shows.
    pub(super) fn finding(
        &self,
        diagnosis: Diagnosis,
        severity: Severity,
        subject: String,
        at: At,
    ) -> Finding {
        let packets = vec![self.packet(at)];
        Finding { packets, time: at.time, ..Finding::new(diagnosis, severity, subject) }
    }

    /// Starts a finding about a request of a stream.
    pub(super) fn of_request(
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
    pub(super) fn of_stream(
        &self,
        diagnosis: Diagnosis,
        severity: Severity,
        stream: &Stream,
        at: At,
    ) -> Finding {
        let finding = self.finding(diagnosis, severity, self.name(stream), at);
        Finding { stream: Some(stream.key), ..finding }
    }

    /// Names the end of a stream that its packets go to.
    pub(super) fn receiver(&self, stream: &Stream) -> String {
        format!("QP {} at {}", stream.key.qpn, stream.key.dst)
    }

    /// Names the end of a stream that its packets come from.
    pub(super) fn sender(&self, stream: &Stream) -> String {
        let peer = stream.peer.map(|peer| self.tracker.streams[peer].key.qpn);
        let known = peer.or_else(|| self.tracker.management.connection_to(stream.key).map(|c| c.2.qpn));
        match known.or_else(|| stream.sources.first()) {
            Some(qpn) => format!("QP {qpn} at {}", stream.key.src),
            None => format!("a QP at {}", stream.key.src),
        }
    }

    /// Names a stream.
    pub(super) fn name(&self, stream: &Stream) -> String {
        format!("{} → {}", self.sender(stream), self.receiver(stream))
    }

    /// Returns the time from the first packet of the capture to `at`, as text.
    pub(super) fn when(&self, at: At) -> String {
        crate::text::duration(at.time.saturating_sub(self.tracker.totals.first_time))
    }

    /// Returns the length of the capture in nanoseconds.
    pub(super) fn length(&self) -> u64 {
        self.tracker.totals.last_time.saturating_sub(self.tracker.totals.first_time)
    }

    /// Returns the stream of the other direction.
    pub(super) fn peer(&self, stream: &Stream) -> Option<&Stream> {
        stream.peer.map(|peer| &self.tracker.streams[peer])
    }

    /// Reports whether an address has sent anything in this capture.
    pub(super) fn is_alive(&self, ip: IpAddr) -> bool {
        self.tracker.last_from(ip).is_some()
            || self.tracker.path.hosts.get(&ip).is_some_and(|host| host.answered)
    }

    pub(super) fn packet(&self, at: At) -> PacketRef {
        PacketRef { file: self.file, packet: at.packet }
    }
}

/// Returns the code of the ACK timeout, 4.096 µs · 2^t, that a retransmission after `nanos` suggests: a
/// requester waits between one and four times as long (IBA 9.7.6.1.3).
pub(super) fn timeout_code(nanos: u64) -> u8 {
    let units = (nanos as f64 / 4096.0).max(1.0);
    // The largest power of two that is not above the time, with a little tolerance for a coarse clock.
    ((units * 1.02).log2().floor() as u8).min(31)
}

/// Formats a timeout with the code that it suggests.
pub(super) fn timeout_text(nanos: u64) -> String {
    format!("{}, 4.096 µs · 2^{}", crate::text::duration(nanos), timeout_code(nanos))
}
