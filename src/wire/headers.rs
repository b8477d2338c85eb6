//! InfiniBand transport headers as plain values, and their encoding.

use super::numbers::codes;
use super::opcode::HeaderSet;
use super::{Opcode, PKey, Psn, QKey, Qpn, RKey, RnrTimer};

/// Length of the base transport header in bytes.
pub const BTH_LEN: usize = 12;
/// Maximum total length of BTH and extension headers in bytes (RD atomics: BTH, RDETH, DETH, AtomicETH).
pub const MAX_HEADERS_LEN: usize = 52;
/// Length in bytes of a CNP's reserved payload.
pub const CNP_PAYLOAD_LEN: usize = 16;

/// Base transport header (IBA 9.2, with the congestion bits of RoCEv2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bth {
    /// Opcode, which determines the extension headers.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration request: set while the connection is in the path migration state MIGRATED.
    pub mig_req: bool,
    /// Number of padding bytes after the payload, 0..=3.
    pub pad: u8,
    /// Transport header version; only 0 is defined.
    pub version: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Six reserved bits next to FECN and BECN, preserved so that a decoded packet is encoded to the same
    /// bytes again.
    pub resv6: u8,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// AckReq: whether the requester asks for an acknowledgement.
    pub ack_req: bool,
    /// Seven reserved bits next to AckReq, preserved for the same reason as `resv6`.
    pub resv7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Decodes a BTH from the first 12 bytes of `b`.
    ///
    /// # Panics
    /// If `b` is shorter; [`super::Packet::parse`] checks this first.
    #[inline]
    pub fn read(b: &[u8]) -> Bth {
        let words: &[u8; BTH_LEN] = b.first_chunk().expect("a BTH is 12 bytes");
        let (first, to, sequence) = (be32(words), be32(&words[4..]), be32(&words[8..]));
        let bit = |word: u32, n: u32| word >> n & 1 != 0;
        Bth {
            opcode: Opcode((first >> 24) as u8),
            solicited: bit(first, 23),
            mig_req: bit(first, 22),
            pad: (first >> 20 & 3) as u8,
            version: (first >> 16 & 0xf) as u8,
            pkey: PKey(first as u16),
            fecn: bit(to, 31),
            becn: bit(to, 30),
            resv6: (to >> 24 & 0x3f) as u8,
            dest_qp: Qpn::new(to),
            ack_req: bit(sequence, 31),
            resv7: (sequence >> 24 & 0x7f) as u8,
            psn: Psn::new(sequence),
        }
    }

    /// Encodes the header with whole-word stores. The ICRC computation that follows loads whole words, and
    /// each load can then be forwarded from a single store.
    #[inline]
    fn write(&self, b: &mut [u8; BTH_LEN]) {
        let flags = u32::from(self.solicited) << 23 | u32::from(self.mig_req) << 22;
        let pad = u32::from(self.pad & 3) << 20 | u32::from(self.version & 0xf) << 16;
        let first = u32::from(self.opcode.0) << 24 | flags | pad | u32::from(self.pkey.0);
        let marks = u32::from(self.fecn) << 31 | u32::from(self.becn) << 30;
        let to = marks | u32::from(self.resv6 & 0x3f) << 24 | self.dest_qp.get();
        let ack_req = u32::from(self.ack_req) << 31 | u32::from(self.resv7 & 0x7f) << 24;
        b[..8].copy_from_slice(&pair(first, to));
        b[8..BTH_LEN].copy_from_slice(&(ack_req | self.psn.get()).to_be_bytes());
    }
}

/// RDMA extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key of the region or window at the responder.
    pub rkey: RKey,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8.
    pub va: u64,
    /// Key of the region or window at the responder.
    pub rkey: RKey,
    /// Value to store (compare-and-swap) or to add (fetch-and-add).
    pub swap_or_add: u64,
    /// Value to compare with (compare-and-swap).
    pub compare: u64,
}

codes! {
    /// Code of a negative acknowledgement (IBA 9.7.5.2).
    NakCode: u8 {
        /// A PSN is missing.
        PsnSequenceError = 0, "PSN Sequence Error";
        /// The request is invalid: its sequence, length or opcode is wrong, or it exceeds the responder's
        /// resources.
        InvalidRequest = 1, "Invalid Request";
        /// The remote key is invalid, or its region or permissions do not allow the access.
        RemoteAccessError = 2, "Remote Access Error";
        /// The responder failed to complete the request.
        RemoteOperationalError = 3, "Remote Operational Error";
        /// Invalid RD request (RD only).
        InvalidRdRequest = 4, "Invalid RD Request";
        _ = Reserved, "with reserved code {}";
    }
}

/// Syndrome of an AETH (IBA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Positive acknowledgement with the encoded credit count; 31 means that end-to-end credits are not used.
    Ack {
        /// Encoded end-to-end credits, 0..=31.
        credits: u8,
    },
    /// Receiver not ready, with the minimum time that the requester must wait.
    RnrNak(RnrTimer),
    /// Reserved value.
    Reserved(u8),
    /// Negative acknowledgement with its code.
    Nak(NakCode),
}

impl Syndrome {
    /// Positive acknowledgement without end-to-end credits.
    pub const ACK: Syndrome = Syndrome::Ack { credits: 31 };

    /// Reports whether this is a NAK or an RNR NAK.
    pub const fn is_nak(self) -> bool {
        matches!(self, Syndrome::RnrNak(_) | Syndrome::Nak(_))
    }

    /// Encodes the syndrome as a byte. Bit 7 is reserved and zero.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak(timer) => 0x20 | timer.code(),
            Syndrome::Reserved(low) => 0x40 | low & 0x1f,
            Syndrome::Nak(code) => 0x60 | code.code() & 0x1f,
        }
    }

    /// Decodes the syndrome from a byte, ignoring bit 7.
    pub const fn from_byte(byte: u8) -> Self {
        match byte >> 5 & 3 {
            0 => Syndrome::Ack { credits: byte & 0x1f },
            1 => Syndrome::RnrNak(RnrTimer::new(byte)),
            2 => Syndrome::Reserved(byte & 0x1f),
            _ => Syndrome::Nak(NakCode::from_code(byte & 0x1f)),
        }
    }
}

impl Default for Syndrome {
    fn default() -> Self {
        Syndrome::ACK
    }
}

/// ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aeth {
    /// Kind of the acknowledgement.
    pub syndrome: Syndrome,
    /// Message sequence number: the number of requests that the responder has completed, modulo 2^24.
    pub msn: u32,
}

/// Atomic ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicAckEth {
    /// Value before the operation.
    pub original: u64,
}

/// Datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: QKey,
    /// Sender's queue pair.
    pub src_qp: Qpn,
}

/// FLUSH extended transport header: placement types (4 bits: bit 0 for global visibility, bit 1 for
/// persistence) and selectivity level (2 bits: 0 for a range, 1 for the whole region).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feth(pub u32);

impl Feth {
    /// Placement type that makes the data globally visible.
    pub const GLOBAL: u32 = 1 << 0;
    /// Placement type that makes the data persistent.
    pub const PERSISTENT: u32 = 1 << 1;
    const PLACEMENT: u32 = 0xf;
    const WHOLE_REGION: u32 = 1 << 4;
    const SELECTIVITY: u32 = 0x30;

    /// Creates the header for the given placement types, applied to the RETH's range or to the whole region.
    pub const fn new(placement: u32, whole_region: bool) -> Feth {
        Feth(placement & Self::PLACEMENT | if whole_region { Self::WHOLE_REGION } else { 0 })
    }

    /// Returns the placement types.
    pub const fn placement(self) -> u32 {
        self.0 & Self::PLACEMENT
    }

    /// Reports whether the FLUSH applies to the whole region. Returns `None` for a reserved selectivity
    /// level.
    pub const fn whole_region(self) -> Option<bool> {
        match self.0 & Self::SELECTIVITY {
            0 => Some(false),
            Self::WHOLE_REGION => Some(true),
            _ => None,
        }
    }
}

/// All headers of one packet as owned values. Only the headers in the opcode's table row are significant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Base transport header, present in every packet.
    pub bth: Bth,
    /// RDETH (RD): end-to-end context, 24 bits.
    pub rdeth: u32,
    /// DETH (UD and RD).
    pub deth: Deth,
    /// XRCETH (XRC): destination shared receive queue, 24 bits.
    pub xrceth: u32,
    /// FETH (FLUSH).
    pub feth: Feth,
    /// RETH (WRITE, READ, FLUSH, ATOMIC WRITE).
    pub reth: Reth,
    /// AtomicETH (compare-and-swap, fetch-and-add).
    pub atomic: AtomicEth,
    /// AETH (acknowledgements and responses).
    pub aeth: Aeth,
    /// AtomicAckETH (atomic responses).
    pub atomic_ack: AtomicAckEth,
    /// Immediate data: the four bytes on the wire, read as a big-endian number.
    pub imm: u32,
    /// IETH: key that the SEND with invalidate is to invalidate.
    pub ieth: RKey,
}

impl Headers {
    /// Returns the number of bytes that [`emit`](Self::emit) writes.
    pub const fn len(&self) -> usize {
        BTH_LEN + self.bth.opcode.row().headers.wire_len()
    }

    /// Always returns false: every packet has a BTH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Encodes the BTH and the opcode's extension headers at the start of `buf`, and returns their length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`len`](Self::len); [`MAX_HEADERS_LEN`] bytes always suffice.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let (bth, behind) = buf.split_first_chunk_mut().expect("the buffer holds a BTH");
        self.bth.write(bth);
        let set = self.bth.opcode.row().headers;
        match (set, behind.first_chunk_mut()) {
            // Most packets have no extension header, or only a RETH.
            (HeaderSet::NONE, _) => {}
            (HeaderSet::RETH, Some(room)) => *room = reth_bytes(&self.reth),
            _ => self.emit_all(set, behind),
        }
        BTH_LEN + set.wire_len()
    }

    fn emit_all(&self, set: HeaderSet, buf: &mut [u8]) {
        let mut at = 0;
        let mut put = |header: HeaderSet, bytes: &[u8]| {
            if set.contains(header) {
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        put(HeaderSet::RDETH, &(self.rdeth & 0xff_ffff).to_be_bytes());
        put(HeaderSet::DETH, &pair(self.deth.qkey.0, self.deth.src_qp.get()));
        put(HeaderSet::XRCETH, &(self.xrceth & 0xff_ffff).to_be_bytes());
        put(HeaderSet::FETH, &self.feth.0.to_be_bytes());
        put(HeaderSet::RETH, &reth_bytes(&self.reth));
        put(HeaderSet::ATOMIC, &atomic_bytes(&self.atomic));
        let aeth = u32::from(self.aeth.syndrome.to_byte()) << 24 | self.aeth.msn & 0xff_ffff;
        put(HeaderSet::AETH, &aeth.to_be_bytes());
        put(HeaderSet::ATOMIC_ACK, &self.atomic_ack.original.to_be_bytes());
        put(HeaderSet::IMMDT, &self.imm.to_be_bytes());
        put(HeaderSet::IETH, &self.ieth.0.to_be_bytes());
    }
}

#[inline]
fn pair(high: u32, low: u32) -> [u8; 8] {
    ((high as u64) << 32 | low as u64).to_be_bytes()
}

#[inline]
fn reth_bytes(r: &Reth) -> [u8; 16] {
    let mut b = [0; 16];
    let (va, rest) = b.split_at_mut(8);
    va.copy_from_slice(&r.va.to_be_bytes());
    rest.copy_from_slice(&pair(r.rkey.0, r.dma_len));
    b
}

fn atomic_bytes(a: &AtomicEth) -> [u8; 28] {
    let mut b = [0; 28];
    b[..8].copy_from_slice(&a.va.to_be_bytes());
    b[8..12].copy_from_slice(&a.rkey.0.to_be_bytes());
    b[12..20].copy_from_slice(&a.swap_or_add.to_be_bytes());
    b[20..].copy_from_slice(&a.compare.to_be_bytes());
    b
}

/// Decodes the big-endian 32-bit word at the start of `b`.
#[inline]
pub(super) fn be32(b: &[u8]) -> u32 {
    u32::from_be_bytes([b[0], b[1], b[2], b[3]])
}
