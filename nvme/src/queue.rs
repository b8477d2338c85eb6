//! Execution of a queue's commands, independent of how commands and data are transported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::capsule::{Command, Failure, Response, Status};
use super::controller::{Controller, Kind};
use super::request::{Connect, Request, ranges};
use super::subsystem::{Subsystem, in_command};
use super::{identify, log};

/// Maximum time from the establishment of the connection to the Connect command.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A queue of commands: the admin queue or an I/O queue. Dropping an I/O queue removes it from its
/// controller; dropping the admin queue ends the controller.
#[derive(Debug)]
pub struct Queue {
    subsystem: Arc<Subsystem>,
    /// Queue number from the connection request; 0 is the admin queue.
    number: u16,
    depth: u16,
    created: Instant,
    /// Controller that the queue is attached to; `None` before the Connect command.
    controller: Option<Arc<Controller>>,
    /// Submission queue head pointer: the index after the most recently received command; `None` if the host
    /// has disabled flow control.
    head: Option<u16>,
}

/// Reason to disconnect a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DisconnectReason {
    /// No command arrived within the keep alive timeout.
    #[error("no command arrived within the keep alive timeout")]
    KeepAliveTimeout,
    /// The host did not send the Connect command in time.
    #[error("no Connect command arrived within {} s", CONNECT_TIMEOUT.as_secs())]
    NoConnect,
    /// The controller has ended because its admin queue was disconnected.
    #[error("the controller has ended with its admin queue")]
    Controller,
}

impl Queue {
    /// Creates a queue with the given number and depth, which must be at least 1. The first command on the
    /// queue must be Connect.
    pub fn new(subsystem: Arc<Subsystem>, number: u16, depth: u16, now: Instant) -> Queue {
        Queue { subsystem, number, depth, created: now, controller: None, head: Some(0) }
    }

    /// Returns the controller, or `None` before the Connect command.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.controller.as_ref()
    }

    /// Returns the namespace's block size in bytes.
    pub fn block_len(&self) -> usize {
        self.subsystem.namespace.block_len()
    }

    /// Parses a received command, after advancing the submission queue head and restarting the keep alive
    /// timer.
    ///
    /// # Errors
    /// [`Status`] if the command is invalid or out of sequence.
    pub fn accept(&mut self, command: &Command, now: Instant) -> Result<Request, Status> {
        self.head = self.head.map(|head| (head + 1) % self.depth);
        if let Some(controller) = &self.controller {
            controller.restart_keep_alive(now);
        }
        let request = Request::parse(command, self.number == 0, self.block_len())?;
        let is_connect = matches!(request, Request::Connect(_));
        // No other command is allowed before Connect, and no second Connect after it.
        match &self.controller {
            Some(controller) if is_connect || controller.has_ended() => Err(Status::CommandSequence),
            None if !is_connect => Err(Status::CommandSequence),
            _ => Ok(request),
        }
    }

    /// Returns the response to a command, with the current submission queue head.
    pub fn response(&self, id: u16, outcome: Result<u64, Failure>) -> Response {
        Response { id, head: self.head.unwrap_or(u16::MAX), outcome }
    }

    /// Checks whether the host has to be disconnected. The caller must have handled all received commands,
    /// because each of them restarts the keep alive timer.
    ///
    /// # Errors
    /// [`DisconnectReason`].
    pub fn check(&self, now: Instant) -> Result<(), DisconnectReason> {
        self.check_controller(now)?;
        match &self.controller {
            Some(controller) if controller.is_keep_alive_expired(now) => {
                Err(DisconnectReason::KeepAliveTimeout)
            }
            _ => Ok(()),
        }
    }

    /// Checks whether the host has to be disconnected for a reason other than the keep alive timeout.
    ///
    /// # Errors
    /// [`DisconnectReason`], except [`DisconnectReason::KeepAliveTimeout`].
    pub fn check_controller(&self, now: Instant) -> Result<(), DisconnectReason> {
        match &self.controller {
            Some(controller) if controller.has_ended() => Err(DisconnectReason::Controller),
            None if now.saturating_duration_since(self.created) > CONNECT_TIMEOUT => {
                Err(DisconnectReason::NoConnect)
            }
            _ => Ok(()),
        }
    }

    /// Executes a command and returns its result, or `None` if there is no response yet. `data` is the data
    /// from the host, or a zeroed buffer for the data to the host; its length must be the one that
    /// [`Request::transfer`] returns.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn execute(
        &mut self,
        request: &Request,
        data: &mut [u8],
        now: Instant,
    ) -> Result<Option<u64>, Failure> {
        if let Request::Connect(connect) = request {
            return self.connect(connect, data, now).map(Some);
        }
        // The controller may have ended while the data was transferred.
        let controller = self.controller.as_ref().filter(|controller| !controller.has_ended());
        let controller = controller.ok_or(Status::CommandSequence)?;
        let (subsystem, namespace) = (&*self.subsystem, &self.subsystem.namespace);
        match *request {
            Request::PropertyGet { offset, wide } => return Ok(Some(controller.property(offset, wide)?)),
            Request::PropertySet { offset, value } => {
                controller.set_property(offset, value, namespace)?;
                return Ok(Some(0));
            }
            _ if !controller.is_ready() => return Err(Status::CommandSequence.into()),
            _ => {}
        }
        match *request {
            Request::Identify { cns, nsid, csi } => {
                identify::fill((cns, nsid, csi), controller, subsystem, data)?;
            }
            Request::GetLogPage { log, offset, .. } => {
                log::read(log, offset, controller, subsystem, data)?;
            }
            Request::SetFeatures { feature, value } => {
                return Ok(Some(controller.set_feature(feature, value, namespace)?));
            }
            Request::GetFeatures { feature, select } => {
                return Ok(Some(controller.feature(feature, select, namespace)?));
            }
            Request::AsyncEvent => {
                controller.add_async_event()?;
                return Ok(None);
            }
            // The result 1: the command was not aborted.
            Request::Abort => return Ok(Some(1)),
            Request::KeepAlive => {}
            Request::Read(blocks) => namespace.read(blocks, data)?,
            Request::Write { blocks, fua } => namespace.write(blocks, data, fua)?,
            Request::Flush => namespace.flush()?,
            Request::WriteZeroes { blocks, fua } => namespace.zero(blocks, fua)?,
            Request::DatasetManagement { deallocate, .. } => {
                for blocks in ranges(data).into_iter().filter(|_| deallocate) {
                    namespace.zero(blocks, false)?;
                }
            }
            Request::Connect(_) | Request::PropertyGet { .. } | Request::PropertySet { .. } => {}
        }
        Ok(Some(0))
    }

    fn connect(&mut self, connect: &Connect, data: &[u8], now: Instant) -> Result<u64, Failure> {
        if self.controller.is_some() {
            return Err(Status::CommandSequence.into());
        }
        if connect.format != 0 {
            return Err(Status::ConnectFormat.into());
        }
        if connect.queue != self.number {
            return Err(in_command(Connect::QUEUE_AT));
        }
        if connect.last == 0 || connect.last >= self.depth {
            return Err(in_command(Connect::LAST_AT));
        }
        let controller = self.subsystem.connect(connect, data, now)?;
        // Positions are counted from Connect on, which is the first command.
        self.depth = connect.last + 1;
        self.head = (!connect.no_flow_control).then_some(1 % self.depth);
        let id = controller.id.into();
        self.controller = Some(controller);
        Ok(id)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        match &self.controller {
            Some(controller) if self.number == 0 => self.subsystem.remove_controller(controller),
            Some(controller) => controller.remove_queue(self.number),
            None => {}
        }
    }
}

/// Displays the queue's type, controller and host.
impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(controller) = &self.controller else {
            return write!(f, "queue {}, not connected", self.number);
        };
        let role = match (controller.kind, self.number) {
            (Kind::Discovery, _) => "discovery".into(),
            (Kind::Io, 0) => "admin queue".into(),
            (Kind::Io, number) => format!("I/O queue {number}"),
        };
        write!(f, "{role} of controller {}, {}", controller.id, controller.host.nqn)
    }
}
