//! Several sockets of one address and port: the kernel gives each its queue pairs' packets.

use std::io;
use std::mem::size_of_val;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_RSH,
    sock_filter,
};

use super::socket::{self, Opened};
use super::{UdpLinkError, UdpOptions};
use crate::nic::Seat;

/// Where the first byte of the destination's number is in a UDP payload.
const DEST_QP_HIGH: u32 = 5;

/// Where the last byte of the destination's number is in a UDP payload.
const DEST_QP_LOW: u32 = 7;

/// Opens `count` sockets, a power of two: a packet goes to the one whose place is in the lowest bits of its destination
/// QP. Of packets that were joined on the way, the first decides.
pub(super) fn open(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<Opened>, UdpLinkError> {
    let all = open_group(ip, options, count)?;
    if count > 1 {
        attach(&all[0].socket, &by_shard(count as u32)).map_err(|source| failed(ip, source))?;
    }
    Ok(all)
}

pub(super) fn failed(ip: IpAddr, source: io::Error) -> UdpLinkError {
    UdpLinkError::System { ip, what: "spreading packets over several sockets", source }
}

/// Opens `count` sockets, of which the kernel chooses by itself for now.
pub(super) fn open_group(
    ip: IpAddr,
    options: &UdpOptions,
    count: usize,
) -> Result<Vec<Opened>, UdpLinkError> {
    // The first as if it were the only one: so whoever has the port, shared or not, is told of. Who comes later is
    // refused too, unless he says that he shares and is of the same user; he then gets nothing.
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

fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// For each packet the place of a socket, in the order in which they were bound: that of the shard.
fn by_shard(count: u32) -> [sock_filter; 3] {
    [
        op(BPF_LD | BPF_B | BPF_ABS, DEST_QP_LOW),
        op(BPF_ALU | BPF_AND | BPF_K, count - 1),
        op(BPF_RET | BPF_A, 0),
    ]
}

/// The same by seat, and for those who have several, first one and number, by shard within them.
pub(super) fn by_seat(several: &[(usize, usize)]) -> Vec<sock_filter> {
    let mut program =
        vec![op(BPF_LD | BPF_B | BPF_ABS, DEST_QP_HIGH), op(BPF_ALU | BPF_RSH | BPF_K, 8 - Seat::BITS)];
    for &(seat, count) in several {
        let then = [
            op(BPF_LD | BPF_B | BPF_ABS, DEST_QP_LOW),
            op(BPF_ALU | BPF_AND | BPF_K, count as u32 - 1),
            op(BPF_ALU | BPF_ADD | BPF_K, seat as u32),
            op(BPF_RET | BPF_A, 0),
        ];
        program.push(sock_filter { jf: then.len() as u8, ..op(BPF_JMP | BPF_JEQ | BPF_K, seat as u32) });
        program.extend(then);
    }
    program.push(op(BPF_RET | BPF_A, 0));
    program
}

pub(super) fn attach(socket: &OwnedFd, program: &[sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let (fd, len) = (socket.as_raw_fd(), size_of_val(&filter) as libc::socklen_t);
    let name = libc::SO_ATTACH_REUSEPORT_CBPF;
    // SAFETY: `filter` and the program that it points to outlive the call, and the kernel only reads them.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const filter).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
