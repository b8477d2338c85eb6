//! Several processes on one address.
//!
//! Only one socket can have UDP port 4791 of an address, or a group of them among which a program in the kernel chooses by
//! the place that each was bound at. A small process, the *steward*, binds a whole group at once, one for each
//! [`Seat`](crate::nic::Seat), and gives each process that comes the socket of a seat: the queue pair numbers of that
//! process begin with its seat's, and so its packets find it. The first seat stays with the steward.
//!
//! QP1, by which connections are made, is everybody's. What answers a process finds it by the ID that the process has
//! given, which begins with its seat's number as queue pairs do: the program in the kernel looks at that instead. Only what
//! asks for a service comes to the steward, who sends it on to the unix socket of who has claimed it. It keeps no
//! list of them, but of who has asked for what lately: who gives up before he has an answer knows no ID to name.
//!
//! A place must not change while anybody has a socket: the kernel moves the last into the place of one that is closed. So
//! all are kept open by everybody, in one descriptor, the *keeper*: a unix socket on which a message with all of them
//! waits to be read. Whoever has the keeper has the group, and so a new steward takes over from any process that has a
//! seat.
//!
//! The steward listens on a unix socket that has the address in its name (`names`), which belongs to a network namespace
//! as addresses do. It is started by who finds none, and ends when nobody has a seat any more.

mod askers;
mod claims;
mod delivery;
mod inquiry;
mod keeper;
mod message;
mod names;
mod reception;
mod server;
mod start;
mod tenancy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{UdpOptions, socket};
pub(super) use claims::Claims;
pub(super) use names::Names;
pub use server::{ServeError, serve};
pub(super) use tenancy::Tenancy;

/// How to share an address with other processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// The `urxe` program, which is the steward when called as `urxe steward`.
    pub program: PathBuf,
    /// Whether processes of any user are welcome, and a steward of any user is trusted.
    pub any_user: bool,
}

/// Whether what a process of this user says is trusted: it may do as this one may.
fn is_trusted(user: u32, any_user: bool) -> bool {
    any_user || user == 0 || user == nix::unistd::geteuid().as_raw()
}

/// A socket for inquiries, which never waits.
fn datagram_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

/// An address, and the interface that has it, where that is known.
#[derive(Clone, Debug)]
pub(super) struct Place {
    ip: IpAddr,
    interface: Option<String>,
}

impl Place {
    pub fn new(ip: IpAddr, options: &UdpOptions) -> Place {
        // IPv4 is bound without.
        Place { ip, interface: options.interface.clone().filter(|_| ip.is_ipv6()) }
    }

    /// How it is bound.
    fn options(&self) -> UdpOptions {
        UdpOptions { interface: self.interface.clone(), ..UdpOptions::default() }
    }

    /// What its steward's name has: the interface only where the address means nothing without.
    fn key(&self) -> String {
        match &self.interface {
            Some(interface) if socket::needs_scope(self.ip) => format!("{}%{interface}", self.ip),
            _ => self.ip.to_string(),
        }
    }

    /// The name that a steward of this address listens at.
    fn name(&self) -> String {
        format!("urxe-steward/{}", self.key())
    }

    /// The one of several addresses by which their steward is found: all that share any of them should come to the same.
    fn chief(places: &[Place]) -> Option<&Place> {
        places.iter().min_by_key(|place| (place.ip.is_ipv6(), socket::needs_scope(place.ip)))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Place {}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            None => write!(f, "{}", self.ip),
            Some(interface) => write!(f, "{}%{interface}", self.ip),
        }
    }
}
