//! Tests of the reports that explain failed work requests: cause, transmissions, retries and local checks, in
//! virtual time.

use std::time::Duration;

use urxe::middleware::faults::Action;
use urxe::verbs::errors::AccessError;
use urxe::verbs::explain::{
    ConnectionProblem, Failure, FailureCause, FailureReport, LocalCheck, Reporter, TransmissionEnd,
};
use urxe::verbs::faults::{Fault, FaultEffect, ObjectChange};
use urxe::verbs::*;
use urxe::wire::Operation;

const WAIT: Duration = Duration::from_secs(3600);
const LATENCY: Duration = Duration::from_micros(10);
/// ACK timeout of 67.1 ms.
const ACK_TIMEOUT: AckTimeout = AckTimeout::new(14);

fn fabric() -> Fabric {
    Fabric::virtual_time(FabricConfig::default().latency(LATENCY)).unwrap()
}

fn pair_on(fabric: &Fabric, options: ConnectOptions, faults: &[&str]) -> (TestEndpoint, TestEndpoint) {
    let faults = faults.iter().map(|text| text.parse::<Fault>().unwrap());
    fabric.pair_builder().connect(options.timeout(ACK_TIMEOUT)).faults(faults).build().unwrap()
}

fn pair(options: ConnectOptions, faults: &[&str]) -> (TestEndpoint, TestEndpoint) {
    pair_on(&fabric(), options, faults)
}

/// Writes no bytes, for which the peer needs no region.
fn write(wr_id: u64) -> SendWr<'static> {
    SendWr::write(wr_id, &[], RemoteAddr::default())
}

/// Waits for a failed completion of `a`, and returns it with its report.
fn report(a: &TestEndpoint) -> (Completion, FailureReport) {
    let completion = a.cq.wait_any(WAIT).unwrap();
    let report = completion.explain(&a.qp).expect("the work request failed");
    assert_eq!(a.cq.explain(&completion), Some(report.clone()));
    assert_eq!(a.qp.explain().map(|r| r.failure), Some(report.failure.clone()));
    (completion, report)
}

fn lines(report: &FailureReport) -> Vec<String> {
    report.to_string().lines().map(|line| line.trim().to_string()).collect()
}

/// Returns the lines of a report that name faults.
fn fault_lines(report: &FailureReport) -> Vec<String> {
    lines(report).into_iter().filter(|line| line.starts_with("fault rule")).collect()
}

#[test]
fn silent_peer_is_reported_with_every_timeout() {
    let (a, b) = pair(ConnectOptions::default(), &["tx:drop=every:1"]);
    let mr = b.pd.reg_mr(4096, Access::ALL).unwrap();
    let local = a.pd.reg_mr(4096, Access::ALL).unwrap();
    a.qp.post_send(&SendWr::write(7, &[local.sge(0..3000)], mr.remote(0))).unwrap();
    let (completion, report) = report(&a);
    assert_eq!(completion.status, WcStatus::RetryExcErr);
    let Failure { cause, request, transmissions, last_ack, silence, retries, peer, .. } = &report.failure;
    assert_eq!(*cause, FailureCause::NoResponse);
    let request = request.unwrap();
    assert_eq!((request.wr_id, request.len, request.acknowledged), (7, 3000, 0));
    let (first, last) = request.psns.unwrap();
    assert_eq!(last.since(first) + 1, request.packets as i32);
    assert_eq!(first, a.qp.endpoint().psn);
    assert_eq!(peer.unwrap().1, b.qp.qpn());
    assert_eq!(transmissions.len(), 8);
    let timeout = ACK_TIMEOUT.duration().unwrap();
    for (index, transmission) in transmissions.iter().enumerate() {
        let (end, reason) = transmission.end.unwrap();
        let after = if index == 0 { timeout } else { timeout * 3 / 2 };
        assert_eq!(reason, TransmissionEnd::AckTimeout(after));
        assert_eq!(transmission.sent.unwrap() - end, after, "transmission {index}");
    }
    assert_eq!(*silence, transmissions[0].sent);
    assert_eq!(*last_ack, None);
    assert_eq!((retries.retry_cnt, retries.retries_used, retries.ack_timeout), (7, 7, Some(timeout)));
    let lines = lines(&report);
    assert_eq!(lines[0], format!("RDMA WRITE of QP {} failed: transport retry counter exceeded", a.qp.qpn()));
    assert!(lines.contains(&"last ACK: none since RTS".to_string()), "{report}");
    assert!(
        report
            .to_string()
            .contains("transmission 8: sent at -100.663 ms; ACK timeout of 100.663 ms at the failure"),
        "{report}"
    );
}

#[test]
fn killed_peer_is_reported_with_its_last_acknowledgement() {
    let (a, b) = pair(ConnectOptions::default().retry_cnt(1), &[]);
    let mr = b.pd.reg_mr(8, Access::ALL).unwrap();
    a.qp.post_send(&SendWr::write(1, &[], mr.remote(0))).unwrap();
    a.cq.wait(WAIT).unwrap();
    let acknowledged = a.context.clock();
    drop((b, mr));
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    let (_, report) = report(&a);
    assert_eq!(report.failure.cause, FailureCause::NoResponse);
    let last = report.failure.last_ack.unwrap();
    assert_eq!(
        (last.psn, last.ago),
        (a.qp.endpoint().psn, Duration::from_nanos(report.failure.at - acknowledged))
    );
    assert_eq!(report.failure.transmissions.len(), 2);
    assert!(report.failure.silence.is_some_and(|silence| silence <= last.ago));
}

#[test]
fn denied_access_is_reported_at_both_ends() {
    let (a, b) = pair(ConnectOptions::default(), &[]);
    let mr = b.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let remote = mr.remote(0);
    a.qp.post_send(&SendWr::write(3, &[], remote).inline(&[1, 2, 3])).unwrap();
    let (completion, report) = report(&a);
    assert_eq!(completion.status, WcStatus::RemAccessErr);
    assert_eq!(report.failure.cause, FailureCause::Nak(NakCode::RemoteAccessError));
    let request = report.failure.request.unwrap();
    assert_eq!(request.remote, Some((remote.va, remote.rkey)));
    let [transmission] = report.failure.transmissions[..] else { panic!("{report}") };
    assert_eq!(transmission.sent, Some(2 * LATENCY));
    assert_eq!(transmission.end.unwrap().1, TransmissionEnd::Nak(NakCode::RemoteAccessError));
    assert_eq!(report.failure.silence, None);

    let refused = b.qp.explain().unwrap();
    assert_eq!(report.peer.as_ref().map(|peer| &peer.failure), Some(&refused.failure));
    assert_eq!(report.to_string(), refused.to_string(), "both print the joined report");
    assert_eq!(b.context.next_refusal(), Some(refused.clone()));
    assert_eq!(b.context.next_refusal(), None);
    let FailureCause::Refused(refusal) = refused.failure.cause else { panic!("{refused}") };
    assert_eq!((refusal.code, refusal.psn), (Some(NakCode::RemoteAccessError), a.qp.endpoint().psn));
    assert!(matches!(refusal.access, Some(AccessError::Permission { key, .. }) if key == remote.rkey.0));
}

#[test]
fn refusal_without_a_receive_names_the_failed_check_and_the_nearest_key() {
    let wrong = |change: fn(RemoteAddr) -> RemoteAddr| {
        let (a, b) = pair(ConnectOptions::default(), &[]);
        let mr = b.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        a.qp.post_send(&SendWr::write(3, &[], change(mr.remote(0))).inline(&[1; 8])).unwrap();
        a.cq.wait_any(WAIT).unwrap();
        let report = b.context.next_refusal().expect("B refused the request");
        let cause = lines(&report).into_iter().find(|line| line.starts_with("cause at the peer: ")).unwrap();
        let (_, cause) = cause.split_once(", refused with NAK ").unwrap();
        cause
            .replace(&format!("{}", mr.remote(0).rkey), "RKEY")
            .replace(&format!("{:#x}", mr.remote(0).va), "VA")
    };
    let region = "64 bytes at VA, LOCAL_WRITE | REMOTE_WRITE, PD 1";
    let cause = wrong(|remote| RemoteAddr { rkey: RKey(remote.rkey.0 ^ 0x1000), ..remote });
    let nearest = format!("it differs in 1 digit from RKEY ({region})");
    assert!(cause.starts_with("Remote Access Error: key 0x") && cause.ends_with(&nearest), "{cause}");
    let cause = wrong(|remote| RemoteAddr { va: remote.va + 60, ..remote });
    assert!(cause.ends_with(": the range is 4 bytes too long"), "{cause}");
}

#[test]
fn refusal_by_the_flags_of_the_queue_pair_names_the_missing_one() {
    let (a, b) = pair(ConnectOptions::default().access(Access::REMOTE_READ), &[]);
    let mr = b.pd.reg_mr(64, Access::ALL).unwrap();
    a.qp.post_send(&SendWr::write(3, &[], mr.remote(0)).inline(&[1])).unwrap();
    a.cq.wait_any(WAIT).unwrap();
    let refused = b.context.next_refusal().unwrap();
    let text = "refused with NAK Invalid Request: the access flags of the QP are REMOTE_READ: REMOTE_WRITE is missing";
    assert!(refused.to_string().contains(text), "{refused}");
}

#[test]
fn two_queue_pairs_of_a_process_get_one_report() {
    let (a, b) = Fabric::new().pair().unwrap();
    let (sender, reports) = std::sync::mpsc::channel();
    let reporter = Reporter::new(move |report| sender.send(report.to_string()).unwrap());
    reporter.watch(&a.context).unwrap();
    reporter.watch(&b.context).unwrap();
    let unknown = RemoteAddr { va: 0x1000, rkey: RKey(1) };
    b.qp.post_recv(&RecvWr::empty(5)).unwrap();
    a.qp.post_send(&SendWr::write(1, &[], unknown).inline(&[1])).unwrap();
    let completion = a.cq.wait_any(WAIT).unwrap();
    reporter.report_completion(&a.cq, &completion);
    reporter.report_completion(&b.cq, &b.cq.wait_any(WAIT).unwrap());
    drop(reporter);
    let reports: Vec<String> = reports.try_iter().collect();
    let [report] = &reports[..] else { panic!("{reports:?}") };
    let first: Vec<&str> = report.lines().take(5).collect();
    assert!(first[0].starts_with("RDMA WRITE of QP ") && first[2].ends_with(", in this process"), "{report}");
    assert!(first[4].contains("cause at the peer: RC RDMA WRITE Only with PSN "), "{report}");
}

#[test]
fn path_that_loses_large_packets_is_reported_in_the_first_five_lines() {
    let rule = "drop=1..,payload=1025..";
    let (a, b) = pair(ConnectOptions::default().mtu(Mtu::Mtu4096), &[rule]);
    let remote = b.pd.reg_mr(8192, Access::ALL).unwrap();
    let local = a.pd.reg_mr(8192, Access::ALL).unwrap();
    let post = |len| a.qp.post_send(&SendWr::write(1, &[local.sge(0..len)], remote.remote(0))).unwrap();
    post(16);
    a.cq.wait(WAIT).unwrap();
    post(4096);
    let (_, silent) = report(&a);
    let path = silent.failure.path.unwrap();
    assert_eq!((path.mtu, path.lost, path.acknowledged, path.is_black_hole()), (4096, 4096, Some(16), true));
    let text = "path MTU: 4096 bytes; the lost packet has 4096 bytes of payload, of which size none was ever \
                acknowledged, but smaller ones up to 16 bytes were: the path may drop large packets (MTU black hole)";
    assert_eq!(lines(&silent)[4], text);
    assert!(silent.to_string().contains("remedy: lower the path MTU of both QPs"), "{silent}");

    // Packets of that size arrived before.
    let (a, _b) = pair(ConnectOptions::default(), &["drop=2.."]);
    for id in 1..=2 {
        a.qp.post_send(&write(id)).unwrap();
    }
    a.cq.wait(WAIT).unwrap();
    let (_, silent) = report(&a);
    assert_eq!(silent.failure.path.map(|path| path.is_black_hole()), Some(false));
    assert!(lines(&silent)[4].ends_with("of which size others were acknowledged"), "{silent}");
}

#[test]
fn lost_packets_are_reported_with_the_sequence_error() {
    let (a, b) = pair(ConnectOptions::default().retry_cnt(0).mtu(Mtu::Mtu256), &["tx:drop=1"]);
    let mr = b.pd.reg_mr(1024, Access::ALL).unwrap();
    let local = a.pd.reg_mr(1024, Access::ALL).unwrap();
    a.qp.post_send(&SendWr::write(4, &[local.sge(0..1024)], mr.remote(0))).unwrap();
    let (completion, report) = report(&a);
    assert_eq!(completion.status, WcStatus::RetryExcErr);
    assert_eq!(report.failure.cause, FailureCause::SequenceNaks);
    assert_eq!(report.failure.retries.retry_cnt, 0);
    let ends: Vec<_> =
        report.failure.transmissions.iter().filter_map(|t| t.end).map(|(_, end)| end).collect();
    assert_eq!(ends, [TransmissionEnd::SequenceNak]);
}

#[test]
fn missing_receive_is_reported_with_every_wait() {
    let timer = RnrTimer::new(12);
    let (a, b) = pair(ConnectOptions::default().rnr_retry(2).min_rnr_timer(timer), &[]);
    a.qp.post_send(&SendWr::send(5, &[])).unwrap();
    let (completion, report) = report(&a);
    assert_eq!(completion.status, WcStatus::RnrRetryExcErr);
    assert_eq!(report.failure.cause, FailureCause::ReceiverNotReady);
    let transmissions = &report.failure.transmissions;
    assert_eq!(transmissions.len(), 3);
    for (index, transmission) in transmissions.iter().enumerate() {
        let (end, reason) = transmission.end.unwrap();
        assert_eq!(reason, TransmissionEnd::RnrNak(timer.duration()));
        assert_eq!(transmission.sent.unwrap() - end, 2 * LATENCY, "transmission {index}");
    }
    assert_eq!((report.failure.retries.rnr_retry, report.failure.retries.rnr_retries_used), (2, 2));
    assert_eq!(b.qp.explain(), None, "RNR NAKs do not fail the responder");
}

#[test]
fn local_protection_error_is_reported_with_element_key_and_range() {
    let (a, b) = pair(ConnectOptions::default(), &[]);
    let mr = a.pd.reg_mr(64, Access::ALL).unwrap();
    let remote = b.pd.reg_mr(256, Access::ALL).unwrap();
    let good = mr.sge(0..64);
    let bad = Sge { length: 65, ..good };
    a.qp.post_send(&SendWr::write(6, &[good, bad], remote.remote(0))).unwrap();
    let (completion, report) = report(&a);
    assert_eq!(completion.status, WcStatus::LocProtErr);
    let FailureCause::Local(LocalCheck::Access { sge: 1, error }) = report.failure.cause else {
        panic!("{report}")
    };
    let key = good.lkey.0;
    assert!(matches!(error, AccessError::OutOfRange { key: k, len: 65, region_len: 64, .. } if k == key));
    assert!(report.failure.transmissions.is_empty(), "{report}");
}

#[test]
fn revoked_region_is_reported_when_the_response_arrives() {
    let (a, b) = pair(ConnectOptions::default(), &[]);
    let mr = a.pd.reg_mr(64, Access::ALL).unwrap();
    let remote = b.pd.reg_mr(64, Access::ALL).unwrap();
    let sge = mr.sge(0..64);
    a.qp.post_send(&SendWr::read(6, &[sge], remote.remote(0))).unwrap();
    drop(mr);
    let (_, report) = report(&a);
    let unknown = AccessError::UnknownKey { key: sge.lkey.0 };
    assert_eq!(report.failure.cause, FailureCause::Local(LocalCheck::Access { sge: 0, error: unknown }));
}

#[test]
fn flushed_work_request_is_explained_by_the_first_failure() {
    let (a, b) = pair(ConnectOptions::default(), &[]);
    let remote = RemoteAddr { va: 0x1000, rkey: RKey(1) };
    for id in 8..10 {
        a.qp.post_send(&SendWr::write(id, &[], remote).inline(&[1])).unwrap();
    }
    let (_, first) = report(&a);
    let (completion, flushed) = report(&a);
    assert_eq!((completion.wr_id, completion.status), (9, WcStatus::WrFlushErr));
    assert!(flushed.is_flushed() && !first.is_flushed());
    assert_eq!(flushed.failure, first.failure);
    assert_eq!(flushed.failure.request.unwrap().wr_id, 8);
    let qpn = a.qp.qpn();
    let expected = format!("work request 0x9 of QP {qpn} was flushed because of an earlier failure:");
    assert_eq!(lines(&flushed)[0], expected);
    drop(b);
}

#[test]
fn receive_that_is_too_short_is_explained_at_the_responder() {
    let (a, b) = pair(ConnectOptions::default(), &[]);
    let mr = b.pd.reg_mr(8, Access::ALL).unwrap();
    b.qp.post_recv(&RecvWr::new(1, &[mr.sge(0..4)])).unwrap();
    a.qp.post_send(&SendWr::send(2, &[]).inline(&[0; 5])).unwrap();
    let (completion, refused) = report(&b);
    assert_eq!(completion.status, WcStatus::LocLenErr);
    let FailureCause::Refused(refusal) = refused.failure.cause else { panic!("{refused}") };
    assert_eq!((refusal.receive_status, refusal.access), (WcStatus::LocLenErr, None));
}

#[test]
fn modification_to_err_is_explained_and_reset_forgets_it() {
    let (a, b) = pair(ConnectOptions::default(), &["tx:drop=every:1"]);
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    assert_eq!(a.qp.explain(), None);
    a.qp.modify(&QpAttr::default().state(QpState::Err)).unwrap();
    let (completion, report) = report(&a);
    assert_eq!((completion.status, report.failure.cause), (WcStatus::WrFlushErr, FailureCause::Modified));
    a.qp.modify(&QpAttr::default().state(QpState::Reset)).unwrap();
    assert_eq!((a.qp.explain(), completion.explain(&a.qp)), (None, None));
    drop(b);
}

#[test]
fn successful_completion_has_no_report() {
    let (a, b) = pair(ConnectOptions::default(), &["tx:drop=1"]);
    b.qp.post_recv(&RecvWr::empty(1)).unwrap();
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    let completion = a.cq.wait(WAIT).unwrap();
    assert!(a.context.counters().requester_retry > 0 || a.context.counters().ack_probe > 0);
    assert_eq!((completion.explain(&a.qp), a.cq.explain(&completion), a.qp.explain()), (None, None, None));
}

#[test]
fn lost_completion_is_the_cause_of_a_cq_overflow() {
    let fabric = fabric();
    let (first, second) = (Context::on_fabric(&fabric).unwrap(), Context::on_fabric(&fabric).unwrap());
    let b = TestEndpoint::new(second).unwrap();
    let cq = first.create_cq(1).unwrap();
    let qp = first.alloc_pd().unwrap().create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    b.qp.connect(&qp.endpoint(), &ConnectOptions::default()).unwrap();
    for id in 0..3 {
        qp.post_send(&SendWr::write(id, &[], RemoteAddr::default())).unwrap();
    }
    fabric.run_until_idle(WAIT);
    assert_eq!(qp.explain().unwrap().failure.cause, FailureCause::CqOverflow);
}

#[test]
fn rule_that_dropped_the_requests_is_named() {
    let (a, b) = pair(ConnectOptions::default(), &["tx:drop=2..", "rx:drop=100", "mark=every:1"]);
    a.qp.post_send(&write(1)).unwrap();
    a.cq.wait(WAIT).unwrap();
    a.qp.post_send(&write(2)).unwrap();
    let (_, report) = report(&a);
    assert_eq!(report.failure.cause, FailureCause::NoResponse);
    let [fault] = &report.faults[..] else { panic!("{report}") };
    let FaultEffect::Packets { action, count, psn, opcode } = fault.effect else { panic!("{report}") };
    assert_eq!((fault.rule.as_str(), action), ("tx:drop=2..", Action::Drop));
    assert_eq!((psn, opcode.row().operation), (a.qp.endpoint().psn + 1, Operation::Write));
    let transmissions = &report.failure.transmissions;
    assert_eq!(count, transmissions.iter().map(|t| u64::from(t.times + t.probes)).sum::<u64>());
    assert!(Some(fault.ago) <= transmissions.last().unwrap().sent && fault.ago > Duration::ZERO);
    let ago = fault.ago.as_secs_f64() * 1e3;
    let expected = format!(
        "fault rule 'tx:drop=2..' dropped {count} packets of this QP, the last with PSN {psn} (RC RDMA WRITE \
         Only) at -{ago:.3} ms"
    );
    assert_eq!(fault_lines(&report), [expected]);
    drop(b);
}

#[test]
fn rule_that_dropped_the_acknowledgements_is_named() {
    let (a, b) = pair(ConnectOptions::default().retry_cnt(1), &["rx:drop=1..,opcode=ack"]);
    a.qp.post_send(&write(1)).unwrap();
    let (completion, report) = report(&a);
    assert_eq!(completion.status, WcStatus::RetryExcErr);
    let [fault] = &report.faults[..] else { panic!("{report}") };
    let FaultEffect::Packets { action: Action::Drop, psn, opcode, .. } = fault.effect else {
        panic!("{report}")
    };
    assert_eq!((psn, opcode.row().operation), (a.qp.endpoint().psn, Operation::Acknowledge));
    drop(b);
}

#[test]
fn rule_that_answered_in_place_of_the_peer_is_named() {
    let (a, b) = pair(ConnectOptions::default(), &["nak=access@2"]);
    for id in 1..=2 {
        a.qp.post_send(&write(id)).unwrap();
    }
    a.cq.wait(WAIT).unwrap();
    let (completion, nak) = report(&a);
    assert_eq!(completion.status, WcStatus::RemAccessErr);
    let psn = a.qp.endpoint().psn + 1;
    let expected = format!(
        "fault rule 'nak=access@2' answered 1 packet of this QP, with PSN {psn} (RC RDMA WRITE Only) at"
    );
    let lines = fault_lines(&nak);
    assert!(lines.len() == 1 && lines[0].starts_with(&expected), "{nak}");
    drop(b);

    let (a, b) = pair(ConnectOptions::default().rnr_retry(2), &["rnr=12,opcode=send"]);
    a.qp.post_send(&SendWr::send(3, &[])).unwrap();
    let (completion, rnr) = report(&a);
    assert_eq!(completion.status, WcStatus::RnrRetryExcErr);
    let [fault] = &rnr.faults[..] else { panic!("{rnr}") };
    assert!(
        matches!(fault.effect, FaultEffect::Packets { action: Action::RnrNak(_), count: 3, .. }),
        "{rnr}"
    );
    drop(b);
}

#[test]
fn rule_that_changed_a_request_is_named_at_the_responder() {
    let rule = "rx:corrupt=1,at=rkey,xor=0xff,icrc=repair";
    let (b, a) = pair(ConnectOptions::default(), &[rule]);
    let remote = b.pd.reg_mr(8, Access::ALL).unwrap();
    a.qp.post_send(&SendWr::write(1, &[], remote.remote(0)).inline(&[1])).unwrap();
    let (completion, refused) = report(&a);
    assert_eq!((completion.status, &refused.faults[..]), (WcStatus::RemAccessErr, &[][..]));
    let report = b.qp.explain().unwrap();
    let [fault] = &report.faults[..] else { panic!("{report}") };
    assert_eq!(fault.rule, rule);
    assert!(matches!(fault.effect, FaultEffect::Packets { action: Action::Alter(_), count: 1, .. }));
}

#[test]
fn rules_on_objects_are_named() {
    let object = |fault: &str, explained: FailureCause, text: &str| {
        let fabric = fabric();
        let (a, b) = pair_on(&fabric, ConnectOptions::default(), &[fault, "tx:drop=1000"]);
        fabric.advance(Duration::from_millis(2));
        // The failed device refuses it.
        let _ = a.qp.post_send(&write(1));
        fabric.run_until_idle(WAIT);
        let report = a.qp.explain().unwrap();
        assert_eq!(report.failure.cause, explained, "{fault}");
        assert_eq!(fault_lines(&report).len(), 1, "{report}");
        let expected = format!("fault rule '{fault}' {text} at ");
        assert!(fault_lines(&report)[0].starts_with(&expected), "{report}");
        drop(b);
    };
    object("qp:*=err@1ms", FailureCause::Injected, "moved this QP to ERR");
    object("cq:*=overrun@1ms", FailureCause::CqOverflow, "made a completion queue of this QP overflow");
    object("device=fatal@1ms", FailureCause::DeviceFatal, "made the device fail");
    object("port=down@1ms", FailureCause::NoResponse, "took the port down");
}

#[test]
fn event_rule_that_fails_a_queue_pair_is_named() {
    let fabric = fabric();
    let (a, b) = pair_on(&fabric, ConnectOptions::default(), &[]);
    a.context.add_fault(format!("event:QP_ACCESS_ERR@1ms,qp={}", a.qp.qpn().get()).parse().unwrap());
    fabric.advance(Duration::from_millis(1));
    let report = a.qp.explain().unwrap();
    assert_eq!(report.failure.cause, FailureCause::Injected);
    assert!(matches!(report.faults[0].effect, FaultEffect::Object(ObjectChange::Event(_))), "{report}");
    drop(b);
}

#[test]
fn rule_that_revoked_a_region_is_named_where_the_access_failed() {
    let fabric = fabric();
    let (a, b) = pair_on(&fabric, ConnectOptions::default(), &["mr:*=revoke@1ms"]);
    let (local, remote) = (a.pd.reg_mr(8, Access::ALL).unwrap(), b.pd.reg_mr(8, Access::ALL).unwrap());
    fabric.advance(Duration::from_millis(1));
    a.qp.post_send(&SendWr::write(1, &[local.sge(0..8)], remote.remote(0))).unwrap();
    let (completion, denied) = report(&a);
    assert_eq!(completion.status, WcStatus::LocProtErr);
    assert!(
        fault_lines(&denied)[0].starts_with("fault rule 'mr:*=revoke@1ms' revoked the region at "),
        "{denied}"
    );

    let (b, a) = pair_on(&fabric, ConnectOptions::default(), &["mr:*=revoke@1ms"]);
    let remote = b.pd.reg_mr(8, Access::ALL).unwrap();
    fabric.advance(Duration::from_millis(1));
    a.qp.post_send(&SendWr::write(1, &[], remote.remote(0)).inline(&[1])).unwrap();
    let (completion, refused) = report(&a);
    assert_eq!((completion.status, &refused.faults[..]), (WcStatus::RemAccessErr, &[][..]));
    assert_eq!(b.qp.explain().unwrap().faults.len(), 1);
}

#[test]
fn rule_that_did_not_cause_the_failure_is_not_named() {
    // The losses are recovered, and the port is up again, before the peer disappears.
    let fabric = fabric();
    let rules = ["tx:drop=1", "rx:drop=2", "rx:dup=every:1", "port=down@1ms", "port=up@2ms"];
    let (a, b) = pair_on(&fabric, ConnectOptions::default().retry_cnt(7), &rules);
    for id in 0..4 {
        a.qp.post_send(&write(id)).unwrap();
        a.cq.wait(WAIT).unwrap();
    }
    assert!(a.context.counters().requester_retry + a.context.counters().ack_probe > 0);
    fabric.advance(Duration::from_millis(10));
    drop(b);
    a.qp.post_send(&write(9)).unwrap();
    let (_, silent) = report(&a);
    assert_eq!((silent.failure.cause, &silent.faults[..]), (FailureCause::NoResponse, &[][..]));

    // A local check fails without the packets.
    let (a, b) = pair(ConnectOptions::default(), &["tx:drop=1", "mr:1=revoke@1ms"]);
    a.qp.post_send(&write(1)).unwrap();
    let unknown = Sge { addr: 0, length: 1, lkey: LKey(1) };
    a.qp.post_send(&SendWr::write(2, &[unknown], RemoteAddr::default())).unwrap();
    a.cq.wait(WAIT).unwrap();
    let (completion, denied) = report(&a);
    assert_eq!((completion.status, &denied.faults[..]), (WcStatus::LocProtErr, &[][..]));
    drop(b);
}

#[test]
fn connection_request_without_an_answer_is_reported_after_the_second_transmission() {
    use urxe::verbs::cm::{ConnParam, ConnectionManager};
    let fabric = fabric();
    let [local, remote] = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
    let address = (remote.address().unwrap(), 7471).into();
    let manager = ConnectionManager::new(vec![local.clone()]).unwrap();
    let new_qp = |context: &Context| {
        let cq = context.create_cq(16)?;
        context.alloc_pd()?.create_qp(&cq, &cq, &QpOptions::default())
    };
    // Nothing handles the management packets of the other NIC.
    let session = manager.begin_connect(address, new_qp, &ConnParam::default()).unwrap();
    assert_eq!(local.next_connection_report(), None);
    session.event_channel().get_event(Some(WAIT)).unwrap();
    let report = local.next_connection_report().unwrap();
    assert_eq!((report.peer, report.problem), (address, ConnectionProblem::Unanswered { left: 14 }));
    let start =
        format!("connection with {address}: two requests (REQ) were not answered, 14 more may follow: ");
    assert!(report.to_string().starts_with(&start), "{report}");
    assert_eq!(local.next_connection_report(), None);
    drop(remote);
}
