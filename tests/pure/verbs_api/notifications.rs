//! Tests of completion channels: which completions raise an event after a notification request.

use std::os::fd::AsFd;

use super::*;
use urxe::verbs::errors::{AckError, WaitError};

/// Two connected endpoints; the second has a queue pair on a completion queue with a channel.
struct Fixture {
    a: TestEndpoint,
    b: TestEndpoint,
    peer: Qp,
    qp: Qp,
    cq: Cq,
    channel: CompletionChannel,
    fabric: Fabric,
}

fn fixture() -> Fixture {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let channel = b.context.create_channel().unwrap();
    let cq = b.context.create_cq(CqOptions::new(16).channel(&channel)).unwrap();
    let (qp, peer) = qp_pair((&b.pd, &cq), (&a.pd, &a.cq));
    Fixture { a, b, peer, qp, cq, channel, fabric }
}

impl Fixture {
    /// Posts a receive, sends a message from the peer, and advances the clock until it has arrived.
    fn send_message(&self, op: WrOp, solicited: bool) {
        self.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
        let flags = SendFlags { solicited, ..SendFlags::default() };
        self.peer.post_send(&SendWr::new(1, op, &[]).flags(flags)).unwrap();
        self.fabric.advance(Duration::from_micros(100));
    }

    /// Takes and acknowledges the queued event, if any, and reports whether there was one.
    fn consume_event(&self) -> bool {
        let event = self.channel.next_event();
        assert!(self.channel.next_event().is_none(), "a notification request raises at most one event");
        event.is_some_and(|event| *event == self.cq)
    }
}

const WRITE_IMM: WrOp = WrOp::WriteWithImm { va: 0, rkey: RKey(0), imm: 1 };

#[test]
fn solicited_notification_is_raised_by_solicited_or_failed_completions() {
    let fixture = fixture();
    fixture.cq.req_notify(Notify::Solicited);
    fixture.send_message(WrOp::Send, false);
    fixture.send_message(WrOp::SendWithImm(1), false);
    fixture.send_message(WRITE_IMM, false);
    assert!(!fixture.consume_event());
    // A local send completion is not solicited, whatever its flags.
    let flags = SendFlags { signaled: true, solicited: true, fence: false };
    fixture.a.cq.poll(16, &mut Vec::new()).unwrap();
    fixture.peer.post_recv(&RecvWr::new(1, &[])).unwrap();
    fixture.qp.post_send(&SendWr::send(1, &[]).flags(flags)).unwrap();
    fixture.fabric.advance(Duration::from_micros(100));
    assert!(!fixture.consume_event());
    assert_eq!(fixture.cq.poll(16, &mut Vec::new()), Ok(4));

    for op in [WrOp::Send, WrOp::SendWithImm(2), WRITE_IMM] {
        fixture.send_message(op, true);
        assert!(fixture.consume_event(), "{op:?}");
        // One event, until notification is requested again.
        fixture.send_message(op, true);
        assert!(!fixture.consume_event(), "{op:?}");
        fixture.cq.req_notify(Notify::Solicited);
    }
    fixture.qp.post_recv(&RecvWr::new(9, &[])).unwrap();
    fixture.qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    assert!(fixture.consume_event(), "a flushed receive");
    fixture.cq.req_notify(Notify::Solicited);
    fixture.qp.post_send(&SendWr::send(10, &[])).unwrap();
    assert!(fixture.consume_event(), "a flushed send");
}

#[test]
fn notification_request_for_any_completion_prevails_over_solicited_only() {
    let fixture = fixture();
    fixture.cq.req_notify(Notify::Any);
    fixture.cq.req_notify(Notify::Solicited);
    fixture.send_message(WrOp::Send, false);
    assert!(fixture.consume_event());
    fixture.cq.req_notify(Notify::Solicited);
    fixture.cq.req_notify(Notify::Any);
    fixture.send_message(WrOp::Send, false);
    assert!(fixture.consume_event());
    fixture.send_message(WrOp::Send, true);
    assert!(!fixture.consume_event());
}

#[test]
fn event_counts_as_unacked_until_acknowledged() {
    let fixture = fixture();
    let raise_event = || {
        fixture.cq.req_notify(Notify::Any);
        fixture.send_message(WrOp::Send, false);
        fixture.channel.get_event(TIMEOUT).unwrap()
    };
    assert_eq!(fixture.cq.unacked_events(), 0);
    let event = raise_event();
    assert_eq!(fixture.cq.unacked_events(), 1);
    drop(event);
    assert_eq!(fixture.cq.unacked_events(), 0);
    // Gets two events, then acknowledges both, as a C program does.
    for _ in 0..2 {
        assert!(raise_event().into_cq() == fixture.cq);
    }
    assert_eq!(fixture.cq.unacked_events(), 2);
    let refused = fixture.cq.ack_events(3).unwrap_err();
    assert_eq!(refused, AckError { given: 3, unacked: 2 });
    fixture.cq.ack_events(1).unwrap();
    assert_eq!(fixture.cq.unacked_events(), 1);
    fixture.cq.ack_events(1).unwrap();
    assert_eq!(fixture.cq.ack_events(1), Err(AckError { given: 1, unacked: 0 }));
}

#[test]
fn cq_is_destroyed_only_when_unused_and_all_events_are_acknowledged() {
    let fixture = fixture();
    fixture.cq.req_notify(Notify::Any);
    fixture.send_message(WrOp::Send, false);
    let short = Duration::from_millis(20);
    assert_eq!(fixture.cq.clone().destroy(short), Err(DestroyCqError::InUse(2)));
    drop(fixture.qp);
    let event = fixture.channel.next_event().unwrap();
    assert_eq!(fixture.cq.clone().destroy(short), Err(DestroyCqError::Unacknowledged(1)));
    std::thread::scope(|scope| {
        let destroyed = scope.spawn(|| fixture.cq.clone().destroy(TIMEOUT));
        std::thread::sleep(short);
        assert!(!destroyed.is_finished());
        drop(event);
        assert_eq!(destroyed.join().unwrap(), Ok(()));
    });
}

#[test]
fn events_of_destroyed_cq_are_removed_from_the_channel() {
    let fixture = fixture();
    fixture.cq.req_notify(Notify::Any);
    fixture.send_message(WrOp::Send, false);
    let other = fixture.b.context.create_cq(CqOptions::new(4).channel(&fixture.channel)).unwrap();
    let qp = fixture.b.pd.create_qp(&other, &other, &QpOptions::default()).unwrap();
    other.req_notify(Notify::Any);
    qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    let Fixture { qp: first, cq, channel, .. } = fixture;
    drop((first, cq));
    assert!(is_readable(channel.as_fd()));
    assert!(channel.next_event().is_some_and(|event| *event == other));
    assert!(!is_readable(channel.as_fd()));
    other.req_notify(Notify::Any);
    qp.post_recv(&RecvWr::new(2, &[])).unwrap();
    assert!(is_readable(channel.as_fd()));
    drop((qp, other));
    assert!(!is_readable(channel.as_fd()) && channel.next_event().is_none());
}

#[test]
fn get_event_blocks_until_the_completion_in_virtual_time() {
    let fixture = fixture();
    assert_eq!(fixture.channel.get_event(TIMEOUT).unwrap_err(), WaitError::Idle);
    fixture.cq.req_notify(Notify::Any);
    fixture.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    fixture.peer.post_send(&SendWr::send(2, &[])).unwrap();
    assert!(*fixture.channel.get_event(TIMEOUT).unwrap() == fixture.cq);
    assert_eq!(fixture.b.context.clock(), 10_000);
}

#[test]
fn get_event_blocks_until_the_completion_in_real_time() {
    let (a, b) = Fabric::new().pair().unwrap();
    let channel = b.context.create_channel().unwrap();
    let short = Duration::from_millis(20);
    assert_eq!(channel.get_event(short).unwrap_err(), WaitError::TimedOut(short));
    let cq = b.context.create_cq(CqOptions::new(4).channel(&channel)).unwrap();
    let qp = b.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    cq.req_notify(Notify::Solicited);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.get_event(TIMEOUT).is_ok_and(|event| *event == cq));
        std::thread::sleep(short);
        qp.post_recv(&RecvWr::new(1, &[])).unwrap();
        assert!(waiting.join().unwrap());
    });
    drop(a);
}
