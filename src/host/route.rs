//! Routes of the system: the local address that the routing table selects for a destination, and resolution
//! of the next hop.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use super::socket_calls::unsent_bytes;
use super::system_udp;

/// Destination port of the datagram that starts a neighbour resolution (discard, RFC 863).
const DISCARD_PORT: u16 = 9;

/// Interval at which the result of a resolution is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the source address that the routing table selects for packets to `dst`, without sending any.
///
/// # Errors
/// The error of the system if there is no route to `dst`.
pub fn source_towards(dst: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Ok(connected(any, dst)?.local_addr()?.ip())
}

/// Returns the MTU of the route to `dst` in bytes, without sending a packet: that of the interface, or a smaller
/// one that a router has reported (path MTU discovery).
///
/// # Errors
/// The error of the system if there is no route to `dst`, or for an IPv6 address.
pub fn mtu_towards(dst: SocketAddr) -> io::Result<u32> {
    let any: IpAddr = if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Ok(getsockopt(&connected(any, dst)?, sockopt::IpMtu)?.unsigned_abs())
}

/// Sends an empty datagram from `src` to `dst`, and waits for an ICMP error.
///
/// # Errors
/// The error that arrives within `timeout`, or the error of the system if there is no route.
pub fn probe(src: IpAddr, dst: SocketAddr, timeout: Duration) -> io::Result<()> {
    let socket = system_udp::bound((src, 0).into())?;
    socket.connect(dst)?;
    socket.send(&[])?;
    let begin = Instant::now();
    while begin.elapsed() < timeout {
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        thread::sleep(CHECK_INTERVAL);
    }
    Ok(())
}

fn connected(src: IpAddr, mut dst: SocketAddr) -> io::Result<UdpSocket> {
    let socket = system_udp::bound((src, 0).into())?;
    // The port does not affect the route.
    dst.set_port(DISCARD_PORT);
    socket.connect(dst)?;
    Ok(socket)
}

/// Neighbour resolution (ARP, NDP) of the next hop by the system, which holds back a datagram until the
/// resolution ends.
pub struct NeighbourResolution(UdpSocket);

impl NeighbourResolution {
    /// Sends an empty datagram from `src` to `dst`. Returns `None` if the system has sent it already, because
    /// it knows the link-layer address.
    ///
    /// # Errors
    /// The error of the system if there is no route to `dst`.
    pub fn start(src: IpAddr, dst: SocketAddr) -> io::Result<Option<NeighbourResolution>> {
        let socket = connected(src, dst)?;
        match src {
            IpAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
            IpAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
        }
        socket.send(&[])?;
        Ok(Some(NeighbourResolution(socket)).filter(|resolution| resolution.result().is_none()))
    }

    /// Returns the result, or `None` if there is none yet.
    fn result(&self) -> Option<io::Result<()>> {
        if unsent_bytes(&self.0) > 0 {
            return None;
        }
        Some(match self.0.take_error() {
            // The host has answered that nothing listens on the port.
            Ok(Some(error)) if error.kind() != io::ErrorKind::ConnectionRefused => Err(error),
            _ => Ok(()),
        })
    }

    /// Waits for the end of the resolution.
    ///
    /// # Errors
    /// `EHOSTUNREACH` if the next hop does not answer; `ETIMEDOUT` if the system still tries after `timeout`.
    pub fn wait(self, timeout: Duration) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            match self.result() {
                Some(result) => return result,
                None if begin.elapsed() > timeout => {
                    return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
                }
                None => thread::sleep(CHECK_INTERVAL),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_destination_has_loopback_source() {
        let towards = |ip: [u8; 4]| source_towards(SocketAddr::new(ip.into(), 4791)).unwrap();
        assert_eq!(towards([127, 0, 0, 1]), Ipv4Addr::LOCALHOST);
        assert!(towards([127, 3, 4, 5]).is_loopback());
    }
}
