//! Tests of the `tracing` feature: which events a subscriber receives, and in which order.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use urxe::middleware::faults::{Action, Direction, Rule, When};
use urxe::verbs::errors::{ConnectError, ModifyError, WaitError};
use urxe::verbs::*;
use urxe::wire::{Operation, Syndrome};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A subscriber that collects events as lines of text: target, message and fields.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<String>>>);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("urxe::")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().target().to_owned());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => write!(self.0, " {value:?}:"),
            name => write!(self.0, " {name}={value:?}"),
        }
        .unwrap();
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {}={value}", field.name()).unwrap();
    }
}

impl Collector {
    /// Removes all collected events, and returns those whose target is in `targets`.
    fn take(&self, targets: &[&str]) -> Vec<String> {
        let events = std::mem::take(&mut *self.0.lock().unwrap());
        events.into_iter().filter(|e| targets.iter().any(|t| e.split(' ').next() == Some(t))).collect()
    }
}

/// Returns two connected NICs in virtual time; the fault rules apply to the first NIC's link.
fn pair(rules: Vec<Rule>) -> [TestEndpoint; 2] {
    let fabric = Fabric::virtual_time(FabricConfig::default().latency(Duration::from_micros(10))).unwrap();
    // Few retries, so that their exhaustion is near.
    let options = ConnectOptions::default().mtu(Mtu::Mtu1024).retry_cnt(1).rnr_retry(1);
    fabric.pair_builder().faults(rules).connect(options).build().unwrap().into()
}

fn write_rule(when: When) -> Rule {
    Rule::new(Direction::Tx, Action::Drop, when).only(|packet| packet.row().operation == Operation::Write)
}

#[test]
fn state_changes_of_a_connection_are_traced_in_order() {
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let [a, b] = pair(vec![]);
        let [a, b] = [a.qp.qpn(), b.qp.qpn()];
        let steps = [("RESET", "INIT"), ("INIT", "RTR"), ("RTR", "RTS")];
        let expected = [a, b].map(|qpn| {
            steps.map(|(from, to)| {
                format!("urxe::qp state change: qpn={qpn} from={from} to={to} cause=modify")
            })
        });
        assert_eq!(events.take(&["urxe::qp"]), expected.as_flattened());
    });
}

#[test]
fn lost_packet_yields_a_nak_event_and_one_retransmission_event() {
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let [a, b] = pair(vec![write_rule(When::Nth(3))]);
        let (source, target) =
            (a.pd.reg_mr(8192, Access::ALL).unwrap(), b.pd.reg_mr(8192, Access::ALL).unwrap());
        let first = a.qp.query().sq_psn.unwrap();
        let (lost, a_qpn, b_qpn) = (first + 2, a.qp.qpn(), b.qp.qpn());
        a.qp.post_send(&SendWr::write(1, &[source.sge(0..8192)], target.remote(0))).unwrap();
        a.cq.wait(TIMEOUT).unwrap();
        let nak = Syndrome::Nak(urxe::wire::NakCode::PsnSequenceError);
        assert_eq!(
            events.take(&["urxe::nak", "urxe::recovery"]),
            [
                format!("urxe::nak NAK sent: qpn={b_qpn} psn={lost} syndrome={nak:?}"),
                format!("urxe::nak NAK received: qpn={a_qpn} psn={lost} syndrome={nak:?}"),
                format!(
                    "urxe::recovery retransmission: qpn={a_qpn} cause=sequence error NAK psn={lost} retries_left=0"
                ),
            ]
        );
    });
}

#[test]
fn exhausted_retries_event_follows_the_timeouts_and_precedes_the_error_state() {
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let [a, b] = pair(vec![write_rule(When::Every(1))]);
        let target = b.pd.reg_mr(64, Access::ALL).unwrap();
        let (first, qpn) = (a.qp.query().sq_psn.unwrap(), a.qp.qpn());
        events.take(&[]);
        a.qp.post_send(&SendWr::write(1, &[], target.remote(0)).inline(b"lost")).unwrap();
        assert_eq!(a.cq.wait_any(TIMEOUT).unwrap().status, WcStatus::RetryExcErr);
        let status = WcStatus::RetryExcErr;
        assert_eq!(
            events.take(&["urxe::recovery", "urxe::qp"]),
            [
                format!(
                    "urxe::recovery retransmission: qpn={qpn} cause=local ACK timeout psn={first} retries_left=0"
                ),
                format!(
                    "urxe::recovery retries exhausted: qpn={qpn} cause=local ACK timeout psn={first} status={status}"
                ),
                format!("urxe::qp state change: qpn={qpn} from=RTS to=ERR cause=exhausted retries"),
            ]
        );
    });
}

#[test]
fn rnr_nak_yields_a_wait_event_and_a_retransmission_event() {
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let [a, b] = pair(vec![]);
        let (first, a_qpn, b_qpn) = (a.qp.query().sq_psn.unwrap(), a.qp.qpn(), b.qp.qpn());
        events.take(&[]);
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        assert_eq!(
            a.cq.wait_any(Duration::from_micros(100)),
            Err(WaitError::TimedOut(Duration::from_micros(100)))
        );
        b.qp.post_recv(&RecvWr::empty(2)).unwrap();
        a.cq.wait(TIMEOUT).unwrap();
        let timer = ConnectOptions::default().min_rnr_timer;
        let nak = Syndrome::RnrNak(timer);
        assert_eq!(
            events.take(&["urxe::nak", "urxe::recovery"]),
            [
                format!("urxe::nak NAK sent: qpn={b_qpn} psn={first} syndrome={nak:?}"),
                format!("urxe::nak NAK received: qpn={a_qpn} psn={first} syndrome={nak:?}"),
                format!("urxe::recovery RNR wait: qpn={a_qpn} psn={first} wait={:?}", timer.duration()),
                format!(
                    "urxe::recovery retransmission: qpn={a_qpn} cause=RNR NAK psn={first} retries_left=1"
                ),
            ]
        );
    });
}

#[test]
fn errno_query_of_an_error_is_traced_once_with_its_text() {
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let [a, _b] = pair(vec![]);
        let error = a.context.create_cq(0).unwrap_err();
        assert_eq!(error.errno(), 22);
        assert_eq!(
            events.take(&["urxe::errno"]),
            [format!("urxe::errno error of a call: errno=22 error={error}")]
        );
        let nested = ConnectError::Modify(ModifyError::DeviceFatal);
        assert_eq!(nested.errno(), 5);
        assert_eq!(events.take(&["urxe::errno"]).len(), 1);
    });
}

#[test]
fn device_removal_yields_a_link_lost_event() {
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let context = Context::on_fabric(&fabric).unwrap();
        fabric.remove_device(context.query_gid(0).unwrap().ip()).unwrap();
        assert_eq!(
            events.take(&["urxe::link"]),
            ["urxe::link link lost: reason=the device was removed from the fabric"]
        );
    });
}

#[test]
fn refused_request_yields_an_event_with_the_cause_of_the_report() {
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let (a, b) = Fabric::virtual_time(FabricConfig::default()).unwrap().pair().unwrap();
        let unknown = RemoteAddr { va: 0x1000, rkey: RKey(1) };
        a.qp.post_send(&SendWr::write(1, &[], unknown).inline(&[1])).unwrap();
        a.cq.wait_any(TIMEOUT).unwrap();
        let cause = b.context.next_refusal().unwrap().failure.cause;
        let expected = format!("urxe::nak request refused: qpn={} reason={cause}", b.qp.qpn());
        assert!(events.take(&["urxe::nak"]).contains(&expected), "{expected}");
    });
}

#[test]
fn handshake_yields_state_change_events_of_both_sides() {
    use urxe::verbs::cm::*;
    let events = Collector::default();
    tracing::subscriber::with_default(events.clone(), || {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let [local, remote] = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
        let address = (remote.query_gid(0).unwrap().ip(), 7471).into();
        let [client, server] = [local, remote].map(|context| ConnectionManager::new(vec![context]).unwrap());
        let listener = Listener::bind(&server, address).unwrap();
        let new_qp = |context: &Context| {
            let cq = context.create_cq(16)?;
            context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
        };
        let param = ConnParam::default();
        // In virtual time, waits run the steps of both sides in this thread, whose events are collected.
        let mut session = client.begin_connect(address, new_qp, &param).unwrap();
        let incoming = listener.next(TIMEOUT).unwrap();
        let qp = new_qp(&incoming.context().unwrap()).unwrap();
        let served = incoming.accept(qp, &param, TIMEOUT).unwrap();
        session.complete_connect(session.event_channel().get_event(Some(TIMEOUT)).unwrap()).unwrap();
        drop((session, served));
        let changes: Vec<String> = events.take(&["urxe::cm"]);
        let to = |state: &str| changes.iter().filter(|line| line.contains(&format!("to={state}"))).count();
        assert_eq!((to("REP sent"), to("REP received"), to("established")), (1, 1, 2), "{changes:#?}");
    });
}
