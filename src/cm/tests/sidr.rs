//! Service ID resolution.

use std::time::Duration;

use super::bench::*;
use crate::cm::*;
use crate::wire::mad::*;
use crate::wire::{PKey, QKey, Qpn};

fn sidr_req() -> SidrReq {
    let mut req =
        SidrReq { request: CommId(0x55), pkey: PKey::DEFAULT, service: SERVICE, private_data: [0; 216] };
    req.private_data[215] = 1;
    req
}

pub fn sidr_reply(private_data: &[u8]) -> SidrRep {
    SidrRep {
        qpn: Qpn::new(0x333),
        qkey: QKey(0x0123_4567),
        vendor_id: 0x1_2345,
        private_data: padded(private_data).unwrap(),
        ..SidrRep::default()
    }
}

#[test]
fn sidr_response_is_accepted_only_once_and_only_from_the_requested_peer() {
    let mut bench = Bench::new();
    let id = bench.cm.sidr_request(bench.now, SERVICE, path(), b"qpn?").unwrap();
    let Message::SidrReq(req) = bench.sent_one() else { panic!() };
    assert_eq!((req.request, req.service, &req.private_data[..4]), (id.0, SERVICE, &b"qpn?"[..]));
    let mut rep = SidrRep {
        request: id.0,
        qpn: Qpn::new(0x333),
        service: SERVICE,
        qkey: QKey(0x0123_4567),
        info_len: 1,
        ..SidrRep::default()
    };
    rep.info[0] = 4;
    // A response from another host is dropped.
    bench.inject_as(&source_from(gid(9)), 1, rep);
    bench.assert_quiet();
    bench.inject(rep);
    let (of, Event::SidrResponse { rep: response, .. }) = bench.event() else { panic!() };
    assert_eq!((of, response.status, response.qpn), (id, SidrStatus::Valid, Qpn::new(0x333)));
    assert_eq!((response.qkey, response.info()), (QKey(0x0123_4567), &[4][..]));
    bench.assert_empty();
    bench.inject(rep);
    bench.assert_quiet();
}

#[test]
fn duplicate_sidr_request_gets_the_same_response() {
    let mut bench = Bench::listening();
    bench.inject_as(&source(), 0x9, sidr_req());
    let (id, Event::Requested(requested)) = bench.event() else { panic!() };
    assert_eq!(
        (requested.service, requested.path.av.dgid, requested.info.private_data[215]),
        (SERVICE, peer_gid(), 1)
    );
    bench.inject_as(&source(), 0x9, sidr_req());
    bench.assert_quiet();
    bench.cm.sidr_reply(bench.now, id, &sidr_reply(b"me"), 6).unwrap();
    let sent = bench.sent_mads();
    let Message::SidrRep(rep) = sent[0].message else { panic!() };
    assert_eq!((sent[0].transaction, sent[0].modifier, rep.vendor_id), (0x9, 6, 0x1_2345));
    assert_eq!((rep.request, rep.qpn, rep.qkey), (CommId(0x55), Qpn::new(0x333), QKey(0x0123_4567)));
    assert_eq!((rep.service, &rep.private_data[..3]), (SERVICE, &b"me\0"[..]));
    bench.inject_as(&source(), 0x9, sidr_req());
    assert_eq!(bench.sent_mads(), sent);
    // A request from another host is a new request, even if its ID is the same.
    bench.inject_as(&source_from(gid(9)), 0x9, sidr_req());
    assert_eq!(bench.events().len(), 1);
    assert_eq!(bench.cm.sidr_reply(bench.now, id, &sidr_reply(b""), 0), Err(CmError::Unknown(id)));
    bench.advance(Duration::from_secs(3));
    assert_eq!(bench.cm.connection_counts(), (1, 0));
}

#[test]
fn reused_request_id_for_another_service_is_treated_as_a_new_request() {
    let mut bench = Bench::listening();
    bench.cm.listen(ServiceId(5)).unwrap();
    bench.inject(sidr_req());
    bench.inject(SidrReq { service: ServiceId(5), ..sidr_req() });
    assert_eq!(bench.events().len(), 2);
    bench.cm.check();
}

#[test]
fn sidr_request_without_listener_or_released_by_the_program_is_rejected() {
    let mut bench = Bench::new();
    bench.inject(sidr_req());
    let Message::SidrRep(rep) = bench.sent_one() else { panic!() };
    assert_eq!((rep.status, rep.request), (SidrStatus::Unsupported, CommId(0x55)));
    bench.assert_empty();

    let mut bench = Bench::listening();
    bench.inject(sidr_req());
    let (id, _) = bench.event();
    bench.cm.release(bench.now, id);
    let Message::SidrRep(rep) = bench.sent_one() else { panic!() };
    assert_eq!(rep.status, SidrStatus::Rejected);
}

#[test]
fn sidr_requests_beyond_the_maximum_number_of_connections_are_rejected() {
    let mut bench = Bench::with(CmConfig { max_connections: 2, ..config() });
    bench.cm.listen(SERVICE).unwrap();
    for i in 0..3 {
        bench.inject(SidrReq { request: CommId(i), ..sidr_req() });
    }
    let Message::SidrRep(rep) = bench.sent_one() else { panic!() };
    assert_eq!((rep.status, rep.request), (SidrStatus::Rejected, CommId(2)));
    // The queued requests are not polled yet, so they are rejected with their listener.
    bench.cm.unlisten(bench.now, SERVICE);
    assert_eq!(bench.sent().len(), 2);
    assert_eq!(bench.events(), []);
    bench.advance(Duration::from_secs(3));
    bench.assert_empty();
}
