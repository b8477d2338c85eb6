//! Pending listeners: requests that arrive during the grace period of a service without a listener.

use std::time::Duration;

use super::bench::*;
use crate::cm::Event;
use crate::transport::QpType;
use crate::wire::Qpn;
use crate::wire::mad::{CommId, Message, Rej, RejReason, Req, ServiceId, SidrReq, SidrStatus};

const SHORT_WAIT: Duration = Duration::from_millis(300);

fn rej_reason(message: &Message) -> Option<RejReason> {
    match message {
        Message::Rej(rej) => Some(rej.reason),
        _ => None,
    }
}

#[test]
fn request_that_arrives_between_two_listeners_is_served_by_the_second() {
    let mut bench = Bench::new();
    bench.cm.listen(SERVICE).unwrap();
    bench.cm.unlisten(bench.now, SERVICE);
    bench.inject(req());
    // Retransmissions are queued only once.
    bench.inject(req());
    bench.inject(SidrReq { request: CommId(7), service: SERVICE, ..SidrReq::default() });
    bench.advance(SHORT_WAIT);
    assert_eq!((bench.sent(), bench.events()), (vec![], vec![]));
    bench.cm.listen(SERVICE).unwrap();
    bench.advance(Duration::ZERO);
    let events: Vec<_> = std::iter::from_fn(|| bench.cm.poll_event()).collect();
    let [(id, Event::Requested(requested)), (sidr_id, Event::Requested(sidr))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((requested.service, requested.info.qp_num), (SERVICE, PEER_QPN));
    assert_eq!((sidr.service, sidr.qp_type), (SERVICE, QpType::Ud));
    assert_eq!(bench.sent(), []);
    bench.cm.release(bench.now, *id);
    bench.cm.release(bench.now, *sidr_id);
    bench.sent();
    bench.advance(Duration::from_secs(100));
    bench.assert_empty();
}

#[test]
fn request_that_arrives_before_an_expected_listener_is_served_by_it() {
    let mut bench = Bench::new();
    bench.cm.expect_listener(bench.now, SERVICE);
    bench.inject(req());
    bench.cm.listen(SERVICE).unwrap();
    bench.advance(Duration::ZERO);
    let (_, Event::Requested(requested)) = bench.event() else { panic!() };
    assert!(!requested.is_peer_to_peer);
}

#[test]
fn queued_request_is_dropped_when_its_client_gives_up() {
    let mut bench = Bench::new();
    bench.cm.expect_listener(bench.now, SERVICE);
    bench.inject(req());
    let rej = Rej { local: PEER_ID, reason: RejReason::Timeout, ..Rej::default() };
    bench.inject_as(&source_from(gid(77)), 1, rej);
    bench.inject(Rej { local: CommId(77), ..rej });
    assert!(bench.cm.poll_timeout().is_some(), "requests of other clients remain queued");
    bench.inject(rej);
    bench.cm.listen(SERVICE).unwrap();
    bench.advance(Duration::from_secs(2));
    bench.assert_quiet();
    bench.assert_empty();
}

#[test]
fn queued_request_is_rejected_at_the_end_of_the_grace_period() {
    let mut bench = Bench::new();
    bench.cm.listen(SERVICE).unwrap();
    bench.cm.unlisten(bench.now, SERVICE);
    bench.inject(Req { service: ServiceId(SERVICE.0 + 1), ..req() });
    assert_eq!(rej_reason(&bench.sent_one()), Some(RejReason::InvalidServiceId));
    bench.inject(req());
    bench.inject(SidrReq { request: CommId(7), service: SERVICE, ..SidrReq::default() });
    bench.advance(2 * SHORT_WAIT);
    assert_eq!(bench.sent(), []);
    // The grace period is a second from the end of the listener, not from the source of the request.
    bench.advance(2 * SHORT_WAIT);
    let sent = bench.sent();
    let [rej, Message::SidrRep(rep)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej_reason(rej), rep.status), (Some(RejReason::InvalidServiceId), SidrStatus::Unsupported));
    bench.inject(req());
    assert_eq!(rej_reason(&bench.sent_one()), Some(RejReason::InvalidServiceId));
    assert_eq!(bench.cm.counters().no_service, 4);
    bench.assert_empty();
}

#[test]
fn number_of_queued_requests_is_bounded() {
    let mut bench = Bench::new();
    bench.cm.expect_listener(bench.now, SERVICE);
    for i in 0..1000 {
        bench.inject(Req { local: CommId(i), qpn: Qpn::new(0x100 + i), ..req() });
    }
    let at_once = bench.sent();
    assert!(at_once.iter().all(|m| rej_reason(m) == Some(RejReason::InvalidServiceId)));
    bench.advance(Duration::from_secs(1));
    assert_eq!((at_once.len(), bench.sent().len()), (744, 256));
    // The number of services in their grace period is bounded, too.
    for i in 0..1000 {
        bench.cm.expect_listener(bench.now, ServiceId(i));
    }
    bench.inject(Req { service: ServiceId(999), ..req() });
    assert_eq!(rej_reason(&bench.sent_one()), Some(RejReason::InvalidServiceId));
    bench.inject(Req { service: ServiceId(255), ..req() });
    assert_eq!(bench.sent(), []);
}
