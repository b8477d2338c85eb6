//! The handshake (REQ, REP, RTU, REJ), from either side, against a scripted peer.

use super::bench::*;
use crate::cm::*;
use crate::transport::{QpState, QpType};
use crate::wire::mad::*;
use crate::wire::{AckTimeout, Mtu, Qpn};

#[test]
fn client_sends_req_and_answers_rep_with_rtu() {
    let mut bench = Bench::new();
    let id = bench.cm.connect(bench.now, &request(b"hello")).unwrap();
    let requests = bench.sent_mads();
    let Message::Req(req) = requests[0].message else { panic!() };
    assert_eq!((req.local, req.service, req.ca_guid), (id.0, SERVICE, OUR_GUID));
    assert_eq!((req.primary.local_gid, req.primary.remote_gid), (our_gid(), peer_gid()));
    assert_eq!((req.primary.local_lid, req.primary.ack_timeout), (0xffff, AckTimeout::new(19)));
    assert_eq!((&req.private_data[..5], req.private_data[5]), (&b"hello"[..], 0));
    assert!(bench.cm.rtr(id).is_err(), "the peer's queue pair is not known yet");

    let mut rep = rep(id);
    rep.private_data[..2].copy_from_slice(b"hi");
    rep.vendor_id = 0xabcdef;
    bench.inject(rep);
    let (_, Event::Accepted { info, ece }) = bench.event() else { panic!() };
    assert_eq!((info.qp_num, &info.private_data[..3]), (PEER_QPN, &b"hi\0"[..]));
    // The responder resources of one end are the initiator depth of the other.
    assert_eq!((info.responder_resources, info.initiator_depth), (2, 7));
    assert_eq!(ece.vendor_id, 0xabcdef);

    let rtr = bench.cm.rtr(id).unwrap();
    assert_eq!((rtr.state, rtr.dest_qpn), (Some(QpState::Rtr), Some(PEER_QPN)));
    assert_eq!((rtr.path_mtu, rtr.max_dest_rd_atomic), (Some(Mtu::Mtu1024), Some(2)));
    // Each side chooses the first PSN that the other sends.
    assert_eq!((rtr.av, rtr.rq_psn), (Some(source()), Some(our_qp().psn)));
    let rts = bench.cm.rts(id).unwrap();
    assert_eq!((rts.sq_psn, rts.max_rd_atomic), (Some(rep.psn), Some(7)));
    assert_eq!((rts.retry_cnt, rts.rnr_retry, rts.timeout), (Some(7), Some(4), Some(AckTimeout::new(19))));

    // The timeout depends on the peer's ACK delay, not on ours.
    let mut other = Bench::new();
    let slow = other.req_sent();
    other.inject(Rep { target_ack_delay: AckTimeout::new(21), ..super::bench::rep(slow) });
    assert_eq!(other.cm.rts(slow).unwrap().timeout, Some(AckTimeout::new(21)));

    bench.cm.ready(id).unwrap();
    let ready = bench.sent_mads();
    let Message::Rtu(rtu) = ready[0].message else { panic!() };
    assert_eq!((rtu.local, rtu.remote), (id.0, PEER_ID));
    assert_eq!(ready[0].transaction, requests[0].transaction);
    assert_eq!(bench.cm.state(id), Some(State::Established));
    assert_eq!(bench.cm.poll_timeout(), None, "no response is pending");
}

#[test]
fn server_answers_req_with_rep_and_is_established_by_rtu() {
    let mut bench = Bench::listening();
    let mut req = req();
    req.private_data[91] = 9;
    bench.inject_as(&source(), 0x1234, req);
    let (id, Event::Requested(requested)) = bench.event() else { panic!() };
    assert_eq!((requested.info.qp_num, requested.qp_type), (PEER_QPN, QpType::Rc));
    assert_eq!((requested.info.responder_resources, requested.info.initiator_depth), (2, 7));
    assert_eq!((requested.path.av.dgid, requested.path.av.sgid_index), (peer_gid(), 2));
    assert_eq!((requested.path.mtu, requested.info.private_data[91]), (Mtu::Mtu1024, 9));
    // The attributes up to RTS are known before the server accepts, except the PSN that it expects.
    let (rtr, rts) = (bench.cm.rtr(id).unwrap(), bench.cm.rts(id).unwrap());
    assert_eq!((rtr.rq_psn, rts.sq_psn, rts.max_rd_atomic), (None, Some(req.psn), Some(7)));

    bench.cm.accept(bench.now, id, &reply(b"granted"), 0).unwrap();
    let sent = bench.sent_mads();
    let Message::Rep(rep) = sent[0].message else { panic!() };
    assert_eq!((sent[0].transaction, rep.local, rep.remote), (0x1234, id.0, PEER_ID));
    assert_eq!((rep.qpn, rep.psn, rep.ca_guid), (OUR_QPN, our_qp().psn, OUR_GUID));
    assert_eq!((rep.responder_resources, rep.initiator_depth, rep.rnr_retry_count), (3, 4, 5));
    assert_eq!(&rep.private_data[..8], b"granted\0");
    let rtr = bench.cm.rtr(id).unwrap();
    assert_eq!((rtr.rq_psn, rtr.max_dest_rd_atomic), (Some(our_qp().psn), Some(3)));
    let rts = bench.cm.rts(id).unwrap();
    assert_eq!((rts.max_rd_atomic, rts.retry_cnt, rts.rnr_retry), (Some(4), Some(6), Some(4)));

    bench.inject(Rtu { local: PEER_ID, remote: id.0, ..Rtu::default() });
    assert_eq!(bench.event(), (id, Event::Established));
    assert_eq!((bench.cm.state(id), bench.cm.poll_timeout()), (Some(State::Established), None));
}

#[test]
fn duplicate_handshake_messages_get_the_same_response() {
    let mut bench = Bench::listening();
    let id = bench.requested();
    // The program has not responded: each duplicate gets an MRA.
    for _ in 0..2 {
        bench.inject(req());
        let Message::Mra(mra) = bench.sent_one() else { panic!() };
        assert_eq!((mra.local, mra.remote, mra.message), (id.0, PEER_ID, Acknowledged::Req));
        assert_eq!(mra.service_timeout, AckTimeout::new(24));
        assert_eq!(bench.cm.state(id), Some(State::DelayingReq));
    }
    bench.cm.accept(bench.now, id, &reply(b"granted"), 0).unwrap();
    let rep = bench.sent_one();
    bench.inject(req());
    assert_eq!(bench.sent_one(), rep);
    bench.inject(Rtu { local: PEER_ID, remote: id.0, ..Rtu::default() });
    assert_eq!(bench.events().len(), 1);
    bench.inject(Rtu { local: PEER_ID, remote: id.0, ..Rtu::default() });
    bench.assert_quiet();

    let mut bench = Bench::new();
    let id = bench.req_sent();
    bench.inject(super::bench::rep(id));
    assert_eq!(bench.events().len(), 1);
    bench.inject(super::bench::rep(id));
    let Message::Mra(mra) = bench.sent_one() else { panic!() };
    assert_eq!(mra.message, Acknowledged::Rep);
    bench.cm.ready(id).unwrap();
    let rtu = bench.sent_one();
    bench.inject(super::bench::rep(id));
    assert_eq!(bench.sent_one(), rtu);
    assert_eq!(bench.cm.counters().duplicates, 2);
}

#[test]
fn rejected_event_contains_reason_info_and_private_data() {
    let mut bench = Bench::new();
    let id = bench.req_sent();
    let mut rej = Rej {
        local: CommId(0),
        remote: id.0,
        message: Rejected::Req,
        info_len: 2,
        reason: RejReason::InvalidMtu,
        ..Rej::default()
    };
    rej.info[..2].copy_from_slice(&[3, 4]);
    rej.private_data[147] = 5;
    bench.inject(rej);
    let (_, Event::Rejected(rejection)) = bench.event() else { panic!() };
    assert_eq!((rejection.reason, rejection.info()), (RejReason::InvalidMtu, &[3, 4][..]));
    assert_eq!(rejection.private_data[147], 5);
    bench.assert_empty();
}

#[test]
fn duplicate_of_a_rejected_message_gets_the_same_rej() {
    let mut bench = Bench::listening();
    let id = bench.requested();
    bench.cm.reject(bench.now, id, RejReason::Consumer, b"info", b"decline").unwrap();
    let rej = bench.sent_rej();
    assert_eq!((rej.local, rej.remote, rej.message), (id.0, PEER_ID, Rejected::Req));
    assert_eq!(
        (rej.reason, rej.info(), &rej.private_data[..7]),
        (RejReason::Consumer, &b"info"[..], &b"decline"[..])
    );
    // The REJ was lost: the retransmitted request gets the same REJ without another event.
    bench.advance(response_time());
    bench.inject(req());
    assert_eq!(bench.sent_rej(), rej);
    assert_eq!(bench.cm.accept(bench.now, id, &reply(b""), 0), Err(CmError::Unknown(id)));
    bench.advance(10 * response_time());
    bench.assert_quiet();
    bench.assert_empty();

    // A reply can be rejected, too.
    let id = bench.req_sent();
    bench.inject(rep(id));
    assert_eq!(bench.events().len(), 1);
    bench.cm.reject(bench.now, id, RejReason::InsufficientResponderResources, b"", b"").unwrap();
    let rej = bench.sent_rej();
    assert_eq!((rej.message, rej.remote), (Rejected::Rep, PEER_ID));
    bench.inject(rep(id));
    assert_eq!(bench.sent_rej(), rej);
}

#[test]
fn data_before_rtu_establishes_the_connection() {
    let mut bench = Bench::listening();
    let id = bench.accepted();
    assert_eq!(bench.cm.establish(id), Ok(true));
    assert_eq!(bench.cm.establish(id), Ok(false));
    assert_eq!(bench.cm.poll_timeout(), None);
    bench.inject(Rtu { local: PEER_ID, remote: id.0, ..Rtu::default() });
    bench.assert_quiet();
}

#[test]
fn second_mra_does_not_extend_the_wait() {
    let mut bench = Bench::new();
    let id = bench.req_sent();
    let mra = Mra {
        local: PEER_ID,
        remote: id.0,
        message: Acknowledged::Req,
        service_timeout: AckTimeout::new(22),
        ..Mra::default()
    };
    bench.inject(mra);
    assert!(matches!(bench.event(), (_, Event::Delayed(_))));
    // 17 seconds in addition to the agreed time.
    let service = std::time::Duration::from_nanos(4096 << 22);
    bench.advance(service);
    bench.inject(mra);
    bench.assert_quiet();
    bench.advance(response_time());
    assert!(matches!(bench.sent_one(), Message::Req(_)));
    bench.inject(rep(id));
    assert!(matches!(bench.event(), (_, Event::Accepted { .. })));

    // A server waits for its client, too.
    let mut bench = Bench::listening();
    let id = bench.accepted();
    bench.inject(Mra { remote: id.0, message: Acknowledged::Rep, ..mra });
    assert!(matches!(bench.event(), (_, Event::Delayed(_))));
    assert_eq!(bench.cm.state(id), Some(State::RepDelayed));
    bench.inject(Rtu { local: PEER_ID, remote: id.0, ..Rtu::default() });
    assert!(matches!(bench.event(), (_, Event::Established)));
}

#[test]
fn service_has_at_most_one_listener() {
    let mut bench = Bench::listening();
    assert_eq!(bench.cm.listen(SERVICE), Err(CmError::InUse(SERVICE)));
    let other = ServiceId(0x0106_2007);
    bench.cm.listen(other).unwrap();
    bench.inject(Req { service: other, ..req() });
    let (_, Event::Requested(requested)) = bench.event() else { panic!() };
    assert_eq!((requested.is_peer_to_peer, requested.service), (false, other));
    bench.cm.unlisten(bench.now, other);
    bench.cm.listen(other).unwrap();
}

#[test]
fn invalid_parameters_are_rejected_and_change_nothing() {
    let mut bench = Bench::listening();
    let too_long = [0; 93];
    assert_eq!(
        bench.cm.connect(bench.now, &request(&too_long)),
        Err(CmError::PrivateData { len: 93, max: 92 })
    );
    let mut unset = request(b"");
    unset.path.av.sgid_index = 1;
    assert_eq!(bench.cm.connect(bench.now, &unset), Err(CmError::Gid(1)));
    let datagram = Request { qp_type: QpType::Ud, ..request(b"") };
    assert_eq!(bench.cm.connect(bench.now, &datagram), Err(CmError::Datagram));
    let id = bench.requested();
    let too_long = [0; 217];
    assert_eq!(
        bench.cm.sidr_request(bench.now, SERVICE, path(), &too_long),
        Err(CmError::PrivateData { len: 217, max: 216 })
    );
    assert_eq!(padded::<196>(&too_long), Err(CmError::PrivateData { len: 217, max: 196 }));
    assert_eq!(bench.cm.reject(bench.now, id, RejReason::Consumer, &[0; 73], b""), Err(CmError::Info(73)));
    assert!(matches!(bench.cm.ready(id), Err(CmError::State { state: State::ReqRcvd, .. })));
    assert_eq!(bench.cm.state(id), Some(State::ReqRcvd));
    bench.assert_quiet();
}

#[test]
fn every_qp_type_has_its_transport_code_and_attributes() {
    for (qp_type, transport, extended) in [
        (QpType::Rc, TransportService::Rc, 0),
        (QpType::Uc, TransportService::Uc, 0),
        (QpType::XrcSend, TransportService::Extended, 1),
    ] {
        let mut bench = Bench::new();
        let id = bench.cm.connect(bench.now, &Request { qp_type, ..request(b"") }).unwrap();
        let Message::Req(ours) = bench.sent_one() else { panic!() };
        assert_eq!((ours.transport, ours.extended_transport), (transport, extended));
        // The number of an XRC target is in another field.
        let is_xrc = qp_type == QpType::XrcSend;
        let target = Rep { qpn: Qpn::new(0), eecn: PEER_QPN.get(), ..rep(id) };
        bench.inject(if is_xrc { target } else { rep(id) });
        let (rtr, rts) = (bench.cm.rtr(id).unwrap(), bench.cm.rts(id).unwrap());
        assert_eq!(rtr.dest_qpn, Some(PEER_QPN));
        crate::transport::state::check(qp_type, QpState::Init, &rtr).unwrap();
        crate::transport::state::check(qp_type, QpState::Rtr, &rts).unwrap();

        let mut bench = Bench::listening();
        bench.inject(Req { transport, extended_transport: extended, ..req() });
        let (id, Event::Requested(requested)) = bench.event() else { panic!() };
        let peer_type = if is_xrc { QpType::XrcRecv } else { qp_type };
        assert_eq!(requested.qp_type, peer_type);
        bench.cm.accept(bench.now, id, &reply(b""), 0).unwrap();
        let Message::Rep(ours) = bench.sent_one() else { panic!() };
        let number = if is_xrc { (ours.eecn, ours.qpn, ours.srq) } else { (ours.qpn.get(), ours.qpn, false) };
        assert_eq!(number, (OUR_QPN.get(), if is_xrc { Qpn::new(0) } else { OUR_QPN }, is_xrc));
        crate::transport::state::check(peer_type, QpState::Init, &bench.cm.rtr(id).unwrap()).unwrap();
        crate::transport::state::check(peer_type, QpState::Rtr, &bench.cm.rts(id).unwrap()).unwrap();
    }
}

#[test]
fn alternate_path_in_req_is_loaded_by_the_client_and_declined_by_the_server() {
    let mut bench = Bench::new();
    let mut other = path();
    other.av =
        crate::transport::AddressVector { sgid_index: 0, ..crate::transport::AddressVector::to(gid(102)) };
    let id = bench.cm.connect(bench.now, &Request { alternate: Some(other), ..request(b"") }).unwrap();
    let Message::Req(ours) = bench.sent_one() else { panic!() };
    assert_eq!((ours.alternate.local_gid, ours.alternate.remote_gid), (gid(101), gid(102)));
    bench.inject(rep(id));
    assert!(bench.cm.rtr(id).unwrap().alt_path.is_some_and(|p| p.av.dgid == gid(102)));
    assert!(bench.cm.rts(id).unwrap().path_mig_state.is_some());

    let mut bench = Bench::listening();
    let mut peer_req = req();
    peer_req.alternate = PathInfo { local_gid: gid(102), remote_gid: gid(101), ..peer_req.primary };
    bench.inject(peer_req);
    let (id, Event::Requested(_)) = bench.event() else { panic!() };
    let alternate = bench.cm.rtr(id).unwrap().alt_path;
    assert_eq!(alternate.map(|p| (p.av.dgid, p.av.sgid_index)), Some((gid(102), 0)));
    bench.cm.accept(bench.now, id, &reply(b""), 0).unwrap();
    let Message::Rep(rep) = bench.sent_one() else { panic!() };
    assert_eq!(rep.failover, 2, "alternate path rejected");
    assert_eq!(bench.cm.rtr(id).unwrap().alt_path, None);
}

#[test]
fn communication_ids_have_the_prefix_of_the_process() {
    let ids = CommIds { prefix: 5, bits: 6 };
    let mut bench = Bench::with(CmConfig { ids, ..config() });
    for _ in 0..100 {
        let id = bench.cm.connect(bench.now, &request(b"")).unwrap();
        assert_eq!(id.0.0 >> 26, 5);
    }
    assert_eq!(bench.cm.sidr_request(bench.now, SERVICE, path(), b"").unwrap().0.0 >> 26, 5);
}
