//! Ethernet frames over a Unix socket, compatible with QEMU's `-netdev dgram` and `-netdev stream`.

mod socket;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::frame_endpoint::FrameEndpoint;
use super::options::{Options, SpecError};
use super::{DEFAULT_SPEED, JoinError, Link, LinkCounters, LinkInfo, Multicast, PortState};
use crate::burst::{RxBurst, TxBurst, TxQueue};
use crate::host::frame_queue::FrameQueue;
use crate::host::host_stack::{HostStack, HostStackConfig, IpStack};
use crate::host::pfc::PfcConfig;
use crate::sys::setters::setters;
use crate::transport::{EgressRoom, Instant, earliest};
use crate::wire::Mac;
use crate::wire::frame::{self, Checksums};
use socket::Socket;

/// Default MTU: the largest IP packet in bytes.
const DEFAULT_MTU: usize = 1500;
/// Number of bytes queued for a slow peer above which senders are blocked.
const BACKLOG_BYTES: usize = 4 << 20;
/// Time for which a sender is blocked before its packets are dropped instead.
const SEND_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of frames handled in one call to `receive`.
const BATCH: usize = 64;
/// Maximum number of received frames buffered while a sender is blocked.
const RX_BACKLOG: usize = 4096;
/// Number of received bytes that wait for processing, for the default thresholds of priority flow control.
const RX_CAPACITY: usize = 1 << 20;
/// Interval between attempts to reconnect to a listener that has closed.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

/// The Unix socket that carries the frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FramesWire {
    /// Unix datagrams of one frame each. Frames are dropped while the peer's socket does not exist.
    Dgram {
        /// Path that this side binds its socket to.
        local: PathBuf,
        /// Path that the peer binds its socket to.
        remote: PathBuf,
    },
    /// Listening side of a Unix stream, in which a length precedes each frame. It accepts one peer at a time.
    Listen(PathBuf),
    /// Connecting side of a Unix stream. It reconnects whenever the listener has been closed and bound again.
    Connect(PathBuf),
}

/// Configuration of a [`FramesLink`]. In text: `frames:dgram:LOCAL,REMOTE,ip=10.77.0.1/24`,
/// `frames:listen:PATH,ip=...` or `frames:connect:PATH,ip=...`, with `ip=` given once or several times, and
/// any of `mac=`, `gw=`, `vlan=`, `pcp=`, `mtu=`, `speed=` (in Mb/s), `pfc=on`, `xoff=` and `xon=`.
///
/// ```
/// # use urxe::{host::*, link::*};
/// let host_stack = HostStackConfig::new(vec!["10.77.0.1/24".parse()?]);
/// let config = FramesConfig::new(FramesWire::Listen("/run/wire".into()), host_stack).mtu(4096);
/// assert_eq!("frames:listen:/run/wire,ip=10.77.0.1/24,mtu=4096".parse(), Ok(config));
/// # Ok::<(), IfAddrError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FramesConfig {
    /// Unix socket that carries the frames.
    pub wire: FramesWire,
    /// Configuration of the host stack on the socket: its MAC, IP addresses and VLAN.
    pub host_stack: HostStackConfig,
    /// Largest IP packet in bytes, 1500 by default.
    pub mtu: usize,
    /// Nominal speed in bits per second; `None` for 100 Gb/s.
    pub speed: Option<u64>,
    /// Priority flow control; `None` if pause frames are ignored.
    pub pfc: Option<PfcConfig>,
}

setters!(FramesConfig { mtu: usize } optional { speed: u64, pfc: PfcConfig });

impl FramesConfig {
    /// Creates the configuration of a link over the given Unix socket, with an MTU of 1500 bytes.
    pub fn new(wire: FramesWire, host_stack: HostStackConfig) -> FramesConfig {
        FramesConfig { wire, host_stack, mtu: DEFAULT_MTU, speed: None, pfc: None }
    }
}

/// Error when opening a [`FramesLink`].
#[derive(Debug, thiserror::Error)]
#[error("cannot open {wire}: {source}{}", hint(.wire, .source))]
pub struct FramesError {
    /// The socket that could not be bound or connected.
    pub wire: FramesWire,
    /// The underlying system error.
    pub source: io::Error,
}

fn hint(wire: &FramesWire, e: &io::Error) -> &'static str {
    match (wire, e.kind()) {
        (FramesWire::Connect(_), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            ": no process listens on the socket; start the listening side first"
        }
        (FramesWire::Connect(_), _) => "",
        (_, io::ErrorKind::AddrInUse) => {
            ": another process uses the path, or the file is not a socket; choose another path"
        }
        (_, io::ErrorKind::NotFound) => ": create the directory first",
        _ => "",
    }
}

impl fmt::Display for FramesWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FramesWire::Dgram { local, remote } => {
                write!(f, "frames:dgram:{},{}", local.display(), remote.display())
            }
            FramesWire::Listen(path) => write!(f, "frames:listen:{}", path.display()),
            FramesWire::Connect(path) => write!(f, "frames:connect:{}", path.display()),
        }
    }
}

impl FromStr for FramesConfig {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<FramesConfig, SpecError> {
        let invalid = || SpecError::Form {
            text: s.to_owned(),
            form: "frames:dgram:LOCAL,REMOTE,ip=… or frames:listen:PATH,ip=… or frames:connect:PATH,ip=…",
        };
        let (kind, rest) = s.strip_prefix("frames:").and_then(|s| s.split_once(':')).ok_or_else(invalid)?;
        let mut parts = rest.split(',');
        let mut path = || -> Result<PathBuf, SpecError> {
            let text = parts.next().filter(|p| !p.is_empty() && !p.contains('=')).ok_or_else(invalid)?;
            Ok(PathBuf::from(text))
        };
        let wire = match kind {
            "dgram" => FramesWire::Dgram { local: path()?, remote: path()? },
            "listen" => FramesWire::Listen(path()?),
            "connect" => FramesWire::Connect(path()?),
            _ => return Err(invalid()),
        };
        let options = Options::parse(parts)?;
        let host_stack = options.host_stack().ok_or(SpecError::NoAddress)?;
        let config = FramesConfig::new(wire, host_stack).mtu(options.mtu.unwrap_or(DEFAULT_MTU));
        Ok(config.speed(options.speed).pfc(options.pfc))
    }
}

/// A link over a Unix socket that carries Ethernet frames.
#[derive(Debug)]
pub struct FramesLink {
    endpoint: FrameEndpoint<HostStack>,
    socket: Socket,
    /// Epoll instance that watches the current socket, so that the descriptor to poll does not change after
    /// a reconnect.
    epoll: Epoll,
    interest: EpollFlags,
    tx: FrameQueue,
    rx: FrameQueue,
    /// Whether the peer has accepted no data for [`SEND_TIMEOUT`]. If so, senders are not blocked again
    /// until the peer accepts data.
    stalled: bool,
    reconnect_at: Instant,
}

impl FramesLink {
    /// Opens the link. The peer need not exist yet, except that [`FramesWire::Connect`] requires a listener.
    ///
    /// # Errors
    /// [`FramesError`] if the path cannot be bound or connected to.
    pub fn open(config: FramesConfig) -> Result<FramesLink, FramesError> {
        let FramesConfig { wire, host_stack, mtu, speed, pfc } = config;
        let open = || -> io::Result<FramesLink> {
            let addresses = host_stack.addresses.iter().map(|a| a.ip).collect();
            let info = LinkInfo::new(wire.to_string(), addresses).mac(host_stack.mac.0).mtu(mtu);
            let info = info.speed(speed.unwrap_or(DEFAULT_SPEED));
            let (vlan, stack) = (host_stack.vlan, Box::new(HostStack::new(host_stack)));
            let mut link = FramesLink {
                endpoint: FrameEndpoint::new(info, vlan, stack, (pfc, RX_CAPACITY), (Arc::default(), 0)),
                socket: Socket::open(&wire)?,
                epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
                interest: EpollFlags::empty(),
                tx: FrameQueue::default(),
                rx: FrameQueue::default(),
                stalled: false,
                reconnect_at: Instant::default(),
            };
            link.update_epoll_interest()?;
            Ok(link)
        };
        open().map_err(|source| FramesError { wire: wire.clone(), source })
    }

    /// Makes the epoll instance watch the current socket for input, and for room to send while frames are
    /// queued.
    fn update_epoll_interest(&mut self) -> io::Result<()> {
        let Some(fd) = self.socket.fd() else {
            self.interest = EpollFlags::empty();
            return Ok(());
        };
        let mut interest = EpollFlags::EPOLLIN;
        if !self.tx.is_empty() {
            interest |= EpollFlags::EPOLLOUT;
        }
        if interest == self.interest {
            return Ok(());
        }
        let mut event = EpollEvent::new(interest, 0);
        match self.epoll.modify(fd, &mut event) {
            // After a (re)connect the socket is a new one, which the epoll instance does not contain yet.
            Err(Errno::ENOENT) => self.epoll.add(fd, event)?,
            other => other?,
        }
        self.interest = interest;
        Ok(())
    }

    /// Queues a burst's packets as frames, or counts them as dropped.
    fn queue_burst(&mut self, now: Instant, burst: &TxBurst<'_>) {
        let exceeds_mtu = self.endpoint.exceeds_mtu(burst);
        if !exceeds_mtu && !self.endpoint.loop_back(burst) {
            return;
        }
        if exceeds_mtu || !self.socket.is_connected() || self.is_backlog_full_after_wait() {
            self.endpoint.counters.tx_dropped += burst.packets as u64;
            return;
        }
        let Some(to) = self.endpoint.resolve_or_keep_back(now, burst) else { return };
        let (macs, tag) = ((to, Mac(self.endpoint.info.mac)), self.endpoint.vlan);
        for (id, packet) in (0..).zip(burst.bytes().chunks(burst.segment)) {
            let write = |out: &mut Vec<u8>| frame::append_frame(out, macs, tag, &burst.flow, id, packet);
            self.socket.queue(&mut self.tx, write);
        }
    }

    fn flush(&mut self) {
        let mut dropped = 0;
        for outbox in self.endpoint.outboxes() {
            while let Some(frame) = outbox.front() {
                match self.tx.byte_len() < BACKLOG_BYTES {
                    true => self.socket.queue(&mut self.tx, |out| out.extend_from_slice(frame)),
                    false => dropped += 1,
                }
                outbox.pop();
            }
        }
        let len_before = self.tx.byte_len();
        self.endpoint.counters.tx_dropped += dropped + self.socket.flush(&mut self.tx);
        if self.tx.is_empty() || self.tx.byte_len() < len_before {
            self.stalled = false;
        }
    }

    /// Blocks while the backlog is full, up to [`SEND_TIMEOUT`]. Returns whether it is still full.
    fn is_backlog_full_after_wait(&mut self) -> bool {
        if self.tx.byte_len() < BACKLOG_BYTES {
            return false;
        }
        self.stalled = self.stalled || !self.flush_below(BACKLOG_BYTES / 2);
        self.tx.byte_len() >= BACKLOG_BYTES
    }

    /// Sends frames until the backlog has fewer than `bytes` bytes, for at most `SEND_TIMEOUT`. Returns false
    /// if it still has more.
    fn flush_below(&mut self, bytes: usize) -> bool {
        let start = std::time::Instant::now();
        loop {
            self.flush();
            let remaining = SEND_TIMEOUT.saturating_sub(start.elapsed());
            if self.tx.byte_len() < bytes || remaining.is_zero() {
                return self.tx.byte_len() < bytes;
            }
            self.wait_writable(remaining);
        }
    }

    /// Waits until the peer accepts more data, or `at_most` has passed. Reads in the meantime, because two
    /// peers that only wait for each other to read would deadlock.
    fn wait_writable(&mut self, at_most: Duration) {
        let Some(fd) = self.socket.fd() else { return };
        let mut flags = PollFlags::POLLOUT;
        flags.set(PollFlags::POLLIN, self.rx.len() < RX_BACKLOG);
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut [PollFd::new(fd, flags)], timeout);
        self.socket.fill(&mut self.rx, RX_BACKLOG);
    }

    fn handle_front(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        let Some(bytes) = self.rx.front() else { return 0 };
        let Some(frame) = self.endpoint.parse(bytes, Checksums::Verify) else { return 0 };
        let Some(packet) = self.endpoint.receive(now, bytes, frame, || ()) else { return 0 };
        let data = &bytes[packet.payload];
        sink(RxBurst::new(packet.flow, packet.ident, data.len(), data));
        1
    }
}

impl Drop for FramesLink {
    /// Waits up to 200 ms for the last packets, mostly acknowledgements, to be sent.
    fn drop(&mut self) {
        self.flush_below(1);
    }
}

impl Link for FramesLink {
    fn info(&self) -> &LinkInfo {
        &self.endpoint.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        if let Some(pfc) = &mut self.endpoint.pfc {
            // Frames that were held back precede new ones.
            pfc.release();
            self.flush();
        }
        for burst in queue.bursts() {
            self.queue_burst(now, &burst);
        }
        self.flush();
        self.update_epoll_interest()
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        if !self.socket.is_connected() {
            let due = !self.socket.wants_reconnect() || now >= self.reconnect_at;
            self.reconnect_at = if due { now + RECONNECT_INTERVAL } else { self.reconnect_at };
            if due && self.socket.connect() {
                self.interest = EpollFlags::empty();
                self.endpoint.pfc.iter_mut().for_each(|pfc| pfc.on_new_neighbour());
            }
        }
        let mut packets = self.endpoint.local.deliver(BATCH, sink);
        // With flow control, the frames that wait are visible here and not in the socket.
        self.socket.fill(&mut self.rx, if self.endpoint.pfc.is_some() { RX_BACKLOG } else { BATCH });
        for _ in 0..BATCH.min(self.rx.len()) {
            packets += self.handle_front(now, sink);
            self.rx.pop();
        }
        self.endpoint.handle_timeout(now, || self.rx.byte_len());
        self.flush();
        if !self.socket.is_connected() {
            self.interest = EpollFlags::empty();
        }
        self.update_epoll_interest()?;
        Ok(packets)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let unread = (!self.rx.is_empty()).then_some(Instant::default());
        let reconnect = self.socket.wants_reconnect().then_some(self.reconnect_at);
        earliest([unread, reconnect, self.endpoint.next_deadline()])
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.epoll.0.as_fd()]
    }

    own_capabilities!(multicast: Multicast, port_state: PortState);
}

impl Multicast for FramesLink {
    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        self.endpoint.stack.join(now, group)?;
        self.flush();
        // If this fails, frames that the socket has no room for now are sent with the next packet.
        let _ = self.update_epoll_interest();
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.endpoint.stack.leave(group, true);
        self.flush();
        let _ = self.update_epoll_interest();
    }
}

impl PortState for FramesLink {
    fn egress_room(&self) -> Option<EgressRoom> {
        self.endpoint.pfc.as_ref().map(|pfc| pfc.egress_room())
    }

    fn counters(&mut self) -> LinkCounters {
        self.endpoint.counters()
    }
}
