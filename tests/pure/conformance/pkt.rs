//! Constructors for the packets that conformance cases deliver to the NIC and expect from it.

use std::fmt;

use urxe::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, HeaderSet, Headers, NakCode, Opcode, Operation, PKey,
    Position, Psn, QKey, Qpn, RKey, Reth, RnrTimer, Syndrome, Transport, pad_count,
};

use urxe::transport::SrqId;

pub use urxe::wire::Position::{First, Last, Middle, Only};

#[derive(Clone, PartialEq)]
pub struct Pkt {
    pub h: Headers,
    pub data: Vec<u8>,
    /// Index of the bench's QP that receives or sends the packet.
    pub qp: usize,
}

/// Contents of a RETH: address, R_Key, length.
pub type Remote = (u64, RKey, u32);

fn pkt(operation: Operation, position: Position, extra: HeaderSet, psn: u32, data: &[u8]) -> Pkt {
    let opcode = Opcode::find(Transport::Rc, operation, position, extra).expect("RC has this opcode");
    let bth = Bth {
        opcode,
        mig_req: true,
        pad: pad_count(data.len()) as u8,
        ack_req: operation.is_request() && position.ends(),
        psn: Psn::new(psn),
        ..Bth::default()
    };
    Pkt { h: Headers { bth, ..Headers::default() }, data: data.to_vec(), qp: 0 }
}

pub fn send(position: Position, psn: u32, data: &[u8]) -> Pkt {
    pkt(Operation::Send, position, HeaderSet::NONE, psn, data)
}

pub fn send_imm(position: Position, psn: u32, data: &[u8], imm: u32) -> Pkt {
    pkt(Operation::Send, position, HeaderSet::IMMDT, psn, data).with(|h| h.imm = imm)
}

pub fn send_inv(position: Position, psn: u32, data: &[u8], rkey: RKey) -> Pkt {
    pkt(Operation::Send, position, HeaderSet::IETH, psn, data).with(|h| h.ieth = rkey)
}

pub fn atomic_write(psn: u32, (va, rkey): (u64, RKey), value: [u8; 8]) -> Pkt {
    pkt(Operation::AtomicWrite, Only, HeaderSet::NONE, psn, &value).reth((va, rkey, 8))
}

/// Builds a FLUSH. `feth` holds the placement type in its lowest four bits and the selectivity level in the
/// next two.
pub fn flush(psn: u32, range: Remote, feth: u32) -> Pkt {
    pkt(Operation::Flush, Only, HeaderSet::NONE, psn, &[]).reth(range).with(|h| h.feth = Feth(feth))
}

/// Builds the response to a FLUSH or ATOMIC WRITE.
pub fn empty_resp(psn: u32, msn: u32) -> Pkt {
    resp(Only, psn, msn, &[])
}

/// Builds a packet of a WRITE. Only first and only packets have a RETH, which carries `to`.
pub fn write(position: Position, psn: u32, to: Remote, data: &[u8]) -> Pkt {
    pkt(Operation::Write, position, HeaderSet::NONE, psn, data).reth(to)
}

pub fn write_imm(position: Position, psn: u32, to: Remote, data: &[u8], imm: u32) -> Pkt {
    pkt(Operation::Write, position, HeaderSet::IMMDT, psn, data).reth(to).with(|h| h.imm = imm)
}

pub fn read(psn: u32, from: Remote) -> Pkt {
    pkt(Operation::ReadRequest, Only, HeaderSet::NONE, psn, &[]).reth(from)
}

pub fn fetch_add(psn: u32, (va, rkey): (u64, RKey), add: u64) -> Pkt {
    pkt(Operation::FetchAdd, Only, HeaderSet::NONE, psn, &[])
        .with(|h| h.atomic = AtomicEth { va, rkey, swap_or_add: add, compare: 0 })
}

pub fn cmp_swap(psn: u32, (va, rkey): (u64, RKey), compare: u64, swap: u64) -> Pkt {
    pkt(Operation::CompareSwap, Only, HeaderSet::NONE, psn, &[])
        .with(|h| h.atomic = AtomicEth { va, rkey, swap_or_add: swap, compare })
}

pub fn aeth(psn: u32, msn: u32, syndrome: Syndrome) -> Pkt {
    pkt(Operation::Acknowledge, Only, HeaderSet::NONE, psn, &[]).with(|h| h.aeth = Aeth { syndrome, msn })
}

pub fn ack(psn: u32, msn: u32) -> Pkt {
    aeth(psn, msn, Syndrome::ACK)
}

pub fn nak(psn: u32, msn: u32, code: NakCode) -> Pkt {
    aeth(psn, msn, Syndrome::Nak(code))
}

pub fn rnr(psn: u32, msn: u32, timer: u8) -> Pkt {
    aeth(psn, msn, Syndrome::RnrNak(RnrTimer::new(timer)))
}

pub fn resp(position: Position, psn: u32, msn: u32, data: &[u8]) -> Pkt {
    let p = pkt(Operation::ReadResponse, position, HeaderSet::NONE, psn, data);
    if position == Middle { p } else { p.with(|h| h.aeth = Aeth { syndrome: Syndrome::ACK, msn }) }
}

pub fn atomic_ack(psn: u32, msn: u32, original: u64) -> Pkt {
    pkt(Operation::AtomicAcknowledge, Only, HeaderSet::NONE, psn, &[]).with(|h| {
        h.aeth = Aeth { syndrome: Syndrome::ACK, msn };
        h.atomic_ack = AtomicAckEth { original };
    })
}

/// Splits `data` into the packets of a message, with PSNs from `psn` on; `make` builds each packet.
pub fn message(mtu: usize, data: &[u8], make: impl Fn(Position, u32, &[u8]) -> Pkt, psn: u32) -> Vec<Pkt> {
    let count = data.len().div_ceil(mtu).max(1) as u32;
    let part = |i: u32| &data[i as usize * mtu..data.len().min((i as usize + 1) * mtu)];
    (0..count).map(|i| make(Position::of(i, count), psn + i, part(i))).collect()
}

impl Pkt {
    pub fn with(mut self, change: impl FnOnce(&mut Headers)) -> Pkt {
        change(&mut self.h);
        self
    }

    fn reth(self, (va, rkey, dma_len): Remote) -> Pkt {
        let has = self.h.bth.opcode.row().headers.contains(HeaderSet::RETH);
        self.with(|h| h.reth = if has { Reth { va, rkey, dma_len } } else { Reth::default() })
    }

    /// Sets or clears AckReq.
    pub fn ackreq(self, set: bool) -> Pkt {
        self.with(|h| h.bth.ack_req = set)
    }

    /// Converts the packet to its UC equivalent, which never has AckReq.
    pub fn uc(self) -> Pkt {
        self.with(|h| h.bth.opcode.0 |= 0x20).ackreq(false)
    }

    /// Converts the packet to its XRC equivalent; requests carry the shared receive queue number `srq`.
    pub fn xrc(self, srq: SrqId) -> Pkt {
        self.with(|h| {
            h.bth.opcode.0 |= 0xa0;
            h.xrceth = if h.bth.opcode.row().operation.is_request() { srq.0 } else { 0 };
        })
    }

    /// Converts a SEND packet to a UD datagram from QP `src_qp`.
    pub fn ud(self, qkey: u32, src_qp: Qpn) -> Pkt {
        self.with(|h| {
            h.bth.opcode.0 |= 0x60;
            h.deth = Deth { qkey: QKey(qkey), src_qp };
        })
        .ackreq(false)
    }

    pub fn solicited(self) -> Pkt {
        self.with(|h| h.bth.solicited = true)
    }

    pub fn pkey(self, key: u16) -> Pkt {
        self.with(|h| h.bth.pkey = PKey(key))
    }

    pub fn opcode(self, opcode: u8) -> Pkt {
        self.with(|h| h.bth.opcode = Opcode(opcode))
    }

    pub fn qp(mut self, qp: usize) -> Pkt {
        self.qp = qp;
        self
    }
}

impl fmt::Debug for Pkt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = &self.h.bth;
        let set = b.opcode.row().headers;
        write!(f, "qp{} {} {:?}", self.qp, b.opcode, b.psn)?;
        if b.ack_req {
            write!(f, " A")?;
        }
        if b.solicited {
            write!(f, " S")?;
        }
        if set.contains(HeaderSet::DETH) {
            write!(f, " {:?}", self.h.deth)?;
        }
        if set.contains(HeaderSet::RETH) {
            write!(f, " va {:#x} {:?} len {}", self.h.reth.va, self.h.reth.rkey, self.h.reth.dma_len)?;
        }
        if set.contains(HeaderSet::ATOMIC) {
            write!(f, " {:?}", self.h.atomic)?;
        }
        if set.contains(HeaderSet::AETH) {
            write!(f, " {:?} msn {}", self.h.aeth.syndrome, self.h.aeth.msn)?;
        }
        if set.contains(HeaderSet::ATOMIC_ACK) {
            write!(f, " original {:#x}", self.h.atomic_ack.original)?;
        }
        if set.contains(HeaderSet::XRCETH) {
            write!(f, " srq {:#x}", self.h.xrceth)?;
        }
        if set.contains(HeaderSet::IETH) {
            write!(f, " inv {:?}", self.h.ieth)?;
        }
        if set.contains(HeaderSet::FETH) {
            write!(f, " {:?}", self.h.feth)?;
        }
        if set.contains(HeaderSet::IMMDT) {
            write!(f, " imm {:#x}", self.h.imm)?;
        }
        write!(f, " data {}: {:02x?}", self.data.len(), &self.data[..self.data.len().min(8)])
    }
}
