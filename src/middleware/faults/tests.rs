//! Fault injection on fabric ports: which packets each kind of rule affects, and how, in either direction.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::pipeline::REORDER_TIMEOUT;
use super::*;
use crate::fabric::{Fabric, FabricConfig, FabricPort};
use crate::fault_rules::write_icrc;
use crate::wire::{Bth, Ecn, Flow, Headers, NakCode, Opcode, Packet, Psn, Qpn, RnrTimer, Syndrome, icrc};

/// Returns the PSNs of all packets received, negated if the packet's ICRC is invalid.
fn read(link: &mut dyn Link, now: Instant) -> Vec<i64> {
    let mut received = Vec::new();
    link.receive(now, &mut |burst| {
        for (i, bytes) in burst.packets() {
            let psn = Packet::parse(bytes).unwrap().bth().psn.get() as i64;
            received.push(if icrc::verify(&burst.flow, burst.ident, i, bytes) { psn } else { -psn });
        }
    })
    .unwrap();
    received
}

fn send(from: &mut dyn Link, to: &dyn Link, now: Instant, psns: std::ops::Range<u32>) {
    let flow = Flow::new(from.info().addresses[1], to.info().addresses[1], 50_000);
    let mut q = TxQueue::new(from.info().burst);
    for psn in psns {
        let bth = Bth { opcode: Opcode(0x04), psn: Psn::new(psn), ..Bth::default() };
        q.push(&flow, Headers { bth, ..Headers::default() }, &[psn as u8; 33]);
    }
    from.transmit(now, &q).unwrap();
}

fn pair() -> (Fabric, FabricPort, FabricPort) {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let a = fabric.port(&fabric.auto_address()).unwrap();
    let b = fabric.port(&fabric.auto_address()).unwrap();
    (fabric, a, b)
}

/// Returns a pair of ports with a rule, at the first port for sent packets, at the second for received ones.
fn pair_with(rule: &str) -> (Fabric, Box<dyn Link>, Box<dyn Link>) {
    let (fabric, a, b) = pair();
    let rule: Rule = rule.parse().unwrap();
    match rule.direction {
        Direction::Tx => (fabric, Box::new(Faults::new(a, vec![rule], 0)), Box::new(b)),
        Direction::Rx => (fabric, Box::new(a), Box::new(Faults::new(b, vec![rule], 0))),
    }
}

/// Sends packets with PSNs 1 to `n` in one queue and returns the PSNs received. Asserts that the result does
/// not depend on whether `rules` apply at the sender or at the receiver.
fn received_with(rules: &[&str], n: u32) -> Vec<i64> {
    let both = [Direction::Tx, Direction::Rx].map(|direction| {
        let rules = rules.iter().map(|r| format!("{direction}:{r}").parse().unwrap()).collect();
        let (_fabric, a, b) = pair();
        let now = Instant(0);
        if direction == Direction::Tx {
            let (mut a, mut b) = (Faults::new(a, rules, 1), b);
            send(&mut a, &b, now, 1..n + 1);
            read(&mut b, now)
        } else {
            let (mut a, mut b) = (a, Faults::new(b, rules, 1));
            send(&mut a, &b, now, 1..n + 1);
            read(&mut b, now)
        }
    });
    assert_eq!(both[0], both[1], "the rules must apply alike at sender and receiver");
    both[0].clone()
}

#[test]
fn each_fault_action_applies_only_to_the_packets_that_its_rule_matches() {
    assert_eq!(received_with(&[], 4), [1, 2, 3, 4]);
    assert_eq!(received_with(&["drop=3"], 6), [1, 2, 4, 5, 6]);
    assert_eq!(received_with(&["drop=1"], 3), [2, 3]);
    assert_eq!(received_with(&["drop=every:2"], 6), [1, 3, 5]);
    assert!(received_with(&["drop=every:1"], 6).is_empty());
    assert_eq!(received_with(&["dup=every:3"], 6), [1, 2, 3, 3, 4, 5, 6, 6]);
    assert_eq!(received_with(&["reorder=every:3"], 8), [1, 2, 4, 3, 5, 7, 6, 8]);
    assert_eq!(received_with(&["corrupt=every:2"], 5), [1, -2, 3, -4, 5]);
    assert_eq!(received_with(&["drop=2,psn=3"], 5), [1, 2, 3, 4, 5]);
    assert_eq!(received_with(&["drop=1,psn=3", "drop=1,psn=0x4"], 5), [1, 2, 5]);
    assert_eq!(received_with(&["drop=1,opcode=0x0a"], 3), [1, 2, 3]);
    assert_eq!(received_with(&["drop=3..5"], 7), [1, 2, 6, 7]);
    assert_eq!(received_with(&["drop=3.."], 7), [1, 2]);
    assert_eq!(received_with(&["drop=1..,psn=3..0x4"], 6), [1, 2, 5, 6]);
    assert_eq!(received_with(&["drop=1..,psn=5..2"], 6), [3, 4]);
    assert!(received_with(&["drop=1..,opcode=ack|send"], 3).is_empty());
    assert_eq!(received_with(&["drop=1..,opcode=ack|write"], 3), [1, 2, 3]);
    assert_eq!(received_with(&["dup=2,copies=3"], 3), [1, 2, 2, 2, 2, 3]);
    assert_eq!(received_with(&["dup=2,copies=0"], 3), [1, 2, 3]);
    assert_eq!(received_with(&["mark=2"], 3), [1, 2, 3]);
    assert_eq!(received_with(&["corrupt=2,at=psn,xor=0x40"], 3), [1, -66, 3]);
    assert_eq!(received_with(&["corrupt=2,at=psn,xor=0x40,icrc=repair"], 3), [1, 66, 3]);
    assert_eq!(received_with(&["corrupt=2,at=payload,icrc=repair"], 3), [1, 2, 3]);
    assert_eq!(received_with(&["corrupt=2,at=20"], 3), [1, -2, 3]);
    assert_eq!(received_with(&["dup=2", "corrupt=2"], 3), [1, -2, -2, 3]);
    assert_eq!(received_with(&["reorder=1", "reorder=2"], 3), [2, 1, 3]);
    let altered = |first: &str, second: &str| {
        received_with(&[&format!("corrupt=2,at=psn,{first}"), &format!("corrupt=2,at=psn,{second}")], 3)
    };
    assert_eq!(altered("xor=0x40,icrc=repair", "xor=0x08,icrc=repair"), [1, 0x4a, 3]);
    assert_eq!(altered("xor=0x40", "xor=0x08,icrc=repair"), [1, 0x4a, 3]);
    assert_eq!(altered("xor=0x40,icrc=repair", "xor=0x08"), [1, -0x4a, 3]);
}

#[test]
fn random_faults_repeat_with_the_same_seed() {
    let lost = |n| n - received_with(&["drop=p:0.1"], n).len() as u32;
    assert_eq!(lost(200), lost(200));
    assert!((5..40).contains(&lost(200)), "{}", lost(200));
}

#[test]
fn filters_by_address_and_mark_see_the_ip_header() {
    let (_fabric, a, mut b) = pair();
    let [from, to] = [&a as &dyn Link, &b].map(|link| link.info().addresses[1]);
    let rules = [
        format!("dup=1,from={from}"),
        format!("dup=1,from={to}"),
        format!("dup=2,to={to}"),
        format!("dup=1,to={from}"),
        "dup=3,ecn=not-ect".into(),
        "dup=1,ecn=ce".into(),
    ];
    let mut a = Faults::new(a, rules.map(|r| r.parse().unwrap()).to_vec(), 0);
    send(&mut a, &b, Instant(0), 1..4);
    assert_eq!(read(&mut b, Instant(0)), [1, 1, 2, 2, 3, 3]);
    let matched: Vec<u64> = a.fault_counters().rules().map(|rule| rule.matched).collect();
    assert_eq!(matched, [3, 0, 3, 0, 3, 0]);
}

#[test]
fn time_window_counts_from_the_opening_of_the_link() {
    let (_fabric, a, mut b) = pair();
    let mut a = Faults::new(a, vec!["drop=1..,time=2us..5us".parse().unwrap()], 0);
    a.on_nic_event(Instant(10_000), &NicEvent::Opened);
    for (at, received) in [(11_999, vec![1]), (12_000, vec![]), (14_999, vec![]), (15_000, vec![1])] {
        send(&mut a, &b, Instant(at), 1..2);
        assert_eq!(read(&mut b, Instant(at)), received, "at {at} ns");
    }
}

#[test]
fn delayed_packet_is_delivered_at_its_deadline() {
    for direction in ["tx", "rx"] {
        let rule = format!("{direction}:delay=2,by=3us");
        let (_fabric, mut a, mut b) = pair_with(&rule);
        send(&mut a, &b, Instant(0), 1..4);
        assert_eq!(read(&mut b, Instant(0)), [1, 3]);
        assert_eq!(a.next_deadline().or(b.next_deadline()), Some(Instant(3000)));
        read(&mut a, Instant(3000));
        assert_eq!(read(&mut b, Instant(3000)), [2]);
        assert_eq!(a.next_deadline().or(b.next_deadline()), None);
    }
}

#[test]
fn delays_add_up_and_a_delayed_packet_is_reordered_after_its_delay() {
    for direction in ["tx", "rx"] {
        let rules = ["delay=1,by=2us", "delay=1,by=1us", "reorder=1"];
        let rules = rules.map(|rule| format!("{direction}:{rule}").parse().unwrap()).to_vec();
        let (_fabric, a, b) = pair();
        let (mut a, mut b): (Box<dyn Link>, Box<dyn Link>) = match direction {
            "tx" => (Box::new(Faults::new(a, rules, 0)), Box::new(b)),
            _ => (Box::new(a), Box::new(Faults::new(b, rules, 0))),
        };
        send(&mut a, &b, Instant(0), 1..3);
        assert_eq!(read(&mut b, Instant(0)), [2], "{direction}");
        assert_eq!(a.next_deadline().or(b.next_deadline()), Some(Instant(3000)));
        read(&mut a, Instant(3000));
        assert!(read(&mut b, Instant(3000)).is_empty());
        let timeout = Instant(3000) + REORDER_TIMEOUT;
        assert_eq!(a.next_deadline().or(b.next_deadline()), Some(timeout));
        send(&mut a, &b, Instant(4000), 3..5);
        assert_eq!(read(&mut b, Instant(4000)), [3, 1, 4]);
    }
}

#[test]
fn every_replay_of_a_packet_takes_place() {
    let (_fabric, a, mut b) = pair();
    let rules = ["replay=1,by=3us", "replay=1,by=1us"].map(|rule| rule.parse().unwrap()).to_vec();
    let mut a = Faults::new(a, rules, 0);
    send(&mut a, &b, Instant(0), 1..3);
    assert_eq!(read(&mut b, Instant(0)), [1, 2]);
    for at in [1000, 3000] {
        assert_eq!(a.next_deadline(), Some(Instant(at)));
        read(&mut a, Instant(at));
        assert_eq!(read(&mut b, Instant(at)), [1]);
    }
    assert_eq!(a.next_deadline(), None);
}

#[test]
fn replayed_packet_arrives_at_once_and_again_at_its_deadline() {
    let (_fabric, a, mut b) = pair();
    let mut a = Faults::new(a, vec!["replay=2,by=3us".parse().unwrap()], 0);
    send(&mut a, &b, Instant(0), 1..4);
    assert_eq!(read(&mut b, Instant(0)), [1, 2, 3]);
    read(&mut a, Instant(2999));
    assert!(read(&mut b, Instant(2999)).is_empty());
    assert_eq!(a.next_deadline(), Some(Instant(3000)));
    read(&mut a, Instant(3000));
    assert_eq!(read(&mut b, Instant(3000)), [2]);
    assert_eq!(a.fault_counters().get(Direction::Tx), FaultCounts { replayed: 1, ..Default::default() });
}

#[test]
fn marked_packet_carries_congestion_experienced_and_a_valid_icrc() {
    for direction in ["tx", "rx"] {
        let rule = format!("{direction}:mark=2");
        let (_fabric, mut a, mut b) = pair_with(&rule);
        send(&mut a, &b, Instant(0), 1..4);
        let mut marks = Vec::new();
        b.receive(Instant(0), &mut |burst| {
            for (i, bytes) in burst.packets() {
                assert!(icrc::verify(&burst.flow, burst.ident, i, bytes));
                marks.push(burst.flow.ecn());
            }
        })
        .unwrap();
        assert_eq!(marks, [Ecn::NotEct, Ecn::Ce, Ecn::NotEct], "{direction}");
    }
}

#[test]
fn alteration_of_a_missing_byte_matches_no_packet() {
    let (_fabric, a, mut b) = pair();
    let rules = ["corrupt=1,at=imm", "corrupt=1,at=rkey", "corrupt=1,at=48", "corrupt=1,at=47"];
    let mut a = Faults::new(a, rules.map(|r| r.parse().unwrap()).to_vec(), 0);
    send(&mut a, &b, Instant(0), 1..2);
    assert_eq!(read(&mut b, Instant(0)), [-1]);
    let matched: Vec<u64> = a.fault_counters().rules().map(|rule| rule.matched).collect();
    assert_eq!(
        matched,
        [0, 0, 0, 1],
        "the packet has 12 bytes of BTH, 36 of payload with padding, and an ICRC"
    );
}

/// Returns destination, PSN, syndrome and MSN of the acknowledgements received, all with a valid ICRC.
fn read_acks(link: &mut dyn Link, now: Instant) -> Vec<(u32, u32, Syndrome, u32)> {
    let mut received = Vec::new();
    link.receive(now, &mut |burst| {
        for (i, bytes) in burst.packets() {
            let packet = Packet::parse(bytes).unwrap();
            assert!(icrc::verify(&burst.flow, burst.ident, i, bytes));
            let (bth, aeth) = (packet.bth(), packet.aeth().unwrap());
            received.push((bth.dest_qp.get(), bth.psn.get(), aeth.syndrome, aeth.msn));
        }
    })
    .unwrap();
    received
}

/// QP 0 of `to` is connected with QP 5 of `from`.
fn connected(link: &mut dyn Link, from: IpAddr, to: IpAddr) {
    let is_requester = link.info().addresses.contains(&from);
    let (local, remote) = if is_requester { (5, 0) } else { (0, 5) };
    let peer = if is_requester { to } else { from };
    // One side has faults.
    if let Some(observer) = link.nic_observer() {
        let event = NicEvent::Connected { local: Qpn::new(local), remote: Qpn::new(remote), peer };
        observer.on_nic_event(Instant(0), &event);
    }
}

#[test]
fn nak_answers_the_request_and_discards_what_follows_until_it_is_sent_again() {
    for direction in ["tx", "rx"] {
        let rule = format!("{direction}:nak=access@3");
        let (_fabric, mut a, mut b) = pair_with(&rule);
        let [from, to] = [&a, &b].map(|link| link.info().addresses[1]);
        connected(&mut a, from, to);
        connected(&mut b, from, to);
        send(&mut a, &b, Instant(0), 1..6);
        assert_eq!(read(&mut b, Instant(0)), [1, 2], "{direction}");
        let nak = Syndrome::Nak(NakCode::RemoteAccessError);
        assert_eq!(read_acks(&mut a, Instant(0)), [(5, 3, nak, 2)]);
        send(&mut a, &b, Instant(0), 4..6);
        assert!(read(&mut b, Instant(0)).is_empty());
        send(&mut a, &b, Instant(0), 3..6);
        assert_eq!(read(&mut b, Instant(0)), [3, 4, 5]);
        assert!(read_acks(&mut a, Instant(0)).is_empty());
    }
}

#[test]
fn new_connection_ends_the_discarding_of_requests() {
    let (_fabric, a, mut b) = pair();
    let [from, to] = [&a as &dyn Link, &b].map(|link| link.info().addresses[1]);
    let mut a = Faults::new(a, vec!["nak=operation@1".parse().unwrap()], 0);
    for received in [vec![], vec![2, 3]] {
        connected(&mut a, from, to);
        send(&mut a, &b, Instant(0), if received.is_empty() { 1..4 } else { 2..4 });
        assert_eq!(read(&mut b, Instant(0)), received);
    }
}

#[test]
fn rnr_nak_of_an_unknown_connection_is_not_sent_and_counts_as_not_applied() {
    let (_fabric, a, mut b) = pair();
    let mut a = Faults::new(a, vec!["rnr=12".parse().unwrap()], 0);
    let counters = a.fault_counters();
    send(&mut a, &b, Instant(0), 1..3);
    assert_eq!(read(&mut b, Instant(0)), [1, 2]);
    let count = |counters: &FaultCounters| counters.rules().map(|r| (r.matched, r.struck)).next().unwrap();
    assert_eq!(count(&counters), (2, 0));
    let [from, to] = [&a as &dyn Link, &b].map(|link| link.info().addresses[1]);
    connected(&mut a, from, to);
    send(&mut a, &b, Instant(0), 3..4);
    assert_eq!(read_acks(&mut a, Instant(0)), [(5, 3, Syndrome::RnrNak(RnrTimer::new(12)), 0)]);
    assert_eq!((count(&counters), counters.get(Direction::Tx).answered), ((3, 1), 1));
}

#[test]
fn reordered_packet_is_held_back_until_the_next_packet_or_the_timeout() {
    let (_fabric, a, mut b) = pair();
    let mut a = Faults::new(a, vec!["reorder=every:2".parse().unwrap()], 0);
    send(&mut a, &b, Instant(0), 1..3);
    assert_eq!(read(&mut b, Instant(0)), [1]);
    send(&mut a, &b, Instant(10), 3..5);
    assert_eq!(read(&mut b, Instant(10)), [3, 2]);
    let until = a.next_deadline().unwrap();
    assert_eq!(until, Instant(10) + REORDER_TIMEOUT);
    read(&mut a, until);
    assert_eq!(read(&mut b, until), [4]);
}

#[test]
fn faults_are_counted_and_reported_to_the_observer() {
    let (_fabric, a, mut b) = pair();
    let observed = Arc::new(Mutex::new(Vec::new()));
    let log = observed.clone();
    let rules = ["drop=every:2", "dup=3"].map(|r| r.parse().unwrap()).to_vec();
    let mut a = Faults::new(a, rules, 0).with_observer(move |e| {
        let psn = Packet::parse(&e.packet).unwrap().bth().psn.get();
        log.lock().push(format!("{} #{} psn {psn}", e.rule, e.count));
    });
    let counters = a.fault_counters();
    send(&mut a, &b, Instant(0), 1..5);
    assert_eq!(read(&mut b, Instant(0)), [1, 3, 3]);
    assert_eq!(*observed.lock(), ["drop=every:2 #2 psn 2", "dup=3 #3 psn 3", "drop=every:2 #4 psn 4"]);
    let expected = FaultCounts { dropped: 2, duplicated: 1, ..Default::default() };
    assert_eq!(counters.get(Direction::Tx), expected);
    assert_eq!(counters.get(Direction::Rx), FaultCounts::default());
    let [drop, dup]: [FaultCount; 2] = FaultCounters::sum([&counters, &counters]).try_into().unwrap();
    assert_eq!(drop, FaultCount { rule: "drop=every:2".into(), matched: 8, struck: 4, kind: "packet" });
    assert_eq!(dup.to_string(), "fault dup=3: matched 8 packets, affected 2");
    assert_eq!(dup.warning(), None);
    let never = FaultCount { matched: 0, ..drop };
    let warning = "warning: fault rule 'drop=every:2' matched no packet and had no effect";
    assert_eq!(never.warning().as_deref(), Some(warning));
}

/// Port whose received packets have the identifications of a counter and do not show them, as those of a UDP
/// socket whose peer is rxe.
struct HiddenCounter {
    inner: FabricPort,
    next: u16,
}

impl Link for HiddenCounter {
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.inner.transmit(now, queue)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        self.inner.receive(now, &mut |burst| {
            let mut data = burst.data.to_vec();
            for packet in data.chunks_mut(burst.segment) {
                write_icrc(&burst.flow, self.next, IpIdent::DONT_FRAGMENT, packet);
                self.next += 1;
            }
            sink(RxBurst { ident: IpIdent::Unknown, data: &data, ..burst });
        })
    }

    delegate_link_methods!(self => self.inner, HostMemory::with_icrcs);
}

#[test]
fn icrc_stays_correct_with_identifications_that_the_link_does_not_show_unless_the_fault_corrupts_it() {
    let repaired = "corrupt=2,at=psn,xor=0x70,icrc=repair";
    for (rule, expected) in [
        ("mark=every:2", vec![1, 2, 3, 4, 5]),
        ("drop=2", vec![1, 3, 4, 5]),
        ("dup=2", vec![1, 2, 2, 3, 4, 5]),
        ("reorder=2", vec![1, 3, 2, 4, 5]),
        ("delay=2,by=1ms", vec![1, 3, 4, 5, 2]),
        ("replay=2,by=1ms", vec![1, 2, 3, 4, 5, 2]),
        ("corrupt=every:2", vec![1, -2, 3, -4, 5]),
        (repaired, vec![1, 0x72, 3, 4, 5]),
    ] {
        let (_fabric, mut a, b) = pair();
        let b = HiddenCounter { inner: b, next: 0x1234 };
        let mut b = Faults::new(b, vec![format!("rx:{rule}").parse().unwrap()], 0);
        send(&mut a, &b, Instant(0), 1..6);
        let received = [0, 1_000_000].map(|at| read(&mut b, Instant(at)));
        assert_eq!(received.concat(), expected, "{rule}");
    }
}

#[test]
fn bursts_without_faults_are_passed_on_whole() {
    let (_fabric, a, b) = pair();
    let mut a = Faults::new(a, vec!["drop=1000".parse().unwrap()], 0);
    let mut b = Faults::new(b, vec!["rx:drop=1000".parse().unwrap()], 0);
    send(&mut a, &b, Instant(0), 0..50);
    let mut bursts = Vec::new();
    b.receive(Instant(0), &mut |r| bursts.push(r.packets().count())).unwrap();
    assert_eq!(bursts, [50]);
}
