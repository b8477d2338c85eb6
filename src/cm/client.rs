//! Client side of the handshake: sends REQ, receives REP, sends RTU.

use super::connection::{Connection, QpParams, RetryPolicy, ack_timeout};
use super::engine::padded;
use super::request::{MAX_CM_RETRIES, RESPONSE_TIMEOUT};
use super::server::build_rej;
use super::{Cm, CmError, ConnId, ConnectionInfo, Event, Path, Request, State};
use crate::transport::{AddressVector, Instant, QpType};
use crate::wire::Qpn;
use crate::wire::mad::{
    CommId, Ece, Mad, MessageKind, PathInfo, Rej, RejReason, Rejected, Rep, Req, Rtu, TransportService,
};

/// Value of the LID fields on RoCE, which has no LIDs (IBA A16.4.3).
const PERMISSIVE_LID: u16 = 0xffff;

impl Cm {
    /// Requests a connection from a server (REQ).
    ///
    /// # Errors
    /// [`CmError`], if the request does not fit a message, the source GID is unset, the queue pair type has
    /// no connections, or there are too many connections.
    pub fn connect(&mut self, now: Instant, request: &Request<'_>) -> Result<ConnId, CmError> {
        let (transport, extended_transport) = match request.qp_type {
            QpType::Rc => (TransportService::Rc, 0),
            QpType::Uc => (TransportService::Uc, 0),
            QpType::XrcSend | QpType::XrcRecv => (TransportService::Extended, 1),
            QpType::Ud => return Err(CmError::Datagram),
        };
        let private_data = padded(request.private_data)?;
        let primary = self.path_info(&request.path)?;
        let alternate = request.alternate.as_ref().map(|p| self.path_info(p)).transpose()?;
        self.check_capacity()?;

        let id = self.new_id();
        let transaction = self.new_transaction(id);
        let req = Req {
            local: id,
            vendor_id: request.ece.vendor_id,
            service: request.service,
            ca_guid: self.config.ca_guid,
            qpn: request.qp.qpn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            remote_response_timeout: RESPONSE_TIMEOUT,
            transport,
            flow_control: request.flow_control,
            psn: request.qp.psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: request.retry_count,
            pkey: request.path.pkey,
            mtu: Some(request.path.mtu),
            rnr_retry_count: request.rnr_retry_count,
            max_cm_retries: MAX_CM_RETRIES,
            srq: request.qp.srq,
            extended_transport,
            primary,
            alternate: alternate.unwrap_or_default(),
            private_data,
            ..Req::default()
        };
        let conn = Connection {
            service: request.service,
            transaction,
            retry_policy: RetryPolicy::new(RESPONSE_TIMEOUT, request.path.packet_life, MAX_CM_RETRIES),
            qp_params: QpParams {
                qp_type: request.qp_type,
                qp: Some(request.qp),
                alternate: request.alternate,
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
                retry_count: request.retry_count,
                rnr_retry_count: request.rnr_retry_count,
                ack_timeout: primary.ack_timeout,
                ..QpParams::of(request.path)
            },
            ..Connection::new(State::ReqSent, request.path.av, QpParams::of(request.path))
        };
        self.connections.insert(id, conn);
        if request.peer_to_peer {
            self.peer_to_peer.insert((request.service, request.path.av.dgid, id));
            // The peer's request may have arrived first, and wait for a listener.
            self.pending_listeners.end_grace_period(request.service);
        }
        self.send_request(now, id, &Mad { transaction, modifier: request.ece.options, message: req.into() });
        Ok(ConnId(id))
    }

    /// Fails if `max_connections` is reached.
    pub(super) fn check_capacity(&self) -> Result<(), CmError> {
        let live = self.connections.len() - self.time_waits.len();
        if live < self.config.max_connections { Ok(()) } else { Err(CmError::TooMany(live)) }
    }

    /// Converts a path to the path fields of a message.
    pub(super) fn path_info(&self, path: &Path) -> Result<PathInfo, CmError> {
        let av = &path.av;
        let hop_limit = if av.hop_limit == 0 { 64 } else { av.hop_limit };
        Ok(PathInfo {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: self.gid(av.sgid_index).ok_or(CmError::Gid(av.sgid_index))?,
            remote_gid: av.dgid,
            flow_label: av.flow_label,
            rate: 0,
            traffic_class: av.traffic_class,
            hop_limit,
            sl: 0,
            subnet_local: hop_limit <= 1,
            ack_timeout: ack_timeout(path.packet_life, self.config.ack_delay),
        })
    }

    /// Handles a REP: the server has accepted the request.
    pub(super) fn on_rep(&mut self, now: Instant, id: CommId, source: &AddressVector, mad: &Mad, rep: &Rep) {
        // An XRC target is identified by the EE context field (IBA A14).
        let is_xrc = self.connections.get(&id).is_some_and(|c| c.qp_params.qp_type == QpType::XrcSend);
        let rep = &Rep { qpn: if is_xrc { Qpn::new(rep.eecn) } else { rep.qpn }, ..*rep };
        if let Err(reason) = self.check_rep(now, id, source, rep) {
            self.send_uncached_response(
                *source,
                mad.transaction,
                build_rej(id, rep.local, Rejected::Rep, reason, &[]),
            );
            let rejection = Rej { reason, ..Rej::default() };
            return self.close_connection(id, Event::Rejected(Box::new(rejection)));
        }
        self.stop_retransmission(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.enter(id, State::RepRcvd);
        (conn.remote, conn.remote_guid) = (rep.local, rep.ca_guid);
        let qp_params = &mut conn.qp_params;
        (qp_params.remote_qpn, qp_params.remote_psn) = (rep.qpn, rep.psn);
        // Our responder resources are the peer's initiator depth, and vice versa.
        (qp_params.responder_resources, qp_params.initiator_depth) =
            (rep.initiator_depth, rep.responder_resources);
        qp_params.rnr_retry_count = rep.rnr_retry_count;
        qp_params.ack_timeout = ack_timeout(qp_params.path.packet_life, rep.target_ack_delay);
        if rep.failover != 0 {
            qp_params.alternate = None;
        }
        self.by_remote.insert(((rep.ca_guid, source.dgid), rep.local), id);
        self.link_qp(id);
        let info = ConnectionInfo {
            private_data: rep.private_data.to_vec(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qp_num: rep.qpn,
        };
        let ece = Ece { vendor_id: rep.vendor_id, options: mad.modifier };
        self.push_event(id, Event::Accepted { info, ece });
    }

    /// Validates a REP: its queue pair number must not be reserved, and neither the queue pair nor the
    /// communication ID may belong to another connection.
    fn check_rep(
        &mut self,
        now: Instant,
        id: CommId,
        source: &AddressVector,
        rep: &Rep,
    ) -> Result<(), RejReason> {
        if matches!(rep.qpn, Qpn::GSI | Qpn::MULTICAST) {
            self.counters.refused += 1;
            return Err(RejReason::UnsupportedRequest);
        }
        let peer = (rep.ca_guid, source.dgid);
        let in_use = self.by_remote.get(&(peer, rep.local)).is_some_and(|other| *other != id);
        if in_use || self.is_stale(now, peer, rep.qpn) {
            self.counters.stale += 1;
            return Err(RejReason::StaleConnection);
        }
        Ok(())
    }

    /// Sends an RTU, which tells the server that our queue pair is in RTS and that data may flow.
    ///
    /// # Errors
    /// [`CmError`], in a state other than REP received.
    pub fn ready(&mut self, id: ConnId) -> Result<(), CmError> {
        let conn = self.conn(id, &[State::RepRcvd, State::DelayingRep], "send RTU")?;
        conn.enter(id.0, State::Established);
        let (transaction, remote) = (conn.transaction, conn.remote);
        let rtu = Rtu { local: id.0, remote, private_data: [0; 224] };
        self.send_cached_response(id.0, MessageKind::Rep, transaction, rtu);
        Ok(())
    }
}
