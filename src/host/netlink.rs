//! rtnetlink messages and sockets (RFC 3549).
//!
//! Hand-written, because `netlink-packet-route` would add five crates, and rejects an entire message for one
//! attribute of unexpected length, whereas the link needs one header and three attributes.
#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

/// Length of an nlmsghdr in bytes: length, type, flags, sequence number, port.
pub(crate) const HEADER_LEN: usize = 16;
/// Mask that removes the flags from an attribute type (NLA_TYPE_MASK).
const TYPE_MASK: u16 = 0x3fff;

/// NETLINK_ROUTE socket, bound to the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct RouteSocket(OwnedFd);

impl RouteSocket {
    /// Opens a socket that receives the notifications of the given multicast groups (`RTMGRP_*`).
    pub fn open(groups: libc::c_int, flags: SockFlag) -> io::Result<RouteSocket> {
        let flags = SockFlag::SOCK_CLOEXEC | flags;
        let netlink = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, groups as u32))?;
        Ok(RouteSocket(netlink))
    }

    pub fn send(&self, Request(mut bytes): Request) -> nix::Result<usize> {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        send(self.0.as_raw_fd(), &bytes, MsgFlags::empty())
    }

    /// Receives messages into `buffer`.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> nix::Result<&'b [u8]> {
        let n = recv(self.0.as_raw_fd(), buffer, MsgFlags::empty())?;
        Ok(buffer.get(..n).unwrap_or_default())
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A request under construction.
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// Creates a request with the given message type (`RTM_*`) and body, such as an ifinfomsg.
    pub fn new(kind: u16, body: &[u8]) -> Request {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend_from_slice(body);
        Request(bytes)
    }

    /// Appends an attribute. The length of `value` must be a multiple of 4.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
    }

    /// Appends an attribute whose value is an IP address.
    pub fn address(&mut self, kind: u16, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.attribute(kind, &ip.octets()),
            IpAddr::V6(ip) => self.attribute(kind, &ip.octets()),
        }
    }
}

/// Returns the address family of an IP address, as encoded in message bodies.
pub(crate) fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// Decodes an attribute value that is an IP address, as [`Request::address`] encodes it.
pub(crate) fn address(value: &[u8]) -> Option<IpAddr> {
    let v6 = |_| <[u8; 16]>::try_from(value).map(IpAddr::from);
    <[u8; 4]>::try_from(value).map(IpAddr::from).or_else(v6).ok()
}

/// Iterates over received messages as type-body pairs, stopping at a message with an invalid length.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d, e, f, ..] = *bytes.first_chunk::<HEADER_LEN>()?;
        let (len, kind) = (u32::from_ne_bytes([a, b, c, d]) as usize, u16::from_ne_bytes([e, f]));
        let body = bytes.get(HEADER_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Iterates over attributes as type-value pairs, stopping at an attribute with an invalid length.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *bytes.first_chunk::<4>()?;
        let (len, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]) & TYPE_MASK);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
