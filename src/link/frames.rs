//! Ethernet frames over a unix socket, as QEMU's `-netdev dgram` and `-netdev stream` speak them.

mod socket;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::frame_queue::FrameQueue;
use super::loopback::Loopback;
use super::spec::{Options, SpecError};
use super::station::{Outcome, Station, StationConfig};
use super::{JoinError, Link, LinkCounters, LinkInfo, RxBurst};
use crate::transport::{BurstLimits, Instant, TxBurst, TxQueue};
use crate::wire::Mac;
use crate::wire::frame::{self, Checksums};
use socket::Socket;

/// What waits for a slow peer before a sender is held back.
const BACKLOG_BYTES: usize = 4 << 20;
/// How long a sender is held back before its packets are lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// Frames handed over in one call of `receive`.
const BATCH: usize = 64;
/// Frames that are read while a sender is held back.
const RX_BACKLOG: usize = 4096;
/// How long a lost listener is left alone.
const RECONNECT: Duration = Duration::from_millis(200);

/// Where frames go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FramesWire {
    /// Unix datagrams, one frame each. A frame to a socket that is not there is lost.
    Dgram {
        /// Bound by this side.
        local: PathBuf,
        /// Bound by the other.
        remote: PathBuf,
    },
    /// A unix stream with a length before each frame; one peer at a time connects here.
    Listen(PathBuf),
    /// The connecting side. It connects again whenever the listener has gone and come back.
    Connect(PathBuf),
}

/// What a [`FramesLink`] is to be: `frames:dgram:LOCAL,REMOTE,ip=10.77.0.1/24`, `frames:listen:PATH,ip=…`,
/// `frames:connect:PATH,ip=…`, with any of `ip=` (again), `mac=`, `gw=`, `vlan=`, `pcp=` and `mtu=`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FramesConfig {
    /// The socket.
    pub wire: FramesWire,
    /// MAC and addresses on it.
    pub station: StationConfig,
    /// The largest IP packet, 1500 unless said.
    pub mtu: usize,
}

/// A link that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {wire}: {source}{}", hint(.wire, .source))]
pub struct FramesError {
    /// Which.
    pub wire: FramesWire,
    /// Why.
    pub source: io::Error,
}

fn hint(wire: &FramesWire, e: &io::Error) -> &'static str {
    match (wire, e.kind()) {
        (FramesWire::Connect(_), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            ": nobody listens there; start the listening side first"
        }
        (FramesWire::Connect(_), _) => "",
        (_, io::ErrorKind::AddrInUse) => ": another process has it, or it is no socket; choose another path",
        (_, io::ErrorKind::NotFound) => ": make the directory first",
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
        let bad = || SpecError::Form {
            text: s.to_owned(),
            form: "frames:dgram:LOCAL,REMOTE,ip=… or frames:listen:PATH,ip=… or frames:connect:PATH,ip=…",
        };
        let (kind, rest) = s.strip_prefix("frames:").and_then(|s| s.split_once(':')).ok_or_else(bad)?;
        let mut parts = rest.split(',');
        let mut path = || -> Result<PathBuf, SpecError> {
            let text = parts.next().filter(|p| !p.is_empty() && !p.contains('=')).ok_or_else(bad)?;
            Ok(PathBuf::from(text))
        };
        let wire = match kind {
            "dgram" => FramesWire::Dgram { local: path()?, remote: path()? },
            "listen" => FramesWire::Listen(path()?),
            "connect" => FramesWire::Connect(path()?),
            _ => return Err(bad()),
        };
        let options = Options::parse(parts)?;
        let station = options.station().ok_or(SpecError::NoAddress)?;
        Ok(FramesConfig { wire, station, mtu: options.mtu.unwrap_or(1500) })
    }
}

/// Ethernet frames over a unix socket.
#[derive(Debug)]
pub struct FramesLink {
    info: LinkInfo,
    station: Station,
    socket: Socket,
    /// Holds whatever the socket is at the moment, so that what others poll on never changes.
    epoll: Epoll,
    interest: EpollFlags,
    tx: FrameQueue,
    rx: FrameQueue,
    local: Loopback,
    counters: LinkCounters,
    /// Nothing moved for as long as patience lasts: hold nobody back until something does.
    stalled: bool,
    reconnect_at: Instant,
}

impl FramesLink {
    /// Opens the socket. The other side need not be there yet, except where it is the listener.
    ///
    /// # Errors
    /// [`FramesError`] if the path cannot be bound or connected to.
    pub fn open(config: FramesConfig) -> Result<FramesLink, FramesError> {
        let FramesConfig { wire, station, mtu } = config;
        let open = || -> io::Result<FramesLink> {
            let info = LinkInfo {
                name: wire.to_string(),
                addresses: station.addresses.iter().map(|a| a.ip).collect(),
                mac: station.mac.0,
                vlan: station.vlan.map(|tag| tag.id),
                mtu,
                src_port: None,
                burst: BurstLimits::SEGMENTED,
                window: 1 << 20,
            };
            let mut link = FramesLink {
                info,
                station: Station::new(station),
                socket: Socket::open(&wire)?,
                epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
                interest: EpollFlags::empty(),
                tx: FrameQueue::default(),
                rx: FrameQueue::default(),
                local: Loopback::default(),
                counters: LinkCounters::default(),
                stalled: false,
                reconnect_at: Instant::default(),
            };
            link.watch()?;
            Ok(link)
        };
        open().map_err(|source| FramesError { wire: wire.clone(), source })
    }

    /// The station behind the link, to ping from.
    pub fn station(&mut self) -> &mut Station {
        &mut self.station
    }

    /// Watches the socket for what matters now.
    fn watch(&mut self) -> io::Result<()> {
        let Some(fd) = self.socket.fd() else {
            self.interest = EpollFlags::empty();
            return Ok(());
        };
        let mut wanted = EpollFlags::EPOLLIN;
        if !self.tx.is_empty() {
            wanted |= EpollFlags::EPOLLOUT;
        }
        if wanted == self.interest {
            return Ok(());
        }
        let mut event = EpollEvent::new(wanted, 0);
        // After a (re)connection it is another socket, which the epoll does not know yet.
        if self.interest.is_empty() || self.epoll.modify(fd, &mut event).is_err() {
            match self.epoll.add(fd, event) {
                Err(nix::errno::Errno::EEXIST) => self.epoll.modify(fd, &mut event)?,
                other => other?,
            }
        }
        self.interest = wanted;
        Ok(())
    }

    /// Queues the frames of a burst, or counts them as lost.
    fn queue_burst(&mut self, now: Instant, burst: &TxBurst<'_>) {
        let flow = burst.flow;
        if self.station.owns(flow.dst) {
            if !self.local.push(burst) {
                self.counters.tx_dropped += burst.packets as u64;
            }
            return;
        }
        if flow.header_len() + burst.segment > self.info.mtu {
            self.counters.tx_dropped += burst.packets as u64;
            return;
        }
        if self.station.is_member(flow.dst) && !self.local.push(burst) {
            self.counters.tx_dropped += burst.packets as u64;
        }
        if !self.socket.is_connected() || self.held_back() {
            self.counters.tx_dropped += burst.packets as u64;
            return;
        }
        let mac = self.station.resolve(now, flow.dst);
        let (own, tag) = (Mac(self.info.mac), self.station.config().vlan);
        for (id, packet) in (0..).zip(burst.bytes().chunks(burst.segment)) {
            let write = |out: &mut Vec<u8>| {
                let start = out.len();
                frame::append_headers(out, mac.unwrap_or_default(), own, &flow, id, packet.len());
                if let Some(tag) = tag {
                    tag.insert(out, start);
                }
                out.extend_from_slice(packet);
            };
            match mac {
                Some(_) => self.socket.queue(&mut self.tx, write),
                None => _ = self.station.hold(flow.dst, write),
            };
        }
    }

    fn flush(&mut self) {
        while let Some(frame) = self.station.poll_transmit() {
            self.socket.queue(&mut self.tx, |out| out.extend_from_slice(frame));
            self.station.transmitted();
        }
        let before = self.tx.byte_len();
        self.counters.tx_dropped += self.socket.flush(&mut self.tx);
        if self.tx.is_empty() || self.tx.byte_len() < before {
            self.stalled = false;
        }
    }

    /// Waits a little where the backlog is full; whether it stays so.
    fn held_back(&mut self) -> bool {
        if self.tx.byte_len() < BACKLOG_BYTES {
            return false;
        }
        let start = std::time::Instant::now();
        while !self.stalled {
            self.flush();
            if self.tx.byte_len() < BACKLOG_BYTES / 2 {
                return false;
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            if left.is_zero() {
                self.stalled = true;
                break;
            }
            self.wait_writable(left);
        }
        self.tx.byte_len() >= BACKLOG_BYTES
    }

    /// Waits until the peer takes more, and goes on reading meanwhile: two that only wait for each other
    /// to read would do so for ever.
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
        match self.station.handle_frame(now, bytes, Checksums::Verify) {
            Outcome::Packet(packet) => {
                let data = &bytes[packet.payload];
                sink(RxBurst { flow: packet.flow, ident: packet.ident, segment: data.len(), data });
                return 1;
            }
            Outcome::Foreign => self.counters.rx_foreign += 1,
            Outcome::RoceV1 { intact } => self.counters.count_roce_v1(intact),
            Outcome::Malformed(e) => self.counters.count(&e),
            Outcome::EchoReply { .. } | Outcome::Handled => {}
        }
        0
    }
}

impl Drop for FramesLink {
    /// The last packets, acknowledgements mostly, get a moment to leave.
    fn drop(&mut self) {
        let start = std::time::Instant::now();
        self.flush();
        while !self.tx.is_empty() && start.elapsed() < PATIENCE {
            self.wait_writable(PATIENCE.saturating_sub(start.elapsed()));
            self.flush();
        }
    }
}

impl Link for FramesLink {
    fn info(&self) -> &LinkInfo {
        &self.info
    }

    fn transmit(&mut self, now: Instant, queue: &TxQueue) -> io::Result<()> {
        for burst in queue.bursts() {
            self.queue_burst(now, &burst);
        }
        self.flush();
        self.watch()
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> io::Result<usize> {
        if !self.socket.is_connected() {
            let due = !self.socket.wants_reconnect() || now >= self.reconnect_at;
            self.reconnect_at = if due { now + RECONNECT } else { self.reconnect_at };
            if due && self.socket.connect() {
                self.interest = EpollFlags::empty();
            }
        }
        self.station.handle_timeout(now);
        let mut packets = self.local.deliver(BATCH, sink);
        self.socket.fill(&mut self.rx, BATCH);
        for _ in 0..BATCH.min(self.rx.len()) {
            packets += self.handle_front(now, sink);
            self.rx.pop();
        }
        self.flush();
        if !self.socket.is_connected() {
            self.interest = EpollFlags::empty();
        }
        self.watch()?;
        Ok(packets)
    }

    fn join(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinError> {
        self.station.join(now, group)?;
        self.flush();
        // Without it, what the socket has no room for now leaves with the next packet.
        let _ = self.watch();
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.station.leave(group);
        self.flush();
        let _ = self.watch();
    }

    fn next_deadline(&self) -> Option<Instant> {
        if !self.local.is_empty() || !self.rx.is_empty() {
            return Some(Instant::default());
        }
        let reconnect = self.socket.wants_reconnect().then_some(self.reconnect_at);
        self.station.next_deadline().into_iter().chain(reconnect).min()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters { tx_unresolved: self.station.unresolved(), ..self.counters }
    }
}
