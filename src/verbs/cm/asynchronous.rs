//! Connection manager events, listeners and sessions as futures (feature `async`).

use std::net::SocketAddr;
use std::os::fd::AsFd;

use super::session::require;
use super::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionManager, EventChannel, IdError, Incoming, Listener,
    Session, SessionError,
};
use crate::verbs::asynchronous::Waiter;
use crate::verbs::{Context, CreateError, Qp, WaitError};

/// An event channel whose events can be awaited.
#[derive(Debug)]
pub struct AsyncEventChannel {
    channel: EventChannel,
    waiter: Waiter,
}

impl AsyncEventChannel {
    /// Wraps a channel.
    pub fn new(channel: EventChannel) -> AsyncEventChannel {
        AsyncEventChannel { channel, waiter: Waiter::default() }
    }

    /// Returns the channel, to create ids on it.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Waits for an event and returns it.
    ///
    /// Cancel-safe: a dropped future takes no event.
    ///
    /// # Errors
    /// [`WaitError::Idle`] in virtual time; [`WaitError::Runtime`].
    pub async fn get_event(&mut self) -> Result<CmEvent, WaitError> {
        self.get_event_by(EventChannel::try_event).await
    }

    /// Waits until `take` returns an event.
    async fn get_event_by(
        &mut self,
        take: impl Fn(&EventChannel) -> Option<CmEvent>,
    ) -> Result<CmEvent, WaitError> {
        let channel = &self.channel;
        self.waiter.wait(channel.as_fd(), channel.prepare_wait(), || take(channel)).await
    }

    /// Waits for the next event, and fails if it is of another kind.
    async fn expect(&mut self, kind: CmEventKind) -> Result<CmEvent, SessionError> {
        require(self.get_event().await?, kind)
    }
}

/// A listener whose connection requests can be awaited, with an event channel of its own.
#[derive(Debug)]
pub struct AsyncListener {
    listener: Listener,
    channel: AsyncEventChannel,
}

impl AsyncListener {
    /// Listens at an address, as [`Listener::bind`] does.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn bind(manager: &ConnectionManager, addr: SocketAddr) -> Result<AsyncListener, IdError> {
        let listener = Listener::bind(manager, addr)?;
        let channel = AsyncEventChannel::new(listener.id.channel().ok_or(IdError::Ended)?);
        Ok(AsyncListener { listener, channel })
    }

    /// Returns the address and port of the listener.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next connection request.
    ///
    /// Cancel-safe: a dropped future takes no request.
    ///
    /// # Errors
    /// [`SessionError::Wait`], or [`SessionError::Failed`] if the listener's device has failed.
    pub async fn next(&mut self) -> Result<Incoming, SessionError> {
        let listener = self.listener.id.number();
        let event = self.channel.get_event_by(|channel| channel.try_listener_event(listener)).await?;
        let event = require(event, CmEventKind::ConnectRequest)?;
        Ok(Incoming { id: event.id, param: event.param })
    }
}

impl Incoming {
    /// Accepts the connection with a queue pair, and waits until the peer is ready.
    ///
    /// Not cancel-safe: dropping the future ends the connection.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn accept_async(self, qp: Qp, param: &ConnParam) -> Result<AsyncSession, SessionError> {
        let mut session = AsyncSession::new(self.begin_accept(qp, param)?);
        session.channel.expect(CmEventKind::Established).await?;
        Ok(session)
    }
}

impl ConnectionManager {
    /// Connects to a port and waits until both sides are ready. `qp` creates the queue pair, on the device
    /// that leads to the port.
    ///
    /// Not cancel-safe: dropping the future abandons the attempt.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn connect_async(
        &self,
        to: SocketAddr,
        qp: impl FnOnce(&Context) -> Result<Qp, CreateError>,
        param: &ConnParam,
    ) -> Result<AsyncSession, SessionError> {
        let mut session = AsyncSession::new(self.begin_connect(to, qp, param)?);
        let event = session.channel.expect(CmEventKind::Established).await?;
        session.session.private_data = event.private_data().to_vec();
        Ok(session)
    }
}

/// An established connection whose end can be awaited. Dropping it disconnects.
#[derive(Debug)]
pub struct AsyncSession {
    session: Session,
    channel: AsyncEventChannel,
}

impl AsyncSession {
    fn new(session: Session) -> AsyncSession {
        let channel = AsyncEventChannel::new(session.channel.clone());
        AsyncSession { session, channel }
    }

    /// Returns the queue pair.
    pub fn qp(&self) -> &Qp {
        self.session.qp()
    }

    /// Returns the private data that the peer's program sent with its request or acceptance, padded with
    /// zeros to the size of the message field.
    pub fn private_data(&self) -> &[u8] {
        self.session.private_data()
    }

    /// Returns the underlying id.
    pub fn id(&self) -> &CmId {
        self.session.id()
    }

    /// Waits until the peer disconnects.
    ///
    /// Cancel-safe: a dropped future takes no event.
    ///
    /// # Errors
    /// [`SessionError::Wait`], or [`SessionError::Failed`] if another event arrives.
    pub async fn wait_for_disconnect(&mut self) -> Result<(), SessionError> {
        self.channel.expect(CmEventKind::Disconnected).await.map(drop)
    }

    /// Disconnects, or confirms the peer's disconnect, and waits until the peer has responded or the response
    /// has timed out.
    ///
    /// Dropping the future does not undo the disconnect, only the wait for the peer's response.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn disconnect(mut self) -> Result<(), SessionError> {
        self.session.id.disconnect()?;
        if self.session.id.was_disconnect_reported() {
            return Ok(());
        }
        self.wait_for_disconnect().await
    }
}
