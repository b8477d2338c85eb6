//! The peer of a failed queue pair, if it is in this process.

use std::sync::Arc;

use super::super::context::Inner;
use crate::transport::Failure;
use crate::wire::Qpn;

/// Returns the device of this process that has the peer of a failed queue pair of `device`, and the number of
/// the peer; `None` if the peer is in another process.
pub(super) fn peer_of(device: &Inner, failure: &Failure) -> Option<(Arc<Inner>, Qpn)> {
    let (address, qpn) = failure.peer?;
    let is_peer = |other: &Arc<Inner>| {
        other.shards.of(qpn).with_nic(|nic| nic.qp(qpn).is_some_and(|qp| qp.dest_qpn() == failure.qpn))
    };
    Some((device.devices_at(address).into_iter().find(is_peer)?, qpn))
}
