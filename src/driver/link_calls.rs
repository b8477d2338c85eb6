//! Application calls that involve a shard's link: multicast groups and service claims. Also handles the loss
//! of the link.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use nix::errno::Errno;

use super::shard::ShardState;
use crate::link::{ClaimError, HostMemory, JoinError, Link, LinkCounters, NicEvent};
use crate::nic::{MulticastError, UnknownQp};
use crate::transport::{Instant, ModifyError, QpAttr, QpState};
use crate::wire::mad::ServiceId;
use crate::wire::{Gid, Qpn};

/// Error when attaching a queue pair to a multicast group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The queue pair or the group is of the wrong kind, or a limit is reached.
    #[error(transparent)]
    Multicast(#[from] MulticastError),
    /// The link could not join the group.
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl ShardState {
    /// Returns the link, unless it is lost.
    pub(super) fn link(&mut self) -> Option<&mut dyn Link> {
        Some(&mut **self.link.as_mut().ok()?)
    }

    /// Returns the link's path through the memory of the host, if the link has one and is not lost.
    pub(super) fn host_memory(&mut self) -> Option<HostMemory<'_>> {
        self.link()?.host_memory()
    }

    /// Reports whether the port carries packets; `None` once the link is lost.
    pub(super) fn link_is_up(&mut self) -> Option<bool> {
        self.link().map(|link| link.port_state().is_none_or(|port| port.is_up()))
    }

    /// Returns the link's counters and, once the link is lost, the reason.
    pub fn link_status(&mut self) -> (LinkCounters, Option<Arc<io::Error>>) {
        match &mut self.link {
            Ok(link) => (link.port_state().map(|port| port.counters()).unwrap_or_default(), None),
            Err(lost) => (lost.1, Some(lost.0.clone())),
        }
    }

    /// Replaces the link with the reason for its loss, and fails the NIC. Does nothing if the link is already
    /// lost.
    pub fn lose_link(&mut self, reason: Arc<io::Error>, now: Instant) {
        let (counters, None) = self.link_status() else { return };
        self.link = Err(Box::new((reason, counters)));
        self.tx.clear();
        self.nic.fail(now, &self.memory, &mut self.tx);
        self.deliver(now);
    }

    /// Modifies a queue pair, and informs the link of a new connection.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
    ) -> Result<Result<(), ModifyError>, UnknownQp> {
        let result = self.nic.modify_qp(now, qpn, attr, &self.memory, &mut self.tx)?;
        if let (Ok(()), Some(QpState::Rtr)) = (&result, attr.state)
            && let (Some(remote), Some(path)) = (attr.dest_qpn, &attr.av)
            && let Some(observer) = self.link().and_then(|link| link.nic_observer())
        {
            observer.on_nic_event(now, &NicEvent::Connected { local: qpn, remote, peer: path.dgid.ip() });
        }
        Ok(result)
    }

    /// Attaches a queue pair to a multicast group. If it is the group's first queue pair, the link joins the
    /// group.
    pub fn attach_mcast(&mut self, now: Instant, qpn: Qpn, gid: Gid) -> Result<(), AttachError> {
        let first =
            self.nic.attach_mcast(qpn, gid).expect("the NIC has the queue pair as long as its handle")?;
        let group = gid.ip();
        let join = |link: Option<&mut dyn Link>| match link {
            Some(link) => link.multicast().ok_or(JoinError::Unsupported(group))?.join(now, group),
            None => Err(JoinError::System { group, source: Errno::ENODEV.into() }),
        };
        if first && let Err(e) = join(self.link()) {
            self.nic.detach_mcast(qpn, gid)?;
            return Err(e.into());
        }
        Ok(())
    }

    /// Detaches a queue pair from a multicast group. If it was the group's last queue pair, the link leaves
    /// the group.
    pub fn detach_mcast(&mut self, qpn: Qpn, gid: Gid) -> Result<(), MulticastError> {
        if self.nic.detach_mcast(qpn, gid)? {
            self.leave(gid);
        }
        Ok(())
    }

    /// On a shared address, registers a service with the broker, so that requests for the service arrive
    /// here.
    pub fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
        match self.link() {
            Some(link) => link.shared_address().map_or(Ok(()), |shared| shared.claim(service, address)),
            None => Err(ClaimError::System { service, source: Errno::ENODEV.into() }),
        }
    }

    /// Withdraws a service's registration.
    pub fn release(&mut self, service: ServiceId, address: Option<IpAddr>) {
        if let Some(shared) = self.link().and_then(|link| link.shared_address()) {
            shared.release(service, address);
        }
    }

    /// Detaches a queue pair from all its multicast groups.
    pub(super) fn leave_groups(&mut self, qpn: Qpn) {
        self.nic.detach_all(qpn).into_iter().for_each(|gid| self.leave(gid));
    }

    /// Makes the link leave a multicast group that has no queue pair any more.
    fn leave(&mut self, gid: Gid) {
        if let Some(multicast) = self.link().and_then(|link| link.multicast()) {
            multicast.leave(gid.ip());
        }
    }
}
