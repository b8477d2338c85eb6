//! Tests of alternate paths and simultaneous (peer-to-peer) connects, which the protocol supports but
//! librdmacm does not.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use urxe::link::Link;
use urxe::verbs::cm::*;
use urxe::verbs::*;

use urxe_test_support::breakable::Receive;
use urxe_test_support::connections::*;

/// Returns a side whose device has two addresses, and the two addresses. While `is_first_path_down` is set,
/// the device receives no packets at the first one.
fn multihomed(fabric: &Fabric, host: u8, is_first_path_down: &Arc<AtomicBool>) -> (Side, [IpAddr; 2]) {
    let addresses = [1, 2].map(|net| IpAddr::from([10, 0, net, host]));
    let drop_at_first: Receive = |port, now, sink| {
        let first = port.info().addresses[0];
        port.receive(now, &mut |burst| {
            if burst.flow.dst != first {
                sink(burst);
            }
        })
    };
    (Side::breakable(fabric, &addresses, is_first_path_down, drop_at_first), addresses)
}

#[test]
fn connection_migrates_to_loaded_alternate_path() {
    let (fabric, is_first_path_down) = (virtual_fabric(slow()), Arc::default());
    let ((client, from), (server, to)) =
        (multihomed(&fabric, 1, &is_first_path_down), multihomed(&fabric, 2, &is_first_path_down));
    let at = (to[0], 7).into();
    let _listener = server.listen(PortSpace::Tcp, at);
    let (client_end, server_end) = connected(&client, &server, at);
    client_end.id.load_alternate(from[1], to[1]).unwrap();
    assert!(
        client_end.id.load_alternate(from[1], to[1]).is_err(),
        "a second alternate path is refused while the first is pending"
    );
    let event = client.event(CmEventKind::AlternatePath);
    assert_eq!((event.id, event.status), (client_end.id.clone(), 0));
    assert_eq!(CmEventKind::AlternatePath.name(), "alternate path");
    check_transfer((&client, &client_end), (&server, &server_end));
    let remote_ip = |end: &End| end.qp.query().av.map(|av| av.dgid.ip());
    assert_eq!([remote_ip(&client_end), remote_ip(&server_end)], [Some(to[0]), Some(from[0])]);
    is_first_path_down.store(true, Ordering::SeqCst);
    check_transfer((&client, &client_end), (&server, &server_end));
    check_transfer((&server, &server_end), (&client, &client_end));
    assert_eq!([remote_ip(&client_end), remote_ip(&server_end)], [Some(to[1]), Some(from[1])]);
    for side in [&client, &server] {
        assert!(
            std::iter::from_fn(|| side.context.next_event())
                .any(|e| matches!(e, AsyncEvent::PathMigrated(_)))
        );
    }
}

#[test]
fn invalid_alternate_path_is_rejected() {
    let (fabric, is_first_path_down) = (virtual_fabric(slow()), Arc::default());
    let ((client, from), (server, to)) =
        (multihomed(&fabric, 1, &is_first_path_down), multihomed(&fabric, 2, &is_first_path_down));
    let at = (to[0], 7).into();
    let _listener = server.listen(PortSpace::Tcp, at);
    let (client_end, server_end) = connected(&client, &server, at);
    let unassigned = IpAddr::from([10, 0, 9, 9]);
    assert!(matches!(client_end.id.load_alternate(unassigned, to[1]), Err(IdError::NoDevice(_))));
    assert!(matches!(
        client_end.id.load_alternate(from[1], "fd00::1".parse().unwrap()),
        Err(IdError::Family { .. })
    ));
    // The server has no such address ("invalid GID"), or no queue pair to load the path into ("not
    // supported").
    client_end.id.load_alternate(from[1], unassigned).unwrap();
    assert_eq!(client.event(CmEventKind::AlternatePath).status, 8);
    server_end.id.detach_qp();
    client_end.id.load_alternate(from[1], to[1]).unwrap();
    assert_eq!(client.event(CmEventKind::AlternatePath).status, 2);
    // An unreachable peer does not respond.
    fabric.set_port_up(to[0], false).unwrap();
    client_end.id.load_alternate(from[1], to[1]).unwrap();
    let event = client.event_within(CmEventKind::AlternatePath, LONG_TIMEOUT);
    assert_eq!(event.status, -libc::ETIMEDOUT);
    client_end.id.disconnect().unwrap();
    assert!(client_end.id.load_alternate(from[1], to[1]).is_err());
}

/// Returns a CM id bound to `port` and resolved to the same port at `to`, and its queue pair.
fn peer_end(side: &Side, to: &Side, port: u16) -> End {
    let id = side.id(PortSpace::Tcp);
    id.bind_addr(side.addr(port)).unwrap();
    id.resolve_addr(None, to.addr(port), TIMEOUT).unwrap();
    side.event(CmEventKind::AddrResolved);
    id.resolve_route(TIMEOUT).unwrap();
    side.event(CmEventKind::RouteResolved);
    let qp = side.qp(QpType::Rc);
    id.attach_qp(&qp).unwrap();
    End { id, qp }
}

#[test]
fn simultaneous_connects_form_one_connection() {
    let orders = [0, 1].into_iter().flat_map(|first| [(first, 0), (first, 300), (first, 900)]);
    for (first, delay) in orders.map(|(first, delay)| (first, Duration::from_millis(delay))) {
        let fabric = virtual_fabric(slow());
        let sides = [Side::on(&fabric), Side::on(&fabric)];
        let [a, b] = &sides;
        let ends = [peer_end(a, b, 7), peer_end(b, a, 7)];
        for (turn, n) in [first, 1 - first].into_iter().enumerate() {
            // The other side starts within the grace period.
            fabric.run_until_idle(delay * turn as u32);
            ends[n].id.connect_peer(&ConnParam::with_data(&[n as u8 + 1; 8])).unwrap();
        }
        for n in 0..2 {
            let event = sides[n].event(CmEventKind::Established);
            assert_eq!((&event.id, &event.private_data()[..8]), (&ends[n].id, &[2 - n as u8; 8][..]));
        }
        for side in &sides {
            assert_eq!((side.manager.ids(), side.manager.connections()), (1, 1));
            assert!(side.channel.try_event().is_none());
        }
        check_transfer((a, &ends[0]), (b, &ends[1]));
        check_transfer((b, &ends[1]), (a, &ends[0]));
        ends[first].id.disconnect().unwrap();
        sides[1 - first].event(CmEventKind::Disconnected);
        ends[1 - first].id.disconnect().unwrap();
        sides[first].event(CmEventKind::Disconnected);
    }
}

#[test]
fn peer_connect_without_matching_peer_is_rejected() {
    let fabric = virtual_fabric(slow());
    let (a, b) = (Side::on(&fabric), Side::on(&fabric));
    let (client_end, server_end) = (peer_end(&a, &b, 7), peer_end(&b, &a, 7));
    client_end.id.connect_peer(&ConnParam::default()).unwrap();
    fabric.run_until_idle(Duration::from_millis(1));
    assert_eq!(a.event(CmEventKind::Rejected).status, 8);
    // A plain connect does not match a simultaneous connect.
    server_end.id.connect(&ConnParam::default()).unwrap();
    let second = peer_end(&a, &b, 8);
    second.id.connect_peer(&ConnParam::default()).unwrap();
    assert_eq!(b.event(CmEventKind::Rejected).id, server_end.id);
    assert_eq!(a.event(CmEventKind::Rejected).id, second.id);
    let without_qp = a.resolved(PortSpace::Tcp, b.addr(9));
    assert!(matches!(without_qp.connect_peer(&ConnParam::default()), Err(IdError::NoQp)));
}
