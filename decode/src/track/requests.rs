//! Follows the requests of one stream, and their responses in the stream of the other direction.

use urxe::wire::{HeaderSet, Mtu, NakCode, Operation, Packet, Position, Psn, Syndrome};

use super::facts::{
    Accessed, At, Cause, Facts, Fatal, Filled, Gap, NoCredits, NotReady, Resend, ResponseGap,
};
use super::window::{Request, Target, Window};

/// Two transmissions of a packet that are closer than this are copies made on the path or by the capture:
/// no requester detects a loss in less than a round trip of the fastest adapters, about 2 µs.
const COPY_WITHIN: u64 = 2_000;

/// An original that arrives after its retransmission, within this many round trips of the gap, was late; later,
/// it is another retransmission.
const LATE_WITHIN: u64 = 16;

/// A NAK or a gap in responses, which the requester will react to.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Sequence(At, Psn),
    NotReady(At, Psn),
    Response(At),
}

/// Requests of one stream.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Facts about them.
    pub facts: Facts,
    /// Requests that are not acknowledged.
    pub window: Window,
    /// First request of the capture.
    pub first: Option<(At, Psn)>,
    /// PSN behind the last request.
    pub next: Psn,
    /// PSN that was acknowledged last, and the packet.
    pub acknowledged: Option<(At, Psn)>,
    /// Last request, sent for the first time or again.
    pub last: Option<(At, Psn)>,
    /// The request that was acknowledged last.
    newest_acknowledged: Option<Request>,
    /// Path MTU, from full packets.
    pub mtu: Option<Mtu>,
    /// The reason for the next retransmission.
    pending: Option<Pending>,
    /// Whether the previous request belonged to a retransmission.
    is_resending: bool,
    /// A packet that filled a gap, while the packet behind it is awaited.
    late: Option<Psn>,
    /// PSN from which requests were sent again after the last timeout.
    resent_before: Option<Psn>,
}

impl Requests {
    /// Takes a request; `ident` is its IPv4 identification.
    pub fn request(&mut self, packet: &Packet<'_>, ident: Option<u16>, at: At) {
        let psn = packet.bth().psn;
        let payload = packet.payload().len() as u32;
        self.note_mtu(packet, payload);
        let Some(_) = self.first else {
            self.first = Some((at, psn));
            self.next = psn;
            self.append(packet, ident, at);
            return;
        };
        let ahead = psn.since(self.next);
        self.settle_late(psn);
        if ahead > 0 {
            self.skip_to(psn, at);
        }
        match psn.since(self.next) {
            0.. => {
                self.is_resending = false;
                self.append(packet, ident, at);
            }
            _ => self.again(packet, ident, at),
        }
        self.last = Some((at, psn));
    }

    /// Learns the path MTU from a packet that has to be full.
    fn note_mtu(&mut self, packet: &Packet<'_>, payload: u32) {
        if matches!(packet.row().position, Position::First | Position::Middle)
            && let Some(mtu) = Mtu::from_bytes(payload as usize)
        {
            self.mtu = Some(mtu);
            self.facts.mtus[!packet.row().operation.is_request() as usize] = Some(mtu);
        }
    }

    fn append(&mut self, packet: &Packet<'_>, ident: Option<u16>, at: At) {
        let request = self.describe(packet, ident, at);
        self.next = request.psn + request.span;
        self.facts.requests += 1;
        self.facts.reads += request.opcode.row().operation.takes_read_resource() as u64;
        self.window.push(request);
        self.last = Some((at, request.psn));
    }

    fn describe(&self, packet: &Packet<'_>, ident: Option<u16>, at: At) -> Request {
        let bth = packet.bth();
        let reth = packet.reth().map(|r| Target { va: r.va, rkey: r.rkey, len: r.dma_len.into() });
        let atomic = packet.atomic().map(|a| Target { va: a.va, rkey: a.rkey, len: 8 });
        let target = reth.or(atomic);
        let span = match (packet.row().operation, target, self.mtu) {
            (Operation::ReadRequest, Some(target), Some(mtu)) => mtu.packets(target.len as u32),
            // At least this many.
            (Operation::ReadRequest, Some(target), None) => Mtu::Mtu4096.packets(target.len as u32),
            _ => 1,
        };
        Request {
            psn: bth.psn,
            span,
            packet: at.packet,
            time: at.time,
            first_time: at.time,
            sends: 1,
            opcode: bth.opcode,
            payload: packet.payload().len() as u32,
            ident,
            target,
            ack_req: bth.ack_req,
            reads: self.facts.reads + packet.row().operation.takes_read_resource() as u64,
            next_response: bth.psn,
            next_of_earlier: bth.psn,
        }
    }

    /// Accounts for the PSNs before `psn` that have not been seen: those of a READ whose number of responses
    /// was not known, or a gap.
    fn skip_to(&mut self, psn: Psn, at: At) {
        if self.mtu.is_none()
            && let Some(read) =
                self.window.newest().filter(|r| r.opcode.row().operation == Operation::ReadRequest)
        {
            let len = read.target.map_or(0, |target| target.len as u32);
            let spans = psn.since(read.psn) as u32;
            if let Some(mtu) = Mtu::ALL.into_iter().find(|mtu| mtu.packets(len) == spans) {
                self.mtu = Some(mtu);
                read.span = spans;
                self.next = psn;
                return;
            }
        }
        let len = psn.since(self.next) as u32;
        self.facts.gaps.push(Gap { psn: self.next, len, at, filled: None, nak: None });
        self.next = psn;
    }

    /// Decides whether the packet that filled a gap was late or resent, when the packet behind it arrives: a
    /// requester that goes back resends all that follows.
    fn settle_late(&mut self, psn: Psn) {
        let Some(late) = self.late.take() else { return };
        if psn != late.next() || !psn.is_before(self.next) {
            return;
        }
        let opcode = self.window.find(late).map_or_else(Default::default, |r| r.opcode);
        if let Some(gap) = self.gap_of(late)
            && let Some((at, filled @ Filled::Late)) = &mut gap.filled
        {
            *filled = Filled::Resent;
            let waited = at.time.saturating_sub(gap.at.time);
            let resend = Resend {
                psn: late,
                at: *at,
                original: At::default(),
                cause: gap.nak.map_or(Cause::Timeout(waited), Cause::SequenceNak),
                packets: 1,
                acknowledged_before: None,
                answer: None,
                answers: 0,
                not_answered: None,
                next: self.next,
                last: late,
                opcode,
                is_tail: false,
                is_incomplete: false,
            };
            self.is_resending = true;
            self.facts.resends.push(resend);
        }
    }

    /// Returns the newest gap that contains `psn`.
    fn gap_of(&mut self, psn: Psn) -> Option<&mut Gap> {
        self.facts.gaps.first.iter_mut().rev().find(|gap| (psn.since(gap.psn) as u32) < gap.len)
    }

    /// Takes a request whose PSN is before that of the next new one.
    fn again(&mut self, packet: &Packet<'_>, ident: Option<u16>, at: At) {
        let psn = packet.bth().psn;
        if let Some((first, first_psn)) = self.first.filter(|(_, first)| psn.is_before(*first))
            && self.acknowledged.is_none()
            && self.pending.is_none()
        {
            // The capture begins with a packet that has overtaken this one.
            let len = first_psn.since(psn) as u32;
            self.facts.gaps.push(Gap { psn, len, at: first, filled: None, nak: None });
            self.first = Some((first, psn));
        }
        let known = self.window.find(psn).copied();
        let is_acknowledged = self.acknowledged.is_some_and(|(_, acked)| !psn.is_after(acked));
        let is_resending = self.is_resending;
        let mut is_first_sight = false;
        let mut is_late = false;
        if let Some(gap) = self.gap_of(psn) {
            is_first_sight = known.is_none() && !is_acknowledged;
            let age = at.time.saturating_sub(gap.at.time);
            match &mut gap.filled {
                None => {
                    gap.filled = Some((at, Filled::Late));
                    self.late = Some(psn);
                }
                // Of a gap of several packets, each of which fills a part.
                Some(_) if is_first_sight => self.late = Some(psn),
                Some((_, filled @ Filled::Late)) if is_resending || gap.len == 1 => {
                    *filled = Filled::LateAndResent;
                }
                // The original, after its retransmission. A timeout is much longer than a round trip, which
                // the retransmission took.
                Some((fill, filled @ Filled::Resent))
                    if gap.psn == psn && age < LATE_WITHIN * fill.time.saturating_sub(gap.at.time) =>
                {
                    *filled = Filled::LateAndResent;
                    is_late = true;
                }
                Some(_) => {}
            }
        }
        if is_late {
            return;
        }
        if is_first_sight && self.pending.is_none() && !self.is_resending {
            let request = self.describe(packet, ident, at);
            self.facts.requests += 1;
            self.window.insert(request);
            return;
        }
        let is_copy = |r: &Request| {
            // A retransmission is a packet of its own, with another identification; senders without
            // fragments may set all identifications to 0.
            let is_same_packet = r.psn == psn && ident.is_some_and(|id| id != 0) && ident == r.ident;
            is_same_packet || at.time.saturating_sub(r.time) < COPY_WITHIN
        };
        if known.or(self.newest_acknowledged).as_ref().is_some_and(is_copy)
            && self.pending.is_none()
            && !self.is_resending
        {
            self.facts.copies.push(at);
            return;
        }
        self.resend(packet, ident, at, known);
    }

    /// Infers from a timeout what was acknowledged, in a capture without the acknowledgements: a requester that goes
    /// on from the same PSN or a later one has got all before. The first time, it may have sent a probe.
    fn infer_acknowledgement(&mut self, psn: Psn) {
        let resent_before = self.resent_before.replace(psn).filter(|_| self.acknowledged.is_none());
        if let Some(before) = resent_before.filter(|before| !psn.is_before(*before)) {
            self.window.acknowledge(before.prev(), |_| {});
        }
    }

    fn resend(&mut self, packet: &Packet<'_>, ident: Option<u16>, at: At, known: Option<Request>) {
        let psn = packet.bth().psn;
        self.facts.resent += 1;
        let continues = self.is_resending
            && self.facts.resends.newest().is_some_and(|r| psn.is_after(r.last) && r.psn != psn);
        if continues {
            if let Some(resend) = self.facts.resends.newest() {
                resend.packets += 1;
                resend.last = psn;
            }
        } else {
            let sent = known.or(self.newest_acknowledged.filter(|r| r.psn == psn));
            let waited_since = match (sent, self.acknowledged) {
                (Some(request), _) => request.time,
                (None, Some((ack, _))) => ack.time,
                (None, None) => at.time,
            };
            let cause = match self.pending.take() {
                Some(Pending::Sequence(nak, asked)) if asked == psn => Cause::SequenceNak(nak),
                Some(Pending::NotReady(nak, _)) => Cause::ReceiverNotReady(nak),
                Some(Pending::Response(response)) => Cause::ResponseGap(response),
                // A NAK for another PSN has not arrived.
                _ => match self.is_not_ready() {
                    Some(nak) => Cause::ReceiverNotReady(nak),
                    None => Cause::Timeout(at.time.saturating_sub(waited_since)),
                },
            };
            if let Cause::Timeout(waited) = cause {
                // Only the time without other requests is lost.
                let idle = self.last.map_or(waited, |(last, _)| at.time.saturating_sub(last.time));
                self.facts.timeouts.0 += 1;
                self.facts.timeouts.1 += waited.min(idle);
                self.infer_acknowledgement(psn);
            }
            let acknowledged_before =
                self.acknowledged.filter(|(_, acked)| !acked.is_before(psn)).map(|(ack, _)| ack);
            let original = sent.map_or(At::default(), |r| At { packet: r.packet, time: r.first_time });
            self.facts.resends.push(Resend {
                psn,
                at,
                original,
                cause,
                packets: 1,
                acknowledged_before,
                answer: None,
                answers: 0,
                not_answered: None,
                next: self.next,
                last: psn,
                opcode: packet.bth().opcode,
                is_tail: self.window.iter().rev().skip(1).all(|r| !r.ack_req),
                is_incomplete: self
                    .window
                    .iter()
                    .next_back()
                    .is_some_and(|r| !r.opcode.row().position.ends()),
            });
        }
        self.is_resending = true;
        match self.window.find(psn) {
            // A READ may be repeated from its middle.
            Some(request) => {
                request.sends += 1;
                request.time = at.time;
                request.next_of_earlier = request.next_response;
                request.next_response = psn;
                if let Some(gap) = self.facts.response_gaps.newest().filter(|gap| gap.psn == psn) {
                    gap.asked_again.get_or_insert(at);
                    gap.counts.0 += 1;
                }
            }
            None if self.acknowledged.is_none_or(|(_, acked)| psn.is_after(acked)) => {
                let request = self.describe(packet, ident, at);
                self.window.insert(Request { sends: 2, ..request });
            }
            None => {}
        }
    }

    /// Reports whether a response with `psn` can be one to these requests, and how long ago the request was
    /// sent, in nanoseconds. `is_read` means a READ response.
    pub fn fits(&mut self, psn: Psn, is_read: bool, time: u64) -> Option<u64> {
        let request = self.window.find(psn)?;
        let is_of_read = request.opcode.row().operation == Operation::ReadRequest;
        (is_of_read || !is_read).then(|| time.saturating_sub(request.time))
    }

    /// Takes a response.
    pub fn response(&mut self, packet: &Packet<'_>, at: At) {
        let psn = packet.bth().psn;
        if let Some(resend) = self.facts.resends.newest() {
            if resend.answer.is_none() {
                let next = self.window.find(psn.next()).filter(|next| next.psn.is_before(resend.next));
                resend.not_answered =
                    next.map(|next| (next.psn, At { packet: next.packet, time: next.first_time }));
            }
            let (_, first) = resend.answer.get_or_insert((at, psn));
            resend.answers += (*first == psn) as u64;
        }
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        let takes_receive = self.window.find(psn).is_some_and(|request| {
            let row = request.opcode.row();
            row.operation == Operation::Send || row.headers.contains(HeaderSet::IMMDT)
        });
        match packet.row().operation {
            Operation::ReadResponse => self.read_response(packet, at),
            _ => match syndrome {
                Some(Syndrome::Nak(code)) => self.nak(psn, code, at),
                Some(Syndrome::RnrNak(timer)) => {
                    self.acknowledge(psn.prev(), at);
                    let facts = &mut self.facts.not_ready;
                    let rnr = facts.get_or_insert(NotReady {
                        first: at,
                        timer,
                        count: 0,
                        last: (at, psn),
                        most: 0,
                        current: 0,
                    });
                    rnr.current = if rnr.last.1 == psn { rnr.current + 1 } else { 1 };
                    rnr.count += 1;
                    rnr.most = rnr.most.max(rnr.current);
                    rnr.last = (at, psn);
                    self.pending = Some(Pending::NotReady(at, psn));
                }
                _ => self.acknowledge(psn, at),
            },
        }
        if let Some(Syndrome::Ack { credits }) = syndrome
            && takes_receive
        {
            match (credits, &mut self.facts.no_credits) {
                (0, Some(none)) => none.count += 1,
                // A program that posts one receive at a time never has more.
                (0, none) if self.facts.had_credits => *none = Some(NoCredits { at, count: 1 }),
                (0, _) => {}
                // Credits that are not counted say nothing.
                (_, none) => {
                    self.facts.had_credits |= syndrome != Some(Syndrome::ACK);
                    *none = None;
                }
            }
        }
    }

    fn acknowledge(&mut self, psn: Psn, at: At) {
        // The responder takes the request for a duplicate: it expects a PSN that comes later.
        if self.acknowledged.is_none() && psn.since(self.next) > 0 {
            self.facts.ahead.get_or_insert((at, psn));
            return;
        }
        // A requester does not take a READ for done, or what follows it, until it has all responses.
        let missing = self.facts.response_gaps.newest().map(|gap| gap.psn);
        let incomplete =
            missing.and_then(|psn| self.window.find(psn).filter(|read| read.next_response == psn));
        let psn = match incomplete {
            Some(read) if !psn.is_before(read.psn) => read.psn.prev(),
            _ => psn,
        };
        let facts = &mut self.facts;
        let newest = &mut self.newest_acknowledged;
        self.window.acknowledge(psn, |request| {
            *newest = Some(*request);
            facts.largest_acknowledged = facts.largest_acknowledged.max(request.payload);
            facts.had_long_message |= request.opcode.row().position == Position::Last;
            let operation = request.opcode.row().operation;
            facts.reads = facts.reads.saturating_sub(operation.takes_read_resource() as u64);
            // The responses of a READ take as long as the path carries them.
            let is_ack = operation != Operation::ReadRequest && request.ack_req;
            if request.psn + (request.span - 1) == psn && is_ack && request.sends == 1 {
                facts.latency.add(at.time.saturating_sub(request.time), at);
            }
            note_access(&mut facts.accessed, request);
        });
        if self.acknowledged.is_none_or(|(_, acked)| psn.is_after(acked)) {
            self.acknowledged = Some((at, psn));
            if matches!(self.pending, Some(Pending::Sequence(_, nak) | Pending::NotReady(_, nak)) if !psn.is_before(nak))
            {
                self.pending = None;
            }
        }
    }

    /// Returns the last RNR NAK if its request is not acknowledged yet.
    fn is_not_ready(&self) -> Option<At> {
        let (at, psn) = self.facts.not_ready?.last;
        self.acknowledged.is_none_or(|(_, acked)| acked.is_before(psn)).then_some(at)
    }

    fn nak(&mut self, psn: Psn, code: NakCode, at: At) {
        if code == NakCode::PsnSequenceError {
            if self.is_not_ready().is_some() {
                // The packets behind the one that found no receive are out of sequence for the responder.
                self.acknowledge(psn.prev(), at);
                return;
            }
            self.facts.sequence_naks += 1;
            if let Some((_, first)) = self.first
                && self.acknowledged.is_none()
                && (psn.is_before(first) || !psn.is_before(self.next))
            {
                self.facts.first_refused.get_or_insert((at, psn));
            }
            self.acknowledge(psn.prev(), at);
            if let Some(gap) = self.gap_of(psn) {
                gap.nak.get_or_insert(at);
            }
            self.pending = Some(Pending::Sequence(at, psn));
            self.is_resending = false;
            return;
        }
        let request = self.window.find(psn).copied();
        let flushed = self.window.iter().filter(|r| r.psn.is_after(psn)).count() as u64;
        let reads = self.facts.reads;
        self.facts.fatal.get_or_insert(Fatal { at, psn, code, request, flushed, reads });
        self.acknowledge(psn.prev(), at);
    }

    fn read_response(&mut self, packet: &Packet<'_>, at: At) {
        let psn = packet.bth().psn;
        let payload = packet.payload().len() as u32;
        self.note_mtu(packet, payload);
        let mtu = self.mtu;
        if let Some(gap) = self.facts.response_gaps.first.iter_mut().rev().find(|gap| gap.psn == psn) {
            gap.counts.1 += 1;
            if gap.counts.1 > gap.counts.0 && gap.counts.0 > 0 {
                gap.late.get_or_insert(at);
            }
        }
        self.facts.largest_response = self.facts.largest_response.max(payload);
        let Some(request) = self.window.find(psn) else { return };
        if request.opcode.row().operation != Operation::ReadRequest {
            return;
        }
        if let (Some(target), Some(mtu)) = (request.target, mtu) {
            request.span = mtu.packets(target.len as u32).max(request.span);
        }
        let (start, span) = (request.psn, request.span);
        let missing = psn.since(request.next_response);
        if missing > 0 && psn == request.next_of_earlier {
            request.next_of_earlier = psn.next();
            return;
        }
        if missing > 0 {
            let gap = ResponseGap {
                psn: request.next_response,
                len: missing as u32,
                at,
                asked_again: None,
                counts: (0, 0),
                late: None,
            };
            // What follows the gap is not accepted, and comes again.
            if !self.facts.response_gaps.newest().is_some_and(|last| last.psn == gap.psn) {
                self.pending = Some(Pending::Response(at));
                self.facts.response_gaps.push(gap);
            }
            return;
        }
        if missing == 0 {
            request.next_response = psn.next();
        }
        if (start + span).is_after(self.next) {
            self.next = start + span;
        }
        // A response acknowledges the requests before it.
        self.acknowledge(start.prev(), at);
        if packet.row().position.ends() {
            self.acknowledge(start + (span - 1), at);
            if matches!(self.pending, Some(Pending::Response(_))) {
                self.pending = None;
            }
        }
    }
}

/// Keys whose accesses are remembered, per stream.
const MAX_KEYS: usize = 64;

/// Remembers the memory of a successful request.
fn note_access(accessed: &mut Vec<Accessed>, request: &Request) {
    let Some(new) = request.target.filter(|target| target.len > 0) else { return };
    if let Some(Accessed { target }) = accessed.iter_mut().find(|known| known.target.rkey == new.rkey) {
        let end = target.va.saturating_add(target.len).max(new.va.saturating_add(new.len));
        target.va = target.va.min(new.va);
        target.len = end - target.va;
    } else if accessed.len() < MAX_KEYS {
        accessed.push(Accessed { target: new });
    }
}
