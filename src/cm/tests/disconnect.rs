//! The end of connections.

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

/// Duration of time-wait, which follows from the path's packet lifetime and the peer's ACK delay.
const TIME_WAIT: Duration = Duration::from_nanos(4096 << 19);

#[test]
fn disconnecting_side_receives_drep_and_enters_time_wait() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id).unwrap();
    let sent = bench.sent_mads();
    let Message::Dreq(dreq) = sent[0].message else { panic!() };
    assert_eq!((dreq.local, dreq.remote, dreq.remote_qpn), (id.0, PEER_ID, PEER_QPN));
    bench.cm.disconnect(bench.now, id).unwrap();
    bench.inject(drep(id));
    assert_eq!(bench.event(), (id, Event::Disconnected));
    assert_eq!(bench.cm.connection_counts(), (1, 1));
    bench.advance(TIME_WAIT - Duration::from_nanos(1));
    bench.assert_quiet();
    bench.advance(Duration::from_nanos(1));
    assert_eq!(bench.event(), (id, Event::TimeWaitOver));
    bench.assert_empty();
}

#[test]
fn each_duplicate_dreq_gets_the_same_drep() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.inject_as(&source(), 0x99, dreq(id));
    assert!(matches!(bench.event(), (of, Event::DisconnectRequested) if of == id));
    // The program has not confirmed yet.
    bench.inject_as(&source(), 0x99, dreq(id));
    bench.assert_quiet();
    bench.cm.disconnect(bench.now, id).unwrap();
    let sent = bench.sent_mads();
    let Message::Drep(drep) = sent[0].message else { panic!() };
    assert_eq!((sent[0].transaction, drep.remote), (0x99, PEER_ID));
    bench.inject_as(&source(), 0x99, dreq(id));
    assert_eq!(bench.sent_mads(), sent);
    bench.advance(TIME_WAIT);
    assert_eq!(bench.event(), (id, Event::TimeWaitOver));
    bench.assert_empty();
    // The connection is removed, but a DREQ still gets a DREP; otherwise the peer would retransmit it.
    bench.inject(dreq(id));
    let Message::Drep(drep) = bench.sent_one() else { panic!() };
    assert_eq!((drep.local, drep.remote), (id.0, PEER_ID));
}

#[test]
fn simultaneous_disconnect_ends_the_connection() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id).unwrap();
    bench.sent_one();
    bench.inject(dreq(id));
    assert!(matches!(bench.sent_one(), Message::Drep(_)));
    // The peer's DREQ counts as the response to ours, which may never arrive if the peer has ended since.
    assert!(matches!(bench.event(), (_, Event::Disconnected)));
    assert_eq!(bench.cm.state(id), Some(State::TimeWait));
    bench.inject(drep(id));
    bench.assert_quiet();
    // Our DREP was lost: the DREQ gets another DREP in time-wait.
    bench.inject(dreq(id));
    assert!(matches!(bench.sent_one(), Message::Drep(_)));
}

#[test]
fn duplicate_handshake_messages_after_disconnect_create_no_connection() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.cm.disconnect(bench.now, id).unwrap();
    bench.inject(drep(id));
    bench.sent();
    bench.inject(req());
    assert_eq!(bench.sent_rej().reason, RejReason::StaleConnection);

    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id).unwrap();
    bench.inject(drep(id));
    bench.sent();
    bench.events();
    bench.inject(rep(id));
    bench.assert_quiet();
}

#[test]
fn dreq_before_rtu_is_accepted() {
    let mut bench = Bench::listening();
    let id = bench.accepted();
    bench.inject(dreq(id));
    assert!(matches!(bench.event(), (_, Event::DisconnectRequested)));
    bench.cm.disconnect(bench.now, id).unwrap();
    assert!(matches!(bench.sent_one(), Message::Drep(_)));
}

#[test]
fn dreq_with_wrong_queue_pair_or_sender_is_dropped() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.inject(Dreq { remote_qpn: Qpn::new(5), ..dreq(id) });
    bench.inject(Dreq { local: CommId(5), ..dreq(id) });
    bench.inject_as(&source_from(gid(9)), 1, dreq(id));
    bench.assert_quiet();
    assert_eq!(bench.cm.counters().wrong_peer, 3);
    assert_eq!(bench.cm.state(id), Some(State::Established));
}

#[test]
fn rejection_ends_an_established_connection() {
    let mut bench = Bench::new();
    let id = bench.client();
    // A listener may have rejected one copy of the request for lack of room and accepted the other: the REJ
    // is late.
    bench.inject(Rej { remote: id.0, reason: RejReason::NoResources, ..Rej::default() });
    bench.assert_quiet();
    bench.inject(Rej { local: PEER_ID, remote: id.0, message: Rejected::None, ..Rej::default() });
    assert_eq!(bench.event(), (id, Event::Disconnected));
    assert_eq!(bench.cm.state(id), Some(State::TimeWait));
}

#[test]
fn disconnect_before_the_connection_is_established_sends_a_rej() {
    let mut bench = Bench::listening();
    let id = bench.accepted();
    bench.cm.disconnect(bench.now, id).unwrap();
    assert_eq!(bench.sent_rej().reason, RejReason::Consumer);
    assert_eq!(bench.event(), (id, Event::Disconnected));
    let mut bench = Bench::new();
    let id = bench.req_sent();
    assert!(bench.cm.disconnect(bench.now, id).is_err());
}

/// Releasing a connection sends the peer the messages that the connection's state calls for. No events
/// follow, and after time-wait no state remains.
#[test]
fn release_notifies_the_peer_in_each_state() {
    type Case = (&'static str, bool, fn(&mut Bench) -> ConnId, &'static [MessageKind]);
    use MessageKind as K;
    let cases: [Case; 10] = [
        ("REQ sent", false, Bench::req_sent, &[K::Rej]),
        ("REQ received", true, Bench::requested, &[K::Rej]),
        ("REP sent", true, Bench::accepted, &[K::Rej]),
        (
            "REP received",
            false,
            |b| {
                let id = b.req_sent();
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
                b.cm.disconnect(b.now, id).unwrap();
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
                b.cm.disconnect(b.now, id).unwrap();
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
                let id = b.cm.sidr_request(b.now, SERVICE, path(), b"").unwrap();
                b.sent_one();
                id
            },
            &[],
        ),
    ];
    for (name, listening, begin, expected) in cases {
        let mut bench = if listening { Bench::listening() } else { Bench::new() };
        let id = begin(&mut bench);
        bench.cm.release(bench.now, id);
        bench.cm.release(bench.now, id);
        assert_eq!(bench.cm.state(id), None, "{name}");
        bench.advance(response_time() + Duration::from_secs(1));
        let kinds: Vec<K> = bench.sent().iter().map(Message::kind).collect();
        assert_eq!(kinds, expected, "{name}");
        bench.advance(Duration::from_secs(1000));
        assert_eq!(bench.events(), [], "{name}");
        bench.sent();
        bench.assert_empty();
    }
}

#[test]
fn rej_for_timeout_before_reply_identifies_the_client_by_ca_guid() {
    let mut client = Bench::new();
    let id = client.req_sent();
    client.cm.release(client.now, id);
    let rej = client.sent_rej();
    assert_eq!((rej.local, rej.remote, rej.reason), (id.0, CommId(0), RejReason::Timeout));
    assert_eq!(rej.info(), OUR_GUID.to_be_bytes());

    // The server finds the request that the REJ belongs to.
    let mut server = Bench::listening();
    let id = server.requested();
    let mut rej = Rej { info_len: 8, local: PEER_ID, reason: RejReason::Timeout, ..Rej::default() };
    rej.info[..8].copy_from_slice(&PEER_GUID.to_be_bytes());
    server.inject_as(&source_from(gid(9)), 1, rej);
    server.inject(Rej { local: CommId(1), ..rej });
    server.assert_quiet();
    server.inject(rej);
    let (of, Event::Rejected(rejection)) = server.event() else { panic!() };
    assert_eq!((of, rejection.reason), (id, RejReason::Timeout));
    server.assert_empty();
}

#[test]
fn time_wait_ends_early_for_connections_beyond_the_maximum() {
    let mut bench = Bench::with(CmConfig { max_time_wait: 10, ..config() });
    for i in 0..100 {
        let id = bench.req_sent();
        let local = CommId(1000 + i);
        bench.inject(Rep { local, qpn: Qpn::new(0x1000 + i), ..rep(id) });
        bench.cm.ready(id).unwrap();
        bench.cm.disconnect(bench.now, id).unwrap();
        bench.inject(Drep { local, ..drep(id) });
        bench.sent();
    }
    assert_eq!(bench.cm.connection_counts(), (10, 10));
    assert_eq!(bench.cm.counters().time_waits_cut, 90);
    let over = bench.events().into_iter().filter(|e| *e == Event::TimeWaitOver).count();
    assert_eq!(over, 90, "each end is reported");
    bench.advance(TIME_WAIT);
    bench.assert_empty();
}
