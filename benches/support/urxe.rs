//! urxe under measurement: a passive peer in a process of its own, and the active side that measures.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::*;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Names the address of the process that is a passive peer.
const PEER: &str = "URXE_BENCH_PEER";

/// Bytes of each side's region.
pub const REGION: usize = 4 << 20;

/// Work requests in flight when measuring throughput.
const DEPTH: usize = 128;

pub fn udp_context(addr: &str) -> Result<Context> {
    let ip: IpAddr = addr.parse()?;
    Ok(Context::open(Box::new(UdpLink::bind(ip, &UdpOptions::default())?), &ContextOptions::default())?)
}

/// One side of a measurement.
pub struct Side {
    pub context: Context,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
}

impl Side {
    pub fn new(context: Context) -> Result<Side> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(4096)?;
        let caps = SendCaps { max_wr: 1024, max_sge: 1, max_inline: 64 };
        let options =
            QpOptions { send: caps, recv: RecvCaps { max_wr: 1024, max_sge: 1 }, ..QpOptions::default() };
        let qp = pd.create_qp(&cq, &cq, &options)?;
        let mr = pd.reg_mr(REGION, Access::ALL)?;
        Ok(Side { context, cq, qp, mr })
    }

    /// What the other side must know, as a line.
    fn describe(&self) -> String {
        let (e, m) = (self.qp.endpoint(), self.mr.remote(0));
        format!("{} {} {} {} {}", e.gid.ip(), e.qpn.get(), e.psn.get(), m.va, m.rkey.0)
    }

    fn connect(&self, line: &str) -> Result<RemoteAddr> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [ip, qpn, psn, va, rkey] = fields[..] else { return Err(format!("not a peer: {line:?}").into()) };
        let gid = Gid::from(ip.parse::<IpAddr>()?);
        let peer = Endpoint { gid, qpn: Qpn::new(qpn.parse()?), psn: Psn::new(psn.parse()?) };
        self.qp.connect(&peer, &ConnectOptions::default())?;
        Ok(RemoteAddr { va: va.parse()?, rkey: RKey(rkey.parse()?) })
    }
}

/// If this process was started as a passive peer, is one until its standard input ends. Call it first.
pub fn be_peer() -> Result<bool> {
    let Ok(what) = std::env::var(PEER) else { return Ok(false) };
    let (mode, addr) = what.split_once('@').ok_or("URXE_BENCH_PEER is MODE@ADDR")?;
    let side = Side::new(udp_context(addr)?)?;
    println!("{}", side.describe());
    let mut lines = std::io::stdin().lines();
    let remote = side.connect(&lines.next().ok_or("no peer")??)?;
    println!("connected");
    let rounds: usize = lines.next().ok_or("no rounds")??.trim().parse()?;
    match mode {
        "passive" => {}
        "pong" => pong(&side, remote, rounds)?,
        "sink" => sink(&side, rounds)?,
        other => return Err(format!("no mode {other:?}").into()),
    }
    // Ends when the measuring side closes the pipe.
    for line in lines {
        line?;
    }
    Ok(true)
}

/// Writes back what it finds written.
fn pong(side: &Side, remote: RemoteAddr, rounds: usize) -> Result<()> {
    let mut out = Vec::new();
    for round in 1..=rounds as u64 {
        await_word(side, round)?;
        write_word(side, remote, round)?;
        take_completions(side, &mut out)?;
    }
    Ok(())
}

/// Polls until the peer has written `round`.
fn await_word(side: &Side, round: u64) -> Result<()> {
    let mut looks = 0u64;
    while side.mr.buffer().load_u64(0)? != round {
        side.context.poll();
        looks += 1;
        if looks.is_multiple_of(1 << 22) {
            take_completions(side, &mut Vec::new())?;
            if looks == 1 << 25 {
                return Err(format!("round {round} never came; {:?}", side.context.counters()).into());
            }
        }
    }
    Ok(())
}

fn take_completions(side: &Side, out: &mut Vec<Completion>) -> Result<()> {
    out.clear();
    side.cq.poll(64, out)?;
    match out.iter().find(|c| c.status != WcStatus::Success) {
        Some(bad) => {
            Err(format!("a work request failed: {}; {:?}", bad.status, side.context.counters()).into())
        }
        None => Ok(()),
    }
}

/// Receives messages and keeps receives posted.
fn sink(side: &Side, messages: usize) -> Result<()> {
    let mut out = Vec::new();
    let recv = |_| side.qp.post_recv(&RecvWr { wr_id: 0, sges: &[side.mr.sge(0..1 << 20)] });
    (0..512).try_for_each(recv)?;
    println!("ready");
    let mut left = messages;
    while left > 0 {
        out.clear();
        let n = side.cq.poll(64, &mut out)?;
        (0..n).try_for_each(recv)?;
        left -= n;
    }
    Ok(())
}

fn write_word(side: &Side, remote: RemoteAddr, round: u64) -> Result<()> {
    let bytes = round.to_ne_bytes();
    let signaled = round.is_multiple_of(64);
    let flags = SendFlags { signaled, ..SendFlags::default() };
    Ok(side.qp.post_send(&SendWr {
        data: WrData::Inline(&bytes),
        flags,
        ..SendWr::write(round, &[], remote)
    })?)
}

/// A passive peer in another process, connected to a side of this one.
pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pub side: Side,
    pub remote: RemoteAddr,
}

impl Peer {
    pub fn start(mode: &str, ours: &str, theirs: &str, rounds: usize) -> Result<Peer> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(PEER, format!("{mode}@{theirs}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or("no pipe")?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let side = Side::new(udp_context(ours)?)?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let remote = side.connect(&line)?;
        writeln!(stdin, "{}\n{rounds}", side.describe())?;
        line.clear();
        stdout.read_line(&mut line)?;
        if mode == "sink" {
            stdout.read_line(&mut line)?;
        }
        Ok(Peer { child, stdin: Some(stdin), stdout, side, remote })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stdin = None;
        let mut rest = String::new();
        let _ = self.stdout.read_line(&mut rest);
        if let Err(e) = self.child.wait() {
            eprintln!("the peer did not end: {e}");
        }
    }
}

/// What a stream of messages is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Write,
    Read,
    Send,
}

/// Keeps messages of `size` bytes in flight for `time`, or until there were `limit`; returns messages and
/// seconds.
pub fn stream(
    side: &Side,
    remote: RemoteAddr,
    op: Op,
    size: usize,
    time: Duration,
    limit: usize,
) -> Result<(usize, f64)> {
    let batch = 16;
    let sge = [side.mr.sge(0..size)];
    let make = |signaled| {
        let flags = SendFlags { signaled, ..SendFlags::default() };
        let wr = match op {
            Op::Write => SendWr::write(0, &sge, remote),
            Op::Read => SendWr::read(0, &sge, remote),
            Op::Send => SendWr::send(0, &sge),
        };
        SendWr { flags, ..wr }
    };
    let wrs: Vec<SendWr<'_>> = (1..=batch).map(|i| make(i == batch)).collect();
    let (mut posted, mut done, mut out) = (0, 0, Vec::new());
    let start = Instant::now();
    while posted < limit && start.elapsed() < time || done < posted {
        if posted < limit && posted - done + batch <= DEPTH.max(batch) && start.elapsed() < time {
            side.qp.post_send_list(&wrs)?;
            posted += batch;
        } else {
            take_completions(side, &mut out)?;
            done += out.len() * batch;
        }
    }
    Ok((done, start.elapsed().as_secs_f64()))
}

/// Half round trips of 8-byte WRITEs in nanoseconds, sorted.
pub fn ping(peer: &Peer, rounds: usize) -> Result<Vec<u64>> {
    let mut times = Vec::with_capacity(rounds);
    let mut out = Vec::new();
    for round in 1..=rounds as u64 {
        let start = Instant::now();
        write_word(&peer.side, peer.remote, round)?;
        await_word(&peer.side, round)?;
        times.push(start.elapsed().as_nanos() as u64 / 2);
        take_completions(&peer.side, &mut out)?;
    }
    times.sort_unstable();
    Ok(times)
}
