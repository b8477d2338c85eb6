//! The offer with which a process passes the memory of a ring, and the name of the socket at which another
//! process listens for it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::rings::limits;
use crate::rings::memory::{CAPACITY, RingReader};
use crate::rings::routes::Destination;
use crate::sys::quota::Share;

/// Version of the protocol and of the memory's layout, with which the names of sockets begin.
const VERSION: &str = "urxe-ring-2";

/// Returns the message with which a process passes the memory of a ring for packets from `src` to `dst`.
pub(super) fn offer(src: IpAddr, dst: IpAddr) -> String {
    format!("{VERSION} {src} {dst}")
}

/// Returns the source and destination address of all packets in the ring that a message offers.
pub(super) fn addresses(line: &str) -> Option<(IpAddr, IpAddr)> {
    let &[VERSION, src, dst] = &line.split(' ').collect::<Vec<_>>()[..] else { return None };
    Some((src.parse().ok()?, dst.parse().ok()?))
}

pub(super) fn socket_name((ip, partition): Destination) -> String {
    format!("{VERSION}/{ip}/{partition}")
}

/// Returns the ring that a process has passed to the link with the given address, and its memory.
pub(super) fn take_offer(line: &str, fds: &[OwnedFd], own: IpAddr) -> Option<(RingReader, Share)> {
    let (Some((src, dst)), [memory]) = (addresses(line), fds) else { return None };
    if dst != own || src.is_ipv4() != dst.is_ipv4() {
        return None;
    }
    let ring = RingReader::open(memory, CAPACITY, src, dst)
        .inspect_err(|error| trace_event!(WARN, "urxe::link", "ring refused", reason = %error))
        .ok()?;
    let memory = limits::read_memory(ring.memory())?;
    Some((ring, memory))
}
