//! Links that add congestion notification packets (CNPs) to those that they receive, as from a peer that gets
//! marked packets, or to those that they send.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use urxe::link::{Instant, Link, LinkInfo, Multicast, RxBurst, TxQueue};
use urxe::wire::{
    Bth, CNP_PAYLOAD_LEN, Flow, Headers, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Opcode, PKey, Qpn, icrc,
};

/// Number of CNPs that a [`CnpLink`] has yet to add, shared with the test.
#[derive(Clone, Default)]
pub struct Cnps(Arc<AtomicU64>);

impl Cnps {
    /// Makes the link add one more CNP for a queue pair with the next packets that it is asked for. Replaces
    /// one that has not been added yet.
    pub fn add(&self, qpn: Qpn) {
        self.0.store(u64::from(qpn.get()), Ordering::SeqCst);
    }
}

/// Returns the headers of a CNP for a queue pair.
fn headers(qpn: Qpn) -> Headers {
    let bth = Bth { opcode: Opcode::CNP, becn: true, pkey: PKey::DEFAULT, dest_qp: qpn, ..Bth::default() };
    Headers { bth, ..Headers::default() }
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
            let mut bytes = [0; MAX_HEADERS_LEN];
            let len = headers(Qpn::new(qpn as u32)).emit(&mut bytes) + CNP_PAYLOAD_LEN + ICRC_LEN;
            let crc = icrc::compute(&flow, 0, IpIdent::DONT_FRAGMENT, &bytes[..len]);
            bytes[len - ICRC_LEN..len].copy_from_slice(&crc.to_le_bytes());
            sink(RxBurst::new(flow, IpIdent::SENT, len, &bytes[..len]));
        }
        Ok(self.inner.receive(now, sink)? + usize::from(qpn != 0))
    }
    fn multicast(&mut self) -> Option<&mut dyn Multicast> {
        self.inner.multicast()
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.fds()
    }
}

/// Middleware that sends a CNP to each queue pair that the test adds to `qpns`, when it is next asked for
/// packets.
pub struct CnpSender<L> {
    pub inner: L,
    pub qpns: Arc<Mutex<Vec<Qpn>>>,
    /// Path to the queue pairs.
    pub flow: Flow,
}

impl<L: Link> Link for CnpSender<L> {
    fn info(&self) -> &LinkInfo {
        self.inner.info()
    }
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.inner.transmit(now, queue)
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        for qpn in std::mem::take(&mut *self.qpns.lock()) {
            let mut queue = TxQueue::new(self.info().burst);
            queue.push(&self.flow, headers(qpn), &[0; CNP_PAYLOAD_LEN]);
            self.inner.transmit(now, &queue)?;
        }
        self.inner.receive(now, sink)
    }
    fn multicast(&mut self) -> Option<&mut dyn Multicast> {
        self.inner.multicast()
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.fds()
    }
}
