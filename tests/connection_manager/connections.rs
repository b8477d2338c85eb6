//! Establishment and release of connections, and data transfer on them.

use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::cm::*;
use urxe::verbs::*;

use super::stage::*;

/// Establishes a connection, transfers data and releases the connection, with checks of the events on both
/// sides.
fn a_connection(client: &Side, server: &Side, v4: bool, server_ends: bool) {
    let at = (server.ip(v4), 7471).into();
    let listener = server.listen(PortSpace::Tcp, at);
    let mine = client.connecting(at, b"hello");
    assert_eq!(mine.id.peer_addr(), Some(at));
    assert_eq!(mine.id.context().unwrap().gids(), client.context.gids());

    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!(request.listen_id, Some(listener.clone()));
    assert_ne!(request.id, listener);
    assert_eq!((&request.private_data()[..5], request.private_data().len()), (&b"hello"[..], 56));
    assert_eq!((request.id.local_addr(), request.id.peer_addr()), (Some(at), mine.id.local_addr()));
    let EventParam::Connection(asked) = &request.param else { panic!("{request:?}") };
    let all = server.context.query_device().limits.max_qp_rd_atom as u8;
    assert_eq!((asked.qp_num, asked.responder_resources, asked.retry_count), (mine.qp.qpn(), all, 7));

    let theirs = End { qp: server.qp(QpType::Rc), id: request.id.clone() };
    theirs.id.attach_qp(&theirs.qp).unwrap();
    theirs.id.accept(&ConnParam::with_data(b"welcome")).unwrap();
    let answer = client.event(CmEventKind::Established);
    assert_eq!((&answer.private_data()[..7], answer.private_data().len()), (&b"welcome"[..], 196));
    let EventParam::Connection(granted) = &answer.param else { panic!("{answer:?}") };
    assert_eq!((granted.qp_num, answer.id), (theirs.qp.qpn(), mine.id.clone()));
    let established = server.event(CmEventKind::Established);
    assert_eq!((established.id, established.param), (theirs.id.clone(), EventParam::None));
    assert_eq!((mine.qp.state(), theirs.qp.state()), (QpState::Rts, QpState::Rts));
    assert_eq!(mine.qp.query().dest_qpn, Some(theirs.qp.qpn()));

    talk((client, &mine), (server, &theirs));
    talk((server, &theirs), (client, &mine));

    let (first, second) =
        if server_ends { ((server, &theirs), (client, &mine)) } else { ((client, &mine), (server, &theirs)) };
    first.1.id.disconnect().unwrap();
    assert_eq!(first.1.qp.state(), QpState::Err);
    assert_eq!(second.0.event(CmEventKind::Disconnected).id, second.1.id);
    second.1.id.disconnect().unwrap();
    assert_eq!(second.1.qp.state(), QpState::Err);
    assert_eq!(first.0.event(CmEventKind::Disconnected).id, first.1.id);
}

#[test]
fn connection_over_fabric_in_real_time_succeeds() {
    for (v4, server_ends) in [(true, false), (false, true)] {
        let fabric = Fabric::new();
        a_connection(&Side::on(&fabric), &Side::on(&fabric), v4, server_ends);
    }
}

#[test]
fn connection_over_fabric_in_virtual_time_succeeds() {
    for (v4, server_ends) in [(true, true), (false, false)] {
        let fabric = virtual_fabric(slow());
        a_connection(&Side::on(&fabric), &Side::on(&fabric), v4, server_ends);
    }
}

#[test]
fn connection_over_udp_succeeds() {
    a_connection(&Side::on_udp("127.101.1.1"), &Side::on_udp("127.101.1.2"), true, false);
    a_connection(&Side::on_udp("127.101.1.1"), &Side::on_udp("127.101.1.2"), true, true);
}

/// QP1 belongs to one shard, and the connections' queue pairs are spread over all of them.
#[test]
fn connections_to_sharded_nic_succeed() {
    let links = UdpLink::bind_shards("127.101.1.4".parse().unwrap(), &UdpOptions::default(), 4).unwrap();
    let links = links.into_iter().map(|link| Box::new(link) as _).collect();
    let server = Side::new(Context::open_shards(links, &ContextOptions::default()).unwrap());
    let client = Side::on_udp("127.101.1.5");
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let ends: Vec<_> = (0..8).map(|_| connected(&client, &server, at)).collect();
    for (mine, theirs) in &ends {
        talk((&client, mine), (&server, theirs));
        talk((&server, theirs), (&client, mine));
    }
    for (mine, theirs) in ends {
        theirs.id.disconnect().unwrap();
        client.event(CmEventKind::Disconnected);
        mine.id.disconnect().unwrap();
        server.event(CmEventKind::Disconnected);
    }
}

#[test]
fn connection_of_a_device_with_itself_succeeds() {
    let side = Side::on_udp("127.101.1.3");
    let at = side.addr(7471);
    let _listener = side.listen(PortSpace::Tcp, at);
    let mine = side.connecting(at, b"");
    let request = side.event(CmEventKind::ConnectRequest);
    let theirs = End { qp: side.qp(QpType::Rc), id: request.id };
    theirs.id.attach_qp(&theirs.qp).unwrap();
    theirs.id.accept(&ConnParam::default()).unwrap();
    let mut ready: Vec<u64> = (0..2).map(|_| side.event(CmEventKind::Established).id.number()).collect();
    ready.sort_unstable();
    let mut ids = [mine.id.number(), theirs.id.number()];
    ids.sort_unstable();
    assert_eq!(ready, ids);
    talk((&side, &mine), (&side, &theirs));
}

#[test]
fn uc_connection_transfers_messages() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(5);
    let listener =
        server.manager.create_id_with_qp_type(&server.channel, PortSpace::Tcp, QpType::Uc).unwrap();
    listener.bind_addr(at).unwrap();
    listener.listen(0).unwrap();
    let id = client.manager.create_id_with_qp_type(&client.channel, PortSpace::Tcp, QpType::Uc).unwrap();
    id.resolve_addr(None, at, SOON).unwrap();
    client.event(CmEventKind::AddrResolved);
    id.resolve_route(SOON).unwrap();
    client.event(CmEventKind::RouteResolved);
    let qp = client.qp(QpType::Uc);
    assert!(matches!(id.attach_qp(&client.qp(QpType::Rc)), Err(IdError::QpType { .. })));
    id.attach_qp(&qp).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!(request.id.qp_type(), Some(QpType::Uc));
    let theirs = server.qp(QpType::Uc);
    request.id.attach_qp(&theirs).unwrap();
    request.id.accept(&ConnParam::default()).unwrap();
    client.event(CmEventKind::Established);
    assert_eq!((qp.state(), theirs.state()), (QpState::Rts, QpState::Rts));
}

/// Programs that manage their queue pairs themselves: the manager provides the attributes, and the programs
/// report when their queue pairs are ready.
#[test]
fn connection_with_qps_managed_by_programs_succeeds() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(5);
    let _listener = server.listen(PortSpace::Tcp, at);
    let id = client.resolved(PortSpace::Tcp, at);
    let qp = client.qp(QpType::Rc);
    assert!(matches!(id.connect(&ConnParam::default()), Err(IdError::NoQp)));
    assert!(matches!(id.init_qp_attr(QpState::Rtr), Err(IdError::NoAttributes(_))));
    qp.modify(&id.init_qp_attr(QpState::Init).unwrap()).unwrap();
    let param = ConnParam { qp_num: Some(qp.qpn()), ..ConnParam::default() };
    id.connect(&param).unwrap();

    let request = server.event(CmEventKind::ConnectRequest);
    let theirs = End { qp: server.qp(QpType::Rc), id: request.id };
    for state in [QpState::Init, QpState::Rtr] {
        theirs.qp.modify(&theirs.id.init_qp_attr(state).unwrap()).unwrap();
    }
    theirs.id.accept(&ConnParam { qp_num: Some(theirs.qp.qpn()), ..ConnParam::default() }).unwrap();

    let response = client.event(CmEventKind::ConnectResponse);
    assert_eq!(response.id, id);
    assert_eq!(qp.state(), QpState::Init, "the manager leaves it alone");
    for state in [QpState::Rtr, QpState::Rts] {
        qp.modify(&id.init_qp_attr(state).unwrap()).unwrap();
    }
    id.establish().unwrap();
    server.event(CmEventKind::Established);
    theirs.qp.modify(&theirs.id.init_qp_attr(QpState::Rts).unwrap()).unwrap();
    let mine = End { id, qp };
    talk((&client, &mine), (&server, &theirs));
    talk((&server, &theirs), (&client, &mine));
}

#[test]
fn connection_parameters_are_applied_to_both_qps() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(5);
    let _listener = server.listen(PortSpace::Tcp, at);
    let id = client.resolved(PortSpace::Tcp, at);
    let qp = client.qp(QpType::Rc);
    id.attach_qp(&qp).unwrap();
    id.set_tos(0x28).unwrap();
    id.set_ack_timeout(17).unwrap();
    id.set_ece(Ece { vendor_id: 0x15b3, options: 7 }).unwrap();
    let param = |responder_resources, initiator_depth| ConnParam {
        responder_resources,
        initiator_depth,
        retry_count: 3,
        rnr_retry_count: 5,
        ..ConnParam::default()
    };
    assert!(matches!(id.connect(&param(200, 1)), Err(IdError::Value { value: 200, .. })));
    id.connect(&param(4, 9)).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!(request.id.remote_ece(), Ece { vendor_id: 0x15b3, options: 7 });
    let EventParam::Connection(asked) = &request.param else { panic!("{request:?}") };
    assert_eq!((asked.responder_resources, asked.initiator_depth), (9, 4), "seen from this side");
    assert_eq!((asked.retry_count, asked.rnr_retry_count), (3, 5));
    let theirs = server.qp(QpType::Rc);
    request.id.attach_qp(&theirs).unwrap();
    request.id.accept(&ConnParam { rnr_retry_count: 2, ..param(6, 3) }).unwrap();
    client.event(CmEventKind::Established);
    let (mine, theirs) = (qp.query(), theirs.query());
    assert_eq!((mine.max_rd_atomic, mine.max_dest_rd_atomic), (Some(6), Some(3)));
    assert_eq!((theirs.max_rd_atomic, theirs.max_dest_rd_atomic), (Some(3), Some(6)));
    assert_eq!((mine.retry_cnt, theirs.retry_cnt), (Some(3), Some(3)));
    assert_eq!((mine.rnr_retry, theirs.rnr_retry), (Some(2), Some(5)), "each side says it for the other");
    assert_eq!(mine.timeout, Some(AckTimeout::new(17)));
    assert_eq!(mine.av.unwrap().traffic_class, 0x28);
    assert_eq!(mine.path_mtu, Some(client.context.query_port().active_mtu));
}

/// Data that arrives before the RTU establishes the connection.
#[test]
fn data_before_rtu_establishes_the_connection() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(5);
    let _listener = server.listen(PortSpace::Tcp, at);
    let id = client.resolved(PortSpace::Tcp, at);
    let qp = client.qp(QpType::Rc);
    qp.modify(&id.init_qp_attr(QpState::Init).unwrap()).unwrap();
    id.connect(&ConnParam { qp_num: Some(qp.qpn()), ..ConnParam::default() }).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    let theirs = End { qp: server.qp(QpType::Rc), id: request.id };
    for state in [QpState::Init, QpState::Rtr] {
        theirs.qp.modify(&theirs.id.init_qp_attr(state).unwrap()).unwrap();
    }
    theirs.id.accept(&ConnParam { qp_num: Some(theirs.qp.qpn()), ..ConnParam::default() }).unwrap();
    theirs.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    client.event(CmEventKind::ConnectResponse);
    for state in [QpState::Rtr, QpState::Rts] {
        qp.modify(&id.init_qp_attr(state).unwrap()).unwrap();
    }
    qp.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(server.cq.wait(SOON).unwrap().wr_id, 1);
    let event = server.context.wait_event(SOON).unwrap();
    assert_eq!(event, AsyncEvent::CommunicationEstablished(theirs.qp.qpn()));
    assert!(server.channel.try_event().is_none());
    theirs.id.notify(event).unwrap();
    assert_eq!(server.event(CmEventKind::Established).id, theirs.id);
    // A late `establish` has no effect.
    id.establish().unwrap();
    id.disconnect().unwrap();
    server.event(CmEventKind::Disconnected);
}
