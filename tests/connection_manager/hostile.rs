//! Hostile peers: messages that are invalid, repeated or missing. In each case the id gets a final event in
//! bounded time.

use std::net::SocketAddr;

use rand_pcg::Pcg32;
use rand_pcg::rand_core::Rng;
use urxe::verbs::cm::*;
use urxe::verbs::*;
use urxe::wire::mad::ip::IpHeader;
use urxe::wire::mad::{CommId, Drep, Dreq, Mad, Message, PathInfo, Rej, Rep, Req, Rtu, TransportService};
use urxe::wire::{AckTimeout, Mtu, Psn};

use super::stage::*;

/// A peer whose messages are scripted.
struct Script {
    port: ManagementPort,
    at: SocketAddr,
}

impl Script {
    fn on(fabric: &Fabric) -> Script {
        let context = Context::on_fabric(fabric).unwrap();
        let at = (context.query_gid(0).unwrap().ip(), 7).into();
        Script { port: context.management_port().unwrap(), at }
    }

    fn gid(&self) -> Gid {
        self.at.ip().into()
    }

    fn say(&self, to: &Side, transaction: u64, message: impl Into<Message>) {
        let mad = Mad { transaction, modifier: 0, message: message.into() };
        self.port.send(&AddressVector::to(to.context.query_gid(0).unwrap()), &mad.bytes()).unwrap();
    }

    fn hear(&self) -> Mad {
        Mad::parse(&self.port.recv(SOON).unwrap().bytes).unwrap()
    }

    /// Receives a client's REQ and returns its transaction number and a matching REP.
    fn asked(&self) -> (u64, Rep) {
        let Mad { transaction, message: Message::Req(req), .. } = self.hear() else { panic!("no REQ") };
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

    /// Builds a REQ to a server.
    fn asks(&self, server: SocketAddr) -> Req {
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
fn rep_with_unknown_qp_fails_sends_and_disconnects() {
    let fabric = virtual_fabric(slow());
    let (client, script) = (Side::on(&fabric), Script::on(&fabric));
    let mine = client.connecting(script.at, b"");
    let (transaction, rep) = script.asked();
    script.say(&client, transaction, rep);
    client.event(CmEventKind::Established);
    assert!(matches!(script.hear().message, Message::Rtu(_)));
    // No acknowledgement arrives.
    mine.qp.post_send(&SendWr::send(1, &[])).unwrap();
    let failed = client.cq.wait(EVER).unwrap_err();
    assert!(matches!(failed, WaitError::Failed(c) if c.status == WcStatus::RetryExcErr), "{failed}");
    assert_eq!(mine.qp.state(), QpState::Err);
    // The DREQ is not answered either.
    mine.id.disconnect().unwrap();
    client.event_within(CmEventKind::Disconnected, EVER);
    client.event_within(CmEventKind::TimewaitExit, EVER);
    assert_eq!(client.manager.connections(), 0);
}

#[test]
fn rep_with_invalid_qp_number_is_rejected() {
    let fabric = virtual_fabric(slow());
    let (client, script) = (Side::on(&fabric), Script::on(&fabric));
    let mine = client.connecting(script.at, b"");
    let (transaction, rep) = script.asked();
    script.say(&client, transaction, Rep { qpn: Qpn::GSI, ..rep });
    let event = client.event(CmEventKind::Rejected);
    assert_eq!((event.status, mine.qp.state()), (RejReason::UnsupportedRequest.code().into(), QpState::Err));
    let Message::Rej(rej) = script.hear().message else { panic!("no REJ") };
    assert_eq!((rej.remote, rej.reason), (rep.local, RejReason::UnsupportedRequest));
}

/// As with the kernel's manager, it is up to the program to try the MTU that the peer suggests: the request
/// is not repeated.
#[test]
fn rej_of_the_mtu_is_not_retried() {
    let fabric = virtual_fabric(slow());
    let (client, script) = (Side::on(&fabric), Script::on(&fabric));
    let mine = client.connecting(script.at, b"");
    let Mad { transaction, message: Message::Req(req), .. } = script.hear() else { panic!("no REQ") };
    let mut info = [0; 72];
    info[0] = Mtu::Mtu512.code();
    let rej = Rej { remote: req.local, reason: RejReason::InvalidMtu, info, info_len: 1, ..Rej::default() };
    script.say(&client, transaction, rej);
    let event = client.event(CmEventKind::Rejected);
    assert_eq!((&event.id, event.status, mine.qp.state()), (&mine.id, 26, QpState::Err));
    fabric.run_until_idle(EVER);
    assert!(script.port.try_recv().is_none());
    assert!(client.channel.try_event().is_none());
    assert_eq!(client.manager.connections(), 0);
}

#[test]
fn rep_from_another_address_is_dropped() {
    let fabric = virtual_fabric(slow());
    let (client, script, other) = (Side::on(&fabric), Script::on(&fabric), Script::on(&fabric));
    let mine = client.connecting(script.at, b"");
    let (transaction, rep) = script.asked();
    other.say(&client, transaction, rep);
    other.say(&client, transaction, Rej { remote: rep.remote, ..Rej::default() });
    assert_eq!(client.event_within(CmEventKind::Unreachable, EVER).id, mine.id);
    assert_eq!(client.manager.counters(0).unwrap().wrong_peer, 2);
}

#[test]
fn missing_rtu_makes_the_server_retry_and_reject() {
    let fabric = virtual_fabric(slow());
    let (server, script) = (Side::on(&fabric), Script::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    script.say(&server, 1, script.asks(at));
    let theirs = server.accept(b"");
    let began = fabric.now();
    assert_eq!(server.event_within(CmEventKind::Unreachable, EVER).id, theirs.id);
    // The REP is sent three times, each with the timeout that the client has requested.
    let each = fabric.now().since(began) / 3;
    assert!((1.0..3.5).contains(&each.as_secs_f64()), "{each:?}");
    assert_eq!(theirs.qp.state(), QpState::Err);
    let said: Vec<Message> = (0..4).map(|_| script.hear().message).collect();
    assert!(
        matches!(said[..], [Message::Rep(_), Message::Rep(_), Message::Rep(_), Message::Rej(_)]),
        "{said:?}"
    );
}

#[test]
fn repeated_messages_have_no_further_effect() {
    let fabric = virtual_fabric(slow());
    let (server, script) = (Side::on(&fabric), Script::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let req = script.asks(at);
    (0..3).for_each(|_| script.say(&server, 1, req));
    let theirs = server.accept(b"");
    // While the program has not decided yet, the client receives an MRA.
    let rep = loop {
        match script.hear().message {
            Message::Rep(rep) => break rep,
            other => assert!(matches!(other, Message::Mra(_)), "{other:?}"),
        }
    };
    script.say(&server, 1, req);
    assert_eq!(script.hear().message, rep.into());
    let (local, remote) = (req.local, rep.local);
    let rtu = Rtu { local, remote, ..Rtu::default() };
    (0..3).for_each(|_| script.say(&server, 1, rtu));
    assert_eq!(server.event(CmEventKind::Established).id, theirs.id);
    let dreq = Dreq { local, remote, remote_qpn: theirs.qp.qpn(), ..Dreq::default() };
    // A DREQ that names another queue pair is ignored.
    script.say(&server, 2, Dreq { remote_qpn: Qpn::new(0x777), ..dreq });
    (0..3).for_each(|_| script.say(&server, 2, dreq));
    assert_eq!(server.event(CmEventKind::Disconnected).id, theirs.id);
    theirs.id.disconnect().unwrap();
    let drep: Message = Drep { local: remote, remote: local, ..Drep::default() }.into();
    assert_eq!(script.hear().message, drep);
    script.say(&server, 2, dreq);
    assert_eq!(script.hear().message, drep);
    // A repeated REQ does not open a new connection during time-wait.
    script.say(&server, 1, req);
    let Message::Rej(rej) = script.hear().message else { panic!("no REJ") };
    assert_eq!(rej.reason, RejReason::StaleConnection);
    assert_eq!(server.event_within(CmEventKind::TimewaitExit, EVER).id, theirs.id);
    assert!(server.channel.try_event().is_none());
}

#[test]
fn random_and_corrupted_messages_do_no_harm() {
    let fabric = virtual_fabric(slow());
    let (client, server, script) = (Side::on(&fabric), Side::on(&fabric), Script::on(&fabric));
    let at = server.addr(7);
    let _listener = server.listen(PortSpace::Tcp, at);
    let (mine, theirs) = connected(&client, &server, at);
    let mut random = Pcg32::new(1, 1);
    let to = AddressVector::to(at.ip().into());
    for round in 0..10_000_u32 {
        // Random bytes, and requests with some bytes corrupted.
        let mut bytes = [0; MAD_LEN];
        if round % 2 == 0 {
            random.fill_bytes(&mut bytes);
        } else {
            let req = Req { local: CommId(round), ..script.asks(at) };
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
    talk((&client, &mine), (&server, &theirs));
    mine.id.disconnect().unwrap();
    let ended = |event: CmEvent| event.kind == CmEventKind::Disconnected && event.id == theirs.id;
    while !ended(server.channel.get_event(Some(SOON)).unwrap()) {}
    theirs.id.disconnect().unwrap();
    assert_eq!(client.event(CmEventKind::Disconnected).id, mine.id);
}
