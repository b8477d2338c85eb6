//! Payload of one message, collected from its packets.

use std::collections::BTreeMap;
use std::fmt;

use urxe::wire::{Operation, Packet, Position, Psn};

use crate::capture::{Capture, CaptureError, Frame};
use crate::icrc::{Judge, Verdict};
use crate::layers::{Content, dissect};
use crate::text::{bytes, count};
use crate::track::stream::Key;

/// Bytes of a message that are collected at most.
const MAX_LEN: usize = 256 << 20;

/// Bytes of a line.
const LINE: usize = 16;

/// Failure to collect a message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The capture has fewer packets.
    #[error("{name} has {packets} packets, so none with number {packet}")]
    NoSuchPacket {
        /// Name of the capture.
        name: String,
        /// Number of packets.
        packets: u64,
        /// Number of the packet.
        packet: u64,
    },
    /// The packet has no payload.
    #[error(
        "packet {packet} is {what}, not part of a message with a payload: choose a packet of a SEND, a WRITE or a READ response"
    )]
    NoPayload {
        /// Number of the packet.
        packet: u64,
        /// Kind of the packet.
        what: String,
    },
}

/// One packet of a message.
#[derive(Debug)]
struct Part {
    number: u64,
    position: Position,
    payload: Vec<u8>,
    is_captured: bool,
}

/// Payload of a message. `Display` formats it as a hexadecimal dump.
#[derive(Debug)]
pub struct Message {
    name: &'static str,
    key: Key,
    first: Psn,
    /// Packets by their place in the message; those that the capture lacks are absent.
    parts: BTreeMap<i32, Part>,
}

/// Payloads that belong to one series of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Series {
    Requests,
    Responses,
}

fn series(packet: &Packet<'_>) -> Option<Series> {
    match packet.row().operation {
        Operation::Send | Operation::Write => Some(Series::Requests),
        Operation::ReadResponse => Some(Series::Responses),
        _ => None,
    }
}

fn operation(packet: &Packet<'_>) -> &'static str {
    match packet.row().operation {
        Operation::Send => "SEND",
        Operation::Write => "WRITE",
        _ => "READ response",
    }
}

fn is_first(part: &Part) -> bool {
    matches!(part.position, Position::First | Position::Only)
}

fn is_last(part: &Part) -> bool {
    matches!(part.position, Position::Last | Position::Only)
}

/// Calls `f` with the packet, if it is one of RoCE.
fn with_packet<R>(
    judge: &mut Judge,
    frame: &Frame<'_>,
    f: impl FnOnce(Key, &Packet<'_>, Verdict) -> R,
) -> Option<R> {
    let Ok(Content::Roce(roce)) = dissect(frame.link, frame.bytes) else { return None };
    let (packet, verdict) = judge.judge(&roce).ok()?;
    let key = Key { src: roce.flow.src, dst: roce.flow.dst, qpn: packet.bth().dest_qp, vni: roce.vni };
    Some(f(key, &packet, verdict))
}

impl Message {
    /// Collects the message that a packet belongs to. `open` opens the capture, which is read twice; `packet` is the
    /// number of the packet in it, from 1.
    ///
    /// # Errors
    /// [`MessageError`] if the capture cannot be read until the packet, or if the packet has no payload.
    pub fn read(
        open: impl Fn() -> Result<Capture, CaptureError>,
        number: u64,
    ) -> Result<Message, MessageError> {
        let mut judge = Judge::default();
        let mut capture = open()?;
        let what = loop {
            let Some(frame) = capture.next_frame() else {
                let (name, packets) = (capture.name().to_owned(), capture.packets());
                return Err(MessageError::NoSuchPacket { name, packets, packet: number });
            };
            let frame = frame?;
            if frame.number == number {
                break with_packet(&mut judge, &frame, |key, packet, _| match series(packet) {
                    Some(series) => Ok((key, series, packet.bth().psn, operation(packet))),
                    None => Err(packet.row().name.to_owned()),
                });
            }
        };
        let no_payload = |what| MessageError::NoPayload { packet: number, what };
        let what = what.unwrap_or_else(|| Err("not a packet of RoCE".into()));
        let (key, of, target, name) = what.map_err(no_payload)?;
        let (mut parts, mut len) = (BTreeMap::<i32, Part>::new(), 0);
        let mut capture = open()?;
        while let Some(Ok(frame)) = capture.next_frame() {
            let part = with_packet(&mut judge, &frame, |other, packet, verdict| {
                let belongs = other == key && series(packet) == Some(of) && verdict != Verdict::Wrong;
                belongs.then(|| {
                    (
                        packet.bth().psn.since(target),
                        Part {
                            number: frame.number,
                            position: packet.row().position,
                            payload: packet.payload().to_vec(),
                            is_captured: verdict == Verdict::Right,
                        },
                    )
                })
            });
            let Some(Some((place, part))) = part else { continue };
            if is_first(&part) && place <= 0 && !is_within(&parts, place) {
                parts = parts.split_off(&place);
            }
            len += part.payload.len();
            parts.entry(place).or_insert(part);
            if is_complete(&parts) || len > MAX_LEN {
                break;
            }
        }
        let start = first_of(&parts);
        let mut parts = parts.split_off(&start);
        if let Some(end) = parts.range(0..).find(|(_, part)| is_last(part)).map(|(place, _)| *place) {
            parts.split_off(&(end + 1));
        }
        Ok(Message { name, key, first: target + start as u32, parts })
    }
}

/// Reports whether the packet before a place belongs to the same message.
fn is_within(parts: &BTreeMap<i32, Part>, place: i32) -> bool {
    parts.get(&(place - 1)).is_some_and(|part| !is_last(part))
}

/// Returns the place of the first packet of the message with the packet at 0.
fn first_of(parts: &BTreeMap<i32, Part>) -> i32 {
    let mut start = 0;
    for (&place, part) in parts.range(..=0).rev() {
        if place < 0 && is_last(part) {
            break;
        }
        start = place;
        if is_first(part) && !is_within(parts, place) {
            break;
        }
    }
    start
}

/// Reports whether all packets of the message with the packet at 0 are present.
fn is_complete(parts: &BTreeMap<i32, Part>) -> bool {
    let Some((&end, _)) = parts.range(0..).find(|(_, part)| is_last(part)) else { return false };
    let start = first_of(parts);
    parts.get(&start).is_some_and(is_first) && parts.range(start..=end).count() as i32 == end - start + 1
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.parts.values().map(|part| part.payload.len()).sum();
        let Key { src, dst, qpn, .. } = self.key;
        let packets = count(self.parts.len() as u64, "packet");
        let (len, first) = (bytes(len as u64), self.first);
        writeln!(f, "{} from {src} to QP {qpn} at {dst}: {len} in {packets} from PSN {first} on", self.name)?;
        let (mut offset, mut next) = (0, self.parts.keys().next().copied());
        for (place, part) in &self.parts {
            let missing = next.map_or(0, |next| place - next);
            if missing > 0 {
                writeln!(f, "          ⋮ {} not in the capture", count(missing as u64, "packet"))?;
            }
            next = Some(place + 1);
            if !part.is_captured {
                writeln!(
                    f,
                    "          ⋮ packet {}: {} not captured",
                    part.number,
                    bytes(part.payload.len() as u64)
                )?;
                offset += part.payload.len();
                continue;
            }
            for line in part.payload.chunks(LINE) {
                let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
                let text: String = line
                    .iter()
                    .map(|byte| if (0x20..0x7f).contains(byte) { *byte as char } else { '.' })
                    .collect();
                writeln!(f, "{offset:08x}  {:47}  {text}", hex.join(" "))?;
                offset += line.len();
            }
        }
        if !self.parts.values().last().is_some_and(is_last) {
            writeln!(f, "          ⋮ the end of the message is not in the capture")?;
        }
        Ok(())
    }
}
