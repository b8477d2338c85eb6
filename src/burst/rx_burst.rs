//! Received bursts of packets.

use super::SenderPayloads;
use crate::wire::{BTH_LEN, Bth, Flow, ICRC_LEN, IpIdent, icrc};

/// Received burst: packets of equal length, except that the last may be shorter. Links create one with
/// [`new`](Self::new).
#[derive(Clone, Copy, Debug)]
pub struct RxBurst<'a> {
    /// Addresses, source port and traffic class, as on the wire.
    pub flow: Flow,
    /// IPv4 identification and flags, as far as they are known.
    pub ident: IpIdent,
    /// UDP payload length of every packet except the last, in bytes.
    pub segment: usize,
    /// UDP payloads, concatenated; without the bytes of [payloads that the packets do not
    /// contain](Self::leaves_payloads_out).
    pub data: &'a [u8],
    /// Payloads that are still in the sender's memory or in a ring, by index of the packet; `None` if there
    /// are none. The payload of such a packet has the right length in `data`, but its bytes are
    /// meaningless.
    pub(crate) payloads: Option<&'a SenderPayloads>,
}

impl<'a> RxBurst<'a> {
    /// Returns a burst of packets of `segment` bytes each, except that the last may be shorter. `data`
    /// contains all of them, one after the other.
    #[inline]
    pub fn new(flow: Flow, ident: IpIdent, segment: usize, data: &'a [u8]) -> RxBurst<'a> {
        RxBurst { flow, ident, segment, data, payloads: None }
    }

    /// Reports whether payloads are still in the sender's memory or in a ring. Their bytes in
    /// [`data`](#structfield.data) are meaningless; [`with_icrcs`](Self::with_icrcs) returns a burst that
    /// contains them.
    pub fn leaves_payloads_out(&self) -> bool {
        self.payloads.is_some()
    }

    /// Returns the burst with ICRCs, copied to `scratch` if it has [none](IpIdent::Elided). `None` if
    /// payloads of the sender can no longer be read: the packets are lost.
    pub fn with_icrcs<'s>(self, scratch: &'s mut Vec<u8>) -> Option<RxBurst<'s>>
    where
        'a: 's,
    {
        if self.ident != IpIdent::Elided {
            return Some(self);
        }
        scratch.clear();
        self.append_to(0, scratch)?;
        for (index, packet) in scratch.chunks_mut(self.segment.max(1)).enumerate() {
            // Anything shorter has no ICRC.
            if packet.len() >= BTH_LEN + ICRC_LEN {
                let icrc = icrc::compute(&self.flow, index as u16, IpIdent::DONT_FRAGMENT, packet);
                let start = packet.len() - ICRC_LEN;
                packet[start..].copy_from_slice(&icrc.to_le_bytes());
            }
        }
        Some(RxBurst { ident: IpIdent::SENT, data: scratch, payloads: None, ..self })
    }

    /// Appends the packets, with all payloads, to `out`; `first` is the index of the first one. `None` if
    /// payloads of the sender can no longer be read.
    pub(crate) fn append_to(&self, first: usize, out: &mut Vec<u8>) -> Option<()> {
        let start = out.len();
        out.extend_from_slice(self.data);
        let Some(payloads) = self.payloads else { return Some(()) };
        for (index, packet) in out[start..].chunks_mut(self.segment.max(1)).enumerate() {
            let len = payloads.len_of(first + index);
            if len > 0 {
                let pad = usize::from(Bth::read(packet.first_chunk::<BTH_LEN>()?).pad);
                let end = packet.len().checked_sub(ICRC_LEN + pad)?;
                payloads.load(first + index, &mut packet[end.checked_sub(len)?..end]).ok()?;
            }
        }
        Some(())
    }

    /// Iterates over the packets, with the index of each in the burst.
    pub fn packets(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        self.data.chunks(self.segment.max(1)).enumerate().map(|(i, p)| (i as u16, p))
    }
}
