//! Tests against hostile peers, whose messages are invalid, repeated or missing: the CM id must get a final
//! event within a bounded time.

use std::net::SocketAddr;

use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;
use urxe::verbs::cm::*;
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;
use urxe::wire::mad::ip::IpHeader;
use urxe::wire::mad::{CommId, Drep, Dreq, Mad, Message, PathInfo, Rej, Rep, Req, Rtu, TransportService};
use urxe::wire::{AckTimeout, Mtu, Psn};

use urxe_test_support::connections::*;

/// A peer without a connection manager, whose messages a test builds itself.
struct ScriptedPeer {
    port: ManagementPort,
    at: SocketAddr,
}

impl ScriptedPeer {
    fn on(fabric: &Fabric) -> ScriptedPeer {
        let context = Context::on_fabric(fabric).unwrap();
        let at = (context.query_gid(0).unwrap().ip(), 7).into();
        ScriptedPeer { port: context.management_port().unwrap(), at }
    }

    fn gid(&self) -> Gid {
        self.at.ip().into()
    }

    fn send(&self, to: &Side, transaction: u64, message: impl Into<Message>) {
        let mad = Mad { transaction, modifier: 0, message: message.into() };
        self.port.send(&AddressVector::to(to.context.query_gid(0).unwrap()), &mad.bytes()).unwrap();
    }

    fn recv(&self) -> Mad {
        Mad::parse(&self.port.recv(TIMEOUT).unwrap().bytes).unwrap()
    }

    /// Receives a client's REQ, and returns its transaction ID and a matching REP.
    fn recv_req(&self) -> (u64, Rep) {
        let Mad { transaction, message: Message::Req(req), .. } = self.recv() else {
            panic!("the message is not a REQ")
        };
        let rep = Rep {
            local: CommId(9),
            remote: req.local,
            qpn: Qpn::new(0x1234),
            ca_guid: 77,
            responder_resources: 1,
            initiator_depth: 1,
            ..Rep::default()
        };
        (transaction, rep)
    }

    /// Builds a valid REQ to the service that listens at `server`.
    fn req_to(&self, server: SocketAddr) -> Req {
        let mut req = Req {
            local: CommId(9),
            service: PortSpace::Tcp.service(server.port()),
            ca_guid: 77,
            qpn: Qpn::new(0x1234),
            psn: Psn::new(5),
            transport: TransportService::Rc,
            mtu: Some(Mtu::Mtu1024),
            local_response_timeout: AckTimeout::new(18),
            remote_response_timeout: AckTimeout::new(18),
            max_cm_retries: 2,
            primary: PathInfo {
                local_gid: self.gid(),
                remote_gid: server.ip().into(),
                hop_limit: 64,
                ..PathInfo::default()
            },
            ..Req::default()
        };
        let header = IpHeader { source: self.at, destination: server.ip() }.bytes();
        req.private_data[..header.len()].copy_from_slice(&header);
        req
    }
}

#[test]
fn send_to_nonexistent_qp_of_a_rep_fails_and_disconnect_still_completes() {
    let fabric = virtual_fabric(slow());
    let (client, script) = (Side::on(&fabric), ScriptedPeer::on(&fabric));
    let client_end = client.connecting(script.at, b"");
    let (transaction, rep) = script.recv_req();
    script.send(&client, transaction, rep);
    client.event(CmEventKind::Established);
    assert!(matches!(script.recv().message, Message::Rtu(_)));
    // No acknowledgement arrives.
    client_end.qp.post_send(&SendWr::send(1, &[])).unwrap();
    let failed = client.cq.wait(LONG_TIMEOUT).unwrap_err();
    assert!(matches!(failed, WaitError::Failed(c) if c.status == WcStatus::RetryExcErr), "{failed}");
    assert_eq!(client_end.qp.state(), QpState::Err);
    // No response to the DREQ arrives either.
    client_end.id.disconnect().unwrap();
    client.event_within(CmEventKind::Disconnected, LONG_TIMEOUT);
    client.event_within(CmEventKind::TimewaitExit, LONG_TIMEOUT);
    assert_eq!(client.manager.connections(), 0);
}

#[test]
fn rep_with_invalid_qp_number_is_rejected() {
    let fabric = virtual_fabric(slow());
    let (client, script) = (Side::on(&fabric), ScriptedPeer::on(&fabric));
    let client_end = client.connecting(script.at, b"");
    let (transaction, rep) = script.recv_req();
    script.send(&client, transaction, Rep { qpn: Qpn::GSI, ..rep });
    let event = client.event(CmEventKind::Rejected);
    assert_eq!(
        (event.status, client_end.qp.state()),
        (RejReason::UnsupportedRequest.code().into(), QpState::Err)
    );
    let Message::Rej(rej) = script.recv().message else { panic!("the message is not a REJ") };
    assert_eq!((rej.remote, rej.reason), (rep.local, RejReason::UnsupportedRequest));
}

/// Checks that the connection manager does not repeat a request with the MTU that the peer suggests: like the
/// kernel's, it leaves that to the program.
#[test]
fn request_rejected_for_its_mtu_is_not_retried() {
    let fabric = virtual_fabric(slow());
    let (client, script) = (Side::on(&fabric), ScriptedPeer::on(&fabric));
    let client_end = client.connecting(script.at, b"");
    let Mad { transaction, message: Message::Req(req), .. } = script.recv() else {
        panic!("the message is not a REQ")
    };
    let mut info = [0; 72];
    info[0] = Mtu::Mtu512.code();
    let rej = Rej { remote: req.local, reason: RejReason::InvalidMtu, info, info_len: 1, ..Rej::default() };
    script.send(&client, transaction, rej);
    let event = client.event(CmEventKind::Rejected);
    assert_eq!((&event.id, event.status, client_end.qp.state()), (&client_end.id, 26, QpState::Err));
    fabric.run_until_idle(LONG_TIMEOUT);
    assert!(script.port.try_recv().is_none());
    assert!(client.channel.try_event().is_none());
    assert_eq!(client.manager.connections(), 0);
}

#[test]
fn rep_from_another_address_is_dropped() {
    let fabric = virtual_fabric(slow());
    let (client, script, other) = (Side::on(&fabric), ScriptedPeer::on(&fabric), ScriptedPeer::on(&fabric));
    let client_end = client.connecting(script.at, b"");
    let (transaction, rep) = script.recv_req();
    other.send(&client, transaction, rep);
    other.send(&client, transaction, Rej { remote: rep.remote, ..Rej::default() });
    assert_eq!(client.event_within(CmEventKind::Unreachable, LONG_TIMEOUT).id, client_end.id);
    assert_eq!(client.manager.counters(0).unwrap().wrong_peer, 2);
}

#[test]
fn server_retransmits_its_rep_and_then_rejects_if_the_rtu_is_missing() {
    let fabric = virtual_fabric(slow());
    let (server, script) = (Side::on(&fabric), ScriptedPeer::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    script.send(&server, 1, script.req_to(at));
    let server_end = server.accept(b"");
    let start = fabric.now();
    assert_eq!(server.event_within(CmEventKind::Unreachable, LONG_TIMEOUT).id, server_end.id);
    // The REP is sent three times, each with the timeout that the client has requested.
    let interval = fabric.now().since(start) / 3;
    assert!((1.0..3.5).contains(&interval.as_secs_f64()), "{interval:?}");
    assert_eq!(server_end.qp.state(), QpState::Err);
    let messages: Vec<Message> = (0..4).map(|_| script.recv().message).collect();
    assert!(
        matches!(messages[..], [Message::Rep(_), Message::Rep(_), Message::Rep(_), Message::Rej(_)]),
        "{messages:?}"
    );
}

#[test]
fn duplicate_messages_have_no_further_effect() {
    let fabric = virtual_fabric(slow());
    let (server, script) = (Side::on(&fabric), ScriptedPeer::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let req = script.req_to(at);
    (0..3).for_each(|_| script.send(&server, 1, req));
    let server_end = server.accept(b"");
    // Until the program accepts or rejects the request, the client receives an MRA.
    let rep = loop {
        match script.recv().message {
            Message::Rep(rep) => break rep,
            other => assert!(matches!(other, Message::Mra(_)), "{other:?}"),
        }
    };
    script.send(&server, 1, req);
    assert_eq!(script.recv().message, rep.into());
    let (local, remote) = (req.local, rep.local);
    let rtu = Rtu { local, remote, ..Rtu::default() };
    (0..3).for_each(|_| script.send(&server, 1, rtu));
    assert_eq!(server.event(CmEventKind::Established).id, server_end.id);
    let dreq = Dreq { local, remote, remote_qpn: server_end.qp.qpn(), ..Dreq::default() };
    // A DREQ that names another queue pair is ignored.
    script.send(&server, 2, Dreq { remote_qpn: Qpn::new(0x777), ..dreq });
    (0..3).for_each(|_| script.send(&server, 2, dreq));
    assert_eq!(server.event(CmEventKind::Disconnected).id, server_end.id);
    server_end.id.disconnect().unwrap();
    let drep: Message = Drep { local: remote, remote: local, ..Drep::default() }.into();
    assert_eq!(script.recv().message, drep);
    script.send(&server, 2, dreq);
    assert_eq!(script.recv().message, drep);
    // A repeated REQ does not open a new connection during time-wait.
    script.send(&server, 1, req);
    let Message::Rej(rej) = script.recv().message else { panic!("the message is not a REJ") };
    assert_eq!(rej.reason, RejReason::StaleConnection);
    assert_eq!(server.event_within(CmEventKind::TimewaitExit, LONG_TIMEOUT).id, server_end.id);
    assert!(server.channel.try_event().is_none());
}

#[test]
fn random_and_corrupted_messages_do_not_disturb_a_connection() {
    let fabric = virtual_fabric(slow());
    let (client, server, script) = (Side::on(&fabric), Side::on(&fabric), ScriptedPeer::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let (client_end, server_end) = connected(&client, &server, at);
    let mut random = Pcg32::new(1, 1);
    let to = AddressVector::to(at.ip().into());
    for round in 0..10_000_u32 {
        // Random bytes, and requests with some bytes corrupted.
        let mut bytes = [0; MAD_LEN];
        if round % 2 == 0 {
            random.fill_bytes(&mut bytes);
        } else {
            let req = Req { local: CommId(round), ..script.req_to(at) };
            bytes = Mad { transaction: 1, modifier: 0, message: req.into() }.bytes();
            for _ in 0..4 {
                bytes[random.next_u32() as usize % MAD_LEN] = random.next_u32() as u8;
            }
        }
        script.port.send(&to, &bytes).unwrap();
        fabric.run_until_idle(std::time::Duration::from_micros(100));
        while script.port.try_recv().is_some() {}
    }
    assert!(server.manager.counters(0).unwrap().malformed >= 5000);
    assert!(server.manager.ids() <= 2 + 1024);
    check_transfer((&client, &client_end), (&server, &server_end));
    client_end.id.disconnect().unwrap();
    let is_disconnected =
        |event: CmEvent| event.kind == CmEventKind::Disconnected && event.id == server_end.id;
    while !is_disconnected(server.channel.get_event(Some(TIMEOUT)).unwrap()) {}
    server_end.id.disconnect().unwrap();
    assert_eq!(client.event(CmEventKind::Disconnected).id, client_end.id);
}
