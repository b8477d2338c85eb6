//! Blocking connection interface: listeners, incoming connections and sessions.

use std::net::SocketAddr;
use std::time::Duration;

use super::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionManager, EventChannel, EventParam, IdError, PortSpace,
    RejReason,
};
use crate::verbs::errors::{CreateError, WaitError};
use crate::verbs::{Context, Qp};

/// Reason why a session could not be established or ended.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum SessionError {
    /// A call failed.
    Id(#[from] IdError),
    /// The queue pair could not be created.
    Create(#[from] CreateError),
    /// The wait for the peer failed or timed out.
    Wait(#[from] WaitError),
    /// The peer has rejected the connection.
    #[error("the peer rejected the connection: {reason}")]
    Rejected {
        /// Reason for the rejection.
        reason: RejReason,
        /// Private data from the peer's program.
        private_data: Vec<u8>,
    },
    /// An event other than the expected one arrived.
    #[error("unexpected event {} with status {status}", .kind.name())]
    Failed {
        /// Kind of the event.
        kind: CmEventKind,
        /// Status of the event.
        status: i32,
    },
}

impl SessionError {
    fn of(event: &CmEvent) -> SessionError {
        let reason = u16::try_from(event.status).ok().map(RejReason::from_code);
        match (event.kind, reason) {
            (CmEventKind::Rejected, Some(reason)) => {
                SessionError::Rejected { reason, private_data: event.private_data().to_vec() }
            }
            (kind, _) => SessionError::Failed { kind, status: event.status },
        }
    }
}

/// A listener for connections to one port, with its own event channel.
#[derive(Debug)]
pub struct Listener {
    pub(super) id: CmId,
    pub(super) channel: EventChannel,
}

impl Listener {
    /// Creates a listener on `addr`. The addresses 0.0.0.0 and :: stand for all devices, and port 0 for any
    /// free port.
    ///
    /// # Errors
    /// [`IdError::System`] if the system is out of descriptors; [`IdError::Inherited`] in a child of fork;
    /// the errors of [`CmId::bind_addr`] and [`CmId::listen`].
    pub fn bind(manager: &ConnectionManager, addr: SocketAddr) -> Result<Listener, IdError> {
        let channel = EventChannel::new()?;
        let id = manager.create_id(&channel, PortSpace::Tcp)?;
        id.bind_addr(addr)?;
        id.listen(0)?;
        Ok(Listener { id, channel })
    }

    /// Returns the listener's address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// Waits for the next connection request, skipping events that do not end the listener. For example, the
    /// wait continues if the device loses the address (`AddrChange`), because the address may be assigned
    /// again.
    ///
    /// # Errors
    /// [`WaitError::DeviceRemoved`] if the device of the listener was removed and no earlier request is
    /// queued; a listener on the wildcard address continues on the other devices.
    /// [`WaitError::TimedOut`], [`WaitError::Interrupted`]; [`WaitError::Idle`] in virtual time;
    /// [`WaitError::System`] if the system is out of descriptors.
    pub fn next(&self, timeout: Duration) -> Result<Incoming, WaitError> {
        self.channel.get_event_by(Some(timeout), || self.try_next())?
    }

    /// Returns the channel of the listener's events.
    #[doc(hidden)]
    pub fn event_channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Removes the next connection request from the event channel, and discards the events before it.
    #[doc(hidden)]
    pub fn try_next(&self) -> Option<Result<Incoming, WaitError>> {
        self.id.unless_device_removed(|| {
            let listener = self.id.number();
            let mut events = std::iter::from_fn(|| self.channel.try_listener_event(listener));
            let request = events.find(|event| event.kind == CmEventKind::ConnectRequest)?;
            Some(Incoming { id: request.id, param: request.param })
        })
    }
}

/// An incoming connection request. Dropping it rejects the request.
#[derive(Debug)]
pub struct Incoming {
    pub(super) id: CmId,
    pub(super) param: EventParam,
}

impl Incoming {
    /// Returns the private data from the peer's program, padded with zeros to the size of the message field.
    pub fn private_data(&self) -> &[u8] {
        self.param.private_data()
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Returns the device on which the queue pair must be created.
    pub fn context(&self) -> Option<Context> {
        self.id.context()
    }

    /// Attaches the queue pair, accepts the connection, and waits until the peer is ready.
    ///
    /// # Errors
    /// [`SessionError::Id`] with an error of [`CmId::attach_qp`] or [`CmId::accept`], or with
    /// [`IdError::System`] if the system is out of descriptors; [`SessionError::Failed`] or
    /// [`SessionError::Rejected`] if the peer gives up; [`SessionError::Wait`] if it is not ready in time.
    pub fn accept(self, qp: Qp, param: &ConnParam, timeout: Duration) -> Result<Session, SessionError> {
        let session = self.begin_accept(qp, param)?;
        expect(&session.channel, CmEventKind::Established, timeout)?;
        Ok(session)
    }

    /// Accepts the connection without waiting for the peer. `Established` is reported when the peer is ready.
    #[doc(hidden)]
    pub fn begin_accept(self, qp: Qp, param: &ConnParam) -> Result<Session, SessionError> {
        let channel = EventChannel::new().map_err(IdError::from)?;
        self.id.migrate(&channel)?;
        self.id.attach_qp(&qp)?;
        self.id.accept(param)?;
        Ok(Session { id: self.id, channel, qp, private_data: self.param.private_data().to_vec() })
    }

    /// Rejects the connection.
    ///
    /// # Errors
    /// The errors of [`CmId::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), IdError> {
        self.id.reject(private_data)
    }
}

/// An established connection. Dropping it disconnects.
#[derive(Debug)]
pub struct Session {
    id: CmId,
    channel: EventChannel,
    qp: Qp,
    private_data: Vec<u8>,
}

impl ConnectionManager {
    /// Connects to `to` and waits until both sides are ready. `qp` creates the queue pair on the device that
    /// has a route to that address.
    ///
    /// # Errors
    /// [`SessionError::Id`] with an error of [`CmId::resolve_addr`], [`CmId::attach_qp`] or
    /// [`CmId::connect`], or with [`IdError::System`] if the system is out of descriptors;
    /// [`SessionError::Create`] with the error of `qp`; [`SessionError::Rejected`] if the peer rejects;
    /// [`SessionError::Failed`] with `AddrError` if no device leads to the address, `Unreachable` if the peer
    /// does not respond, or `ConnectError`; [`SessionError::Wait`] if the connection is not established in
    /// time.
    pub fn connect(
        &self,
        to: SocketAddr,
        qp: impl FnOnce(&Context) -> Result<Qp, CreateError>,
        param: &ConnParam,
        timeout: Duration,
    ) -> Result<Session, SessionError> {
        let mut session = self.begin_connect(to, qp, param)?;
        let event = session.channel.get_event(Some(timeout))?;
        session.complete_connect(event)?;
        Ok(session)
    }

    /// Requests a connection without waiting for the response. `Established` is reported when both sides are
    /// ready.
    #[doc(hidden)]
    pub fn begin_connect(
        &self,
        to: SocketAddr,
        qp: impl FnOnce(&Context) -> Result<Qp, CreateError>,
        param: &ConnParam,
    ) -> Result<Session, SessionError> {
        // Resolution is local: its events are reported before the calls return.
        const AT_ONCE: Duration = Duration::ZERO;
        let channel = EventChannel::new().map_err(IdError::from)?;
        let id = self.create_id(&channel, PortSpace::Tcp)?;
        id.resolve_addr(None, to, AT_ONCE)?;
        expect(&channel, CmEventKind::AddrResolved, AT_ONCE)?;
        id.resolve_route(AT_ONCE)?;
        expect(&channel, CmEventKind::RouteResolved, AT_ONCE)?;
        let qp = qp(&id.context().ok_or(IdError::Ended)?)?;
        id.attach_qp(&qp)?;
        id.connect(param)?;
        Ok(Session { id, channel, qp, private_data: Vec::new() })
    }
}

impl Session {
    /// Returns the queue pair.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Returns the private data that the peer's program sent with its request or acceptance, padded with
    /// zeros to the size of the message field.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the underlying id.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Returns the channel of the session's events.
    #[doc(hidden)]
    pub fn event_channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Completes [`ConnectionManager::begin_connect`] with the first event of the session.
    #[doc(hidden)]
    pub fn complete_connect(&mut self, event: CmEvent) -> Result<(), SessionError> {
        self.private_data = event.require(CmEventKind::Established)?.private_data().to_vec();
        Ok(())
    }

    /// Waits until the peer disconnects.
    ///
    /// # Errors
    /// [`SessionError::Wait`], or [`SessionError::Failed`] if another event arrives.
    pub fn wait_for_disconnect(&self, timeout: Duration) -> Result<(), SessionError> {
        expect(&self.channel, CmEventKind::Disconnected, timeout).map(drop)
    }

    /// Disconnects, or confirms the peer's disconnect, and waits until the peer has responded or the response
    /// has timed out.
    ///
    /// # Errors
    /// [`SessionError::Id`] with an error of [`CmId::disconnect`]; [`SessionError::Wait`] if the peer does
    /// not respond in time; [`SessionError::Failed`] if another event arrives.
    pub fn disconnect(self, timeout: Duration) -> Result<(), SessionError> {
        self.id.disconnect()?;
        if self.id.was_disconnect_reported() {
            return Ok(());
        }
        expect(&self.channel, CmEventKind::Disconnected, timeout).map(drop)
    }
}

/// Waits for the next event, and fails if it is not of the given kind.
fn expect(channel: &EventChannel, kind: CmEventKind, timeout: Duration) -> Result<CmEvent, SessionError> {
    channel.get_event(Some(timeout))?.require(kind)
}

impl CmEvent {
    /// Returns the event, or an error if it is not of the given kind.
    #[doc(hidden)]
    pub fn require(self, kind: CmEventKind) -> Result<CmEvent, SessionError> {
        if self.kind == kind { Ok(self) } else { Err(SessionError::of(&self)) }
    }
}
