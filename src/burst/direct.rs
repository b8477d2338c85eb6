//! Packets that are delivered within a process without a copy of their long payloads.

use super::copier::PacketBuffer;
use super::received::SenderPayloads;
use super::{RxBurst, TxBurst};
use crate::memory::{Faulted, HostSlice};
use crate::wire::IpIdent;
use crate::wire::icrc::Icrc;

/// Packets of a burst on their way to the receiver.
#[derive(Debug, Default)]
pub struct DirectPackets {
    /// The packets, without the payloads that are in `payloads`. Only the first `used` bytes belong to packets.
    bytes: Vec<u8>,
    used: usize,
    /// Length of every packet except the last, and the end of the current packet.
    segment: usize,
    end: usize,
    payloads: SenderPayloads,
}

impl DirectPackets {
    /// Passes the packets of `burst` to `sink`, without the ICRCs that are deferred.
    pub fn deliver(&mut self, burst: &TxBurst<'_>, sink: &mut dyn FnMut(RxBurst<'_>)) {
        let TxBurst { flow, segment, .. } = *burst;
        self.payloads.clear();
        (self.used, self.segment, self.end) = (0, segment, segment);
        // Cannot fail: user memory is not read.
        let _ = burst.copy_pieces(self);
        if !self.used.is_multiple_of(segment) {
            // The last packet is shorter.
            self.payloads.end_packet();
        }
        let (data, ident) = (&self.bytes[..self.used], IpIdent::Elided);
        sink(RxBurst { flow, ident, segment, data, payloads: Some(&self.payloads) });
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
}

impl PacketBuffer for DirectPackets {
    #[inline]
    fn len(&self) -> usize {
        self.used
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        // The payload of a packet precedes its ICRC.
        while self.used >= self.end {
            self.payloads.end_packet();
            self.end += self.segment;
        }
    }

    /// Keeps the slice in place of its bytes.
    #[inline]
    fn put_host(&mut self, slice: HostSlice, _: Option<&mut Icrc>) -> Result<(), Faulted> {
        self.room(slice.len());
        self.payloads.add(slice);
        Ok(())
    }
}
