//! Received messages: finds the connection that a message is for, and selects the handler by the state of the
//! connection.

use super::connection::{CachedResponse, Offer, timeout_duration};
use super::server::build_rej;
use super::{Cm, Event, State, unmatched};
use crate::transport::{AddressVector, Instant};
use crate::wire::Qpn;
use crate::wire::mad::{
    Acknowledged, Apr, AprStatus, CommId, Drep, Ece, Mad, Message, Mra, Recipient, RejReason, Rejected,
};

impl Cm {
    /// Handles a MAD received on QP1. A MAD that is not a valid CM message is counted and dropped. `source`
    /// is the address vector back to the sender, from the GID that the MAD was sent to, and `src_qpn` the
    /// sender's queue pair; only MADs from QP1 are accepted.
    pub fn handle_mad(&mut self, now: Instant, source: &AddressVector, src_qpn: Qpn, mad: &[u8]) {
        if src_qpn != Qpn::GSI {
            self.counters.wrong_qpn += 1;
            return;
        }
        let Ok(mad) = Mad::parse(mad) else {
            self.counters.malformed += 1;
            return;
        };
        self.counters.received[mad.message.kind() as usize] += 1;
        match &mad.message {
            Message::Req(req) => self.on_req(now, source, &mad, req),
            Message::SidrReq(req) => self.on_sidr_req(now, source, &mad, req),
            message => match self.find(source, message) {
                None => {
                    if let Message::Rej(rej) = message {
                        self.pending_listeners.remove_request(source.dgid, rej.local);
                    }
                    self.counters.unknown += 1;
                    self.respond_to_unknown_connection(source, &mad);
                }
                Some(id) if !self.is_from_peer(id, source, message) => self.counters.wrong_peer += 1,
                Some(id) => self.on_message(now, id, source, &mad),
            },
        }
    }

    /// Finds the connection that a message is for.
    fn find(&self, source: &AddressVector, message: &Message) -> Option<CommId> {
        match (message.recipient(), message) {
            // A client that gives up before it has received our ID identifies itself by its CA GUID (IBA
            // 12.6.7.2).
            (Recipient::Connection(CommId(0)), Message::Rej(rej)) if rej.reason == RejReason::Timeout => {
                let ca_guid = u64::from_be_bytes(*rej.info().first_chunk()?);
                self.by_remote.get(&((ca_guid, source.dgid), rej.local)).copied()
            }
            (Recipient::Connection(id), _) => self.connections.contains_key(&id).then_some(id),
            (Recipient::Service(_), _) => None,
        }
    }

    /// Reports whether a message comes from the GID of the connection's peer and carries the peer's
    /// communication ID.
    fn is_from_peer(&self, id: CommId, source: &AddressVector, message: &Message) -> bool {
        let Some(conn) = self.connections.get(&id) else { return false };
        let sender_id = match message {
            Message::Mra(m) => m.local,
            Message::Rep(m) => m.local,
            Message::Rtu(m) => m.local,
            Message::Dreq(m) => m.local,
            Message::Drep(m) => m.local,
            Message::Lap(m) => m.local,
            Message::Apr(m) => m.local,
            // A server that rejects a REQ need not have a communication ID. Once a reply has arrived, such a
            // REJ is late and must carry the ID of the peer.
            Message::Rej(m) if m.message == Rejected::Req && conn.state.awaits_rep() => conn.remote,
            Message::Rej(m) => m.local,
            Message::Req(_) | Message::SidrReq(_) | Message::SidrRep(_) => conn.remote,
        };
        let same_id = conn.remote == CommId(0) || conn.remote == sender_id || conn.state == State::ReqDelayed;
        conn.to.dgid == source.dgid && same_id
    }

    /// Responds to a message for an unknown connection, if its sender expects a response.
    fn respond_to_unknown_connection(&mut self, source: &AddressVector, mad: &Mad) {
        let response = match &mad.message {
            Message::Lap(m) => {
                let status = AprStatus::InvalidCommId;
                Some(Apr { local: m.remote, remote: m.local, status, ..Apr::default() }.into())
            }
            message => unmatched::response(message),
        };
        if let Some(response) = response {
            self.send_uncached_response(*source, mad.transaction, response);
        }
    }

    /// Handles a message for a connection in the connection's current state (IBA 12.9.7). A message that is
    /// late or unexpected in this state is counted and ignored.
    pub(super) fn on_message(&mut self, now: Instant, id: CommId, source: &AddressVector, mad: &Mad) {
        use Message as M;
        use State as S;
        let Some(state) = self.connections.get(&id).map(|c| c.state) else { return };
        match (state, &mad.message) {
            (S::ReqSent | S::ReqDelayed, M::Rep(rep)) => self.on_rep(now, id, source, mad, rep),
            // Only one MRA counts; otherwise a peer could extend the wait forever.
            (S::ReqSent | S::RepSent | S::Established, M::Mra(mra)) => self.on_mra(now, id, mra),
            // No data could flow yet, so there is no time-wait.
            (S::ReqSent | S::ReqDelayed | S::ReqRcvd | S::DelayingReq, M::Rej(rej))
            | (S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep, M::Rej(rej)) => {
                self.close_connection(id, Event::Rejected(Box::new(*rej)))
            }

            (S::ReqRcvd | S::DelayingReq | S::RepSent | S::RepDelayed, M::Req(_))
            | (S::RepRcvd | S::DelayingRep, M::Rep(_))
            | (S::Established, M::Req(_) | M::Rep(_))
            | (S::TimeWait, M::Req(_) | M::Rep(_) | M::Dreq(_) | M::SidrReq(_))
            | (S::SidrReqRcvd, M::SidrReq(_)) => self.on_duplicate(id, mad.transaction, &mad.message),
            (S::RepSent | S::RepDelayed, M::Rtu(_)) => self.on_rtu(id),

            // Also before the RTU, which may be lost: a client that disconnects was ready.
            (S::RepSent | S::RepDelayed | S::RepRcvd | S::DelayingRep | S::Established, M::Dreq(dreq)) => {
                self.on_dreq(id, mad.transaction, dreq)
            }
            // The DREQs of both ends have crossed.
            (S::DreqSent, M::Dreq(dreq)) => {
                let drep = Drep { local: id, remote: dreq.local, private_data: [0; 224] };
                self.send_uncached_response(*source, mad.transaction, drep);
                self.finish_disconnect(now, id);
            }
            (S::Established, M::Drep(_)) => self.on_probe_answered(now, id, mad.transaction),
            (S::DreqSent, M::Drep(_)) | (S::Established | S::DreqSent, M::Rej(_)) => {
                self.finish_disconnect(now, id)
            }

            (S::Established, M::Lap(lap)) => self.on_lap(id, source, mad.transaction, lap),
            (S::Established, M::Apr(apr)) => self.on_apr(id, mad.transaction, apr),
            (S::SidrReqSent, M::SidrRep(rep)) => {
                let ece = Ece { vendor_id: rep.vendor_id, options: mad.modifier };
                self.close_connection(id, Event::SidrResponse { rep: Box::new(*rep), ece });
            }
            _ => self.counters.unexpected += 1,
        }
    }

    /// Handles a duplicate message: replays our response, or requests more time (MRA) if the program has not
    /// yet responded.
    fn on_duplicate(&mut self, id: CommId, transaction: u64, message: &Message) {
        self.counters.duplicates += 1;
        let service_timeout = self.config.service_timeout;
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let (to, remote, kind) = (conn.to, conn.remote, message.kind());
        if let Some(response) = conn.cached_response.as_ref().filter(|a| a.to == kind) {
            let mad = *response.mad;
            return self.send_response(to, &mad);
        }
        let (message, state) = match (conn.state, message) {
            (State::ReqRcvd, _) => (Acknowledged::Req, State::DelayingReq),
            (State::RepRcvd, _) => (Acknowledged::Rep, State::DelayingRep),
            (State::TimeWait, Message::Dreq(_)) => {
                let drep = Drep { local: id, remote, private_data: [0; 224] };
                return self.send_uncached_response(to, transaction, drep);
            }
            // Late duplicate of a request whose connection has ended already.
            (State::TimeWait, Message::Req(_)) => {
                let rej = build_rej(id, remote, Rejected::Req, RejReason::StaleConnection, &[]);
                return self.send_uncached_response(to, transaction, rej);
            }
            _ => return,
        };
        conn.enter(id, state);
        let mra = Mra { local: id, remote, message, service_timeout, ..Mra::default() };
        let mad = Mad { transaction, modifier: 0, message: mra.into() };
        conn.cached_response = Some(CachedResponse { to: kind, mad: Box::new(mad) });
        self.send_response(to, &mad);
    }

    /// Handles an MRA: the peer has received our request, our reply or our offer of an alternate path, and
    /// requests more time to respond. Only the first MRA extends the timeout.
    fn on_mra(&mut self, now: Instant, id: CommId, mra: &Mra) {
        let service_timeout = self.clamp_timeout(mra.service_timeout);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        match (conn.state, mra.message, &mut conn.offer) {
            (State::ReqSent, Acknowledged::Req, _) => {
                conn.enter(id, State::ReqDelayed);
                conn.remote = mra.local;
            }
            (State::RepSent, Acknowledged::Rep, _) => {
                conn.enter(id, State::RepDelayed);
                conn.remote = mra.local;
            }
            (State::Established, Acknowledged::Lap, Offer::Sent { delayed, .. }) if !*delayed => {
                *delayed = true
            }
            _ => return self.counters.unexpected += 1,
        }
        let wait = timeout_duration(service_timeout) + conn.retry_policy.response_timeout;
        self.arm(id, Some(now + wait));
        self.push_event(id, Event::Delayed(Box::new(*mra)));
    }
}
