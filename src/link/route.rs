//! Source address selection: the local address that the routing table selects for a destination.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::system_udp;

/// Returns the source address that the routing table selects for packets to `dst`, without sending any.
///
/// # Errors
/// The error of the system if there is no route to `dst`.
pub fn source_towards(dst: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = system_udp::bound((any, 0).into())?;
    // `connect` needs a port; its value does not affect the route.
    let mut dst = dst;
    dst.set_port(dst.port().max(1));
    socket.connect(dst)?;
    Ok(socket.local_addr()?.ip())
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
