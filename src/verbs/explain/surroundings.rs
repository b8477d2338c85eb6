//! Facts outside of a queue pair that may explain lost packets: route, ICMP, and the process of the peer.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::super::context::Inner;
use super::{ConnectionProblem, ConnectionReport};
use crate::broker::{QpOwner, owner_of};
use crate::driver::Clock;
use crate::host::route;
use crate::transport::{Failure, FailureCause};
use crate::wire::ROCE_PORT;

/// Bytes of the IPv4 and UDP headers, the BTH and the ICRC of a packet.
const HEADERS: u32 = 20 + 8 + 12 + 4;

/// Maximum wait for an ICMP error, when the report is made.
const ICMP_WAIT: Duration = Duration::from_millis(20);

/// Facts about the path to the peer of a queue pair that failed because packets were lost, at the time of the
/// report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Surroundings {
    /// Process of the peer, if that is on this host and shares its address.
    pub owner: Option<QpOwner>,
    /// MTU of the system's route to the peer, which includes what routers have reported by ICMP, if packets of
    /// the lost size exceed it.
    pub small_route_mtu: Option<u32>,
    /// Error that the peer's host or a router reports by ICMP for a datagram to the RoCE port.
    pub icmp_error: Option<String>,
    /// Packets that the link could not send since it was opened, to any peer: those without a route or
    /// listener, and those larger than the MTU.
    pub unsent: (u64, u64),
}

impl Surroundings {
    /// Looks at the path of a failed queue pair of `device`; `None` if no packets were lost, or on a fabric.
    pub(super) fn of(device: &Inner, failure: &Failure) -> Option<Surroundings> {
        let (address, qpn) = failure.peer.filter(|_| failure.cause.is_loss())?;
        if !matches!(device.shards.clock(), Clock::Real) {
            return None;
        }
        let counters = device.shards.link_state().0;
        let unsent = (counters.tx_unreachable, counters.tx_oversized);
        let is_silent = failure.cause == FailureCause::NoResponse;
        let small_route_mtu = failure.path.filter(|_| uses_system(device)).and_then(|path| {
            let mtu = route::mtu_towards((address, ROCE_PORT).into()).ok()?;
            (path.lost + HEADERS > mtu).then_some(mtu)
        });
        let owner = if is_silent { owner_of(address, qpn) } else { None };
        let icmp_error = (is_silent && owner.is_none()).then(|| icmp_error(device, address)).flatten();
        Some(Surroundings { owner, small_route_mtu, icmp_error, unsent })
    }
}

/// Adds to a report what the system knows about the peer.
pub(super) fn complete(report: ConnectionReport, device: &Inner) -> ConnectionReport {
    match report.problem {
        ConnectionProblem::Unanswered { .. } => {
            ConnectionReport { icmp_error: icmp_error(device, report.peer.ip()), ..report }
        }
        ConnectionProblem::Rejected(_) => report,
    }
}

/// Reports whether the packets of a device take the system's routes.
fn uses_system(device: &Inner) -> bool {
    matches!(device.shards.clock(), Clock::Real) && device.info.name.starts_with("udp")
}

/// Sends an empty datagram to the RoCE port of `address`, and returns the error that is reported for it.
fn icmp_error(device: &Inner, address: IpAddr) -> Option<String> {
    if !uses_system(device) {
        return None;
    }
    let src = device.info.addresses.iter().find(|src| src.is_ipv4() == address.is_ipv4())?;
    let error = route::probe(*src, SocketAddr::new(address, ROCE_PORT), ICMP_WAIT).err()?;
    Some(match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => format!("{address} reports that nothing listens on UDP port {ROCE_PORT}"),
        _ => format!("a datagram to {address} fails: {error}"),
    })
}

impl fmt::Display for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(owner) = &self.owner {
            writeln!(f, "  peer's process: {owner}")?;
        }
        if let Some(mtu) = self.small_route_mtu {
            writeln!(f, "  route: its MTU of {mtu} bytes is too small for packets of this size")?;
        }
        if let Some(error) = &self.icmp_error {
            writeln!(f, "  ICMP: {error}")?;
        }
        match self.unsent {
            (0, 0) => Ok(()),
            (unreachable, oversized) => writeln!(
                f,
                "  link: packets without a route or listener: {unreachable}; larger than the MTU: {oversized}"
            ),
        }
    }
}
