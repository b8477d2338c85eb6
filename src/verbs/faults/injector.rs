//! Application of faults on calls in the Rust API.

use std::sync::Arc;

use super::{Call, CallFaults, FaultCount};
use crate::driver::Clock;
use crate::transport::InjectedError;

/// The faults on calls of a device, which the device and its objects share; empty if there are none.
#[derive(Clone, Default)]
pub(in crate::verbs) struct Injector(Option<Arc<(CallFaults, Clock)>>);

impl Injector {
    /// Creates an injector whose slow calls take time on `clock`.
    pub fn new(faults: Option<CallFaults>, clock: &Clock) -> Injector {
        Injector(faults.map(|faults| Arc::new((faults, clock.clone()))))
    }

    /// Reports whether there are no faults.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Counts a call, and waits if it is to be slow.
    ///
    /// # Errors
    /// The error with which the call is to fail.
    #[inline]
    pub fn inject(&self, call: Call) -> Result<(), InjectedError> {
        match &self.0 {
            None => Ok(()),
            Some(active) => apply(&active.0, &active.1, call),
        }
    }

    /// Returns the counters of each fault.
    pub fn counts(&self) -> impl Iterator<Item = FaultCount> {
        self.0.iter().flat_map(|active| active.0.counts())
    }
}

#[cold]
fn apply(faults: &CallFaults, clock: &Clock, call: Call) -> Result<(), InjectedError> {
    let verdict = faults.on_call(call);
    match (verdict.delay, clock) {
        (None, _) => {}
        (Some(delay), Clock::Fabric(fabric)) if fabric.is_virtual() => fabric.advance(delay),
        (Some(delay), _) => std::thread::sleep(delay),
    }
    verdict.error.map_or(Ok(()), Err)
}
