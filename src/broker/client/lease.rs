//! A process's lease of QPN partitions, which survives the death of the broker.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::SharingError;
use super::connection::{LeaseGrant, primary, request_lease};
use crate::broker::Sharing;
use crate::broker::keepalive::FdKeepalive;
use crate::broker::protocol::Request;
use crate::host::unix_sockets::fd_message;
use crate::link::udp::BindAddr;
use crate::nic::QpnPartition;
use crate::sys::fork::ForkGeneration;
use crate::sys::shared_words::SharedWords;
use crate::sys::thread::spawn_background;
use crate::transport::LastAcks;

/// Lease of QPN partitions, one per shard, with its resources.
pub struct Lease {
    pub shared: Arc<Shared>,
    /// First of the leased partitions, which contains the queue pair numbers of all shards.
    pub partition: QpnPartition,
    watcher: Option<JoinHandle<OwnedFd>>,
    /// The process that owns the lease. A forked child has a copy of this struct, but not of the thread.
    process: ForkGeneration,
    /// Sockets whose names mark the partitions as in use.
    _tokens: Vec<OwnedFd>,
    /// Connection to the broker, stored when the watcher thread exits. It is the last field to be dropped:
    /// if it were closed earlier, the broker could exit while the port is still in use.
    connection: Option<OwnedFd>,
}

/// State shared with the thread that monitors the broker.
pub struct Shared {
    /// Request to send to a new broker after the previous one has exited.
    request: Request,
    keepalives: Vec<FdKeepalive>,
    /// Memory of the last acknowledgements, one part for each shard, if it could be created; and the
    /// descriptor for the broker.
    last_acks: (Option<Arc<SharedWords>>, OwnedFd),
    pub sharing: Sharing,
    /// Whether the broker serves processes of any user, and therefore uses abstract socket names.
    pub any_user: bool,
    stop: EventFd,
    /// Whether coalescing has been disabled, because a coalesced datagram contained packets for several
    /// partitions.
    mixed: AtomicBool,
}

/// The sockets for an address, one per shard.
pub type Sockets = Vec<OwnedFd>;

impl Lease {
    /// Leases partitions of the addresses from the broker. Returns the lease and the sockets for each
    /// address, in the order of `bind_addrs`.
    pub fn acquire(
        bind_addrs: Vec<BindAddr>,
        shards: usize,
        sharing: &Sharing,
    ) -> Result<(Arc<Lease>, Vec<Sockets>), SharingError> {
        let ip = primary(&bind_addrs).expect("a link has an address").ip();
        let request = Request { partition: None, shards, bind_addrs };
        if !request.fits_a_message() {
            let reason = format!(
                "cannot share {} addresses with {shards} shards: use fewer shards, or one address (--ip)",
                request.bind_addrs.len()
            );
            return Err(SharingError::Refused { ip, errno: libc::EINVAL, reason });
        }
        let system = |what| move |source| SharingError::System { ip, what, source };
        let last_acks = last_acks(shards).map_err(system("creating an eventfd"))?;
        let LeaseGrant { connection, partition: first, mut fds, any_user } =
            request_lease(&request, &[last_acks.1.as_fd()], sharing, sharing.any_user, &|| false)?;
        let invalid = |reason| SharingError::Refused {
            ip,
            errno: libc::EPROTO,
            reason: format!("cannot share {ip}: invalid response of the broker: {reason}"),
        };
        let partition = QpnPartition::new(first).ok_or_else(|| invalid("invalid QPN partition"))?;
        if fds.len() != shards + request.bind_addrs.len() * (shards + 1) {
            return Err(invalid("wrong number of descriptors"));
        }
        let mut per_address = fds.split_off(shards).into_iter();
        let (mut sockets, mut keepalives) = (Vec::new(), Vec::new());
        for _ in &request.bind_addrs {
            sockets.push(per_address.by_ref().take(shards).collect());
            keepalives.extend(per_address.next().map(FdKeepalive));
        }
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let stop = stop.map_err(|e| system("creating an eventfd")(e.into()))?;
        let request = Request { partition: Some(first), ..request };
        let sharing = sharing.clone();
        let mixed = AtomicBool::new(false);
        let shared = Arc::new(Shared { request, keepalives, last_acks, sharing, any_user, stop, mixed });
        let monitored = shared.clone();
        let watcher = spawn_background("urxe lease".into(), move || monitored.watch(connection));
        let watcher = watcher.map_err(system("starting a thread"))?;
        let process = ForkGeneration::current();
        let (watcher, connection) = (Some(watcher), None);
        Ok((Arc::new(Lease { shared, partition, watcher, process, _tokens: fds, connection }), sockets))
    }

    /// Returns the record of the last acknowledgements of a shard.
    pub fn last_acks(&self, shard: usize) -> Option<LastAcks> {
        Some(LastAcks::new(self.shared.last_acks.0.clone()?, shard))
    }

    /// Disables receive coalescing. Called after a coalesced datagram contained packets for several
    /// partitions; the packets for other processes were lost.
    pub fn stop_coalescing(&self) {
        if !self.shared.mixed.load(Ordering::Relaxed) {
            // On failure, peers retransmit what is lost, and the next such datagram triggers another attempt.
            let stopped = self.shared.keepalives.iter().try_for_each(FdKeepalive::stop_coalescing).is_ok();
            self.shared.mixed.store(stopped, Ordering::Relaxed);
        }
    }
}

/// Creates the memory of the last acknowledgements. If that fails (no memory, a limit on file sizes), the
/// broker gets an eventfd instead and reads no records.
fn last_acks(shards: usize) -> io::Result<(Option<Arc<SharedWords>>, OwnedFd)> {
    match SharedWords::create("urxe acknowledgements", shards * LastAcks::WORDS) {
        Ok((words, fd)) => Ok((Some(Arc::new(words)), fd)),
        Err(_) => Ok((None, EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?.into())),
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // Dropping the handle would detach the thread, in whose place the child may have another one.
            std::mem::forget(self.watcher.take());
        } else {
            let _ = self.shared.stop.write(1);
            self.connection = self.watcher.take().and_then(|watcher| watcher.join().ok());
        }
    }
}

impl Shared {
    /// Monitors the broker until stopped. Whenever the broker exits, connects to a new one. Returns the last
    /// connection.
    fn watch(&self, mut connection: OwnedFd) -> OwnedFd {
        while self.wait_for_end(&connection) {
            // A new broker must serve the same users as the last one.
            let keepalives = self.keepalives.iter().map(|keepalive| keepalive.0.as_fd());
            let fds: Vec<BorrowedFd<'_>> = [self.last_acks.1.as_fd()].into_iter().chain(keepalives).collect();
            match request_lease(&self.request, &fds, &self.sharing, self.any_user, &|| self.is_stopping()) {
                Ok(granted) => connection = granted.connection,
                // Without a broker, this process continues as before; processes that start later get no
                // partition.
                Err(_) => break,
            }
        }
        connection
    }

    /// Waits until the broker exits or the lease is released. Returns false if the lease is released, so that
    /// no new broker is needed.
    fn wait_for_end(&self, connection: &OwnedFd) -> bool {
        loop {
            let mut fds = [
                PollFd::new(connection.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => {}
                Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => return false,
            }
            if self.is_stopping() {
                return false;
            }
            // The broker sends nothing without a request, so this is normally the end of the connection.
            if !matches!(fd_message::receive(connection, false), Ok(Some(_))) {
                return true;
            }
        }
    }

    fn is_stopping(&self) -> bool {
        let mut fds = [PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}
