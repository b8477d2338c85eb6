//! Packets that are delivered within a process without a copy of their long payloads.

use super::copier::{Copier, PacketBuffer};
use super::received::SenderPayloads;
use super::{RxBurst, TxBurst};
use crate::memory::{Faulted, HostSlice};
use crate::wire::IpIdent;
use crate::wire::icrc::Icrc;

/// Packets of a burst on their way to the receiver, a few at a time.
#[derive(Debug, Default)]
pub struct DirectPackets {
    /// The packets, without the payloads that are in `payloads`. Only the first `used` bytes belong to packets.
    bytes: Vec<u8>,
    used: usize,
    payloads: SenderPayloads,
}

impl DirectPackets {
    /// Passes the packets of `burst` to `sink`, `per_step` packets at a time.
    pub fn deliver(&mut self, burst: &TxBurst<'_>, per_step: usize, sink: &mut dyn FnMut(RxBurst<'_>)) {
        let mut copier = burst.copier().eliding_icrcs();
        while self.take(&mut copier, per_step) {
            let data = &self.bytes[..self.used];
            let (ident, payloads) = (IpIdent::Elided, Some(&self.payloads));
            sink(RxBurst { flow: burst.flow, ident, segment: burst.segment, data, payloads });
        }
    }

    /// Replaces the contents with the next packets, at most `count`. Returns false if there are none.
    fn take(&mut self, copier: &mut Copier<'_>, count: usize) -> bool {
        self.used = 0;
        self.payloads.clear();
        for _ in 0..count {
            if !copier.copy_packet(self) {
                break;
            }
            self.payloads.end_packet();
        }
        self.used > 0
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
    }

    /// Keeps the slice in place of its bytes.
    #[inline]
    fn put_host(&mut self, slice: HostSlice, _: Option<&mut Icrc>) -> Result<(), Faulted> {
        self.room(slice.len());
        self.payloads.add(slice);
        Ok(())
    }
}
