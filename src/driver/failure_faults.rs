//! Faults on objects that explain the failure of a queue pair.

use std::sync::Arc;

use super::object_faults::{ActiveObjectFault, Changed, ObjectChange, ObjectFault};
use crate::transport::{Failure, FailureCause, Instant, LocalCheck};
use crate::wire::RKey;

/// Returns the faults that changed an object of a failed queue pair, and when, if they may explain the
/// failure.
pub(crate) fn faults_behind(
    failure: &Failure,
    faults: &[Arc<ActiveObjectFault>],
) -> Vec<(ObjectFault, Instant)> {
    let changed = |active: &Arc<ActiveObjectFault>| {
        let at = active.last_change(|at, changed| match (changed, failure.cause) {
            // In the other shards the device may fail at a slightly earlier time of theirs.
            (Changed::Device, cause) => cause == FailureCause::DeviceFatal,
            _ if at.0 > failure.at => false,
            (Changed::Qps(qpns), FailureCause::Injected) | (Changed::Cq(qpns), FailureCause::CqOverflow) => {
                qpns.contains(&failure.qpn)
            }
            (Changed::Regions(keys), cause) => denied_key(cause).is_some_and(|key| keys.contains(&key)),
            (Changed::Port, FailureCause::NoResponse) => {
                active.fault.change() == ObjectChange::Port { up: false } && was_down(at, failure, faults)
            }
            _ => false,
        })?;
        Some((active.fault.clone(), at))
    };
    faults.iter().filter_map(changed).collect()
}

/// Returns the key that failed a memory check.
fn denied_key(cause: FailureCause) -> Option<RKey> {
    let error = match cause {
        FailureCause::Local(LocalCheck::Access { error, .. }) => error,
        FailureCause::Refused(refusal) => refusal.access?,
        _ => return None,
    };
    Some(RKey(error.key()))
}

/// Reports whether the port, which went down at `down`, was down at a time since which the peer has been
/// silent.
fn was_down(down: Instant, failure: &Failure, faults: &[Arc<ActiveObjectFault>]) -> bool {
    let silent = failure.at.saturating_sub(failure.silence.unwrap_or_default().as_nanos() as u64);
    let mut ups = faults.iter().filter(|active| active.fault.change() == ObjectChange::Port { up: true });
    let is_up_again =
        |active: &Arc<ActiveObjectFault>| active.last_change(|at, _| down < at && at.0 < silent).is_some();
    !ups.any(is_up_again)
}
