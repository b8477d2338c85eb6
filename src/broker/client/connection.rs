//! Connection to the broker: finds or starts a broker, and sends a lease's requests to it.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::SharingError;
use super::spawn::{StartedBroker, spawn_broker};
use crate::broker::protocol::{Request, Response};
use crate::broker::{ServeError, Sharing, broker_name};
use crate::host::unix_sockets::{SocketNames, fd_message, is_trusted, peer_user};
use crate::link::udp::{BindAddr, PortOwner, needs_scope};
use crate::nic::QpnPartition;
use crate::wire::ROCE_PORT;

/// Maximum time for a broker to start and to respond; long because a machine with many more running threads
/// than processors takes 10 s to start one (seen with 64 threads on two processors).
const BROKER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time to wait for a started broker before starting another one.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// Grace period for another user's broker to restart, if processes of any user share the address. During a
/// restart, that user owns the port, but no broker is found by name yet.
const RESTART_GRACE: Duration = Duration::from_millis(500);

/// Interval between attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum interval between checks of the port's owners. The interval grows to this limit, because each check
/// reads the list of all UDP sockets.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the primary address, which identifies the broker for all the given addresses: processes that
/// share any of them should find the same broker.
pub fn primary(bind_addrs: &[BindAddr]) -> Option<&BindAddr> {
    bind_addrs.iter().min_by_key(|bind_addr| (bind_addr.ip().is_ipv6(), needs_scope(bind_addr.ip())))
}

/// Resources granted by the broker.
pub struct LeaseGrant {
    pub connection: OwnedFd,
    pub partition: usize,
    pub fds: Vec<OwnedFd>,
    /// Whether the broker serves processes of any user.
    pub any_user: bool,
}

/// Sends a request to the broker and returns the grant. If there is no broker, starts one, which serves
/// processes of any user if `any_user` is set, and only those of this user otherwise.
pub fn request_lease(
    request: &Request,
    fds: &[BorrowedFd<'_>],
    sharing: &Sharing,
    any_user: bool,
    stopping: &dyn Fn() -> bool,
) -> Result<LeaseGrant, SharingError> {
    let primary = primary(&request.bind_addrs).expect("a link has an address");
    let ip = primary.ip();
    let system = |what| move |source| SharingError::System { ip, what, source };
    let private = SocketNames::of(false).map_err(system("creating the directory of the broker's socket"))?;
    let start_time = Instant::now();
    let mut started: Option<StartedBroker> = None;
    let (mut next_check, mut check_interval) = (start_time, RETRY_INTERVAL);
    while start_time.elapsed() < BROKER_TIMEOUT && !stopping() {
        match connect_to(primary, &private, sharing).map_err(system("connecting to the broker"))? {
            Some(connection) => {
                // A broker that ended just now does not respond; then another one is needed.
                let response = exchange(&connection, request, fds);
                if let Some((line, fds)) =
                    response.map_err(system("requesting a QPN partition from the broker"))?
                {
                    return match line.parse().unwrap_or_else(Response::protocol_error) {
                        Response::Granted { partition, any_user } => {
                            Ok(LeaseGrant { connection, partition, fds, any_user })
                        }
                        Response::Refused { errno, reason } => {
                            Err(SharingError::Refused { ip, errno, reason })
                        }
                    };
                }
            }
            None if Instant::now() < next_check => {}
            None => {
                if let Some(reason) = started.as_mut().and_then(StartedBroker::failure)
                    // The other broker is about to listen, or to end.
                    && reason != ServeError::Another(primary.to_string()).to_string()
                {
                    let reason = format!("`{} broker {primary}`: {reason}", sharing.program.display());
                    return Err(system("starting the broker")(io::Error::other(reason)));
                }
                next_check = Instant::now() + check_interval;
                check_interval = (2 * check_interval).min(MAX_CHECK_INTERVAL);
                // A process that already has a partition brings the sockets of the port along for a new
                // broker.
                let other_user = if request.partition.is_none() { other_user(primary) } else { None };
                match other_user {
                    Some(user) if !sharing.any_user || start_time.elapsed() > RESTART_GRACE => {
                        let reason = refusal(primary, user);
                        return Err(SharingError::Refused { ip, errno: libc::EACCES, reason });
                    }
                    None if started.as_ref().is_none_or(|broker| broker.at.elapsed() > START_TIMEOUT) => {
                        let broker = spawn_broker(sharing, any_user, &primary.to_string());
                        started = Some(broker.map_err(system("starting `urxe broker`"))?);
                    }
                    _ => {}
                }
            }
        }
        thread::sleep(RETRY_INTERVAL);
    }
    let source = io::Error::from_raw_os_error(libc::ETIMEDOUT);
    Err(system("waiting for the broker of the address (`urxe broker`)")(source))
}

/// Sends a request and returns the response, or `None` if the broker exited without responding.
fn exchange(
    connection: &OwnedFd,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    match fd_message::send(connection, request, fds) {
        Err(e) if !is_disconnected(&e) => return Err(e),
        // The broker may refuse a process, and close, before it reads anything: its response is queued
        // nevertheless.
        _ => {}
    }
    for _ in 0..2 {
        match fd_message::receive(connection, false) {
            // The request was not read. The kernel reports this once, before it returns the response.
            Err(e) if is_disconnected(&e) => {}
            other => return other,
        }
    }
    Ok(None)
}

/// Returns the user ID of the processes that share the address, if they belong to another user.
fn other_user(bind_addr: &BindAddr) -> Option<u32> {
    let own = nix::unistd::geteuid().as_raw();
    // The broker detects a program that has bound the port exclusively.
    PortOwner::user_of_group(bind_addr.ip(), ROCE_PORT, QpnPartition::COUNT).filter(|user| *user != own)
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

/// Connects to the broker for an address. Tries the name that only this user can bind, then the name that any
/// user can bind, and ignores a socket whose owner is not trusted. Returns `None` if there is no broker.
fn connect_to(bind_addr: &BindAddr, private: &SocketNames, sharing: &Sharing) -> io::Result<Option<OwnedFd>> {
    for names in [private, &SocketNames::Abstract] {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, Some(BROKER_TIMEOUT))?;
        }
        // Does not block on a process that owns an abstract name and accepts no connection.
        let may_be_of_others = *names == SocketNames::Abstract && !sharing.any_user;
        rustix::io::ioctl_fionbio(&socket, may_be_of_others)?;
        match connect(&socket, &names.address(&broker_name(bind_addr))?) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED) => continue,
            Err(_) if may_be_of_others => continue,
            Err(e) => return Err(e.into()),
        }
        rustix::io::ioctl_fionbio(&socket, false)?;
        if is_trusted(peer_user(&socket)?, sharing.any_user) {
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
    fn refusal_by_broker_that_closes_without_reading_is_received() {
        let request = Request { partition: None, shards: 1, bind_addrs: vec!["127.0.0.1".parse().unwrap()] };
        let refused = Response::Refused { errno: libc::EACCES, reason: "no".into() };
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // Closed before the request is sent.
        let (client, broker) = pair();
        fd_message::send(&broker, &refused, &[]).unwrap();
        drop(broker);
        let response = exchange(&client, &request, &[]).unwrap().map(|(line, _)| line.parse());
        assert_eq!(response, Some(Ok(refused.clone())));
        // Closed with the request unread.
        let (client, broker) = pair();
        fd_message::send(&client, &request, &[]).unwrap();
        fd_message::send(&broker, &refused, &[]).unwrap();
        drop(broker);
        let response = exchange(&client, &request, &[]).unwrap().map(|(line, _)| line.parse());
        assert_eq!(response, Some(Ok(refused)));
        // Closed without a response.
        let (client, broker) = pair();
        drop(broker);
        assert!(exchange(&client, &request, &[]).unwrap().is_none());
    }
}
