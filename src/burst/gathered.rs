//! Received packets whose long payloads stay where they are until the NIC copies them to their destination.

use super::received::SenderPayloads;
use super::{Piece, RxBurst, TxBurst};
use crate::memory::{Faulted, HostSlice};
use crate::wire::{BTH_LEN, Bth, Flow, ICRC_LEN, IpIdent};

/// Packets of a burst, without ICRCs, on their way to the receiver. The buffers are reused.
#[derive(Debug, Default)]
pub struct GatheredPackets {
    /// The packets, with unspecified bytes in place of the payloads in `payloads`. Only the first `used`
    /// bytes belong to packets.
    bytes: Vec<u8>,
    used: usize,
    /// Length of every packet except the last, and the end of the current packet.
    segment: usize,
    end: usize,
    pub(crate) payloads: SenderPayloads,
}

impl GatheredPackets {
    /// Passes the packets of `burst`, whose ICRCs are deferred, to `sink`. Payloads in user memory stay
    /// there.
    pub fn deliver(&mut self, burst: &TxBurst<'_>, sink: &mut dyn FnMut(RxBurst<'_>)) {
        self.begin(burst.segment);
        for piece in burst.pieces() {
            match piece {
                Piece::Inline(bytes) => {
                    self.room(bytes.len()).copy_from_slice(bytes);
                    self.end_packets();
                }
                Piece::Host { slice, .. } => self.leave(slice),
            }
        }
        sink(self.burst(burst.flow));
    }

    /// Begins a burst of packets of `segment` bytes each, except that the last may be shorter.
    pub(crate) fn begin(&mut self, segment: usize) {
        self.payloads.clear();
        (self.used, self.segment, self.end) = (0, segment, segment);
    }

    /// Returns the number of bytes so far, including the payloads.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Appends bytes: headers and short payloads, padding and ICRCs.
    pub(crate) fn load(&mut self, bytes: HostSlice) -> Result<(), Faulted> {
        bytes.load(self.room(bytes.len()))?;
        self.end_packets();
        Ok(())
    }

    /// Appends a payload, or a part of one, that stays where it is until the burst has been processed.
    #[inline]
    pub(crate) fn leave(&mut self, payload: HostSlice) {
        self.room(payload.len());
        self.payloads.add(payload);
    }

    /// Reports whether a part of a payload that ends at `end` is the last one of the packet at `packet`,
    /// which is complete.
    pub(crate) fn ends_payload(&self, packet: usize, end: usize) -> bool {
        let bytes = &self.bytes[packet..self.used.min(packet + self.segment)];
        let pad = bytes.first_chunk::<BTH_LEN>().map(|bth| usize::from(Bth::read(bth).pad));
        pad.is_some_and(|pad| end + pad + ICRC_LEN == packet + bytes.len())
    }

    /// Returns the whole burst.
    pub(crate) fn burst(&mut self, flow: Flow) -> RxBurst<'_> {
        if !self.used.is_multiple_of(self.segment) {
            // The last packet is shorter.
            self.payloads.end_packet();
        }
        let (segment, data) = (self.segment, &self.bytes[..self.used]);
        RxBurst { flow, ident: IpIdent::Elided, segment, data, payloads: Some(&self.payloads) }
    }

    /// Returns packets that contain their payloads.
    pub(crate) fn load_whole(&mut self, packets: HostSlice) -> Result<&[u8], Faulted> {
        self.used = 0;
        let bytes = self.room(packets.len());
        packets.load(bytes)?;
        Ok(bytes)
    }

    /// Returns the next `len` bytes.
    #[inline]
    fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.used;
        self.used += len;
        if self.bytes.len() < self.used {
            self.bytes.resize(self.used, 0);
        }
        &mut self.bytes[start..self.used]
    }

    /// Ends the packets that are complete: the payload of a packet precedes its ICRC.
    #[inline]
    fn end_packets(&mut self) {
        while self.used >= self.end {
            self.payloads.end_packet();
            self.end += self.segment;
        }
    }
}
