//! Human-readable one-line description of a packet's headers.

use urxe::wire::{Aeth, NakCode, Operation, Packet, Syndrome};

/// Formats the BTH flags and the fields of the extension headers.
pub fn details(packet: &Packet<'_>) -> String {
    let bth = packet.bth();
    let mut parts: Vec<String> = Vec::new();
    let flags = [(bth.ack_req, "AckReq"), (bth.solicited, "SE"), (bth.fecn, "FECN"), (bth.becn, "BECN")];
    parts.extend(flags.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned()));
    if bth.pad > 0 {
        parts.push(format!("pad {}", bth.pad));
    }
    if let Some(r) = packet.reth() {
        parts.push(format!("RETH va {:#x} rkey {} len {}", r.va, r.rkey, r.dma_len));
    }
    if let Some(a) = packet.atomic() {
        let values = match packet.row().operation {
            Operation::CompareSwap => format!("compare {} swap {}", a.compare, a.swap_or_add),
            _ => format!("add {}", a.swap_or_add),
        };
        parts.push(format!("AtomicETH va {:#x} rkey {} {values}", a.va, a.rkey));
    }
    if let Some(a) = packet.aeth() {
        parts.push(aeth(&a));
    }
    if let Some(a) = packet.atomic_ack() {
        parts.push(format!("original {}", a.original));
    }
    if let Some(imm) = packet.imm() {
        parts.push(format!("imm {imm:#010x}"));
    }
    if let Some(key) = packet.ieth() {
        parts.push(format!("invalidates {key}"));
    }
    parts.join("  ")
}

fn aeth(a: &Aeth) -> String {
    let msn = a.msn;
    match a.syndrome {
        Syndrome::Ack { .. } => format!("ACK msn {msn}"),
        Syndrome::RnrNak(timer) => format!("RNR NAK: wait {:?}, msn {msn}", timer.duration()),
        Syndrome::Nak(code) => format!("NAK: {}, msn {msn}", nak(code)),
        Syndrome::Reserved(low) => format!("reserved syndrome {low:#x}, msn {msn}"),
    }
}

fn nak(code: NakCode) -> String {
    match code {
        NakCode::PsnSequenceError => "PSN sequence error".into(),
        NakCode::InvalidRequest => "invalid request".into(),
        NakCode::RemoteAccessError => "remote access error".into(),
        NakCode::RemoteOperationalError => "remote operational error".into(),
        NakCode::InvalidRdRequest => "invalid RD request".into(),
        NakCode::Reserved(n) => format!("reserved code {n}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe::wire::{Bth, Headers, Opcode, RKey, Reth, RnrTimer};

    fn text(headers: Headers) -> String {
        let mut bytes = vec![0; headers.len() + 4];
        headers.emit(&mut bytes);
        details(&Packet::parse(&bytes).unwrap())
    }

    #[test]
    fn packet_text_contains_the_header_fields() {
        let bth = |opcode| Bth { opcode: Opcode(opcode), ..Bth::default() };
        let reth = Reth { va: 0x1000, rkey: RKey(0x201), dma_len: 0 };
        let write =
            Headers { bth: Bth { ack_req: true, ..bth(0x0b) }, reth, imm: 0xcafe, ..Headers::default() };
        assert_eq!(text(write), "AckReq  RETH va 0x1000 rkey 0x201 len 0  imm 0x0000cafe");
        let ack =
            |syndrome| Headers { bth: bth(0x11), aeth: Aeth { syndrome, msn: 3 }, ..Headers::default() };
        assert_eq!(text(ack(Syndrome::ACK)), "ACK msn 3");
        let nak = Syndrome::Nak(NakCode::PsnSequenceError);
        assert_eq!(text(ack(nak)), "NAK: PSN sequence error, msn 3");
        assert_eq!(text(ack(Syndrome::RnrNak(RnrTimer::new(12)))), "RNR NAK: wait 640µs, msn 3");
    }
}
