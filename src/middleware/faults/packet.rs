//! Single packets, taken out of their bursts.

use crate::burst::RxBurst;
use crate::wire::{Flow, IpIdent, icrc};

/// Returns the identification of a single packet, if necessary the one for which its ICRC is correct. It is
/// unknown only for a packet that a UDP socket has received. A packet whose ICRC is wrong with every
/// identification gets one of them.
pub(super) fn exact_ident(packet: &RxBurst<'_>) -> IpIdent {
    match packet.ident {
        IpIdent::Unknown | IpIdent::Elided => {
            let found = icrc::identify(&packet.flow, 0, packet.data);
            let (id, flags) = found.unwrap_or((0, IpIdent::DONT_FRAGMENT));
            IpIdent::Exact { id, flags }
        }
        exact => exact,
    }
}

/// Copy of a packet being held back.
pub(super) struct HeldPacket {
    pub flow: Flow,
    pub ident: IpIdent,
    pub data: Vec<u8>,
}

impl HeldPacket {
    pub fn new(packet: &RxBurst<'_>) -> HeldPacket {
        HeldPacket { flow: packet.flow, ident: packet.ident, data: packet.data.to_vec() }
    }

    pub fn single(&self) -> RxBurst<'_> {
        RxBurst::new(self.flow, self.ident, self.data.len(), &self.data)
    }
}
