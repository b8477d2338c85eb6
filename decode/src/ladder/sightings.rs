//! Packets of two queue pairs as one capture shows them.

use std::collections::{BTreeSet, HashMap};

use urxe::wire::{Opcode, Packet, Psn, Qpn, Syndrome};

use crate::capture::{Capture, CaptureError};
use crate::icrc::{Judge, Verdict};
use crate::layers::{Content, Roce, dissect};
use crate::track::stream::Key;

/// Packets of a capture that are kept: about 24 MB. Of more, the packets around those of the finding.
const MAX_PACKETS: usize = 1 << 19;

/// A packet as a capture shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sighting {
    /// Number of the packet in the capture.
    pub number: u64,
    /// Time in nanoseconds since 1970, by the clock of the capture.
    pub time: u64,
    pub psn: Psn,
    pub interface: u32,
    pub from_requester: bool,
    pub opcode: Opcode,
    pub syndrome: Option<Syndrome>,
    pub is_icrc_wrong: bool,
}

/// Packets of two queue pairs in one capture.
#[derive(Debug)]
pub(super) struct Sightings {
    /// Index of the capture.
    pub file: usize,
    /// File name of the capture, or the name of its interface.
    pub name: String,
    /// Time of the first packet of the capture.
    pub start: u64,
    /// Packets, in the order of the capture.
    pub packets: Vec<Sighting>,
    /// Times between which `packets` has all packets.
    pub range: (u64, u64),
    /// Numbers of the packets of the finding.
    pub keys: Vec<u64>,
    /// Comments, by number.
    pub comments: HashMap<u64, String>,
}

impl Sightings {
    /// Reads a capture, and splits it by interface, if several have captured the same packets. Its `keys` are the numbers of the packets of the finding.
    ///
    /// # Errors
    /// [`CaptureError`] if the capture cannot be read; an error behind the first packet does not matter.
    pub(super) fn read(
        (file, mut capture): (usize, Capture),
        key: Key,
        peer: Option<Qpn>,
        keys: Vec<u64>,
    ) -> Result<Vec<Sightings>, CaptureError> {
        let path = std::path::Path::new(capture.name());
        let name = path.file_name().unwrap_or(path.as_os_str()).display().to_string();
        let last_key = keys.iter().max().copied().unwrap_or(u64::MAX);
        let (packets, comments) = (Vec::new(), HashMap::new());
        let mut all = Sightings { file, name, start: 0, packets, range: (0, 0), keys, comments };
        let mut judge = Judge::default();
        while let Some(frame) = capture.next_frame() {
            let frame = match frame {
                Ok(frame) => frame,
                Err(_) if !all.packets.is_empty() => break,
                Err(e) => return Err(e),
            };
            if frame.number == 1 {
                (all.start, all.range) = (frame.time, (frame.time, frame.time));
            }
            if all.packets.len() == MAX_PACKETS {
                if frame.number > last_key.saturating_add(MAX_PACKETS as u64 / 4) {
                    break;
                }
                all.packets.drain(..MAX_PACKETS / 2);
                all.range.0 = all.packets[0].time;
            }
            all.range.1 = all.range.1.max(frame.time);
            let Ok(Content::Roce(roce)) = dissect(frame.link, frame.bytes) else { continue };
            let Ok((packet, verdict)) = judge.judge(&roce) else { continue };
            let Some(from_requester) = side(key, peer, &roce, &packet) else { continue };
            if let Some(comment) = frame.comment {
                all.comments.insert(frame.number, comment);
            }
            all.packets.push(Sighting {
                number: frame.number,
                time: frame.time,
                psn: packet.bth().psn,
                interface: frame.interface,
                from_requester,
                opcode: packet.bth().opcode,
                syndrome: packet.aeth().map(|aeth| aeth.syndrome),
                is_icrc_wrong: verdict == Verdict::Wrong,
            });
        }
        Ok(all.split(&capture))
    }

    /// Splits the packets by interface, if several interfaces have captured packets of one direction.
    fn split(self, capture: &Capture) -> Vec<Sightings> {
        let mut interfaces = [BTreeSet::new(), BTreeSet::new()];
        for packet in &self.packets {
            interfaces[packet.from_requester as usize].insert(packet.interface);
        }
        if interfaces.iter().all(|of| of.len() < 2) {
            return vec![self];
        }
        let all = interfaces[0].union(&interfaces[1]).copied();
        let part = |interface: u32| Sightings {
            name: capture
                .interface_name(interface)
                .map_or_else(|| format!("interface {interface}"), str::to_owned),
            packets: self.packets.iter().filter(|packet| packet.interface == interface).copied().collect(),
            keys: self.keys.clone(),
            comments: self.comments.clone(),
            ..self
        };
        all.map(part).collect()
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
