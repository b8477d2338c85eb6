//! Many simultaneous connections.

use std::collections::HashMap;
use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::*;

use urxe_test_support::connections::*;

#[test]
fn thousand_simultaneous_connections_succeed() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(7);
    let listener = server.listen(PortSpace::Tcp, at);
    let serving = std::thread::spawn(move || {
        serve(&server, 1000);
        server
    });
    let mut open: HashMap<u64, End> = HashMap::new();
    for _ in 0..1000 {
        let end = start_connect(&client, at);
        open.insert(end.id.number(), end);
    }
    let mut ready = 0;
    while ready < 1000 {
        let event = client.channel.get_event(Some(TIMEOUT)).unwrap();
        match event.kind {
            CmEventKind::AddrResolved => event.id.resolve_route(TIMEOUT).unwrap(),
            CmEventKind::RouteResolved => {
                let end = &open[&event.id.number()];
                end.id.attach_qp(&end.qp).unwrap();
                end.id.connect(&ConnParam::default()).unwrap();
            }
            CmEventKind::Established => ready += 1,
            kind => panic!("{kind:?}: {event:?}"),
        }
    }
    assert!(open.values().all(|end| end.qp.state() == QpState::Rts));
    assert_eq!(client.manager.ids(), 1000);
    open.values().for_each(|end| end.id.disconnect().unwrap());
    for _ in 0..1000 {
        let event = client.event(CmEventKind::Disconnected);
        assert!(open.remove(&event.id.number()).is_some());
    }
    let server = serving.join().unwrap();
    assert_eq!((client.manager.ids(), server.manager.ids()), (0, 1));
    assert_eq!((client.manager.connections(), server.manager.connections()), (0, 0));
    drop(listener);
}

/// Starts to connect to `to` without waiting for any event; returns the CM id and its queue pair.
fn start_connect(side: &Side, to: std::net::SocketAddr) -> End {
    let id = side.id(PortSpace::Tcp);
    id.resolve_addr(None, to, TIMEOUT).unwrap();
    End { id, qp: side.qp(QpType::Rc) }
}

/// Floods a server with requests from one peer; the server accepts none of them.
#[test]
fn flood_of_requests_uses_bounded_memory() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let mut rejected = 0;
    for _ in 0..100 {
        let flood: Vec<CmId> = (0..100)
            .map(|_| {
                let id = client.resolved(PortSpace::Tcp, at);
                id.connect(&ConnParam::default().qp_num(Qpn::new(77))).unwrap();
                id
            })
            .collect();
        fabric.run_until_idle(Duration::from_millis(10));
        while let Some(event) = client.channel.try_event() {
            assert_eq!(event.kind, CmEventKind::Rejected);
            rejected += 1;
        }
        // The ids are not destroyed, so their requests stay open.
        flood.into_iter().for_each(std::mem::forget);
    }
    assert!(server.manager.ids() <= 1 + 1024, "{}", server.manager.ids());
    assert!(rejected >= 8000, "{rejected}");
}
