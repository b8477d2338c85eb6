//! Ladder of the packets around a finding: what each side sent, in order of time.

use std::collections::HashSet;
use std::fmt;

use urxe::wire::{NakCode, Operation, Packet, Psn, Qpn, Syndrome};

use crate::capture::{Capture, CaptureError};
use crate::finding::Finding;
use crate::icrc::{Judge, Verdict};
use crate::layers::{Content, Roce, dissect};
use crate::text::{count, duration};
use crate::track::stream::Key;

/// Rows that are shown before and behind each packet of the finding.
const CONTEXT: usize = 4;

/// Rows that are collected at most: those before the finding's packets leave again.
const MAX_ROWS: usize = 10_000;

/// PSNs that are remembered, to tell what is sent again.
const MAX_SEEN: usize = 1 << 18;

/// A row: one packet, or a run of packets of one side with consecutive PSNs.
#[derive(Clone, Debug)]
struct Row {
    time: u64,
    packets: (u64, u64),
    /// Whether the requester sent it.
    is_request_side: bool,
    psns: (Psn, Psn),
    what: String,
    /// Whether the PSN was sent before.
    again: bool,
    /// Whether a packet of the finding is in it.
    is_key: bool,
    /// Whether later packets may join it.
    is_open: bool,
}

/// Packets around a finding. Its `Display` is a text for a terminal.
#[derive(Debug)]
pub struct Ladder {
    requester: String,
    responder: String,
    first_time: u64,
    first_psn: Option<Psn>,
    rows: Vec<Row>,
}

impl Ladder {
    /// Reads a capture again and collects the packets of the finding's queue pairs. `peer` is the queue pair that
    /// sent the requests, if it is known, and `file` the index of the capture. Returns `None` if the finding is
    /// not about a queue pair.
    ///
    /// # Errors
    /// [`CaptureError`] if the capture cannot be read; an error behind the packets of the finding does not
    /// matter.
    pub fn read(
        mut capture: Capture,
        file: usize,
        finding: &Finding,
        peer: Option<Qpn>,
    ) -> Result<Option<Ladder>, CaptureError> {
        let Some(key) = finding.stream else { return Ok(None) };
        let keys: Vec<u64> = finding.packets.iter().filter(|p| p.file == file).map(|p| p.packet).collect();
        let Some(last) = keys.iter().max().copied() else { return Ok(None) };
        let name =
            |ip, qpn: Option<Qpn>| qpn.map_or_else(|| format!("{ip}"), |qpn| format!("QP {qpn} at {ip}"));
        let mut ladder = Ladder {
            requester: name(key.src, peer),
            responder: name(key.dst, Some(key.qpn)),
            first_time: 0,
            first_psn: None,
            rows: Vec::new(),
        };
        let (mut judge, mut seen, mut behind) = (Judge::default(), HashSet::new(), 0);
        while let Some(frame) = capture.next_frame() {
            let frame = match frame {
                Ok(frame) => frame,
                Err(_) if !ladder.rows.is_empty() => break,
                Err(e) => return Err(e),
            };
            if frame.number == 1 {
                ladder.first_time = frame.time;
            }
            let Ok(Content::Roce(roce)) = dissect(frame.link, frame.bytes) else { continue };
            let Ok((packet, verdict)) = judge.judge(&roce) else { continue };
            let Some(is_request_side) = side(key, peer, &roce, &packet) else { continue };
            let is_key = keys.contains(&frame.number);
            ladder.add(&packet, verdict, is_request_side, (frame.number, frame.time), is_key, &mut seen);
            if frame.number > last {
                behind += 1;
                if behind > 4 * CONTEXT {
                    break;
                }
            }
        }
        Ok(Some(ladder))
    }

    fn add(
        &mut self,
        packet: &Packet<'_>,
        verdict: Verdict,
        is_request_side: bool,
        (number, time): (u64, u64),
        is_key: bool,
        seen: &mut HashSet<Psn>,
    ) {
        let psn = packet.bth().psn;
        let operation = packet.row().operation;
        let is_request = operation.is_request() && is_request_side;
        let mut again = false;
        if is_request {
            self.first_psn.get_or_insert(psn);
            if seen.len() == MAX_SEEN {
                seen.clear();
            }
            again = !seen.insert(psn);
        }
        let what = describe(packet, verdict);
        let joins = |row: &&mut Row| {
            row.is_open
                && row.is_request_side == is_request_side
                && row.psns.1.next() == psn
                && (row.again, row.is_key, is_key) == (again, false, false)
                && row.what == what
        };
        if let Some(row) = self.rows.last_mut().filter(joins) {
            row.packets.1 = number;
            row.psns.1 = psn;
            return;
        }
        if self.rows.len() == MAX_ROWS {
            // Only the last rows before the finding are shown, and those with its packets.
            let recent = self.rows.len() - 2 * CONTEXT;
            let mut index = 0;
            self.rows.retain(|row| {
                index += 1;
                row.is_key || index > recent
            });
        }
        let is_open = matches!(operation, Operation::Send | Operation::Write | Operation::ReadResponse);
        let packets = (number, number);
        self.rows.push(Row {
            time,
            packets,
            is_request_side,
            psns: (psn, psn),
            what,
            again,
            is_key,
            is_open,
        });
    }

    /// Formats a PSN relative to the first one of the capture.
    fn psn(&self, psn: Psn) -> String {
        match self.first_psn.map(|first| psn.since(first)) {
            Some(distance) => format!("{distance:+}"),
            None => psn.to_string(),
        }
    }
}

/// Tells whether a packet comes from the requester (`true`) or from the responder of a pair; `None` if it is of
/// neither.
fn side(key: Key, peer: Option<Qpn>, roce: &Roce<'_>, packet: &Packet<'_>) -> Option<bool> {
    let (src, dst, qpn) = (roce.flow.src, roce.flow.dst, packet.bth().dest_qp);
    match () {
        () if (src, dst, qpn) == (key.src, key.dst, key.qpn) => Some(true),
        () if (src, dst) == (key.dst, key.src) && Some(qpn) == peer => Some(false),
        () => None,
    }
}

/// Names a packet: operation, and what a response says.
fn describe(packet: &Packet<'_>, verdict: Verdict) -> String {
    let row = packet.row();
    let name = match row.operation {
        Operation::Acknowledge => match packet.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => "NAK, sequence error: expects".into(),
            Some(Syndrome::Nak(NakCode::RemoteAccessError)) => "NAK, remote access error for".into(),
            Some(Syndrome::Nak(NakCode::InvalidRequest)) => "NAK, invalid request for".into(),
            Some(Syndrome::Nak(code)) => format!("NAK {code:?} for"),
            Some(Syndrome::RnrNak(timer)) => {
                format!("RNR NAK, wait {}, for", duration(timer.duration().as_nanos() as u64))
            }
            _ => "ACK".into(),
        },
        Operation::Send => "SEND".into(),
        Operation::Write => "WRITE".into(),
        Operation::ReadRequest => "READ".into(),
        Operation::ReadResponse => "READ response".into(),
        Operation::AtomicAcknowledge => "atomic response".into(),
        Operation::CompareSwap => "COMPARE SWAP".into(),
        Operation::FetchAdd => "FETCH ADD".into(),
        Operation::Flush => "FLUSH".into(),
        Operation::AtomicWrite => "ATOMIC WRITE".into(),
        Operation::Cnp => "CNP".into(),
        _ => row.name.to_owned(),
    };
    match verdict {
        Verdict::Wrong => format!("✗ wrong ICRC: {name}"),
        _ => name,
    }
}

/// Width of the space between the two sides.
const WIDTH: usize = 60;

impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = WIDTH.saturating_sub(self.requester.chars().count());
        writeln!(f, "{:>12}  {:>11}  {}{:gap$}{}", "time", "packets", self.requester, "", self.responder)?;
        let near = |index: usize| {
            let range = index.saturating_sub(CONTEXT)..(index + CONTEXT + 1).min(self.rows.len());
            self.rows[range].iter().any(|row| row.is_key)
        };
        let mut skipped = 0u64;
        for (index, row) in self.rows.iter().enumerate() {
            if !near(index) {
                skipped += row.packets.1 - row.packets.0 + 1;
                continue;
            }
            if skipped > 0 {
                writeln!(f, "{:>27}  ⋮ {}", "", count(skipped, "packet"))?;
                skipped = 0;
            }
            let psns = match row.psns {
                (first, last) if first == last => self.psn(first),
                (first, last) => format!("{}..{}", self.psn(first), self.psn(last)),
            };
            let text = match &row.what[..] {
                "CNP" => row.what.clone(),
                what => format!("{}{what} {psns}", if row.again { "↻ " } else { "" }),
            };
            let line = "─".repeat(WIDTH.saturating_sub(text.chars().count() + 3));
            let arrow = match row.is_request_side {
                true => format!("{text} {line}▶"),
                false => format!("◀{line} {text}"),
            };
            let packets = match row.packets {
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}..{last}"),
            };
            let time = duration(row.time.saturating_sub(self.first_time));
            let mark = if row.is_key { "*" } else { " " };
            writeln!(f, "{time:>12}  {packets:>11} {mark}{arrow}")?;
        }
        match skipped {
            0 => Ok(()),
            _ => writeln!(f, "{:>27}  ⋮ {}", "", count(skipped, "packet")),
        }
    }
}
