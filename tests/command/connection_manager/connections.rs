//! Tests that connections are established, transfer data, and are released.

use urxe::verbs::cm::*;
use urxe::verbs::*;

use urxe_test_support::connections::*;
use urxe_test_support::nic;

/// Establishes a connection, transfers data and releases the connection, and checks the events on both sides.
fn check_connection(client: &Side, server: &Side, v4: bool, server_ends: bool) {
    let at = (server.ip(v4), 7471).into();
    let listener = server.listen(PortSpace::Tcp, at);
    let client_end = client.connecting(at, b"hello");
    assert_eq!(client_end.id.peer_addr(), Some(at));
    assert_eq!(client_end.id.context().unwrap().gids(), client.context.gids());

    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!(request.listen_id, Some(listener.clone()));
    assert_ne!(request.id, listener);
    assert_eq!((&request.private_data()[..5], request.private_data().len()), (&b"hello"[..], 56));
    assert_eq!((request.id.local_addr(), request.id.peer_addr()), (Some(at), client_end.id.local_addr()));
    let EventParam::Connection(requested) = &request.param else { panic!("{request:?}") };
    let max_rd_atomic = server.context.query_device().limits.max_qp_rd_atom as u8;
    assert_eq!(
        (requested.qp_num, requested.responder_resources, requested.retry_count),
        (client_end.qp.qpn(), max_rd_atomic, 7)
    );

    let server_end = End { qp: server.qp(QpType::Rc), id: request.id.clone() };
    server_end.id.attach_qp(&server_end.qp).unwrap();
    server_end.id.accept(&ConnParam::with_data(b"welcome")).unwrap();
    let response = client.event(CmEventKind::Established);
    assert_eq!((&response.private_data()[..7], response.private_data().len()), (&b"welcome"[..], 196));
    let EventParam::Connection(accepted) = &response.param else { panic!("{response:?}") };
    assert_eq!((accepted.qp_num, response.id), (server_end.qp.qpn(), client_end.id.clone()));
    let established = server.event(CmEventKind::Established);
    assert_eq!((established.id, established.param), (server_end.id.clone(), EventParam::None));
    assert_eq!((client_end.qp.state(), server_end.qp.state()), (QpState::Rts, QpState::Rts));
    assert_eq!(client_end.qp.query().dest_qpn, Some(server_end.qp.qpn()));

    check_transfer((client, &client_end), (server, &server_end));
    check_transfer((server, &server_end), (client, &client_end));

    let (first, second) = if server_ends {
        ((server, &server_end), (client, &client_end))
    } else {
        ((client, &client_end), (server, &server_end))
    };
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
        check_connection(&Side::on(&fabric), &Side::on(&fabric), v4, server_ends);
    }
}

#[test]
fn connection_over_fabric_in_virtual_time_succeeds() {
    for (v4, server_ends) in [(true, true), (false, false)] {
        let fabric = virtual_fabric(slow());
        check_connection(&Side::on(&fabric), &Side::on(&fabric), v4, server_ends);
    }
}

#[test]
fn connection_over_udp_succeeds() {
    check_connection(&Side::on_udp("127.101.1.1"), &Side::on_udp("127.101.1.2"), true, false);
    check_connection(&Side::on_udp("127.101.1.1"), &Side::on_udp("127.101.1.2"), true, true);
}

/// Connects to a NIC with four shards: one shard handles QP1, and the connections' queue pairs are spread
/// over all shards.
#[test]
fn connections_to_sharded_nic_succeed() {
    let server = Side::new(nic::on_udp("127.101.1.4", 4));
    let client = Side::on_udp("127.101.1.5");
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Tcp, at);
    let ends: Vec<_> = (0..8).map(|_| connected(&client, &server, at)).collect();
    for (client_end, server_end) in &ends {
        check_transfer((&client, client_end), (&server, server_end));
        check_transfer((&server, server_end), (&client, client_end));
    }
    for (client_end, server_end) in ends {
        server_end.id.disconnect().unwrap();
        client.event(CmEventKind::Disconnected);
        client_end.id.disconnect().unwrap();
        server.event(CmEventKind::Disconnected);
    }
}

#[test]
fn connection_of_a_device_with_itself_succeeds() {
    let side = Side::on_udp("127.101.1.3");
    let at = side.addr(7471);
    let _listener = side.listen(PortSpace::Tcp, at);
    let client_end = side.connecting(at, b"");
    let request = side.event(CmEventKind::ConnectRequest);
    let server_end = End { qp: side.qp(QpType::Rc), id: request.id };
    server_end.id.attach_qp(&server_end.qp).unwrap();
    server_end.id.accept(&ConnParam::default()).unwrap();
    let mut ready: Vec<u64> = (0..2).map(|_| side.event(CmEventKind::Established).id.number()).collect();
    ready.sort_unstable();
    let mut ids = [client_end.id.number(), server_end.id.number()];
    ids.sort_unstable();
    assert_eq!(ready, ids);
    check_transfer((&side, &client_end), (&side, &server_end));
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
    id.resolve_addr(None, at, TIMEOUT).unwrap();
    client.event(CmEventKind::AddrResolved);
    id.resolve_route(TIMEOUT).unwrap();
    client.event(CmEventKind::RouteResolved);
    let qp = client.qp(QpType::Uc);
    assert!(matches!(id.attach_qp(&client.qp(QpType::Rc)), Err(IdError::QpType { .. })));
    id.attach_qp(&qp).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!(request.id.qp_type(), Some(QpType::Uc));
    let server_qp = server.qp(QpType::Uc);
    request.id.attach_qp(&server_qp).unwrap();
    request.id.accept(&ConnParam::default()).unwrap();
    client.event(CmEventKind::Established);
    assert_eq!((qp.state(), server_qp.state()), (QpState::Rts, QpState::Rts));
}

/// Connects two programs that modify their queue pairs themselves: the connection manager provides the
/// attributes, and the programs report when their queue pairs are ready.
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
    let param = ConnParam::default().qp_num(qp.qpn());
    id.connect(&param).unwrap();

    let request = server.event(CmEventKind::ConnectRequest);
    let server_end = End { qp: server.qp(QpType::Rc), id: request.id };
    for state in [QpState::Init, QpState::Rtr] {
        server_end.qp.modify(&server_end.id.init_qp_attr(state).unwrap()).unwrap();
    }
    server_end.id.accept(&ConnParam::default().qp_num(server_end.qp.qpn())).unwrap();

    let response = client.event(CmEventKind::ConnectResponse);
    assert_eq!(response.id, id);
    assert_eq!(qp.state(), QpState::Init, "the manager does not modify the queue pair");
    for state in [QpState::Rtr, QpState::Rts] {
        qp.modify(&id.init_qp_attr(state).unwrap()).unwrap();
    }
    id.establish().unwrap();
    server.event(CmEventKind::Established);
    server_end.qp.modify(&server_end.id.init_qp_attr(QpState::Rts).unwrap()).unwrap();
    let client_end = End { id, qp };
    check_transfer((&client, &client_end), (&server, &server_end));
    check_transfer((&server, &server_end), (&client, &client_end));
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
    let param = |responder_resources, initiator_depth| {
        ConnParam::default()
            .responder_resources(responder_resources)
            .initiator_depth(initiator_depth)
            .retry_count(3)
            .rnr_retry_count(5)
    };
    assert!(matches!(id.connect(&param(200, 1)), Err(IdError::Value { value: 200, .. })));
    id.connect(&param(4, 9)).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!(request.id.remote_ece(), Ece { vendor_id: 0x15b3, options: 7 });
    let EventParam::Connection(requested) = &request.param else { panic!("{request:?}") };
    assert_eq!(
        (requested.responder_resources, requested.initiator_depth),
        (9, 4),
        "the values from the server's point of view"
    );
    assert_eq!((requested.retry_count, requested.rnr_retry_count), (3, 5));
    let server_qp = server.qp(QpType::Rc);
    request.id.attach_qp(&server_qp).unwrap();
    request.id.accept(&param(6, 3).rnr_retry_count(2)).unwrap();
    client.event(CmEventKind::Established);
    let (client_attr, server_attr) = (qp.query(), server_qp.query());
    assert_eq!((client_attr.max_rd_atomic, client_attr.max_dest_rd_atomic), (Some(6), Some(3)));
    assert_eq!((server_attr.max_rd_atomic, server_attr.max_dest_rd_atomic), (Some(3), Some(6)));
    assert_eq!((client_attr.retry_cnt, server_attr.retry_cnt), (Some(3), Some(3)));
    assert_eq!(
        (client_attr.rnr_retry, server_attr.rnr_retry),
        (Some(2), Some(5)),
        "each side sets the RNR retry count of the other"
    );
    assert_eq!(client_attr.timeout, Some(AckTimeout::new(17)));
    assert_eq!(client_attr.av.unwrap().traffic_class, 0x28);
    assert_eq!(client_attr.path_mtu, Some(client.context.query_port().active_mtu));
}

/// Checks that data that arrives before the RTU establishes the server's connection.
#[test]
fn server_connection_is_established_by_data_that_arrives_before_the_rtu() {
    let fabric = virtual_fabric(slow());
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let at = server.addr(5);
    let _listener = server.listen(PortSpace::Tcp, at);
    let id = client.resolved(PortSpace::Tcp, at);
    let qp = client.qp(QpType::Rc);
    qp.modify(&id.init_qp_attr(QpState::Init).unwrap()).unwrap();
    id.connect(&ConnParam::default().qp_num(qp.qpn())).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    let server_end = End { qp: server.qp(QpType::Rc), id: request.id };
    for state in [QpState::Init, QpState::Rtr] {
        server_end.qp.modify(&server_end.id.init_qp_attr(state).unwrap()).unwrap();
    }
    server_end.id.accept(&ConnParam::default().qp_num(server_end.qp.qpn())).unwrap();
    server_end.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    client.event(CmEventKind::ConnectResponse);
    for state in [QpState::Rtr, QpState::Rts] {
        qp.modify(&id.init_qp_attr(state).unwrap()).unwrap();
    }
    qp.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(server.cq.wait(TIMEOUT).unwrap().wr_id, 1);
    let event = server.context.wait_event(TIMEOUT).unwrap();
    assert_eq!(event, AsyncEvent::CommunicationEstablished(server_end.qp.qpn()));
    assert!(server.channel.try_event().is_none());
    server_end.id.notify(event).unwrap();
    assert_eq!(server.event(CmEventKind::Established).id, server_end.id);
    // A late `establish` has no effect.
    id.establish().unwrap();
    id.disconnect().unwrap();
    server.event(CmEventKind::Disconnected);
}
