//! Connections that the connection manager refuses, delays or ends.

use std::net::SocketAddr;
use std::time::Duration;

use urxe::verbs::cm::*;
use urxe::verbs::*;
use urxe::wire::Operation;
use urxe::wire::mad::MessageKind;

use super::hosts::{Hosts, LIMIT, Setup, rules};
use super::shot::Shot;
use super::{CLIENT, Case, Container, ENDS, Source};

pub const CASES: &[Case] = &[
    Case {
        name: "peer-silent-cm",
        diagnosis: "peer-silent",
        files: &[("", Container::Cooked)],
        source: Source::Computed(silent),
        shown: &[(0, |s| s.is_cm(MessageKind::Req))],
        text: "The client sends a connection request (CM REQ) and repeats it at the same interval until it gives up. No REP, REJ \
               or MRA comes back, nor any other packet of the peer.",
    },
    Case {
        name: "connection-stale",
        diagnosis: "connection-refused",
        files: ENDS,
        source: Source::Computed(stale),
        shown: &[(0, |s| s.is_cm(MessageKind::Rej)), (1, |s| s.is_cm(MessageKind::Rej))],
        text: "The server answers the REQ with a REJ of reason 10, stale connection: it still has a connection with the queue \
               pair number of this REQ, as after a crash of the client without DREQ. The second REQ, with the same service, is \
               accepted.",
    },
    Case {
        name: "connection-refused-by-program",
        diagnosis: "connection-refused",
        files: CLIENT,
        source: Source::Computed(by_program),
        shown: &[(0, |s| s.is_cm(MessageKind::Rej))],
        text: "The server's program refuses the connection: REJ with reason 28 and the private data 'queue depth 64 > 32'. The \
               listener exists and the addresses are right; the two programs disagree.",
    },
    Case {
        name: "connection-mra",
        diagnosis: "connection-delayed",
        files: CLIENT,
        source: Source::Computed(delayed),
        shown: &[(0, |s| s.is_cm(MessageKind::Mra)), (0, |s| s.is_cm(MessageKind::Rej))],
        text: "The server's program does not decide for seconds. Its connection manager answers the repeated REQ with an MRA, which \
               asks the client to wait, and at last the program refuses with a REJ of reason 28 without private data.",
    },
    Case {
        name: "connection-disconnected",
        diagnosis: "disconnected",
        files: ENDS,
        source: Source::Computed(disconnected),
        shown: &[(0, |s| s.is_cm(MessageKind::Dreq)), (0, |s| s.is_cm(MessageKind::Drep))],
        text: "The server's program ends the connection in the middle of the work: a DREQ arrives at the client between two WRITEs \
               of its stream, the client answers with a DREP, and its last WRITE is never acknowledged, because the server's \
               queue pair is in the error state.",
    },
    Case {
        name: "connection-late-drep",
        diagnosis: "disconnected",
        files: ENDS,
        source: Source::Computed(late_drep),
        shown: &[(0, |s| s.is_cm(MessageKind::Dreq)), (0, |s| s.is_cm(MessageKind::Drep))],
        text: "The client disconnects, but the server answers the DREQ late: the client repeats it before the first DREP \
               arrives. All data had been acknowledged before.",
    },
    Case {
        name: "start-psn-differs-cm",
        diagnosis: "start-psn-differs",
        files: CLIENT,
        source: Source::Computed(other_start_psn),
        shown: &[(0, |s| s.is_cm(MessageKind::Req)), (0, |s| s.is_request()), (0, |s| s.is_nak())],
        text: "The first request of the client does not carry the start PSN of its CM REQ, but one that is 256 higher, because the \
               program sets its own when it moves its queue pair to RTS. The server answers with a NAK with a PSN sequence error \
               that names the PSN of the REQ.",
    },
    Case {
        name: "too-many-reads-cm",
        diagnosis: "too-many-reads",
        files: ENDS,
        source: Source::Computed(more_reads_than_granted),
        shown: &[
            (0, |s| s.is_cm(MessageKind::Rep)),
            (0, |s| s.opcode.row().operation == Operation::ReadRequest),
            (0, |s| s.is_nak()),
        ],
        text: "The server's CM REP grants four READs (responder resources). The client's program ignores this and posts ten, which \
               are all sent before the first response: the server executes four and answers the fifth by a NAK 'invalid \
               request'.",
    },
];

/// Both connection managers, and the address of the server's listener.
struct Managers {
    client: ConnectionManager,
    listener: Listener,
    address: SocketAddr,
    _server: ConnectionManager,
}

fn managers(hosts: &Hosts) -> Managers {
    let manager = |context: &Context| ConnectionManager::new(vec![context.clone()]).expect("a manager");
    let (client, server) = (manager(&hosts.a.context), manager(&hosts.b.context));
    let address = (hosts.b.context.address().expect("an address"), 7471).into();
    let listener = Listener::bind(&server, address).expect("a free port");
    Managers { client, listener, address, _server: server }
}

impl Managers {
    /// Sends a connection request of the client.
    fn request(&self, hosts: &Hosts) -> Session {
        let param = ConnParam::default();
        let session = self.client.begin_connect(self.address, |_| Ok(hosts.a.qp(QpType::Rc)), &param);
        session.expect("the address resolves")
    }

    /// Completes a connection.
    fn accept(&self, hosts: &Hosts, session: &mut Session) -> Session {
        let incoming = self.listener.next(LIMIT).expect("a request");
        let accepted =
            incoming.begin_accept(hosts.b.qp(QpType::Rc), &ConnParam::default()).expect("a new queue pair");
        let event = session.event_channel().get_event(Some(LIMIT)).expect("an event");
        session.complete_connect(event).expect("the connection");
        let event = accepted.event_channel().get_event(Some(LIMIT)).expect("an event");
        assert_eq!(event.kind, CmEventKind::Established);
        accepted
    }
}

/// Waits for an event of a session.
fn expect(session: &Session, kind: CmEventKind) {
    let event = session.event_channel().get_event(Some(LIMIT)).expect("an event");
    assert_eq!(event.kind, kind);
}

fn silent(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::wire(seed, &["drop=1.."], &[]).open();
    let managers = managers(&hosts);
    let session = managers.request(&hosts);
    expect(&session, CmEventKind::Unreachable);
    drop((session, managers));
    hosts.client()
}

fn stale(seed: u64) -> Vec<Vec<Shot>> {
    let nic = [Vec::new(), rules(&["rx:cm:rej=stale-connection@1"])];
    let hosts = Setup { nic, ..Setup::new(seed) }.open();
    let managers = managers(&hosts);
    let refused = managers.request(&hosts);
    expect(&refused, CmEventKind::Rejected);
    hosts.pass(Duration::from_millis(20));
    let mut session = managers.request(&hosts);
    let accepted = managers.accept(&hosts, &mut session);
    hosts.write(session.qp(), 100);
    hosts.done(1);
    hosts.micros(50);
    session.id().disconnect().expect("a connection");
    hosts.micros(50);
    drop(accepted);
    expect(&session, CmEventKind::Disconnected);
    drop((refused, session, managers));
    hosts.both()
}

fn by_program(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).v6().open();
    let managers = managers(&hosts);
    let session = managers.request(&hosts);
    hosts.micros(300);
    managers.listener.next(LIMIT).expect("a request").reject(b"queue depth 64 > 32").expect("a REJ");
    expect(&session, CmEventKind::Rejected);
    drop((session, managers));
    hosts.client()
}

fn delayed(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let managers = managers(&hosts);
    let session = managers.request(&hosts);
    let incoming = managers.listener.next(LIMIT).expect("a request");
    hosts.pass(Duration::from_secs(6));
    incoming.reject(&[]).expect("a REJ");
    expect(&session, CmEventKind::Rejected);
    drop((session, managers));
    hosts.client()
}

fn disconnected(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let managers = managers(&hosts);
    let mut session = managers.request(&hosts);
    let accepted = managers.accept(&hosts, &mut session);
    for _ in 0..3 {
        hosts.write(session.qp(), 1500);
        hosts.done(1);
        hosts.micros(50);
    }
    accepted.id().disconnect().expect("a connection");
    hosts.write(session.qp(), 1500);
    expect(&session, CmEventKind::Disconnected);
    hosts.pass(Duration::from_millis(1));
    drop(session);
    hosts.pass(Duration::from_millis(1));
    drop((accepted, managers));
    hosts.both()
}

fn late_drep(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let managers = managers(&hosts);
    let mut session = managers.request(&hosts);
    let accepted = managers.accept(&hosts, &mut session);
    hosts.write(session.qp(), 600);
    hosts.done(1);
    hosts.micros(50);
    session.id().disconnect().expect("a connection");
    hosts.pass(Duration::from_secs(6));
    // The program notices the DREQ.
    drop(accepted);
    expect(&session, CmEventKind::Disconnected);
    drop((session, managers));
    hosts.both()
}

/// A connection whose client moves its queue pair to RTS by itself.
struct OwnTransitions {
    qp: Qp,
    _accepted: Session,
    _id: CmId,
    _channel: EventChannel,
}

/// Connects, with attributes of the client's queue pair changed by `change` before it enters RTS.
fn connect_changed(
    hosts: &Hosts,
    managers: &Managers,
    accept: &ConnParam,
    change: impl FnOnce(QpAttr) -> QpAttr,
) -> OwnTransitions {
    let channel = EventChannel::new().expect("a descriptor");
    let id = managers.client.create_id(&channel, PortSpace::Tcp).expect("a new id");
    let next = |kind| {
        let event = channel.get_event(Some(LIMIT)).expect("an event");
        assert_eq!(event.kind, kind);
    };
    id.resolve_addr(None, managers.address, LIMIT).expect("a known address");
    next(CmEventKind::AddrResolved);
    id.resolve_route(LIMIT).expect("a known address");
    next(CmEventKind::RouteResolved);
    let qp = hosts.a.qp(QpType::Rc);
    id.connect(&ConnParam::default().qp_num(qp.qpn()).retry_count(3)).expect("a REQ");
    let incoming = managers.listener.next(LIMIT).expect("a request");
    let accepted = incoming.begin_accept(hosts.b.qp(QpType::Rc), accept).expect("a new queue pair");
    next(CmEventKind::ConnectResponse);
    for state in [QpState::Init, QpState::Rtr] {
        qp.modify(&id.init_qp_attr(state).expect("the attributes are known")).expect("valid attributes");
    }
    let rts = id.init_qp_attr(QpState::Rts).expect("the attributes are known");
    qp.modify(&change(rts).timeout(AckTimeout::new(10))).expect("valid attributes");
    id.establish().expect("an RTU");
    OwnTransitions { qp, _accepted: accepted, _id: id, _channel: channel }
}

fn other_start_psn(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let managers = managers(&hosts);
    let change = |rts: QpAttr| {
        let psn = Psn::new(rts.sq_psn.expect("the start PSN").get() + 256);
        rts.sq_psn(psn)
    };
    let connection = connect_changed(&hosts, &managers, &ConnParam::default(), change);
    hosts.write(&connection.qp, 100);
    hosts.fails(WcStatus::RetryExcErr);
    drop((connection, managers));
    hosts.client()
}

fn more_reads_than_granted(seed: u64) -> Vec<Vec<Shot>> {
    let hosts = Setup::new(seed).open();
    let managers = managers(&hosts);
    let accept = ConnParam::default().responder_resources(4);
    let connection = connect_changed(&hosts, &managers, &accept, |rts| rts.max_rd_atomic(16));
    (0..10).for_each(|_| hosts.read(&connection.qp, 700));
    hosts.done(4);
    hosts.fails(WcStatus::RemInvReqErr);
    hosts.micros(100);
    drop((connection, managers));
    hosts.both()
}
