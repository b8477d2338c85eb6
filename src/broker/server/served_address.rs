//! Addresses that the broker serves, each with its sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{SocketType, getsockname, sockopt};

use super::gsi_listener::GsiListener;
use crate::broker::keepalive::FdKeepalive;
use crate::link::udp::{BindAddr, UdpLinkError, steer};
use crate::nic::QpnPartition;
use crate::wire::ROCE_PORT;

/// An address that the broker serves, with its sockets.
pub struct ServedAddress {
    pub bind_addr: BindAddr,
    pub sockets: Vec<OwnedFd>,
    pub keepalive: FdKeepalive,
    pub gsi_listener: GsiListener,
}

impl ServedAddress {
    /// Binds one socket per QPN partition to the address, and opens its GSI listener.
    pub fn bind(bind_addr: BindAddr) -> Result<ServedAddress, UdpLinkError> {
        let ip = bind_addr.ip();
        let sockets = steer::bind_group(ip, &bind_addr.options(), QpnPartition::COUNT)?;
        let keepalive = FdKeepalive::new(&sockets);
        let keepalive =
            keepalive.map_err(UdpLinkError::system::<io::Error>(ip, "creating the keepalive descriptor"))?;
        let gsi_listener = GsiListener::open(&bind_addr, &sockets[0])?;
        Ok(ServedAddress { bind_addr, sockets, keepalive, gsi_listener })
    }

    /// Takes over an address, obtaining its sockets from the keepalive of a process that holds a partition.
    pub fn take_over(bind_addr: BindAddr, keepalive: FdKeepalive) -> io::Result<ServedAddress> {
        let sockets = keepalive.sockets()?;
        let is_valid = |socket: &OwnedFd| {
            let bound = getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok());
            let is_address = bound.is_some_and(|at| (at.ip(), at.port()) == (bind_addr.ip(), ROCE_PORT));
            is_address && sockopt::socket_type(socket) == Ok(SocketType::DGRAM)
        };
        if !sockets.iter().all(is_valid) {
            return Err(io::Error::other(
                "the keepalive descriptor carries other sockets than those of the address",
            ));
        }
        let gsi_listener = GsiListener::open(&bind_addr, &sockets[0]).map_err(io::Error::other)?;
        Ok(ServedAddress { bind_addr, sockets, keepalive, gsi_listener })
    }
}
