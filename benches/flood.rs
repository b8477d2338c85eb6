//! Measures how much a flood of forged packets from a third socket slows down an RC connection over UDP on
//! loopback, and the CPU time that each forged packet costs. Rounds without a flood, rounds with a flood to a
//! plain socket (the control) and rounds with each kind of flood alternate, because the machine's performance
//! changes from one second to the next. Options: `--quick`; `--rate N`, in packets per second; `--buffer
//! BYTES`, the buffer size of the links' sockets (an unprivileged process gets 212992).
//!
//! The flood consists of what any local user could send: packets from UDP sockets bound to a peer's address,
//! but not to port 4791. The flooder knows both queue pair numbers and tracks the PSN.

#[path = "support/raw.rs"]
#[allow(dead_code, reason = "each bench uses some of it")]
mod raw;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use urxe::link::Link;
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::memory::{PdId, Table};
use urxe::nic::{CqHandle, Nic, NicConfig, PortAddresses};
use urxe::transport::state::accepted_attrs;
use urxe::transport::{AckRequests, Instant as Time, QpInit, Quirks, RecvCaps, Tuning, TxQueue};
use urxe::verbs::*;
use urxe::wire::{
    Aeth, Bth, Flow, Headers, IpIdent, MAX_HEADERS_LEN, NakCode, Opcode, ROCE_PORT, Reth, Syndrome, icrc,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Environment variable that makes the process the passive peer; its value is the socket buffer size in
/// bytes.
const PEER: &str = "URXE_BENCH_FLOOD_PEER";
const REQUESTER: Ipv4Addr = Ipv4Addr::new(127, 78, 0, 1);
const RESPONDER: Ipv4Addr = Ipv4Addr::new(127, 78, 0, 2);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(127, 78, 0, 9);
const MTU: u32 = 4096;
/// Number of WRITEs in flight, posted `BATCH` at a time.
const DEPTH: u32 = 128;
const BATCH: u32 = 16;
const FAILED: &str = "a WRITE failed";
/// Number of flood packets sent back to back.
const FLOOD_BATCH: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Quiet,
    /// Duplicate requests, sent not to the NIC but to a socket that the flooding thread reads itself.
    Control,
    Duplicate,
    /// Requests with arbitrary PSNs: half of them before the expected PSN, half after it.
    AnyPsn,
    BadIcrc,
    Foreign,
    /// ACKs, NAKs and RNR NAKs for PSNs that are not in flight.
    StaleSyndrome,
    /// Reserved syndromes and reserved NAK codes for PSNs that are in flight.
    ReservedSyndrome,
    /// Packets indistinguishable from the peer's own; each makes the requester retransmit or wait.
    SequenceNak,
    RnrNak,
}

use Kind::*;

const KINDS: [Kind; 10] = [
    Quiet,
    Control,
    Duplicate,
    AnyPsn,
    BadIcrc,
    Foreign,
    StaleSyndrome,
    ReservedSyndrome,
    SequenceNak,
    RnrNak,
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Quiet => "no flood",
            Control => "control: plain socket",
            Duplicate => "duplicates",
            AnyPsn => "requests of any PSN",
            BadIcrc => "bad ICRC",
            Foreign => "foreign address",
            StaleSyndrome => "out-of-window syndromes",
            ReservedSyndrome => "in-window reserved syndr.",
            SequenceNak => "in-window sequence NAKs",
            RnrNak => "in-window RNR NAKs",
        }
    }

    fn is_response(self) -> bool {
        matches!(self, StaleSyndrome | ReservedSyndrome | SequenceNak | RnrNak)
    }
}

/// One end of a connection.
#[derive(Clone, Copy)]
struct End {
    qpn: Qpn,
    psn: u32,
    ip: Ipv4Addr,
}

/// Sender of the flood. `ends` are the requester and the responder of the attacked connection.
struct Flooder {
    ends: [End; 2],
    sockets: [UdpSocket; 3],
    sink: UdpSocket,
    /// PSN of the newest acknowledged request, relative to the first PSN.
    acked: u32,
    count: u32,
}

impl Flooder {
    fn new(ends: [End; 2]) -> io::Result<Flooder> {
        let bind = |ip: Ipv4Addr| UdpSocket::bind((ip, 0));
        let sink = bind(FOREIGN)?;
        sink.set_nonblocking(true)?;
        let sockets = [bind(ends[0].ip)?, bind(ends[1].ip)?, bind(FOREIGN)?];
        Ok(Flooder { ends, sockets, sink, acked: 0, count: 0 })
    }

    /// Returns the headers of the `n`-th flood packet of the given kind.
    fn headers(&self, kind: Kind, n: u32) -> Headers {
        let [requester, responder] = &self.ends;
        let to = if kind.is_response() { requester } else { responder };
        let acked = self.acked;
        let ahead = match kind {
            StaleSyndrome => 0x8_0000,
            AnyPsn => n.wrapping_mul(0x9e37_79b1) >> 8,
            ReservedSyndrome | SequenceNak | RnrNak => DEPTH / 2,
            _ if acked > 2000 => 0u32.wrapping_sub(1000),
            _ => 0u32.wrapping_sub(acked).wrapping_sub(1),
        };
        let psn = Psn::new(requester.psn.wrapping_add(acked).wrapping_add(ahead) & 0xff_ffff);
        let nak = |code| Syndrome::Nak(code);
        let syndrome = match (kind, n % 6) {
            (ReservedSyndrome, even) if even % 2 == 0 => Syndrome::Reserved(0x40),
            (ReservedSyndrome, _) => nak(NakCode::Reserved(9)),
            (SequenceNak, _) | (StaleSyndrome, 0) => nak(NakCode::PsnSequenceError),
            (RnrNak, _) | (StaleSyndrome, 1) => Syndrome::RnrNak(RnrTimer::new(1)),
            (_, 2) => nak(NakCode::RemoteAccessError),
            (_, 3) => Syndrome::Reserved(0x40),
            (_, 4) => nak(NakCode::Reserved(9)),
            _ => Syndrome::ACK,
        };
        let opcode = Opcode(if kind.is_response() { 0x11 } else { 0x0a });
        let bth = Bth { opcode, dest_qp: to.qpn, psn, ack_req: true, ..Bth::default() };
        let reth = Reth { va: 0, rkey: RKey(1), dma_len: 8 };
        Headers { bth, reth, aeth: Aeth { syndrome, msn: 0 }, ..Headers::default() }
    }

    /// Sends `FLOOD_BATCH` packets of the given kind.
    fn send_batch(&mut self, kind: Kind) -> io::Result<()> {
        let from = match kind {
            Foreign => 2,
            _ if kind.is_response() => 1,
            _ => 0,
        };
        let socket = &self.sockets[from];
        let SocketAddr::V4(source) = socket.local_addr()? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let to = self.ends[usize::from(!kind.is_response())].ip;
        let flow = Flow::new((*source.ip()).into(), to.into(), source.port());
        let to = if kind == Control { self.sink.local_addr()? } else { (to, ROCE_PORT).into() };
        for _ in 0..FLOOD_BATCH {
            self.count = self.count.wrapping_add(1);
            let mut bytes = [0; MAX_HEADERS_LEN + 12];
            let mut len = self.headers(kind, self.count).emit(&mut bytes[..MAX_HEADERS_LEN]);
            len += if kind.is_response() { 4 } else { 12 };
            let checksum = icrc::compute(&flow, 0, IpIdent::DONT_FRAGMENT, &bytes[..len]);
            let checksum = if kind == BadIcrc { !checksum } else { checksum };
            bytes[len - 4..len].copy_from_slice(&checksum.to_le_bytes());
            // Fails if the receiver's socket buffer is full, which is expected.
            let _ = socket.send_to(&bytes[..len], to);
        }
        Ok(())
    }

    /// Discards the packets received on the control socket.
    fn drain(&self) {
        while self.sink.recv(&mut [0; 128]).is_ok() {}
    }
}

/// State shared with the flooding thread, which reads `acked` and `done` and counts the packets that it sends
/// and the CPU time that it uses.
#[derive(Default)]
struct FloodState {
    acked: AtomicU32,
    sent: AtomicU64,
    cpu: AtomicU64,
    done: AtomicBool,
}

impl FloodState {
    /// Sends `rate` packets of the given kind per second until `done` is set.
    fn run(&self, mut flooder: Flooder, kind: Kind, rate: u64) -> io::Result<()> {
        let pause = Duration::from_secs(1) * FLOOD_BATCH as u32 / rate as u32;
        let mut due = Instant::now();
        while !self.done.load(Ordering::Relaxed) {
            flooder.acked = self.acked.load(Ordering::Relaxed);
            if kind != Quiet {
                flooder.send_batch(kind)?;
                flooder.drain();
                self.sent.fetch_add(FLOOD_BATCH as u64, Ordering::Relaxed);
            }
            self.cpu.store(raw::cpu_time(), Ordering::Relaxed);
            due += pause;
            let now = Instant::now();
            // Packets that are more than 5 ms late are skipped.
            due = due.max(now - Duration::from_millis(5));
            thread::sleep(due.saturating_duration_since(now));
        }
        Ok(())
    }
}

/// Returns the CPU time used by this process, in nanoseconds.
fn process_cpu() -> u64 {
    let time =
        clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("the clock exists on all Linux systems");
    Duration::from(time).as_nanos() as u64
}

struct Side {
    node: TestEndpoint,
    mr: Mr,
}

impl Side {
    fn new(ip: Ipv4Addr, buffer: usize) -> Result<Side> {
        let link = UdpLink::bind(ip.into(), &UdpOptions::default().buffer(buffer))?;
        let node = TestEndpoint::new(Context::open(Box::new(link), &ContextOptions::default())?)?;
        let mr = node.pd.reg_mr(4 << 20, Access::ALL)?;
        Ok(Side { node, mr })
    }

    /// Formats the connection parameters as a line for the other process.
    fn describe(&self) -> String {
        let (e, m) = (self.node.qp.endpoint(), self.mr.remote(0));
        format!("{} {} {} {} {}", e.gid.ip(), e.qpn.get(), e.psn.get(), m.va, m.rkey.0)
    }

    fn connect(&self, line: &str) -> Result<(Endpoint, RemoteAddr)> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [ip, qpn, psn, va, rkey] = fields[..] else {
            return Err(format!("invalid connection parameters: {line:?}").into());
        };
        let gid = Gid::from(ip.parse::<IpAddr>()?);
        let peer = Endpoint { gid, qpn: Qpn::new(qpn.parse()?), psn: Psn::new(psn.parse()?) };
        self.node.qp.connect(&peer, &ConnectOptions::default())?;
        Ok((peer, RemoteAddr { va: va.parse()?, rkey: RKey(rkey.parse()?) }))
    }

    /// Returns the process's CPU time in nanoseconds, the number of datagrams dropped because the socket
    /// buffer was full, and the number of packets sent.
    fn status(&self) -> [u64; 3] {
        let c = self.node.context.counters();
        [process_cpu(), self.node.context.link_state().0.rx_overflow, c.sent_pkts]
    }

    fn end(&self) -> Result<End> {
        let e = self.node.qp.endpoint();
        let IpAddr::V4(ip) = e.gid.ip() else { return Err("the address is not IPv4".into()) };
        Ok(End { qpn: e.qpn, psn: e.psn.get(), ip })
    }
}

/// Runs the responder until standard input is closed.
fn run_peer(buffer: usize) -> Result<()> {
    let side = Side::new(RESPONDER, buffer)?;
    println!("{}", side.describe());
    let mut lines = io::stdin().lines();
    side.connect(&lines.next().ok_or("no connection parameters on standard input")??)?;
    for line in lines {
        line?;
        let [cpu, overflow, sent] = side.status();
        println!("{cpu} {overflow} {sent}");
    }
    Ok(())
}

/// Stream of WRITEs of one size.
struct Stream<'a> {
    side: &'a Side,
    remote: RemoteAddr,
    size: usize,
    posted: u32,
    done: u32,
}

impl Stream<'_> {
    /// Keeps WRITEs in flight for `time` and returns the number of completed WRITEs per second.
    fn run(&mut self, flood_state: &FloodState, time: Duration) -> Result<f64> {
        let sge = [self.side.mr.sge(0..self.size)];
        let wr = |signaled| {
            SendWr::write(0, &sge, self.remote).flags(SendFlags { signaled, ..SendFlags::default() })
        };
        let batch: Vec<_> = (1..=BATCH).map(|i| wr(i == BATCH)).collect();
        let packets = (self.size as u32).div_ceil(MTU);
        let (start, before, mut out) = (Instant::now(), self.done, Vec::new());
        while start.elapsed() < time {
            if self.posted.wrapping_sub(self.done) < DEPTH {
                self.side.node.qp.post_send_list(&batch, ListPolicy::UntilRejected)?;
                self.posted = self.posted.wrapping_add(BATCH);
                continue;
            }
            out.clear();
            let done = self.side.node.cq.poll(64, &mut out)? as u32 * BATCH;
            if let Some(bad) = out.iter().find(|c| c.status != WcStatus::Success) {
                return Err(format!("{FAILED}: {}", bad.status).into());
            }
            if done > 0 {
                self.done = self.done.wrapping_add(done);
                flood_state.acked.fetch_add(done * packets, Ordering::Relaxed);
            }
        }
        Ok(f64::from(self.done.wrapping_sub(before)) / start.elapsed().as_secs_f64())
    }
}

/// Results of a round.
#[derive(Clone, Copy, Default)]
struct Round {
    /// WRITEs per second.
    rate: f64,
    /// Flood packets per second.
    flood: f64,
    /// CPU time used by the requester, the responder and the flooder, in seconds per second.
    cpu: [f64; 3],
    /// Datagrams dropped per second at the responder and the requester (`dropped`), and recoveries from
    /// losses per second (`retries`).
    dropped: [f64; 2],
    retries: f64,
    /// Packets sent per second by the responder.
    responses: f64,
    /// 1.0 if the connection failed, otherwise 0.0.
    failed: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

struct Options {
    quick: bool,
    rate: u64,
    buffer: usize,
}

/// Measures a new connection for `time` under a flood of the given kind. A failed WRITE ends the round.
fn round(kind: Kind, size: usize, options: &Options, time: Duration) -> Result<Round> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(PEER, options.buffer.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut peer_output = BufReader::new(child.stdout.take().ok_or("the process has no pipe")?).lines();
    let mut stdin = child.stdin.take().ok_or("the process has no pipe")?;
    let mut line = move || {
        peer_output.next().ok_or("the peer process exited")?.map_err(Box::<dyn std::error::Error>::from)
    };
    let side = Side::new(REQUESTER, options.buffer)?;
    let (peer, remote) = side.connect(&line()?)?;
    writeln!(stdin, "{}", side.describe())?;
    let responder = End { qpn: peer.qpn, psn: peer.psn.get(), ip: RESPONDER };
    let flooder = Flooder::new([side.end()?, responder])?;
    let flood_state = FloodState::default();
    let mut stream = Stream { side: &side, remote, size, posted: 0, done: 0 };
    let outcome = thread::scope(|s| {
        let flood_thread = s.spawn(|| flood_state.run(flooder, kind, options.rate));
        let mut status = || -> Result<[u64; 8]> {
            writeln!(stdin)?;
            let peer_status =
                line()?.split(' ').map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
            let [cpu, overflow, _] = side.status();
            let (sent, flooder) =
                (flood_state.sent.load(Ordering::Relaxed), flood_state.cpu.load(Ordering::Relaxed));
            let retries = side.node.context.counters().requester_retry;
            Ok([
                cpu - flooder,
                peer_status[0],
                flooder,
                peer_status[1],
                overflow,
                retries,
                peer_status[2],
                sent,
            ])
        };
        let mut work = || -> Result<Round> {
            // The peer responds once it is connected.
            status()?;
            stream.run(&flood_state, time / 4)?;
            let (before, start) = (status()?, Instant::now());
            let rate = stream.run(&flood_state, time)?;
            let (after, time) = (status()?, start.elapsed().as_secs_f64());
            let per_second = |i: usize| (after[i] - before[i]) as f64 / time;
            Ok(Round {
                rate,
                flood: per_second(7),
                cpu: [0, 1, 2].map(|i| per_second(i) / 1e9),
                dropped: [3, 4].map(per_second),
                retries: per_second(5),
                responses: per_second(6),
                failed: 0.0,
            })
        };
        let outcome = work();
        flood_state.done.store(true, Ordering::Relaxed);
        drop(stdin);
        flood_thread.join().map_err(|_| "the flooding thread panicked")??;
        outcome
    });
    child.wait()?;
    outcome
}

/// Measures WRITEs of `size` bytes in rounds that alternate between the kinds of flood, and prints the
/// results.
fn measure(size: usize, options: &Options) -> Result<()> {
    let (rounds, time) = if options.quick { (1, 100) } else { (11, 400) };
    let mut all = [const { Vec::new() }; KINDS.len()];
    for _ in 0..rounds {
        for (kind, rounds) in KINDS.into_iter().zip(&mut all) {
            let outcome = round(kind, size, options, Duration::from_millis(time));
            rounds.push(match outcome {
                Err(e) if !e.to_string().starts_with(FAILED) => return Err(e),
                outcome => outcome.unwrap_or(Round { failed: 1.0, ..Round::default() }),
            });
        }
    }
    print(size, &all);
    Ok(())
}

fn print(size: usize, all: &[Vec<Round>; KINDS.len()]) {
    let median_of = |rounds: &[Round], f: &dyn Fn(&Round) -> f64| median(rounds.iter().map(f).collect());
    let unit = if size > 100_000 { "Gb/s" } else { "1000/s" };
    println!("\nRC WRITE of {size} bytes, {DEPTH} in flight; medians of {} rounds", all[0].len());
    println!(
        "{:<25} {:>8} {:>15} {:>6} {:>6} {:>6} {:>9} {:>16} {:>12} {:>7} {:>8} {:>6}",
        "flood",
        unit,
        "(min-max)",
        "kept",
        "/ctrl",
        "/CPU",
        "flood/s",
        "CPU req/resp/fl",
        "dropped/s",
        "retry/s",
        "resp/s",
        "failed"
    );
    for (kind, rounds) in KINDS.iter().zip(all) {
        let scale = |r: &Round| r.rate * if unit == "Gb/s" { size as f64 * 8e-9 } else { 1e-3 };
        let min = rounds.iter().map(scale).fold(f64::MAX, f64::min);
        let max = rounds.iter().map(scale).fold(0.0, f64::max);
        let relative_to = |base: usize, f: &dyn Fn(&Round) -> f64| {
            median(rounds.iter().zip(&all[base]).map(|(r, b)| f(r) / f(b)).collect())
        };
        let per_cpu = |r: &Round| if r.rate > 0.0 { r.rate / (r.cpu[0] + r.cpu[1]) } else { 0.0 };
        println!(
            "{:<25} {:>8.1} {:>15} {:>6.2} {:>6.2} {:>6.2} {:>9.0} {:>16} {:>12} {:>7.0} {:>8.0} {:>6}",
            kind.name(),
            median_of(rounds, &scale),
            format!("{min:.1}-{max:.1}"),
            relative_to(0, &|r| r.rate),
            relative_to(1, &|r| r.rate),
            relative_to(1, &per_cpu),
            median_of(rounds, &|r| r.flood),
            [0, 1, 2].map(|i| format!("{:.2}", median_of(rounds, &|r| r.cpu[i]))).join("/"),
            [0, 1].map(|i| format!("{:.0}", median_of(rounds, &|r| r.dropped[i]))).join("/"),
            median_of(rounds, &|r| r.retries),
            median_of(rounds, &|r| r.responses),
            rounds.iter().map(|r| r.failed).sum::<f64>(),
        );
    }
}

/// A NIC driven by this thread, with a queue pair in RTS.
struct DrivenNic {
    nic: Nic,
    link: UdpLink,
    memory: Table,
    tx: TxQueue,
    end: End,
}

impl DrivenNic {
    fn new(ip: Ipv4Addr, peer: Ipv4Addr, buffer: usize) -> Result<DrivenNic> {
        let link = UdpLink::bind(ip.into(), &UdpOptions::default().buffer(buffer))?;
        let port = PortAddresses { gids: [IpAddr::from(ip).into()].into(), src_port: link.info().src_port };
        let tuning = Tuning::default();
        let mut nic = Nic::new(NicConfig { personality: Personality::STRICT, tuning, port, seed: 1 });
        let (memory, mut tx) = (Table::new(), TxQueue::new(link.info().burst));
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PdId(1),
            send: SendCaps { max_wr: 64, max_sge: 1, max_inline: 0 },
            recv: RecvCaps { max_wr: 64, max_sge: 1 },
            signal_all: false,
            srq: Option::None,
            domain: Option::None,
            quirks: Quirks {
                ack_requests: AckRequests::Needed,
                tail_loss_probes: true,
                send_slots_until_polled: false,
                ..Quirks::STRICT
            },
            port_mtu: Mtu::Mtu4096,
        };
        let qpn = nic.create_qp(&init, CqHandle(0), CqHandle(0)).ok_or("all QPs are in use")?;
        let all = QpAttr::default()
            .access(Access::ALL)
            .pkey_index(0)
            .port(1)
            .av(AddressVector::to(IpAddr::from(peer).into()))
            .path_mtu(Mtu::Mtu4096)
            .dest_qpn(Qpn::new(2))
            .rq_psn(Psn::new(5000))
            .sq_psn(Psn::new(5000))
            .max_dest_rd_atomic(1)
            .max_rd_atomic(1)
            .min_rnr_timer(RnrTimer::new(1))
            .timeout(AckTimeout::new(14))
            .retry_cnt(7)
            .rnr_retry(7);
        for (from, to) in
            [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)]
        {
            let attr = all.state(to).only(accepted_attrs(QpType::Rc, from, to));
            nic.modify_qp(Time(0), qpn, &attr, &memory, &mut tx)??;
        }
        Ok(DrivenNic { nic, link, memory, tx, end: End { qpn, psn: 5000, ip } })
    }

    /// Handles the received packets and sends the responses.
    fn turn(&mut self) -> io::Result<()> {
        let DrivenNic { nic, link, memory, tx, .. } = self;
        link.receive(Time(0), &mut |burst| nic.handle_burst(Time(0), &burst, memory, tx))?;
        nic.transmit(Time(0), memory, tx);
        if !tx.is_empty() {
            link.transmit(Time(0), tx)?;
            tx.clear();
        }
        nic.emitted();
        // Nothing was posted, so these are events at most.
        while nic.poll_output().is_some() {}
        Ok(())
    }
}

/// Measures the CPU time that a NIC driven by this thread takes per flood packet of each kind, with 60
/// packets queued in its socket.
fn packet_costs(options: &Options) -> Result<()> {
    const BATCHES: usize = 6;
    const COUNT: usize = BATCHES * FLOOD_BATCH;
    let rounds = if options.quick { 20 } else { 2000 };
    let response_socket = UdpSocket::bind((REQUESTER, ROCE_PORT))?;
    response_socket.set_nonblocking(true)?;
    println!("CPU time per flood packet in ns, from the socket to the response; {rounds} rounds of {COUNT}");
    println!("{:<25} {:>7} {:>7} {:>12}", "flood", "min", "median", "responses");
    for kind in [Control, Duplicate, AnyPsn, BadIcrc, Foreign, StaleSyndrome] {
        let mut nic = DrivenNic::new(RESPONDER, REQUESTER, options.buffer)?;
        // The NIC is the end that the packets are sent to: the requester if they are responses, otherwise the
        // responder.
        let ends = [End { qpn: Qpn::new(2), psn: 5000, ip: REQUESTER }, nic.end];
        let mut flooder = Flooder::new(if kind.is_response() { [nic.end, ends[0]] } else { ends })?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let before = nic.nic.counters().rcvd_pkts;
            for _ in 0..BATCHES {
                flooder.send_batch(kind)?;
            }
            let start = raw::cpu_time();
            if kind == Control {
                flooder.drain();
            } else {
                while nic.nic.counters().rcvd_pkts - before < COUNT as u64 {
                    nic.turn()?;
                }
            }
            times.push((raw::cpu_time() - start) as f64 / COUNT as f64);
            while response_socket.recv(&mut [0; 128]).is_ok() {}
        }
        let min = times.iter().copied().fold(f64::MAX, f64::min);
        let name = if kind == Control { "a plain socket" } else { kind.name() };
        let responses = nic.nic.counters().sent_pkts as f64 / (rounds * COUNT) as f64;
        println!("{name:<25} {min:>7.0} {:>7.0} {responses:>12.3}", median(times));
    }
    Ok(())
}

fn main() -> Result<()> {
    if let Ok(buffer) = std::env::var(PEER) {
        return run_peer(buffer.parse()?);
    }
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)?.parse().ok());
    let options = Options {
        quick: args.iter().any(|a| a == "--quick"),
        rate: value("--rate").unwrap_or(50_000).max(1),
        buffer: value("--buffer").map_or(8 << 20, |n: u64| n as usize),
    };
    packet_costs(&options)?;
    for size in [64 << 10, 8] {
        measure(size, &options)?;
    }
    Ok(())
}
