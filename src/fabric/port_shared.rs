//! The part of a fabric port that senders and the fabric access.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::driver::Driver;
use super::inbox::Inbox;
use crate::transport::{EgressRoom, Instant};

/// The part of a port that senders and the fabric access.
pub struct PortShared {
    pub(crate) id: u32,
    /// Whether the cable is plugged in.
    pub(crate) up: AtomicBool,
    pub(super) inbox: Mutex<Inbox>,
    /// Time at which the first delivery is due; 0 if at once, `u64::MAX` if there is none. Written only with
    /// the inbox's lock held.
    pub(crate) earliest: AtomicU64,
    /// Whether the port is in the fabric's [`PortQueue`](super::port_queue::PortQueue).
    pub(crate) queued: AtomicBool,
    /// Whether the driver has to run a turn even without input.
    pub(crate) turn_requested: AtomicBool,
    /// Position in the fabric's agenda, which alone changes it.
    pub(crate) position: AtomicUsize,
    /// Packets that the NIC may send now, as [`EgressRoom`]; unlimited except in a simulated network.
    pub(crate) room: AtomicU64,
    /// Host of a simulated network to which the port belongs.
    pub(crate) host: OnceLock<u32>,
    pub(crate) driver: Mutex<Option<Weak<dyn Driver>>>,
    /// Whether packets delivered directly may lack ICRCs.
    pub(crate) elides_icrcs: AtomicBool,
}

impl PortShared {
    /// Position of a port that is not in the agenda.
    pub const ABSENT: usize = usize::MAX;

    pub(super) fn new(id: u32) -> PortShared {
        PortShared {
            id,
            up: AtomicBool::new(true),
            inbox: Mutex::default(),
            earliest: AtomicU64::new(u64::MAX),
            queued: AtomicBool::new(false),
            turn_requested: AtomicBool::new(false),
            position: AtomicUsize::new(PortShared::ABSENT),
            room: AtomicU64::new(EgressRoom::UNLIMITED.to_bits()),
            host: OnceLock::new(),
            driver: Mutex::new(None),
            elides_icrcs: AtomicBool::new(false),
        }
    }

    /// Returns the host of a simulated network to which the port belongs.
    pub fn host(&self) -> Option<u32> {
        self.host.get().copied()
    }

    /// Reports whether a delivery can be received now. Reads the clock only if a delivery is in flight.
    pub fn has_input(&self, now: impl FnOnce() -> Instant) -> bool {
        match self.earliest.load(Ordering::SeqCst) {
            0 => true,
            u64::MAX => false,
            at => at <= now().0,
        }
    }

    /// Reports whether the driver has to run, because a turn was requested or a delivery can be received now.
    /// Clears the request.
    pub fn has_work(&self, now: impl FnOnce() -> Instant) -> bool {
        self.turn_requested.swap(false, Ordering::SeqCst) || self.has_input(now)
    }

    /// Returns the time at which the port's driver must run or, without a driver, at which a delivery
    /// arrives; `None` if nothing is pending.
    pub fn due(&self) -> Option<Instant> {
        let arrival = Some(self.earliest.load(Ordering::SeqCst)).filter(|at| *at != u64::MAX).map(Instant);
        let deadline = self.driver().and_then(|driver| driver.next_deadline());
        arrival.into_iter().chain(deadline).min()
    }

    /// Returns the attached driver, if it still exists.
    pub(crate) fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.driver.lock().as_ref().and_then(Weak::upgrade)
    }
}
