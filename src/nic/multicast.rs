//! Multicast: attachment of UD queue pairs to groups, and delivery to all members (IBA 10.5.2).

use std::collections::{HashMap, HashSet};

use super::rx::BurstPackets;
use super::{Limits, Nic, UnknownQp};
use crate::burst::TxQueue;
use crate::memory::Table;
use crate::transport::{Instant, QpType};
use crate::wire::{Gid, Packet, Qpn};

/// Reason why a queue pair could not be attached to or detached from a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MulticastError {
    /// The GID is not a multicast GID.
    #[error(
        "{0} is no multicast GID: those are ff00::/8 and, for IPv4, ::ffff:224.0.0.0 to ::ffff:239.255.255.255"
    )]
    NotMulticast(Gid),
    /// The queue pair is not a UD queue pair.
    #[error("a {0:?} QP cannot be in a multicast group: only UD can")]
    Service(QpType),
    /// The maximum number of multicast groups is in use.
    #[error("QPs are attached to all {0} multicast groups that the device has")]
    TooManyGroups(u32),
    /// The maximum number of queue pairs is already attached to the group.
    #[error("{0} QPs are attached to the group already, as many as the device allows")]
    GroupFull(u32),
    /// The maximum number of attachments, across all groups, is in use.
    #[error("all {0} attachments of QPs to multicast groups that the device has are in use")]
    TooManyAttachments(u32),
    /// The queue pair is not attached to the group.
    #[error("the QP is not attached to {0}")]
    NotAttached(Gid),
}

/// Multicast groups, each with its members in order of attachment.
#[derive(Debug, Default)]
pub(crate) struct MulticastTable {
    groups: HashMap<Gid, Vec<Qpn>>,
    attachments: u32,
    /// Queue pairs that do not receive their own messages (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    without_loopback: HashSet<Qpn>,
}

impl MulticastTable {
    /// Attaches a queue pair to a group; attaching it again has no effect. Returns whether it is the group's
    /// first member.
    pub fn attach(&mut self, qpn: Qpn, gid: Gid, limits: &Limits) -> Result<bool, MulticastError> {
        let members = self.groups.get(&gid).map_or(&[][..], Vec::as_slice);
        if members.contains(&qpn) {
            return Ok(false);
        }
        let first = members.is_empty();
        if first && self.groups.len() >= limits.max_mcast_grp as usize {
            return Err(MulticastError::TooManyGroups(limits.max_mcast_grp));
        }
        if members.len() >= limits.max_mcast_qp_attach as usize {
            return Err(MulticastError::GroupFull(limits.max_mcast_qp_attach));
        }
        if self.attachments >= limits.max_total_mcast_qp_attach {
            return Err(MulticastError::TooManyAttachments(limits.max_total_mcast_qp_attach));
        }
        self.groups.entry(gid).or_default().push(qpn);
        self.attachments += 1;
        Ok(first)
    }

    /// Detaches a queue pair from a group. Returns whether it was the group's last member.
    pub fn detach(&mut self, qpn: Qpn, gid: Gid) -> Result<bool, MulticastError> {
        let absent = MulticastError::NotAttached(gid);
        let members = self.groups.get_mut(&gid).ok_or(absent)?;
        let at = members.iter().position(|m| *m == qpn).ok_or(absent)?;
        members.remove(at);
        self.attachments -= 1;
        let last = members.is_empty();
        if last {
            self.groups.remove(&gid);
        }
        Ok(last)
    }

    /// Detaches a queue pair from all its groups. Returns the groups that have no members left.
    pub fn detach_all(&mut self, qpn: Qpn) -> Vec<Gid> {
        let mut of: Vec<Gid> =
            self.groups.iter().filter(|(_, m)| m.contains(&qpn)).map(|(g, _)| *g).collect();
        of.sort_unstable();
        of.retain(|gid| self.detach(qpn, *gid) == Ok(true));
        of
    }

    /// Removes all state of a destroyed queue pair.
    pub fn forget(&mut self, qpn: Qpn) {
        self.detach_all(qpn);
        self.without_loopback.remove(&qpn);
    }

    /// Returns the queue pairs attached to a group.
    pub fn members(&self, gid: Gid) -> &[Qpn] {
        self.groups.get(&gid).map_or(&[], Vec::as_slice)
    }
}

impl Nic {
    /// Attaches a UD queue pair to a multicast group; attaching it again has no effect. Returns whether it is
    /// the group's first member, in which case the link must join the group.
    ///
    /// # Errors
    /// Outer: [`UnknownQp`]. Inner: [`MulticastError`].
    pub fn attach_mcast(&mut self, qpn: Qpn, gid: Gid) -> Result<Result<bool, MulticastError>, UnknownQp> {
        let qp_type = self.table.get(qpn).ok_or(UnknownQp(qpn))?.qp.qp_type();
        Ok(if !gid.is_multicast() {
            Err(MulticastError::NotMulticast(gid))
        } else if qp_type != QpType::Ud {
            Err(MulticastError::Service(qp_type))
        } else {
            self.multicast.attach(qpn, gid, &self.config.personality.limits)
        })
    }

    /// Detaches a queue pair from a multicast group. Returns whether it was the group's last member, in which
    /// case the link may leave the group.
    ///
    /// # Errors
    /// [`MulticastError::NotAttached`] if the queue pair is not attached to the group.
    pub fn detach_mcast(&mut self, qpn: Qpn, gid: Gid) -> Result<bool, MulticastError> {
        self.multicast.detach(qpn, gid)
    }

    /// Detaches a queue pair from all its multicast groups. Returns the groups that have no members left.
    pub fn detach_all(&mut self, qpn: Qpn) -> Vec<Gid> {
        self.multicast.detach_all(qpn)
    }

    /// Permanently stops a queue pair from receiving its own multicast messages.
    pub fn block_multicast_loopback(&mut self, qpn: Qpn) {
        self.multicast.without_loopback.insert(qpn);
    }

    /// Passes a packet to every queue pair attached to its destination group; each accepts or drops it
    /// independently (IBA 10.5.2).
    pub(super) fn deliver_to_group(
        &mut self,
        now: Instant,
        packets: &BurstPackets<'_>,
        packet: &Packet<'_>,
        memory: &Table,
        tx: &mut TxQueue,
    ) {
        let flow = packets.burst.flow;
        let gid = Gid::from(flow.dst);
        let count = self.multicast.members(gid).len();
        if count == 0 {
            self.state.counters.rx_unknown_group += 1;
        }
        let is_own = self.config.port.gids.contains(&Gid::from(flow.src));
        let sender = packet.deth().map(|deth| deth.src_qp).filter(|_| is_own);
        let excluded = sender.filter(|qpn| self.multicast.without_loopback.contains(qpn));
        for i in 0..count {
            let qpn = self.multicast.members(gid)[i];
            if Some(qpn) == excluded {
                continue;
            }
            self.deliver_to_qp(qpn, now, packet, &mut packets.without_rest(), memory, tx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::Personality;

    const LIMITS: Limits = Limits {
        max_mcast_grp: 2,
        max_mcast_qp_attach: 2,
        max_total_mcast_qp_attach: 3,
        ..Personality::STRICT.limits
    };

    fn group(n: u8) -> Gid {
        Gid::from(std::net::Ipv4Addr::new(239, 0, 0, n))
    }

    #[test]
    fn group_has_each_member_once_in_order_of_attachment() {
        let mut t = MulticastTable::default();
        let [a, b] = [Qpn::new(7), Qpn::new(3)];
        assert_eq!(t.attach(a, group(1), &LIMITS), Ok(true));
        assert_eq!(t.attach(b, group(1), &LIMITS), Ok(false));
        assert_eq!(t.attach(a, group(1), &LIMITS), Ok(false));
        assert_eq!(t.members(group(1)), [a, b]);
        assert_eq!(t.detach(a, group(1)), Ok(false));
        assert_eq!(t.detach(a, group(1)), Err(MulticastError::NotAttached(group(1))));
        assert_eq!(t.members(group(1)), [b]);
        assert_eq!(t.detach(b, group(1)), Ok(true));
        assert_eq!(t.detach(b, group(1)), Err(MulticastError::NotAttached(group(1))));
        assert_eq!(t.members(group(1)), []);
        assert_eq!((t.groups.len(), t.attachments), (0, 0));
    }

    #[test]
    fn rejected_attachment_leaves_multicast_table_unchanged() {
        let mut t = MulticastTable::default();
        let [a, b, c] = [1, 2, 3].map(Qpn::new);
        t.attach(a, group(1), &LIMITS).unwrap();
        t.attach(a, group(2), &LIMITS).unwrap();
        assert_eq!(t.attach(a, group(3), &LIMITS), Err(MulticastError::TooManyGroups(2)));
        t.attach(b, group(1), &LIMITS).unwrap();
        assert_eq!(t.attach(c, group(1), &LIMITS), Err(MulticastError::GroupFull(2)));
        assert_eq!(t.attach(c, group(2), &LIMITS), Err(MulticastError::TooManyAttachments(3)));
        // Attaching a member again takes no more room.
        assert_eq!(t.attach(b, group(1), &LIMITS), Ok(false));
        assert_eq!(t.members(group(2)), [a]);
        t.detach(a, group(2)).unwrap();
        assert_eq!(t.attach(c, group(3), &LIMITS), Ok(true));
    }

    #[test]
    fn detach_all_returns_the_groups_that_become_empty() {
        let mut t = MulticastTable::default();
        let limits = Personality::STRICT.limits;
        let [a, b] = [1, 2].map(Qpn::new);
        for n in 1..=3 {
            t.attach(a, group(n), &limits).unwrap();
        }
        t.attach(b, group(2), &limits).unwrap();
        assert_eq!(t.detach_all(a), [group(1), group(3)]);
        assert_eq!(t.detach_all(a), []);
        assert_eq!((t.members(group(2)), t.attachments), (&[b][..], 1));
    }
}
