//! Controller: the state that the target keeps for a connected host, with registers and features.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::capsule::Status;
use super::namespace::Namespace;
use super::{IO_QUEUES, QUEUE_DEPTH, VERSION};

/// Maximum number of outstanding Asynchronous Event Requests.
pub const ASYNC_EVENTS: u8 = 4;

/// A host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Host NQN (NVMe qualified name).
    pub nqn: String,
    /// Host identifier, a UUID.
    pub id: [u8; 16],
}

/// Type of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// I/O controller: reads and writes blocks.
    Io,
    /// Discovery controller: lists subsystems.
    Discovery,
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    /// Controller ID.
    pub id: u16,
    /// Type of the controller.
    pub kind: Kind,
    /// Host connected to the controller.
    pub host: Host,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Register CC (controller configuration).
    configuration: u32,
    /// Register CSTS (controller status).
    status: u32,
    keep_alive: Duration,
    last_command: Instant,
    async_config: u32,
    /// Number of outstanding Asynchronous Event Requests.
    async_events: u8,
    /// Numbers of the connected I/O queues.
    queues: BTreeSet<u16>,
    /// Whether the admin queue has been disconnected.
    ended: bool,
}

/// Offsets of registers.
mod register {
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1c;
}

/// Bit masks of the CC register, in order: enable; shutdown notification; command set, page size and
/// arbitration; queue entry sizes.
const ENABLE: u32 = 1;
const SHUTDOWN: u32 = 0b11 << 14;
const MODE_FIELDS: u32 = 0x3ff0;
const ENTRY_SIZE_FIELDS: u32 = 0x00ff_0000;
/// Entry sizes in the CC register: 2^6 bytes for submission queues and 2^4 bytes for completion queues.
const ENTRY_SIZES: u32 = 0x0046_0000;
/// Values of the CSTS register, in order: ready; shutdown complete.
const READY: u32 = 1;
const SHUT_DOWN: u32 = 0b10 << 2;

/// Feature identifiers.
mod feature {
    pub const WRITE_CACHE: u8 = 0x06;
    pub const QUEUES: u8 = 0x07;
    pub const ASYNC_EVENTS: u8 = 0x0b;
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// Value of the CAP register: maximum queue depth minus one; contiguous queues required; at most 15 s to
/// become ready; NVM command set.
const CAPABILITIES: u64 = (QUEUE_DEPTH as u64 - 1) | 1 << 16 | 30 << 24 | 1 << 37;

impl Controller {
    /// Creates a controller, which the host has yet to enable. `keep_alive` is the keep alive timeout in
    /// milliseconds; 0 disables it.
    pub fn new(id: u16, kind: Kind, host: Host, keep_alive: u32, now: Instant) -> Controller {
        let state = State {
            configuration: 0,
            status: 0,
            keep_alive: Duration::from_millis(keep_alive.into()),
            last_command: now,
            async_config: 0,
            async_events: 0,
            queues: BTreeSet::new(),
            ended: false,
        };
        Controller { id, kind, host, state: Mutex::new(state) }
    }

    /// Restarts the keep alive timer, as every command does.
    pub fn restart_keep_alive(&self, now: Instant) {
        self.state.lock().last_command = now;
    }

    /// Reports whether no command has arrived within the keep alive timeout.
    pub fn is_keep_alive_expired(&self, now: Instant) -> bool {
        let state = self.state.lock();
        !state.keep_alive.is_zero() && now.saturating_duration_since(state.last_command) > state.keep_alive
    }

    /// Reports whether the controller is ready for commands other than Fabrics commands.
    pub fn is_ready(&self) -> bool {
        self.state.lock().status & READY != 0
    }

    /// Marks the controller as ended, after its admin queue was disconnected.
    pub fn end(&self) {
        self.state.lock().ended = true;
    }

    /// Reports whether the controller has ended with its admin queue.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Adds a newly connected I/O queue.
    ///
    /// # Errors
    /// [`Status::CommandSequence`] if there is a queue of that number already, or the controller is not
    /// ready.
    pub fn add_queue(&self, queue: u16) -> Result<(), Status> {
        let mut state = self.state.lock();
        let ready = state.status & READY != 0 && !state.ended;
        if ready && state.queues.insert(queue) { Ok(()) } else { Err(Status::CommandSequence) }
    }

    /// Removes a disconnected I/O queue.
    pub fn remove_queue(&self, queue: u16) {
        self.state.lock().queues.remove(&queue);
    }

    /// Counts another Asynchronous Event Request. It remains outstanding, because this target never reports
    /// an event.
    ///
    /// # Errors
    /// [`Status::AsyncEventLimit`].
    pub fn add_async_event(&self) -> Result<(), Status> {
        let mut state = self.state.lock();
        if state.async_events == ASYNC_EVENTS {
            return Err(Status::AsyncEventLimit);
        }
        state.async_events += 1;
        Ok(())
    }

    /// Returns a register's value. `wide` selects the 8-byte registers instead of the 4-byte ones.
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

    /// Sets a register. Only CC is writable.
    ///
    /// # Errors
    /// [`Status`].
    pub fn set_property(&self, offset: u32, value: u64, namespace: &Namespace) -> Result<(), Status> {
        let value = u32::try_from(value).map_err(|_| Status::InvalidField)?;
        if offset != register::CC {
            return Err(Status::InvalidField);
        }
        let enables = value & ENABLE != 0;
        // The entry sizes apply to I/O queues, which discovery controllers do not have.
        let has_invalid_entry_sizes = self.kind == Kind::Io && value & ENTRY_SIZE_FIELDS != ENTRY_SIZES;
        if enables && (value & MODE_FIELDS != 0 || has_invalid_entry_sizes) {
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
            // The state is not locked during the flush, and another queue may have set the register
            // meanwhile.
            namespace.flush()?;
            let mut state = self.state.lock();
            if state.configuration == value {
                state.status |= SHUT_DOWN;
            }
        }
        Ok(())
    }

    /// Returns the current value, the default or the capabilities of a feature, as `select` requests.
    ///
    /// # Errors
    /// [`Status::InvalidField`].
    pub fn feature(&self, feature: u8, select: u8, namespace: &Namespace) -> Result<u64, Status> {
        let state = self.state.lock();
        let value = |current: u32, default: u32| match select {
            0 => Ok(current.into()),
            1 => Ok(default.into()),
            // The feature is changeable but not saveable.
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

    /// Sets a feature, and returns the result to report in the response.
    ///
    /// # Errors
    /// [`Status`].
    pub fn set_feature(&self, feature: u8, value: u32, namespace: &Namespace) -> Result<u64, Status> {
        match (feature, self.kind) {
            (feature::WRITE_CACHE, Kind::Io) => namespace.set_write_cache(value & 1 != 0)?,
            (feature::QUEUES, Kind::Io) => {
                // Both fields hold one less than the requested number of queues.
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

/// Encodes `count` submission queues and `count` completion queues as a Number of Queues value: two 16-bit
/// fields, each holding the number minus one.
fn queues(count: u16) -> u32 {
    let last = u32::from(count - 1);
    last | last << 16
}
