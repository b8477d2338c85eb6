//! Link that adds congestion notification packets (CNPs) to those that it receives, as from a peer that gets marked
//! packets.
#![allow(dead_code, reason = "each test target uses its part")]

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe::link::{Instant, JoinError, Link, LinkInfo, RxBurst, TxQueue};
use urxe::wire::{
    Bth, CNP_PAYLOAD_LEN, Flow, Headers, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Opcode, Qpn, icrc,
};

/// Number of CNPs that a [`CnpLink`] has yet to add, shared with the test.
#[derive(Clone, Default)]
pub struct Cnps(Arc<AtomicU64>);

impl Cnps {
    /// Makes the link add one more CNP for a queue pair with the next packets that it is asked for. Replaces one that
    /// has not been added yet.
    pub fn add(&self, qpn: Qpn) {
        self.0.store(u64::from(qpn.get()), Ordering::SeqCst);
    }
}

/// Middleware that adds the CNPs.
pub struct CnpLink<L> {
    pub inner: L,
    pub cnps: Cnps,
    /// Address of the queue pairs' peer.
    pub peer: IpAddr,
}

impl<L: Link> Link for CnpLink<L> {
    fn info(&self) -> &LinkInfo {
        self.inner.info()
    }
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.inner.transmit(now, queue)
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let qpn = self.cnps.0.swap(0, Ordering::SeqCst);
        if qpn != 0 {
            let flow = Flow::new(self.peer, self.inner.info().addresses[0], 0xc000);
            let bth = Bth {
                opcode: Opcode::CNP,
                becn: true,
                pkey: urxe::wire::PKey::DEFAULT,
                dest_qp: Qpn::new(qpn as u32),
                ..Bth::default()
            };
            let mut bytes = [0; MAX_HEADERS_LEN];
            let len = Headers { bth, ..Headers::default() }.emit(&mut bytes) + CNP_PAYLOAD_LEN + ICRC_LEN;
            let crc = icrc::compute(&flow, 0, IpIdent::DONT_FRAGMENT, &bytes[..len]);
            bytes[len - ICRC_LEN..len].copy_from_slice(&crc.to_le_bytes());
            sink(RxBurst { flow, ident: IpIdent::SENT, segment: len, data: &bytes[..len] });
        }
        Ok(self.inner.receive(now, sink)? + usize::from(qpn != 0))
    }
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        self.inner.join(now, group)
    }
    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }
}
