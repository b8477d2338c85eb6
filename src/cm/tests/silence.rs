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
