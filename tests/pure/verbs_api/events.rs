//! Tests of asynchronous events: port state, GID changes, device failures, the event queue.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::EventFd;
use urxe::link::{Link, LinkInfo, RxBurst};
use urxe::transport::{Instant, TxQueue};

use super::*;
use urxe::verbs::errors::{AddressError, ConnectError, CreateError, ModifyError, WaitError};
use urxe_test_support::breakable::{BreakablePort, Receive, Transmit};
use urxe_test_support::nic;

fn address(node: &TestEndpoint) -> IpAddr {
    node.context.query_gid(0).unwrap().ip()
}

#[test]
fn port_down_raises_event_and_messages_are_retransmitted_after_port_up() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let (a_mr, b_mr) = (region(&a, 64), region(&b, 64));
    fabric.set_port_up(address(&b), true).unwrap();
    assert_eq!(events(&b.context), []);

    fabric.set_port_up(address(&b), false).unwrap();
    assert!(a.context.query_port().active && !b.context.query_port().active);
    assert_eq!((events(&a.context), events(&b.context)), (vec![], vec![AsyncEvent::PortError]));
    a.qp.post_send(&SendWr::write(1, &[], b_mr.remote(0)).inline(b"late")).unwrap();
    b.qp.post_send(&SendWr::write(2, &[], a_mr.remote(0)).inline(b"late")).unwrap();
    fabric.advance(Duration::from_millis(20));
    assert_eq!((a_mr.to_vec()[0], b_mr.to_vec()[0]), (0, 0));
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    assert!(fabric.counters().unknown >= 2, "{:?}", fabric.counters());

    fabric.set_port_up(address(&b), true).unwrap();
    assert!(b.context.query_port().active);
    assert_eq!(events(&b.context), [AsyncEvent::PortActive]);
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 1);
    assert_eq!(b.cq.wait(TIMEOUT).unwrap().wr_id, 2);
    assert_eq!((&a_mr.to_vec()[..4], &b_mr.to_vec()[..4]), (&b"late"[..], &b"late"[..]));
}

#[test]
fn packets_in_transit_are_lost_when_port_goes_down() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let dst = region(&b, 64);
    a.qp.post_send(&SendWr::write(1, &[], dst.remote(0)).inline(b"x")).unwrap();
    fabric.advance(Duration::from_micros(5));
    fabric.set_port_up(address(&b), false).unwrap();
    fabric.advance(Duration::from_micros(10));
    assert_eq!((fabric.counters().unplugged, b.context.counters().rcvd_pkts), (1, 0));
    // The peer is not reachable any more.
    let Err(WaitError::Failed(wc)) = a.cq.wait(TIMEOUT) else {
        panic!("a response arrived although the port is down")
    };
    assert_eq!(wc.status, WcStatus::RetryExcErr);
    let unassigned = "10.9.9.9".parse().unwrap();
    assert!(fabric.set_port_up(unassigned, true).is_err());
}

#[test]
fn address_change_raises_gid_change_and_keeps_indices() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let [v6, v4] = [0, 1].map(|i| b.context.query_gid(i).unwrap().ip());
    let (new, third) = ("198.51.100.7".parse().unwrap(), "2001:db8::7".parse().unwrap());
    fabric.set_addresses(v6, &[v4, new]).unwrap();
    assert_eq!(events(&b.context), [AsyncEvent::GidChange]);
    assert_eq!(b.context.gids(), [Gid::from(new), Gid::from(v4)]);
    fabric.set_addresses(new, &[v4]).unwrap();
    fabric.set_addresses(v4, &[v4]).unwrap();
    assert_eq!(events(&b.context), [AsyncEvent::GidChange], "a call that changes nothing raises no event");
    assert_eq!((b.context.query_gid(0), b.context.query_gid(1)), (None, Some(Gid::from(v4))));
    let refused = b.pd.create_ah(&AddressVector::to(Gid::from(v6))).unwrap_err();
    assert!(matches!(refused, CreateError::Address(AddressError::GidIndex { index: 0, .. })), "{refused}");
    let in_use = fabric.set_addresses(v4, &[address(&a)]).unwrap_err();
    assert_eq!(in_use, urxe::fabric::FabricError::AddressInUse(address(&a)));
    fabric.set_addresses(v4, &[v4, third, new]).unwrap();
    assert_eq!(b.context.gids(), [third, v4, new].map(Gid::from));
    assert_eq!((b.context.gids().len(), b.context.query_gid(3)), (3, None));

    // Packets reach the new address.
    let qps = [&a, &b].map(|n| n.pd.create_qp(&n.cq, &n.cq, &QpOptions::default()).unwrap());
    qps[0].connect(&qps[1].endpoint_at(2).unwrap(), &ConnectOptions::default()).unwrap();
    let options = ConnectOptions::default().sgid_index(2);
    qps[1].connect(&qps[0].endpoint_at(1).unwrap(), &options).unwrap();
    qps[1].post_recv(&RecvWr::new(1, &[])).unwrap();
    qps[0].post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!((a.cq.wait(TIMEOUT).unwrap().wr_id, b.cq.wait(TIMEOUT).unwrap().wr_id), (2, 1));

    // The peer of a connection with a removed address is unreachable.
    a.qp.post_send(&SendWr::write(3, &[], RemoteAddr::default())).unwrap();
    assert!(matches!(a.cq.wait(TIMEOUT), Err(WaitError::Failed(wc)) if wc.status == WcStatus::RetryExcErr));
}

#[test]
fn set_gids_changes_the_table_and_raises_gid_change() {
    let (a, _) = slow_fabric().pair().unwrap();
    let before = a.context.gids();
    a.context.set_gids(&before);
    assert_eq!(events(&a.context), []);
    let other = Gid::from("192.0.2.1".parse::<IpAddr>().unwrap());
    a.context.set_gids(&[before[1], other]);
    assert_eq!((a.context.gids(), events(&a.context)), (vec![other, before[1]], vec![AsyncEvent::GidChange]));
    assert_eq!(a.context.query_port().gid_table_len, 2);
    let later = Gid::from("192.0.2.2".parse::<IpAddr>().unwrap());
    a.context.set_gids(&[before[1], other, later]);
    assert_eq!((a.context.query_port().gid_table_len, a.context.query_gid(2)), (3, Some(later)));
}

fn check_device_removal(on_receive: bool) {
    let fabric = slow_fabric();
    let is_removed = Arc::new(AtomicBool::new(false));
    let port = fabric.port(&fabric.auto_address()).unwrap();
    let (transmit, receive): (Transmit, Receive) = match on_receive {
        true => (Link::transmit, |_, _, _| Err(io::Error::other("the device was removed"))),
        false => (|_, _, _| Err(io::Error::other("the device was removed")), Link::receive),
    };
    let wrap = |inner| {
        Box::new(BreakablePort { inner, is_broken: is_removed.clone(), transmit, receive }) as Box<dyn Link>
    };
    let a = Context::on_port(port, &ContextOptions::default(), wrap).unwrap();
    let [a, _b] = nic::pair([a, Context::on_fabric(&fabric).unwrap()]);
    let unused = a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default()).unwrap();
    let ud = QpOptions::default().qp_type(QpType::Ud);
    let [attached, detached] = [(); 2].map(|()| a.pd.create_qp(&a.cq, &a.cq, &ud).unwrap());
    let group = |n| Gid::from(IpAddr::from([239, 0, 0, n]));
    attached.attach_mcast(group(1)).unwrap();
    a.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    a.qp.post_send(&SendWr::write(2, &[], RemoteAddr::default())).unwrap();
    fabric.advance(Duration::from_micros(5));
    assert!(a.context.query_port().active);

    is_removed.store(true, Ordering::SeqCst);
    if on_receive {
        fabric.advance(Duration::from_micros(20));
    } else {
        a.qp.post_send(&SendWr::write(3, &[], RemoteAddr::default())).unwrap();
    }
    assert_eq!(events(&a.context), [AsyncEvent::DeviceFatal]);
    assert!(!a.context.query_port().active);
    assert!(a.context.link_state().1.is_some_and(|e| e.to_string() == "the device was removed"));
    assert_eq!((a.qp.state(), unused.state()), (QpState::Err, QpState::Reset));
    let mut flushed = Vec::new();
    a.cq.poll(8, &mut flushed).unwrap();
    let ids: Vec<_> = flushed.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let send = if on_receive { vec![2] } else { vec![2, 3] };
    let expected: Vec<_> = send.into_iter().chain([1]).map(|id| (id, WcStatus::WrFlushErr)).collect();
    assert_eq!(ids, expected);

    // The event is raised once, however often the link is used, and no new operation starts.
    assert_eq!(detached.attach_mcast(group(2)).unwrap_err().errno(), nix::errno::Errno::ENODEV as i32);
    attached.detach_mcast(group(1)).unwrap();
    a.context.poll();
    assert_eq!(unused.enter_init(Access::ALL), Err(ConnectError::Modify(ModifyError::DeviceFatal)));
    fabric.advance(Duration::from_millis(1));
    assert_eq!(events(&a.context), []);
    assert_eq!(a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default()).unwrap_err(), CreateError::DeviceFatal);
}

#[test]
fn link_failure_on_receive_removes_the_device() {
    check_device_removal(true);
}

#[test]
fn link_failure_on_transmit_removes_the_device() {
    check_device_removal(false);
}

/// A link that panics.
struct PanickingLink {
    info: LinkInfo,
    ready: Arc<EventFd>,
}

impl Link for PanickingLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }
    fn transmit(&mut self, _: Instant, _: &TxQueue) -> io::Result<()> {
        Ok(())
    }
    fn receive(&mut self, _: Instant, _: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        assert!(!is_readable(self.ready.as_fd()), "intended panic of the test");
        Ok(0)
    }
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.ready.as_fd()]
    }
}

#[test]
fn panic_of_background_thread_raises_device_fatal() {
    let ready = Arc::new(EventFd::new().unwrap());
    let info = LinkInfo::new("faulty", vec!["192.0.2.1".parse().unwrap()]).window(1 << 16);
    let link = PanickingLink { info, ready: ready.clone() };
    let context = Context::open(Box::new(link), &ContextOptions::default()).unwrap();
    assert_eq!(context.next_event(), None);
    ready.write(1).unwrap();
    assert_eq!(context.wait_event(TIMEOUT), Ok(AsyncEvent::DeviceFatal));
    assert!(!context.query_port().active && context.link_state().1.is_some());
}

#[test]
fn event_descriptor_is_readable_while_events_are_queued() {
    let fabric = Fabric::new();
    let a = TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap();
    let fd = a.context.event_fd();
    assert!(!is_readable(fd));
    a.context.set_pkeys(&[PKey::DEFAULT, PKey(0x8001)]).unwrap();
    a.context.set_pkeys(&[PKey::DEFAULT]).unwrap();
    assert!(is_readable(fd));
    assert_eq!(a.context.next_event(), Some(AsyncEvent::PKeyChange));
    assert!(is_readable(fd));
    assert_eq!(a.context.next_event(), Some(AsyncEvent::PKeyChange));
    assert!(!is_readable(fd));
    assert_eq!(a.context.next_event(), None);
}

#[test]
fn wait_event_returns_event_or_times_out() {
    let a = Context::on_fabric(&Fabric::new()).unwrap();
    let brief = Duration::from_millis(20);
    let begin = std::time::Instant::now();
    assert_eq!(a.wait_event(brief), Err(WaitError::TimedOut(brief)));
    assert!(begin.elapsed() >= brief);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.wait_event(TIMEOUT));
        std::thread::sleep(brief);
        a.set_pkeys(&[PKey::DEFAULT, PKey(0x8001)]).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(AsyncEvent::PKeyChange));
    });
}

#[test]
fn wait_event_advances_virtual_time() {
    let fabric = slow_fabric();
    let a = TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap();
    let b = TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap();
    let options = ConnectOptions::default();
    a.qp.connect(&b.qp.endpoint(), &options).unwrap();
    b.qp.enter_init(Access::ALL).unwrap();
    b.qp.enter_rtr(&a.qp.endpoint(), &options).unwrap();
    assert_eq!(b.context.wait_event(TIMEOUT), Err(WaitError::Idle));
    a.qp.post_send(&SendWr::write(1, &[], RemoteAddr::default())).unwrap();
    assert_eq!(b.context.wait_event(TIMEOUT), Ok(AsyncEvent::CommunicationEstablished(b.qp.qpn())));
    assert_eq!(fabric.now(), Instant(10_000));
}

#[test]
fn events_of_destroyed_objects_are_discarded() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let TestEndpoint { context, pd, qp: target, cq: _cq, .. } = b;
    let small = context.create_cq(1).unwrap();
    let qp = pd.create_qp(&small, &small, &QpOptions::default()).unwrap();
    let srq = pd.create_srq(RecvCaps { max_wr: 4, max_sge: 1 }).unwrap();
    srq.arm_limit(1);
    qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    (0..2).for_each(|id| qp.post_recv(&RecvWr::new(id, &[])).unwrap());
    let invalid = RemoteAddr { va: 1, rkey: RKey(1) };
    a.qp.post_send(&SendWr::write(1, &[], invalid).inline(b"x")).unwrap();
    fabric.advance(Duration::from_micros(20));
    assert_eq!(target.state(), QpState::Err, "the QP has raised an event");
    drop((srq, qp, small, target));
    assert!(!is_readable(context.event_fd()));
    assert_eq!(events(&context), []);
}

#[test]
fn event_names_and_codes_match_libibverbs() {
    let (qpn, cq, srq) = (Qpn::new(3), CqId(1), SrqId(2));
    let all = [
        (0, "CQ_ERR", AsyncEvent::CqError(cq)),
        (1, "QP_FATAL", AsyncEvent::QpFatal(qpn)),
        (2, "QP_REQ_ERR", AsyncEvent::QpRequestError(qpn)),
        (3, "QP_ACCESS_ERR", AsyncEvent::QpAccessError(qpn)),
        (4, "COMM_EST", AsyncEvent::CommunicationEstablished(qpn)),
        (5, "SQ_DRAINED", AsyncEvent::SqDrained(qpn)),
        (6, "PATH_MIG", AsyncEvent::PathMigrated(qpn)),
        (7, "PATH_MIG_ERR", AsyncEvent::PathMigrateError(qpn)),
        (8, "DEVICE_FATAL", AsyncEvent::DeviceFatal),
        (9, "PORT_ACTIVE", AsyncEvent::PortActive),
        (10, "PORT_ERR", AsyncEvent::PortError),
        (12, "PKEY_CHANGE", AsyncEvent::PKeyChange),
        (14, "SRQ_ERR", AsyncEvent::SrqError(srq)),
        (15, "SRQ_LIMIT_REACHED", AsyncEvent::SrqLimit(srq)),
        (16, "QP_LAST_WQE_REACHED", AsyncEvent::LastWqeReached(qpn)),
        (18, "GID_CHANGE", AsyncEvent::GidChange),
    ];
    for (code, name, event) in all {
        assert_eq!((event.code(), event.name()), (code, format!("IBV_EVENT_{name}").as_str()));
        let objects = (event.qpn().is_some(), event.cq().is_some(), event.srq().is_some());
        let of_qp = name.starts_with("QP") || matches!(code, 4..=7);
        assert_eq!(objects, (of_qp, name.starts_with("CQ"), name.starts_with("SRQ")), "{event:?}");
    }
}
