//! Interface between a fabric and its NICs' drivers: port handles. The driver decides when the NICs run
//! (`driver/fabric_kick.rs`, `driver/fabric_clock.rs`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Fabric;
use super::driver::Driver;
use super::port_shared::PortShared;
use crate::transport::Instant;

impl Fabric {
    /// Announces new deliveries to `port`, which have changed the time of its earliest delivery from `before`
    /// to `earliest`. Queues the port if that delivery is already due; otherwise wakes the port's driver if
    /// the time has become earlier.
    pub(super) fn notify_delivery(&self, port: &Arc<PortShared>, now: Instant, before: u64, earliest: u64) {
        if self.is_virtual() {
            return self.touch(port);
        }
        if earliest == u64::MAX {
            return;
        }
        if earliest <= now.0 {
            self.queue().push(port);
        } else if earliest < before
            && let Some(driver) = port.driver()
        {
            driver.wake();
        }
    }

    /// Makes the port's driver run a turn in the next kick, whether or not the port has input.
    pub(crate) fn schedule_turn(&self, port: &Arc<PortShared>) {
        port.turn_requested.store(true, Ordering::SeqCst);
        self.queue().push(port);
    }

    /// Adds an auxiliary driver, which has no port of its own but reacts to what NICs have received. In
    /// virtual time, it runs in every step, after the NICs.
    pub(crate) fn add_auxiliary_driver(&self, auxiliary: Weak<dyn Driver>) {
        self.0.auxiliaries.lock().push(auxiliary);
    }

    /// Returns the auxiliary drivers that still exist.
    pub(crate) fn auxiliaries(&self) -> Vec<Arc<dyn Driver>> {
        let mut auxiliaries = self.0.auxiliaries.lock();
        auxiliaries.retain(|auxiliary| auxiliary.strong_count() > 0);
        auxiliaries.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Result of running a simulation in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Nothing is pending.
    Idle,
    /// The time limit was reached while something was still pending.
    Limit,
    /// Virtual time no longer advances beyond the given instant, because a driver keeps requesting turns,
    /// which is a bug in that driver.
    Stuck(Instant),
}

/// Handle for driving a port, usable while a NIC owns the port itself.
#[derive(Clone)]
pub(crate) struct FabricHandle {
    pub(crate) fabric: Fabric,
    pub(crate) port: Arc<PortShared>,
}

impl FabricHandle {
    /// Attaches the driver of the port's NIC, replacing any previous driver.
    pub fn attach(&self, driver: Weak<dyn Driver>) {
        *self.port.driver.lock() = Some(driver);
        self.fabric.touch(&self.port);
        if !self.fabric.is_virtual()
            && self.port.earliest.load(Ordering::SeqCst) != u64::MAX
            && let Some(driver) = self.port.driver()
        {
            driver.wake();
        }
    }

    /// Announces that the time at which the driver wants to run may have changed. Has no effect in real time.
    pub fn touch(&self) {
        self.fabric.touch(&self.port);
    }

    /// Reports whether the port has a delivery that can be received now.
    pub fn has_input(&self) -> bool {
        self.port.has_input(|| self.fabric.now())
    }

    /// Reports whether the port has a delivery that becomes due at a set time, possibly while no thread
    /// drives the NIC.
    pub fn has_pending_input(&self) -> bool {
        !matches!(self.port.earliest.load(Ordering::SeqCst), 0 | u64::MAX)
    }

    /// Returns the port's fabric, whose clock the NIC uses.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}
