//! Driving a NIC: a thread with work drives it inline, if no other thread does; a background thread does the rest.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use parking_lot::{Mutex, MutexGuard};

use super::AttachError;
use super::clock::Clock;
use super::presence::Presence;
use super::siblings::{Parcels, Siblings};
use crate::link::fabric::{Driver, FabricHandle, Handover};
use crate::link::process::Process;
use crate::link::{ClaimError, JoinError, Link, LinkCounters};
use crate::memory::Table;
use crate::nic::{MulticastError, Nic};
use crate::transport::{AsyncEvent, Instant, TxQueue, earliest};
use crate::wire::mad::ServiceId;
use crate::wire::{Gid, Qpn};

#[cfg(test)]
mod tests;

/// How long the background thread sleeps where it found the lock taken by who looks at the link.
const BUSY: Duration = Duration::from_micros(200);

/// How long the background thread sleeps where it found the lock taken by who sends on a fabric, and only timers can
/// wait: they are no finer than that.
const REST: Duration = Duration::from_millis(1);

/// A background thread that slept for less than this looks on for so long after each packet before it sleeps again: a
/// wake-up costs both ends several microseconds, as much as a burst. Where nothing comes in that time it sleeps as
/// before.
const LINGER: Duration = Duration::from_micros(200);

/// How long an acknowledgement waits for the application's next call where the background thread is not standing back.
const HELD: Duration = Duration::from_millis(4);

/// How long the background thread holds acknowledgements of what an application waits for that polls for something else: it
/// is about to answer, and takes them along. Its peer then finds both at once, in time for its own answer to do the same:
/// so two that poll for their sends alone, and for the rest wait for memory to change, need no background thread.
const ANSWER: Duration = Duration::from_micros(30);

/// For how long a background thread does not look on where its core turned out to be somebody else's.
const CROWDED: Duration = Duration::from_millis(100);

/// To send this much takes long enough for an application that is at it to pass for absent.
const LONG_TURN: usize = 128 << 10;

/// How long a sibling whose inbox is full is given before it is looked at again.
const FULL_FOR: Duration = Duration::from_micros(200);

/// An application that polls may answer what it finds: acknowledgements of up to so many packets wait for its
/// next call, to leave with the answer. A longer run is a stream, whose sender waits for them.
const HOLD_PACKETS: usize = 4;

/// For so many turns that bring packets, timers that have expired wait for what else the link holds: whoever was
/// kept from the processor finds the answers there that it would ask for again.
const LATE_TURNS: u32 = 64;

/// Turns that one call drives inline while others keep ringing: then the background thread goes on.
const INLINE_TURNS: usize = 64;

thread_local! {
    /// Whether this is a shard's background thread.
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// A NIC, its link, and the lock around both.
pub(super) struct Shard {
    engine: Mutex<Engine>,
    pub clock: Clock,
    fabric: Option<FabricHandle>,
    /// The link is a port of the fabric with nothing around it that is to see what arrives.
    is_bare: bool,
    /// Set by whoever wanted to drive and found the lock taken; its holder looks before it goes.
    doorbell: AtomicBool,
    /// How many wait for the lock who would not get it from a thread that takes it again at once.
    wanted: AtomicU32,
    /// What comes is answered by an application that does not poll for it.
    answers: AtomicBool,
    /// When an application thread last polled, in the clock's nanoseconds.
    polled: AtomicU64,
    /// Until when the background thread sleeps; 0 while it is awake, or for a moment keeps off for who is at the NIC and
    /// thereby serves the timers.
    sleeping_until: AtomicU64,
    siblings: Siblings,
    stopping: AtomicBool,
    /// The process that the link belongs to: a child has the descriptors too, and would take its parent's packets.
    process: Process,
    /// Duplicates of the link's descriptors, to sleep on without the lock.
    link_fds: Vec<OwnedFd>,
    /// A duplicate of the descriptor of its port's state, for the background thread.
    state_fd: Mutex<Option<OwnedFd>>,
}

pub(super) struct Engine {
    pub nic: Nic,
    link: Attachment,
    tx: TxQueue,
    /// The regions and windows, which all shards share: there to read with the lock of any, and to change with the locks
    /// of all ([`Shards::change_memory`](super::shards::Shards::change_memory)).
    pub memory: Arc<Table>,
    /// What siblings have handed over, while it is dealt with.
    parcels: Parcels,
    /// Turns since a timer expired that was not acted on.
    late: u32,
}

/// For how long acknowledgements may wait for something to travel with.
#[derive(Clone, Copy)]
enum Hold {
    No,
    /// For one turn.
    Once,
    /// For something to travel with.
    Longer,
}

/// The link, or what is left of it.
enum Attachment {
    There(Box<dyn Link>),
    Gone { why: Arc<io::Error>, counters: LinkCounters },
}

impl Attachment {
    fn get(&mut self) -> Option<&mut dyn Link> {
        match self {
            Attachment::There(link) => Some(&mut **link),
            Attachment::Gone { .. } => None,
        }
    }

    fn is_there(&self) -> bool {
        matches!(self, Attachment::There(_))
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Attachment::There(link) => link.next_deadline(),
            Attachment::Gone { .. } => None,
        }
    }

    fn state(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        match self {
            Attachment::There(link) => (link.counters(), None),
            Attachment::Gone { why, counters } => (*counters, Some(why.clone())),
        }
    }
}

impl Engine {
    /// The link is gone for good, and with it the device.
    fn lose_link(&mut self, why: Arc<io::Error>, now: Instant) {
        let Attachment::There(link) = &self.link else { return };
        self.link = Attachment::Gone { counters: link.counters(), why };
        self.tx.clear();
        self.nic.fail(now, &self.memory, &mut self.tx);
    }
}

impl Engine {
    /// Attaches a queue pair to a multicast group, which the link joins if it is the first there.
    pub fn attach_mcast(&mut self, now: Instant, qpn: Qpn, gid: Gid) -> Result<(), AttachError> {
        let first =
            self.nic.attach_mcast(qpn, gid).expect("the NIC has the queue pair as long as its handle")?;
        let group = gid.ip();
        let join = |link: &mut Attachment| match link.get() {
            Some(link) => link.join(now, group),
            None => Err(JoinError::System { group, source: Errno::ENODEV.into() }),
        };
        if first && let Err(e) = join(&mut self.link) {
            self.nic.detach_mcast(qpn, gid)?;
            return Err(e.into());
        }
        Ok(())
    }

    /// Detaches it; with the last one the link leaves the group.
    pub fn detach_mcast(&mut self, qpn: Qpn, gid: Gid) -> Result<(), MulticastError> {
        if self.nic.detach_mcast(qpn, gid)?
            && let Some(link) = self.link.get()
        {
            link.leave(gid.ip());
        }
        Ok(())
    }

    /// Has requests for a service come to the link.
    pub fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
        match self.link.get() {
            Some(link) => link.claim(service, address),
            None => Err(ClaimError::System { service, source: Errno::ENODEV.into() }),
        }
    }

    /// Ends such a claim.
    pub fn release(&mut self, service: ServiceId, address: Option<IpAddr>) {
        if let Some(link) = self.link.get() {
            link.release(service, address);
        }
    }

    /// Destroys a queue pair, which leaves its multicast groups.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        for gid in self.nic.detach_all(qpn) {
            if let Some(link) = self.link.get() {
                link.leave(gid.ip());
            }
        }
        self.nic.destroy_qp(qpn);
    }
}

impl Shard {
    pub fn new(
        nic: Nic,
        link: Box<dyn Link>,
        siblings: Siblings,
        memory: Arc<Table>,
        clock: Clock,
        fabric: Option<FabricHandle>,
    ) -> io::Result<Shard> {
        let link_fds = link.fds().into_iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>()?;
        // One tells for all.
        let state_fd = link.state_fd().filter(|_| siblings.id().is_first());
        let state_fd = state_fd.map(|fd| fd.try_clone_to_owned()).transpose()?;
        let limits = link.info().burst;
        let is_bare = link.only_copies();
        let mut tx = if is_bare { TxQueue::unsealed(limits) } else { TxQueue::new(limits) };
        tx.set_flush_icrc_twice(nic.sends_flush_icrc_twice());
        Ok(Shard {
            engine: Mutex::new(Engine {
                nic,
                link: Attachment::There(link),
                tx,
                memory,
                parcels: Parcels::default(),
                late: 0,
            }),
            clock,
            fabric,
            is_bare,
            doorbell: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            answers: AtomicBool::new(false),
            polled: AtomicU64::new(0),
            sleeping_until: AtomicU64::new(0),
            siblings,
            stopping: AtomicBool::new(false),
            process: Process::current(),
            link_fds,
            state_fd: Mutex::new(state_fd),
        })
    }

    /// Its place among those of its NIC.
    pub fn index(&self) -> usize {
        self.siblings.id().index() as usize
    }

    /// The fabric, if its time is virtual: then only the fabric drives.
    pub fn virtual_fabric(&self) -> Option<&FabricHandle> {
        self.fabric.as_ref().filter(|f| f.fabric().is_virtual())
    }

    /// An application thread is at it: where one polls, that is as good. A long turn would pass for its absence, and
    /// the background thread take the data to another core's cache.
    fn note_presence(&self, now: Instant) {
        let polled = self.polled.load(Ordering::Relaxed);
        if polled != 0 && !IN_BACKGROUND.get() {
            // Unless somebody has just said that nobody polls any more.
            let _ = self.polled.compare_exchange(polled, now.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Runs `f` with the NIC, sends what came of it, and lets go.
    pub fn with<R>(&self, f: impl FnOnce(&mut Nic, Instant, &Table, &mut TxQueue) -> R) -> R {
        let now = self.clock.now();
        let mut engine = self.engine.lock();
        let Engine { nic, tx, memory, .. } = &mut *engine;
        let result = f(nic, now, memory, tx);
        self.send(&mut engine, now, false);
        self.release(engine, now);
        result
    }

    /// [`with`](Self::with) for posting requests of a queue pair. One that has a lot in flight gathers more: a call of the system
    /// for several costs less than one for each.
    pub fn post<R>(&self, qpn: Qpn, f: impl FnOnce(&mut Nic, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut engine = self.engine.lock();
        let result = f(&mut engine.nic, now);
        if self.fabric.is_none() && engine.nic.may_gather(qpn) {
            self.note_deadline(&engine, now);
            self.let_go(engine);
            self.go_on(false);
        } else {
            self.send(&mut engine, now, false);
            self.release(engine, now);
        }
        result
    }

    /// Sends all acknowledgements that wait for company.
    pub fn acknowledge(&self, patience: Duration) {
        if let Some(mut engine) = self.engine.try_lock_for(patience) {
            let now = self.clock.now();
            self.send(&mut engine, now, false);
            self.release(engine, now);
        }
    }

    /// The NIC's counters, unless another thread holds its lock for longer than this.
    pub fn counters_within(&self, patience: Duration) -> Option<crate::transport::Counters> {
        let engine = self.engine.try_lock_for(patience)?;
        let counters = *engine.nic.counters();
        self.release(engine, self.clock.now());
        Some(counters)
    }

    /// Runs `f` with the NIC and its link; nothing is sent.
    pub fn hold<R>(&self, f: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut engine = self.engine.lock();
        let result = f(&mut engine, now);
        self.release(engine, now);
        result
    }

    /// The engine, for whoever gives it back by [`unlock`](Self::unlock), and wants it even while somebody polls
    /// without a pause: such a one is asked to hand it over.
    pub fn lock_soon(&self) -> MutexGuard<'_, Engine> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let engine = self.engine.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// Lets go of the engine, to who wants it soon if there is one.
    fn let_go(&self, engine: MutexGuard<'_, Engine>) {
        match self.wanted.load(Ordering::Relaxed) {
            0 => drop(engine),
            _ => MutexGuard::unlock_fair(engine),
        }
    }

    /// Runs `f` with the NIC; nothing is sent.
    pub fn look<R>(&self, f: impl FnOnce(&mut Nic) -> R) -> R {
        self.hold(|engine, _| f(&mut engine.nic))
    }

    /// What the link dropped, and why it is gone if it is.
    pub fn link_state(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        let engine = self.engine.lock();
        let state = engine.link.state();
        self.release(engine, self.clock.now());
        state
    }

    /// For an application that polls: one look at the link on this thread.
    pub fn poll(&self) {
        if self.virtual_fabric().is_none() {
            let now = self.clock.now();
            self.polled.store(now.0, Ordering::Relaxed);
            self.drive(now, true);
        }
    }

    /// [`poll`](Self::poll) for an application that will not poll again, so that the background thread goes on looking.
    pub fn look_once(&self) {
        if self.virtual_fabric().is_none() {
            self.drive(self.clock.now(), false);
        }
    }

    /// For an application that is about to wait: the background thread has to look from now on.
    pub fn stop_polling(&self) {
        self.polled.store(0, Ordering::Relaxed);
        self.wake_thread();
    }

    /// Runs turns until nobody rings any more. False if someone else is running them.
    fn drive(&self, mut now: Instant, hold: bool) -> bool {
        for _ in 0..INLINE_TURNS {
            // Who polls looks again soon: ringing each time would keep the holder at it for nothing.
            let engine = if hold { self.engine.try_lock() } else { self.try_engine() };
            let Some(mut engine) = engine else { return false };
            self.answer_doorbell();
            self.note_presence(now);
            self.turn(&mut engine, now, if hold { Hold::Once } else { Hold::No });
            let more = self.unlock(engine, now);
            if let Some(fabric) = &self.fabric {
                fabric.kick();
                // The peer takes what there is before more follows.
                if more && fabric.wants_turn() {
                    return true;
                }
            }
            if !more && !self.was_rung() {
                return true;
            }
            now = self.clock.now();
        }
        self.wake_thread();
        true
    }

    /// The engine, or word to whoever has it that there is more to do.
    fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        self.engine.try_lock().or_else(|| {
            self.doorbell.store(true, Ordering::SeqCst);
            // Its holder may have looked just before.
            fence(Ordering::SeqCst);
            self.engine.try_lock()
        })
    }

    /// Resets the doorbell: the turn that follows serves all who rang until now.
    fn answer_doorbell(&self) {
        if self.doorbell.load(Ordering::SeqCst) {
            self.doorbell.store(false, Ordering::SeqCst);
        }
    }

    /// Whether someone found the lock taken; for its holder to ask once it has let go.
    fn was_rung(&self) -> bool {
        // Against the ringer's own order: it sets the bell, then tries the lock again.
        fence(Ordering::SeqCst);
        self.doorbell.load(Ordering::SeqCst)
    }

    /// Lets go of the engine, and looks whether someone rang meanwhile.
    fn release(&self, engine: MutexGuard<'_, Engine>, now: Instant) {
        let more = self.unlock(engine, now);
        self.go_on(more);
    }

    /// Lets go of the engine for who has to [`go_on`](Self::go_on) later; whether there is more to send.
    pub fn unlock(&self, engine: MutexGuard<'_, Engine>, now: Instant) -> bool {
        self.note_deadline(&engine, now);
        let more = engine.nic.wants_to_transmit_urgently();
        self.let_go(engine);
        more
    }

    /// Does what whoever had the engine has left to do, and what others rang for meanwhile.
    pub fn go_on(&self, more: bool) {
        if self.virtual_fabric().is_some() {
            return;
        }
        if more || self.was_rung() {
            self.drive(self.clock.now(), false);
        } else if let Some(fabric) = &self.fabric {
            fabric.kick();
        }
    }

    /// Receives what is there, acts on timers, sends. Whether anything was received.
    fn turn(&self, engine: &mut Engine, now: Instant, hold: Hold) -> bool {
        if let Some(why) = self.siblings.loss().filter(|_| engine.link.is_there()) {
            engine.lose_link(why.clone(), now);
        }
        let Engine { nic, link, tx, memory, parcels, .. } = engine;
        let waited = nic.has_held_acknowledgements();
        let collected =
            self.siblings.collect(parcels, |part, first| nic.handle_part(now, part, first, memory, tx));
        let received = match link.get() {
            Some(link) if !self.siblings.are_full() && self.process.is_current() => {
                link.receive(now, &mut |burst| {
                    let handed_over = self
                        .siblings
                        .sort(&burst, |part, first| nic.handle_part(now, part, first, memory, tx));
                    nic.count_handed_over(handed_over);
                })
            }
            _ => Ok(0),
        };
        let due = nic.next_deadline().is_some_and(|at| at <= now);
        let nothing = collected == 0 && matches!(received, Ok(0));
        if nothing && !due && !nic.wants_to_transmit() && tx.is_empty() {
            return false;
        }
        let received = collected
            + received.unwrap_or_else(|e| {
                self.lose_link(engine, e, now);
                0
            });
        let Engine { nic, tx, memory, late, .. } = engine;
        let hold = match hold {
            Hold::No => false,
            Hold::Once if self.answers.load(Ordering::Relaxed) => !waited,
            Hold::Once => !waited && received <= HOLD_PACKETS,
            Hold::Longer => true,
        };
        if due {
            *late += 1;
            if received == 0 || *late > LATE_TURNS {
                *late = 0;
                nic.handle_timeouts(now, memory, tx);
            }
        }
        self.send(engine, now, hold);
        received > 0
    }

    fn send(&self, engine: &mut Engine, now: Instant, hold: bool) {
        let Engine { nic, link, tx, memory, .. } = engine;
        if hold {
            nic.transmit_urgent(now, memory, tx);
        } else {
            nic.transmit(now, memory, tx);
        }
        let mut lost = None;
        if !tx.is_empty() {
            if self.process.is_current()
                && let Some(link) = link.get()
            {
                lost = link.transmit(now, tx).err();
            }
            if tx.bytes() >= LONG_TURN {
                self.note_presence(self.clock.now());
            }
            tx.clear();
        }
        nic.emitted(now);
        if let Some(e) = lost {
            self.lose_link(engine, e, now);
        }
    }

    /// The link is gone, and with it those of the siblings, which are the same socket address or interface.
    fn lose_link(&self, engine: &mut Engine, why: io::Error, now: Instant) {
        let why = Arc::new(why);
        engine.lose_link(why.clone(), now);
        self.siblings.lose_link(why);
    }

    /// Wakes the background thread if the NIC now waits for something earlier than it knows of. Called under
    /// the lock, as the thread notes its own sleep.
    fn note_deadline(&self, engine: &Engine, now: Instant) {
        let sleeping = self.sleeping_until.load(Ordering::SeqCst);
        if sleeping != 0 && self.deadline(engine, now).is_some_and(|at| at.0 < sleeping) {
            self.wake_thread();
        }
    }

    fn deadline(&self, engine: &Engine, now: Instant) -> Option<Instant> {
        // Held acknowledgements leave with the application's next call, or with the background thread.
        let held = engine.nic.has_held_acknowledgements().then(|| now + HELD);
        earliest([engine.nic.next_deadline(), engine.link.next_deadline(), held])
    }

    fn wake_thread(&self) {
        // Only a full counter could refuse, and then the thread has been woken already.
        let _ = self.siblings.wake().write(1);
    }

    /// Ends [`run`](Self::run).
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake_thread();
    }

    /// The background thread: drives when nobody polls, sleeps when there is nothing to do. On a fabric whoever sends to a
    /// NIC drives it, and the thread does what is left and what comes later: two threads that take turns would move all
    /// data from core to core.
    pub fn run(&self) {
        let _guard = OnPanic(self);
        IN_BACKGROUND.set(true);
        let state_fd = self.state_fd.lock().take();
        let mut bed = Bed::new(self.siblings.wake(), state_fd.as_ref(), &self.link_fds);
        let (mut lingers, mut heard, mut crowded_until) = (false, Instant(0), Instant(0));
        let (mut presence, mut release_at) = (Presence::default(), None);
        while !self.stopping.load(Ordering::SeqCst) {
            let now = self.clock.now();
            let polled = Instant(self.polled.load(Ordering::Relaxed));
            if polled.0 != 0
                && let Some(rest) = presence.rest(now, polled)
            {
                self.sleep(now, Some(now + rest), false, &mut bed);
                continue;
            }
            let must_look = self.fabric.as_ref().is_none_or(FabricHandle::awaits_input);
            let engine = match polled.0 {
                0 if must_look => Some(self.engine.lock()),
                _ if must_look && presence.is_distrusted(now) => Some(self.engine.lock()),
                _ => self.try_engine(),
            };
            let Some(mut engine) = engine else {
                // Who has it does what there is to do now.
                let rest = if must_look { BUSY } else { REST };
                self.sleep(now, Some(now + rest), false, &mut bed);
                continue;
            };
            self.answer_doorbell();
            let now = self.clock.now();
            let is_late = release_at.is_some_and(|at| now >= at);
            let answers = presence.is_distrusted(now);
            self.answers.store(answers, Ordering::Relaxed);
            let hold = if answers && !is_late { Hold::Longer } else { Hold::No };
            let received = self.turn(&mut engine, now, hold);
            let holds = engine.nic.has_held_acknowledgements();
            release_at = holds.then(|| release_at.unwrap_or(now + ANSWER));
            // An application that says that it will wait has left nothing lying about.
            presence.missed(now, received && polled.0 != 0);
            if received {
                heard = now;
            }
            let more = received && must_look || engine.nic.wants_to_transmit_urgently();
            // A sibling has so much to do that the link is not read: it will be, when that one has had a moment.
            let full = self.siblings.are_full();
            let until = match more {
                true => Some(Instant(1)),
                false => earliest([self.deadline(&engine, now), full.then(|| now + FULL_FOR), release_at]),
            };
            // Noted under the lock: whoever arms an earlier timer from now on sees it, and wakes us.
            self.sleeping_until.store(until.map_or(u64::MAX, |at| at.0), Ordering::SeqCst);
            // A descriptor that is gone for good may be readable for ever.
            let watch = engine.link.is_there() && !full;
            self.let_go(engine);
            if let Some(fabric) = &self.fabric {
                fabric.kick();
            }
            if more || self.was_rung() {
                continue;
            }
            let now = self.clock.now();
            if lingers && watch && now.since(heard) < LINGER {
                std::thread::yield_now();
                let after = self.clock.now();
                if after.since(now) > LINGER {
                    // Somebody spins on this core, and each time has it for a whole slice of the scheduler's; who sleeps is
                    // let in when there is something.
                    crowded_until = after + CROWDED;
                    lingers = false;
                }
                continue;
            }
            self.sleep(now, until, watch, &mut bed);
            let after = self.clock.now();
            lingers = must_look && after.since(now) < LINGER && after >= crowded_until;
        }
    }

    /// Sleeps until `until`, a wake-up, news of the port's state, or, with `watch`, until the link is readable.
    fn sleep(&self, now: Instant, until: Option<Instant>, watch: bool, bed: &mut Bed<'_>) {
        let timeout = until.map(|at| TimeSpec::from(at.since(now)));
        let result = ppoll(bed.fds(watch), timeout, None);
        let news = bed.has_news();
        self.sleeping_until.store(0, Ordering::SeqCst);
        match result {
            Ok(_) | Err(Errno::EINTR) => {}
            // poll fails for want of memory only; a short rest is better than a loop.
            Err(_) => std::thread::sleep(REST),
        }
        // Empties the counter; it may not have been the cause.
        let _ = self.siblings.wake().read();
        if news && !self.note_port_state() {
            // Nobody reads it any more.
            bed.forget_state();
        }
    }

    /// Asks the link whether its port is up. False if the link is gone.
    fn note_port_state(&self) -> bool {
        let mut engine = self.engine.lock();
        let Engine { nic, link, .. } = &mut *engine;
        let there = link.get().map(|link| nic.set_port_up(link.is_up())).is_some();
        self.release(engine, self.clock.now());
        there
    }
}

/// What a background thread sleeps on: the wake-up, the port's state, and behind them the link.
struct Bed<'a> {
    fds: Vec<PollFd<'a>>,
    wake: BorrowedFd<'a>,
    has_state: bool,
}

impl<'a> Bed<'a> {
    fn new(wake: &'a impl AsFd, state: Option<&'a OwnedFd>, link: &'a [OwnedFd]) -> Bed<'a> {
        let wake = wake.as_fd();
        // In place of a state that there is not, the wake-up once more.
        let first = [wake, state.map_or(wake, AsFd::as_fd)].into_iter();
        let fds = first.chain(link.iter().map(AsFd::as_fd)).map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        Bed { fds: fds.collect(), wake, has_state: state.is_some() }
    }

    fn fds(&mut self, link: bool) -> &mut [PollFd<'a>] {
        let count = if link { self.fds.len() } else { 2 };
        &mut self.fds[..count]
    }

    /// Whether the port's state may have changed.
    fn has_news(&self) -> bool {
        self.has_state && self.fds[1].any() == Some(true)
    }

    fn forget_state(&mut self) {
        self.fds[1] = PollFd::new(self.wake, PollFlags::POLLIN);
        self.has_state = false;
    }
}

/// Nobody drives any more when the background thread panics, in a link: then the device is lost.
struct OnPanic<'a>(&'a Shard);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shard = self.0;
            let mut engine = shard.engine.lock();
            let why = io::Error::other("the NIC's thread has panicked");
            shard.lose_link(&mut engine, why, shard.clock.now());
        }
    }
}

impl Driver for Shard {
    fn port_up(&self, up: bool) {
        self.look(|nic| nic.set_port_up(up));
    }

    fn addresses_changed(&self, addresses: &[IpAddr]) {
        let gids: Vec<Gid> = addresses.iter().map(|ip| Gid::from(*ip)).collect();
        self.look(|nic| nic.set_gids(&gids));
    }

    fn device_lost(&self, why: io::Error) {
        let now = self.clock.now();
        let mut engine = self.engine.lock();
        self.lose_link(&mut engine, why, now);
        self.send(&mut engine, now, false);
        self.release(engine, now);
    }

    fn inject_event(&self, event: AsyncEvent) -> bool {
        self.with(|nic, now, memory, tx| nic.inject_event(now, event, memory, tx))
    }

    fn try_drive(&self) -> bool {
        self.drive(self.clock.now(), false)
    }

    fn try_take(&self, now: Instant, give: &mut Handover<'_>) -> bool {
        if !self.is_bare {
            return false;
        }
        // Without waiting, as the caller holds the lock of its own NIC.
        let Some(mut engine) = self.engine.try_lock() else { return false };
        let Engine { nic, link, tx, memory, .. } = &mut *engine;
        let there = link.is_there();
        if there {
            give(&mut |burst| nic.handle_burst(now, &burst, memory, tx));
        }
        there
    }

    fn wake(&self) {
        self.wake_thread();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let engine = self.engine.lock();
        if engine.nic.wants_to_transmit_urgently() {
            Some(Instant(0))
        } else {
            self.deadline(&engine, self.clock.now())
        }
    }
}
