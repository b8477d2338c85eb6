//! Detection of a GSO super-packet's segment size and IPv4 identifications, by the ICRCs of its packets.
#![forbid(unsafe_code)]

use crate::wire::{BTH_LEN, Flow, ICRC_LEN, IpIdent, MAX_HEADERS_LEN, Mtu, icrc};

/// Maximum UDP payload of a RoCEv2 packet, in bytes.
const MAX_LEN: usize = MAX_HEADERS_LEN + Mtu::Mtu4096.bytes() + ICRC_LEN;

/// Returns the UDP payload length of the first packet in `data`: the length at which the ICRC is valid, or
/// the length of `data` if there is none.
///
/// Without virtio-net headers a packet socket does not report the segment size. The likely length is tried
/// first, because successive super-packets are mostly alike; trying all lengths takes about 100 us.
pub(super) fn segment(flow: &Flow, ident: IpIdent, data: &[u8], likely: usize) -> usize {
    let icrc_matches =
        |len: &usize| data.get(..*len).is_some_and(|packet| icrc::verify(flow, ident, 0, packet));
    // Packets are padded to a multiple of four bytes.
    let lengths = (BTH_LEN + ICRC_LEN..=MAX_LEN).step_by(4);
    [data.len(), likely].into_iter().chain(lengths).find(icrc_matches).unwrap_or(data.len())
}

/// Returns the IPv4 identifications of a super-packet whose first packet has the identification `first`.
///
/// The numbers count up from `first` if the sender's kernel left the segmentation to others. If the
/// receiver's kernel has merged packets (GRO), the identifications can be any, and are unknown.
pub(super) fn ident(flow: &Flow, first: IpIdent, data: &[u8], segment: usize) -> IpIdent {
    match data.chunks(segment.max(1)).enumerate().next_back() {
        Some((i @ 1.., last)) if !icrc::verify(flow, first, i as u16, last) => IpIdent::Unknown,
        _ => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::{BurstLimits, TxQueue};
    use crate::wire::{Bth, Headers, Opcode};

    fn run(flow: &Flow, lens: &[usize]) -> Vec<u8> {
        let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
        for len in lens {
            let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
            queue.push(flow, headers, &vec![0; *len]);
        }
        assert_eq!(queue.bursts().len(), 1);
        let mut out = Vec::new();
        queue.bursts().for_each(|burst| burst.copy_to(&mut out));
        out
    }

    #[test]
    fn segment_size_of_a_super_packet_is_found_by_icrc() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let flow = Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 4000);
            let ident = if flow.dst.is_ipv4() { IpIdent::SENT } else { IpIdent::Unknown };
            for (lens, len) in [
                (&[0, 0][..], 16),
                (&[0, 0, 0, 0], 16),
                (&[1000, 1000, 3], 1016),
                (&[1001, 1001], 1020),
                (&[4096; 15], 4112),
                (&[777], 796),
            ] {
                let data = run(&flow, lens);
                for likely in [0, 16, 4112, 70_000] {
                    assert_eq!(segment(&flow, ident, &data, likely), len, "{lens:?}");
                }
            }
        }
    }

    #[test]
    fn merged_packets_have_unknown_ipv4_ids() {
        let flow = Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 4000);
        let counting = run(&flow, &[100, 100, 50]);
        assert_eq!(ident(&flow, IpIdent::SENT, &counting, 116), IpIdent::SENT);
        assert_eq!(ident(&flow, IpIdent::SENT, &counting[..116], 116), IpIdent::SENT);
        let twice = [&counting[..232], &counting[..232]].concat();
        assert_eq!(ident(&flow, IpIdent::SENT, &twice, 116), IpIdent::Unknown);
        assert!(twice.chunks(116).all(|p| icrc::verify(&flow, IpIdent::Unknown, 3, p)));
    }

    #[test]
    fn data_without_a_valid_icrc_is_not_split() {
        let flow = Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 4000);
        let mut data = run(&flow, &[1000; 9]);
        data[12] ^= 1;
        assert_eq!(segment(&flow, IpIdent::SENT, &data, 1016), data.len());
        assert_eq!(segment(&flow, IpIdent::SENT, &data[..10], 4), 10);
    }
}
