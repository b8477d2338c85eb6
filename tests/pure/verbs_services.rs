//! Tests of services other than RC, and of shared receive queues, through the verbs API.

use std::time::Duration;

use urxe::verbs::*;

const TIMEOUT: Duration = Duration::from_secs(5);
const QKEY: QKey = QKey(0x1234);

fn context(fabric: &Fabric) -> (Context, Pd, Cq) {
    let context = Context::on_fabric(fabric).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    (context, pd, cq)
}

fn qp_options(qp_type: QpType) -> QpOptions {
    QpOptions::default().qp_type(qp_type)
}

/// Sends a datagram to a peer without a prior exchange, which responds using the completion and the GRH.
fn exchange_datagrams(fabric: &Fabric, v6: usize) {
    let (a, a_pd, a_cq) = context(fabric);
    let (b, b_pd, b_cq) = context(fabric);
    let a_qp = a_pd.create_qp(&a_cq, &a_cq, &qp_options(QpType::Ud)).unwrap();
    let b_qp = b_pd.create_qp(&b_cq, &b_cq, &qp_options(QpType::Ud)).unwrap();
    a_qp.activate(QKEY).unwrap();
    b_qp.activate(QKEY).unwrap();
    let (a_mr, b_mr) = (a_pd.reg_mr(4096, Access::ALL).unwrap(), b_pd.reg_mr(4096, Access::ALL).unwrap());
    b_qp.post_recv(&RecvWr::new(1, &[b_mr.sge(0..2000)])).unwrap();
    a_qp.post_recv(&RecvWr::new(2, &[a_mr.sge(2000..4000)])).unwrap();

    a_mr.write(0, b"who is there?").unwrap();
    let av = AddressVector::to(b.query_gid(v6).unwrap()).sgid_index(v6 as u8);
    let path = a_pd.create_ah(&av).unwrap();
    let to = Some(path.to(b_qp.qpn(), QKEY));
    a_qp.post_send(&SendWr::send(3, &[a_mr.sge(0..13)]).to(to)).unwrap();
    assert_eq!(a_cq.wait(TIMEOUT).unwrap().wr_id, 3);
    let wc = b_cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len, wc.grh, wc.src_qpn), (1, 53, true, a_qp.qpn()));
    let mut got = [0; 53];
    b_mr.read(0, &mut got).unwrap();
    assert_eq!(&got[40..], b"who is there?");

    let header = got[..grh::LEN].try_into().unwrap();
    let return_path = b_pd.create_ah_from_wc(&wc, header).unwrap();
    assert_eq!(return_path.address().dgid, a.query_gid(v6).unwrap());
    b_mr.write(0, b"me").unwrap();
    let to = Some(return_path.to(wc.src_qpn, QKEY));
    b_qp.post_send(&SendWr::send_imm(4, &[b_mr.sge(0..2)], 7).to(to)).unwrap();
    let wc = a_cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (2, 42, Some(7)));
    a_mr.read(2000 + 40, &mut got[..2]).unwrap();
    assert_eq!(&got[..2], b"me");
}

#[test]
fn datagram_is_answered_from_its_completion_in_real_time() {
    exchange_datagrams(&Fabric::new(), 0);
    exchange_datagrams(&Fabric::new(), 1);
}

#[test]
fn datagram_is_answered_from_its_completion_in_virtual_time() {
    exchange_datagrams(&Fabric::virtual_time(FabricConfig::default()).unwrap(), 0);
}

#[test]
fn address_handle_without_path_is_refused() {
    let (a, pd, _) = context(&Fabric::new());
    let (v4, v6) = (a.query_gid(0).unwrap(), a.query_gid(1).unwrap());
    let mixed = AddressVector::to(v6).sgid_index(0);
    let refused = pd.create_ah(&mixed).unwrap_err();
    assert!(matches!(refused, CreateError::Address(AddressError::Family { .. })), "{refused}");
    let none = AddressVector::to(v4).sgid_index(9);
    let refused = pd.create_ah(&none).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no path to the destination: GID index 9 is out of range: the port has 2 GIDs"
    );
}

#[test]
fn completion_without_grh_yields_no_address_handle() {
    let (a, b) = Fabric::new().pair().unwrap();
    let mr = b.pd.reg_mr(100, Access::ALL).unwrap();
    b.qp.post_recv(&RecvWr::new(1, &[mr.sge(0..100)])).unwrap();
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    let wc = b.cq.wait(TIMEOUT).unwrap();
    assert_eq!(b.pd.create_ah_from_wc(&wc, &[0; grh::LEN]).unwrap_err(), CreateError::NoGrh);
}

/// UC over a wire that loses a tenth of the packets: messages arrive completely, in order and at most once.
#[test]
fn uc_messages_over_lossy_wire_arrive_whole_or_not_at_all() {
    let config = FabricConfig::default().loss(0.1).seed(3);
    let fabric = Fabric::virtual_time(config).unwrap();
    let (_a, a_pd, a_cq) = context(&fabric);
    let (b, b_pd, b_cq) = context(&fabric);
    let a_qp = a_pd.create_qp(&a_cq, &a_cq, &qp_options(QpType::Uc)).unwrap();
    let b_qp = b_pd.create_qp(&b_cq, &b_cq, &qp_options(QpType::Uc)).unwrap();
    let options = ConnectOptions::default().mtu(Mtu::Mtu256);
    a_qp.connect(&b_qp.endpoint(), &options).unwrap();
    b_qp.connect(&a_qp.endpoint(), &options).unwrap();
    let len = 1000;
    let (a_mr, b_mr) = (a_pd.reg_mr(len, Access::ALL).unwrap(), b_pd.reg_mr(len, Access::ALL).unwrap());
    let (messages, mut received) = (500u32, Vec::new());
    b_qp.post_recv(&RecvWr::new(0, &[b_mr.sge(0..len)])).unwrap();
    for n in 0..messages {
        a_mr.write(0, &[n as u8; 1000]).unwrap();
        a_qp.post_send(&SendWr::send_imm(n.into(), &[a_mr.sge(0..len)], n)).unwrap();
        assert_eq!(a_cq.wait(TIMEOUT).unwrap().wr_id, u64::from(n));
        match b_cq.wait(TIMEOUT) {
            Ok(wc) => {
                assert_eq!(wc.byte_len as usize, len);
                let n = wc.imm.unwrap();
                assert!(
                    b_mr.to_vec().iter().all(|byte| *byte == n as u8),
                    "message {n} contains bytes of another message"
                );
                received.push(n);
                b_qp.post_recv(&RecvWr::new(0, &[b_mr.sge(0..len)])).unwrap();
            }
            Err(e) => assert_eq!(e, WaitError::Idle),
        }
    }
    assert!(received.is_sorted_by(|a, b| a < b), "{received:?}");
    // Four packets each, so about two thirds arrive.
    assert!((250..420).contains(&received.len()), "{} of {messages} arrived", received.len());
    assert!(b.counters().out_of_seq_request > 50);
}

#[test]
fn qps_share_receives_of_an_srq() {
    let fabric = Fabric::new();
    let (b, pd, cq) = context(&fabric);
    let srq = pd.create_srq(RecvCaps { max_wr: 8, max_sge: 1 }).unwrap();
    let mr = pd.reg_mr(4096, Access::ALL).unwrap();
    let recv = |id: u64| srq.post_recv(&RecvWr::new(id, &[mr.sge(0..100)]));
    (0..8).for_each(|id| recv(id).unwrap());
    assert_eq!(recv(8), Err(PostError::QueueFull(8)));
    srq.arm_limit(6);
    let SrqAttr { caps, limit, len, .. } = srq.query();
    assert_eq!((caps, limit, len), (RecvCaps { max_wr: 8, max_sge: 1 }, 6, 8));

    let peers: Vec<(TestEndpoint, Qp)> = (0..3)
        .map(|_| {
            let node = TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap();
            let qp = pd.create_qp(&cq, &cq, &QpOptions::default().srq(&srq)).unwrap();
            qp.connect(&node.qp.endpoint(), &ConnectOptions::default()).unwrap();
            node.qp.connect(&qp.endpoint(), &ConnectOptions::default()).unwrap();
            (node, qp)
        })
        .collect();
    for (n, (node, qp)) in peers.iter().enumerate() {
        node.qp.post_send(&SendWr::send_imm(1, &[], n as u32)).unwrap();
        let wc = cq.wait(TIMEOUT).unwrap();
        assert_eq!((wc.wr_id, wc.imm, wc.qpn), (n as u64, Some(n as u32), qp.qpn()));
        let refused = qp.post_recv(&RecvWr::new(1, &[])).unwrap_err();
        assert_eq!(refused, PostError::SharedQueue);
    }
    let events: Vec<AsyncEvent> = std::iter::from_fn(|| b.next_event()).collect();
    assert!(events.contains(&AsyncEvent::SrqLimit(srq.id())), "{events:?}");
    assert_eq!((srq.query().limit, srq.query().len), (0, 5));
    let refused = srq.resize(4).unwrap_err();
    assert_eq!(refused.to_string(), "max_wr is 4, it must be 5 to 32768");
    srq.resize(5).unwrap();
    // The queue lives as long as its queue pairs.
    drop(srq);
    peers[0].0.qp.post_send(&SendWr::send(2, &[])).unwrap();
    assert_eq!(cq.wait(TIMEOUT).unwrap().wr_id, 3);
}

#[test]
fn srq_of_another_context_or_size_0_is_refused() {
    let fabric = Fabric::new();
    let ((_, a, cq), (_, b, _)) = (context(&fabric), context(&fabric));
    let srq = b.create_srq(RecvCaps { max_wr: 8, max_sge: 1 }).unwrap();
    let refused = a.create_qp(&cq, &cq, &QpOptions::default().srq(&srq)).unwrap_err();
    assert_eq!(refused, CreateError::OtherContext("shared receive queue"));
    let refused = b.create_srq(RecvCaps { max_wr: 0, max_sge: 1 }).unwrap_err();
    assert_eq!(refused.to_string(), "max_wr is 0, it must be 1 to 32768");
}

/// Two initiators, one target each, and two receive queues that both use.
#[test]
fn xrc_messages_complete_on_the_srq_they_name() {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let (_b, b_pd, b_cq) = context(&fabric);
    let xrcd = b_pd.context().open_xrcd().unwrap();
    let caps = RecvCaps { max_wr: 8, max_sge: 1 };
    let other_cq = b_pd.context().create_cq(8).unwrap();
    let queues = [
        b_pd.create_srq(SrqOptions::new(caps).xrc(&xrcd, &b_cq)).unwrap(),
        b_pd.create_srq(SrqOptions::new(caps).xrc(&xrcd, &other_cq)).unwrap(),
    ];
    let b_mr = b_pd.reg_mr(4096, Access::ALL).unwrap();
    for (i, srq) in queues.iter().enumerate() {
        for k in 0..2 {
            let at = 1000 * i + 100 * k;
            srq.post_recv(&RecvWr::new(at as u64, &[b_mr.sge(at..at + 100)])).unwrap();
        }
    }
    for k in 0..2u8 {
        let (_a, a_pd, a_cq) = context(&fabric);
        let initiator = a_pd.create_qp(&a_cq, &a_cq, &qp_options(QpType::XrcSend)).unwrap();
        let target = xrcd.create_target_qp().unwrap();
        initiator.connect(&target.endpoint(), &ConnectOptions::default()).unwrap();
        target.connect(&initiator.endpoint(), &ConnectOptions::default()).unwrap();
        let a_mr = a_pd.reg_mr(64, Access::ALL).unwrap();
        a_mr.write(0, &[k + 1; 64]).unwrap();
        for (i, (srq, cq)) in queues.iter().zip([&b_cq, &other_cq]).enumerate() {
            initiator.post_send(&SendWr::send(1, &[a_mr.sge(0..9)]).to_srq(srq.id())).unwrap();
            a_cq.wait(TIMEOUT).unwrap();
            let wc = cq.wait(TIMEOUT).unwrap();
            assert_eq!((wc.wr_id, wc.qpn), (1000 * i as u64 + 100 * u64::from(k), target.qpn()));
            assert_eq!(b_mr.to_vec()[wc.wr_id as usize..][..9], [k + 1; 9]);
        }
        let all = [a_mr.sge(0..64)];
        let write = SendWr::write(2, &all, b_mr.remote(3000)).to_srq(queues[0].id());
        initiator.post_send(&write).unwrap();
        a_cq.wait(TIMEOUT).unwrap();
        assert_eq!(b_mr.to_vec()[3000..3064], [k + 1; 64]);
    }
    let refused = b_pd.create_qp(&b_cq, &b_cq, &qp_options(QpType::XrcRecv)).unwrap_err();
    assert_eq!(refused, CreateError::XrcTarget);
    let plain = b_pd.create_srq(caps).unwrap();
    let refused = b_pd.create_qp(&b_cq, &b_cq, &qp_options(QpType::XrcSend).srq(&plain)).unwrap_err();
    assert_eq!(refused, CreateError::NoReceives(QpType::XrcSend));
}

/// Returns the time after which a NIC of a personality reports an unreachable peer, with the shortest timeout
/// and no retry.
fn retry_timeout(personality: Personality) -> Duration {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let port = fabric.port(&fabric.auto_address()).unwrap();
    let options = ContextOptions::default().personality(personality);
    let context = Context::on_port(port, &options, |port| Box::new(port)).unwrap();
    assert_eq!(context.query_device().personality, personality.name);
    let node = TestEndpoint::new(context).unwrap();
    let unreachable =
        Endpoint { gid: "10.9.9.9".parse::<std::net::IpAddr>().unwrap().into(), ..node.qp.endpoint() };
    let connect = ConnectOptions::default().timeout(AckTimeout::new(1)).retry_cnt(0);
    node.qp.connect(&unreachable, &connect).unwrap();
    let start = fabric.now();
    node.qp.post_send(&SendWr::send(1, &[])).unwrap();
    let failed = node.cq.wait_any(TIMEOUT).unwrap();
    assert_eq!(failed.status, WcStatus::RetryExcErr);
    fabric.now().since(start)
}

#[test]
fn minimum_ack_timeout_depends_on_personality() {
    assert!(retry_timeout(Personality::STRICT) < Duration::from_micros(20));
    assert!(retry_timeout(Personality::RXE) < Duration::from_micros(20));
    assert!(retry_timeout(Personality::MLX5) >= Duration::from_millis(500));
}
