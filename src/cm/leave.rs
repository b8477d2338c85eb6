//! How connections end: DREQ and DREP, REJ, giving up, and being forgotten by the program.

use std::time::Duration;

use super::engine::{information, padded};
use super::{Cm, CmError, ConnId, Event, State};
use crate::transport::Instant;
use crate::wire::mad::{
    Acknowledged, CommId, Drep, Dreq, Mad, MessageKind, Mra, Rej, RejReason, Rejected, SidrStatus,
};
use crate::wire::{AckTimeout, Qpn};

use super::connection::{Offer, Probe};

/// The shortest time between two probes of a connection.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);

impl Cm {
    /// Disconnects (DREQ), or answers the peer that wants to (DREP). What is about to be a connection is refused (REJ). The
    /// queue pair's sends should be at their end.
    ///
    /// Disconnecting twice is as once.
    ///
    /// # Errors
    /// [`CmError`], in a state without a connection, or if the data do not fit a message.
    pub fn disconnect(&mut self, now: Instant, id: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        use State as S;
        let states = [
            S::RepSent,
            S::RepDelayed,
            S::RepRcvd,
            S::DelayingRep,
            S::Established,
            S::DreqSent,
            S::DreqRcvd,
            S::TimeWait,
        ];
        let state = self.conn(id, &states, "disconnect")?.state;
        match state {
            S::Established => self.send_dreq(now, id.0, padded(private_data)?),
            S::DreqRcvd => self.send_drep(now, id.0, padded(private_data)?),
            S::DreqSent | S::TimeWait => {}
            _ => {
                self.send_rej(now, id.0, RejReason::Consumer, &[], &[])?;
                self.emit(id.0, Event::Disconnected { private_data: None });
            }
        }
        Ok(())
    }

    pub(super) fn send_dreq(&mut self, now: Instant, id: CommId, private_data: [u8; 220]) {
        let transaction = self.new_transaction(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.state = State::DreqSent;
        conn.offer = Offer::None;
        let dreq = Dreq { local: id, remote: conn.remote, remote_qpn: conn.ends.remote_qpn, private_data };
        self.settle(id);
        self.ask(now, id, &Mad { transaction, modifier: 0, message: dreq.into() });
    }

    /// Asks the peer whether it still has an established connection: with a DREQ that names a queue pair which the peer cannot
    /// have in it. A peer that has the connection ignores the DREQ; one that does not know it answers with a DREP
    /// (IBA 12.9.7, 12.6.11). At most once per [`PROBE_INTERVAL`].
    pub(super) fn probe(&mut self, now: Instant, id: CommId) {
        let transaction = self.new_transaction(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.probe.is_some_and(|probe| now.since(probe.at) < PROBE_INTERVAL) {
            return;
        }
        conn.probe = Some(Probe { transaction, at: now });
        let dreq = Dreq { local: id, remote: conn.remote, remote_qpn: Qpn::GSI, private_data: [0; 220] };
        let to = conn.to;
        self.answer_once(to, transaction, dreq);
    }

    /// The peer does not know the connection, if this answers our probe: nobody else can know its transaction.
    pub(super) fn on_probe_answered(&mut self, now: Instant, id: CommId, transaction: u64) {
        let probe = self.connections.get(&id).and_then(|conn| conn.probe);
        if probe.is_some_and(|probe| probe.transaction == transaction) {
            self.left(now, id, None);
        } else {
            self.counters.unexpected += 1;
        }
    }

    fn send_drep(&mut self, now: Instant, id: CommId, private_data: [u8; 224]) {
        let Some(conn) = self.connections.get(&id) else { return };
        let (transaction, remote) = (conn.transaction, conn.remote);
        let drep = Drep { local: id, remote, private_data };
        self.reply(id, MessageKind::Dreq, &Mad { transaction, modifier: 0, message: drep.into() });
        self.enter_time_wait(now, id, Duration::ZERO);
    }

    /// The peer wants to disconnect.
    pub(super) fn on_dreq(&mut self, id: CommId, transaction: u64, dreq: &Dreq) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.ends.qp.is_none_or(|qp| qp.qpn != dreq.remote_qpn) {
            self.counters.wrong_peer += 1;
            return;
        }
        conn.state = State::DreqRcvd;
        conn.transaction = transaction;
        conn.offer = Offer::None;
        self.settle(id);
        // The peer has its queue pair back.
        self.unlink_qp(id);
        self.emit(id, Event::DisconnectRequested(Box::new(dreq.private_data)));
    }

    /// The peer agrees, or is gone anyway.
    pub(super) fn left(&mut self, now: Instant, id: CommId, private_data: Option<Box<[u8; 224]>>) {
        if let Some(conn) = self.connections.get_mut(&id) {
            // That was of a connection which is none any more.
            conn.answer = None;
        }
        self.emit(id, Event::Disconnected { private_data });
        self.enter_time_wait(now, id, Duration::ZERO);
    }

    /// Refuses a request or a reply (REJ). No event comes any more.
    ///
    /// # Errors
    /// [`CmError`], once there is a connection, or if the data do not fit a message.
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
        self.disown(id.0);
        Ok(())
    }

    /// Sends a REJ, and stays to say it again should the question come again.
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
        let (message, question) = match conn.state {
            State::ReqRcvd | State::DelayingReq => (Rejected::Req, MessageKind::Req),
            State::RepRcvd | State::DelayingRep => (Rejected::Rep, MessageKind::Rep),
            _ => (Rejected::None, MessageKind::Req),
        };
        let rej = Rej { local: id, remote: conn.remote, message, info_len, reason, info, private_data };
        let patience = conn.wait.response;
        let mad = Mad { transaction: conn.transaction, modifier: 0, message: rej.into() };
        self.reply(id, question, &mad);
        // Until the peer would ask again, and once more.
        self.enter_time_wait(now, id, 2 * patience);
        Ok(())
    }

    /// Tells the peer that we have waited long enough.
    pub(super) fn send_timeout(&mut self, id: CommId) {
        let Some(conn) = self.connections.get(&id) else { return };
        // A peer whose ID we never learned finds the connection by our adapter.
        let ca_guid = self.config.ca_guid.to_be_bytes();
        let (to, transaction) = (conn.to, conn.transaction);
        let rej = super::server::refusal(id, conn.remote, Rejected::None, RejReason::Timeout, &ca_guid);
        let mad = Mad { transaction, modifier: 0, message: rej.into() };
        self.send(to, mad.bytes(), MessageKind::Rej);
    }

    /// Asks the peer for patience (MRA): with the answer to its request, its reply or its alternate path.
    ///
    /// # Errors
    /// [`CmError`], in a state in which the peer waits for nothing, or if the data do not fit a message.
    pub fn delay(
        &mut self,
        _now: Instant,
        id: ConnId,
        service_timeout: AckTimeout,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        use State as S;
        let private_data = padded(private_data)?;
        let action = "ask for patience";
        let states = [S::ReqRcvd, S::DelayingReq, S::RepRcvd, S::DelayingRep, S::Established];
        let conn = self.conn(id, &states, action)?;
        let mut transaction = conn.transaction;
        let (message, question) = match (conn.state, conn.offer) {
            (S::ReqRcvd | S::DelayingReq, _) => {
                conn.state = S::DelayingReq;
                (Acknowledged::Req, MessageKind::Req)
            }
            (S::RepRcvd | S::DelayingRep, _) => {
                conn.state = S::DelayingRep;
                (Acknowledged::Rep, MessageKind::Rep)
            }
            (_, Offer::Received { transaction: of }) => {
                transaction = of;
                (Acknowledged::Lap, MessageKind::Lap)
            }
            (state, _) => return Err(CmError::State { connection: id, state, action }),
        };
        let mra = Mra { local: id.0, remote: conn.remote, message, service_timeout, private_data };
        self.reply(id.0, question, &Mad { transaction, modifier: 0, message: mra.into() });
        Ok(())
    }

    /// No program cares for it any more: in any state, what is right towards the peer is done, and no event comes, nor any
    /// that waits.
    pub fn release(&mut self, now: Instant, id: ConnId) {
        use State as S;
        let Some(state) = self.connections.get(&id.0).filter(|c| !c.released).map(|c| c.state) else {
            return;
        };
        self.disown(id.0);
        match state {
            S::ReqSent | S::ReqDelayed => {
                self.send_timeout(id.0);
                self.forget(id.0);
            }
            S::ReqRcvd | S::DelayingReq | S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep => {
                // Without data, it fits.
                let _ = self.send_rej(now, id.0, RejReason::Consumer, &[], &[]);
            }
            S::Established => self.send_dreq(now, id.0, [0; 220]),
            S::DreqRcvd => self.send_drep(now, id.0, [0; 224]),
            S::DreqSent | S::TimeWait => {}
            S::SidrReqSent => self.forget(id.0),
            S::SidrReqRcvd => self.send_sidr_refusal(now, id.0, SidrStatus::Rejected),
        }
    }
}
