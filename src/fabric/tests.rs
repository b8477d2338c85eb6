//! Fabric tests: impairments, virtual time, and NICs driven from several threads.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::*;
use crate::burst::TxQueue;
use crate::link::{JoinError, Link, Multicast, PortState};
use crate::wire::{Bth, Ecn, Flow, Headers, Opcode, Packet, Psn, icrc};

const US: Duration = Duration::from_micros(1);

/// A packet as received.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Got {
    at: u64,
    psn: u32,
    ecn: Ecn,
    intact: bool,
}

fn queue(from: &FabricPort, to: IpAddr, psns: std::ops::Range<u32>, len: usize) -> TxQueue {
    let src = *from.info().addresses.iter().find(|a| a.is_ipv4() == to.is_ipv4()).unwrap();
    let mut flow = Flow::new(src, to, 49_152);
    flow.traffic_class = Ecn::Ect0 as u8;
    let mut q = TxQueue::new(from.info().burst);
    for psn in psns {
        let bth = Bth { opcode: Opcode(0x0a), psn: Psn::new(psn), ..Bth::default() };
        q.push(&flow, Headers { bth, ..Headers::default() }, &vec![psn as u8; len]);
    }
    q
}

fn read(port: &mut FabricPort, now: Instant) -> Vec<Got> {
    let mut received = Vec::new();
    loop {
        let n = port
            .receive(now, &mut |burst| {
                for (i, bytes) in burst.packets() {
                    received.push(Got {
                        at: now.0,
                        psn: Packet::parse(bytes).map_or(u32::MAX, |p| p.bth().psn.get()),
                        ecn: burst.flow.ecn(),
                        intact: icrc::verify(&burst.flow, burst.ident, i, bytes),
                    });
                }
            })
            .unwrap();
        if n == 0 {
            return received;
        }
    }
}

/// Creates two ports on a fabric in virtual time. Also returns the IPv4 address of the second port.
fn pair(config: FabricConfig) -> (Fabric, FabricPort, FabricPort, IpAddr) {
    let fabric = Fabric::virtual_time(config).unwrap();
    let a = fabric.port(&fabric.auto_address()).unwrap();
    let b = fabric.port(&fabric.auto_address()).unwrap();
    let to = b.info().addresses[1];
    (fabric, a, b, to)
}

/// Sends `n` packets of 100 bytes in bursts. Returns the packets received, and the fabric's counters.
fn run(config: FabricConfig, n: u32) -> (Vec<Got>, FabricCounters) {
    let (fabric, mut a, mut b, to) = pair(config);
    a.transmit(fabric.now(), &queue(&a, to, 0..n, 100)).unwrap();
    let mut received = read(&mut b, fabric.now());
    while let Some(now) = fabric.step() {
        received.extend(read(&mut b, now));
    }
    (received, fabric.counters())
}

fn psns(received: &[Got]) -> Vec<u32> {
    received.iter().map(|g| g.psn).collect()
}

#[test]
fn fabric_without_impairments_delivers_bursts_whole_and_immediately() {
    let fabric = Fabric::new();
    let mut a = fabric.port(&fabric.auto_address()).unwrap();
    let mut b = fabric.port(&fabric.auto_address()).unwrap();
    for to in b.info().addresses.clone() {
        let q = queue(&a, to, 0..300, 8);
        a.transmit(fabric.now(), &q).unwrap();
        assert!(b.handle().has_input());
        let mut bursts = Vec::new();
        let n = b
            .receive(Instant(0), &mut |r| {
                assert!(r.packets().all(|(i, p)| icrc::verify(&r.flow, r.ident, i, p)));
                bursts.push(r.packets().count());
            })
            .unwrap();
        assert_eq!((n, bursts), (300, vec![256, 44]));
        assert!(!b.handle().has_input());
    }
    assert_eq!(fabric.counters(), FabricCounters { carried: 600, ..Default::default() });
}

#[test]
fn latency_delays_each_burst_as_a_whole() {
    let (fabric, mut a, mut b, to) = pair(FabricConfig { latency: 5 * US, ..Default::default() });
    a.transmit(fabric.now(), &queue(&a, to, 0..10, 8)).unwrap();
    assert_eq!(read(&mut b, fabric.now()), []);
    assert_eq!(b.next_deadline(), Some(Instant(5000)));
    assert_eq!(fabric.step(), Some(Instant(5000)));
    let mut bursts = 0;
    assert_eq!(b.receive(fabric.now(), &mut |_| bursts += 1).unwrap(), 10);
    assert_eq!((bursts, fabric.step()), (1, None));
}

#[test]
fn packets_arrive_at_intervals_of_their_size_divided_by_the_bandwidth() {
    // 100 payload + RETH 16 + BTH 12 + ICRC 4 + 28 of IP and UDP = 160 bytes: 1280 ns at 1 Gb/s.
    let config = FabricConfig { bandwidth: Some(1_000_000_000), latency: US, ..Default::default() };
    let (received, _) = run(config, 4);
    assert_eq!(received.iter().map(|g| g.at).collect::<Vec<_>>(), [2280, 3560, 4840, 6120]);
    assert!(received.iter().all(|g| g.intact));
}

#[test]
fn packets_beyond_the_queue_capacity_are_dropped() {
    let config =
        FabricConfig { bandwidth: Some(1_000_000_000), queue_bytes: Some(10 * 160), ..Default::default() };
    let (received, counters) = run(config, 25);
    assert_eq!(psns(&received), (0..10).collect::<Vec<_>>());
    assert_eq!((counters.queue_full, counters.carried), (15, 10));
}

#[test]
fn queue_above_the_ecn_threshold_marks_packets() {
    let config =
        FabricConfig { bandwidth: Some(1_000_000_000), ecn_threshold: Some(3 * 160), ..Default::default() };
    let (received, counters) = run(config, 10);
    // Packets 0..=3 find at most three others in the queue.
    assert!(received.iter().all(|g| (g.ecn == Ecn::Ce) == (g.psn > 3) && g.intact), "{received:?}");
    assert_eq!(counters.marked, 6);
}

#[test]
fn packets_of_two_senders_to_one_port_share_its_bandwidth() {
    let (fabric, mut a, mut b, to) =
        pair(FabricConfig { bandwidth: Some(1_000_000_000), ..Default::default() });
    let mut c = fabric.port(&fabric.auto_address()).unwrap();
    a.transmit(fabric.now(), &queue(&a, to, 0..3, 100)).unwrap();
    c.transmit(fabric.now(), &queue(&c, to, 3..5, 100)).unwrap();
    fabric.advance(10 * US);
    assert_eq!(psns(&read(&mut b, Instant(3 * 1280))), [0, 1, 2]);
    assert_eq!(psns(&read(&mut b, Instant(5 * 1280))), [3, 4]);
}

#[test]
fn configured_fraction_of_packets_is_lost() {
    let (received, counters) = run(FabricConfig { loss: 0.1, seed: 1, ..Default::default() }, 10_000);
    assert_eq!(counters.lost, 953);
    assert_eq!(received.len() as u64, 10_000 - counters.lost);
    assert!(received.iter().all(|g| g.intact));
    assert!(received.is_sorted_by_key(|g| g.psn));
}

#[test]
fn average_loss_over_many_seeds_is_the_configured_rate() {
    let lost = |seed| run(FabricConfig { loss: 0.1, seed, ..Default::default() }, 1000).1.lost;
    let counts: Vec<u64> = (0..200).map(lost).collect();
    let mean = counts.iter().sum::<u64>() as f64 / 200.0;
    // The standard deviation of one count is 9.5, of the mean of 200 it is 0.67.
    assert!((98.0..102.0).contains(&mean), "{mean}");
    let spread = counts.iter().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / 200.0;
    assert!((8.0..11.0).contains(&spread.sqrt()), "{spread}");
}

#[test]
fn duplicates_follow_their_originals() {
    let (received, counters) = run(FabricConfig { duplicate: 0.2, seed: 2, ..Default::default() }, 1000);
    assert_eq!(counters.duplicated, 211);
    assert_eq!(received.len(), 1211);
    assert!(received.is_sorted_by_key(|g| g.psn) && received.iter().all(|g| g.intact));
}

#[test]
fn reordered_packets_arrive_later_and_the_rest_keeps_its_order() {
    let config = FabricConfig { reorder: 0.05, reorder_by: 9 * US, seed: 3, ..Default::default() };
    let (received, counters) = run(config, 1000);
    assert_eq!(counters.reordered, 41);
    assert!(received.iter().all(|g| g.intact));
    let late: Vec<_> = received.iter().filter(|g| g.at == 9000).collect();
    assert_eq!(late.len() as u64, counters.reordered);
    assert!(received.iter().filter(|g| g.at == 0).is_sorted_by_key(|g| g.psn));
}

#[test]
fn jitter_varies_delays_and_never_reorders_packets() {
    let (fabric, mut a, mut b, to) =
        pair(FabricConfig { jitter: 50 * US, latency: US, ..Default::default() });
    let mut received = Vec::new();
    for i in 0..500 {
        let q = queue(&a, to, i..i + 1, 100);
        a.transmit(fabric.now(), &q).unwrap();
        for _ in 0..20 {
            fabric.advance(US);
            received.extend(read(&mut b, fabric.now()));
        }
    }
    let delays: Vec<_> = received.iter().map(|g| g.at / 1000 - g.psn as u64 * 20).collect();
    assert_eq!(psns(&received), (0..received.len() as u32).collect::<Vec<_>>());
    assert!(received.len() > 495 && delays.iter().all(|d| (1..=52).contains(d)), "{delays:?}");
    assert!(delays.iter().any(|d| *d < 10) && delays.iter().any(|d| *d > 45), "{delays:?}");
}

#[test]
fn every_corrupt_packet_fails_its_icrc() {
    let (received, counters) = run(FabricConfig { corrupt: 0.1, seed: 4, ..Default::default() }, 5000);
    assert_eq!(counters.corrupted, 451);
    assert_eq!(received.iter().filter(|g| !g.intact).count(), 451);
    assert_eq!(received.len(), 5000);
}

#[test]
fn same_seed_gives_the_same_deliveries_and_counters() {
    let config = |seed| FabricConfig {
        seed,
        latency: 10 * US,
        jitter: 4 * US,
        bandwidth: Some(10_000_000_000),
        queue_bytes: Some(60_000),
        ecn_threshold: Some(20_000),
        loss: 0.02,
        duplicate: 0.02,
        reorder: 0.03,
        corrupt: 0.01,
        ..Default::default()
    };
    let first = run(config(7), 2000);
    assert_eq!(first, run(config(7), 2000));
    assert_ne!(first.0, run(config(8), 2000).0);
    // Golden values: they must not change with a version of any dependency.
    let expected = FabricCounters {
        carried: 385,
        lost: 31,
        duplicated: 10,
        reordered: 15,
        corrupted: 6,
        marked: 249,
        queue_full: 1594,
        ..Default::default()
    };
    assert_eq!(first.1, expected);
    assert_eq!(crc32fast::hash(format!("{:?}", first.0).as_bytes()), 678_583_910);
}

#[test]
fn configuration_of_one_direction_does_not_affect_the_other() {
    let (fabric, mut a, mut b, to) = pair(FabricConfig::default());
    let reverse = a.info().addresses[1];
    fabric.set_path(reverse, to, FabricConfig { loss: 1.0, ..Default::default() }).unwrap();
    a.transmit(fabric.now(), &queue(&a, to, 0..5, 8)).unwrap();
    b.transmit(fabric.now(), &queue(&b, reverse, 0..5, 8)).unwrap();
    assert_eq!(read(&mut b, fabric.now()), []);
    assert_eq!(read(&mut a, fabric.now()).len(), 5);
    fabric.set_path(reverse, to, FabricConfig::default()).unwrap();
    a.transmit(fabric.now(), &queue(&a, to, 5..7, 8)).unwrap();
    assert_eq!(psns(&read(&mut b, fabric.now())), [5, 6]);
}

#[test]
fn packets_to_a_multicast_group_reach_its_members() {
    let (fabric, mut a, mut b, _) = pair(FabricConfig::default());
    for group in ["224.1.2.3", "ff12::77"] {
        let group: IpAddr = group.parse().unwrap();
        let mut c = fabric.port(&fabric.auto_address()).unwrap();
        let q = queue(&a, group, 0..3, 8);
        let dropped = a.counters().tx_dropped;
        a.transmit(fabric.now(), &q).unwrap();
        assert_eq!(a.counters().tx_dropped - dropped, 3);
        b.join(fabric.now(), group).unwrap();
        c.join(fabric.now(), group).unwrap();
        a.transmit(fabric.now(), &q).unwrap();
        c.leave(group);
        a.transmit(fabric.now(), &q).unwrap();
        assert_eq!(read(&mut b, fabric.now()).len(), 6);
        assert_eq!(read(&mut c, fabric.now()).len(), 3);
        b.leave(group);
    }
    assert_eq!(fabric.counters().unknown, 6);
    let unicast = "10.0.0.1".parse().unwrap();
    assert!(matches!(b.join(fabric.now(), unicast), Err(JoinError::NotMulticast(ip)) if ip == unicast));
}

#[test]
fn address_is_in_use_until_its_port_is_dropped() {
    let fabric = Fabric::new();
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let port = fabric.port(&[ip]).unwrap();
    assert_eq!(fabric.port(&[ip]).err(), Some(FabricError::AddressInUse(ip)));
    assert_eq!(fabric.port(&[]).err(), Some(FabricError::NoAddress));
    let zero: IpAddr = "0.0.0.0".parse().unwrap();
    assert_eq!(fabric.port(&[zero]).err(), Some(FabricError::NotUnicast(zero)));
    drop(port);
    let mut other = fabric.port(&fabric.auto_address()).unwrap();
    let q = queue(&other, ip, 0..2, 8);
    other.transmit(fabric.now(), &q).unwrap();
    assert_eq!(other.counters().tx_dropped, 2);
    let mut port = fabric.port(&[ip]).unwrap();
    other.transmit(fabric.now(), &q).unwrap();
    assert_eq!(read(&mut port, fabric.now()).len(), 2);
}

#[test]
fn packet_above_the_mtu_is_dropped_and_counted() {
    let (fabric, mut a, mut b, to) = pair(FabricConfig { mtu: 1500, ..Default::default() });
    a.transmit(fabric.now(), &queue(&a, to, 0..1, 1440)).unwrap();
    a.transmit(fabric.now(), &queue(&a, to, 1..2, 1441)).unwrap();
    assert_eq!(psns(&read(&mut b, fabric.now())), [0]);
    assert_eq!((a.counters().tx_dropped, fabric.counters().too_big), (1, 1));
}

#[test]
fn unread_port_drops_packets_beyond_its_limit() {
    let fabric = Fabric::new();
    let mut a = fabric.port(&fabric.auto_address()).unwrap();
    let b = fabric.port(&fabric.auto_address()).unwrap();
    let q = queue(&a, b.info().addresses[0], 0..128, 4096);
    for _ in 0..200 {
        a.transmit(fabric.now(), &q).unwrap();
    }
    assert!(a.counters().tx_dropped > 0);
    assert_eq!(a.counters().tx_dropped, fabric.counters().queue_full);
    assert!(fabric.counters().carried * 4128 <= 64 << 20);
}

#[test]
fn error_for_an_invalid_configuration_names_the_cause() {
    let error = |config: FabricConfig| Fabric::with_config(config).err().unwrap().to_string();
    let text = error(FabricConfig { loss: 5.0, ..Default::default() });
    assert_eq!(text, "loss is 5; a probability must be from 0 to 1: write 1 % as 0.01");
    assert!(error(FabricConfig { reorder: f64::NAN, ..Default::default() }).starts_with("reorder"));
    assert!(error(FabricConfig { mtu: 70_000, ..Default::default() }).contains("70000"));
    assert!(error(FabricConfig { bandwidth: Some(0), ..Default::default() }).contains("bandwidth"));
    assert!(error(FabricConfig { queue_bytes: Some(9), ..Default::default() }).contains("queue_bytes"));
}

/// NIC that sends initial packets at given times, and responds to each packet with PSN `n > 0` by sending a
/// packet with PSN `n - 1`.
struct TestNic {
    inner: Mutex<TestNicInner>,
    handle: FabricHandle,
    /// Whether the NIC accepts packets directly from the sender.
    accepts_direct: AtomicBool,
    /// Number of turns that the NIC still requests besides those for input.
    extra_turns: AtomicUsize,
    /// Number of turns that the NIC has run.
    turns: AtomicUsize,
    /// Whether a turn has been requested since the last one began.
    turn_requested: AtomicBool,
    woken: AtomicUsize,
    wakes: Option<Sender<()>>,
    log: Arc<Mutex<Vec<(String, u64, u32)>>>,
}

struct TestNicInner {
    port: FabricPort,
    start: Vec<(Instant, IpAddr, u32)>,
}

impl TestNic {
    fn turn(&self, mut inner: MutexGuard<'_, TestNicInner>) {
        let now = self.handle.fabric().now();
        let name = inner.port.info().name.clone();
        let mut responses = Vec::new();
        inner
            .port
            .receive(now, &mut |burst| {
                for (_, p) in burst.packets() {
                    let psn = Packet::parse(p).unwrap().bth().psn.get();
                    self.log.lock().push((name.clone(), now.0, psn));
                    responses.extend((psn > 0).then(|| (burst.flow.src, psn - 1)));
                }
            })
            .unwrap();
        responses.extend(inner.start.extract_if(.., |s| s.0 <= now).map(|(_, to, psn)| (to, psn)));
        for (to, psn) in responses {
            let q = queue(&inner.port, to, psn..psn + 1, 8);
            inner.port.transmit(now, &q).unwrap();
        }
    }
}

impl Driver for TestNic {
    fn try_drive(&self) -> bool {
        self.turn_requested.store(true, Ordering::SeqCst);
        while self.turn_requested.load(Ordering::SeqCst) {
            let Some(inner) = self.inner.try_lock() else { return false };
            self.turn_requested.store(false, Ordering::SeqCst);
            self.turn(inner);
        }
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.handle.kick();
        if self.extra_turns.load(Ordering::SeqCst) > 0 && self.handle.request_turn() {
            self.extra_turns.fetch_sub(1, Ordering::SeqCst);
        }
        true
    }

    fn try_receive_direct(&self, now: Instant, bursts: &mut BurstSource<'_>) -> bool {
        let accepts_direct = self.accepts_direct.load(Ordering::SeqCst);
        if accepts_direct {
            bursts(&mut |burst| {
                for (i, p) in burst.packets() {
                    assert!(icrc::verify(&burst.flow, burst.ident, i, p));
                    let psn = Packet::parse(p).unwrap().bth().psn.get();
                    self.log.lock().push(("direct".into(), now.0, psn));
                }
            });
        }
        accepts_direct
    }

    fn wake(&self) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        if let Some(wakes) = &self.wakes {
            let _ = wakes.send(());
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let inner = self.inner.lock();
        inner.start.iter().map(|s| s.0).chain(inner.port.next_deadline()).min()
    }
}

type Log = Arc<Mutex<Vec<(String, u64, u32)>>>;

fn test_nic(fabric: &Fabric, log: &Log, wakes: Option<Sender<()>>) -> Arc<TestNic> {
    let port = fabric.port(&fabric.auto_address()).unwrap();
    let test_nic = Arc::new(TestNic {
        handle: port.handle(),
        inner: Mutex::new(TestNicInner { port, start: Vec::new() }),
        accepts_direct: AtomicBool::new(false),
        extra_turns: AtomicUsize::new(0),
        turns: AtomicUsize::new(0),
        turn_requested: AtomicBool::new(false),
        woken: AtomicUsize::new(0),
        wakes,
        log: log.clone(),
    });
    let driver: Arc<dyn Driver> = test_nic.clone();
    test_nic.handle.attach(Arc::downgrade(&driver));
    test_nic
}

fn address(test_nic: &TestNic) -> IpAddr {
    test_nic.inner.lock().port.info().addresses[0]
}

#[test]
fn drivers_run_on_timers_and_on_input_in_virtual_time() {
    let fabric = Fabric::virtual_time(FabricConfig { latency: 10 * US, ..Default::default() }).unwrap();
    let log = Log::default();
    let (a, b) = (test_nic(&fabric, &log, None), test_nic(&fabric, &log, None));
    a.inner.lock().start.push((Instant(3_000), address(&b), 2));
    assert_eq!(fabric.step(), Some(Instant(3_000)));
    assert_eq!((fabric.run_until_idle(US), fabric.now()), (Outcome::Limit, Instant(4_000)));
    fabric.advance(14 * US);
    assert_eq!(fabric.now(), Instant(18_000));
    assert_eq!(fabric.run_until_idle(Duration::from_secs(1)), Outcome::Idle);
    let name = |n: u32| format!("fabric port {n}");
    let expected = [(name(2), 13_000, 2), (name(1), 23_000, 1), (name(2), 33_000, 0)];
    assert_eq!(*log.lock(), expected);
    assert_eq!(a.woken.load(Ordering::SeqCst), 0);
    assert_eq!(fabric.step(), None);
}

#[test]
fn sending_thread_runs_the_driver_of_the_receiver() {
    let fabric = Fabric::new();
    let log = Log::default();
    let (a, b) = (test_nic(&fabric, &log, None), test_nic(&fabric, &log, None));
    a.inner.lock().start.push((Instant(0), address(&b), 9));
    assert!(a.try_drive());
    let order: Vec<u32> = log.lock().iter().map(|(_, _, psn)| *psn).collect();
    assert_eq!(order, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(a.woken.load(Ordering::SeqCst) + b.woken.load(Ordering::SeqCst), 0);
}

#[test]
fn packets_are_delivered_directly_only_if_none_is_queued_at_the_port() {
    let fabric = Fabric::new();
    let log = Log::default();
    let (a, b) = (test_nic(&fabric, &log, None), test_nic(&fabric, &log, None));
    let send = |psn: u32| {
        let mut inner = a.inner.lock();
        let q = queue(&inner.port, address(&b), psn..psn + 1, 8);
        inner.port.transmit(fabric.now(), &q).unwrap();
    };
    let received =
        || -> Vec<(bool, u32)> { log.lock().iter().map(|(path, _, psn)| (path == "direct", *psn)).collect() };
    b.accepts_direct.store(true, Ordering::SeqCst);
    send(0);
    assert_eq!(received(), [(true, 0)]);
    b.accepts_direct.store(false, Ordering::SeqCst);
    send(0);
    b.accepts_direct.store(true, Ordering::SeqCst);
    send(0);
    assert_eq!(received(), [(true, 0)], "a packet must not pass a queued one");
    // B runs its turn and can receive packets directly again.
    a.handle.kick();
    assert_eq!(received(), [(true, 0), (false, 0), (false, 0)]);
    send(0);
    assert_eq!(received().last(), Some(&(true, 0)));
    assert_eq!(fabric.counters().carried, 4);
    // Never with latency in between, nor while the cable is unplugged.
    let slow = FabricConfig { latency: US, ..Default::default() };
    fabric.set_path(address(&a), address(&b), slow).unwrap();
    send(0);
    fabric.set_port_up(address(&b), false).unwrap();
    send(0);
    assert_eq!(received().len(), 4);
}

#[test]
fn driver_of_the_receiver_is_run_again_as_often_as_it_requests() {
    let fabric = Fabric::new();
    let log = Log::default();
    let (a, b) = (test_nic(&fabric, &log, None), test_nic(&fabric, &log, None));
    for test_nic in [&a, &b] {
        test_nic.extra_turns.store(2, Ordering::SeqCst);
    }
    a.inner.lock().start.push((Instant(0), address(&b), 0));
    assert!(a.try_drive());
    // A is outside of the kick and continues by itself.
    let counts = [&a, &b]
        .map(|test_nic| (test_nic.turns.load(Ordering::SeqCst), test_nic.extra_turns.load(Ordering::SeqCst)));
    assert_eq!(counts, [(1, 2), (3, 0)]);
}

#[test]
fn endless_responses_do_not_block_the_sending_thread() {
    let fabric = Fabric::new();
    let log = Log::default();
    let (a, b) = (test_nic(&fabric, &log, None), test_nic(&fabric, &log, None));
    a.inner.lock().start.push((Instant(0), address(&b), 1_000_000));
    assert!(a.try_drive());
    assert_eq!(log.lock().len(), 64);
    assert_eq!(a.woken.load(Ordering::SeqCst) + b.woken.load(Ordering::SeqCst), 1);
}

#[test]
fn run_until_idle_returns_stuck_if_a_driver_never_becomes_idle() {
    struct NeverIdle;
    impl Driver for NeverIdle {
        fn try_drive(&self) -> bool {
            false
        }
        fn wake(&self) {}
        fn next_deadline(&self) -> Option<Instant> {
            Some(Instant(5))
        }
    }
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let port = fabric.port(&fabric.auto_address()).unwrap();
    let handle = port.handle();
    let driver: Arc<dyn Driver> = Arc::new(NeverIdle);
    handle.attach(Arc::downgrade(&driver) as Weak<dyn Driver>);
    assert_eq!(fabric.run_until_idle(US), Outcome::Stuck(Instant(5)));
}

#[test]
fn threads_wake_each_other_for_packets_that_latency_has_delayed() {
    let fabric = Fabric::with_config(FabricConfig { latency: 200 * US, ..Default::default() }).unwrap();
    let log = Log::default();
    let mut threads = Vec::new();
    let mut nics = Vec::new();
    for _ in 0..2 {
        let (tx, rx) = channel();
        let test_nic = test_nic(&fabric, &log, Some(tx));
        nics.push(test_nic.clone());
        threads.push(std::thread::spawn(move || {
            while test_nic.log.lock().last().is_none_or(|l| l.2 > 0) {
                let wait = match test_nic.next_deadline() {
                    Some(at) => at.since(test_nic.handle.fabric().now()),
                    None => Duration::from_millis(20),
                };
                if wait.is_zero() || rx.recv_timeout(wait).is_err() {
                    test_nic.try_drive();
                }
            }
        }));
    }
    let (to, started) = (address(&nics[1]), fabric.now());
    nics[0].inner.lock().start.push((Instant(0), to, 19));
    nics[0].wake();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(log.lock().len(), 20);
    let elapsed = fabric.now().since(started);
    assert!(elapsed >= 20 * 200 * US, "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
}

#[test]
fn all_input_is_processed_when_many_threads_drive_the_nics() {
    let fabric = Fabric::new();
    let log = Log::default();
    let mut nics = Vec::new();
    for _ in 0..4 {
        let (tx, rx) = channel();
        let test_nic = test_nic(&fabric, &log, Some(tx));
        let driven = Arc::downgrade(&test_nic);
        nics.push(test_nic);
        // No timeout: a lost wake-up would block forever.
        std::thread::spawn(move || {
            while rx.recv().is_ok() {
                let Some(test_nic) = driven.upgrade() else { return };
                test_nic.try_drive();
            }
        });
    }
    let addresses: Vec<IpAddr> = nics.iter().map(|t| address(t)).collect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (nics, addresses) = (&nics, &addresses);
            scope.spawn(move || {
                for i in 0..300 {
                    let (from, to) = ((i + thread) % 4, (i * 3 + thread + 1) % 4);
                    let start = (Instant(0), addresses[to], 100);
                    nics[from].inner.lock().start.push(start);
                    nics[from].try_drive();
                }
            });
        }
    });
    let end = std::time::Instant::now() + Duration::from_secs(20);
    let done = || log.lock().iter().filter(|l| l.2 == 0).count();
    while done() < 900 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(done(), 900);
    assert_eq!(log.lock().len(), 900 * 101);
}

#[test]
fn no_packets_are_lost_between_a_sending_and_a_receiving_thread() {
    let fabric = Fabric::new();
    let mut a = fabric.port(&fabric.auto_address()).unwrap();
    let mut b = fabric.port(&fabric.auto_address()).unwrap();
    let to = b.info().addresses[0];
    let sender = fabric.clone();
    let thread = std::thread::spawn(move || {
        for n in 0..1000 {
            let q = queue(&a, to, n * 20..(n + 1) * 20, 64);
            a.transmit(sender.now(), &q).unwrap();
        }
    });
    let mut received = Vec::new();
    while received.len() < 20_000 {
        received.extend(psns(&read(&mut b, fabric.now())));
    }
    thread.join().unwrap();
    assert_eq!(received, (0..20_000).collect::<Vec<_>>());
}
