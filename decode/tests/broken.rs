//! Analyses the corpora `pcaps/broken/` and `pcaps/blind/`: each capture was made with one fault, which `cases.json` names
//! together with the packets that show it. The engineers who made the captures did not know the rules of the analysis.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use urxe_decode::{Capture, Finding, Report};

#[derive(Deserialize)]
struct Case {
    name: String,
    files: Vec<PathBuf>,
    diagnosis: String,
    packets: Vec<Packet>,
}

#[derive(Deserialize)]
struct Packet {
    file: usize,
    packet: u64,
}

fn report(corpus: &Path, case: &Case) -> Report {
    Report::read(case.files.iter().map(|file| Capture::open(&corpus.join(file))))
}

/// Returns the name of a diagnosis in JSON.
fn name(diagnosis: urxe_decode::Diagnosis) -> String {
    serde_json::to_value(diagnosis).unwrap().as_str().unwrap().to_owned()
}

/// Analyses the captures of a corpus of `count` cases. In one without a fault, notes may say what is unusual.
fn check(corpus: &str, count: usize) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps").join(corpus);
    let cases: Vec<Case> =
        serde_json::from_slice(&std::fs::read(corpus.join("cases.json")).unwrap()).unwrap();
    let readme = std::fs::read_to_string(corpus.join("README.md")).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let report = report(&corpus, case);
        if corpus.ends_with("broken") {
            let is_told = |finding: &Finding| readme.contains(&finding.text);
            assert!(
                report.findings.iter().all(is_told),
                "README.md lacks findings of {}: record it",
                case.name
            );
        }
        let is_right = match &case.diagnosis[..] {
            "none" => report.findings.is_empty(),
            diagnosis => report.findings.iter().filter(|f| name(f.diagnosis) == diagnosis).any(|f| {
                let shows = |p: &Packet| f.packets.iter().any(|q| (q.file, q.packet) == (p.file, p.packet));
                case.packets.iter().any(shows)
            }),
        };
        if !is_right {
            wrong.push(format!("{}: {} not found\n{report}", case.name, case.diagnosis));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(cases.len(), count);
}

#[test]
fn each_fault_of_the_corpus_is_found_with_a_packet_that_shows_it() {
    check("broken", 66);
}

#[test]
fn each_fault_of_the_blind_test_is_found_with_a_packet_that_shows_it() {
    check("blind", 101);
}
