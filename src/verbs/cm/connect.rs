//! Connections: the handshake on either side, and the disconnect.

use super::param::{ConnParam, MAX_RD_ATOMIC};
use super::state::{Id, IdState, State};
use super::{CmEventKind, ConnectionInfo, Ece, EventParam, IdError};
use crate::cm::{CmError, LocalQp, Request, padded};
use crate::transport::AsyncEvent;
use crate::verbs::explain::ConnectionProblem;
use crate::wire::mad::ip::{HEADER_LEN, IpHeader};
use crate::wire::mad::{Rej, RejReason, Rep};

/// Size of the private data field of a REQ, in bytes.
const REQ_DATA: usize = 92;
/// Size of the private data field of a SIDR_REQ, in bytes.
const SIDR_REQ_DATA: usize = 216;
/// Size of the private data field of a REP, in bytes.
const REP_DATA: usize = 196;

fn check_len(private_data: &[u8], max: usize) -> Result<(), IdError> {
    if private_data.len() > max {
        return Err(IdError::PrivateData { given: private_data.len(), max });
    }
    Ok(())
}

impl Id {
    /// Returns the id's queue pair: the attached one or, if there is none, the one described in `param`.
    pub fn local_qp(&self, param: &ConnParam) -> Result<LocalQp, IdError> {
        match (&self.qp, param.qp_num) {
            (Some(qp), _) => Ok(LocalQp { qpn: qp.qpn, psn: self.psn, srq: qp.has_srq }),
            (None, Some(qpn)) => Ok(LocalQp { qpn, psn: self.psn, srq: param.srq }),
            (None, None) => Err(IdError::NoQp),
        }
    }

    /// Builds a request's private data: the IP addressing header, followed by the program's data.
    pub fn request_data(&self, param: &ConnParam) -> Result<Vec<u8>, IdError> {
        let (Some(source), Some(destination)) = (self.local, self.peer) else { return Err(IdError::Ended) };
        let max = if self.is_datagram() { SIDR_REQ_DATA } else { REQ_DATA } - HEADER_LEN;
        check_len(&param.private_data, max)?;
        let header = IpHeader { source, destination: destination.ip() };
        Ok([&header.bytes()[..], &param.private_data].concat())
    }
}

impl State {
    /// Returns an id's responder resources and initiator depth: the program's values or, by default, the
    /// device's limit, capped at what the peer has requested.
    fn depths(&self, id: &Id, param: &ConnParam) -> Result<(u8, u8), IdError> {
        let device = id.device.ok_or(IdError::Ended)?;
        let limit = self.devices[device].max_rd_atomic();
        let depth = |name, given, requested: u8| match given {
            MAX_RD_ATOMIC => Ok(limit.min(requested)),
            given if given > limit => Err(IdError::Value { name, value: given.into() }),
            given => Ok(given),
        };
        let (responder_resources, initiator_depth) = id.requested_depths;
        Ok((
            depth("responder_resources", param.responder_resources, responder_resources)?,
            depth("initiator_depth", param.initiator_depth, initiator_depth)?,
        ))
    }

    /// Requests a connection or, for datagrams, the peer's queue pair. With `peer_to_peer`, the peer may
    /// request a connection at the same time.
    pub fn request(&mut self, number: u64, param: &ConnParam, peer_to_peer: bool) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("connect", &[IdState::RouteResolved])?;
        let (Some(index), Some(path), Some(peer)) = (id.device, self.path(id), id.peer) else {
            return Err(IdError::Ended);
        };
        let service = id.space.service(peer.port());
        let connection = if id.is_datagram() {
            let private_data = id.request_data(param)?;
            let device = &mut self.devices[index];
            device.cm.sidr_request(device.now(), service, path, &private_data)?
        } else {
            let (responder_resources, initiator_depth) = self.depths(id, param)?;
            let private_data = id.request_data(param)?;
            let request = Request {
                qp_type: id.qp_type,
                responder_resources,
                initiator_depth,
                flow_control: param.flow_control,
                retry_count: param.retry_count.min(7),
                rnr_retry_count: param.rnr_retry_count.min(7),
                ece: id.ece,
                peer_to_peer,
                ..Request::new(service, id.local_qp(param)?, path, &private_data)
            };
            let device = &mut self.devices[index];
            device.cm.connect(device.now(), &request)?
        };
        self.devices[index].ids.insert(connection, number);
        let id = self.id_mut(number)?;
        (id.connection, id.state) = (Some(connection), IdState::Connecting);
        Ok(())
    }

    pub fn accept(&mut self, number: u64, param: &ConnParam) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("accept", &[IdState::Requested])?;
        if id.is_datagram() {
            return self.accept_sidr(number, param);
        }
        let (index, connection) = id.connection("accept")?;
        // Checked before the queue pair changes its state, which cannot be undone.
        check_len(&param.private_data, REP_DATA)?;
        let (responder_resources, initiator_depth) = self.depths(id, param)?;
        let (qp, ece) = (id.local_qp(param)?, id.ece);
        let rep = Rep {
            qpn: qp.qpn,
            psn: qp.psn,
            srq: qp.srq,
            responder_resources,
            initiator_depth,
            flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count.min(7),
            vendor_id: ece.vendor_id,
            private_data: padded(&param.private_data)?,
            ..Rep::default()
        };
        // The queue pair must be ready first, because the peer may send as soon as it receives the reply.
        self.move_to_rts(number, Some((responder_resources, initiator_depth)))?;
        let device = &mut self.devices[index];
        device.cm.accept(device.now(), connection, &rep, ece.options)?;
        self.id_mut(number)?.state = IdState::Accepted;
        Ok(())
    }

    pub fn reject(&mut self, number: u64, reason: RejReason, private_data: &[u8]) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("reject", &[IdState::Requested, IdState::Responded])?;
        if id.is_datagram() {
            return self.send_reject(number, private_data);
        }
        let (index, connection) = id.connection("reject")?;
        let device = &mut self.devices[index];
        device.cm.reject(device.now(), connection, reason, &[], private_data)?;
        self.release_connection(number);
        self.id_mut(number)?.end();
        Ok(())
    }

    /// Completes the handshake for a queue pair whose state transitions the program performs itself.
    pub fn establish(&mut self, number: u64) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("establish", &[IdState::Responded])?;
        let (index, connection) = id.connection("establish")?;
        self.devices[index].cm.ready(connection)?;
        self.id_mut(number)?.state = IdState::Connected;
        Ok(())
    }

    pub fn disconnect(&mut self, number: u64) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("disconnect", &[IdState::Accepted, IdState::Connected, IdState::Ended])?;
        id.fail_qp();
        if id.disconnect_reported && id.connection.is_none() {
            return Ok(());
        }
        let is_ended = id.state == IdState::Ended;
        let (index, connection) = id.connection("disconnect")?;
        let device = &mut self.devices[index];
        match device.cm.disconnect(device.now(), connection) {
            // Both sides have disconnected already.
            Err(CmError::State { .. }) if is_ended => {}
            other => other?,
        }
        self.id_mut(number)?.state = IdState::Ended;
        Ok(())
    }

    pub fn notify(&mut self, number: u64, event: AsyncEvent) -> Result<(), IdError> {
        let id = self.id(number)?;
        let AsyncEvent::CommunicationEstablished(_) = event else {
            return Err(IdError::State {
                call: "notify",
                state: "handles CommunicationEstablished events only",
            });
        };
        let (index, connection) = id.connection("notify")?;
        if self.devices[index].cm.establish(connection)? {
            self.on_established(number);
        }
        Ok(())
    }

    /// Handles the peer's acceptance.
    pub fn on_accepted(&mut self, number: u64, info: ConnectionInfo, ece: Ece) {
        let Ok(id) = self.id_mut(number) else { return };
        id.remote_ece = ece;
        let param = EventParam::Connection(info);
        if id.qp.is_none() {
            id.state = IdState::Responded;
            return id.report(CmEventKind::ConnectResponse, 0, param);
        }
        let Ok((index, connection)) = id.connection("establish") else { return };
        let moved = self.move_to_rts(number, None);
        let ready = moved.and_then(|()| Ok(self.devices[index].cm.ready(connection)?));
        match ready {
            Ok(()) => {
                let Ok(id) = self.id_mut(number) else { return };
                id.state = IdState::Connected;
                id.report(CmEventKind::Established, 0, param);
            }
            // The attached queue pair could not change its state.
            Err(e) => {
                self.devices[index].send_reject(connection, RejReason::Consumer);
                self.on_failed(number, CmEventKind::ConnectError, -e.errno(), EventParam::None);
            }
        }
    }

    /// Handles the end of the handshake: the arrival of the peer's RTU, or of data before the RTU.
    pub fn on_established(&mut self, number: u64) {
        let Ok(id) = self.id_mut(number) else { return };
        if id.state != IdState::Accepted {
            return;
        }
        id.state = IdState::Connected;
        // Private data of an RTU is neither sent nor reported by `rdma_cm`. In a simultaneous connect the
        // accepting side reports the private data of the peer's request, the only message that it has from
        // the peer.
        let param = id.peer_to_peer.take().map_or(EventParam::None, |peer_to_peer| {
            EventParam::Connection(ConnectionInfo {
                private_data: peer_to_peer.private_data,
                ..ConnectionInfo::default()
            })
        });
        id.report(CmEventKind::Established, 0, param);
    }

    /// Handles a rejection by the peer, which may be due to a timeout there.
    pub fn on_rejected(&mut self, number: u64, rej: &Rej) {
        let info = ConnectionInfo { private_data: rej.private_data.to_vec(), ..ConnectionInfo::default() };
        let status = rej.reason.code().into();
        self.note_problem(number, ConnectionProblem::Rejected(rej.reason));
        self.on_failed(number, CmEventKind::Rejected, status, EventParam::Connection(info));
    }

    /// Ends an id whose connection was not established, and reports the failure.
    pub fn on_failed(&mut self, number: u64, kind: CmEventKind, status: i32, param: EventParam) {
        let Ok(id) = self.id_mut(number) else { return };
        id.end();
        id.report(kind, status, param);
        self.release_connection(number);
    }

    /// Releases an id's connection in the protocol layer.
    pub fn release_connection(&mut self, number: u64) {
        let Ok(id) = self.id_mut(number) else { return };
        if let (Some(index), Some(connection)) = (id.device, id.connection.take()) {
            self.devices[index].release(connection);
        }
    }

    /// Handles a disconnect by either side. The queue pair keeps running until the program disconnects as
    /// well, because there may be data left to receive.
    pub fn on_disconnected(&mut self, number: u64) {
        let Ok(id) = self.id_mut(number) else { return };
        id.state = IdState::Ended;
        if !std::mem::replace(&mut id.disconnect_reported, true) {
            id.report(CmEventKind::Disconnected, 0, EventParam::None);
        }
    }

    pub fn on_time_wait_over(&mut self, number: u64) {
        self.release_connection(number);
        if let Ok(id) = self.id(number) {
            id.report(CmEventKind::TimewaitExit, 0, EventParam::None);
        }
    }
}
