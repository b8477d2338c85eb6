//! Tests of service ID resolution for datagrams (SIDR), and of multicast joins.

use urxe::verbs::cm::*;
use urxe::verbs::*;

use urxe_test_support::connections::*;

/// Sends a datagram from the queue pair `from.1` to the destination `at`, and checks that the queue pair
/// `to.1` receives it.
fn send(from: (&Side, &Qp), to: (&Side, &Qp), at: &Datagram) {
    let (source, target) =
        (from.0.pd.reg_mr(4096, Access::ALL).unwrap(), to.0.pd.reg_mr(4096, Access::ALL).unwrap());
    source.write(0, b"a datagram").unwrap();
    to.1.post_recv(&RecvWr::new(1, &[target.sge(0..1000)])).unwrap();
    let ah = from.0.pd.create_ah(&at.address).unwrap();
    let sge = [source.sge(0..10)];
    from.1.post_send(&SendWr::send(2, &sge).to(ah.to(at.qp_num, at.qkey))).unwrap();
    assert_eq!(from.0.cq.wait(TIMEOUT).unwrap().wr_id, 2);
    assert_eq!(to.0.cq.wait(TIMEOUT).unwrap().wr_id, 1);
    assert_eq!(&target.to_vec()[40..50], b"a datagram");
}

fn check_sidr(client: &Side, server: &Side) {
    let at = server.addr(7471);
    let _listener = server.listen(PortSpace::Udp, at);
    let id = client.resolved(PortSpace::Udp, at);
    let qp = client.qp(QpType::Ud);
    id.attach_qp(&qp).unwrap();
    assert_eq!((qp.state(), qp.query().qkey), (QpState::Rts, Some(UDP_QKEY)));
    id.connect(&ConnParam::with_data(b"where")).unwrap();
    let request = server.event(CmEventKind::ConnectRequest);
    assert_eq!((&request.private_data()[..5], request.private_data().len()), (&b"where"[..], 180));
    assert_eq!(request.id.peer_addr(), id.local_addr());
    let server_qp = server.qp(QpType::Ud);
    request.id.attach_qp(&server_qp).unwrap();
    request.id.accept(&ConnParam::with_data(b"here")).unwrap();
    let event = client.event(CmEventKind::Established);
    assert_eq!((&event.private_data()[..4], event.private_data().len()), (&b"here"[..], 136));
    let EventParam::Datagram(destination) = &event.param else { panic!("{event:?}") };
    assert_eq!((destination.qp_num, destination.qkey), (server_qp.qpn(), UDP_QKEY));
    send((client, &qp), (server, &server_qp), destination);
    assert!(server.channel.try_event().is_none(), "the server gets no event after it has accepted");
}

#[test]
fn sidr_over_fabric_resolves_datagram_destination() {
    for fabric in [Fabric::new(), virtual_fabric(slow())] {
        check_sidr(&Side::on(&fabric), &Side::on(&fabric));
    }
}

#[test]
fn sidr_over_udp_resolves_datagram_destination() {
    check_sidr(&Side::on_udp("127.101.3.1"), &Side::on_udp("127.101.3.2"));
}

#[test]
fn rejected_sidr_request_raises_unreachable_with_reason() {
    let fabric = Fabric::new();
    let (client, server) = (Side::on(&fabric), Side::on(&fabric));
    let _listener = server.listen(PortSpace::Udp, server.addr(7));
    let id = client.resolved(PortSpace::Udp, server.addr(7));
    id.connect(&ConnParam::default()).unwrap();
    server.event(CmEventKind::ConnectRequest).id.reject(b"closed").unwrap();
    let event = client.event(CmEventKind::Unreachable);
    assert_eq!((event.status, event.id.clone(), &event.private_data()[..6]), (2, id, &b"closed"[..]));
}

#[test]
fn multicast_groups_are_joined_until_id_is_destroyed() {
    let fabric = virtual_fabric(slow());
    let (sender, member) = (Side::on(&fabric), Side::on(&fabric));
    for group in ["239.77.1.2:0", "[ff0e::77]:0"] {
        let group = group.parse().unwrap();
        let join = |side: &Side, membership| {
            let id = side.id(PortSpace::Udp);
            id.bind_addr((side.ip(true), 0).into()).unwrap();
            let qp = side.qp(QpType::Ud);
            id.attach_qp(&qp).unwrap();
            id.join_multicast(group, membership).unwrap();
            let event = side.event(CmEventKind::MulticastJoin);
            let EventParam::Datagram(datagram) = event.param else { panic!("{event:?}") };
            assert_eq!(
                (datagram.group, datagram.qp_num, datagram.qkey),
                (Some(group), Qpn::MULTICAST, UDP_QKEY)
            );
            assert_eq!(datagram.address.dgid.ip(), group.ip());
            (id, qp, datagram)
        };
        let (_from, from_qp, destination) = join(&sender, Membership::SendOnly);
        let (to, to_qp, _) = join(&member, Membership::Full);
        assert_eq!(to.join_multicast(group, Membership::Full).unwrap_err().errno(), libc::EADDRINUSE);
        send((&sender, &from_qp), (&member, &to_qp), &destination);
        to.leave_multicast(group).unwrap();
        assert!(matches!(to.leave_multicast(group), Err(IdError::NoGroup(_))));
        assert!(to_qp.detach_mcast(group.ip().into()).is_err(), "the queue pair is detached too");
        // Destroying an id makes it leave its groups.
        to.join_multicast(group, Membership::Full).unwrap();
        member.event(CmEventKind::MulticastJoin);
        to.destroy();
        assert!(to_qp.detach_mcast(group.ip().into()).is_err());
    }
}
