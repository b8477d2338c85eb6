//! Packets that are delivered within a process without a copy of their long payloads.

use std::ops::Range;

use super::copier::{Copier, PacketBuffer};
use super::received::PayloadSource;
use super::{RxBurst, TxBurst};
use crate::memory::{CopySource, Faulted, HostSlice};
use crate::wire::IpIdent;
use crate::wire::icrc::Icrc;

/// A received burst, whose long payloads may still be in the sender's memory.
pub struct DirectBurst<'a> {
    /// The packets. The payload of a packet with slices in `payloads` has the right length, but its bytes are meaningless.
    pub burst: RxBurst<'a>,
    /// Payloads in the sender's memory; `None` if all payloads are in the packets.
    pub payloads: Option<&'a SenderPayloads>,
}

/// Payloads in the sender's memory, of consecutive packets.
#[derive(Debug, Default)]
pub struct SenderPayloads {
    slices: Vec<HostSlice>,
    /// For each packet, the end of its slices; it has none if it contains its payload.
    ends: Vec<usize>,
}

impl SenderPayloads {
    /// Returns the source of the payload of packet `index`.
    #[inline]
    pub fn source(&self, index: usize) -> PayloadSource<'_> {
        match &self.slices[self.start(index)..self.ends[index]] {
            [] => PayloadSource::Packet(CopySource::Unread),
            slices => PayloadSource::Sender(slices),
        }
    }

    /// Reports whether the payload of packet `index` is among them.
    #[inline]
    pub fn contain(&self, index: usize) -> bool {
        self.start(index) < self.ends[index]
    }

    /// Returns the slices of consecutive packets.
    pub fn slices_of(&self, packets: Range<usize>) -> &[HostSlice] {
        &self.slices[self.start(packets.start)..self.start(packets.end)]
    }

    /// Returns the index of a packet's first slice.
    #[inline]
    fn start(&self, packet: usize) -> usize {
        packet.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

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
    pub fn deliver(&mut self, burst: &TxBurst<'_>, per_step: usize, sink: &mut dyn FnMut(DirectBurst<'_>)) {
        let mut copier = burst.copier().eliding_icrcs();
        while self.take(&mut copier, per_step) {
            let data = &self.bytes[..self.used];
            let packets = RxBurst { flow: burst.flow, ident: IpIdent::Elided, segment: burst.segment, data };
            sink(DirectBurst { burst: packets, payloads: Some(&self.payloads) });
        }
    }

    /// Replaces the contents with the next packets, at most `count`. Returns false if there are none.
    fn take(&mut self, copier: &mut Copier<'_>, count: usize) -> bool {
        self.used = 0;
        self.payloads.slices.clear();
        self.payloads.ends.clear();
        for _ in 0..count {
            if !copier.copy_packet(self) {
                break;
            }
            self.payloads.ends.push(self.payloads.slices.len());
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
        self.payloads.slices.push(slice);
        Ok(())
    }
}
