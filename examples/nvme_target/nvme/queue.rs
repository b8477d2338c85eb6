//! Execution of the commands of a queue, independent of the transport of commands and data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::capsule::{Command, Failure, Response, Status};
use super::controller::{Controller, Kind};
use super::request::{Connect, Request, ranges};
use super::subsystem::{Subsystem, in_command};
use super::{identify, log};

/// Time limit from the connection to the Connect command.
const UNKNOWN: Duration = Duration::from_secs(10);

/// A queue of commands: the admin queue or an I/O queue. Dropping an I/O queue removes it from its
/// controller, dropping the admin queue ends the controller.
#[derive(Debug)]
pub struct Queue {
    subsystem: Arc<Subsystem>,
    /// Number announced in the connection request.
    number: u16,
    depth: u16,
    since: Instant,
    /// Controller of the queue, from Connect on.
    controller: Option<Arc<Controller>>,
    /// Submission queue head pointer: the position behind the last received command; `None` if the host has
    /// disabled flow control.
    head: Option<u16>,
}

/// Reason to disconnect a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum End {
    /// No command arrived within the keep alive timeout.
    #[error("the host has been silent for too long")]
    Silent,
    /// The host did not send Connect in time.
    #[error("there was no Connect")]
    Unknown,
    /// The controller has ended with its admin queue.
    #[error("its controller is gone")]
    Controller,
}

impl Queue {
    /// Creates a queue of this number and depth (at least one command), before Connect.
    pub fn new(subsystem: Arc<Subsystem>, number: u16, depth: u16, now: Instant) -> Queue {
        Queue { subsystem, number, depth, since: now, controller: None, head: Some(0) }
    }

    /// Returns the controller; `None` before Connect.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.controller.as_ref()
    }

    /// Returns the block size of the namespace in bytes.
    pub fn block_len(&self) -> usize {
        self.subsystem.namespace.block_len()
    }

    /// Accepts a received command and parses it.
    ///
    /// # Errors
    /// [`Status`] if the command is invalid or out of sequence.
    pub fn take(&mut self, command: &Command, now: Instant) -> Result<Request, Status> {
        self.head = self.head.map(|head| (head + 1) % self.depth);
        if let Some(controller) = &self.controller {
            controller.hear(now);
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

    /// Returns the response to a command.
    pub fn response(&self, id: u16, outcome: Result<u64, Failure>) -> Response {
        Response { id, head: self.head.unwrap_or(u16::MAX), outcome }
    }

    /// Checks whether the host is to be disconnected, given that none of its commands is waiting to be
    /// handled.
    ///
    /// # Errors
    /// [`End`].
    pub fn check(&self, now: Instant) -> Result<(), End> {
        self.check_standing(now)?;
        match &self.controller {
            Some(controller) if controller.is_silent(now) => Err(End::Silent),
            _ => Ok(()),
        }
    }

    /// Checks whether the host is to be disconnected even if it sends commands.
    ///
    /// # Errors
    /// [`End`], except [`End::Silent`].
    pub fn check_standing(&self, now: Instant) -> Result<(), End> {
        match &self.controller {
            Some(controller) if controller.has_ended() => Err(End::Controller),
            None if now.saturating_duration_since(self.since) > UNKNOWN => Err(End::Unknown),
            _ => Ok(()),
        }
    }

    /// Executes a command and returns its result, or `None` if there is no response yet. `data` is the host's
    /// data, or zeros to be overwritten with data for the host, of the length that [`Request::transfer`]
    /// returns.
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
                identify::answer((cns, nsid, csi), controller, subsystem, data)?;
            }
            Request::GetLogPage { log, offset, .. } => {
                log::answer(log, offset, controller, subsystem, data)?;
            }
            Request::SetFeatures { feature, value } => {
                return Ok(Some(controller.set_feature(feature, value, namespace)?));
            }
            Request::GetFeatures { feature, select } => {
                return Ok(Some(controller.feature(feature, select, namespace)?));
            }
            Request::AsyncEvent => {
                controller.hold_event()?;
                return Ok(None);
            }
            // The result 1: the command was not aborted.
            Request::Abort => return Ok(Some(1)),
            Request::KeepAlive => {}
            Request::Read(blocks) => namespace.read(blocks, data)?,
            Request::Write { blocks, through } => namespace.write(blocks, data, through)?,
            Request::Flush => namespace.flush()?,
            Request::WriteZeroes { blocks, through } => namespace.zero(blocks, through)?,
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
            Some(controller) if self.number == 0 => self.subsystem.dismiss(controller),
            Some(controller) => controller.remove_queue(self.number),
            None => {}
        }
    }
}

/// Displays which queue it is, of which controller and host.
impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(controller) = &self.controller else {
            return write!(f, "queue {}, not connected", self.number);
        };
        let what = match (controller.kind, self.number) {
            (Kind::Discovery, _) => "discovery".into(),
            (Kind::Io, 0) => "admin queue".into(),
            (Kind::Io, number) => format!("I/O queue {number}"),
        };
        write!(f, "{what} of controller {}, {}", controller.id, controller.host.nqn)
    }
}
