//! All that a manager knows: its devices and its ids. Calls, packets and deadlines change it, one at a time.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::channel::{Queued, Subject};
use super::id::WeakId;
use super::listen::{Listening, Service};
use super::manager::Owner;
use super::multicast::Group;
use super::peers::Peering;
use super::ports::Ports;
use super::{CmEventKind, CmId, Ece, EventChannel, EventParam, IdError, PortSpace};
use crate::cm::{Arrival, Cm, CmConfig, CommIds, ConnId, Event};
use crate::transport::{AddressVector, AsyncEvent, Instant, QpType};
use crate::verbs::qp::QpRemote;
use crate::verbs::{Context, ManagementPort, ServiceClaim};
use crate::wire::mad::{RejReason, ServiceId};
use crate::wire::{AckTimeout, Gid, Mtu, Psn};

/// See the module.
pub(super) struct State {
    manager: Weak<Owner>,
    pub devices: Vec<Device>,
    ids: HashMap<u64, Id>,
    last: u64,
    pub ports: Ports,
    /// What is to be dropped without the lock.
    garbage: Vec<Queued>,
}

/// A device.
pub(super) struct Device {
    pub context: Context,
    port: Arc<ManagementPort>,
    pub cm: Cm,
    /// Its addresses, as far as it has told of them.
    pub gids: Vec<Gid>,
    /// It is gone for good.
    pub is_lost: bool,
    /// The number of the id that has a connection.
    pub ids: HashMap<ConnId, u64>,
    pub services: HashMap<ServiceId, Service>,
    /// What this process has claimed, which ids that share a port share.
    pub claims: HashMap<(ServiceId, Option<IpAddr>), Weak<ServiceClaim>>,
    /// More messages may be there than the last turn took.
    is_behind: bool,
}

/// What an id is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    AddrResolved,
    RouteResolved,
    /// It has asked, and waits for the answer.
    Connecting,
    /// The peer accepts; the program is to say that its queue pair is ready.
    Responded,
    /// The peer has asked, and waits for the answer.
    Requested,
    /// It has accepted, and waits for the peer's last word.
    Accepted,
    Connected,
    /// One side has ended it, or it came to nothing.
    Ended,
}

impl Phase {
    fn text(self) -> &'static str {
        match self {
            Phase::Idle => "has no address",
            Phase::Bound => "has no peer",
            Phase::Listening => "listens",
            Phase::AddrResolved => "has no route yet",
            Phase::RouteResolved => "is not connected",
            Phase::Connecting => "waits for its peer",
            Phase::Responded => "is to be established",
            Phase::Requested => "is to be accepted",
            Phase::Accepted => "waits for its peer to be ready",
            Phase::Connected => "is connected",
            Phase::Ended => "is disconnected",
        }
    }
}

/// Messages that a device gives in a turn: a peer that never pauses is not to keep programs from their ids, nor
/// deadlines from being met.
const MADS: usize = 128;

/// An id.
pub(super) struct Id {
    pub handle: WeakId,
    pub channel: EventChannel,
    pub space: PortSpace,
    pub qp_type: QpType,
    pub phase: Phase,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// The port is its own, not its listener's.
    pub owns_port: bool,
    pub claims: Vec<Arc<ServiceClaim>>,
    pub device: Option<usize>,
    pub to: Option<AddressVector>,
    /// Of the path, as the program has given it: payload bytes a packet, and how long one can be under way.
    pub given: Option<(Mtu, AckTimeout)>,
    pub connection: Option<ConnId>,
    pub listening: Option<Listening>,
    pub groups: Vec<Group>,
    pub qp: Option<QpRemote>,
    /// The first PSN that the peer is to send.
    pub psn: Psn,
    /// As many as the peer would ask, and as it takes at once: bounds of what an answer grants.
    pub asked: (u8, u8),
    pub tos: u8,
    pub reuse_addr: bool,
    pub af_only: bool,
    pub ack_timeout: Option<AckTimeout>,
    pub ece: Ece,
    pub remote_ece: Ece,
    /// The program was told that the connection has ended.
    pub told_of_end: bool,
    /// Its address, while its device does not have it.
    pub lost: Option<Gid>,
    /// The path that the peer was offered and has not answered yet.
    pub alternate: Option<AddressVector>,
    /// It asks a peer that asks it.
    pub peering: Option<Peering>,
}

impl Id {
    /// Fails unless it is in one of some phases.
    pub fn require(&self, call: &'static str, phases: &[Phase]) -> Result<(), IdError> {
        if phases.contains(&self.phase) {
            return Ok(());
        }
        Err(IdError::State { call, state: self.phase.text() })
    }

    /// Whether it is for datagrams.
    pub fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// Reports something.
    pub fn report(&self, kind: CmEventKind, status: i32, param: EventParam) {
        let id = Subject::Known(self.handle.clone());
        self.channel.push(Queued { id, listen_id: None, kind, status, param, waiting: None });
    }

    /// Its connection.
    pub fn connection(&self, call: &'static str) -> Result<(usize, ConnId), IdError> {
        let none = IdError::State { call, state: self.phase.text() };
        self.device.zip(self.connection).ok_or(none)
    }
}

/// The vendor's part of a GUID.
const VENDOR: u64 = 0xffff_ff00_0000_0000;

impl Device {
    fn new(context: Context, port: Arc<ManagementPort>) -> Device {
        let attr = context.query_device();
        let gids = context.gids();
        let (prefix, bits) = port.comm_id_prefix();
        // The vendor's part is the device's. The rest is random: who knows the address is not to know the peers' tables.
        let ca_guid = attr.node_guid & VENDOR | context.draw() & !VENDOR;
        let config = CmConfig {
            max_mtu: context.0.mtu,
            ack_delay: AckTimeout::new(attr.local_ca_ack_delay),
            ids: CommIds { prefix, bits },
            ..CmConfig::new(ca_guid, gids.clone())
        };
        let cm = Cm::new(config, context.draw());
        let (ids, services, claims) = Default::default();
        Device { context, port, cm, gids, is_lost: false, ids, services, claims, is_behind: false }
    }

    pub fn now(&self) -> Instant {
        self.context.0.shards.clock().now()
    }

    /// When it is to be looked at though nothing comes.
    fn deadline(&self) -> Option<Instant> {
        let is_due = self.is_behind || self.port.context().has_event();
        if is_due { Some(self.now()) } else { self.cm.poll_timeout() }
    }

    /// The index of the GID that is an address.
    pub fn gid_index(&self, ip: IpAddr) -> Option<u8> {
        let gid = Gid::from(ip.to_canonical());
        u8::try_from(self.gids.iter().position(|own| *own == gid)?).ok()
    }

    /// Its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.gids.iter().filter(|gid| !gid.is_unset()).map(|gid| gid.ip())
    }

    pub fn gid(&self, index: u8) -> Gid {
        self.gids.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// What has happened to it.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.port.context().next_event()
    }

    /// Refuses a request, or the answer to one of ours.
    pub fn refuse(&mut self, connection: ConnId, reason: RejReason) {
        // It is gone if its peer has given up already.
        let _ = self.cm.reject(self.now(), connection, reason, &[], &[]);
    }

    /// Lets go of a connection: no id has it any more.
    pub fn release(&mut self, connection: ConnId) {
        self.ids.remove(&connection);
        self.cm.release(self.now(), connection);
    }

    /// READs and atomics that a queue pair can have in flight, or take at a time.
    pub fn max_rd_atomic(&self) -> u8 {
        self.context.0.limits.max_qp_rd_atom.min(u8::MAX.into()) as u8
    }

    /// The first PSN of a connection, by chance.
    pub fn draw_psn(&self) -> Psn {
        Psn::new(self.context.draw() as u32)
    }

    /// Sends what the connection manager wants sent. What cannot be sent now it sends again, as from any loss.
    fn send(&mut self) {
        while let Some(out) = self.cm.poll_transmit() {
            let _ = self.port.send(&out.to, &out.mad);
        }
    }
}

impl State {
    pub fn new(manager: Weak<Owner>) -> State {
        let (devices, ids, garbage) = Default::default();
        State { manager, devices, ids, last: 0, ports: Ports::default(), garbage }
    }

    pub fn contexts(&self) -> Vec<Context> {
        self.devices.iter().map(|device| device.context.clone()).collect()
    }

    pub fn connections(&self) -> usize {
        let populations = self.devices.iter().map(|device| device.cm.population());
        populations.map(|(all, in_time_wait)| all - in_time_wait).sum()
    }

    /// Adds a device; who listens on all does so on it too.
    pub fn add_device(&mut self, context: Context, port: Arc<ManagementPort>) -> Result<usize, IdError> {
        if self.devices.is_empty() {
            self.ports.begin_at(context.draw() as u16);
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
            phase: Phase::Idle,
            local: None,
            peer: None,
            owns_port: false,
            claims: Vec::new(),
            device: None,
            to: None,
            given: None,
            connection: None,
            listening: None,
            groups: Vec::new(),
            qp: None,
            psn: Psn::default(),
            asked: (u8::MAX, u8::MAX),
            tos: 0,
            reuse_addr: false,
            af_only: false,
            ack_timeout: None,
            ece: Ece::default(),
            remote_ece: Ece::default(),
            told_of_end: false,
            lost: None,
            alternate: None,
            peering: None,
        };
        self.ids.insert(self.last, id);
        handle
    }

    /// An id that came with a request.
    pub fn create_for(&mut self, listener: u64, qp_type: QpType) -> Option<CmId> {
        let manager = self.manager.upgrade()?;
        let (channel, space) = self.ids.get(&listener).map(|id| (id.channel.clone(), id.space))?;
        Some(self.create(&manager, &channel, space, qp_type))
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

    /// Ends an id.
    pub fn destroy(&mut self, number: u64) {
        let Some(mut id) = self.ids.remove(&number) else { return };
        if let (Some(device), Some(connection)) = (id.device, id.connection) {
            self.devices[device].release(connection);
        }
        if id.listening.is_some() {
            self.unlisten(number, &id);
        }
        if let (true, Some(local)) = (id.owns_port, id.local) {
            self.ports.release(id.space, local.port(), number);
        }
        std::mem::take(&mut id.groups).into_iter().for_each(|group| group.leave(id.qp.as_ref()));
        self.garbage.extend(id.channel.withdraw(number));
    }

    pub fn take_garbage(&mut self) -> Vec<Queued> {
        std::mem::take(&mut self.garbage)
    }

    pub fn migrate(&mut self, number: u64, to: &EventChannel) -> Result<(), IdError> {
        let id = self.id_mut(number)?;
        let from = std::mem::replace(&mut id.channel, to.clone());
        if !from.is(to) {
            from.hand_over(number, to);
        }
        Ok(())
    }

    /// Takes in what has come, acts on deadlines, sends.
    pub fn turn(&mut self) {
        for index in 0..self.devices.len() {
            self.heed_device(index);
            let now = self.devices[index].now();
            self.devices[index].is_behind = true;
            for _ in 0..MADS {
                let Some(mad) = self.devices[index].port.try_recv() else {
                    self.devices[index].is_behind = false;
                    break;
                };
                let arrival = Arrival { from: mad.from, src_qpn: mad.src_qpn };
                self.devices[index].cm.handle_mad(now, &arrival, &mad.bytes);
                self.settle(index);
            }
            if self.devices[index].cm.poll_timeout().is_some_and(|at| at <= now) {
                self.devices[index].cm.handle_timeout(now);
            }
            self.settle(index);
        }
    }

    /// Acts on what a device's connection manager has to say, until that is all.
    fn settle(&mut self, index: usize) {
        while let Some((connection, event)) = self.devices[index].cm.poll_event() {
            self.on_event(index, connection, event);
        }
        self.devices[index].send();
    }

    fn on_event(&mut self, device: usize, connection: ConnId, event: Event) {
        match (event, self.devices[device].ids.get(&connection).copied()) {
            (Event::Requested(request), _) if request.listener.is_none() => {
                self.on_crossed(device, connection, &request);
            }
            (Event::Requested(request), _) => self.on_request(device, connection, &request),
            (Event::SidrRequested(request), _) => self.on_question(device, connection, &request),
            (_, None) => {}
            (Event::Accepted(accepted), Some(number)) => self.on_accepted(number, &accepted),
            (Event::Established(_), Some(number)) => self.on_established(number),
            (Event::Rejected(rejection), Some(number)) => self.on_rejected(number, &rejection),
            (Event::Unreachable, Some(number)) => self.on_unreachable(number),
            (Event::DisconnectRequested(_) | Event::Disconnected { .. }, Some(number)) => {
                self.on_disconnected(number);
            }
            (Event::TimeWaitOver, Some(number)) => self.on_time_wait_over(number),
            (Event::AlternateOffered { path, .. }, Some(number)) => {
                self.on_alternate(number, device, connection, &path);
            }
            (Event::AlternateAnswered { status, .. }, Some(number)) => {
                self.on_alternate_answered(number, Some(status));
            }
            (Event::AlternateUnanswered, Some(number)) => self.on_alternate_answered(number, None),
            (Event::SidrAnswered(answer), Some(number)) => self.on_answer(number, &answer),
            // To wait longer is the connection manager's own affair.
            (Event::Delayed { .. }, Some(_)) => {}
        }
    }

    /// When there is something to do though nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.devices.iter().filter_map(Device::deadline).min()
    }

    /// How long until then.
    pub fn time_left(&self) -> Option<Duration> {
        let left = |device: &Device| Some(device.deadline()?.since(device.now()));
        self.devices.iter().filter_map(left).min()
    }
}
