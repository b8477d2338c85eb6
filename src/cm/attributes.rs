//! Attributes for the state transitions of a connection's queue pair.

use super::{Cm, CmError, ConnId, State};
use crate::transport::state::accepted_attrs;
use crate::transport::{AlternatePath, MigrationState, QpAttr, QpState};
use crate::wire::RnrTimer;

use super::connection::{Connection, ack_timeout};

/// Connection states in which the peer's queue pair is known.
const PEER_QP_KNOWN: [State; 8] = [
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
    /// Returns the attributes for the transition from INIT to RTR. The alternate path uses P_Key index 0. On
    /// a server that has not yet accepted, the receive PSN is missing, because it is chosen with the reply.
    ///
    /// # Errors
    /// [`CmError`], in a state in which the peer's queue pair is not known.
    pub fn rtr(&self, id: ConnId) -> Result<QpAttr, CmError> {
        let conn = self.conn_with_known_qp(id, "move the queue pair to RTR")?;
        let qp_params = &conn.qp_params;
        let attr = QpAttr::new(QpState::Rtr)
            .av(qp_params.path.av)
            .path_mtu(qp_params.path.mtu)
            .dest_qpn(qp_params.remote_qpn)
            .rq_psn(qp_params.qp.map(|qp| qp.psn))
            .max_dest_rd_atomic(qp_params.responder_resources)
            // Code 0 is the longest RNR NAK delay, and the value that rdma_cm uses.
            .min_rnr_timer(RnrTimer::new(0))
            .alt_path(self.alternate_path(conn));
        Ok(attr.only(accepted_attrs(qp_params.qp_type, QpState::Init, QpState::Rtr)))
    }

    /// Returns the attributes for the transition from RTR to RTS.
    ///
    /// # Errors
    /// [`CmError`], in a state in which the peer's queue pair is not known.
    pub fn rts(&self, id: ConnId) -> Result<QpAttr, CmError> {
        let conn = self.conn_with_known_qp(id, "move the queue pair to RTS")?;
        let qp_params = &conn.qp_params;
        let attr = QpAttr::new(QpState::Rts)
            .sq_psn(qp_params.remote_psn)
            .timeout(qp_params.ack_timeout)
            .retry_cnt(qp_params.retry_count)
            .rnr_retry(qp_params.rnr_retry_count)
            .max_rd_atomic(qp_params.initiator_depth)
            .path_mig_state(qp_params.alternate.map(|_| MigrationState::Rearm));
        Ok(attr.only(accepted_attrs(qp_params.qp_type, QpState::Rtr, QpState::Rts)))
    }

    fn alternate_path(&self, conn: &Connection) -> Option<AlternatePath> {
        let path = conn.qp_params.alternate?;
        let timeout = ack_timeout(path.packet_life, self.config.ack_delay);
        Some(AlternatePath { av: path.av, pkey_index: 0, timeout })
    }

    fn conn_with_known_qp(&self, id: ConnId, action: &'static str) -> Result<&Connection, CmError> {
        let conn = self.live_conn(id)?;
        if !PEER_QP_KNOWN.contains(&conn.state) {
            return Err(CmError::State { connection: id, state: conn.state, action });
        }
        Ok(conn)
    }
}
