//! Multicast membership of a link: the error type, and the socket options that make the kernel join a group.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use super::socket_calls::set_option;

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

/// Makes the kernel join a group on an interface for as long as the socket is open. The kernel reports the
/// membership by IGMP or MLD, and configures the hardware to accept packets to the group.
pub(crate) fn join(socket: &impl AsFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
    change(socket, group, ifindex, libc::IP_ADD_MEMBERSHIP, libc::IPV6_ADD_MEMBERSHIP)
}

/// Makes the kernel leave a group while the socket stays open.
pub(crate) fn leave(socket: &impl AsFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
    change(socket, group, ifindex, libc::IP_DROP_MEMBERSHIP, libc::IPV6_DROP_MEMBERSHIP)
}

/// Sets the interface through which an IPv4 socket sends multicast packets.
pub(crate) fn set_interface_v4(socket: &impl AsFd, ifindex: u32) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request_v4(Ipv4Addr::UNSPECIFIED, ifindex))
}

fn request_v4(group: Ipv4Addr, ifindex: u32) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: group.to_bits().to_be() },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: ifindex as i32,
    }
}

fn change(socket: &impl AsFd, group: IpAddr, ifindex: u32, v4: i32, v6: i32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => set_option(socket, libc::IPPROTO_IP, v4, &request_v4(group, ifindex)),
        IpAddr::V6(group) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                ipv6mr_interface: ifindex,
            };
            set_option(socket, libc::IPPROTO_IPV6, v6, &request)
        }
    }
}
