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

use super::delivery::Delivery;
use super::keeper::{Held, Keeper};
use super::message::{self, Answer, Request};
use super::{Names, Place, socket};
use crate::link::udp::{PortOwner, UdpLinkError, steer};
use crate::nic::Seat;
use crate::wire::ROCE_PORT;

/// Time after which the broker ends without clients, time for processes that have partitions to register with
/// a new broker, and time after which a connection without a request is closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time for a process that ends to release its port and its partitions.
const GOING: Duration = Duration::from_millis(200);
/// Interval between retries.
const AGAIN: Duration = Duration::from_millis(10);

/// Milliseconds after which sending to a full socket is retried.
const SOON: u8 = 1;

/// Maximum number of processes that wait to be accepted.
const BACKLOG: i32 = 256;

/// Divisor of the descriptor limit that yields the maximum number of connections without a request.
const SILENT_PART: u64 = 4;
/// Number of connections without a request that are kept in any case.
const LEAST_SILENT: u64 = 8;

/// Reason why the broker could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not valid.
    #[error("'{0}' is no address: write 10.0.0.1, fd00::1, or fe80::1%eth0")]
    Address(String),
    /// Another broker serves the address.
    #[error("there is a steward of {0} already")]
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
    let most_silent = (make_room() / SILENT_PART).clamp(LEAST_SILENT, BACKLOG as u64) as usize;
    let place: Place = address.parse().map_err(|()| ServeError::Address(address.into()))?;
    let private = Names::private().map_err(system("making a directory for its socket"))?;
    let names = if any_user { Names::Shared } else { private.clone() };
    // Processes of this user look for the broker by the private name, those of other users by the shared one.
    let mut listeners = vec![listener(&private, &place)?];
    if any_user {
        listeners.push(listener(&Names::Shared, &place)?);
    }
    let delivery = Delivery::new(names.clone()).map_err(system("opening a socket for others"))?;
    let (held, clients, left, going) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let chance = RandomState::new().hash_one(address) as u16 as usize;
    let mut server = Server {
        place,
        any_user,
        names,
        held,
        clients,
        delivery,
        left,
        going,
        last: 0,
        chance,
        most_silent,
        since: Instant::now(),
    };
    server.run(&listeners)?;
    // Frees the port before the name: the next owner of the name binds the port.
    drop((server, listeners));
    private.sweep();
    Ok(())
}

/// Opens a socket on which processes find the broker of an address.
fn listener(names: &Names, place: &Place) -> Result<OwnedFd, ServeError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = listener.map_err(system("opening its socket"))?;
    match names.bind(&listener, &place.name()) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => return Err(ServeError::Another(place.to_string())),
        bound => bound.map_err(system("naming its socket"))?,
    }
    listen(&listener, BACKLOG).map_err(system("listening"))?;
    Ok(listener)
}

/// Raises the descriptor limit as far as the system allows, and returns it: each address takes 64
/// descriptors, and its keeper has as many in flight.
fn make_room() -> u64 {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((now, most)) => setrlimit(Resource::RLIMIT_NOFILE, most, most).map_or(now, |()| most),
        Err(_) => 0,
    }
}

struct Server {
    place: Place,
    any_user: bool,
    /// Names of the sockets for partitions and services.
    names: Names,
    held: Vec<Held>,
    clients: Vec<Client>,
    /// Forwards packets that are for no process's partition.
    delivery: Delivery,
    /// Partitions that processes have left and that were not granted since.
    left: Vec<usize>,
    /// Partitions of disconnected processes that may still be in use: a killed process does not end
    /// immediately, and a process may close only its connection.
    going: Vec<(Range<usize>, Instant)>,
    /// Partition granted last: one that becomes free is reused as late as possible.
    last: usize,
    /// Random number for the order in which partitions are granted.
    chance: usize,
    /// Maximum number of connections without a request.
    most_silent: usize,
    /// Start time of the broker.
    since: Instant,
}

/// A connected process.
struct Client {
    connection: OwnedFd,
    since: Instant,
    /// First partition, and number of partitions.
    seats: Option<(usize, usize)>,
    /// Request that was made while the port was taken.
    waiting: Option<Request>,
}

impl Client {
    /// Reports whether the process has made no request that was granted or is pending.
    fn is_silent(&self) -> bool {
        self.seats.is_none() && self.waiting.is_none()
    }
}

impl Server {
    fn run(&mut self, listeners: &[OwnedFd]) -> Result<(), ServeError> {
        let mut came = false;
        loop {
            let ready = self.wait(listeners).map_err(system("waiting"))?;
            while let Some(connection) = listeners.iter().find_map(accept) {
                came = true;
                // Receives nothing from processes of users that are not served.
                match self.check_user(&connection) {
                    Ok(()) => self.clients.push(Client {
                        connection,
                        since: Instant::now(),
                        seats: None,
                        waiting: None,
                    }),
                    // Best effort: the process may have closed the connection.
                    Err(refusal) => drop(message::send(&connection, &refusal, &[])),
                }
            }
            // Connections accepted just now are read in the next turn.
            for i in (0..ready.len()).rev().filter(|i| ready[*i]) {
                if !self.hear(i) {
                    self.clients.remove(i);
                }
            }
            self.serve_waiting();
            self.note_left();
            self.delivery.retry();
            for Held { place, sockets, reception, .. } in &mut self.held {
                let left = self.left.iter().map(|seat| &sockets[*seat]);
                reception.serve(place, left, &mut self.delivery);
            }
            self.drop_silent();
            if self.clients.is_empty() && (came || self.since.elapsed() > PATIENCE) {
                // A process that has connected meanwhile gets no response and tries again.
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
        for Held { sockets, reception, .. } in &self.held {
            let left = self.left.iter().map(|seat| sockets[*seat].as_fd());
            fds.extend(left.chain([reception.as_fd()]).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        }
        let limit = match self.clients.iter().any(|c| c.waiting.is_some()) {
            _ if self.delivery.is_waiting() => PollTimeout::from(SOON),
            waiting if waiting || !self.going.is_empty() => {
                PollTimeout::try_from(AGAIN).expect("ten milliseconds are few")
            }
            _ if self.clients.iter().all(|c| c.seats.is_none()) => {
                PollTimeout::try_from(PATIENCE).expect("so are five seconds")
            }
            _ => PollTimeout::NONE,
        };
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        Ok(fds[listeners.len()..][..self.clients.len()].iter().map(|fd| fd.any().unwrap_or(false)).collect())
    }

    /// Handles a message of a client; returns false if the client is gone.
    fn hear(&mut self, i: usize) -> bool {
        let client = &mut self.clients[i];
        let Ok(Some((line, fds))) = message::receive(&client.connection, false) else {
            let had = client.seats.take();
            self.going.extend(had.map(|(first, count)| (first..first + count, Instant::now())));
            self.steer_if(had.is_some_and(|(_, count)| count > 1));
            return false;
        };
        let answer = match line.parse().map_err(refused) {
            // The process already has its partitions.
            Ok(_) if self.clients[i].seats.is_some() => {
                Some(Err(refused("one seat is enough for a connection")))
            }
            Ok(request) => self.grant(i, request, fds),
            Err(why) => Some(Err(why)),
        };
        match answer {
            None | Some(Ok(())) => true,
            Some(Err(refusal)) => self.refuse(i, &refusal),
        }
    }

    /// Checks which partitions of disconnected processes are free by now.
    fn note_left(&mut self) {
        let Server { place, names, left, going, .. } = self;
        going.retain(|(seats, since)| {
            let gone = seats.clone().all(|seat| token(names, place, seat).is_ok());
            if gone {
                left.extend(seats.clone());
            }
            !gone && since.elapsed() < GOING
        });
    }

    fn check_user(&self, connection: &OwnedFd) -> Result<(), Answer> {
        let user = sockopt::socket_peercred(connection).map(|who| who.uid.as_raw());
        let own = nix::unistd::geteuid().as_raw();
        if self.any_user || user == Ok(own) {
            return Ok(());
        }
        let why = format!(
            "{} is shared by processes of user {own} alone; whoever starts the first of them may let others in \
             (urxe run --any-user)",
            self.place
        );
        Err(Answer::Refused { errno: libc::EACCES, why })
    }

    /// Handles a request; returns `None` if it has to wait.
    fn grant(&mut self, i: usize, request: Request, fds: Vec<OwnedFd>) -> Option<Result<(), Answer>> {
        if let Some(seat) = request.seat {
            return Some(self.welcome_back(i, seat, &request, fds));
        }
        let before = self.held.len();
        let bound = request.places.iter().try_for_each(|place| self.bind(place));
        let why = match bound {
            Ok(()) => match self.seat(i, &request) {
                Ok(()) => return Some(Ok(())),
                Err(why) => why,
            },
            Err(UdpLinkError::Taken { ip, .. }) if self.clients[i].since.elapsed() < patience(ip) => {
                self.clients[i].waiting = Some(request);
                self.held.truncate(before);
                return None;
            }
            Err(e) => refusal(&e),
        };
        // Releases the addresses that only this request needed.
        self.held.truncate(before);
        Some(Err(why))
    }

    /// Binds an address, unless it is bound already.
    fn bind(&mut self, place: &Place) -> Result<(), UdpLinkError> {
        if self.held.iter().any(|held| held.place == *place) {
            return Ok(());
        }
        let held = Held::bind(place.clone())?;
        let steered = steer::attach(&held.sockets[0], &steer::by_seat(&self.several()));
        steered.map_err(|source| steer::failed(place.ip, source))?;
        self.held.push(held);
        Ok(())
    }

    /// Closes connections that have been without a request for too long, and the oldest of them if there are
    /// too many. A process whose request was not read yet connects again.
    fn drop_silent(&mut self) {
        let silent = self.clients.iter().filter(|client| client.is_silent()).count();
        let mut excess = silent.saturating_sub(self.most_silent);
        self.clients.retain(|client| {
            let drops = client.is_silent() && (excess > 0 || client.since.elapsed() > PATIENCE);
            excess = excess.saturating_sub(usize::from(drops));
            !drops
        });
    }

    /// Retries the pending requests.
    fn serve_waiting(&mut self) {
        for i in (0..self.clients.len()).rev() {
            if let Some(request) = self.clients[i].waiting.take()
                && let Some(Err(refusal)) = self.grant(i, request, Vec::new())
                && !self.refuse(i, &refusal)
            {
                self.clients.remove(i);
            }
        }
    }

    /// Sends a refusal; returns false if the client is gone. Closing the connection is left to the client.
    fn refuse(&mut self, i: usize, refusal: &Answer) -> bool {
        message::send(&self.clients[i].connection, refusal, &[]).is_ok()
    }

    /// Grants a client free partitions.
    fn seat(&mut self, i: usize, request: &Request) -> Result<(), Answer> {
        let count = request.shards;
        let (seat, tokens) = self.free_seats(count)?;
        self.clients[i].seats = Some((seat, count));
        self.left.retain(|left| !(seat..seat + count).contains(left));
        self.steer_if(count > 1);
        let mut fds: Vec<BorrowedFd<'_>> = tokens.iter().map(AsFd::as_fd).collect();
        for place in &request.places {
            let held = self.held.iter().find(|held| held.place == *place).expect("all of them were bound");
            let own = &held.sockets[seat..seat + count];
            own.iter().for_each(socket::drain);
            fds.extend(own.iter().map(AsFd::as_fd));
            fds.push(held.keeper.as_fd());
        }
        let seated = Answer::Seated { seat, any_user: self.any_user };
        if let Err(e) = message::send(&self.clients[i].connection, &seated, &fds) {
            self.clients[i].seats = None;
            self.steer_if(count > 1);
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            let why = format!("the steward of {} could not hand over its sockets: {e}", self.place);
            return Err(Answer::Refused { errno, why });
        }
        self.last = seat;
        Ok(())
    }

    /// Finds free partitions; returns the first and the tokens that mark them as taken. The process keeps the
    /// tokens, so its partitions are not free even for a broker that does not know it.
    fn free_seats(&self, count: usize) -> Result<(usize, Vec<OwnedFd>), Answer> {
        // The order is unpredictable, because the numbers of queue pairs and connections begin with the
        // partition's.
        let turn = |seat: usize| (seat * (self.chance | 1)).wrapping_add(self.chance >> 8) % Seat::COUNT;
        // The first partition belongs to the broker.
        let mut all: Vec<usize> = (0..Seat::COUNT).step_by(count).filter(|first| *first > 0).collect();
        all.sort_by_key(|first| turn(*first));
        let (before, after): (Vec<usize>, Vec<usize>) =
            all.into_iter().partition(|first| turn(*first) <= turn(self.last));
        for first in after.into_iter().chain(before) {
            let tokens = (first..first + count).map(|seat| token(&self.names, &self.place, seat));
            match tokens.collect::<io::Result<_>>() {
                Ok(tokens) => return Ok((first, tokens)),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => {
                    let why = format!("the steward of {} cannot mark a part of it as taken: {e}", self.place);
                    return Err(Answer::Refused { errno: e.raw_os_error().unwrap_or(libc::EIO), why });
                }
            }
        }
        let parts = if count == 1 { String::new() } else { format!(", {count} of them together") };
        let why = format!(
            "all {} parts of {} are taken by other processes{parts}: use another address",
            Seat::COUNT - 1,
            self.place
        );
        Err(Answer::Refused { errno: libc::EUSERS, why })
    }

    /// Registers a process that already has partitions, and takes over its sockets if this broker does not
    /// have them yet.
    fn welcome_back(
        &mut self,
        i: usize,
        seat: usize,
        request: &Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Answer> {
        if fds.len() != request.places.len() {
            return Err(refused("a keeper for each address is missing"));
        }
        let (claimed, before) = (seat..seat + request.shards, self.held.len());
        let is_others = |(first, count): (usize, usize)| first < claimed.end && claimed.start < first + count;
        // A process that has a partition also holds its token, so that the token's name cannot be bound.
        let has_tokens = || {
            claimed.clone().all(|seat| {
                token(&self.names, &self.place, seat).is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse)
            })
        };
        if seat == 0 || self.clients.iter().filter_map(|c| c.seats).any(is_others) || !has_tokens() {
            return Err(refused(format!("seat {seat} is not of who claims it")));
        }
        for (place, keeper) in request.places.iter().zip(fds) {
            if self.held.iter().all(|held| held.place != *place) {
                match Held::take_over(place.clone(), Keeper::from_fd(keeper)) {
                    Ok(held) => self.held.push(held),
                    Err(e) => {
                        self.held.truncate(before);
                        return Err(refused(format!("what came as the sockets of {place}: {e}")));
                    }
                }
            }
        }
        self.clients[i].seats = Some((seat, request.shards));
        self.left.retain(|left| !claimed.contains(left));
        self.steer_if(true);
        // A process that cannot be reached is detected as gone by the next poll, or it connects again.
        let seated = Answer::Seated { seat, any_user: self.any_user };
        let _ = message::send(&self.clients[i].connection, &seated, &[]);
        Ok(())
    }

    /// Returns the clients that have more than one partition, as first partition and count.
    fn several(&self) -> Vec<(usize, usize)> {
        self.clients.iter().filter_map(|c| c.seats).filter(|(_, count)| *count > 1).collect()
    }

    /// Attaches the steering program for the current partitions, if `changed`.
    fn steer_if(&self, changed: bool) {
        if changed {
            let program = steer::by_seat(&self.several());
            for held in &self.held {
                // Best effort: it worked when the first socket was bound, and there is no caller to report a
                // failure to.
                let _ = steer::attach(&held.sockets[0], &program);
            }
        }
    }
}

/// Opens the token of a partition: a socket with a unique name, which a process keeps as long as it has the
/// partition.
fn token(names: &Names, place: &Place, seat: usize) -> io::Result<OwnedFd> {
    let token = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    names.bind(&token, &token_name(place, seat))?;
    Ok(token)
}

fn token_name(place: &Place, seat: usize) -> String {
    format!("urxe-seat/{}/{seat}", place.key())
}

/// Accepts a pending connection. If the system is out of resources, the connection stays pending.
fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(connection) => return Some(connection),
            Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return None,
            Err(_) => {
                thread::sleep(AGAIN);
                return None;
            }
        }
    }
}

/// Returns how long a request waits for a port that is taken: if the sockets are those of processes that have
/// partitions, these are expected to register.
fn patience(ip: IpAddr) -> Duration {
    if PortOwner::count(ip, ROCE_PORT) < Seat::COUNT { GOING } else { PATIENCE }
}

fn refused(why: impl Into<String>) -> Answer {
    Answer::Refused { errno: libc::EPROTO, why: why.into() }
}

/// Converts an error to a response: its text, and the errno value that verbs report for it.
fn refusal(e: &UdpLinkError) -> Answer {
    let errno = match e {
        UdpLinkError::Taken { .. } => libc::EADDRINUSE,
        UdpLinkError::NotLocal { .. } | UdpLinkError::NoInterface { .. } => libc::ENODEV,
        UdpLinkError::Refused { errno, .. } => *errno,
        UdpLinkError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
    };
    let cause = std::error::Error::source(e).map_or(String::new(), |cause| format!(": {cause}"));
    Answer::Refused { errno, why: format!("{e}{cause}") }
}
