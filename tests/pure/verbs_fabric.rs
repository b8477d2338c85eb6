//! Tests of the verbs API over the in-memory fabric, which programs can use as a mock NIC.

use std::time::Duration;

use urxe::verbs::errors::WaitError;
use urxe::verbs::*;
use urxe_test_support::nic;

const TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn wait_in_virtual_time_ends_at_its_timeout_even_if_the_next_event_is_later() {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let (a, b) = fabric.pair().unwrap();
    let [from, to] = [&a, &b].map(|end| end.pd.reg_mr(8, Access::ALL).unwrap());
    // The cable of the peer is unplugged: the next event is the ACK timeout.
    fabric.set_port_up(b.context.address().unwrap(), false).unwrap();
    a.qp.post_send(&SendWr::write(1, &[from.sge(0..8)], to.remote(0))).unwrap();
    let (start, timeout) = (fabric.now(), Duration::from_micros(1));
    for n in 1..4 {
        assert!(matches!(a.cq.wait(timeout), Err(WaitError::TimedOut(_))));
        assert_eq!(fabric.now(), start + n * timeout);
    }
    assert_eq!(a.context.counters().local_ack_timeout_err, 0);
    a.cq.wait_any(TIMEOUT).unwrap();
}

fn check_every_operation(fabric: &Fabric, lossy: bool) {
    let (a, b) = fabric.pair().unwrap();
    let len = 100_000;
    let (src, dst) = (a.pd.reg_mr(len, Access::ALL).unwrap(), b.pd.reg_mr(len, Access::ALL).unwrap());
    let data: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
    src.write(0, &data).unwrap();

    a.qp.post_send(&SendWr::write(1, &[src.sge(0..len)], dst.remote(0))).unwrap();
    let wc = a.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.opcode), (1, WcOpcode::RdmaWrite));
    assert_eq!(dst.to_vec(), data);

    src.write(0, &vec![0; len]).unwrap();
    a.qp.post_send(&SendWr::read(2, &[src.sge(0..len)], dst.remote(0))).unwrap();
    let wc = a.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len as usize), (2, WcOpcode::RdmaRead, len));
    assert_eq!(src.to_vec(), data);

    dst.write(0, &vec![0; len]).unwrap();
    b.qp.post_recv(&RecvWr::new(3, &[dst.sge(0..1000), dst.sge(1000..len)])).unwrap();
    a.qp.post_send(&SendWr::send_imm(4, &[src.sge(0..len)], 77)).unwrap();
    let wc = b.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len as usize, wc.imm), (3, WcOpcode::Recv, len, Some(77)));
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 4);
    assert_eq!(dst.to_vec(), data);

    dst.buffer().store_u64(8, 5).unwrap();
    a.qp.post_send(&SendWr::fetch_add(5, &[src.sge(0..8)], dst.remote(8), 2)).unwrap();
    a.qp.post_send(&SendWr::compare_swap(6, &[src.sge(8..16)], dst.remote(8), 7, 9)).unwrap();
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().opcode, WcOpcode::FetchAdd);
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().opcode, WcOpcode::CompSwap);
    assert_eq!(src.buffer().load_u64(0), Ok(5));
    assert_eq!(src.buffer().load_u64(8), Ok(7));
    assert_eq!(dst.buffer().load_u64(8), Ok(9));

    b.qp.post_recv(&RecvWr::new(7, &[])).unwrap();
    a.qp.post_send(&SendWr::write_imm(8, &[src.sge(0..16)], dst.remote(64), 1)).unwrap();
    let wc = b.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::RecvRdmaWithImm, 16, Some(1)));
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 8);

    let inline = SendWr::write(9, &[], dst.remote(0)).inline(b"inline!!");
    a.qp.post_send(&inline).unwrap();
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 9);
    assert_eq!(dst.buffer().load_u64(0), Ok(u64::from_ne_bytes(*b"inline!!")));

    a.qp.post_send(&SendWr::write(10, &[src.sge(0..9)], dst.remote(len - 8))).unwrap();
    let Err(WaitError::Failed(wc)) = a.cq.wait(TIMEOUT) else {
        panic!("a WRITE beyond the end of the region succeeded")
    };
    // A NAK is sent once: if it is lost, the requester's retries run out.
    let is_expected = wc.status == WcStatus::RemAccessErr || lossy && wc.status == WcStatus::RetryExcErr;
    assert!(wc.wr_id == 10 && is_expected, "{wc:?}");
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    assert!(matches!(b.context.next_event(), Some(AsyncEvent::QpAccessError(_))));
}

#[test]
fn every_operation_completes_in_real_time() {
    check_every_operation(&Fabric::new(), false);
}

#[test]
fn every_operation_completes_in_virtual_time() {
    check_every_operation(&Fabric::virtual_time(FabricConfig::default()).unwrap(), false);
}

#[test]
fn every_operation_completes_over_faulty_wire_in_virtual_time() {
    for seed in 0..20 {
        let config = FabricConfig::default()
            .seed(seed)
            .latency(Duration::from_micros(5))
            .loss(0.03)
            .duplicate(0.03)
            .reorder(0.03)
            .corrupt(0.01);
        check_every_operation(&Fabric::virtual_time(config).unwrap(), true);
    }
}

#[test]
fn completion_channel_becomes_readable_on_completion() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let (a, b) = Fabric::new().pair().unwrap();
    let channel = b.context.create_channel().unwrap();
    let cq = b.context.create_cq(CqOptions::new(16).channel(&channel)).unwrap();
    let (qp, peer) = nic::qp_pair((&b.pd, &cq), (&a.pd, &a.cq));
    cq.req_notify(Notify::Any);
    assert!(channel.next_event().is_none());
    qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    peer.post_send(&SendWr::send(2, &[])).unwrap();
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::from(5000u16)), Ok(1));
    assert!(channel.next_event().is_some_and(|c| *c == cq));
    let mut out = Vec::new();
    assert_eq!(cq.poll(4, &mut out).unwrap(), 1);
    assert!(channel.next_event().is_none());
}

#[test]
fn failed_wait_reports_timeout_or_idle_fabric() {
    let (a, _b) = Fabric::new().pair().unwrap();
    let timeout = Duration::from_millis(20);
    assert_eq!(a.cq.wait(timeout), Err(WaitError::TimedOut(timeout)));
    let (a, _b) = Fabric::virtual_time(FabricConfig::default()).unwrap().pair().unwrap();
    assert_eq!(a.cq.wait(TIMEOUT), Err(WaitError::Idle));
}

#[test]
fn retries_do_not_congest_a_slow_wire_with_a_short_queue() {
    let config =
        FabricConfig::default().bandwidth(20_000_000).queue_bytes(100_000).latency(Duration::from_micros(50));
    let fabric = Fabric::virtual_time(config).unwrap();
    let options = ConnectOptions::default().mtu(Mtu::Mtu256);
    let (a, b) = fabric.pair_builder().connect(options).build().unwrap();
    let len = 1 << 20;
    let (src, dst) = (a.pd.reg_mr(len, Access::ALL).unwrap(), b.pd.reg_mr(len, Access::ALL).unwrap());
    let data: Vec<u8> = (0..len).map(|i| (i * 7 + (i >> 8)) as u8).collect();
    src.write(0, &data).unwrap();
    for id in 0..4 {
        a.qp.post_send(&SendWr::write(id, &[src.sge(0..len)], dst.remote(0))).unwrap();
    }
    for _ in 0..4 {
        a.cq.wait(Duration::from_secs(60)).unwrap();
    }
    assert_eq!(dst.to_vec(), data);
}
