//! Tests of faults on objects and on calls of the Rust API, in virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use urxe::verbs::cm::{ConnectionManager, EventChannel, IdError, PortSpace};
use urxe::verbs::errors::{
    CqOverflow, CreateError, InjectedError, ModifyError, OpenError, PostError, PostListError,
};
use urxe::verbs::faults::{Fault, ObjectChange, ObjectFault, PortSpeed, Trigger};
use urxe::verbs::memory::WindowKind;
use urxe::verbs::*;

const TIMEOUT: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);
const LEN: usize = 4096;

fn fabric() -> Fabric {
    Fabric::virtual_time(FabricConfig::default().latency(Duration::from_micros(10))).unwrap()
}

/// Adds a fault to the NIC of `node`.
fn inject(node: &TestEndpoint, text: &str) {
    node.context.add_fault(text.parse().unwrap_or_else(|e| panic!("{e}")));
}

fn events(node: &TestEndpoint) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| node.context.next_event()).collect()
}

/// Returns the numbers of objects that matched the faults, and of those changed.
fn counts(node: &TestEndpoint) -> Vec<(u64, u64)> {
    node.context.fault_counts().iter().map(|count| (count.matched, count.struck)).collect()
}

fn status(node: &TestEndpoint) -> WcStatus {
    node.cq.wait_any(TIMEOUT).unwrap().status
}

#[test]
fn qp_enters_err_at_the_time_of_the_fault_and_not_before() {
    let fabric = fabric();
    let (a, b) = fabric.pair().unwrap();
    b.qp.post_recv(&RecvWr::empty(1)).unwrap();
    inject(&b, &format!("qp:{}=err@5ms", b.qp.qpn()));
    fabric.advance(5 * MS - Duration::from_nanos(1));
    assert_eq!((b.qp.state(), events(&b), counts(&b)), (QpState::Rts, vec![], vec![(0, 0)]));
    fabric.advance(Duration::from_nanos(1));
    assert_eq!((b.qp.state(), events(&b)), (QpState::Err, vec![AsyncEvent::QpFatal(b.qp.qpn())]));
    assert_eq!(status(&b), WcStatus::WrFlushErr);
    assert_eq!(counts(&b), [(1, 1)]);
    // A queue pair in ERR answers nothing, so the peer exhausts its retries.
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(status(&a), WcStatus::RetryExcErr);
}

#[test]
fn fault_on_all_qps_spares_those_of_another_nic() {
    let fabric = fabric();
    let (a, b) = fabric.pair().unwrap();
    let second = a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default()).unwrap();
    second.enter_init(Access::ALL).unwrap();
    inject(&a, "qp:*=err@1ms");
    fabric.advance(MS);
    assert_eq!((a.qp.state(), second.state(), b.qp.state()), (QpState::Err, QpState::Err, QpState::Rts));
    assert_eq!(counts(&a), [(2, 2)]);
}

#[test]
fn number_of_packets_triggers_a_fault() {
    let fabric = fabric();
    let (a, b) = fabric.pair().unwrap();
    let target = b.pd.reg_mr(LEN, Access::ALL).unwrap();
    inject(&a, "qp:*=err@4");
    let write = |id| SendWr::write(id, &[], target.remote(0)).inline(b"data");
    // Each of these is a request and its acknowledgement.
    for id in 0..2 {
        assert_eq!(a.qp.state(), QpState::Rts);
        a.qp.post_send(&write(id)).unwrap();
        assert_eq!(status(&a), WcStatus::Success);
    }
    fabric.run_until_idle(TIMEOUT);
    assert_eq!((a.qp.state(), events(&a)), (QpState::Err, vec![AsyncEvent::QpFatal(a.qp.qpn())]));
}

#[test]
fn overrun_cq_raises_an_event_fails_its_qps_and_reports_the_overflow() {
    let fabric = fabric();
    let (a, _b) = fabric.pair().unwrap();
    a.qp.post_recv(&RecvWr::empty(1)).unwrap();
    inject(&a, &format!("cq:{}=overrun@1ms", a.cq.id().0));
    fabric.advance(MS);
    assert_eq!(events(&a), [AsyncEvent::CqError(a.cq.id()), AsyncEvent::QpFatal(a.qp.qpn())]);
    assert_eq!((a.qp.state(), status(&a)), (QpState::Err, WcStatus::WrFlushErr));
    assert_eq!(a.cq.poll(1, &mut Vec::new()), Err(CqOverflow { capacity: 1024 }));
    assert_eq!(counts(&a), [(1, 1)]);
}

#[test]
fn requests_wait_while_a_fault_holds_the_port_down() {
    let fabric = fabric();
    let (a, b) = fabric.pair().unwrap();
    let target = b.pd.reg_mr(LEN, Access::ALL).unwrap();
    inject(&a, "port=down@1ms");
    inject(&a, "port=up@20ms");
    fabric.advance(MS);
    assert!(!a.context.query_port().active);
    assert_eq!(events(&a), [AsyncEvent::PortError]);
    a.qp.post_send(&SendWr::write(1, &[], target.remote(0)).inline(b"late")).unwrap();
    fabric.advance(10 * MS);
    assert_eq!(target.to_vec()[..4], [0; 4]);
    assert_eq!(status(&a), WcStatus::Success);
    assert!(fabric.now().0 >= 20_000_000, "the request completed at {:?}", fabric.now());
    assert_eq!((&target.to_vec()[..4], events(&a)), (&b"late"[..], vec![AsyncEvent::PortActive]));
    assert_eq!(counts(&a), [(1, 1), (1, 1)]);
}

#[test]
fn packets_to_a_port_that_is_down_are_lost_and_the_peer_runs_out_of_retries() {
    let fabric = fabric();
    let (a, b) = fabric.pair().unwrap();
    inject(&a, "port=down@0ms");
    fabric.advance(MS);
    b.qp.post_send(&SendWr::send(1, &[])).unwrap();
    assert_eq!(status(&b), WcStatus::RetryExcErr);
    assert_eq!(a.context.counters().rcvd_pkts, 0);
    // A fault that finds the port down already changes nothing.
    inject(&a, "port=down@0ms");
    fabric.advance(MS);
    assert_eq!((events(&a), counts(&a)), (vec![AsyncEvent::PortError], vec![(1, 1), (1, 0)]));
}

#[test]
fn gid_is_replaced_and_removed_with_an_event_each() {
    let fabric = fabric();
    let (a, _b) = fabric.pair().unwrap();
    inject(&a, "gid:1=192.0.2.9@1ms");
    inject(&a, "gid:0=remove@2ms");
    inject(&a, "gid:7=192.0.2.10@3ms");
    let address = |index| a.context.query_gid(index).map(|gid| gid.ip().to_string());
    let first = address(0);
    fabric.advance(MS);
    assert_eq!(
        (events(&a), address(0), address(1)),
        (vec![AsyncEvent::GidChange], first, Some("192.0.2.9".into()))
    );
    fabric.advance(2 * MS);
    assert_eq!((events(&a), address(0), a.context.gids().len()), (vec![AsyncEvent::GidChange], None, 2));
    assert_eq!(counts(&a), [(1, 1), (1, 1), (0, 0)]);
}

#[test]
fn speed_change_is_reported_by_the_port_after_it_went_down_and_up() {
    let fabric = fabric();
    let (a, _b) = fabric.pair().unwrap();
    let speed = |node: &TestEndpoint| {
        let port = node.context.query_port();
        PortSpeed::ALL.into_iter().find(|s| (s.width(), s.lane()) == (port.active_width, port.active_speed))
    };
    assert_eq!(speed(&a).map(PortSpeed::gbps), Some(200));
    inject(&a, "speed=25G@1ms");
    fabric.advance(MS);
    assert_eq!(speed(&a).map(PortSpeed::gbps), Some(25));
    assert_eq!(events(&a), [AsyncEvent::PortError, AsyncEvent::PortActive]);
}

#[test]
fn device_fails_with_its_qps_and_creates_no_more_objects() {
    let fabric = fabric();
    let (a, _b) = fabric.pair().unwrap();
    a.qp.post_recv(&RecvWr::empty(1)).unwrap();
    inject(&a, "device=fatal@1ms");
    inject(&a, "event:DEVICE_FATAL@1ms");
    fabric.advance(MS);
    assert_eq!((events(&a), status(&a)), (vec![AsyncEvent::DeviceFatal], WcStatus::WrFlushErr));
    assert_eq!(a.context.alloc_pd().unwrap_err(), CreateError::DeviceFatal);
    assert_eq!(a.qp.post_recv(&RecvWr::empty(2)), Err(PostError::DeviceFatal));
    assert_eq!(counts(&a), [(1, 1), (1, 0)], "the device fails only once");
    let report = a.qp.explain().unwrap();
    assert_eq!(report.faults.iter().map(|fault| &fault.rule).collect::<Vec<_>>(), ["device=fatal@1ms"]);
}

#[test]
fn revoked_region_denies_local_and_remote_access_and_can_be_deregistered() {
    let fabric = fabric();
    let (a, b) = fabric.pair().unwrap();
    let (source, target) = (a.pd.reg_mr(LEN, Access::ALL).unwrap(), b.pd.reg_mr(LEN, Access::ALL).unwrap());
    let write = |id| {
        a.qp.post_send(&SendWr::write(id, &[source.sge(0..LEN)], target.remote(0))).unwrap();
        status(&a)
    };
    assert_eq!(write(1), WcStatus::Success);
    let revoke = ObjectChange::RevokeMr(Some(target.rkey()));
    b.context.add_fault(ObjectFault::new(revoke, Trigger::After(Duration::ZERO)));
    fabric.advance(MS);
    assert_eq!(write(2), WcStatus::RemAccessErr);
    assert_eq!(events(&b), [AsyncEvent::QpAccessError(b.qp.qpn())]);
    // The memory itself is intact, and a new region of the same domain works.
    drop(target);
    let (c, d) = fabric.pair().unwrap();
    let (own, other) = (c.pd.reg_mr(LEN, Access::ALL).unwrap(), d.pd.reg_mr(LEN, Access::ALL).unwrap());
    inject(&c, "mr:*=revoke@0ms");
    fabric.advance(MS);
    let fresh = c.pd.reg_mr(LEN, Access::ALL).unwrap();
    c.qp.post_send(&SendWr::write(3, &[fresh.sge(0..LEN)], other.remote(0))).unwrap();
    assert_eq!(status(&c), WcStatus::Success);
    c.qp.post_send(&SendWr::write(4, &[own.sge(0..LEN)], other.remote(0))).unwrap();
    assert_eq!(status(&c), WcStatus::LocProtErr);
    assert_eq!((counts(&b), counts(&c)), (vec![(1, 1)], vec![(1, 1)]));
}

#[test]
fn event_of_choice_is_raised_with_its_effect() {
    let fabric = fabric();
    let (a, b) = fabric.pair().unwrap();
    let qpn = a.qp.qpn();
    inject(&a, &format!("event:SQ_DRAINED@1ms,qp={qpn}"));
    inject(&a, "event:PKEY_CHANGE@2ms");
    inject(&a, &format!("event:QP_ACCESS_ERR@3ms,qp={qpn}"));
    inject(&b, &format!("event:IBV_EVENT_CQ_ERR@1ms,cq={}", b.cq.id().0));
    inject(&b, "event:QP_FATAL@1ms,qp=0x1234");
    fabric.advance(2 * MS);
    assert_eq!(
        (events(&a), a.qp.state()),
        (vec![AsyncEvent::SqDrained(qpn), AsyncEvent::PKeyChange], QpState::Rts)
    );
    fabric.advance(MS);
    assert_eq!((events(&a), a.qp.state()), (vec![AsyncEvent::QpAccessError(qpn)], QpState::Err));
    assert_eq!(events(&b), [AsyncEvent::CqError(b.cq.id()), AsyncEvent::QpFatal(b.qp.qpn())]);
    assert_eq!(counts(&b), [(1, 1), (0, 0)]);
    let warning = b.context.fault_counts()[1].warning();
    let expected = "warning: fault rule 'event:QP_FATAL@1ms,qp=0x1234' matched no object and had no effect";
    assert_eq!(warning.as_deref(), Some(expected));
}

#[test]
fn faults_of_the_options_begin_when_the_context_is_opened_and_include_packet_rules() {
    let fabric = fabric();
    let faults: [Fault; 2] = ["port=down@3ms".parse().unwrap(), "drop=1".parse().unwrap()];
    fabric.advance(5 * MS);
    let context = fabric.open(&ContextOptions::default().faults(faults)).unwrap();
    let (a, b) = (
        TestEndpoint::new(context).unwrap(),
        TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap(),
    );
    a.connect(&b, &ConnectOptions::default()).unwrap();
    b.qp.post_recv(&RecvWr::empty(1)).unwrap();
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(a.context.wait_event(TIMEOUT).unwrap(), AsyncEvent::PortError);
    assert_eq!(fabric.now().0, 8_000_000);
    let counts = a.context.fault_counts();
    assert_eq!((counts[0].rule.as_str(), counts[0].struck), ("drop=1", 1));
    assert_eq!((counts[1].rule.as_str(), counts[1].struck), ("port=down@3ms", 1));
}

/// Returns a pair whose first NIC has the given faults on calls.
fn pair_with(fabric: &Fabric, faults: &[&str]) -> (TestEndpoint, TestEndpoint) {
    let faults = faults.iter().map(|text| text.parse::<Fault>().unwrap());
    fabric.pair_builder().faults(faults).build().unwrap()
}

#[test]
fn open_fails_with_the_injected_errno() {
    let fabric = fabric();
    let fault: Fault = "call:ibv_open_device=ENODEV".parse().unwrap();
    let error = fabric.open(&ContextOptions::default().faults([fault])).unwrap_err();
    assert!(matches!(error, OpenError::Injected(InjectedError { errno: libc::ENODEV, .. })), "{error}");
    let text = "No such device (os error 19) (ibv_open_device, by the fault rule 'call:ibv_open_device=ENODEV', first call)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn creations_fail_once_and_then_succeed() {
    // The first of each kind is made by the pair.
    let names = ["alloc_pd", "create_cq", "create_qp"].map(|name| format!("call:ibv_{name}=ENOMEM@2"));
    let rest =
        ["reg_mr", "create_srq", "create_ah", "create_comp_channel", "alloc_mw", "alloc_dm", "resize_cq"]
            .map(|name| format!("call:ibv_{name}=ENOMEM@1"));
    let faults: Vec<&str> = names.iter().chain(&rest).map(|text| text.as_str()).collect();
    let (a, _b) = pair_with(&fabric(), &faults);
    let (pd, cq, gid) = (&a.pd, &a.cq, a.context.query_gid(0).unwrap());
    for (is_first, expected) in [(true, Some(libc::ENOMEM)), (false, None)] {
        let failures = [
            a.context.alloc_pd().err(),
            a.context.create_cq(1).err(),
            pd.create_qp(cq, cq, &QpOptions::default()).err(),
            pd.reg_mr(LEN, Access::ALL).err(),
            pd.create_srq(RecvCaps { max_wr: 4, max_sge: 1 }).err(),
            pd.create_ah(&AddressVector::to(gid)).err(),
            a.context.create_channel().err(),
            pd.alloc_mw(WindowKind::Type1).err(),
            a.context.alloc_dm(64).err(),
            cq.resize(2048).err(),
        ];
        let errnos = failures.map(|failure| match failure {
            Some(CreateError::Injected(error)) => Some(error.errno),
            other => other.map(|error| panic!("{error}")),
        });
        assert_eq!(errnos, [expected; 10], "first: {is_first}");
    }
}

#[test]
fn failed_posts_and_modifications_leave_the_qp_unchanged() {
    let faults = ["call:ibv_post_*=ENOMEM@1", "call:ibv_post_recv=EIO@1", "call:ibv_modify_qp=EINVAL@4"];
    let (a, b) = pair_with(&fabric(), &faults);
    let injected = |errno, call, rule, number| InjectedError { errno, call, rule, number };
    let error = PostError::Injected(injected(libc::ENOMEM, "ibv_post_send", faults[0], 1));
    assert_eq!(
        a.qp.post_send_list(&[SendWr::send(1, &[]), SendWr::send(2, &[])], ListPolicy::UntilRejected),
        Err(PostListError { index: 0, error })
    );
    let error = PostError::Injected(injected(libc::EIO, "ibv_post_recv", faults[1], 1));
    assert_eq!(a.qp.post_recv(&RecvWr::empty(3)), Err(error));
    let to_err = QpAttr::new(QpState::Err);
    let error = ModifyError::Injected(injected(libc::EINVAL, "ibv_modify_qp", faults[2], 4));
    assert_eq!(a.qp.modify(&to_err), Err(error));
    assert_eq!(a.qp.state(), QpState::Rts);
    b.qp.post_recv(&RecvWr::empty(4)).unwrap();
    a.qp.post_send(&SendWr::send(5, &[])).unwrap();
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 5);
    a.qp.modify(&to_err).unwrap();
}

#[test]
fn failed_poll_reports_an_overflow_and_loses_no_completion() {
    let (a, b) = pair_with(&fabric(), &["call:ibv_poll_cq=EIO@1"]);
    b.qp.post_recv(&RecvWr::empty(1)).unwrap();
    a.qp.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(a.cq.poll(1, &mut Vec::new()), Err(CqOverflow { capacity: 1024 }));
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 2);
}

#[test]
fn slow_call_advances_virtual_time_by_its_delay() {
    let fabric = fabric();
    let (a, _b) =
        pair_with(&fabric, &["call:ibv_reg_mr=slow@2,by=3ms", "call:ibv_req_notify_cq=slow,by=1ms"]);
    let time_of = |call: &dyn Fn()| {
        let before = fabric.now();
        call();
        fabric.now().since(before)
    };
    let register = || drop(a.pd.reg_mr(LEN, Access::ALL).unwrap());
    assert_eq!([(); 3].map(|()| time_of(&register)), [Duration::ZERO, 3 * MS, Duration::ZERO]);
    assert_eq!(time_of(&|| a.cq.req_notify(Notify::Any)), MS);
}

#[test]
fn connection_manager_calls_fail_and_its_own_objects_are_not_affected() {
    let fabric = fabric();
    let names =
        ["create_id", "bind_addr", "listen", "resolve_addr", "resolve_route", "connect", "disconnect"];
    let mut faults: Vec<String> = names.map(|name| format!("call:rdma_{name}=ECONNREFUSED@1")).into();
    faults.extend(["call:ibv_reg_mr=EIO".into(), "call:ibv_create_cq=EIO@2".into()]);
    let faults: Vec<&str> = faults.iter().map(|text| text.as_str()).collect();
    let (a, b) = pair_with(&fabric, &faults);
    let manager = ConnectionManager::new(vec![a.context.clone()]).unwrap();
    let channel = EventChannel::new().unwrap();
    let injected = |result: Result<(), IdError>| {
        matches!(result, Err(IdError::Injected(InjectedError { errno: libc::ECONNREFUSED, .. })))
    };
    assert!(injected(manager.create_id(&channel, PortSpace::Tcp).map(drop)));
    let id = manager.create_id(&channel, PortSpace::Tcp).unwrap();
    let to = SocketAddr::new(b.context.address().unwrap(), 7471);
    let own = SocketAddr::new(a.context.address().unwrap(), 0);
    assert!(injected(id.bind_addr(own)) && id.bind_addr(own).is_ok());
    assert!(injected(id.listen(1)));
    assert!(injected(id.resolve_addr(None, to, TIMEOUT)) && id.resolve_addr(None, to, TIMEOUT).is_ok());
    assert!(injected(id.resolve_route(TIMEOUT)) && id.resolve_route(TIMEOUT).is_ok());
    assert!(injected(id.connect(&Default::default())));
    assert!(injected(id.disconnect()));
    assert_eq!(a.context.fault_counts().iter().filter(|count| count.struck != 1).count(), 2);
    assert!(matches!(
        a.context.create_cq(1),
        Err(CreateError::Injected(InjectedError { errno: libc::EIO, .. }))
    ));
}
