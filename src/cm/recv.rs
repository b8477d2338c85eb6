//! Received messages: finds the connection that a message is for, and executes the step given by the state
//! table.

use super::connection::CachedResponse;
use super::state::{Step, step};
use super::{Cm, Event, MadSource, Rejection, State, unmatched};
use crate::transport::Instant;
use crate::wire::Qpn;
use crate::wire::mad::{
    Acknowledged, Apr, AprStatus, CommId, Drep, Mad, Message, MessageKind, Mra, Recipient, Rej, RejReason,
    Rejected,
};

impl Cm {
    /// Handles a MAD received on QP1. A MAD that is not a valid CM message is counted and dropped.
    pub fn handle_mad(&mut self, now: Instant, source: &MadSource, mad: &[u8]) {
        if source.src_qpn != Qpn::GSI {
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
                        self.pending_listeners.remove_request(source.from.dgid, rej.local);
                    }
                    self.counters.unknown += 1;
                    self.respond_to_unknown_connection(source, &mad);
                }
                Some(id) if !self.is_from_peer(id, source, message) => self.counters.wrong_peer += 1,
                Some(id) => self.execute_step(now, id, source, &mad),
            },
        }
    }

    /// Finds the connection that a message is for.
    fn find(&self, source: &MadSource, message: &Message) -> Option<CommId> {
        match (message.recipient(), message) {
            // A client that gives up before it has received our ID identifies itself by its CA GUID (IBA
            // 12.6.7.2).
            (Recipient::Connection(CommId(0)), Message::Rej(rej)) if rej.reason == RejReason::Timeout => {
                let ca_guid = u64::from_be_bytes(*rej.info().first_chunk()?);
                self.by_remote.get(&((ca_guid, source.from.dgid), rej.local)).copied()
            }
            (Recipient::Connection(id), _) => self.connections.contains_key(&id).then_some(id),
            (Recipient::Service(_), _) => None,
        }
    }

    /// Reports whether a message comes from the GID of the connection's peer and carries the peer's
    /// communication ID.
    fn is_from_peer(&self, id: CommId, source: &MadSource, message: &Message) -> bool {
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
        conn.to.dgid == source.from.dgid && same_id
    }

    /// Responds to a message for an unknown connection, if its sender expects a response.
    fn respond_to_unknown_connection(&mut self, source: &MadSource, mad: &Mad) {
        let response = match &mad.message {
            Message::Lap(m) => {
                let status = AprStatus::InvalidCommId;
                Some(Apr { local: m.remote, remote: m.local, status, ..Apr::default() }.into())
            }
            message => unmatched::response(message),
        };
        if let Some(response) = response {
            self.send_uncached_response(source.from, mad.transaction, response);
        }
    }

    /// Executes the step that the state table gives for the message in the connection's current state.
    pub(super) fn execute_step(&mut self, now: Instant, id: CommId, source: &MadSource, mad: &Mad) {
        let Some(state) = self.connections.get(&id).map(|c| c.state) else { return };
        let Some(step) = step(state, mad.message.kind()) else {
            self.counters.unexpected += 1;
            return;
        };
        match (step, &mad.message) {
            (Step::Duplicate, message) => self.on_duplicate(id, mad.transaction, message),
            (Step::RecvRep, Message::Rep(rep)) => self.on_rep(now, id, source, mad, rep),
            (Step::RecvRtu, Message::Rtu(rtu)) => self.on_rtu(id, rtu),
            (Step::RecvMra, Message::Mra(mra)) => self.on_mra(now, id, mra),
            (Step::End, Message::Rej(rej)) => {
                self.close_connection(id, Event::Rejected(Box::new(Rejection::from(rej))))
            }
            (Step::EnterTimeWait, Message::Drep(drep)) => {
                self.finish_disconnect(now, id, Some(Box::new(drep.private_data)))
            }
            (Step::EnterTimeWait, _) => self.finish_disconnect(now, id, None),
            (Step::EnterTimeWaitIfProbed, Message::Drep(_)) => {
                self.on_probe_answered(now, id, mad.transaction)
            }
            (Step::RecvDreq, Message::Dreq(dreq)) => self.on_dreq(id, mad.transaction, dreq),
            (Step::SimultaneousDreq, Message::Dreq(dreq)) => {
                let drep = Drep { local: id, remote: dreq.local, private_data: [0; 224] };
                self.send_uncached_response(source.from, mad.transaction, drep);
                self.finish_disconnect(now, id, None);
            }
            (Step::RecvLap, Message::Lap(lap)) => self.on_lap(id, source, mad.transaction, lap),
            (Step::RecvMraOfLap, Message::Mra(mra)) => self.on_mra_of_lap(now, id, mra),
            (Step::RecvApr, Message::Apr(apr)) => self.on_apr(id, mad.transaction, apr),
            (Step::RecvSidrRep, Message::SidrRep(rep)) => self.on_sidr_rep(id, mad, rep),
            (_, _) => self.counters.unexpected += 1,
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
            let (mad, with) = (*response.mad, response.with);
            return self.send_response(to, mad, with);
        }
        let delayable = match conn.state {
            State::ReqRcvd => Some((Acknowledged::Req, State::DelayingReq)),
            State::RepRcvd => Some((Acknowledged::Rep, State::DelayingRep)),
            _ => None,
        };
        if let Some((message, state)) = delayable {
            conn.enter(id, state);
            let mra = Mra { local: id, remote, message, service_timeout, ..Mra::default() };
            let mad = Mad { transaction, modifier: 0, message: mra.into() };
            conn.cached_response =
                Some(CachedResponse { to: kind, with: MessageKind::Mra, mad: Box::new(mad.bytes()) });
            return self.send_response(to, mad.bytes(), MessageKind::Mra);
        }
        match (conn.state, message) {
            (State::TimeWait, Message::Dreq(_)) => {
                self.send_uncached_response(
                    to,
                    transaction,
                    Drep { local: id, remote, private_data: [0; 224] },
                );
            }
            // Late duplicate of a request whose connection has ended already.
            (State::TimeWait, Message::Req(_)) => {
                let rej =
                    super::server::build_rej(id, remote, Rejected::Req, RejReason::StaleConnection, &[]);
                self.send_uncached_response(to, transaction, rej);
            }
            _ => {}
        }
    }

    /// Handles an MRA: the peer has received our request or reply, and requests more time to respond.
    fn on_mra(&mut self, now: Instant, id: CommId, mra: &Mra) {
        let service_timeout = self.clamp_timeout(mra.service_timeout);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let state = match (conn.state, mra.message) {
            (State::ReqSent, Acknowledged::Req) => State::ReqDelayed,
            (State::RepSent, Acknowledged::Rep) => State::RepDelayed,
            _ => {
                self.counters.unexpected += 1;
                return;
            }
        };
        conn.enter(id, state);
        conn.remote = mra.local;
        let wait = super::connection::timeout_duration(service_timeout) + conn.retry_policy.response_timeout;
        self.arm(id, Some(now + wait));
        let private_data = Box::new(mra.private_data);
        self.push_event(id, Event::Delayed { service_timeout: mra.service_timeout, private_data });
    }
}

impl From<&Rej> for Rejection {
    fn from(rej: &Rej) -> Rejection {
        Rejection { reason: rej.reason, info: rej.info().into(), private_data: rej.private_data }
    }
}
