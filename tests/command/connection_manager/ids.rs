//! Tests of CM ids and event channels: order of calls, destruction, and ids that move between channels.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use urxe::verbs::cm::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;

use urxe_test_support::connections::*;

fn is_readable(channel: &EventChannel, ms: u16) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(ms)).unwrap() == 1
}

#[test]
fn call_in_wrong_state_fails() {
    let fabric = virtual_fabric(slow());
    let side = Side::on(&fabric);
    let id = side.id(PortSpace::Tcp);
    for refused in [
        id.resolve_route(TIMEOUT),
        id.connect(&ConnParam::default()),
        id.accept(&ConnParam::default()),
        id.reject(b""),
        id.establish(),
        id.disconnect(),
        id.attach_qp(&side.qp(QpType::Rc)),
    ] {
        let e = refused.unwrap_err();
        assert_eq!((matches!(e, IdError::State { .. }), e.errno()), (true, libc::EINVAL), "{e}");
    }
    id.bind_addr(side.addr(7)).unwrap();
    assert!(matches!(id.bind_addr(side.addr(8)), Err(IdError::State { .. })));
    id.destroy();
    assert!(matches!(id.listen(0), Err(IdError::Ended)));
    assert_eq!((id.local_addr(), side.manager.ids()), (None, 0));
}

#[test]
fn own_event_carries_its_status_and_argument() {
    let fabric = virtual_fabric(slow());
    let side = Side::on(&fabric);
    let id = side.id(PortSpace::Tcp);
    id.write_event(-7, 1 << 40).unwrap();
    let event = side.event(CmEventKind::User);
    assert_eq!((&event.id, event.status, event.param.clone()), (&id, -7, EventParam::User(1 << 40)));
    assert!(event.private_data().is_empty());
    id.destroy();
    assert!(matches!(id.write_event(0, 0), Err(IdError::Ended)));
}

#[test]
fn failed_call_returns_the_documented_error_for_its_cause() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let unbound = client.id(PortSpace::Tcp);
    let [rc, uc] = [QpType::Rc, QpType::Uc].map(|qp_type| client.qp(qp_type));
    assert!(matches!(unbound.attach_qp(&rc), Err(IdError::State { call: "attach_qp", .. })));
    let missing: IpAddr = "10.9.9.9".parse().unwrap();
    assert!(matches!(unbound.bind_addr((missing, 1).into()), Err(IdError::NoDevice(ip)) if ip == missing));
    let group: SocketAddr = "239.0.0.1:0".parse().unwrap();
    assert!(matches!(unbound.leave_multicast(group), Err(IdError::NoGroup(_))));

    let id = client.resolved(PortSpace::Tcp, server.addr(7));
    let connect = |param: &ConnParam| id.connect(param).unwrap_err();
    assert!(matches!(connect(&ConnParam::default()), IdError::NoQp));
    assert!(matches!(id.connect_peer(&ConnParam::default()), Err(IdError::NoQp)));
    assert!(matches!(id.attach_qp(&uc), Err(IdError::QpType { .. })));
    assert!(matches!(id.attach_qp(&server.qp(QpType::Rc)), Err(IdError::OtherDevice)));
    id.attach_qp(&rc).unwrap();
    let excess = ConnParam::with_data(&[0; 57]);
    assert!(matches!(connect(&excess), IdError::PrivateData { given: 57, max: 56 }));
    let deep = ConnParam::default().initiator_depth(MAX_RD_ATOMIC - 1);
    assert!(matches!(connect(&deep), IdError::Value { name: "initiator_depth", .. }));
    for refused in [id.accept(&ConnParam::default()), id.reject(b""), id.establish(), id.disconnect()] {
        assert!(matches!(refused, Err(IdError::State { .. })), "{refused:?}");
    }
    let alternate = id.load_alternate(client.ip(true), server.ip(true));
    assert!(matches!(alternate, Err(IdError::State { call: "load_alternate", .. })));
    id.destroy();
    assert!(matches!(connect(&ConnParam::default()), IdError::Ended));
    assert_eq!(id.get_request(None).unwrap_err(), WaitError::Idle);
}

#[test]
fn resolving_with_mixed_ip_versions_fails_and_without_a_device_raises_an_event() {
    let fabric = virtual_fabric(slow());
    let side = Side::on(&fabric);
    let id = side.id(PortSpace::Tcp);
    let src = (side.ip(true), 0).into();
    let family = id.resolve_addr(Some(src), "[fd00::1]:7".parse().unwrap(), TIMEOUT);
    assert!(matches!(family, Err(IdError::Family { .. })), "{family:?}");
    let empty = ConnectionManager::new(Vec::new()).unwrap();
    let id = empty.create_id(&side.channel, PortSpace::Tcp).unwrap();
    id.resolve_addr(None, "10.0.0.1:7".parse().unwrap(), TIMEOUT).unwrap();
    let event = side.channel.try_event().unwrap();
    assert_eq!((event.kind, event.status), (CmEventKind::AddrError, -libc::ENODEV));
}

#[test]
fn channel_descriptor_is_readable_while_events_are_queued() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let listener = server.listen(PortSpace::Tcp, server.addr(7));
    assert!(!is_readable(&server.channel, 0));
    let _ends = [client.connecting(server.addr(7), b""), client.connecting(server.addr(7), b"")];
    assert!(is_readable(&server.channel, 5000));
    while server.manager.ids() < 3 {
        std::thread::yield_now();
    }
    let first = server.channel.try_event().unwrap();
    assert!(is_readable(&server.channel, 0));
    listener.destroy();
    assert!(!is_readable(&server.channel, 0), "the queue is empty");
    drop(first);
}

#[test]
fn id_migrates_to_another_channel_with_its_events() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let _listener = server.listen(PortSpace::Tcp, server.addr(7));
    let to = EventChannel::new().unwrap();
    let client_end = client.connecting(server.addr(7), b"");
    let server_end = server.accept(b"");
    fabric.run_until_idle(std::time::Duration::from_millis(1));
    // Until now the event of the connection is queued on the old channel.
    client_end.id.migrate(&to).unwrap();
    let event = to.get_event(Some(TIMEOUT)).unwrap();
    assert_eq!((event.kind, event.id), (CmEventKind::Established, client_end.id.clone()));
    server.event(CmEventKind::Established);
    server_end.id.disconnect().unwrap();
    assert_eq!(to.get_event(Some(TIMEOUT)).unwrap().kind, CmEventKind::Disconnected);
    assert!(client.channel.try_event().is_none());
    // The requests to a listener that migrates arrive on its new channel.
    let listener = server.listen(PortSpace::Tcp, server.addr(8));
    let pending = client.connecting(server.addr(8), b"");
    fabric.run_until_idle(std::time::Duration::from_millis(1));
    listener.migrate(&to).unwrap();
    let request = listener.get_request(Some(TIMEOUT)).unwrap();
    request.id.reject(b"").unwrap();
    assert_eq!(client.event(CmEventKind::Rejected).id, pending.id);
}

#[test]
fn destroying_an_id_disconnects_its_peer() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let _listener = server.listen(PortSpace::Tcp, server.addr(7));
    let (client_end, server_end) = connected(&client, &server, server.addr(7));
    drop(client_end.id);
    assert_eq!(server.event(CmEventKind::Disconnected).id, server_end.id);
    // Destroying an id that waits for a response also cancels its request.
    let client_end = client.connecting(server.addr(7), b"");
    let request = server.event(CmEventKind::ConnectRequest);
    client_end.id.destroy();
    assert_eq!(server.event(CmEventKind::Rejected).id, request.id);
}

#[test]
fn disconnect_still_ends_the_connection_after_its_qp_is_destroyed() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let _listener = server.listen(PortSpace::Tcp, server.addr(7));
    let (client_end, server_end) = connected(&client, &server, server.addr(7));
    drop(client_end.qp);
    client_end.id.disconnect().unwrap();
    server.event(CmEventKind::Disconnected);
    drop(server_end.qp);
    server_end.id.disconnect().unwrap();
    client.event(CmEventKind::Disconnected);
    // If the queue pair is destroyed while the request is pending, the connection fails.
    let End { id, qp } = client.connecting(server.addr(7), b"");
    let request = server.event(CmEventKind::ConnectRequest);
    drop(qp);
    let server_qp = server.qp(QpType::Rc);
    request.id.attach_qp(&server_qp).unwrap();
    request.id.accept(&ConnParam::default()).unwrap();
    let event = client.event(CmEventKind::ConnectError);
    assert_eq!((event.id, event.status), (id, -libc::EINVAL));
    assert_eq!(server.event(CmEventKind::Rejected).id, request.id);
}

#[test]
fn second_connection_manager_of_a_device_cannot_be_created() {
    let fabric = virtual_fabric(slow());
    let side = Side::on(&fabric);
    let second = ConnectionManager::new(vec![side.context.clone()]);
    assert!(matches!(second, Err(IdError::Device(_))), "{second:?}");
    let Side { context, manager, .. } = side;
    drop(manager);
    ConnectionManager::new(vec![context]).unwrap();
}
