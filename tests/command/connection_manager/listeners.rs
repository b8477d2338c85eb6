//! Tests of listeners: which requests they receive, and how many requests may be pending.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;

use urxe_test_support::connections::*;

fn on(fabric: &Fabric, addresses: &[&str]) -> Side {
    let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
    let port = fabric.port(&addresses).unwrap();
    let context = Context::on_port(port, &ContextOptions::default(), |port| Box::new(port)).unwrap();
    Side::new(context)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn listener_accepts_requests_to_its_address_only() {
    let fabric = virtual_fabric(slow());
    let client = on(&fabric, &["10.0.0.9", "fd00::9"]);
    let server = on(&fabric, &["10.0.0.1", "10.0.0.2", "fd00::1"]);
    let one = server.listen(PortSpace::Tcp, at("10.0.0.1:7"));
    let two = server.listen(PortSpace::Tcp, at("10.0.0.2:7"));
    for (address, listener) in [("10.0.0.1:7", Some(&one)), ("10.0.0.2:7", Some(&two)), ("[fd00::1]:7", None)]
    {
        let _mine = client.connecting(at(address), b"");
        match listener {
            Some(listener) => {
                let request = server.event(CmEventKind::ConnectRequest);
                assert_eq!(request.listen_id.as_ref(), Some(listener));
                assert_eq!(request.id.local_addr(), Some(at(address)));
                assert_eq!(request.id.path().unwrap().sgid.ip(), at(address).ip());
                request.id.reject(b"").unwrap();
                client.event(CmEventKind::Rejected);
            }
            None => assert_eq!(client.event(CmEventKind::Rejected).status, 8),
        }
    }
}

#[test]
fn wildcard_listener_accepts_both_ip_versions_unless_af_only() {
    for (bound, af_only, v4, v6) in
        [("[::]:7", false, true, true), ("[::]:7", true, false, true), ("0.0.0.0:7", false, true, false)]
    {
        let fabric = virtual_fabric(slow());
        let (client, server) = (Side::on(&fabric), Side::on(&fabric));
        let listener = server.id(PortSpace::Tcp);
        listener.set_af_only(af_only).unwrap();
        listener.bind_addr(at(bound)).unwrap();
        listener.listen(0).unwrap();
        for (is_v4, is_accepted) in [(true, v4), (false, v6)] {
            let _mine = client.connecting((server.ip(is_v4), 7).into(), b"");
            if is_accepted {
                server.event(CmEventKind::ConnectRequest).id.reject(b"").unwrap();
            }
            let expected = if is_accepted { 28 } else { 8 };
            assert_eq!(client.event(CmEventKind::Rejected).status, expected, "{bound} {af_only} {is_v4}");
        }
    }
}

#[test]
fn request_for_a_transport_service_other_than_the_listeners_is_rejected() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let _listener = server.listen(PortSpace::Tcp, server.addr(7));
    for (qp_type, refused) in [(QpType::Uc, CmEventKind::Rejected), (QpType::Ud, CmEventKind::Unreachable)] {
        let id = client.manager.create_id_with_qp_type(&client.channel, PortSpace::Tcp, qp_type).unwrap();
        id.resolve_addr(None, server.addr(7), TIMEOUT).unwrap();
        client.event(CmEventKind::AddrResolved);
        id.resolve_route(TIMEOUT).unwrap();
        client.event(CmEventKind::RouteResolved);
        let qp = client.qp(qp_type);
        id.attach_qp(&qp).unwrap();
        id.connect(&ConnParam::default()).unwrap();
        client.event(refused);
        assert!(server.channel.try_event().is_none());
    }
}

#[test]
fn wildcard_listener_accepts_requests_to_added_devices() {
    let fabric = virtual_fabric(slow());
    let client = on(&fabric, &["10.0.0.9"]);
    let server = on(&fabric, &["10.0.0.1"]);
    let listener = server.listen(PortSpace::Tcp, at("0.0.0.0:7"));
    let second = fabric.port(&[at("10.0.0.2:0").ip()]).unwrap();
    let second = Context::on_port(second, &ContextOptions::default(), |port| Box::new(port)).unwrap();
    assert_eq!(server.manager.add_device(second).unwrap(), 1);
    for (address, device) in [("10.0.0.1:7", 0), ("10.0.0.2:7", 1)] {
        let _mine = client.connecting(at(address), b"");
        let request = server.event(CmEventKind::ConnectRequest);
        assert_eq!((request.listen_id.as_ref(), request.id.device_index()), (Some(&listener), Some(device)));
    }
}

#[test]
fn second_bind_to_a_port_fails() {
    let fabric = virtual_fabric(slow());
    let server = on(&fabric, &["10.0.0.1"]);
    let first = server.listen(PortSpace::Tcp, at("10.0.0.1:7"));
    let second = server.id(PortSpace::Tcp);
    let in_use = second.bind_addr(at("0.0.0.0:7")).unwrap_err();
    assert_eq!(in_use.errno(), libc::EADDRNOTAVAIL, "{in_use}");
    let in_use = second.bind_addr(at("10.0.0.1:7")).unwrap_err();
    assert_eq!(in_use.errno(), libc::EADDRINUSE, "{in_use}");
    let missing = second.bind_addr(at("10.0.0.3:7")).unwrap_err();
    assert_eq!(missing.errno(), libc::EADDRNOTAVAIL, "{missing}");
    // The UDP port space is separate.
    let _udp_listener = server.listen(PortSpace::Udp, at("10.0.0.1:7"));
    first.destroy();
    second.bind_addr(at("0.0.0.0:7")).unwrap();
    let (any, other) = (server.id(PortSpace::Tcp), server.id(PortSpace::Tcp));
    any.bind_addr(at("0.0.0.0:0")).unwrap();
    other.listen(1).unwrap();
    let ports = [&any, &other].map(|id| id.local_addr().unwrap().port());
    assert!(ports[0] != ports[1] && ports.iter().all(|port| *port >= 49152), "{ports:?}");
}

/// As on Linux: see `Cm::on_req`.
#[test]
fn requests_beyond_the_backlog_are_retransmitted_until_earlier_ones_are_taken() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let listener = server.id(PortSpace::Tcp);
    listener.bind_addr(server.addr(7)).unwrap();
    listener.listen(3).unwrap();
    let all: Vec<End> = (0..5).map(|_| client.connecting(server.addr(7), b"")).collect();
    // Both parties are idle until the two other requests are retransmitted.
    fabric.advance(Duration::from_secs(3));
    assert!(client.channel.try_event().is_none());
    let requests: Vec<CmEvent> = (0..5).map(|_| listener.get_request(Some(TIMEOUT)).unwrap()).collect();
    assert!(client.channel.try_event().is_none(), "no client gets a response before the program gives one");
    drop(requests);
    for _ in 0..5 {
        let event = client.event(CmEventKind::Rejected);
        assert!(all.iter().any(|end| end.id == event.id));
    }
}

#[test]
fn requests_that_stay_beyond_the_backlog_are_unreachable_after_all_retransmissions() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let listener = server.id(PortSpace::Tcp);
    listener.bind_addr(server.addr(7)).unwrap();
    listener.listen(1).unwrap();
    let ends = [(); 2].map(|()| client.connecting(server.addr(7), b""));
    fabric.advance(Duration::from_secs(600));
    // The request in the backlog has no response either.
    for _ in &ends {
        assert_eq!(client.event(CmEventKind::Unreachable).status, -libc::ETIMEDOUT);
    }
}

#[test]
fn resolution_of_a_datagram_service_beyond_the_backlog_is_rejected() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let listener = server.id(PortSpace::Udp);
    listener.bind_addr(server.addr(7)).unwrap();
    listener.listen(1).unwrap();
    let ids = [(); 2].map(|()| client.resolved(PortSpace::Udp, server.addr(7)));
    for id in &ids {
        id.connect(&ConnParam::default().qp_num(Qpn::new(0x100))).unwrap();
    }
    let event = client.event(CmEventKind::Unreachable);
    assert_eq!((&event.id, event.status), (&ids[1], 2));
}

#[test]
fn destroying_a_listener_rejects_only_requests_not_delivered_yet() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let listener = server.listen(PortSpace::Tcp, server.addr(7));
    let first = client.connecting(server.addr(7), b"");
    let request = server.event(CmEventKind::ConnectRequest);
    let second = client.connecting(server.addr(7), b"");
    while server.manager.ids() < 3 {
        std::thread::yield_now();
    }
    listener.destroy();
    assert_eq!(client.event(CmEventKind::Rejected).id, second.id);
    assert!(server.channel.try_event().is_none());
    assert_eq!(server.manager.ids(), 1);
    let qp = server.qp(QpType::Rc);
    request.id.attach_qp(&qp).unwrap();
    request.id.accept(&ConnParam::default()).unwrap();
    assert_eq!(client.event(CmEventKind::Established).id, first.id);
    server.event(CmEventKind::Established);
}

/// Checks that requests to a loopback address, which no device has, go through the first device.
#[test]
fn request_to_a_loopback_address_goes_through_the_first_device() {
    let fabric = virtual_fabric(slow());
    let side = on(&fabric, &["10.0.0.1", "fd00::1"]);
    for (bound, requested) in
        [("0.0.0.0:7", "127.0.0.1:7"), ("127.0.0.1:8", "127.0.0.1:8"), ("[::1]:9", "[::1]:9")]
    {
        let _listener = side.listen(PortSpace::Tcp, at(bound));
        let client_end = side.connecting(at(requested), b"");
        let request = side.event(CmEventKind::ConnectRequest);
        assert_eq!(
            (request.id.local_addr(), client_end.id.peer_addr()),
            (Some(at(requested)), Some(at(requested)))
        );
        let (client_path, server_path) = (client_end.id.path().unwrap(), request.id.path().unwrap());
        assert_eq!((client_path.sgid, client_path.dgid), (server_path.dgid, server_path.sgid));
        assert!(!client_path.dgid.ip().is_loopback());
        request.id.reject(b"").unwrap();
        side.event(CmEventKind::Rejected);
    }
}

#[test]
fn wait_for_a_request_leaves_other_events_queued_and_ends_on_device_removal() {
    for fabric in [virtual_fabric(slow()), Fabric::new()] {
        let (client, server) = (Side::on(&fabric), Side::on(&fabric));
        let listener = server.listen(PortSpace::Tcp, server.addr(7));
        let resolved = server.id(PortSpace::Tcp);
        resolved.resolve_addr(None, client.addr(1), TIMEOUT).unwrap();
        let pending = client.connecting(server.addr(7), b"");
        listener.get_request(Some(TIMEOUT)).unwrap().id.reject(b"").unwrap();
        assert_eq!(client.event(CmEventKind::Rejected).id, pending.id);
        fabric.remove_device(server.ip(true)).unwrap();
        for _ in 0..2 {
            assert_eq!(listener.get_request(Some(TIMEOUT)).unwrap_err(), WaitError::DeviceRemoved);
        }
        assert_eq!(server.event(CmEventKind::AddrResolved).id, resolved);
        for _ in 0..2 {
            let event = server.event(CmEventKind::DeviceRemoval);
            assert!([&listener, &resolved].contains(&&event.id), "{event:?}");
        }
        assert_eq!(listener.get_request(Some(TIMEOUT)).unwrap_err(), WaitError::DeviceRemoved);
    }
}

#[test]
fn wait_without_timeout_ends_when_the_device_is_removed() {
    let fabric = Fabric::new();
    let server = Side::on(&fabric);
    let listener = server.listen(PortSpace::Tcp, server.addr(7));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.get_request(None).unwrap_err());
        fabric.remove_device(server.ip(true)).unwrap();
        assert_eq!(waiting.join().unwrap(), WaitError::DeviceRemoved);
    });
}
