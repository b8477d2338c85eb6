//! Tests of lists of work requests: batches, which are posted completely or not at all
//! (`ListPolicy::AllOrNone`), and lists that are posted up to the first that is rejected.

use urxe::fabric::Outcome;

use super::*;
use urxe::verbs::errors::{PostError, PostListError};
use urxe::verbs::memory::{Bind, WindowKind};

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
        b.qp.post_recv(&RecvWr::new(id, &[dst.sge(2048..2100)])).unwrap();
    }

    a.qp.post_send_list(
        &[
            SendWr::write(0, &[src.sge(4..8), src.sge(0..4)], dst.remote(0)).signaled(false),
            SendWr::write_imm(1, &[], dst.remote(8), 11).inline(b"inline").signaled(false),
            SendWr::send_imm(1, &[src.sge(0..9)], 12).signaled(false),
            SendWr::send(1, &[]).inline_list(&[b"of", b" ", b"", b"parts"]).signaled(false),
            SendWr::fetch_add(2, &[src.sge(64..72)], dst.remote(1024), 2),
            SendWr::compare_swap(3, &[src.sge(72..80)], dst.remote(1024), 7, 9),
            SendWr::read(4, &[src.sge(128..142)], dst.remote(0)),
            SendWr::new(5, WrOp::Write { va: dst.remote(100).va, rkey: dst.rkey() }, &[]).inline(b"!"),
        ],
        ListPolicy::AllOrNone,
    )
    .unwrap();

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
    b.qp.modify(&QpAttr::default().access(access)).unwrap();
    let dst = b.pd.reg_mr(4096, Access::ALL | Access::MW_BIND | Access::FLUSH_GLOBAL).unwrap();
    let fast = a.pd.alloc_mr(4096).unwrap();
    let window = b.pd.alloc_mw(WindowKind::Type2A).unwrap();
    let (len, rkey) = (4096, window.next_rkey());
    let access = Access::REMOTE_WRITE | Access::ZERO_BASED;
    let bind = Bind { rkey, region: dst.lkey(), addr: dst.addr(), len, access };
    a.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    b.qp.post_send_list(&[SendWr::bind_mw(0, bind), SendWr::send_imm(1, &[], rkey.0)], ListPolicy::AllOrNone)
        .unwrap();
    assert_eq!([(); 2].map(|()| b.cq.wait(TIMEOUT).unwrap().opcode), [WcOpcode::BindMw, WcOpcode::Send]);
    let rkey = RKey(a.cq.wait(TIMEOUT).unwrap().imm.unwrap());

    b.qp.post_recv(&RecvWr::new(2, &[])).unwrap();
    let at = |va| RemoteAddr { va, rkey };
    let reg = fast.reg(0, 4096, 0, Access::LOCAL_WRITE);
    a.qp.post_send_list(
        &[
            SendWr::reg_mr(0, reg),
            SendWr::write(0, &[], at(8)).inline(b"through a window"),
            SendWr::atomic_write(0, at(0), *b"at once!"),
            SendWr::flush(0, dst.remote(0), 24, Placement::GLOBAL),
            SendWr::local_inv(0, fast.rkey()),
            SendWr::send_inval(0, &[], rkey),
        ],
        ListPolicy::AllOrNone,
    )
    .unwrap();
    use WcOpcode::*;
    let opcodes = [(); 6].map(|()| a.cq.wait(TIMEOUT).unwrap().opcode);
    assert_eq!(opcodes, [RegMr, RdmaWrite, AtomicWrite, Flush, LocalInv, Send]);
    assert_eq!(&dst.to_vec()[..24], b"at once!through a window");
    let mut poll = b.cq.start_poll();
    let wc = poll.next_poll().unwrap().unwrap();
    assert_eq!((wc.invalidated, wc.wc_flags(), wc.imm), (Some(rkey), WcFlags::WITH_INV, None));
}

#[test]
fn invalid_work_request_cancels_the_whole_batch() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let (src, dst) = (region(&a, 4096), region(&b, 4096));
    src.write(0, &[7; 4096]).unwrap();
    let sent_before = a.context.counters().sent_pkts;

    let refused = a.qp.post_send_list(
        &[
            SendWr::write(0, &[src.sge(0..4000)], dst.remote(0)),
            SendWr::write(0, &[], dst.remote(0)).inline(b"xyz"),
            SendWr::read(0, &[], dst.remote(0)).inline(b"1"),
            SendWr::write(0, &[], dst.remote(0)).inline(&[1; 257]),
        ],
        ListPolicy::AllOrNone,
    );
    let error = PostError::InlineNotAllowed(WcOpcode::RdmaRead);
    assert_eq!(refused, Err(PostListError { index: 2, error }));
    assert_idle(&fabric, &a);
    assert_eq!((a.context.counters().sent_pkts, dst.to_vec()), (sent_before, vec![0; 4096]));

    // Cancelled work requests have no effect on PSNs and data.
    let sges = [src.sge(0..4000)];
    let pair = |n| {
        let tail = SendWr::write(10 + n, &[], dst.remote(4000)).inline(b"xyz");
        [SendWr::write(n, &sges, dst.remote(0)), tail]
    };
    a.qp.post_send_list(&(0..3).flat_map(pair).collect::<Vec<_>>(), ListPolicy::AllOrNone).unwrap();
    let ids: Vec<u64> = (0..6).map(|_| a.cq.wait(TIMEOUT).unwrap().wr_id).collect();
    assert_eq!(ids, [0, 10, 1, 11, 2, 12]);
    assert_eq!((&dst.to_vec()[..4000], &dst.to_vec()[4000..4003]), (&[7; 4000][..], &b"xyz"[..]));
    assert_eq!(b.context.counters().out_of_seq_request, 0);
}

#[test]
fn requests_before_a_rejected_one_are_posted_until_rejected() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let dst = region(&b, 64);
    let write = |id, data| SendWr::write(id, &[], dst.remote(id as usize)).inline(data);
    let list = [write(1, b"a"), write(2, &[1; 257]), write(3, b"c")];
    let rejected = a.qp.post_send_list(&list, ListPolicy::UntilRejected);
    let error = PostError::InlineTooLong { got: 257, max: 256 };
    assert_eq!(rejected, Err(PostListError { index: 1, error }));
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 1);
    assert_idle(&fabric, &a);
    assert_eq!(dst.to_vec()[..4], [0, b'a', 0, 0]);
}

#[test]
fn batch_beyond_queue_capacity_fails_and_posts_nothing() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let send = SendCaps { max_wr: 4, max_sge: 1, max_inline: 8 };
    let qp = a.pd.create_qp(&a.cq, &a.cq, &QpOptions::default().send(send)).unwrap();
    b.qp.modify(&QpAttr::new(QpState::Reset)).unwrap();
    connect(&qp, &b.qp);
    let dst = region(&b, 64);
    let write = |at| SendWr::write(0, &[], dst.remote(at)).inline(&[1, 2, 3, 4, 5][at..=at]);
    let post = |n: usize| qp.post_send_list(&(0..n).map(write).collect::<Vec<_>>(), ListPolicy::AllOrNone);
    assert_eq!(post(5), Err(PostListError { index: 4, error: PostError::QueueFull(4) }));
    assert_idle(&fabric, &a);
    post(4).unwrap();
    assert_eq!(post(1), Err(PostListError { index: 0, error: PostError::QueueFull(4) }));
    for _ in 0..4 {
        a.cq.wait(TIMEOUT).unwrap();
    }
    assert_eq!(dst.to_vec()[..5], [1, 2, 3, 4, 0]);
}

#[test]
fn empty_batch_posts_nothing() {
    let fabric = slow_fabric();
    let (a, _b) = fabric.pair().unwrap();
    assert_eq!(a.qp.post_send_list(&[], ListPolicy::AllOrNone), Ok(()));
    assert_idle(&fabric, &a);
}

#[test]
fn setters_change_only_their_own_part_of_a_work_request() {
    let to = RemoteAddr { va: 8, rkey: RKey(7) };
    let sges = [Sge::default()];
    let wr = SendWr::write(1, &sges, to);
    assert_eq!((wr.flags, wr.to, wr.data), (SendFlags::SIGNALED, None, WrData::Sges(&sges)));
    let all = wr.signaled(false).solicited().fence().to_srq(SrqId(3)).inline(b"first").inline(b"last");
    let flags = SendFlags { signaled: false, solicited: true, fence: true };
    assert_eq!((all.wr_id, all.op, all.flags), (1, wr.op, flags));
    assert_eq!((all.to, all.data), (Some(Destination::Srq(SrqId(3))), WrData::Inline(b"last")));
    assert_eq!(all.flags(SendFlags::SIGNALED).flags, SendFlags::SIGNALED);
}

#[test]
fn requests_of_batch_and_list_complete_in_the_order_of_posting() {
    let (a, b) = slow_fabric().pair().unwrap();
    let dst = region(&b, 64);
    let write = |id, at| SendWr::write(id, &[], dst.remote(at));
    a.qp.post_send_list(&[write(1, 0).inline(b"one"), write(2, 4).inline(b"two")], ListPolicy::AllOrNone)
        .unwrap();
    a.qp.post_send_list(&[write(3, 8).inline(b"three")], ListPolicy::UntilRejected).unwrap();
    let ids = [(); 3].map(|()| a.cq.wait(TIMEOUT).unwrap().wr_id);
    assert_eq!((ids, &dst.to_vec()[..13]), ([1, 2, 3], &b"one\0two\0three"[..]));
}

#[test]
fn batch_in_error_state_is_flushed() {
    let (a, _b) = slow_fabric().pair().unwrap();
    a.qp.modify(&QpAttr::new(QpState::Err)).unwrap();
    a.qp.post_send_list(&[1, 2].map(|id| SendWr::send(id, &[]).signaled(false)), ListPolicy::AllOrNone)
        .unwrap();
    for id in 1..3 {
        let wc = a.cq.wait_any(TIMEOUT).unwrap();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::WrFlushErr));
    }
    a.qp.modify(&QpAttr::new(QpState::Reset)).unwrap();
    let error = PostError::State(QpState::Reset);
    assert_eq!(
        a.qp.post_send_list(&[SendWr::send(1, &[])], ListPolicy::AllOrNone),
        Err(PostListError { index: 0, error })
    );
}

#[test]
fn datagrams_of_one_batch_reach_different_peers() {
    const KEY: QKey = QKey(77);
    let fabric = slow_fabric();
    let options = QpOptions::default().qp_type(QpType::Ud);
    let nodes = [(); 3].map(|()| TestEndpoint::new(Context::on_fabric(&fabric).unwrap()).unwrap());
    let qps = nodes.each_ref().map(|n| n.pd.create_qp(&n.cq, &n.cq, &options).unwrap());
    qps.iter().for_each(|qp| qp.activate(KEY).unwrap());
    let regions = nodes.each_ref().map(|n| region(n, 256));
    let datagram = |to: usize| {
        qps[to].post_recv(&RecvWr::new(1, &[regions[to].sge(0..100)])).unwrap();
        let ah = nodes[0].pd.create_ah(&AddressVector::to(nodes[to].context.query_gid(0).unwrap())).unwrap();
        SendWr::send_imm(1, &[], to as u32).to(ah.to(qps[to].qpn(), KEY)).inline(&[0, 1, 2][to..=to])
    };
    qps[0].post_send_list(&[1, 2].map(datagram), ListPolicy::AllOrNone).unwrap();
    for to in 1..3 {
        let wc = nodes[to].cq.wait(TIMEOUT).unwrap();
        assert_eq!((wc.imm, wc.src_qpn, regions[to].to_vec()[40]), (Some(to as u32), qps[0].qpn(), to as u8));
    }
    assert_eq!(
        qps[0].post_send_list(&[SendWr::send(1, &[])], ListPolicy::AllOrNone),
        Err(PostListError { index: 0, error: PostError::Destination })
    );
}

#[test]
fn inline_pieces_are_sent_as_one_message_up_to_the_inline_limit() {
    let (a, b) = slow_fabric().pair().unwrap();
    let dst = region(&b, 512);
    let write_inline = |pieces| SendWr::write(1, &[], dst.remote(0)).inline_list(pieces);
    a.qp.post_send(&write_inline(&[b"in ", b"three ", b"pieces"])).unwrap();
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().byte_len, 15);
    assert_eq!(&dst.to_vec()[..16], b"in three pieces\0");
    a.qp.post_send(&write_inline(&[&[1; 200], &[2; 56]])).unwrap();
    let refused = a.qp.post_send(&write_inline(&[&[1; 200], &[2; 57]]));
    assert_eq!(refused, Err(PostError::InlineTooLong { got: 257, max: 256 }));
    let read = SendWr::read(1, &[], dst.remote(0)).inline_list(&[]);
    assert_eq!(a.qp.post_send(&read), Err(PostError::InlineNotAllowed(WcOpcode::RdmaRead)));
}

#[test]
fn messages_of_one_batch_reach_different_srqs() {
    let fabric = slow_fabric();
    let (a, b) = fabric.pair().unwrap();
    let xrcd = b.context.open_xrcd().unwrap();
    let target = xrcd.create_target_qp().unwrap();
    let options = QpOptions::default().qp_type(QpType::XrcSend);
    let qp = a.pd.create_qp(&a.cq, &a.cq, &options).unwrap();
    connect(&qp, &target);
    let caps = RecvCaps { max_wr: 4, max_sge: 1 };
    let cqs = [(); 2].map(|()| b.context.create_cq(4).unwrap());
    let srqs = cqs.each_ref().map(|cq| b.pd.create_srq(SrqOptions::new(caps).xrc(&xrcd, cq)).unwrap());
    srqs.iter().for_each(|srq| srq.post_recv(&RecvWr::empty(1)).unwrap());
    let send = |(n, srq): (usize, &Srq)| SendWr::send_imm(1, &[], n as u32).to_srq(srq.id());
    qp.post_send_list(&srqs.iter().enumerate().map(send).collect::<Vec<_>>(), ListPolicy::AllOrNone).unwrap();
    for (n, cq) in cqs.iter().enumerate() {
        assert_eq!(cq.wait(TIMEOUT).unwrap().imm, Some(n as u32));
    }
    // A shared receive queue that completes on a CQ keeps it in use.
    let [cq, _] = cqs;
    assert_eq!(cq.clone().destroy(Duration::ZERO), Err(DestroyCqError::InUse(1)));
    drop(srqs);
    assert_eq!(cq.destroy(Duration::ZERO), Ok(()));
}
