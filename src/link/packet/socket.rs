//! Packet socket that sends and receives many frames per system call, with virtio-net headers as metadata.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libc::{c_int, iovec, mmsghdr, msghdr};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::host::socket_calls::{
    drop_all, interface_exists, memory_info, set_option, set_receive_buffer, set_send_buffer,
};
use crate::wire::Mac;
use crate::wire::frame::Checksums;

/// Length of a virtio-net header, in bytes.
pub(super) const VNET_LEN: usize = 10;
/// Flag: the checksum field contains only the pseudo-header sum, and the checksum is still to be completed.
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_DATA_VALID: u8 = 2;
const VNET_GSO_NONE: u8 = 0;
/// GSO type of a super-packet that consists of UDP datagrams of equal size.
const VNET_GSO_UDP_L4: u8 = 5;

/// Constants of linux/if_packet.h that libc lacks.
const PACKET_IGNORE_OUTGOING: c_int = 23;
/// Option used instead of the older PACKET_VNET_HDR: kernels that have only the latter (before Linux 6.4) may
/// not support UDP super-packets in virtio-net headers, and drop packets that the headers cannot describe.
const PACKET_VNET_HDR_SZ: c_int = 24;

/// Messages per sending call.
const TX_MESSAGES: usize = 64;
/// Number of messages per receive call. With more, super-packets would evict each other from the cache.
pub(super) const RX_MESSAGES: usize = 16;
/// Size of the largest frame, in bytes: the largest IP packet and an Ethernet header with two VLAN tags.
const MAX_FRAME: usize = 65_535 + 22;
/// Requested buffer sizes, in bytes; the kernel may grant less.
const RCVBUF: usize = 16 << 20;
const SNDBUF: usize = 4 << 20;
/// Time to wait for room in a full send queue, in milliseconds.
const SEND_TIMEOUT_MS: u8 = 20;

#[derive(Debug)]
pub(super) struct RawSocket {
    pub fd: OwnedFd,
    ifindex: u32,
    /// Whether each message starts with a virtio-net header. Without it, the kernel accepts no
    /// super-packets, and does not report the segment size of super-packets that it delivers.
    pub vnet: bool,
    /// Size of the receive buffer in bytes. A frame occupies its length and the kernel's overhead.
    pub receive_buffer: usize,
    rx: RxBuffers,
}

/// A received frame, with the metadata that the kernel supplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RxFrame<'a> {
    pub bytes: &'a [u8],
    pub shape: Shape,
    pub checksums: Checksums,
    /// Whether the frame cannot be used: it is truncated, or a super-packet of another protocol.
    pub unusable: bool,
}

/// Whether a frame is one packet or a super-packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    Single,
    /// A super-packet with the given number of UDP payload bytes in each packet but the last.
    SuperPacket(usize),
    /// Not reported by the kernel.
    Unknown,
}

/// Size of the receive buffer of each message, in bytes.
const RX_ROOM: usize = VNET_LEN + MAX_FRAME;

#[derive(Debug)]
struct RxBuffers {
    memory: Vec<u8>,
    iov: Vec<iovec>,
    messages: Vec<mmsghdr>,
}

// SAFETY: the pointers in `iov` and `messages` point to heap blocks that this struct owns and that are not
// reallocated after `new`. Moving the struct to another thread leaves these blocks in place and moves their
// ownership with it.
unsafe impl Send for RxBuffers {}

impl RxBuffers {
    fn new() -> RxBuffers {
        let memory = vec![0; RX_MESSAGES * RX_ROOM];
        let mut b = RxBuffers { memory, iov: Vec::new(), messages: Vec::new() };
        b.iov = b
            .memory
            .chunks_mut(RX_ROOM)
            .map(|chunk| iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: RX_ROOM })
            .collect();
        b.messages = b.iov.iter_mut().map(|iov| message(iov, 1)).collect();
        b
    }
}

fn message(iov: *mut iovec, count: usize) -> mmsghdr {
    // SAFETY: zero is valid for every field of a msghdr: no name, no buffers, no control data and no flags.
    let mut hdr: msghdr = unsafe { std::mem::zeroed() };
    hdr.msg_iov = iov;
    hdr.msg_iovlen = count;
    mmsghdr { msg_hdr: hdr, msg_len: 0 }
}

/// Sets the length of the virtio-net header at the start of each message, in bytes; 0 for no header.
fn set_vnet_len(socket: &OwnedFd, len: usize) -> io::Result<()> {
    set_option(socket, libc::SOL_PACKET, PACKET_VNET_HDR_SZ, &(len as c_int))
}

impl RawSocket {
    /// Opens a socket that receives nothing until it is [bound](Self::bind) and a filter is attached.
    pub fn open(ifindex: u32, vnet: bool) -> io::Result<RawSocket> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        drop_all(&fd)?;
        let on: c_int = 1;
        set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &on)?;
        let vnet = vnet && set_vnet_len(&fd, VNET_LEN).is_ok();
        let receive_buffer = set_receive_buffer(&fd, RCVBUF)?;
        set_send_buffer(&fd, SNDBUF)?;
        Ok(RawSocket { fd, ifindex, vnet, receive_buffer, rx: RxBuffers::new() })
    }

    /// Disables super-packets permanently after the kernel has rejected one. Frames in the receive queue are
    /// kept.
    pub fn disable_gso(&mut self) -> io::Result<()> {
        self.vnet = false;
        set_vnet_len(&self.fd, 0)
    }

    /// Binds the socket to the interface. With `promiscuous`, frames to other hosts are received too.
    pub fn bind(&self, promiscuous: bool) -> io::Result<()> {
        // SAFETY: a sockaddr_ll consists of integers only, for which zero is valid.
        let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        addr.sll_ifindex = self.ifindex as c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointer and the length describe `addr`, which lives through the call; the kernel only
        // reads it.
        Errno::result(unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
        if !promiscuous {
            // The kernel's own memberships make the interface accept multicast frames.
            return Ok(());
        }
        self.add_membership(libc::PACKET_MR_PROMISC, &[])
    }

    /// Makes the interface accept frames to a group address.
    pub fn accept_group(&self, group: Mac) -> io::Result<()> {
        self.add_membership(libc::PACKET_MR_MULTICAST, &group.0)
    }

    fn add_membership(&self, kind: c_int, address: &[u8]) -> io::Result<()> {
        let mut membership = libc::packet_mreq {
            mr_ifindex: self.ifindex as c_int,
            mr_type: kind as u16,
            mr_alen: address.len() as u16,
            mr_address: [0; 8],
        };
        membership.mr_address[..address.len()].copy_from_slice(address);
        set_option(&self.fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    /// Returns an estimate of the number of packet bytes that the receive buffer can hold: a quarter of the
    /// size that the kernel reports, half of which is the kernel's allowance for overhead.
    pub fn window(&self) -> usize {
        (self.receive_buffer / 4).max(64 * 1024)
    }

    /// Returns the number of bytes of the receive buffer that are in use.
    pub fn waiting_bytes(&self) -> usize {
        // The first value is SK_MEMINFO_RMEM_ALLOC.
        memory_info(&self.fd)[0] as usize
    }

    /// Reads a bounded batch of frames and returns their number; [`received`](Self::received) then returns
    /// each frame.
    pub fn receive(&mut self) -> io::Result<usize> {
        let count = self.rx.messages.len() as u32;
        loop {
            // SAFETY: each message has one slice, of `RX_ROOM` bytes of `memory` that no other message has;
            // both vectors are as `RxBuffers::new` left them except for lengths and flags, and `&mut self`
            // excludes other accesses.
            let n = unsafe {
                libc::recvmmsg(
                    self.fd.as_raw_fd(),
                    self.rx.messages.as_mut_ptr(),
                    count,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            if let Ok(n) = usize::try_from(n) {
                return Ok(n);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // EINVAL: a frame that no virtio-net header can describe; the kernel has dropped it.
                Some(libc::EAGAIN | libc::EINVAL) => return Ok(0),
                // An interface that is down may come up again; a removed one is an error.
                Some(libc::ENETDOWN) if interface_exists(&self.fd, self.ifindex) => {
                    return Ok(0);
                }
                _ => return Err(error),
            }
        }
    }

    /// Returns frame `i` of the batch that [`receive`](Self::receive) read last.
    pub fn received(&self, i: usize) -> RxFrame<'_> {
        let message = &self.rx.messages[i];
        let bytes = &self.rx.memory[i * RX_ROOM..][..(message.msg_len as usize).min(RX_ROOM)];
        let unusable = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        if !self.vnet {
            return RxFrame { bytes, shape: Shape::Unknown, checksums: Checksums::Partial, unusable };
        }
        let Some((head, bytes)) = bytes.split_first_chunk::<VNET_LEN>() else {
            return RxFrame { bytes, shape: Shape::Unknown, checksums: Checksums::Verify, unusable: true };
        };
        let shape = match (head[1], usize::from(u16::from_ne_bytes([head[4], head[5]]))) {
            (VNET_GSO_NONE, _) => Shape::Single,
            (VNET_GSO_UDP_L4, segment @ 1..) => Shape::SuperPacket(segment),
            _ => Shape::Unknown,
        };
        let checksums = match head[0] & (VNET_NEEDS_CSUM | VNET_DATA_VALID) {
            0 => Checksums::Verify,
            _ => Checksums::Trust,
        };
        RxFrame { bytes, shape, checksums, unusable: unusable || shape == Shape::Unknown }
    }

    /// Sends the messages of a batch from index `first` on. Returns the index of the first message not sent,
    /// and the error that stopped it, if any.
    pub fn send(&self, batch: &mut TxBatch, first: usize) -> (usize, Option<io::Error>) {
        let messages = batch.finish();
        let mut sent = first;
        let mut may_wait = true;
        while sent < messages.len() {
            let rest = &mut messages[sent..];
            // SAFETY: `finish` has made each message point to slices of live memory: those of the batch,
            // which is borrowed for the call, and those of the transmit queue, which is borrowed for as long
            // as the batch is filled. The kernel only reads them.
            let n = unsafe {
                libc::sendmmsg(
                    self.fd.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as u32,
                    libc::MSG_DONTWAIT as _,
                )
            };
            if let Ok(n) = usize::try_from(n) {
                sent += n;
                may_wait = true;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) if may_wait => {
                    let _ = poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)], SEND_TIMEOUT_MS);
                    may_wait = false;
                }
                _ => return (sent, Some(error)),
            }
        }
        (sent, None)
    }
}

/// Batch of messages to send, each made up of headers and a payload. The buffers are reused.
#[derive(Debug, Default)]
pub(super) struct TxBatch {
    heads: Vec<u8>,
    iov: Vec<iovec>,
    /// Entries of `iov` that point into `heads`, as pairs of index in `iov` and offset in `heads`. The
    /// pointers are set once `heads` has stopped growing.
    head_iov: Vec<(usize, usize)>,
    pub info: Vec<TxMessage>,
    messages: Vec<mmsghdr>,
}

// SAFETY: the pointers are dereferenced only between `clear` and the sending call that follows, within one
// call of a method of the link. Pointers left over after that are never dereferenced, in whatever thread the
// batch is.
unsafe impl Send for TxBatch {}

/// Description of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxMessage {
    /// Index in the transmit queue of the burst that the message carries, in whole or in part.
    pub burst: usize,
    /// Number of packets.
    pub packets: usize,
    /// Set for a super-packet, which the kernel has to segment.
    pub super_packet: Option<SuperPacket>,
    /// MAC of the next hop.
    pub to: Mac,
}

/// A super-packet for the kernel to segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuperPacket {
    pub segment: usize,
    /// Offset of the end of the UDP header from the start of the frame.
    pub udp_end: usize,
}

impl TxBatch {
    pub fn clear(&mut self) {
        self.heads.clear();
        self.iov.clear();
        self.head_iov.clear();
        self.info.clear();
    }

    pub fn is_full(&self) -> bool {
        self.info.len() >= TX_MESSAGES
    }

    /// Starts a message; `write` appends its headers.
    pub fn begin(&mut self, info: TxMessage, vnet: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.heads.len();
        if vnet {
            let mut head = [0; VNET_LEN];
            if let Some(SuperPacket { segment, udp_end }) = info.super_packet {
                head[0] = VNET_NEEDS_CSUM;
                head[1] = VNET_GSO_UDP_L4;
                head[2..4].copy_from_slice(&(udp_end as u16).to_ne_bytes());
                head[4..6].copy_from_slice(&(segment as u16).to_ne_bytes());
                head[6..8].copy_from_slice(&(udp_end as u16 - 8).to_ne_bytes());
                // Offset of the checksum in the UDP header.
                head[8..10].copy_from_slice(&6u16.to_ne_bytes());
            }
            self.heads.extend_from_slice(&head);
        }
        write(&mut self.heads);
        self.head_iov.push((self.iov.len(), at));
        self.iov.push(iovec { iov_base: std::ptr::null_mut(), iov_len: self.heads.len() - at });
        self.info.push(info);
    }

    /// Appends payload to the message started last.
    pub fn data(&mut self, bytes: &[u8]) {
        self.iov.push(iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    }

    /// Points the messages to their slices, now that the buffers no longer move.
    fn finish(&mut self) -> &mut [mmsghdr] {
        let heads = self.heads.as_mut_ptr();
        for (i, at) in &self.head_iov {
            self.iov[*i].iov_base = heads.wrapping_add(*at).cast();
        }
        let end = self.iov.len();
        let iov = self.iov.as_mut_ptr();
        let starts = self.head_iov.iter().map(|(start, _)| *start);
        let ends = starts.clone().skip(1).chain([end]);
        self.messages.clear();
        self.messages
            .extend(starts.zip(ends).map(|(start, end)| message(iov.wrapping_add(start), end - start)));
        &mut self.messages
    }
}
