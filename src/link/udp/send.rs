//! Bursts to system calls: one message a burst, segmented by the kernel, many messages a call.

use std::io;
use std::mem::zeroed;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::Local;
use super::cmsg::{Control, Name};
use super::socket::{self, Marks};
use crate::link::LinkCounters;
use crate::transport::{TxBurst, TxQueue};
use crate::wire::{Flow, ICRC_LEN, IpIdent, ROCE_PORT, icrc};

/// Messages to one system call.
const BATCH: usize = 64;
/// Destinations remembered as not taking segmentation.
const MAX_PLAIN: usize = 64;
/// How often a full socket is waited for in one turn, and for how long each time.
const WAITS: u32 = 3;
const WAIT_MS: i32 = 1;
/// So many turns that want the same of the socket, and not what it does, are a habit: then it does that of itself.
const HABIT: u32 = 16;

pub(super) struct Sender {
    bursts: Batch,
    singles: Batch,
    /// Packets whose ICRCs are made anew.
    scratch: Vec<u8>,
    /// Where the kernel refuses to segment: its interface cannot, or IPsec is on the way.
    pub plain_to: Vec<IpAddr>,
    segments: bool,
    /// Waits left in this turn.
    waits: u32,
    /// What the socket puts into headers of itself.
    pub usual: Marks,
    /// What the last turns wanted instead, and how many.
    wanted: (Marks, u32),
    pub counters: LinkCounters,
}

/// What an error means for a message.
enum Verdict {
    /// Try again.
    Again,
    /// The kernel will not segment on the way to this destination.
    NotSegmented,
    /// Given up, and counted.
    Lost,
}

impl Sender {
    pub fn new(segments: bool) -> Sender {
        Sender {
            bursts: Batch::default(),
            singles: Batch::default(),
            scratch: Vec::new(),
            plain_to: Vec::new(),
            segments,
            waits: 0,
            usual: Marks::PLAIN,
            wanted: (Marks::PLAIN, 0),
            counters: LinkCounters::default(),
        }
    }

    pub fn transmit(&mut self, socket: &OwnedFd, local: &Local, queue: &TxQueue) -> io::Result<()> {
        self.learn(socket, local, queue);
        if send_lone(socket, local, self.usual, queue) {
            return Ok(());
        }
        self.waits = WAITS;
        for (index, burst) in queue.bursts().enumerate() {
            let flow = &burst.flow;
            if flow.src_port != ROCE_PORT || flow.dst.is_ipv4() != local.ip.is_ipv4() {
                self.counters.tx_dropped += burst.packets as u64;
                continue;
            }
            if burst.packets > 1 && (!self.segments || self.plain_to.contains(&flow.dst)) {
                self.flush(socket, local, queue)?;
                self.send_singly(socket, local, &burst)?;
                continue;
            }
            self.bursts.add(local, self.usual, flow, burst.bytes(), Some((index, &burst)));
            if self.bursts.messages.len() == BATCH {
                self.flush(socket, local, queue)?;
            }
        }
        self.flush(socket, local, queue)
    }

    /// Has the socket put of itself into headers what it is told with each message anyway: programs have one hop limit for
    /// all they send, and a message that needs no word of it costs less.
    fn learn(&mut self, socket: &OwnedFd, local: &Local, queue: &TxQueue) {
        let is_ipv4 = local.ip.is_ipv4();
        let Some(burst) = queue.bursts().next().filter(|burst| burst.flow.dst.is_ipv4() == is_ipv4) else {
            return;
        };
        let marks = Marks::of(&burst.flow);
        if marks == self.usual || burst.flow.dst.is_multicast() {
            self.wanted.1 = 0;
            return;
        }
        let (last, turns) = self.wanted;
        self.wanted = (marks, if last == marks { turns + 1 } else { 1 });
        if self.wanted.1 >= HABIT {
            self.wanted.1 = 0;
            match socket::set_marks(socket, is_ipv4, marks) {
                Ok(()) => self.usual = marks,
                // Some classes are not for everybody; half of it is nothing either.
                Err(_) => drop(socket::set_marks(socket, is_ipv4, self.usual)),
            }
        }
    }

    /// Sends what `bursts` holds and empties it.
    fn flush(&mut self, socket: &OwnedFd, local: &Local, queue: &TxQueue) -> io::Result<()> {
        self.bursts.prepare();
        let mut at = 0;
        while at < self.bursts.messages.len() {
            let (sent, outcome) = self.bursts.send(socket, at);
            at += sent;
            let Err(error) = outcome else { continue };
            let Message { packets, burst, .. } = self.bursts.messages[at];
            match self.judge(socket, error, packets)? {
                Verdict::Again => continue,
                Verdict::NotSegmented => {
                    if let Some(burst) = queue.bursts().nth(burst)
                        && self.send_singly(socket, local, &burst)?
                    {
                        self.plain_to.truncate(MAX_PLAIN - 1);
                        self.plain_to.push(burst.flow.dst);
                    }
                }
                Verdict::Lost => {}
            }
            at += 1;
        }
        self.bursts.clear();
        Ok(())
    }

    /// Sends each packet of a burst as a datagram of its own, and says whether any has left.
    ///
    /// They all get identification 0, so the ICRCs, made for 0, 1, 2…, are made anew.
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
            self.singles.add(local, self.usual, &burst.flow, packet, None);
        }
        self.singles.prepare();
        let (mut at, mut any) = (0, false);
        while at < self.singles.messages.len() {
            let (sent, outcome) = self.singles.send(socket, at);
            at += sent;
            any |= sent > 0;
            if let Err(error) = outcome {
                at += usize::from(!matches!(self.judge(socket, error, 1)?, Verdict::Again));
            }
        }
        self.singles.clear();
        Ok(any)
    }

    /// What an error means for a message of so many packets.
    fn judge(&mut self, socket: &OwnedFd, error: io::Error, packets: usize) -> io::Result<Verdict> {
        let n = packets as u64;
        match error.raw_os_error().unwrap_or_default() {
            libc::EINTR => return Ok(Verdict::Again),
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM if self.waits > 0 => {
                self.waits -= 1;
                let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                // SAFETY: one pollfd, which outlives the call.
                unsafe { libc::poll(&mut poll, 1, WAIT_MS) };
                return Ok(Verdict::Again);
            }
            libc::EINVAL | libc::EIO | libc::EOPNOTSUPP if packets > 1 => {
                return Ok(Verdict::NotSegmented);
            }
            libc::EBADF | libc::ENOTSOCK => return Err(error),
            libc::EMSGSIZE => self.counters.tx_oversized += n,
            code if super::is_unreachable(code) => self.counters.tx_unreachable += n,
            _ => self.counters.tx_dropped += n,
        }
        Ok(Verdict::Lost)
    }
}

/// Sends a lone packet that needs nothing of all the rest, by the leanest system call: somebody waits for it.
/// Whether it has left; if not, the long way finds out why.
fn send_lone(socket: &OwnedFd, local: &Local, usual: Marks, queue: &TxQueue) -> bool {
    let mut bursts = queue.bursts();
    let (Some(burst), None) = (bursts.next(), bursts.next()) else { return false };
    let (bytes, flow) = (burst.bytes(), &burst.flow);
    if burst.packets != 1 {
        return false;
    }
    // What the socket sends of its own accord.
    let plain = Flow {
        traffic_class: flow.traffic_class,
        hop_limit: flow.hop_limit,
        ..Flow::new(local.ip, flow.dst, ROCE_PORT)
    };
    if *flow != plain || Marks::of(flow) != usual.to(flow.dst) || flow.dst.is_ipv4() != local.ip.is_ipv4() {
        return false;
    }
    let (name, name_len) = Name::new(flow.dst, ROCE_PORT, local.scope_of(flow));
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (name, name_len) = (name.as_ptr(), name_len as libc::socklen_t);
    // No cancellation point of the C library, which costs.
    // SAFETY: `bytes` and the name, both with their true lengths, outlive the call.
    unsafe {
        let (data, fd) = (bytes.as_ptr(), socket.as_raw_fd());
        libc::syscall(libc::SYS_sendto, fd, data, bytes.len(), flags, name, name_len) >= 0
    }
}

/// One message: a burst that the kernel segments, or a single packet.
struct Message {
    name: Name,
    name_len: usize,
    control: Control,
    packets: usize,
    /// Which burst of the queue it is.
    burst: usize,
}

/// Messages for one system call. The vectors keep their capacity; the pointers in them are good from
/// `add` to `clear`, within one turn.
#[derive(Default)]
struct Batch {
    slices: Vec<libc::iovec>,
    messages: Vec<Message>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers are used only between `add` and `clear`, within one call that holds the
// Sender exclusively; in between calls there are none.
unsafe impl Send for Batch {}

impl Batch {
    /// Adds a message: the bytes of a burst, which has its place in the queue, or of a packet of its own. They must stay
    /// where they are until `clear`.
    fn add(
        &mut self,
        local: &Local,
        usual: Marks,
        flow: &Flow,
        bytes: &[u8],
        burst: Option<(usize, &TxBurst<'_>)>,
    ) {
        let (name, name_len) = Name::new(flow.dst, ROCE_PORT, local.scope_of(flow));
        let mut control = Control::new();
        let packets = burst.map_or(1, |(_, b)| b.packets);
        if let Some((_, b)) = burst
            && packets > 1
        {
            control.put(libc::SOL_UDP, libc::UDP_SEGMENT, &(b.segment as u16).to_ne_bytes());
        }
        put_headers(&mut control, flow, usual.to(flow.dst));
        if flow.src != local.ip {
            // Groups are on every interface: theirs is the source's.
            let ifindex = if flow.dst.is_multicast() { local.interface_of(flow.src) } else { 0 };
            control.put_source(flow.src, ifindex);
        }
        self.slices.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        let burst = burst.map_or(0, |(index, _)| index);
        self.messages.push(Message { name, name_len, control, packets, burst });
    }

    /// Points the headers at the messages, which move no more.
    fn prepare(&mut self) {
        for (m, slice) in self.messages.iter().zip(&self.slices) {
            // SAFETY: all zeros is a valid mmsghdr: null pointers and zero lengths.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            let h = &mut header.msg_hdr;
            h.msg_name = m.name.as_ptr().cast_mut();
            h.msg_namelen = m.name_len as libc::socklen_t;
            h.msg_iov = std::ptr::from_ref(slice).cast_mut();
            h.msg_iovlen = 1;
            if m.control.len() > 0 {
                h.msg_control = m.control.as_ptr().cast_mut();
                h.msg_controllen = m.control.len() as _;
            }
            self.headers.push(header);
        }
    }

    /// Sends messages from `at` on. How many have left, and the error that stopped the one behind them;
    /// an error is told only when it is the first thing to happen.
    fn send(&mut self, socket: &OwnedFd, at: usize) -> (usize, io::Result<()>) {
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let sent = match &mut self.headers[at..] {
            // SAFETY: the header was pointed by `prepare` at a name, slices and control messages that live
            // in `self`, and the slices at bytes that their lenders keep for this turn (`add`).
            [one] => match unsafe { libc::sendmsg(fd, &one.msg_hdr, flags) } {
                -1 => -1,
                _ => 1,
            },
            // SAFETY: as above, for as many headers as there are.
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

/// What differs from what the socket puts of itself. The flow label stays the kernel's choice: setting one needs a
/// lease of it, and the ICRC does not cover it.
fn put_headers(control: &mut Control, flow: &Flow, usual: Marks) {
    let marks = Marks::of(flow);
    let (level, tos, ttl) = Marks::names(flow.dst.is_ipv4());
    if marks.traffic_class != usual.traffic_class {
        control.put(level, tos, &i32::from(marks.traffic_class).to_ne_bytes());
    }
    if marks.hop_limit != usual.hop_limit {
        control.put(level, ttl, &i32::from(marks.hop_limit).to_ne_bytes());
    }
}
