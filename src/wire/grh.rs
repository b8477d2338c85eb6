//! GRH area of a received datagram: 40 bytes that hold either an IPv6 header or, in the last 20 bytes, an
//! IPv4 header (annex A17.4.5.1).

use std::net::IpAddr;

use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header};

use super::{Flow, Gid};

/// Length of the GRH area in bytes.
pub const LEN: usize = 40;

/// Length of a UDP header in bytes.
const UDP_LEN: usize = 8;

/// Builds the GRH area for a packet received on `flow`, with `len` bytes from BTH to ICRC. Fields that a
/// socket does not expose get the values that most senders use: identification 0, don't-fragment set.
pub fn of(flow: &Flow, len: usize) -> [u8; LEN] {
    let mut out = [0; LEN];
    let payload = (UDP_LEN + len) as u16;
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = Ipv4Header {
                dscp: (flow.traffic_class >> 2).try_into().unwrap_or_default(),
                ecn: (flow.traffic_class & 3).try_into().unwrap_or_default(),
                total_len: payload + Ipv4Header::MIN_LEN as u16,
                dont_fragment: true,
                time_to_live: flow.hop_limit,
                protocol: IpNumber::UDP,
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv4Header::default()
            };
            header.header_checksum = header.calc_header_checksum();
            out[LEN - Ipv4Header::MIN_LEN..].copy_from_slice(&header.to_bytes());
        }
        (src, dst) => {
            let header = Ipv6Header {
                traffic_class: flow.traffic_class,
                flow_label: Ipv6FlowLabel::try_new(flow.flow_label).unwrap_or_default(),
                payload_length: payload,
                next_header: IpNumber::UDP,
                hop_limit: flow.hop_limit,
                source: Gid::from(src).0,
                destination: Gid::from(dst).0,
            };
            out.copy_from_slice(&header.to_bytes());
        }
    }
    out
}

/// Decodes a received packet's flow, except for the source port, from its GRH area. Returns `None` if the
/// header is neither IPv4 nor IPv6.
pub fn flow(header: &[u8; LEN]) -> Option<Flow> {
    if header[0] >> 4 == 6 {
        let (h, _) = Ipv6Header::from_slice(header).ok()?;
        return Some(Flow {
            traffic_class: h.traffic_class,
            hop_limit: h.hop_limit,
            flow_label: h.flow_label.value(),
            ..Flow::new(IpAddr::from(h.source), IpAddr::from(h.destination), 0)
        });
    }
    let (h, _) = Ipv4Header::from_slice(&header[LEN - Ipv4Header::MIN_LEN..]).ok()?;
    Some(Flow {
        traffic_class: h.dscp.value() << 2 | h.ecn.value(),
        hop_limit: h.time_to_live,
        ..Flow::new(IpAddr::from(h.source), IpAddr::from(h.destination), 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_grh_decodes_to_the_same_flow() {
        for (a, b, label) in [("10.0.0.1", "10.0.0.2", 0), ("fd00::1", "fd00::2", 0x12345)] {
            let flow = Flow {
                traffic_class: 0x6a,
                hop_limit: 7,
                flow_label: label,
                ..Flow::new(a.parse().unwrap(), b.parse().unwrap(), 0)
            };
            let header = of(&flow, 100);
            assert_eq!(super::flow(&header), Some(flow));
        }
        let v4 = of(&Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 0), 100);
        assert_eq!(v4[..20], [0; 20]);
        assert_eq!(v4[22..24], 128u16.to_be_bytes());
        assert_eq!(super::flow(&[0; LEN]), None);
    }
}
