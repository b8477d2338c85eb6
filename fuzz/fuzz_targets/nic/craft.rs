//! Forged packets: any opcode, with field values close to valid ones.

use urxe::memory::RegionInfo;
use urxe::transport::{QpType, RxBurst};
use urxe::wire::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, Deth, Feth, Flow, Headers, ICRC_LEN, IpIdent,
    MAX_HEADERS_LEN, Opcode, PKey, QKey, Qpn, RKey, Reth, Syndrome, icrc, pad_count,
};

use crate::input::Input;
use crate::side::{IOVA, MTU, PEER_QKEY, Side, rkey};

/// Writes a valid ICRC into a packet, if the packet is long enough to hold one.
pub fn write_icrc(flow: &Flow, id: u16, bytes: &mut [u8]) {
    if bytes.len() < BTH_LEN + ICRC_LEN {
        return;
    }
    let sum = icrc::compute(flow, id, IpIdent::DONT_FRAGMENT, bytes);
    let end = bytes.len() - ICRC_LEN;
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
}

/// Returns an address and an R_Key: mostly those of the region that grants all access rights, sometimes
/// another region's or invalid ones.
pub fn remote(regions: &[RegionInfo; 3], p: &mut Input<'_>) -> (u64, RKey) {
    let selector = p.u8();
    let region = match selector % 16 {
        13 => 1,
        14 => 2,
        _ => 0,
    };
    let key = match selector % 16 {
        15 => RKey(p.u16() as u32),
        12 => RKey(rkey(regions, 0).0 & !0xffff | p.u16() as u32),
        _ => rkey(regions, region),
    };
    let va = match selector >> 4 & 7 {
        0 => p.u64(),
        1 => IOVA[region].wrapping_sub(p.u8() as u64),
        2 => IOVA[region].wrapping_add(p.u8() as u64),
        _ => IOVA[region].wrapping_add(p.u8() as u64 * 8),
    };
    (va, key)
}

pub struct Crafted {
    flow: Flow,
    ident: IpIdent,
    segment: usize,
    data: Vec<u8>,
}

impl Crafted {
    pub fn as_burst(&self) -> RxBurst<'_> {
        RxBurst::new(self.flow, self.ident, self.segment, &self.data)
    }
}

/// Returns a burst of a few packets forged for `side`, which differ from each other only in PSN and possibly
/// opcode.
pub fn burst(side: &Side, p: &mut Input<'_>) -> Crafted {
    let qp = p.below(side.qpns.len());
    let qpn = side.qpns[qp];
    let (attr, _) = side.nic.query_qp(qpn).unwrap();
    let kind = p.u8();
    // Mostly an opcode of the QP's service.
    let base = match side.service(qp) {
        QpType::Rc => 0,
        QpType::Uc => 0x20,
        QpType::Ud => 0x60,
        QpType::XrcSend | QpType::XrcRecv => 0xa0,
    };
    let opcode = if kind & 0x0f == 0 { p.u8() } else { p.u8() & 0x1f | base };
    // Requests have PSNs near the responder's expected one, responses near the requester's next one.
    let response = !Opcode(opcode).row().operation.is_request();
    let base = if response { attr.sq_psn } else { attr.rq_psn }.unwrap();
    let delta = match kind >> 4 & 3 {
        0 if !response => 0,
        3 => p.u64() as u32,
        _ => (p.u8() as i8 >> 3) as u32,
    };
    let (va, rkey) = remote(&side.regions, p);
    let lengths = p.u8();
    let len = match lengths & 3 {
        0 => 0,
        1 => MTU,
        _ => p.u16() as usize % (MTU + 5),
    };
    let dma_len = match lengths >> 2 & 3 {
        0 => len as u32,
        1 => p.u64() as u32,
        _ => p.u16() as u32 % 3000,
    };
    let flags = p.u8();
    let mut headers = Headers {
        bth: Bth {
            opcode: Opcode(opcode),
            solicited: flags & 1 != 0,
            ack_req: flags & 2 != 0,
            becn: flags & 4 != 0,
            pad: if flags & 0x18 == 0x18 { flags >> 6 } else { pad_count(len) as u8 },
            version: (flags & 0x38 == 0x38) as u8,
            pkey: if flags & 0x34 == 0x34 { PKey(0x1234) } else { PKey::DEFAULT },
            dest_qp: if flags == 0xff { Qpn::new(p.u16() as u32) } else { qpn },
            psn: base + delta,
            ..Bth::default()
        },
        reth: Reth { va, rkey, dma_len },
        atomic: AtomicEth { va, rkey, swap_or_add: 1, compare: 0 },
        aeth: Aeth { syndrome: Syndrome::from_byte(p.u8()), msn: p.u8() as u32 },
        atomic_ack: AtomicAckEth { original: 5 },
        imm: 6,
        ieth: rkey,
        deth: Deth { qkey: if p.chance(16) { QKey(3) } else { PEER_QKEY }, src_qp: Qpn::new(9) },
        xrceth: if p.chance(16) { p.u16().into() } else { side.srq.0 },
        feth: Feth(p.u8().into()),
        ..Headers::default()
    };
    let flow = side.flow_from_peer();
    let is_ident_known = kind & 0x80 == 0;
    let (mut data, mut segment) = (Vec::new(), 0);
    for i in 0..1 + (kind as u16 >> 6 & 1) * 3 {
        let start = data.len();
        let mut buf = [0; MAX_HEADERS_LEN];
        let n = headers.emit(&mut buf);
        data.extend_from_slice(&buf[..n]);
        data.resize(data.len() + len + pad_count(len), 0xee);
        data.resize(data.len() + ICRC_LEN, 0);
        write_icrc(&flow, i, &mut data[start..]);
        segment = data.len() - start;
        headers.bth.psn += 1;
        if lengths & 0x40 != 0 && headers.len() == n {
            // FIRST, MIDDLE and LAST have consecutive opcodes; all packets here have the same length.
            let next =
                Headers { bth: Bth { opcode: Opcode(opcode.wrapping_add(1)), ..headers.bth }, ..headers };
            headers = if next.len() == n { next } else { headers };
        }
    }
    let ident = if is_ident_known { IpIdent::SENT } else { IpIdent::Unknown };
    Crafted { flow, ident, segment, data }
}
