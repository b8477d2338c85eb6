//! Alternate paths and simultaneous (peer-to-peer) connects, which the protocol has and librdmacm does not.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use urxe::link::Link;
use urxe::verbs::cm::*;
use urxe::verbs::*;

use super::stage::*;

/// Returns a side whose device has two addresses and receives nothing at the first one once `cut` is set.
fn multihomed(fabric: &Fabric, host: u8, cut: &Arc<AtomicBool>) -> (Side, [IpAddr; 2]) {
    let addresses = [1, 2].map(|net| IpAddr::from([10, 0, net, host]));
    let at_the_second: Receive = |port, now, sink| {
        let first = port.info().addresses[0];
        port.receive(now, &mut |burst| {
            if burst.flow.dst != first {
                sink(burst);
            }
        })
    };
    (Side::breakable(fabric, &addresses, cut, at_the_second), addresses)
}

#[test]
fn connection_migrates_to_loaded_alternate_path() {
    let (fabric, cut) = (virtual_fabric(slow()), Arc::default());
    let ((client, from), (server, to)) = (multihomed(&fabric, 1, &cut), multihomed(&fabric, 2, &cut));
    let at = (to[0], 7).into();
    let _listener = server.listen(PortSpace::Tcp, at);
    let (mine, theirs) = connected(&client, &server, at);
    mine.id.load_alternate(from[1], to[1]).unwrap();
    assert!(mine.id.load_alternate(from[1], to[1]).is_err(), "one at a time");
    let event = client.event(CmEventKind::AlternatePath);
    assert_eq!((event.id, event.status), (mine.id.clone(), 0));
    assert_eq!(CmEventKind::AlternatePath.name(), "alternate path");
    talk((&client, &mine), (&server, &theirs));
    let there = |end: &End| end.qp.query().av.map(|av| av.dgid.ip());
    assert_eq!([there(&mine), there(&theirs)], [Some(to[0]), Some(from[0])]);
    cut.store(true, Ordering::SeqCst);
    talk((&client, &mine), (&server, &theirs));
    talk((&server, &theirs), (&client, &mine));
    assert_eq!([there(&mine), there(&theirs)], [Some(to[1]), Some(from[1])]);
    for side in [&client, &server] {
        assert!(
            std::iter::from_fn(|| side.context.next_event())
                .any(|e| matches!(e, AsyncEvent::PathMigrated(_)))
        );
    }
}

#[test]
fn invalid_alternate_path_is_rejected() {
    let (fabric, cut) = (virtual_fabric(slow()), Arc::default());
    let ((client, from), (server, to)) = (multihomed(&fabric, 1, &cut), multihomed(&fabric, 2, &cut));
    let at = (to[0], 7).into();
    let _listener = server.listen(PortSpace::Tcp, at);
    let (mine, theirs) = connected(&client, &server, at);
    let nowhere = IpAddr::from([10, 0, 9, 9]);
    assert!(matches!(mine.id.load_alternate(nowhere, to[1]), Err(IdError::NoDevice(_))));
    assert!(matches!(
        mine.id.load_alternate(from[1], "fd00::1".parse().unwrap()),
        Err(IdError::Family { .. })
    ));
    // The server has no such address ("invalid GID"), or no queue pair to load the path into ("not
    // supported").
    mine.id.load_alternate(from[1], nowhere).unwrap();
    assert_eq!(client.event(CmEventKind::AlternatePath).status, 8);
    theirs.id.detach_qp();
    mine.id.load_alternate(from[1], to[1]).unwrap();
    assert_eq!(client.event(CmEventKind::AlternatePath).status, 2);
    // An unreachable peer does not respond.
    fabric.set_port_up(to[0], false).unwrap();
    mine.id.load_alternate(from[1], to[1]).unwrap();
    let event = client.event_within(CmEventKind::AlternatePath, EVER);
    assert_eq!(event.status, -libc::ETIMEDOUT);
    mine.id.disconnect().unwrap();
    assert!(mine.id.load_alternate(from[1], to[1]).is_err());
}

/// Returns an id, bound to a port and resolved to the same port of the other side, and its queue pair.
fn peer(side: &Side, to: &Side, port: u16) -> End {
    let id = side.id(PortSpace::Tcp);
    id.bind_addr(side.addr(port)).unwrap();
    id.resolve_addr(None, to.addr(port), SOON).unwrap();
    side.event(CmEventKind::AddrResolved);
    id.resolve_route(SOON).unwrap();
    side.event(CmEventKind::RouteResolved);
    let qp = side.qp(QpType::Rc);
    id.attach_qp(&qp).unwrap();
    End { id, qp }
}

#[test]
fn simultaneous_connects_form_one_connection() {
    let orders = [0, 1].into_iter().flat_map(|first| [(first, 0), (first, 300), (first, 900)]);
    for (first, late) in orders.map(|(first, late)| (first, Duration::from_millis(late))) {
        let fabric = virtual_fabric(slow());
        let sides = [Side::on(&fabric), Side::on(&fabric)];
        let [a, b] = &sides;
        let ends = [peer(a, b, 7), peer(b, a, 7)];
        for (turn, n) in [first, 1 - first].into_iter().enumerate() {
            // The other side starts within the grace period.
            fabric.run_until_idle(late * turn as u32);
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
        talk((a, &ends[0]), (b, &ends[1]));
        talk((b, &ends[1]), (a, &ends[0]));
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
    let (mine, theirs) = (peer(&a, &b, 7), peer(&b, &a, 7));
    mine.id.connect_peer(&ConnParam::default()).unwrap();
    fabric.run_until_idle(Duration::from_millis(1));
    assert_eq!(a.event(CmEventKind::Rejected).status, 8);
    // A plain connect does not match a simultaneous connect.
    theirs.id.connect(&ConnParam::default()).unwrap();
    let again = peer(&a, &b, 8);
    again.id.connect_peer(&ConnParam::default()).unwrap();
    assert_eq!(b.event(CmEventKind::Rejected).id, theirs.id);
    assert_eq!(a.event(CmEventKind::Rejected).id, again.id);
    let bare = a.resolved(PortSpace::Tcp, b.addr(9));
    assert!(matches!(bare.connect_peer(&ConnParam::default()), Err(IdError::NoQp)));
}
