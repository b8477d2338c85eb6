//! The page of the corpus.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use urxe_decode::{Capture, Finding, Report};

use super::Result;
use super::corpus::{Case, Source};

pub const LICENSE: &str = "SPDX-License-Identifier: CC0-1.0

The captures, cases.json and README.md in this directory are dedicated to the public domain under CC0 1.0 Universal
(https://creativecommons.org/publicdomain/zero/1.0/): to the extent possible under law, their authors waive all copyright and related
rights to them worldwide. They may be copied, changed and distributed, also commercially, without asking permission.
";

const HEAD: &str = "# Broken RoCEv2: a corpus of captures

Small captures of RoCEv2 traffic in which one thing is wrong, for people who learn to read such captures and for programs that diagnose
them; and some in which nothing is wrong although it may seem so. All are in the public domain (`LICENSE`, CC0-1.0).

`cases.json` has the truth: an array of objects with `name`, `files`, `diagnosis` (a name of the table below, or `none`), `packets` (those
that show the fault: index of the file in `files`, from 0 on, and number of the packet, from 1 on, as Wireshark counts) and `text` (the
fault, and how one sees it). At most twelve packets are listed for each trait. The sections below show some of these packets, and the ones
before them, as tshark prints them, and what `urxe decode` says.

A file named NAME.client or NAME.server was recorded at this end: it has the packets that the end sent, whether or not they arrived, and those
that reached it. Where a case has both, their difference is what the network did. Client and server are 10.77.0.1 and 10.77.0.2, or fd77::1 and
fd77::2, unless the text says otherwise; path MTU is 256 unless a packet is longer. No packet has a comment, except in
`request-lost-commented`. ACKs of the computed captures have end-to-end credits, which count posted receives: they are 0 where only WRITEs and
READs are in use, which need none.

`cargo run -p urxe-cli --example record-broken -- pcaps/broken` records all again (`tests/broken`), and with names of cases only these, with
`computed` only those without a live peer. Most run two NICs of urxe in virtual time, and give the same bytes in every run
(`tests/pure/broken_captures.rs` compares them). The cases `rxe-*` run the Soft-RoCE of two Linux guests (`tests/install guest`),
recorded at the client; `peer-silent-arp`,
`peer-silent-nd` and `port-unreachable*` the network stack in two namespaces, which needs root.

";

/// Columns of tshark's output.
const COLUMNS: &str = r#"gui.column.format:"No.","%m","Time","%t","Src","%s","Dst","%d","PSN","%Cus:infiniband.bth.psn","Info","%i""#;

/// Returns the page for a directory with the captures.
pub fn text(dir: &Path, cases: &[(&Case, Vec<(usize, usize)>)]) -> Result<String> {
    let mut out = String::from(HEAD);
    out.push_str("| case | diagnosis | files | bytes | peers |\n| --- | --- | --- | --- | --- |\n");
    for (case, _) in cases {
        let (mut files, mut sizes) = (Vec::new(), Vec::new());
        for (name, (_, container)) in case.file_names().iter().zip(case.files) {
            sizes.push(std::fs::metadata(dir.join(name))?.len().to_string());
            files.push(format!("`{name}` ({})", container.describe()));
        }
        let peers = match case.source {
            Source::Live if case.name.starts_with("rxe") => "rxe, Linux 6.1",
            Source::Live => "Linux, namespaces",
            _ => "urxe, virtual time",
        };
        let (name, files, sizes) = (case.name, files.join(", "), sizes.join(", "));
        writeln!(out, "| [{name}](#{name}) | {} | {files} | {sizes} | {peers} |", case.diagnosis)?;
    }
    for (case, shown) in cases {
        writeln!(out, "\n## {}\n\n{}", case.name, case.text)?;
        for (file, name) in case.file_names().into_iter().enumerate() {
            let shown = shown.iter().filter(|(of, _)| *of == file).map(|(_, packet)| *packet);
            let lines = summary(&dir.join(&name), &shown.collect::<Vec<_>>());
            if !lines.is_empty() {
                writeln!(out, "\n`{name}`:\n\n{lines}")?;
            }
        }
        let files = case.file_names();
        let report = Report::read(files.iter().map(|name| Capture::open(&dir.join(name))));
        let findings: Vec<String> = report.findings.iter().map(Finding::to_string).collect();
        let text = match &findings[..] {
            [] => "nothing wrong found".to_owned(),
            findings => findings.join("\n"),
        };
        let text: String =
            text.trim_end().lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n").collect();
        write!(out, "\n`urxe decode {}`:\n\n{text}", files.join(" "))?;
    }
    while out.ends_with("\n\n") {
        out.pop();
    }
    Ok(out)
}

/// Number of lines of tshark's output that the page shows.
const LINES: usize = 8;

/// Returns packets of a capture as tshark prints them, indented: those that show the fault and the ones before
/// them, or else the first ones. Returns nothing without tshark.
fn summary(file: &Path, shown: &[usize]) -> String {
    let out = Command::new("tshark").args(["-n", "-t", "r", "-o", COLUMNS, "-r"]).arg(file).output();
    let Ok(out) = out else { return String::new() };
    let text = String::from_utf8_lossy(&out.stdout);
    let is_near =
        |number: &usize| shown.is_empty() || shown.contains(number) || shown.contains(&(number + 1));
    let lines = (1..).zip(text.lines()).filter(|(number, _)| is_near(number)).take(LINES);
    let lines: Vec<String> = lines.map(|(_, line)| format!("    {}", line.trim_end())).collect();
    lines.join("\n")
}
