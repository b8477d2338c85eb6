//! What comes to an address for nobody's seat: requests for services, which go to who has claimed them, and so does what
//! takes one back. Where nobody has, the steward says so, for an address that has no one connection manager.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::super::{UdpLink, UdpLinkError, socket};
use super::Place;
use super::askers::Askers;
use super::delivery::{Delivery, Outcome};
use super::inquiry::{self, Inquiry};
use crate::cm::nobody;
use crate::link::{Link, RxBurst};
use crate::transport::{Instant, Payload, TxQueue};
use crate::wire::icrc::Verifier;
use crate::wire::mad::{CommId, Mad, Message, Recipient, ServiceId};
use crate::wire::{
    Bth, Deth, Flow, HeaderSet, Headers, IpIdent, Opcode, Operation, PKey, Packet, Position, QKey, Qpn,
    Transport,
};

/// No clock is needed: a socket sends at once, and receives what is there.
const NOW: Instant = Instant(0);

/// The socket of the seat that no process has.
pub(super) struct Reception {
    link: UdpLink,
    verifier: Verifier,
    answers: TxQueue,
    askers: Askers,
}

impl Reception {
    pub fn open(place: &Place, socket: &OwnedFd) -> Result<Reception, UdpLinkError> {
        let (ip, options) = (place.ip, place.options());
        let failed = |what| move |source: io::Error| UdpLinkError::System { ip, what, source };
        let socket = socket.try_clone().map_err(failed("keeping a socket"))?;
        // Each that comes may be for another process.
        socket::stop_coalescing(&socket).map_err(failed("taking packets singly"))?;
        let mut link = UdpLink::new(ip, &options, socket::adopt(ip, socket, &options)?)?;
        // Nobody asks whether its port is up.
        link.watch = None;
        let answers = TxQueue::new(link.info().burst);
        Ok(Reception { link, verifier: Verifier::default(), answers, askers: Askers::default() })
    }

    /// Takes some of what has come, and of what has come to sockets that processes have left: their peers know of
    /// connections still.
    pub fn serve<'s>(
        &mut self,
        place: &Place,
        left: impl Iterator<Item = &'s OwnedFd>,
        delivery: &mut Delivery,
    ) {
        let Reception { link, verifier, answers, askers } = self;
        let mut refuse = |flow: &Flow, ident, index, packet: &[u8], mad: Mad| {
            if let Some(message) = nobody::answer(&mad.message)
                && verifier.verify(flow, ident, index, packet)
            {
                push(answers, flow, &Mad { message, modifier: 0, ..mad });
            }
        };
        for datagram in delivery.returned(|name| inquiry::is_at(place, name)) {
            if let Some(Inquiry { flow, packet }) = Inquiry::parse(&datagram)
                && let Some(mad) = mad_of(packet)
            {
                refuse(&flow, IpIdent::Unknown, 0, packet, mad);
            }
        }
        let mut sort = |burst: RxBurst<'_>| {
            for (index, packet) in burst.packets() {
                let Some(mad) = mad_of(packet) else { continue };
                if let Some(service) = service_of(askers, &burst.flow, &mad.message) {
                    let inquiry = Inquiry { flow: burst.flow, packet };
                    if delivery.send(&inquiry::name(place, service), inquiry.bytes()) != Outcome::Nobody {
                        service.of_same_port().for_each(|kin| delivery.note(&inquiry::name(place, kin)));
                        continue;
                    }
                }
                refuse(&burst.flow, burst.ident, index, packet, mad);
            }
        };
        // What a socket says of earlier sends, and what cannot be sent, is the loss of a datagram.
        let _ = link.receive(NOW, &mut sort);
        for socket in left {
            let _ = link.receiver.receive(socket, &link.local, &mut sort);
        }
        if !answers.is_empty() {
            let _ = link.transmit(NOW, answers);
            answers.clear();
        }
    }
}

/// Readable when something has come.
impl AsFd for Reception {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }
}

/// The connection manager's message in a packet for QP1.
fn mad_of(packet: &[u8]) -> Option<Mad> {
    let packet = Packet::parse(packet).ok()?;
    let is_for_qp1 = packet.row().transport == Transport::Ud
        && packet.bth().dest_qp == Qpn::GSI
        && packet.deth().is_some_and(|deth| deth.qkey == QKey::GSI);
    Mad::parse(packet.payload()).ok().filter(|_| is_for_qp1)
}

/// The service whose process a message is for: one that it asks for, or that its sender has asked for, who gives up before
/// he has learned any other ID.
fn service_of(askers: &mut Askers, flow: &Flow, message: &Message) -> Option<ServiceId> {
    match (message.recipient(), message) {
        (Recipient::Service(service), Message::Req(req)) => {
            askers.note(flow.src, req.local, service);
            Some(service)
        }
        (Recipient::Service(service), _) => Some(service),
        (Recipient::Connection(CommId(0)), Message::Rej(rej)) => askers.find(flow.src, rej.local),
        (Recipient::Connection(_), _) => None,
    }
}

/// Adds a packet with a MAD, from the QP1 that a flow leads to back to that where it began.
fn push(queue: &mut TxQueue, flow: &Flow, mad: &Mad) {
    let opcode = Opcode::find(Transport::Ud, Operation::Send, Position::Only, HeaderSet::NONE);
    let bth = Bth {
        opcode: opcode.expect("datagrams are sent whole"),
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::GSI,
        ..Bth::default()
    };
    let deth = Deth { qkey: QKey::GSI, src_qp: Qpn::GSI };
    let back = Flow {
        traffic_class: flow.traffic_class & !3,
        ..Flow::new(flow.dst, flow.src, crate::wire::ROCE_PORT)
    };
    queue.push(&back, Headers { bth, deth, ..Headers::default() }, Payload::Bytes(&mad.bytes()));
}
