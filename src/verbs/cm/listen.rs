//! Listeners, and the ids that requests to them make.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::channel::{Queued, Subject, Waiting};
use super::ports::Claim;
use super::state::{Id, Phase, State};
use super::{CmEventKind, CmId, Connection, EventParam, IdError};
use crate::cm::{ConnId, ListenerId, Requested};
use crate::transport::{AddressVector, QpType};
use crate::wire::mad::ip::{HEADER_LEN, IpHeader};
use crate::wire::mad::{RejReason, ServiceId};

/// Requests that may wait to be taken where the program does not say, and at most.
const MAX_BACKLOG: usize = 1024;

/// A service that ids of this process listen to, each at an address of its own.
pub(super) struct Service {
    listener: ListenerId,
    members: Vec<u64>,
}

/// What a listener has.
#[derive(Clone)]
pub(super) struct Listening {
    backlog: usize,
    waiting: Arc<AtomicUsize>,
}

impl Id {
    /// The service that it is bound to.
    pub fn service(&self) -> Option<ServiceId> {
        Some(self.space.service(self.local?.port()))
    }

    /// The devices that it is bound to, of so many.
    fn scope(&self, devices: usize) -> std::ops::Range<usize> {
        self.device.map_or(0..devices, |device| device..device + 1)
    }

    /// Whether it listens to requests for an address, which came to another one that may stand for it.
    fn hears(&self, asked: IpAddr, came_to: IpAddr) -> bool {
        let Some(own) = self.local.map(|local| local.ip()) else { return false };
        match own.is_unspecified() {
            // All of ::, but for those that are of IPv6 only, is all of IPv4 too.
            true => own.is_ipv4() == came_to.is_ipv4() || own.is_ipv6() && !self.af_only,
            false => [asked, came_to].contains(&own.to_canonical()),
        }
    }
}

impl State {
    /// Has requests for what an id is bound to come to this process.
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
        // The loopback is claimed as the address that stands for it.
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
        self.bind_if_idle(number)?;
        let id = self.id(number)?;
        id.require("listen", &[Phase::Bound])?;
        let (Some(local), Some(service)) = (id.local, id.service()) else {
            return Err(IdError::State { call: "listen", state: "has no address" });
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
        let backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        id.listening = Some(Listening { backlog, waiting: Arc::default() });
        id.phase = Phase::Listening;
        Ok(())
    }

    fn register(&mut self, device: usize, service: ServiceId, number: u64) -> Result<(), IdError> {
        let device = &mut self.devices[device];
        if let Some(found) = device.services.get_mut(&service) {
            found.members.push(number);
            return Ok(());
        }
        // Each id has a bound of its own.
        let listener = device.cm.listen(service, u64::MAX, usize::MAX)?;
        device.services.insert(service, Service { listener, members: vec![number] });
        Ok(())
    }

    fn unregister(&mut self, service: ServiceId, number: u64) {
        for device in &mut self.devices {
            let Some(found) = device.services.get_mut(&service) else { continue };
            found.members.retain(|member| *member != number);
            if found.members.is_empty() {
                let now = device.now();
                let listener = device.services.remove(&service).map(|service| service.listener);
                listener.into_iter().for_each(|listener| device.cm.unlisten(now, listener));
            }
        }
    }

    /// Ends a listener, which is no more among the ids.
    pub fn unlisten(&mut self, number: u64, id: &Id) {
        if let Some(service) = id.service() {
            self.unregister(service, number);
        }
    }

    /// A device is new: who is bound to all is to it too. Where another process has the port there, only that one is.
    pub fn extend_listeners(&mut self, device: usize) {
        let on_all = |id: &Id| id.device.is_none() && id.local.is_some() && id.owns_port;
        let found: Vec<_> = self.ids().filter(|(_, id)| on_all(id)).map(|(number, _)| number).collect();
        for number in found {
            let claimed = self.claim_on(number, device).is_ok();
            let listening = self.id(number).ok().filter(|id| id.listening.is_some());
            if let (true, Some(service)) = (claimed, listening.and_then(Id::service)) {
                // There is no such service on it yet, so nothing refuses.
                let _ = self.register(device, service, number);
            }
        }
    }

    /// Finds the listener to requests of a kind for an address.
    fn listener(
        &self,
        device: usize,
        service: ServiceId,
        qp_type: QpType,
        asked: IpAddr,
        came_to: IpAddr,
    ) -> Option<u64> {
        let hears = |id: &Id| side(id.qp_type) == side(qp_type) && id.hears(asked, came_to);
        let members = &self.devices[device].services.get(&service)?.members;
        members.iter().copied().find(|member| self.id(*member).is_ok_and(hears))
    }

    pub fn on_request(&mut self, device: usize, connection: ConnId, request: &Requested) {
        let (header, data) = split(&request.private_data);
        let asked = Asked {
            device,
            connection,
            service: request.service,
            av: request.path.av,
            header,
            qp_type: request.qp_type,
        };
        let param = EventParam::Connection(Connection {
            private_data: data.to_vec(),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            srq: request.srq,
            qp_num: request.remote_qpn,
        });
        match self.admit(&asked) {
            Ok((new, waiting, listener)) => {
                if let Ok(id) = self.id_mut(new.number()) {
                    id.asked = (request.responder_resources, request.initiator_depth);
                    id.remote_ece = request.ece;
                }
                self.announce(new, waiting, listener, param);
            }
            Err(reason) => self.devices[device].refuse(connection, reason),
        }
    }

    /// Makes an id for a request, or says why not.
    pub fn admit(&mut self, asked: &Asked) -> Result<(CmId, Waiting, u64), RejReason> {
        let &Asked { device, connection, service, av, ref header, qp_type } = asked;
        let came_to = self.devices[device].gid(av.sgid_index).ip();
        let port = service.ip_port().map_or(0, |(_, port)| port);
        let destination = header.map_or(came_to, |header| header.destination.to_canonical());
        let source = header.map_or(SocketAddr::new(av.dgid.ip(), 0), |header| header.source);
        let listener = self
            .listener(device, service, qp_type, destination, came_to)
            .ok_or(RejReason::InvalidServiceId)?;
        let of = self.id(listener).ok().and_then(|id| id.listening.clone());
        let of = of.ok_or(RejReason::InvalidServiceId)?;
        let waiting = Waiting::new(&of.waiting, of.backlog).ok_or(RejReason::NoResources)?;
        let psn = self.devices[device].draw_psn();
        let new = self.create_for(listener, qp_type).ok_or(RejReason::NoResources)?;
        let tos = self.id(listener).map_or(0, |id| id.tos);
        if let Ok(id) = self.id_mut(new.number()) {
            id.phase = Phase::Requested;
            (id.device, id.connection, id.to) = (Some(device), Some(connection), Some(av));
            id.local = Some(SocketAddr::new(destination, port));
            id.peer = Some(source);
            id.tos = tos.max(av.traffic_class);
            id.psn = psn;
        }
        self.devices[device].ids.insert(connection, new.number());
        // Which the id bounds, not the service.
        self.devices[device].cm.taken(connection);
        Ok((new, waiting, listener))
    }

    /// Reports the id of a request on its listener's channel.
    pub fn announce(&mut self, new: CmId, waiting: Waiting, listener: u64, param: EventParam) {
        let Ok(listener) = self.id(listener) else { return };
        listener.channel.push(Queued {
            id: Subject::New(new),
            listen_id: Some(listener.handle.clone()),
            kind: CmEventKind::ConnectRequest,
            status: 0,
            param,
            waiting: Some(waiting),
        });
    }
}

/// Of a service with two sides, the one for both.
fn side(qp_type: QpType) -> QpType {
    if qp_type == QpType::XrcRecv { QpType::XrcSend } else { qp_type }
}

/// A request, as both kinds have it.
pub(super) struct Asked {
    pub device: usize,
    pub connection: ConnId,
    pub service: ServiceId,
    pub av: AddressVector,
    pub header: Option<IpHeader>,
    pub qp_type: QpType,
}

/// The header that the private data of requests begin with, and what is behind it; all of it if there is none.
pub(super) fn split(private_data: &[u8]) -> (Option<IpHeader>, &[u8]) {
    match IpHeader::parse(private_data) {
        Ok(header) => (Some(header), &private_data[HEADER_LEN..]),
        Err(_) => (None, private_data),
    }
}
