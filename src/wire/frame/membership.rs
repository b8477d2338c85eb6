//! IGMP and MLD messages, which tell routers and switches which multicast groups a host belongs to.
//!
//! Covers the current versions (IGMPv3, RFC 3376; MLDv2, RFC 3810) and the previous ones (IGMPv2, RFC 2236;
//! MLDv1, RFC 2710), as far as a host needs them that joins groups without source filters.
//!
//! etherparse has the formats of IGMP and of the ICMPv6 header. The bodies of MLD messages are encoded here:
//! etherparse 0.21 has none, and smoltcp 0.13 has only those of MLDv2, has no report of IGMPv3, and depends
//! on seven other crates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::{
    TYPE_MULTICAST_LISTENER_QUERY, TYPE_MULTICAST_LISTENER_REDUCTION, TYPE_MULTICAST_LISTENER_REPORT,
};
use etherparse::igmp::{
    LeaveGroupType, MembershipReportV2Type, MembershipReportV3Header, ReportGroupRecordType,
    ReportGroupRecordV3Header,
};
use etherparse::{
    Icmpv6Slice, Icmpv6Type, IgmpSlice, IgmpType, IpDscp, IpHeaders, IpNumber, Ipv4Header, Ipv6Extensions,
    Ipv6Header, Ipv6HeaderSlice, Ipv6RawExtHeader, PacketBuilder,
};

use super::Mac;
use super::control::FITS;

/// Membership query from a router or switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupQuery {
    /// Queried group; the unspecified address in a query for all groups.
    pub group: IpAddr,
    /// Whether the querier uses the previous protocol version, IGMPv2 or MLDv1.
    pub old: bool,
}

/// State of a host's membership in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MembershipState {
    /// The host has just joined.
    Joined,
    /// The host is a member, and is responding to a query.
    Member,
    /// The host has left.
    Left,
}

/// A host's membership report for one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupReport {
    /// The member's address, which is link-local for IPv6.
    pub src: IpAddr,
    /// Group, of the same address family as `src`.
    pub group: IpAddr,
    /// State of the membership.
    pub membership: MembershipState,
    /// Whether the report uses the previous protocol version, IGMPv2 or MLDv1.
    pub old: bool,
}

/// IPv4 router alert option (RFC 2113), which makes routers examine the packet.
const ROUTER_ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
/// IPv6 router alert option (RFC 2711) and padding: the contents of an 8-byte hop-by-hop header.
const ROUTER_ALERT_V6: [u8; 6] = [5, 2, 0, 0, 1, 0];

/// ICMPv6 message type of an MLDv2 report.
const MLD2_REPORT: u8 = 143;

impl MembershipState {
    /// Returns the group record type. The source list is always empty, so EXCLUDE mode means that all sources
    /// are received, and INCLUDE mode means that none are.
    fn record(self) -> ReportGroupRecordType {
        match self {
            MembershipState::Member => ReportGroupRecordType::MODE_IS_EXCLUDE,
            MembershipState::Left => ReportGroupRecordType::CHANGE_TO_INCLUDE_MODE,
            MembershipState::Joined => ReportGroupRecordType::CHANGE_TO_EXCLUDE_MODE,
        }
    }
}

/// Decodes an IGMP message from the payload of an IPv4 packet. Returns `None` if it is not a valid query.
pub(super) fn igmp_query(message: &[u8]) -> Option<GroupQuery> {
    let message = IgmpSlice::from_slice(message).ok().filter(IgmpSlice::is_checksum_valid)?;
    let (group, old) = match message {
        IgmpSlice::MembershipQuery(query) => (query.group_address(), true),
        IgmpSlice::MembershipQueryWithSources(query) => (query.group_address(), false),
        _ => return None,
    };
    Some(GroupQuery { group: Ipv4Addr::from(group).into(), old })
}

/// Decodes the MLD message in an IPv6 packet. `bytes` is the data after the IPv6 header, and starts with the
/// hop-by-hop options. Returns `None` if the message is not a valid query from a router on this link.
pub(super) fn mld_query(ip: &Ipv6HeaderSlice<'_>, bytes: &[u8]) -> Option<GroupQuery> {
    let ([next_header, 0, ..], message) = bytes.split_first_chunk::<8>()? else { return None };
    let message = Icmpv6Slice::from_slice(message).ok()?;
    let group: &[u8; 16] = message.payload().first_chunk()?;
    // Queries of other lengths are to be ignored (RFC 3810, 8.1).
    let old = match message.slice().len() {
        24 => true,
        28.. => false,
        _ => return None,
    };
    let is_valid = ip.hop_limit() == 1
        && ip.source_addr().is_unicast_link_local()
        && *next_header == IpNumber::IPV6_ICMP.0
        && message.type_u8() == TYPE_MULTICAST_LISTENER_QUERY
        && message.is_checksum_valid(ip.source(), ip.destination());
    is_valid.then(|| GroupQuery { group: Ipv6Addr::from(*group).into(), old })
}

/// Appends a frame with a membership report, sent from the MAC address `own`.
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
    let group_address = group.into();
    let record = ReportGroupRecordV3Header {
        record_type: report.membership.record(),
        aux_data_len: 0,
        num_of_sources: 0,
        multicast_address: group.octets(),
    };
    let (message, records, dst) = match (report.old, report.membership) {
        // IGMPv3: one record without sources, to all routers that support the version.
        (false, _) => {
            let header = MembershipReportV3Header { flags: [0; 2], num_of_records: 1 };
            (IgmpType::MembershipReportV3(header), &record.to_bytes()[..], Ipv4Addr::new(224, 0, 0, 22))
        }
        (true, MembershipState::Left) => {
            (IgmpType::LeaveGroup(LeaveGroupType { group_address }), &[][..], Ipv4Addr::new(224, 0, 0, 2))
        }
        (true, _) => (IgmpType::MembershipReportV2(MembershipReportV2Type { group_address }), &[][..], group),
    };
    let ip = Ipv4Header {
        dscp: IpDscp::CS6,
        dont_fragment: true,
        time_to_live: 1,
        source: src.octets(),
        destination: dst.octets(),
        options: ROUTER_ALERT_V4.into(),
        ..Ipv4Header::default()
    };
    PacketBuilder::ethernet2(own.0, Mac::of_group(dst.into()).unwrap_or(Mac::BROADCAST).0)
        .ip(IpHeaders::Ipv4(ip, Default::default()))
        .igmp(message)
        .write(out, records)
        .expect(FITS);
}

fn append_mld(out: &mut Vec<u8>, own: Mac, src: Ipv6Addr, group: Ipv6Addr, report: &GroupReport) {
    let record = [report.membership.record().0, 0, 0, 0];
    let (type_u8, bytes5to8, record, dst) = match (report.old, report.membership) {
        // MLDv2: one record without sources, to all routers that support the version.
        (false, _) => (MLD2_REPORT, [0, 0, 0, 1], &record[..], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16)),
        (true, MembershipState::Left) => {
            (TYPE_MULTICAST_LISTENER_REDUCTION, [0; 4], &[][..], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2))
        }
        (true, _) => (TYPE_MULTICAST_LISTENER_REPORT, [0; 4], &[][..], group),
    };
    let ip =
        Ipv6Header { hop_limit: 1, source: src.octets(), destination: dst.octets(), ..Ipv6Header::default() };
    let options =
        Ipv6RawExtHeader::new_raw(IpNumber::IPV6_ICMP, &ROUTER_ALERT_V6).expect("6 bytes fill a header");
    let extensions = Ipv6Extensions { hop_by_hop_options: Some(options), ..Ipv6Extensions::default() };
    PacketBuilder::ethernet2(own.0, Mac::of_group(dst.into()).unwrap_or(Mac::BROADCAST).0)
        .ip(IpHeaders::Ipv6(ip, extensions))
        .icmpv6(Icmpv6Type::Unknown { type_u8, code_u8: 0, bytes5to8 })
        .write(out, &[record, &group.octets()].concat())
        .expect(FITS);
}
