//! Tests of processes that share an address: each listens on its own ports, and they connect to each other
//! and to other hosts.

use std::net::IpAddr;

use urxe::broker::{SharedMemory, SharedUdpLink, Sharing};
use urxe::link::udp::UdpOptions;
use urxe::verbs::cm::*;
use urxe::verbs::*;

use urxe_test_support::connections::*;
use urxe_test_support::nic;

fn open_shared(ip: &str) -> Side {
    let sharing = Sharing {
        program: env!("CARGO_BIN_EXE_urxe").into(),
        any_user: false,
        shared_memory: SharedMemory::Auto,
    };
    let ip: IpAddr = ip.parse().unwrap();
    let links = SharedUdpLink::bind(ip, &UdpOptions::default(), 1, &sharing).unwrap();
    Side::new(nic::open(links))
}

#[test]
fn processes_sharing_an_address_have_separate_ports() {
    let (a, b, foreign_host) =
        (open_shared("127.101.4.1"), open_shared("127.101.4.1"), Side::on_udp("127.101.4.2"));
    let (at_a, at_b) = (a.addr(7001), b.addr(7002));
    let of_a = a.listen(PortSpace::Tcp, at_a);
    let _of_b = b.listen(PortSpace::Tcp, at_b);
    let in_use = b.id(PortSpace::Tcp).bind_addr(at_a).unwrap_err();
    assert_eq!(in_use.errno(), libc::EADDRINUSE, "{in_use}");
    // Port 0 selects a port that no other process uses.
    let any = |side: &Side| {
        let id = side.id(PortSpace::Udp);
        id.bind_addr(side.addr(0)).unwrap();
        id
    };
    let port = |id: &CmId| id.local_addr().unwrap().port();
    let first = any(&a);
    let following = |n| 49152 + (port(&first) - 49152 + n) % 16384;
    let _others: Vec<CmId> = (1..4)
        .map(|n| {
            let id = b.id(PortSpace::Udp);
            id.bind_addr(b.addr(following(n))).unwrap();
            id
        })
        .collect();
    assert_eq!(port(&any(&a)), following(4));
    // Connections between the two processes, and from outside to each of them.
    for (client, server, at) in
        [(&b, &a, at_a), (&a, &b, at_b), (&foreign_host, &a, at_a), (&foreign_host, &b, at_b)]
    {
        let (client_end, server_end) = connected(client, server, at);
        check_transfer((client, &client_end), (server, &server_end));
        server_end.id.disconnect().unwrap();
        client.event(CmEventKind::Disconnected);
        client_end.id.disconnect().unwrap();
        server.event(CmEventKind::Disconnected);
    }
    // A request to a port without a listener is rejected. The other process may listen on a released port.
    let _rejected = foreign_host.connecting(a.addr(7003), b"");
    assert_eq!(foreign_host.event(CmEventKind::Rejected).status, 8);
    of_a.destroy();
    let _of_b = b.listen(PortSpace::Tcp, at_a);
    let (client_end, server_end) = connected(&foreign_host, &b, at_a);
    check_transfer((&b, &server_end), (&foreign_host, &client_end));
}

/// Checks that the server is notified of each client that vanishes before it gets a response, and does not
/// reject later clients with the same queue pair number as stale.
#[test]
fn rejected_event_is_raised_for_the_request_of_a_vanished_client() {
    let (server, client) = (open_shared("127.101.7.1"), Side::on_udp("127.101.7.2"));
    let at = server.addr(7001);
    let _listener = server.listen(PortSpace::Tcp, at);
    for round in 0..200 {
        let id = client.resolved(PortSpace::Tcp, at);
        id.connect(&ConnParam::default().qp_num(Qpn::new(77))).unwrap();
        let request = server.event(CmEventKind::ConnectRequest);
        id.destroy();
        let event = server.event(CmEventKind::Rejected);
        assert_eq!((event.id, event.status), (request.id, 4), "round {round}");
    }
    assert_eq!((server.manager.ids(), server.manager.connections()), (1, 0));
    // The same applies to requests whose events the server does not read in between.
    for _ in 0..200 {
        let id = client.resolved(PortSpace::Tcp, at);
        id.connect(&ConnParam::default().qp_num(Qpn::new(78))).unwrap();
        id.destroy();
    }
    let events: Vec<CmEvent> = (0..400).map(|_| server.channel.get_event(Some(TIMEOUT)).unwrap()).collect();
    let count = |kind| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!([CmEventKind::ConnectRequest, CmEventKind::Rejected].map(count), [200, 200]);
    drop(events);
    assert_eq!((server.manager.ids(), server.manager.connections()), (1, 0));
    assert_eq!(server.manager.counters(0).unwrap().stale, 0);
}

/// Checks that two CM ids may share a port if one of them is bound to the wildcard address, but only if they
/// belong to the same process.
#[test]
fn port_is_shared_within_one_process_only() {
    let (a, b) = (open_shared("127.101.6.1"), open_shared("127.101.6.1"));
    let bind_shared = |side: &Side, at: &str| {
        let id = side.id(PortSpace::Tcp);
        id.set_reuse_addr(true).unwrap();
        id.bind_addr(at.parse().unwrap()).map(|()| id)
    };
    for [first, second] in [["0.0.0.0:7001", "127.101.6.1:7001"], ["127.101.6.1:7002", "0.0.0.0:7002"]] {
        let (first_id, second_id) = (bind_shared(&a, first).unwrap(), bind_shared(&a, second).unwrap());
        // Error of the kernel for two binds of which one is to the wildcard address.
        let errno = |at: &str| if at.starts_with('0') { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE };
        for at in [first, second] {
            assert_eq!(bind_shared(&b, at).unwrap_err().errno(), errno(at), "{at}");
        }
        first_id.destroy();
        assert_eq!(bind_shared(&b, first).unwrap_err().errno(), errno(first));
        // The remaining listener still receives requests.
        second_id.listen(0).unwrap();
        let client_end = b.connecting(a.addr(second_id.local_addr().unwrap().port()), b"");
        a.event(CmEventKind::ConnectRequest).id.reject(b"").unwrap();
        assert_eq!(b.event(CmEventKind::Rejected).id, client_end.id);
        second_id.destroy();
        bind_shared(&b, first).unwrap();
    }
}
