//! UD queue pair of a datagram socket for one local address, with its buffers.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use urxe::transport::QpType;
use urxe::verbs::cm::UDP_QKEY;
use urxe::verbs::{
    Access, Ah, Completion, Context, Mr, Qp, QpOptions, Qpn, RecvCaps, RecvWr, SendCaps, SendWr, WcStatus,
    grh,
};

use crate::buffers::Source;
use crate::common::Completions;
use crate::headers::{Header, MAX_HEADER_LEN, MAX_MESSAGE_LEN, parse_source};
use crate::options::Sizes;
use crate::peers::canonical;

/// Minimum number of send slots, and thus of datagrams that can be in flight.
const MIN_SLOTS: usize = 4;
/// Bit of `wr_id` that is set for receives and clear for sends.
const RECEIVE: u64 = 1 << 63;

/// A received datagram, whose data is still in a receive buffer.
pub(crate) struct RecvDatagram {
    pub from: SocketAddr,
    pub qpn: Qpn,
    pub slot: RecvSlot,
}

/// Location of the data of a received datagram: index of the receive, and range in the registered memory.
pub(crate) struct RecvSlot {
    pub index: usize,
    pub range: Range<usize>,
}

/// A UD queue pair and its buffers.
pub(crate) struct UdQp {
    /// Local address at which peers reach the queue pair.
    pub local: IpAddr,
    pub qp: Qp,
    pub completions: Completions,
    /// Path MTU: maximum payload of a packet, in bytes.
    mtu: usize,
    /// Buffers of the receives. Like `sends`, they are slots of equal length, one per work request.
    receives: Mr,
    sends: Mr,
    /// Indices of the slots in `sends` without a send in flight.
    free: Vec<usize>,
    /// Number of slots in `sends`.
    slots: usize,
    /// Whether the queue pair no longer works because its device was removed.
    pub has_failed: bool,
    /// Whether [`take_failure`](Self::take_failure) has reported the failure.
    failure_reported: bool,
}

impl UdQp {
    /// Creates a queue pair at a local address and posts its receives.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn new(context: &Context, local: IpAddr, mtu: usize, sizes: &Sizes) -> Result<UdQp, c_int> {
        let create = |e: urxe::verbs::errors::CreateError| e.errno();
        let pd = context.alloc_pd().map_err(create)?;
        let (send_len, receive_len) = (MAX_HEADER_LEN + mtu, grh::LEN + mtu);
        let slots = (sizes.send_buffer / send_len).clamp(MIN_SLOTS, sizes.send_queue as usize);
        let limits = context.query_device().limits;
        // A buffer with more receives than the device supports is cut to that number.
        let max = (limits.max_qp_wr as usize).min((limits.max_cqe as usize).saturating_sub(slots));
        let recv_slots = (2 * sizes.receive_half / receive_len).max(sizes.credits.into()).min(max);
        let receives = pd.reg_mr(recv_slots * receive_len, Access::LOCAL_WRITE).map_err(create)?;
        let sends = pd.reg_mr(slots * send_len, Access::LOCAL_READ).map_err(create)?;
        let completions = Completions::new(context, slots + recv_slots).map_err(create)?;
        let options = QpOptions::default()
            .qp_type(QpType::Ud)
            .send(SendCaps { max_wr: slots as u32, max_sge: 1, max_inline: 0 })
            .recv(RecvCaps { max_wr: recv_slots as u32, max_sge: 1 });
        let qp = pd.create_qp(&completions.cq, &completions.cq, &options).map_err(create)?;
        qp.activate(UDP_QKEY).map_err(|_| libc::EIO)?;
        let mut pair = UdQp {
            local,
            qp,
            completions,
            mtu,
            receives,
            sends,
            free: (0..slots).collect(),
            slots,
            has_failed: false,
            failure_reported: false,
        };
        (0..recv_slots).for_each(|index| pair.post_recv(index));
        if pair.has_failed { Err(libc::EIO) } else { Ok(pair) }
    }

    /// Posts the receive with the given index, once the data of its last datagram is no longer needed.
    pub(crate) fn post_recv(&mut self, index: usize) {
        let len = grh::LEN + self.mtu;
        let sge = self.receives.sge(index * len..(index + 1) * len);
        let sges = [sge];
        let wr = RecvWr::new(RECEIVE | index as u64, &sges);
        self.has_failed |= self.qp.post_recv(&wr).is_err();
    }

    /// Returns the maximum number of data bytes in a datagram with the given header.
    pub(crate) fn max_data_len(&self, header: &Header) -> usize {
        self.mtu.min(MAX_MESSAGE_LEN) - header.bytes().len()
    }

    /// Polls completions and calls `on_datagram` for each received datagram. Returns true if there were any
    /// completions. Datagrams without a valid header are dropped.
    pub(crate) fn process(&mut self, mut on_datagram: impl FnMut(&mut UdQp, RecvDatagram)) -> bool {
        let polled = self.completions.poll(true).unwrap_or_else(|_| {
            self.has_failed = true;
            Vec::new()
        });
        polled.iter().for_each(|completion| self.on_completion(completion, &mut on_datagram));
        self.completions.polled = polled;
        !self.completions.polled.is_empty()
    }

    fn on_completion(
        &mut self,
        completion: &Completion,
        on_datagram: &mut impl FnMut(&mut UdQp, RecvDatagram),
    ) {
        if completion.wr_id & RECEIVE == 0 {
            self.free.push(completion.wr_id as usize);
            self.has_failed |= completion.status != WcStatus::Success;
            return;
        }
        let index = (completion.wr_id & !RECEIVE) as usize;
        if completion.status != WcStatus::Success {
            // A receive fails only if the queue pair has failed.
            self.has_failed = true;
            return;
        }
        match self.datagram(index, completion) {
            Some(datagram) => on_datagram(self, datagram),
            None => self.post_recv(index),
        }
    }

    /// Parses the datagram in a completed receive.
    fn datagram(&self, index: usize, completion: &Completion) -> Option<RecvDatagram> {
        let start = index * (grh::LEN + self.mtu);
        let len = (completion.byte_len as usize).checked_sub(grh::LEN)?;
        let mut header = [0; MAX_HEADER_LEN];
        let header = &mut header[..len.min(MAX_HEADER_LEN)];
        self.receives.read(start + grh::LEN, header).ok()?;
        // The bytes read are enough for any header; of longer datagrams only the length matters.
        let (from, skip) = parse_source(header).ok()?;
        // The sender may claim any address, but one of the other family cannot be a peer of this queue pair.
        let from = canonical(from);
        if from.is_ipv4() != self.local.is_ipv4() {
            return None;
        }
        let range = start + grh::LEN + skip..start + grh::LEN + len;
        Some(RecvDatagram { from, qpn: completion.src_qpn, slot: RecvSlot { index, range } })
    }

    /// Copies data of a received datagram, beginning at offset `at`.
    pub(crate) fn read(&self, slot: &RecvSlot, at: usize, to: &mut [u8]) {
        // The range is inside the memory, as the completion was.
        let _ = self.receives.read(slot.range.start + at, to);
    }

    /// Sends the entire source, which must fit in a datagram. Returns false if all send slots are in use.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn send(
        &mut self,
        to: (&Ah, Qpn),
        header: &Header,
        source: &mut Source<'_>,
    ) -> Result<bool, c_int> {
        if self.has_failed {
            return Err(libc::ENETDOWN);
        }
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let start = slot * (MAX_HEADER_LEN + self.mtu);
        // Cannot fail: the slot is inside the memory and large enough, and no send uses it.
        let write = |at: usize, bytes: &[u8]| {
            let _ = self.sends.write(at, bytes);
        };
        write(start, header.bytes());
        let data = start + header.bytes().len();
        let end = source.take(data..data + source.remaining(), write);
        let sges = [self.sends.sge(start..end)];
        let wr = SendWr::send(slot as u64, &sges).to(to.0.to(to.1, UDP_QKEY));
        self.qp.post_send(&wr).map(|()| true).map_err(|e| {
            self.free.push(slot);
            e.errno()
        })
    }

    /// Returns true once, at the first call after the queue pair has failed.
    pub(crate) fn take_failure(&mut self) -> bool {
        self.has_failed && !std::mem::replace(&mut self.failure_reported, true)
    }

    /// Reports whether a datagram can be sent, or would fail, without waiting.
    pub(crate) fn is_writable(&self) -> bool {
        self.has_failed || !self.free.is_empty()
    }

    /// Reports whether all datagrams have been sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.has_failed || self.free.len() == self.slots
    }
}
