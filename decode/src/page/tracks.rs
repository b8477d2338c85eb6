//! Packets of queue pairs as columns of numbers, which a page draws.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::net::IpAddr;

use serde::Serialize;
use urxe::wire::{Ecn, Operation, Packet, Psn, Syndrome, Transport};

use crate::capture::Capture;
use crate::icrc::{Judge, Verdict};
use crate::layers::{Content, Roce, dissect};
use crate::report::Report;
use crate::track::stream::Home;

/// Packets of a page at most. A browser shows them without delay; a page of more is larger than 20 MB.
const MAX_PACKETS: usize = 2_000_000;

/// Kinds of packets, which have colours of their own. The page has the same list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Request = 0,
    Again = 1,
    AfterGap = 2,
    Ack = 3,
    Nak = 4,
    NotReady = 5,
    Response = 6,
    Cnp = 7,
    WrongIcrc = 8,
    /// No packet: the time to the next one is too long for one row.
    Pause = 255,
}

/// Bits of the flags.
const FROM_REQUESTER: u8 = 1;
const CONGESTION: u8 = 2;
/// The PSN is one of the requests of the other side.
const REVERSE: u8 = 4;

/// Packets of two queue pairs in one capture.
#[derive(Debug, Serialize)]
pub(super) struct Track {
    /// Index of the capture.
    file: usize,
    requester: String,
    responder: String,
    service: &'static str,
    mtu: Option<usize>,
    /// Number of rows.
    rows: usize,
    /// Time of the first packet, in nanoseconds after the first one of the capture.
    start: u64,
    /// PSN of the first request of each side.
    bases: [Option<u32>; 2],
    #[serde(skip)]
    columns: Columns,
    #[serde(skip)]
    state: State,
}

/// Columns: differences of time and number to the previous row, PSN relative to the base as a difference, and the
/// fields as they are.
#[derive(Debug, Default)]
struct Columns {
    times: Vec<u32>,
    numbers: Vec<u32>,
    psns: Vec<i32>,
    lens: Vec<u16>,
    kinds: Vec<u8>,
    flags: Vec<u8>,
    opcodes: Vec<u8>,
    syndromes: Vec<u8>,
}

/// PSNs of the requests of one side.
#[derive(Clone, Copy, Debug, Default)]
struct Space {
    /// Last PSN, and its distance to the base.
    last: Option<(Psn, i32)>,
    /// Distance of the PSN behind the newest request, if it is known: a READ takes as many as it has responses.
    next: Option<i32>,
}

impl Space {
    /// Returns the distance of a PSN to the base.
    fn place(&mut self, psn: Psn) -> i32 {
        let place = self.last.map_or(0, |(last, place)| place + psn.since(last));
        self.last = Some((psn, place));
        place
    }
}

#[derive(Debug, Default)]
struct State {
    /// Interfaces on which the packets of the responder and of the requester are followed.
    homes: [Option<Home>; 2],
    spaces: [Space; 2],
    time: u64,
    number: u64,
    psn: i32,
}

impl Track {
    fn push(
        &mut self,
        roce: &Roce<'_>,
        packet: &Packet<'_>,
        verdict: Verdict,
        at: (u64, u64),
        forward: bool,
    ) {
        let (bth, operation) = (packet.bth(), packet.row().operation);
        let is_request = operation.is_request() && operation != Operation::Cnp;
        let side = (is_request != forward) as usize;
        let space = &mut self.state.spaces[side];
        let is_first = space.last.is_none();
        let place = match operation {
            Operation::Cnp => self.state.psn,
            _ => space.place(bth.psn),
        };
        if is_first && operation != Operation::Cnp {
            self.bases[side] = Some(bth.psn.get());
        }
        let mut kind = match packet.aeth().map(|aeth| aeth.syndrome) {
            _ if verdict == Verdict::Wrong => Kind::WrongIcrc,
            _ if operation == Operation::Cnp => Kind::Cnp,
            Some(Syndrome::Nak(_)) => Kind::Nak,
            Some(Syndrome::RnrNak(_)) => Kind::NotReady,
            _ if operation == Operation::Acknowledge => Kind::Ack,
            _ if is_request => Kind::Request,
            _ => Kind::Response,
        };
        if kind == Kind::Request && packet.row().transport != Transport::Ud {
            kind = match space.next {
                Some(next) if place < next => Kind::Again,
                Some(next) if place > next => Kind::AfterGap,
                _ => Kind::Request,
            };
            if kind != Kind::Again {
                space.next = (operation != Operation::ReadRequest).then_some(place + 1);
            }
        }
        let flags =
            [(forward, FROM_REQUESTER), (roce.flow.ecn() == Ecn::Ce, CONGESTION), (side == 1, REVERSE)];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
        let (number, time) = at;
        let mut pause = time.saturating_sub(self.state.time);
        while pause > u64::from(u32::MAX) {
            pause -= u64::from(u32::MAX);
            self.row([u32::MAX, 0], 0, 0, [Kind::Pause as u8, 0, 0, 0]);
        }
        let syndrome = packet.aeth().map_or(0xff, |aeth| aeth.syndrome.to_byte());
        let numbers = [pause as u32, (number - self.state.number) as u32];
        let len = packet.payload().len() as u16;
        self.row(numbers, place - self.state.psn, len, [kind as u8, flags, bth.opcode.0, syndrome]);
        (self.state.time, self.state.number, self.state.psn) = (time.max(self.state.time), number, place);
    }

    fn row(&mut self, [time, number]: [u32; 2], psn: i32, len: u16, bytes: [u8; 4]) {
        let columns = &mut self.columns;
        columns.times.push(time);
        columns.numbers.push(number);
        columns.psns.push(psn);
        columns.lens.push(len);
        let all = [&mut columns.kinds, &mut columns.flags, &mut columns.opcodes, &mut columns.syndromes];
        all.into_iter().zip(bytes).for_each(|(column, byte)| column.push(byte));
        self.rows += 1;
    }

    /// Writes the columns, one after the other, in little-endian order.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = &self.columns;
        let mut bytes: Vec<u8> = Vec::with_capacity(self.rows * 18);
        columns.times.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        columns.numbers.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        columns.psns.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        columns.lens.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        for column in [&columns.kinds, &columns.flags, &columns.opcodes, &columns.syndromes] {
            bytes.extend(column);
        }
        out.write_all(&bytes)
    }
}

/// Track of a queue pair by the fields of its packets: capture, source, destination, queue pair.
type Index = HashMap<(usize, IpAddr, IpAddr, u32), (usize, bool)>;

/// Tracks of all queue pairs of a report.
#[derive(Debug)]
pub(super) struct Tracks {
    pub tracks: Vec<Track>,
    pub opcodes: BTreeSet<u8>,
    /// Packets behind the first [`MAX_PACKETS`].
    pub left_out: u64,
    packets: usize,
    index: Index,
}

impl Tracks {
    pub(super) fn new(report: &Report) -> Tracks {
        let (mut tracks, mut index) = (Vec::new(), Index::new());
        for (id, qp) in report.queue_pairs.iter().enumerate() {
            let (requester, responder) = (qp.requester, qp.responder);
            index.insert((qp.file, requester.0, responder.0, responder.1), (id, true));
            if let (ip, Some(qpn)) = requester {
                index.entry((qp.file, responder.0, ip, qpn)).or_insert((id, false));
            }
            let number = requester.1.map_or_else(|| "?".into(), |qpn| format!("{qpn:#x}"));
            tracks.push(Track {
                file: qp.file,
                requester: format!("{number} {}", requester.0),
                responder: format!("{:#x} {}", responder.1, responder.0),
                service: qp.service,
                mtu: qp.mtu,
                rows: 0,
                start: 0,
                bases: [None; 2],
                columns: Columns::default(),
                state: State::default(),
            });
        }
        Tracks { tracks, opcodes: BTreeSet::new(), left_out: 0, packets: 0, index }
    }

    /// Takes the packets of a capture, until its end or an error.
    pub(super) fn read(&mut self, file: usize, mut capture: Capture) {
        let (mut judge, mut start) = (Judge::default(), None);
        while let Some(Ok(frame)) = capture.next_frame() {
            let start = *start.get_or_insert(frame.time);
            let Ok(Content::Roce(roce)) = dissect(frame.link, frame.bytes) else { continue };
            let Ok((packet, verdict)) = judge.judge(&roce) else { continue };
            let key = (file, roce.flow.src, roce.flow.dst, packet.bth().dest_qp.get());
            let Some(&(id, forward)) = self.index.get(&key) else { continue };
            let psn = packet.bth().psn;
            let home = &mut self.tracks[id].state.homes[forward as usize];
            if home.get_or_insert(Home::new(frame.interface, psn)).has_seen(frame.interface, psn) {
                continue;
            }
            if self.packets == MAX_PACKETS {
                self.left_out += 1;
                continue;
            }
            self.packets += 1;
            self.opcodes.insert(packet.bth().opcode.0);
            let track = &mut self.tracks[id];
            let time = frame.time.saturating_sub(start);
            if track.rows == 0 {
                (track.start, track.state.time) = (time, time);
            }
            track.push(&roce, &packet, verdict, (frame.number, time), forward);
        }
    }
}
