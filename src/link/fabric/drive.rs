//! Drives the NICs behind the ports: in real time on the thread that sent, in virtual time by the fabric.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::port::PortShared;
use super::{Fabric, lock};
use crate::transport::{AsyncEvent, Instant, RxBurst};

/// Maximum number of turns that one kick runs on the caller's thread, so that two NICs that respond to each
/// other forever do not hold it. The remaining drivers are woken to continue on their own threads.
const INLINE_TURNS: usize = 64;

/// Number of steps at one instant of virtual time after which a simulation counts as stuck.
const STEPS_PER_INSTANT: u32 = 1_000_000;

/// Function that passes bursts to the receiver, one after the other.
pub type Handover<'a> = dyn FnMut(&mut dyn FnMut(RxBurst<'_>)) + 'a;

/// Driver of a NIC: processes input from its port, serves timers, sends.
pub trait Driver: Send + Sync {
    /// Tries to run one turn. Returns false if another thread is running the NIC; that thread checks for new
    /// input before it finishes.
    fn try_drive(&self) -> bool;

    /// Receives packets directly from the sender, bypassing the port, if no other thread is running the NIC
    /// and no middleware is between it and the port; `bursts` passes the packets. Called from within another
    /// NIC's turn, so it must not block. Responses are sent in a turn that the fabric requests. Returns false
    /// if no packets were received.
    fn try_receive_direct(&self, _now: Instant, _bursts: &mut Handover<'_>) -> bool {
        false
    }

    /// Makes a thread of the driver's own run a turn soon. Called from within other NICs' turns, so it must
    /// not wait for any lock that a turn holds.
    fn wake(&self);

    /// Returns the earliest time at which the driver wants to run without input.
    fn next_deadline(&self) -> Option<Instant>;

    /// Notifies the driver that the port was plugged in or unplugged. Called on the thread that did so.
    fn port_up(&self, _up: bool) {}

    /// Notifies the driver that the device is lost for this reason, as when an adapter is unplugged.
    /// Called on the thread that removed it.
    fn device_lost(&self, _reason: io::Error) {}

    /// Raises an asynchronous event of the NIC, with the effect that the event reports. Returns false if the
    /// NIC has no such object.
    fn inject_event(&self, _event: AsyncEvent) -> bool {
        false
    }

    /// Notifies the driver that the port has these addresses from now on. Called on the thread that changed
    /// them.
    fn addresses_changed(&self, _addresses: &[IpAddr]) {}
}

/// Queue of the ports that have received input and whose drivers have not checked for it since.
#[derive(Default)]
pub(super) struct ReadyQueue {
    ports: Mutex<VecDeque<Arc<PortShared>>>,
    /// Length of the queue, readable without the lock.
    len: AtomicUsize,
}

impl ReadyQueue {
    fn push(&self, port: &Arc<PortShared>) {
        if !port.queued.swap(true, Ordering::SeqCst) {
            let mut ports = lock(&self.ports);
            ports.push_back(port.clone());
            self.len.store(ports.len(), Ordering::SeqCst);
        }
    }

    fn pop(&self) -> Option<Arc<PortShared>> {
        if self.len.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut ports = lock(&self.ports);
        let port = ports.pop_front()?;
        self.len.store(ports.len(), Ordering::SeqCst);
        drop(ports);
        // Cleared before the driver checks for input, so that later input queues the port again.
        port.queued.store(false, Ordering::SeqCst);
        Some(port)
    }

    pub fn remove(&self, id: u32) {
        let mut ports = lock(&self.ports);
        ports.retain(|p| p.id != id);
        self.len.store(ports.len(), Ordering::SeqCst);
    }
}

thread_local! {
    /// Address of the fabric whose kick runs on this thread; 0 for none.
    static KICKING: Cell<usize> = const { Cell::new(0) };
}

/// Guard that clears `KICKING`, after a panic too.
struct KickGuard;

impl Drop for KickGuard {
    fn drop(&mut self) {
        KICKING.set(0);
    }
}

impl Fabric {
    /// Announces deliveries to `port` that changed the time of its first one from `before` to `earliest`:
    /// queues the port if that is due, or wakes its driver if it is now earlier.
    pub(super) fn notify_delivery(&self, port: &Arc<PortShared>, now: Instant, before: u64, earliest: u64) {
        if self.is_virtual() || earliest == u64::MAX {
            return;
        }
        if earliest <= now.0 {
            self.ready_queue().push(port);
        } else if earliest < before
            && let Some(driver) = port.driver()
        {
            driver.wake();
        }
    }

    /// Makes the driver of `port` run a turn in the next kick, with or without input.
    pub(super) fn schedule_turn(&self, port: &Arc<PortShared>) {
        port.turn_requested.store(true, Ordering::SeqCst);
        self.ready_queue().push(port);
    }

    fn kick(&self) {
        if self.is_virtual() {
            return;
        }
        match KICKING.get() {
            0 => {}
            // The outer kick on this thread's stack handles the new input.
            running if running == self.identity() => return,
            // Called from within a turn of another fabric's kick: wakes the drivers instead of nesting their
            // turns.
            _ => return self.wake_ready(),
        }
        let mut turns = 0;
        let mut guard = None;
        while let Some(port) = self.ready_queue().pop() {
            if !port.has_work(self) {
                continue;
            }
            let Some(driver) = port.driver() else { continue };
            if turns == INLINE_TURNS {
                driver.wake();
                return self.wake_ready();
            }
            turns += 1;
            if guard.is_none() {
                KICKING.set(self.identity());
                guard = Some(KickGuard);
            }
            // A driver that runs on another thread checks again, so no input is lost if it returns false.
            if driver.try_drive() && port.has_input(self) {
                self.ready_queue().push(&port);
            }
        }
    }

    fn wake_ready(&self) {
        while let Some(port) = self.ready_queue().pop() {
            if port.has_work(self)
                && let Some(driver) = port.driver()
            {
                driver.wake();
            }
        }
    }

    /// Virtual time: advances to the earliest time at which a packet arrives or a driver's timer is due, and
    /// runs the drivers concerned once, in the order of their ports. Returns the new time, or `None` if
    /// nothing is pending (and always in real time).
    pub fn step(&self) -> Option<Instant> {
        self.step_until(Instant(u64::MAX))
    }

    /// Like [`step`](Self::step), unless the new time would be after `limit`.
    fn step_until(&self, limit: Instant) -> Option<Instant> {
        let _stepping = self.stepping()?;
        let now = self.now();
        let mut pending = Vec::new();
        for port in self.ports() {
            let arrival = match port.earliest.load(Ordering::SeqCst) {
                u64::MAX => None,
                at => Some(Instant(at)),
            };
            match port.driver() {
                Some(driver) => {
                    let at = arrival.into_iter().chain(driver.next_deadline()).min();
                    pending.extend(at.map(|at| (at.max(now), Some(driver))));
                }
                // A port without a driver is read by its owner: an arrival is pending until its time has
                // come.
                None => pending.extend(arrival.filter(|at| *at > now).map(|at| (at, None))),
            }
        }
        let auxiliaries = self.auxiliaries();
        let deadlines = auxiliaries.iter().filter_map(|auxiliary| auxiliary.next_deadline());
        pending.extend(deadlines.map(|at| (at.max(now), None)));
        let at = pending.iter().map(|(at, _)| *at).min().filter(|at| *at <= limit)?;
        self.set_time(at);
        for (due, driver) in &pending {
            if let (true, Some(driver)) = (*due == at, driver) {
                driver.try_drive();
            }
        }
        for auxiliary in &auxiliaries {
            auxiliary.try_drive();
        }
        Some(at)
    }

    /// Virtual time: steps until nothing is pending, but not beyond `limit` from now.
    pub fn run_until_idle(&self, limit: Duration) -> Outcome {
        let end = self.now() + limit;
        match self.run_to(end) {
            Some(at) => Outcome::Stuck(at),
            None if self.is_idle() => Outcome::Idle,
            None => Outcome::Limit,
        }
    }

    /// Virtual time: advances by `time` and runs everything that is due meanwhile.
    ///
    /// # Panics
    /// If a driver requests turns forever without advancing time, which is a fault of that driver.
    pub fn advance(&self, time: Duration) {
        let end = self.now() + time;
        if let Some(at) = self.run_to(end) {
            panic!("simulation is stuck at {at:?}: a driver requests turns without advancing time");
        }
        self.set_time(end);
    }

    /// Steps up to `end`; returns the instant at which the simulation got stuck, if it did.
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

    /// Virtual time: adds an auxiliary driver, which reacts to what NICs have received but has no port of its
    /// own. It runs in every step, after the NICs.
    pub fn add_auxiliary_driver(&self, auxiliary: Weak<dyn Driver>) {
        lock(&self.0.auxiliaries).push(auxiliary);
    }

    /// Returns the auxiliary drivers that still exist.
    fn auxiliaries(&self) -> Vec<Arc<dyn Driver>> {
        let mut auxiliaries = lock(&self.0.auxiliaries);
        auxiliaries.retain(|auxiliary| auxiliary.strong_count() > 0);
        auxiliaries.iter().filter_map(Weak::upgrade).collect()
    }

    fn is_idle(&self) -> bool {
        self.auxiliaries().iter().all(|auxiliary| auxiliary.next_deadline().is_none())
            && self.ports().iter().all(|port| match port.driver() {
                Some(driver) => {
                    port.earliest.load(Ordering::SeqCst) == u64::MAX && driver.next_deadline().is_none()
                }
                None => {
                    port.earliest.load(Ordering::SeqCst) <= self.now().0
                        || port.earliest.load(Ordering::SeqCst) == u64::MAX
                }
            })
    }
}

/// Result of running virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing is pending.
    Idle,
    /// The limit is reached and something is still pending.
    Limit,
    /// A driver requests turns forever at this instant, which is a fault of that driver.
    Stuck(Instant),
}

/// Handle for driving a port, reachable while the port itself is inside a NIC's lock.
#[derive(Clone)]
pub struct FabricHandle {
    fabric: Fabric,
    port: Arc<PortShared>,
}

impl FabricHandle {
    pub(super) fn new(fabric: Fabric, port: Arc<PortShared>) -> FabricHandle {
        FabricHandle { fabric, port }
    }

    /// Attaches the driver of this port's NIC, in place of the previous one.
    pub fn attach(&self, driver: Weak<dyn Driver>) {
        *lock(&self.port.driver) = Some(driver);
        if !self.fabric.is_virtual()
            && self.port.earliest.load(Ordering::SeqCst) != u64::MAX
            && let Some(driver) = self.port.driver()
        {
            driver.wake();
        }
    }

    /// Reports whether a delivery can be received now.
    pub fn has_input(&self) -> bool {
        self.port.has_input(&self.fabric)
    }

    /// Reports whether a delivery is on its way that can only be received later, when possibly no thread
    /// drives the NIC.
    pub fn has_pending_input(&self) -> bool {
        !matches!(self.port.earliest.load(Ordering::SeqCst), 0 | u64::MAX)
    }

    /// Real time: runs, on this thread, the drivers of all ports that have input, and of those that get input
    /// as a result. A driver calls it after each turn, once it has released its lock; within another kick on
    /// this thread it returns immediately, because that kick handles the new input. After 64 turns, the
    /// remaining work is left to the drivers' own threads. In virtual time it has no effect.
    pub fn kick(&self) {
        if self.port.has_input(&self.fabric) && !self.fabric.is_virtual() {
            self.fabric.ready_queue().push(&self.port);
        }
        self.fabric.kick();
    }

    /// Requests another turn for a driver that has more to send: within a kick on this thread, the driver
    /// gets it after the ports queued so far, and the caller should return. Returns false outside of a kick.
    pub fn request_turn(&self) -> bool {
        let within = KICKING.get() == self.fabric.identity();
        if within {
            self.fabric.schedule_turn(&self.port);
        }
        within
    }

    /// Returns the fabric of the port, whose time the NIC runs on.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}
