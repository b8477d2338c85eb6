//! A burst of packets to transmit, and the limits of its size.

use std::net::IpAddr;
use std::ops::Range;

use crate::memory::HostSlice;
use crate::wire::{Flow, Opcode, Qpn, Transport};

/// Maximum size of the bursts that a link accepts.
///
/// In addition, the destination QPNs of a burst's packets have the leading
/// [`DEST_GROUP_BITS`](Self::DEST_GROUP_BITS) bits in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstLimits {
    /// Maximum total UDP payload of a burst, in bytes.
    pub bytes: usize,
    /// Maximum number of packets in a burst.
    pub packets: usize,
}

impl BurstLimits {
    /// Limits for a link that sends a burst in one system call, by UDP_SEGMENT or USO.
    pub const SEGMENTED: BurstLimits = BurstLimits { bytes: 65_000, packets: 64 };
    /// Number of leading destination QPN bits that all packets of a burst have in common. If several
    /// processes share the destination address, the kernel there distributes bursts by these bits, looking
    /// only at the first packet.
    pub const DEST_GROUP_BITS: u32 = 6;
    /// Limits for a link that sends one packet at a time.
    pub const SINGLE: BurstLimits = BurstLimits { bytes: usize::MAX, packets: 1 };

    /// Returns the leading [`DEST_GROUP_BITS`](Self::DEST_GROUP_BITS) bits of a destination QPN.
    pub(crate) fn dest_group(dest: Qpn) -> u8 {
        (dest.get() >> (24 - BurstLimits::DEST_GROUP_BITS)) as u8
    }
}

/// Path of packets to a process at a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerPath {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Leading bits of the destination QPN ([`BurstLimits::DEST_GROUP_BITS`]).
    pub group: u8,
}

/// Bit of a group whose packets are of a service without acknowledgements.
const UNACKNOWLEDGED: u8 = 1 << BurstLimits::DEST_GROUP_BITS;

/// Bit of a group whose packets are for QP1.
const FOR_GSI: u8 = UNACKNOWLEDGED << 1;

/// Returns the group of a packet: the leading bits of its destination, whether its service has
/// acknowledgements, and whether it is for QP1. Packets in different groups cannot be in the same burst.
#[inline]
pub(super) fn group_of(opcode: Opcode, dest: Qpn) -> u8 {
    // The three highest bits are the transport: 1 is UC, 3 is UD.
    let unacknowledged = if matches!(opcode.0 >> 5, 0b001 | 0b011) { UNACKNOWLEDGED } else { 0 };
    let for_gsi = if dest == Qpn::GSI { FOR_GSI } else { 0 };
    BurstLimits::dest_group(dest) | unacknowledged | for_gsi
}

/// Reports whether the peer acknowledges packets with the given opcode: requests of RC and XRC.
#[inline]
pub(super) fn is_acknowledged(opcode: Opcode) -> bool {
    let row = opcode.row();
    matches!(row.transport, Transport::Rc | Transport::Xrc) && row.operation.is_request()
}

/// Returns the destination of the first packet; QP0 if there is none.
pub(super) fn dest_of_first(packets: &[u8]) -> Qpn {
    /// Offset of the BTH word whose low bytes are the destination QPN.
    const DEST_QP: usize = 4;
    let word = packets.get(DEST_QP..).and_then(|rest| rest.first_chunk());
    word.map_or(Qpn::default(), |word| Qpn::new(u32::from_be_bytes(*word)))
}

/// Entry of the gather list of a burst. The entries of all its packets follow one another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<B> {
    /// Bytes of the queue: headers, short payloads, padding and ICRCs.
    Inline(B),
    /// User memory with a payload, or a part of it, which is read when the packet leaves.
    Host {
        slice: HostSlice,
        /// Whether the packet is a request of a service with acknowledgements. Its payload can stay where it
        /// is until the peer has executed the packet.
        is_acknowledged: bool,
    },
}

/// Entry as a queue stores it, with a range of the queue's arena.
pub(super) type Stored = Piece<Range<u32>>;

impl Stored {
    /// Returns the entry with its bytes.
    #[inline]
    pub fn in_arena<'a>(&self, arena: &'a [u8]) -> Piece<&'a [u8]> {
        match *self {
            Piece::Inline(Range { start, end }) => Piece::Inline(&arena[start as usize..end as usize]),
            Piece::Host { slice, is_acknowledged } => Piece::Host { slice, is_acknowledged },
        }
    }
}

/// Burst of packets in one flow, all of the same length except the last, which may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct TxBurst<'a> {
    /// Addresses, source port and traffic class.
    pub flow: Flow,
    /// UDP payload length of every packet except the last, in bytes.
    pub segment: usize,
    /// Number of packets.
    pub packets: usize,
    /// Total UDP payload length of all packets, in bytes.
    pub bytes: usize,
    pub(super) group: u8,
    /// Whether the ICRCs of all packets are deferred.
    pub(super) defers_icrcs: bool,
    /// Epoch of the payloads in user memory.
    pub(crate) epoch: u32,
    pub(super) arena: &'a [u8],
    pub(super) pieces: &'a [Stored],
}

impl<'a> TxBurst<'a> {
    /// Returns the leading [`DEST_GROUP_BITS`](BurstLimits::DEST_GROUP_BITS) bits that the destination QPNs
    /// have in common.
    pub(crate) fn dest_group(&self) -> u8 {
        self.group & (UNACKNOWLEDGED - 1)
    }

    /// Returns the path of the packets.
    pub(crate) fn path(&self) -> PeerPath {
        PeerPath { src: self.flow.src, dst: self.flow.dst, group: self.dest_group() }
    }

    /// Reports whether the packets are of a service without acknowledgements (UC, UD).
    pub(crate) fn is_unacknowledged(&self) -> bool {
        self.group & UNACKNOWLEDGED != 0
    }

    /// Reports whether the burst is for QP1: packets to it are bursts of their own.
    pub(crate) fn is_for_gsi(&self) -> bool {
        self.group & FOR_GSI != 0
    }

    /// Returns the bytes of all packets, with packet `i` at `i * segment`; `None` if the ICRCs are deferred.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        self.stored().filter(|_| !self.defers_icrcs)
    }

    /// Returns the bytes of all packets like [`as_bytes`](Self::as_bytes), but [without
    /// ICRCs](crate::wire::IpIdent::Elided); `None` if the ICRCs are not deferred, or if a payload is
    /// still in user memory.
    pub(crate) fn as_bytes_without_icrcs(&self) -> Option<&'a [u8]> {
        self.stored().filter(|_| self.defers_icrcs)
    }

    /// Iterates over the gather list of the packets.
    #[inline]
    pub(crate) fn pieces(&self) -> impl ExactSizeIterator<Item = Piece<&'a [u8]>> + Clone + use<'a> {
        let arena = self.arena;
        self.pieces.iter().map(|piece| piece.in_arena(arena))
    }

    fn stored(&self) -> Option<&'a [u8]> {
        match self.pieces {
            [Piece::Inline(range)] => Some(&self.arena[range.start as usize..range.end as usize]),
            _ => None,
        }
    }

    /// Returns the bytes of all packets, with packet `i` at `i * segment`.
    ///
    /// # Panics
    /// If the ICRC is deferred, as in a queue for a link that [always
    /// copies](super::TxQueue::with_deferred_icrc).
    pub fn bytes(&self) -> &'a [u8] {
        self.as_bytes().expect("a link that does not copy gets packets that are whole")
    }
}
