//! `urxe decode`: says what is wrong in captures, and why.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use urxe::wire::Qpn;
use urxe_decode::{Capture, Events, EventsError, Finding, Ladder, Message, Page, Report, Severity};

use super::{CliError, json};

mod live;
mod progress;

const LONG_ABOUT: &str = "\
Reads captures of RoCE, of urxe or of any other device: pcap and pcapng, also compressed by gzip or zstd, of Ethernet \
with or without VLAN tags, Linux cooked captures and raw IP, with VXLAN around RoCE or without; RoCEv2 and RoCEv1. \
Verifies every ICRC, finds which queue pairs talk to each other, follows their PSNs, and prints what went wrong, each \
time with the packets that show it and with a remedy.

The exit status is 0 if nothing is wrong, and 1 if something is, or if a capture cannot be read.";

const EXAMPLES: &str = "\
Examples:
  urxe decode client.pcapng
  urxe decode --why client.pcapng server.pcapng
  urxe decode --around 3 capture.pcapng
  urxe decode --html page.html client.pcapng server.pcapng
  urxe decode --qp 0x11 capture.pcap.gz
  urxe decode --bytes 4711 capture.pcapng
  tcpdump -i eth0 -w - udp port 4791 | urxe decode --live -
  urxe decode --qlog client.qlog client.pcapng
  urxe decode --perfetto trace.json client.pcapng server.qlog
  urxe decode --json capture.pcap | jq '.findings[].text'";

/// Say what is wrong in captures, and why
#[derive(Args)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub struct Decode {
    /// Captures; `-` is standard input
    #[arg(required = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Show the packets around the gravest finding as a ladder; of the captures of both ends, what arrived
    #[arg(long)]
    why: bool,
    /// Show the packets around the finding with this number
    #[arg(long, value_name = "N", conflicts_with = "why")]
    around: Option<usize>,
    /// Only the queue pair with this number, in either direction
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Option<Qpn>,
    /// Show the payload of the message that the packet with this number belongs to, of one capture
    #[arg(long, value_name = "PACKET", conflicts_with_all = ["why", "around", "qp", "json", "live"])]
    bytes: Option<u64>,
    /// Follow one capture that is being written, and print findings as they appear; Ctrl-C ends it
    #[arg(long, conflicts_with_all = ["why", "around", "qp", "json"])]
    live: bool,
    /// Also write a page for a browser: PSNs over time, throughput, window, findings
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["bytes", "live"])]
    html: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, conflicts_with_all = ["why", "around"])]
    json: bool,
    /// Write the events of the captures to this qlog file, in place of a report
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["why", "qp", "json"])]
    qlog: Option<PathBuf>,
    /// Write a trace for Perfetto to this file, in place of a report: a track per queue pair
    ///
    /// The inputs may be captures and qlog files, also those that --qlog of other commands has written. Open the file
    /// in https://ui.perfetto.dev.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["why", "qp", "json"])]
    perfetto: Option<PathBuf>,
}

fn parse_qpn(text: &str) -> Result<Qpn, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number <= 0xff_ffff => Ok(Qpn::new(number)),
        _ => Err("expected a number of 24 bits, for example 0x11 or 17".into()),
    }
}

impl Decode {
    pub fn run(self) -> Result<(), CliError> {
        let is_input = |file: &PathBuf| file.as_os_str() == "-";
        let twice = [
            ("--why", self.why),
            ("--around", self.around.is_some()),
            ("--bytes", self.bytes.is_some()),
            ("--html", self.html.is_some()),
        ];
        if let Some((option, _)) = twice.iter().find(|(_, given)| *given)
            && self.files.iter().any(is_input)
        {
            let text = format!("{option} reads captures twice: write standard input to a file first");
            return Err(CliError::Usage(text));
        }
        if self.bytes.is_some() || self.live {
            let [file] = &self.files[..] else {
                let option = if self.live { "--live" } else { "--bytes" };
                return Err(CliError::Usage(format!("{option} takes one capture, not {}", self.files.len())));
            };
            return match self.bytes {
                Some(packet) => print_message(file, packet),
                None => live::run(file),
            };
        }
        if self.qlog.is_some() || self.perfetto.is_some() {
            return self.write_events();
        }
        let mut report = Report::read(self.files.iter().map(|file| progress::open(file)));
        if let Some(qpn) = self.qp {
            report.retain_queue_pair(qpn);
            if report.queue_pairs.is_empty() {
                return Err(CliError::Failed(format!("no packet of queue pair {qpn} is in the captures")));
            }
        }
        if let Some(path) = &self.html {
            self.write_page(path, &report)?;
        }
        if self.json {
            json::print(&report)?;
        } else {
            write!(anstream::AutoStream::auto(io::stdout().lock()), "{report:#}")?;
        }
        let wanted = self.around.or(self.why.then_some(1));
        match wanted
            .map(|number| (number, number.checked_sub(1).and_then(|index| report.findings.get(index))))
        {
            Some((_, Some(finding))) => self.print_ladder(&report, finding)?,
            Some((number, None)) if self.around.is_some() => {
                let last = report.findings.len();
                let text = format!("--around {number}: findings have numbers from 1 to {last}");
                return Err(CliError::Usage(text));
            }
            _ => {}
        }
        result(&report)
    }

    /// Writes the page. Reads the captures again.
    fn write_page(&self, path: &Path, report: &Report) -> Result<(), CliError> {
        let captures = self.files.iter().map(|file| progress::open(file));
        let page = Page::read(captures, report).map_err(|e| CliError::Failed(e.to_string()))?;
        let failed = CliError::io(format!("cannot write {}", path.display()));
        let written = File::create(path).map(BufWriter::new).and_then(|mut file| {
            page.write(&mut file)?;
            file.flush()
        });
        written.map_err(failed)
    }

    /// Writes the events of the inputs to the files of `--qlog` and `--perfetto`.
    fn write_events(&self) -> Result<(), CliError> {
        if self.files.iter().any(|file| file.as_os_str() == "-") {
            let text = "--qlog and --perfetto read captures twice: write standard input to a file first";
            return Err(CliError::Usage(text.into()));
        }
        let failed = |error: EventsError| CliError::Failed(error.to_string());
        let create = |file: &PathBuf| {
            File::create(file).map(BufWriter::new).map_err(CliError::io(file.display().to_string()))
        };
        if let Some(file) = &self.qlog {
            let events = Events::open(&self.files).map_err(failed)?;
            events.write_qlog(&mut create(file)?).map_err(failed)?;
        }
        if let Some(file) = &self.perfetto {
            let events = Events::open(&self.files).map_err(failed)?;
            events.write_trace(&mut create(file)?).map_err(failed)?;
        }
        Ok(())
    }

    /// Prints the packets around a finding. Reads the captures again.
    fn print_ladder(&self, report: &Report, finding: &Finding) -> Result<(), CliError> {
        let captures = self.files.iter().map(|file| progress::open(file));
        let ladder = Ladder::read(captures, finding, report.requester_of(finding));
        if let Some(ladder) = ladder.map_err(|e| CliError::Failed(e.to_string()))? {
            let mut out = anstream::AutoStream::auto(io::stdout().lock());
            write!(out, "\n{ladder:#}")?;
        }
        Ok(())
    }
}

/// Returns an error that counts what is wrong, unless nothing is.
fn result(report: &Report) -> Result<(), CliError> {
    if report.is_clean() {
        return Ok(());
    }
    let unread = report.captures.iter().filter(|capture| capture.error.is_some()).count();
    let of = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let parts = [
        (of(Severity::Failure), "failure", "failures"),
        (of(Severity::Problem), "problem", "problems"),
        (unread, "capture not read to its end", "captures not read to their ends"),
    ];
    let parts = parts.iter().filter(|(n, ..)| *n > 0);
    let text: Vec<String> =
        parts.map(|(n, one, many)| format!("{n} {}", if *n == 1 { one } else { many })).collect();
    Err(CliError::Failed(text.join(", ")))
}

/// Prints the payload of a message.
fn print_message(file: &Path, packet: u64) -> Result<(), CliError> {
    let message = Message::read(|| Capture::open(file), packet);
    let message = message.map_err(|e| CliError::Failed(e.to_string()))?;
    Ok(write!(io::stdout().lock(), "{message}")?)
}
