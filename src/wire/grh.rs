//! GRH area of a received datagram: 40 bytes that hold either an IPv6 header or, in the last 20 bytes, an
//! IPv4 header (annex A17.4.5.1).

use std::net::IpAddr;

use etherparse::{Ipv4Header, Ipv4HeaderSlice, Ipv6HeaderSlice};

use super::{Flow, ip};

/// Length of the GRH area in bytes.
pub const LEN: usize = 40;

/// Start of an IPv4 header.
const V4: usize = LEN - Ipv4Header::MIN_LEN;

/// Length of a UDP header in bytes.
const UDP_LEN: usize = 8;

/// Builds the GRH area for a packet received on `flow`, with `len` bytes from BTH to ICRC. Fields that a
/// socket does not expose get the values that most senders use: identification 0, don't-fragment set.
pub fn of(flow: &Flow, len: usize) -> [u8; LEN] {
    let mut out = [0; LEN];
    let udp_len = (UDP_LEN + len) as u16;
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out[V4..].copy_from_slice(&ip::v4_header(flow, src, dst, 0, udp_len).to_bytes());
        }
        _ => out.copy_from_slice(&ip::v6_header(flow, udp_len).to_bytes()),
    }
    out
}

/// Decodes a received packet's flow, except for the source port, from its GRH area. Returns `None` if the
/// header is neither IPv4 nor IPv6.
pub fn flow(header: &[u8; LEN]) -> Option<Flow> {
    match header[0] >> 4 {
        6 => Ipv6HeaderSlice::from_slice(header).ok().map(|ip| ip::v6_flow(&ip)),
        _ => Ipv4HeaderSlice::from_slice(&header[V4..]).ok().map(|ip| ip::v4_flow(&ip)),
    }
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
