//! State of a connection manager: its devices and ids. API calls, received MADs and deadlines modify it,
//! under one lock.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::channel::{QueuedEvent, Subject};
use super::id::WeakId;
use super::manager::Owner;
use super::multicast::Group;
use super::peer_to_peer::PeerToPeer;
use super::ports::Ports;
use super::{CmEventKind, CmId, Ece, EventChannel, EventParam, IdError, PortSpace};
use crate::cm::{Cm, CmConfig, CommIds, ConnId, Event};
use crate::sys::named::named;
use crate::transport::{AddressVector, Instant, QpType};
use crate::verbs::explain::{ConnectionProblem, ConnectionReport};
use crate::verbs::qp::QpRemote;
use crate::verbs::{Context, ManagementPort, ServiceClaim};
use crate::wire::mad::{RejReason, ServiceId};
use crate::wire::{AckTimeout, Gid, Mtu, Psn};

/// Devices, ids and ports of a connection manager.
pub(super) struct State {
    pub manager: Weak<Owner>,
    pub devices: Vec<Device>,
    ids: HashMap<u64, Id>,
    last: u64,
    pub ports: Ports,
    /// Events to be dropped after the lock is released.
    pub garbage: Vec<QueuedEvent>,
}

/// A device, with its QP1 and protocol state.
pub(super) struct Device {
    pub context: Context,
    pub port: Arc<ManagementPort>,
    /// Protocol state. Its GID table is that of the device as of the last GID change event.
    pub cm: Cm,
    /// Whether the device has failed permanently.
    pub is_lost: bool,
    /// Number of the id that owns each connection.
    pub ids: HashMap<ConnId, u64>,
    /// Ids that listen for each service, each at a different address.
    pub listeners: HashMap<ServiceId, Vec<u64>>,
    /// Services claimed by this process. Ids that share a port share its claim.
    pub claims: HashMap<(ServiceId, Option<IpAddr>), Weak<ServiceClaim>>,
    /// Whether the last turn stopped at [`MADS_PER_TURN`], so that more MADs may be queued.
    may_have_more_mads: bool,
}

named! {
    /// Lifecycle state of an id.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) enum IdState {
        Idle, "is not bound";
        Bound, "has no destination address";
        Listening, "is listening";
        /// The neighbour resolution of the next hop is in progress.
        Resolving, "is resolving its destination address";
        AddrResolved, "has no resolved route";
        RouteResolved, "is not connected";
        /// The connection request has been sent.
        Connecting, "is connecting";
        /// The peer has accepted, and the program has yet to report that its queue pair is ready.
        Responded, "has received a response and is not established";
        /// The peer has requested a connection, and the program has not yet responded.
        Requested, "has an unaccepted connection request";
        /// The program has accepted, and the peer has not yet confirmed this with an RTU.
        Accepted, "is accepted and not established";
        Connected, "is connected";
        /// One side has disconnected, or the connection was never established.
        Ended, "is disconnected";
    }
}

/// Maximum number of MADs received from a device per turn, so that a peer that sends continuously cannot hold
/// up API calls or deadlines.
const MADS_PER_TURN: usize = 128;

/// State of an id.
pub(super) struct Id {
    pub handle: WeakId,
    pub channel: EventChannel,
    pub space: PortSpace,
    pub qp_type: QpType,
    pub state: IdState,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// Whether the id bound its port itself. Ids created for connection requests share the listener's port.
    pub owns_port: bool,
    pub claims: Vec<Arc<ServiceClaim>>,
    pub device: Option<usize>,
    pub to: Option<AddressVector>,
    /// Path MTU and packet lifetime that the program has set for the path.
    pub path_override: Option<(Mtu, AckTimeout)>,
    pub connection: Option<ConnId>,
    /// Maximum number of requests that wait on the channel; `None` unless the id listens.
    pub backlog: Option<usize>,
    pub groups: Vec<Group>,
    pub qp: Option<QpRemote>,
    /// Starting PSN of the peer's send queue.
    pub psn: Psn,
    /// Responder resources and initiator depth requested by the peer. They limit the values granted by
    /// default when the program accepts.
    pub requested_depths: (u8, u8),
    pub tos: u8,
    pub reuse_addr: bool,
    pub af_only: bool,
    pub ack_timeout: Option<AckTimeout>,
    pub ece: Ece,
    pub remote_ece: Ece,
    /// Whether `Disconnected` has been reported or must be suppressed.
    pub disconnect_reported: bool,
    /// The id's local GID, if its device has lost that GID.
    pub lost_gid: Option<Gid>,
    /// Alternate path offered to the peer, which has not yet responded.
    pub alternate: Option<AddressVector>,
    /// State of a simultaneous (peer-to-peer) connect.
    pub peer_to_peer: Option<PeerToPeer>,
}

impl Id {
    /// Fails unless the id is in one of `states`.
    pub fn require(&self, call: &'static str, states: &[IdState]) -> Result<(), IdError> {
        if states.contains(&self.state) {
            return Ok(());
        }
        Err(IdError::State { call, state: self.state.name() })
    }

    /// Reports whether the id is for datagrams (UD) rather than connections.
    pub fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// Queues an event on the id's channel.
    pub fn report(&self, kind: CmEventKind, status: i32, param: EventParam) {
        let id = Subject::Known(self.handle.clone());
        self.channel.push(QueuedEvent { id, listen_id: None, kind, status, param });
    }

    /// Returns the id's device index and connection, or an error that names `call` if it has no connection.
    pub fn connection(&self, call: &'static str) -> Result<(usize, ConnId), IdError> {
        let none = IdError::State { call, state: self.state.name() };
        self.device.zip(self.connection).ok_or(none)
    }
}

/// Mask for the vendor part (OUI) of a GUID.
const OUI_MASK: u64 = 0xffff_ff00_0000_0000;

impl Device {
    fn new(context: Context, port: Arc<ManagementPort>) -> Device {
        let attr = context.query_device();
        let (prefix, bits) = port.comm_id_prefix();
        // Only the vendor part is that of the device. The rest is random: knowledge of the address must not
        // reveal the key by which peers look up our connections.
        let ca_guid = attr.node_guid & OUI_MASK | context.next_random() & !OUI_MASK;
        let config = CmConfig {
            max_mtu: context.0.mtu,
            ack_delay: AckTimeout::new(attr.local_ca_ack_delay),
            ids: CommIds { prefix, bits },
            ..CmConfig::new(ca_guid, context.gids())
        };
        let cm = Cm::new(config, context.next_random());
        let (ids, listeners, claims) = Default::default();
        Device { context, port, cm, is_lost: false, ids, listeners, claims, may_have_more_mads: false }
    }

    pub fn now(&self) -> Instant {
        self.context.0.shards.clock().now()
    }

    /// Returns the time at which the device needs its next turn even if no MAD arrives.
    fn deadline(&self) -> Option<Instant> {
        let is_due = self.may_have_more_mads || self.port.context().has_event();
        if is_due { Some(self.now()) } else { self.cm.poll_timeout() }
    }

    /// Returns the index of the GID for `ip`, if the device has that address.
    pub fn gid_index(&self, ip: IpAddr) -> Option<u8> {
        let gid = Gid::from(ip.to_canonical());
        u8::try_from(self.cm.gids().iter().position(|own| *own == gid)?).ok()
    }

    /// Returns the device's IP addresses, derived from its GIDs.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.cm.gids().iter().filter(|gid| !gid.is_unset()).map(|gid| gid.ip())
    }

    pub fn gid(&self, index: u8) -> Gid {
        self.cm.gids().get(usize::from(index)).copied().unwrap_or_default()
    }

    /// Rejects a connection request, or the reply to a request that this side sent.
    pub fn send_reject(&mut self, connection: ConnId, reason: RejReason) {
        // Fails if the connection no longer exists, because the peer has aborted it.
        let _ = self.cm.reject(self.now(), connection, reason, &[], &[]);
    }

    /// Releases a connection that no id owns any longer.
    pub fn release(&mut self, connection: ConnId) {
        self.ids.remove(&connection);
        self.cm.release(self.now(), connection);
    }

    /// Returns the maximum number of READs and atomics in flight per queue pair, in either direction.
    pub fn max_rd_atomic(&self) -> u8 {
        self.context.0.limits.max_qp_rd_atom.min(u8::MAX.into()) as u8
    }

    /// Returns a random starting PSN for a connection.
    pub fn random_psn(&self) -> Psn {
        Psn::new(self.context.next_random() as u32)
    }

    /// Sends the pending MADs. A MAD that cannot be sent is treated as lost, and retransmitted by the
    /// protocol.
    fn send(&mut self) {
        while let Some((to, mad)) = self.cm.poll_transmit() {
            let _ = self.port.send(&to, &mad);
        }
    }
}

impl State {
    pub fn new(manager: Weak<Owner>) -> State {
        let (devices, ids, garbage) = Default::default();
        State { manager, devices, ids, last: 0, ports: Ports::default(), garbage }
    }

    /// Adds a device, and extends ids that listen on the wildcard address to it.
    pub fn add_device(&mut self, context: Context, port: Arc<ManagementPort>) -> Result<usize, IdError> {
        if self.devices.is_empty() {
            self.ports.next = context.next_random() as u16;
        }
        self.devices.push(Device::new(context, port));
        let index = self.devices.len() - 1;
        self.extend_listeners(index);
        Ok(index)
    }

    pub fn create(
        &mut self,
        manager: &Arc<Owner>,
        channel: &EventChannel,
        space: PortSpace,
        qp_type: QpType,
    ) -> CmId {
        self.last += 1;
        let handle = CmId::new(manager, self.last);
        let id = Id {
            handle: handle.downgrade(),
            channel: channel.clone(),
            space,
            qp_type,
            state: IdState::Idle,
            local: None,
            peer: None,
            owns_port: false,
            claims: Vec::new(),
            device: None,
            to: None,
            path_override: None,
            connection: None,
            backlog: None,
            groups: Vec::new(),
            qp: None,
            psn: Psn::default(),
            requested_depths: (u8::MAX, u8::MAX),
            tos: 0,
            reuse_addr: false,
            af_only: false,
            ack_timeout: None,
            ece: Ece::default(),
            remote_ece: Ece::default(),
            disconnect_reported: false,
            lost_gid: None,
            alternate: None,
            peer_to_peer: None,
        };
        self.ids.insert(self.last, id);
        handle
    }

    pub fn id(&self, number: u64) -> Result<&Id, IdError> {
        self.ids.get(&number).ok_or(IdError::Ended)
    }

    pub fn id_mut(&mut self, number: u64) -> Result<&mut Id, IdError> {
        self.ids.get_mut(&number).ok_or(IdError::Ended)
    }

    pub fn ids(&self) -> impl Iterator<Item = (u64, &Id)> {
        self.ids.iter().map(|(number, id)| (*number, id))
    }

    /// Destroys an id.
    pub fn destroy(&mut self, number: u64) {
        let Some(mut id) = self.ids.remove(&number) else { return };
        if let (Some(device), Some(connection)) = (id.device, id.connection) {
            self.devices[device].release(connection);
        }
        if let (Some(_), Some(service)) = (id.backlog, id.service()) {
            self.unregister(service, number);
        }
        if let (true, Some(local)) = (id.owns_port, id.local) {
            self.ports.release(id.space, local.port(), number);
        }
        std::mem::take(&mut id.groups).into_iter().for_each(|group| group.leave(id.qp.as_ref()));
        self.garbage.extend(id.channel.remove_events(number));
    }

    pub fn migrate(&mut self, number: u64, to: &EventChannel) -> Result<(), IdError> {
        let id = self.id_mut(number)?;
        let from = std::mem::replace(&mut id.channel, to.clone());
        if !from.is(to) {
            from.remove_events(number).into_iter().for_each(|event| to.push(event));
        }
        Ok(())
    }

    /// Handles received MADs and expired deadlines, and sends the resulting messages.
    pub fn turn(&mut self) {
        for index in 0..self.devices.len() {
            self.process_device_events(index);
            let now = self.devices[index].now();
            self.devices[index].may_have_more_mads = true;
            for _ in 0..MADS_PER_TURN {
                let Some(mad) = self.devices[index].port.try_recv() else {
                    self.devices[index].may_have_more_mads = false;
                    break;
                };
                self.devices[index].cm.handle_mad(now, &mad.from, mad.src_qpn, &mad.bytes);
                self.process_cm_events(index);
            }
            if self.devices[index].cm.poll_timeout().is_some_and(|at| at <= now) {
                self.devices[index].cm.handle_timeout(now);
            }
            self.process_cm_events(index);
        }
    }

    /// Handles all pending events of a device's protocol state, and sends the resulting MADs.
    fn process_cm_events(&mut self, index: usize) {
        while let Some((connection, event)) = self.devices[index].cm.poll_event() {
            self.on_event(index, connection, event);
        }
        while let Some((connection, left)) = self.devices[index].cm.poll_unanswered() {
            if let Some(number) = self.devices[index].ids.get(&connection) {
                self.note_problem(*number, ConnectionProblem::Unanswered { left });
            }
        }
        self.devices[index].send();
    }

    /// Records a problem of an id's connection request for a report.
    pub fn note_problem(&self, number: u64, problem: ConnectionProblem) {
        if let Ok(Id { peer: Some(peer), device: Some(device), .. }) = self.id(number) {
            let report = ConnectionReport::new(*peer, problem);
            self.devices[*device].context.0.connections.add(report);
        }
    }

    fn on_event(&mut self, device: usize, connection: ConnId, event: Event) {
        match (event, self.devices[device].ids.get(&connection).copied()) {
            (Event::Requested(request), _) if request.is_peer_to_peer => {
                self.on_peer_to_peer_request(device, connection, &request);
            }
            (Event::Requested(request), _) => self.on_request(device, connection, &request),
            (_, None) => {}
            (Event::Accepted { info, ece }, Some(number)) => self.on_accepted(number, info, ece),
            (Event::Established, Some(number)) => self.on_established(number),
            (Event::Rejected(rej), Some(number)) => self.on_rejected(number, &rej),
            (Event::Unreachable, Some(number)) => {
                self.on_failed(number, CmEventKind::Unreachable, -libc::ETIMEDOUT, EventParam::None);
            }
            (Event::DisconnectRequested | Event::Disconnected, Some(number)) => {
                self.on_disconnected(number);
            }
            (Event::TimeWaitOver, Some(number)) => self.on_time_wait_over(number),
            (Event::AlternateOffered(path), Some(number)) => {
                self.on_alternate_offered(number, device, connection, &path);
            }
            (Event::AlternateResponse(status), Some(number)) => {
                self.on_alternate_response(number, Some(status));
            }
            (Event::AlternateTimeout, Some(number)) => self.on_alternate_response(number, None),
            (Event::SidrResponse { rep, ece }, Some(number)) => self.on_sidr_response(number, &rep, ece),
            // The connection manager extends the response timeout on its own.
            (Event::Delayed(_), Some(_)) => {}
        }
    }

    /// Returns the time at which the next turn is needed even if no MAD arrives.
    pub fn deadline(&self) -> Option<Instant> {
        self.devices.iter().filter_map(Device::deadline).min()
    }

    /// Returns the time until the next deadline.
    pub fn time_left(&self) -> Option<Duration> {
        let remaining = |device: &Device| Some(device.deadline()?.since(device.now()));
        self.devices.iter().filter_map(remaining).min()
    }
}
