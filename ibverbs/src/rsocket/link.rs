//! A connection: a queue pair, its memory, and the two halves of the protocol between them.

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

/// Receives beyond those that credits are given for: what a peer says without asking finds one.
const SPARE_RECEIVES: u32 = 16;
/// Completions that are looked at together.
const BATCH: usize = 32;

/// `wr_id`s.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// What goes wrong, as C numbers it.
fn create(e: CreateError) -> c_int {
    e.errno()
}

fn post(e: PostError) -> c_int {
    e.errno()
}

/// See the module.
pub struct Link {
    pub id: CmId,
    qp: Qp,
    cq: Cq,
    /// Where completions are heard of, once [`arm`](Self::arm)ed.
    pub completions: CompletionChannel,
    is_armed: bool,
    /// What the peer writes besides data: the table of its places for us, and behind that what it has mapped.
    tables: Mr,
    sends: Mr,
    receives: Mr,
    out: Outgoing,
    inc: Incoming,
    theirs: Theirs,
    ours: Ours<RawMr>,
    /// Memory that was mapped for nobody, by address and length.
    unshared: Vec<(u64, usize)>,
    /// Of the peer's tables.
    order: Order,
    /// The entry of our table of places that the peer writes next.
    place: usize,
    /// The peer has said hello.
    has_begun: bool,
    /// The peer can be sent to.
    pub is_established: bool,
    /// More may come; more may go.
    pub can_read: bool,
    pub can_write: bool,
    /// What went wrong, until it was told.
    pub error: Option<c_int>,
    is_over: bool,
    /// When something came last.
    heard: Instant,
    found: Vec<Completion>,
}

impl Link {
    /// What is needed for a connection of an id that has a device.
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

    /// What the peer is to be told first.
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

    /// The peer has said this.
    pub fn begin(&mut self, peer: &Hello) {
        self.order = peer.order;
        self.out.set_limit(peer.credits);
        // The first finds room.
        let _ = self.out.add_place(peer.first);
        self.inc.connect(peer.table);
        self.ours = Ours::new(peer.table, peer.mappings);
        self.has_begun = true;
    }

    /// Both can talk.
    pub fn establish(&mut self) {
        self.is_established = true;
    }

    /// Asks to hear of the next completion. What came before is to be looked at once more. Only here the event of one that
    /// was heard of is taken: whoever looks between this and his sleep leaves it to wake him.
    pub fn arm(&mut self) {
        while self.completions.next_event().is_some() {
            self.is_armed = false;
        }
        if !std::mem::replace(&mut self.is_armed, true) {
            self.cq.req_notify(Notify::Any);
        }
    }

    /// Takes what came, and tells the peer what it is to know; whether anything has changed.
    pub fn turn(&mut self) -> bool {
        if !self.has_begun || self.is_over {
            return false;
        }
        let mut changed = false;
        let mut found = std::mem::take(&mut self.found);
        // As much as there was when it began: a peer that never pauses is not to keep the program here.
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
                    // Who sends is ready, whatever became of its last word of the handshake.
                    let _ = self.id.notify(AsyncEvent::CommunicationEstablished(self.qp.qpn()));
                }
                match completion.imm.map(|imm| self.heed(imm)) {
                    Some(Ok(())) if posted.is_ok() => {}
                    Some(Ok(())) => self.fail(libc::ECONNRESET),
                    // A message of no protocol that this is.
                    None | Some(Err(_)) => self.fail(libc::EPROTO),
                }
            }
            (WcStatus::Success, _) => self.out.done(),
            (WcStatus::RetryExcErr, _) => self.fail(libc::ETIMEDOUT),
            _ => self.fail(libc::ECONNRESET),
        }
    }

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
                // The table has the entry, as was just checked.
                let _ = self.tables.read(PLACES * PLACE_LEN + index * MAPPING_LEN, &mut bytes);
                self.theirs.set(index, Mapping::of(bytes, Order::OWN));
            }
            Message::Disconnect => (self.can_read, self.can_write) = (false, false),
            Message::Shutdown => self.can_read = false,
            Message::KeepAlive => {}
        }
        Ok(())
    }

    /// Takes the places that the peer has written to our table. It writes an entry anew when what it said before is full.
    fn take_places(&mut self) -> Result<(), ProtocolError> {
        for _ in 0..PLACES {
            let (at, mut bytes) = (self.place * PLACE_LEN, [0; PLACE_LEN]);
            // Inside the table, as `place` is below its length.
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

    /// Tells the peer of memory that is free again, of credits, and of what is mapped for it.
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

    fn send(&self, to: Place, message: Message, data: WrData<'_>) -> Result<(), c_int> {
        let (rkey, imm) = (RKey(to.key), message.immediate());
        self.write(WrOp::WriteWithImm { va: to.addr, rkey, imm }, data)
    }

    fn write(&self, op: WrOp, data: WrData<'_>) -> Result<(), c_int> {
        let wr = SendWr { wr_id: SEND, op, data, flags: SendFlags::SIGNALED, to: None };
        self.qp.post_send(&wr).map_err(post)
    }

    fn transfer(&mut self, transfer: &Transfer, source: &mut Source<'_>) -> Result<(), c_int> {
        for range in &transfer.from {
            let mut at = range.start;
            while at < range.end {
                let piece = source.take(range.end - at);
                // The ring has these bytes, and nobody uses them.
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

    /// Sends what can go now of the stream.
    pub fn send_from(&mut self, source: &mut Source<'_>) {
        // What is mapped is known to the peer before what is sent afterwards.
        while self.can_write && self.is_established && self.ours.is_told() && source.left() > 0 {
            let Some(transfer) = self.out.transfer(source.left()) else { return };
            if let Err(e) = self.transfer(&transfer, source) {
                return self.fail(e);
            }
        }
    }

    /// Writes what can go now to where the peer has mapped an offset.
    ///
    /// # Errors
    /// `EINVAL` where it has mapped nothing.
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

    /// Receives what is there; leaves it there if it is to be looked at only.
    pub fn receive_to(&mut self, sink: &mut Sink<'_>, peek: bool) {
        let mut taken = 0;
        for range in self.inc.ranges(sink.left()) {
            let mut at = range.start;
            while at < range.end {
                let piece = sink.take(range.end - at);
                // The buffer has these bytes; the peer writes others.
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

    /// Bytes that came and nobody has read.
    pub fn unread(&self) -> usize {
        self.inc.unread()
    }

    pub fn is_writable(&self) -> bool {
        self.can_write && self.is_established && self.ours.is_told() && self.out.is_writable()
    }

    /// Whether everything that was sent has arrived.
    pub fn is_flushed(&self) -> bool {
        self.is_over || self.out.is_idle()
    }

    /// Maps memory for the peer.
    ///
    /// # Safety
    /// As of [`urxe::verbs::Pd::reg_mr_raw`], until it is unmapped or the link is gone.
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
        // SAFETY: the caller vouches for the memory.
        let region = unsafe { self.qp.pd().reg_mr_raw(addr, len, access) }.map_err(create)?;
        let place = Place { addr: region.addr(), key: region.rkey().0, len: bytes };
        self.ours.add(addr.addr() as u64, Mapping { offset, place }, region).ok_or(libc::ENOMEM)?;
        self.tell()
    }

    /// Takes that back.
    ///
    /// # Errors
    /// `EINVAL` if it was not mapped.
    pub fn unmap(&mut self, addr: u64, len: usize) -> Result<(), c_int> {
        if let Some(index) = self.unshared.iter().position(|(at, n)| *at == addr && (len == 0 || *n == len)) {
            self.unshared.remove(index);
            return Ok(());
        }
        if self.ours.remove(addr, len) { self.tell() } else { Err(libc::EINVAL) }
    }

    /// Sends, receives, or both no more, and tells the peer what that means to it.
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

    /// Finds out whether the peer is there if nothing has come from it for so long; when to come again.
    pub fn keep_alive(&mut self, idle: Duration, now: Instant) -> Option<Instant> {
        let due = self.heard + idle;
        if self.is_over {
            return None;
        }
        if now < due {
            return Some(due);
        }
        // What is under way will tell as well.
        if self.is_established && self.out.is_idle() {
            let Place { addr: va, key, .. } = Place::default();
            match self.write(WrOp::Write { va, rkey: RKey(key) }, WrData::Sges(&[])) {
                Ok(()) => self.out.kept_alive(),
                Err(e) => self.fail(e),
            }
        }
        Some(now + idle)
    }

    /// Whether the connection is gone.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The connection is gone. What came is there to be read.
    pub fn end(&mut self) {
        (self.can_read, self.can_write, self.is_over) = (false, false, true);
        // It may never have been one.
        let _ = self.id.disconnect();
    }

    /// Ends the connection because of an error.
    pub fn fail(&mut self, why: c_int) {
        // After the last word nobody needs to know.
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
