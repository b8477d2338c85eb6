//! A connection: a queue pair, its memory, and the two halves of the stream protocol.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use urxe::verbs::cm::{CmId, IdError};
use urxe::verbs::{
    Access, AsyncEvent, Completion, CompletionChannel, Context, Cq, CreateError, Mr, Notify, PostError, Qp,
    QpOptions, RKey, RawMr, RecvCaps, RecvWr, SendCaps, SendFlags, SendWr, WcStatus, WrData, WrOp,
};

use super::buffers::{Sink, Source};
use super::incoming::Incoming;
use super::mappings::{Ours, Theirs};
use super::options::Sizes;
use super::outgoing::{INTERNAL, Outgoing, Transfer};
use super::protocol::{
    Hello, MAPPING_LEN, Mapping, Message, Order, PLACE_LEN, PLACES, Place, ProtocolError, told_size,
};

/// Number of receives posted in addition to the credits, for messages of the peer that take no credit.
const SPARE_RECEIVES: u32 = 16;
/// Number of completions that are polled at a time.
const BATCH: usize = 32;

/// `wr_id` of receives.
const RECEIVE: u64 = 1;
/// `wr_id` of sends.
const SEND: u64 = 2;

/// Returns the error number of a failed creation.
fn create(e: CreateError) -> c_int {
    e.errno()
}

/// Returns the error number of a failed post.
fn post(e: PostError) -> c_int {
    e.errno()
}

/// A connection.
pub struct Link {
    pub id: CmId,
    qp: Qp,
    cq: Cq,
    /// Completion channel, which reports completions once [`arm`](Self::arm)ed.
    pub completions: CompletionChannel,
    is_armed: bool,
    /// Memory that the peer writes to in addition to data: the table of its places for this end, and behind
    /// it the table of memory that it has mapped.
    tables: Mr,
    sends: Mr,
    receives: Mr,
    out: Outgoing,
    inc: Incoming,
    theirs: Theirs,
    ours: Ours<RawMr>,
    /// Address and length of memory that was mapped without access for the peer.
    unshared: Vec<(u64, usize)>,
    /// Byte order of the peer's tables.
    order: Order,
    /// Index of the entry of this end's table of places that the peer writes next.
    place: usize,
    /// Whether the peer's private data have arrived.
    has_begun: bool,
    /// Whether the peer can receive.
    pub is_established: bool,
    /// Whether more data may arrive.
    pub can_read: bool,
    /// Whether more data may be sent.
    pub can_write: bool,
    /// Pending error, until it is reported.
    pub error: Option<c_int>,
    /// Whether the connection has ended.
    is_over: bool,
    /// Time of the last completion.
    heard: Instant,
    found: Vec<Completion>,
}

impl Link {
    /// Creates the queue pair and the memory for a connection. The ID must be bound to a device.
    ///
    /// # Errors
    /// An error number.
    pub fn new(id: CmId, context: &Context, sizes: &Sizes) -> Result<Link, c_int> {
        let pd = context.alloc_pd().map_err(create)?;
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mappings = told_size(sizes.mappings);
        let tables = pd.reg_mr(PLACES * PLACE_LEN + mappings * MAPPING_LEN, written).map_err(create)?;
        let sends = pd.reg_mr(sizes.send_buffer, Access::LOCAL_READ).map_err(create)?;
        let receives = pd.reg_mr(2 * sizes.receive_half, written).map_err(create)?;
        let completions = context.create_channel().map_err(create)?;
        let (send_wr, recv_wr) =
            (sizes.send_queue + INTERNAL as u32, u32::from(sizes.credits) + SPARE_RECEIVES);
        let cq = context.create_cq_on((send_wr + recv_wr) as usize, &completions).map_err(create)?;
        let options = QpOptions {
            send: SendCaps { max_wr: send_wr, max_sge: 2, max_inline: MAPPING_LEN as u32 },
            recv: RecvCaps { max_wr: recv_wr, max_sge: 0 },
            ..QpOptions::default()
        };
        let qp = pd.create_qp(&cq, &cq, &options).map_err(create)?;
        id.attach_qp(&qp).map_err(|e: IdError| e.errno())?;
        for _ in 0..recv_wr {
            qp.post_recv(&RecvWr { wr_id: RECEIVE, sges: &[] }).map_err(post)?;
        }
        Ok(Link {
            id,
            qp,
            cq,
            completions,
            is_armed: false,
            tables,
            sends,
            receives,
            out: Outgoing::new(sizes.send_buffer, sizes.send_queue as usize),
            inc: Incoming::new(sizes.receive_half, sizes.credits),
            theirs: Theirs::new(mappings),
            ours: Ours::new(Place::default(), 0),
            unshared: Vec::new(),
            order: Order::OWN,
            place: 1,
            has_begun: false,
            is_established: false,
            can_read: true,
            can_write: true,
            error: None,
            is_over: false,
            heard: Instant::now(),
            found: Vec::with_capacity(BATCH),
        })
    }

    /// Returns the private data of the handshake.
    pub fn hello(&self) -> Hello {
        let place = |mr: &Mr, len: usize| Place { addr: mr.addr(), key: mr.rkey().0, len: len as u32 };
        let half = self.receives.len() / 2;
        Hello {
            order: Order::OWN,
            credits: self.inc.credits(),
            mappings: self.theirs.len(),
            table: place(&self.tables, PLACES),
            first: place(&self.receives, half),
        }
    }

    /// Starts the protocol with the private data of the peer.
    pub fn begin(&mut self, peer: &Hello) {
        self.order = peer.order;
        self.out.set_limit(peer.credits);
        // Cannot fail: the list of places is empty.
        let _ = self.out.add_place(peer.first);
        self.inc.connect(peer.table);
        self.ours = Ours::new(peer.table, peer.mappings);
        self.has_begun = true;
    }

    /// Allows sending: the handshake is complete.
    pub fn establish(&mut self) {
        self.is_established = true;
    }

    /// Requests a notification of the next completion. The caller has to poll once more afterwards for
    /// completions that arrived before. Completion events are consumed only here, so a thread that polls
    /// between the `arm` of another and its sleep leaves the event in the channel, where it wakes that one.
    pub fn arm(&mut self) {
        while self.completions.next_event().is_some() {
            self.is_armed = false;
        }
        if !std::mem::replace(&mut self.is_armed, true) {
            self.cq.req_notify(Notify::Any);
        }
    }

    /// Processes completions and sends pending updates to the peer; reports whether there was any completion.
    pub fn turn(&mut self) -> bool {
        if !self.has_begun || self.is_over {
            return false;
        }
        let mut changed = false;
        let mut found = std::mem::take(&mut self.found);
        // The number of polls is bounded by the capacity of the CQ, so that a peer that sends without pause
        // does not keep the thread in this loop.
        for _ in 0..=self.cq.capacity().div_ceil(BATCH) {
            found.clear();
            match self.cq.poll(BATCH, &mut found) {
                Ok(0) => break,
                Ok(_) => changed = true,
                Err(_) => self.fail(libc::EIO),
            }
            for completion in &found {
                self.completed(completion);
            }
            if found.is_empty() {
                break;
            }
        }
        self.found = found;
        if changed {
            self.heard = Instant::now();
        }
        if let Err(e) = self.tell() {
            self.fail(e);
        }
        changed
    }

    fn completed(&mut self, completion: &Completion) {
        if self.is_over {
            return;
        }
        match (completion.status, completion.wr_id) {
            (WcStatus::Success, RECEIVE) => {
                let posted = self.qp.post_recv(&RecvWr { wr_id: RECEIVE, sges: &[] });
                if !std::mem::replace(&mut self.is_established, true) {
                    // A peer that sends is ready to receive, even if its RTU was lost.
                    let _ = self.id.notify(AsyncEvent::CommunicationEstablished(self.qp.qpn()));
                }
                match completion.imm.map(|imm| self.heed(imm)) {
                    Some(Ok(())) if posted.is_ok() => {}
                    Some(Ok(())) => self.fail(libc::ECONNRESET),
                    // No immediate data, or a violation of the protocol.
                    None | Some(Err(_)) => self.fail(libc::EPROTO),
                }
            }
            (WcStatus::Success, _) => self.out.done(),
            (WcStatus::RetryExcErr, _) => self.fail(libc::ETIMEDOUT),
            _ => self.fail(libc::ECONNRESET),
        }
    }

    /// Processes a message of the peer.
    fn heed(&mut self, imm: u32) -> Result<(), ProtocolError> {
        match Message::of(imm)? {
            Message::Data(len) => self.inc.arrived(len)?,
            Message::Credits(limit) => {
                self.out.set_limit(limit);
                self.take_places()?;
            }
            Message::Mapped(index) => {
                self.theirs.check(index)?;
                self.inc.counted();
                let mut bytes = [0; MAPPING_LEN];
                // Cannot fail: the table has the entry, as `check` has confirmed.
                let _ = self.tables.read(PLACES * PLACE_LEN + index * MAPPING_LEN, &mut bytes);
                self.theirs.set(index, Mapping::of(bytes, Order::OWN));
            }
            Message::Disconnect => (self.can_read, self.can_write) = (false, false),
            Message::Shutdown => self.can_read = false,
            Message::KeepAlive => {}
        }
        Ok(())
    }

    /// Takes the places that the peer has written to this end's table. The peer writes an entry again when
    /// the place that it named before is full.
    fn take_places(&mut self) -> Result<(), ProtocolError> {
        for _ in 0..PLACES {
            let (at, mut bytes) = (self.place * PLACE_LEN, [0; PLACE_LEN]);
            // Cannot fail: `place` is below the length of the table.
            let _ = self.tables.read(at, &mut bytes);
            let place = Place::of(bytes, Order::OWN);
            if place.len == 0 {
                break;
            }
            let _ = self.tables.write(at, &[0; PLACE_LEN]);
            self.out.add_place(place)?;
            self.place = (self.place + 1) % PLACES;
        }
        Ok(())
    }

    /// Sends the peer what it has to know: changed mappings, free receive memory, and credits.
    fn tell(&mut self) -> Result<(), c_int> {
        if self.is_over || !self.is_established {
            return Ok(());
        }
        while self.can_write && !self.ours.is_told() && self.out.may_tell_mapping() {
            let Some((index, mapping, to)) = self.ours.next() else { break };
            self.send(to, Message::Mapped(index), WrData::Inline(&mapping.bytes(self.order)))?;
            self.out.told_mapping();
        }
        if self.can_read
            && self.out.may_give_credits()
            && let Some(grant) = self.inc.grant()
        {
            let message = Message::Credits(grant.limit);
            match grant.half {
                Some((at, to)) => {
                    let len = (self.receives.len() / 2) as u32;
                    let place = Place { addr: self.receives.remote(at).va, key: self.receives.rkey().0, len };
                    self.send(to, message, WrData::Inline(&place.bytes(self.order)))?;
                }
                None => self.send(Place::default(), message, WrData::Sges(&[]))?,
            }
            self.out.gave_credits();
        }
        Ok(())
    }

    /// Posts a write with a message as immediate data.
    fn send(&self, to: Place, message: Message, data: WrData<'_>) -> Result<(), c_int> {
        let (rkey, imm) = (RKey(to.key), message.immediate());
        self.write(WrOp::WriteWithImm { va: to.addr, rkey, imm }, data)
    }

    /// Posts a signaled work request.
    fn write(&self, op: WrOp, data: WrData<'_>) -> Result<(), c_int> {
        let wr = SendWr { wr_id: SEND, op, data, flags: SendFlags::SIGNALED, to: None };
        self.qp.post_send(&wr).map_err(post)
    }

    /// Copies data to the send buffer and posts the write.
    fn transfer(&mut self, transfer: &Transfer, source: &mut Source<'_>) -> Result<(), c_int> {
        for range in &transfer.from {
            let mut at = range.start;
            while at < range.end {
                let piece = source.take(range.end - at);
                // Cannot fail: the range is inside the send buffer, where `out` has reserved it.
                let _ = self.sends.write(at, piece);
                at += piece.len();
            }
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

    /// Sends as much of the stream as possible now.
    pub fn send_from(&mut self, source: &mut Source<'_>) {
        // Mappings are announced to the peer before the data that are sent after them.
        while self.can_write && self.is_established && self.ours.is_told() && source.left() > 0 {
            let Some(transfer) = self.out.transfer(source.left()) else { return };
            if let Err(e) = self.transfer(&transfer, source) {
                return self.fail(e);
            }
        }
    }

    /// Writes as much as possible now to the memory that the peer has mapped to an offset.
    ///
    /// # Errors
    /// `EINVAL` if nothing is mapped to the offset.
    pub fn write_from(&mut self, source: &mut Source<'_>, offset: u64) -> Result<(), c_int> {
        while self.can_write && self.is_established && source.left() > 0 {
            let at = offset.checked_add(source.taken() as u64).ok_or(libc::EINVAL)?;
            let to = self.theirs.find(at).ok_or(libc::EINVAL)?;
            let len = (source.left() as u64).min(to.len.into()) as u32;
            let Some(transfer) = self.out.direct(Place { len, ..to }) else { break };
            if let Err(e) = self.transfer(&transfer, source) {
                self.fail(e);
            }
        }
        Ok(())
    }

    /// Copies received data to the sink; with `peek` they stay in the buffer.
    pub fn receive_to(&mut self, sink: &mut Sink<'_>, peek: bool) {
        let mut taken = 0;
        for range in self.inc.ranges(sink.left()) {
            let mut at = range.start;
            while at < range.end {
                let piece = sink.take(range.end - at);
                // Cannot fail: the range is inside the receive buffer. The peer writes to other parts of it.
                let _ = self.receives.read(at, piece);
                at += piece.len();
                taken += piece.len();
            }
        }
        if !peek && taken > 0 {
            self.inc.consume(taken);
            if let Err(e) = self.tell() {
                self.fail(e);
            }
        }
    }

    /// Returns the number of bytes received and not yet read.
    pub fn unread(&self) -> usize {
        self.inc.unread()
    }

    /// Reports whether enough data can be sent to be worth a wakeup.
    pub fn is_writable(&self) -> bool {
        self.can_write && self.is_established && self.ours.is_told() && self.out.is_writable()
    }

    /// Reports whether everything sent has been acknowledged, or the connection has ended.
    pub fn is_flushed(&self) -> bool {
        self.is_over || self.out.is_idle()
    }

    /// Maps memory to an offset: for the peer to write to, or with `shared` false without access for it.
    ///
    /// # Safety
    /// The contract of [`urxe::verbs::Pd::reg_mr_raw`], until the memory is unmapped or the link is dropped.
    /// Without `shared` the memory is not accessed.
    ///
    /// # Errors
    /// An error number.
    pub unsafe fn map(&mut self, addr: *mut u8, len: usize, offset: u64, shared: bool) -> Result<(), c_int> {
        let bytes = u32::try_from(len).ok().filter(|len| *len > 0).ok_or(libc::EINVAL)?;
        if !shared {
            self.unshared.push((addr.addr() as u64, len));
            return Ok(());
        }
        if !self.ours.has_room() {
            return Err(libc::ENOMEM);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the caller keeps the memory as `reg_mr_raw` requires until it is unmapped or this link is
        // dropped; the entry in `ours` drops the `RawMr` in both cases.
        let region = unsafe { self.qp.pd().reg_mr_raw(addr, len, access) }.map_err(create)?;
        let place = Place { addr: region.addr(), key: region.rkey().0, len: bytes };
        self.ours.add(addr.addr() as u64, Mapping { offset, place }, region).ok_or(libc::ENOMEM)?;
        self.tell()
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// `EINVAL` if the memory is not mapped.
    pub fn unmap(&mut self, addr: u64, len: usize) -> Result<(), c_int> {
        if let Some(index) = self.unshared.iter().position(|(at, n)| *at == addr && (len == 0 || *n == len)) {
            self.unshared.remove(index);
            return Ok(());
        }
        if self.ours.remove(addr, len) { self.tell() } else { Err(libc::EINVAL) }
    }

    /// Shuts down one or both directions, and informs the peer if that concerns it.
    pub fn shut(&mut self, reads: bool, writes: bool) {
        let (could_read, could_write) = (self.can_read, self.can_write);
        self.can_read &= !reads;
        self.can_write &= !writes;
        let message = match (self.can_read, self.can_write) {
            (false, false) if could_read || could_write => Message::Disconnect,
            (true, false) if could_write => Message::Shutdown,
            _ => return,
        };
        if self.has_begun && !self.is_over {
            match self.send(Place::default(), message, WrData::Sges(&[])) {
                Ok(()) => self.out.told_end(),
                Err(e) => self.fail(e),
            }
        }
    }

    /// Probes the peer if nothing has arrived for the time `idle`; returns the time of the next call, `None`
    /// once the connection has ended.
    pub fn keep_alive(&mut self, idle: Duration, now: Instant) -> Option<Instant> {
        let due = self.heard + idle;
        if self.is_over {
            return None;
        }
        if now < due {
            return Some(due);
        }
        // An outstanding work request detects a dead peer as well.
        if self.is_established && self.out.is_idle() {
            let Place { addr: va, key, .. } = Place::default();
            match self.write(WrOp::Write { va, rkey: RKey(key) }, WrData::Sges(&[])) {
                Ok(()) => self.out.kept_alive(),
                Err(e) => self.fail(e),
            }
        }
        Some(now + idle)
    }

    /// Reports whether the connection has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends the connection. Received data can still be read.
    pub fn end(&mut self) {
        (self.can_read, self.can_write, self.is_over) = (false, false, true);
        // Fails if the connection was never established, which does not matter.
        let _ = self.id.disconnect();
    }

    /// Ends the connection because of an error.
    pub fn fail(&mut self, why: c_int) {
        // After both directions were shut down nothing is lost by an error.
        if !self.is_over && (self.can_read || self.can_write) {
            self.error = Some(why);
        }
        self.end();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.id.disconnect();
        self.id.destroy();
    }
}
