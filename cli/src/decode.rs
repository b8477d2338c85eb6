//! `urxe decode`: says what is wrong in captures, and why.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use urxe::wire::Qpn;
use urxe_decode::{Capture, Events, EventsError, Ladder, Report, Severity};

use super::{CliError, json};

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
  urxe decode --qp 0x11 capture.pcap.gz
  tcpdump -i eth0 -w - udp port 4791 | urxe decode -
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
    /// Show the packets around the gravest finding as a ladder
    #[arg(long, conflicts_with = "json")]
    why: bool,
    /// Only the queue pair with this number, in either direction
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Option<Qpn>,
    /// Print one JSON document
    #[arg(long)]
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
        if self.why && self.files.iter().any(is_input) {
            let text = "--why reads captures twice: write standard input to a file first";
            return Err(CliError::Usage(text.into()));
        }
        if self.qlog.is_some() || self.perfetto.is_some() {
            return self.write_events();
        }
        let mut report = Report::read(self.files.iter().map(|file| Capture::open(file)));
        if let Some(qpn) = self.qp {
            report.retain_queue_pair(qpn);
            if report.queue_pairs.is_empty() {
                return Err(CliError::Failed(format!("no packet of queue pair {qpn} is in the captures")));
            }
        }
        if self.json {
            json::print(&report)?;
        } else {
            write!(io::stdout().lock(), "{report}")?;
        }
        if self.why {
            self.print_ladders(&report)?;
        }
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

    /// Prints the packets around the gravest finding, of each capture that has some of them. Reads the captures again.
    fn print_ladders(&self, report: &Report) -> Result<(), CliError> {
        let Some(finding) = report.findings.first() else { return Ok(()) };
        let peer = report.requester_of(finding);
        for (index, file) in self.files.iter().enumerate() {
            let capture = Capture::open(file).map_err(|e| CliError::Failed(e.to_string()))?;
            let ladder = Ladder::read(capture, index, finding, peer);
            if let Some(ladder) = ladder.map_err(|e| CliError::Failed(e.to_string()))? {
                write!(io::stdout().lock(), "\n{}\n{ladder}", file.display())?;
            }
        }
        Ok(())
    }
}
