//! A peer that is dead, in each state: each exchange ends within its time, and is told.

use std::time::Duration;

use super::bench::*;
use crate::cm::*;
use crate::wire::mad::*;

/// What is sent while nobody answers: `kind` as often as was agreed, each time after the agreed time; then `last`.
fn repeats(bench: &mut Bench, kind: MessageKind, times: u32, last: &[MessageKind]) {
    for i in 0..times {
        bench.pass(response_time() - Duration::from_nanos(1));
        bench.quiet();
        bench.pass(Duration::from_nanos(1));
        assert_eq!(bench.sent_one().kind(), kind, "time {i}");
    }
    bench.pass(response_time());
    let kinds: Vec<MessageKind> = bench.sent().iter().map(Message::kind).collect();
    assert_eq!(kinds, last);
    assert_eq!(bench.cm.counters().unanswered, 1);
}

#[test]
fn a_request_without_an_answer() {
    let mut bench = Bench::new();
    let id = bench.asked();
    repeats(&mut bench, MessageKind::Req, 15, &[MessageKind::Rej]);
    assert_eq!(bench.event(), (id, Event::Unreachable));
    bench.empty();
    // A reply that comes after all is told that it is too late.
    bench.inject(rep(id));
    let rej = bench.sent_rej();
    assert_eq!((rej.reason, rej.remote, rej.local), (RejReason::InvalidCommId, PEER_ID, id.0));
}

#[test]
fn a_reply_without_an_answer() {
    let mut bench = Bench::listening();
    let id = bench.accepted();
    repeats(&mut bench, MessageKind::Rep, 3, &[MessageKind::Rej]);
    assert_eq!(bench.event(), (id, Event::Unreachable));
    bench.empty();
}

#[test]
fn a_request_whose_client_is_gone_waits_for_the_program() {
    let mut bench = Bench::listening();
    let id = bench.requested();
    bench.pass(Duration::from_secs(100_000));
    bench.quiet();
    bench.cm.accept(bench.now, id, &reply(b"")).unwrap();
    bench.pass(Duration::from_secs(1000));
    assert_eq!(bench.event(), (id, Event::Unreachable));
}

#[test]
fn patience_that_is_used_up() {
    let mut bench = Bench::new();
    let id = bench.asked();
    let mra = Mra { local: PEER_ID, remote: id.0, message: Acknowledged::Req, ..Mra::default() };
    // A peer that asks for hours has minutes.
    bench.inject(Mra { service_timeout: crate::wire::AckTimeout::new(31), ..mra });
    assert_eq!(bench.events().len(), 1);
    bench.pass(Duration::from_nanos(4096 << 24) + 16 * response_time());
    assert_eq!(bench.event(), (id, Event::Unreachable));
    let sent = bench.sent();
    assert_eq!(sent.iter().filter(|m| m.kind() == MessageKind::Req).count(), 15);
    assert!(matches!(sent.last(), Some(Message::Rej(rej)) if rej.remote == PEER_ID));
    bench.empty();
}

#[test]
fn a_client_that_wants_hours_for_each_answer_has_minutes() {
    let mut bench = Bench::listening();
    let long = crate::wire::AckTimeout::new(31);
    let mut slow = Req { local_response_timeout: long, ..req() };
    slow.primary.ack_timeout = long;
    bench.inject(slow);
    let (id, _) = bench.event();
    bench.cm.accept(bench.now, id, &reply(b"")).unwrap();
    // Four times that and a path there and back, each as long as is bearable.
    bench.pass(4 * 3 * Duration::from_nanos(4096 << 24));
    assert_eq!(bench.event(), (id, Event::Unreachable));
}

#[test]
fn a_connection_whose_peer_does_not_answer_that_it_ends() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.disconnect(bench.now, id, b"").unwrap();
    bench.sent_one();
    repeats(&mut bench, MessageKind::Dreq, 15, &[]);
    assert_eq!(bench.event(), (id, Event::Disconnected { private_data: None }));
    bench.pass(Duration::from_secs(3));
    assert_eq!(bench.event(), (id, Event::TimeWaitOver));
    bench.empty();
}

#[test]
fn a_question_without_an_answer() {
    let mut bench = Bench::new();
    let id = bench.cm.sidr_request(bench.now, &super::sidr::question(b"")).unwrap();
    bench.sent_one();
    repeats(&mut bench, MessageKind::SidrReq, 15, &[]);
    assert_eq!(bench.event(), (id, Event::Unreachable));
    bench.empty();
}

#[test]
fn an_alternate_path_without_an_answer_leaves_the_connection() {
    let mut bench = Bench::new();
    let id = bench.client();
    bench.cm.load_alternate(bench.now, id, &path(), b"").unwrap();
    bench.sent_one();
    repeats(&mut bench, MessageKind::Lap, 15, &[]);
    assert_eq!(bench.event(), (id, Event::AlternateUnanswered));
    assert_eq!(bench.cm.state(id), Some(State::Established));
    bench.cm.load_alternate(bench.now, id, &path(), b"").unwrap();
}

#[test]
fn an_established_connection_is_nobodys_timer() {
    let mut bench = Bench::listening();
    let id = bench.server();
    bench.pass(Duration::from_secs(1_000_000));
    bench.quiet();
    assert_eq!(bench.cm.state(id), Some(State::Established));
}

/// A connection, or resolution, in each state, as the messages of a peer have brought it there.
fn begun(state: State) -> (Bench, ConnId) {
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
    let patience = crate::wire::AckTimeout::new(18);
    let id = match state {
        S::ReqSent => bench.asked(),
        S::ReqDelayed => {
            let id = bench.asked();
            bench.inject(delayed(id, Acknowledged::Req));
            id
        }
        S::ReqRcvd => bench.requested(),
        S::DelayingReq => {
            let id = bench.requested();
            bench.cm.delay(bench.now, id, patience, b"").unwrap();
            id
        }
        S::RepSent => bench.accepted(),
        S::RepDelayed => {
            let id = bench.accepted();
            bench.inject(delayed(id, Acknowledged::Rep));
            id
        }
        S::RepRcvd | S::DelayingRep => {
            let id = bench.asked();
            bench.inject(rep(id));
            if state == S::DelayingRep {
                bench.cm.delay(bench.now, id, patience, b"").unwrap();
            }
            id
        }
        S::Established => bench.client(),
        S::DreqSent | S::TimeWait => {
            let id = bench.client();
            bench.cm.disconnect(bench.now, id, b"").unwrap();
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
        S::SidrReqSent => bench.cm.sidr_request(bench.now, &super::sidr::question(b"")).unwrap(),
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

/// What an event is called here.
fn name(event: &Event) -> &'static str {
    match event {
        Event::Unreachable => "unreachable",
        Event::Disconnected { private_data: None } => "disconnected",
        Event::TimeWaitOver => "time-wait over",
        other => panic!("{other:?}"),
    }
}

/// Wherever a peer falls silent, what waits for it ends with an event within the time that was agreed; and what waits for the
/// program ends so once that has acted. Nothing is left.
#[test]
fn a_peer_that_falls_silent_in_any_state() {
    use State as S;
    /// What the program does about it, if it is its turn.
    type Act = Option<fn(&mut Bench, ConnId)>;
    let leave: Act = Some(|b, id| b.cm.disconnect(b.now, id, b"").unwrap());
    let accept: Act = Some(|b, id| b.cm.accept(b.now, id, &reply(b"")).unwrap());
    let ready: Act = Some(|b, id| {
        b.cm.ready(b.now, id, b"").unwrap();
        b.cm.disconnect(b.now, id, b"").unwrap();
    });
    let answer: Act = Some(|b, id| b.cm.sidr_reply(b.now, id, &super::sidr::answer(b"")).unwrap());
    for state in State::ALL {
        // Attempts after the first, and whether the peer has asked for patience once.
        let (act, attempts, told): (Act, u32, &[&str]) = match state {
            S::ReqSent | S::ReqDelayed | S::SidrReqSent => (None, 15, &["unreachable"]),
            S::RepSent | S::RepDelayed => (None, 3, &["unreachable"]),
            S::ReqRcvd | S::DelayingReq => (accept, 3, &["unreachable"]),
            S::RepRcvd | S::DelayingRep => (ready, 15, &["disconnected", "time-wait over"]),
            S::Established => (leave, 15, &["disconnected", "time-wait over"]),
            S::DreqSent => (None, 15, &["disconnected", "time-wait over"]),
            S::DreqRcvd => (leave, 0, &["time-wait over"]),
            S::TimeWait => (None, 0, &["time-wait over"]),
            // The program is told no more of what it has answered.
            S::SidrReqRcvd => (answer, 0, &[]),
        };
        let (mut bench, id) = begun(state);
        if let Some(act) = act {
            // A day, and it is still the program's turn.
            bench.pass(Duration::from_secs(86_400));
            bench.quiet();
            act(&mut bench, id);
        }
        let patience = Duration::from_nanos(4096 << 20) + response_time();
        let time_wait = Duration::from_nanos(4096 << 19).max(config().min_time_wait);
        bench.pass((attempts + 1) * response_time() + patience + time_wait);
        let events: Vec<&str> = bench.events().iter().map(name).collect();
        assert_eq!(events, told, "{state}");
        bench.sent();
        bench.empty();
    }
}
