//! A process's side of the broker: the lease on its QPN partition.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::keepalive::FdKeepalive;
use super::message::{self, Request, Response};
use super::start::start;
use super::{BindAddr, Names, Sharing, is_trusted};
use crate::link::udp::{PortOwner, UdpLinkError};
use crate::nic::QpnPartition;
use crate::sys::fork::ForkGeneration;
use crate::sys::thread::spawn_background;
use crate::wire::ROCE_PORT;

/// Maximum time for a broker to start and to respond.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to wait for a started broker before another one is started.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which the port may belong to another user's broker that is not found by name, where processes of
/// any user share it: the next broker of that user is being started.
const RESTART_GRACE: Duration = Duration::from_millis(500);

/// Interval between attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Longest interval between checks of the owners of the port. Each check reads the list of all UDP sockets.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Lease on a QPN partition, with the resources that belong to it.
pub(in super::super) struct Lease {
    shared: Arc<Shared>,
    partition: QpnPartition,
    watcher: Option<JoinHandle<OwnedFd>>,
    /// The process that owns the lease: a forked child has a copy of this struct, but not of the thread.
    process: ForkGeneration,
    /// Sockets whose names mark the partitions as in use.
    _tokens: Vec<OwnedFd>,
    /// Connection to the broker, set at the end. Closed after everything else, because otherwise the broker
    /// could end while the port is still in use.
    connection: Option<OwnedFd>,
}

/// State shared with the thread that monitors the broker.
struct Shared {
    /// Request for a new broker.
    request: Request,
    keepalives: Vec<FdKeepalive>,
    sharing: Sharing,
    /// Whether the broker serves processes of any user.
    any_user: bool,
    stop: EventFd,
    /// Whether coalesced packets for several partitions have been seen and coalescing has been disabled.
    mixed: AtomicBool,
}

/// The sockets of an address, one for each shard.
pub(in super::super) type Sockets = Vec<OwnedFd>;

impl Lease {
    /// Obtains a partition of these addresses from the broker; the sockets are in the order of the addresses.
    pub fn join(
        bind_addrs: Vec<BindAddr>,
        shards: usize,
        sharing: &Sharing,
    ) -> Result<(Arc<Lease>, Vec<Sockets>), UdpLinkError> {
        let primary = BindAddr::primary(&bind_addrs).expect("a link has an address");
        let ip = primary.ip;
        let request = Request { partition: None, shards, bind_addrs };
        if !request.fits_a_message() {
            let reason = format!(
                "cannot share {} addresses with {shards} shards: use fewer shards, or one address (--ip)",
                request.bind_addrs.len()
            );
            return Err(UdpLinkError::Refused { ip, errno: libc::EINVAL, reason });
        }
        let LeaseGrant { connection, partition: first, mut fds, any_user } =
            request_lease(&request, &[], sharing, sharing.any_user, ip, &|| false)?;
        let invalid = |reason| UdpLinkError::Refused {
            ip,
            errno: libc::EPROTO,
            reason: format!("cannot create a UDP link on {ip}: invalid response of the steward: {reason}"),
        };
        let partition = QpnPartition::new(first).ok_or_else(|| invalid("invalid QPN partition"))?;
        if fds.len() != shards + request.bind_addrs.len() * (shards + 1) {
            return Err(invalid("wrong number of descriptors"));
        }
        let mut per_address = fds.split_off(shards).into_iter();
        let (mut sockets, mut keepalives) = (Vec::new(), Vec::new());
        for _ in &request.bind_addrs {
            sockets.push(per_address.by_ref().take(shards).collect());
            keepalives.extend(per_address.next().map(FdKeepalive::from_fd));
        }
        let system = |what| move |source| UdpLinkError::System { ip, what, source };
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let stop = stop.map_err(|e| system("creating an eventfd")(e.into()))?;
        let request = Request { partition: Some(first), ..request };
        let sharing = sharing.clone();
        let shared =
            Arc::new(Shared { request, keepalives, sharing, any_user, stop, mixed: AtomicBool::new(false) });
        let monitored = shared.clone();
        let watcher = spawn_background("urxe lease".into(), move || monitored.watch(connection));
        let watcher = watcher.map_err(system("starting a thread"))?;
        let process = ForkGeneration::current();
        let (watcher, connection) = (Some(watcher), None);
        Ok((Arc::new(Lease { shared, partition, watcher, process, _tokens: fds, connection }), sockets))
    }

    pub fn partition(&self) -> QpnPartition {
        self.partition
    }

    /// Reports whether the broker serves processes of any user.
    pub fn has_shared_names(&self) -> bool {
        self.shared.any_user
    }

    /// Reports whether processes of any user are trusted.
    pub fn any_user(&self) -> bool {
        self.shared.sharing.any_user
    }

    /// Disables coalescing, after packets for several partitions arrived coalesced and those for other
    /// processes were lost.
    pub fn stop_coalescing(&self) {
        if !self.shared.mixed.load(Ordering::Relaxed) {
            // On failure, peers retransmit what is lost, and the next such datagram triggers another attempt.
            let stopped = self.shared.keepalives.iter().try_for_each(FdKeepalive::stop_coalescing).is_ok();
            self.shared.mixed.store(stopped, Ordering::Relaxed);
        }
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
    /// Monitors the broker, and obtains a new one when it ends, until stopped; returns the last connection.
    fn watch(&self, mut connection: OwnedFd) -> OwnedFd {
        while self.wait_for_end(&connection) {
            let ip = self.request.bind_addrs[0].ip;
            // A new broker must serve the same users as the last one.
            match request_lease(&self.request, &self.keepalives, &self.sharing, self.any_user, ip, &|| {
                self.is_stopping()
            }) {
                Ok(granted) => connection = granted.connection,
                // Without a broker, this process continues as before; processes that start later get no
                // partition.
                Err(_) => break,
            }
        }
        connection
    }

    /// Waits until the broker ends; returns false if no other is needed.
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
            if !matches!(message::receive(connection, false), Ok(Some(_))) {
                return true;
            }
        }
    }

    fn is_stopping(&self) -> bool {
        let mut fds = [PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// Resources that the broker has granted.
struct LeaseGrant {
    connection: OwnedFd,
    partition: usize,
    fds: Vec<OwnedFd>,
    /// Whether the broker serves processes of any user.
    any_user: bool,
}

/// Sends a request to the broker. Starts a broker if there is none, for processes of any user or only of this
/// one.
fn request_lease(
    request: &Request,
    keepalives: &[FdKeepalive],
    sharing: &Sharing,
    any_user: bool,
    ip: IpAddr,
    stopping: &dyn Fn() -> bool,
) -> Result<LeaseGrant, UdpLinkError> {
    let primary = BindAddr::primary(&request.bind_addrs).expect("a link has an address");
    let system = |what| move |source| UdpLinkError::System { ip, what, source };
    let fds: Vec<BorrowedFd<'_>> = keepalives.iter().map(AsFd::as_fd).collect();
    let private = Names::private().map_err(system("creating the directory of the steward's socket"))?;
    let start_time = Instant::now();
    let mut started: Option<Instant> = None;
    let (mut next_check, mut check_interval) = (start_time, RETRY_INTERVAL);
    while start_time.elapsed() < BROKER_TIMEOUT && !stopping() {
        match connect_to(primary, &private, sharing).map_err(system("connecting to the steward"))? {
            Some(connection) => {
                // A broker that ended just now does not respond; then another one is needed.
                let response = exchange(&connection, request, &fds);
                if let Some((line, fds)) =
                    response.map_err(system("requesting a QPN partition from the steward"))?
                {
                    let refused = |reason| Response::Refused { errno: libc::EPROTO, reason };
                    return match line.parse().unwrap_or_else(refused) {
                        Response::Granted { partition, any_user } => {
                            Ok(LeaseGrant { connection, partition, fds, any_user })
                        }
                        Response::Refused { errno, reason } => {
                            Err(UdpLinkError::Refused { ip, errno, reason })
                        }
                    };
                }
            }
            None if Instant::now() < next_check => {}
            None => {
                next_check = Instant::now() + check_interval;
                check_interval = (2 * check_interval).min(MAX_CHECK_INTERVAL);
                // A process that already has a partition brings the sockets of the port along for a new
                // broker.
                let other_user = if request.partition.is_none() { other_user(primary) } else { None };
                match other_user {
                    Some(user) if !sharing.any_user || start_time.elapsed() > RESTART_GRACE => {
                        let reason = refusal(primary, user);
                        return Err(UdpLinkError::Refused { ip, errno: libc::EACCES, reason });
                    }
                    None if started.is_none_or(|at| at.elapsed() > START_TIMEOUT) => {
                        start(sharing, any_user, &primary.to_string())
                            .map_err(system("starting `urxe steward`"))?;
                        started = Some(Instant::now());
                    }
                    _ => {}
                }
            }
        }
        thread::sleep(RETRY_INTERVAL);
    }
    let source = io::Error::from_raw_os_error(libc::ETIMEDOUT);
    Err(system("waiting for the steward of the address (`urxe steward`)")(source))
}

/// Sends a request and returns the response; `None` if the broker has ended without one.
fn exchange(
    connection: &OwnedFd,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    match message::send(connection, request, fds) {
        Err(e) if !is_disconnected(&e) => return Err(e),
        // The broker may refuse a process, and close, before it reads anything: its response is queued
        // nevertheless.
        _ => {}
    }
    for _ in 0..2 {
        match message::receive(connection, false) {
            // The request was not read. The kernel reports this once, before it returns the response.
            Err(e) if is_disconnected(&e) => {}
            other => return other,
        }
    }
    Ok(None)
}

/// Returns the user ID of the processes that share this address, if it is another user.
fn other_user(bind_addr: &BindAddr) -> Option<u32> {
    let users = PortOwner::users(bind_addr.ip, ROCE_PORT);
    let own = nix::unistd::geteuid().as_raw();
    // The broker detects a program that has bound the port exclusively.
    users.first().copied().filter(|user| users.len() >= QpnPartition::COUNT && *user != own)
}

fn refusal(bind_addr: &BindAddr, user: u32) -> String {
    format!(
        "{bind_addr} is shared only by processes of user {user}, and this process belongs to user {}: use \
         another address, or start all of them with `urxe run --any-user`",
        nix::unistd::geteuid()
    )
}

/// Reports whether an error means that the peer has closed the connection.
fn is_disconnected(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Connects to the broker of an address: first by the name that only this user can have, then by the name
/// that any user can have, where an untrusted owner is skipped. Returns `None` if there is no broker.
fn connect_to(bind_addr: &BindAddr, private: &Names, sharing: &Sharing) -> io::Result<Option<OwnedFd>> {
    for names in [private, &Names::Shared] {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, Some(BROKER_TIMEOUT))?;
        }
        // Does not block on a process that owns an abstract name and accepts no connection.
        if names.are_shared() && !sharing.any_user {
            rustix::io::ioctl_fionbio(&socket, true)?;
        }
        match connect(&socket, &names.address(&bind_addr.name())?) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED) => continue,
            Err(_) if names.are_shared() && !sharing.any_user => continue,
            Err(e) => return Err(e.into()),
        }
        rustix::io::ioctl_fionbio(&socket, false)?;
        let user = sockopt::socket_peercred(&socket)?.uid.as_raw();
        if is_trusted(user, sharing.any_user) {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    #[test]
    fn refusal_by_steward_that_closes_without_reading_is_received() {
        let request = Request { partition: None, shards: 1, bind_addrs: vec!["127.0.0.1".parse().unwrap()] };
        let refused = Response::Refused { errno: libc::EACCES, reason: "no".into() };
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // Closed before the request is sent.
        let (client, steward) = pair();
        message::send(&steward, &refused, &[]).unwrap();
        drop(steward);
        let response = exchange(&client, &request, &[]).unwrap().map(|(line, _)| line.parse());
        assert_eq!(response, Some(Ok(refused.clone())));
        // Closed with the request unread.
        let (client, steward) = pair();
        message::send(&client, &request, &[]).unwrap();
        message::send(&steward, &refused, &[]).unwrap();
        drop(steward);
        let response = exchange(&client, &request, &[]).unwrap().map(|(line, _)| line.parse());
        assert_eq!(response, Some(Ok(refused)));
        // Closed without a response.
        let (client, steward) = pair();
        drop(steward);
        assert!(exchange(&client, &request, &[]).unwrap().is_none());
    }
}
