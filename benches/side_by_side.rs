//! urxe beside raw UDP and memory, in one run, in turns: what the machine gives changes from one second to
//! the next, so only ratios of neighbours say anything.
//!
//! `cargo bench --bench side_by_side [-- --quick]`

#[allow(dead_code, reason = "each bench uses some of it")]
#[path = "support/raw.rs"]
mod raw;
#[path = "support/urxe.rs"]
mod under_test;

use std::time::Duration;

use under_test::{Op, Peer, Result, Side, be_peer, ping, stream};
use urxe::verbs::*;

/// One thing measured: its unit, and the value of each round.
struct Row {
    name: &'static str,
    unit: &'static str,
    values: Vec<f64>,
}

impl Row {
    fn median(&self) -> f64 {
        let mut v = self.values.clone();
        v.sort_unstable_by(f64::total_cmp);
        v[v.len() / 2]
    }

    fn print(&self) {
        let (low, high) = self.values.iter().fold((f64::MAX, 0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        println!("{:<44} {:>10.2} {:<6} ({low:.2} to {high:.2})", self.name, self.median(), self.unit);
    }
}

fn gbps((messages, seconds): (usize, f64), size: usize) -> f64 {
    messages as f64 * size as f64 * 8.0 / seconds / 1e9
}

/// 8-byte WRITEs a second from one thread that drives both ends.
fn fabric_messages(time: Duration) -> Result<f64> {
    let fabric = Fabric::new();
    let (a, b) = (Side::new(Context::on_fabric(&fabric)?)?, Side::new(Context::on_fabric(&fabric)?)?);
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default())?;
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default())?;
    let (n, s) = stream(&a, b.mr.remote(0), Op::Write, 8, time, usize::MAX)?;
    Ok(n as f64 / s / 1e6)
}

/// Gb/s of 1 MiB WRITEs on the fabric.
fn fabric_throughput(time: Duration) -> Result<f64> {
    let fabric = Fabric::new();
    let (a, b) = (Side::new(Context::on_fabric(&fabric)?)?, Side::new(Context::on_fabric(&fabric)?)?);
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default())?;
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default())?;
    Ok(gbps(stream(&a, b.mr.remote(0), Op::Write, 1 << 20, time, usize::MAX)?, 1 << 20))
}

fn udp_stream(op: Op, size: usize, time: Duration, limit: usize) -> Result<(usize, f64)> {
    let mode = if op == Op::Send { "sink" } else { "passive" };
    let peer = Peer::start(mode, "127.66.0.1", "127.66.0.2", limit)?;
    stream(&peer.side, peer.remote, op, size, time, limit)
}

fn udp_ping(rounds: usize) -> Result<(f64, f64)> {
    let peer = Peer::start("pong", "127.66.0.1", "127.66.0.2", rounds)?;
    let t = ping(&peer, rounds)?;
    Ok((t[t.len() / 2] as f64, t[t.len() * 99 / 100] as f64))
}

fn main() -> Result<()> {
    if be_peer()? {
        return Ok(());
    }
    if std::env::args().any(|a| a == "--ping") {
        for _ in 0..5 {
            let r = raw::ping_pong(8, 20000)?;
            let (p50, p99) = udp_ping(20000)?;
            println!("{} {} | {} {}", r.p50, r.p99, p50, p99);
        }
        return Ok(());
    }
    let quick = std::env::args().any(|a| a == "--quick");
    let (repeats, time, rounds) =
        if quick { (3, Duration::from_millis(300), 20_000) } else { (7, Duration::from_secs(1), 100_000) };
    let size = 64 << 10;
    let names = [
        ("raw UDP, 15 x 4172 bytes a call", "Gb/s"),
        ("udp, RC WRITE 64 KiB", "Gb/s"),
        ("udp, RC READ 64 KiB", "Gb/s"),
        ("udp, RC SEND 64 KiB", "Gb/s"),
        ("udp, RC WRITE 8 B", "M/s"),
        ("raw UDP, 8 B half round trip, p50", "ns"),
        ("raw UDP, 8 B half round trip, p99", "ns"),
        ("udp, RC WRITE 8 B half round trip, p50", "ns"),
        ("udp, RC WRITE 8 B half round trip, p99", "ns"),
        ("fabric, RC WRITE 8 B, one thread", "M/s"),
        ("fabric, RC WRITE 1 MiB, one thread", "Gb/s"),
    ];
    let mut rows: Vec<Row> =
        names.into_iter().map(|(name, unit)| Row { name, unit, values: Vec::new() }).collect();
    for _ in 0..repeats {
        let raw_ping = raw::ping_pong(8, rounds)?;
        let (p50, p99) = udp_ping(rounds)?;
        let (small, small_time) = udp_stream(Op::Write, 8, time, usize::MAX)?;
        let values = [
            raw::throughput(4172, 15, time)?.gbps,
            gbps(udp_stream(Op::Write, size, time, usize::MAX)?, size),
            gbps(udp_stream(Op::Read, size, time, usize::MAX)?, size),
            // The sink has to know how many come.
            gbps(
                udp_stream(Op::Send, size, Duration::from_secs(60), if quick { 16_000 } else { 48_000 })?,
                size,
            ),
            small as f64 / small_time / 1e6,
            raw_ping.p50 as f64,
            raw_ping.p99 as f64,
            p50,
            p99,
            fabric_messages(time)?,
            fabric_throughput(time)?,
        ];
        rows.iter_mut().zip(values).for_each(|(row, v)| row.values.push(v));
    }
    println!("\n{} rounds in turns; median (least to most)\n", repeats);
    rows.iter().for_each(Row::print);
    let m = |i: usize| rows[i].median();
    println!();
    let bars = [
        ("udp WRITE 64 KiB / raw UDP", m(1) / m(0), ">=", 0.5),
        ("udp READ / WRITE, 64 KiB", m(2) / m(1), "", 0.0),
        ("udp SEND / WRITE, 64 KiB", m(3) / m(1), "", 0.0),
        ("udp half round trip / raw, p50", m(7) / m(5), "<=", 1.5),
        ("fabric 8 B WRITEs, million a second", m(9), ">=", 2.0),
    ];
    for (name, value, sign, bar) in bars {
        let verdict = match sign {
            ">=" if value >= bar => format!("bar {sign} {bar}: met"),
            "<=" if value <= bar => format!("bar {sign} {bar}: met"),
            "" => String::new(),
            _ => format!("bar {sign} {bar}: MISSED"),
        };
        println!("{name:<44} {value:>10.2}        {verdict}");
    }
    Ok(())
}
