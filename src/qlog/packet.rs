//! Events that a packet tells by itself, whether a NIC sends or receives it, or a capture contains it.

use std::borrow::Cow;

use super::event::{Cm, EventData, Memory, Notification, PacketData, PacketDropped, Raw, Response, Side};
use crate::wire::mad::{Mad, Message};
use crate::wire::{BTH_LEN, Bth, Ecn, Flow, Operation, Packet, Qpn, Syndrome};

/// Calls `f` with the events of a packet that was sent or received.
pub fn observed(side: Side, flow: &Flow, packet: &Packet<'_>, mut f: impl FnMut(EventData)) {
    let (bth, row) = (packet.bth(), packet.row());
    let peer = if side == Side::Send { flow.dst } else { flow.src };
    let is_sent = side == Side::Send;
    let data = PacketData {
        opcode: row.name.into(),
        psn: bth.psn.get(),
        dest_qp: bth.dest_qp.get(),
        peer,
        raw: Raw { length: packet.wire_len() as u64, payload_length: packet.payload().len() as u64 },
        ack_req: bth.ack_req,
        memory: memory_of(packet),
        aeth: packet.aeth().map(|aeth| Response { syndrome: syndrome_name(aeth.syndrome), msn: aeth.msn }),
    };
    f(if is_sent { EventData::PacketSent(data) } else { EventData::PacketReceived(data) });
    let notification = |psn| Notification { peer, dest_qp: bth.dest_qp.get(), psn };
    if row.operation == Operation::Cnp {
        let cnp = notification(None);
        f(if is_sent { EventData::CnpSent(cnp) } else { EventData::CnpReceived(cnp) });
    } else if !is_sent && flow.ecn() == Ecn::Ce {
        f(EventData::CeReceived(notification(Some(bth.psn.get()))));
    }
    if bth.dest_qp == Qpn::GSI
        && let Ok(mad) = Mad::parse(packet.payload())
    {
        let cm = cm_of(&mad.message, peer);
        f(if is_sent { EventData::CmSent(cm) } else { EventData::CmReceived(cm) });
    }
}

/// Returns the event of a dropped packet; `packet` begins with the BTH, if it is long enough.
pub fn dropped(
    side: Side,
    flow: &Flow,
    packet: &[u8],
    trigger: &'static str,
    details: Option<String>,
) -> EventData {
    let bth = (packet.len() >= BTH_LEN).then(|| Bth::read(packet));
    EventData::PacketDropped(PacketDropped {
        trigger: trigger.into(),
        details,
        direction: side,
        peer: if side == Side::Send { flow.dst } else { flow.src },
        opcode: bth.map(|bth| bth.opcode.row().name.into()),
        psn: bth.map(|bth| bth.psn.get()),
        dest_qp: bth.map(|bth| bth.dest_qp.get()),
    })
}

fn syndrome_name(syndrome: Syndrome) -> Cow<'static, str> {
    Cow::Borrowed(match syndrome {
        Syndrome::Ack { .. } => "ack",
        Syndrome::RnrNak(_) => "rnr_nak",
        Syndrome::Nak(_) => "nak",
        Syndrome::Reserved(_) => "reserved",
    })
}

/// Returns the memory that a request refers to.
fn memory_of(packet: &Packet<'_>) -> Option<Memory> {
    let target = packet.reth().map(|r| (r.va, r.rkey, r.dma_len));
    let (va, rkey, length) = target.or_else(|| packet.atomic().map(|a| (a.va, a.rkey, 8)))?;
    Some(Memory::new(None, packet.row().operation, va, rkey.0, length))
}

impl Memory {
    /// Creates a description of memory.
    pub fn new(psn: Option<u32>, operation: Operation, va: u64, rkey: u32, length: u32) -> Memory {
        let operation = match operation {
            Operation::ReadRequest => "read",
            Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite => "atomic",
            Operation::Flush => "flush",
            _ => "write",
        };
        Memory { psn, operation: operation.into(), va: format!("{va:#x}"), rkey, length }
    }
}

fn cm_of(message: &Message, peer: std::net::IpAddr) -> Cm {
    let mut cm = Cm {
        message: message.kind().name().into(),
        peer,
        local_id: None,
        remote_id: None,
        qp: None,
        psn: None,
        reason: None,
    };
    let ids = |cm: &mut Cm, local, remote| (cm.local_id, cm.remote_id) = (Some(local), Some(remote));
    match message {
        Message::Req(req) => {
            (cm.local_id, cm.qp, cm.psn) = (Some(req.local.0), Some(req.qpn.get()), Some(req.psn.get()));
        }
        Message::Rep(rep) => {
            ids(&mut cm, rep.local.0, rep.remote.0);
            (cm.qp, cm.psn) = (Some(rep.qpn.get()), Some(rep.psn.get()));
        }
        Message::Mra(mra) => ids(&mut cm, mra.local.0, mra.remote.0),
        Message::Rej(rej) => {
            ids(&mut cm, rej.local.0, rej.remote.0);
            cm.reason = Some(rej.reason.to_string());
        }
        Message::Rtu(rtu) => ids(&mut cm, rtu.local.0, rtu.remote.0),
        Message::Dreq(dreq) => ids(&mut cm, dreq.local.0, dreq.remote.0),
        Message::Drep(drep) => ids(&mut cm, drep.local.0, drep.remote.0),
        Message::SidrReq(req) => cm.local_id = Some(req.request.0),
        Message::SidrRep(rep) => {
            (cm.remote_id, cm.qp) = (Some(rep.request.0), Some(rep.qpn.get()));
            cm.reason = Some(rep.status.to_string());
        }
        _ => {}
    }
    cm
}
