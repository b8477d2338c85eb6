//! Multicast membership of a link: the error type, and the socket options that make the kernel join a group.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// Reason why a link did not join a multicast group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The address is not a multicast address.
    #[error("{0} is not a multicast address: use one in 224.0.0.0/4 or ff00::/8")]
    NotMulticast(IpAddr),
    /// The link has no address of the group's IP version.
    #[error("cannot join {0}: the link has no address of that IP version")]
    NoAddress(IpAddr),
    /// The link has no multicast.
    #[error("cannot join {0}: the link has no multicast")]
    Unsupported(IpAddr),
    /// A system call failed.
    #[error("cannot join {group}: {source}{}", hint(.source))]
    System {
        /// The group.
        group: IpAddr,
        /// The underlying system error.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            ": another socket has bound UDP port 4791 of the group without SO_REUSEADDR"
        }
        Some(libc::ENOBUFS) => ": the socket has reached the limit net.ipv4.igmp_max_memberships",
        Some(libc::ENODEV) => ": the interface was removed",
        _ => "",
    }
}

/// Interface address in a call that identifies the interface by its index.
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// Checks that a group can be joined by a link with the given addresses.
pub(crate) fn check(group: IpAddr, mut addresses: impl Iterator<Item = IpAddr>) -> Result<(), JoinError> {
    match addresses.any(|own| own.is_ipv4() == group.is_ipv4()) {
        _ if !group.is_multicast() => Err(JoinError::NotMulticast(group)),
        false => Err(JoinError::NoAddress(group)),
        true => Ok(()),
    }
}

/// Makes the kernel join a group on an interface for as long as the socket is open. The kernel reports the
/// membership by IGMP or MLD, and configures the hardware to accept packets to the group.
pub(crate) fn join(socket: &impl AsFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
    Ok(match group {
        IpAddr::V4(ip) => sockopt::set_ip_add_membership_with_ifindex(socket, &ip, &ANY, ifindex),
        IpAddr::V6(ip) => sockopt::set_ipv6_add_membership(socket, &ip, ifindex),
    }?)
}

/// Makes the kernel leave a group while the socket stays open.
pub(crate) fn leave(socket: &impl AsFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
    Ok(match group {
        IpAddr::V4(ip) => sockopt::set_ip_drop_membership_with_ifindex(socket, &ip, &ANY, ifindex),
        IpAddr::V6(ip) => sockopt::set_ipv6_drop_membership(socket, &ip, ifindex),
    }?)
}

/// Sets the interface through which a socket of the IP version of `own` sends multicast packets.
pub(crate) fn set_interface(socket: &impl AsFd, own: IpAddr, ifindex: u32) -> io::Result<()> {
    Ok(match own {
        IpAddr::V4(_) => sockopt::set_ip_multicast_if_with_ifindex(socket, &ANY, &ANY, ifindex),
        IpAddr::V6(_) => sockopt::set_ipv6_multicast_if(socket, ifindex),
    }?)
}
