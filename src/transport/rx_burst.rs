//! Received bursts of packets.

use crate::wire::{BTH_LEN, Flow, ICRC_LEN, IpIdent, icrc};

/// Received burst: packets of equal length, except that the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct RxBurst<'a> {
    /// Addresses, source port and traffic class, as on the wire.
    pub flow: Flow,
    /// IPv4 identification and flags, as far as they are known.
    pub ident: IpIdent,
    /// UDP payload length of every packet except the last, in bytes.
    pub segment: usize,
    /// UDP payloads, concatenated.
    pub data: &'a [u8],
}

impl<'a> RxBurst<'a> {
    /// Returns the burst with ICRCs, copied to `scratch` if it has [none](IpIdent::Elided).
    pub fn with_icrcs<'s>(self, scratch: &'s mut Vec<u8>) -> RxBurst<'s>
    where
        'a: 's,
    {
        if self.ident != IpIdent::Elided {
            return self;
        }
        scratch.clear();
        scratch.extend_from_slice(self.data);
        for (index, packet) in scratch.chunks_mut(self.segment.max(1)).enumerate() {
            // Anything shorter has no ICRC.
            if packet.len() >= BTH_LEN + ICRC_LEN {
                let icrc = icrc::compute(&self.flow, index as u16, IpIdent::DONT_FRAGMENT, packet);
                let start = packet.len() - ICRC_LEN;
                packet[start..].copy_from_slice(&icrc.to_le_bytes());
            }
        }
        RxBurst { ident: IpIdent::SENT, data: scratch, ..self }
    }

    /// Iterates over the packets, with the index of each in the burst.
    pub fn packets(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        self.data.chunks(self.segment.max(1)).enumerate().map(|(i, p)| (i as u16, p))
    }
}
