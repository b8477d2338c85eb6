//! Follows the packets of a capture: streams, the queue pairs that they connect, and what hosts and switches
//! say about them.

pub mod facts;
pub mod management;
pub mod path;
pub mod requests;
pub mod stream;
pub mod window;

use std::collections::HashMap;
use std::net::IpAddr;

use pcap_file::DataLink;
use urxe::wire::{IpIdent, Operation, Packet, Psn, Qpn, Transport, WireError};

use crate::capture::Frame;
use crate::icrc::{Judge, Verdict, cause_of};
use crate::layers::{Content, Roce, UnsupportedLink, Version, dissect};
use crate::segments::{has_several, is_too_long, segments};
use facts::{At, Bounded};
use management::Management;
use path::Path;
use stream::{Home, Key, Stream};

/// A packet with a wrong ICRC.
#[derive(Clone, Copy, Debug)]
pub struct WrongIcrc {
    /// The packet.
    pub at: At,
    /// Stream of the packet.
    pub key: Key,
    /// PSN of the packet, if that was not changed.
    pub psn: Psn,
    /// Cause.
    pub cause: crate::icrc::Cause,
}

/// Numbers of packets by kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// All packets.
    pub frames: u64,
    /// RoCE packets.
    pub roce: u64,
    /// RoCEv1 packets among them.
    pub v1: u64,
    /// Packets with a right ICRC.
    pub icrc_right: u64,
    /// Packets whose ICRC was not captured.
    pub icrc_not_captured: u64,
    /// RoCE packets that cannot be parsed.
    pub unreadable: u64,
    /// Datagrams of several packets.
    pub unsegmented: u64,
    /// Packets that another interface of the capture had captured before.
    pub seen_before: u64,
    /// Time of the first packet.
    pub first_time: u64,
    /// Time of the last packet.
    pub last_time: u64,
}

/// Responses of a stream that its requests are searched for: of a capture of one direction, there are none.
const MAX_ATTEMPTS: u32 = 4096;

/// Comments that are remembered.
const MAX_COMMENTS: usize = 1 << 14;

/// A RoCE packet, after the tracker has taken it.
pub struct Seen<'a> {
    /// The packet's headers below the BTH.
    pub roce: &'a Roce<'a>,
    /// The packet.
    pub packet: &'a Packet<'a>,
    /// Result of the verification of its ICRC.
    pub verdict: Verdict,
    /// Position of the packet.
    pub at: At,
    /// Stream of the packet; `None` for packets to QP1 and those with a wrong ICRC.
    pub stream: Option<usize>,
}

/// Receiver of the packets that a tracker takes.
pub trait Tap {
    /// Takes a packet.
    fn packet(&mut self, tracker: &Tracker, seen: &Seen<'_>);
}

impl Tap for () {
    fn packet(&mut self, _: &Tracker, _: &Seen<'_>) {}
}

/// State of the analysis of one capture.
#[derive(Debug, Default)]
pub struct Tracker {
    /// Numbers of packets.
    pub totals: Totals,
    /// Streams, in order of their first packets.
    pub streams: Vec<Stream>,
    index: HashMap<Key, usize>,
    /// Stream of the previous packet, because packets of a stream come in runs.
    previous: usize,
    /// Streams by their addresses.
    by_addresses: HashMap<(IpAddr, IpAddr), Vec<usize>>,
    /// Messages of the connection manager.
    pub management: Management,
    /// Address resolution, ICMP and pauses.
    pub path: Path,
    /// Packets with wrong ICRCs.
    pub wrong_icrcs: Bounded<WrongIcrc>,
    /// Packets that cannot be parsed, with the reason.
    pub unreadable: Bounded<(At, String)>,
    /// Link types that cannot be read.
    pub unsupported: Vec<UnsupportedLink>,
    /// Comments of packets, by the packets' numbers.
    pub comments: HashMap<u64, String>,
    /// Interface of the current packet.
    interface: u32,
    /// Interfaces on which datagrams of management are followed, by their addresses.
    management_homes: HashMap<(IpAddr, IpAddr), u32>,
    /// Taken out while the packet that it judges is processed, which borrows from it.
    judge: Option<Box<Judge>>,
}

impl Tracker {
    /// Takes the next packet of the capture.
    pub fn frame(&mut self, frame: &Frame<'_>) {
        self.frame_for(frame, &mut ());
    }

    /// Takes the next packet of the capture, and passes the RoCE packets in it to `tap`.
    pub fn frame_for(&mut self, frame: &Frame<'_>, tap: &mut impl Tap) {
        let at = At { packet: frame.number, time: frame.time };
        let totals = &mut self.totals;
        if totals.frames == 0 {
            totals.first_time = frame.time;
        }
        totals.frames += 1;
        self.interface = frame.interface;
        totals.last_time = totals.last_time.max(frame.time);
        if let Some(comment) = &frame.comment
            && self.comments.len() < MAX_COMMENTS
        {
            self.comments.insert(frame.number, comment.clone());
        }
        match dissect(frame.link, frame.bytes) {
            Ok(Content::Roce(roce)) => self.datagram(&roce, at, tap),
            Ok(Content::Unreadable(reason)) => self.unreadable(at, reason.to_owned()),
            Ok(Content::Icmp(error)) => self.path.icmp(error, at),
            Ok(Content::Solicit(from, ip)) => self.path.solicit(from, ip, at),
            Ok(Content::Advert(ip)) => self.path.advert(ip, at),
            Ok(Content::Pause(mac, pause)) => self.path.pause(mac, &pause, at),
            Ok(Content::Other) => {}
            Err(unsupported) => self.unsupported(unsupported, frame.link),
        }
    }

    fn unsupported(&mut self, unsupported: UnsupportedLink, link: DataLink) {
        if !self.unsupported.iter().any(|known| known.code == u32::from(link)) {
            self.unsupported.push(unsupported);
        }
    }

    fn unreadable(&mut self, at: At, reason: String) {
        self.totals.unreadable += 1;
        self.unreadable.push((at, reason));
    }

    fn datagram(&mut self, roce: &Roce<'_>, at: At, tap: &mut impl Tap) {
        if is_too_long(roce) {
            self.segments(roce, at, tap);
            return;
        }
        // The packet borrows its bytes from the judge.
        let mut judge = self.judge.take().unwrap_or_default();
        match judge.judge(roce) {
            Ok((_, Verdict::Wrong)) if has_several(roce) => {
                self.judge = Some(judge);
                self.segments(roce, at, tap);
                return;
            }
            Ok((packet, verdict)) => self.roce(roce, &packet, verdict, at, tap),
            Err(e) => self.wire_error(roce, e, at),
        }
        self.judge = Some(judge);
    }

    /// Takes the packets of a datagram that consists of several.
    fn segments(&mut self, roce: &Roce<'_>, at: At, tap: &mut impl Tap) {
        self.totals.unsegmented += 1;
        let mut judge = self.judge.take().unwrap_or_default();
        for segment in segments(roce) {
            match judge.judge(&segment) {
                Ok((packet, verdict)) => self.roce(&segment, &packet, verdict, at, tap),
                Err(e) => self.wire_error(&segment, e, at),
            }
        }
        self.judge = Some(judge);
    }

    #[cold]
    fn wire_error(&mut self, roce: &Roce<'_>, error: WireError, at: At) {
        self.count(roce);
        self.unreadable(at, error.to_string());
    }

    fn count(&mut self, roce: &Roce<'_>) {
        self.totals.roce += 1;
        self.totals.v1 += (roce.version == Version::V1) as u64;
    }

    fn roce(&mut self, roce: &Roce<'_>, packet: &Packet<'_>, verdict: Verdict, at: At, tap: &mut impl Tap) {
        let stream = self.packet(roce, packet, verdict, at);
        tap.packet(self, &Seen { roce, packet, verdict, at, stream });
    }

    /// Takes a packet, and returns its stream.
    fn packet(&mut self, roce: &Roce<'_>, packet: &Packet<'_>, verdict: Verdict, at: At) -> Option<usize> {
        self.count(roce);
        let bth = packet.bth();
        let key = Key { src: roce.flow.src, dst: roce.flow.dst, qpn: bth.dest_qp, vni: roce.vni };
        match verdict {
            Verdict::Right => self.totals.icrc_right += 1,
            Verdict::NotCaptured => self.totals.icrc_not_captured += 1,
            // The receiver drops the packet, whose fields may be wrong.
            Verdict::Wrong => {
                let wrong = || WrongIcrc { at, key, psn: bth.psn, cause: cause_of(roce) };
                self.wrong_icrcs.push_with(wrong);
                return None;
            }
        }
        if bth.dest_qp == Qpn::GSI {
            let home = self.management_homes.entry((key.src, key.dst)).or_insert(self.interface);
            if *home != self.interface {
                self.totals.seen_before += 1;
                return None;
            }
            self.path.managed(roce.flow.src, at);
            if self.management.datagram(&roce.flow, packet, verdict, at) {
                self.retire_streams(key.src, key.dst);
            }
            return None;
        }
        let id = self.stream_of(key, packet, at);
        if self.streams[id].home.has_seen(self.interface, bth.psn) {
            self.totals.seen_before += 1;
            return None;
        }
        self.streams[id].packet(roce, packet, at);
        let ident = match roce.ident {
            IpIdent::Exact { id, .. } => Some(id),
            _ => None,
        };
        let row = packet.row();
        match row.transport {
            Transport::Rc | Transport::Xrc if row.operation.is_request() => {
                self.streams[id].requests.request(packet, ident, at);
            }
            Transport::Rc | Transport::Xrc => self.response(id, packet, at),
            Transport::Uc => self.streams[id].requests.request(packet, ident, at),
            Transport::Cnp => {
                self.streams[id].cnp(at);
                if let Some(peer) = self.streams[id].peer {
                    self.streams[peer].slow_down(at);
                }
            }
            _ => {}
        }
        Some(id)
    }

    /// Returns the stream of the last packet that had one, and the stream of the other direction.
    pub fn touched(&self) -> impl Iterator<Item = usize> {
        let stream = self.streams.get(self.previous);
        stream.map(|_| self.previous).into_iter().chain(stream.and_then(|stream| stream.peer))
    }

    /// Ends the streams of earlier connections between two addresses that are connected again: further packets to the
    /// same queue pair are of another stream.
    fn retire_streams(&mut self, a: IpAddr, b: IpAddr) {
        for pair in [(a, b), (b, a)] {
            let Some(ids) = self.by_addresses.get_mut(&pair) else { continue };
            ids.retain(|id| {
                let key = self.streams[*id].key;
                let is_ended = self.management.has_ended(key);
                if is_ended {
                    self.index.remove(&key);
                }
                !is_ended
            });
            self.previous = usize::MAX;
        }
    }

    /// Returns the last packet of an address.
    pub fn last_from(&self, ip: IpAddr) -> Option<At> {
        let streams = self.streams.iter().filter(|stream| stream.key.src == ip).map(|stream| stream.last);
        let managed = self.path.hosts.get(&ip).and_then(|host| host.managed);
        streams.chain(managed).max_by_key(|at| at.packet)
    }

    fn stream_of(&mut self, key: Key, packet: &Packet<'_>, at: At) -> usize {
        if self.streams.get(self.previous).is_some_and(|stream| stream.key == key) {
            return self.previous;
        }
        let next = self.streams.len();
        let id = *self.index.entry(key).or_insert(next);
        if id == next {
            let home = Home::new(self.interface, packet.bth().psn);
            self.streams.push(Stream::new(key, home, packet.row().transport, at));
            self.by_addresses.entry((key.src, key.dst)).or_default().push(id);
        }
        self.previous = id;
        id
    }

    /// Takes a response, which belongs to the requests of a stream of the other direction.
    fn response(&mut self, id: usize, packet: &Packet<'_>, at: At) {
        let (psn, is_read) = (packet.bth().psn, packet.row().operation == Operation::ReadResponse);
        if self.streams[id].peer.is_none() && self.streams[id].unpaired < MAX_ATTEMPTS {
            self.streams[id].unpaired += 1;
            self.pair(id, psn, is_read, at);
        }
        if let Some(peer) = self.streams[id].peer {
            self.streams[peer].requests.response(packet, at);
        }
    }

    /// Finds the stream whose requests a response answers: by the connection manager's messages, or as the
    /// one of the opposite addresses that has the PSN in flight. Of several, the one that sent it last.
    fn pair(&mut self, id: usize, psn: Psn, is_read: bool, at: At) {
        let key = self.streams[id].key;
        let Some(candidates) = self.by_addresses.get(&(key.dst, key.src)) else { return };
        let known = self.management.peer_of(key);
        let mut best: Option<(u64, usize)> = None;
        for &other in candidates {
            let stream = &mut self.streams[other];
            if stream.peer.is_some() || known.is_some_and(|qpn| qpn != stream.key.qpn) {
                continue;
            }
            if let Some(age) = stream.requests.fits(psn, is_read, at.time)
                && best.is_none_or(|(least, _)| age < least)
            {
                best = Some((age, other));
            }
        }
        // A NAK for a PSN that was never sent: the ends disagree, and only the connection tells it.
        let only = || {
            let mut free = candidates.iter().copied().filter(|other| {
                let stream = &self.streams[*other];
                stream.peer.is_none() && stream.requests.first.is_some()
            });
            free.next().filter(|_| free.next().is_none())
        };
        let known = || candidates.iter().copied().find(|other| known == Some(self.streams[*other].key.qpn));
        if let Some(other) = best.map(|(_, other)| other).or_else(known).or_else(only) {
            self.streams[id].peer = Some(other);
            self.streams[other].peer = Some(id);
        }
    }
}
