//! A UD queue pair of a datagram socket, at one of its addresses, with its memory.

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

/// Completions that are looked at together.
const BATCH: usize = 32;
/// The least that a socket can have on their way.
const LEAST: usize = 4;
/// Of a receive's number. A send's has it not.
const RECEIVE: u64 = 1 << 63;

/// A datagram that came, and lies in a receive.
pub struct Came {
    pub from: SocketAddr,
    pub qpn: Qpn,
    pub place: Place,
}

/// Where its data are.
pub struct Place {
    receive: usize,
    range: Range<usize>,
}

impl Place {
    pub fn len(&self) -> usize {
        self.range.len()
    }
}

/// See the module.
pub struct Pair {
    /// As peers know it.
    pub local: IpAddr,
    qp: Qp,
    cq: Cq,
    /// Where completions are heard of, once [`arm`](Self::arm)ed.
    pub completions: CompletionChannel,
    is_armed: bool,
    /// Payload of a packet.
    mtu: usize,
    /// Both in places of equal length, one for each work request.
    receives: Mr,
    sends: Mr,
    /// Places of `sends` in which nothing is on its way, and how many there are.
    free: Vec<usize>,
    all: usize,
    is_over: bool,
    is_told: bool,
    found: Vec<Completion>,
}

impl Pair {
    /// # Errors
    /// An error number.
    pub fn new(context: &Context, local: IpAddr, mtu: usize, sizes: &Sizes) -> Result<Pair, c_int> {
        let create = |e: urxe::verbs::CreateError| e.errno();
        let pd = context.alloc_pd().map_err(create)?;
        let (send_len, receive_len) = (MOST + mtu, grh::LEN + mtu);
        let all = (sizes.send_buffer / send_len).clamp(LEAST, sizes.send_queue as usize);
        let limits = context.query_device().limits;
        // A larger buffer than the device has receives for is as large as it can be.
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

    fn post(&mut self, receive: usize) {
        let len = grh::LEN + self.mtu;
        let sge = self.receives.sge(receive * len..(receive + 1) * len);
        let wr = RecvWr { wr_id: RECEIVE | receive as u64, sges: &[sge] };
        self.is_over |= self.qp.post_recv(&wr).is_err();
    }

    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// A path to a peer.
    ///
    /// # Errors
    /// An error number.
    pub fn path(&self, to: &AddressVector) -> Result<Ah, c_int> {
        self.qp.pd().create_ah(to).map_err(|e| e.errno())
    }

    /// The most data that go behind a header.
    pub fn room(&self, header: &Header) -> usize {
        self.mtu.min(LONGEST) - header.bytes().len()
    }

    /// As of [`Link::arm`](super::link::Link::arm).
    pub fn arm(&mut self) {
        while self.completions.next_event().is_some() {
            self.is_armed = false;
        }
        if !std::mem::replace(&mut self.is_armed, true) {
            self.cq.req_notify(Notify::Any);
        }
    }

    /// Takes what came, which is told `came`; whether anything has changed. What is no datagram of the protocol is dropped.
    pub fn turn(&mut self, mut came: impl FnMut(&mut Pair, Came)) -> bool {
        let mut changed = false;
        let mut found = std::mem::take(&mut self.found);
        // As much as there was when it began: peers that never pause are not to keep the program here.
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
            // No receive goes wrong but with its queue pair.
            self.is_over = true;
            return;
        }
        match self.datagram(receive, completion) {
            Some(datagram) => came(self, datagram),
            None => self.post(receive),
        }
    }

    fn datagram(&self, receive: usize, completion: &Completion) -> Option<Came> {
        let start = receive * (grh::LEN + self.mtu);
        let len = (completion.byte_len as usize).checked_sub(grh::LEN)?;
        let mut header = [0; MOST];
        let header = &mut header[..len.min(MOST)];
        self.receives.read(start + grh::LEN, header).ok()?;
        // Of what is longer than any header only the length counts.
        let (from, skip) = parse_source(header).ok()?;
        // Who sends it says what he likes: an address of the other family is nobody's here.
        let from = canonical(from);
        if from.is_ipv4() != self.local.is_ipv4() {
            return None;
        }
        let range = start + grh::LEN + skip..start + grh::LEN + len;
        Some(Came { from, qpn: completion.src_qpn, place: Place { receive, range } })
    }

    /// Copies the first of a datagram's data.
    pub fn read(&self, place: &Place, at: usize, to: &mut [u8]) {
        // It is inside, as the completion said.
        let _ = self.receives.read(place.range.start + at, to);
    }

    /// Its data are wanted no more.
    pub fn give_back(&mut self, place: &Place) {
        self.post(place.receive);
    }

    /// Sends all of the source, which has to fit; false if so much is on its way that nothing can go now.
    ///
    /// # Errors
    /// An error number.
    pub fn send(&mut self, to: (&Ah, Qpn), header: &Header, source: &mut Source<'_>) -> Result<bool, c_int> {
        if self.is_over {
            return Err(libc::ENETDOWN);
        }
        let Some(place) = self.free.pop() else { return Ok(false) };
        let start = place * (MOST + self.mtu);
        // The place has room, and nobody uses it.
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

    /// Whether nothing comes or goes by it any more: its device is gone.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether it is over, which is told once.
    pub fn ends(&mut self) -> bool {
        self.is_over && !std::mem::replace(&mut self.is_told, true)
    }

    pub fn is_writable(&self) -> bool {
        self.is_over || !self.free.is_empty()
    }

    /// Whether everything that was sent has left.
    pub fn is_flushed(&self) -> bool {
        self.is_over || self.free.len() == self.all
    }
}
