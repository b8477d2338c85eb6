//! Connections for programs that wait for them: a listener, what comes to it, and sessions.

use std::net::SocketAddr;
use std::time::Duration;

use super::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionManager, EventChannel, EventParam, IdError, PortSpace,
    RejReason,
};
use crate::verbs::{Context, CreateError, Qp, WaitError};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A call failed.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The queue pair could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The answer did not come in time.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The peer refuses.
    #[error("the peer refuses: {reason}")]
    Refused {
        /// Why.
        reason: RejReason,
        /// What its program says.
        private_data: Vec<u8>,
    },
    /// Something else happened.
    #[error("{} with status {status}", .kind.name())]
    Failed {
        /// What.
        kind: CmEventKind,
        /// The event's.
        status: i32,
    },
}

impl SessionError {
    fn of(event: &CmEvent) -> SessionError {
        let reason = u16::try_from(event.status).ok().map(RejReason::from_code);
        match (event.kind, reason) {
            (CmEventKind::Rejected, Some(reason)) => {
                SessionError::Refused { reason, private_data: event.private_data().to_vec() }
            }
            (kind, _) => SessionError::Failed { kind, status: event.status },
        }
    }
}

/// Takes connections at a port, on a channel of its own.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
}

impl Listener {
    /// Listens at an address, or at all with 0.0.0.0 or ::; port 0 is any.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn bind(manager: &ConnectionManager, addr: SocketAddr) -> Result<Listener, IdError> {
        let id = manager.create_id(&EventChannel::new()?, PortSpace::Tcp)?;
        id.bind_addr(addr)?;
        id.listen(0)?;
        Ok(Listener { id })
    }

    /// Its address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The next one who wants to connect.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn next(&self, timeout: Duration) -> Result<Incoming, WaitError> {
        let CmEvent { id, param, .. } = self.id.get_request(Some(timeout))?;
        Ok(Incoming { id, param })
    }
}

/// One who wants to connect. Dropping it refuses.
#[derive(Debug)]
pub struct Incoming {
    id: CmId,
    param: EventParam,
}

impl Incoming {
    /// What the peer's program says, with the zeros that fill up the message.
    pub fn private_data(&self) -> &[u8] {
        self.param.private_data()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Where the queue pair is to be made.
    pub fn context(&self) -> Option<Context> {
        self.id.context()
    }

    /// Accepts with a queue pair, and waits until the peer is ready.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn accept(self, qp: Qp, param: &ConnParam, timeout: Duration) -> Result<Session, SessionError> {
        let channel = EventChannel::new().map_err(IdError::from)?;
        self.id.migrate(&channel)?;
        self.id.attach_qp(&qp)?;
        self.id.accept(param)?;
        established(&channel, timeout)?;
        Ok(Session { id: self.id, channel, qp, private_data: self.param.private_data().to_vec() })
    }

    /// Refuses.
    ///
    /// # Errors
    /// [`IdError`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), IdError> {
        self.id.reject(private_data)
    }
}

/// A connection. Dropping it ends it.
#[derive(Debug)]
pub struct Session {
    id: CmId,
    channel: EventChannel,
    qp: Qp,
    private_data: Vec<u8>,
}

impl ConnectionManager {
    /// Connects to a port, with a queue pair that `qp` makes on the device which leads there, and waits until both are
    /// ready.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn connect(
        &self,
        to: SocketAddr,
        qp: impl FnOnce(&Context) -> Result<Qp, CreateError>,
        param: &ConnParam,
        timeout: Duration,
    ) -> Result<Session, SessionError> {
        let channel = EventChannel::new().map_err(IdError::from)?;
        let id = self.create_id(&channel, PortSpace::Tcp)?;
        id.resolve_addr(None, to, timeout)?;
        expect(&channel, CmEventKind::AddrResolved, timeout)?;
        id.resolve_route(timeout)?;
        expect(&channel, CmEventKind::RouteResolved, timeout)?;
        let qp = qp(&id.context().ok_or(IdError::Ended)?)?;
        id.attach_qp(&qp)?;
        id.connect(param)?;
        let private_data = established(&channel, timeout)?.private_data().to_vec();
        Ok(Session { id, channel, qp, private_data })
    }
}

impl Session {
    /// Its queue pair.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// What the peer's program said when it connected or accepted, with the zeros that fill up the message.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The id behind it.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Waits until the peer has ended it.
    ///
    /// # Errors
    /// [`SessionError::Wait`].
    pub fn wait_for_end(&self, timeout: Duration) -> Result<(), SessionError> {
        expect(&self.channel, CmEventKind::Disconnected, timeout).map(drop)
    }

    /// Ends it, or agrees to its end, and waits until the peer has answered or is given up.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn disconnect(self, timeout: Duration) -> Result<(), SessionError> {
        self.id.disconnect()?;
        if self.id.was_told_of_end() {
            return Ok(());
        }
        expect(&self.channel, CmEventKind::Disconnected, timeout).map(drop)
    }
}

fn established(channel: &EventChannel, timeout: Duration) -> Result<CmEvent, SessionError> {
    expect(channel, CmEventKind::Established, timeout)
}

/// The next event, if it is of that kind.
fn expect(channel: &EventChannel, kind: CmEventKind, timeout: Duration) -> Result<CmEvent, SessionError> {
    let event = channel.get_event(Some(timeout))?;
    if event.kind == kind { Ok(event) } else { Err(SessionError::of(&event)) }
}
