//! Measures what the UDP link adds to raw UDP on this machine's loopback. The two alternate, because the
//! machine's performance changes from one second to the next.

#[path = "support/raw.rs"]
#[allow(dead_code, reason = "each bench uses some of it")]
mod raw;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urxe::link::Link;
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::memory::{Access, Accessor, Extent, HostSlice, PdId, Table};
use urxe::transport::{Instant as Time, TxQueue};
use urxe::wire::{Bth, Flow, Headers, Opcode, Qpn, ROCE_PORT, icrc};

fn bind(addr: &str) -> UdpLink {
    UdpLink::bind(addr.parse().unwrap(), &UdpOptions::default()).unwrap()
}

fn flow(from: &UdpLink, to: &UdpLink) -> Flow {
    Flow::new(from.info().addresses[0], to.info().addresses[0], ROCE_PORT)
}

fn headers() -> Headers {
    Headers { bth: Bth { opcode: Opcode(0x04), ..Bth::default() }, ..Headers::default() }
}

/// Receives until packets arrive or `done` is set, and reports whether every ICRC is valid.
fn wait(link: &mut UdpLink, done: &AtomicBool) -> bool {
    let mut are_valid = true;
    while !done.load(Ordering::Relaxed) {
        let n = link.receive(Time(0), &mut |burst| {
            are_valid &= burst.packets().all(|(i, p)| icrc::verify(&burst.flow, burst.ident, i, p));
        });
        if n.unwrap() > 0 {
            break;
        }
    }
    are_valid
}

/// Measures half the round-trip time of a packet with `payload` bytes of payload, with ICRCs computed and
/// verified.
fn ping_pong(payload: usize, rounds: usize) -> raw::HalfRoundTrip {
    let (mut a, mut b) = (bind("127.77.0.1"), bind("127.77.0.2"));
    let (to_b, to_a) = (flow(&a, &b), flow(&b, &a));
    let (done, bytes) = (AtomicBool::new(false), vec![7; payload]);
    let send = |link: &mut UdpLink, q: &mut TxQueue, flow: &Flow| {
        q.clear();
        q.push(flow, headers(), &bytes);
        link.transmit(Time(0), q).unwrap();
    };
    thread::scope(|s| {
        s.spawn(|| {
            let mut q = TxQueue::new(b.info().burst);
            while !done.load(Ordering::Relaxed) {
                assert!(wait(&mut b, &done));
                send(&mut b, &mut q, &to_a);
            }
        });
        let mut q = TxQueue::new(a.info().burst);
        let mut times = Vec::new();
        for round in 0..rounds + 2000 {
            let start = Instant::now();
            send(&mut a, &mut q, &to_b);
            assert!(wait(&mut a, &done));
            if round >= 2000 {
                times.push(start.elapsed().as_nanos() as u64 / 2);
            }
        }
        done.store(true, Ordering::Relaxed);
        times.sort_unstable();
        raw::HalfRoundTrip { p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] }
    })
}

/// Registers the memory and returns it as the payloads of a burst of 15 packets of 4096 bytes.
fn slices(memory: &mut [u8], table: &mut Table) -> Vec<HostSlice> {
    let addr = memory.as_mut_ptr().expose_provenance();
    // SAFETY: every caller keeps the memory until its last use of the table, and nothing writes to the
    // memory.
    let key =
        unsafe { table.register(PdId(1), Extent { addr, len: memory.len(), iova: 0, access: Access::ALL }) }
            .unwrap()
            .lkey;
    let slice = |i: u64| {
        table
            .local(Accessor { pd: PdId(1), qpn: Qpn::new(2) }, key, i * 4096, 4096, Access::LOCAL_READ)
            .unwrap()
    };
    (0..15).map(slice).collect()
}

/// Measures the CPU times to send and to receive a burst of 15 packets of 4096 bytes, with ICRCs computed and
/// verified.
fn burst_cost() -> raw::BurstCost {
    let (mut a, mut b) = (bind("127.77.0.5"), bind("127.77.0.6"));
    let to_b = flow(&a, &b);
    let (mut memory, mut table) = (vec![0x5a; 15 * 4096], Table::new());
    let slices = slices(&mut memory, &mut table);
    let mut q = TxQueue::new(a.info().burst);
    let done = AtomicBool::new(false);
    let send = || {
        q.clear();
        slices.iter().for_each(|s| q.push_host(&to_b, &headers(), &[*s]).unwrap());
        a.transmit(Time(0), &q)
    };
    let receive = || {
        assert!(wait(&mut b, &done));
        Ok(())
    };
    raw::cost(send, receive).unwrap()
}

/// Measures the payload throughput in Gb/s of bursts of 15 packets of 4096 bytes gathered from a region, with
/// ICRCs computed and verified.
fn throughput(time: Duration) -> f64 {
    let (mut a, mut b) = (bind("127.77.0.3"), bind("127.77.0.4"));
    let to_b = flow(&a, &b);
    let max_ahead = (b.info().window as u64).min(1 << 20);
    let (mut memory, mut table) = (vec![0x5a; 15 * 4096], Table::new());
    let slices = slices(&mut memory, &mut table);
    let (received, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut bytes = 0;
                let n = b.receive(Time(0), &mut |burst| {
                    assert!(burst.packets().all(|(i, p)| icrc::verify(&burst.flow, burst.ident, i, p)));
                    bytes += burst.data.len() as u64;
                });
                if n.unwrap() == 0 {
                    thread::yield_now();
                }
                received.fetch_add(bytes, Ordering::Release);
            }
        });
        let mut q = TxQueue::new(a.info().burst);
        let (start, mut sent) = (Instant::now(), 0u64);
        while start.elapsed() < time {
            if sent - received.load(Ordering::Acquire) > max_ahead {
                thread::yield_now();
                continue;
            }
            q.clear();
            slices.iter().for_each(|s| q.push_host(&to_b, &headers(), &[*s]).unwrap());
            a.transmit(Time(0), &q).unwrap();
            sent += q.bytes() as u64;
        }
        done.store(true, Ordering::Relaxed);
        received.load(Ordering::Acquire) as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
    })
}

fn main() -> std::io::Result<()> {
    for _ in 0..3 {
        let (raw, link) = (raw::ping_pong(8 + 16, 40_000)?, ping_pong(8, 40_000));
        println!(
            "8 bytes, half round trip: raw p50 {} p99 {} ns, link p50 {} p99 {} ns: {:.2} x",
            raw.p50,
            raw.p99,
            link.p50,
            link.p99,
            link.p50 as f64 / raw.p50 as f64
        );
    }
    let (raw, link) = (raw::burst_cost(4172, 15)?, burst_cost());
    println!(
        "CPU time of a burst of 15: raw {} + {} ns, link {} + {} ns (sending + receiving)",
        raw.send, raw.receive, link.send, link.receive
    );
    for _ in 0..3 {
        let time = Duration::from_secs(1);
        let (raw, link) = (raw::throughput(4172, 15, time)?, throughput(time));
        println!(
            "bursts of 15: raw {:.1} Gb/s ({:.3} % lost), link {link:.1} Gb/s: {:.2} x",
            raw.gbps,
            raw.lost * 100.0,
            link / raw.gbps
        );
    }
    Ok(())
}
