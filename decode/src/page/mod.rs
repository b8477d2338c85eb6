//! One self-contained HTML page of captures: PSNs over time, throughput, window, CNPs, and the findings.

mod tracks;

use std::collections::BTreeMap;
use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use urxe::wire::Opcode;

use crate::capture::{Capture, CaptureError};
use crate::finding::{Finding, PacketRef};
use crate::report::{CaptureReport, Report};
use tracks::{Track, Tracks};

/// The page, with the names of its parts between `%%`.
const TEMPLATE: &str = include_str!("../../page/page.html");

/// Page of captures.
#[derive(Debug)]
pub struct Page<'a> {
    report: &'a Report,
    tracks: Tracks,
}

/// Part of a [`Report`] that the page shows, in JSON.
#[derive(Serialize)]
struct Meta<'a> {
    captures: Vec<String>,
    tracks: &'a [Track],
    findings: Vec<FindingMeta<'a>>,
    /// Names of the opcodes that occur.
    opcodes: BTreeMap<u8, String>,
    /// Packets that were left out.
    left_out: u64,
}

#[derive(Serialize)]
struct FindingMeta<'a> {
    severity: String,
    subject: &'a str,
    text: &'a str,
    remedy: &'a str,
    comments: &'a [String],
    packets: &'a [PacketRef],
}

fn describe(capture: &CaptureReport) -> String {
    match &capture.error {
        Some(error) if capture.packets == 0 => error.clone(),
        Some(error) => format!("{capture}; {error}"),
        None => capture.to_string(),
    }
}

impl<'a> Page<'a> {
    /// Reads the captures of a report again; those that cannot be read are left out, as the report says.
    ///
    /// # Errors
    /// [`CaptureError`] if a capture that the report has read cannot be opened any more.
    pub fn read(
        captures: impl IntoIterator<Item = Result<Capture, CaptureError>>,
        report: &'a Report,
    ) -> Result<Page<'a>, CaptureError> {
        let mut tracks = Tracks::new(report);
        for (file, (capture, known)) in captures.into_iter().zip(&report.captures).enumerate() {
            match capture {
                Ok(capture) => tracks.read(file, capture),
                Err(_) if known.error.is_some() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Page { report, tracks })
    }

    /// Writes the page as HTML.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let finding = |finding: &'a Finding| FindingMeta {
            severity: finding.severity.to_string(),
            subject: &finding.subject,
            text: &finding.text,
            remedy: &finding.remedy,
            comments: &finding.comments,
            packets: &finding.packets,
        };
        let name = |code: u8| (code, format!("{:?}", Opcode(code)));
        let meta = Meta {
            captures: self.report.captures.iter().map(describe).collect(),
            tracks: &self.tracks.tracks,
            findings: self.report.findings.iter().map(finding).collect(),
            opcodes: self.tracks.opcodes.iter().copied().map(name).collect(),
            left_out: self.tracks.left_out,
        };
        // Within a script element, only the end tag has a meaning.
        let meta = serde_json::to_string(&meta)?.replace("</", "<\\/");
        for (index, part) in TEMPLATE.split("%%").enumerate() {
            match part {
                text if index % 2 == 0 => out.write_all(text.as_bytes())?,
                "library style" => out.write_all(include_bytes!("../../page/uPlot.css"))?,
                "style" => out.write_all(include_bytes!("../../page/page.css"))?,
                "library" => out.write_all(include_bytes!("../../page/uPlot.js"))?,
                "script" => out.write_all(include_bytes!("../../page/page.js"))?,
                "meta" => out.write_all(meta.as_bytes())?,
                "data" => self.write_data(out)?,
                name => return Err(io::Error::other(format!("the page has no part {name}"))),
            }
        }
        Ok(())
    }

    /// Writes the columns of all tracks, compressed.
    fn write_data(&self, out: &mut impl Write) -> io::Result<()> {
        let mut encoder = GzEncoder::new(EncoderWriter::new(out, &STANDARD), Compression::fast());
        for track in &self.tracks.tracks {
            track.write(&mut encoder)?;
        }
        encoder.finish()?.finish()?;
        Ok(())
    }
}
