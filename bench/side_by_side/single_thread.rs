//! Measurements in a single thread: memory copies, the ICRC, and NICs on a fabric.

use std::hint::black_box;
use std::time::Instant;

use urxe::verbs::*;
use urxe::wire::icrc::{Prefix, Verifier};
use urxe::wire::{Flow, IpIdent, ROCE_PORT};

use crate::Result;
use crate::job::{Metrics, Op, Stream};
use crate::nic::Nic;
use crate::ping::{self, PingPongEnd};
use crate::progress::Meter;
use crate::stream::{self, Receiver};

/// Measures how fast `memcpy` copies `size` bytes, always between the same two buffers.
pub fn memcpy(size: usize, seconds: f64) -> Result<Metrics> {
    let (from, mut to) = (vec![0x5au8; size], vec![0xa5u8; size]);
    // Small copies are timed in batches, so that the cost of the clock does not matter.
    let batch = (65_536 / size).max(1) as u64;
    let (mut meter, mut copies) = (Meter::start(seconds), 0);
    while meter.record(copies) {
        for _ in 0..batch {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
        copies += batch;
    }
    let copies = meter.rate()?;
    Ok(Metrics::from([("Gb/s".into(), copies * size as f64 * 8.0 / 1e9), ("M/s".into(), copies / 1e6)]))
}

/// Measures a stream between two NICs on a fabric.
pub fn fabric_stream(s: &Stream, seconds: f64) -> Result<Metrics> {
    let fabric = Fabric::new();
    let open = || stream::nic(fabric.open(&stream::context_options(s))?, s);
    let (a, b) = (open()?, open()?);
    stream::connect(&a, &b.conn_info(), s)?;
    stream::connect(&b, &a.conn_info(), s)?;
    if matches!(s.op, Op::Write | Op::Read) {
        return stream::send(&a, &b.conn_info(), s, seconds, || Ok(0));
    }
    let (mut receiver, mut arrived) = (Receiver::new(&b)?, 0);
    stream::send(&a, &b.conn_info(), s, seconds, || {
        arrived += receiver.poll()?;
        Ok(arrived)
    })
}

/// Measures a ping-pong between two NICs on a fabric.
pub fn fabric_ping(op: Op, rounds: usize) -> Result<Metrics> {
    let fabric = Fabric::new();
    let nic = || Nic::new(Context::on_fabric(&fabric)?, QpType::Rc, 1, 4096, Access::ALL);
    let (a, b) = (nic()?, nic()?);
    a.connect(&b.conn_info(), 1024)?;
    b.connect(&a.conn_info(), 1024)?;
    let (mut active, mut passive) =
        (PingPongEnd::new(&a, &b.conn_info(), op)?, PingPongEnd::new(&b, &a.conn_info(), op)?);
    ping::time_round_trips(rounds, |round| {
        active.poll_completions()?;
        active.send(round)?;
        while !passive.poll_received(round)? {}
        passive.send(round)?;
        passive.poll_completions()?;
        while !active.poll_received(round)? {}
        Ok(())
    })
}

/// Measures the time in nanoseconds to compute and to verify the ICRC of a packet with `payload` bytes of
/// payload. As on the data path, the CRC state after the headers that precede the BTH is computed once for
/// all packets of a flow.
pub fn icrc(payload: usize, seconds: f64) -> Result<Metrics> {
    let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), ROCE_PORT);
    let mut packet = vec![0x5a; 12 + payload + 4];
    let body = packet.len() - 4;
    let prefix = Prefix::new(&flow, packet.len());
    let compute = |packet: &[u8]| prefix.after_headers(0, IpIdent::DONT_FRAGMENT, &packet[..body]).value();
    let value = compute(&packet);
    packet[body..].copy_from_slice(&value.to_le_bytes());
    let mut verifier = Verifier::default();
    let computed = nanoseconds(seconds / 2.0, || {
        black_box(compute(black_box(&packet)));
    });
    let mut is_valid = true;
    let verified = nanoseconds(seconds / 2.0, || {
        is_valid &= verifier.verify(black_box(&flow), IpIdent::Unknown, 0, black_box(&packet));
    });
    match is_valid {
        true => Ok(Metrics::from([("made".into(), computed), ("verified".into(), verified)])),
        false => Err("a computed ICRC failed verification".into()),
    }
}

/// Returns the mean duration of a call in nanoseconds.
fn nanoseconds(seconds: f64, mut call: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0u64);
    loop {
        for _ in 0..1000 {
            call();
        }
        calls += 1000;
        let elapsed = start.elapsed();
        if elapsed.as_secs_f64() >= seconds {
            return elapsed.as_nanos() as f64 / calls as f64;
        }
    }
}
