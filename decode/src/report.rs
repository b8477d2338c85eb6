//! The result of an analysis: captures, queue pairs, findings.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use urxe::wire::{Qpn, Transport};

use crate::capture::{Capture, CaptureError};
use crate::finding::{Finding, Severity};
use crate::join;
use crate::rules;
use crate::text::{bytes, count, duration};
use crate::track::stream::Stream;
use crate::track::{Totals, Tracker};

/// Result of the analysis of one or more captures.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Captures, in the order in which they were given.
    pub captures: Vec<CaptureReport>,
    /// Queue pairs, by capture and then by their first packets.
    pub queue_pairs: Vec<QueuePairs>,
    /// Findings, the gravest first.
    pub findings: Vec<Finding>,
}

/// Contents of a capture.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct CaptureReport {
    /// Name of the file.
    pub name: String,
    /// Number of packets, of any protocol.
    pub packets: u64,
    /// Number of RoCE packets.
    pub roce: u64,
    /// RoCEv1 packets among them.
    pub roce_v1: u64,
    /// RoCE packets with a right ICRC.
    pub icrc_right: u64,
    /// RoCE packets with a wrong ICRC.
    pub icrc_wrong: u64,
    /// RoCE packets whose ICRC the capture does not contain.
    pub icrc_not_captured: u64,
    /// RoCE packets that cannot be parsed.
    pub unreadable: u64,
    /// Datagrams of several packets, captured before the kernel segmented them.
    pub unsegmented: u64,
    /// RoCE packets that another interface of the capture had captured before, and that count once.
    pub seen_before: u64,
    /// Time from the first packet to the last, in nanoseconds.
    pub nanoseconds: u64,
    /// Reason why the capture could not be read, or not to its end.
    pub error: Option<String>,
}

/// Two queue pairs that talk to each other, or one whose peer the capture does not tell.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct QueuePairs {
    /// Index of the capture.
    pub file: usize,
    /// Transport service.
    pub service: &'static str,
    /// Address and number of the queue pair that sent the first request.
    pub requester: (IpAddr, Option<u32>),
    /// Address and number of the other one.
    pub responder: (IpAddr, u32),
    /// Packets in each direction, those of the requester first.
    pub packets: [u64; 2],
    /// Bytes from BTH to ICRC in each direction.
    pub bytes: [u64; 2],
    /// Requests sent again, in each direction.
    pub resent: [u64; 2],
    /// Timeouts, in each direction.
    pub timeouts: [u64; 2],
    /// RNR NAKs received, in each direction.
    pub rnr_naks: [u64; 2],
    /// Path MTU in bytes, once a packet had to be full.
    pub mtu: Option<usize>,
    /// The gravest finding.
    pub worst: Option<Severity>,
}

impl Report {
    /// Reads captures to their ends and analyses them.
    pub fn read(captures: impl IntoIterator<Item = Result<Capture, CaptureError>>) -> Report {
        let mut report = Report::default();
        for (file, capture) in captures.into_iter().enumerate() {
            report.add(file, capture);
        }
        report.finish();
        report
    }

    /// Joins findings of different captures, and sorts all.
    pub(crate) fn finish(&mut self) {
        self.findings = join::merge(std::mem::take(&mut self.findings));
        self.findings.sort_by_key(|finding| (finding.severity, finding.time));
    }

    fn add(&mut self, file: usize, capture: Result<Capture, CaptureError>) {
        let (mut tracker, mut error) = (Tracker::default(), None);
        let mut name = String::new();
        match capture {
            Ok(mut capture) => {
                name = capture.name().to_owned();
                while let Some(frame) = capture.next_frame() {
                    match frame {
                        Ok(frame) => tracker.frame(&frame),
                        Err(e) => {
                            error = Some(e.to_string());
                            break;
                        }
                    }
                }
            }
            Err(e) => error = Some(e.to_string()),
        }
        if let Some(unsupported) = tracker.unsupported.first() {
            error.get_or_insert(unsupported.to_string());
        }
        self.add_tracked(file, name, &tracker, error);
    }

    /// Adds the result of a capture that has been read.
    pub(crate) fn add_tracked(
        &mut self,
        file: usize,
        name: String,
        tracker: &Tracker,
        error: Option<String>,
    ) {
        let findings = rules::findings(&rules::Capture { tracker, file });
        self.captures.push(CaptureReport::new(name, tracker, error));
        self.queue_pairs.extend(queue_pairs(tracker, file, &findings));
        self.findings.extend(findings);
    }

    /// Reports whether nothing is wrong: all captures could be read, and there are at most notes.
    pub fn is_clean(&self) -> bool {
        self.captures.iter().all(|capture| capture.error.is_none())
            && self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }

    /// Keeps only what concerns the queue pair with the given number.
    pub fn retain_queue_pair(&mut self, qpn: Qpn) {
        let name = format!("QP {qpn} ");
        self.queue_pairs.retain(|qp| qp.requester.1 == Some(qpn.get()) || qp.responder.1 == qpn.get());
        self.findings.retain(|finding| finding.subject.contains(&name));
    }
}

impl CaptureReport {
    fn new(name: String, tracker: &Tracker, error: Option<String>) -> CaptureReport {
        let Totals {
            frames,
            roce,
            v1,
            icrc_right,
            icrc_not_captured,
            unreadable,
            unsegmented,
            seen_before,
            ..
        } = tracker.totals;
        CaptureReport {
            name,
            packets: frames,
            roce,
            roce_v1: v1,
            icrc_right,
            icrc_wrong: tracker.wrong_icrcs.count,
            icrc_not_captured,
            unreadable,
            unsegmented,
            seen_before,
            nanoseconds: tracker.totals.last_time.saturating_sub(tracker.totals.first_time),
            error,
        }
    }
}

fn service(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Rd => "RD",
        Transport::Ud => "UD",
        Transport::Xrc => "XRC",
        Transport::Cnp => "CNP",
        Transport::Reserved => "?",
    }
}

fn queue_pairs(tracker: &Tracker, file: usize, findings: &[Finding]) -> Vec<QueuePairs> {
    let is_requester = |stream: &Stream| stream.requests.first.is_some();
    let streams = tracker.streams.iter().enumerate();
    let rows = streams.filter_map(|(id, stream)| {
        let peer = stream.peer.map(|peer| &tracker.streams[peer]);
        // One row for both directions: that of the side that sent the first request.
        if let (Some(peer_id), Some(peer)) = (stream.peer, peer) {
            let is_other_row = match (is_requester(stream), is_requester(peer)) {
                (true, true) => peer_id < id,
                (has_requests, _) => !has_requests,
            };
            if is_other_row {
                return None;
            }
        }
        let known = peer.map(|peer| peer.key.qpn);
        let known = known.or_else(|| tracker.management.connection_to(stream.key).map(|c| c.2.qpn));
        let source = known.or_else(|| stream.sources.first());
        let both = |f: &dyn Fn(&Stream) -> u64| [f(stream), peer.map_or(0, f)];
        let ends = [(stream.key.dst, Some(stream.key.qpn)), (stream.key.src, source)];
        let concerns = |finding: &&Finding| {
            ends.iter()
                .all(|(ip, qpn)| qpn.is_none_or(|qpn| finding.subject.contains(&format!("QP {qpn} at {ip}"))))
        };
        Some(QueuePairs {
            file,
            service: service(stream.transport),
            requester: (stream.key.src, source.map(Qpn::get)),
            responder: (stream.key.dst, stream.key.qpn.get()),
            packets: both(&|s| s.packets),
            bytes: both(&|s| s.bytes),
            resent: both(&|s| s.requests.facts.resent),
            timeouts: both(&|s| s.requests.facts.timeouts.0),
            rnr_naks: both(&|s| s.requests.facts.not_ready.map_or(0, |rnr| rnr.count)),
            mtu: stream.requests.mtu.or(peer.and_then(|peer| peer.requests.mtu)).map(|mtu| mtu.bytes()),
            worst: findings.iter().filter(concerns).map(|finding| finding.severity).min(),
        })
    });
    rows.collect()
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Failure => "failure",
            Severity::Problem => "problem",
            Severity::Note => "note",
        })
    }
}

/// Without the numbers of its packets, which [`Report`] names by capture. The alternate form has colours.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = match self.severity {
            _ if !f.alternate() => Style::new(),
            Severity::Failure => AnsiColor::Red.on_default().bold(),
            Severity::Problem => AnsiColor::Yellow.on_default(),
            Severity::Note => Style::new(),
        };
        writeln!(f, "{style}{}{style:#}: {}\n  {}", self.severity, self.subject, self.text)?;
        for comment in &self.comments {
            writeln!(f, "  comment on {comment}")?;
        }
        match &self.remedy[..] {
            "" => Ok(()),
            remedy => writeln!(f, "  remedy: {remedy}"),
        }
    }
}

impl fmt::Display for CaptureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} in {}, {} of RoCE",
            self.name,
            count(self.packets, "packet"),
            duration(self.nanoseconds),
            self.roce
        )?;
        let parts = [
            (self.roce_v1, "of RoCEv1"),
            (self.icrc_wrong, "with a wrong ICRC"),
            (self.icrc_not_captured, "without the ICRC in the capture"),
            (self.unreadable, "cannot be parsed"),
            (self.unsegmented, "datagrams not segmented yet"),
            (self.seen_before, "captured by a second interface, too"),
        ];
        for (number, what) in parts.iter().filter(|(number, _)| *number > 0) {
            write!(f, ", {number} {what}")?;
        }
        Ok(())
    }
}

/// Queue pairs that the table lists; JSON lists all.
const MAX_ROWS: usize = 50;

/// Packets that a finding's line lists.
const MAX_PACKETS: usize = 8;

impl fmt::Display for Report {
    /// Formats the report for a terminal: captures, findings, queue pairs; in the alternate form with colours.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for capture in &self.captures {
            match &capture.error {
                Some(error) if capture.packets == 0 => writeln!(f, "{error}")?,
                Some(error) => writeln!(f, "{capture}\n  {error}")?,
                None => writeln!(f, "{capture}")?,
            }
        }
        for (index, finding) in self.findings.iter().enumerate() {
            write!(f, "\n[{}] ", index + 1)?;
            finding.fmt(f)?;
            writeln!(f, "  {}", self.packets_text(finding))?;
        }
        if self.findings.is_empty() && self.is_clean() {
            writeln!(f, "nothing wrong found")?;
        }
        self.table(f)
    }
}

impl Report {
    /// Returns the queue pair that sent the requests of a finding, if it is known.
    pub fn requester_of(&self, finding: &Finding) -> Option<Qpn> {
        let key = finding.stream?;
        self.queue_pairs
            .iter()
            .find_map(|qp| {
                let [a, b] = [(qp.requester.0, qp.requester.1), (qp.responder.0, Some(qp.responder.1))];
                let to = (key.dst, Some(key.qpn.get()));
                match () {
                    () if b == to && a.0 == key.src => a.1,
                    () if a == to && b.0 == key.src => b.1,
                    () => None,
                }
            })
            .map(Qpn::new)
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.queue_pairs.is_empty() {
            return Ok(());
        }
        let end = |(ip, qpn): (IpAddr, Option<u32>)| match qpn {
            Some(qpn) => format!("{qpn:#x} {ip}"),
            None => format!("? {ip}"),
        };
        let pair = |[a, b]: [u64; 2]| format!("{a} / {b}");
        let header =
            ["queue pairs", "", "service", "MTU", "packets", "bytes", "resent", "timeouts", "RNR", ""];
        let mut rows = vec![header.map(str::to_owned)];
        rows.extend(self.queue_pairs.iter().take(MAX_ROWS).map(|qp| {
            [
                end(qp.requester),
                format!("⇄ {}", end((qp.responder.0, Some(qp.responder.1)))),
                qp.service.to_owned(),
                qp.mtu.map_or_else(|| "-".into(), |mtu| mtu.to_string()),
                pair(qp.packets),
                format!("{} / {}", bytes(qp.bytes[0]), bytes(qp.bytes[1])),
                pair(qp.resent),
                pair(qp.timeouts),
                pair(qp.rnr_naks),
                qp.worst.map_or_else(String::new, |worst| worst.to_string()),
            ]
        }));
        let widths: [usize; 10] = std::array::from_fn(|column| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        });
        writeln!(f)?;
        for row in &rows {
            let cells: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        match self.queue_pairs.len().saturating_sub(MAX_ROWS) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }

    /// Lists the packets of a finding, by capture.
    fn packets_text(&self, finding: &Finding) -> String {
        let mut parts = Vec::new();
        for (file, capture) in self.captures.iter().enumerate() {
            let mut packets: Vec<u64> =
                finding.packets.iter().filter(|p| p.file == file).map(|p| p.packet).collect();
            packets.dedup();
            let Some(last) = packets.len().checked_sub(1) else { continue };
            let shown: Vec<String> = packets.iter().take(MAX_PACKETS).map(u64::to_string).collect();
            let more = match (last + 1).saturating_sub(MAX_PACKETS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let of = match self.captures.len() {
                1 => String::new(),
                _ => format!(" of {}", Path::new(&capture.name).file_name().unwrap_or_default().display()),
            };
            parts.push(format!("{}{more}{of}", shown.join(", ")));
        }
        format!("packets {}", parts.join("; "))
    }
}
