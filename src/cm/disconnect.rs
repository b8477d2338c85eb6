//! Connection teardown: DREQ and DREP, REJ, the final timeout, and release by the program.

use std::time::Duration;

use super::engine::{information, padded};
use super::server::build_rej;
use super::{Cm, CmError, ConnId, Event, State};
use crate::transport::Instant;
use crate::wire::Qpn;
use crate::wire::mad::{CommId, Drep, Dreq, Mad, MessageKind, Rej, RejReason, Rejected, SidrRep, SidrStatus};

use super::connection::{Offer, Probe};

/// Minimum time between two probes of a connection.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);

impl Cm {
    /// Requests a disconnect (DREQ), or confirms the one that the peer has requested (DREP). A connection
    /// that is not yet established is rejected (REJ). All sends should have completed first.
    ///
    /// A second call has no effect.
    ///
    /// # Errors
    /// [`CmError`], in a state without a connection.
    pub fn disconnect(&mut self, now: Instant, id: ConnId) -> Result<(), CmError> {
        use State as S;
        match self.live_conn(id)?.state {
            S::Established => self.send_dreq(now, id.0),
            S::DreqRcvd => self.send_drep(now, id.0),
            S::DreqSent | S::TimeWait => {}
            S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep => {
                self.send_rej(now, id.0, RejReason::Consumer, &[], &[])?;
                self.push_event(id.0, Event::Disconnected);
            }
            state => return Err(CmError::State { connection: id, state, action: "disconnect" }),
        }
        Ok(())
    }

    pub(super) fn send_dreq(&mut self, now: Instant, id: CommId) {
        let transaction = self.new_transaction(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.enter(id, State::DreqSent);
        conn.offer = Offer::None;
        let remote_qpn = conn.qp_params.remote_qpn;
        let dreq = Dreq { local: id, remote: conn.remote, remote_qpn, private_data: [0; 220] };
        self.stop_retransmission(id);
        self.send_request(now, id, &Mad { transaction, modifier: 0, message: dreq.into() });
    }

    /// Checks whether the peer still considers the connection established, by sending a DREQ with a queue
    /// pair number that no connection can have. A peer that has the connection ignores the DREQ; one that
    /// does not know it responds with a DREP (IBA 12.9.7, 12.6.11). Sends at most one probe per
    /// [`PROBE_INTERVAL`].
    pub(super) fn probe(&mut self, now: Instant, id: CommId) {
        let transaction = self.new_transaction(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.probe.is_some_and(|probe| now.since(probe.at) < PROBE_INTERVAL) {
            return;
        }
        conn.probe = Some(Probe { transaction, at: now });
        let dreq = Dreq { local: id, remote: conn.remote, remote_qpn: Qpn::GSI, private_data: [0; 220] };
        let to = conn.to;
        self.send_uncached_response(to, transaction, dreq);
    }

    /// Ends the connection if the DREP answers our probe, which shows that the peer no longer knows the
    /// connection. No other host can know the probe's transaction ID.
    pub(super) fn on_probe_answered(&mut self, now: Instant, id: CommId, transaction: u64) {
        let probe = self.connections.get(&id).and_then(|conn| conn.probe);
        if probe.is_some_and(|probe| probe.transaction == transaction) {
            self.finish_disconnect(now, id);
        } else {
            self.counters.unexpected += 1;
        }
    }

    fn send_drep(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.connections.get(&id) else { return };
        let (transaction, remote) = (conn.transaction, conn.remote);
        let drep = Drep { local: id, remote, private_data: [0; 224] };
        self.send_cached_response(id, MessageKind::Dreq, transaction, drep);
        self.enter_time_wait(now, id, Duration::ZERO);
    }

    /// Handles a DREQ: the peer requests a disconnect.
    pub(super) fn on_dreq(&mut self, id: CommId, transaction: u64, dreq: &Dreq) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.qp_params.qp.is_none_or(|qp| qp.qpn != dreq.remote_qpn) {
            self.counters.wrong_peer += 1;
            return;
        }
        conn.enter(id, State::DreqRcvd);
        conn.transaction = transaction;
        conn.offer = Offer::None;
        self.stop_retransmission(id);
        // The peer may use its queue pair for another connection from now on.
        self.unlink_qp(id);
        self.push_event(id, Event::DisconnectRequested);
    }

    /// Ends a connection after the peer has confirmed the disconnect, has rejected the connection, or has
    /// failed to respond.
    pub(super) fn finish_disconnect(&mut self, now: Instant, id: CommId) {
        if let Some(conn) = self.connections.get_mut(&id) {
            // The cached response belongs to the connection that has ended.
            conn.cached_response = None;
        }
        self.push_event(id, Event::Disconnected);
        self.enter_time_wait(now, id, Duration::ZERO);
    }

    /// Rejects a request or a reply (REJ). No further events are reported.
    ///
    /// # Errors
    /// [`CmError`], once the connection is established, or if the data do not fit a message.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        use State as S;
        let states = [S::ReqRcvd, S::DelayingReq, S::RepRcvd, S::DelayingRep, S::RepSent, S::RepDelayed];
        self.conn(id, &states, "reject")?;
        self.send_rej(now, id.0, reason, info, private_data)?;
        self.mark_released(id.0);
        Ok(())
    }

    /// Sends a REJ, and enters time-wait to replay it if the rejected message is retransmitted.
    fn send_rej(
        &mut self,
        now: Instant,
        id: CommId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let (info, info_len) = information(info)?;
        let private_data = padded(private_data)?;
        let Some(conn) = self.connections.get(&id) else { return Err(CmError::Unknown(ConnId(id))) };
        let (message, request_kind) = match conn.state {
            State::ReqRcvd | State::DelayingReq => (Rejected::Req, MessageKind::Req),
            State::RepRcvd | State::DelayingRep => (Rejected::Rep, MessageKind::Rep),
            _ => (Rejected::None, MessageKind::Req),
        };
        let rej = Rej { local: id, remote: conn.remote, message, info_len, reason, info, private_data };
        let response_timeout = conn.retry_policy.response_timeout;
        let transaction = conn.transaction;
        self.send_cached_response(id, request_kind, transaction, rej);
        // Covers two retransmission intervals of the peer.
        self.enter_time_wait(now, id, 2 * response_timeout);
        Ok(())
    }

    /// Sends a REJ with reason timeout, which tells the peer that our retries are exhausted.
    pub(super) fn send_timeout(&mut self, id: CommId) {
        let Some(conn) = self.connections.get(&id) else { return };
        // A peer whose ID was never received identifies the connection by our CA GUID.
        let ca_guid = self.config.ca_guid.to_be_bytes();
        let (to, transaction) = (conn.to, conn.transaction);
        let rej = build_rej(id, conn.remote, Rejected::None, RejReason::Timeout, &ca_guid);
        self.send(to, &Mad { transaction, modifier: 0, message: rej.into() });
    }

    /// Releases a connection that the program no longer needs, and notifies the peer with the message that
    /// the connection's state calls for. No further events are reported, and the queued ones are discarded.
    pub fn release(&mut self, now: Instant, id: ConnId) {
        use State as S;
        let Some(state) = self.connections.get(&id.0).filter(|c| !c.released).map(|c| c.state) else {
            return;
        };
        self.mark_released(id.0);
        match state {
            S::ReqSent | S::ReqDelayed => {
                self.send_timeout(id.0);
                self.remove_connection(id.0);
            }
            S::ReqRcvd | S::DelayingReq | S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep => {
                // Without private data the message always fits.
                let _ = self.send_rej(now, id.0, RejReason::Consumer, &[], &[]);
            }
            S::Established => self.send_dreq(now, id.0),
            S::DreqRcvd => self.send_drep(now, id.0),
            S::DreqSent | S::TimeWait => {}
            S::SidrReqSent => self.remove_connection(id.0),
            S::SidrReqRcvd => {
                let rep = SidrRep { status: SidrStatus::Rejected, ..SidrRep::default() };
                self.send_sidr_rep(now, id.0, &rep, 0);
            }
        }
    }
}
