//! Time and memory of simulated networks: an incast and an all-to-all of 1,000 NICs with 100,000 and
//! 1,000,000 packets, and as many idle NICs as the limit of open files allows, at most 10,000. Each row is
//! measured in a process of its own.
//!
//! `cargo bench --package urxe-netsim --profile dist --bench simulated_network [-- CASE NICS PACKETS]` runs
//! all rows, or one in this process.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use urxe::verbs::*;
use urxe_netsim::{Pfc, Simulation, SwitchConfig, Topology};

/// Payload of a packet, and packets of a message at most.
const PAYLOAD: usize = 1024;
const MESSAGE: usize = 16;
/// Peers of each NIC in the all-to-all.
const PEERS: usize = 10;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    match args.as_slice() {
        [case, nics, packets] => run(case, nics.parse()?, packets.parse()?),
        _ => {
            println!("| case | NICs | packets | seconds | of that setup | RSS MiB |");
            println!("| --- | --- | --- | --- | --- | --- |");
            for case in ["incast", "all-to-all"] {
                for packets in ["100000", "1000000"] {
                    measure(&[case, "1000", packets])?;
                }
            }
            measure(&["idle", "1000", "0"])?;
            // Each NIC has two descriptors.
            let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
            measure(&["idle", &(most.saturating_sub(100) / 2).min(10_000).to_string(), "0"])
        }
    }
}

fn measure(args: &[&str]) -> Result<(), Failure> {
    match Command::new(std::env::current_exe()?).args(args).status()?.success() {
        true => Ok(()),
        false => Err(format!("{args:?} failed").into()),
    }
}

/// Runs a case and prints its row.
fn run(case: &str, nics: usize, packets: usize) -> Result<(), Failure> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let start = Instant::now();
    let switch = SwitchConfig::default().pfc(Pfc::default());
    let simulation = Simulation::new(&Topology::star(nics).switches(switch), 1)?;
    let nodes: Vec<Node> = (0..nics).map(|_| Node::new(&simulation)).collect::<Result<_, _>>()?;
    let pairs: Vec<(usize, usize)> = match case {
        "incast" => (1..nics).map(|from| (from, 0)).collect(),
        "all-to-all" => {
            (0..nics).flat_map(|from| (1..=PEERS).map(move |i| (from, (from + i * 97) % nics))).collect()
        }
        "idle" => Vec::new(),
        _ => return Err(format!("{case} is not a case: use incast, all-to-all or idle").into()),
    };
    let mut qps = Vec::new();
    for (from, to) in &pairs {
        let [a, b] = [from, to].map(|i| &nodes[*i]);
        let [qp, back] = [a, b].map(|node| node.pd.create_qp(&node.cq, &node.cq, &QpOptions::default()));
        let (qp, back) = (qp?, back?);
        let options = ConnectOptions::default().mtu(Mtu::Mtu1024);
        qp.connect(&back.endpoint(), &options)?;
        back.connect(&qp.endpoint(), &options)?;
        qps.push((*from, *to, qp, back));
    }
    let setup = start.elapsed();
    let message = (packets / pairs.len().max(1)).clamp(1, MESSAGE);
    let messages = packets / message / pairs.len().max(1);
    for (from, to, qp, _) in &qps {
        let (source, target) = (&nodes[*from].mr, &nodes[*to].mr);
        for i in 0..messages {
            qp.post_send(&SendWr::write(i as u64, &[source.sge(0..message * PAYLOAD)], target.remote(0)))?;
        }
    }
    simulation.fabric().run_until_idle(Duration::from_secs(3600));
    let mut completions = Vec::new();
    for node in &nodes {
        while node.cq.poll(128, &mut completions)? > 0 {}
    }
    assert_eq!(completions.len(), messages * pairs.len(), "every message has completed");
    assert!(completions.iter().all(|completion| completion.status == WcStatus::Success));
    let seconds = start.elapsed().as_secs_f64();
    let (sent, rss) = (simulation.counters().delivered, resident()? >> 20);
    println!("| {case} | {nics} | {sent} | {seconds:.2} | {:.2} | {rss} |", setup.as_secs_f64());
    Ok(())
}

struct Node {
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl Node {
    fn new(simulation: &Simulation) -> Result<Node, Failure> {
        let context = Context::on_fabric(simulation.fabric())?;
        let pd = context.alloc_pd()?;
        Ok(Node { cq: context.create_cq(128)?, mr: pd.reg_mr(MESSAGE * PAYLOAD, Access::ALL)?, pd })
    }
}

/// Returns the largest resident set of this process, in bytes.
fn resident() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
}
