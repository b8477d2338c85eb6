//! Ids: the calls.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::manager::Owner;
use super::state::{Id, Phase, State};
use super::{CmEvent, ConnParam, Ece, EventChannel, IdError, Membership, Path, PortSpace, RejReason};
use crate::transport::{AsyncEvent, QpAttr, QpState, QpType};
use crate::verbs::{Context, Qp, WaitError};
use crate::wire::{AckTimeout, Qpn};

/// An id: a listener, a connection or a place for datagrams (`rdma_cm_id`). A handle, cheap to clone; once the last is gone,
/// or after [`destroy`](Self::destroy), so is the id, with the events that nobody took.
#[derive(Clone)]
pub struct CmId(Arc<Handle>);

struct Handle {
    number: u64,
    manager: Arc<Owner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.manager.retire(self.number);
    }
}

/// An id that may have ended.
#[derive(Clone)]
pub(super) struct WeakId {
    number: u64,
    handle: Weak<Handle>,
}

impl WeakId {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn upgrade(&self) -> Option<CmId> {
        self.handle.upgrade().map(CmId)
    }
}

impl CmId {
    pub(super) fn new(manager: &Arc<Owner>, number: u64) -> CmId {
        CmId(Arc::new(Handle { number, manager: manager.clone() }))
    }

    pub(super) fn downgrade(&self) -> WeakId {
        WeakId { number: self.0.number, handle: Arc::downgrade(&self.0) }
    }

    /// Does something with all there is.
    fn call<R>(&self, f: impl FnOnce(&mut State, u64) -> Result<R, IdError>) -> Result<R, IdError> {
        self.0.manager.call(|state| f(state, self.0.number))
    }

    /// Asks something of it; `None` if it has ended.
    fn ask<R>(&self, f: impl FnOnce(&State, &Id) -> Option<R>) -> Option<R> {
        self.call(|state, number| Ok(f(state, state.id(number)?))).ok().flatten()
    }

    /// Changes an option.
    fn set(&self, f: impl FnOnce(&mut Id) -> Result<(), IdError>) -> Result<(), IdError> {
        self.call(|state, number| f(state.id_mut(number)?))
    }

    /// A number that no other id of its manager has, nor had.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Ends it in any state as suits that (`rdma_destroy_id`): a listener's waiting requests are rejected, a connection is
    /// disconnected, a group is left. Its events that wait on the channel are gone. Other handles can do nothing any more.
    pub fn destroy(&self) {
        // In a child of fork there is nothing to end.
        let _ = self.call(|state, number| {
            state.destroy(number);
            Ok(())
        });
    }

    /// Binds it to an address and port; 0.0.0.0 or :: for all devices, port 0 for any.
    ///
    /// # Errors
    /// [`IdError::PortTaken`], [`IdError::NoDevice`], [`IdError::State`].
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<(), IdError> {
        self.call(|state, number| state.bind_addr(number, addr))
    }

    /// Finds the device that leads to an address; `AddrResolved` or `AddrError` comes. Nobody is asked for that, so it comes
    /// at once, whatever the timeout.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        _timeout: Duration,
    ) -> Result<(), IdError> {
        self.call(|state, number| state.resolve_addr(number, src, dst))
    }

    /// Finds the path to there; `RouteResolved` comes, or `RouteError` if the address that it would begin at is gone. Nobody
    /// is asked for that, so it comes at once, whatever the timeout.
    ///
    /// # Errors
    /// [`IdError::State`] before the address is resolved.
    pub fn resolve_route(&self, _timeout: Duration) -> Result<(), IdError> {
        self.call(|state, number| state.resolve_route(number))
    }

    /// The path to the peer is this one, and is not looked for; `RouteResolved` comes, or what else
    /// [`resolve_route`](Self::resolve_route) would say. It need not lead to the address that was resolved.
    ///
    /// # Errors
    /// [`IdError::State`] unless the address is resolved and the path is not; of a path that this device does not have
    /// [`IdError::NoDevice`], [`IdError::NoHost`], [`IdError::Family`] or [`IdError::Value`].
    pub fn set_path(&self, path: &Path) -> Result<(), IdError> {
        self.call(|state, number| state.set_path(number, path))
    }

    /// Takes connection requests, of which `backlog` may wait on the channel (0: as many as the manager allows); more are
    /// rejected.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn listen(&self, backlog: usize) -> Result<(), IdError> {
        self.call(|state, number| state.listen(number, backlog))
    }

    /// Waits for the next connection request to this listener, past other events of the channel.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn get_request(&self, timeout: Option<Duration>) -> Result<CmEvent, WaitError> {
        let channel = self.ask(|_, id| Some(id.channel.clone())).ok_or(WaitError::Idle)?;
        channel.get_event_by(timeout, || channel.try_request(self.number()))
    }

    /// Asks the peer for a connection; of datagrams, for its queue pair. `Established` comes, or `ConnectResponse` where the
    /// manager does not drive the queue pair, or `Rejected`, `Unreachable` or `ConnectError`.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn connect(&self, param: &ConnParam) -> Result<(), IdError> {
        self.call(|state, number| state.connect(number, param))
    }

    /// As [`connect`](Self::connect), to a peer that does the same at the same time: both ids are bound to one port number,
    /// and ask each other for it. One connection comes of it, whoever's request is the first, and `Established` comes on both
    /// sides, with the other's private data. The queue pair is attached. Who asks before the other does waits for that
    /// for a second, if the other is bound, and is refused then, as nobody listens there.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn connect_peer(&self, param: &ConnParam) -> Result<(), IdError> {
        self.call(|state, number| state.connect_peer(number, param))
    }

    /// Offers the peer of a connection another path, from an address of the device to another one of the peer's. If the peer
    /// takes it, the attached queue pairs of both sides go over to it as soon as packets are lost on the first.
    /// `AlternatePath` comes with what has become of it; a manager takes what its queue pair can have.
    ///
    /// # Errors
    /// [`IdError`], if there is no connection, or one is offered already.
    pub fn load_alternate(&self, from: IpAddr, to: IpAddr) -> Result<(), IdError> {
        self.call(|state, number| state.load_alternate(number, from, to))
    }

    /// Accepts the request that made this id; `Established` comes, but for datagrams.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn accept(&self, param: &ConnParam) -> Result<(), IdError> {
        self.call(|state, number| state.accept(number, param))
    }

    /// Refuses the request that made this id, or the peer's response to this id's.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn reject(&self, private_data: &[u8]) -> Result<(), IdError> {
        self.reject_with(RejReason::Consumer, private_data)
    }

    /// Refuses for another reason than that the program says no.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn reject_with(&self, reason: RejReason, private_data: &[u8]) -> Result<(), IdError> {
        self.call(|state, number| state.reject(number, reason, private_data))
    }

    /// After `ConnectResponse`: the caller's queue pair is in RTS.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn establish(&self) -> Result<(), IdError> {
        self.call(State::establish)
    }

    /// Ends the connection, or agrees to its end: the attached queue pair goes to the error state, and `Disconnected` comes.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn disconnect(&self) -> Result<(), IdError> {
        self.call(State::disconnect)
    }

    /// Tells of an asynchronous event of the queue pair: data that came before the peer's last word of the handshake is as
    /// good as that.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn notify(&self, event: AsyncEvent) -> Result<(), IdError> {
        self.call(|state, number| state.notify(number, event))
    }

    /// From now on its events come on another channel, those that wait too.
    ///
    /// # Errors
    /// [`IdError::State`] if it has ended.
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), IdError> {
        channel.serve(&self.0.manager);
        self.call(|state, number| state.migrate(number, channel))
    }

    /// Has the manager drive a queue pair: to INIT now (of datagrams to RTS), further as the handshake goes, to the error
    /// state with a disconnect. It does not keep the queue pair alive; dropping that detaches it.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn attach_qp(&self, qp: &Qp) -> Result<(), IdError> {
        self.call(|state, number| state.attach(number, qp))
    }

    /// Leaves the queue pair alone from now on.
    pub fn detach_qp(&self) {
        // Of an id that has ended there is none.
        let _ = self.set(|id| {
            id.qp = None;
            Ok(())
        });
    }

    /// The number of the queue pair that the manager drives for it, or would if that were still there.
    pub fn attached_qp(&self) -> Option<Qpn> {
        self.ask(|_, id| id.qp.as_ref().map(|qp| qp.qpn))
    }

    /// What a queue pair that the caller drives gets on its way to a state (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// [`IdError::NoAttributes`] if that is not known yet.
    pub fn init_qp_attr(&self, target: QpState) -> Result<QpAttr, IdError> {
        self.call(|state, number| state.attributes(number, target))
    }

    /// The traffic class of its packets (`RDMA_OPTION_ID_TOS`).
    ///
    /// # Errors
    /// [`IdError::State`] if it has ended.
    pub fn set_tos(&self, tos: u8) -> Result<(), IdError> {
        self.set(|id| {
            id.tos = tos;
            Ok(())
        })
    }

    /// Shares its port with others that do (`RDMA_OPTION_ID_REUSEADDR`).
    ///
    /// # Errors
    /// [`IdError::State`] once it is bound.
    pub fn set_reuse_addr(&self, on: bool) -> Result<(), IdError> {
        self.set(|id| {
            id.require("set_reuse_addr", &[Phase::Idle])?;
            id.reuse_addr = on;
            Ok(())
        })
    }

    /// Bound to ::, it takes no IPv4 (`RDMA_OPTION_ID_AFONLY`).
    ///
    /// # Errors
    /// [`IdError::State`] once it is bound.
    pub fn set_af_only(&self, on: bool) -> Result<(), IdError> {
        self.set(|id| {
            id.require("set_af_only", &[Phase::Idle])?;
            id.af_only = on;
            Ok(())
        })
    }

    /// The local ACK timeout of its queue pair, 4.096 µs · 2^this (`RDMA_OPTION_ID_ACK_TIMEOUT`).
    ///
    /// # Errors
    /// [`IdError::Value`] above 31.
    pub fn set_ack_timeout(&self, code: u8) -> Result<(), IdError> {
        if code > 31 {
            return Err(IdError::Value { name: "the ACK timeout", value: code.into() });
        }
        self.set(|id| {
            id.ack_timeout = Some(AckTimeout::new(code));
            Ok(())
        })
    }

    /// What it says of enhanced connection establishment when it connects or accepts. This NIC has no use for it.
    ///
    /// # Errors
    /// [`IdError::State`] if it has ended.
    pub fn set_ece(&self, ece: Ece) -> Result<(), IdError> {
        self.set(|id| {
            id.ece = ece;
            Ok(())
        })
    }

    /// What the peer says of it.
    pub fn remote_ece(&self) -> Ece {
        self.ask(|_, id| Some(id.remote_ece)).unwrap_or_default()
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.ask(|_, id| id.local)
    }

    /// The peer's.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.ask(|_, id| id.peer)
    }

    /// Its device.
    pub fn context(&self) -> Option<Context> {
        self.ask(|state, id| Some(state.devices[id.device?].context.clone()))
    }

    /// The index of its device among the manager's.
    pub fn device_index(&self) -> Option<usize> {
        self.ask(|_, id| id.device)
    }

    /// Its port space.
    pub fn port_space(&self) -> Option<PortSpace> {
        self.ask(|_, id| Some(id.space))
    }

    /// Its service.
    pub fn qp_type(&self) -> Option<QpType> {
        self.ask(|_, id| Some(id.qp_type))
    }

    /// The path to the peer.
    pub fn path(&self) -> Option<Path> {
        self.ask(|state, id| state.path_record(id))
    }

    /// Whether `Disconnected` has been reported, taken or not.
    pub(super) fn was_told_of_end(&self) -> bool {
        self.ask(|_, id| Some(id.told_of_end)).unwrap_or(true)
    }

    /// Joins a group; `MulticastJoin` or `MulticastError` comes, with the group's path, queue pair number and queue key. An
    /// attached queue pair is attached to the group too.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn join_multicast(&self, group: SocketAddr, membership: Membership) -> Result<(), IdError> {
        self.call(|state, number| state.join_multicast(number, group, membership))
    }

    /// Leaves it.
    ///
    /// # Errors
    /// [`IdError::NoGroup`].
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<(), IdError> {
        self.call(|state, number| state.leave_multicast(number, group))
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
