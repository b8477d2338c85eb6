//! Socket addresses and control messages in the kernel's byte layout, in reusable buffers.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Socket address: a `sockaddr_in` or a `sockaddr_in6`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct SockAddr(pub [u8; SockAddr::ROOM]);

impl SockAddr {
    /// Size of a `sockaddr_in6`, the larger of the two types, in bytes.
    pub const ROOM: usize = size_of::<libc::sockaddr_in6>();

    /// Encodes an address and a port. Returns the socket address and its length in bytes. `scope` is the
    /// interface index for an address that needs one, 0 otherwise.
    pub fn new(ip: IpAddr, port: u16, scope: u32) -> (SockAddr, usize) {
        let mut b = [0; SockAddr::ROOM];
        b[2..4].copy_from_slice(&port.to_be_bytes());
        let (family, len) = match ip {
            IpAddr::V4(ip) => {
                b[4..8].copy_from_slice(&ip.octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            IpAddr::V6(ip) => {
                b[8..24].copy_from_slice(&ip.octets());
                b[24..28].copy_from_slice(&scope.to_ne_bytes());
                (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
            }
        };
        b[0..2].copy_from_slice(&(family as u16).to_ne_bytes());
        (SockAddr(b), len)
    }

    /// Returns the address and the port; `None` if the family is neither IPv4 nor IPv6.
    pub fn get(&self) -> Option<(IpAddr, u16)> {
        let b = &self.0;
        let port = u16::from_be_bytes([b[2], b[3]]);
        let ip = match i32::from(u16::from_ne_bytes([b[0], b[1]])) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*b[4..].first_chunk::<4>()?)),
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*b[8..].first_chunk::<16>()?)),
            _ => return None,
        };
        Some((ip, port))
    }
}

const fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// Size of a `cmsghdr` in bytes: the length as a `size_t`, the level and the type as `int`s.
const HEADER: usize = align(size_of::<usize>() + 8);

/// Buffer for the control messages of one datagram.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Control {
    pub bytes: [u8; Control::ROOM],
    /// Total size of the messages appended so far, in bytes.
    pub len: usize,
}

impl Control {
    /// Size of the buffer in bytes. The messages for segment size, traffic class, hop limit and packet info
    /// together take 112.
    pub const ROOM: usize = 128;

    pub const fn new() -> Control {
        Control { bytes: [0; Control::ROOM], len: 0 }
    }

    /// Appends a control message.
    pub fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let b = &mut self.bytes[self.len..];
        b[..size_of::<usize>()].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        b[size_of::<usize>()..][..4].copy_from_slice(&level.to_ne_bytes());
        b[size_of::<usize>() + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        b[HEADER..][..data.len()].copy_from_slice(data);
        self.len += align(HEADER + data.len());
    }

    /// Appends a message that sets a datagram's source address and outgoing interface; with `ifindex` 0, the
    /// routing table selects the interface.
    pub fn put_source(&mut self, ip: IpAddr, ifindex: u32) {
        match ip {
            // in_pktinfo: interface index, source address, and a destination address that the kernel sets
            // only on receive.
            IpAddr::V4(ip) => {
                let mut info = [0; 12];
                info[..4].copy_from_slice(&ifindex.to_ne_bytes());
                info[4..8].copy_from_slice(&ip.octets());
                self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // in6_pktinfo: address, interface index.
            IpAddr::V6(ip) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                info[16..].copy_from_slice(&ifindex.to_ne_bytes());
                self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Iterates over the control messages that the kernel wrote to the first `len` bytes, as tuples of level,
    /// type and data.
    pub fn messages(&self, len: usize) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = &self.bytes[..len.min(Control::ROOM)];
        std::iter::from_fn(move || {
            let header = rest.get(..HEADER)?;
            let (len, kind) = header.split_first_chunk()?;
            let (level, kind) = kind.split_first_chunk()?;
            let len = usize::from_ne_bytes(*len);
            let data = rest.get(HEADER..len)?;
            let message = (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind.first_chunk()?), data);
            rest = rest.get(align(len)..).unwrap_or_default();
            Some(message)
        })
    }
}

/// Decodes a control message's numeric value, which the kernel writes as one byte or as an `int`.
pub(super) fn number(data: &[u8]) -> Option<i32> {
    match data {
        [b] => Some(i32::from(*b)),
        _ => data.first_chunk().map(|b| i32::from_ne_bytes(*b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_address_decodes_to_its_ip_address_and_port() {
        for ip in ["127.1.2.3", "fd00::17"] {
            let ip = ip.parse().unwrap();
            assert_eq!(SockAddr::new(ip, 4791, 0).0.get(), Some((ip, 4791)));
        }
        assert_eq!(SockAddr::default().get(), None);
    }

    #[test]
    fn control_messages_decode_in_order() {
        let mut c = Control::new();
        c.put(1, 2, &7i32.to_ne_bytes());
        c.put(3, 4, &[9]);
        c.put_source("fd00::1".parse().unwrap(), 0);
        let decoded: Vec<_> = c.messages(c.len).map(|(l, k, d)| (l, k, d.len(), number(d))).collect();
        assert_eq!(decoded[..2], [(1, 2, 4, Some(7)), (3, 4, 1, Some(9))]);
        assert_eq!((decoded[2].2, decoded.len()), (20, 3));
        // A malformed length ends the iteration.
        c.bytes[..8].fill(0);
        assert_eq!(c.messages(c.len).count(), 0);
    }
}
