//! Tests of fault rules between NICs and connection managers on a fabric in virtual time: what the verbs program
//! at either end observes.

#[path = "connection_manager/fixture.rs"]
mod fixture;

use std::time::Duration;

use fixture::*;
use urxe::link::Link;
use urxe::link::faults::{Faults, Rule};
use urxe::verbs::cm::*;
use urxe::verbs::*;

const LEN: usize = 64;

/// Returns two connected NICs, of which the first has the given rules, with a region each. The first region is
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
