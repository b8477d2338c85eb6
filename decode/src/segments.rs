//! Packets that the kernel had not segmented yet when they were captured (GSO), or had joined already (GRO): one UDP
//! datagram of up to 64 KiB in place of several packets.

use urxe::wire::{BTH_LEN, Bth, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Mtu};

use crate::layers::Roce;

/// Length of the longest packet, from BTH to ICRC.
const MAX_PACKET: usize = MAX_HEADERS_LEN + 4096 + ICRC_LEN;

/// Reports whether a datagram is longer than any packet.
pub fn is_too_long(roce: &Roce<'_>) -> bool {
    roce.len > MAX_PACKET
}

/// Reports whether a datagram that may be one packet consists of several. To be asked if its ICRC is wrong.
pub fn has_several(roce: &Roce<'_>) -> bool {
    segment_len(roce).is_some_and(|len| len < roce.len)
}

/// Returns the length of the packets that a datagram consists of: all have that length, except for the last. `None` if
/// there is no such length.
fn segment_len(roce: &Roce<'_>) -> Option<usize> {
    let bth = |at: usize| roce.bytes.get(at..at + BTH_LEN).map(Bth::read);
    let first = bth(0)?;
    let headers = BTH_LEN + first.opcode.row().headers.wire_len();
    let is_next = |next: Bth| {
        (next.dest_qp, next.psn) == (first.dest_qp, first.psn.next()) && next.opcode.row().is_valid()
    };
    let is_packet = |at: usize| bth(at).is_some_and(is_next);
    Mtu::ALL.into_iter().map(|mtu| headers + mtu.bytes() + ICRC_LEN).find(|len| is_packet(*len))
}

/// Returns the packets that a datagram consists of. The identification of each is one more than that of the one before
/// it.
pub fn segments<'a>(roce: &Roce<'a>) -> impl Iterator<Item = Roce<'a>> {
    let roce = *roce;
    let len = segment_len(&roce).unwrap_or(roce.len);
    let total = roce.len;
    (0..total.div_ceil(len.max(1))).map(move |index| {
        let start = index * len;
        let end = (start + len).min(total);
        let captured = |at: usize| at.min(roce.bytes.len());
        let ident = match roce.ident {
            IpIdent::Exact { id, flags } => IpIdent::Exact { id: id.wrapping_add(index as u16), flags },
            other => other,
        };
        Roce { bytes: &roce.bytes[captured(start)..captured(end)], len: end - start, ident, ..roce }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::{Judge, Verdict};
    use crate::layers::{Content, dissect};
    use pcap_file::DataLink;
    use urxe::wire::{Flow, Headers, Opcode, Psn, Qpn, frame, icrc};

    #[test]
    fn datagram_is_split_into_packets_with_right_icrcs() {
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let flow = Flow::new(src, dst, 0xc000);
        let mut payload = Vec::new();
        for (index, (opcode, len)) in
            [(0x07, 2048), (0x07, 2048), (0x07, 2048), (0x08, 100)].iter().enumerate()
        {
            let psn = Psn::new(0xff_ffff) + index as u32;
            let bth = Bth { opcode: Opcode(*opcode), dest_qp: Qpn::new(5), psn, ..Bth::default() };
            let mut packet = vec![0; BTH_LEN];
            Headers { bth, ..Headers::default() }.emit(&mut packet);
            packet.resize(BTH_LEN + len + ICRC_LEN, 0x5a);
            let right = icrc::compute(&flow, 7 + index as u16, IpIdent::DONT_FRAGMENT, &packet);
            packet[BTH_LEN + len..].copy_from_slice(&right.to_le_bytes());
            payload.extend(packet);
        }
        let mut bytes = Vec::new();
        frame::append_ip_udp(&mut bytes, &flow, 7, payload.len());
        bytes.extend(payload);
        let Ok(Content::Roce(roce)) = dissect(DataLink::RAW, &bytes) else { panic!() };
        assert!(is_too_long(&roce) && has_several(&roce));
        let mut judge = Judge::default();
        let psns: Vec<_> = segments(&roce)
            .map(|packet| {
                let (packet, verdict) = judge.judge(&packet).unwrap();
                (packet.bth().psn.get(), packet.payload().len(), verdict)
            })
            .collect();
        let right = Verdict::Right;
        assert_eq!(psns, [(0xff_ffff, 2048, right), (0, 2048, right), (1, 2048, right), (2, 100, right)]);
    }
}
