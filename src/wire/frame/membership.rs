//! IGMP and MLD: the messages by which hosts report their multicast groups to routers and switches.
//!
//! Covers the current versions (IGMPv3, RFC 3376; MLDv2, RFC 3810) and the previous ones (IGMPv2, RFC 2236;
//! MLDv1, RFC 2710), as far as a host needs them that joins groups without source filters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{EtherType, IpDscp, IpNumber, Ipv4Header, Ipv6Header};

use super::{Mac, append_ethernet};

/// Membership query of a router or switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupQuery {
    /// Group to report; unspecified in a query for all groups.
    pub group: IpAddr,
    /// Whether the querier uses the previous version, IGMPv2 or MLDv1.
    pub old: bool,
}

/// State of a host's membership in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MembershipState {
    /// The host has just joined.
    Joined,
    /// The host is a member: the response to a query.
    Member,
    /// The host has left.
    Left,
}

/// Membership report of a host for one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupReport {
    /// Address of the member; for IPv6 a link-local address.
    pub src: IpAddr,
    /// The group, of the same family.
    pub group: IpAddr,
    /// State of the membership.
    pub membership: MembershipState,
    /// Whether the report uses the previous version.
    pub old: bool,
}

/// Router alert option of IPv4, which makes routers examine the packet (RFC 2113).
const ROUTER_ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
/// Complete IPv6 hop-by-hop header: next header ICMPv6, length 8 bytes, the router alert option (RFC 2711),
/// padding.
const HOP_BY_HOP: [u8; 8] = [IpNumber::IPV6_ICMP.0, 0, 5, 2, 0, 0, 1, 0];

const IGMP_QUERY: u8 = 0x11;
const MLD_QUERY: u8 = 130;

impl MembershipState {
    /// Returns the type of the group record. Its empty list of sources is excluded (all sources are received)
    /// or included (none is).
    fn record(self) -> u8 {
        match self {
            MembershipState::Member => 2,
            MembershipState::Left => 3,
            MembershipState::Joined => 4,
        }
    }
}

/// Decodes the message in an IPv4 packet of protocol 2. Returns `None` if it is not a valid query.
pub(super) fn igmp_query(message: &[u8]) -> Option<GroupQuery> {
    let group: &[u8; 4] = message.get(4..)?.first_chunk()?;
    let is_valid = message[0] == IGMP_QUERY && Sum16BitWords::new().add_slice(message).ones_complement() == 0;
    is_valid.then(|| GroupQuery { group: Ipv4Addr::from(*group).into(), old: message.len() < 12 })
}

/// Decodes the part behind the header of an IPv6 packet that starts with hop-by-hop options. Returns `None`
/// if it is not a valid query of a router on this link.
pub(super) fn mld_query(ip: &Ipv6Header, bytes: &[u8]) -> Option<GroupQuery> {
    let (options, message) = bytes.split_first_chunk::<8>()?;
    let group: &[u8; 16] = message.get(8..)?.first_chunk()?;
    let local = ip.hop_limit == 1 && Ipv6Addr::from(ip.source).is_unicast_link_local();
    let query = options[..2] == HOP_BY_HOP[..2] && message[0] == MLD_QUERY;
    let sum = icmpv6_sum(ip.source.into(), ip.destination.into(), message);
    (local && query && sum.ones_complement() == 0)
        .then(|| GroupQuery { group: Ipv6Addr::from(*group).into(), old: message.len() < 28 })
}

fn icmpv6_sum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> Sum16BitWords {
    let mut pseudo = Sum16BitWords::new().add_16bytes(src.octets()).add_16bytes(dst.octets());
    let len = (message.len() as u32).to_be_bytes();
    pseudo.add_4bytes(len).add_2bytes([0, IpNumber::IPV6_ICMP.0]).add_slice(message)
}

/// Appends the frame of a report from the MAC address `own`.
///
/// # Panics
/// If the addresses are of different families.
pub fn append_group_report(out: &mut Vec<u8>, own: Mac, report: &GroupReport) {
    match (report.src, report.group) {
        (IpAddr::V4(src), IpAddr::V4(group)) => append_igmp(out, own, src, group, report),
        (IpAddr::V6(src), IpAddr::V6(group)) => append_mld(out, own, src, group, report),
        (src, group) => panic!("a report from {src} on {group} mixes address families"),
    }
}

fn append_igmp(out: &mut Vec<u8>, own: Mac, src: Ipv4Addr, group: Ipv4Addr, report: &GroupReport) {
    let (mut message, dst) = match (report.old, report.membership) {
        // IGMPv3: one record without sources, to all routers that support the version.
        (false, membership) => {
            let mut m = vec![0x22, 0, 0, 0, 0, 0, 0, 1, membership.record(), 0, 0, 0];
            m.extend_from_slice(&group.octets());
            (m, Ipv4Addr::new(224, 0, 0, 22))
        }
        (true, membership) => {
            let left = membership == MembershipState::Left;
            let mut m = vec![if left { 0x17 } else { 0x16 }, 0, 0, 0];
            m.extend_from_slice(&group.octets());
            (m, if left { Ipv4Addr::new(224, 0, 0, 2) } else { group })
        }
    };
    let sum = Sum16BitWords::new().add_slice(&message).ones_complement();
    message[2..4].copy_from_slice(&sum.to_ne_bytes());
    let mut ip = Ipv4Header {
        // Internetwork control (DSCP CS6).
        dscp: IpDscp::try_new(0x30).unwrap_or_default(),
        total_len: (Ipv4Header::MIN_LEN + ROUTER_ALERT_V4.len() + message.len()) as u16,
        dont_fragment: true,
        time_to_live: 1,
        protocol: IpNumber::IGMP,
        source: src.octets(),
        destination: dst.octets(),
        options: ROUTER_ALERT_V4.into(),
        ..Ipv4Header::default()
    };
    ip.header_checksum = ip.calc_header_checksum();
    append_ethernet(out, Mac::of_group(dst.into()).unwrap_or(Mac::BROADCAST), own, EtherType::IPV4);
    out.extend_from_slice(&ip.to_bytes());
    out.extend_from_slice(&message);
}

fn append_mld(out: &mut Vec<u8>, own: Mac, src: Ipv6Addr, group: Ipv6Addr, report: &GroupReport) {
    let (mut message, dst) = match (report.old, report.membership) {
        (false, membership) => {
            let m = vec![143, 0, 0, 0, 0, 0, 0, 1, membership.record(), 0, 0, 0];
            (m, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16))
        }
        (true, MembershipState::Left) => {
            (vec![132, 0, 0, 0, 0, 0, 0, 0], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2))
        }
        (true, _) => (vec![131, 0, 0, 0, 0, 0, 0, 0], group),
    };
    message.extend_from_slice(&group.octets());
    let sum = icmpv6_sum(src, dst, &message).ones_complement();
    message[2..4].copy_from_slice(&sum.to_ne_bytes());
    let ip = Ipv6Header {
        payload_length: (HOP_BY_HOP.len() + message.len()) as u16,
        next_header: IpNumber::IPV6_HEADER_HOP_BY_HOP,
        hop_limit: 1,
        source: src.octets(),
        destination: dst.octets(),
        ..Ipv6Header::default()
    };
    append_ethernet(out, Mac::of_group(dst.into()).unwrap_or(Mac::BROADCAST), own, EtherType::IPV6);
    out.extend_from_slice(&ip.to_bytes());
    out.extend_from_slice(&HOP_BY_HOP);
    out.extend_from_slice(&message);
}
