//! UD queue pair of a datagram socket at one local address, with its buffers.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use urxe::transport::{AddressVector, QpType};
use urxe::verbs::cm::UDP_QKEY;
use urxe::verbs::{
    Access, Ah, Completion, CompletionChannel, Context, Cq, Mr, Notify, Qp, QpOptions, Qpn, RecvCaps, RecvWr,
    SendCaps, SendWr, WcStatus, grh,
};

use super::buffers::Source;
use super::headers::{Header, LONGEST, MOST, parse_source};
use super::options::Sizes;
use super::peers::canonical;

/// Number of completions that are polled at a time.
const BATCH: usize = 32;
/// Least number of datagrams that a socket can have in flight.
const LEAST: usize = 4;
/// Bit of the `wr_id` that is set in receives and clear in sends.
const RECEIVE: u64 = 1 << 63;

/// A received datagram, whose data are in a receive buffer.
pub struct Came {
    pub from: SocketAddr,
    pub qpn: Qpn,
    pub place: Place,
}

/// Location of the data: index of the receive, and range in the registered memory.
pub struct Place {
    receive: usize,
    range: Range<usize>,
}

impl Place {
    pub fn len(&self) -> usize {
        self.range.len()
    }
}

/// A UD queue pair and its buffers.
pub struct Pair {
    /// Local address, as peers know it.
    pub local: IpAddr,
    qp: Qp,
    cq: Cq,
    /// Completion channel, which reports completions once [`arm`](Self::arm)ed.
    pub completions: CompletionChannel,
    is_armed: bool,
    /// Payload of a packet, in bytes.
    mtu: usize,
    /// Memory of the receives; like `sends`, it consists of slots of equal length, one for each work request.
    receives: Mr,
    sends: Mr,
    /// Indices of the slots of `sends` with no send in flight.
    free: Vec<usize>,
    /// Number of slots of `sends`.
    all: usize,
    /// Whether the queue pair no longer works.
    is_over: bool,
    /// Whether [`ends`](Self::ends) has reported that.
    is_told: bool,
    found: Vec<Completion>,
}

impl Pair {
    /// Creates a queue pair at a local address and posts its receives.
    ///
    /// # Errors
    /// An error number.
    pub fn new(context: &Context, local: IpAddr, mtu: usize, sizes: &Sizes) -> Result<Pair, c_int> {
        let create = |e: urxe::verbs::CreateError| e.errno();
        let pd = context.alloc_pd().map_err(create)?;
        let (send_len, receive_len) = (MOST + mtu, grh::LEN + mtu);
        let all = (sizes.send_buffer / send_len).clamp(LEAST, sizes.send_queue as usize);
        let limits = context.query_device().limits;
        // A buffer with more receives than the device supports is cut to that number.
        let most = (limits.max_qp_wr as usize).min((limits.max_cqe as usize).saturating_sub(all));
        let receiving = (2 * sizes.receive_half / receive_len).max(sizes.credits.into()).min(most);
        let receives = pd.reg_mr(receiving * receive_len, Access::LOCAL_WRITE).map_err(create)?;
        let sends = pd.reg_mr(all * send_len, Access::LOCAL_READ).map_err(create)?;
        let completions = context.create_channel().map_err(create)?;
        let cq = context.create_cq_on(all + receiving, &completions).map_err(create)?;
        let options = QpOptions {
            qp_type: QpType::Ud,
            send: SendCaps { max_wr: all as u32, max_sge: 1, max_inline: 0 },
            recv: RecvCaps { max_wr: receiving as u32, max_sge: 1 },
            ..QpOptions::default()
        };
        let qp = pd.create_qp(&cq, &cq, &options).map_err(create)?;
        qp.activate(UDP_QKEY).map_err(|_| libc::EIO)?;
        let (free, found) = ((0..all).collect(), Vec::with_capacity(BATCH));
        let (is_armed, is_over, is_told) = (false, false, false);
        let mut pair = Pair {
            local,
            qp,
            cq,
            completions,
            is_armed,
            mtu,
            receives,
            sends,
            free,
            all,
            is_over,
            is_told,
            found,
        };
        (0..receiving).for_each(|receive| pair.post(receive));
        if pair.is_over { Err(libc::EIO) } else { Ok(pair) }
    }

    /// Posts the receive with this index.
    fn post(&mut self, receive: usize) {
        let len = grh::LEN + self.mtu;
        let sge = self.receives.sge(receive * len..(receive + 1) * len);
        let wr = RecvWr { wr_id: RECEIVE | receive as u64, sges: &[sge] };
        self.is_over |= self.qp.post_recv(&wr).is_err();
    }

    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Creates an address handle for a peer.
    ///
    /// # Errors
    /// An error number.
    pub fn path(&self, to: &AddressVector) -> Result<Ah, c_int> {
        self.qp.pd().create_ah(to).map_err(|e| e.errno())
    }

    /// Returns the number of data bytes that fit behind a header.
    pub fn room(&self, header: &Header) -> usize {
        self.mtu.min(LONGEST) - header.bytes().len()
    }

    /// See [`Link::arm`](super::link::Link::arm).
    pub fn arm(&mut self) {
        while self.completions.next_event().is_some() {
            self.is_armed = false;
        }
        if !std::mem::replace(&mut self.is_armed, true) {
            self.cq.req_notify(Notify::Any);
        }
    }

    /// Polls completions and calls `came` for each received datagram; reports whether there was any
    /// completion. Packets that are not datagrams of the protocol are dropped.
    pub fn turn(&mut self, mut came: impl FnMut(&mut Pair, Came)) -> bool {
        let mut changed = false;
        let mut found = std::mem::take(&mut self.found);
        // The number of polls is bounded by the capacity of the CQ, so that peers that send without pause do
        // not keep the thread in this loop.
        for _ in 0..=self.cq.capacity().div_ceil(BATCH) {
            found.clear();
            self.is_over |= self.cq.poll(BATCH, &mut found).is_err();
            changed |= !found.is_empty();
            for completion in &found {
                self.completed(completion, &mut came);
            }
            if found.len() < BATCH {
                break;
            }
        }
        self.found = found;
        changed
    }

    fn completed(&mut self, completion: &Completion, came: &mut impl FnMut(&mut Pair, Came)) {
        if completion.wr_id & RECEIVE == 0 {
            self.free.push(completion.wr_id as usize);
            self.is_over |= completion.status != WcStatus::Success;
            return;
        }
        let receive = (completion.wr_id & !RECEIVE) as usize;
        if completion.status != WcStatus::Success {
            // A receive fails only if the queue pair has failed.
            self.is_over = true;
            return;
        }
        match self.datagram(receive, completion) {
            Some(datagram) => came(self, datagram),
            None => self.post(receive),
        }
    }

    /// Parses the datagram in a completed receive.
    fn datagram(&self, receive: usize, completion: &Completion) -> Option<Came> {
        let start = receive * (grh::LEN + self.mtu);
        let len = (completion.byte_len as usize).checked_sub(grh::LEN)?;
        let mut header = [0; MOST];
        let header = &mut header[..len.min(MOST)];
        self.receives.read(start + grh::LEN, header).ok()?;
        // The bytes read are enough for any header; of longer datagrams only the length matters.
        let (from, skip) = parse_source(header).ok()?;
        // The sender may claim any address, but one of the other family cannot be a peer of this queue pair.
        let from = canonical(from);
        if from.is_ipv4() != self.local.is_ipv4() {
            return None;
        }
        let range = start + grh::LEN + skip..start + grh::LEN + len;
        Some(Came { from, qpn: completion.src_qpn, place: Place { receive, range } })
    }

    /// Copies data of a datagram from the offset `at`.
    pub fn read(&self, place: &Place, at: usize, to: &mut [u8]) {
        // The range is inside the memory, as the completion was.
        let _ = self.receives.read(place.range.start + at, to);
    }

    /// Posts the receive of a datagram again, once its data are no longer needed.
    pub fn give_back(&mut self, place: &Place) {
        self.post(place.receive);
    }

    /// Sends all of the source, which has to fit into a datagram; false if all send slots are in flight.
    ///
    /// # Errors
    /// An error number.
    pub fn send(&mut self, to: (&Ah, Qpn), header: &Header, source: &mut Source<'_>) -> Result<bool, c_int> {
        if self.is_over {
            return Err(libc::ENETDOWN);
        }
        let Some(place) = self.free.pop() else { return Ok(false) };
        let start = place * (MOST + self.mtu);
        // Cannot fail: the slot is inside the memory and large enough, and no send uses it.
        let _ = self.sends.write(start, header.bytes());
        let mut at = start + header.bytes().len();
        while source.left() > 0 {
            let piece = source.take(usize::MAX);
            let _ = self.sends.write(at, piece);
            at += piece.len();
        }
        let sges = [self.sends.sge(start..at)];
        let wr = SendWr { to: Some(to.0.to(to.1, UDP_QKEY)), ..SendWr::send(place as u64, &sges) };
        self.qp.post_send(&wr).map(|()| true).map_err(|e| {
            self.free.push(place);
            e.errno()
        })
    }

    /// Reports whether the queue pair no longer works, as its device is gone.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reports once that the queue pair no longer works.
    pub fn ends(&mut self) -> bool {
        self.is_over && !std::mem::replace(&mut self.is_told, true)
    }

    /// Reports whether a datagram can be sent, or would fail at once.
    pub fn is_writable(&self) -> bool {
        self.is_over || !self.free.is_empty()
    }

    /// Reports whether all sent datagrams have left.
    pub fn is_flushed(&self) -> bool {
        self.is_over || self.free.len() == self.all
    }
}
