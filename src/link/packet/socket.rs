//! The raw socket: many frames a call, in both directions, with what the kernel calls a virtio-net header.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, iovec, mmsghdr, msghdr, sock_filter};
use nix::poll::{PollFd, PollFlags, poll};

use super::sys;
use crate::wire::Mac;
use crate::wire::frame::Checksums;

/// Bytes of a virtio-net header.
pub(super) const VNET_LEN: usize = 10;
/// The checksum field holds the pseudo header's sum; the rest is for whoever sends.
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_DATA_VALID: u8 = 2;
const VNET_GSO_NONE: u8 = 0;
/// A run of UDP datagrams of equal size.
const VNET_GSO_UDP_L4: u8 = 5;

/// From linux/if_packet.h, which libc has only in part.
const PACKET_IGNORE_OUTGOING: c_int = 23;
const PACKET_FANOUT_DATA: c_int = 22;
/// PACKET_VNET_HDR is older: kernels that have it alone (before Linux 6.4) may know no runs of UDP in these headers, and
/// drop those that they should tell of.
const PACKET_VNET_HDR_SZ: c_int = 24;

/// Messages in one sending call.
const TX_MESSAGES: usize = 64;
/// Messages in one receiving call. Many runs would push each other out of the cache.
const RX_MESSAGES: usize = 16;
/// The largest IP packet and an Ethernet header with two tags.
const MAX_FRAME: usize = 65_535 + 22;
/// What is asked for; the kernel may give less.
const RCVBUF: c_int = 16 << 20;
const SNDBUF: c_int = 4 << 20;
/// How long a full send queue is waited for.
const PATIENCE_MS: u8 = 20;

#[derive(Debug)]
pub(super) struct RawSocket {
    fd: OwnedFd,
    ifindex: u32,
    /// Whether each message starts with a virtio-net header: without one, the kernel takes no runs of packets, and
    /// does not say how long the packets are of one that it gives.
    pub vnet: bool,
    rx: RxBuffers,
}

/// What the kernel says of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RxFrame<'a> {
    pub bytes: &'a [u8],
    pub shape: Shape,
    pub checksums: Checksums,
    /// Larger than the buffer, or a run of something else.
    pub unusable: bool,
}

/// How many packets a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    Single,
    /// A run, with so many UDP payload bytes in each but the last.
    Run(usize),
    /// The kernel does not say.
    Unknown,
}

/// What a buffer has to hold.
const RX_ROOM: usize = VNET_LEN + MAX_FRAME;

#[derive(Debug)]
struct RxBuffers {
    memory: Vec<u8>,
    iov: Vec<iovec>,
    messages: Vec<mmsghdr>,
}

// SAFETY: the pointers in `iov` and `messages` are to the heap blocks of this very struct, which never
// grow after `new`, so they stay good in whatever thread it is.
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
    // SAFETY: a msghdr of zeros is a valid one without name, control data and flags.
    let mut hdr: msghdr = unsafe { std::mem::zeroed() };
    hdr.msg_iov = iov;
    hdr.msg_iovlen = count;
    mmsghdr { msg_hdr: hdr, msg_len: 0 }
}

/// Has each message start with a virtio-net header of this length; 0 for none.
fn set_vnet_len(fd: RawFd, len: usize) -> io::Result<()> {
    sys::set_option(fd, libc::SOL_PACKET, PACKET_VNET_HDR_SZ, &(len as c_int))
}

impl RawSocket {
    /// A socket that receives nothing, until it is [bound](Self::bind) and [admits](Self::admit) something.
    pub fn open(ifindex: u32, vnet: bool) -> io::Result<RawSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is fresh and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let raw = fd.as_raw_fd();
        sys::drop_all(raw)?;
        let on: c_int = 1;
        sys::set_option(raw, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &on)?;
        let vnet = vnet && set_vnet_len(raw, VNET_LEN).is_ok();
        for (forced, asked, bytes) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SNDBUF)]
        {
            // Beyond the system's limit only with CAP_NET_ADMIN.
            sys::set_option(raw, libc::SOL_SOCKET, forced, &bytes)
                .or_else(|_| sys::set_option(raw, libc::SOL_SOCKET, asked, &bytes))?;
        }
        Ok(RawSocket { fd, ifindex, vnet, rx: RxBuffers::new() })
    }

    /// The kernel has refused a run, which will not change: does without from now on. What waits unread loses nothing.
    pub fn refuse_runs(&mut self) -> io::Result<()> {
        self.vnet = false;
        set_vnet_len(self.fd.as_raw_fd(), 0)
    }

    /// Sets an option of packet sockets.
    pub fn set_packet_option(&self, name: c_int, value: &c_int) -> io::Result<()> {
        sys::set_option(self.fd.as_raw_fd(), libc::SOL_PACKET, name, value)
    }

    /// The value of an option of packet sockets.
    pub fn packet_option(&self, name: c_int) -> io::Result<c_int> {
        sys::get_option(self.fd.as_raw_fd(), libc::SOL_PACKET, name)
    }

    /// Has the group of sockets that it is in share out frames by this program.
    pub fn fan_out(&self, program: &[sock_filter]) -> io::Result<()> {
        sys::set_program(self.fd.as_raw_fd(), libc::SOL_PACKET, PACKET_FANOUT_DATA, program)
    }

    /// Lets through what this program accepts.
    pub fn admit(&self, filter: &[sock_filter]) -> io::Result<()> {
        sys::attach_filter(self.fd.as_raw_fd(), filter)
    }

    /// Ties it to the interface; to what is not for the interface too, if `promiscuous`.
    pub fn bind(&self, promiscuous: bool) -> io::Result<()> {
        let raw = self.fd.as_raw_fd();
        // SAFETY: a sockaddr_ll of zeros is a valid one.
        let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        addr.sll_ifindex = self.ifindex as c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointer and length are of one live address, which the kernel only reads.
        if unsafe { libc::bind(raw, (&raw const addr).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if !promiscuous {
            // The kernel's own memberships let groups through.
            return Ok(());
        }
        let membership = libc::packet_mreq {
            mr_ifindex: self.ifindex as c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        sys::set_option(raw, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes of packets that may wait unread: half of the buffer is what the kernel counts for itself.
    pub fn window(&self) -> usize {
        let bytes = sys::get_option(self.fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        (bytes.max(0) as usize / 4).max(64 * 1024)
    }

    /// Reads what is there, a bounded lot of it; [`received`](Self::received) gives it out.
    pub fn receive(&mut self) -> io::Result<usize> {
        let count = self.rx.messages.len() as u32;
        loop {
            // SAFETY: each message has one slice, of `room` bytes of `memory` that only it has; both
            // vectors are as `RxBuffers::new` left them but for lengths and flags.
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
                // EINVAL: a frame that a virtio-net header cannot tell of; the kernel has dropped it.
                Some(libc::EAGAIN | libc::EINVAL) => return Ok(0),
                // Down is no end: it may come up again. Gone is.
                Some(libc::ENETDOWN) if sys::interface_exists(self.fd.as_raw_fd(), self.ifindex) => {
                    return Ok(0);
                }
                _ => return Err(error),
            }
        }
    }

    /// Frame `i` of the last [`receive`](Self::receive).
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
            (VNET_GSO_UDP_L4, segment @ 1..) => Shape::Run(segment),
            _ => Shape::Unknown,
        };
        let checksums = match head[0] & (VNET_NEEDS_CSUM | VNET_DATA_VALID) {
            0 => Checksums::Verify,
            _ => Checksums::Trust,
        };
        RxFrame { bytes, shape, checksums, unusable: unusable || shape == Shape::Unknown }
    }

    /// Sends the messages of a batch from `first` on. Returns how many went, and why not more.
    pub fn send(&self, batch: &mut TxBatch, first: usize) -> (usize, Option<io::Error>) {
        let messages = batch.finish();
        let mut sent = first;
        let mut patient = true;
        while sent < messages.len() {
            let rest = &mut messages[sent..];
            // SAFETY: `finish` has made each message point to slices of live memory, the batch's own and the
            // transmit queue's, which are borrowed for as long as the batch is filled. The kernel only reads
            // them.
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
                patient = true;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) if patient => {
                    let _ = poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)], PATIENCE_MS);
                    patient = false;
                }
                _ => return (sent, Some(error)),
            }
        }
        (sent, None)
    }
}

/// Messages in the making, each of headers and slices. Its buffers are reused.
#[derive(Debug, Default)]
pub(super) struct TxBatch {
    heads: Vec<u8>,
    iov: Vec<iovec>,
    /// Slices of `heads`, whose place is only known when it has stopped growing.
    head_iov: Vec<(usize, usize)>,
    starts: Vec<usize>,
    pub info: Vec<TxMessage>,
    messages: Vec<mmsghdr>,
}

// SAFETY: its pointers are used only between `clear` and the sending call that follows, within one call
// of `transmit`; in between they are leftovers that nobody follows.
unsafe impl Send for TxBatch {}

/// What a message is.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxMessage {
    /// The burst of the queue that it is (part) of.
    pub burst: usize,
    /// How many packets.
    pub packets: usize,
    /// Whether the kernel has to cut it.
    pub run: bool,
    /// MAC of the next hop.
    pub to: Mac,
}

/// A run of packets for the kernel to cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub segment: usize,
    /// Where the IP and the UDP header end, from the start of the frame.
    pub ip_end: usize,
    pub udp_end: usize,
}

impl TxBatch {
    pub fn clear(&mut self) {
        self.heads.clear();
        self.iov.clear();
        self.head_iov.clear();
        self.starts.clear();
        self.info.clear();
    }

    pub fn is_full(&self) -> bool {
        self.info.len() >= TX_MESSAGES
    }

    /// Starts a message; `write` appends its headers.
    pub fn begin(&mut self, info: TxMessage, vnet: bool, run: Option<Run>, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.heads.len();
        if vnet {
            let mut head = [0; VNET_LEN];
            if let Some(run) = run {
                head[0] = VNET_NEEDS_CSUM;
                head[1] = VNET_GSO_UDP_L4;
                head[2..4].copy_from_slice(&(run.udp_end as u16).to_ne_bytes());
                head[4..6].copy_from_slice(&(run.segment as u16).to_ne_bytes());
                head[6..8].copy_from_slice(&(run.ip_end as u16).to_ne_bytes());
                // The checksum's place in the UDP header.
                head[8..10].copy_from_slice(&6u16.to_ne_bytes());
            }
            self.heads.extend_from_slice(&head);
        }
        write(&mut self.heads);
        self.starts.push(self.iov.len());
        self.head_iov.push((self.iov.len(), at));
        self.iov.push(iovec { iov_base: std::ptr::null_mut(), iov_len: self.heads.len() - at });
        self.info.push(info);
    }

    /// Adds what follows the headers of the message begun last.
    pub fn data(&mut self, bytes: &[u8]) {
        self.iov.push(iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    }

    /// Makes the messages point to their slices, now that nothing moves any more.
    fn finish(&mut self) -> &mut [mmsghdr] {
        let heads = self.heads.as_mut_ptr();
        for (i, at) in &self.head_iov {
            self.iov[*i].iov_base = heads.wrapping_add(*at).cast();
        }
        let end = self.iov.len();
        let iov = self.iov.as_mut_ptr();
        let ends = self.starts.iter().skip(1).copied().chain([end]);
        self.messages.clear();
        self.messages.extend(
            self.starts.iter().zip(ends).map(|(start, end)| message(iov.wrapping_add(*start), end - start)),
        );
        &mut self.messages
    }
}
