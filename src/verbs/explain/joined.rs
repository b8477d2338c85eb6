//! The open devices of this process, among which the peer of a failed queue pair is looked for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::driver::Clock;
use crate::transport::Failure;
use crate::wire::Qpn;

use super::super::context::Inner;

/// Devices that were opened, of which some may be closed again.
static DEVICES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// Maximum wait for the list, which a thread of the parent process may have locked at a fork.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Adds an open device.
pub(in crate::verbs) fn add_device(device: &Arc<Inner>) {
    if let Some(mut devices) = DEVICES.try_lock_for(LOCK_TIMEOUT) {
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(device));
    }
}

/// Returns the device of this process that has the peer of a failed queue pair of `device`, and the number of
/// the peer; `None` if the peer is in another process.
pub(super) fn peer_of(device: &Inner, failure: &Failure) -> Option<(Arc<Inner>, Qpn)> {
    let (address, qpn) = failure.peer?;
    // Upgraded without the lock, because the last handle to a device may be dropped here.
    let devices = DEVICES.try_lock_for(LOCK_TIMEOUT)?.clone();
    let devices = devices.iter().filter_map(Weak::upgrade);
    let is_peer = |other: &Arc<Inner>| {
        let same_network = match (device.shards.clock(), other.shards.clock()) {
            (Clock::Real, Clock::Real) => true,
            (Clock::Fabric(a), Clock::Fabric(b)) => a.is_same(b),
            _ => false,
        };
        same_network
            && !other.shards.are_inherited()
            && other.shards.with_nic(|nic| nic.config().port.gids.iter().any(|gid| gid.ip() == address))
            && other.shards.of(qpn).with_nic(|nic| nic.qp(qpn).is_some_and(|qp| qp.dest_qpn() == failure.qpn))
    };
    Some((devices.into_iter().find(is_peer)?, qpn))
}
