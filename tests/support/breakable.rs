//! Fabric port that a test can break while a NIC uses it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use urxe::fabric::FabricPort;
use urxe::link::{Link, LinkInfo, Multicast, RxBurst};
use urxe::transport::{Instant, TxQueue};

pub type Transmit = fn(&mut FabricPort, Instant, &TxQueue) -> io::Result<()>;
pub type Receive = fn(&mut FabricPort, Instant, &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize>;

/// Fabric port whose transmit and receive functions are replaced by the given ones while `is_broken` is set.
pub struct BreakablePort {
    pub inner: FabricPort,
    pub is_broken: Arc<AtomicBool>,
    pub transmit: Transmit,
    pub receive: Receive,
}

impl Link for BreakablePort {
    fn info(&self) -> &LinkInfo {
        self.inner.info()
    }
    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        match self.is_broken.load(Ordering::SeqCst) {
            true => (self.transmit)(&mut self.inner, now, queue),
            false => self.inner.transmit(now, queue),
        }
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        match self.is_broken.load(Ordering::SeqCst) {
            true => (self.receive)(&mut self.inner, now, sink),
            false => self.inner.receive(now, sink),
        }
    }
    fn multicast(&mut self) -> Option<&mut dyn Multicast> {
        self.inner.multicast()
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}
