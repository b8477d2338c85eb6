//! Shard turns on a fabric in virtual time, which runs the NICs one after the other as its clock advances.

use std::time::Duration;

use crate::fabric::{Fabric, Outcome};
use crate::transport::Instant;

/// Number of steps without an advance of virtual time after which a simulation counts as stuck.
const STEPS_PER_INSTANT: u32 = 1_000_000;

impl Fabric {
    /// Advances virtual time to the next packet arrival or driver timer, and runs each driver with something
    /// due once, in port order. Returns the new time, or `None` if nothing is pending; always returns `None`
    /// in real time.
    pub fn step(&self) -> Option<Instant> {
        self.step_until(Instant(u64::MAX))
    }

    /// Like [`step`](Self::step), but does nothing if the new time would be after `limit`.
    pub(super) fn step_until(&self, limit: Instant) -> Option<Instant> {
        let mut agenda = self.agenda()?;
        let now = self.now();
        let auxiliaries = self.auxiliaries();
        let deadlines = auxiliaries.iter().filter_map(|auxiliary| auxiliary.next_deadline());
        let mut first = deadlines.map(|at| at.max(now)).chain(agenda.next(now)).min();
        let mut last = None;
        // Until nothing is left that happens before a NIC or an auxiliary has something to do.
        while let Some(Some(at)) = self.with_network(|network| network.run(first.unwrap_or(limit).min(limit)))
        {
            last = Some(at);
            agenda.update(self.queue());
            first = first.into_iter().chain(agenda.next(now)).min();
        }
        let at = first.filter(|at| *at <= limit).or(last)?;
        self.set_time(at);
        agenda.take_due(at);
        for port in &agenda.taken {
            if let Some(driver) = port.driver() {
                driver.try_drive();
            }
            // The agenda no longer contains the port.
            self.touch(port);
        }
        for auxiliary in &auxiliaries {
            auxiliary.try_drive();
        }
        Some(at)
    }

    /// Runs steps until nothing is pending or virtual time has advanced by `limit`.
    pub fn run_until_idle(&self, limit: Duration) -> Outcome {
        let end = self.now() + limit;
        match self.run_to(end) {
            Some(at) => Outcome::Stuck(at),
            None if self.pass_time_until(end) => Outcome::Limit,
            None => Outcome::Idle,
        }
    }

    /// Advances virtual time by `time`, and runs everything that becomes due in this period, threads
    /// included.
    ///
    /// # Panics
    /// If a driver requests turns forever without advancing time, which is a bug in that driver.
    pub fn advance(&self, time: Duration) {
        if self.threads().are_in_use() {
            let _ = self.wait_in_turn(time, || None::<()>);
            return;
        }
        let end = self.now() + time;
        if let Some(at) = self.run_to(end) {
            panic!("simulation is stuck at {at:?}: a driver requests turns without advancing time");
        }
        self.set_time(end);
    }

    /// Runs steps up to `end`. If the simulation gets stuck, returns the instant at which it did.
    fn run_to(&self, end: Instant) -> Option<Instant> {
        let (mut last, mut repeats) = (None, 0);
        while let Some(at) = self.step_until(end) {
            repeats = if last == Some(at) { repeats + 1 } else { 0 };
            last = Some(at);
            if repeats == STEPS_PER_INSTANT {
                return last;
            }
        }
        None
    }

    /// Advances virtual time to `end`, up to which nothing is due. Returns false, and leaves the clock as it
    /// is, if nothing is pending at all.
    pub(super) fn pass_time_until(&self, end: Instant) -> bool {
        let now = self.now();
        let is_any_pending = self.auxiliaries().iter().any(|auxiliary| auxiliary.next_deadline().is_some())
            || self.agenda().is_some_and(|mut agenda| agenda.next(now).is_some())
            || self.with_network(|network| network.has_events()) == Some(true);
        if is_any_pending {
            self.set_time(end);
        }
        is_any_pending
    }
}
