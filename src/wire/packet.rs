//! A zero-copy view of one RoCEv2 packet: the UDP payload from the BTH to the ICRC.

use super::headers::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, Deth, Feth, Headers, Reth, Syndrome, be32,
};
use super::opcode::{HeaderSet, OpcodeRow};
use super::{Opcode, QKey, Qpn, RKey};

#[inline]
fn be64(b: &[u8]) -> u64 {
    u64::from(be32(b)) << 32 | u64::from(be32(&b[4..]))
}

/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// Shorter than a BTH and an ICRC, or than the headers of its opcode.
    #[error("{len} bytes are too few: {opcode} needs at least {need}")]
    Truncated {
        /// Bytes there.
        len: usize,
        /// Bytes that the opcode's headers, padding and the ICRC take.
        need: usize,
        /// The opcode, `SEND First` where not even that was there.
        opcode: Opcode,
    },
    /// The length is not a multiple of four.
    #[error("{0} bytes are not a multiple of 4, so the pad count is wrong")]
    Unaligned(usize),
    /// The opcode is not assigned.
    #[error("opcode {0:#04x} is reserved")]
    ReservedOpcode(u8),
    /// The transport header version is not 0.
    #[error("transport header version {0}, not 0")]
    Version(u8),
}

/// The pad bytes that bring `payload` bytes to a multiple of four.
pub const fn pad_count(payload: usize) -> usize {
    payload.wrapping_neg() & 3
}

/// A packet whose length fits the headers that its opcode calls for.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// From the BTH to the end of the padding.
    body: &'a [u8],
    icrc: [u8; ICRC_LEN],
    bth: Bth,
}

impl<'a> Packet<'a> {
    /// A view of a UDP payload. The ICRC is not checked here: see [`super::icrc`].
    ///
    /// # Errors
    /// [`WireError`] where the bytes are not a whole packet of an assigned opcode.
    pub fn parse(udp_payload: &'a [u8]) -> Result<Packet<'a>, WireError> {
        let len = udp_payload.len();
        if len < BTH_LEN + ICRC_LEN {
            let opcode = Opcode(udp_payload.first().copied().unwrap_or(0));
            return Err(WireError::Truncated { len, need: BTH_LEN + ICRC_LEN, opcode });
        }
        let bth = Bth::read(udp_payload);
        if bth.version != 0 {
            return Err(WireError::Version(bth.version));
        }
        let row = bth.opcode.row();
        if !row.is_valid() {
            return Err(WireError::ReservedOpcode(bth.opcode.0));
        }
        let need = BTH_LEN + row.headers.len() + bth.pad as usize + ICRC_LEN;
        if len < need {
            return Err(WireError::Truncated { len, need, opcode: bth.opcode });
        }
        if !len.is_multiple_of(4) {
            return Err(WireError::Unaligned(len));
        }
        let (body, icrc) = udp_payload.split_at(len - ICRC_LEN);
        Ok(Packet { body, icrc: [icrc[0], icrc[1], icrc[2], icrc[3]], bth })
    }

    /// The base transport header.
    pub fn bth(&self) -> &Bth {
        &self.bth
    }

    /// The opcode's table row.
    pub fn row(&self) -> &'static OpcodeRow {
        self.bth.opcode.row()
    }

    /// The ICRC as it came, little-endian.
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(self.icrc)
    }

    /// Bytes of all of it, BTH to ICRC.
    pub fn wire_len(&self) -> usize {
        self.body.len() + ICRC_LEN
    }

    /// The payload without its padding.
    pub fn payload(&self) -> &'a [u8] {
        let start = BTH_LEN + self.row().headers.len();
        &self.body[start..self.body.len() - self.bth.pad as usize]
    }

    /// The padding bytes; their value is not specified.
    pub fn padding(&self) -> &'a [u8] {
        &self.body[self.body.len() - self.bth.pad as usize..]
    }

    /// A header of `N` bytes, where the opcode has it.
    #[inline]
    fn ext<const N: usize>(&self, header: HeaderSet) -> Option<&'a [u8; N]> {
        let set = self.row().headers;
        if !set.has(header) {
            return None;
        }
        self.body.get(BTH_LEN + set.offset_of(header)..)?.first_chunk()
    }

    /// One of a single number.
    #[inline]
    fn word(&self, header: HeaderSet) -> Option<u32> {
        self.ext(header).map(|b| u32::from_be_bytes(*b))
    }

    /// RDETH's end-to-end context.
    pub fn rdeth(&self) -> Option<u32> {
        self.word(HeaderSet::RDETH).map(|n| n & 0xff_ffff)
    }

    /// DETH, where the opcode has one.
    pub fn deth(&self) -> Option<Deth> {
        self.ext::<8>(HeaderSet::DETH).map(|b| Deth { qkey: QKey(be32(b)), src_qp: Qpn::new(be32(&b[4..])) })
    }

    /// XRCETH's shared receive queue number.
    #[inline]
    pub fn xrceth(&self) -> Option<u32> {
        self.word(HeaderSet::XRCETH).map(|n| n & 0xff_ffff)
    }

    /// FETH, where the opcode has one.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.word(HeaderSet::FETH).map(Feth)
    }

    /// RETH, where the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.ext::<16>(HeaderSet::RETH).map(|b| Reth {
            va: be64(b),
            rkey: RKey(be32(&b[8..])),
            dma_len: be32(&b[12..]),
        })
    }

    /// AtomicETH, where the opcode has one.
    #[inline]
    pub fn atomic(&self) -> Option<AtomicEth> {
        self.ext::<28>(HeaderSet::ATOMIC).map(|b| AtomicEth {
            va: be64(b),
            rkey: RKey(be32(&b[8..])),
            swap_or_add: be64(&b[12..]),
            compare: be64(&b[20..]),
        })
    }

    /// AETH, where the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.word(HeaderSet::AETH)
            .map(|n| Aeth { syndrome: Syndrome::from_byte((n >> 24) as u8), msn: n & 0xff_ffff })
    }

    /// AtomicAckETH, where the opcode has one.
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.ext(HeaderSet::ATOMIC_ACK).map(|b| AtomicAckEth { original: u64::from_be_bytes(*b) })
    }

    /// Immediate data, where the opcode has it.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.word(HeaderSet::IMMDT)
    }

    /// The key to invalidate, where the opcode has one.
    #[inline]
    pub fn ieth(&self) -> Option<RKey> {
        self.word(HeaderSet::IETH).map(RKey)
    }

    /// All headers as owned values; those that the opcode lacks are their defaults.
    pub fn headers(&self) -> Headers {
        Headers {
            bth: self.bth,
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
