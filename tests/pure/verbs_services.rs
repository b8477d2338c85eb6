//! Tests of the services other than RC, and of shared receive queues, through the verbs API.

use std::time::Duration;

use urxe::verbs::errors::{AddressError, CreateError, PostError, WaitError};
use urxe::verbs::*;
use urxe_test_support::nic::{Nic, connect, connect_with};

const TIMEOUT: Duration = Duration::from_secs(5);
const QKEY: QKey = QKey(0x1234);

/// Opens a NIC with a region of 4096 bytes.
fn nic_on(fabric: &Fabric) -> Nic {
    Nic::new(Context::on_fabric(fabric).unwrap(), 4096)
}

/// Sends a datagram to a peer that knows nothing about the sender; the peer responds to the address that it
/// finds in the completion and the GRH.
fn exchange_datagrams(fabric: &Fabric, v6: usize) {
    let (a, b) = (nic_on(fabric), nic_on(fabric));
    let (a_qp, b_qp) = (a.qp(QpType::Ud), b.qp(QpType::Ud));
    a_qp.activate(QKEY).unwrap();
    b_qp.activate(QKEY).unwrap();
    b_qp.post_recv(&RecvWr::new(1, &[b.mr.sge(0..2000)])).unwrap();
    a_qp.post_recv(&RecvWr::new(2, &[a.mr.sge(2000..4000)])).unwrap();

    a.mr.write(0, b"who is there?").unwrap();
    let av = AddressVector::to(b.context.query_gid(v6).unwrap()).sgid_index(v6 as u8);
    let path = a.pd.create_ah(&av).unwrap();
    let to = Some(path.to(b_qp.qpn(), QKEY));
    a_qp.post_send(&SendWr::send(3, &[a.mr.sge(0..13)]).to(to)).unwrap();
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 3);
    let wc = b.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len, wc.grh, wc.src_qpn), (1, 53, true, a_qp.qpn()));
    let mut got = [0; 53];
    b.mr.read(0, &mut got).unwrap();
    assert_eq!(&got[40..], b"who is there?");

    let header = got[..grh::LEN].try_into().unwrap();
    let return_path = b.pd.create_ah_from_wc(&wc, header).unwrap();
    assert_eq!(return_path.address().dgid, a.context.query_gid(v6).unwrap());
    b.mr.write(0, b"me").unwrap();
    let to = Some(return_path.to(wc.src_qpn, QKEY));
    b_qp.post_send(&SendWr::send_imm(4, &[b.mr.sge(0..2)], 7).to(to)).unwrap();
    let wc = a.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (2, 42, Some(7)));
    a.mr.read(2000 + 40, &mut got[..2]).unwrap();
    assert_eq!(&got[..2], b"me");
}

#[test]
fn address_handle_from_a_completion_reaches_the_sender_in_real_time() {
    exchange_datagrams(&Fabric::new(), 0);
    exchange_datagrams(&Fabric::new(), 1);
}

#[test]
fn address_handle_from_a_completion_reaches_the_sender_in_virtual_time() {
    exchange_datagrams(&Fabric::virtual_time(FabricConfig::default()).unwrap(), 0);
}

#[test]
fn creating_an_address_handle_with_invalid_gid_or_ip_version_fails() {
    let Nic { context, pd, .. } = nic_on(&Fabric::new());
    let (v4, v6) = (context.query_gid(0).unwrap(), context.query_gid(1).unwrap());
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
fn create_ah_from_wc_fails_for_a_completion_without_grh() {
    let (a, b) = Fabric::new().pair().unwrap();
    let mr = b.pd.reg_mr(100, Access::ALL).unwrap();
    b.qp.post_recv(&RecvWr::new(1, &[mr.sge(0..100)])).unwrap();
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    let wc = b.cq.wait(TIMEOUT).unwrap();
    assert_eq!(b.pd.create_ah_from_wc(&wc, &[0; grh::LEN]).unwrap_err(), CreateError::NoGrh);
}

/// Runs UC over a wire that loses a tenth of the packets, and checks that messages arrive completely or not
/// at all, in order and at most once.
#[test]
fn uc_messages_over_a_lossy_wire_arrive_complete_or_not_at_all() {
    let config = FabricConfig::default().loss(0.1).seed(3);
    let fabric = Fabric::virtual_time(config).unwrap();
    let (a, b) = (nic_on(&fabric), nic_on(&fabric));
    let (a_qp, b_qp) = (a.qp(QpType::Uc), b.qp(QpType::Uc));
    connect_with(&a_qp, &b_qp, &ConnectOptions::default().mtu(Mtu::Mtu256));
    let len = 1000;
    let (messages, mut received) = (500u32, Vec::new());
    b_qp.post_recv(&RecvWr::new(0, &[b.mr.sge(0..len)])).unwrap();
    for n in 0..messages {
        a.mr.write(0, &[n as u8; 1000]).unwrap();
        a_qp.post_send(&SendWr::send_imm(n.into(), &[a.mr.sge(0..len)], n)).unwrap();
        assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, u64::from(n));
        match b.cq.wait(TIMEOUT) {
            Ok(wc) => {
                assert_eq!(wc.byte_len as usize, len);
                let n = wc.imm.unwrap();
                assert!(
                    b.mr.to_vec()[..len].iter().all(|byte| *byte == n as u8),
                    "message {n} contains bytes of another message"
                );
                received.push(n);
                b_qp.post_recv(&RecvWr::new(0, &[b.mr.sge(0..len)])).unwrap();
            }
            Err(e) => assert_eq!(e, WaitError::Idle),
        }
    }
    assert!(received.is_sorted_by(|a, b| a < b), "{received:?}");
    // Four packets each, so about two thirds arrive.
    assert!((250..420).contains(&received.len()), "{} of {messages} arrived", received.len());
    assert!(b.context.counters().out_of_seq_request > 50);
}

#[test]
fn qps_share_receives_of_an_srq() {
    let fabric = Fabric::new();
    let Nic { context, pd, cq, mr } = nic_on(&fabric);
    let srq = pd.create_srq(RecvCaps { max_wr: 8, max_sge: 1 }).unwrap();
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
            connect(&qp, &node.qp);
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
    let events: Vec<AsyncEvent> = std::iter::from_fn(|| context.next_event()).collect();
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
fn use_of_an_srq_of_another_context_or_of_size_0_fails() {
    let fabric = Fabric::new();
    let (Nic { pd: a, cq, .. }, Nic { pd: b, .. }) = (nic_on(&fabric), nic_on(&fabric));
    let srq = b.create_srq(RecvCaps { max_wr: 8, max_sge: 1 }).unwrap();
    let refused = a.create_qp(&cq, &cq, &QpOptions::default().srq(&srq)).unwrap_err();
    assert_eq!(refused, CreateError::OtherContext("shared receive queue"));
    let refused = b.create_srq(RecvCaps { max_wr: 0, max_sge: 1 }).unwrap_err();
    assert_eq!(refused.to_string(), "max_wr is 0, it must be 1 to 32768");
}

/// Connects two initiators, each to its own target. Both targets receive on the same two shared receive
/// queues.
#[test]
fn xrc_messages_consume_receives_of_the_srq_they_name() {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let b = nic_on(&fabric);
    let xrcd = b.context.open_xrcd().unwrap();
    let caps = RecvCaps { max_wr: 8, max_sge: 1 };
    let other_cq = b.context.create_cq(8).unwrap();
    let queues = [
        b.pd.create_srq(SrqOptions::new(caps).xrc(&xrcd, &b.cq)).unwrap(),
        b.pd.create_srq(SrqOptions::new(caps).xrc(&xrcd, &other_cq)).unwrap(),
    ];
    for (i, srq) in queues.iter().enumerate() {
        for k in 0..2 {
            let at = 1000 * i + 100 * k;
            srq.post_recv(&RecvWr::new(at as u64, &[b.mr.sge(at..at + 100)])).unwrap();
        }
    }
    for k in 0..2u8 {
        let a = nic_on(&fabric);
        let (initiator, target) = (a.qp(QpType::XrcSend), xrcd.create_target_qp().unwrap());
        connect(&initiator, &target);
        a.mr.write(0, &[k + 1; 64]).unwrap();
        for (i, (srq, cq)) in queues.iter().zip([&b.cq, &other_cq]).enumerate() {
            initiator.post_send(&SendWr::send(1, &[a.mr.sge(0..9)]).to_srq(srq.id())).unwrap();
            a.cq.wait(TIMEOUT).unwrap();
            let wc = cq.wait(TIMEOUT).unwrap();
            assert_eq!((wc.wr_id, wc.qpn), (1000 * i as u64 + 100 * u64::from(k), target.qpn()));
            assert_eq!(b.mr.to_vec()[wc.wr_id as usize..][..9], [k + 1; 9]);
        }
        let all = [a.mr.sge(0..64)];
        let write = SendWr::write(2, &all, b.mr.remote(3000)).to_srq(queues[0].id());
        initiator.post_send(&write).unwrap();
        a.cq.wait(TIMEOUT).unwrap();
        assert_eq!(b.mr.to_vec()[3000..3064], [k + 1; 64]);
    }
    let refused = b.pd.create_qp(&b.cq, &b.cq, &QpOptions::default().qp_type(QpType::XrcRecv)).unwrap_err();
    assert_eq!(refused, CreateError::XrcTarget);
    let plain = b.pd.create_srq(caps).unwrap();
    let refused =
        b.pd.create_qp(&b.cq, &b.cq, &QpOptions::default().qp_type(QpType::XrcSend).srq(&plain)).unwrap_err();
    assert_eq!(refused, CreateError::NoReceives(QpType::XrcSend));
}

/// Returns the time after which a NIC with the given personality reports an unreachable peer, with the
/// shortest ACK timeout and no retries.
fn retry_timeout(personality: Personality) -> Duration {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let context = fabric.open(&ContextOptions::default().personality(personality)).unwrap();
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
