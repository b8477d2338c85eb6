//! Completion channels: notification requests and their events.

use std::os::fd::AsFd;

use super::*;

/// Two connected nodes; the second has a queue pair on a completion queue with a channel.
struct Bell {
    a: TestEndpoint,
    b: TestEndpoint,
    peer: Qp,
    qp: Qp,
    cq: Cq,
    channel: CompletionChannel,
    fabric: Fabric,
}

fn bell() -> Bell {
    let fabric = slow_fabric();
    let [a, b] = [(); 2].map(|()| TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap());
    let channel = b.context.create_channel().unwrap();
    let cq = b.context.create_cq_on(16, &channel).unwrap();
    let qp = b.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    let peer = a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default()).unwrap();
    qp.connect(&peer.endpoint(), &ConnectOptions::default()).unwrap();
    peer.connect(&qp.endpoint(), &ConnectOptions::default()).unwrap();
    Bell { a, b, peer, qp, cq, channel, fabric }
}

impl Bell {
    /// The peer sends a message, which arrives.
    fn ring(&self, op: WrOp, solicited: bool) {
        self.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        let flags = SendFlags { solicited, ..SendFlags::default() };
        self.peer.post_send(&SendWr { flags, ..SendWr::new(1, op, &[]) }).unwrap();
        self.fabric.advance(Duration::from_micros(100));
    }

    /// Takes and acknowledges the queued event, and reports whether there was one.
    fn rang(&self) -> bool {
        let event = self.channel.next_event();
        assert!(self.channel.next_event().is_none(), "one asking brings one event");
        event.is_some_and(|event| *event == self.cq)
    }
}

const WRITE_IMM: WrOp = WrOp::WriteWithImm { va: 0, rkey: RKey(0), imm: 1 };

#[test]
fn solicited_notification_is_raised_by_solicited_or_failed_completions() {
    let bell = bell();
    bell.cq.req_notify(Notify::Solicited);
    bell.ring(WrOp::Send, false);
    bell.ring(WrOp::SendWithImm(1), false);
    bell.ring(WRITE_IMM, false);
    assert!(!bell.rang());
    // A local send completion is not solicited, whatever its flags.
    let flags = SendFlags { signaled: true, solicited: true, fence: false };
    bell.a.cq.poll(16, &mut Vec::new()).unwrap();
    bell.peer.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    bell.qp.post_send(&SendWr { flags, ..SendWr::send(1, &[]) }).unwrap();
    bell.fabric.advance(Duration::from_micros(100));
    assert!(!bell.rang());
    assert_eq!(bell.cq.poll(16, &mut Vec::new()), Ok(4));

    for op in [WrOp::Send, WrOp::SendWithImm(2), WRITE_IMM] {
        bell.ring(op, true);
        assert!(bell.rang(), "{op:?}");
        // One event, until notification is requested again.
        bell.ring(op, true);
        assert!(!bell.rang(), "{op:?}");
        bell.cq.req_notify(Notify::Solicited);
    }
    bell.qp.post_recv(&RecvWr { wr_id: 9, sges: &[] }).unwrap();
    bell.qp.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() }).unwrap();
    assert!(bell.rang(), "a flushed receive");
    bell.cq.req_notify(Notify::Solicited);
    bell.qp.post_send(&SendWr::send(10, &[])).unwrap();
    assert!(bell.rang(), "a flushed send");
}

#[test]
fn notification_request_for_any_completion_prevails() {
    let bell = bell();
    bell.cq.req_notify(Notify::Any);
    bell.cq.req_notify(Notify::Solicited);
    bell.ring(WrOp::Send, false);
    assert!(bell.rang());
    bell.cq.req_notify(Notify::Solicited);
    bell.cq.req_notify(Notify::Any);
    bell.ring(WrOp::Send, false);
    assert!(bell.rang());
    bell.ring(WrOp::Send, true);
    assert!(!bell.rang());
}

#[test]
fn event_counts_as_unacked_until_acknowledged() {
    let bell = bell();
    let take = || {
        bell.cq.req_notify(Notify::Any);
        bell.ring(WrOp::Send, false);
        bell.channel.get_event(SOON).unwrap()
    };
    assert_eq!(bell.cq.unacked_events(), 0);
    let event = take();
    assert_eq!(bell.cq.unacked_events(), 1);
    drop(event);
    assert_eq!(bell.cq.unacked_events(), 0);
    // As a C program does: get two events, then acknowledge both.
    for _ in 0..2 {
        assert!(take().into_cq() == bell.cq);
    }
    assert_eq!(bell.cq.unacked_events(), 2);
    let refused = bell.cq.ack_events(3).unwrap_err();
    assert_eq!(refused, AckError { given: 3, unacked: 2 });
    bell.cq.ack_events(1).unwrap();
    assert_eq!(bell.cq.unacked_events(), 1);
    bell.cq.ack_events(1).unwrap();
    assert_eq!(bell.cq.ack_events(1), Err(AckError { given: 1, unacked: 0 }));
}

#[test]
fn cq_is_destroyed_when_unused_and_events_acknowledged() {
    let bell = bell();
    bell.cq.req_notify(Notify::Any);
    bell.ring(WrOp::Send, false);
    let brief = Duration::from_millis(20);
    assert_eq!(bell.cq.clone().destroy(brief), Err(DestroyCqError::InUse(2)));
    drop(bell.qp);
    let event = bell.channel.next_event().unwrap();
    assert_eq!(bell.cq.clone().destroy(brief), Err(DestroyCqError::Unacknowledged(1)));
    std::thread::scope(|scope| {
        let destroyed = scope.spawn(|| bell.cq.clone().destroy(SOON));
        std::thread::sleep(brief);
        assert!(!destroyed.is_finished());
        drop(event);
        assert_eq!(destroyed.join().unwrap(), Ok(()));
    });
}

#[test]
fn events_of_destroyed_cq_are_removed_from_the_channel() {
    let bell = bell();
    bell.cq.req_notify(Notify::Any);
    bell.ring(WrOp::Send, false);
    let other = bell.b.context.create_cq_on(4, &bell.channel).unwrap();
    let qp = bell.b.pd.create_qp(&other, &other, &QpOptions::default()).unwrap();
    other.req_notify(Notify::Any);
    qp.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() }).unwrap();
    qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    let Bell { qp: first, cq, channel, .. } = bell;
    drop((first, cq));
    assert!(is_readable(channel.as_fd()));
    assert!(channel.next_event().is_some_and(|event| *event == other));
    assert!(!is_readable(channel.as_fd()));
    other.req_notify(Notify::Any);
    qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
    assert!(is_readable(channel.as_fd()));
    drop((qp, other));
    assert!(!is_readable(channel.as_fd()) && channel.next_event().is_none());
}

#[test]
fn completion_event_is_waited_for_in_virtual_time() {
    let bell = bell();
    assert_eq!(bell.channel.get_event(SOON).unwrap_err(), WaitError::Idle);
    bell.cq.req_notify(Notify::Any);
    bell.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    bell.peer.post_send(&SendWr::send(2, &[])).unwrap();
    assert!(*bell.channel.get_event(SOON).unwrap() == bell.cq);
    assert_eq!(bell.b.context.clock(), 10_000);
}

#[test]
fn completion_event_is_waited_for_in_real_time() {
    let (a, b) = Fabric::new().pair().unwrap();
    let channel = b.context.create_channel().unwrap();
    let brief = Duration::from_millis(20);
    assert_eq!(channel.get_event(brief).unwrap_err(), WaitError::TimedOut(brief));
    let cq = b.context.create_cq_on(4, &channel).unwrap();
    let qp = b.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() }).unwrap();
    cq.req_notify(Notify::Solicited);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.get_event(SOON).is_ok_and(|event| *event == cq));
        std::thread::sleep(brief);
        qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        assert!(waiting.join().unwrap());
    });
    drop(a);
}
