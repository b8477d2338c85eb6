//! Broker (`urxe steward`) that shares one address between several processes.
//!
//! UDP port 4791 of an address can belong to one socket only, or to a reuseport group of sockets among which
//! a BPF program in the kernel selects by the order in which they were bound. The broker, a small daemon,
//! binds a whole group at once, one socket for each `QpnPartition` (QPN
//! partition), and passes the socket of a partition to each process that connects. The queue pair numbers of
//! that process begin with the partition's number, so its packets find it. The first partition belongs to the
//! broker.
//!
//! All processes share QP1, through which connections are established. A response finds its process by the
//! communication ID that the process has assigned, which begins with its partition's number as queue pair
//! numbers do: the BPF program looks at that ID instead. Only requests for a service go to the broker, which
//! forwards them to the Unix socket of the process that has registered the service. The broker keeps no list
//! of the services, but it remembers which client recently requested which service: a client that gives up
//! before it gets a response knows no ID of the server to name.
//!
//! The index of a socket in its group must not change while any process uses one: when a socket is closed,
//! the kernel moves the last one to its index. Therefore every process keeps all of them open, through one
//! descriptor, the *keeper*: a Unix socket with an unread message that carries them all. The keeper gives
//! access to the whole group, so a new broker can take over from any process that has a partition.
//!
//! The broker listens on a Unix socket that has the address in its name (`names`), which belongs to a network
//! namespace as addresses do. A process that finds no broker starts one; the broker ends when no process has
//! a partition any more.

mod forwarded_mad;
mod gsi_listener;
mod keepalive;
mod lease;
mod mailboxes;
mod message;
mod names;
mod recent_reqs;
mod server;
mod service_registry;
mod start;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{UdpOptions, socket};
pub(super) use lease::Lease;
pub(super) use names::Names;
pub use server::{ServeError, serve};
pub(super) use service_registry::ServiceRegistry;

/// Options for sharing an address with other processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// The `urxe` program, which runs the broker when called as `urxe steward`.
    pub program: PathBuf,
    /// Whether processes of any user may share the address, and a broker of any user is trusted.
    pub any_user: bool,
}

/// Reports whether messages of a process of this user are trusted: root and the same user can do whatever
/// this process can.
fn is_trusted(user: u32, any_user: bool) -> bool {
    any_user || user == 0 || user == nix::unistd::geteuid().as_raw()
}

/// Opens a non-blocking Unix datagram socket for forwarded MADs.
fn datagram_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

/// Bind address: an IP address and the interface that has it, where that is known.
#[derive(Clone, Debug)]
pub(super) struct BindAddr {
    ip: IpAddr,
    interface: Option<String>,
}

impl BindAddr {
    pub fn new(ip: IpAddr, options: &UdpOptions) -> BindAddr {
        // IPv4 addresses are bound without the interface.
        BindAddr { ip, interface: options.interface.clone().filter(|_| ip.is_ipv6()) }
    }

    /// Returns the options to bind the address with.
    fn options(&self) -> UdpOptions {
        UdpOptions { interface: self.interface.clone(), ..UdpOptions::default() }
    }

    /// Returns the part of socket names that identifies the address; includes the interface only where the
    /// address is ambiguous without it.
    fn key(&self) -> String {
        match &self.interface {
            Some(interface) if socket::needs_scope(self.ip) => format!("{}%{interface}", self.ip),
            _ => self.ip.to_string(),
        }
    }

    /// Returns the name of the socket on which the broker of this address listens.
    fn name(&self) -> String {
        format!("urxe-steward/{}", self.key())
    }

    /// Returns the primary address, by which the broker of several addresses is found: processes that share
    /// any of them should find the same broker.
    fn primary(bind_addrs: &[BindAddr]) -> Option<&BindAddr> {
        bind_addrs.iter().min_by_key(|bind_addr| (bind_addr.ip.is_ipv6(), socket::needs_scope(bind_addr.ip)))
    }
}

impl PartialEq for BindAddr {
    fn eq(&self, other: &BindAddr) -> bool {
        self.key() == other.key()
    }
}

impl Eq for BindAddr {}

impl fmt::Display for BindAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            None => write!(f, "{}", self.ip),
            Some(interface) => write!(f, "{}%{interface}", self.ip),
        }
    }
}
