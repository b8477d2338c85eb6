//! Test that a thread that was preempted for long processes the acknowledgements queued in the link before it
//! serves expired timers, and does not retransmit what they acknowledge.

mod support;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use urxe::link::{JoinError, Link, LinkInfo};
use urxe::transport::{BurstLimits, Instant, RxBurst, TxQueue};
use urxe::verbs::*;
use urxe::wire::{Aeth, Bth, Flow, Headers, IpIdent, Opcode, Packet, Syndrome};

const OURS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const PEERS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Delay of the acknowledgements, just below the timeout of 67 ms; the NIC is not polled earlier.
const DELAY: Duration = Duration::from_millis(60);

/// A link that acknowledges every request, with a delay and behind other packets, one packet per receive
/// call.
struct Late {
    info: LinkInfo,
    waiting: VecDeque<(Instant, Vec<u8>)>,
    to: Qpn,
}

impl Late {
    fn answer(&mut self, at: Instant, psn: Psn, to: Qpn) {
        let bth = Bth { opcode: Opcode(0x11), dest_qp: to, psn, ..Bth::default() };
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
        let bytes =
            support::encode(&Headers { bth, aeth, ..Headers::default() }, &[], &Flow::new(PEERS, OURS, 1));
        self.waiting.push_back((at + DELAY, bytes));
    }
}

impl Link for Late {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        for burst in queue.bursts() {
            let mut bytes = Vec::new();
            burst.copy_to(&mut bytes);
            let psn = Packet::parse(&bytes).expect("a whole packet").bth().psn;
            (0..3).for_each(|n| self.answer(now, psn, Qpn::new(n)));
            self.answer(now, psn, self.to);
        }
        Ok(())
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        if self.waiting.front().is_none_or(|(at, _)| *at > now) {
            return Ok(0);
        }
        let Some((_, bytes)) = self.waiting.pop_front() else { return Ok(0) };
        let flow = Flow::new(PEERS, OURS, 1);
        sink(RxBurst { flow, ident: IpIdent::SENT, segment: bytes.len(), data: &bytes });
        Ok(1)
    }

    fn join(&mut self, _: Instant, _: IpAddr) -> Result<(), JoinError> {
        unreachable!("nobody asks for a group")
    }

    fn leave(&mut self, _: IpAddr) {}

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn expired_timer_waits_for_packets_queued_in_the_link() {
    // Number of the first queue pair of a context with this seed; the link must know it.
    let options = ContextOptions { seed: Some(1), ..ContextOptions::default() };
    let link = |to| Late {
        info: LinkInfo {
            name: "late".into(),
            addresses: vec![OURS],
            mac: [0; 6],
            vlan: None,
            mtu: 1500,
            src_port: None,
            burst: BurstLimits::SINGLE,
            window: 1 << 20,
        },
        waiting: VecDeque::new(),
        to,
    };
    let first =
        TestEndpoint::new(Context::open(Box::new(link(Qpn::default())), &options).unwrap()).unwrap().qp.qpn();
    let node = TestEndpoint::new(Context::open(Box::new(link(first)), &options).unwrap()).unwrap();
    assert_eq!(node.qp.qpn(), first);
    let peer = Endpoint { gid: PEERS.into(), qpn: Qpn::new(0x77), psn: Psn::new(0) };
    node.qp.connect(&peer, &ConnectOptions::default()).unwrap();
    let mr = node.pd.reg_mr(8, Access::ALL).unwrap();
    node.qp.post_send(&SendWr::write(1, &[mr.sge(0..8)], mr.remote(0))).unwrap();
    assert_eq!(node.cq.wait(Duration::from_secs(5)).unwrap().wr_id, 1);
    let c = node.context.counters();
    assert_eq!((c.rx_unknown_qp, c.local_ack_timeout_err, c.sent_pkts), (3, 0, 1));
}
