//! Queue pair state transitions: the attributes of each transition, and those that the manager performs on
//! attached queue pairs.

use super::IdError;
use super::param::UDP_QKEY;
use super::state::{Id, IdState, State};
use crate::memory::Access;
use crate::transport::state::accepted_attrs;
use crate::transport::{QpAttr, QpState};
use crate::verbs::Qp;
use crate::verbs::qp::QpRemote;
use crate::wire::RnrTimer;

/// RNR NAK timer: the peer waits 41 ms after an RNR NAK from this side. It is this long because programs set
/// few retries: the kernel's connection manager uses a timer of 0.66 s.
const MIN_RNR_TIMER: RnrTimer = RnrTimer::new(24);

impl State {
    pub fn attach(&mut self, number: u64, qp: &Qp) -> Result<(), IdError> {
        let remote = qp.remote();
        let id = self.id(number)?;
        if remote.qp_type != id.qp_type {
            return Err(IdError::QpType { qp: remote.qp_type, id: id.qp_type });
        }
        let device = id.device.ok_or(IdError::State { call: "attach_qp", state: "has no device" })?;
        if !self.devices[device].context.is_same_device(qp.pd().context()) {
            return Err(IdError::OtherDevice);
        }
        modify(&remote, &self.attributes(number, QpState::Init)?)?;
        if id.is_datagram() {
            modify(&remote, &QpAttr::new(QpState::Rtr))?;
            modify(&remote, &QpAttr::new(QpState::Rts).sq_psn(remote.psn))?;
        }
        self.id_mut(number)?.qp = Some(remote);
        Ok(())
    }

    /// Returns the attributes for a queue pair's transition to `target` from the preceding state.
    pub fn attributes(&self, number: u64, target: QpState) -> Result<QpAttr, IdError> {
        let id = self.id(number)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let none = || IdError::NoAttributes(target);
        let to = QpAttr::new(target);
        match target {
            QpState::Init => {
                let first = to.pkey_index(0).port(1);
                Ok(if id.is_datagram() { first.qkey(UDP_QKEY) } else { first.access(access) })
            }
            QpState::Rtr if id.is_datagram() => Ok(to),
            QpState::Rts if id.is_datagram() => Ok(to.sq_psn(id.psn)),
            QpState::Rtr => {
                let device = &self.devices[id.device.ok_or_else(none)?];
                let attr = device.cm.rtr(id.connection.ok_or_else(none)?)?;
                let path_mtu = attr.path_mtu.map(|mtu| mtu.min(device.context.0.mtu));
                // The protocol layer does not know the receive PSN of a server before it accepts.
                let attr = attr.path_mtu(path_mtu).rq_psn(id.psn).min_rnr_timer(MIN_RNR_TIMER);
                Ok(attr.only(accepted_attrs(id.qp_type, QpState::Init, QpState::Rtr)))
            }
            QpState::Rts => {
                let device = &self.devices[id.device.ok_or_else(none)?];
                let attr = device.cm.rts(id.connection.ok_or_else(none)?)?;
                let attr = attr.timeout(id.ack_timeout.or(attr.timeout));
                Ok(attr.only(accepted_attrs(id.qp_type, QpState::Rtr, QpState::Rts)))
            }
            _ => Err(none()),
        }
    }

    /// Moves the attached queue pair through RTR to RTS. `grants` overrides the responder resources and the
    /// initiator depth.
    pub fn move_to_rts(&self, number: u64, grants: Option<(u8, u8)>) -> Result<(), IdError> {
        let id = self.id(number)?;
        let Some(qp) = &id.qp else { return Ok(()) };
        let (mut rtr, mut rts) =
            (self.attributes(number, QpState::Rtr)?, self.attributes(number, QpState::Rts)?);
        if let Some((responder_resources, initiator_depth)) = grants {
            rtr.max_dest_rd_atomic = rtr.max_dest_rd_atomic.map(|_| responder_resources);
            rts.max_rd_atomic = rts.max_rd_atomic.map(|_| initiator_depth);
        }
        // The peer may offer more than this device supports.
        let max = id.device.map_or(0, |device| self.devices[device].max_rd_atomic());
        rtr.max_dest_rd_atomic = rtr.max_dest_rd_atomic.map(|n| n.min(max));
        rts.max_rd_atomic = rts.max_rd_atomic.map(|n| n.min(max));
        modify(qp, &rtr)?;
        modify(qp, &rts)
    }
}

impl Id {
    /// Moves the attached queue pair to the error state, which flushes its work requests.
    pub fn fail_qp(&self) {
        let attr = QpAttr::new(QpState::Err);
        if let Some(qp) = self.qp.as_ref().filter(|_| !self.is_datagram()) {
            // The transition is allowed in every state, so it fails only if the queue pair no longer exists.
            let _ = qp.modify(&attr);
        }
    }

    /// Ends the id after its connection has ended or could not be established.
    pub fn end(&mut self) {
        self.fail_qp();
        self.state = IdState::Ended;
    }
}

pub(super) fn modify(qp: &QpRemote, attr: &QpAttr) -> Result<(), IdError> {
    Ok(qp.modify(attr).ok_or(IdError::NoQp)??)
}
