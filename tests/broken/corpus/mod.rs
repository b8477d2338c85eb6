//! The corpus `pcaps/broken/`: captures of RoCEv2 traffic in which something is wrong, and their truth.
//!
//! A computed case runs two NICs in virtual time, and gives the same bytes in every run. A live one has the
//! kernel as a peer; its recorder is beside this directory.

mod congested;
mod connections;
mod container;
mod datagrams;
mod healthy;
pub mod hosts;
mod integrity;
mod live;
mod losses;
mod mismatches;
mod refusals;
mod scripted;
pub mod shot;

use std::fmt::Write;

pub use container::Container;
use shot::{Seen, Shot};

/// Selection of the packets that show a fault.
pub type Pick = fn(&Seen) -> bool;

/// Source of a case's packets.
pub enum Source {
    /// Function that computes the packets of each file, with a seed for queue pair numbers, keys and PSNs.
    Computed(fn(u64) -> Vec<Vec<Shot>>),
    /// Function that computes the file as urxe writes it, with its comments.
    File(fn(u64) -> Vec<u8>),
    /// A recorder with real peers, found by the case's name.
    Live,
}

/// A case: one situation, seen by one host or by both.
pub struct Case {
    pub name: &'static str,
    /// Name of the fault, or "none".
    pub diagnosis: &'static str,
    /// Files, each with the suffix of its name and its container.
    pub files: &'static [(&'static str, Container)],
    pub source: Source,
    /// Packets that show the fault, each rule with the index of its file.
    pub shown: &'static [(usize, Pick)],
    pub text: &'static str,
}

/// Packets and files of a case.
pub struct Recording {
    pub captures: Vec<Vec<Shot>>,
    /// Contents of the files, in the order of their names.
    pub files: Vec<Vec<u8>>,
}

/// Maximum number of packets that a rule shows; later ones show the same.
const MAX_SHOWN: usize = 12;

impl Case {
    /// Returns the names of the files.
    pub fn file_names(&self) -> Vec<String> {
        let name = |(suffix, container): &(&str, Container)| {
            let dot = if suffix.is_empty() { "" } else { "." };
            format!("{}{dot}{suffix}.{}", self.name, container.extension())
        };
        self.files.iter().map(name).collect()
    }

    /// Computes the packets and files; `None` for a live case.
    pub fn compute(&self) -> Option<Recording> {
        let seed =
            self.name.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        match self.source {
            Source::Computed(packets) => Some(self.pack(packets(seed))),
            Source::File(file) => {
                let files = vec![file(seed)];
                Some(Recording { captures: vec![shot::from_pcapng(&files[0])], files })
            }
            Source::Live => None,
        }
    }

    /// Returns a recording with the given packets of each file.
    pub fn pack(&self, captures: Vec<Vec<Shot>>) -> Recording {
        assert_eq!(captures.len(), self.files.len(), "{}: number of captures", self.name);
        let files =
            captures.iter().zip(self.files).map(|(shots, (_, container))| container.file(shots)).collect();
        Recording { captures, files }
    }

    /// Returns the packets that show the fault: indices of files, and numbers of packets from 1 on.
    ///
    /// # Panics
    /// If a rule finds no packet, so that the capture does not show the fault.
    pub fn shown_in(&self, captures: &[Vec<Shot>]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (file, pick) in self.shown {
            let seen = shot::decode(&captures[*file]);
            let numbers = (1..).zip(&seen).filter(|(_, seen)| pick(seen)).map(|(number, _)| (*file, number));
            let before = found.len();
            found.extend(numbers.take(MAX_SHOWN));
            assert!(found.len() > before, "{}: no packet of file {file} shows the fault", self.name);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the case's object in `cases.json`.
    fn json(&self, shown: &[(usize, usize)]) -> String {
        let files: Vec<String> = self.file_names().iter().map(|name| format!("{name:?}")).collect();
        let packets: Vec<String> = shown
            .iter()
            .map(|(file, packet)| format!("{{\"file\": {file}, \"packet\": {packet}}}"))
            .collect();
        let mut out = String::new();
        write!(
            out,
            "  {{\n    \"name\": {:?},\n    \"files\": [{}],\n    \"diagnosis\": {:?},\n    \"packets\": [{}],\n    \
             \"text\": {:?}\n  }}",
            self.name,
            files.join(", "),
            self.diagnosis,
            packets.join(", "),
            self.text
        )
        .expect("a string takes every write");
        out
    }
}

/// Returns the packets that show the fault of a case, from `cases.json`; `None` if the case is not in it.
pub fn listed_packets(json: &str, name: &str) -> Option<Vec<(usize, usize)>> {
    let (_, entry) = json.split_once(&format!("\"name\": {name:?},\n"))?;
    let (_, list) = entry.split_once("\"packets\": [")?;
    let (list, _) = list.split_once(']')?;
    let pair = |part: &str| {
        let (file, packet) = part.split_once(", \"packet\": ")?;
        Some((file.parse().ok()?, packet.split_once('}')?.0.parse().ok()?))
    };
    list.split("{\"file\": ").skip(1).map(pair).collect()
}

/// Returns `cases.json`.
pub fn to_json(cases: &[(&Case, Vec<(usize, usize)>)]) -> String {
    let objects: Vec<String> = cases.iter().map(|(case, shown)| case.json(shown)).collect();
    format!("[\n{}\n]\n", objects.join(",\n"))
}

/// One capture, of the client.
const CLIENT: &[(&str, Container)] = &[("", Container::PcapNg)];
/// A capture of each end.
const ENDS: &[(&str, Container)] = &[("client", Container::PcapNg), ("server", Container::PcapNg)];

/// Returns all cases.
pub fn cases() -> Vec<&'static Case> {
    [
        losses::CASES,
        mismatches::CASES,
        refusals::CASES,
        connections::CASES,
        congested::CASES,
        datagrams::CASES,
        integrity::CASES,
        scripted::CASES,
        live::CASES,
        healthy::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}
