//! Records the corpus `pcaps/broken/`, or the cases given as arguments:
//! `cargo run -p urxe-cli --example record-broken -- pcaps/broken [NAME...]`.

mod corpus;
mod guests;
mod namespaces;
mod readme;

use std::panic::catch_unwind;
use std::path::Path;

use corpus::{Case, Recording, Source};

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

/// Records one case. Returns the recording, and the packets that show the fault.
fn record(case: &Case, peers: &mut guests::Peers) -> Result<(Recording, Vec<(usize, usize)>)> {
    let recording = match catch_unwind(|| case.compute()).map_err(|_| "a step of the case failed")? {
        Some(recording) => recording,
        None if case.name.starts_with("rxe-") => case.pack(vec![peers.record(case.name)?]),
        None => case.pack(vec![namespaces::record(case.name)?]),
    };
    let shown = catch_unwind(|| case.shown_in(&recording.captures));
    Ok((recording, shown.map_err(|_| "the capture does not show the fault")?))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((dir, names)) = args.split_first() else {
        return Err("usage: record-broken DIRECTORY [NAME...|computed]".into());
    };
    let dir = Path::new(dir);
    std::fs::create_dir_all(dir)?;
    let cases = corpus::cases();
    let is_computed = |case: &Case| !matches!(case.source, Source::Live);
    let is_wanted = |case: &Case| {
        names.is_empty()
            || names.iter().any(|name| name == case.name || name == "computed" && is_computed(case))
    };
    let json = std::fs::read_to_string(dir.join("cases.json")).unwrap_or_default();
    let (mut listed, mut peers, mut failed) = (Vec::new(), guests::Peers::default(), Vec::new());
    for case in cases {
        if !is_wanted(case) {
            // Cases that are not recorded keep their files.
            listed.extend(corpus::listed_packets(&json, case.name).map(|shown| (case, shown)));
            continue;
        }
        match record(case, &mut peers) {
            Ok((recording, shown)) => {
                for (name, bytes) in case.file_names().iter().zip(&recording.files) {
                    println!("{name}: {} bytes", bytes.len());
                    std::fs::write(dir.join(name), bytes)?;
                }
                listed.push((case, shown));
            }
            Err(e) => {
                println!("{}: FAILED: {e}", case.name);
                failed.push(case.name);
            }
        }
    }
    std::fs::write(dir.join("cases.json"), corpus::to_json(&listed))?;
    std::fs::write(dir.join("LICENSE"), readme::LICENSE)?;
    std::fs::write(dir.join("README.md"), readme::text(dir, &listed)?)?;
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {failed:?}").into()) }
}
