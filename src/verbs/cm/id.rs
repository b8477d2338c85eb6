//! Calls on an id ([`CmId`]).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::manager::Owner;
use super::state::{Id, IdState, State};
use super::{
    CmEvent, CmEventKind, ConnParam, Ece, EventChannel, EventParam, IdError, Membership, PathRecord,
    PortSpace, RejReason,
};
use crate::sys::thread::spawn_background;
use crate::transport::{AsyncEvent, QpAttr, QpState, QpType};
use crate::verbs::errors::WaitError;
use crate::verbs::faults::Call;
use crate::verbs::{Context, Qp};
use crate::wire::{AckTimeout, Qpn};

/// A communication identifier: a listener, a connection or a datagram endpoint (`rdma_cm_id`). The handle is
/// cheap to clone. Dropping the last handle, or calling [`destroy`](Self::destroy), ends the id and discards
/// its pending events.
///
/// Every call that returns an [`IdError`] fails with [`IdError::Ended`] once the id is destroyed, and with
/// [`IdError::Inherited`] in a child of fork.
///
/// ```
/// # use std::time::Duration;
/// use urxe::verbs::cm::*;
/// use urxe::verbs::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::new();
/// # let (local, remote) = (Context::on_fabric(&fabric)?, Context::on_fabric(&fabric)?);
/// # let peer = (remote.address().ok_or("no address")?, 7471).into();
/// let manager = ConnectionManager::new(vec![local, remote])?;
/// let channel = EventChannel::new()?;
/// let id = manager.create_id(&channel, PortSpace::Tcp)?;
/// id.resolve_addr(None, peer, Duration::from_secs(2))?;
/// let event = channel.get_event(Some(Duration::from_secs(5)))?;
/// assert_eq!(event.kind, CmEventKind::AddrResolved);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CmId(Arc<Handle>);

struct Handle {
    number: u64,
    manager: Arc<Owner>,
    is_device_removed: Arc<AtomicBool>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.manager.retire(self.number);
    }
}

/// Weak reference to an id, which does not keep the id alive.
#[derive(Clone)]
pub(super) struct WeakId {
    number: u64,
    handle: Weak<Handle>,
    is_device_removed: Arc<AtomicBool>,
}

impl WeakId {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn upgrade(&self) -> Option<CmId> {
        self.handle.upgrade().map(CmId)
    }

    /// Records that the device has failed permanently, before the event is reported.
    pub fn set_device_removed(&self) {
        self.is_device_removed.store(true, Ordering::Release);
    }
}

impl CmId {
    pub(super) fn new(manager: &Arc<Owner>, number: u64) -> CmId {
        CmId(Arc::new(Handle { number, manager: manager.clone(), is_device_removed: Arc::default() }))
    }

    pub(super) fn downgrade(&self) -> WeakId {
        let is_device_removed = self.0.is_device_removed.clone();
        WeakId { number: self.0.number, handle: Arc::downgrade(&self.0), is_device_removed }
    }

    /// Returns the result of `take` or, if there is none and the listener's device was removed, an error.
    pub(super) fn unless_device_removed<R>(
        &self,
        take: impl FnOnce() -> Option<R>,
    ) -> Option<Result<R, WaitError>> {
        // Read first: the requests from before the removal are all queued then, and are delivered.
        let is_removed = self.0.is_device_removed.load(Ordering::Acquire);
        take().map(Ok).or(is_removed.then_some(Err(WaitError::DeviceRemoved)))
    }

    /// Runs `f` on the manager's state.
    fn with_state<R>(&self, f: impl FnOnce(&mut State, u64) -> Result<R, IdError>) -> Result<R, IdError> {
        self.0.manager.with_state(|state| f(state, self.0.number))
    }

    /// Applies the faults on a call, which are those of the manager's devices, then runs `f` on the manager's
    /// state.
    fn call<R>(
        &self,
        call: Call,
        f: impl FnOnce(&mut State, u64) -> Result<R, IdError>,
    ) -> Result<R, IdError> {
        self.0.manager.inject(call)?;
        self.with_state(f)
    }

    /// Queries the id; returns `None` if it has been destroyed.
    fn query<R>(&self, f: impl FnOnce(&State, &Id) -> Option<R>) -> Option<R> {
        self.with_state(|state, number| Ok(f(state, state.id(number)?))).ok().flatten()
    }

    /// Changes one of the id's options.
    fn set(&self, f: impl FnOnce(&mut Id)) -> Result<(), IdError> {
        self.with_state(|state, number| state.id_mut(number).map(f))
    }

    /// Changes an option that only an unbound id accepts, by the call named `call`.
    fn set_unbound(&self, call: &'static str, f: impl FnOnce(&mut Id)) -> Result<(), IdError> {
        self.with_state(|state, number| {
            state.id(number)?.require(call, &[IdState::Idle])?;
            state.id_mut(number).map(f)
        })
    }

    /// Returns the id's number, which is unique during its manager's lifetime.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Destroys the id, whatever its state (`rdma_destroy_id`): rejects a listener's pending requests,
    /// disconnects a connection, leaves multicast groups, and discards pending events. Later calls on other
    /// handles of the id fail.
    pub fn destroy(&self) {
        // A child of fork has no ids to destroy.
        let _ = self.with_state(|state, number| {
            state.destroy(number);
            Ok(())
        });
    }

    /// Binds the id to an address and port. 0.0.0.0 or :: selects all devices; port 0 selects any free port.
    ///
    /// # Errors
    /// [`IdError::PortInUse`], [`IdError::PortInUseByWildcard`], [`IdError::NoPort`], [`IdError::NoDevice`],
    /// [`IdError::Claim`], [`IdError::State`].
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<(), IdError> {
        self.call(Call::rdma_bind_addr, |state, number| state.bind_addr(number, addr))
    }

    /// Finds the device from which `dst` is reached, and reports `AddrResolved` or `AddrError`. The event is
    /// reported immediately, unless the link is a UDP socket and the system has to resolve the next hop
    /// (ARP, NDP): then at the end of the resolution, or after `timeout`. With a timeout of 0, the next
    /// hop is not resolved.
    ///
    /// # Errors
    /// [`IdError::NoRoute`] if the system has no route to `dst`; [`IdError::State`] unless the id is new or
    /// bound; [`IdError::Family`] if source and destination are of different IP versions;
    /// [`IdError::NoDevice`] if no device has the source address; for an id that is not bound,
    /// [`IdError::PortInUse`], [`IdError::PortInUseByWildcard`] or [`IdError::NoPort`] for the
    /// source port. A destination that no device leads to is reported as `AddrError`.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<(), IdError> {
        let resolves_neighbour = !timeout.is_zero();
        let resolve = |state: &mut State, number| state.resolve_addr(number, src, dst, resolves_neighbour);
        let Some(resolution) = self.call(Call::rdma_resolve_addr, resolve)? else {
            return Ok(());
        };
        let id = self.downgrade();
        let resolve = move || {
            let result = resolution.wait(timeout);
            if let Some(id) = id.upgrade() {
                // Fails if the manager has ended meanwhile.
                let _ = id.with_state(|state, number| state.end_resolution(number, &result));
            }
        };
        spawn_background("urxe-resolver".into(), resolve)?;
        Ok(())
    }

    /// Finds the path to the resolved address, and reports `RouteResolved`, or `RouteError` if the source
    /// address was removed. Resolution is local, so the event is reported immediately and the timeout is
    /// ignored.
    ///
    /// # Errors
    /// [`IdError::State`] before the address is resolved.
    pub fn resolve_route(&self, _timeout: Duration) -> Result<(), IdError> {
        self.call(Call::rdma_resolve_route, |state, number| state.resolve_route(number))
    }

    /// Sets the path to the peer instead of resolving it, and reports the same events as
    /// [`resolve_route`](Self::resolve_route). The path need not lead to the resolved address.
    ///
    /// # Errors
    /// [`IdError::State`] unless the address is resolved and the route is not; [`IdError::NoDevice`],
    /// [`IdError::NoHost`], [`IdError::Family`] or [`IdError::Value`] for a path that this device does not
    /// have.
    pub fn set_path(&self, path: &PathRecord) -> Result<(), IdError> {
        self.with_state(|state, number| state.set_path(number, path))
    }

    /// Listens for connection requests. At most `backlog` requests wait on the channel (0 selects the
    /// manager's maximum). As on Linux, further requests get no response, so those that their clients
    /// retransmit may succeed later; those for datagram services are rejected.
    ///
    /// # Errors
    /// [`IdError::State`] unless the id is new or bound; [`IdError::PortInUse`] or
    /// [`IdError::PortInUseByWildcard`] if another id is bound to the same address and port; for an id that
    /// is not bound, the errors of [`bind_addr`](Self::bind_addr).
    pub fn listen(&self, backlog: usize) -> Result<(), IdError> {
        self.call(Call::rdma_listen, |state, number| state.listen(number, backlog))
    }

    /// Waits for the next connection request to this listener. All other events on the channel stay queued,
    /// including the listener's own.
    ///
    /// # Errors
    /// [`WaitError::DeviceRemoved`] if the device of the listener was removed and no earlier request is
    /// queued; [`WaitError::Idle`] if the id has ended; the errors of [`EventChannel::get_event_by`].
    pub fn get_request(&self, timeout: Option<Duration>) -> Result<CmEvent, WaitError> {
        let channel = self.channel().ok_or(WaitError::Idle)?;
        channel.get_event_by(timeout, || self.unless_device_removed(|| channel.try_request(self.number())))?
    }

    /// Returns the channel to which the id's events are delivered; `None` if the id has been destroyed.
    pub(super) fn channel(&self) -> Option<EventChannel> {
        self.query(|_, id| Some(id.channel.clone()))
    }

    /// Requests a connection or, for datagrams, the peer's queue pair. The outcome is reported as
    /// `Established` (`ConnectResponse` if no queue pair is attached), `Rejected`, `Unreachable` or
    /// `ConnectError`.
    ///
    /// # Errors
    /// [`IdError::State`] unless the route is resolved; [`IdError::NoQp`], except for datagrams, without an
    /// attached queue pair or [`ConnParam::qp_num`]; [`IdError::Value`] for a depth above the device's limit;
    /// [`IdError::PrivateData`] for more than 56 bytes, or 180 for datagrams; [`IdError::Protocol`] if the
    /// device has too many connections, or no longer has the source address.
    pub fn connect(&self, param: &ConnParam) -> Result<(), IdError> {
        self.call(Call::rdma_connect, |state, number| state.request(number, param, false))
    }

    /// Connects like [`connect`](Self::connect), but to a peer that connects to this id at the same time:
    /// both ids are bound to the same port number, and each sends its request to the other's port. One
    /// connection results, whichever request arrives first, and both sides report `Established` with the
    /// other's private data. A queue pair must be attached. A request that arrives before the peer has called
    /// `connect_peer` is held until one second after the peer has bound its port; it is then rejected,
    /// because the port has no listener.
    ///
    /// # Errors
    /// [`IdError::NoQp`] without an attached queue pair; [`IdError::State`] for a datagram id; otherwise the
    /// errors of [`connect`](Self::connect).
    pub fn connect_peer(&self, param: &ConnParam) -> Result<(), IdError> {
        self.with_state(|state, number| state.connect_peer(number, param))
    }

    /// Offers the peer an alternate path, from an address of this device to another address of the peer. If
    /// the peer accepts, the attached queue pairs on both sides migrate to it once packets are lost on the
    /// primary path. The outcome is reported as `AlternatePath`. A peer that uses this manager accepts any
    /// path that its queue pair can load.
    ///
    /// # Errors
    /// [`IdError::State`] unless the id is connected; [`IdError::NoQp`] without an attached queue pair;
    /// [`IdError::Family`] if the addresses are of different IP versions; [`IdError::NoDevice`] if the device
    /// does not have `from`; [`IdError::Protocol`] if an offer has no response yet.
    pub fn load_alternate(&self, from: IpAddr, to: IpAddr) -> Result<(), IdError> {
        self.with_state(|state, number| state.load_alternate(number, from, to))
    }

    /// Accepts the request that created this id, and reports `Established`, except for datagrams.
    ///
    /// # Errors
    /// [`IdError::State`] unless the id is that of a request without a response; [`IdError::NoQp`] without an
    /// attached queue pair or [`ConnParam::qp_num`], or if the attached one is destroyed; [`IdError::Value`]
    /// for a depth above the device's limit; [`IdError::PrivateData`] or, for datagrams,
    /// [`IdError::Protocol`] for more private data than the message holds; [`IdError::Modify`] if the queue
    /// pair cannot change its state; [`IdError::Protocol`] if the connection no longer exists.
    pub fn accept(&self, param: &ConnParam) -> Result<(), IdError> {
        self.call(Call::rdma_accept, |state, number| state.accept(number, param))
    }

    /// Rejects the request that created this id, or the peer's reply to a request from this id.
    ///
    /// # Errors
    /// [`IdError::State`] unless the id is that of a request or has an unconfirmed reply;
    /// [`IdError::Protocol`] if the private data do not fit the message, or the connection no longer
    /// exists.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), IdError> {
        self.reject_with(RejReason::Consumer, private_data)
    }

    /// Rejects like [`reject`](Self::reject), but with the given reason instead of "consumer reject".
    ///
    /// # Errors
    /// The errors of [`reject`](Self::reject).
    pub fn reject_with(&self, reason: RejReason, private_data: &[u8]) -> Result<(), IdError> {
        self.call(Call::rdma_reject, |state, number| state.reject(number, reason, private_data))
    }

    /// Completes the handshake after `ConnectResponse`, once the caller's queue pair is in RTS.
    ///
    /// # Errors
    /// [`IdError::State`] unless `ConnectResponse` was reported and is unanswered; [`IdError::Protocol`] if
    /// the connection no longer exists.
    pub fn establish(&self) -> Result<(), IdError> {
        self.call(Call::rdma_establish, State::establish)
    }

    /// Disconnects, or confirms the peer's disconnect: moves the attached queue pair to the error state, and
    /// reports `Disconnected`.
    ///
    /// # Errors
    /// [`IdError::State`] unless the id is accepted, connected or disconnected; [`IdError::Protocol`] if the
    /// connection no longer exists.
    pub fn disconnect(&self) -> Result<(), IdError> {
        self.call(Call::rdma_disconnect, State::disconnect)
    }

    /// Notifies the manager of an asynchronous event on the queue pair: data that arrives before the peer's
    /// RTU establishes the connection just as the RTU does.
    ///
    /// # Errors
    /// [`IdError::State`] for another event than `CommunicationEstablished`, or without a connection;
    /// [`IdError::Protocol`] unless the connection is accepted or established.
    pub fn notify(&self, event: AsyncEvent) -> Result<(), IdError> {
        self.with_state(|state, number| state.notify(number, event))
    }

    /// Queues an event of the program's own on the id's channel (`rdma_write_cm_event`), for example to wake
    /// a thread that waits for an event. It has the kind [`CmEventKind::User`], the given status, and the
    /// parameter [`EventParam::User`].
    ///
    /// # Errors
    /// [`IdError::Ended`], [`IdError::Inherited`].
    pub fn write_event(&self, status: i32, arg: u64) -> Result<(), IdError> {
        self.set(|id| id.report(CmEventKind::User, status, EventParam::User(arg)))
    }

    /// Reports the outcome of a name resolution by the C library: status 0, or the code of `getaddrinfo`.
    #[doc(hidden)]
    pub fn report_addrinfo(&self, status: i32) -> Result<(), IdError> {
        let kind = if status == 0 { CmEventKind::AddrInfoResolved } else { CmEventKind::AddrInfoError };
        self.set(|id| id.report(kind, status, EventParam::None))
    }

    /// Moves the id and its pending events to another event channel.
    ///
    /// # Errors
    /// [`IdError::State`] if the id has ended.
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), IdError> {
        channel.set_manager(&self.0.manager);
        self.with_state(|state, number| state.migrate(number, channel))
    }

    /// Attaches a queue pair. The manager then performs its state transitions: to INIT immediately (to RTS
    /// for datagrams), to RTR and RTS during the handshake, and to the error state on disconnect. The manager
    /// does not keep the queue pair alive; dropping the queue pair detaches it.
    ///
    /// # Errors
    /// [`IdError::QpType`] if the queue pair is of another transport service; [`IdError::State`] if the id
    /// has no device yet; [`IdError::OtherDevice`] if the queue pair belongs to another device;
    /// [`IdError::Modify`] if it cannot change to INIT.
    pub fn attach_qp(&self, qp: &Qp) -> Result<(), IdError> {
        self.with_state(|state, number| state.attach(number, qp))
    }

    /// Detaches the queue pair, whose state transitions the manager then no longer performs.
    pub fn detach_qp(&self) {
        // An id that has ended has no queue pair.
        let _ = self.set(|id| id.qp = None);
    }

    /// Returns the number of the attached queue pair, even if that queue pair no longer exists.
    pub fn attached_qp(&self) -> Option<Qpn> {
        self.query(|_, id| id.qp.as_ref().map(|qp| qp.qpn))
    }

    /// Returns the attributes for the transition to `target`, for a queue pair whose state transitions the
    /// caller performs itself (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// [`IdError::NoAttributes`] if they are not known yet.
    pub fn init_qp_attr(&self, target: QpState) -> Result<QpAttr, IdError> {
        self.with_state(|state, number| state.attributes(number, target))
    }

    /// Sets the traffic class of the id's packets (`RDMA_OPTION_ID_TOS`).
    ///
    /// # Errors
    /// [`IdError::State`] if the id has ended.
    pub fn set_tos(&self, tos: u8) -> Result<(), IdError> {
        self.set(|id| id.tos = tos)
    }

    /// Sets whether the port may be shared with other ids that also set this option
    /// (`RDMA_OPTION_ID_REUSEADDR`).
    ///
    /// # Errors
    /// [`IdError::State`] once the id is bound.
    pub fn set_reuse_addr(&self, on: bool) -> Result<(), IdError> {
        self.set_unbound("set_reuse_addr", |id| id.reuse_addr = on)
    }

    /// Sets whether an id bound to :: excludes IPv4 (`RDMA_OPTION_ID_AFONLY`).
    ///
    /// # Errors
    /// [`IdError::State`] once the id is bound.
    pub fn set_af_only(&self, on: bool) -> Result<(), IdError> {
        self.set_unbound("set_af_only", |id| id.af_only = on)
    }

    /// Sets the queue pair's local ACK timeout to 4.096 µs * 2^`code` (`RDMA_OPTION_ID_ACK_TIMEOUT`).
    ///
    /// # Errors
    /// [`IdError::Value`] above 31.
    pub fn set_ack_timeout(&self, code: u8) -> Result<(), IdError> {
        if code > 31 {
            return Err(IdError::Value { name: "the ACK timeout", value: code.into() });
        }
        self.set(|id| id.ack_timeout = Some(AckTimeout::new(code)))
    }

    /// Sets the enhanced connection establishment (ECE) options that the id sends when it connects or
    /// accepts. This NIC itself does not use them.
    ///
    /// # Errors
    /// [`IdError::State`] if the id has ended.
    pub fn set_ece(&self, ece: Ece) -> Result<(), IdError> {
        self.set(|id| id.ece = ece)
    }

    /// Returns the ECE options sent by the peer.
    pub fn remote_ece(&self) -> Ece {
        self.query(|_, id| Some(id.remote_ece)).unwrap_or_default()
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.query(|_, id| id.local)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.query(|_, id| id.peer)
    }

    /// Returns the id's device, if it has one.
    pub fn context(&self) -> Option<Context> {
        self.query(|state, id| Some(state.devices[id.device?].context.clone()))
    }

    /// Returns the index of the id's device in the manager's list.
    pub fn device_index(&self) -> Option<usize> {
        self.query(|_, id| id.device)
    }

    /// Returns the port space.
    pub fn port_space(&self) -> Option<PortSpace> {
        self.query(|_, id| Some(id.space))
    }

    /// Returns the transport service.
    pub fn qp_type(&self) -> Option<QpType> {
        self.query(|_, id| Some(id.qp_type))
    }

    /// Returns the path to the peer; `None` if the peer is not known.
    pub fn path(&self) -> Option<PathRecord> {
        self.query(|state, id| state.path_record(id))
    }

    /// Reports whether `Disconnected` has been queued or delivered, or will never be reported.
    #[doc(hidden)]
    pub fn was_disconnect_reported(&self) -> bool {
        self.query(|_, id| Some(id.disconnect_reported)).unwrap_or(true)
    }

    /// Joins a multicast group. The outcome is reported as `MulticastJoin` or `MulticastError`, with the
    /// group's address vector, queue pair number and Q_Key. An attached queue pair is also attached to the
    /// group.
    ///
    /// # Errors
    /// [`IdError::State`] unless the id is bound to a device, resolved or connected; [`IdError::NoGroup`] if
    /// the address is not a multicast address; [`IdError::Joined`] if the id has joined the group already.
    pub fn join_multicast(&self, group: SocketAddr, membership: Membership) -> Result<(), IdError> {
        self.with_state(|state, number| state.join_multicast(number, group, membership))
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// [`IdError::NoGroup`] if the id has not joined the group.
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<(), IdError> {
        self.with_state(|state, number| state.leave_multicast(number, group))
    }
}

impl PartialEq for CmId {
    fn eq(&self, other: &CmId) -> bool {
        self.number() == other.number() && Arc::ptr_eq(&self.0.manager, &other.0.manager)
    }
}

impl Eq for CmId {}

impl Hash for CmId {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.number().hash(hasher);
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmId({})", self.number())
    }
}
