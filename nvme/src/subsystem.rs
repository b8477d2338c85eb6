//! NVM subsystem: a named namespace, and the controllers of the connected hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::capsule::{Failure, Status, u16_at};
use super::controller::{Controller, Host, Kind};
use super::namespace::Namespace;
use super::request::Connect;
use super::{DISCOVERY_NQN, IO_QUEUES};

/// Maximum number of controllers, one per connected host.
const CONTROLLERS: u16 = 256;
/// Controller ID in a Connect command that requests any available controller.
const ANY: u16 = 0xffff;

/// A named namespace, shared by all hosts, with their controllers.
#[derive(Debug)]
pub struct Subsystem {
    /// NQN (NVMe qualified name) of the subsystem.
    pub nqn: String,
    /// Namespace that the subsystem serves.
    pub namespace: Namespace,
    /// Addresses at which hosts reach the subsystem.
    pub addresses: Vec<SocketAddr>,
    controllers: Mutex<BTreeMap<u16, Arc<Controller>>>,
}

/// Layout of a Connect command's data: offsets of the controller ID, the subsystem NQN and the host NQN, and
/// the length of an NQN field.
const CONTROLLER_AT: usize = 16;
const SUBSYSTEM_AT: usize = 256;
const HOST_AT: usize = 512;
const NAME_LEN: usize = 256;

impl Subsystem {
    /// Creates a subsystem without connected hosts.
    pub fn new(nqn: String, namespace: Namespace, addresses: Vec<SocketAddr>) -> Subsystem {
        Subsystem { nqn, namespace, addresses, controllers: Mutex::default() }
    }

    /// Returns a UUID derived from the subsystem's NQN (FNV-1a hash), so that it survives a restart of the
    /// target.
    pub fn uuid(&self) -> [u8; 16] {
        let (mut hash, mut uuid) = (0xcbf2_9ce4_8422_2325_u64, [0; 16]);
        for half in uuid.chunks_exact_mut(8) {
            for byte in self.nqn.bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
            half.copy_from_slice(&hash.to_be_bytes());
        }
        // Version 8 (custom), in the variant of RFC 9562.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }

    /// Creates the controller for a Connect command on an admin queue, or finds it for a Connect command on
    /// an I/O queue. The caller must have checked that the queue number matches that in the connection
    /// request.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn connect(&self, connect: &Connect, data: &[u8], now: Instant) -> Result<Arc<Controller>, Failure> {
        let kind = match name(data, SUBSYSTEM_AT) {
            Some(name) if name == self.nqn => Kind::Io,
            Some(DISCOVERY_NQN) => Kind::Discovery,
            _ => return Err(in_data(SUBSYSTEM_AT)),
        };
        let nqn = name(data, HOST_AT).filter(|name| !name.is_empty()).ok_or(in_data(HOST_AT))?;
        let id = data.first_chunk().copied().ok_or(Status::SglLength)?;
        let host = Host { nqn: nqn.into(), id };
        let number = u16_at(data, CONTROLLER_AT);
        if connect.queue == 0 {
            if number != ANY {
                return Err(in_data(CONTROLLER_AT));
            }
            return self.create_controller(kind, host, connect.keep_alive, now);
        }
        let controller = self.controllers.lock().get(&number).cloned();
        let controller = controller.ok_or(in_data(CONTROLLER_AT))?;
        if controller.kind != Kind::Io || kind != Kind::Io {
            return Err(in_data(SUBSYSTEM_AT));
        }
        if controller.host != host {
            return Err(in_data(HOST_AT));
        }
        if connect.queue > IO_QUEUES {
            return Err(in_command(Connect::QUEUE_AT));
        }
        controller.add_queue(connect.queue)?;
        Ok(controller)
    }

    fn create_controller(
        &self,
        kind: Kind,
        host: Host,
        keep_alive: u32,
        now: Instant,
    ) -> Result<Arc<Controller>, Failure> {
        let mut controllers = self.controllers.lock();
        let id = (1..=CONTROLLERS).find(|id| !controllers.contains_key(id)).ok_or(Status::ConnectBusy)?;
        let controller = Arc::new(Controller::new(id, kind, host, keep_alive, now));
        controllers.insert(id, controller.clone());
        Ok(controller)
    }

    /// Ends and removes a controller whose admin queue has been disconnected.
    pub fn remove_controller(&self, controller: &Controller) {
        controller.end();
        self.controllers.lock().remove(&controller.id);
    }
}

/// Returns the name at offset `at` of a Connect command's data, or `None` if it is not NUL-terminated UTF-8.
fn name(data: &[u8], at: usize) -> Option<&str> {
    let field = data.get(at..at + NAME_LEN)?;
    let end = field.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&field[..end]).ok()
}

/// Returns the failure for an invalid field at offset `at` of a Connect command's data.
fn in_data(at: usize) -> Failure {
    Failure { status: Status::ConnectParameter, result: 1 << 16 | at as u64 }
}

/// Returns the failure for an invalid field at offset `at` of a Connect command.
pub fn in_command(at: u64) -> Failure {
    Failure { status: Status::ConnectParameter, result: at }
}
