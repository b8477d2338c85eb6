//! Tests of the corpus `pcaps/broken/`: every file belongs to a case and can be read, `cases.json` and the
//! README describe all cases, and the computed ones give the same bytes again. `tests/broken/main.rs` records
//! them.

#[allow(dead_code, reason = "the recorder uses the rest")]
#[path = "../broken/corpus/mod.rs"]
mod corpus;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};

use corpus::Container;

/// Maximum length of a file.
const MAX_LEN: usize = 60 << 10;

fn directory() -> PathBuf {
    std::path::Path::new(env!("URXE_REPOSITORY")).join("pcaps/broken")
}

/// Returns the number of packets of a file.
fn count(name: &str, container: Container) -> usize {
    let path = directory().join(name);
    match container {
        Container::PcapNanos | Container::PcapMicros => {
            let bytes = fs::read(path).unwrap();
            let mut reader = PcapReader::new(&bytes[..]).unwrap();
            let mut found = 0;
            while let Some(packet) = reader.next_packet() {
                packet.unwrap();
                found += 1;
            }
            found
        }
        Container::Gzip => packets(&Command::new("gzip").arg("-dc").arg(path).output().unwrap().stdout),
        _ => packets(&fs::read(path).unwrap()),
    }
}

fn packets(pcapng: &[u8]) -> usize {
    let mut reader = PcapNgReader::new(pcapng).unwrap();
    let mut found = 0;
    while let Some(block) = reader.next_block() {
        found += usize::from(matches!(block.unwrap(), Block::EnhancedPacket(_)));
    }
    found
}

#[test]
fn every_file_belongs_to_a_case_and_every_case_is_described() {
    let cases = corpus::cases();
    let [json, readme] =
        ["cases.json", "README.md"].map(|name| fs::read_to_string(directory().join(name)).unwrap());
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let mut files: BTreeSet<String> = ["LICENSE", "README.md", "cases.json"].map(String::from).into();
    let mut listed = Vec::new();
    for case in cases {
        let section = format!("\n## {}\n\n{}\n", case.name, case.text);
        assert!(readme.contains(&section), "README.md lacks {}", case.name);
        let names = case.file_names();
        let counts = names.iter().zip(case.files).map(|(name, (_, container))| count(name, *container));
        let counts: Vec<usize> = counts.collect();
        let shown = corpus::listed_packets(&json, case.name).unwrap_or_default();
        assert_eq!(shown.is_empty(), case.diagnosis == "none", "{}", case.name);
        assert!(shown.iter().all(|(file, packet)| (1..=counts[*file]).contains(packet)), "{}", case.name);
        listed.push((case, shown));
        files.extend(names);
    }
    assert!(json == corpus::to_json(&listed), "cases.json is not that of the recorder");
    let present: BTreeSet<String> =
        fs::read_dir(directory()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(present, files);
}

#[test]
fn computed_cases_give_the_stored_files_again() {
    let json = fs::read_to_string(directory().join("cases.json")).unwrap();
    for case in corpus::cases() {
        let Some(recording) = case.compute() else { continue };
        let shown = corpus::listed_packets(&json, case.name);
        assert_eq!(shown, Some(case.shown_in(&recording.captures)), "{}", case.name);
        for seen in recording.captures.iter().flat_map(|shots| corpus::shot::decode(shots)) {
            assert!(seen.icrc_is_right || case.diagnosis == "wrong-icrc", "{}: {seen:?}", case.name);
        }
        for ((name, (_, container)), bytes) in case.file_names().iter().zip(case.files).zip(&recording.files)
        {
            assert!(bytes.len() <= MAX_LEN, "{name} has {} bytes", bytes.len());
            // Versions of gzip may compress differently.
            if *container != Container::Gzip {
                let stored = fs::read(directory().join(name)).unwrap();
                assert!(stored == *bytes, "{name} differs: record it again if the change is intended");
            }
        }
    }
}
