//! A process's side: the seat that it has, for as long as it needs one.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::keeper::Keeper;
use super::message::{self, Answer, Request};
use super::start::start;
use super::{Place, Sharing, is_trusted};
use crate::link::background;
use crate::link::process::Process;
use crate::link::udp::UdpLinkError;
use crate::nic::Seat;

/// How long a steward may take to come, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long after one was started it is looked for before another is.
const STARTING: Duration = Duration::from_secs(1);

/// How often it is looked for.
const AGAIN: Duration = Duration::from_millis(2);

/// A seat, and what goes with it.
pub(in super::super) struct Tenancy {
    shared: Arc<Shared>,
    seat: Seat,
    watcher: Option<JoinHandle<OwnedFd>>,
    /// A child has a copy of this, but not of the thread.
    process: Process,
    /// Keep others from getting the seat.
    _tokens: Vec<OwnedFd>,
    /// To the steward, for the end: closed after all else, or the steward would be gone and the port still be taken.
    connection: Option<OwnedFd>,
}

/// What the thread that watches the steward needs.
struct Shared {
    /// What to say to a new steward.
    request: Request,
    keepers: Vec<Keeper>,
    sharing: Sharing,
    stop: EventFd,
    /// Joined packets have turned out to be of several seats.
    mixed: AtomicBool,
}

/// The sockets of an address, one for each shard.
pub(in super::super) type Sockets = Vec<OwnedFd>;

impl Tenancy {
    /// Takes a seat of these addresses; their sockets come in the same order.
    pub fn join(
        places: Vec<Place>,
        shards: usize,
        sharing: &Sharing,
    ) -> Result<(Arc<Tenancy>, Vec<Sockets>), UdpLinkError> {
        let chief = Place::chief(&places).expect("a link has an address");
        let ip = chief.ip;
        let request = Request { seat: None, shards, places };
        if !request.fits_a_message() {
            let why = format!(
                "{} addresses and {shards} shards are too many to share: use fewer shards, or one address (--ip)",
                request.places.len()
            );
            return Err(UdpLinkError::Refused { ip, errno: libc::EINVAL, why });
        }
        let (connection, first, mut fds) = ask(&request, &[], sharing, ip, &|| false)?;
        let refused = |why| UdpLinkError::Refused {
            ip,
            errno: libc::EPROTO,
            why: format!("no UDP link on {ip}: the steward gave {why}"),
        };
        let seat = Seat::new(first).ok_or_else(|| refused("a seat that does not exist"))?;
        if fds.len() != shards + request.places.len() * (shards + 1) {
            return Err(refused("a wrong number of sockets"));
        }
        let mut per_address = fds.split_off(shards).into_iter();
        let (mut sockets, mut keepers) = (Vec::new(), Vec::new());
        for _ in &request.places {
            sockets.push(per_address.by_ref().take(shards).collect());
            keepers.extend(per_address.next().map(Keeper::from_fd));
        }
        let system = |what| move |source| UdpLinkError::System { ip, what, source };
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let stop = stop.map_err(|e| system("making an eventfd")(e.into()))?;
        let request = Request { seat: Some(first), ..request };
        let sharing = sharing.clone();
        let shared = Arc::new(Shared { request, keepers, sharing, stop, mixed: AtomicBool::new(false) });
        let watching = shared.clone();
        let watcher = background::spawn("urxe seat".into(), move || watching.watch(connection));
        let watcher = watcher.map_err(system("starting a thread"))?;
        let process = Process::current();
        let (watcher, connection) = (Some(watcher), None);
        Ok((Arc::new(Tenancy { shared, seat, watcher, process, _tokens: fds, connection }), sockets))
    }

    pub fn seat(&self) -> Seat {
        self.seat
    }

    /// Whether processes of any user have a part.
    pub fn any_user(&self) -> bool {
        self.shared.sharing.any_user
    }

    /// Packets for several seats came as one, and those of others are lost. That is not to happen again.
    pub fn stop_coalescing(&self) {
        if !self.shared.mixed.load(Ordering::Relaxed) {
            // If it fails, peers send again what is lost, and the next of such a kind tries again.
            let stopped = self.shared.keepers.iter().try_for_each(Keeper::stop_coalescing).is_ok();
            self.shared.mixed.store(stopped, Ordering::Relaxed);
        }
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // To drop it would detach it, and a child may have another thread in its place.
            std::mem::forget(self.watcher.take());
        } else {
            let _ = self.shared.stop.write(1);
            self.connection = self.watcher.take().and_then(|watcher| watcher.join().ok());
        }
    }
}

impl Shared {
    /// Looks that there is a steward, until told to stop; the connection to the last.
    fn watch(&self, mut connection: OwnedFd) -> OwnedFd {
        while self.wait_for_end(&connection) {
            let ip = self.request.places[0].ip;
            match ask(&self.request, &self.keepers, &self.sharing, ip, &|| self.is_stopping()) {
                Ok((new, ..)) => connection = new,
                // Without one this process goes on as before; others that come later get no seat.
                Err(_) => break,
            }
        }
        connection
    }

    /// Waits until the steward is gone; false if there is to be no other.
    fn wait_for_end(&self, connection: &OwnedFd) -> bool {
        loop {
            let mut fds = [
                PollFd::new(connection.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(_) => return false,
            }
            if self.is_stopping() {
                return false;
            }
            // It says nothing unasked.
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

/// Asks the steward, which is started if there is none; the connection, the seat and the descriptors that came along.
fn ask(
    request: &Request,
    keepers: &[Keeper],
    sharing: &Sharing,
    ip: IpAddr,
    stopping: &dyn Fn() -> bool,
) -> Result<(OwnedFd, usize, Vec<OwnedFd>), UdpLinkError> {
    let chief = Place::chief(&request.places).expect("a link has an address");
    let system = |what| move |source| UdpLinkError::System { ip, what, source };
    let fds: Vec<BorrowedFd<'_>> = keepers.iter().map(AsFd::as_fd).collect();
    let begun = Instant::now();
    let mut started: Option<Instant> = None;
    while begun.elapsed() < PATIENCE && !stopping() {
        match connect_to(chief) {
            Ok(connection) => {
                check_user(&connection, chief, sharing)?;
                let sent = message::send(&connection, request, &fds);
                let answer = sent.and_then(|()| message::receive(&connection, false));
                // It may have ended just now: then another is needed.
                match answer {
                    Ok(Some((line, fds))) => {
                        let refused = |why| Answer::Refused { errno: libc::EPROTO, why };
                        return match line.parse().unwrap_or_else(refused) {
                            Answer::Seated(seat) => Ok((connection, seat, fds)),
                            Answer::Refused { errno, why } => Err(UdpLinkError::Refused { ip, errno, why }),
                        };
                    }
                    Ok(None) => {}
                    Err(e) if is_gone(&e) => {}
                    Err(e) => return Err(system("asking the steward for a part of the port")(e)),
                }
            }
            Err(rustix::io::Errno::CONNREFUSED) => {
                if started.is_none_or(|at| at.elapsed() > STARTING) {
                    start(sharing, &chief.to_string()).map_err(system("starting `urxe steward`"))?;
                    started = Some(Instant::now());
                }
            }
            Err(e) => return Err(system("connecting to the steward")(e.into())),
        }
        thread::sleep(AGAIN);
    }
    let why = io::Error::from_raw_os_error(libc::ETIMEDOUT);
    Err(system("finding the steward that shares the address (`urxe steward`)")(why))
}

/// Whether an error says that the other end is closed.
fn is_gone(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn connect_to(place: &Place) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(PATIENCE))?;
    }
    connect(&socket, &SocketAddrUnix::new_abstract_name(place.name().as_bytes())?)?;
    Ok(socket)
}

/// Any process could have taken the name: what it hands out is trusted only if it may do as this one may.
fn check_user(connection: &OwnedFd, place: &Place, sharing: &Sharing) -> Result<(), UdpLinkError> {
    let ip = place.ip;
    let who = sockopt::socket_peercred(connection);
    let who =
        who.map_err(|e| UdpLinkError::System { ip, what: "asking whose the steward is", source: e.into() })?;
    let (user, own) = (who.uid.as_raw(), nix::unistd::geteuid().as_raw());
    if is_trusted(user, sharing.any_user) {
        return Ok(());
    }
    let why = format!(
        "{place} is shared by processes of user {user}, and this is one of user {own}: use another address, or let all \
         of them share with anybody (urxe run --any-user)"
    );
    Err(UdpLinkError::Refused { ip, errno: libc::EACCES, why })
}
