//! Which of this machine's addresses leads to another.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::system_udp;

/// The source address that the system gives to packets for `dst`, by its routes. Nothing is sent.
///
/// # Errors
/// The system's, if no route leads there.
pub fn source_towards(dst: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = system_udp::bound((any, 0).into())?;
    // A destination has a port; which one makes no difference.
    let mut dst = dst;
    dst.set_port(dst.port().max(1));
    socket.connect(dst)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_leads_to_itself() {
        let towards = |ip: [u8; 4]| source_towards(SocketAddr::new(ip.into(), 4791)).unwrap();
        assert_eq!(towards([127, 0, 0, 1]), Ipv4Addr::LOCALHOST);
        assert!(towards([127, 3, 4, 5]).is_loopback());
    }
}
