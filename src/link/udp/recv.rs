//! Receive side: reads datagrams, coalesced by the kernel (GRO), into a few reused buffers, and passes them
//! on as bursts.

use std::io;
use std::mem::zeroed;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::Local;
use super::cmsg::{Control, SockAddr, number};
use crate::burst::RxBurst;
use crate::link::LinkCounters;
use crate::wire::{Flow, IpIdent};

/// Size of a buffer in bytes, which holds the largest coalesced datagram.
const BUFFER: usize = 65_536;
/// Maximum number of datagrams per system call. With more, the buffers would evict each other from the cache.
const MAX_DATAGRAMS: usize = 8;
/// Maximum number of pending socket errors, caused by earlier sends, that one call to `receive` consumes.
const MAX_ERRORS: usize = 16;

pub(super) struct Receiver {
    data: Vec<u8>,
    names: [SockAddr; MAX_DATAGRAMS],
    controls: [Control; MAX_DATAGRAMS],
    /// Number of datagrams to request per call. It is 1 while datagrams arrive singly, because the call for
    /// a single datagram is faster and a thread may be waiting for it, and doubles after two consecutive
    /// calls that returned as many as requested.
    batch_size: usize,
    /// Whether the last call returned as many datagrams as requested.
    full: bool,
    pub counters: LinkCounters,
}

impl Receiver {
    pub fn new() -> Receiver {
        Receiver {
            data: vec![0; BUFFER * MAX_DATAGRAMS],
            names: [SockAddr::default(); MAX_DATAGRAMS],
            controls: [Control::new(); MAX_DATAGRAMS],
            batch_size: 1,
            full: false,
            counters: LinkCounters::default(),
        }
    }

    pub fn receive(
        &mut self,
        socket: &OwnedFd,
        local: &Local,
        sink: &mut dyn FnMut(RxBurst<'_>),
    ) -> io::Result<usize> {
        let mut received = [DatagramMeta::default(); MAX_DATAGRAMS];
        let mut errors = 0;
        let n = loop {
            let outcome = if self.batch_size == 1 {
                self.call_one(socket).map(|one| {
                    received[0] = one;
                    1
                })
            } else {
                self.call_many(socket, &mut received[..self.batch_size])
            };
            let error = match outcome {
                Ok(n) => break n,
                Err(error) => error,
            };
            match error.raw_os_error().unwrap_or_default() {
                libc::EINTR => {}
                libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS => break 0,
                // An ICMP error for a packet sent earlier.
                code if super::is_unreachable(code) && errors < MAX_ERRORS => {
                    errors += 1;
                    self.counters.tx_unreachable += 1;
                }
                _ => return Err(error),
            }
        };
        let requested = self.batch_size;
        self.batch_size = match n == requested {
            true if self.full => (n * 2).min(MAX_DATAGRAMS),
            true => n,
            false => n.max(1),
        };
        self.full = n == requested;

        let mut packets = 0;
        for (i, received) in received[..n].iter().enumerate() {
            match self.burst(i, received, local) {
                Some(burst) => {
                    packets += burst.data.len().div_ceil(burst.segment);
                    sink(burst);
                }
                None => self.counters.rx_malformed += 1,
            }
        }
        Ok(packets)
    }

    /// Receives one datagram, with less setup and a cheaper system call than [`call_many`](Self::call_many).
    fn call_one(&mut self, socket: &OwnedFd) -> io::Result<DatagramMeta> {
        let mut slice = slice_of(&mut self.data[..BUFFER]);
        let mut header = header(&mut self.names[0], &mut slice, &mut self.controls[0]);
        // The C library's own recvmsg is a cancellation point, which adds the cost of another call that finds
        // nothing.
        // SAFETY: the header points to `slice` and to an address, a data and a control buffer of `self`, each
        // with its true size; all are exclusively borrowed and outlive the call.
        let len = unsafe {
            libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT)
        };
        match usize::try_from(len) {
            Ok(len) => Ok(DatagramMeta::new(len, &header)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Receives up to `received.len()` datagrams, which must not exceed `MAX_DATAGRAMS`.
    fn call_many(&mut self, socket: &OwnedFd, received: &mut [DatagramMeta]) -> io::Result<usize> {
        // SAFETY: all zeros is a valid mmsghdr and a valid iovec: null pointers and zero lengths.
        let (mut headers, mut slices): ([libc::mmsghdr; MAX_DATAGRAMS], [libc::iovec; MAX_DATAGRAMS]) =
            unsafe { zeroed() };
        let buffers = self.data.chunks_exact_mut(BUFFER).zip(&mut self.names).zip(&mut self.controls);
        for ((h, slice), ((buffer, name), control)) in headers.iter_mut().zip(&mut slices).zip(buffers) {
            *slice = slice_of(buffer);
            h.msg_hdr = header(name, slice, control);
        }
        let (fd, room, flags) = (socket.as_raw_fd(), received.len(), libc::MSG_DONTWAIT);
        // SAFETY: all MAX_DATAGRAMS headers point to entries of `slices` and to address, data and control
        // buffers of `self`, each with its true size; all are exclusively borrowed and outlive the call.
        // `received` is part of an array of MAX_DATAGRAMS, so `room` does not exceed the number of headers.
        let n =
            unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), room as _, flags as _, std::ptr::null_mut()) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        for (received, h) in received.iter_mut().zip(&headers[..n]) {
            *received = DatagramMeta::new(h.msg_len as usize, &h.msg_hdr);
        }
        Ok(n)
    }

    /// Returns the datagram in buffer `i` as a burst; `None` if it is empty or truncated, or its metadata is
    /// unusable.
    fn burst(&self, i: usize, received: &DatagramMeta, local: &Local) -> Option<RxBurst<'_>> {
        if received.len == 0 || received.truncated {
            return None;
        }
        let (src, src_port) = self.names[i].get()?;
        let mut flow = Flow::new(src, local.ip, src_port);
        let mut segment = received.len;
        let mut dst = (!local.ip.is_unspecified()).then_some(local.ip);
        for (level, kind, data) in self.controls[i].messages(received.control) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => segment = usize::try_from(number(data)?).ok()?,
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    flow.traffic_class = number(data)? as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    flow.hop_limit = number(data)? as u8;
                }
                // in_pktinfo ends with the header's destination address; in6_pktinfo begins with it.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    dst = Some(IpAddr::from(*data.get(8..)?.first_chunk::<4>()?));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    dst = Some(IpAddr::from(*data.first_chunk::<16>()?));
                }
                _ => {}
            }
        }
        flow.dst = dst?;
        let data = &self.data[i * BUFFER..][..received.len.min(BUFFER)];
        (segment > 0).then_some(RxBurst::new(flow, IpIdent::Unknown, segment, data))
    }
}

/// Metadata that the kernel returns with a datagram.
#[derive(Clone, Copy, Default)]
struct DatagramMeta {
    len: usize,
    control: usize,
    truncated: bool,
}

impl DatagramMeta {
    fn new(len: usize, header: &libc::msghdr) -> DatagramMeta {
        DatagramMeta {
            len,
            // A size_t with glibc, a socklen_t with musl.
            control: header.msg_controllen as _,
            truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }
    }
}

fn slice_of(buffer: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }
}

fn header(name: &mut SockAddr, slice: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all zeros is a valid msghdr: null pointers and zero lengths.
    let mut h: libc::msghdr = unsafe { zeroed() };
    h.msg_name = name.0.as_mut_ptr().cast();
    h.msg_namelen = SockAddr::ROOM as _;
    h.msg_iov = slice;
    h.msg_iovlen = 1;
    h.msg_control = control.bytes.as_mut_ptr().cast();
    h.msg_controllen = Control::ROOM as _;
    h
}
