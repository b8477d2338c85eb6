//! Packet steering to several sockets bound to one address and port: a BPF program in the kernel selects the
//! socket by destination QPN (SO_ATTACH_REUSEPORT_CBPF). The program for shared addresses, which selects a
//! process, is in `broker/steering.rs`.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use libc::{BPF_A, BPF_B, BPF_RET, sock_filter};

use super::socket::{self, BoundSocket};
use super::{UdpLinkError, UdpOptions};
use crate::host::bpf::{load, mask, op};
use crate::host::socket_calls::set_program;

/// Offset of the least significant byte of the destination QPN in the UDP payload.
pub(crate) const DEST_QP_LOW: u32 = 7;

/// Opens `count` sockets, a power of two. The kernel delivers each packet to the socket whose index is in the
/// lowest bits of the destination QPN; for coalesced packets, the first one decides.
pub(super) fn open(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<BoundSocket>, UdpLinkError> {
    let all = open_group(ip, options, count)?;
    if count > 1 {
        attach(ip, &all[0].socket, &by_shard(count as u32))?;
    }
    Ok(all)
}

const STEERING: &str = "steering packets to several sockets";

/// Binds the sockets for a shared address: a reuseport group of `count` sockets.
pub(crate) fn bind_group(
    ip: IpAddr,
    options: &UdpOptions,
    count: usize,
) -> Result<Vec<OwnedFd>, UdpLinkError> {
    Ok(open_group(ip, options, count)?.into_iter().map(|opened| opened.socket).collect())
}

/// Opens `count` sockets, as a reuseport group if there is more than one. Until a program is attached, the
/// kernel chooses the socket by a hash of the addresses and ports.
fn open_group(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<BoundSocket>, UdpLinkError> {
    // Opens the first socket as if it were the only one, so that any other owner of the port, sharing or not,
    // is detected and reported. Later binds by other programs fail too, except those of the same user that
    // set SO_REUSEPORT; their sockets then receive nothing.
    let first = socket::open(ip, options, false)?;
    if count == 1 {
        return Ok(vec![first]);
    }
    socket::share(&first.socket).map_err(UdpLinkError::system(ip, STEERING))?;
    let mut all = vec![first];
    for _ in 1..count {
        all.push(socket::open(ip, options, true)?);
    }
    Ok(all)
}

/// Returns the BPF program that selects the socket for each packet. Its result is the socket's index in bind
/// order, which is the shard index.
fn by_shard(count: u32) -> [sock_filter; 3] {
    [load(BPF_B, DEST_QP_LOW), mask(count - 1), op(BPF_RET | BPF_A, 0)]
}

/// Attaches a BPF program to the reuseport group that contains `socket`, where it selects the socket for each
/// packet.
pub(crate) fn attach(ip: IpAddr, socket: &OwnedFd, program: &[sock_filter]) -> Result<(), UdpLinkError> {
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
        .map_err(UdpLinkError::system(ip, STEERING))
}
