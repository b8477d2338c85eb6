//! Second reading of a capture: its events, packet by packet.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use urxe::qlog::{
    Check, EventData, Gap, GapOf, Memory, Nak, RnrNak, Side, WorkRequest, dropped, group, millis, nak_name,
    observed,
};
use urxe::wire::{Flow, NakCode, Operation, Packet, Syndrome, Transport};

use super::faults::lossy_fault;
use super::losses::{Losses, nic_of};
use super::messages::{Message, Messages};
use crate::capture::{Capture, CaptureError};
use crate::icrc::Verdict;
use crate::track::stream::Key;
use crate::track::{Seen, Tap, Tracker};

/// Length of the routing header in front of a received datagram.
const GRH: u64 = 40;

/// An event with its time in nanoseconds since 1970.
#[derive(Debug)]
pub struct Timed {
    /// Time.
    pub time: u64,
    /// Queue pair.
    pub group_id: Option<String>,
    /// Name and fields.
    pub data: EventData,
}

/// Events of a capture.
pub struct CaptureEvents {
    capture: Capture,
    losses: HashMap<u32, Losses>,
    /// Interfaces whose packets have directions are NICs, each with events of its own.
    interfaces: HashMap<u32, (Tracker, Collector)>,
    queue: VecDeque<Timed>,
    has_directions: bool,
}

impl CaptureEvents {
    /// Creates the events of a capture, with the result of the first reading.
    pub fn new(capture: Capture, losses: HashMap<u32, Losses>) -> CaptureEvents {
        CaptureEvents {
            capture,
            losses,
            interfaces: HashMap::new(),
            queue: VecDeque::new(),
            has_directions: false,
        }
    }

    /// Reports whether the packets read so far tell who sent them: the host of the capture or another.
    pub fn has_directions(&self) -> bool {
        self.has_directions
    }

    /// Returns the next event.
    pub fn next(&mut self) -> Result<Option<Timed>, CaptureError> {
        while self.queue.is_empty() {
            let Some(frame) = self.capture.next_frame() else { return Ok(None) };
            let frame = frame?;
            let id = nic_of(&frame);
            let (tracker, collector) = self.interfaces.entry(id).or_insert_with(|| {
                let losses = self.losses.remove(&id).unwrap_or_default();
                (Tracker::default(), Collector { losses, ..Collector::default() })
            });
            collector.is_outbound = frame.is_outbound;
            collector.has_directions |= frame.is_outbound.is_some();
            self.has_directions |= collector.has_directions;
            collector.fault = lossy_fault(&frame);
            match (&collector.fault, frame.is_outbound) {
                // It never reached the NIC, so the tracker must not see it.
                (Some(_), Some(false)) => Tracker::default().frame_for(&frame, collector),
                _ => tracker.frame_for(&frame, collector),
            }
            self.queue.append(&mut collector.queue);
        }
        Ok(self.queue.pop_front())
    }
}

/// Collects the events of packets.
#[derive(Default)]
struct Collector {
    losses: Losses,
    queue: VecDeque<Timed>,
    /// Messages of streams.
    messages: HashMap<usize, Messages>,
    /// Address that sent the first packet, by pair of addresses in order.
    initiators: HashMap<(IpAddr, IpAddr), IpAddr>,
    has_directions: bool,
    is_outbound: Option<bool>,
    fault: Option<String>,
}

impl Collector {
    /// Tells whether the host of the log sent a packet or received it; without directions, the host is the one
    /// that sent the first packet to the other.
    fn side(&mut self, flow: &Flow) -> Side {
        let is_sent = self.is_outbound.unwrap_or_else(|| {
            let pair = (flow.src.min(flow.dst), flow.src.max(flow.dst));
            *self.initiators.entry(pair).or_insert(flow.src) == flow.src
        });
        if is_sent { Side::Send } else { Side::Receive }
    }

    fn push(&mut self, time: u64, group_id: Option<String>, data: EventData) {
        self.queue.push_back(Timed { time, group_id, data });
    }

    /// Returns the group of the queue pair that sends the packets of a stream.
    fn sender(&self, key: Key) -> Option<String> {
        self.losses.senders.get(&key).map(|qpn| group(key.src, *qpn))
    }

    /// Adds what a NAK tells.
    fn nak(&mut self, time: u64, side: Side, group_id: &Option<String>, packet: &Packet<'_>) {
        let Some(aeth) = packet.aeth().filter(|_| packet.row().operation == Operation::Acknowledge) else {
            return;
        };
        let psn = packet.bth().psn.get();
        match aeth.syndrome {
            Syndrome::Nak(code) => {
                let nak = Nak { psn, code: nak_name(code) };
                let data = match side {
                    Side::Send => EventData::NakSent(nak),
                    Side::Receive => EventData::NakReceived(nak),
                };
                self.push(time, group_id.clone(), data);
                if side == Side::Send && code != NakCode::PsnSequenceError {
                    let check = Check { psn, trigger: nak_name(code), details: None };
                    self.push(time, group_id.clone(), EventData::CheckFailed(check));
                }
            }
            Syndrome::RnrNak(timer) => {
                let rnr = RnrNak { psn, wait: millis(timer.duration().as_nanos() as u64) };
                let data = match side {
                    Side::Send => EventData::RnrNakSent(rnr),
                    Side::Receive => EventData::RnrNakReceived(rnr),
                };
                self.push(time, group_id.clone(), data);
            }
            _ => {}
        }
    }

    /// Adds what the first reading has found at a packet.
    fn losses(&mut self, seen: &Seen<'_>, side: Side) {
        let messages = seen.stream.and_then(|id| self.messages.get(&id));
        let missing = |psn| messages.is_some_and(|messages| messages.misses(psn));
        let mut losses = self.losses.events.remove(&seen.at.packet).unwrap_or_default();
        // The tracker takes what no NAK explains for a timeout.
        losses.retain_mut(|loss| match &mut loss.data {
            EventData::Timeout(timer) | EventData::Probe(timer) => !missing(timer.psn),
            EventData::Retransmission(resend) if missing(resend.psn) => {
                resend.trigger = "missing_response".into();
                true
            }
            _ => true,
        });
        for loss in losses {
            let is_source_local = (loss.key.src == seen.roce.flow.src) == (side == Side::Send);
            if self.has_directions && loss.is_of_requester != is_source_local {
                continue;
            }
            let group_id = match loss.is_of_requester {
                true => self.sender(loss.key),
                false => Some(group(loss.key.dst, loss.key.qpn)),
            };
            self.push(seen.at.time, group_id, loss.data);
        }
    }

    /// Adds the beginning of a message.
    fn request(&mut self, tracker: &Tracker, seen: &Seen<'_>, id: usize, side: Side) {
        let (packet, time) = (seen.packet, seen.at.time);
        let stream = &tracker.streams[id];
        let messages = self.messages.entry(id).or_default();
        let is_start = messages.request(packet, &stream.requests);
        let is_over = stream.transport == Transport::Uc && packet.row().position.ends();
        let over = if is_over { messages.pop(&stream.requests) } else { None };
        let row = packet.row();
        let psn = packet.bth().psn.get();
        if is_start && (side == Side::Send || !self.has_directions) {
            let target = packet.reth().map(|reth| reth.dma_len.into());
            let posted = WorkRequest {
                queue: Side::Send,
                opcode: opcode(row.operation).into(),
                wr_id: None,
                length: target.or_else(|| row.position.ends().then_some(packet.payload().len() as u64)),
                signaled: None,
                status: None,
                psn: Some(psn),
            };
            self.push(time, self.sender(stream.key), EventData::WorkRequestPosted(posted));
        }
        if is_start && (side == Side::Receive || !self.has_directions) {
            let target = packet.reth().map(|r| (r.va, r.rkey, r.dma_len));
            if let Some((va, rkey, len)) = target.or_else(|| packet.atomic().map(|a| (a.va, a.rkey, 8))) {
                let memory = Memory::new(Some(psn), row.operation, va, rkey.0, len);
                let group_id = Some(group(stream.key.dst, stream.key.qpn));
                self.push(time, group_id, EventData::MemoryAccess(memory));
            }
        }
        if let Some(message) = over {
            self.completed(stream.key, &message, time, side == Side::Send);
        }
    }

    /// Adds the gap in responses that a response shows; `id` is the stream of the requests.
    fn response(&mut self, tracker: &Tracker, seen: &Seen<'_>, id: usize, side: Side) {
        let stream = &tracker.streams[id];
        let messages = self.messages.entry(id).or_default();
        if let Some(psn) = messages.response(seen.packet, &stream.requests)
            && (side == Side::Receive || !self.has_directions)
        {
            let gap = Gap { of: GapOf::Responses, psn: psn.get(), count: None };
            self.push(seen.at.time, self.sender(stream.key), EventData::Gap(gap));
        }
    }

    /// Adds the completion of a message at its sender, its receiver, or both if the directions are not known.
    fn completed(&mut self, key: Key, message: &Message, time: u64, is_source_local: bool) {
        let done = |queue, opcode: &'static str| WorkRequest {
            queue,
            opcode: opcode.into(),
            wr_id: None,
            length: Some(message.length),
            signaled: None,
            status: Some("success".into()),
            psn: Some(message.psn.get()),
        };
        if is_source_local || !self.has_directions {
            let done = done(Side::Send, opcode(message.operation));
            self.push(time, self.sender(key), EventData::WorkRequestCompleted(done));
        }
        let received = match (message.operation, message.has_immediate) {
            (Operation::Send, _) => "receive",
            (Operation::Write, true) => "receive (WRITE with immediate)",
            _ => return,
        };
        if !is_source_local || !self.has_directions {
            let group_id = Some(group(key.dst, key.qpn));
            self.push(time, group_id, EventData::WorkRequestCompleted(done(Side::Receive, received)));
        }
    }

    /// Adds the completions of the messages of a stream that are acknowledged.
    fn acknowledged(&mut self, tracker: &Tracker, id: usize, time: u64, is_source_local: bool) {
        let stream = &tracker.streams[id];
        while let Some(message) =
            self.messages.get_mut(&id).and_then(|messages| messages.acknowledged(&stream.requests))
        {
            self.completed(stream.key, &message, time, is_source_local);
        }
    }

    /// Adds the failure of a stream's requests by a NAK that ends the connection.
    fn failed(&mut self, tracker: &Tracker, id: usize, code: NakCode, time: u64) {
        let status = match code {
            NakCode::PsnSequenceError | NakCode::Reserved(_) => return,
            NakCode::InvalidRequest | NakCode::InvalidRdRequest => "remote invalid request error",
            NakCode::RemoteAccessError => "remote access error",
            NakCode::RemoteOperationalError => "remote operation error",
        };
        let stream = &tracker.streams[id];
        let mut status = Some(status);
        while let Some(message) =
            self.messages.get_mut(&id).and_then(|messages| messages.pop(&stream.requests))
        {
            let failed = WorkRequest {
                queue: Side::Send,
                opcode: opcode(message.operation).into(),
                wr_id: None,
                length: None,
                signaled: None,
                status: Some(status.take().unwrap_or("work request flushed").into()),
                psn: Some(message.psn.get()),
            };
            self.push(time, self.sender(stream.key), EventData::WorkRequestCompleted(failed));
        }
    }

    /// Adds the work requests of a datagram, which is a whole message.
    fn datagram(&mut self, seen: &Seen<'_>, side: Side, group_id: &Option<String>) {
        let (psn, length) = (seen.packet.bth().psn.get(), seen.packet.payload().len() as u64);
        let (queue, opcode, length) = match side {
            Side::Send => (Side::Send, "SEND", length),
            Side::Receive => (Side::Receive, "receive", length + GRH),
        };
        let posted = WorkRequest {
            queue,
            opcode: opcode.into(),
            wr_id: None,
            length: Some(length),
            signaled: None,
            status: None,
            psn: Some(psn),
        };
        let done = WorkRequest { status: Some("success".into()), ..posted.clone() };
        if side == Side::Send {
            self.push(seen.at.time, group_id.clone(), EventData::WorkRequestPosted(posted));
        }
        self.push(seen.at.time, group_id.clone(), EventData::WorkRequestCompleted(done));
    }
}

/// Returns the name of the work request that causes an operation.
fn opcode(operation: Operation) -> &'static str {
    match operation {
        Operation::Write => "RDMA WRITE",
        Operation::ReadRequest => "RDMA READ",
        Operation::CompareSwap => "compare-and-swap",
        Operation::FetchAdd => "fetch-and-add",
        Operation::Flush => "FLUSH",
        Operation::AtomicWrite => "ATOMIC WRITE",
        _ => "SEND",
    }
}

impl Tap for Collector {
    fn packet(&mut self, tracker: &Tracker, seen: &Seen<'_>) {
        let (flow, packet, time) = (&seen.roce.flow, seen.packet, seen.at.time);
        let side = self.side(flow);
        let bth = packet.bth();
        let key = Key { src: flow.src, dst: flow.dst, qpn: bth.dest_qp, vni: seen.roce.vni };
        let group_id = match side {
            Side::Receive => Some(group(flow.dst, bth.dest_qp)),
            Side::Send => match packet.deth() {
                Some(deth) => Some(group(flow.src, deth.src_qp)),
                None => self.sender(key),
            },
        };
        let bytes = seen.roce.bytes;
        let fault = self.fault.take().map(|rule| dropped(side, flow, bytes, "fault", Some(rule)));
        if let (Side::Receive, Some(fault)) = (side, &fault) {
            self.push(time, group_id, fault.clone());
            return;
        }
        observed(side, flow, packet, |data| {
            self.queue.push_back(Timed { time, group_id: group_id.clone(), data });
        });
        if let Some(fault) = fault {
            self.push(time, group_id.clone(), fault);
        }
        if seen.verdict == Verdict::Wrong {
            if side == Side::Receive {
                self.push(time, group_id, dropped(side, flow, bytes, "icrc", None));
            }
            return;
        }
        self.nak(time, side, &group_id, packet);
        self.losses(seen, side);
        let row = packet.row();
        let is_response =
            matches!(row.transport, Transport::Rc | Transport::Xrc) && !row.operation.is_request();
        let Some(id) = seen.stream else {
            return;
        };
        match row.transport {
            Transport::Ud => self.datagram(seen, side, &group_id),
            Transport::Rc | Transport::Uc | Transport::Xrc if row.operation.is_request() => {
                self.request(tracker, seen, id, side);
            }
            _ => {}
        }
        if let Some(peer) = tracker.streams[id].peer.filter(|_| is_response) {
            self.response(tracker, seen, peer, side);
        }
        for touched in tracker.touched() {
            let is_source = tracker.streams[touched].key.src == flow.src;
            self.acknowledged(tracker, touched, time, is_source == (side == Side::Send));
        }
        if let Some(Syndrome::Nak(code)) = packet.aeth().map(|aeth| aeth.syndrome)
            && let Some(peer) = tracker.streams[id].peer
            && (side == Side::Receive || !self.has_directions)
        {
            self.failed(tracker, peer, code, time);
        }
    }
}
