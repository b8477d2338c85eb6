//! `urxe demo`: performs every operation once between two NICs in one process, and prints each packet.

use std::collections::HashSet;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::Args;
use crossbeam_channel::{Receiver, Sender, unbounded};

use super::link::{create_capture, create_qlog};
use super::nic_args::CaptureArgs;
use super::{CliError, packet_text};
use urxe::fabric::{Fabric, FabricConfig, FabricPort};
use urxe::link::Link;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::middleware::faults::{Direction, Faults, Rule};
use urxe::middleware::qlog::QlogFile;
use urxe::middleware::trace::{Trace, TracedPacket};
use urxe::transport::Instant;
use urxe::verbs::errors::WaitError;
use urxe::verbs::memory::{Bind, WindowKind};
use urxe::verbs::{
    Access, Completion, ConnectOptions, Context, ContextOptions, Endpoint, Mr, Mtu, Placement, Psn, Qpn,
    RecvWr, RemoteAddr, SendWr, Sge, TestEndpoint, WcOpcode, WcStatus,
};
use urxe::wire::Packet;

const LONG_ABOUT: &str = "\
Runs two NICs on an in-memory fabric in virtual time: SEND, WRITE and READ with several packets, immediate \
data, atomics, ATOMIC WRITE, FLUSH, a SEND that invalidates a memory window, a WRITE with a dropped middle \
packet, and a SEND that receives an RNR NAK. Prints every packet, writes a capture for Wireshark and checks \
all data. Wireshark before 4.4 does not decode ATOMIC WRITE and FLUSH, and no version decodes XRC: it shows \
such packets without the name of the operation. Links, faults and queue pairs are fixed; `urxe perf --link fabric` has the \
options for them.";

const EXAMPLES: &str = "\
Examples:
  urxe demo
  urxe demo --capture - | tshark -r -
  urxe demo --no-capture --seed 7";

/// Run every operation once between two NICs in memory and print each packet
#[derive(Args)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub struct Demo {
    #[command(flatten)]
    capture: CaptureArgs,
    /// Do not write a capture, by default demo.pcapng
    #[arg(long, conflicts_with = "capture")]
    no_capture: bool,
    /// Seed of the queue pair numbers and first PSNs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Fault rule that drops the second middle packet of a WRITE.
const LOSS: &str = "drop=2,opcode=0x07";
const MTU: Mtu = Mtu::Mtu1024;
/// Length of each memory region in bytes.
const REGION_LEN: usize = 16 << 10;
/// Virtual time after which an incomplete operation counts as stuck.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const RED: Style = AnsiColor::Red.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default();
const YELLOW: Style = AnsiColor::Yellow.on_default();
const CYAN: Style = AnsiColor::Cyan.on_default();

impl Demo {
    /// Runs the demonstration.
    pub fn run(self) -> Result<(), CliError> {
        let path = self.capture.capture.as_deref().unwrap_or(Path::new("demo.pcapng"));
        let capture = match self.no_capture {
            true => None,
            false => Some(create_capture(path, Timestamps::Virtual)?),
        };
        let out = anstream::AutoStream::auto(std::io::stdout());
        let qlog =
            self.capture.qlog.as_deref().map(|path| create_qlog(path, Timestamps::Virtual)).transpose()?;
        let files = Files { capture: capture.as_ref(), qlog: qlog.as_ref() };
        let mut session = Session::new(self.seed, files, Box::new(out))?;
        session.run_operations()?;
        if let Some(file) = qlog {
            file.flush().map_err(|e| CliError::Failed(e.to_string()))?;
        }
        if let Some(file) = capture {
            file.flush()?;
            if self.capture.is_to_standard_output() {
                return Ok(());
            }
            let path = path.display();
            writeln!(session.out, "Capture written to {path}: open it with  {BOLD}wireshark {path}{BOLD:#}")?;
        }
        Ok(())
    }
}

/// Files for the packets of NIC A, and for the events of both.
#[derive(Clone, Copy)]
struct Files<'a> {
    capture: Option<&'a CaptureFile>,
    qlog: Option<&'a QlogFile>,
}

/// Returns the options of NIC `n`: 0 is A, 1 is B.
fn context_options(seed: u64, n: u64, files: Files<'_>) -> ContextOptions {
    let options = ContextOptions::default().seed(seed.wrapping_mul(2) + n);
    match files.qlog {
        Some(file) => options.qlog(file, "A and B"),
        None => options,
    }
}

/// Opens NIC A with a fault rule, a trace and a capture on its port. The trace sends the packets to the first
/// channel, and the fault rule sends the PSNs of dropped packets to the second.
fn open_traced(
    port: FabricPort,
    (trace, drops): (Sender<TracedPacket>, Sender<Psn>),
    files: Files<'_>,
    seed: u64,
) -> Result<Context, CliError> {
    let loss: Rule = LOSS.parse()?;
    Ok(Context::on_port(port, &context_options(seed, 0, files), |port| {
        let interface = files.capture.map(|file| file.interface("A", &port.info().name));
        let commented = interface.clone();
        let faults = Faults::new(port, vec![loss], seed).with_observer(move |event| {
            if let Some(interface) = &commented {
                interface.comment(event);
            }
            if let Ok(packet) = Packet::parse(&event.packet) {
                let _ = drops.send(packet.bth().psn);
            }
        });
        let record = move |packet| drop(trace.send(packet));
        match interface {
            None => Box::new(Trace::new(faults, record)),
            Some(interface) => Box::new(Trace::new(interface.capture(faults), record)),
        }
    })?)
}

/// The two NICs, the demonstration's state, and its output.
struct Session {
    out: Box<dyn Write>,
    fabric: Fabric,
    /// Packets at A's port that have not yet been printed.
    traced: Receiver<TracedPacket>,
    /// PSNs of packets dropped by the fault rule and not yet reported as dropped.
    dropped: Receiver<Psn>,
    a: TestEndpoint,
    b: TestEndpoint,
    /// NIC A's memory region; `dst` is NIC B's.
    src: Mr,
    dst: Mr,
    printed: Printed,
    steps: usize,
}

/// Packets printed so far.
#[derive(Default)]
struct Printed {
    /// Destination QPN, PSN and opcode of each packet, to recognise retransmitted requests.
    seen: HashSet<(Qpn, Psn, u8)>,
    packets: usize,
    lost: usize,
    retransmitted: usize,
}

/// Opcode, length and immediate data of a successful completion that a step waits for.
type Expected = (WcOpcode, u32, Option<u32>);

impl Session {
    fn new(seed: u64, files: Files<'_>, out: Box<dyn Write>) -> Result<Session, CliError> {
        let fabric = Fabric::virtual_time(
            FabricConfig::default().latency(Duration::from_micros(2)).bandwidth(10_000_000_000).mtu(1500),
        )?;
        let (trace, traced) = unbounded();
        let (drops, dropped) = unbounded();
        let port = fabric.port(&[IpAddr::from([10, 0, 0, 1])])?;
        let a = open_traced(port, (trace, drops), files, seed)?;
        let port = fabric.port(&[IpAddr::from([10, 0, 0, 2])])?;
        let b = Context::on_port(port, &context_options(seed, 1, files), |port| Box::new(port))?;
        let (a, b) = (TestEndpoint::new(a)?, TestEndpoint::new(b)?);
        let connect = ConnectOptions::default().access(Access::ALL | Access::FLUSH_GLOBAL).mtu(MTU);
        a.qp.connect(&b.qp.endpoint(), &connect)?;
        b.qp.connect(&a.qp.endpoint(), &connect)?;
        let target = Access::ALL | Access::FLUSH_GLOBAL | Access::MW_BIND;
        let (src, dst) = (a.pd.reg_mr(REGION_LEN, Access::ALL)?, b.pd.reg_mr(REGION_LEN, target)?);
        let printed = Printed::default();
        Ok(Session { out, fabric, traced, dropped, a, b, src, dst, printed, steps: 0 })
    }

    fn run_operations(&mut self) -> Result<(), CliError> {
        self.print_heading()?;
        let pattern: Vec<u8> = (0..REGION_LEN).map(|i| (i * 7 + i / 256) as u8).collect();
        self.run_sends(&pattern)?;
        self.run_writes_and_read(&pattern)?;
        self.run_atomics()?;
        self.run_placement()?;
        self.run_memory_window()?;
        self.run_rnr()?;
        self.finish()
    }

    fn run_sends(&mut self, pattern: &[u8]) -> Result<(), CliError> {
        self.title("SEND", "13 bytes into the receive that B has posted")?;
        self.src.write(0, b"Hello, RoCE!\n")?;
        self.post_recv(1, 0..64)?;
        self.post(&SendWr::send(1, &[self.sge(13)]))?;
        self.wait(Some((WcOpcode::Send, 13, None)), Some((WcOpcode::Recv, 13, None)))?;
        self.check(0, b"Hello, RoCE!\n")?;

        self.title("SEND with immediate", "2500 bytes in three packets, and four bytes in the completion")?;
        self.src.write(0, pattern)?;
        self.post_recv(2, 0..4096)?;
        self.post(&SendWr::send_imm(2, &[self.sge(2500)], 0xcafe))?;
        self.wait(Some((WcOpcode::Send, 2500, None)), Some((WcOpcode::Recv, 2500, Some(0xcafe))))?;
        self.check(0, &pattern[..2500])
    }

    fn run_writes_and_read(&mut self, pattern: &[u8]) -> Result<(), CliError> {
        self.title("RDMA WRITE", "5000 bytes in five packets, the third of which is dropped")?;
        self.post(&SendWr::write(3, &[self.sge(5000)], self.dst.remote(4096)))?;
        self.wait(Some((WcOpcode::RdmaWrite, 5000, None)), None)?;
        self.check(4096, &pattern[..5000])?;

        self.title("RDMA WRITE with immediate", "64 bytes, and a receive completion at B")?;
        self.post_recv(4, 0..0)?;
        self.post(&SendWr::write_imm(4, &[self.sge(64)], self.dst.remote(0), 0xbeef))?;
        let received = (WcOpcode::RecvRdmaWithImm, 64, Some(0xbeef));
        self.wait(Some((WcOpcode::RdmaWrite, 64, None)), Some(received))?;
        self.check(0, &pattern[..64])?;

        self.title("RDMA READ", "3000 bytes from B, without a completion at B")?;
        self.src.write(0, &[0; 3000])?;
        self.post(&SendWr::read(5, &[self.sge(3000)], self.dst.remote(4096)))?;
        self.wait(Some((WcOpcode::RdmaRead, 3000, None)), None)?;
        self.check_bytes("data read by A", &self.src.read_vec(0..3000)?, &pattern[..3000])
    }

    fn run_atomics(&mut self) -> Result<(), CliError> {
        // Atomic operands are big-endian on the wire and in host byte order in memory.
        self.title("Compare-and-swap", "42 becomes 1000, as it equals the compare operand")?;
        self.dst.buffer().store_u64(8192, 42)?;
        self.post(&SendWr::compare_swap(6, &[self.sge(8)], self.dst.remote(8192), 42, 1000))?;
        self.wait(Some((WcOpcode::CompSwap, 8, None)), None)?;
        self.check_value("original value returned to A", self.src.buffer().load_u64(0)?, 42)?;

        self.title("Fetch-and-add", "23 is added to 1000")?;
        self.post(&SendWr::fetch_add(7, &[self.sge(8)], self.dst.remote(8192), 23))?;
        self.wait(Some((WcOpcode::FetchAdd, 8, None)), None)?;
        self.check_value("original value returned to A", self.src.buffer().load_u64(0)?, 1000)?;
        self.check_value("value at B", self.dst.buffer().load_u64(8192)?, 1023)
    }

    fn run_placement(&mut self) -> Result<(), CliError> {
        self.title("ATOMIC WRITE, FLUSH", "8 bytes written atomically, then flushed to global visibility")?;
        self.post(&SendWr::atomic_write(8, self.dst.remote(8192), 7u64.to_ne_bytes()))?;
        self.wait(Some((WcOpcode::AtomicWrite, 0, None)), None)?;
        self.check_value("value at B", self.dst.buffer().load_u64(8192)?, 7)?;
        let global = Placement::GLOBAL;
        self.post(&SendWr::flush(9, self.dst.remote(8192), 8, global))?;
        self.wait(Some((WcOpcode::Flush, 0, None)), None)
    }

    fn run_memory_window(&mut self) -> Result<(), CliError> {
        self.title(
            "SEND with invalidate",
            "B binds a memory window, A writes through it and invalidates it",
        )?;
        let (mw, addr) = (self.b.pd.alloc_mw(WindowKind::Type2B)?, self.dst.addr());
        let (rkey, region) = (mw.next_rkey(), self.dst.lkey());
        let bind = Bind { rkey, region, addr, len: 16, access: Access::REMOTE_WRITE };
        self.b.qp.post_send(&SendWr::bind_mw(10, bind))?;
        self.wait(None, Some((WcOpcode::BindMw, 0, None)))?;
        self.src.write(0, b"By the window.")?;
        self.post(&SendWr::write(11, &[self.sge(14)], RemoteAddr { va: addr, rkey }))?;
        self.wait(Some((WcOpcode::RdmaWrite, 14, None)), None)?;
        self.check(0, b"By the window.")?;
        self.post_recv(12, 64..128)?;
        // Wireshark dissects a few bytes after an IETH as RPC-over-RDMA and reports them as malformed.
        self.post(&SendWr::send_inval(12, &[self.sge(14)], rkey))?;
        self.wait(Some((WcOpcode::Send, 14, None)), Some((WcOpcode::Recv, 14, None)))
    }

    fn run_rnr(&mut self) -> Result<(), CliError> {
        self.title("SEND, receiver not ready", "B posts its receive after A has received an RNR NAK")?;
        self.src.write(0, b"Are you there?")?;
        self.post(&SendWr::send(13, &[self.sge(14)]))?;
        let limit = self.fabric.now() + STEP_TIMEOUT;
        while self.a.context.counters().rcvd_rnr_err == 0 {
            self.step(limit)?;
        }
        self.print_note(DIM, "B posts a receive")?;
        self.post_recv(13, 0..64)?;
        self.wait(Some((WcOpcode::Send, 14, None)), Some((WcOpcode::Recv, 14, None)))?;
        self.check(0, b"Are you there?")
    }

    fn print_heading(&mut self) -> Result<(), CliError> {
        let line = |name: &str, e: Endpoint| {
            format!("{BOLD}{name}{BOLD:#}  {:<10} qp {:<10} first psn {}", e.gid.ip(), e.qpn, psn(e.psn))
        };
        writeln!(
            self.out,
            "Two NICs on an in-memory fabric: 10 Gb/s, one-way latency 2 µs, path MTU {}",
            MTU.bytes()
        )?;
        writeln!(self.out, "{}", line("A", self.a.qp.endpoint()))?;
        writeln!(self.out, "{}", line("B", self.b.qp.endpoint()))?;
        writeln!(
            self.out,
            "\n{DIM}{:>11}  {:<5}  {:<29} {:<9} {:<8} {:>5}  flags and headers{DIM:#}",
            "µs", "", "opcode", "to qp", "psn", "bytes"
        )?;
        Ok(())
    }

    fn title(&mut self, name: &str, description: &str) -> Result<(), CliError> {
        self.steps += 1;
        Ok(writeln!(self.out, "\n{BOLD}{}. {name}{BOLD:#}: {description}", self.steps)?)
    }

    fn sge(&self, len: usize) -> Sge {
        self.src.sge(0..len)
    }

    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), CliError> {
        self.a.qp.post_send(wr)?;
        self.print_packets()
    }

    fn post_recv(&mut self, wr_id: u64, range: std::ops::Range<usize>) -> Result<(), CliError> {
        let sge = self.dst.sge(range);
        let sges: &[Sge] = if sge.length == 0 { &[] } else { &[sge] };
        Ok(self.b.qp.post_recv(&RecvWr::new(wr_id, sges))?)
    }

    /// Advances virtual time to the next packet or timer, and fails if there is none before `limit`.
    fn step(&mut self, limit: Instant) -> Result<(), CliError> {
        let at = self.fabric.step().ok_or(WaitError::Idle)?;
        self.print_packets()?;
        if at > limit { Err(WaitError::TimedOut(STEP_TIMEOUT).into()) } else { Ok(()) }
    }

    /// Advances virtual time until both NICs have their expected completions, and fails on any other
    /// completion.
    fn wait(&mut self, a: Option<Expected>, b: Option<Expected>) -> Result<(), CliError> {
        let mut pending = [("A", a), ("B", b)];
        let limit = self.fabric.now() + STEP_TIMEOUT;
        loop {
            for (name, expected) in &mut pending {
                let endpoint = if *name == "A" { &self.a } else { &self.b };
                let mut out = Vec::new();
                endpoint.cq.poll(16, &mut out)?;
                for wc in out {
                    let at = self.fabric.now();
                    print_completion(&mut self.out, at, name, &wc)?;
                    let found = (wc.opcode, wc.byte_len, wc.imm);
                    if wc.status != WcStatus::Success || expected.take() != Some(found) {
                        return Err(CliError::Failed(format!("unexpected completion at {name}: {wc:?}")));
                    }
                }
            }
            if pending.iter().all(|(_, expected)| expected.is_none()) {
                return Ok(());
            }
            self.step(limit)?;
        }
    }

    /// Prints the packets traced since the last call.
    fn print_packets(&mut self) -> Result<(), CliError> {
        let mut lost: HashSet<Psn> = self.dropped.try_iter().collect();
        for TracedPacket { at, direction, bytes, .. } in self.traced.try_iter() {
            let packet =
                Packet::parse(&bytes).map_err(|e| CliError::Failed(format!("malformed packet: {e}")))?;
            let bth = packet.bth();
            self.printed.packets += 1;
            let request = packet.row().operation.is_request();
            let retransmitted = !self.printed.seen.insert((bth.dest_qp, bth.psn, bth.opcode.0)) && request;
            let lost = direction == Direction::Tx && lost.remove(&bth.psn);
            let arrow = if direction == Direction::Tx { "A → B" } else { "A ← B" };
            let mut details = packet_text::details(&packet);
            let mark = match (lost, retransmitted) {
                (true, _) => format!("{RED}✗ DROPPED by the fault rule{RED:#}"),
                (_, true) => format!("{YELLOW}↻ retransmission{YELLOW:#}"),
                _ => String::new(),
            };
            if !mark.is_empty() && !details.is_empty() {
                details.push_str("  ");
            }
            self.printed.lost += lost as usize;
            self.printed.retransmitted += retransmitted as usize;
            let is_nak = details.contains("NAK");
            let style = match (lost || is_nak, request) {
                (true, _) => RED,
                (_, true) => CYAN,
                _ => GREEN,
            };
            let line = format!(
                "{DIM}{}{DIM:#}  {arrow}  {style}{:<29}{style:#} {:<9} {:<8} {:>5}  {details}{mark}",
                micros(at),
                bth.opcode.to_string(),
                bth.dest_qp.to_string(),
                psn(bth.psn),
                packet.payload().len(),
            );
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn print_note(&mut self, style: Style, text: &str) -> Result<(), CliError> {
        let at = micros(self.fabric.now());
        Ok(writeln!(self.out, "{DIM}{at}{DIM:#}         {style}{text}{style:#}")?)
    }

    /// Checks the contents of B's region at `offset`.
    fn check(&mut self, offset: usize, expected: &[u8]) -> Result<(), CliError> {
        self.check_bytes("data at B", &self.dst.read_vec(offset..offset + expected.len())?, expected)
    }

    fn check_bytes(&mut self, name: &str, found: &[u8], expected: &[u8]) -> Result<(), CliError> {
        if let Some(i) = found.iter().zip(expected).position(|(f, e)| f != e) {
            let (f, e) = (found[i], expected[i]);
            return Err(CliError::Failed(format!("{name}: byte {i} is {f:#04x}, expected {e:#04x}")));
        }
        self.print_note(GREEN, &format!("✓ {name}: all {} bytes are correct", expected.len()))
    }

    fn check_value(&mut self, name: &str, found: u64, expected: u64) -> Result<(), CliError> {
        if found != expected {
            return Err(CliError::Failed(format!("{name} is {found}, expected {expected}")));
        }
        self.print_note(GREEN, &format!("✓ {name} is {found}"))
    }

    /// Checks that exactly the intended errors occurred, and prints the summary.
    fn finish(&mut self) -> Result<(), CliError> {
        let (a, b) = (self.a.context.counters(), self.b.context.counters());
        let counts = [
            ("packets dropped by the fault rule", (self.printed.lost as u64, 1)),
            ("sequence error NAKs at A", (a.rcvd_seq_err, 1)),
            ("RNR NAKs at A", (a.rcvd_rnr_err, 1)),
            ("local ACK timeouts at A", (a.local_ack_timeout_err, 0)),
            ("ICRC errors", (a.rx_icrc_err + b.rx_icrc_err, 0)),
            ("malformed packets", (a.rx_malformed() + b.rx_malformed(), 0)),
        ];
        for (name, (found, expected)) in counts {
            if found != expected {
                return Err(CliError::Failed(format!("{name}: {found}, expected {expected}")));
            }
        }
        let Printed { packets, lost, retransmitted, .. } = self.printed;
        writeln!(
            self.out,
            "\n{GREEN}✓ All {} operations completed with correct data{GREEN:#}: {packets} packets, {lost} \
             dropped by the fault rule, {retransmitted} retransmitted.",
            self.steps
        )?;
        Ok(())
    }
}

fn print_completion(out: &mut dyn Write, at: Instant, name: &str, wc: &Completion) -> Result<(), CliError> {
    let imm = wc.imm.map_or(String::new(), |imm| format!(", imm {imm:#010x}"));
    let (at, status, bytes) = (micros(at), wc.status, wc.byte_len);
    writeln!(
        out,
        "{DIM}{at}{DIM:#}  {name}: {BOLD}{}{BOLD:#} completes: {status}, wr {}, {bytes} bytes{imm}",
        wc.opcode, wc.wr_id
    )?;
    Ok(())
}

fn psn(psn: Psn) -> String {
    format!("{:#08x}", psn.get())
}

/// Formats an instant in microseconds, right-aligned.
fn micros(at: Instant) -> String {
    format!("{:>11.3}", at.0 as f64 / 1000.0)
}
