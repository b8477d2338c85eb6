//! Tests of rejections, unresponsive peers and packet loss: each must end with an event.

use std::time::Duration;

use urxe::transport::Instant;
use urxe::verbs::cm::*;
use urxe::verbs::*;

use urxe_test_support::connections::*;

#[test]
fn rejection_carries_reason_and_private_data() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let client_end = client.connecting(at, b"");
    let request = server.event(CmEventKind::ConnectRequest);
    request.id.reject(b"not today").unwrap();
    let event = client.event(CmEventKind::Rejected);
    assert_eq!((event.status, &event.private_data()[..9]), (28, &b"not today"[..]));
    assert_eq!(event.private_data().len(), 148);
    assert_eq!((event.id, client_end.qp.state()), (client_end.id, QpState::Err));
    assert!(matches!(request.id.accept(&ConnParam::default()), Err(IdError::State { .. })));
}

#[test]
fn request_without_listener_is_rejected() {
    let (client, server) = (Side::on_udp("127.101.2.1"), Side::on_udp("127.101.2.2"));
    let client_end = client.connecting(server.addr(7471), b"");
    let event = client.event(CmEventKind::Rejected);
    assert_eq!((event.status, event.id), (8, client_end.id));
    // For datagrams the status is "service not supported".
    let id = client.resolved(PortSpace::Udp, server.addr(7471));
    id.connect(&ConnParam::default()).unwrap();
    let event = client.event(CmEventKind::Unreachable);
    assert_eq!((event.status, event.id), (1, id));
}

#[test]
fn client_rejection_after_connect_response_reaches_the_server() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let id = client.resolved(PortSpace::Tcp, at);
    let qp = client.qp(QpType::Rc);
    id.connect(&ConnParam::default().qp_num(qp.qpn())).unwrap();
    let server_end = server.accept(b"");
    client.event(CmEventKind::ConnectResponse);
    id.reject(b"no").unwrap();
    let event = server.event(CmEventKind::Rejected);
    assert_eq!((&event.id, event.status, &event.private_data()[..2]), (&server_end.id, 28, &b"no"[..]));
    assert_eq!(server_end.qp.state(), QpState::Err);
}

#[test]
fn connect_to_a_missing_peer_raises_unreachable_after_retries() {
    let fabric = virtual_fabric(slow());
    let client = Side::on(&fabric);
    let unassigned = "198.18.77.77:5".parse().unwrap();
    let client_end = client.connecting(unassigned, b"");
    let start = fabric.now();
    let event = client.event_within(CmEventKind::Unreachable, LONG_TIMEOUT);
    assert_eq!((event.status, event.id), (-libc::ETIMEDOUT, client_end.id));
    assert!(fabric.now().since(start) > Duration::from_secs(30), "the REQ is retransmitted");
    let id = client.resolved(PortSpace::Udp, unassigned);
    id.connect(&ConnParam::default()).unwrap();
    let event = client.event_within(CmEventKind::Unreachable, LONG_TIMEOUT);
    assert_eq!((event.status, event.id), (-libc::ETIMEDOUT, id));
}

#[test]
fn peer_that_stops_responding_is_detected_in_every_state() {
    // The server before it accepts the request, the client before it receives the REP, and a connected
    // server.
    for state in 0..3 {
        let fabric = virtual_fabric(slow());
        let (client, server) = (Side::on(&fabric), Side::on(&fabric));
        let at = server.addr(7471);
        let _listener = server.listen(PortSpace::Tcp, at);
        let set_port_down = |side: &Side| fabric.set_port_up(side.addr(0).ip(), false).unwrap();
        match state {
            0 => {
                let client_end = client.connecting(at, b"");
                let request = server.event(CmEventKind::ConnectRequest);
                set_port_down(&server);
                assert_eq!(client.event_within(CmEventKind::Unreachable, LONG_TIMEOUT).id, client_end.id);
                drop(request);
            }
            1 => {
                let _mine = client.connecting(at, b"");
                let request = server.event(CmEventKind::ConnectRequest);
                set_port_down(&client);
                let qp = server.qp(QpType::Rc);
                request.id.attach_qp(&qp).unwrap();
                request.id.accept(&ConnParam::default()).unwrap();
                assert_eq!(server.event_within(CmEventKind::Unreachable, LONG_TIMEOUT).id, request.id);
                assert_eq!(qp.state(), QpState::Err);
            }
            _ => {
                let (client_end, _theirs) = connected(&client, &server, at);
                set_port_down(&server);
                client_end.id.disconnect().unwrap();
                assert_eq!(client.event_within(CmEventKind::Disconnected, LONG_TIMEOUT).id, client_end.id);
            }
        }
    }
}

/// Runs a connection from the request to the end of time-wait over a wire that loses, duplicates and reorders
/// packets, and returns the virtual time at the end.
fn run_over_faulty_wire(seed: u64) -> Instant {
    let config = slow().seed(seed).loss(0.2).duplicate(0.2).reorder(0.2);
    let fabric = virtual_fabric(config);
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let client_end = client.connecting(at, b"");
    let request = server.event_within(CmEventKind::ConnectRequest, LONG_TIMEOUT);
    let qp = server.qp(QpType::Rc);
    request.id.attach_qp(&qp).unwrap();
    request.id.accept(&ConnParam::default()).unwrap();
    client.event_within(CmEventKind::Established, LONG_TIMEOUT);
    server.event_within(CmEventKind::Established, LONG_TIMEOUT);
    client_end.id.disconnect().unwrap();
    server.event_within(CmEventKind::Disconnected, LONG_TIMEOUT);
    request.id.disconnect().unwrap();
    client.event_within(CmEventKind::Disconnected, LONG_TIMEOUT);
    for side in [&client, &server] {
        side.event_within(CmEventKind::TimewaitExit, LONG_TIMEOUT);
    }
    fabric.now()
}

#[test]
fn connection_over_faulty_wire_succeeds_reproducibly() {
    let end_times: Vec<Instant> = (0..20).map(run_over_faulty_wire).collect();
    assert_eq!(end_times, (0..20).map(run_over_faulty_wire).collect::<Vec<_>>());
    assert!(end_times.iter().any(|end| *end != end_times[0]), "different seeds cause different faults");
}

#[test]
fn call_with_too_much_private_data_fails_at_once() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let id = client.resolved(PortSpace::Tcp, at);
    let qp = client.qp(QpType::Rc);
    id.attach_qp(&qp).unwrap();
    let refused = id.connect(&ConnParam::with_data(&[1; 57]));
    assert!(matches!(refused, Err(IdError::PrivateData { given: 57, max: 56 })), "{refused:?}");
    id.connect(&ConnParam::with_data(&[1; 56])).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!(request.private_data(), [1; 56]);
    let server_qp = server.qp(QpType::Rc);
    request.id.attach_qp(&server_qp).unwrap();
    assert!(request.id.accept(&ConnParam::with_data(&[2; 197])).is_err());
    request.id.accept(&ConnParam::with_data(&[2; 196])).unwrap();
    assert_eq!(client.event(CmEventKind::Established).private_data(), [2; 196]);
}
