//! Service registry of a process on a shared address: registers services, and receives the requests for them.
//!
//! A process that listens for a service binds a Unix socket whose [name](SocketNames) contains the service ID
//! and the address. The name is unique, so one process has the service. The broker forwards requests for the
//! service to that socket.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg};
use rustix::net::sockopt;

use crate::broker::forwarded_mad::{self, ForwardedMad};
use crate::burst::RxBurst;
use crate::host::unix_sockets::{SocketNames, datagram_socket, is_trusted};
use crate::link::ClaimError;
use crate::link::udp::BindAddr;
use crate::sys::fork::CloseOnForkFd;
use crate::transport::Instant;
use crate::wire::IpIdent;
use crate::wire::mad::ServiceId;

/// Minimum interval between polls of the sockets, so that a thread that polls continuously does not make a
/// system call each time.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Maximum number of sockets polled per call of `receive`, and of datagrams received from each.
const BATCH: usize = 16;

/// A registered service and the number of claims on it.
struct Service {
    socket: CloseOnForkFd,
    claims: usize,
}

/// The services that a process has registered at one address.
pub struct ServiceRegistry {
    bind_addr: BindAddr,
    names: SocketNames,
    any_user: bool,
    services: HashMap<ServiceId, Service>,
    /// Epoll set of the service sockets.
    epoll: Epoll,
    /// Time of the last poll.
    last_poll: Instant,
    /// Number of datagrams dropped because the sender is not trusted or the content is not a forwarded MAD.
    pub rejected: u64,
}

impl ServiceRegistry {
    pub fn new(bind_addr: BindAddr, names: SocketNames, any_user: bool) -> io::Result<ServiceRegistry> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let (services, last_poll) = (HashMap::new(), Instant(0));
        Ok(ServiceRegistry { bind_addr, names, any_user, services, epoll, last_poll, rejected: 0 })
    }

    /// Registers a service, unless another process has registered it. A process may claim a service several
    /// times, for several listeners; it selects among them itself.
    pub fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
        if let Some(address) = address.filter(|address| *address != self.bind_addr.ip()) {
            return Err(ClaimError::NotLocal { address });
        }
        if let Some(service) = self.services.get_mut(&service) {
            service.claims += 1;
            return Ok(());
        }
        match self.bind(service) {
            Ok(socket) => {
                self.services.insert(service, Service { socket: CloseOnForkFd::new(socket), claims: 1 });
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                Err(ClaimError::InUse { service, address: self.bind_addr.to_string() })
            }
            Err(source) => Err(match &self.names {
                SocketNames::Private(directory)
                    if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) =>
                {
                    let user = nix::unistd::geteuid().as_raw();
                    let directory = directory.display().to_string();
                    ClaimError::NoAccess { service, directory, user, source }
                }
                _ => ClaimError::System { service, source },
            }),
        }
    }

    fn bind(&self, service: ServiceId) -> io::Result<OwnedFd> {
        let socket = datagram_socket()?;
        sockopt::set_socket_passcred(&socket, true)?;
        let name = forwarded_mad::name(&self.bind_addr, service);
        self.names.bind(&socket, &name)?;
        self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, service.0))?;
        Ok(socket)
    }

    /// Releases one claim on a service. Releasing the last claim also removes the registration.
    pub fn release(&mut self, service: ServiceId) {
        let Some(claimed) = self.services.get_mut(&service) else { return };
        claimed.claims -= 1;
        if claimed.claims == 0 {
            // A program started meanwhile may have a copy of the socket, which would keep it in the epoll
            // set.
            let _ = self.epoll.delete(&claimed.socket);
            // A forked child's copy does not own the name.
            if claimed.socket.is_of_this_process() {
                self.names.unbind(&forwarded_mad::name(&self.bind_addr, service));
            }
            self.services.remove(&service);
        }
    }

    /// Passes received requests for the registered services to `sink`, and returns their number.
    pub fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(RxBurst<'_>)) -> usize {
        if self.services.is_empty() || now.since(self.last_poll) < MIN_POLL_INTERVAL {
            return 0;
        }
        self.last_poll = now;
        let mut ready = [EpollEvent::empty(); BATCH];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        let mut packets = 0;
        for service in ready[..count].iter().map(|event| ServiceId(event.data())) {
            let Some(Service { socket, .. }) = self.services.get(&service) else { continue };
            for _ in 0..BATCH {
                let mut bytes = [0; forwarded_mad::MAX_LEN];
                let Some(received) = recv_with_uid(socket, &mut bytes) else { break };
                let trusted = received.filter(|(_, user)| is_trusted(*user, self.any_user));
                let len = trusted.map_or(0, |(len, _)| len);
                match ForwardedMad::parse(&bytes[..len]) {
                    Some(ForwardedMad { flow, packet: data }) => {
                        sink(RxBurst::new(flow, IpIdent::Unknown, data.len(), data));
                        packets += 1;
                    }
                    None => self.rejected += 1,
                }
            }
        }
        packets
    }
}

/// The file descriptor is readable when a request has arrived.
impl AsFd for ServiceRegistry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// Receives a datagram. Returns its length and its sender's user ID, `Some(None)` if it was truncated or had
/// no credentials, or `None` if no datagram is pending.
fn recv_with_uid(socket: &CloseOnForkFd, bytes: &mut [u8]) -> Option<Option<(usize, u32)>> {
    // nix, because a sender in another PID namespace has the process ID 0, which rustix does not accept.
    let mut control = nix::cmsg_space!(UnixCredentials);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(bytes)];
    let received = recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    let user = received.cmsgs().ok()?.find_map(|message| match message {
        ControlMessageOwned::ScmCredentials(sender) => Some(sender.uid()),
        _ => None,
    });
    let whole = !received.flags.contains(MsgFlags::MSG_TRUNC);
    Some(user.filter(|_| whole).map(|user| (received.bytes, user)))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred, sendmsg_addr, sendto};

    use super::*;
    use crate::link::udp::UdpOptions;
    use crate::wire::Flow;

    fn claims(ip: &str, any_user: bool) -> ServiceRegistry {
        let bind_addr = BindAddr::new(ip.parse().unwrap(), &UdpOptions::default());
        ServiceRegistry::new(bind_addr, SocketNames::of(any_user).unwrap(), any_user).unwrap()
    }

    fn received(claims: &mut ServiceRegistry, at: u64) -> Vec<usize> {
        let mut all = Vec::new();
        claims.receive(Instant(at * 1_000_000), &mut |burst| all.push(burst.data.len()));
        all
    }

    #[test]
    fn datagrams_of_other_users_are_dropped_unless_any_user_is_trusted() {
        let own = nix::unistd::geteuid();
        let flow = Flow::new([127, 0, 0, 1].into(), [127, 18, 230, 1].into(), 4791);
        let forwarded_mad = ForwardedMad { flow, packet: &[1; 280] }.bytes();
        let socket = datagram_socket().unwrap();
        let send = |claims: &ServiceRegistry, uid: u32| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // Only root may send the credentials of another user.
            let credentials = UCred { uid: rustix::process::Uid::from_raw(uid), ..own_credentials() };
            assert!(control.push(SendAncillaryMessage::ScmCredentials(credentials)));
            let name = forwarded_mad::name(&claims.bind_addr, ServiceId(1));
            let name = claims.names.address(&name).unwrap();
            sendmsg_addr(&socket, &name, &[IoSlice::new(&forwarded_mad)], &mut control, SendFlags::empty())
        };
        for (ip, any_user) in [("127.18.230.1", false), ("127.18.230.2", true)] {
            let mut claims = claims(ip, any_user);
            claims.claim(ServiceId(1), None).unwrap();
            send(&claims, own.as_raw()).unwrap();
            assert_eq!((received(&mut claims, 1), claims.rejected), (vec![280], 0));
            if own.is_root() {
                send(&claims, 65_534).unwrap();
                let expected = if any_user { vec![280] } else { vec![] };
                assert_eq!((received(&mut claims, 2), claims.rejected), (expected, u64::from(!any_user)));
            } else {
                assert!(send(&claims, 65_534).is_err());
            }
        }
    }

    fn own_credentials() -> UCred {
        UCred {
            pid: rustix::process::getpid(),
            uid: rustix::process::getuid(),
            gid: rustix::process::getgid(),
        }
    }

    #[test]
    fn service_is_in_use_until_its_last_claim_is_released() {
        let mut all = [(); 2].map(|()| claims("127.18.232.1", false));
        let (service, in_use) = (ServiceId(1), |e| matches!(e, Err(ClaimError::InUse { .. })));
        let [one, other] = &mut all;
        one.claim(service, None).unwrap();
        one.claim(service, Some(one.bind_addr.ip())).unwrap();
        one.release(service);
        assert!(in_use(other.claim(service, None)));
        one.release(service);
        other.claim(service, None).unwrap();
        assert!(in_use(one.claim(service, None)));
    }

    /// Checks that a forked child does not keep a copy of the socket, which would keep the name in use.
    #[test]
    fn forked_child_does_not_keep_services_of_its_parent() {
        let mut all = [(); 2].map(|()| claims("127.18.233.1", false));
        let service = ServiceId(1);
        all[0].claim(service, None).unwrap();
        // SAFETY: the child calls nothing but `pause` until it is killed, so it takes no lock of another
        // thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: `pause` takes no arguments and may be called at any time.
                unsafe { libc::pause() };
            }
        }
        // The child's fork handler closes the descriptors that are not to be inherited; when it runs is up to
        // the scheduler.
        all[0].release(service);
        let start = std::time::Instant::now();
        let mut claimed = all[1].claim(service, None);
        while claimed.is_err() && start.elapsed() < Duration::from_secs(5) {
            std::thread::yield_now();
            claimed = all[1].claim(service, None);
        }
        // SAFETY: no other thread waits for this child, so its ID is valid until `waitpid`, which accepts a
        // null status.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        claimed.unwrap();
    }
    #[test]
    fn requests_for_each_of_many_services_arrive_until_the_services_are_released() {
        let mut claims = claims("127.18.231.1", false);
        let socket = datagram_socket().unwrap();
        let send = |claims: &ServiceRegistry, id: u64, datagram: &[u8]| {
            let name = forwarded_mad::name(&claims.bind_addr, ServiceId(id));
            sendto(&socket, datagram, SendFlags::empty(), &claims.names.address(&name).unwrap()).unwrap();
        };
        let flow = Flow::new([127, 0, 0, 1].into(), [127, 18, 231, 1].into(), 4791);
        for id in 0..40 {
            claims.claim(ServiceId(id), None).unwrap();
            let packet = vec![0; 100 + id as usize];
            send(&claims, id, &ForwardedMad { flow, packet: &packet }.bytes());
        }
        send(&claims, 3, b"not a forwarded MAD");
        let mut all: Vec<usize> = (1..=3).flat_map(|at| received(&mut claims, at)).collect();
        all.sort_unstable();
        assert_eq!((all, claims.rejected), ((100..140).collect(), 1));
        (0..40).for_each(|id| claims.release(ServiceId(id)));
        assert!(received(&mut claims, 9).is_empty());
        claims.claim(ServiceId(1), None).unwrap();
    }
}
