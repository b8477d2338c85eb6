//! Several sockets of one address and port: the kernel gives each its queue pairs' packets.

use std::io;
use std::mem::size_of_val;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD,
    BPF_LSH, BPF_RET, BPF_RSH, BPF_W, sock_filter,
};

use super::socket::{self, Opened};
use super::{UdpLinkError, UdpOptions};
use crate::nic::Seat;
use crate::wire::Qpn;
use crate::wire::mad::MessageKind;

/// Where the first byte of the destination's number is in a UDP payload.
const DEST_QP_HIGH: u32 = 5;

/// Where the last byte of the destination's number is in a UDP payload.
const DEST_QP_LOW: u32 = 7;

/// Where the word is in a UDP payload that has the destination's number in its lowest three bytes.
const DEST_QP_WORD: u32 = 4;

/// Where a MAD begins, behind BTH and DETH, and what is where in it: its class, its attribute, and of the connection
/// manager's messages the recipient's ID, which in a SIDR_REP is that of the request.
const MAD: u32 = 20;
const MAD_CLASS: u32 = MAD + 1;
const MAD_ATTRIBUTE: u32 = MAD + 16;
const SIDR_REQUEST_ID: u32 = MAD + 24;
const REMOTE_COMM_ID: u32 = MAD + 28;

/// The class of the connection manager's MADs.
const CM_CLASS: u32 = 7;

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

/// Goes on if the accumulator is `k`, and skips the next instructions otherwise.
fn if_eq(k: u32, skip: u8) -> sock_filter {
    sock_filter { jf: skip, ..op(BPF_JMP | BPF_JEQ | BPF_K, k) }
}

/// A program that selects the socket by seat, and within several seats of one process (first seat and number) by shard.
///
/// A MAD's seat is in the ID that it names of the recipient's; one that names none, but a service, is the steward's, and so
/// are those that are not the connection manager's. To look behind the end of a packet ends the program as the first seat
/// does.
pub(super) fn by_seat(several: &[(usize, usize)]) -> Vec<sock_filter> {
    let load = |size: u32, at: u32| op(BPF_LD | size | BPF_ABS, at);
    let to_steward = op(BPF_RET | BPF_K, 0);
    let mad = [
        load(BPF_B, MAD_CLASS),
        sock_filter { jt: 1, jf: 0, ..if_eq(CM_CLASS, 0) },
        to_steward,
        load(BPF_H, MAD_ATTRIBUTE),
        if_eq(MessageKind::Req.attribute().into(), 1),
        to_steward,
        if_eq(MessageKind::SidrReq.attribute().into(), 1),
        to_steward,
        if_eq(MessageKind::SidrRep.attribute().into(), 2),
        load(BPF_B, SIDR_REQUEST_ID),
        op(BPF_JMP | BPF_JA, 1),
        load(BPF_B, REMOTE_COMM_ID),
        // To where a queue pair's number has it.
        op(BPF_ALU | BPF_LSH | BPF_K, 16),
    ];
    let mut program = vec![
        load(BPF_W, DEST_QP_WORD),
        op(BPF_ALU | BPF_AND | BPF_K, 0xff_ffff),
        if_eq(Qpn::GSI.get(), mad.len() as u8),
    ];
    program.extend(mad);
    // Nothing more is read for data: what is not in a packet's head takes the kernel a call.
    program.push(op(BPF_ALU | BPF_RSH | BPF_K, 24 - Seat::BITS));
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

/// The byte of a packet that has its seat in its highest bits, as the program of [`by_seat`] finds it; 0 for the steward's.
pub(super) fn seat_byte(packet: &[u8]) -> u8 {
    let at = |at: u32| packet.get(at as usize).copied().unwrap_or(0);
    let attribute = u16::from_be_bytes([at(MAD_ATTRIBUTE), at(MAD_ATTRIBUTE + 1)]);
    let is_mad = [at(DEST_QP_HIGH), at(DEST_QP_HIGH + 1), at(DEST_QP_LOW)] == [0, 0, Qpn::GSI.get() as u8];
    let is = |kind: MessageKind| attribute == kind.attribute();
    match () {
        () if !is_mad => at(DEST_QP_HIGH),
        () if u32::from(at(MAD_CLASS)) != CM_CLASS || is(MessageKind::Req) || is(MessageKind::SidrReq) => 0,
        () if is(MessageKind::SidrRep) => at(SIDR_REQUEST_ID),
        () => at(REMOTE_COMM_ID),
    }
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
