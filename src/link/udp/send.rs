//! Send side: one message per burst, segmented by the kernel (GSO), and several messages per system call.

use std::io;
use std::mem::zeroed;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, poll};

use super::Local;
use super::cmsg::{Control, SockAddr};
use super::socket::{self, IpFields};
use crate::burst::{TxBurst, TxQueue};
use crate::link::LinkCounters;
use crate::wire::{Flow, ICRC_LEN, IpIdent, ROCE_PORT, icrc};

/// Maximum number of messages per system call.
const BATCH: usize = 64;
/// Maximum number of destinations remembered as unable to use segmentation.
const MAX_NO_GSO: usize = 64;
/// Maximum number of waits for room in the send buffer per turn.
const MAX_WAITS: u32 = 3;
/// Duration of one wait, in milliseconds.
const WAIT_MS: u8 = 1;
/// Number of consecutive turns that must request the same header fields to make them the socket's defaults.
const ADAPT_AFTER_TURNS: u32 = 16;

pub(super) struct Sender {
    bursts: Batch,
    singles: Batch,
    /// Scratch copy of a burst to send packet by packet, with recomputed ICRCs.
    scratch: Vec<u8>,
    /// Destinations for which the kernel refuses to segment, because the interface cannot or because IPsec
    /// is used on the path.
    pub no_gso_to: Vec<IpAddr>,
    segments: bool,
    /// Number of waits remaining in this turn.
    waits: u32,
    /// Header fields that the socket sets by default, without control messages.
    pub defaults: IpFields,
    /// Header fields that the most recent turns requested instead of the defaults, and the number of those
    /// turns.
    requested: (IpFields, u32),
    pub counters: LinkCounters,
}

/// Action to take after a message could not be sent.
enum SendErrorAction {
    /// Retry.
    Retry,
    /// The kernel refuses to segment for this destination: send the packets singly.
    NotSegmented,
    /// Dropped and counted.
    Dropped,
}

impl Sender {
    pub fn new(segments: bool) -> Sender {
        Sender {
            bursts: Batch::default(),
            singles: Batch::default(),
            scratch: Vec::new(),
            no_gso_to: Vec::new(),
            segments,
            waits: 0,
            defaults: IpFields::DEFAULT,
            requested: (IpFields::DEFAULT, 0),
            counters: LinkCounters::default(),
        }
    }

    pub fn transmit(&mut self, socket: &OwnedFd, local: &Local, queue: &TxQueue) -> io::Result<()> {
        self.adapt_defaults(socket, local, queue);
        if send_fast_path(socket, local, self.defaults, queue) {
            return Ok(());
        }
        self.waits = MAX_WAITS;
        for (index, burst) in queue.bursts().enumerate() {
            let flow = &burst.flow;
            if flow.src_port != ROCE_PORT || flow.dst.is_ipv4() != local.ip.is_ipv4() {
                self.counters.tx_dropped += burst.packets as u64;
                continue;
            }
            if burst.packets > 1 && (!self.segments || self.no_gso_to.contains(&flow.dst)) {
                self.flush(socket, local, queue)?;
                self.send_singly(socket, local, &burst)?;
                continue;
            }
            self.bursts.add(local, self.defaults, flow, burst.bytes(), Some((index, &burst)));
            if self.bursts.messages.len() == BATCH {
                self.flush(socket, local, queue)?;
            }
        }
        self.flush(socket, local, queue)
    }

    /// Makes header fields that consecutive turns have requested the socket's defaults: programs mostly use
    /// the same hop limit and traffic class for all packets, and messages without control data cost less.
    fn adapt_defaults(&mut self, socket: &OwnedFd, local: &Local, queue: &TxQueue) {
        let is_ipv4 = local.ip.is_ipv4();
        let Some(burst) = queue.bursts().next().filter(|burst| burst.flow.dst.is_ipv4() == is_ipv4) else {
            return;
        };
        let ip_fields = IpFields::of(&burst.flow);
        if ip_fields == self.defaults || burst.flow.dst.is_multicast() {
            self.requested.1 = 0;
            return;
        }
        let (last, turns) = self.requested;
        self.requested = (ip_fields, if last == ip_fields { turns + 1 } else { 1 });
        if self.requested.1 >= ADAPT_AFTER_TURNS {
            self.requested.1 = 0;
            match socket::set_ip_fields(socket, is_ipv4, ip_fields) {
                Ok(()) => self.defaults = ip_fields,
                // Some traffic classes need a privilege. Restores the old fields, in case only one of the two
                // was set.
                Err(_) => drop(socket::set_ip_fields(socket, is_ipv4, self.defaults)),
            }
        }
    }

    /// Sends the messages in `bursts`, and clears it.
    fn flush(&mut self, socket: &OwnedFd, local: &Local, queue: &TxQueue) -> io::Result<()> {
        self.bursts.prepare();
        let mut at = 0;
        while at < self.bursts.messages.len() {
            let (sent, outcome) = self.bursts.send(socket, at);
            at += sent;
            let Err(error) = outcome else { continue };
            let Message { packets, burst, .. } = self.bursts.messages[at];
            match self.classify_error(socket, error, packets)? {
                SendErrorAction::Retry => continue,
                SendErrorAction::NotSegmented => {
                    if let Some(burst) = queue.bursts().nth(burst)
                        && self.send_singly(socket, local, &burst)?
                    {
                        self.no_gso_to.truncate(MAX_NO_GSO - 1);
                        self.no_gso_to.push(burst.flow.dst);
                    }
                }
                SendErrorAction::Dropped => {}
            }
            at += 1;
        }
        self.bursts.clear();
        Ok(())
    }

    /// Sends each packet of a burst as a separate datagram. Returns whether any was sent.
    ///
    /// All of them get identification 0, so over IPv4 the ICRCs computed for identifications 1, 2... are
    /// recomputed.
    fn send_singly(&mut self, socket: &OwnedFd, local: &Local, burst: &TxBurst<'_>) -> io::Result<bool> {
        self.scratch.clear();
        burst.copy_to(&mut self.scratch);
        if burst.flow.dst.is_ipv4() {
            for packet in self.scratch.chunks_mut(burst.segment).skip(1) {
                let icrc = icrc::compute(&burst.flow, 0, IpIdent::DONT_FRAGMENT, packet);
                let at = packet.len() - ICRC_LEN;
                packet[at..].copy_from_slice(&icrc.to_le_bytes());
            }
        }
        for packet in self.scratch.chunks(burst.segment) {
            self.singles.add(local, self.defaults, &burst.flow, packet, None);
        }
        self.singles.prepare();
        let (mut at, mut any) = (0, false);
        while at < self.singles.messages.len() {
            let (sent, outcome) = self.singles.send(socket, at);
            at += sent;
            any |= sent > 0;
            if let Err(error) = outcome {
                at += usize::from(!matches!(self.classify_error(socket, error, 1)?, SendErrorAction::Retry));
            }
        }
        self.singles.clear();
        Ok(any)
    }

    /// Decides how to proceed after failing to send a message of `packets` packets. Counts the packets if
    /// they are dropped. If the socket's send buffer is full and the turn has waits left, waits for room.
    fn classify_error(
        &mut self,
        socket: &OwnedFd,
        error: io::Error,
        packets: usize,
    ) -> io::Result<SendErrorAction> {
        let n = packets as u64;
        match error.raw_os_error().unwrap_or_default() {
            libc::EINTR => return Ok(SendErrorAction::Retry),
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM if self.waits > 0 => {
                self.waits -= 1;
                let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], WAIT_MS);
                return Ok(SendErrorAction::Retry);
            }
            libc::EINVAL | libc::EIO | libc::EOPNOTSUPP if packets > 1 => {
                return Ok(SendErrorAction::NotSegmented);
            }
            libc::EBADF | libc::ENOTSOCK => return Err(error),
            libc::EMSGSIZE => self.counters.tx_oversized += n,
            code if super::is_unreachable(code) => self.counters.tx_unreachable += n,
            _ => self.counters.tx_dropped += n,
        }
        Ok(SendErrorAction::Dropped)
    }
}

/// If the queue holds a single packet that needs no control messages, sends it by the cheapest system call,
/// to minimise latency. Returns whether it was sent; if not, the general path takes over and handles any
/// error.
fn send_fast_path(socket: &OwnedFd, local: &Local, defaults: IpFields, queue: &TxQueue) -> bool {
    let mut bursts = queue.bursts();
    let (Some(burst), None) = (bursts.next(), bursts.next()) else { return false };
    let (bytes, flow) = (burst.bytes(), &burst.flow);
    if burst.packets != 1 {
        return false;
    }
    // The flow of packets that the socket sends without control messages.
    let plain = Flow {
        traffic_class: flow.traffic_class,
        hop_limit: flow.hop_limit,
        vlan_priority: flow.vlan_priority,
        ..Flow::new(local.ip, flow.dst, ROCE_PORT)
    };
    if *flow != plain
        || IpFields::of(flow) != defaults.to(flow.dst)
        || flow.dst.is_ipv4() != local.ip.is_ipv4()
    {
        return false;
    }
    let (name, name_len) = SockAddr::new(flow.dst, ROCE_PORT, local.scope_of(flow));
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (name, name_len) = (name.0.as_ptr(), name_len as libc::socklen_t);
    // Avoids the C library's wrapper, a cancellation point, which costs time.
    // SAFETY: the data and the address are valid for reads of the lengths passed, and outlive the call.
    unsafe {
        let (data, fd) = (bytes.as_ptr(), socket.as_raw_fd());
        libc::syscall(libc::SYS_sendto, fd, data, bytes.len(), flags, name, name_len) >= 0
    }
}

/// A message to send: a burst that the kernel segments, or a single packet.
struct Message {
    name: SockAddr,
    name_len: usize,
    control: Control,
    packets: usize,
    /// Index in the transmit queue of the message's burst.
    burst: usize,
}

/// Messages to send in one system call. The vectors keep their capacity; the raw pointers in them are valid
/// only between `add` and `clear`, within one turn.
#[derive(Default)]
struct Batch {
    slices: Vec<libc::iovec>,
    messages: Vec<Message>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers are dereferenced only between `add` and `clear`, within one call that has
// exclusive access to the `Sender`. Between calls the vectors are empty, except after a fatal socket error.
unsafe impl Send for Batch {}

impl Batch {
    /// Adds a message with the given bytes: a whole burst, passed with its index in the transmit queue, or a
    /// single packet. The bytes must stay valid and in place until `clear`.
    fn add(
        &mut self,
        local: &Local,
        defaults: IpFields,
        flow: &Flow,
        bytes: &[u8],
        burst: Option<(usize, &TxBurst<'_>)>,
    ) {
        let (name, name_len) = SockAddr::new(flow.dst, ROCE_PORT, local.scope_of(flow));
        let mut control = Control::new();
        let packets = burst.map_or(1, |(_, b)| b.packets);
        if let Some((_, b)) = burst
            && packets > 1
        {
            control.put(libc::SOL_UDP, libc::UDP_SEGMENT, &(b.segment as u16).to_ne_bytes());
        }
        put_ip_fields(&mut control, flow, defaults.to(flow.dst));
        if flow.src != local.ip {
            // Groups exist on every interface: selects the interface of the source address.
            let ifindex = if flow.dst.is_multicast() { local.interface_of(flow.src) } else { 0 };
            control.put_source(flow.src, ifindex);
        }
        self.slices.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        let burst = burst.map_or(0, |(index, _)| index);
        self.messages.push(Message { name, name_len, control, packets, burst });
    }

    /// Points the headers to the messages, which must not move until `clear`.
    fn prepare(&mut self) {
        for (m, slice) in self.messages.iter().zip(&self.slices) {
            // SAFETY: all zeros is a valid mmsghdr: null pointers and zero lengths.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            let h = &mut header.msg_hdr;
            h.msg_name = m.name.0.as_ptr().cast_mut().cast();
            h.msg_namelen = m.name_len as libc::socklen_t;
            h.msg_iov = std::ptr::from_ref(slice).cast_mut();
            h.msg_iovlen = 1;
            if m.control.len > 0 {
                h.msg_control = m.control.bytes.as_ptr().cast_mut().cast();
                h.msg_controllen = m.control.len as _;
            }
            self.headers.push(header);
        }
    }

    /// Sends the messages from index `at` on. Returns the number of messages sent. Returns an error only if
    /// the first message failed, because the kernel reports none after a partial success.
    fn send(&mut self, socket: &OwnedFd, at: usize) -> (usize, io::Result<()>) {
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let sent = match &mut self.headers[at..] {
            // SAFETY: `prepare` pointed the header to an address, an iovec and control messages in vectors of
            // `self` that have not changed since, and the iovec points to bytes that stay in place until
            // `clear` (see `add`).
            [one] => match unsafe { libc::sendmsg(fd, &one.msg_hdr, flags) } {
                -1 => -1,
                _ => 1,
            },
            // SAFETY: as above, for all `many.len()` headers.
            many => unsafe { libc::sendmmsg(fd, many.as_mut_ptr(), many.len() as _, flags as _) },
        };
        match usize::try_from(sent) {
            Ok(n) => (n, Ok(())),
            Err(_) => (0, Err(io::Error::last_os_error())),
        }
    }

    fn clear(&mut self) {
        self.slices.clear();
        self.messages.clear();
        self.headers.clear();
    }
}

/// Adds control messages for the header fields that differ from the socket's defaults. The kernel chooses the
/// flow label: setting one requires leasing it from the kernel, and the ICRC does not cover it.
fn put_ip_fields(control: &mut Control, flow: &Flow, defaults: IpFields) {
    let ip_fields = IpFields::of(flow);
    let (level, tos, ttl) = IpFields::names(flow.dst.is_ipv4());
    if ip_fields.traffic_class != defaults.traffic_class {
        control.put(level, tos, &i32::from(ip_fields.traffic_class).to_ne_bytes());
    }
    if ip_fields.hop_limit != defaults.hop_limit {
        control.put(level, ttl, &i32::from(ip_fields.hop_limit).to_ne_bytes());
    }
}
