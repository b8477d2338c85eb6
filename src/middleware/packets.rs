//! Conversion of bursts for middleware: into single packets, and of sent bursts into received ones.

use crate::burst::{RxBurst, TxBurst};
use crate::wire::IpIdent;

/// Returns the packets of a burst as bursts of one packet.
pub(super) fn packets_of<'a>(burst: &RxBurst<'a>) -> impl Iterator<Item = RxBurst<'a>> + use<'a> {
    let (flow, first) = (burst.flow, burst.ident);
    burst.packets().map(move |(i, data)| RxBurst::new(flow, ident_of(first, i), data.len(), data))
}

/// Returns the IPv4 identification of packet `i` in a burst, if it is known.
pub(super) fn ident_of(burst: IpIdent, i: u16) -> IpIdent {
    match burst {
        IpIdent::Exact { id, flags } => IpIdent::Exact { id: id.wrapping_add(i), flags },
        // The sender may count from any number.
        unknown => unknown,
    }
}

/// Returns a burst to send as a peer would receive it. A NIC gives middleware packets with ICRCs
/// ([`HostMemory::with_icrcs`](crate::link::HostMemory::with_icrcs)).
///
/// # Panics
/// If the ICRCs of the burst are deferred, as [`TxBurst::bytes`] does.
pub(super) fn as_received<'a>(burst: &TxBurst<'a>) -> RxBurst<'a> {
    RxBurst::new(burst.flow, IpIdent::SENT, burst.segment, burst.bytes())
}
