//! Snapshots of queue pairs, and the server of a NIC's state.

use std::time::Duration;

use urxe::middleware::faults::Rule;
use urxe::verbs::live::{LiveServer, NicSnapshot, QpSnapshot, find};
use urxe::verbs::*;

const LIMIT: Duration = Duration::from_secs(10);

fn snapshot(context: &Context) -> NicSnapshot {
    context.downgrade().snapshot("urxe0", Vec::new(), LIMIT).expect("the device is open")
}

fn qp_of(end: &TestEndpoint) -> QpSnapshot {
    let all = snapshot(&end.context);
    assert!(all.is_complete && all.is_up);
    all.qps.into_iter().find(|qp| qp.qpn == end.qp.qpn().get()).expect("the QP exists")
}

/// Returns two connected queue pairs in virtual time, of which the first one's NIC has a fault.
fn pair(service: QpType, fault: &str) -> (Fabric, TestEndpoint, TestEndpoint) {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let rule: Rule = fault.parse().unwrap();
    let options = QpOptions::default().qp_type(service);
    let (a, b) = fabric.pair_builder().qp(options).faults([rule]).build().unwrap();
    (fabric, a, b)
}

#[test]
fn loss_on_an_unreliable_connection_is_counted_at_the_receiver() {
    let (fabric, a, b) = pair(QpType::Uc, "drop=2");
    let (source, target) =
        (a.pd.reg_mr(16384, Access::LOCAL_WRITE).unwrap(), b.pd.reg_mr(16384, Access::ALL).unwrap());
    for wr_id in 0..3 {
        b.qp.post_recv(&RecvWr::new(wr_id, &[target.sge(0..16384)])).unwrap();
    }
    a.qp.post_send(&SendWr::send(1, &[source.sge(0..16384)])).unwrap();
    fabric.advance(Duration::from_secs(2));
    let (sender, receiver) = (qp_of(&a), qp_of(&b));
    assert_eq!((receiver.service.as_str(), receiver.state.as_str()), ("UC", "RTS"));
    assert_eq!(receiver.counters.rx_missing, 1);
    assert!(receiver.counters.rx_dropped_message > 0);
    assert!(receiver.has_incomplete_receive && !receiver.is_receiving);
    assert_eq!(receiver.posted_receives, 2, "one is taken by the incomplete message");
    assert!(receiver.last_received >= Some(1_000_000_000));
    assert_eq!((sender.posted_sends, sender.outstanding), (0, 0));
    assert_eq!(sender.counters.sent_pkts, receiver.counters.rcvd_pkts + 1);
    assert_eq!(sender.next_psn, receiver.expected_psn);
    let peer = receiver.peer.unwrap();
    assert_eq!((peer.qpn, Some(peer.address)), (sender.qpn, a.context.address()));
}

#[test]
fn retries_of_a_silent_peer_are_counted_and_the_failure_has_its_cause() {
    let (fabric, a, _b) = pair(QpType::Rc, "drop=1..");
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    fabric.advance(Duration::from_millis(100));
    let waiting = qp_of(&a);
    assert_eq!((waiting.posted_sends, waiting.outstanding, waiting.unsent), (1, 1, 0));
    assert!(waiting.retries_left < waiting.retry_cnt && waiting.failure.is_none(), "{waiting:#?}");
    fabric.advance(Duration::from_secs(60));
    let failed = qp_of(&a);
    assert_eq!((failed.state.as_str(), failed.posted_sends), ("ERR", 0));
    assert!(failed.failure.unwrap().contains("did not respond"));
    assert_eq!(failed.counters.local_ack_timeout_err, a.context.counters().local_ack_timeout_err);
    assert_eq!(failed.counters.retransmitted_pkts, a.context.counters().retransmitted_pkts);
    assert!(failed.events.iter().any(|event| event.contains("ACK timeout")), "{:?}", failed.events);
}

#[test]
fn counters_of_a_queue_pair_survive_its_reset() {
    let (fabric, a, _b) = pair(QpType::Rc, "drop=1..");
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    fabric.advance(Duration::from_secs(60));
    let before = qp_of(&a).counters;
    a.qp.modify(&QpAttr::new(QpState::Reset)).unwrap();
    let after = qp_of(&a);
    assert_eq!((after.counters, after.state.as_str(), after.failure), (before, "RESET", None));
}

#[test]
fn server_answers_while_the_nic_is_open_and_its_socket_is_gone_afterwards() {
    let device = format!("live{}", std::process::id());
    let found = || {
        let all = find(LIMIT).into_iter().filter(|nic| nic.pid == std::process::id());
        let states = all.filter_map(|nic| nic.state.ok());
        states.filter(|state| state.device == device).collect::<Vec<_>>()
    };
    let (a, _b) = Fabric::new().pair().unwrap();
    let server = LiveServer::start(&a.context, &device, Vec::new).unwrap();
    let states = found();
    assert_eq!(states.len(), 1);
    assert_eq!(states[0].addresses, a.context.gids().iter().map(|gid| gid.ip()).collect::<Vec<_>>());
    assert!(states[0].qps.iter().any(|qp| qp.qpn == a.qp.qpn().get()));
    drop(server);
    assert_eq!(found(), []);
}
