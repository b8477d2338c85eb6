//! Two senders and one receiver on a fabric in virtual time that marks packets: the marks become CNPs, and
//! with DCQCN the queue stays short. Needs nothing.

use std::time::Duration;

use urxe::verbs::*;
use urxe_test_support::nic::connect;

/// Length of a WRITE in bytes.
const LEN: usize = 256 << 10;
/// Number of WRITEs that a sender has in flight.
const DEPTH: usize = 4;
const TEN_GIGABIT: u64 = 10_000_000_000;
/// Queue length above which packets are marked: 80 µs at 10 Gb/s.
const MARKED_ABOVE: usize = 100_000;

struct Report {
    senders: [Counters; 2],
    receiver: Counters,
    /// Bytes that each sender transferred.
    bytes: [usize; 2],
    /// Longest time that WRITEs of 8 bytes of a third sender took.
    latency: Duration,
}

/// Lets two senders transfer as much as they can for 20 ms, and a third one measure latencies, all from 20 ms
/// on.
fn congest(control: Congestion, receiver: Personality) -> Report {
    let config = FabricConfig::default()
        .bandwidth(TEN_GIGABIT)
        .latency(Duration::from_micros(2))
        .ecn_threshold(MARKED_ABOVE)
        .seed(7);
    let fabric = Fabric::virtual_time(config).unwrap();
    let options = ContextOptions::default().congestion(control);
    let open = |options: &ContextOptions| TestEndpoint::new(fabric.open(options).unwrap()).unwrap();
    let senders = [(); 3].map(|()| open(&options));
    let target = fabric.open(&options.personality(receiver)).unwrap();
    let ends = senders.each_ref().map(|sender| {
        let end = TestEndpoint::new(target.clone()).unwrap();
        connect(&sender.qp, &end.qp);
        (sender.pd.reg_mr(LEN, Access::ALL).unwrap(), end.pd.reg_mr(LEN, Access::ALL).unwrap(), end)
    });
    let post = |n: usize, len: usize| {
        let (from, to, _) = &ends[n];
        senders[n].qp.post_send(&SendWr::write(1, &[from.sge(0..len)], to.remote(0))).unwrap();
    };
    let (begin, warm_up, end) = (fabric.now(), Duration::from_millis(20), Duration::from_millis(40));
    (0..2).for_each(|n| (0..DEPTH).for_each(|_| post(n, LEN)));
    let (mut bytes, mut latency, mut probe, mut done) = ([0; 2], Duration::ZERO, None, Vec::new());
    while fabric.now().since(begin) < end {
        fabric.advance(Duration::from_micros(5));
        let now = fabric.now();
        let is_measured = now.since(begin) >= warm_up;
        for (n, sender) in senders.iter().enumerate() {
            done.clear();
            sender.cq.poll(64, &mut done).unwrap();
            assert!(done.iter().all(|c| c.status == WcStatus::Success), "{done:?}");
            if n < 2 {
                bytes[n] += if is_measured { done.len() * LEN } else { 0 };
                done.iter().for_each(|_| post(n, LEN));
            } else if let Some(posted) = probe.take_if(|_| !done.is_empty()) {
                latency = latency.max(now.since(posted));
            }
        }
        if is_measured && probe.is_none() {
            post(2, 8);
            probe = Some(now);
        }
    }
    let [a, b, _] = senders.each_ref().map(|sender| sender.context.counters());
    let report = Report { senders: [a, b], receiver: target.counters(), bytes, latency };
    println!(
        "{control}, receiver {}: {} packets marked, {} CNPs, {:?} bytes, latency {:?}",
        receiver.name,
        report.receiver.np_ecn_marked_roce_packets,
        report.receiver.np_cnp_sent,
        report.bytes,
        report.latency
    );
    report
}

fn retransmissions(report: &Report) -> u64 {
    report.senders.iter().map(|c| c.retransmitted_pkts).sum()
}

#[test]
fn marks_become_cnps_that_keep_the_queue_short_and_the_link_busy() {
    let marked = congest("dcqcn:sigcomm15".parse().unwrap(), Personality::DEFAULT);
    let handled: u64 = marked.senders.iter().map(|c| c.rp_cnp_handled).sum();
    assert!(marked.senders.iter().all(|c| c.rp_cnp_handled > 0 && c.rp_cnp_ignored == 0));
    // Those of the third sender, and those on their way.
    assert!(handled <= marked.receiver.np_cnp_sent, "{handled} of {}", marked.receiver.np_cnp_sent);
    assert!(marked.receiver.np_cnp_sent <= marked.receiver.np_ecn_marked_roce_packets);
    assert_eq!(retransmissions(&marked), 0);
    let all: usize = marked.bytes.iter().sum();
    // 20 ms at 10 Gb/s are 25 MB, with headers.
    assert!(all > 20_000_000, "{all} bytes");
    assert!(marked.bytes.iter().all(|bytes| bytes * 3 > all), "unfair: {:?}", marked.bytes);
    // Without a reaction, the windows of the senders fill the queue.
    for (control, receiver) in [("loss-driven", Personality::DEFAULT), ("dcqcn:sigcomm15", Personality::RXE)]
    {
        let other = congest(control.parse().unwrap(), receiver);
        assert_eq!(other.senders.iter().map(|c| c.rp_cnp_handled).sum::<u64>(), 0);
        assert!(other.latency > 3 * marked.latency, "{:?}, with DCQCN {:?}", other.latency, marked.latency);
    }
}

#[test]
fn packets_that_are_not_ecn_capable_are_never_marked() {
    let report = congest(Congestion::LOSS_DRIVEN, Personality::DEFAULT);
    assert_eq!((report.receiver.np_ecn_marked_roce_packets, report.receiver.np_cnp_sent), (0, 0));
}
