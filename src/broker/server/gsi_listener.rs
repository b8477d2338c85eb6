//! Listener for packets to a shared address that are for no process's partition: requests for services, and
//! REJs that cancel a request. It forwards them to the process that has registered the service. If there is
//! none, the broker itself responds, because no single connection manager is responsible for the address.

use std::io;
use std::os::fd::OwnedFd;

use super::mailboxes::{Mailboxes, Outcome};
use super::recent_reqs::RecentReqs;
use crate::broker::forwarded_mad::{self, ForwardedMad};
use crate::burst::{RxBurst, TxQueue};
use crate::cm::unmatched;
use crate::link::Link;
use crate::link::udp::{self, BindAddr, UdpLink, UdpLinkError};
use crate::transport::Instant;
use crate::wire::icrc::Verifier;
use crate::wire::mad::{CommId, Mad, Message, Recipient, ServiceId};
use crate::wire::{
    Bth, Deth, Flow, HeaderSet, Headers, IpIdent, Opcode, Operation, PKey, Packet, Position, QKey, Qpn,
    Transport,
};

/// Dummy time: a UDP link does not use the clock, because it sends immediately and receives only what is
/// queued.
const NOW: Instant = Instant(0);

/// Receiver on the socket for partition 0, which is never leased to a process.
pub struct GsiListener {
    pub link: UdpLink,
    verifier: Verifier,
    responses: TxQueue,
    recent_reqs: RecentReqs,
}

impl GsiListener {
    pub fn open(bind_addr: &BindAddr, socket: &OwnedFd) -> Result<GsiListener, UdpLinkError> {
        let (ip, options) = (bind_addr.ip(), bind_addr.options());
        let failed = |what| UdpLinkError::system::<io::Error>(ip, what);
        let socket = socket.try_clone().map_err(failed("duplicating a socket"))?;
        // Each packet may be for a different process.
        udp::stop_coalescing(&socket).map_err(failed("disabling GRO"))?;
        let mut link = UdpLink::from_socket(ip, socket, &options)?;
        // The broker does not use the link state.
        link.ignore_link_state();
        let responses = TxQueue::new(link.info().burst);
        Ok(GsiListener { link, verifier: Verifier::default(), responses, recent_reqs: RecentReqs::default() })
    }

    /// Sends packets without payload.
    pub fn send(&mut self, packets: impl Iterator<Item = (Flow, Headers)>) {
        for (flow, headers) in packets {
            self.responses.push(&flow, headers, &[]);
            if self.responses.is_full() {
                self.flush();
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if !self.responses.is_empty() {
            // Ignored errors: failures to send, which count as lost datagrams.
            let _ = self.link.transmit(NOW, &self.responses);
            self.responses.clear();
        }
    }

    /// Handles a batch of received packets. Also reads the sockets of `orphaned` partitions, which processes
    /// have released, because peers may still send packets to connections in them.
    pub fn serve<'s>(
        &mut self,
        bind_addr: &BindAddr,
        orphaned: impl Iterator<Item = &'s OwnedFd>,
        mailboxes: &mut Mailboxes,
    ) {
        let GsiListener { link, verifier, responses, recent_reqs } = self;
        let mut refuse = |flow: &Flow, ident, index, packet: &[u8], mad: Mad| {
            if let Some(message) = unmatched::response(&mad.message)
                && verifier.verify(flow, ident, index, packet)
            {
                push(responses, flow, &Mad { message, modifier: 0, ..mad });
            }
        };
        for datagram in mailboxes.undelivered(|name| forwarded_mad::is_at(bind_addr, name)) {
            if let Some(ForwardedMad { flow, packet }) = ForwardedMad::parse(&datagram)
                && let Some(mad) = mad_of(packet)
            {
                refuse(&flow, IpIdent::Unknown, 0, packet, mad);
            }
        }
        let mut dispatch = |burst: RxBurst<'_>| {
            for (index, packet) in burst.packets() {
                let Some(mad) = mad_of(packet) else { continue };
                if let Some(service) = service_of(recent_reqs, &burst.flow, &mad.message) {
                    let forwarded_mad = ForwardedMad { flow: burst.flow, packet };
                    if mailboxes.send(&forwarded_mad::name(bind_addr, service), forwarded_mad.bytes())
                        != Outcome::NoOwner
                    {
                        service
                            .of_same_port()
                            .for_each(|other| mailboxes.record(&forwarded_mad::name(bind_addr, other)));
                        continue;
                    }
                }
                refuse(&burst.flow, burst.ident, index, packet, mad);
            }
        };
        // Ignored errors: those of earlier sends.
        let _ = link.receive(NOW, &mut dispatch);
        for socket in orphaned {
            let _ = link.receive_from(socket, &mut dispatch);
        }
        self.flush();
    }
}

/// Returns the MAD in a packet for QP1, if it is a connection manager message.
fn mad_of(packet: &[u8]) -> Option<Mad> {
    let packet = Packet::parse(packet).ok()?;
    let is_for_qp1 = packet.row().transport == Transport::Ud
        && packet.bth().dest_qp == Qpn::GSI
        && packet.deth().is_some_and(|deth| deth.qkey == QKey::GSI);
    Mad::parse(packet.payload()).ok().filter(|_| is_for_qp1)
}

/// Returns the service to which a message must be forwarded. This is the requested service or, for a REJ
/// without the recipient's communication ID (because the sender gave up before it learned the ID), the
/// service that the sender had requested.
fn service_of(recent_reqs: &mut RecentReqs, flow: &Flow, message: &Message) -> Option<ServiceId> {
    match (message.recipient(), message) {
        (Recipient::Service(service), Message::Req(req)) => {
            recent_reqs.record(flow.src, req.local, service);
            Some(service)
        }
        (Recipient::Service(service), _) => Some(service),
        (Recipient::Connection(CommId(0)), Message::Rej(rej)) => recent_reqs.find(flow.src, rej.local),
        (Recipient::Connection(_), _) => None,
    }
}

/// Queues a packet with a MAD that replies to a flow: from QP1 at its destination to QP1 at its source.
fn push(queue: &mut TxQueue, flow: &Flow, mad: &Mad) {
    let opcode = Opcode::find(Transport::Ud, Operation::Send, Position::Only, HeaderSet::NONE);
    let bth = Bth {
        opcode: opcode.expect("UD has SEND Only"),
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::GSI,
        ..Bth::default()
    };
    let deth = Deth { qkey: QKey::GSI, src_qp: Qpn::GSI };
    let reply_flow = Flow {
        traffic_class: flow.traffic_class & !3,
        ..Flow::new(flow.dst, flow.src, crate::wire::ROCE_PORT)
    };
    queue.push(&reply_flow, Headers { bth, deth, ..Headers::default() }, &mad.bytes());
}
