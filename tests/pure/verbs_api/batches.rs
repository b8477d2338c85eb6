//! Batches of work requests (`wr_start`, `wr_complete`).

use urxe::link::fabric::Outcome;

use super::*;

const UNSIGNALED: SendFlags = SendFlags { signaled: false, solicited: false, fence: false };

fn assert_idle(fabric: &Fabric, node: &TestEndpoint) {
    assert_eq!(fabric.run_until_idle(TIMEOUT), Outcome::Idle);
    assert_eq!(node.cq.poll(1, &mut Vec::new()), Ok(0));
}

#[test]
fn every_operation_in_one_batch_completes() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let (src, dst) = (region(&a, 4096), region(&b, 4096));
    src.write(0, b"0123456789abcdef").unwrap();
    dst.buffer().store_u64(1024, 5).unwrap();
    for id in 0..3 {
        b.qp.post_recv(&RecvWr { wr_id: id, sges: &[dst.sge(2048..2100)] }).unwrap();
    }

    let mut wr = a.qp.wr_start();
    wr.flags = UNSIGNALED;
    wr.wr_rdma_write(dst.remote(0)).set_sge_list(&[src.sge(4..8), src.sge(0..4)]);
    wr.wr_id = 1;
    wr.wr_rdma_write_imm(dst.remote(8), 11).set_inline_data(b"inline");
    wr.wr_send_imm(12).set_sge(src.sge(0..9));
    wr.wr_send().set_inline_data_list(&[b"of", b" "]).add_inline_data(b"").add_inline_data(b"parts");
    (wr.wr_id, wr.flags) = (2, SendFlags::SIGNALED);
    wr.wr_atomic_fetch_add(dst.remote(1024), 2).set_sge(src.sge(64..72));
    wr.wr_id = 3;
    wr.wr_atomic_cmp_swp(dst.remote(1024), 7, 9).set_sge(src.sge(72..80));
    wr.wr_id = 4;
    wr.wr_rdma_read(dst.remote(0)).set_sge(src.sge(128..142));
    wr.wr_id = 5;
    wr.wr(WrOp::Write { va: dst.remote(100).va, rkey: dst.rkey() }).set_inline_data(b"!");
    assert_eq!(wr.len(), 8);
    wr.complete().unwrap();

    let found: Vec<_> = (0..4).map(|_| a.cq.wait(TIMEOUT).unwrap()).map(|wc| (wc.wr_id, wc.opcode)).collect();
    use WcOpcode::*;
    assert_eq!(found, [(2, FetchAdd), (3, CompSwap), (4, RdmaRead), (5, RdmaWrite)]);
    let got: Vec<_> = (0..3).map(|_| b.cq.wait(TIMEOUT).unwrap()).map(|wc| (wc.imm, wc.byte_len)).collect();
    assert_eq!(got, [(Some(11), 6), (Some(12), 9), (None, 8)]);
    assert_idle(&fabric, &a);
    assert_eq!(&dst.to_vec()[..14], b"45670123inline");
    assert_eq!(&src.to_vec()[128..142], b"45670123inline");
    assert_eq!(&dst.to_vec()[2048..2057], b"of parts8", "all receives use the same buffer");
    assert_eq!((src.buffer().load_u64(64), src.buffer().load_u64(72)), (Ok(5), Ok(7)));
    assert_eq!((dst.buffer().load_u64(1024), dst.to_vec()[100]), (Ok(9), b'!'));
}

#[test]
fn keys_are_registered_used_and_invalidated_in_one_batch() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let access = Some(Access::ALL | Access::FLUSH_GLOBAL);
    b.qp.modify(&QpAttr { access, ..QpAttr::default() }).unwrap();
    let dst = b.pd.reg_mr(4096, Access::ALL | Access::MW_BIND | Access::FLUSH_GLOBAL).unwrap();
    let fast = a.pd.alloc_mr(4096).unwrap();
    let window = b.pd.alloc_mw(WindowKind::Type2A).unwrap();
    let (len, rkey) = (4096, window.next_rkey());
    let access = Access::REMOTE_WRITE | Access::ZERO_BASED;
    let bind = Bind { rkey, region: dst.lkey(), addr: dst.addr(), len, access };
    a.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    let mut wr = b.qp.wr_start();
    wr.wr_bind_mw(bind);
    wr.wr_id = 1;
    wr.wr_send_imm(rkey.0);
    wr.complete().unwrap();
    assert_eq!([(); 2].map(|()| b.cq.wait(TIMEOUT).unwrap().opcode), [WcOpcode::BindMw, WcOpcode::Send]);
    let rkey = RKey(a.cq.wait(TIMEOUT).unwrap().imm.unwrap());

    b.qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
    let at = |va| RemoteAddr { va, rkey };
    let mut wr = a.qp.wr_start();
    wr.wr_reg_mr(fast.reg(0, 4096, 0, Access::LOCAL_WRITE));
    wr.wr_rdma_write(at(8)).set_inline_data(b"through a window");
    wr.wr_atomic_write(at(0), *b"at once!");
    wr.wr_flush(dst.remote(0), 24, Placement::GLOBAL);
    wr.wr_local_inv(fast.rkey());
    wr.wr_send_inv(rkey);
    wr.complete().unwrap();
    use WcOpcode::*;
    let opcodes = [(); 6].map(|()| a.cq.wait(TIMEOUT).unwrap().opcode);
    assert_eq!(opcodes, [RegMr, RdmaWrite, AtomicWrite, Flush, LocalInv, Send]);
    assert_eq!(&dst.to_vec()[..24], b"at once!through a window");
    let mut poll = b.cq.start_poll();
    let wc = poll.next_poll().unwrap().unwrap();
    assert_eq!((wc.invalidated_rkey(), wc.wc_flags(), wc.imm()), (Some(rkey), WcFlags::WITH_INV, None));
}

#[test]
fn refused_work_request_cancels_the_whole_batch() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let (src, dst) = (region(&a, 4096), region(&b, 4096));
    src.write(0, &[7; 4096]).unwrap();
    let sent_before = a.context.counters().sent_pkts;

    let mut wr = a.qp.wr_start();
    wr.wr_rdma_write(dst.remote(0)).set_sge(src.sge(0..4000));
    wr.wr_rdma_write(dst.remote(0)).set_inline_data(b"xyz");
    wr.wr_rdma_read(dst.remote(0)).set_inline_data(b"1");
    wr.wr_rdma_write(dst.remote(0)).set_inline_data(&[1; 257]);
    let refused = wr.complete().unwrap_err();
    let error = PostError::InlineNotAllowed(WcOpcode::RdmaRead);
    assert_eq!(refused, PostBatchError { index: 2, error });
    assert_idle(&fabric, &a);
    assert_eq!((a.context.counters().sent_pkts, dst.to_vec()), (sent_before, vec![0; 4096]));

    // Cancelled work requests have no effect on PSNs and data.
    let mut wr = a.qp.wr_start();
    for n in 0..3 {
        wr.wr_id = n;
        wr.wr_rdma_write(dst.remote(0)).set_sge(src.sge(0..4000));
        wr.wr_id = 10 + n;
        wr.wr_rdma_write(dst.remote(4000)).set_inline_data(b"xyz");
    }
    wr.complete().unwrap();
    let ids: Vec<u64> = (0..6).map(|_| a.cq.wait(TIMEOUT).unwrap().wr_id).collect();
    assert_eq!(ids, [0, 10, 1, 11, 2, 12]);
    assert_eq!((&dst.to_vec()[..4000], &dst.to_vec()[4000..4003]), (&[7; 4000][..], &b"xyz"[..]));
    assert_eq!(b.context.counters().out_of_seq_request, 0);
}

#[test]
fn batch_beyond_queue_capacity_is_refused_completely() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let send = SendCaps { max_wr: 4, max_sge: 1, max_inline: 8 };
    let qp = a.pd.create_qp(&a.cq, &a.cq, &QpOptions { send, ..QpOptions::default() }).unwrap();
    qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    b.qp.modify(&QpAttr { state: Some(QpState::Reset), ..QpAttr::default() }).unwrap();
    b.qp.connect(&qp.endpoint(), &ConnectOptions::default()).unwrap();
    let dst = region(&b, 64);
    let post = |n: usize| {
        let mut wr = qp.wr_start();
        for at in 0..n {
            wr.wr_rdma_write(dst.remote(at)).set_inline_data(&[at as u8 + 1]);
        }
        wr.complete()
    };
    assert_eq!(post(5), Err(PostBatchError { index: 4, error: PostError::QueueFull(4) }));
    assert_idle(&fabric, &a);
    post(4).unwrap();
    assert_eq!(post(1), Err(PostBatchError { index: 0, error: PostError::QueueFull(4) }));
    for _ in 0..4 {
        a.cq.wait(TIMEOUT).unwrap();
    }
    assert_eq!(dst.to_vec()[..5], [1, 2, 3, 4, 0]);
}

#[test]
fn aborted_or_dropped_batch_is_not_posted() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let dst = region(&b, 64);
    let mut wr = a.qp.wr_start();
    wr.wr_rdma_write(dst.remote(0)).set_inline_data(b"aborted");
    wr.abort();
    let mut wr = a.qp.wr_start();
    wr.wr_rdma_write(dst.remote(0)).set_inline_data(b"dropped");
    drop(wr);
    // A new batch does not contain work requests of an earlier one.
    let wr = a.qp.wr_start();
    assert!(wr.is_empty());
    wr.complete().unwrap();
    assert_idle(&fabric, &a);
    assert_eq!(dst.to_vec(), [0; 64]);
}

#[test]
fn data_set_again_replaces_the_previous_data() {
    let (a, b) = slow_fabric().pair().unwrap();
    let (src, dst) = (region(&a, 64), region(&b, 64));
    src.write(0, b"sges").unwrap();
    let mut wr = a.qp.wr_start();
    wr.flags = UNSIGNALED;
    assert!(wr.current().is_none());
    wr.wr_rdma_write(dst.remote(0)).set_inline_data(b"first").set_sge(src.sge(0..4));
    wr.wr_rdma_write(dst.remote(8)).set_sge_list(&[src.sge(0..4), src.sge(0..4)]);
    wr.flags = SendFlags::SIGNALED;
    // The flags apply to work requests that are begun after the assignment.
    wr.current().unwrap().set_inline_data(b"second").set_inline_data(b"third");
    wr.wr_rdma_write(dst.remote(16)).set_sge(src.sge(1..3));
    wr.complete().unwrap();
    a.cq.wait(TIMEOUT).unwrap();
    assert_eq!(a.cq.poll(1, &mut Vec::new()), Ok(0));
    assert_eq!(&dst.to_vec()[..20], b"sges\0\0\0\0third\0\0\0ge\0\0");
}

#[test]
fn concurrent_batches_of_one_qp_stay_separate() {
    let (a, b) = slow_fabric().pair().unwrap();
    let dst = region(&b, 64);
    let (mut one, mut two) = (a.qp.wr_start(), a.qp.wr_start());
    (one.wr_id, two.wr_id) = (1, 2);
    one.wr_rdma_write(dst.remote(0)).set_inline_data(b"one");
    two.wr_rdma_write(dst.remote(8)).set_inline_data(b"two");
    two.complete().unwrap();
    one.complete().unwrap();
    let ids = [(); 2].map(|()| a.cq.wait(TIMEOUT).unwrap().wr_id);
    assert_eq!((ids, &dst.to_vec()[..11]), ([2, 1], &b"one\0\0\0\0\0two"[..]));
}

#[test]
fn batch_in_error_state_is_flushed() {
    let (a, _b) = slow_fabric().pair().unwrap();
    a.qp.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() }).unwrap();
    let mut wr = a.qp.wr_start();
    wr.flags = UNSIGNALED;
    for id in 1..3 {
        wr.wr_id = id;
        wr.wr_send();
    }
    wr.complete().unwrap();
    for id in 1..3 {
        let wc = a.cq.wait_any(TIMEOUT).unwrap();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::WrFlushErr));
    }
    a.qp.modify(&QpAttr { state: Some(QpState::Reset), ..QpAttr::default() }).unwrap();
    let mut wr = a.qp.wr_start();
    wr.wr_send();
    let error = PostError::State(QpState::Reset);
    assert_eq!(wr.complete(), Err(PostBatchError { index: 0, error }));
}

#[test]
fn datagrams_of_one_batch_reach_different_peers() {
    const KEY: QKey = QKey(77);
    let fabric = slow_fabric();
    let options = QpOptions { qp_type: QpType::Ud, ..QpOptions::default() };
    let nodes = [(); 3].map(|()| TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap());
    let qps = nodes.each_ref().map(|n| n.pd.create_qp(&n.cq, &n.cq, &options).unwrap());
    qps.iter().for_each(|qp| qp.activate(KEY).unwrap());
    let regions = nodes.each_ref().map(|n| region(n, 256));
    let mut wr = qps[0].wr_start();
    for to in 1..3 {
        qps[to].post_recv(&RecvWr { wr_id: 1, sges: &[regions[to].sge(0..100)] }).unwrap();
        let ah = nodes[0].pd.create_ah(&AddressVector::to(nodes[to].context.query_gid(0).unwrap())).unwrap();
        wr.wr_send_imm(to as u32).set_ud_addr(&ah, qps[to].qpn(), KEY).set_inline_data(&[to as u8]);
    }
    wr.complete().unwrap();
    for to in 1..3 {
        let wc = nodes[to].cq.wait(TIMEOUT).unwrap();
        assert_eq!((wc.imm, wc.src_qpn, regions[to].to_vec()[40]), (Some(to as u32), qps[0].qpn(), to as u8));
    }
    let mut wr = qps[0].wr_start();
    wr.wr_send();
    assert_eq!(wr.complete(), Err(PostBatchError { index: 0, error: PostError::Destination }));
}

#[test]
fn inline_pieces_are_posted_with_post_send() {
    let (a, b) = slow_fabric().pair().unwrap();
    let dst = region(&b, 512);
    let write_inline =
        |pieces| SendWr { data: WrData::InlineList(pieces), ..SendWr::write(1, &[], dst.remote(0)) };
    a.qp.post_send(&write_inline(&[b"in ", b"three ", b"pieces"])).unwrap();
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().byte_len, 15);
    assert_eq!(&dst.to_vec()[..16], b"in three pieces\0");
    a.qp.post_send(&write_inline(&[&[1; 200], &[2; 56]])).unwrap();
    let refused = a.qp.post_send(&write_inline(&[&[1; 200], &[2; 57]]));
    assert_eq!(refused, Err(PostError::InlineTooLong { got: 257, max: 256 }));
    let read = SendWr { data: WrData::InlineList(&[]), ..SendWr::read(1, &[], dst.remote(0)) };
    assert_eq!(a.qp.post_send(&read), Err(PostError::InlineNotAllowed(WcOpcode::RdmaRead)));
}

#[test]
fn messages_of_one_batch_reach_different_srqs() {
    let fabric = slow_fabric();
    let [a, b] = [(); 2].map(|()| TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap());
    let xrcd = b.context.open_xrcd().unwrap();
    let target = xrcd.create_target_qp().unwrap();
    let options = QpOptions { qp_type: QpType::XrcSend, ..QpOptions::default() };
    let qp = a.pd.create_qp(&a.cq, &a.cq, &options).unwrap();
    qp.connect(&target.endpoint(), &ConnectOptions::default()).unwrap();
    target.connect(&qp.endpoint(), &ConnectOptions::default()).unwrap();
    let caps = RecvCaps { max_wr: 4, max_sge: 1 };
    let cqs = [(); 2].map(|()| b.context.create_cq(4).unwrap());
    let srqs = cqs.each_ref().map(|cq| b.pd.create_xrc_srq(&xrcd, cq, caps).unwrap());
    let mut wr = qp.wr_start();
    for (n, srq) in srqs.iter().enumerate() {
        srq.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        wr.wr_send_imm(n as u32).set_xrc_srqn(srq.id());
    }
    wr.complete().unwrap();
    for (n, cq) in cqs.iter().enumerate() {
        assert_eq!(cq.wait(TIMEOUT).unwrap().imm, Some(n as u32));
    }
    // A shared receive queue that completes on a CQ keeps it in use.
    let [cq, _] = cqs;
    assert_eq!(cq.clone().destroy(Duration::ZERO), Err(DestroyCqError::InUse(1)));
    drop(srqs);
    assert_eq!(cq.destroy(Duration::ZERO), Ok(()));
}
