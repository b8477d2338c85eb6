//! Service ID resolution (IBA 12.11): finds the queue pair of a datagram service.

use std::time::Duration;

use super::connection::{Connection, QpParams, RetryPolicy};
use super::engine::padded;
use super::request::{MAX_CM_RETRIES, RESPONSE_TIMEOUT};
use super::{Cm, CmError, ConnId, ConnectionInfo, Event, Path, Requested, State};
use crate::transport::{AddressVector, Instant, QpType};
use crate::wire::mad::{CommId, Ece, Mad, MessageKind, ServiceId, SidrRep, SidrReq, SidrStatus};

impl Cm {
    /// Requests the queue pair of a datagram service (SIDR_REQ), with up to 216 bytes of private data.
    ///
    /// # Errors
    /// [`CmError`], if the data do not fit a message, the source GID is unset, or there are too many
    /// connections.
    pub fn sidr_request(
        &mut self,
        now: Instant,
        service: ServiceId,
        path: Path,
        private_data: &[u8],
    ) -> Result<ConnId, CmError> {
        let private_data = padded(private_data)?;
        self.gid(path.av.sgid_index).ok_or(CmError::Gid(path.av.sgid_index))?;
        self.check_capacity()?;
        let id = self.new_id();
        let transaction = self.new_transaction(id);
        let conn = Connection {
            service,
            transaction,
            retry_policy: RetryPolicy::new(RESPONSE_TIMEOUT, path.packet_life, MAX_CM_RETRIES),
            ..Connection::new(State::SidrReqSent, path.av, QpParams::of(path))
        };
        self.connections.insert(id, conn);
        let req = SidrReq { request: id, pkey: path.pkey, service, private_data };
        self.send_request(now, id, &Mad { transaction, modifier: 0, message: req.into() });
        Ok(ConnId(id))
    }

    /// Handles a SIDR_REQ.
    pub(super) fn on_sidr_req(&mut self, now: Instant, source: &AddressVector, mad: &Mad, req: &SidrReq) {
        let key = (source.dgid, req.request);
        if let Some(id) = self.by_sidr_request.get(&key).copied() {
            if self.connections.get(&id).is_some_and(|c| c.service == req.service) {
                return self.on_message(now, id, source, mad);
            }
            // The requester has reused its request ID for another service.
            self.by_sidr_request.remove(&key);
        }
        if !self.listeners.contains(&req.service) {
            return self.queue_or_reject(now, req.service, source, mad);
        }
        if !self.has_room() {
            // The status that Linux sends.
            let (request, service, status) = (req.request, req.service, SidrStatus::Rejected);
            let rep = SidrRep { request, service, status, ..SidrRep::default() };
            return self.send_uncached_response(*source, mad.transaction, rep);
        }
        let id = self.new_id();
        let path = Path { pkey: req.pkey, ..Path::to(*source, self.config.max_mtu) };
        let conn = Connection {
            service: req.service,
            remote: req.request,
            transaction: mad.transaction,
            ..Connection::new(State::SidrReqRcvd, *source, QpParams::of(path))
        };
        self.connections.insert(id, conn);
        self.by_sidr_request.insert(key, id);
        let requested = Requested {
            is_peer_to_peer: false,
            service: req.service,
            qp_type: QpType::Ud,
            path,
            ece: Ece::default(),
            info: ConnectionInfo { private_data: req.private_data.to_vec(), ..ConnectionInfo::default() },
        };
        self.push_event(id, Event::Requested(Box::new(requested)));
    }

    /// Responds to a SIDR_REQ: sends `rep`, with `ece_options` as the options for enhanced connection
    /// establishment. The request ID and the service ID in `rep` are replaced. No further events are
    /// reported.
    ///
    /// # Errors
    /// [`CmError`], in a state other than SIDR_REQ received.
    pub fn sidr_reply(
        &mut self,
        now: Instant,
        id: ConnId,
        rep: &SidrRep,
        ece_options: u32,
    ) -> Result<(), CmError> {
        self.conn(id, &[State::SidrReqRcvd], "respond to a SIDR_REQ")?;
        self.mark_released(id.0);
        self.send_sidr_rep(now, id.0, rep, ece_options);
        Ok(())
    }

    pub(super) fn send_sidr_rep(&mut self, now: Instant, id: CommId, rep: &SidrRep, ece_options: u32) {
        let Some(conn) = self.connections.get(&id) else { return };
        let rep = SidrRep { request: conn.remote, service: conn.service, ..*rep };
        let mad = Mad { transaction: conn.transaction, modifier: ece_options, message: rep.into() };
        self.send_cached_mad(id, MessageKind::SidrReq, &mad);
        self.enter_time_wait(now, id, Duration::ZERO);
    }
}
