//! Asynchronous connection manager events, listeners and sessions (feature `async`).

use std::net::SocketAddr;
use std::os::fd::AsFd;

use urxe::verbs::cm::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionManager, EventChannel, IdError, Incoming, Listener,
    Session, SessionError,
};
use urxe::verbs::errors::{CreateError, WaitError};
use urxe::verbs::{Context, Qp};

use crate::Waiter;

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

    /// Returns the channel, for creating ids on it.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Waits for an event, and returns it.
    ///
    /// Cancel-safe: a dropped future takes no event.
    ///
    /// # Errors
    /// [`WaitError::Idle`] in virtual time; [`WaitError::Runtime`].
    pub async fn get_event(&mut self) -> Result<CmEvent, WaitError> {
        let channel = &self.channel;
        self.waiter.wait(channel.as_fd(), channel.prepare_wait(), || channel.try_event()).await
    }

    /// Waits for the next event, and fails if it is not of the given kind.
    async fn expect(&mut self, kind: CmEventKind) -> Result<CmEvent, SessionError> {
        self.get_event().await?.require(kind)
    }
}

/// A listener whose connection requests can be awaited. It has its own event channel.
#[derive(Debug)]
pub struct AsyncListener {
    listener: Listener,
    waiter: Waiter,
}

impl AsyncListener {
    /// Listens at an address, like [`Listener::bind`].
    ///
    /// # Errors
    /// The errors of [`Listener::bind`].
    pub fn bind(manager: &ConnectionManager, addr: SocketAddr) -> Result<AsyncListener, IdError> {
        Ok(AsyncListener { listener: Listener::bind(manager, addr)?, waiter: Waiter::default() })
    }

    /// Returns the listener's address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next connection request and, like [`Listener::next`], skips other events.
    ///
    /// Cancel-safe: a dropped future takes no request.
    ///
    /// # Errors
    /// [`WaitError::DeviceRemoved`] if the device of the listener was removed and no earlier request is
    /// queued; [`WaitError::Idle`] in virtual time; [`WaitError::Runtime`].
    pub async fn next(&mut self) -> Result<Incoming, WaitError> {
        let channel = self.listener.event_channel();
        self.waiter.wait(channel.as_fd(), channel.prepare_wait(), || self.listener.try_next()).await?
    }
}

/// An established connection whose disconnect can be awaited. Dropping it disconnects.
#[derive(Debug)]
pub struct AsyncSession {
    session: Session,
    channel: AsyncEventChannel,
}

impl AsyncSession {
    fn new(session: Session) -> AsyncSession {
        let channel = AsyncEventChannel::new(session.event_channel().clone());
        AsyncSession { session, channel }
    }

    /// Accepts a connection with the given queue pair, and waits until the peer is ready.
    ///
    /// Not cancel-safe: dropping the future ends the connection.
    ///
    /// # Errors
    /// [`SessionError::Id`] with an error of [`CmId::attach_qp`] or [`CmId::accept`], or with
    /// [`IdError::System`] if the system is out of descriptors; [`SessionError::Failed`] or
    /// [`SessionError::Rejected`] if the peer gives up; [`SessionError::Wait`] in virtual time or if the
    /// runtime is shutting down.
    pub async fn accept(incoming: Incoming, qp: Qp, param: &ConnParam) -> Result<AsyncSession, SessionError> {
        let mut session = AsyncSession::new(incoming.begin_accept(qp, param)?);
        session.channel.expect(CmEventKind::Established).await?;
        Ok(session)
    }

    /// Connects to the address `to`, and waits until both sides are ready. `qp` creates the queue pair on the
    /// device from which the address is reached.
    ///
    /// Not cancel-safe: dropping the future abandons the attempt.
    ///
    /// # Errors
    /// [`SessionError::Id`] with an error of [`CmId::resolve_addr`], [`CmId::attach_qp`] or
    /// [`CmId::connect`], or with [`IdError::System`] if the system is out of descriptors;
    /// [`SessionError::Create`] with the error of `qp`; [`SessionError::Rejected`] if the peer rejects;
    /// [`SessionError::Failed`] with `AddrError` if no device leads to the address, `Unreachable` if the peer
    /// does not respond, or `ConnectError`; [`SessionError::Wait`] in virtual time or if the runtime is
    /// shutting down.
    pub async fn connect(
        manager: &ConnectionManager,
        to: SocketAddr,
        qp: impl FnOnce(&Context) -> Result<Qp, CreateError>,
        param: &ConnParam,
    ) -> Result<AsyncSession, SessionError> {
        let mut session = AsyncSession::new(manager.begin_connect(to, qp, param)?);
        session.session.complete_connect(session.channel.get_event().await?)?;
        Ok(session)
    }

    /// Returns the queue pair.
    pub fn qp(&self) -> &Qp {
        self.session.qp()
    }

    /// Returns the private data that the peer's program sent with its request or acceptance, zero-padded to
    /// the size of the message field.
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

    /// Disconnects, or confirms the peer's disconnect, and waits for the peer's response or its timeout.
    ///
    /// Dropping the future does not undo the disconnect, only the wait for the peer's response.
    ///
    /// # Errors
    /// [`SessionError::Id`] with an error of [`CmId::disconnect`]; [`SessionError::Failed`] if another event
    /// arrives than `Disconnected`; [`SessionError::Wait`] in virtual time or if the runtime is shutting
    /// down.
    pub async fn disconnect(mut self) -> Result<(), SessionError> {
        self.session.id().disconnect()?;
        if self.session.id().was_disconnect_reported() {
            return Ok(());
        }
        self.wait_for_disconnect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watched_fd::WatchedFd;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::time::Duration;
    use urxe::verbs::Fabric;

    #[test]
    fn event_of_an_incoming_connection_does_not_wake_its_listener_again() {
        let fabric = Fabric::new();
        let [context, peer] = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
        let own = (context.query_gid(0).unwrap().ip(), 7).into();
        let server = ConnectionManager::new(vec![context]).unwrap();
        let mut listener = AsyncListener::bind(&server, own).unwrap();
        let client = ConnectionManager::new(vec![peer]).unwrap();
        let new_qp = |context: &Context| {
            let cq = context.create_cq(8)?;
            context.alloc_pd()?.create_qp(&cq, &cq, &urxe::verbs::QpOptions::default())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let session = client.begin_connect(own, new_qp, &ConnParam::default()).unwrap();
            let _incoming = listener.next().await.unwrap();
            // The client gives up, which is reported on the listener's channel.
            drop(session);
            WatchedFd::new(listener.listener.event_channel().as_fd()).unwrap().readable().await.unwrap();
            let mut polls = 0;
            let mut next = pin!(listener.next());
            let counted = poll_fn(|task| {
                polls += 1;
                next.as_mut().poll(task)
            });
            assert!(tokio::time::timeout(Duration::from_millis(50), counted).await.is_err());
            assert!(polls <= 3, "{polls}");
        });
    }
}
