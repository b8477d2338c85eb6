//! Several processes on one address.
//!
//! Only one socket can have UDP port 4791 of an address, or a group of them among which a program in the kernel chooses by
//! the place that each was bound at. A small process, the *steward*, binds a whole group at once, one for each
//! [`Seat`](crate::nic::Seat), and gives each process that comes the socket of a seat: the queue pair numbers of that
//! process begin with its seat's, and so its packets find it. The first seat, with the management queue pairs, stays with
//! the steward.
//!
//! A place must not change while anybody has a socket: the kernel moves the last into the place of one that is closed. So
//! all are kept open by everybody, in one descriptor, the *keeper*: a unix socket on which a message with all of them
//! waits to be read. Whoever has the keeper has the group, and so a new steward takes over from any process that has a
//! seat.
//!
//! The steward listens on a unix socket whose abstract name has the address in it. Such names belong to a network
//! namespace, as addresses do. It is started by who finds none, and ends when nobody has a seat any more.

mod keeper;
mod message;
mod server;
mod start;
mod tenancy;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::socket;
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

/// An address, and its interface where it means nothing without (0 otherwise).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    pub ip: IpAddr,
    pub scope: u32,
}

impl Place {
    /// The name that a steward of this address listens at.
    fn name(self) -> String {
        format!("urxe-steward/{self}")
    }

    /// The one of several addresses by which their steward is found: all that share any of them should come to the same.
    fn chief(places: &[Place]) -> Option<Place> {
        places.iter().copied().min_by_key(|place| (place.ip.is_ipv6(), place.scope != 0))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            0 => write!(f, "{}", self.ip),
            scope => write!(f, "{}%{scope}", self.ip),
        }
    }
}
