//! Packet steering over several sockets of one address and port: a BPF program in the kernel selects the
//! socket by the destination QPN (SO_ATTACH_REUSEPORT_CBPF).

use std::io;
use std::mem::size_of_val;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD,
    BPF_LSH, BPF_RET, BPF_RSH, BPF_W, sock_filter,
};

use super::socket::{self, BoundSocket};
use super::{UdpLinkError, UdpOptions};
use crate::nic::QpnPartition;
use crate::wire::Qpn;
use crate::wire::mad::MessageKind;

/// Offset of the highest byte of the destination QPN in a UDP payload.
const DEST_QP_HIGH: u32 = 5;

/// Offset of the lowest byte of the destination QPN in a UDP payload.
const DEST_QP_LOW: u32 = 7;

/// Offset of the 32-bit word in a UDP payload whose lowest three bytes are the destination QPN.
const DEST_QP_WORD: u32 = 4;

/// Offset of a MAD in a UDP payload, behind BTH and DETH.
const MAD: u32 = 20;
/// Offset of the management class.
const MAD_CLASS: u32 = MAD + 1;
/// Offset of the attribute ID.
const MAD_ATTRIBUTE: u32 = MAD + 16;
/// Offset of the request ID in a SIDR_REP, which is the recipient's ID.
const SIDR_REQUEST_ID: u32 = MAD + 24;
/// Offset of the remote communication ID, the recipient's, in the other CM messages.
const REMOTE_COMM_ID: u32 = MAD + 28;

/// Management class of the communication manager (CM).
const CM_CLASS: u32 = 7;

/// Opens `count` sockets, a power of two. A packet is delivered to the socket whose index is in the lowest
/// bits of the destination QPN; of coalesced packets, the first decides.
pub(super) fn open(ip: IpAddr, options: &UdpOptions, count: usize) -> Result<Vec<BoundSocket>, UdpLinkError> {
    let all = open_group(ip, options, count)?;
    if count > 1 {
        attach(&all[0].socket, &by_shard(count as u32)).map_err(|source| failed(ip, source))?;
    }
    Ok(all)
}

pub(super) fn failed(ip: IpAddr, source: io::Error) -> UdpLinkError {
    UdpLinkError::System { ip, what: "steering packets to several sockets", source }
}

/// Opens `count` sockets, in a reuseport group if there are several. Until a program is attached, the kernel
/// distributes the packets by itself.
pub(super) fn open_group(
    ip: IpAddr,
    options: &UdpOptions,
    count: usize,
) -> Result<Vec<BoundSocket>, UdpLinkError> {
    // Opens the first socket like an only one, so that any other owner of the port, sharing or not, is
    // detected and reported. Later binds by other programs fail too, except those of the same user that set
    // SO_REUSEPORT; their sockets then receive nothing.
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

/// Returns the program that selects for each packet the socket by its index in bind order, which is the
/// shard's.
fn by_shard(count: u32) -> [sock_filter; 3] {
    [
        op(BPF_LD | BPF_B | BPF_ABS, DEST_QP_LOW),
        op(BPF_ALU | BPF_AND | BPF_K, count - 1),
        op(BPF_RET | BPF_A, 0),
    ]
}

/// Continues if the accumulator equals `k`; otherwise skips the next `skip` instructions.
fn if_eq(k: u32, skip: u8) -> sock_filter {
    sock_filter { jf: skip, ..op(BPF_JMP | BPF_JEQ | BPF_K, k) }
}

/// Returns the program that selects the socket by QPN partition and, for a process with several partitions
/// (first partition and count in `several`), by shard among those.
///
/// The partition of a MAD is in the communication ID of its recipient. MADs that name a service instead of an
/// ID go to the broker in partition 0, and so do those of other management classes. A load beyond the end of
/// a packet ends the program with 0, which also selects the broker.
pub(super) fn by_partition(several: &[(usize, usize)]) -> Vec<sock_filter> {
    let load = |size: u32, at: u32| op(BPF_LD | size | BPF_ABS, at);
    let to_broker = op(BPF_RET | BPF_K, 0);
    let mad = [
        load(BPF_B, MAD_CLASS),
        sock_filter { jt: 1, jf: 0, ..if_eq(CM_CLASS, 0) },
        to_broker,
        load(BPF_H, MAD_ATTRIBUTE),
        if_eq(MessageKind::Req.attribute().into(), 1),
        to_broker,
        if_eq(MessageKind::SidrReq.attribute().into(), 1),
        to_broker,
        if_eq(MessageKind::SidrRep.attribute().into(), 2),
        load(BPF_B, SIDR_REQUEST_ID),
        op(BPF_JMP | BPF_JA, 1),
        load(BPF_B, REMOTE_COMM_ID),
        // Moves the byte to the position of the highest byte of a QPN.
        op(BPF_ALU | BPF_LSH | BPF_K, 16),
    ];
    let mut program = vec![
        load(BPF_W, DEST_QP_WORD),
        op(BPF_ALU | BPF_AND | BPF_K, 0xff_ffff),
        if_eq(Qpn::GSI.get(), mad.len() as u8),
    ];
    program.extend(mad);
    // Data packets have needed a single load so far: a load outside a packet's linear part costs the kernel a
    // call.
    program.push(op(BPF_ALU | BPF_RSH | BPF_K, 24 - QpnPartition::BITS));
    for &(partition, count) in several {
        let select_shard = [
            op(BPF_LD | BPF_B | BPF_ABS, DEST_QP_LOW),
            op(BPF_ALU | BPF_AND | BPF_K, count as u32 - 1),
            op(BPF_ALU | BPF_ADD | BPF_K, partition as u32),
            op(BPF_RET | BPF_A, 0),
        ];
        program.push(sock_filter {
            jf: select_shard.len() as u8,
            ..op(BPF_JMP | BPF_JEQ | BPF_K, partition as u32)
        });
        program.extend(select_shard);
    }
    program.push(op(BPF_RET | BPF_A, 0));
    program
}

/// Returns the byte of a packet that has its QPN partition in the highest bits, by the rules of the program
/// of [`by_partition`]; 0 for packets to the broker.
pub(super) fn partition_byte(packet: &[u8]) -> u8 {
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
    // SAFETY: the kernel reads `len` bytes of `filter` and the `filter.len` instructions it points to; both
    // outlive the call, and the kernel only reads them.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const filter).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
