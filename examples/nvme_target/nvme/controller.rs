//! A controller: what is known of a host that is connected, its registers and its features.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::capsule::Status;
use super::namespace::Namespace;
use super::{IO_QUEUES, QUEUE_DEPTH, VERSION};

/// Requests for events that wait at most.
pub const ASYNC_EVENTS: u8 = 4;

/// A host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its NVMe qualified name.
    pub nqn: String,
    /// Its UUID.
    pub id: [u8; 16],
}

/// What a controller is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reading and writing.
    Io,
    /// Finding out what there is.
    Discovery,
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    /// Its number.
    pub id: u16,
    /// What it is for.
    pub kind: Kind,
    /// Whose it is.
    pub host: Host,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The register CC.
    configuration: u32,
    /// The register CSTS.
    status: u32,
    keep_alive: Duration,
    heard: Instant,
    async_config: u32,
    /// Requests for events that wait.
    async_events: u8,
    /// I/O queues that are connected.
    queues: BTreeSet<u16>,
    /// It is over.
    ended: bool,
}

/// Registers.
mod register {
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1c;
}

/// CC: on; tells that it is to be shut down, in two bits; command set, page size, arbitration; sizes of queue entries.
const ENABLE: u32 = 1;
const SHUTDOWN: u32 = 0b11 << 14;
const SHAPE: u32 = 0x3ff0;
const ENTRIES: u32 = 0x00ff_0000;
/// Entries of 2^6 and 2^4 bytes.
const ENTRIES_USUAL: u32 = 0x0046_0000;
/// CSTS: ready; shut down.
const READY: u32 = 1;
const SHUT_DOWN: u32 = 0b10 << 2;

/// Features.
mod feature {
    pub const WRITE_CACHE: u8 = 0x06;
    pub const QUEUES: u8 = 0x07;
    pub const ASYNC_EVENTS: u8 = 0x0b;
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// CAP: how many commands a queue has at most, less one; queues are contiguous; up to 15 s to be ready; has the NVM commands.
const CAPABILITIES: u64 = (QUEUE_DEPTH as u64 - 1) | 1 << 16 | 30 << 24 | 1 << 37;

impl Controller {
    /// One that is not enabled. `keep_alive` in milliseconds, 0 for ever.
    pub fn new(id: u16, kind: Kind, host: Host, keep_alive: u32, now: Instant) -> Controller {
        let state = State {
            configuration: 0,
            status: 0,
            keep_alive: Duration::from_millis(keep_alive.into()),
            heard: now,
            async_config: 0,
            async_events: 0,
            queues: BTreeSet::new(),
            ended: false,
        };
        Controller { id, kind, host, state: Mutex::new(state) }
    }

    /// A command came: the host lives.
    pub fn hear(&self, now: Instant) {
        self.state.lock().heard = now;
    }

    /// Whether the host has said nothing for as long as it said that it would not.
    pub fn is_silent(&self, now: Instant) -> bool {
        let state = self.state.lock();
        !state.keep_alive.is_zero() && now.saturating_duration_since(state.heard) > state.keep_alive
    }

    /// Whether it takes commands other than those of fabrics.
    pub fn is_ready(&self) -> bool {
        self.state.lock().status & READY != 0
    }

    /// Its admin queue is gone.
    pub fn end(&self) {
        self.state.lock().ended = true;
    }

    /// Whether that is so.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// An I/O queue is connected.
    ///
    /// # Errors
    /// [`Status::CommandSequence`] if there is one of that number, or the controller is not ready.
    pub fn add_queue(&self, queue: u16) -> Result<(), Status> {
        let mut state = self.state.lock();
        let ready = state.status & READY != 0 && !state.ended;
        if ready && state.queues.insert(queue) { Ok(()) } else { Err(Status::CommandSequence) }
    }

    /// It is gone.
    pub fn remove_queue(&self, queue: u16) {
        self.state.lock().queues.remove(&queue);
    }

    /// One more request for an event waits, as nothing happens here.
    ///
    /// # Errors
    /// [`Status::AsyncEventLimit`].
    pub fn hold_event(&self) -> Result<(), Status> {
        let mut state = self.state.lock();
        if state.async_events == ASYNC_EVENTS {
            return Err(Status::AsyncEventLimit);
        }
        state.async_events += 1;
        Ok(())
    }

    /// A register.
    ///
    /// # Errors
    /// [`Status::InvalidField`].
    pub fn property(&self, offset: u32, wide: bool) -> Result<u64, Status> {
        let state = self.state.lock();
        match (offset, wide) {
            (register::CAP, true) => Ok(CAPABILITIES),
            (register::VS, false) => Ok(VERSION.into()),
            (register::CC, false) => Ok(state.configuration.into()),
            (register::CSTS, false) => Ok(state.status.into()),
            _ => Err(Status::InvalidField),
        }
    }

    /// Sets a register, of which there is one that can be.
    ///
    /// # Errors
    /// [`Status`].
    pub fn set_property(&self, offset: u32, value: u64, namespace: &Namespace) -> Result<(), Status> {
        let value = u32::try_from(value).map_err(|_| Status::InvalidField)?;
        if offset != register::CC {
            return Err(Status::InvalidField);
        }
        let enables = value & ENABLE != 0;
        // Discovery controllers have no I/O queues, whose entries would have a size.
        let entries = self.kind == Kind::Io && value & ENTRIES != ENTRIES_USUAL;
        if enables && (value & SHAPE != 0 || entries) {
            return Err(Status::InvalidField);
        }
        let mut state = self.state.lock();
        state.configuration = value;
        state.status = if enables { READY } else { 0 };
        if !enables {
            state.async_events = 0;
        }
        drop(state);
        if value & SHUTDOWN != 0 {
            // Other queues go on meanwhile, and one of them may have set it again.
            namespace.flush()?;
            let mut state = self.state.lock();
            if state.configuration == value {
                state.status |= SHUT_DOWN;
            }
        }
        Ok(())
    }

    /// A feature: as it is, or as it was at first.
    ///
    /// # Errors
    /// [`Status::InvalidField`].
    pub fn feature(&self, feature: u8, select: u8, namespace: &Namespace) -> Result<u64, Status> {
        let state = self.state.lock();
        let value = |now: u32, first: u32| match select {
            0 => Ok(now.into()),
            1 => Ok(first.into()),
            // It can be changed, and is not saved.
            3 => Ok(1 << 2),
            _ => Err(Status::InvalidField),
        };
        match (feature, self.kind) {
            (feature::WRITE_CACHE, Kind::Io) => value(namespace.has_write_cache().into(), 1),
            (feature::QUEUES, Kind::Io) => value(queues(IO_QUEUES), queues(IO_QUEUES)),
            (feature::ASYNC_EVENTS, _) => value(state.async_config, 0),
            (feature::KEEP_ALIVE, _) => value(state.keep_alive.as_millis() as u32, 0),
            _ => Err(Status::InvalidField),
        }
    }

    /// Sets a feature; returns what the host is told of it.
    ///
    /// # Errors
    /// [`Status`].
    pub fn set_feature(&self, feature: u8, value: u32, namespace: &Namespace) -> Result<u64, Status> {
        match (feature, self.kind) {
            (feature::WRITE_CACHE, Kind::Io) => namespace.set_write_cache(value & 1 != 0)?,
            (feature::QUEUES, Kind::Io) => {
                // Both numbers are one less than what is asked for.
                let (send, complete) = (value as u16, (value >> 16) as u16);
                if send == u16::MAX || complete == u16::MAX {
                    return Err(Status::InvalidField);
                }
                return Ok(queues(send.max(complete).saturating_add(1).min(IO_QUEUES)).into());
            }
            (feature::ASYNC_EVENTS, _) => self.state.lock().async_config = value,
            (feature::KEEP_ALIVE, _) => {
                self.state.lock().keep_alive = Duration::from_millis(value.into());
            }
            _ => return Err(Status::InvalidField),
        }
        Ok(0)
    }
}

/// As many queues for commands and for completions, each less one.
fn queues(count: u16) -> u32 {
    let last = u32::from(count - 1);
    last | last << 16
}
