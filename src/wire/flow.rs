//! Addressing of a RoCEv2 packet: the fields of its IP and UDP headers.

use std::net::IpAddr;

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// ECN field of an IP header (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ecn {
    /// Not ECN-capable.
    NotEct = 0,
    /// ECN-capable, codepoint 1.
    Ect1 = 1,
    /// ECN-capable, codepoint 0.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

/// Addresses and other variable fields in a packet's IP and UDP headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family as `src`.
    pub dst: IpAddr,
    /// UDP source port. The destination port is always [`ROCE_PORT`].
    pub src_port: u16,
    /// IPv4 ToS or IPv6 traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// Priority in the VLAN tag, on links that add one; `None` for the link's own. `None` in received
    /// packets.
    pub vlan_priority: Option<u8>,
}

impl Flow {
    /// Creates a flow with traffic class 0, hop limit 64 and flow label 0.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Flow {
        Flow { src, dst, src_port, traffic_class: 0, hop_limit: 64, flow_label: 0, vlan_priority: None }
    }

    /// Returns the ECN bits of the traffic class.
    pub fn ecn(&self) -> Ecn {
        match self.traffic_class & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Returns the flow with other ECN bits.
    pub fn with_ecn(self, ecn: Ecn) -> Flow {
        Flow { traffic_class: self.traffic_class & !3 | ecn as u8, ..self }
    }

    /// Returns the length of the IP and UDP headers in bytes: 28 or 48.
    pub fn header_len(&self) -> usize {
        if self.dst.is_ipv4() { 28 } else { 48 }
    }
}

/// IPv4 identification and flags of a datagram, if known. The ICRC covers both.
///
/// A packet socket shows them. A UDP socket does not, but they can be derived from the ICRC itself
/// ([`super::icrc::verify`]). IPv6 has neither.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpIdent {
    /// Values from the header of a burst's first packet. The identification increases by one per packet.
    Exact {
        /// Identification.
        id: u16,
        /// The three flag bits and the fragment offset, as the 16 bits on the wire.
        flags: u16,
    },
    /// The values are not visible, or the packet has none (IPv6).
    Unknown,
    /// The packets have never left the memory of this host, and have no ICRC: the last four bytes of each are
    /// unspecified. See [`MemoryPath::elide_icrcs`](crate::link::MemoryPath::elide_icrcs).
    Elided,
}

impl IpIdent {
    /// Values that every urxe link sends: the identification counts from 0 in each burst, with don't-fragment
    /// set.
    pub const SENT: IpIdent = IpIdent::Exact { id: 0, flags: IpIdent::DONT_FRAGMENT };
    /// Don't-fragment bit of the flags field.
    pub const DONT_FRAGMENT: u16 = 0x4000;
}
