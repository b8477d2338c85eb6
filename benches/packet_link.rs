//! Compares packet links with raw packet sockets, over a veth pair between two network namespaces. The
//! measurements alternate, because the machine's performance changes from one second to the next. Needs root.

#[path = "support/raw.rs"]
#[allow(dead_code, reason = "each bench uses some of it")]
mod raw;
#[path = "support/raw_packet.rs"]
mod raw_packet;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use urxe::link::{Link, PacketLink};
use urxe::memory::{Accessor, Extent, HostSlice, PdId, Table};
use urxe::transport::{Instant as Time, TxQueue};
use urxe::verbs::*;
use urxe::wire::{Bth, Flow, Headers, Opcode, icrc};
use urxe_test_support::netns::{self, Veth};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Environment variable that makes the process a passive peer; its value names the namespace and the link.
const PEER: &str = "URXE_BENCH_PACKET_PEER";
const MESSAGE: usize = 64 << 10;
/// Number of WRITEs in flight, posted `BATCH` at a time.
const DEPTH: usize = 128;
const BATCH: usize = 16;

struct Side {
    _context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl Side {
    /// Opens the link in this thread's namespace.
    fn new(link: &str) -> Result<Side> {
        let link = PacketLink::open(link.parse()?)?;
        let context = Context::open(Box::new(link), &ContextOptions::default())?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(4096)?;
        let send = SendCaps { max_wr: 1024, max_sge: 1, max_inline: 64 };
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default().send(send))?;
        let mr = pd.reg_mr(4 << 20, Access::ALL)?;
        Ok(Side { _context: context, cq, qp, mr })
    }

    /// Formats the connection parameters as a line for the other process.
    fn describe(&self) -> String {
        let (e, m) = (self.qp.endpoint(), self.mr.remote(0));
        format!("{} {} {} {} {}", e.gid.ip(), e.qpn.get(), e.psn.get(), m.va, m.rkey.0)
    }

    fn connect(&self, line: &str) -> Result<RemoteAddr> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [ip, qpn, psn, va, rkey] = fields[..] else {
            return Err(format!("invalid connection parameters: {line:?}").into());
        };
        let gid = Gid::from(ip.parse::<std::net::IpAddr>()?);
        let peer = Endpoint { gid, qpn: Qpn::new(qpn.parse()?), psn: Psn::new(psn.parse()?) };
        self.qp.connect(&peer, &ConnectOptions::default())?;
        Ok(RemoteAddr { va: va.parse()?, rkey: RKey(rkey.parse()?) })
    }

    /// Keeps WRITEs in flight for `time` and returns their throughput in Gb/s.
    fn stream(&self, remote: RemoteAddr, time: Duration) -> Result<f64> {
        let sge = [self.mr.sge(0..MESSAGE)];
        let wr =
            |signaled| SendWr::write(0, &sge, remote).flags(SendFlags { signaled, ..SendFlags::default() });
        let batch: Vec<_> = (1..=BATCH).map(|i| wr(i == BATCH)).collect();
        let (mut posted, mut done, mut out) = (0, 0, Vec::new());
        let start = Instant::now();
        while start.elapsed() < time || done < posted {
            if posted - done < DEPTH && start.elapsed() < time {
                self.qp.post_send_list(&batch, ListPolicy::UntilRejected)?;
                posted += BATCH;
                continue;
            }
            out.clear();
            done += self.cq.poll(64, &mut out)? * BATCH;
            if let Some(bad) = out.iter().find(|c| c.status != WcStatus::Success) {
                return Err(format!("a WRITE failed: {}", bad.status).into());
            }
        }
        Ok((done * MESSAGE) as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9)
    }
}

/// Runs the passive peer until standard input is closed.
fn run_peer(namespace_and_link: &str) -> Result<()> {
    let (namespace, link) = namespace_and_link.split_once(' ').ok_or("the peer argument has no namespace")?;
    if !link.contains("127.") {
        netns::enter(namespace);
    }
    let side = Side::new(link)?;
    println!("{}", side.describe());
    let mut lines = std::io::stdin().lines();
    side.connect(&lines.next().ok_or("no connection parameters on standard input")??)?;
    println!("connected");
    Ok(lines.try_for_each(|line| line.map(drop))?)
}

/// Peer process. Dropping it closes the process's standard input and waits for the process to exit.
struct Peer(Child, Option<ChildStdin>);

impl Drop for Peer {
    fn drop(&mut self) {
        self.1 = None;
        let _ = self.0.wait();
    }
}

/// Measures the throughput in Gb/s of RC WRITEs from one process to another.
fn writes(net: &Veth, options: &str, time: Duration) -> Result<f64> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(PEER, format!("{} packet:v1{options}", net.sides[1].name()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut peer_output = BufReader::new(child.stdout.take().ok_or("the process has no pipe")?).lines();
    let mut stdin = child.stdin.take().ok_or("the process has no pipe")?;
    let mut line = move || {
        peer_output.next().ok_or("the peer process exited")?.map_err(Box::<dyn std::error::Error>::from)
    };
    let peer_params = line()?;
    let side = net.sides[0].run(|| Side::new(&format!("packet:v0{options}")).map_err(|e| e.to_string()))?;
    let remote = side.connect(&peer_params)?;
    writeln!(stdin, "{}", side.describe())?;
    let _peer = Peer(child, Some(stdin));
    line()?;
    side.stream(remote, time)
}

/// Measures the link's CPU time for a burst of 15 packets of 4096 bytes gathered from a region, with ICRCs
/// computed and verified.
fn burst_cost(net: &Veth, options: &str) -> Result<raw::BurstCost> {
    let open = |side: usize| -> Result<PacketLink> {
        let config = format!("packet:v{side}{options}").parse()?;
        Ok(net.sides[side].run(|| PacketLink::open(config))?)
    };
    let (mut a, mut b) = (open(0)?, open(1)?);
    let flow = Flow::new(a.info().addresses[0], b.info().addresses[0], 4791);
    let (mut memory, mut table) = (vec![0x5a; 15 * 4096], Table::new());
    let addr = memory.as_mut_ptr().expose_provenance();
    // SAFETY: the memory is kept until the last use of the table, and nothing writes to it.
    let key =
        unsafe { table.register(PdId(1), Extent { addr, len: memory.len(), iova: 0, access: Access::ALL }) }
            .ok_or("the memory table is full")?
            .lkey;
    let accessor = Accessor { pd: PdId(1), qpn: Qpn::new(2) };
    let slice = |i: u64| table.local(accessor, key, i * 4096, 4096, Access::LOCAL_READ);
    let slices: Vec<HostSlice> = (0..15).map(slice).collect::<std::result::Result<_, _>>()?;
    let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
    let mut queue = TxQueue::new(a.info().burst);
    queue.push(&flow, headers, &[0; 8]);
    // Runs both links until a first packet arrives, and so until the neighbour is resolved.
    let mut received = 0;
    a.transmit(Time(0), &queue)?;
    let start = Instant::now();
    while received == 0 {
        a.receive(Time(start.elapsed().as_nanos() as u64), &mut |_| {})?;
        received += b.receive(Time(0), &mut |_| {})?;
    }
    let send = || {
        queue.clear();
        slices.iter().for_each(|s| queue.push_host(&flow, &headers, &[*s]).unwrap());
        a.transmit(Time(0), &queue)
    };
    let receive = || {
        let mut received = 0;
        while received < 15 {
            received += b.receive(Time(0), &mut |burst| {
                assert!(burst.packets().all(|(i, p)| icrc::verify(&burst.flow, burst.ident, i, p)));
            })?;
        }
        Ok(())
    };
    Ok(raw::cost(send, receive)?)
}

fn main() -> Result<()> {
    if let Ok(value) = std::env::var(PEER) {
        return run_peer(&value);
    }
    let net = Veth::new(4500);
    let costs = [
        ("raw", raw_packet::run_cost(&net, 4172, 15)?),
        ("link", burst_cost(&net, "")?),
        ("link, offload=off", burst_cost(&net, ",offload=off")?),
    ];
    println!("CPU time of a burst of 15 datagrams of about 4 KiB, sending + receiving, ns:");
    costs.iter().for_each(|(name, cost)| println!("  {name}: {} + {}", cost.send, cost.receive));
    println!("Gb/s over a veth: raw datagrams of 4172 bytes; RC WRITEs of 64 KiB at an MTU of 4096");
    println!("{:>10} {:>10} {:>12} {:>9} {:>7}", "raw plain", "raw USO", "offload=off", "on", "on/USO");
    let time = Duration::from_secs(1);
    let mut ratios = Vec::new();
    for _ in 0..7 {
        let plain = raw_packet::throughput(&net, 4172, 1, time)?;
        let off = writes(&net, ",offload=off", time)?;
        let uso = raw_packet::throughput(&net, 4172, 15, time)?;
        let on = writes(&net, "", time)?;
        println!("{plain:>10.1} {uso:>10.1} {off:>12.1} {on:>9.1} {:>7.2}", on / uso);
        ratios.push(on / uso);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    println!("median of on/USO: {:.2}", ratios[ratios.len() / 2]);
    Ok(())
}
