//! Attributes that the queue pair of a connection needs for its state transitions.

use super::{Cm, CmError, ConnId, State};
use crate::transport::state::TRANSITIONS;
use crate::transport::{AlternatePath, AttrMask, MigrationState, QpAttr, QpState, QpType};
use crate::wire::RnrTimer;

use super::connection::{Connection, ack_timeout};

/// States of a connection in which the peer's queue pair is known.
const KNOWN: [State; 8] = [
    State::ReqRcvd,
    State::DelayingReq,
    State::RepSent,
    State::RepDelayed,
    State::RepRcvd,
    State::DelayingRep,
    State::Established,
    State::DreqRcvd,
];

impl Cm {
    /// Returns the attributes of the transition from INIT to RTR. The alternate path uses P_Key index 0. At a
    /// server that has not accepted yet, the receive PSN is missing, because the reply determines it.
    ///
    /// # Errors
    /// [`CmError`], in a state in which the peer's queue pair is not known.
    pub fn rtr(&self, id: ConnId) -> Result<QpAttr, CmError> {
        let conn = self.known(id, "go to RTR")?;
        let ends = &conn.ends;
        let attr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(ends.path.av),
            path_mtu: Some(ends.path.mtu),
            dest_qpn: Some(ends.remote_qpn),
            rq_psn: ends.qp.map(|qp| qp.psn),
            max_dest_rd_atomic: Some(ends.responder_resources),
            // Code 0 is the longest RNR NAK delay, and the value that rdma_cm uses.
            min_rnr_timer: Some(RnrTimer::new(0)),
            alt_path: self.alternate_path(conn),
            ..QpAttr::default()
        };
        Ok(attr.only(attributes(ends.qp_type, QpState::Init, QpState::Rtr, AttrMask::ALT_PATH)))
    }

    /// Returns the attributes of the transition from RTR to RTS.
    ///
    /// # Errors
    /// [`CmError`], in a state in which the peer's queue pair is not known.
    pub fn rts(&self, id: ConnId) -> Result<QpAttr, CmError> {
        let conn = self.known(id, "go to RTS")?;
        let ends = &conn.ends;
        let attr = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(ends.remote_psn),
            timeout: Some(ends.ack_timeout),
            retry_cnt: Some(ends.retry_count),
            rnr_retry: Some(ends.rnr_retry_count),
            max_rd_atomic: Some(ends.initiator_depth),
            path_mig_state: ends.alternate.map(|_| MigrationState::Rearm),
            ..QpAttr::default()
        };
        Ok(attr.only(attributes(ends.qp_type, QpState::Rtr, QpState::Rts, AttrMask::PATH_MIG_STATE)))
    }

    fn alternate_path(&self, conn: &Connection) -> Option<AlternatePath> {
        let path = conn.ends.alternate?;
        let timeout = ack_timeout(path.packet_life, self.config.ack_delay);
        Some(AlternatePath { av: path.av, pkey_index: 0, timeout })
    }

    fn known(&self, id: ConnId, action: &'static str) -> Result<&Connection, CmError> {
        let conn = self.connections.get(&id.0).filter(|c| !c.released).ok_or(CmError::Unknown(id))?;
        if !KNOWN.contains(&conn.state) {
            return Err(CmError::State { connection: id, state: conn.state, action });
        }
        Ok(conn)
    }
}

/// Returns the attributes that a transition requires, plus an optional one.
fn attributes(qp_type: QpType, from: QpState, to: QpState, optional: AttrMask) -> AttrMask {
    let row = TRANSITIONS.iter().find(|t| (t.qp_type, t.from, t.to) == (qp_type, from, to));
    row.map_or(optional, |row| row.required | optional)
}
