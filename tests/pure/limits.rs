//! Tests at the limits of the protocol's number ranges: the longest message, and wrapping sequence numbers.

use std::time::Duration;

use urxe::verbs::errors::PostError;
use urxe::verbs::*;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum length of a message in bytes (IBA 9.7.1).
const MAX_MESSAGE: usize = 1 << 31;
const PARTS: usize = 32;

/// Returns two endpoints with connected queue pairs that accept 32 scatter/gather elements per request.
fn pair() -> (TestEndpoint, TestEndpoint) {
    let options = QpOptions::default()
        .send(SendCaps { max_wr: 256, max_sge: PARTS as u32, max_inline: 8 })
        .recv(RecvCaps { max_wr: 256, max_sge: PARTS as u32 });
    // The fabric loses no packet, and a busy machine must not cause timeouts.
    let no_timeout = ConnectOptions::default().timeout(AckTimeout::new(0));
    Fabric::new().pair_builder().qp(options).connect(no_timeout).build().unwrap()
}

#[test]
fn message_of_two_gigabytes_is_transferred() {
    let (a, b) = pair();
    // The work requests of both sides refer to one region 32 times, which saves memory.
    let part = MAX_MESSAGE / PARTS;
    let (src, dst) = (a.pd.reg_mr(part, Access::ALL).unwrap(), b.pd.reg_mr(part, Access::ALL).unwrap());
    let data: Vec<u8> = (0..part).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
    src.write(0, &data).unwrap();
    let (from, to) = (vec![src.sge(0..part); PARTS], vec![dst.sge(0..part); PARTS]);
    b.qp.post_recv(&RecvWr::new(1, &to)).unwrap();
    a.qp.post_send(&SendWr::send(2, &from)).unwrap();
    let wc = b.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (1, WcStatus::Success, MAX_MESSAGE));
    assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 2);
    assert!(dst.to_vec() == data, "the received data differs from the sent data");

    // A message longer by one byte is refused, and no packet is sent.
    let sent = a.context.counters().sent_pkts;
    let longer = [&from[..PARTS - 1], &[Sge { length: part as u32 + 1, ..from[0] }]].concat();
    let error = a.qp.post_send(&SendWr::send(3, &longer)).unwrap_err();
    assert!(matches!(error, PostError::TooLong(n) if n == MAX_MESSAGE as u64 + 1), "{error}");
    assert_eq!(a.context.counters().sent_pkts, sent);
}

#[test]
fn psns_and_msns_wrap_without_loss() {
    let (a, b) = pair();
    let (src, dst) = (a.pd.reg_mr(8, Access::ALL).unwrap(), b.pd.reg_mr(8, Access::ALL).unwrap());
    // More messages of one packet than 24 bits can count; the test waits for every 64th.
    let messages = (1 << 24) + 1000u64;
    let (sges, mut out) = ([src.sge(0..8)], Vec::new());
    for n in 1..=messages {
        let signaled = n % 64 == 0 || n == messages;
        let wr = SendWr::write(n, &sges, dst.remote(0)).flags(SendFlags { signaled, ..SendFlags::default() });
        if signaled {
            src.buffer().store_u64(0, n).unwrap();
        }
        a.qp.post_send(&wr).unwrap();
        if signaled {
            while out.is_empty() {
                a.cq.poll(1, &mut out).unwrap();
            }
            let wc = out.remove(0);
            assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
            assert_eq!(dst.buffer().load_u64(0), Ok(n));
        }
    }
    let (requester, responder) = (a.context.counters(), b.context.counters());
    assert_eq!((requester.rdma_sends, requester.requester_retry), (messages, 0));
    // A preempted thread may cause probes by retransmission, and one redundant acknowledgement for each.
    assert!(requester.unexpected_response <= requester.ack_probe, "{requester:?}");
    assert_eq!((responder.rdma_recvs, responder.out_of_seq_request), (messages, 0));
    assert_eq!(responder.duplicate_request, requester.ack_probe);
}
