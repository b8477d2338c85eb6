//! An unresponsive peer: in each state, the exchange ends within the agreed time and its end is reported.

use std::time::Duration;

use super::bench::*;
use crate::cm::*;
use crate::wire::mad::*;

/// Asserts that a message of kind `kind` is retransmitted `times` times at the agreed interval, and that
/// `last` is sent one interval later.
fn assert_retransmitted(bench: &mut Bench, kind: MessageKind, times: u32, last: &[MessageKind]) {
    for i in 0..times {
        bench.advance(response_time() - Duration::from_nanos(1));
        bench.assert_quiet();
        bench.advance(Duration::from_nanos(1));
        assert_eq!(bench.sent_one().kind(), kind, "retransmission {i}");
    }
    bench.advance(response_time());
    let kinds: Vec<MessageKind> = bench.sent().iter().map(Message::kind).collect();
    assert_eq!(kinds, last);
    assert_eq!(bench.cm.counters().timed_out, 1);
}

#[test]
fn unanswered_req_is_retransmitted_until_an_unreachable_event_is_raised() {
    let mut bench = Bench::new();
    let id = bench.req_sent();
    assert_retransmitted(&mut bench, MessageKind::Req, 15, &[MessageKind::Rej]);
    assert_eq!(bench.event(), (id, Event::Unreachable));
    bench.assert_empty();
    // A reply that arrives after all is rejected as too late.
    bench.inject(rep(id));
    let rej = bench.sent_rej();
    assert_eq!((rej.reason, rej.remote, rej.local), (RejReason::InvalidCommId, PEER_ID, id.0));
}

#[test]
fn second_unanswered_req_is_noted_once() {
    let mut bench = Bench::new();
    let id = bench.req_sent();
    bench.advance(response_time());
    assert_eq!(bench.cm.poll_unanswered(), None);
    bench.advance(response_time());
    assert_eq!((bench.cm.poll_unanswered(), bench.cm.poll_unanswered()), (Some((id, 14)), None));
    bench.advance(10 * response_time());
    assert_eq!(bench.cm.poll_unanswered(), None);
}

#[test]
fn unanswered_rep_is_retransmitted_until_an_unreachable_event_is_raised() {
    let mut bench = Bench::listening();
    let id = bench.accepted();
    assert_retransmitted(&mut bench, MessageKind::Rep, 3, &[MessageKind::Rej]);
    assert_eq!(bench.event(), (id, Event::Unreachable));
    bench.assert_empty();
}

#[test]
fn request_waits_for_the_response_of_the_program_without_deadline() {
    let mut bench = Bench::listening();
    let id = bench.requested();
    bench.advance(Duration::from_secs(100_000));
    bench.assert_quiet();
    bench.cm.accept(bench.now, id, &reply(b""), 0).unwrap();
    bench.advance(Duration::from_secs(1000));
    assert_eq!(bench.event(), (id, Event::Unreachable));
}

#[test]
fn timeout_requested_by_an_mra_is_limited_and_then_retries_are_exhausted() {
    let mut bench = Bench::new();
    let id = bench.req_sent();
    let mra = Mra { local: PEER_ID, remote: id.0, message: Acknowledged::Req, ..Mra::default() };
    // A peer that requests hours is granted minutes.
    bench.inject(Mra { service_timeout: crate::wire::AckTimeout::new(31), ..mra });
    assert_eq!(bench.events().len(), 1);
    bench.advance(Duration::from_nanos(4096 << 24) + 16 * response_time());
    assert_eq!(bench.event(), (id, Event::Unreachable));
    let sent = bench.sent();
    assert_eq!(sent.iter().filter(|m| m.kind() == MessageKind::Req).count(), 15);
    assert!(matches!(sent.last(), Some(Message::Rej(rej)) if rej.remote == PEER_ID));
    bench.assert_empty();
}

#[test]
fn response_timeout_requested_by_the_client_is_limited() {
    let mut bench = Bench::listening();
    let long = crate::wire::AckTimeout::new(31);
    let mut slow = Req { local_response_timeout: long, ..req() };
    slow.primary.ack_timeout = long;
    bench.inject(slow);
    let (id, _) = bench.event();
    bench.cm.accept(bench.now, id, &reply(b""), 0).unwrap();
    // Four attempts, each with a response time and a round trip of the maximum length.
    bench.advance(4 * 3 * Duration::from_nanos(4096 << 24));
    assert_eq!(bench.event(), (id, Event::Unreachable));
}

#[test]
fn connection_enters_time_wait_if_its_dreq_is_not_answered() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id).unwrap();
    bench.sent_one();
    assert_retransmitted(&mut bench, MessageKind::Dreq, 15, &[]);
    assert_eq!(bench.event(), (id, Event::Disconnected));
    bench.advance(Duration::from_secs(3));
    assert_eq!(bench.event(), (id, Event::TimeWaitOver));
    bench.assert_empty();
}

#[test]
fn unanswered_sidr_req_is_retransmitted_until_an_unreachable_event_is_raised() {
    let mut bench = Bench::new();
    let id = bench.cm.sidr_request(bench.now, SERVICE, path(), b"").unwrap();
    bench.sent_one();
    assert_retransmitted(&mut bench, MessageKind::SidrReq, 15, &[]);
    assert_eq!(bench.event(), (id, Event::Unreachable));
    bench.assert_empty();
}

#[test]
fn unanswered_lap_leaves_the_connection_established() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.load_alternate(bench.now, id, &path()).unwrap();
    bench.sent_one();
    assert_retransmitted(&mut bench, MessageKind::Lap, 15, &[]);
    assert_eq!(bench.event(), (id, Event::AlternateTimeout));
    assert_eq!(bench.cm.state(id), Some(State::Established));
    bench.cm.load_alternate(bench.now, id, &path()).unwrap();
}

#[test]
fn established_connection_has_no_deadline() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.advance(Duration::from_secs(1_000_000));
    bench.assert_quiet();
    assert_eq!(bench.cm.state(id), Some(State::Established));
}

/// Creates a connection or a resolution, and moves it to `state` by exchanging the messages that lead there.
fn in_state(state: State) -> (Bench, ConnId) {
    use State as S;
    let server = matches!(
        state,
        S::ReqRcvd | S::DelayingReq | S::RepSent | S::RepDelayed | S::DreqRcvd | S::SidrReqRcvd
    );
    let mut bench = if server { Bench::listening() } else { Bench::new() };
    let delayed = |id: ConnId, message| Mra {
        local: PEER_ID,
        remote: id.0,
        message,
        service_timeout: crate::wire::AckTimeout::new(20),
        ..Mra::default()
    };
    let id = match state {
        S::ReqSent => bench.req_sent(),
        S::ReqDelayed => {
            let id = bench.req_sent();
            bench.inject(delayed(id, Acknowledged::Req));
            id
        }
        S::ReqRcvd => bench.requested(),
        S::DelayingReq => {
            let id = bench.requested();
            bench.inject(req());
            id
        }
        S::RepSent => bench.accepted(),
        S::RepDelayed => {
            let id = bench.accepted();
            bench.inject(delayed(id, Acknowledged::Rep));
            id
        }
        S::RepRcvd | S::DelayingRep => {
            let id = bench.req_sent();
            bench.inject(rep(id));
            if state == S::DelayingRep {
                bench.inject(rep(id));
            }
            id
        }
        S::Established => bench.client(),
        S::DreqSent | S::TimeWait => {
            let id = bench.client();
            bench.cm.disconnect(bench.now, id).unwrap();
            if state == S::TimeWait {
                bench.inject(Drep { local: PEER_ID, remote: id.0, ..Drep::default() });
            }
            id
        }
        S::DreqRcvd => {
            let id = bench.server();
            bench.inject(Dreq { local: PEER_ID, remote: id.0, remote_qpn: OUR_QPN, ..Dreq::default() });
            id
        }
        S::SidrReqSent => bench.cm.sidr_request(bench.now, SERVICE, path(), b"").unwrap(),
        S::SidrReqRcvd => {
            bench.inject(SidrReq { request: PEER_ID, service: SERVICE, ..SidrReq::default() });
            bench.event().0
        }
    };
    bench.events();
    bench.sent();
    assert_eq!(bench.cm.state(id), Some(state));
    (bench, id)
}

/// Returns the name of an event as used in the table of expected events; panics on other events.
fn name(event: &Event) -> &'static str {
    match event {
        Event::Unreachable => "unreachable",
        Event::Disconnected => "disconnected",
        Event::TimeWaitOver => "time-wait over",
        other => panic!("{other:?}"),
    }
}

/// The peer stops responding, in any state. An exchange that waits for the peer ends with an event within the
/// agreed time; one that waits for the program does so once the program has acted. No state remains.
#[test]
fn exchange_with_an_unresponsive_peer_ends_in_time_in_any_state() {
    use State as S;
    /// Action that the program takes, if the exchange waits for the program in this state.
    type Act = Option<fn(&mut Bench, ConnId)>;
    let disconnect: Act = Some(|b, id| b.cm.disconnect(b.now, id).unwrap());
    let accept: Act = Some(|b, id| b.cm.accept(b.now, id, &reply(b""), 0).unwrap());
    let ready: Act = Some(|b, id| {
        b.cm.ready(id).unwrap();
        b.cm.disconnect(b.now, id).unwrap();
    });
    let sidr_reply: Act = Some(|b, id| b.cm.sidr_reply(b.now, id, &super::sidr::sidr_reply(b""), 0).unwrap());
    let all = [
        S::ReqSent,
        S::ReqDelayed,
        S::ReqRcvd,
        S::DelayingReq,
        S::RepSent,
        S::RepDelayed,
        S::RepRcvd,
        S::DelayingRep,
        S::Established,
        S::DreqSent,
        S::DreqRcvd,
        S::TimeWait,
        S::SidrReqSent,
        S::SidrReqRcvd,
    ];
    for state in all {
        // The action, the number of retransmissions, and the expected events. The wait below also covers one
        // MRA.
        let (act, attempts, expected): (Act, u32, &[&str]) = match state {
            S::ReqSent | S::ReqDelayed | S::SidrReqSent => (None, 15, &["unreachable"]),
            S::RepSent | S::RepDelayed => (None, 3, &["unreachable"]),
            S::ReqRcvd | S::DelayingReq => (accept, 3, &["unreachable"]),
            S::RepRcvd | S::DelayingRep => (ready, 15, &["disconnected", "time-wait over"]),
            S::Established => (disconnect, 15, &["disconnected", "time-wait over"]),
            S::DreqSent => (None, 15, &["disconnected", "time-wait over"]),
            S::DreqRcvd => (disconnect, 0, &["time-wait over"]),
            S::TimeWait => (None, 0, &["time-wait over"]),
            // No events are reported of a request to which the program has responded.
            S::SidrReqRcvd => (sidr_reply, 0, &[]),
        };
        let (mut bench, id) = in_state(state);
        if let Some(act) = act {
            // The exchange still waits for the program after a day.
            bench.advance(Duration::from_secs(86_400));
            bench.assert_quiet();
            act(&mut bench, id);
        }
        let mra_wait = Duration::from_nanos(4096 << 20) + response_time();
        let time_wait = Duration::from_nanos(4096 << 19).max(config().min_time_wait);
        bench.advance((attempts + 1) * response_time() + mra_wait + time_wait);
        let events: Vec<&str> = bench.events().iter().map(name).collect();
        assert_eq!(events, expected, "{state}");
        bench.sent();
        bench.assert_empty();
    }
}
