//! Faults on calls of this library (`--fault call:NAME=...`), which entry points apply before anything else.

use std::ffi::c_int;
use std::sync::OnceLock;

use urxe::middleware::faults::FaultSeeds;
use urxe::verbs::faults::{Call, CallFaults, Fault, FaultCount};

use crate::env::{faults, seed};
use crate::explain;
use crate::fault_watch;

/// Faults of the process, and the PID of the process that read them: a forked child does not report the
/// counts of its parent.
static FAULTS: OnceLock<Option<(CallFaults, u32)>> = OnceLock::new();

fn active() -> Option<&'static (CallFaults, u32)> {
    let read = || {
        // A setting that cannot be read is reported when the devices are listed.
        let calls = Fault::call_faults(&faults().ok()?);
        if !calls.is_empty() {
            fault_watch::start();
        }
        Some((CallFaults::new(calls, seeds().seed())?, std::process::id()))
    };
    FAULTS.get_or_init(read).as_ref()
}

/// Returns the seeds of the process's random faults. They are drawn once if there is no `URXE_SEED`.
pub(crate) fn seeds() -> &'static FaultSeeds {
    static SEEDS: OnceLock<FaultSeeds> = OnceLock::new();
    // A seed that cannot be read is reported when the devices are listed.
    SEEDS.get_or_init(|| FaultSeeds::new(seed().ok().flatten()))
}

/// Counts a call, waits if it is to be slow, and returns the error with which it is to fail, if any.
#[inline]
pub(crate) fn on_call(call: Call) -> Option<c_int> {
    active().and_then(|(faults, _)| apply(faults, call))
}

#[cold]
fn apply(faults: &CallFaults, call: Call) -> Option<c_int> {
    let verdict = faults.on_call(call);
    if let Some(delay) = verdict.delay {
        let _uncancelled = crate::cancel::disable();
        std::thread::sleep(delay);
    }
    let error = verdict.error?;
    explain::injected(&error);
    Some(error.errno)
}

/// Returns the counters of all faults on calls that this process has read itself.
pub(crate) fn counts() -> Vec<FaultCount> {
    let own = active().filter(|(_, process)| *process == std::process::id());
    own.map(|(faults, _)| faults.counts().collect()).unwrap_or_default()
}

/// Applies the faults on a call of the library. If it is to fail, returns from the calling function by
/// `errno::$fail`, which follows the convention of the call.
macro_rules! inject_fault {
    ($call:ident, $fail:ident) => {
        if let Some(errno) = $crate::call_faults::on_call(urxe::verbs::faults::Call::$call) {
            return $crate::errno::$fail(errno);
        }
    };
}
