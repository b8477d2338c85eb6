//! Server side of the handshake: receives REQ, sends REP, receives RTU.

use super::connection::{CachedResponse, Connection, Peer, QpParams, RetryPolicy};
use super::engine::information;
use super::{Cm, CmError, ConnId, ConnectionInfo, Event, LocalQp, Path, Requested, State};
use crate::transport::{AddressVector, Instant, QpType};
use crate::wire::mad::{
    CommId, Ece, Mad, MessageKind, PathInfo, Rej, RejReason, Rejected, Rep, Req, ServiceId, TransportService,
};
use crate::wire::{AckTimeout, Mtu, Qpn};

/// Reason for rejecting a request, and additional information: a value that would be acceptable, or nothing.
type RejCause = (RejReason, Vec<u8>);

/// Builds a REJ; `info` is truncated to 72 bytes.
pub(super) fn build_rej(
    local: CommId,
    remote: CommId,
    message: Rejected,
    reason: RejReason,
    info: &[u8],
) -> Rej {
    let (info, info_len) = information(&info[..info.len().min(72)]).unwrap_or(([0; 72], 0));
    Rej { local, remote, message, reason, info, info_len, private_data: [0; 148] }
}

impl Cm {
    /// Listens for connection requests and service ID resolutions for `service`.
    ///
    /// # Errors
    /// [`CmError::InUse`] if the service has a listener already.
    pub fn listen(&mut self, service: ServiceId) -> Result<(), CmError> {
        if !self.listeners.insert(service) {
            return Err(CmError::InUse(service));
        }
        self.pending_listeners.end_grace_period(service);
        Ok(())
    }

    /// Ends the listener of a service. Requests whose event has not yet been polled are rejected; the others
    /// remain. The service has a grace period of one second: requests that arrive during this period are
    /// queued until another listener takes them or the period ends.
    pub fn unlisten(&mut self, now: Instant, service: ServiceId) {
        if !self.listeners.remove(&service) {
            return;
        }
        service.of_same_port().for_each(|service| self.expect_listener(now, service));
        let is_for_listener = |event: &Event| match event {
            Event::Requested(r) => r.service == service && !r.is_peer_to_peer,
            _ => false,
        };
        let waiting: Vec<ConnId> =
            self.events.iter().filter(|(_, e)| is_for_listener(e)).map(|(id, _)| *id).collect();
        for id in waiting {
            self.release(now, id);
        }
    }

    /// Reports whether the connection table has room for another request; otherwise increments `too_many`.
    pub(super) fn has_room(&mut self) -> bool {
        let has_room = self.check_capacity().is_ok();
        self.counters.too_many += u64::from(!has_room);
        has_room
    }

    /// Handles a connection request (REQ).
    pub(super) fn on_req(&mut self, now: Instant, source: &AddressVector, mad: &Mad, req: &Req) {
        let peer = (req.ca_guid, source.dgid);
        if let Some(id) = self.by_remote.get(&(peer, req.local)).copied() {
            return self.on_req_with_known_id(now, id, source, mad, req);
        }
        if let Some(id) = self.find_peer_to_peer(req, source) {
            return self.on_peer_to_peer_req(id, source, mad, req);
        }
        if self.is_stale(now, peer, req.qpn) {
            return self.refuse(source, mad, req, (RejReason::StaleConnection, vec![]));
        }
        if !self.listeners.contains(&req.service) {
            return self.queue_or_reject(now, req.service, source, mad);
        }
        let conn = match self.check_req(source, mad, req) {
            Ok(conn) => conn,
            Err(cause) => return self.refuse(source, mad, req, cause),
        };
        // Linux drops it too, instead of sending a REJ (drivers/infiniband/core/cm.c: cm_destroy_id with
        // -ENOMEM): a retransmission of the client finds room once other connections have ended.
        if !self.has_room() {
            return;
        }
        let id = self.new_id();
        self.connections.insert(id, conn);
        self.by_remote.insert((peer, req.local), id);
        self.link_qp(id);
        self.report_request(id, false, mad, req);
    }

    /// Sends a REJ in response to a request, and counts the request as stale or refused.
    pub(super) fn refuse(&mut self, source: &AddressVector, mad: &Mad, req: &Req, (reason, info): RejCause) {
        match reason {
            RejReason::StaleConnection => self.counters.stale += 1,
            _ => self.counters.refused += 1,
        }
        let rej = build_rej(CommId(0), req.local, Rejected::Req, reason, &info);
        self.send_uncached_response(*source, mad.transaction, rej);
    }

    /// Handles a REQ whose communication ID is already known: a retransmission, or a reuse of the ID.
    fn on_req_with_known_id(
        &mut self,
        now: Instant,
        id: CommId,
        source: &AddressVector,
        mad: &Mad,
        req: &Req,
    ) {
        let Some(conn) = self.connections.get(&id) else { return };
        if conn.qp_params.remote_qpn != req.qpn || conn.service != req.service {
            // Not a duplicate: the peer has reused its ID before the first connection was removed here.
            self.refuse(source, mad, req, (RejReason::StaleConnection, vec![]));
        } else {
            self.on_message(now, id, source, mad);
        }
    }

    /// Reports whether the peer's queue pair already has a connection at this end. The peer has lost that
    /// connection, so it ends here too (IBA 12.9.8.3.1). An established connection ends only after the peer
    /// has confirmed the loss (see `probe`), because any host that can send from the peer's address could
    /// have forged the message.
    pub(super) fn is_stale(&mut self, now: Instant, peer: Peer, qpn: Qpn) -> bool {
        let Some(old) = self.by_qpn.get(&(peer, qpn)).copied() else { return false };
        match self.connections.get(&old).map(|c| c.state) {
            // The reuse of the queue pair shows that the peer has ended the connection, as our DREQ requests.
            Some(State::DreqSent) => {
                self.finish_disconnect(now, old);
                return false;
            }
            Some(State::Established) => self.probe(now, old),
            _ => {}
        }
        true
    }

    /// Registers the peer's queue pair as belonging to this connection, unless its number is 0 or 1 (QP0 and
    /// QP1), which means that it is not known.
    pub(super) fn link_qp(&mut self, id: CommId) {
        if let Some(conn) = self.connections.get(&id).filter(|c| c.qp_params.remote_qpn > Qpn::GSI) {
            self.by_qpn.insert((conn.peer(), conn.qp_params.remote_qpn), id);
        }
    }

    /// Validates a request, and returns a connection with the requested parameters.
    pub(super) fn check_req(
        &self,
        source: &AddressVector,
        mad: &Mad,
        req: &Req,
    ) -> Result<Connection, RejCause> {
        let qp_type = match (req.transport, req.extended_transport) {
            (TransportService::Rc, _) => QpType::Rc,
            (TransportService::Uc, _) => QpType::Uc,
            // The client has the XRC initiator, so the server has the target.
            (TransportService::Extended, 1) => QpType::XrcRecv,
            _ => return Err((RejReason::InvalidTransport, vec![])),
        };
        let mtu = req.mtu.filter(|mtu| *mtu <= self.config.max_mtu);
        let Some(mtu) = mtu else { return Err((RejReason::InvalidMtu, vec![self.config.max_mtu.code()])) };
        let path = |info: &PathInfo, reason| {
            let index = self.gid_index(info.remote_gid, source.sgid_index);
            match index.filter(|_| !info.local_gid.is_unset()) {
                Some(index) => Ok(Cm::reverse_path(info, index, mtu, req)),
                None => Err((reason, self.gid(source.sgid_index).unwrap_or_default().0.to_vec())),
            }
        };
        let primary = path(&req.primary, RejReason::PrimaryGid)?;
        let has_alternate = req.alternate != PathInfo::default();
        let alternate = has_alternate.then(|| path(&req.alternate, RejReason::AlternateGid)).transpose()?;
        let [response_timeout, packet_life] =
            [req.local_response_timeout, primary.packet_life].map(|timeout| self.clamp_timeout(timeout));
        Ok(Connection {
            service: req.service,
            remote: req.local,
            remote_guid: req.ca_guid,
            transaction: mad.transaction,
            retry_policy: RetryPolicy::new(response_timeout, packet_life, req.max_cm_retries),
            qp_params: QpParams {
                qp_type,
                remote_qpn: req.qpn,
                remote_psn: req.psn,
                alternate,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                ack_timeout: req.primary.ack_timeout,
                ..QpParams::of(primary)
            },
            ..Connection::new(State::ReqRcvd, *source, QpParams::of(primary))
        })
    }

    /// Limits a timeout requested by a peer to the configured maximum.
    pub(super) fn clamp_timeout(&self, timeout: AckTimeout) -> AckTimeout {
        AckTimeout::new(timeout.code().min(self.config.max_timeout.code()))
    }

    fn reverse_path(info: &PathInfo, sgid_index: u8, mtu: Mtu, req: &Req) -> Path {
        Path {
            av: AddressVector {
                dgid: info.local_gid,
                sgid_index,
                hop_limit: info.hop_limit,
                traffic_class: info.traffic_class,
                flow_label: info.flow_label,
            },
            mtu,
            packet_life: AckTimeout::new(info.ack_timeout.code().saturating_sub(1)),
            pkey: req.pkey,
        }
    }

    pub(super) fn report_request(&mut self, id: CommId, is_peer_to_peer: bool, mad: &Mad, req: &Req) {
        let Some(qp_params) = self.connections.get(&id).map(|c| c.qp_params) else { return };
        let requested = Requested {
            is_peer_to_peer,
            service: req.service,
            qp_type: qp_params.qp_type,
            path: qp_params.path,
            ece: Ece { vendor_id: req.vendor_id, options: mad.modifier },
            info: ConnectionInfo {
                private_data: req.private_data.to_vec(),
                responder_resources: qp_params.responder_resources,
                initiator_depth: qp_params.initiator_depth,
                flow_control: req.flow_control,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                srq: req.srq,
                qp_num: req.qpn,
            },
        };
        self.push_event(id, Event::Requested(Box::new(requested)));
    }

    /// Drops a request without a response, as if it had been lost, so that a retransmission of it is a new
    /// request. No further events are reported.
    pub fn drop_request(&mut self, id: ConnId) {
        if self.connections.get(&id.0).is_some_and(|conn| conn.state == State::ReqRcvd) {
            self.counters.backlog_full += 1;
            self.mark_released(id.0);
            self.remove_connection(id.0);
        }
    }

    /// Accepts a request: sends `rep`, with `ece_options` as the options for enhanced connection
    /// establishment. The communication IDs, the CA GUID, the target ACK delay and the failover status in
    /// `rep` are replaced.
    ///
    /// # Errors
    /// [`CmError`], in a state other than REQ received.
    pub fn accept(&mut self, now: Instant, id: ConnId, rep: &Rep, ece_options: u32) -> Result<(), CmError> {
        let (ca_guid, target_ack_delay) = (self.config.ca_guid, self.config.ack_delay);
        let conn = self.conn(id, &[State::ReqRcvd, State::DelayingReq], "accept")?;
        conn.enter(id.0, State::RepSent);
        let qp_params = &mut conn.qp_params;
        qp_params.qp = Some(LocalQp { qpn: rep.qpn, psn: rep.psn, srq: rep.srq });
        (qp_params.responder_resources, qp_params.initiator_depth) =
            (rep.responder_resources, rep.initiator_depth);
        // Failover Accepted field: 0 = loaded, 2 = rejected. Ignored by the client if its request has no
        // alternate path.
        let failover = if qp_params.alternate.take().is_some() { 2 } else { 0 };
        let mut rep = Rep { local: id.0, remote: conn.remote, target_ack_delay, failover, ca_guid, ..*rep };
        if qp_params.qp_type == QpType::XrcRecv {
            // An XRC target is identified by the EE context field (IBA A14), and its receives come from
            // shared queues.
            (rep.qpn, rep.eecn, rep.srq) = (Qpn::new(0), rep.qpn.get(), true);
        }
        let mad = Mad { transaction: conn.transaction, modifier: ece_options, message: rep.into() };
        conn.cached_response = Some(CachedResponse { to: MessageKind::Req, mad: Box::new(mad) });
        self.send_request(now, id.0, &mad);
        Ok(())
    }

    /// Handles an RTU: the client's queue pair is in RTS, so the connection is established.
    pub(super) fn on_rtu(&mut self, id: CommId) {
        self.stop_retransmission(id);
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.enter(id, State::Established);
        }
        self.push_event(id, Event::Established);
    }

    /// Establishes the connection because data has arrived at the server's queue pair, which is equivalent to
    /// an RTU (IBA 12.9.7.2). Returns `true` if the connection was not established before; no
    /// [`Event::Established`] follows.
    ///
    /// # Errors
    /// [`CmError`], in a state other than REP sent or established.
    pub fn establish(&mut self, id: ConnId) -> Result<bool, CmError> {
        let states = [State::RepSent, State::RepDelayed, State::Established];
        let conn = self.conn(id, &states, "establish the connection on received data")?;
        let new = conn.state != State::Established;
        conn.enter(id.0, State::Established);
        if new {
            self.stop_retransmission(id.0);
        }
        Ok(new)
    }
}
