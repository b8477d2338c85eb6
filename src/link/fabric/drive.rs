//! Driving the NICs behind the ports: in real time by the thread that sent, in virtual time by the fabric.

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

/// Turns that one kick runs on the caller's thread. Two NICs that answer each other for ever must not
/// hold it: what is left is woken, to go on on threads of its own.
const INLINE_TURNS: usize = 64;

/// Steps at one instant of virtual time after which a simulation counts as stuck.
const STEPS_PER_INSTANT: u32 = 1_000_000;

/// Hands bursts to who takes them, one after the other.
pub type Handover<'a> = dyn FnMut(&mut dyn FnMut(RxBurst<'_>)) + 'a;

/// What runs a NIC: takes input from its port, serves timers, sends.
pub trait Driver: Send + Sync {
    /// Tries to run one turn. False if someone else is running it, who then looks again for what came
    /// meanwhile before it is done.
    fn try_drive(&self) -> bool;

    /// Takes packets straight from the sender, past its port, if nobody else runs it now and nothing stands between the
    /// port and it: `give` hands them over. It is asked for from within another NIC's turn, and must not wait. What it
    /// has to answer it sends in a turn that the fabric asks it for. False if it took nothing.
    fn try_take(&self, _now: Instant, _give: &mut Handover<'_>) -> bool {
        false
    }

    /// Has a thread of the driver's own run a turn soon. It is called from within other NICs' turns: it
    /// must not wait for any lock that a turn holds.
    fn wake(&self);

    /// The earliest instant at which it wants to run without input.
    fn next_deadline(&self) -> Option<Instant>;

    /// The port was plugged in, or out. Called on the thread of whoever did that.
    fn port_up(&self, _up: bool) {}

    /// The device is lost for the reason `why`, as when an adapter is unplugged. Called on the thread of whoever did that.
    fn device_lost(&self, _why: io::Error) {}

    /// Raises an asynchronous event of the NIC, with the effect that it reports. False if the NIC has no such object.
    fn inject_event(&self, _event: AsyncEvent) -> bool {
        false
    }

    /// The port has these addresses from now on. Called on the thread of whoever did that.
    fn addresses_changed(&self, _addresses: &[IpAddr]) {}
}

/// The ports that got input and whose drivers have not been asked to look since.
#[derive(Default)]
pub(super) struct Ready {
    ports: Mutex<VecDeque<Arc<PortShared>>>,
    /// Their number, to be read without the lock.
    len: AtomicUsize,
}

impl Ready {
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
        // Before the driver looks: what comes from now on puts the port in again.
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
    /// The fabric whose kick runs on this thread, by address; 0 for none.
    static KICKING: Cell<usize> = const { Cell::new(0) };
}

/// Resets the mark of a running kick, by panic too.
struct Kicking;

impl Drop for Kicking {
    fn drop(&mut self) {
        KICKING.set(0);
    }
}

impl Fabric {
    /// Tells of deliveries to `port` that moved its earliest from `before` to `earliest`.
    pub(super) fn announce(&self, port: &Arc<PortShared>, now: Instant, before: u64, earliest: u64) {
        if self.is_virtual() || earliest == u64::MAX {
            return;
        }
        if earliest <= now.0 {
            self.ready().push(port);
        } else if earliest < before
            && let Some(driver) = port.driver()
        {
            driver.wake();
        }
    }

    /// Has the driver of `port` run a turn at the next kick, input or not.
    pub(super) fn have_run(&self, port: &Arc<PortShared>) {
        port.again.store(true, Ordering::SeqCst);
        self.ready().push(port);
    }

    fn kick(&self) {
        if self.is_virtual() {
            return;
        }
        match KICKING.get() {
            0 => {}
            // The loop further down this stack takes up the new input.
            running if running == self.identity() => return,
            // A NIC of another fabric acts from within a turn of this one: no room to run here.
            _ => return self.wake_ready(),
        }
        let mut turns = 0;
        let mut kicking = None;
        while let Some(port) = self.ready().pop() {
            if !port.has_work(self) {
                continue;
            }
            let Some(driver) = port.driver() else { continue };
            if turns == INLINE_TURNS {
                driver.wake();
                return self.wake_ready();
            }
            turns += 1;
            if kicking.is_none() {
                KICKING.set(self.identity());
                kicking = Some(Kicking);
            }
            // Whoever else runs it looks again, so a refusal leaves nothing behind.
            if driver.try_drive() && port.has_input(self) {
                self.ready().push(&port);
            }
        }
    }

    fn wake_ready(&self) {
        while let Some(port) = self.ready().pop() {
            if port.has_work(self)
                && let Some(driver) = port.driver()
            {
                driver.wake();
            }
        }
    }

    /// Virtual time: goes to the earliest instant at which a packet arrives or a driver's timer is due,
    /// and runs the drivers concerned once, in the order of their ports. Returns the new time, or `None`
    /// when nothing is pending (and always in real time).
    pub fn step(&self) -> Option<Instant> {
        self.step_until(Instant(u64::MAX))
    }

    /// As [`step`](Self::step), if that is not after `limit`.
    fn step_until(&self, limit: Instant) -> Option<Instant> {
        let _one_at_a_time = self.stepping()?;
        let now = self.now();
        let mut wanted = Vec::new();
        for port in self.ports() {
            let arrival = match port.earliest.load(Ordering::SeqCst) {
                u64::MAX => None,
                at => Some(Instant(at)),
            };
            match port.driver() {
                Some(driver) => {
                    let at = arrival.into_iter().chain(driver.next_deadline()).min();
                    wanted.extend(at.map(|at| (at.max(now), Some(driver))));
                }
                // Read by hand: an arrival counts until its time has come.
                None => wanted.extend(arrival.filter(|at| *at > now).map(|at| (at, None))),
            }
        }
        let companions = self.companions();
        let deadlines = companions.iter().filter_map(|companion| companion.next_deadline());
        wanted.extend(deadlines.map(|at| (at.max(now), None)));
        let at = wanted.iter().map(|(at, _)| *at).min().filter(|at| *at <= limit)?;
        self.set_time(at);
        for (due, driver) in &wanted {
            if let (true, Some(driver)) = (*due == at, driver) {
                driver.try_drive();
            }
        }
        for companion in &companions {
            companion.try_drive();
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

    /// Virtual time: lets `time` pass, with all that happens meanwhile.
    ///
    /// # Panics
    /// If a driver asks to run over and over without time passing: a fault of that driver.
    pub fn advance(&self, time: Duration) {
        let end = self.now() + time;
        if let Some(at) = self.run_to(end) {
            panic!("a driver keeps asking to run at {at:?} and never gets done");
        }
        self.set_time(end);
    }

    /// Steps up to `end`; returns the instant at which it got stuck, if it did.
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

    /// Virtual time: has what is driven by what NICs have received, and has no port of its own, run with every step, behind
    /// the NICs.
    pub fn accompany(&self, companion: Weak<dyn Driver>) {
        lock(&self.0.companions).push(companion);
    }

    /// Those that are still there.
    fn companions(&self) -> Vec<Arc<dyn Driver>> {
        let mut companions = lock(&self.0.companions);
        companions.retain(|companion| companion.strong_count() > 0);
        companions.iter().filter_map(Weak::upgrade).collect()
    }

    fn is_idle(&self) -> bool {
        self.companions().iter().all(|companion| companion.next_deadline().is_none())
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

/// How a run of virtual time ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing is pending.
    Idle,
    /// Something is, after the limit.
    Limit,
    /// A driver keeps asking to run at this instant, and time does not pass: a fault of that driver.
    Stuck(Instant),
}

/// What drives a port, reachable while the port itself is inside a NIC's lock.
#[derive(Clone)]
pub struct FabricHandle {
    fabric: Fabric,
    port: Arc<PortShared>,
}

impl FabricHandle {
    pub(super) fn new(fabric: Fabric, port: Arc<PortShared>) -> FabricHandle {
        FabricHandle { fabric, port }
    }

    /// Names the driver of this port's NIC; it replaces the one before.
    pub fn attach(&self, driver: Weak<dyn Driver>) {
        *lock(&self.port.driver) = Some(driver);
        if !self.fabric.is_virtual()
            && self.port.earliest.load(Ordering::SeqCst) != u64::MAX
            && let Some(driver) = self.port.driver()
        {
            driver.wake();
        }
    }

    /// Whether something can be received now.
    pub fn has_input(&self) -> bool {
        self.port.has_input(&self.fabric)
    }

    /// Whether something is on its way that can only be received later, when nobody may be there to drive.
    pub fn awaits_input(&self) -> bool {
        !matches!(self.port.earliest.load(Ordering::SeqCst), 0 | u64::MAX)
    }

    /// Real time: runs, on this thread, the drivers of all ports that have input, and of those that get
    /// some thereby. For a driver to call after each turn, once it has let go of its lock; from within
    /// another kick on this thread it returns at once, as that one goes on with what is new. It leaves
    /// what is not done after 64 turns to the drivers' own threads. In virtual time it does nothing.
    pub fn kick(&self) {
        if self.port.has_input(&self.fabric) && !self.fabric.is_virtual() {
            self.fabric.ready().push(&self.port);
        }
        self.fabric.kick();
    }

    /// For a driver with more to send: within a kick on this thread it has another turn, once those that have input
    /// until now have had theirs, and the caller is to return. False outside.
    pub fn wants_turn(&self) -> bool {
        let within = KICKING.get() == self.fabric.identity();
        if within {
            self.fabric.have_run(&self.port);
        }
        within
    }

    /// The fabric of the port, whose time its NIC runs on.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}
