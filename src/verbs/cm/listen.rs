//! Listeners, and the ids created for incoming requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::channel::{QueuedEvent, Subject};
use super::event::Datagram;
use super::ports::Claim;
use super::state::{Id, IdState, State};
use super::{CmEventKind, ConnectionInfo, EventParam, IdError};
use crate::cm::{self, ConnId, Requested};
use crate::transport::QpType;
use crate::wire::mad::ip::{HEADER_LEN, IpHeader};
use crate::wire::mad::{RejReason, ServiceId, SidrRep, SidrStatus};

/// Maximum number of requests that wait for `get_request` or `get_event`. It also applies if the program does
/// not specify a backlog.
const MAX_BACKLOG: usize = 1024;

impl Id {
    /// Returns the service to which the id is bound.
    pub fn service(&self) -> Option<ServiceId> {
        Some(self.space.service(self.local?.port()))
    }

    /// Returns the indices of the devices to which the id is bound, given the number of all devices.
    fn scope(&self, devices: usize) -> std::ops::Range<usize> {
        self.device.map_or(0..devices, |device| device..device + 1)
    }

    /// Reports whether the id listens for requests to the address `requested`. `received_at` is the device
    /// address at which the request arrived, which differs if a device stands in for the loopback device.
    fn listens_at(&self, requested: IpAddr, received_at: IpAddr) -> bool {
        let Some(own) = self.local.map(|local| local.ip()) else { return false };
        match own.is_unspecified() {
            // The wildcard address :: includes all of IPv4, unless the id is restricted to IPv6.
            true => own.is_ipv4() == received_at.is_ipv4() || own.is_ipv6() && !self.af_only,
            false => [requested, received_at].contains(&own.to_canonical()),
        }
    }
}

impl State {
    /// Claims the service to which an id is bound, so that requests for it are delivered to this process.
    pub fn claim(&mut self, number: u64) -> Result<(), IdError> {
        let devices = self.id(number)?.scope(self.devices.len());
        devices.into_iter().try_for_each(|device| self.claim_on(number, device))
    }

    fn claim_on(&mut self, number: u64, device: usize) -> Result<(), IdError> {
        let id = self.id(number)?;
        let (Some(service), Some(local)) = (id.service(), id.local) else { return Ok(()) };
        let to = &mut self.devices[device];
        if to.is_lost {
            return Ok(());
        }
        let address = Some(local.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        // A loopback address is claimed as the device address that stands in for it.
        let address = address.map(|ip| match to.gid_index(ip) {
            Some(_) => ip,
            None => to.context.gid_towards(ip.into()).map_or(ip, |index| to.gid(index).ip()),
        });
        to.cm.expect_listener(to.now(), service);
        let known = to.claims.get(&(service, address)).and_then(|claim| claim.upgrade());
        let claim = match known {
            Some(claim) => claim,
            None => {
                let claim = to.context.claim_service(service, address);
                let claim = Arc::new(claim.map_err(|e| IdError::Claim { addr: local, source: e })?);
                to.claims.retain(|_, claim| claim.strong_count() > 0);
                to.claims.insert((service, address), Arc::downgrade(&claim));
                claim
            }
        };
        self.id_mut(number)?.claims.push(claim);
        Ok(())
    }

    pub fn listen(&mut self, number: u64, backlog: usize) -> Result<(), IdError> {
        if self.id(number)?.state == IdState::Idle {
            self.bind_addr(number, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let id = self.id(number)?;
        id.require("listen", &[IdState::Bound])?;
        let (Some(local), Some(service)) = (id.local, id.service()) else {
            return Err(IdError::State { call: "listen", state: "is not bound" });
        };
        let claim = Claim { id: number, reuse: id.reuse_addr, af_only: id.af_only || local.is_ipv4() };
        self.ports.check_listen(id.space, local, &claim)?;
        for device in id.scope(self.devices.len()) {
            if let Err(e) = self.register(device, service, number) {
                self.unregister(service, number);
                return Err(e);
            }
        }
        let id = self.id_mut(number)?;
        id.backlog = Some(if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) });
        id.state = IdState::Listening;
        Ok(())
    }

    fn register(&mut self, device: usize, service: ServiceId, number: u64) -> Result<(), IdError> {
        let device = &mut self.devices[device];
        let listeners = device.listeners.entry(service).or_default();
        if listeners.is_empty() {
            device.cm.listen(service)?;
        }
        listeners.push(number);
        Ok(())
    }

    /// Removes an id from the listeners of a service.
    pub fn unregister(&mut self, service: ServiceId, number: u64) {
        for device in &mut self.devices {
            let Some(listeners) = device.listeners.get_mut(&service) else { continue };
            listeners.retain(|listener| *listener != number);
            if listeners.is_empty() {
                device.listeners.remove(&service);
                device.cm.unlisten(device.now(), service);
            }
        }
    }

    /// Extends the ids bound to the wildcard address to a new device, except those whose port is in use by
    /// another process on that device.
    pub fn extend_listeners(&mut self, device: usize) {
        let on_all = |id: &Id| id.device.is_none() && id.local.is_some() && id.owns_port;
        let found: Vec<_> = self.ids().filter(|(_, id)| on_all(id)).map(|(number, _)| number).collect();
        for number in found {
            let claimed = self.claim_on(number, device).is_ok();
            let listening = self.id(number).ok().filter(|id| id.backlog.is_some());
            if let (true, Some(service)) = (claimed, listening.and_then(Id::service)) {
                // The new device has no listeners yet that could conflict.
                let _ = self.register(device, service, number);
            }
        }
    }

    /// Finds the id that listens at an address for requests with the given transport service.
    fn listener(
        &self,
        device: usize,
        service: ServiceId,
        qp_type: QpType,
        requested: IpAddr,
        received_at: IpAddr,
    ) -> Option<&Id> {
        let listens_at = |id: &&Id| {
            initiator_type(id.qp_type) == initiator_type(qp_type) && id.listens_at(requested, received_at)
        };
        let listeners = self.devices[device].listeners.get(&service)?;
        listeners.iter().filter_map(|listener| self.id(*listener).ok()).find(listens_at)
    }

    /// Creates an id for a peer's request and reports it, or refuses the request.
    pub fn on_request(&mut self, device: usize, connection: ConnId, request: &Requested) {
        let Err(refusal) = self.create_request_id(device, connection, request) else { return };
        let device = &mut self.devices[device];
        match (request.qp_type, refusal) {
            (QpType::Ud, _) => {
                let status = match refusal {
                    Refusal::NoListener => SidrStatus::Unsupported,
                    Refusal::BacklogFull => SidrStatus::Rejected,
                };
                // Fails if the request no longer exists, because the peer has aborted it.
                let rep = SidrRep { status, ..SidrRep::default() };
                let _ = device.cm.sidr_reply(device.now(), connection, &rep, 0);
            }
            (_, Refusal::NoListener) => device.send_reject(connection, RejReason::InvalidServiceId),
            (_, Refusal::BacklogFull) => device.cm.drop_request(connection),
        }
    }

    /// Creates an id for a request, and reports it on the listener's channel.
    fn create_request_id(
        &mut self,
        index: usize,
        connection: ConnId,
        request: &Requested,
    ) -> Result<(), Refusal> {
        let &Requested { service, qp_type, path: cm::Path { av, .. }, ref info, ece, .. } = request;
        let (header, data) = split_private_data(&info.private_data);
        let received_at = self.devices[index].gid(av.sgid_index).ip();
        let port = service.ip_port().map_or(0, |(_, port)| port);
        let destination = header.map_or(received_at, |header| header.destination.to_canonical());
        let source = header.map_or(SocketAddr::new(av.dgid.ip(), 0), |header| header.source);
        let listener =
            self.listener(index, service, qp_type, destination, received_at).ok_or(Refusal::NoListener)?;
        let (channel, handle) = (listener.channel.clone(), listener.handle.clone());
        if channel.requests(handle.number()) >= listener.backlog.unwrap_or_default() {
            return Err(Refusal::BacklogFull);
        }
        let (space, tos) = (listener.space, listener.tos.max(av.traffic_class));
        let psn = self.devices[index].random_psn();
        let manager = self.manager.upgrade().ok_or(Refusal::NoListener)?;
        let new = self.create(&manager, &channel, space, qp_type);
        if let Ok(id) = self.id_mut(new.number()) {
            id.state = IdState::Requested;
            (id.device, id.connection, id.to) = (Some(index), Some(connection), Some(av));
            id.local = Some(SocketAddr::new(destination, port));
            id.peer = Some(source);
            id.tos = tos;
            id.psn = psn;
            id.requested_depths = (info.responder_resources, info.initiator_depth);
            id.remote_ece = ece;
        }
        self.devices[index].ids.insert(connection, new.number());
        let param = match qp_type {
            QpType::Ud => EventParam::Datagram(Datagram::at(av, data)),
            _ => EventParam::Connection(ConnectionInfo { private_data: data.to_vec(), ..info.clone() }),
        };
        channel.push(QueuedEvent {
            id: Subject::New(new),
            listen_id: Some(handle),
            kind: CmEventKind::ConnectRequest,
            status: 0,
            param,
        });
        Ok(())
    }
}

/// Maps XRC target to XRC initiator, so that the two sides of an XRC connection compare as equal.
fn initiator_type(qp_type: QpType) -> QpType {
    if qp_type == QpType::XrcRecv { QpType::XrcSend } else { qp_type }
}

/// Why a request gets no id.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No id listens at the requested address.
    NoListener,
    /// As many requests as the listener's backlog wait already.
    BacklogFull,
}

/// Splits a request's private data into the IP addressing header and the program's data. Without a valid
/// header, all of it is the program's data.
pub(super) fn split_private_data(private_data: &[u8]) -> (Option<IpHeader>, &[u8]) {
    match IpHeader::parse(private_data) {
        Ok(header) => (Some(header), &private_data[HEADER_LEN..]),
        Err(_) => (None, private_data),
    }
}
