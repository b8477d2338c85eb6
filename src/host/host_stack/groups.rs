//! Multicast memberships of a host stack, and the IGMP and MLD reports that announce them.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::transport::Instant;
use crate::wire::Mac;
use crate::wire::frame::{GroupQuery, GroupReport, MembershipState};

/// Delay before the report of a new membership is repeated in case the first was lost (RFC 3376, 8.11).
pub const UNSOLICITED_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The multicast groups that a host stack has joined, and the membership reports still to be repeated.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub joined: BTreeSet<IpAddr>,
    /// Groups whose report has to be repeated, each with the time to do so, earliest first.
    repeats: VecDeque<(Instant, IpAddr)>,
    /// Whether the last query used the older protocol version: IGMPv2 for IPv4 (index 0), MLDv1 for IPv6
    /// (index 1).
    old: [bool; 2],
}

impl Groups {
    /// Joins a group. Returns false if it was already joined.
    pub fn join(&mut self, now: Instant, group: IpAddr) -> bool {
        let new = self.joined.insert(group);
        if new {
            self.repeats.push_back((now + UNSOLICITED_REPORT_INTERVAL, group));
        }
        new
    }

    /// Leaves a group. Returns false if it was not joined.
    pub fn leave(&mut self, group: IpAddr) -> bool {
        self.repeats.retain(|(_, other)| *other != group);
        self.joined.remove(&group)
    }

    /// Records the protocol version of a query, and returns the groups to report in response.
    pub fn on_query(&mut self, query: &GroupQuery) -> Vec<IpAddr> {
        self.old[usize::from(query.group.is_ipv6())] = query.old;
        let is_queried = |group: &&IpAddr| {
            group.is_ipv4() == query.group.is_ipv4()
                && (query.group.is_unspecified() || **group == query.group)
        };
        self.joined.iter().filter(is_queried).copied().collect()
    }

    /// Takes the next group whose report is due to be repeated, if any.
    pub fn due(&mut self, now: Instant) -> Option<IpAddr> {
        let (at, group) = *self.repeats.front()?;
        (at <= now).then(|| {
            self.repeats.pop_front();
            group
        })
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.repeats.front().map(|(at, _)| *at)
    }

    /// Returns the report for a group; `None` for groups that are never reported.
    pub fn report(&self, src: IpAddr, group: IpAddr, membership: MembershipState) -> Option<GroupReport> {
        let old = self.old[usize::from(group.is_ipv6())];
        let is_never_reported = match group {
            IpAddr::V4(ip) => ip == Ipv4Addr::new(224, 0, 0, 1),
            // All nodes, and groups of a scope that does not leave the host (RFC 3810, 6).
            IpAddr::V6(ip) => ip == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) || ip.octets()[1] & 0xf <= 1,
        };
        (!is_never_reported).then_some(GroupReport { src, group, membership, old })
    }
}

/// Returns the link-local address derived from a MAC (RFC 4291, appendix A). Routers ignore MLD messages from
/// any other source address.
pub(super) fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let word = |high, low| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f))
}
