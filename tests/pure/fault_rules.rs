//! Tests of fault rules between NICs and connection managers on a fabric in virtual time: what the verbs
//! program at either end observes.

use std::time::Duration;

use urxe::link::Link;
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::middleware::faults::{Direction, Faults, Rule};
use urxe::verbs::cm::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;
use urxe_test_support::connections::*;
use urxe_test_support::nic::{self, Nic};

const LEN: usize = 64;

/// Returns two connected NICs with a region each. The rules apply to the first NIC, and its region is
/// filled with 0x11.
fn pair(rules: &[&str], options: ConnectOptions) -> (Fabric, [TestEndpoint; 2], [Mr; 2]) {
    let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let fabric = virtual_fabric(slow());
    let (a, b) = fabric.pair_builder().connect(options).faults(rules).build().unwrap();
    let regions = [&a, &b].map(|end| end.pd.reg_mr(LEN, Access::ALL).unwrap());
    regions[0].write(0, &[0x11; LEN]).unwrap();
    (fabric, [a, b], regions)
}

fn status(end: &TestEndpoint) -> WcStatus {
    match end.cq.wait(LONG_TIMEOUT) {
        Ok(wc) => wc.status,
        Err(WaitError::Failed(wc)) => wc.status,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn nak_of_choice_fails_the_work_request_and_leaves_the_responder_unharmed() {
    let codes = [
        ("invalid-request", WcStatus::RemInvReqErr),
        ("access", WcStatus::RemAccessErr),
        ("operation", WcStatus::RemOpErr),
    ];
    for (code, expected) in codes {
        // At the requester.
        let (fabric, [a, b], [source, target]) = pair(&[&format!("nak={code}@2")], ConnectOptions::default());
        for wr_id in 0..3 {
            a.qp.post_send(&SendWr::write(wr_id, &[source.sge(0..8)], target.remote(8 * wr_id as usize)))
                .unwrap();
        }
        assert_eq!([status(&a), status(&a), status(&a)], [WcStatus::Success, expected, WcStatus::WrFlushErr]);
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Rts));
        // The answer is faster than the first request, which is still on its way.
        fabric.advance(Duration::from_millis(1));
        assert_eq!(target.to_vec()[..24], [[0x11; 8], [0; 8], [0; 8]].concat());
        // At the responder.
        let (_fabric, [a, b], [target, source]) =
            pair(&[&format!("rx:nak={code}@2")], ConnectOptions::default());
        for wr_id in 0..2 {
            b.qp.post_send(&SendWr::write(wr_id, &[source.sge(0..8)], target.remote(0))).unwrap();
        }
        assert_eq!([status(&b), status(&b)], [WcStatus::Success, expected]);
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Err));
    }
}

#[test]
fn sequence_error_nak_makes_the_requester_go_back() {
    let (_fabric, [a, _b], [source, target]) = pair(&["nak=sequence@2"], ConnectOptions::default());
    for wr_id in 0..3 {
        a.qp.post_send(&SendWr::write(wr_id, &[source.sge(0..8)], target.remote(8 * wr_id as usize)))
            .unwrap();
    }
    assert_eq!([status(&a), status(&a), status(&a)], [WcStatus::Success; 3]);
    let counters = a.context.counters();
    assert_eq!((counters.rcvd_seq_err, counters.requester_retry), (1, 1));
    assert_eq!(target.to_vec()[..24], [0x11; 24]);
}

#[test]
fn rnr_nak_delays_the_request_and_fails_it_once_the_retries_are_exhausted() {
    let send = |rule: &str| {
        let (_fabric, [a, b], [source, target]) = pair(&[rule], ConnectOptions::default().rnr_retry(2));
        b.qp.post_recv(&RecvWr::new(1, &[target.sge(0..LEN)])).unwrap();
        a.qp.post_send(&SendWr::send(2, &[source.sge(0..8)])).unwrap();
        (status(&a), a.context.counters().rcvd_rnr_err)
    };
    assert_eq!(send("rnr=12@1"), (WcStatus::Success, 1));
    assert_eq!(send("rnr=12@1..2"), (WcStatus::Success, 2));
    assert_eq!(send("rnr=12"), (WcStatus::RnrRetryExcErr, 3));
}

#[test]
fn altered_packet_with_a_repaired_icrc_is_accepted() {
    let write = |rule: &str| {
        let (_fabric, [a, b], [source, target]) = pair(&[rule], ConnectOptions::default());
        a.qp.post_send(&SendWr::write(1, &[source.sge(0..8)], target.remote(0))).unwrap();
        (status(&a), target.to_vec()[..8].to_vec(), b.context.counters().rx_icrc_err)
    };
    let altered = [0x12, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11];
    assert_eq!(write("corrupt=1,at=payload,xor=3,icrc=repair"), (WcStatus::Success, altered.to_vec(), 0));
    assert_eq!(write("corrupt=1,at=payload,xor=3"), (WcStatus::Success, vec![0x11; 8], 1));
    assert_eq!(write("corrupt=1,at=rkey,icrc=repair"), (WcStatus::RemAccessErr, vec![0; 8], 0));
    assert_eq!(write("corrupt=1,at=opcode,xor=0x1f,icrc=repair").2, 0);
}

#[test]
fn replayed_write_is_a_duplicate_that_changes_nothing() {
    let rules = ["replay=1,by=2ms,opcode=write-only"];
    let (fabric, [a, b], [source, target]) = pair(&rules, ConnectOptions::default());
    a.qp.post_send(&SendWr::write(1, &[source.sge(0..8)], target.remote(0))).unwrap();
    assert_eq!(status(&a), WcStatus::Success);
    target.write(0, &[0x22; 8]).unwrap();
    fabric.advance(Duration::from_millis(3));
    assert_eq!(b.context.counters().duplicate_request, 1);
    assert_eq!(target.to_vec()[..8], [0x22; 8]);
}

#[test]
fn time_window_begins_when_the_nic_is_opened() {
    let write_after = |pause: Duration, rule: &str| {
        let fabric = virtual_fabric(slow());
        fabric.advance(Duration::from_secs(1));
        let (a, b) = fabric.pair_builder().faults([rule.parse::<Rule>().unwrap()]).build().unwrap();
        let target = b.pd.reg_mr(LEN, Access::ALL).unwrap();
        fabric.advance(pause);
        a.qp.post_send(&SendWr::write(1, &[], target.remote(0))).unwrap();
        assert_eq!(status(&a), WcStatus::Success);
        a.context.counters().retransmitted_pkts + a.context.counters().ack_probe > 0
    };
    let [at_once, later] = [Duration::ZERO, Duration::from_millis(2)];
    assert!(write_after(at_once, "drop=1,time=..1ms"));
    assert!(!write_after(later, "drop=1,time=..1ms"));
    assert!(!write_after(at_once, "drop=1,time=2ms..3ms"));
    assert!(write_after(later, "drop=1,time=2ms..3ms"));
}

#[test]
fn answers_arrive_on_sockets_in_either_direction() {
    for (addresses, rules) in [
        (["127.101.9.1", "127.101.9.2"], ["rnr=1@1", ""]),
        (["127.101.9.3", "127.101.9.4"], ["", "rx:rnr=1@1"]),
    ] {
        let [(a, counters_a), (b, counters_b)] = [0, 1].map(|i| {
            let link = UdpLink::bind(addresses[i].parse().unwrap(), &UdpOptions::default()).unwrap();
            let rules = rules[i].split_terminator(';').map(|rule| rule.parse().unwrap()).collect();
            let link = Faults::new(link, rules, 1);
            let counters = link.fault_counters();
            (Nic::new(nic::open([link]), LEN), counters)
        });
        let [requester, responder] = [&a, &b].map(|nic| nic.qp(QpType::Rc));
        nic::connect(&requester, &responder);
        responder.post_recv(&RecvWr::new(1, &[b.mr.sge(0..LEN)])).unwrap();
        requester.post_send(&SendWr::send(2, &[a.mr.sge(0..8)])).unwrap();
        assert_eq!(a.cq.wait(Duration::from_secs(60)).unwrap().status, WcStatus::Success);
        assert_eq!(a.context.counters().rcvd_rnr_err, 1);
        let answered = counters_a.get(Direction::Tx).answered + counters_b.get(Direction::Rx).answered;
        assert_eq!(answered, 1);
    }
}

/// Opens a device with rules and a connection manager.
fn side(fabric: &Fabric, rules: &[&str]) -> Side {
    let port = fabric.port(&fabric.auto_address()).unwrap();
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let wrap = |port| Box::new(Faults::new(port, rules, 1)) as Box<dyn Link>;
    Side::new(Context::on_port(port, &ContextOptions::default(), wrap).unwrap())
}

#[test]
fn connection_request_is_rejected_with_the_reason_of_the_rule() {
    for (client_rules, server_rules) in [(["cm:rej=stale-connection@1"], [""]), ([""], ["rx:cm:rej=10@1"])] {
        let fabric = virtual_fabric(slow());
        let [client, server] = [client_rules, server_rules].map(|rules| {
            let rules: Vec<&str> = rules.into_iter().filter(|rule| !rule.is_empty()).collect();
            side(&fabric, &rules)
        });
        let at = server.addr(7471);
        let _listener = server.listen(PortSpace::Tcp, at);
        let client_end = client.connecting(at, b"");
        let event = client.event(CmEventKind::Rejected);
        assert_eq!((event.status, &event.id), (10, &client_end.id));
        // The request of another attempt passes.
        let (_again, _theirs) = connected(&client, &server, at);
    }
}

#[test]
fn rejected_reply_ends_the_connection_at_the_server() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (side(&fabric, &[]), side(&fabric, &["cm:rej=consumer-reject@1"]));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let _client_end = client.connecting(at, b"");
    let server_end = server.accept(b"");
    let event = server.event(CmEventKind::Rejected);
    assert_eq!((event.status, &event.id), (28, &server_end.id));
}

#[test]
fn lost_message_of_every_kind_is_sent_again() {
    // The kind, and whether the client sends it.
    for (kind, by_client) in [("req", true), ("rep", false), ("rtu", true), ("dreq", true), ("drep", false)] {
        let fabric = virtual_fabric(slow());
        let rule = format!("cm:drop={kind}@1");
        let (lossy, intact) = (side(&fabric, &[&rule]), side(&fabric, &[]));
        let (client, server) = if by_client { (lossy, intact) } else { (intact, lossy) };
        let at = server.addr(7471);
        let _listener = server.listen(PortSpace::Tcp, at);
        let client_end = client.connecting(at, b"");
        let request = server.event_within(CmEventKind::ConnectRequest, LONG_TIMEOUT);
        let qp = server.qp(QpType::Rc);
        request.id.attach_qp(&qp).unwrap();
        request.id.accept(&ConnParam::default()).unwrap();
        client.event_within(CmEventKind::Established, LONG_TIMEOUT);
        let before = fabric.now();
        server.event_within(CmEventKind::Established, LONG_TIMEOUT);
        let waited = fabric.now().since(before) > Duration::from_millis(1);
        assert_eq!(waited, kind == "rtu", "the server waits for a lost RTU");
        client_end.id.disconnect().unwrap();
        server.event_within(CmEventKind::Disconnected, LONG_TIMEOUT);
        request.id.disconnect().unwrap();
        client.event_within(CmEventKind::Disconnected, LONG_TIMEOUT);
    }
}

#[test]
fn lost_rejection_is_sent_again() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (side(&fabric, &["rx:cm:drop=rej@1"]), side(&fabric, &[]));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let start = fabric.now();
    let _client_end = client.connecting(at, b"");
    server.event(CmEventKind::ConnectRequest).id.reject(b"").unwrap();
    assert_eq!(client.event_within(CmEventKind::Rejected, LONG_TIMEOUT).status, 28);
    assert!(fabric.now().since(start) > Duration::from_millis(1), "the client repeats its REQ");
}

#[test]
fn lost_service_resolution_is_repeated() {
    for rule in ["cm:drop=sidr-req@1", "rx:drop=1,cm=sidr-rep"] {
        let fabric = virtual_fabric(slow());
        let (client, server) = (side(&fabric, &[rule]), side(&fabric, &[]));
        let at = server.addr(7471);
        let start = fabric.now();
        // Without a listener, the reply says so.
        let id = client.resolved(PortSpace::Udp, at);
        id.connect(&ConnParam::default()).unwrap();
        assert_eq!(client.event_within(CmEventKind::Unreachable, LONG_TIMEOUT).status, 1);
        assert!(fabric.now().since(start) > Duration::from_millis(1), "{rule}");
    }
}

#[test]
fn server_gives_up_when_every_rtu_is_lost() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (side(&fabric, &["cm:drop=rtu"]), side(&fabric, &[]));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let _client_end = client.connecting(at, b"");
    let server_end = server.accept(b"");
    let event = server.event_within(CmEventKind::Unreachable, LONG_TIMEOUT);
    assert_eq!((event.status, &event.id), (-libc::ETIMEDOUT, &server_end.id));
}

#[test]
fn delayed_reply_delays_the_connection() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (side(&fabric, &["rx:cm:delay=rep@1,by=50ms"]), side(&fabric, &[]));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let start = fabric.now();
    let (_client_end, _server_end) = connected(&client, &server, at);
    assert!(fabric.now().since(start) >= Duration::from_millis(50));
}
