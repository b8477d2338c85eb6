//! Single packets, taken out of their bursts.

use crate::wire::{Flow, IpIdent, icrc};

/// A single packet of a burst.
#[derive(Clone, Copy)]
pub(super) struct Single<'a> {
    pub flow: Flow,
    /// Unknown only for a packet that a UDP socket has received.
    pub ident: IpIdent,
    /// Bytes from BTH to ICRC.
    pub data: &'a [u8],
}

impl Single<'_> {
    /// Returns the packet's identification, if necessary the one for which its ICRC is correct. A packet whose ICRC is
    /// wrong with every identification gets one of them.
    pub fn exact_ident(&self) -> IpIdent {
        match self.ident {
            IpIdent::Unknown | IpIdent::Elided => {
                let found = icrc::identify(&self.flow, 0, self.data);
                let (id, flags) = found.unwrap_or((0, IpIdent::DONT_FRAGMENT));
                IpIdent::Exact { id, flags }
            }
            exact => exact,
        }
    }
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
