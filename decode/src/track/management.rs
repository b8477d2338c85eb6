//! Connections, as the messages of the connection manager tell them.

use std::net::IpAddr;

use urxe::wire::mad::{Mad, Message, RejReason, Rejected, ServiceId, SidrStatus};
use urxe::wire::{AckTimeout, Flow, Mtu, Packet, Psn, QKey, Qpn};

use super::facts::{At, Bounded};
use super::stream::Key;
use crate::icrc::Verdict;

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Address.
    pub ip: IpAddr,
    /// Communication ID.
    pub comm_id: u32,
    /// Queue pair.
    pub qpn: Qpn,
    /// First PSN of the packets to this end.
    pub psn: Psn,
    /// READs and atomics that the end accepts at a time.
    pub responder_resources: u8,
}

/// A REJ.
#[derive(Clone, Debug)]
pub struct Reject {
    /// The message.
    pub at: At,
    /// Address of its sender.
    pub from: IpAddr,
    /// Reason.
    pub reason: RejReason,
    /// Rejected message.
    pub message: Rejected,
    /// Private data, without trailing zeros.
    pub private_data: Vec<u8>,
}

/// A connection, or an attempt at one.
#[derive(Clone, Debug)]
pub struct Connection {
    /// End that sent the REQ.
    pub active: End,
    /// End that sent the REP.
    pub passive: Option<End>,
    /// Destination of the REQ.
    pub destination: IpAddr,
    /// Service that the REQ asks for.
    pub service: ServiceId,
    /// REQs: number, first and last.
    pub requests: (u64, At, At),
    /// Path MTU of the REQ.
    pub mtu: Option<Mtu>,
    /// ACK timeout and retry counter of the REQ.
    pub retry: (AckTimeout, u8),
    /// REP.
    pub reply: Option<At>,
    /// MRAs: the first, its sender and the time that it announces.
    pub delay: Option<(At, IpAddr, AckTimeout)>,
    /// REJ.
    pub reject: Option<Reject>,
    /// DREQs: number, first and last, and the sender.
    pub disconnects: Option<(u64, At, At, IpAddr)>,
    /// DREP.
    pub disconnected: Option<At>,
}

/// Resolution of a datagram service.
#[derive(Clone, Copy, Debug)]
pub struct Resolution {
    /// The message.
    pub at: At,
    /// Address of the service.
    pub ip: IpAddr,
    /// Result.
    pub status: SidrStatus,
    /// Queue pair of the service.
    pub qpn: Qpn,
    /// Queue key that its datagrams must have.
    pub qkey: QKey,
}

/// Connections that are remembered.
const MAX_CONNECTIONS: usize = 1 << 16;

/// Messages of the connection manager.
#[derive(Debug, Default)]
pub struct Management {
    /// Connections, in order of their first messages.
    pub connections: Vec<Connection>,
    /// Results of the resolution of datagram services.
    pub resolutions: Bounded<Resolution>,
}

impl Management {
    /// Takes a datagram to QP1, and reports whether it is a REP, which establishes a connection.
    pub(super) fn datagram(&mut self, flow: &Flow, packet: &Packet<'_>, verdict: Verdict, at: At) -> bool {
        // The fields of a cut message are zeros.
        if verdict == Verdict::NotCaptured {
            return false;
        }
        let Ok(mad) = Mad::parse(packet.payload()) else { return false };
        self.message(flow, &mad.message, at);
        matches!(mad.message, Message::Rep(_))
    }

    /// Reports whether all connections of a stream's queue pair have been ended by a DREQ.
    pub(super) fn has_ended(&self, key: Key) -> bool {
        let is_end = |end: &End| (end.ip, end.qpn) == (key.dst, key.qpn);
        let of = |c: &&Connection| is_end(&c.active) || c.passive.as_ref().is_some_and(is_end);
        let mut all = self.connections.iter().filter(of).peekable();
        all.peek().is_some() && all.all(|c| c.disconnects.is_some())
    }

    fn message(&mut self, flow: &Flow, message: &Message, at: At) {
        let (from, to) = (flow.src, flow.dst);
        match message {
            Message::Req(req) => {
                let is_same = |c: &&mut Connection| {
                    c.active.ip == from && c.active.comm_id == req.local.0 && c.destination == to
                };
                if let Some(known) = self.connections.iter_mut().rev().find(is_same) {
                    known.requests.0 += 1;
                    known.requests.2 = at;
                } else if self.connections.len() < MAX_CONNECTIONS {
                    let active = End {
                        ip: from,
                        comm_id: req.local.0,
                        qpn: req.qpn,
                        psn: req.psn,
                        responder_resources: req.responder_resources,
                    };
                    self.connections.push(Connection {
                        active,
                        passive: None,
                        destination: to,
                        service: req.service,
                        requests: (1, at, at),
                        mtu: req.mtu,
                        retry: (req.primary.ack_timeout, req.retry_count),
                        reply: None,
                        delay: None,
                        reject: None,
                        disconnects: None,
                        disconnected: None,
                    });
                }
            }
            Message::Rep(rep) => {
                let passive = End {
                    ip: from,
                    comm_id: rep.local.0,
                    qpn: rep.qpn,
                    psn: rep.psn,
                    responder_resources: rep.responder_resources,
                };
                if let Some(known) = self.of_ids(to, rep.remote.0, from, rep.local.0) {
                    known.passive.get_or_insert(passive);
                    known.reply.get_or_insert(at);
                }
            }
            Message::Mra(mra) => {
                if let Some(known) = self.of_ids(to, mra.remote.0, from, mra.local.0) {
                    known.delay.get_or_insert((at, from, mra.service_timeout));
                }
            }
            Message::Rej(rej) => {
                let used = rej.private_data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                let reject = Reject {
                    at,
                    from,
                    reason: rej.reason,
                    message: rej.message,
                    private_data: rej.private_data[..used].to_vec(),
                };
                if let Some(known) = self.of_ids(to, rej.remote.0, from, rej.local.0) {
                    known.reject.get_or_insert(reject);
                }
            }
            Message::Dreq(dreq) => {
                if let Some(known) = self.of_ids(to, dreq.remote.0, from, dreq.local.0) {
                    // Both ends may send one.
                    let (count, _, last, sender) = known.disconnects.get_or_insert((0, at, at, from));
                    if *sender == from {
                        *count += 1;
                        *last = at;
                    }
                }
            }
            Message::Drep(drep) => {
                if let Some(known) = self.of_ids(to, drep.remote.0, from, drep.local.0) {
                    known.disconnected.get_or_insert(at);
                }
            }
            Message::SidrRep(rep) => {
                let (status, qpn, qkey) = (rep.status, rep.qpn, rep.qkey);
                self.resolutions.push(Resolution { at, ip: from, status, qpn, qkey });
            }
            _ => {}
        }
    }

    /// Returns the connection that a message from `from` to `to` belongs to, by the communication IDs of both
    /// (0: the sender does not know it).
    fn of_ids(&mut self, to: IpAddr, to_id: u32, from: IpAddr, from_id: u32) -> Option<&mut Connection> {
        let is_end = |end: &End, ip: IpAddr, id: u32| end.ip == ip && end.comm_id == id;
        self.connections.iter_mut().rev().find(|c| {
            let passive = |ip, id| match &c.passive {
                Some(end) => is_end(end, ip, id) || id == 0 && end.ip == ip,
                None => c.destination == ip,
            };
            is_end(&c.active, to, to_id) && passive(from, from_id)
                || is_end(&c.active, from, from_id) && passive(to, to_id)
        })
    }

    /// Returns the connection whose end `key.dst` has the queue pair `key.qpn`, and that end's peer.
    pub fn connection_to(&self, key: Key) -> Option<(&Connection, &End, &End)> {
        self.connections.iter().rev().find_map(|c| {
            let passive = c.passive.as_ref()?;
            let is_to =
                |end: &End, other: &End| end.ip == key.dst && end.qpn == key.qpn && other.ip == key.src;
            match () {
                () if is_to(passive, &c.active) => Some((c, passive, &c.active)),
                () if is_to(&c.active, passive) => Some((c, &c.active, passive)),
                () => None,
            }
        })
    }

    /// Returns the queue pair that packets of the other direction of a stream go to.
    pub(super) fn peer_of(&self, key: Key) -> Option<Qpn> {
        self.connection_to(key).map(|(_, _, other)| other.qpn)
    }
}
