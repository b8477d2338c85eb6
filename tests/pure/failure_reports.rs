//! Tests of the reports that explain failed work requests: cause, transmissions, retries and local checks, in
//! virtual time.

use std::time::Duration;

use urxe::link::faults::Rule;
use urxe::verbs::*;

const WAIT: Duration = Duration::from_secs(3600);
const LATENCY: Duration = Duration::from_micros(10);
/// ACK timeout of 67.1 ms.
const ACK_TIMEOUT: AckTimeout = AckTimeout::new(14);

fn fabric() -> Fabric {
    Fabric::virtual_time(FabricConfig::default().latency(LATENCY)).unwrap()
}

fn pair(options: ConnectOptions, faults: &[&str]) -> (TestEndpoint, TestEndpoint) {
    let faults = faults.iter().map(|text| text.parse::<Rule>().unwrap());
    fabric().pair_builder().connect(options.timeout(ACK_TIMEOUT)).faults(faults).build().unwrap()
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
            .contains("transmission 8: sent at -100.663 ms; ACK timeout of 100.663 ms at -0.000 ms"),
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
    let FailureCause::Refused(refusal) = refused.failure.cause else { panic!("{refused}") };
    assert_eq!((refusal.code, refusal.psn), (Some(NakCode::RemoteAccessError), a.qp.endpoint().psn));
    assert!(matches!(refusal.access, Some(AccessError::Permission { key, .. }) if key == remote.rkey.0));
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
