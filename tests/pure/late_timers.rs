//! Test that a thread that was preempted for a long time processes the acknowledgements queued in the link
//! before it handles expired timers, so that it retransmits no acknowledged packets.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use urxe::link::{Link, LinkInfo};
use urxe::transport::{Instant, RxBurst, TxQueue};
use urxe::verbs::*;
use urxe::wire::{Aeth, Bth, Flow, Headers, IpIdent, Opcode, Packet, Syndrome};
use urxe_test_support::engine;

const LOCAL_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const PEER_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Delay of the acknowledgements, just below the ACK timeout of 67 ms. Nothing polls the link earlier, so the
/// acknowledgements are still queued when the timer expires.
const DELAY: Duration = Duration::from_millis(60);

/// A link that acknowledges every request after [`DELAY`]. Packets to other queue pairs precede each
/// acknowledgement, and each receive call delivers one packet.
struct DelayedLink {
    info: LinkInfo,
    pending_acks: VecDeque<(Instant, Vec<u8>)>,
    to: Qpn,
}

impl DelayedLink {
    fn ack(&mut self, at: Instant, psn: Psn, to: Qpn) {
        let bth = Bth { opcode: Opcode(0x11), dest_qp: to, psn, ..Bth::default() };
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
        let bytes = engine::encode(
            &Headers { bth, aeth, ..Headers::default() },
            &[],
            &Flow::new(PEER_IP, LOCAL_IP, 1),
        );
        self.pending_acks.push_back((at + DELAY, bytes));
    }
}

impl Link for DelayedLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        for burst in queue.bursts() {
            let mut bytes = Vec::new();
            burst.copy_to(&mut bytes);
            let psn = Packet::parse(&bytes).expect("the NIC sends valid packets").bth().psn;
            (0..3).for_each(|n| self.ack(now, psn, Qpn::new(n)));
            self.ack(now, psn, self.to);
        }
        Ok(())
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        if self.pending_acks.front().is_none_or(|(at, _)| *at > now) {
            return Ok(0);
        }
        let Some((_, bytes)) = self.pending_acks.pop_front() else { return Ok(0) };
        let flow = Flow::new(PEER_IP, LOCAL_IP, 1);
        sink(RxBurst::new(flow, IpIdent::SENT, bytes.len(), &bytes));
        Ok(1)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

#[test]
fn packets_queued_in_the_link_are_processed_before_an_expired_timer() {
    // Number of the first queue pair of a context with this seed; the link must know it.
    let options = ContextOptions::default().seed(1);
    let link = |to| DelayedLink {
        info: LinkInfo::new("delayed", vec![LOCAL_IP]),
        pending_acks: VecDeque::new(),
        to,
    };
    let first =
        TestEndpoint::new(Context::open(Box::new(link(Qpn::default())), &options).unwrap()).unwrap().qp.qpn();
    let node = TestEndpoint::new(Context::open(Box::new(link(first)), &options).unwrap()).unwrap();
    assert_eq!(node.qp.qpn(), first);
    let peer = Endpoint { gid: PEER_IP.into(), qpn: Qpn::new(0x77), psn: Psn::new(0) };
    node.qp.connect(&peer, &ConnectOptions::default()).unwrap();
    let mr = node.pd.reg_mr(8, Access::ALL).unwrap();
    node.qp.post_send(&SendWr::write(1, &[mr.sge(0..8)], mr.remote(0))).unwrap();
    assert_eq!(node.cq.wait(Duration::from_secs(5)).unwrap().wr_id, 1);
    let c = node.context.counters();
    assert_eq!((c.rx_unknown_qp, c.local_ack_timeout_err, c.sent_pkts), (3, 0, 1));
}
