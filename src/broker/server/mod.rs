//! Server side of the broker: accepts connections from processes and leases QPN partitions to them.
//!
//! | module | contents |
//! | --- | --- |
//! | this one | the loop: connections, messages, idle timeout |
//! | [`grants`] | grants of partitions, reattaching clients, release |
//! | [`served_address`] | sockets of an address |
//! | [`last_acks`] | acknowledgements sent for processes that have ended |
//! | [`gsi_listener`] | MADs for no process's partition: forwarded or answered |
//! | [`mailboxes`] | delivery of forwarded MADs |
//! | [`recent_reqs`] | services that clients requested recently |

mod grants;
mod gsi_listener;
mod last_acks;
mod mailboxes;
mod recent_reqs;
mod served_address;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::net::{SocketFlags, accept_with, listen};

use super::broker_name;
use super::protocol::{Request, Response};
use crate::host::unix_sockets::{SocketNames, fd_message, peer_user, seqpacket_socket, socket_dir};
use crate::link::udp::BindAddr;
use mailboxes::Mailboxes;
use served_address::ServedAddress;

/// Time after which a broker without clients exits. It is also the time within which processes that have
/// partitions must register with a new broker, and after which a connection without a request is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Time after which sending to a full socket is retried.
const SEND_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum number of attempts to bind a socket in the socket directory, which an exiting broker may remove
/// concurrently.
const MAX_DIRECTORY_ATTEMPTS: usize = 100;

/// Listen backlog: maximum number of connections not yet accepted.
const BACKLOG: i32 = 256;

/// Ratio of the descriptor limit to the maximum number of connections without a request.
const IDLE_DIVISOR: u64 = 4;
/// Lower bound for the maximum number of connections without a request.
const MIN_IDLE: u64 = 8;

/// Reason for which the broker could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is not valid.
    #[error("'{0}' is not an address: write 10.0.0.1, fd00::1, or fe80::1%eth0")]
    Address(String),
    /// Another broker serves the address.
    #[error("another broker already serves {0}")]
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

/// Runs the broker for an address (`10.0.0.1`, `fe80::1%eth0`) until no process needs it. With `any_user`, it
/// also serves processes of other users.
///
/// # Errors
/// [`ServeError::Address`] if `address` is none; [`ServeError::Another`] if another broker serves it;
/// [`ServeError::System`] if a socket cannot be opened.
pub fn serve(address: &str, any_user: bool) -> Result<(), ServeError> {
    let max_idle = (raise_fd_limit() / IDLE_DIVISOR).clamp(MIN_IDLE, BACKLOG as u64) as usize;
    let bind_addr: BindAddr = address.parse().map_err(|()| ServeError::Address(address.into()))?;
    // Processes of this user look for the broker by the private name, those of other users by the abstract
    // one.
    let (directory, private_listener) = private_listener(&bind_addr)?;
    let names =
        if any_user { SocketNames::Abstract } else { SocketNames::Private(directory.as_path().into()) };
    let mut listeners = vec![private_listener];
    if any_user {
        listeners.push(listener(&SocketNames::Abstract, &bind_addr)?);
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
    socket_dir::remove_unused(&directory);
    Ok(())
}

/// Opens the listening socket with the private name. Returns the directory that contains the socket, and the
/// socket.
fn private_listener(bind_addr: &BindAddr) -> Result<(PathBuf, OwnedFd), ServeError> {
    let mut attempts = 0..MAX_DIRECTORY_ATTEMPTS;
    loop {
        let directory = socket_dir::own().map_err(system("creating the socket directory"))?;
        match listener(&SocketNames::Private(directory.as_path().into()), bind_addr) {
            // Another broker, which has just exited, has removed the directory.
            Err(ServeError::System { source, .. })
                if source.kind() == io::ErrorKind::NotFound && attempts.next().is_some() => {}
            opened => return Ok((directory, opened?)),
        }
    }
}

/// Opens a listening socket at which processes find the broker for an address.
fn listener(names: &SocketNames, bind_addr: &BindAddr) -> Result<OwnedFd, ServeError> {
    let listener = seqpacket_socket().map_err(system("opening the listening socket"))?;
    match names.bind(&listener, &broker_name(bind_addr)) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            return Err(ServeError::Another(bind_addr.to_string()));
        }
        bound => bound.map_err(system("binding the listening socket"))?,
    }
    listen(&listener, BACKLOG).map_err(system("listening"))?;
    Ok(listener)
}

/// Raises the descriptor limit to the hard limit and returns it. Each address needs 64 descriptors, and its
/// keepalive descriptor holds another 64 in flight.
fn raise_fd_limit() -> u64 {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) => setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(soft, |()| hard),
        Err(_) => 0,
    }
}

struct Server {
    bind_addr: BindAddr,
    any_user: bool,
    /// Names, private or abstract, of the sockets for partitions and services.
    names: SocketNames,
    served: Vec<ServedAddress>,
    clients: Vec<Client>,
    /// Mailboxes through which MADs are forwarded to processes.
    mailboxes: Mailboxes,
    /// Partitions released by processes and not granted since.
    orphaned: Vec<usize>,
    /// Partitions of disconnected processes that may still be in use: a killed process does not exit
    /// immediately, and a process may close its connection without exiting.
    releasing: Vec<(Range<usize>, Instant)>,
    /// Last granted partition. The search for free partitions starts after it, so that a released partition
    /// is reused as late as possible.
    last: usize,
    /// Random number that determines the order in which partitions are granted.
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
    lease: Option<Lease>,
    /// Request received while the port was in use.
    pending: Option<Request>,
    /// Descriptor of the process's last acknowledgements, which the broker sends when the process has
    /// disconnected.
    last_acks: Option<OwnedFd>,
}

/// Partitions granted to a client, and the addresses that the lease covers.
struct Lease {
    partitions: Range<usize>,
    bind_addrs: Vec<BindAddr>,
}

impl Client {
    /// Reports whether the process has neither a granted nor a pending request.
    fn is_idle(&self) -> bool {
        self.lease.is_none() && self.pending.is_none()
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
                        lease: None,
                        pending: None,
                        last_acks: None,
                    }),
                    // Best effort: the process may have closed the connection.
                    Err(refusal) => drop(fd_message::send(&connection, &refusal, &[])),
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
            self.release_addresses();
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

    /// Waits for a connection, a message, a packet for no process's partition, or the next retry. Returns a
    /// flag for each client that says whether its connection is readable.
    fn wait(&self, listeners: &[OwnedFd]) -> Result<Vec<bool>, Errno> {
        let mut fds: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)).collect();
        fds.extend(self.clients.iter().map(|c| PollFd::new(c.connection.as_fd(), PollFlags::POLLIN)));
        for ServedAddress { sockets, gsi_listener, .. } in &self.served {
            let orphaned = self.orphaned.iter().map(|partition| sockets[*partition].as_fd());
            fds.extend(
                orphaned.chain([gsi_listener.link.socket_fd()]).map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
            );
        }
        let limit = match self.clients.iter().any(|c| c.pending.is_some()) {
            _ if self.mailboxes.has_queued() => Some(SEND_RETRY_INTERVAL),
            pending if pending || !self.releasing.is_empty() => Some(RETRY_INTERVAL),
            _ if self.clients.iter().all(|c| c.lease.is_none()) => Some(IDLE_TIMEOUT),
            _ => None,
        };
        let limit = limit.map(|limit| PollTimeout::try_from(limit).expect("the limits are seconds at most"));
        match poll(&mut fds, limit.unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        Ok(fds[listeners.len()..][..self.clients.len()].iter().map(|fd| fd.any().unwrap_or(false)).collect())
    }

    /// Handles a message from a client. Returns false if the client has disconnected.
    fn handle_message(&mut self, i: usize) -> bool {
        let Ok(Some((line, mut fds))) = fd_message::receive(&self.clients[i].connection, false) else {
            self.send_last_acks(i);
            self.release(i);
            return false;
        };
        let request = match line.parse() {
            // The process already has its partitions.
            Ok(_) if self.clients[i].lease.is_some() => Err("the connection already has a lease".to_owned()),
            Ok(_) if fds.is_empty() => {
                Err("the request lacks the descriptor of the last acknowledgements".to_owned())
            }
            request => request,
        };
        let granted = request.map_err(Response::protocol_error).and_then(|request: Request| {
            self.clients[i].last_acks = Some(fds.remove(0));
            self.grant(i, request, fds)
        });
        self.refuse_unless(i, granted)
    }

    /// Sends the last acknowledgements of a client that has disconnected. A process that has ended may not
    /// have sent them.
    fn send_last_acks(&mut self, i: usize) {
        let client = &self.clients[i];
        let (Some(records), Some(lease)) = (&client.last_acks, &client.lease) else { return };
        let words = last_acks::read(records, lease.partitions.len());
        for served in self.served.iter_mut().filter(|served| lease.bind_addrs.contains(&served.bind_addr)) {
            last_acks::send(&words, served);
        }
    }

    fn check_user(&self, connection: &OwnedFd) -> Result<(), Response> {
        let user = peer_user(connection);
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

    /// Closes connections that have had no request for too long, and the oldest of them if there are too
    /// many. A process whose connection is closed before its request is read connects again.
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
            let Some(request) = self.clients[i].pending.take() else { continue };
            let granted = self.grant(i, request, Vec::new());
            if !self.refuse_unless(i, granted) {
                self.clients.remove(i);
            }
        }
    }

    /// Sends the refusal if a request was not granted; the client then closes the connection. Returns false
    /// if the client has already disconnected.
    fn refuse_unless(&self, i: usize, granted: Result<(), Response>) -> bool {
        let send = |refusal| fd_message::send(&self.clients[i].connection, &refusal, &[]).is_ok();
        granted.map_or_else(send, |()| true)
    }
}

/// Accepts a pending connection. If no file descriptor or memory is available, the connection stays pending.
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
