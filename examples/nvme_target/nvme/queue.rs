//! Executes the commands of a queue, whatever brings them and their data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::capsule::{Command, Failure, Response, Status};
use super::controller::{Controller, Kind};
use super::request::{Connect, Request, ranges};
use super::subsystem::{Subsystem, in_command};
use super::{identify, log};

/// How long a host may take from the connection to Connect.
const UNKNOWN: Duration = Duration::from_secs(10);

/// A queue of commands, the admin queue or one of I/O. Dropping it says so to its controller.
#[derive(Debug)]
pub struct Queue {
    subsystem: Arc<Subsystem>,
    /// As said when the connection was made.
    number: u16,
    depth: u16,
    since: Instant,
    /// From Connect on.
    controller: Option<Arc<Controller>>,
    /// The place behind the last command that came; `None` if the host does not want to know.
    head: Option<u16>,
}

/// Why the host is to be disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum End {
    /// The host said nothing for too long.
    #[error("the host has been silent for too long")]
    Silent,
    /// The host does not say who it is.
    #[error("there was no Connect")]
    Unknown,
    /// Its admin queue has.
    #[error("its controller is gone")]
    Controller,
}

impl Queue {
    /// A queue of which nothing is known but that it has this number and holds so many commands, at least one.
    pub fn new(subsystem: Arc<Subsystem>, number: u16, depth: u16, now: Instant) -> Queue {
        Queue { subsystem, number, depth, since: now, controller: None, head: Some(0) }
    }

    /// Its controller, from Connect on.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.controller.as_ref()
    }

    /// Bytes of a block of what it serves.
    pub fn block_len(&self) -> usize {
        self.subsystem.namespace.block_len()
    }

    /// A command came.
    ///
    /// # Errors
    /// [`Status`] if it is none.
    pub fn take(&mut self, command: &Command, now: Instant) -> Result<Request, Status> {
        self.head = self.head.map(|head| (head + 1) % self.depth);
        if let Some(controller) = &self.controller {
            controller.hear(now);
        }
        let request = Request::parse(command, self.number == 0, self.block_len())?;
        let is_connect = matches!(request, Request::Connect(_));
        // Before Connect nothing else has data moved, and after it there is no other.
        match &self.controller {
            Some(controller) if is_connect || controller.has_ended() => Err(Status::CommandSequence),
            None if !is_connect => Err(Status::CommandSequence),
            _ => Ok(request),
        }
    }

    /// The response to a command.
    pub fn response(&self, id: u16, outcome: Result<u64, Failure>) -> Response {
        Response { id, head: self.head.unwrap_or(u16::MAX), outcome }
    }

    /// Whether the host, of which nothing waits to be looked at, is to be disconnected.
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

    /// Whether the host is to be disconnected whatever it sends.
    ///
    /// # Errors
    /// [`End`], but for [`End::Silent`].
    pub fn check_standing(&self, now: Instant) -> Result<(), End> {
        match &self.controller {
            Some(controller) if controller.has_ended() => Err(End::Controller),
            None if now.saturating_duration_since(self.since) > UNKNOWN => Err(End::Unknown),
            _ => Ok(()),
        }
    }

    /// Executes a command. `data` is the host's, or zeros for the answer, as long as [`Request::transfer`] says. `None`: there
    /// is no response yet.
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
        // It may have ended while the data came.
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
            // It was not aborted.
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
        // The places count from now on.
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

/// Which queue it is, and whose.
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
