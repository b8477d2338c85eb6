//! A ladder as text for a terminal.

use std::fmt;

use anstyle::{AnsiColor, Style};
use urxe::wire::{NakCode, Operation, Psn, Syndrome};

use super::joined::Fate;
use super::rows::Row;
use super::{Counts, Ladder};
use crate::text::{count, duration};

/// Rows that are shown before and behind each packet of the finding.
const CONTEXT: usize = 4;

/// Width of the space between the two sides.
const WIDTH: usize = 60;

/// Offsets of clocks below this are errors of the estimate as often as not.
const LEAST_OFFSET: u64 = 100_000;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default();
const CYAN: Style = AnsiColor::Cyan.on_default();

/// Names a packet: operation, and what a response says.
fn describe(row: &Row) -> String {
    let name = match row.opcode.row().operation {
        Operation::Acknowledge => match row.syndrome {
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => "NAK, sequence error: expects".into(),
            Some(Syndrome::Nak(NakCode::RemoteAccessError)) => "NAK, remote access error for".into(),
            Some(Syndrome::Nak(NakCode::InvalidRequest)) => "NAK, invalid request for".into(),
            Some(Syndrome::Nak(NakCode::RemoteOperationalError)) => {
                "NAK, remote operational error for".into()
            }
            Some(Syndrome::Nak(code)) => format!("NAK, code {} for", code.code()),
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
        _ => row.opcode.row().name.to_owned(),
    };
    if row.is_icrc_wrong { format!("wrong ICRC: {name}") } else { name }
}

/// Returns the colour of a packet, as in `urxe demo`.
fn style(row: &Row) -> Style {
    match () {
        () if row.fate == Fate::Lost || row.is_icrc_wrong => RED,
        () if row.syndrome.is_some_and(Syndrome::is_nak) => RED,
        () if row.again.is_some() => YELLOW,
        () if row.from_requester => Style::new(),
        () => CYAN,
    }
}

fn numbers(range: Option<(u64, u64)>) -> String {
    match range {
        Some((first, last)) if first == last => first.to_string(),
        Some((first, last)) => format!("{first}..{last}"),
        None => "-".into(),
    }
}

/// A formatter with or without colours.
struct Out<'a, 'f> {
    f: &'a mut fmt::Formatter<'f>,
}

impl Out<'_, '_> {
    /// Wraps text in a style, if there are colours.
    fn paint(&self, style: Style, text: &str) -> String {
        if self.f.alternate() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

impl Ladder {
    /// Formats a PSN relative to the first one of the capture.
    fn psn(&self, psn: Psn) -> String {
        match self.first_psn.map(|first| psn.since(first)) {
            Some(distance) => format!("{distance:+}"),
            None => psn.to_string(),
        }
    }

    /// Formats the time of an event.
    fn time(&self, time: u64) -> String {
        duration(time.saturating_sub(self.first_time))
    }

    fn counts(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let [requester, responder] = &self.captures[..] else { return Ok(()) };
        let width = requester.chars().count().max(responder.chars().count());
        let lines = [("requests", requester, responder), ("responses", responder, requester)];
        for ((name, sender, receiver), Counts { sent, received, lost, first_lost }) in
            lines.into_iter().zip(self.counts)
        {
            let lost = match first_lost {
                None => format!("lost {lost}"),
                Some((psn, time)) => {
                    let first = if lost > 1 { "the first " } else { "" };
                    let text = format!("lost {lost}: {first}{} at {}", self.psn(psn), self.time(time));
                    out.paint(RED, &text)
                }
            };
            writeln!(
                out.f,
                "  {name:9}  {sender:width$} sent {sent:>7}   {receiver:width$} received {received:>7}   {lost}"
            )?;
        }
        match self.offset {
            Some(offset) if offset.unsigned_abs() >= LEAST_OFFSET => writeln!(
                out.f,
                "  clocks     that of {responder} is {} {}",
                duration(offset.unsigned_abs()),
                if offset > 0 { "ahead" } else { "behind" }
            ),
            _ => Ok(()),
        }
    }

    fn row(&self, out: &mut Out<'_, '_>, row: &Row, widths: &[usize]) -> fmt::Result {
        let psns = match row.psns {
            (first, last) if first == last => self.psn(first),
            (first, last) => format!("{}..{}", self.psn(first), self.psn(last)),
        };
        let mut text = describe(row);
        if row.opcode.row().operation != Operation::Cnp {
            text = format!("{text} {psns}");
        }
        if let Some((times, after)) = row.again {
            text = format!("↻ {text}, {} after {}", duration(after), ordinal(times));
        }
        let line = WIDTH.saturating_sub(text.chars().count() + 3);
        let (is_lost, is_not_sent) = (row.fate == Fate::Lost, row.fate == Fate::NotSent);
        // A lost packet ends in the middle, one that its sender's capture lacks begins there.
        let shaft = match (is_lost, is_not_sent) {
            (true, _) => (line / 2, "✗ lost"),
            (_, true) => (line / 2, "(not captured by its sender)"),
            _ => (line, ""),
        };
        let arrow = match (row.from_requester, shaft) {
            (true, (len, "")) => format!("{text} {}▶", "─".repeat(len)),
            (true, (len, mark)) if is_lost => format!("{text} {}{mark}", "─".repeat(len)),
            (true, (len, mark)) => format!("{mark} {text} {}▶", "─".repeat(len)),
            (false, (len, "")) => format!("◀{} {text}", "─".repeat(len)),
            (false, (len, mark)) if is_lost => {
                format!(
                    "{:pad$}{mark}{} {text}",
                    "",
                    "─".repeat(len),
                    pad = (line + 1).saturating_sub(len + 6)
                )
            }
            (false, (len, mark)) => format!("◀{} {text} {mark}", "─".repeat(len)),
        };
        let mark = if row.is_key { "*" } else { " " };
        let numbers: Vec<String> = (0..widths.len()).map(|side| numbers(row.numbers[side])).collect();
        let numbers: Vec<String> =
            numbers.iter().zip(widths).map(|(text, width)| format!("{text:>width$}")).collect();
        let time = format!("{:>9}", self.time(row.time));
        let (time, arrow) = (out.paint(DIM, &time), out.paint(style(row), &arrow));
        writeln!(out.f, "  {time}  {} {mark}{arrow}", numbers.join("  "))?;
        for (side, number) in row.numbers.iter().enumerate().filter_map(|(side, n)| Some((side, (*n)?.0))) {
            if let Some(comment) = self.comments.get(&(side, number)) {
                writeln!(
                    out.f,
                    "  {:9}  {}",
                    "",
                    out.paint(DIM, &format!("└ {}: {comment}", self.captures[side]))
                )?;
            }
        }
        Ok(())
    }
}

/// Formats which transmission was the last one.
fn ordinal(times: u32) -> String {
    match times {
        1 => "the first".into(),
        2 => "the second".into(),
        3 => "the third".into(),
        n => format!("transmission {n}"),
    }
}

impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Out { f };
        self.counts(&mut out)?;
        let near = |index: usize| {
            let range = index.saturating_sub(CONTEXT)..(index + CONTEXT + 1).min(self.rows.len());
            self.rows[range].iter().any(|row| row.is_key)
        };
        let heads: Vec<&str> = match &self.captures[..] {
            [_] => vec!["packet"],
            names => names.iter().map(String::as_str).collect(),
        };
        let shown = || self.rows.iter().enumerate().filter(|(index, _)| near(*index));
        let width = |side: usize| shown().map(|(_, row)| numbers(row.numbers[side]).len()).max().unwrap_or(0);
        let widths = heads.iter().enumerate().map(|(side, head)| head.chars().count().max(width(side)));
        let widths: Vec<usize> = widths.collect();
        let head: Vec<String> =
            heads.iter().zip(&widths).map(|(head, width)| format!("{head:>width$}")).collect();
        let gap = WIDTH.saturating_sub(self.requester.chars().count()).max(2);
        let sides = format!("{}{:gap$}{}", self.requester, "", self.responder);
        let head = format!("  {:>9}  {}  {sides}", "time", head.join("  "));
        writeln!(out.f, "{}", out.paint(BOLD, &head))?;
        let indent = 13 + widths.iter().map(|width| width + 2).sum::<usize>();
        let mut skipped = 0;
        for (index, row) in self.rows.iter().enumerate() {
            if !near(index) {
                skipped += row.packets;
                continue;
            }
            if skipped > 0 {
                writeln!(out.f, "{:indent$}⋮ {}", "", count(skipped, "packet"))?;
                skipped = 0;
            }
            self.row(&mut out, row, &widths)?;
        }
        match skipped {
            0 => Ok(()),
            _ => writeln!(out.f, "{:indent$}⋮ {}", "", count(skipped, "packet")),
        }
    }
}
