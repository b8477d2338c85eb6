//! Tests of faults injected through the fabric (device removal, asynchronous events), of meshes, and of
//! completion channels in a reactor.

use super::*;
use urxe::fabric::FabricError;
use urxe::verbs::errors::{CreateError, ModifyError, PostError, WaitError};
use urxe::verbs::memory::WindowKind;

fn address(context: &Context) -> std::net::IpAddr {
    context.link_info().addresses[0]
}

fn statuses(cq: &Cq) -> Vec<(u64, WcStatus)> {
    cq.drain().map(|wc| wc.map(|wc| (wc.wr_id, wc.status))).collect::<Result<_, _>>().unwrap()
}

#[test]
fn device_removal_raises_device_fatal_and_flushes_work_requests() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let [source, target] = [region(&a, 64), region(&b, 64)];
    a.qp.post_recv(&RecvWr::empty(1)).unwrap();
    a.qp.post_send(&SendWr::write(2, &[source.sge(0..64)], target.remote(0))).unwrap();
    fabric.remove_device(address(&a.context)).unwrap();
    assert_eq!(events(&a.context), [AsyncEvent::DeviceFatal]);
    assert!(!a.context.query_port().active);
    assert_eq!(statuses(&a.cq), [(2, WcStatus::WrFlushErr), (1, WcStatus::WrFlushErr)]);
    // The peer's address is unreachable.
    b.qp.post_send(&SendWr::write(3, &[target.sge(0..8)], source.remote(0))).unwrap();
    assert!(
        matches!(b.cq.wait(Duration::from_secs(60)), Err(WaitError::Failed(wc)) if wc.status == WcStatus::RetryExcErr)
    );
    assert_eq!(events(&b.context), []);
}

#[test]
fn every_call_but_destruction_fails_on_a_removed_device() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let mr = region(&a, 64);
    let srq = a.pd.create_srq(RecvCaps { max_wr: 4, max_sge: 1 }).unwrap();
    let own = address(&a.context);
    fabric.remove_device(own).unwrap();

    let removed = CreateError::DeviceFatal;
    assert_eq!(removed.errno(), nix::errno::Errno::EIO as i32);
    assert_eq!(a.context.alloc_pd().unwrap_err(), removed);
    assert_eq!(a.context.create_cq(1).unwrap_err(), removed);
    assert_eq!(a.context.create_channel().unwrap_err(), removed);
    assert_eq!(a.context.alloc_dm(64).map(drop).unwrap_err(), removed);
    assert_eq!(a.context.open_xrcd().unwrap_err(), removed);
    assert_eq!(a.pd.reg_mr(64, Access::LOCAL_WRITE).map(drop).unwrap_err(), removed);
    assert_eq!(a.pd.alloc_mw(WindowKind::Type1).map(drop).unwrap_err(), removed);
    assert_eq!(a.pd.alloc_mr(64).map(drop).unwrap_err(), removed);
    assert_eq!(a.pd.create_srq(srq.query().caps).map(drop).unwrap_err(), removed);
    assert_eq!(a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default()).map(drop).unwrap_err(), removed);
    let path = AddressVector::to(b.qp.endpoint().gid);
    assert_eq!(a.pd.create_ah(&path).map(drop).unwrap_err(), removed);
    assert_eq!(a.cq.resize(8).unwrap_err(), removed);
    assert_eq!(srq.resize(8).unwrap_err(), removed);

    let reset = QpAttr::new(QpState::Reset);
    assert_eq!(a.qp.modify(&reset), Err(ModifyError::DeviceFatal));
    let fatal = PostError::DeviceFatal;
    assert_eq!(a.qp.post_send(&SendWr::send(1, &[mr.sge(0..8)])), Err(fatal));
    assert_eq!(a.qp.post_recv(&RecvWr::new(2, &[mr.sge(0..8)])), Err(fatal));
    assert_eq!(srq.post_recv(&RecvWr::empty(3)), Err(fatal));
    assert_eq!(fatal.errno(), nix::errno::Errno::EIO as i32);
    assert_eq!(statuses(&a.cq), []);

    // Destruction still works, and the address is free for another device.
    drop((srq, mr));
    let TestEndpoint { context, pd, cq, qp, .. } = a;
    drop((qp, pd));
    cq.destroy(Duration::ZERO).unwrap();
    drop(context);
    fabric.port(&[own]).unwrap();
}

#[test]
fn injected_qp_events_move_the_qp_to_err() {
    for event in [AsyncEvent::QpFatal, AsyncEvent::QpRequestError, AsyncEvent::QpAccessError] {
        let fabric = slow_fabric();
        let (a, _b) = fabric.pair().unwrap();
        a.qp.post_recv(&RecvWr::empty(1)).unwrap();
        let event = event(a.qp.qpn());
        fabric.inject_event(address(&a.context), event).unwrap();
        assert_eq!(events(&a.context), [event]);
        assert_eq!(a.qp.state(), QpState::Err);
        assert_eq!(statuses(&a.cq), [(1, WcStatus::WrFlushErr)]);
    }
}

#[test]
fn injected_cq_error_moves_all_qps_of_the_cq_to_err() {
    let fabric = slow_fabric();
    let (a, _b) = fabric.pair().unwrap();
    let other = a.context.create_cq(4).unwrap();
    let unrelated = a.pd.create_qp(&other, &other, &QpOptions::default()).unwrap();
    unrelated.enter_init(Access::ALL).unwrap();
    fabric.inject_event(address(&a.context), AsyncEvent::CqError(a.cq.id())).unwrap();
    assert_eq!(events(&a.context), [AsyncEvent::CqError(a.cq.id()), AsyncEvent::QpFatal(a.qp.qpn())]);
    assert_eq!((a.qp.state(), unrelated.state()), (QpState::Err, QpState::Init));
}

#[test]
fn injected_informational_events_are_raised_only_for_existing_objects() {
    let fabric = slow_fabric();
    let (a, _b) = fabric.pair().unwrap();
    let srq = a.pd.create_srq(RecvCaps { max_wr: 4, max_sge: 1 }).unwrap();
    let (own, qpn) = (address(&a.context), a.qp.qpn());
    let all = [
        AsyncEvent::CommunicationEstablished(qpn),
        AsyncEvent::SqDrained(qpn),
        AsyncEvent::PathMigrated(qpn),
        AsyncEvent::PathMigrateError(qpn),
        AsyncEvent::LastWqeReached(qpn),
        AsyncEvent::SrqError(srq.id()),
        AsyncEvent::SrqLimit(srq.id()),
        AsyncEvent::PKeyChange,
        AsyncEvent::GidChange,
        AsyncEvent::PortError,
        AsyncEvent::PortActive,
    ];
    all.into_iter().for_each(|event| fabric.inject_event(own, event).unwrap());
    assert_eq!(events(&a.context), all);
    assert_eq!(a.qp.state(), QpState::Rts);

    let id = srq.id();
    drop(srq);
    let unknown = [
        AsyncEvent::SrqLimit(id),
        AsyncEvent::QpFatal(Qpn::new(0xfffff0)),
        AsyncEvent::SqDrained(Qpn::new(0xfffff0)),
        AsyncEvent::CqError(CqId(77)),
    ];
    for event in unknown {
        assert_eq!(fabric.inject_event(own, event), Err(FabricError::NoObject { address: own, event }));
    }
    assert_eq!(events(&a.context), []);
    let [unassigned, _] = fabric.auto_address();
    assert_eq!(
        fabric.inject_event(unassigned, AsyncEvent::GidChange),
        Err(FabricError::UnknownAddress(unassigned))
    );
    let _port = fabric.port(&[unassigned]).unwrap();
    assert_eq!(fabric.remove_device(unassigned), Err(FabricError::NoDevice(unassigned)));
}

#[test]
fn mesh_connects_each_nic_to_every_other() {
    let fabric = slow_fabric();
    let nodes = fabric.mesh(4).unwrap();
    let regions: Vec<_> = nodes.iter().map(|node| node.pd.reg_mr(4, Access::ALL).unwrap()).collect();
    for (own, node) in nodes.iter().enumerate() {
        assert!(node.qp(own).is_none() && node.qp(4).is_none());
        regions[own].write(own, &[own as u8 + 1]).unwrap();
        for peer in (0..4).filter(|peer| *peer != own) {
            let byte = [regions[own].sge(own..own + 1)];
            let to = regions[peer].remote(own);
            node.qp(peer).unwrap().post_send(&SendWr::write(peer as u64, &byte, to)).unwrap();
            node.cq.wait(TIMEOUT).unwrap();
        }
    }
    regions.iter().for_each(|region| assert_eq!(region.to_vec(), [1, 2, 3, 4]));
}

#[test]
fn completion_channel_wakes_a_task_through_async_fd() {
    let fabric = Fabric::new();
    let (a, b) = fabric.pair().unwrap();
    let channel = b.context.create_channel().unwrap();
    let cq = b.context.create_cq(CqOptions::new(8).channel(&channel)).unwrap();
    let (qp, peer) = qp_pair((&b.pd, &cq), (&a.pd, &a.cq));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // SAFETY: the channel owns one descriptor, which stays open as long as the channel.
        let channel = unsafe { tokio::io::unix::AsyncFd::register(channel) }.unwrap();
        for wr_id in 0..3 {
            cq.req_notify(Notify::Any);
            qp.post_recv(&RecvWr::empty(wr_id)).unwrap();
            peer.post_send(&SendWr::send(wr_id, &[])).unwrap();
            let event = loop {
                let mut ready = channel.readable().await.unwrap();
                match channel.get_ref().next_event() {
                    Some(event) => break event,
                    None => ready.clear_ready(),
                }
            };
            assert_eq!(statuses(&event), [(wr_id, WcStatus::Success)]);
        }
    });
}
