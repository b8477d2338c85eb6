//! Explanation of failed work requests and refused requests: reports made from the record that a failed queue
//! pair keeps.

mod connection;
mod joined;
mod reporter;
mod surroundings;

use std::fmt;

use super::context::Inner;
use super::faults::AppliedFault;
use super::{Context, Cq, Qp};
use crate::transport::{Completion, JoinedFailure, WcStatus};
use crate::wire::Qpn;
use joined::peer_of;

pub use connection::{ConnectionProblem, ConnectionReport};
pub use reporter::{Report, Reporter};
pub use surroundings::Surroundings;

pub use crate::broker::QpOwner;
pub use crate::memory::{KeyDifference, NearestKey};
pub use crate::transport::{
    FailedRequest, Failure, FailureCause, InvalidRequest, LastAck, LocalCheck, PastEvent, PathSizes, Refusal,
    RetryLimits, Transmission, TransmissionEnd,
};

/// Report of a failed work request or queue pair: the cause, each transmission with its time, the retries and
/// their limits, and the fault rules that may explain the failure. The text form has several lines.
///
/// ```
/// # use std::time::Duration;
/// # use urxe::verbs::*;
/// # use urxe::verbs::explain::FailureCause;
/// let fabric = Fabric::virtual_time(FabricConfig::default())?;
/// let (a, b) = fabric.pair()?;
/// drop(b);
/// a.qp.post_send(&SendWr::send(1, &[]))?;
/// let completion = a.cq.wait_any(Duration::from_secs(60))?;
/// let report = completion.explain(&a.qp).expect("the work request failed");
/// assert_eq!(report.failure.cause, FailureCause::NoResponse);
/// assert_eq!(report.failure.transmissions.len(), 8);
/// println!("{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct FailureReport {
    /// Completion that the report explains; `None` if a queue pair was explained.
    pub completion: Option<Completion>,
    /// Failure of the queue pair. For a flushed work request it is the first failure, for which the queue
    /// pair entered the error state.
    pub failure: Failure,
    /// Faults of the NIC that may explain the failure: packet rules that were applied to packets of the
    /// queue pair that are still unacknowledged, and changes of the queue pair or of an object that it
    /// uses. Rules of the peer's NIC are known only with `peer`.
    pub faults: Vec<AppliedFault>,
    /// Report of the peer's queue pair, if that is in this process and has failed too. Its own `peer` is
    /// `None`. The text form combines both, the requester's first.
    pub peer: Option<Box<FailureReport>>,
    /// Facts about the path to the peer, if packets were lost, except on a fabric.
    pub surroundings: Option<Surroundings>,
}

impl FailureReport {
    /// Reports whether the work request was flushed because of the failure, and did not cause it.
    pub fn is_flushed(&self) -> bool {
        self.completion.is_some_and(|completion| completion.status == WcStatus::WrFlushErr)
    }

    /// Makes the report of a queue pair of the device.
    fn of_qp(context: &Context, qpn: Qpn) -> Option<FailureReport> {
        let failure = context.0.shards.of(qpn).failure(qpn)?;
        Some(FailureReport::of_failure(&context.0, failure))
    }

    /// Makes the report of a failure of a queue pair of the device, and of that of its peer.
    fn of_failure(device: &Inner, failure: Failure) -> FailureReport {
        let peer = peer_of(device, &failure).and_then(|(device, qpn)| {
            let failure = device.shards.of(qpn).failure(qpn)?;
            Some(Box::new(FailureReport::alone(&device, failure)))
        });
        FailureReport { peer, ..FailureReport::alone(device, failure) }
    }

    /// Makes the report of a failure, without the peer.
    fn alone(device: &Inner, failure: Failure) -> FailureReport {
        let rules = device.shards.of(failure.qpn).rules_behind(&failure);
        let mut faults: Vec<_> = rules.iter().map(|rule| AppliedFault::of_packets(rule, &failure)).collect();
        faults.extend(device.faults.behind(&failure));
        let surroundings = Surroundings::of(device, &failure);
        FailureReport { faults, surroundings, ..FailureReport::without_device(failure) }
    }

    /// Makes the report of a failure on a device that is closed.
    fn without_device(failure: Failure) -> FailureReport {
        FailureReport { completion: None, failure, faults: Vec::new(), peer: None, surroundings: None }
    }

    /// Makes the report of a completion of the device.
    fn of(context: &Context, completion: Completion) -> Option<FailureReport> {
        if completion.status == WcStatus::Success {
            return None;
        }
        let report = FailureReport::of_qp(context, completion.qpn)?;
        let failure = &report.failure;
        let is_explained = match (completion.status, &failure.request, failure.cause) {
            (WcStatus::WrFlushErr, _, _) => true,
            (status, Some(request), _) => (request.wr_id, request.status) == (completion.wr_id, status),
            (status, None, FailureCause::Refused(refusal)) => refusal.receive_status == status,
            (_, None, _) => false,
        };
        is_explained.then_some(FailureReport { completion: Some(completion), ..report })
    }
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(completion) = self.completion.filter(|_| self.is_flushed()) {
            let Completion { wr_id, qpn, .. } = completion;
            writeln!(f, "work request {wr_id:#x} of QP {qpn} was flushed because of an earlier failure:")?;
        }
        // The requester's part comes first.
        let (first, peer) = match &self.peer {
            Some(peer) if self.failure.request.is_none() && peer.failure.request.is_some() => {
                (&**peer, Some(self))
            }
            peer => (self, peer.as_deref()),
        };
        let surroundings = first.surroundings.as_ref().map(|facts| facts as &dyn fmt::Display);
        let peer_failure = peer.map(|peer| &peer.failure);
        JoinedFailure { failure: &first.failure, peer: peer_failure, surroundings }.fmt(f)?;
        first.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))?;
        let of_peer = peer.iter().flat_map(|peer| &peer.faults);
        of_peer.into_iter().try_for_each(|fault| write!(f, "\n  at the peer: {fault}"))
    }
}

impl Context {
    /// Removes and returns the report of the oldest queue pair of the device that refused a request of its
    /// peer and so entered ERR, or returns `None` if there is none; never blocks. The report is available
    /// even if the queue pair had no receive that could complete. The 64 newest are kept, until a
    /// [`Reporter`] watches the device.
    pub fn next_refusal(&self) -> Option<FailureReport> {
        Some(FailureReport::of_failure(&self.0, self.0.refusals.take()?))
    }
}

impl Context {
    /// Removes and returns the report of the oldest connection request through the device's connection manager
    /// that two transmissions left unanswered, or that was rejected; `None` if there is none. The 64 newest are
    /// kept, until a [`Reporter`] watches the device. Asks the peer's host for ICMP errors, which takes up to
    /// 20 ms, except on a fabric.
    pub fn next_connection_report(&self) -> Option<ConnectionReport> {
        Some(surroundings::complete(self.0.connections.take()?, &self.0))
    }
}

impl<S> Qp<S> {
    /// Explains why the queue pair failed. Returns `None` if it has not failed since RESET or RTS. The report
    /// is available until the queue pair is reset or returns to RTS.
    pub fn explain(&self) -> Option<FailureReport> {
        FailureReport::of_qp(self.pd().context(), self.qpn())
    }
}

impl Completion {
    /// Explains why the work request failed. `qp` is the queue pair to which it was posted. Returns `None` if
    /// the work request succeeded, or the queue pair has been reset since.
    pub fn explain<S>(&self, qp: &Qp<S>) -> Option<FailureReport> {
        if qp.qpn() == self.qpn { FailureReport::of(qp.pd().context(), *self) } else { None }
    }
}

impl Cq {
    /// Explains why the work request of a completion from this queue failed. Returns `None` if it succeeded,
    /// or its queue pair has been reset or destroyed since.
    pub fn explain(&self, completion: &Completion) -> Option<FailureReport> {
        FailureReport::of(self.context(), *completion)
    }
}
