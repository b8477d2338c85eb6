//! Packet steering over several sockets of one address and port: a BPF program in the kernel selects the
//! socket by the destination QPN (SO_ATTACH_REUSEPORT_CBPF). The program of shared addresses, which selects a
//! process, is in `broker/steering.rs`.
#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use libc::{BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_K, BPF_LD, BPF_RET, sock_filter};

use super::socket::{self, BoundSocket};
use super::{UdpLinkError, UdpOptions};
use crate::link::socket_calls::set_program;

/// Offset of the lowest byte of the destination QPN in a UDP payload.
pub(crate) const DEST_QP_LOW: u32 = 7;

/// Opens `count` sockets, a power of two. A packet is delivered to the socket whose index is in the lowest
/// bits of the destination QPN; if packets are coalesced, the first one decides.
pub(super) fn open(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<BoundSocket>, UdpLinkError> {
    let all = open_group(ip, options, count)?;
    if count > 1 {
        attach(ip, &all[0].socket, &by_shard(count as u32))?;
    }
    Ok(all)
}

fn failed(ip: IpAddr, source: io::Error) -> UdpLinkError {
    UdpLinkError::System { ip, what: "steering packets to several sockets", source }
}

/// Binds the sockets of a shared address: a reuseport group of `count` sockets.
pub(crate) fn bind_group(
    ip: IpAddr,
    options: &UdpOptions,
    count: usize,
) -> Result<Vec<OwnedFd>, UdpLinkError> {
    Ok(open_group(ip, options, count)?.into_iter().map(|opened| opened.socket).collect())
}

/// Opens `count` sockets, in a reuseport group if there are several. Until a program is attached, the kernel
/// itself chooses a socket for each packet.
fn open_group(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<BoundSocket>, UdpLinkError> {
    // Opens the first socket as if it were the only one, so that any other owner of the port, sharing or not,
    // is detected and reported. Later binds by other programs fail too, except those of the same user that
    // set SO_REUSEPORT; their sockets then receive nothing.
    let first = socket::open(ip, options, false)?;
    if count == 1 {
        return Ok(vec![first]);
    }
    socket::share(&first.socket).map_err(|source| failed(ip, source))?;
    let mut all = vec![first];
    for _ in 1..count {
        all.push(socket::open(ip, options, true)?);
    }
    Ok(all)
}

/// Returns a BPF instruction that does not jump.
pub(crate) fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Returns the BPF program that selects the socket of each packet by its index in bind order, which is the
/// index of the shard.
fn by_shard(count: u32) -> [sock_filter; 3] {
    [
        op(BPF_LD | BPF_B | BPF_ABS, DEST_QP_LOW),
        op(BPF_ALU | BPF_AND | BPF_K, count - 1),
        op(BPF_RET | BPF_A, 0),
    ]
}

/// Attaches a BPF program to the reuseport group of a socket. It steers the packets to all sockets of the
/// group.
pub(crate) fn attach(ip: IpAddr, socket: &OwnedFd, program: &[sock_filter]) -> Result<(), UdpLinkError> {
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
        .map_err(|source| failed(ip, source))
}
