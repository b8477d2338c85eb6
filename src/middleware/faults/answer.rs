//! Answers on behalf of a packet's destination: NAKs and RNR NAKs to requests, and REJs to messages of the
//! connection manager.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::packet::HeldPacket;
use crate::fault_rules::{Direction, cm_message, write_icrc};
use crate::wire::mad::{CommId, Mad, Message, Rej, RejReason, Rejected};
use crate::wire::{
    Aeth, Bth, Deth, Flow, HeaderSet, Headers, ICRC_LEN, IpIdent, Opcode, Operation, Packet, Position, Psn,
    QKey, Qpn, Syndrome,
};

/// ECN bits of the traffic class.
const ECN: u8 = 3;

/// State of the responder that receives a stream of requests, as far as the requests show it.
struct Responder {
    /// Queue pair that sends the requests.
    requester: Qpn,
    /// PSN after the last request that passed.
    next: Option<Psn>,
    /// Number of requests that have passed whole, modulo 2^24.
    msn: u32,
    /// PSN of the request that a NAK has refused. A responder discards what follows, until the requester
    /// sends that request again.
    refused: Option<Psn>,
}

/// The responders to which the requests of one direction go.
pub(super) struct Responders {
    direction: Direction,
    /// By address of the peer and destination queue pair. Only connections have entries, because packets may
    /// come from anyone.
    responders: BTreeMap<(IpAddr, Qpn), Responder>,
}

impl Responders {
    pub fn new(direction: Direction) -> Responders {
        Responders { direction, responders: BTreeMap::new() }
    }

    /// Notes a new connection of a local queue pair. It replaces the earlier connections of both of its queue
    /// pairs.
    pub fn on_connected(&mut self, local: Qpn, address: IpAddr, remote: Qpn) {
        // Converts (local, remote) to (responder, requester), and vice versa.
        let is_tx = self.direction == Direction::Tx;
        let by_role = |one: Qpn, other: Qpn| if is_tx { (other, one) } else { (one, other) };
        self.responders.retain(|(peer, dest), responder| {
            let (own, other) = by_role(*dest, responder.requester);
            own != local && (*peer, other) != (address, remote)
        });
        let (dest, requester) = by_role(local, remote);
        self.responders.insert((address, dest), Responder { requester, next: None, msn: 0, refused: None });
    }

    /// Returns the responder of a request; `None` if its connection is unknown.
    fn responder(&mut self, flow: &Flow, packet: &Packet<'_>) -> Option<&mut Responder> {
        let peer = if self.direction == Direction::Tx { flow.dst } else { flow.src };
        self.responders.get_mut(&(peer, packet.bth().dest_qp))
    }

    /// Reports whether the responder discards a request because it has refused an earlier one.
    pub fn discards(&mut self, flow: &Flow, packet: &Packet<'_>) -> bool {
        let psn = packet.bth().psn;
        let Some(responder) = self.responder(flow, packet) else { return false };
        responder.refused.take_if(|refused| *refused == psn);
        responder.refused.is_some_and(|refused| psn.is_after(refused))
    }

    /// Notes that a request reaches its responder.
    pub fn on_request(&mut self, flow: &Flow, packet: &Packet<'_>) {
        let psn = packet.bth().psn;
        let Some(responder) = self.responder(flow, packet) else { return };
        if responder.next.is_some_and(|next| psn.is_before(next)) {
            return;
        }
        responder.next = Some(psn.next());
        if packet.row().position.ends() {
            responder.msn = (responder.msn + 1) & 0xff_ffff;
        }
    }

    /// Returns the responder's NAK to a request (IBA 9.7.5.2), and discards the requests that follow. Returns
    /// `None` if the requester is unknown: a request does not name it, so its connection must be known.
    pub fn refuse(&mut self, flow: &Flow, packet: &Packet<'_>, syndrome: Syndrome) -> Option<HeldPacket> {
        let transport = packet.row().transport;
        let opcode = Opcode::find(transport, Operation::Acknowledge, Position::Only, HeaderSet::NONE)?;
        let responder = self.responder(flow, packet)?;
        responder.refused = Some(packet.bth().psn);
        let aeth = Aeth { syndrome, msn: responder.msn };
        Some(reply(flow, packet, (opcode, responder.requester), Headers { aeth, ..Headers::default() }, &[]))
    }
}

/// Returns the recipient's rejection of a REQ or REP (IBA 12.6.7); `None` for any other packet.
pub(super) fn reject(flow: &Flow, packet: &Packet<'_>, reason: RejReason) -> Option<HeldPacket> {
    let request = cm_message(packet)?;
    let (local, remote, message) = match request.message {
        // The recipient of a REQ has no communication ID yet.
        Message::Req(req) => (CommId(0), req.local, Rejected::Req),
        Message::Rep(rep) => (rep.remote, rep.local, Rejected::Rep),
        _ => return None,
    };
    let rej = Rej { local, remote, message, reason, ..Rej::default() };
    let mad = Mad { transaction: request.transaction, modifier: 0, message: rej.into() };
    let headers = Headers { deth: Deth { qkey: QKey::GSI, src_qp: Qpn::GSI }, ..Headers::default() };
    Some(reply(flow, packet, (packet.bth().opcode, Qpn::GSI), headers, &mad.bytes()))
}

/// Builds the answer to `packet`, which has the addresses `flow`. `opcode`, `dest_qp` and `payload` are those
/// of the answer, `headers` its headers other than the BTH. The length of the payload is a multiple of four.
fn reply(
    flow: &Flow,
    packet: &Packet<'_>,
    (opcode, dest_qp): (Opcode, Qpn),
    headers: Headers,
    payload: &[u8],
) -> HeldPacket {
    let Bth { mig_req, pkey, psn, .. } = packet.bth();
    let headers = Headers { bth: Bth { opcode, mig_req, pkey, dest_qp, psn, ..Bth::default() }, ..headers };
    let flow = Flow { src: flow.dst, dst: flow.src, traffic_class: flow.traffic_class & !ECN, ..*flow };
    let mut data = vec![0; headers.len() + payload.len() + ICRC_LEN];
    let start = headers.emit(&mut data);
    data[start..start + payload.len()].copy_from_slice(payload);
    write_icrc(&flow, 0, IpIdent::DONT_FRAGMENT, &mut data);
    HeldPacket { flow, ident: IpIdent::SENT, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::NakCode;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const NAK: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);

    /// Returns a request, a SEND Only.
    fn request(dest_qp: u32, psn: u32) -> Vec<u8> {
        let bth =
            Bth { opcode: Opcode(0x04), dest_qp: Qpn::new(dest_qp), psn: Psn::new(psn), ..Bth::default() };
        let headers = Headers { bth, ..Headers::default() };
        let mut bytes = vec![0; headers.len() + ICRC_LEN];
        headers.emit(&mut bytes);
        bytes
    }

    /// Returns the queue pair to which the NAK to a request of the given direction goes.
    fn refused(responders: &mut Responders, direction: Direction, dest_qp: u32) -> Option<u32> {
        let (src, dst) = if direction == Direction::Tx { (LOCAL, PEER) } else { (PEER, LOCAL) };
        let request = request(dest_qp, 7);
        let packet = Packet::parse(&request).unwrap();
        let answer = responders.refuse(&Flow::new(src, dst, 50_000), &packet, NAK)?;
        Some(Packet::parse(&answer.data).unwrap().bth().dest_qp.get())
    }

    #[test]
    fn new_connection_replaces_earlier_ones_of_both_queue_pairs() {
        let mut sent = Responders::new(Direction::Tx);
        sent.on_connected(Qpn::new(1), PEER, Qpn::new(80));
        sent.on_connected(Qpn::new(2), PEER, Qpn::new(80));
        assert_eq!(refused(&mut sent, Direction::Tx, 80), Some(2), "queue pair 1 has lost its peer");
        sent.on_connected(Qpn::new(2), PEER, Qpn::new(81));
        assert_eq!(refused(&mut sent, Direction::Tx, 80), None);
        assert_eq!(refused(&mut sent, Direction::Tx, 81), Some(2));
        assert_eq!(sent.responders.len(), 1);

        let mut received = Responders::new(Direction::Rx);
        received.on_connected(Qpn::new(1), PEER, Qpn::new(80));
        received.on_connected(Qpn::new(2), PEER, Qpn::new(80));
        assert_eq!(refused(&mut received, Direction::Rx, 1), None);
        assert_eq!(refused(&mut received, Direction::Rx, 2), Some(80));
        assert_eq!(received.responders.len(), 1);
    }

    #[test]
    fn requests_of_unknown_connections_leave_no_trace() {
        for direction in [Direction::Tx, Direction::Rx] {
            let mut responders = Responders::new(direction);
            let flow = Flow::new(LOCAL, PEER, 50_000);
            for qpn in 0..100 {
                let request = request(qpn, 7);
                let packet = Packet::parse(&request).unwrap();
                assert!(!responders.discards(&flow, &packet));
                responders.on_request(&flow, &packet);
                assert!(responders.refuse(&flow, &packet, NAK).is_none());
            }
            assert!(responders.responders.is_empty());
        }
    }
}
