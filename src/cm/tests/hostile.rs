//! Malicious and faulty peers.

use std::time::Duration;

use super::bench::*;
use crate::cm::*;
use crate::transport::{AddressVector, Instant};
use crate::wire::mad::*;
use crate::wire::{Gid, Mtu, Qpn};

#[test]
fn invalid_mads_are_counted_and_dropped() {
    let mut bench = Bench::listening();
    let good = Mad { transaction: 1, modifier: 0, message: req().into() }.bytes();
    bench.cm.handle_mad(bench.now, &source(), Qpn::GSI, &good[..255]);
    bench.cm.handle_mad(bench.now, &source(), Qpn::GSI, &[]);
    let mut wrong = good;
    wrong[1] = 3;
    bench.cm.handle_mad(bench.now, &source(), Qpn::GSI, &wrong);
    assert_eq!(bench.cm.counters().malformed, 3);
    bench.cm.handle_mad(bench.now, &source(), Qpn::new(17), &good);
    assert_eq!(bench.cm.counters().wrong_qpn, 1);
    bench.assert_quiet();
    bench.assert_empty();
}

#[test]
fn invalid_requests_are_rejected_with_reason_and_acceptable_value() {
    let rejection_of = |req: Req| {
        let mut bench = Bench::with(CmConfig { max_mtu: Mtu::Mtu2048, ..config() });
        bench.cm.listen(SERVICE).unwrap();
        bench.inject(req);
        assert_eq!(bench.events(), []);
        let rej = bench.sent_rej();
        assert_eq!((rej.local, rej.remote, rej.message), (CommId(0), PEER_ID, Rejected::Req));
        bench.assert_empty();
        (rej.reason, rej.info().to_vec())
    };
    assert_eq!(rejection_of(Req { service: ServiceId(1), ..req() }).0, RejReason::InvalidServiceId);
    assert_eq!(rejection_of(Req { mtu: Some(Mtu::Mtu4096), ..req() }), (RejReason::InvalidMtu, vec![4]));
    assert_eq!(rejection_of(Req { mtu: None, ..req() }).0, RejReason::InvalidMtu);
    assert_eq!(rejection_of(Req { transport: TransportService::Rd, ..req() }).0, RejReason::InvalidTransport);
    let extended = Req { transport: TransportService::Extended, extended_transport: 2, ..req() };
    assert_eq!(rejection_of(extended).0, RejReason::InvalidTransport);
    let mut unknown_gid = req();
    unknown_gid.primary.remote_gid = gid(77);
    assert_eq!(rejection_of(unknown_gid), (RejReason::PrimaryGid, our_gid().0.to_vec()));
    let mut unset_gid = req();
    unset_gid.primary.local_gid = Gid::default();
    assert_eq!(rejection_of(unset_gid).0, RejReason::PrimaryGid);
    let mut unknown_gid = req();
    unknown_gid.alternate = PathInfo { local_gid: gid(2), remote_gid: gid(77), ..PathInfo::default() };
    assert_eq!(rejection_of(unknown_gid).0, RejReason::AlternateGid);
}

#[test]
fn flood_of_requests_is_dropped_beyond_the_maximum_number_of_connections() {
    let mut bench = Bench::with(CmConfig { max_connections: 100, ..config() });
    bench.cm.listen(SERVICE).unwrap();
    let mut requested = 0;
    for i in 0..10_000 {
        bench.inject(Req { local: CommId(i + 1), qpn: Qpn::new(0x1000 + i), ..req() });
        requested += bench.events().len();
        bench.assert_quiet();
    }
    assert_eq!(requested, 100);
    assert_eq!(bench.cm.connection_counts(), (100, 0));
    assert_eq!(bench.cm.counters().too_many, 9900);
    assert_eq!(bench.cm.connect(bench.now, &request(b"")), Err(CmError::TooMany(100)));
    bench.cm.check();
}

#[test]
fn retransmission_of_a_dropped_request_is_a_new_request() {
    let mut bench = Bench::with(CmConfig { max_connections: 1, ..config() });
    bench.cm.listen(SERVICE).unwrap();
    let [one, other] = [1, 2].map(|i| Req { local: CommId(i), qpn: Qpn::new(0x1000 + i), ..req() });
    bench.inject(one);
    let (id, _) = bench.event();
    bench.inject(other);
    assert_eq!(bench.events(), [], "beyond the maximum number of connections");
    bench.cm.drop_request(id);
    bench.inject(other);
    let (id, _) = bench.event();
    bench.cm.drop_request(id);
    assert_eq!((bench.cm.counters().too_many, bench.cm.counters().backlog_full), (1, 2));
    bench.inject(other);
    let (id, event) = bench.event();
    assert!(matches!(event, Event::Requested(request) if request.info.qp_num == other.qpn));
    bench.assert_quiet();
    bench.cm.accept(bench.now, id, &reply(b""), 0).unwrap();
    bench.cm.drop_request(id);
    assert_eq!(bench.cm.state(id), Some(State::RepSent), "only a request without a response can be dropped");
    bench.cm.check();
}

#[test]
fn responses_are_dropped_when_the_outbox_is_full() {
    let mut bench = Bench::with(CmConfig { max_queued_responses: 10, ..config() });
    for i in 0..1000 {
        bench.inject(Req { local: CommId(i + 1), ..req() });
    }
    assert_eq!(bench.sent().len(), 10);
    assert_eq!(bench.cm.counters().responses_dropped, 990);
    bench.assert_empty();
}

#[test]
fn messages_for_unknown_connections_get_a_response_if_one_is_expected() {
    let mut bench = Bench::new();
    let (local, remote) = (PEER_ID, CommId(0x4242));
    bench.inject(Rtu { local, remote, ..Rtu::default() });
    bench.inject(Rej { local, remote, ..Rej::default() });
    bench.inject(Rej { local, reason: RejReason::Timeout, ..Rej::default() });
    bench.inject(Drep { local, remote, ..Drep::default() });
    bench.inject(Mra { local, remote, ..Mra::default() });
    bench.inject(Apr { local, remote, ..Apr::default() });
    bench.inject(SidrRep { request: remote, ..SidrRep::default() });
    bench.assert_quiet();
    bench.inject(Rep { local, remote, ..Rep::default() });
    assert_eq!(bench.sent_rej().reason, RejReason::InvalidCommId);
    bench.inject(Dreq { local, remote, ..Dreq::default() });
    assert!(matches!(bench.sent_one(), Message::Drep(d) if d.remote == local && d.local == remote));
    assert_eq!(bench.cm.counters().unknown, 9);
    bench.assert_empty();
}

#[test]
fn reply_from_wrong_peer_is_dropped() {
    let mut bench = Bench::new();
    let id = bench.req_sent();
    bench.inject_as(&source_from(gid(66)), 1, rep(id));
    bench.inject_as(&source_from(gid(66)), 1, Rej { remote: id.0, ..Rej::default() });
    bench.assert_quiet();
    assert_eq!(bench.cm.counters().wrong_peer, 2);
    bench.inject(rep(id));
    assert_eq!(bench.events().len(), 1);
    // A reply with another communication ID is dropped, because the peer's ID is known now.
    bench.inject(Rep { local: CommId(3), ..rep(id) });
    bench.assert_quiet();
}

#[test]
fn reply_with_invalid_queue_pair_is_rejected_and_ends_the_attempt() {
    for qpn in [Qpn::GSI, Qpn::MULTICAST] {
        let mut bench = Bench::new();
        let id = bench.req_sent();
        bench.inject(Rep { qpn, ..rep(id) });
        assert_eq!(bench.sent_rej().reason, RejReason::UnsupportedRequest);
        assert!(matches!(bench.event(), (of, Event::Rejected(_)) if of == id));
        bench.assert_empty();
    }
}

/// A queue pair has at most one connection: a peer that requests a new one for the same queue pair has lost
/// the old one (IBA 12.9.8.3.1).
#[test]
fn request_for_a_queue_pair_that_has_a_connection_is_rejected_as_stale() {
    let mut bench = Bench::listening();
    let old = bench.server();
    bench.inject(Req { local: CommId(0x8888), ..req() });
    let transaction = sent_probe(&mut bench, old);
    bench.inject_as(&source(), transaction, Drep { local: PEER_ID, remote: old.0, ..Drep::default() });
    assert!(matches!(bench.event(), (of, Event::Disconnected) if of == old));
    // The peer's next attempt finds the queue pair free.
    bench.inject(Req { local: CommId(0x8889), ..req() });
    assert_eq!(bench.events().len(), 1);
    // A replay of the first request is stale.
    bench.inject(req());
    assert_eq!(bench.sent_rej().reason, RejReason::StaleConnection);

    // Another host with the same CA GUID is a different peer, and does not affect the connection.
    let mut bench = Bench::listening();
    let old = bench.server();
    let mut forged = req();
    forged.primary.local_gid = gid(66);
    bench.inject_as(&source_from(gid(66)), 1, forged);
    assert_eq!(bench.cm.state(old), Some(State::Established));
    assert!(matches!(bench.event(), (id, Event::Requested(_)) if id != old));

    // A queue pair whose connection the peer has ended is free, and the old connection does not change.
    let mut bench = Bench::listening();
    let old = bench.server();
    bench.inject(Dreq { local: PEER_ID, remote: old.0, remote_qpn: OUR_QPN, ..Dreq::default() });
    bench.events();
    bench.inject(Req { local: CommId(0x8888), ..req() });
    assert!(matches!(bench.event(), (id, Event::Requested(_)) if id != old));
    assert_eq!(bench.cm.state(old), Some(State::DreqRcvd));
    // A connection that waits for a DREP ends at the new request.
    let mut bench = Bench::listening();
    let old = bench.server();
    bench.cm.disconnect(bench.now, old).unwrap();
    bench.inject(Req { local: CommId(0x8888), ..req() });
    let events = bench.events();
    assert!(matches!(events[..], [Event::Disconnected, Event::Requested(_)]), "{events:?}");
    assert_eq!(bench.cm.state(old), Some(State::TimeWait));

    // A reply with the queue pair of another connection is stale, too.
    let mut bench = Bench::new();
    bench.client();
    let id = bench.req_sent();
    bench.inject(Rep { local: CommId(0x9999), ..rep(id) });
    let kinds: Vec<MessageKind> = bench.sent().iter().map(Message::kind).collect();
    assert_eq!(kinds, [MessageKind::Dreq, MessageKind::Rej]);
    assert!(
        matches!(bench.event(), (of, Event::Rejected(r)) if of == id && r.reason == RejReason::StaleConnection)
    );
    bench.cm.check();
}

/// Asserts that the peer was probed for the connection `old` and its new request was rejected; returns the
/// probe's transaction ID.
fn sent_probe(bench: &mut Bench, old: ConnId) -> u64 {
    let sent = bench.sent_mads();
    let [probe, rej] = sent[..] else { panic!("{sent:?}") };
    let Message::Dreq(dreq) = probe.message else { panic!("{probe:?}") };
    assert_eq!((dreq.local, dreq.remote), (old.0, PEER_ID));
    assert_ne!(dreq.remote_qpn, OUR_QPN);
    assert_ne!(dreq.remote_qpn, PEER_QPN, "a peer that has the connection must ignore the probe");
    assert!(matches!(rej.message, Message::Rej(r) if r.reason == RejReason::StaleConnection));
    probe.transaction
}

#[test]
fn forged_req_with_queue_pair_of_established_connection_leaves_it_established() {
    let mut bench = Bench::listening();
    let old = bench.server();
    bench.inject(Req { local: CommId(0x8000), ..req() });
    sent_probe(&mut bench, old);
    // 500 more in the same second: each is rejected, and no further probe is sent.
    for n in 1..500 {
        bench.inject(Req { local: CommId(0x8000 + n), ..req() });
        assert_eq!(bench.sent_rej().reason, RejReason::StaleConnection);
    }
    // A DREP with a transaction ID other than the probe's changes nothing.
    bench.inject_as(&source(), 0xbad, Drep { local: PEER_ID, remote: old.0, ..Drep::default() });
    assert_eq!((bench.events(), bench.cm.state(old)), (vec![], Some(State::Established)));
    // The peer never responds, for longer than an exchange may take.
    bench.advance(Duration::from_secs(120));
    assert_eq!((bench.events(), bench.cm.state(old)), (vec![], Some(State::Established)));
    bench.inject(Req { local: CommId(0x9000), ..req() });
    sent_probe(&mut bench, old);
    bench.cm.check();
}

#[test]
fn unsolicited_drep_leaves_the_connection_established() {
    let mut bench = Bench::listening();
    let old = bench.server();
    bench.inject(Drep { local: PEER_ID, remote: old.0, ..Drep::default() });
    bench.assert_quiet();
    assert_eq!(bench.cm.state(old), Some(State::Established));
}

#[test]
fn only_a_peer_without_the_connection_responds_to_a_probe() {
    let mut bench = Bench::listening();
    let id = bench.server();
    let probe = |remote| Dreq { local: PEER_ID, remote, remote_qpn: Qpn::GSI, ..Dreq::default() };
    bench.inject(probe(id.0));
    bench.assert_quiet();
    assert_eq!(bench.cm.state(id), Some(State::Established));
    bench.inject_as(&source(), 77, probe(CommId(id.0.0 ^ 1)));
    let [mad] = bench.sent_mads()[..] else { panic!("no response") };
    assert_eq!(mad.transaction, 77);
    assert!(matches!(mad.message, Message::Drep(d) if d.remote == PEER_ID && d.local.0 == id.0.0 ^ 1));
}

#[test]
fn transaction_ids_are_not_sequential() {
    let mut bench = Bench::new();
    let mads: Vec<Mad> = (0..16)
        .map(|_| {
            bench.cm.connect(bench.now, &request(b"")).unwrap();
            bench.sent_mads()[0]
        })
        .collect();
    let high: Vec<u64> = mads.iter().map(|mad| mad.transaction >> 32).collect();
    assert!(high.windows(2).all(|pair| pair[1].abs_diff(pair[0]) > 1), "{high:x?}");
}

#[test]
fn request_that_reuses_a_communication_id_is_rejected_as_stale() {
    let mut bench = Bench::listening();
    bench.server();
    bench.inject(Req { qpn: Qpn::new(0x999), ..req() });
    assert_eq!(bench.sent_rej().reason, RejReason::StaleConnection);
}

/// After any two messages in each of six states, the tables are consistent and every exchange ends in time.
#[test]
fn tables_stay_consistent_after_any_message_in_any_state() {
    type Begin = (bool, fn(&mut Bench) -> ConnId);
    let states: [Begin; 6] = [
        (false, Bench::req_sent),
        (true, Bench::requested),
        (true, Bench::accepted),
        (false, Bench::client),
        (true, Bench::server),
        (false, |b| b.cm.sidr_request(b.now, SERVICE, path(), b"").unwrap()),
    ];
    for (listening, begin) in states {
        for first in MessageKind::ALL {
            for second in MessageKind::ALL {
                let mut bench = if listening { Bench::listening() } else { Bench::new() };
                let id = begin(&mut bench);
                for kind in [first, second] {
                    let message = addressed(*kind, id);
                    bench.inject(message);
                    bench.cm.check();
                }
                let ids: Vec<ConnId> = bench.cm.connections.keys().map(|id| ConnId(*id)).collect();
                ids.into_iter().for_each(|id| bench.cm.release(bench.now, id));
                bench.advance(std::time::Duration::from_secs(10_000));
                bench.assert_empty();
            }
        }
    }
}

/// Returns a message of the given kind that carries the connection's communication IDs.
fn addressed(kind: MessageKind, id: ConnId) -> Message {
    let (local, remote) = (PEER_ID, id.0);
    match kind {
        MessageKind::Req => req().into(),
        MessageKind::Mra => Mra { local, remote, ..Mra::default() }.into(),
        MessageKind::Rej => Rej { local, remote, ..Rej::default() }.into(),
        MessageKind::Rep => rep(id).into(),
        MessageKind::Rtu => Rtu { local, remote, ..Rtu::default() }.into(),
        MessageKind::Dreq => Dreq { local, remote, remote_qpn: OUR_QPN, ..Dreq::default() }.into(),
        MessageKind::Drep => Drep { local, remote, ..Drep::default() }.into(),
        MessageKind::SidrReq => SidrReq { request: PEER_ID, service: SERVICE, ..SidrReq::default() }.into(),
        MessageKind::SidrRep => SidrRep { request: remote, ..SidrRep::default() }.into(),
        MessageKind::Lap => Lap {
            local,
            remote,
            remote_qpn: OUR_QPN,
            local_gid: peer_gid(),
            remote_gid: our_gid(),
            ..Lap::default()
        }
        .into(),
        MessageKind::Apr => Apr { local, remote, ..Apr::default() }.into(),
    }
}

#[test]
fn time_at_its_maximum_or_running_backwards_causes_no_panic() {
    let mut bench = Bench::new();
    bench.now = Instant(u64::MAX);
    let id = bench.req_sent();
    bench.cm.handle_timeout(Instant(0));
    assert_eq!(bench.cm.state(id), Some(State::ReqSent));
    let av = AddressVector::to(peer_gid());
    assert!(
        bench.cm.connect(bench.now, &Request { path: Path::to(av, Mtu::Mtu256), ..request(b"") }).is_ok()
    );
}
