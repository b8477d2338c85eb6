//! Tests of devices that lose an address or are removed while CM ids are in use.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use urxe::verbs::cm::*;
use urxe::verbs::*;

use urxe_test_support::breakable::Receive;
use urxe_test_support::connections::*;

/// Returns a side with a removable device, and the flag that removes the device when it is set.
fn removable(fabric: &Fabric) -> (Side, Arc<AtomicBool>) {
    let removed = Arc::default();
    let fail: Receive = |_, _, _| Err(io::Error::other("the device was removed"));
    (Side::breakable(fabric, &fabric.auto_address(), &removed, fail), removed)
}

/// Takes all queued events, and returns (CM id number, kind) for each, sorted by number.
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
    let ((client, removed), server) = (removable(&fabric), Side::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let (client_end, server_end) = connected(&client, &server, at);
    let pending = client.connecting(at, b"");
    let bound_listener = client.listen(PortSpace::Tcp, client.addr(8));
    let wildcard_listener = client.listen(PortSpace::Tcp, "0.0.0.0:9".parse().unwrap());
    let resolved = client.id(PortSpace::Tcp);
    resolved.resolve_addr(None, at, TIMEOUT).unwrap();
    client.event(CmEventKind::AddrResolved);
    server.event(CmEventKind::ConnectRequest);
    removed.store(true, Ordering::SeqCst);
    fabric.run_until_idle(TIMEOUT);
    let raised = [&client_end.id, &pending.id, &bound_listener, &resolved]
        .map(|id| (id.number(), CmEventKind::DeviceRemoval));
    assert_eq!(events(&client), raised);
    for qp in [&client_end.qp, &pending.qp] {
        assert_eq!(qp.state(), QpState::Err);
    }
    // Calls on these ids have no effect, and no further event follows.
    client_end.id.disconnect().unwrap();
    assert!(matches!(resolved.resolve_route(TIMEOUT), Err(IdError::State { .. })));
    let id = client.id(PortSpace::Tcp);
    id.resolve_addr(None, at, TIMEOUT).unwrap();
    let event = client.event(CmEventKind::AddrError);
    assert_eq!((event.id, event.status), (id, -libc::ENODEV));
    client.id(PortSpace::Tcp).bind_addr("0.0.0.0:10".parse().unwrap()).unwrap();
    drop((client_end, pending, bound_listener, resolved, wildcard_listener));
    // The peer detects the failure by its own timeouts.
    server_end.id.disconnect().unwrap();
    assert_eq!(server.event_within(CmEventKind::Disconnected, LONG_TIMEOUT).id, server_end.id);
    assert_eq!((events(&client), client.manager.connections()), (vec![], 0));
}

#[test]
fn device_removal_is_detected_in_real_time() {
    let fabric = Fabric::new();
    let ((client, removed), server) = (removable(&fabric), Side::on(&fabric));
    let _listener = server.listen(PortSpace::Tcp, server.addr(7));
    let (client_end, _theirs) = connected(&client, &server, server.addr(7));
    removed.store(true, Ordering::SeqCst);
    // Polling detects that the link has failed.
    client.context.poll();
    assert_eq!(client.event(CmEventKind::DeviceRemoval).id, client_end.id);
    assert_eq!(client_end.qp.state(), QpState::Err);
    let other = Side::on(&fabric);
    let _in_use = client.manager.add_device(other.manager.devices()[0].clone()).unwrap_err();
    // Another device replaces the removed one.
    drop(other.manager);
    client.manager.add_device(other.context).unwrap();
    let replacement_id = client.resolved(PortSpace::Tcp, server.addr(7));
    assert_eq!(replacement_id.device_index(), Some(1));
}

#[test]
fn removal_of_an_address_raises_addr_change_for_its_ids() {
    for fabric in [virtual_fabric(slow()), Fabric::new()] {
        let (client, server) = (Side::on(&fabric), Side::on(&fabric));
        let [v4, v6] = [true, false].map(|v4| client.ip(v4));
        let other: IpAddr = "10.9.9.9".parse().unwrap();
        let at = (server.ip(true), 7).into();
        let _listener = server.listen(PortSpace::Tcp, at);
        let (client_end, _theirs) = connected(&client, &server, at);
        let v4_listener = client.listen(PortSpace::Tcp, (v4, 8).into());
        let v6_listener = client.listen(PortSpace::Tcp, (v6, 8).into());
        let client_id = client.id(PortSpace::Tcp);
        client_id.resolve_addr(None, at, TIMEOUT).unwrap();
        client.event(CmEventKind::AddrResolved);
        fabric.set_addresses(v4, &[other, v6]).unwrap();
        let raised: Vec<(u64, CmEventKind)> = (0..3)
            .map(|_| client.channel.get_event(Some(TIMEOUT)).unwrap())
            .map(|event| (event.id.number(), event.kind))
            .collect();
        for id in [&client_end.id, &v4_listener, &client_id] {
            assert!(raised.contains(&(id.number(), CmEventKind::AddrChange)), "{raised:?}");
        }
        assert_eq!(events(&client), []);
        // The source address of the path no longer exists, so there is no route.
        client_id.resolve_route(TIMEOUT).unwrap();
        let event = client.event(CmEventKind::RouteError);
        assert_eq!((&event.id, event.status), (&client_id, -libc::ENETUNREACH));
        // A listener can be bound to the new address.
        let new_listener = client.listen(PortSpace::Tcp, (other, 8).into());
        // When the old address returns, the route exists again.
        fabric.set_addresses(other, &[v4, v6]).unwrap();
        assert_eq!(client.event(CmEventKind::AddrChange).id, new_listener);
        client_id.resolve_route(TIMEOUT).unwrap();
        assert_eq!(client.event(CmEventKind::RouteResolved).id, client_id);
        assert_eq!(client_id.path().unwrap().sgid.ip(), v4);
        assert_eq!(events(&client), []);
        drop(v6_listener);
    }
}
