//! Ladder of the packets around a finding: what each side sent, in order of time, and what arrived.
//!
//! A ladder of one capture shows the packets as they passed there. A ladder of the captures of both ends estimates the
//! offset of their clocks ([`joined`]), and tells for each packet whether it arrived.

mod joined;
mod rows;
mod sightings;
mod text;

use std::collections::HashMap;

use urxe::wire::{Psn, Qpn};

use crate::capture::{Capture, CaptureError};
use crate::finding::Finding;
use joined::{Event, Fate, join};
use rows::{Row, rows};
use sightings::Sightings;

/// Packets of each side: those sent, and those that the other end received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    lost: u64,
    /// First lost packet: its PSN, and the time.
    first_lost: Option<(Psn, u64)>,
}

/// Packets around a finding. `Display` formats it for a terminal; the alternate form, `{:#}`, with colours.
#[derive(Debug)]
pub struct Ladder {
    requester: String,
    responder: String,
    /// Names of the captures: of the only one, or of that at the requester and that at the responder.
    captures: Vec<String>,
    /// Offset of the responder's clock in nanoseconds, if there are two captures that tell it.
    offset: Option<i64>,
    /// Packets of the requester and of the responder.
    counts: [Counts; 2],
    first_time: u64,
    first_psn: Option<Psn>,
    rows: Vec<Row>,
    /// Comments of packets, by capture and number.
    comments: HashMap<(usize, u64), String>,
}

impl Ladder {
    /// Reads captures again and collects the packets of the finding's queue pairs. `captures` are all those of the
    /// report, in its order, and `peer` is the queue pair that sent the requests, if it is known. Returns `None` if
    /// the finding is not about a queue pair, or if no capture has packets of it.
    ///
    /// # Errors
    /// [`CaptureError`] if a capture cannot be read; an error behind some packets does not matter.
    pub fn read(
        captures: impl IntoIterator<Item = Result<Capture, CaptureError>>,
        finding: &Finding,
        peer: Option<Qpn>,
    ) -> Result<Option<Ladder>, CaptureError> {
        let Some(key) = finding.stream else { return Ok(None) };
        let mut sides = Vec::new();
        for (file, capture) in captures.into_iter().enumerate() {
            let keys = finding.packets.iter().filter(|p| p.file == file).map(|p| p.packet);
            sides.extend(Sightings::read((file, capture?), key, peer, keys.collect())?);
        }
        sides.retain(|side| !side.packets.is_empty());
        // The ladder has two sides: the first two captures that have packets of the finding.
        sides.sort_by_key(|side| side.keys.is_empty());
        sides.truncate(2);
        let joined = join(sides);
        let Some(first) = joined.sides.first() else { return Ok(None) };
        let name =
            |ip, qpn: Option<Qpn>| qpn.map_or_else(|| format!("{ip}"), |qpn| format!("QP {qpn} at {ip}"));
        let requests = joined.events.iter().filter(|event| event.sighting(&joined.sides).from_requester);
        Ok(Some(Ladder {
            requester: name(key.src, peer),
            responder: name(key.dst, Some(key.qpn)),
            captures: labels(&joined.sides),
            offset: joined.offset,
            counts: counts(&joined.events, &joined.sides),
            first_time: first.start,
            first_psn: requests.map(|event| event.sighting(&joined.sides).psn).next(),
            rows: rows(&joined.events, &joined.sides),
            comments: joined
                .sides
                .iter()
                .enumerate()
                .flat_map(|(side, sightings)| {
                    sightings.comments.iter().map(move |(number, text)| ((side, *number), text.clone()))
                })
                .collect(),
        }))
    }
}

/// Returns the names of captures without what they have in common: `client` for `run-1.client.pcapng`, if the other
/// one is `run-1.server.pcapng`.
fn labels(sides: &[Sightings]) -> Vec<String> {
    let names: Vec<&str> = sides.iter().map(|side| side.name.split(".pcap").next().unwrap_or("")).collect();
    let [a, b] = names[..] else { return names.iter().map(|name| (*name).to_owned()).collect() };
    let is_separator = |(_, c): &(usize, char)| matches!(c, '.' | '-' | '_');
    let starts = a.char_indices().filter(is_separator).map(|(at, c)| at + c.len_utf8());
    let common = starts.rev().find(|at| b.get(..*at) == Some(&a[..*at])).unwrap_or(0);
    match (&a[common..], &b[common..]) {
        (a, b) if a == b || a.is_empty() || b.is_empty() => {
            sides.iter().map(|side| side.name.clone()).collect()
        }
        (a, b) => vec![a.to_owned(), b.to_owned()],
    }
}

fn counts(events: &[Event], sides: &[Sightings]) -> [Counts; 2] {
    let mut counts = [Counts::default(); 2];
    for event in events {
        let sighting = event.sighting(sides);
        let of = &mut counts[!sighting.from_requester as usize];
        of.sent += (event.fate != Fate::NotSent) as u64;
        of.received += matches!(event.fate, Fate::Arrived | Fate::NotSent) as u64;
        if event.fate == Fate::Lost {
            of.lost += 1;
            of.first_lost.get_or_insert((sighting.psn, event.time));
        }
    }
    counts
}
