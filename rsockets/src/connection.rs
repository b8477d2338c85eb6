//! A stream connection: a queue pair, its memory, and the sending and receiving halves of the stream
//! protocol.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use urxe::verbs::cm::CmId;
use urxe::verbs::memory::RawMr;
use urxe::verbs::{
    Access, AsyncEvent, Completion, Context, Mr, Qp, QpOptions, RKey, RecvCaps, RecvWr, SendCaps, SendWr,
    WcStatus, WrData, WrOp,
};

use crate::buffers::{Sink, Source};
use crate::common::Completions;
use crate::incoming::Incoming;
use crate::link_polls::LinkPolls;
use crate::mappings::{LocalMap, RemoteMap};
use crate::options::Sizes;
use crate::outgoing::{INTERNAL, Outgoing, Transfer};
use crate::protocol::{
    ConnData, MAPPING_LEN, Mapping, Message, Order, ProtocolError, TARGET_SGE_LEN, TARGET_SGL_LEN, TargetSge,
    encodable_size,
};

/// Number of receives posted beyond the credits, for messages from the peer that consume no credit.
const SPARE_RECEIVES: u32 = 16;

/// `wr_id` of receives.
const RECEIVE: u64 = 1;
/// `wr_id` of sends.
const SEND: u64 = 2;

/// A connection.
pub struct Connection {
    pub(crate) id: CmId,
    qp: Qp,
    pub(crate) completions: Completions,
    /// Tables that the peer writes: the target SGL, which lists peer memory for this end to write to,
    /// followed by the table of memory that the peer has mapped.
    tables: Mr,
    sends: Mr,
    receives: Mr,
    out: Outgoing,
    pub(crate) inc: Incoming,
    remote_map: RemoteMap,
    local_map: LocalMap<RawMr>,
    /// Address and length of each memory area mapped without peer access.
    inaccessible: Vec<(u64, usize)>,
    /// Byte order of the peer's tables.
    order: Order,
    /// Index of the next entry that the peer writes in this end's target SGL.
    next_target: usize,
    /// Whether the peer's private data has arrived.
    is_negotiated: bool,
    /// Whether the peer can receive: the handshake is complete, or the peer has sent data.
    pub(crate) is_established: bool,
    /// Whether more data may arrive.
    pub(crate) can_read: bool,
    /// Whether more data may be sent.
    pub(crate) can_write: bool,
    /// Error not yet reported to the program.
    pub(crate) error: Option<c_int>,
    /// Whether the connection has ended.
    pub(crate) has_ended: bool,
    /// Time of the last completion.
    last_recv: Instant,
}

impl Connection {
    /// Creates the queue pair and the memory of a connection. `id` must be bound to a device.
    ///
    /// # Errors
    /// An error number.
    pub(crate) fn new(id: CmId, context: &Context, sizes: &Sizes) -> Result<Connection, c_int> {
        let pd = context.alloc_pd().map_err(|e| e.errno())?;
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mappings = encodable_size(sizes.mappings);
        let tables = pd
            .reg_mr(TARGET_SGL_LEN * TARGET_SGE_LEN + mappings * MAPPING_LEN, written)
            .map_err(|e| e.errno())?;
        let sends = pd.reg_mr(sizes.send_buffer, Access::LOCAL_READ).map_err(|e| e.errno())?;
        let receives = pd.reg_mr(2 * sizes.receive_half, written).map_err(|e| e.errno())?;
        let (send_wr, recv_wr) =
            (sizes.send_queue + INTERNAL as u32, u32::from(sizes.credits) + SPARE_RECEIVES);
        let completions = Completions::new(context, (send_wr + recv_wr) as usize).map_err(|e| e.errno())?;
        let options = QpOptions::default()
            .send(SendCaps { max_wr: send_wr, max_sge: 2, max_inline: MAPPING_LEN as u32 })
            .recv(RecvCaps { max_wr: recv_wr, max_sge: 0 });
        let qp = pd.create_qp(&completions.cq, &completions.cq, &options).map_err(|e| e.errno())?;
        id.attach_qp(&qp).map_err(|e| e.errno())?;
        for _ in 0..recv_wr {
            qp.post_recv(&RecvWr::new(RECEIVE, &[])).map_err(|e| e.errno())?;
        }
        Ok(Connection {
            id,
            qp,
            completions,
            tables,
            sends,
            receives,
            out: Outgoing::new(sizes.send_buffer, sizes.send_queue as usize),
            inc: Incoming::new(sizes.receive_half, sizes.credits),
            remote_map: RemoteMap::new(mappings),
            local_map: LocalMap::new(TargetSge::default(), 0),
            inaccessible: Vec::new(),
            order: Order::OWN,
            next_target: 1,
            is_negotiated: false,
            is_established: false,
            can_read: true,
            can_write: true,
            error: None,
            has_ended: false,
            last_recv: Instant::now(),
        })
    }

    /// Returns the private data to send in the handshake.
    pub(crate) fn conn_data(&self) -> ConnData {
        let target = |mr: &Mr, len: usize| TargetSge { addr: mr.addr(), key: mr.rkey().0, len: len as u32 };
        let half = self.receives.len() / 2;
        ConnData {
            order: Order::OWN,
            credits: self.inc.credits,
            mappings: self.remote_map.len(),
            table: target(&self.tables, TARGET_SGL_LEN),
            first: target(&self.receives, half),
        }
    }

    /// Starts the protocol with the peer's private data.
    pub(crate) fn start(&mut self, peer: &ConnData) {
        self.order = peer.order;
        self.out.limit = peer.credits;
        // Cannot fail: the list of targets is empty.
        let _ = self.out.add_target(peer.first);
        self.inc.connect(peer.table);
        self.local_map = LocalMap::new(peer.table, peer.mappings);
        self.is_negotiated = true;
    }

    /// Processes completions and sends pending updates to the peer. Returns true if there were any
    /// completions.
    pub(crate) fn process(&mut self, link_polls: &mut LinkPolls) -> bool {
        if !self.is_negotiated || self.has_ended {
            return false;
        }
        let polled = self.completions.poll(link_polls.take(&self.completions.cq)).unwrap_or_else(|_| {
            self.fail(libc::EIO);
            Vec::new()
        });
        polled.iter().for_each(|completion| self.on_completion(completion));
        let changed = !polled.is_empty();
        self.completions.polled = polled;
        if changed {
            self.last_recv = Instant::now();
        }
        if let Err(e) = self.send_updates() {
            self.fail(e);
        }
        changed
    }

    fn on_completion(&mut self, completion: &Completion) {
        if self.has_ended {
            return;
        }
        match (completion.status, completion.wr_id) {
            (WcStatus::Success, RECEIVE) => {
                let posted = self.qp.post_recv(&RecvWr::new(RECEIVE, &[]));
                if !std::mem::replace(&mut self.is_established, true) {
                    // A peer that sends is ready to receive, even if its RTU was lost.
                    let _ = self.id.notify(AsyncEvent::CommunicationEstablished(self.qp.qpn()));
                }
                match completion.imm.map(|imm| self.on_message(imm, completion.byte_len)) {
                    Some(Ok(())) if posted.is_ok() => {}
                    Some(Ok(())) => self.fail(libc::ECONNRESET),
                    // No immediate data, or a violation of the protocol.
                    None | Some(Err(_)) => self.fail(libc::EPROTO),
                }
            }
            (WcStatus::Success, _) => self.out.on_completion(),
            (WcStatus::RetryExcErr, _) => self.fail(libc::ETIMEDOUT),
            _ => self.fail(libc::ECONNRESET),
        }
    }

    /// Processes a message from the peer, which arrives as immediate data, with a WRITE of `len` bytes.
    fn on_message(&mut self, imm: u32, len: u32) -> Result<(), ProtocolError> {
        match Message::decode(imm)? {
            Message::Data(len) => self.inc.on_data(len)?,
            Message::Credits(limit) => {
                self.out.limit = limit;
                if len > 0 {
                    self.read_target()?;
                }
            }
            Message::Mapped(index) => {
                let entry = self.remote_map.entry(index)?;
                self.inc.count_message();
                let mut bytes = [0; MAPPING_LEN];
                // Cannot fail: the table has the entry.
                let _ = self.tables.read(TARGET_SGL_LEN * TARGET_SGE_LEN + index * MAPPING_LEN, &mut bytes);
                *entry = Mapping::decode(bytes, Order::OWN);
            }
            Message::Disconnect => (self.can_read, self.can_write) = (false, false),
            Message::Shutdown => self.can_read = false,
            Message::KeepAlive => {}
        }
        Ok(())
    }

    /// Takes the target that the peer has written to this end's target SGL with the message. The peer may be
    /// writing the entry behind it, and reuses an entry once the target announced in it is full.
    fn read_target(&mut self) -> Result<(), ProtocolError> {
        let (at, mut bytes) = (self.next_target * TARGET_SGE_LEN, [0; TARGET_SGE_LEN]);
        // Cannot fail: `next_target` is below the length of the table.
        let _ = self.tables.read(at, &mut bytes);
        let target = TargetSge::decode(bytes, Order::OWN);
        if target.len > 0 {
            let _ = self.tables.write(at, &[0; TARGET_SGE_LEN]);
            self.out.add_target(target)?;
            self.next_target = (self.next_target + 1) % TARGET_SGL_LEN;
        }
        Ok(())
    }

    /// Sends pending updates to the peer: changed mappings, free receive memory, and credits.
    fn send_updates(&mut self) -> Result<(), c_int> {
        if self.has_ended || !self.is_established {
            return Ok(());
        }
        while self.can_write && !self.local_map.is_announced() && self.out.can_announce_mapping() {
            let Some((index, mapping, to)) = self.local_map.next() else { break };
            self.send(to, Message::Mapped(index), WrData::Inline(&mapping.bytes(self.order)))?;
            self.out.on_mapping_announced();
        }
        if self.can_read
            && self.out.can_send_credits()
            && let Some(grant) = self.inc.grant()
        {
            let message = Message::Credits(grant.limit);
            match grant.half {
                Some((at, to)) => {
                    let len = (self.receives.len() / 2) as u32;
                    let target =
                        TargetSge { addr: self.receives.remote(at).va, key: self.receives.rkey().0, len };
                    self.send(to, message, WrData::Inline(&target.bytes(self.order)))?;
                }
                None => self.send(TargetSge::default(), message, WrData::Sges(&[]))?,
            }
            self.out.on_credits_sent();
        }
        Ok(())
    }

    /// Posts an RDMA WRITE with a message as immediate data.
    fn send(&self, to: TargetSge, message: Message, data: WrData<'_>) -> Result<(), c_int> {
        let (rkey, imm) = (RKey(to.key), message.immediate());
        self.write(WrOp::WriteWithImm { va: to.addr, rkey, imm }, data)
    }

    /// Posts a signaled work request.
    fn write(&self, op: WrOp, data: WrData<'_>) -> Result<(), c_int> {
        let wr = SendWr::new(SEND, op, &[]).data(data);
        self.qp.post_send(&wr).map_err(|e| e.errno())
    }

    /// Copies the data of a transfer to the send buffer and posts the RDMA WRITE.
    fn transfer(&mut self, transfer: &Transfer, source: &mut Source<'_>) -> Result<(), c_int> {
        for range in transfer.from.clone() {
            source.take(range, |at, piece| {
                // Cannot fail: the range is inside the send buffer, where `out` has reserved it.
                let _ = self.sends.write(at, piece);
            });
        }
        let [first, second] = transfer.from.clone();
        let both = [self.sends.sge(first), self.sends.sge(second.clone())];
        let data = WrData::Sges(if second.is_empty() { &both[..1] } else { &both });
        let (va, rkey) = (transfer.to.addr, RKey(transfer.to.key));
        match transfer.message {
            Some(message) => self.send(transfer.to, message, data),
            None => self.write(WrOp::Write { va, rkey }, data),
        }
    }

    /// Sends as much of `source` as currently possible.
    pub(crate) fn send_from(&mut self, source: &mut Source<'_>) {
        // Mappings are announced to the peer before the data that are sent after them.
        while self.can_write && self.is_established && self.local_map.is_announced() && source.remaining() > 0
        {
            let Some(transfer) = self.out.transfer(source.remaining()) else { return };
            if let Err(e) = self.transfer(&transfer, source) {
                return self.fail(e);
            }
        }
    }

    /// Writes as much of `source` as currently possible to the memory that the peer has mapped to `offset`.
    ///
    /// # Errors
    /// `EINVAL` if nothing is mapped to the offset.
    pub(crate) fn write_from(&mut self, source: &mut Source<'_>, offset: u64) -> Result<(), c_int> {
        while self.can_write && self.is_established && source.remaining() > 0 {
            let at = offset.checked_add(source.position() as u64).ok_or(libc::EINVAL)?;
            let to = self.remote_map.find(at).ok_or(libc::EINVAL)?;
            let len = (source.remaining() as u64).min(to.len.into()) as u32;
            let Some(transfer) = self.out.direct(TargetSge { len, ..to }) else { break };
            if let Err(e) = self.transfer(&transfer, source) {
                self.fail(e);
            }
        }
        Ok(())
    }

    /// Copies received data to the sink. With `peek`, the data stays in the receive buffer.
    pub(crate) fn receive_to(&mut self, sink: &mut Sink<'_>, peek: bool) {
        let before = sink.position();
        for range in self.inc.ranges(sink.remaining()) {
            sink.take(range, |at, piece| {
                // Cannot fail: the range is inside the receive buffer. The peer writes to other parts of it.
                let _ = self.receives.read(at, piece);
            });
        }
        let copied = sink.position() - before;
        if !peek && copied > 0 {
            self.inc.consume(copied);
            if let Err(e) = self.send_updates() {
                self.fail(e);
            }
        }
    }

    /// Reports whether enough data can be sent to justify waking the program.
    pub(crate) fn is_writable(&self) -> bool {
        self.can_write && self.is_established && self.local_map.is_announced() && self.out.is_writable()
    }

    /// Reports whether everything sent has been acknowledged, or the connection has ended.
    pub(crate) fn is_flushed(&self) -> bool {
        self.has_ended || self.out.is_idle()
    }

    /// Maps memory to an offset. The peer may write to the memory if `shared` is set, and cannot access it
    /// otherwise.
    ///
    /// # Safety
    /// The contract of [`urxe::verbs::Pd::reg_mr_raw`], until the memory is unmapped or the connection is
    /// dropped. Without `shared` the memory is not accessed.
    ///
    /// # Errors
    /// An error number.
    pub unsafe fn map(&mut self, addr: *mut u8, len: usize, offset: u64, shared: bool) -> Result<(), c_int> {
        let bytes = u32::try_from(len).ok().filter(|len| *len > 0).ok_or(libc::EINVAL)?;
        if !shared {
            self.inaccessible.push((addr.addr() as u64, len));
            return Ok(());
        }
        let entry = self.local_map.free_entry().ok_or(libc::ENOMEM)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the caller keeps the memory as `reg_mr_raw` requires until it is unmapped or this
        // connection is dropped; the entry in `local_map` drops the `RawMr` in both cases.
        let region = unsafe { self.qp.pd().reg_mr_raw(addr, len, access) }.map_err(|e| e.errno())?;
        let target = TargetSge { addr: region.addr(), key: region.rkey().0, len: bytes };
        self.local_map.add(entry, addr.addr() as u64, Mapping { offset, target }, region);
        self.send_updates()
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// `EINVAL` if the memory is not mapped.
    pub fn unmap(&mut self, addr: u64, len: usize) -> Result<(), c_int> {
        if let Some(index) =
            self.inaccessible.iter().position(|(at, n)| *at == addr && (len == 0 || *n == len))
        {
            self.inaccessible.remove(index);
            return Ok(());
        }
        if self.local_map.remove(addr, len) { self.send_updates() } else { Err(libc::EINVAL) }
    }

    /// Shuts down one or both directions. The peer is not informed if only the receiving direction is shut
    /// down.
    pub(crate) fn shutdown(&mut self, reads: bool, writes: bool) {
        let (could_read, could_write) = (self.can_read, self.can_write);
        self.can_read &= !reads;
        self.can_write &= !writes;
        let message = match (self.can_read, self.can_write) {
            (false, false) if could_read || could_write => Message::Disconnect,
            (true, false) if could_write => Message::Shutdown,
            _ => return,
        };
        if self.is_negotiated && !self.has_ended {
            match self.send(TargetSge::default(), message, WrData::Sges(&[])) {
                Ok(()) => self.out.on_other_sent(),
                Err(e) => self.fail(e),
            }
        }
    }

    /// Probes the peer if nothing has arrived for the duration `idle`. Returns the time at which to call this
    /// again, or `None` once the connection has ended.
    pub(crate) fn keep_alive(&mut self, idle: Duration, now: Instant) -> Option<Instant> {
        let due = self.last_recv + idle;
        if self.has_ended {
            return None;
        }
        if now < due {
            return Some(due);
        }
        // An outstanding work request detects a dead peer as well.
        if self.is_established && self.out.is_idle() {
            let TargetSge { addr: va, key, .. } = TargetSge::default();
            match self.write(WrOp::Write { va, rkey: RKey(key) }, WrData::Sges(&[])) {
                Ok(()) => self.out.on_other_sent(),
                Err(e) => self.fail(e),
            }
        }
        Some(now + idle)
    }

    /// Ends the connection. Received data can still be read.
    pub(crate) fn disconnect(&mut self) {
        (self.can_read, self.can_write, self.has_ended) = (false, false, true);
        // Fails if the connection was never established, which does not matter.
        let _ = self.id.disconnect();
    }

    /// Ends the connection with an error, unless both directions are already shut down.
    pub(crate) fn fail(&mut self, errno: c_int) {
        // After both directions were shut down nothing is lost by an error.
        if !self.has_ended && (self.can_read || self.can_write) {
            self.error = Some(errno);
        }
        self.disconnect();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.id.disconnect();
        self.id.destroy();
    }
}
