//! Zero-copy view of one RoCEv2 packet: the UDP payload from the BTH to the ICRC.

use super::headers::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, Deth, Feth, Headers, MAX_HEADERS_LEN, Reth, Syndrome, be32,
};
use super::opcode::{HeaderSet, OpcodeRow};
use super::{Opcode, QKey, Qpn, RKey};

#[inline]
fn be64(b: &[u8]) -> u64 {
    u64::from(be32(b)) << 32 | u64::from(be32(&b[4..]))
}

/// Length in bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Reason why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The packet is too short for a BTH and an ICRC, or for its opcode's headers and its padding.
    #[error("packet of {len} bytes is too short: {opcode} needs at least {need}")]
    Truncated {
        /// Number of bytes present.
        len: usize,
        /// Minimum number of bytes for the opcode's headers, the padding and the ICRC.
        need: usize,
        /// Opcode, taken from the first byte; `SEND First` if the packet is empty.
        opcode: Opcode,
    },
    /// The length is not a multiple of four, which means that the pad count is wrong.
    #[error("packet length {0} is not a multiple of 4, so the pad count is wrong")]
    Unaligned(usize),
    /// The opcode is not assigned.
    #[error("opcode {0:#04x} is reserved")]
    ReservedOpcode(u8),
    /// The transport header version is not 0.
    #[error("transport header version is {0}, must be 0")]
    Version(u8),
}

/// Returns the number of pad bytes that extend a payload of `payload` bytes to a multiple of four.
pub const fn pad_count(payload: usize) -> usize {
    payload.wrapping_neg() & 3
}

/// Packet with a valid opcode, and long enough for the headers and the padding that its BTH specifies.
///
/// The headers are copied: in shared memory, another process could change them after a check. They are copied
/// as bytes and decoded at each use, because a load of several decoded fields has to wait for the stores of
/// all of them.
///
/// BTH and extension headers are separate arrays, so that the compiler loads either from the stack as it has
/// stored it. With one array, a load spanned two stores, and waited until the processor had written all
/// earlier stores to the cache.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Payload, padding and ICRC.
    rest: &'a [u8],
    bth: [u8; BTH_LEN],
    /// Extension headers, and zeros behind them.
    extensions: [u8; MAX_EXTENSIONS_LEN],
}

/// Length of the longest extension headers.
const MAX_EXTENSIONS_LEN: usize = MAX_HEADERS_LEN - BTH_LEN;

/// Returns extension headers, with zeros behind them. The bytes behind the headers are not read: if they were
/// stored just before by other instructions, a load of both would have to wait for the stores.
#[inline(always)]
fn copy_extensions(headers: &[u8]) -> [u8; MAX_EXTENSIONS_LEN] {
    /// Copies `N` to 2 `N` bytes in two pieces of fixed length, which overlap: a call of `memcpy` takes
    /// longer.
    #[inline(always)]
    fn copy_ends<const N: usize>(bytes: &[u8], copy: &mut [u8; MAX_EXTENSIONS_LEN]) {
        if let (Some(first), Some(last)) = (bytes.first_chunk::<N>(), bytes.last_chunk::<N>()) {
            copy[..N].copy_from_slice(first);
            copy[bytes.len() - N..bytes.len()].copy_from_slice(last);
        }
    }
    let mut copy = [0; MAX_EXTENSIONS_LEN];
    match headers.len() {
        MAX_EXTENSIONS_LEN.. => copy.copy_from_slice(&headers[..MAX_EXTENSIONS_LEN]),
        32.. => copy_ends::<32>(headers, &mut copy),
        16.. => copy_ends::<16>(headers, &mut copy),
        8.. => copy_ends::<8>(headers, &mut copy),
        // None, or at least 4 bytes.
        _ => copy_ends::<4>(headers, &mut copy),
    }
    copy
}

impl<'a> Packet<'a> {
    /// Parses a UDP payload. The ICRC is not verified here: see [`super::icrc`].
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a complete packet of an assigned opcode.
    #[inline(always)]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Packet<'a>, WireError> {
        let len = udp_payload.len();
        if len < BTH_LEN + ICRC_LEN {
            let opcode = Opcode(udp_payload.first().copied().unwrap_or(0));
            return Err(WireError::Truncated { len, need: BTH_LEN + ICRC_LEN, opcode });
        }
        let (bytes, behind_bth) = udp_payload.split_first_chunk().expect("the length was checked");
        let bytes = *bytes;
        let bth = Bth::read(&bytes);
        if bth.version != 0 {
            return Err(WireError::Version(bth.version));
        }
        let row = bth.opcode.row();
        if !row.is_valid() {
            return Err(WireError::ReservedOpcode(bth.opcode.0));
        }
        let need = BTH_LEN + row.headers.wire_len() + bth.pad as usize + ICRC_LEN;
        if len < need {
            return Err(WireError::Truncated { len, need, opcode: bth.opcode });
        }
        if !len.is_multiple_of(4) {
            return Err(WireError::Unaligned(len));
        }
        let (extensions, rest) = behind_bth.split_at(row.headers.wire_len());
        Ok(Packet { rest, bth: bytes, extensions: copy_extensions(extensions) })
    }

    /// Returns the base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        Bth::read(&self.bth)
    }

    /// Returns the opcode's table row.
    #[inline]
    pub fn row(&self) -> &'static OpcodeRow {
        self.bth().opcode.row()
    }

    /// Returns the ICRC as received, decoded from little-endian.
    pub fn icrc(&self) -> u32 {
        self.rest.last_chunk().map_or(0, |icrc| u32::from_le_bytes(*icrc))
    }

    /// Returns the length of the whole packet in bytes, from BTH to ICRC.
    pub fn wire_len(&self) -> usize {
        BTH_LEN + self.row().headers.wire_len() + self.rest.len()
    }

    /// Appends the whole packet, from BTH to ICRC, to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bth);
        out.extend_from_slice(&self.extensions[..self.row().headers.wire_len()]);
        out.extend_from_slice(self.rest);
    }

    /// Returns the payload without its padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.rest[..self.payload_len()]
    }

    /// Returns the padding bytes, whose values are unspecified.
    pub fn padding(&self) -> &'a [u8] {
        &self.rest[self.payload_len()..self.rest.len() - ICRC_LEN]
    }

    #[inline]
    fn payload_len(&self) -> usize {
        self.rest.len() - ICRC_LEN - usize::from(self.bth().pad)
    }

    /// Returns the bytes of extension header `header`, which is `N` bytes long, if the opcode has it.
    #[inline]
    fn ext<const N: usize>(&self, header: HeaderSet) -> Option<&[u8; N]> {
        let set = self.row().headers;
        if !set.contains(header) {
            return None;
        }
        self.extensions.get(set.offset_of(header)..)?.first_chunk()
    }

    /// Returns the value of extension header `header`, which is one word long, if the opcode has it.
    #[inline]
    fn word(&self, header: HeaderSet) -> Option<u32> {
        self.ext(header).map(|b| u32::from_be_bytes(*b))
    }

    /// Returns the end-to-end context from the RDETH, if the opcode has one.
    pub fn rdeth(&self) -> Option<u32> {
        self.word(HeaderSet::RDETH).map(|n| n & 0xff_ffff)
    }

    /// Returns the DETH, if the opcode has one.
    pub fn deth(&self) -> Option<Deth> {
        self.ext::<8>(HeaderSet::DETH).map(|b| Deth { qkey: QKey(be32(b)), src_qp: Qpn::new(be32(&b[4..])) })
    }

    /// Returns the shared receive queue number from the XRCETH, if the opcode has one.
    #[inline]
    pub fn xrceth(&self) -> Option<u32> {
        self.word(HeaderSet::XRCETH).map(|n| n & 0xff_ffff)
    }

    /// Returns the FETH, if the opcode has one.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.word(HeaderSet::FETH).map(Feth)
    }

    /// Returns the RETH, if the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.ext::<16>(HeaderSet::RETH).map(|b| Reth {
            va: be64(b),
            rkey: RKey(be32(&b[8..])),
            dma_len: be32(&b[12..]),
        })
    }

    /// Returns the AtomicETH, if the opcode has one.
    #[inline]
    pub fn atomic(&self) -> Option<AtomicEth> {
        self.ext::<28>(HeaderSet::ATOMIC).map(|b| AtomicEth {
            va: be64(b),
            rkey: RKey(be32(&b[8..])),
            swap_or_add: be64(&b[12..]),
            compare: be64(&b[20..]),
        })
    }

    /// Returns the AETH, if the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.word(HeaderSet::AETH)
            .map(|n| Aeth { syndrome: Syndrome::from_byte((n >> 24) as u8), msn: n & 0xff_ffff })
    }

    /// Returns the AtomicAckETH, if the opcode has one.
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.ext(HeaderSet::ATOMIC_ACK).map(|b| AtomicAckEth { original: u64::from_be_bytes(*b) })
    }

    /// Returns the immediate data, if the opcode has it.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.word(HeaderSet::IMMDT)
    }

    /// Returns the key to invalidate, if the opcode has an IETH.
    #[inline]
    pub fn ieth(&self) -> Option<RKey> {
        self.word(HeaderSet::IETH).map(RKey)
    }

    /// Returns all headers as owned values. Headers that the opcode does not have get default values.
    pub fn headers(&self) -> Headers {
        Headers {
            bth: self.bth(),
            rdeth: self.rdeth().unwrap_or_default(),
            deth: self.deth().unwrap_or_default(),
            xrceth: self.xrceth().unwrap_or_default(),
            feth: self.feth().unwrap_or_default(),
            reth: self.reth().unwrap_or_default(),
            atomic: self.atomic().unwrap_or_default(),
            aeth: self.aeth().unwrap_or_default(),
            atomic_ack: self.atomic_ack().unwrap_or_default(),
            imm: self.imm().unwrap_or_default(),
            ieth: self.ieth().unwrap_or_default(),
        }
    }
}
