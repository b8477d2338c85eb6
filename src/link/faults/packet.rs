//! Single packets, taken out of their bursts.

use crate::wire::mad::Mad;
use crate::wire::{Flow, IpIdent, Packet, Qpn, Transport};

/// A single packet of a burst.
#[derive(Clone, Copy)]
pub(super) struct Single<'a> {
    pub flow: Flow,
    /// Always exact, never unknown.
    pub ident: IpIdent,
    /// Bytes from BTH to ICRC.
    pub data: &'a [u8],
}

/// Copy of a packet being held back.
pub(super) struct HeldPacket {
    pub flow: Flow,
    pub ident: IpIdent,
    pub data: Vec<u8>,
}

impl HeldPacket {
    pub fn new(s: &Single<'_>) -> HeldPacket {
        HeldPacket { flow: s.flow, ident: s.ident, data: s.data.to_vec() }
    }

    pub fn single(&self) -> Single<'_> {
        Single { flow: self.flow, ident: self.ident, data: &self.data }
    }
}

/// Reports whether a packet is a request that its destination acknowledges.
pub(super) fn is_acknowledged_request(packet: &Packet<'_>) -> bool {
    let row = packet.row();
    row.operation.is_request() && matches!(row.transport, Transport::Rc | Transport::Xrc)
}

/// Returns the connection manager's message in a packet, if there is one.
pub(super) fn cm_message(packet: &Packet<'_>) -> Option<Mad> {
    let to_gsi = packet.bth().dest_qp == Qpn::GSI && packet.row().transport == Transport::Ud;
    to_gsi.then(|| Mad::parse(packet.payload()).ok()).flatten()
}
