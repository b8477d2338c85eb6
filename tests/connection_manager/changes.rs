//! Devices that lose an address or are removed while ids are in use.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use urxe::verbs::cm::*;
use urxe::verbs::*;

use super::stage::*;

/// Returns a side whose device can be removed, and the flag that removes it.
fn loose(fabric: &Fabric) -> (Side, Arc<AtomicBool>) {
    let gone = Arc::default();
    let fails: Receive = |_, _, _| Err(io::Error::other("it was taken away"));
    (Side::breakable(fabric, &fabric.auto_address(), &gone, fails), gone)
}

/// Returns the queued events with the numbers of their ids.
fn events(side: &Side) -> Vec<(u64, CmEventKind)> {
    let mut all: Vec<(u64, CmEventKind)> = std::iter::from_fn(|| side.channel.try_event())
        .map(|event| (event.id.number(), event.kind))
        .collect();
    all.sort_by_key(|(id, _)| *id);
    all
}

#[test]
fn device_removal_raises_one_event_per_id() {
    let fabric = virtual_fabric(slow());
    let ((client, gone), server) = (loose(&fabric), Side::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let (mine, theirs) = connected(&client, &server, at);
    let waits = client.connecting(at, b"");
    let own = client.listen(PortSpace::Tcp, client.addr(8));
    let on_all = client.listen(PortSpace::Tcp, "0.0.0.0:9".parse().unwrap());
    let resolved = client.id(PortSpace::Tcp);
    resolved.resolve_addr(None, at, SOON).unwrap();
    client.event(CmEventKind::AddrResolved);
    server.event(CmEventKind::ConnectRequest);
    gone.store(true, Ordering::SeqCst);
    fabric.run_until_idle(SOON);
    let told = [&mine.id, &waits.id, &own, &resolved].map(|id| (id.number(), CmEventKind::DeviceRemoval));
    assert_eq!(events(&client), told);
    for qp in [&mine.qp, &waits.qp] {
        assert_eq!(qp.state(), QpState::Err);
    }
    // Calls on these ids have no effect, and no further event follows.
    mine.id.disconnect().unwrap();
    assert!(matches!(resolved.resolve_route(SOON), Err(IdError::State { .. })));
    let id = client.id(PortSpace::Tcp);
    id.resolve_addr(None, at, SOON).unwrap();
    let event = client.event(CmEventKind::AddrError);
    assert_eq!((event.id, event.status), (id, -libc::ENODEV));
    client.id(PortSpace::Tcp).bind_addr("0.0.0.0:10".parse().unwrap()).unwrap();
    drop((mine, waits, own, resolved, on_all));
    // The peer detects the failure by its own timeouts.
    theirs.id.disconnect().unwrap();
    assert_eq!(server.event_within(CmEventKind::Disconnected, EVER).id, theirs.id);
    assert_eq!((events(&client), client.manager.connections()), (vec![], 0));
}

#[test]
fn device_removal_is_detected_in_real_time() {
    let fabric = Fabric::new();
    let ((client, gone), server) = (loose(&fabric), Side::on(&fabric));
    let _listener = server.listen(PortSpace::Tcp, server.addr(7));
    let (mine, _theirs) = connected(&client, &server, server.addr(7));
    gone.store(true, Ordering::SeqCst);
    // Polling detects that the link has failed.
    client.context.poll();
    assert_eq!(client.event(CmEventKind::DeviceRemoval).id, mine.id);
    assert_eq!(mine.qp.state(), QpState::Err);
    let other = Side::on(&fabric);
    let _left = client.manager.add_device(other.manager.devices()[0].clone()).unwrap_err();
    // Another device replaces the removed one.
    drop(other.manager);
    client.manager.add_device(other.context).unwrap();
    let again = client.resolved(PortSpace::Tcp, server.addr(7));
    assert_eq!(again.device_index(), Some(1));
}

#[test]
fn removed_address_raises_addr_change_for_its_ids() {
    for fabric in [virtual_fabric(slow()), Fabric::new()] {
        let (client, server) = (Side::on(&fabric), Side::on(&fabric));
        let [v4, v6] = [true, false].map(|v4| client.ip(v4));
        let other: IpAddr = "10.9.9.9".parse().unwrap();
        let at = (server.ip(true), 7).into();
        let _listener = server.listen(PortSpace::Tcp, at);
        let (mine, _theirs) = connected(&client, &server, at);
        let on_v4 = client.listen(PortSpace::Tcp, (v4, 8).into());
        let on_v6 = client.listen(PortSpace::Tcp, (v6, 8).into());
        let to = client.id(PortSpace::Tcp);
        to.resolve_addr(None, at, SOON).unwrap();
        client.event(CmEventKind::AddrResolved);
        fabric.set_addresses(v4, &[other, v6]).unwrap();
        let told: Vec<(u64, CmEventKind)> = (0..3)
            .map(|_| client.channel.get_event(Some(SOON)).unwrap())
            .map(|event| (event.id.number(), event.kind))
            .collect();
        for id in [&mine.id, &on_v4, &to] {
            assert!(told.contains(&(id.number(), CmEventKind::AddrChange)), "{told:?}");
        }
        assert_eq!(events(&client), []);
        // The source address of the path no longer exists, so there is no route.
        to.resolve_route(SOON).unwrap();
        let event = client.event(CmEventKind::RouteError);
        assert_eq!((&event.id, event.status), (&to, -libc::ENETUNREACH));
        // A listener can be bound to the new address.
        let on_other = client.listen(PortSpace::Tcp, (other, 8).into());
        // The old address returns, and the route with it.
        fabric.set_addresses(other, &[v4, v6]).unwrap();
        assert_eq!(client.event(CmEventKind::AddrChange).id, on_other);
        to.resolve_route(SOON).unwrap();
        assert_eq!(client.event(CmEventKind::RouteResolved).id, to);
        assert_eq!(to.path().unwrap().sgid.ip(), v4);
        assert_eq!(events(&client), []);
        drop(on_v6);
    }
}
