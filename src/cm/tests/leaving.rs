//! How connections end.

use std::time::Duration;

use super::bench::*;
use crate::cm::*;
use crate::wire::Qpn;
use crate::wire::mad::*;

fn dreq(to: ConnId) -> Dreq {
    Dreq { local: PEER_ID, remote: to.0, remote_qpn: OUR_QPN, ..Dreq::default() }
}

fn drep(to: ConnId) -> Drep {
    Drep { local: PEER_ID, remote: to.0, ..Drep::default() }
}

/// As long as the path and the peer's delay say.
const TIME_WAIT: Duration = Duration::from_nanos(4096 << 19);

#[test]
fn who_disconnects_is_answered_and_waits() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id, b"bye").unwrap();
    let sent = bench.sent_mads();
    let Message::Dreq(asked) = sent[0].message else { panic!() };
    assert_eq!((asked.local, asked.remote, asked.remote_qpn), (id.0, PEER_ID, PEER_QPN));
    assert_eq!(&asked.private_data[..3], b"bye");
    bench.cm.disconnect(bench.now, id, b"again").unwrap();
    let mut answer = drep(id);
    answer.private_data[0] = 7;
    bench.inject(answer);
    let (_, Event::Disconnected { private_data: Some(data) }) = bench.event() else { panic!() };
    assert_eq!(data[0], 7);
    assert_eq!(bench.cm.population(), (1, 1));
    bench.pass(TIME_WAIT - Duration::from_nanos(1));
    bench.quiet();
    bench.pass(Duration::from_nanos(1));
    assert_eq!(bench.event(), (id, Event::TimeWaitOver));
    bench.empty();
}

#[test]
fn who_is_asked_answers_and_answers_again() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.inject_as(&arrival(), 0x99, dreq(id));
    assert!(matches!(bench.event(), (of, Event::DisconnectRequested(_)) if of == id));
    // The program takes its time.
    bench.inject_as(&arrival(), 0x99, dreq(id));
    bench.quiet();
    bench.cm.disconnect(bench.now, id, b"bye").unwrap();
    let sent = bench.sent_mads();
    let Message::Drep(answer) = sent[0].message else { panic!() };
    assert_eq!((sent[0].transaction, answer.remote, &answer.private_data[..3]), (0x99, PEER_ID, &b"bye"[..]));
    bench.inject_as(&arrival(), 0x99, dreq(id));
    assert_eq!(bench.sent_mads(), sent);
    bench.pass(TIME_WAIT);
    assert_eq!(bench.event(), (id, Event::TimeWaitOver));
    bench.empty();
    // Long gone: it is still answered, or the peer would ask on and on.
    bench.inject(dreq(id));
    let Message::Drep(answer) = bench.sent_one() else { panic!() };
    assert_eq!((answer.local, answer.remote), (id.0, PEER_ID));
}

#[test]
fn both_disconnect_at_once() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id, b"").unwrap();
    bench.sent_one();
    bench.inject(dreq(id));
    assert!(matches!(bench.sent_one(), Message::Drep(_)));
    // It wants what we want: that is as good as its answer, which may never come if it has gone since.
    assert!(matches!(bench.event(), (_, Event::Disconnected { private_data: None })));
    assert_eq!(bench.cm.state(id), Some(State::TimeWait));
    bench.inject(drep(id));
    bench.quiet();
    // Our answer was lost: in time-wait it is said again.
    bench.inject(dreq(id));
    assert!(matches!(bench.sent_one(), Message::Drep(_)));
}

#[test]
fn what_made_a_connection_makes_none_after_its_end() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.cm.disconnect(bench.now, id, b"").unwrap();
    bench.inject(drep(id));
    bench.sent();
    bench.inject(req());
    assert_eq!(bench.sent_rej().reason, RejReason::StaleConnection);

    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id, b"").unwrap();
    bench.inject(drep(id));
    bench.sent();
    bench.events();
    bench.inject(rep(id));
    bench.quiet();
}

#[test]
fn a_client_may_leave_before_its_rtu_has_come() {
    let mut bench = Bench::listening();
    let id = bench.accepted();
    bench.inject(dreq(id));
    assert!(matches!(bench.event(), (_, Event::DisconnectRequested(_))));
    bench.cm.disconnect(bench.now, id, b"").unwrap();
    assert!(matches!(bench.sent_one(), Message::Drep(_)));
}

#[test]
fn a_dreq_for_another_queue_pair_is_none() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.inject(Dreq { remote_qpn: Qpn::new(5), ..dreq(id) });
    bench.inject(Dreq { local: CommId(5), ..dreq(id) });
    bench.inject_as(&arrival_from(gid(9)), 1, dreq(id));
    bench.quiet();
    assert_eq!(bench.cm.counters().wrong_peer, 3);
    assert_eq!(bench.cm.state(id), Some(State::Established));
}

#[test]
fn a_rejection_ends_a_connection() {
    let mut bench = Bench::new();
    let id = bench.client();
    // Of a listener that was full for one copy of the request and not for the other: too late.
    bench.inject(Rej { remote: id.0, reason: RejReason::NoResources, ..Rej::default() });
    bench.quiet();
    bench.inject(Rej { local: PEER_ID, remote: id.0, message: Rejected::None, ..Rej::default() });
    assert_eq!(bench.event(), (id, Event::Disconnected { private_data: None }));
    assert_eq!(bench.cm.state(id), Some(State::TimeWait));
}

#[test]
fn disconnecting_what_is_not_connected_yet_refuses_it() {
    let mut bench = Bench::listening();
    let id = bench.accepted();
    bench.cm.disconnect(bench.now, id, b"").unwrap();
    assert_eq!(bench.sent_rej().reason, RejReason::Consumer);
    assert_eq!(bench.event(), (id, Event::Disconnected { private_data: None }));
    let mut bench = Bench::new();
    let id = bench.asked();
    assert!(bench.cm.disconnect(bench.now, id, b"").is_err());
}

/// In each state, what the peer hears when a program forgets its connection; no event comes, and in the end nothing is kept.
#[test]
fn forgetting_a_connection_is_told_to_the_peer() {
    type Story = (&'static str, bool, fn(&mut Bench) -> ConnId, &'static [MessageKind]);
    use MessageKind as K;
    let stories: [Story; 10] = [
        ("REQ sent", false, Bench::asked, &[K::Rej]),
        ("REQ received", true, Bench::requested, &[K::Rej]),
        ("REP sent", true, Bench::accepted, &[K::Rej]),
        (
            "REP received",
            false,
            |b| {
                let id = b.asked();
                b.inject(rep(id));
                id
            },
            &[K::Rej],
        ),
        ("established", false, Bench::client, &[K::Dreq, K::Dreq]),
        ("established, server", true, Bench::server, &[K::Dreq, K::Dreq]),
        (
            "DREQ received",
            true,
            |b| {
                let id = b.server();
                b.inject(dreq(id));
                id
            },
            &[K::Drep],
        ),
        (
            "DREQ sent",
            false,
            |b| {
                let id = b.client();
                b.cm.disconnect(b.now, id, b"").unwrap();
                b.sent_one();
                id
            },
            &[K::Dreq],
        ),
        (
            "time-wait",
            false,
            |b| {
                let id = b.client();
                b.cm.disconnect(b.now, id, b"").unwrap();
                b.sent_one();
                b.inject(drep(id));
                id
            },
            &[],
        ),
        (
            "SIDR_REQ sent",
            false,
            |b| {
                let id = b.cm.sidr_request(b.now, &super::sidr::question(b"")).unwrap();
                b.sent_one();
                id
            },
            &[],
        ),
    ];
    for (name, listening, begin, said) in stories {
        let mut bench = if listening { Bench::listening() } else { Bench::new() };
        let id = begin(&mut bench);
        bench.cm.release(bench.now, id);
        bench.cm.release(bench.now, id);
        assert_eq!(bench.cm.state(id), None, "{name}");
        bench.pass(response_time() + Duration::from_secs(1));
        let kinds: Vec<K> = bench.sent().iter().map(Message::kind).collect();
        assert_eq!(kinds, said, "{name}");
        bench.pass(Duration::from_secs(1000));
        assert_eq!(bench.events(), [], "{name}");
        bench.sent();
        bench.empty();
    }
}

#[test]
fn a_client_that_gives_up_before_it_knows_the_server_says_who_it_is() {
    let mut client = Bench::new();
    let id = client.asked();
    client.cm.release(client.now, id);
    let rej = client.sent_rej();
    assert_eq!((rej.local, rej.remote, rej.reason), (id.0, CommId(0), RejReason::Timeout));
    assert_eq!(rej.info(), OUR_GUID.to_be_bytes());

    // And a server finds out whose request it was.
    let mut server = Bench::listening();
    let id = server.requested();
    let mut rej = Rej { info_len: 8, local: PEER_ID, reason: RejReason::Timeout, ..Rej::default() };
    rej.info[..8].copy_from_slice(&PEER_GUID.to_be_bytes());
    server.inject_as(&arrival_from(gid(9)), 1, rej);
    server.inject(Rej { local: CommId(1), ..rej });
    server.quiet();
    server.inject(rej);
    let (of, Event::Rejected(rejection)) = server.event() else { panic!() };
    assert_eq!((of, rejection.reason), (id, RejReason::Timeout));
    server.empty();
}

#[test]
fn time_waits_are_bounded() {
    let mut bench = Bench::with(CmConfig { max_time_wait: 10, ..config() });
    for i in 0..100 {
        let id = bench.asked();
        let local = CommId(1000 + i);
        bench.inject(Rep { local, qpn: Qpn::new(0x1000 + i), ..rep(id) });
        bench.cm.ready(bench.now, id, b"").unwrap();
        bench.cm.disconnect(bench.now, id, b"").unwrap();
        bench.inject(Drep { local, ..drep(id) });
        bench.sent();
    }
    assert_eq!(bench.cm.population(), (10, 10));
    assert_eq!(bench.cm.counters().time_waits_cut, 90);
    let over = bench.events().into_iter().filter(|e| *e == Event::TimeWaitOver).count();
    assert_eq!(over, 90, "each is told");
    bench.pass(TIME_WAIT);
    bench.empty();
}
