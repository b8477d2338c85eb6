//! The offer with which a process passes the memory of a ring, and the socket at which another process listens
//! for it.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::rings::limits;
use crate::rings::memory::{CAPACITY, RingReader};
use crate::rings::routes::Destination;
use crate::sys::quota::Share;

/// Version of the protocol and of the memory's layout, with which the names of sockets begin.
const VERSION: &str = "urxe-ring-2";

/// Message with which a process passes the memory of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RingOffer {
    /// Source address of all packets in the ring.
    pub src: IpAddr,
    /// Destination address of all packets in the ring.
    pub dst: IpAddr,
}

impl fmt::Display for RingOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} {} {}", self.src, self.dst)
    }
}

impl FromStr for RingOffer {
    type Err = ();

    fn from_str(line: &str) -> Result<RingOffer, ()> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [VERSION, src, dst] => {
                let [src, dst] = [src, dst].map(|address| address.parse().map_err(|_| ()));
                Ok(RingOffer { src: src?, dst: dst? })
            }
            _ => Err(()),
        }
    }
}

pub(super) fn socket_name((ip, partition): Destination) -> String {
    format!("{VERSION}/{ip}/{partition}")
}

pub(super) fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Returns the ring that a process has passed to the link with the given address, and its memory.
pub(super) fn take_offer(line: &str, fds: &[OwnedFd], own: IpAddr) -> Option<(RingReader, Share)> {
    let (Ok(RingOffer { src, dst }), [memory]) = (line.parse(), fds) else { return None };
    if dst != own || src.is_ipv4() != dst.is_ipv4() {
        return None;
    }
    let ring = RingReader::open(memory, CAPACITY, src, dst)
        .inspect_err(|error| trace_event!(WARN, "urxe::link", "ring refused", reason = %error))
        .ok()?;
    let memory = limits::read_memory(ring.memory())?;
    Some((ring, memory))
}
