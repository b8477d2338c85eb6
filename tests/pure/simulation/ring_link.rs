//! A link over rings in shared memory, in virtual time: the packets take the rings, the notifications of
//! readers that sleep the fabric.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use urxe::fabric::FabricPort;
use urxe::link::{
    BurstLimits, HostMemory, Instant, Link, LinkCounters, LinkInfo, MemoryPath, Multicast, PeerChange,
    PeerWindow, PortState, RxBurst, TxQueue,
};
use urxe::wire::{BTH_LEN, Flow, ICRC_LEN, ROCE_PORT};

use urxe_test_support::ring::{LIMITS, Ring};

/// How a side uses its rings.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Maximum number of bytes read at a time.
    pub limit: u64,
    /// Time until a reader looks at a ring again in which it has found bursts.
    pub interval: Duration,
    /// Maximum number of bytes in flight to the peer; more than a ring holds if `None`.
    pub window: Option<usize>,
}

pub struct RingLink {
    port: FabricPort,
    info: LinkInfo,
    options: RingOptions,
    to_peer: Arc<Mutex<Ring>>,
    from_peer: Arc<Mutex<Ring>>,
    /// Packet that notifies the peer.
    notification: TxQueue,
    /// Time at which the ring is read again; `None` while the reader sleeps.
    next_read: Option<Instant>,
    has_written: bool,
    /// Window of the peer, until the NIC takes it.
    changed_window: Option<(IpAddr, PeerWindow)>,
    elides_icrcs: bool,
    dropped: u64,
    scratch: Vec<u8>,
}

impl RingLink {
    /// Returns a link on a port of side `n`, with the rings by the side that writes them.
    pub fn new(
        port: FabricPort,
        n: usize,
        addresses: [IpAddr; 2],
        rings: &[Arc<Mutex<Ring>>; 2],
        options: RingOptions,
    ) -> RingLink {
        let (own, peer) = (addresses[n], addresses[1 - n]);
        let mut notification = TxQueue::new(BurstLimits::SINGLE);
        notification.push_raw(&Flow::new(own, peer, ROCE_PORT), 0, &[0; BTH_LEN + ICRC_LEN]);
        let mut info = port.info().clone();
        info.burst = LIMITS;
        RingLink {
            port,
            info,
            options,
            to_peer: rings[n].clone(),
            from_peer: rings[1 - n].clone(),
            notification,
            next_read: None,
            has_written: false,
            changed_window: options.window.map(|window| (peer, PeerWindow::AtMost(window))),
            elides_icrcs: false,
            dropped: 0,
            scratch: Vec::new(),
        }
    }
}

impl Link for RingLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        self.has_written = true;
        let mut ring = self.to_peer.lock();
        for burst in queue.bursts().filter(|burst| !ring.write(burst)) {
            self.dropped += burst.packets as u64;
        }
        match ring.publish() {
            true => self.port.transmit(now, &self.notification),
            false => Ok(()),
        }
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        let mut is_due = self.next_read.is_some_and(|at| at <= now);
        self.port.receive(now, &mut |_| is_due = true)?;
        if !is_due {
            return Ok(0);
        }
        let mut ring = self.from_peer.lock();
        let packets = ring.read(self.options.limit, &mut |burst| match self.elides_icrcs {
            true => sink(burst),
            false => sink(burst.with_icrcs(&mut self.scratch).expect("no payload is shared")),
        });
        self.next_read = match ring.sleep_if_empty() {
            true => None,
            false => Some(now + self.options.interval),
        };
        Ok(packets)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_read.into_iter().chain(self.port.next_deadline()).min()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.port.fds()
    }

    fn multicast(&mut self) -> Option<&mut dyn Multicast> {
        self.port.multicast()
    }

    fn port_state(&mut self) -> Option<&mut dyn PortState> {
        Some(self)
    }

    fn host_memory(&mut self) -> Option<HostMemory<'_>> {
        Some(HostMemory::new(self))
    }
}

impl PortState for RingLink {
    fn counters(&mut self) -> LinkCounters {
        let mut counters = self.port.counters();
        counters.tx_dropped += self.dropped;
        counters
    }
}

impl MemoryPath for RingLink {
    fn supports_deferred_icrc(&mut self) -> bool {
        self.has_written
    }

    fn has_used_rings(&mut self) -> bool {
        self.has_written
    }

    fn next_peer_change(&mut self) -> Option<PeerChange> {
        let (peer, window) = self.changed_window.take()?;
        Some(PeerChange::Window(peer, window))
    }

    fn elide_icrcs(&mut self) {
        self.elides_icrcs = true;
    }
}
