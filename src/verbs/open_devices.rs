//! The devices that this process has open, for reports that look for a peer in it.

use std::collections::LinkedList;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::context::Inner;
use crate::driver::Clock;

/// The devices. A list, whose nodes are freed by the thread that closes the device, and a lock on which no thread
/// sleeps, which would allocate: the simulations check that each of their threads frees what it allocates.
static DEVICES: Mutex<LinkedList<OpenDevice>> = Mutex::new(LinkedList::new());

/// A device and, so that no other is kept open by a search, what identifies it to its peers.
struct OpenDevice {
    device: Weak<Inner>,
    /// The fabric, if the device is on one.
    fabric: Option<usize>,
    addresses: Vec<IpAddr>,
}

/// Maximum wait for the list, which a thread of the parent process may have locked at a fork.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Locks the list; `None` after [`LOCK_TIMEOUT`].
fn devices() -> Option<MutexGuard<'static, LinkedList<OpenDevice>>> {
    let begin = Instant::now();
    loop {
        match DEVICES.try_lock() {
            None if begin.elapsed() < LOCK_TIMEOUT => std::thread::yield_now(),
            devices => return devices,
        }
    }
}

impl Inner {
    /// Adds the device to the list of open ones.
    pub(super) fn list(self: &Arc<Inner>) {
        if let Some(mut devices) = devices() {
            let (fabric, addresses) = (self.fabric_id(), self.info.addresses.clone());
            devices.push_back(OpenDevice { device: Arc::downgrade(self), fabric, addresses });
        }
    }

    /// Returns a number that identifies the device's fabric while it exists; `None` for any other link.
    fn fabric_id(&self) -> Option<usize> {
        match self.shards.clock() {
            Clock::Real => None,
            Clock::Fabric(fabric) => Some(fabric.id()),
        }
    }

    /// Returns the open devices of this process that this one reaches at `address`.
    pub(super) fn devices_at(&self, address: IpAddr) -> Vec<Arc<Inner>> {
        let Some(devices) = devices() else { return Vec::new() };
        let fabric = self.fabric_id();
        let reachable = |known: &&OpenDevice| known.fabric == fabric && known.addresses.contains(&address);
        let found: Vec<Weak<Inner>> =
            devices.iter().filter(reachable).map(|known| known.device.clone()).collect();
        // Upgraded without the lock, because the last handle to a device may be dropped afterwards.
        drop(devices);
        let open = found.iter().filter_map(Weak::upgrade);
        open.filter(|device| !device.shards.are_inherited()).collect()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(mut devices) = devices() else { return };
        if let Some(index) = devices.iter().position(|known| std::ptr::eq(known.device.as_ptr(), self)) {
            let mut rest = devices.split_off(index);
            rest.pop_front();
            devices.append(&mut rest);
        }
    }
}
