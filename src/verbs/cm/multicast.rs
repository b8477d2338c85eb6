//! Multicast group membership of ids.

use std::net::{IpAddr, SocketAddr};

use super::event::Datagram;
use super::param::UDP_QKEY;
use super::state::{IdState, State};
use super::{CmEventKind, EventParam, IdError, Membership};
use crate::transport::AddressVector;
use crate::verbs::qp::QpRemote;
use crate::wire::{Gid, Qpn};

/// A multicast group that an id has joined.
pub(super) struct Group {
    ip: IpAddr,
    /// Whether the id's queue pair is attached to the group.
    attached: bool,
}

impl Group {
    pub fn leave(self, qp: Option<&QpRemote>) {
        if let Some(qp) = qp.filter(|_| self.attached) {
            // A queue pair that no longer exists has left the group.
            let _ = qp.detach_mcast(self.ip.into());
        }
    }
}

impl State {
    pub fn join_multicast(
        &mut self,
        number: u64,
        group: SocketAddr,
        membership: Membership,
    ) -> Result<(), IdError> {
        let ip = group.ip().to_canonical();
        let id = self.id(number)?;
        id.require(
            "join_multicast",
            &[IdState::Bound, IdState::AddrResolved, IdState::RouteResolved, IdState::Connected],
        )?;
        let index = id.device.ok_or(IdError::State { call: "join_multicast", state: "has no device" })?;
        if !ip.is_multicast() {
            return Err(IdError::NoGroup(ip));
        }
        if id.groups.iter().any(|group| group.ip == ip) {
            return Err(IdError::Joined(ip));
        }
        let gid = Gid::from(ip);
        let device = &self.devices[index];
        let own = id.to.map(|to| to.sgid_index);
        let of = |sgid_index| {
            let address = AddressVector { sgid_index, traffic_class: id.tos, ..AddressVector::to(gid) };
            let (qp_num, qkey, group) = (Qpn::MULTICAST, UDP_QKEY, Some(group));
            EventParam::Datagram(Datagram { qp_num, qkey, group, ..Datagram::at(address, &[]) })
        };
        let bound = || device.gid_index(id.local?.ip());
        let of_its_version = |own: &u8| device.gid(*own).ip().is_ipv4() == ip.is_ipv4();
        let towards = || device.context.gid_towards(gid);
        let Some(sgid_index) = own.or_else(bound).filter(of_its_version).or_else(towards) else {
            id.report(CmEventKind::MulticastError, -libc::EADDRNOTAVAIL, of(0));
            return Ok(());
        };
        let mut attached = false;
        if let (Some(qp), Membership::Full) = (&id.qp, membership) {
            match qp.attach_mcast(gid) {
                Some(Ok(())) => attached = true,
                Some(Err(e)) => {
                    id.report(CmEventKind::MulticastError, -e.errno(), of(sgid_index));
                    return Ok(());
                }
                None => {}
            }
        }
        id.report(CmEventKind::MulticastJoin, 0, of(sgid_index));
        self.id_mut(number)?.groups.push(Group { ip, attached });
        Ok(())
    }

    pub fn leave_multicast(&mut self, number: u64, group: SocketAddr) -> Result<(), IdError> {
        let ip = group.ip().to_canonical();
        let id = self.id_mut(number)?;
        let at = id.groups.iter().position(|group| group.ip == ip).ok_or(IdError::NoGroup(ip))?;
        id.groups.remove(at).leave(id.qp.as_ref());
        Ok(())
    }
}
