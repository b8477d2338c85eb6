//! Server of the broker: accepts processes and grants them QPN partitions.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, listen, socket_with, sockopt};

use super::keepalive::{FdKeepalive, ServedAddress};
use super::mailboxes::Mailboxes;
use super::message::{self, Request, Response};
use super::{BindAddr, Names, socket};
use crate::link::udp::{PortOwner, UdpLinkError, steer};
use crate::nic::QpnPartition;
use crate::wire::ROCE_PORT;

/// Time after which the broker ends without clients, time for processes that have partitions to register with
/// a new broker, and time after which a connection without a request is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for a process that ends to release its port and its partitions.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval between retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Milliseconds after which sending to a full socket is retried.
const SEND_RETRY_MS: u8 = 1;

/// Maximum number of processes that wait to be accepted.
const BACKLOG: i32 = 256;

/// Divisor of the descriptor limit that yields the maximum number of connections without a request.
const IDLE_DIVISOR: u64 = 4;
/// Number of connections without a request that are kept in any case.
const MIN_IDLE: u64 = 8;

/// Reason why the broker could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not valid.
    #[error("'{0}' is not an address: write 10.0.0.1, fd00::1, or fe80::1%eth0")]
    Address(String),
    /// Another broker serves the address.
    #[error("another steward already serves {0}")]
    Another(String),
    /// An unexpected system call failure.
    #[error("{what} failed: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServeError {
    move |source| ServeError::System { what, source: source.into() }
}

/// Runs the broker of an address (`10.0.0.1`, `fe80::1%eth0`) until no process needs it. With `any_user`,
/// processes of other users are served too.
///
/// # Errors
/// [`ServeError`].
pub fn serve(address: &str, any_user: bool) -> Result<(), ServeError> {
    let max_idle = (raise_fd_limit() / IDLE_DIVISOR).clamp(MIN_IDLE, BACKLOG as u64) as usize;
    let bind_addr: BindAddr = address.parse().map_err(|()| ServeError::Address(address.into()))?;
    let private = Names::private().map_err(system("creating the socket directory"))?;
    let names = if any_user { Names::Shared } else { private.clone() };
    // Processes of this user look for the broker by the private name, those of other users by the shared one.
    let mut listeners = vec![listener(&private, &bind_addr)?];
    if any_user {
        listeners.push(listener(&Names::Shared, &bind_addr)?);
    }
    let mailboxes = Mailboxes::new(names.clone()).map_err(system("opening the socket for forwarded MADs"))?;
    let (served, clients, orphaned, releasing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let random = RandomState::new().hash_one(address) as u16 as usize;
    let mut server = Server {
        bind_addr,
        any_user,
        names,
        served,
        clients,
        mailboxes,
        orphaned,
        releasing,
        last: 0,
        random,
        max_idle,
        since: Instant::now(),
    };
    server.run(&listeners)?;
    // Frees the port before the name: the next owner of the name binds the port.
    drop((server, listeners));
    private.remove_stale();
    Ok(())
}

/// Opens a socket on which processes find the broker of an address.
fn listener(names: &Names, bind_addr: &BindAddr) -> Result<OwnedFd, ServeError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = listener.map_err(system("opening the listening socket"))?;
    match names.bind(&listener, &bind_addr.name()) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            return Err(ServeError::Another(bind_addr.to_string()));
        }
        bound => bound.map_err(system("binding the listening socket"))?,
    }
    listen(&listener, BACKLOG).map_err(system("listening"))?;
    Ok(listener)
}

/// Raises the descriptor limit as far as the system allows, and returns it: each address needs 64
/// descriptors, and its keeper has as many in flight.
fn raise_fd_limit() -> u64 {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) => setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(soft, |()| hard),
        Err(_) => 0,
    }
}

struct Server {
    bind_addr: BindAddr,
    any_user: bool,
    /// Names of the sockets for partitions and services.
    names: Names,
    served: Vec<ServedAddress>,
    clients: Vec<Client>,
    /// Forwards packets that are for no process's partition.
    mailboxes: Mailboxes,
    /// Partitions that processes have released and that were not granted since.
    orphaned: Vec<usize>,
    /// Partitions of disconnected processes that may still be in use: a killed process does not end
    /// immediately, and a process may close only its connection.
    releasing: Vec<(Range<usize>, Instant)>,
    /// Partition granted last: one that becomes free is reused as late as possible.
    last: usize,
    /// Random number for the order in which partitions are granted.
    random: usize,
    /// Maximum number of connections without a request.
    max_idle: usize,
    /// Start time of the broker.
    since: Instant,
}

/// A connected process.
struct Client {
    connection: OwnedFd,
    since: Instant,
    /// First partition, and number of partitions.
    partitions: Option<(usize, usize)>,
    /// Request that was made while the port was in use.
    pending: Option<Request>,
}

impl Client {
    /// Reports whether the process has made no request that was granted or is pending.
    fn is_idle(&self) -> bool {
        self.partitions.is_none() && self.pending.is_none()
    }
}

impl Server {
    fn run(&mut self, listeners: &[OwnedFd]) -> Result<(), ServeError> {
        let mut had_clients = false;
        loop {
            let ready = self.wait(listeners).map_err(system("polling"))?;
            while let Some(connection) = listeners.iter().find_map(accept) {
                had_clients = true;
                // Receives nothing from processes of users that are not served.
                match self.check_user(&connection) {
                    Ok(()) => self.clients.push(Client {
                        connection,
                        since: Instant::now(),
                        partitions: None,
                        pending: None,
                    }),
                    // Best effort: the process may have closed the connection.
                    Err(refusal) => drop(message::send(&connection, &refusal, &[])),
                }
            }
            // Connections accepted just now are read in the next turn.
            for i in (0..ready.len()).rev().filter(|i| ready[*i]) {
                if !self.handle_message(i) {
                    self.clients.remove(i);
                }
            }
            self.retry_pending();
            self.collect_released();
            self.mailboxes.retry();
            for ServedAddress { bind_addr, sockets, gsi_listener, .. } in &mut self.served {
                let orphaned = self.orphaned.iter().map(|partition| &sockets[*partition]);
                gsi_listener.serve(bind_addr, orphaned, &mut self.mailboxes);
            }
            self.close_idle();
            if self.clients.is_empty() && (had_clients || self.since.elapsed() > IDLE_TIMEOUT) {
                // A process that has connected meanwhile gets no response and retries.
                return Ok(());
            }
        }
    }

    /// Waits for a connection, a message, a packet for no process's partition, or the time of a retry;
    /// returns which clients are readable.
    fn wait(&self, listeners: &[OwnedFd]) -> Result<Vec<bool>, Errno> {
        let mut fds: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)).collect();
        fds.extend(self.clients.iter().map(|c| PollFd::new(c.connection.as_fd(), PollFlags::POLLIN)));
        for ServedAddress { sockets, gsi_listener, .. } in &self.served {
            let orphaned = self.orphaned.iter().map(|partition| sockets[*partition].as_fd());
            fds.extend(orphaned.chain([gsi_listener.as_fd()]).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        }
        let limit = match self.clients.iter().any(|c| c.pending.is_some()) {
            _ if self.mailboxes.has_queued() => PollTimeout::from(SEND_RETRY_MS),
            pending if pending || !self.releasing.is_empty() => {
                PollTimeout::try_from(RETRY_INTERVAL).expect("the interval fits in a poll timeout")
            }
            _ if self.clients.iter().all(|c| c.partitions.is_none()) => {
                PollTimeout::try_from(IDLE_TIMEOUT).expect("the timeout fits in a poll timeout")
            }
            _ => PollTimeout::NONE,
        };
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        Ok(fds[listeners.len()..][..self.clients.len()].iter().map(|fd| fd.any().unwrap_or(false)).collect())
    }

    /// Handles a message of a client; returns false if the client has disconnected.
    fn handle_message(&mut self, i: usize) -> bool {
        let client = &mut self.clients[i];
        let Ok(Some((line, fds))) = message::receive(&client.connection, false) else {
            let released = client.partitions.take();
            self.releasing.extend(released.map(|(first, count)| (first..first + count, Instant::now())));
            self.update_steering_if(released.is_some_and(|(_, count)| count > 1));
            return false;
        };
        let response = match line.parse().map_err(refused) {
            // The process already has its partitions.
            Ok(_) if self.clients[i].partitions.is_some() => {
                Some(Err(refused("the connection already has a lease")))
            }
            Ok(request) => self.grant(i, request, fds),
            Err(refusal) => Some(Err(refusal)),
        };
        match response {
            None | Some(Ok(())) => true,
            Some(Err(refusal)) => self.refuse(i, &refusal),
        }
    }

    /// Checks which partitions of disconnected processes are free by now.
    fn collect_released(&mut self) {
        let Server { bind_addr, names, orphaned, releasing, .. } = self;
        releasing.retain(|(partitions, since)| {
            let closed = partitions.clone().all(|partition| token(names, bind_addr, partition).is_ok());
            if closed {
                orphaned.extend(partitions.clone());
            }
            !closed && since.elapsed() < RELEASE_TIMEOUT
        });
    }

    fn check_user(&self, connection: &OwnedFd) -> Result<(), Response> {
        let user = sockopt::socket_peercred(connection).map(|peer| peer.uid.as_raw());
        let own = nix::unistd::geteuid().as_raw();
        if self.any_user || user == Ok(own) {
            return Ok(());
        }
        let reason = format!(
            "{} is shared only by processes of user {own}: start the first of them with \
             `urxe run --any-user` to share it with all users",
            self.bind_addr
        );
        Err(Response::Refused { errno: libc::EACCES, reason })
    }

    /// Handles a request; returns `None` if it has to wait.
    fn grant(&mut self, i: usize, request: Request, fds: Vec<OwnedFd>) -> Option<Result<(), Response>> {
        if let Some(partition) = request.partition {
            return Some(self.reattach(i, partition, &request, fds));
        }
        let before = self.served.len();
        let bound = request.bind_addrs.iter().try_for_each(|bind_addr| self.bind(bind_addr));
        let refusal = match bound {
            Ok(()) => match self.grant_partitions(i, &request) {
                Ok(()) => return Some(Ok(())),
                Err(refusal) => refusal,
            },
            Err(UdpLinkError::InUse { ip, .. }) if self.clients[i].since.elapsed() < port_timeout(ip) => {
                self.clients[i].pending = Some(request);
                self.served.truncate(before);
                return None;
            }
            Err(e) => refusal_of(&e),
        };
        // Releases the addresses that only this request needed.
        self.served.truncate(before);
        Some(Err(refusal))
    }

    /// Binds an address, unless it is bound already.
    fn bind(&mut self, bind_addr: &BindAddr) -> Result<(), UdpLinkError> {
        if self.served.iter().any(|served| served.bind_addr == *bind_addr) {
            return Ok(());
        }
        let served = ServedAddress::bind(bind_addr.clone())?;
        let steered = steer::attach(&served.sockets[0], &steer::by_partition(&self.sharded_clients()));
        steered.map_err(|source| steer::failed(bind_addr.ip, source))?;
        self.served.push(served);
        Ok(())
    }

    /// Closes connections that have been without a request for too long, and the oldest of them if there are
    /// too many. A process whose request was not read yet connects again.
    fn close_idle(&mut self) {
        let idle = self.clients.iter().filter(|client| client.is_idle()).count();
        let mut excess = idle.saturating_sub(self.max_idle);
        self.clients.retain(|client| {
            let is_closed = client.is_idle() && (excess > 0 || client.since.elapsed() > IDLE_TIMEOUT);
            excess = excess.saturating_sub(usize::from(is_closed));
            !is_closed
        });
    }

    /// Retries the pending requests.
    fn retry_pending(&mut self) {
        for i in (0..self.clients.len()).rev() {
            if let Some(request) = self.clients[i].pending.take()
                && let Some(Err(refusal)) = self.grant(i, request, Vec::new())
                && !self.refuse(i, &refusal)
            {
                self.clients.remove(i);
            }
        }
    }

    /// Sends a refusal; returns false if the client has disconnected. The client closes the connection.
    fn refuse(&mut self, i: usize, refusal: &Response) -> bool {
        message::send(&self.clients[i].connection, refusal, &[]).is_ok()
    }

    /// Grants a client free partitions.
    fn grant_partitions(&mut self, i: usize, request: &Request) -> Result<(), Response> {
        let count = request.shards;
        let (partition, tokens) = self.free_partitions(count)?;
        self.clients[i].partitions = Some((partition, count));
        self.orphaned.retain(|orphaned| !(partition..partition + count).contains(orphaned));
        self.update_steering_if(count > 1);
        let mut fds: Vec<BorrowedFd<'_>> = tokens.iter().map(AsFd::as_fd).collect();
        for bind_addr in &request.bind_addrs {
            let served = self
                .served
                .iter()
                .find(|served| served.bind_addr == *bind_addr)
                .expect("all of them were bound");
            let own = &served.sockets[partition..partition + count];
            own.iter().for_each(socket::drain);
            fds.extend(own.iter().map(AsFd::as_fd));
            fds.push(served.keepalive.as_fd());
        }
        let granted = Response::Granted { partition, any_user: self.any_user };
        if let Err(e) = message::send(&self.clients[i].connection, &granted, &fds) {
            self.clients[i].partitions = None;
            self.update_steering_if(count > 1);
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            let reason = format!("the steward of {} could not send the sockets: {e}", self.bind_addr);
            return Err(Response::Refused { errno, reason });
        }
        self.last = partition;
        Ok(())
    }

    /// Finds free partitions; returns the first and the tokens that mark them as in use. The process keeps
    /// the tokens, so its partitions are not free even for a broker that does not know it.
    fn free_partitions(&self, count: usize) -> Result<(usize, Vec<OwnedFd>), Response> {
        // The order is unpredictable, because the numbers of queue pairs and connections begin with the
        // partition's.
        let rank = |partition: usize| {
            (partition * (self.random | 1)).wrapping_add(self.random >> 8) % QpnPartition::COUNT
        };
        // The first partition belongs to the broker.
        let mut all: Vec<usize> =
            (0..QpnPartition::COUNT).step_by(count).filter(|first| *first > 0).collect();
        all.sort_by_key(|first| rank(*first));
        let (before, after): (Vec<usize>, Vec<usize>) =
            all.into_iter().partition(|first| rank(*first) <= rank(self.last));
        for first in after.into_iter().chain(before) {
            let tokens =
                (first..first + count).map(|partition| token(&self.names, &self.bind_addr, partition));
            match tokens.collect::<io::Result<_>>() {
                Ok(tokens) => return Ok((first, tokens)),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => {
                    let reason = format!(
                        "the steward of {} cannot create the token of a partition: {e}",
                        self.bind_addr
                    );
                    return Err(Response::Refused { errno: e.raw_os_error().unwrap_or(libc::EIO), reason });
                }
            }
        }
        let address = &self.bind_addr;
        let reason = match count {
            1 => format!("all {} QPN partitions of {address} are in use", QpnPartition::COUNT - 1),
            _ => format!("no {count} consecutive QPN partitions of {address} are free"),
        };
        let reason = format!("{reason}: use another address");
        Err(Response::Refused { errno: libc::EUSERS, reason })
    }

    /// Registers a process that already has partitions, and takes over its sockets if this broker does not
    /// have them yet.
    fn reattach(
        &mut self,
        i: usize,
        partition: usize,
        request: &Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Response> {
        if fds.len() != request.bind_addrs.len() {
            return Err(refused(format!(
                "{} keepalive descriptors for {} addresses",
                fds.len(),
                request.bind_addrs.len()
            )));
        }
        let (claimed, before) = (partition..partition + request.shards, self.served.len());
        let overlaps = |(first, count): (usize, usize)| first < claimed.end && claimed.start < first + count;
        // A process that has a partition also holds its token, so that the token's name cannot be bound.
        let has_tokens = || {
            claimed.clone().all(|partition| {
                token(&self.names, &self.bind_addr, partition)
                    .is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse)
            })
        };
        if partition == 0 || self.clients.iter().filter_map(|c| c.partitions).any(overlaps) || !has_tokens() {
            return Err(refused(format!("the process has no lease on partition {partition}")));
        }
        for (bind_addr, keepalive) in request.bind_addrs.iter().zip(fds) {
            if self.served.iter().all(|served| served.bind_addr != *bind_addr) {
                match ServedAddress::take_over(bind_addr.clone(), FdKeepalive::from_fd(keepalive)) {
                    Ok(served) => self.served.push(served),
                    Err(e) => {
                        self.served.truncate(before);
                        return Err(refused(format!("invalid sockets of {bind_addr}: {e}")));
                    }
                }
            }
        }
        self.clients[i].partitions = Some((partition, request.shards));
        self.orphaned.retain(|orphaned| !claimed.contains(orphaned));
        self.update_steering_if(true);
        // The next poll detects a process that has disconnected.
        let granted = Response::Granted { partition, any_user: self.any_user };
        let _ = message::send(&self.clients[i].connection, &granted, &[]);
        Ok(())
    }

    /// Returns the clients that have more than one partition, as first partition and count.
    fn sharded_clients(&self) -> Vec<(usize, usize)> {
        self.clients.iter().filter_map(|c| c.partitions).filter(|(_, count)| *count > 1).collect()
    }

    /// Attaches the steering program for the current partitions, if `changed`.
    fn update_steering_if(&self, changed: bool) {
        if changed {
            let program = steer::by_partition(&self.sharded_clients());
            for served in &self.served {
                // Best effort: it worked when the first socket was bound, and there is no caller to report a
                // failure to.
                let _ = steer::attach(&served.sockets[0], &program);
            }
        }
    }
}

/// Opens the token of a partition: a socket with a unique name, which a process keeps as long as it has the
/// partition.
fn token(names: &Names, bind_addr: &BindAddr, partition: usize) -> io::Result<OwnedFd> {
    let token = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    names.bind(&token, &token_name(bind_addr, partition))?;
    Ok(token)
}

fn token_name(bind_addr: &BindAddr, partition: usize) -> String {
    format!("urxe-lease/{}/{partition}", bind_addr.key())
}

/// Accepts a pending connection. If the system is out of resources, the connection stays pending.
fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(connection) => return Some(connection),
            Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return None,
            Err(_) => {
                thread::sleep(RETRY_INTERVAL);
                return None;
            }
        }
    }
}

/// Returns how long a request waits for a port that is in use: if the sockets are those of processes that
/// have partitions, these are expected to register.
fn port_timeout(ip: IpAddr) -> Duration {
    if PortOwner::count(ip, ROCE_PORT) < QpnPartition::COUNT { RELEASE_TIMEOUT } else { IDLE_TIMEOUT }
}

fn refused(reason: impl Into<String>) -> Response {
    Response::Refused { errno: libc::EPROTO, reason: reason.into() }
}

/// Converts an error to a response: its text, and the errno value that verbs report for it.
fn refusal_of(e: &UdpLinkError) -> Response {
    let errno = match e {
        UdpLinkError::InUse { .. } => libc::EADDRINUSE,
        UdpLinkError::NotLocal { .. } | UdpLinkError::NoInterface { .. } => libc::ENODEV,
        UdpLinkError::Refused { errno, .. } => *errno,
        UdpLinkError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
    };
    let cause = std::error::Error::source(e).map_or(String::new(), |cause| format!(": {cause}"));
    Response::Refused { errno, reason: format!("{e}{cause}") }
}
