//! Driver of a NIC shard: an application thread with work drives it inline unless another thread does
//! already, and a background thread does the rest.

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

/// Time for which the background thread sleeps after it found the lock taken, while the link has to be
/// polled.
const BUSY: Duration = Duration::from_micros(200);

/// Time for which the background thread sleeps after it found the lock taken, while only timers need it: on a
/// fabric with no delayed packets under way the sending thread drives the receiving NIC. The timers are no
/// finer than this.
const REST: Duration = Duration::from_millis(1);

/// Idle timeout: time for which the background thread keeps polling the link after each packet before it
/// sleeps again, provided that its last sleep was shorter than this. A wake-up costs both ends several
/// microseconds, as much as a burst. When no packet arrives in this time, the thread sleeps as before.
const LINGER: Duration = Duration::from_micros(200);

/// Time for which acknowledgements are delayed, waiting for the application's next call, before the
/// background thread sends them, while it is not backing off for a polling application.
const HELD: Duration = Duration::from_millis(4);

/// Time for which the background thread delays acknowledgements while the application is distrusted, that is,
/// polls for something other than received packets. Such an application is about to respond, and its response
/// carries the acknowledgements. The peer then receives both at once, in time for its own response to do the
/// same: two applications that poll a completion queue only for their sends, and otherwise wait for memory to
/// change, need no background thread.
const ANSWER: Duration = Duration::from_micros(30);

/// Time for which the background thread does not busy-poll after it found that another thread occupies its
/// core.
const CROWDED: Duration = Duration::from_millis(100);

/// Number of bytes sent in one turn from which on the turn takes long enough that the application thread in
/// it would be mistaken for absent.
const LONG_TURN: usize = 128 << 10;

/// Time until a shard polls its link again after it found the inbox of another shard full.
const FULL_FOR: Duration = Duration::from_micros(200);

/// Largest number of received packets whose acknowledgements are delayed until the application's next call. A
/// polling application may respond to what it finds, and the acknowledgements then travel with the response.
/// A longer burst is a stream, whose sender waits for the acknowledgements.
const HOLD_PACKETS: usize = 4;

/// Maximum number of turns for which expired timers are deferred while each turn brings packets. After a
/// thread was descheduled, the link already holds the responses whose absence would otherwise cause a
/// retransmission.
const LATE_TURNS: u32 = 64;

/// Number of turns that one call drives inline while other threads keep ringing the doorbell; after that the
/// background thread continues.
const INLINE_TURNS: usize = 64;

thread_local! {
    /// Whether the current thread is the background thread of a shard.
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// A shard of a NIC: the engine and its link behind one lock, and the state with which threads agree on who
/// drives it.
pub(super) struct Shard {
    engine: Mutex<Engine>,
    pub clock: Clock,
    fabric: Option<FabricHandle>,
    /// Whether the link is a bare port of the fabric, without middleware that has to see arriving packets.
    is_bare: bool,
    /// Set by a thread that wanted to drive and found the lock taken; the holder checks it after releasing
    /// the lock.
    doorbell: AtomicBool,
    /// Number of threads that wait for the lock and need a fair release, because another thread may take it
    /// again at once.
    wanted: AtomicU32,
    /// Whether the application responds to received packets without polling for them, as determined by the
    /// background thread ([`Presence::is_distrusted`]).
    answers: AtomicBool,
    /// Time at which an application thread last polled, in nanoseconds of the clock; 0 once the application
    /// announced that it waits.
    polled: AtomicU64,
    /// Time until which the background thread sleeps, in nanoseconds of the clock; 0 while it is awake or
    /// while it yields to a thread that is using the NIC, which then serves the timers.
    sleeping_until: AtomicU64,
    siblings: Siblings,
    stopping: AtomicBool,
    /// The process that the link belongs to. A child of fork has the descriptors too, and would take packets
    /// from its parent.
    process: Process,
    /// Duplicates of the link's descriptors, so that the background thread can sleep on them without the
    /// lock.
    link_fds: Vec<OwnedFd>,
    /// A duplicate of the link's port state descriptor, for the background thread.
    state_fd: Mutex<Option<OwnedFd>>,
}

/// The part of a shard that its lock protects.
pub(super) struct Engine {
    pub nic: Nic,
    link: Attachment,
    tx: TxQueue,
    /// The table of regions and windows, which all shards share: it may be read with the lock of any shard,
    /// and is changed with the locks of all
    /// ([`Shards::change_memory`](super::shards::Shards::change_memory)).
    pub memory: Arc<Table>,
    /// Packets handed off by other shards, while they are processed.
    parcels: Parcels,
    /// Number of turns since a timer expired that has not been served.
    late: u32,
}

/// How long a turn delays acknowledgements so that they can travel with a response.
#[derive(Clone, Copy)]
enum Hold {
    No,
    /// For one turn: those that are already delayed are sent.
    Once,
    /// Until a response carries them.
    Longer,
}

/// The link, or its final state after it was lost.
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
    /// Replaces the link by the reason for its loss and fails the device. Does nothing when the link is
    /// already lost.
    fn lose_link(&mut self, why: Arc<io::Error>, now: Instant) {
        let Attachment::There(link) = &self.link else { return };
        self.link = Attachment::Gone { counters: link.counters(), why };
        self.tx.clear();
        self.nic.fail(now, &self.memory, &mut self.tx);
    }
}

impl Engine {
    /// Attaches a queue pair to a multicast group; the link joins the group with the first queue pair
    /// attached to it.
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

    /// Detaches a queue pair from a multicast group; the link leaves the group with the last queue pair
    /// attached to it.
    pub fn detach_mcast(&mut self, qpn: Qpn, gid: Gid) -> Result<(), MulticastError> {
        if self.nic.detach_mcast(qpn, gid)?
            && let Some(link) = self.link.get()
        {
            link.leave(gid.ip());
        }
        Ok(())
    }

    /// Registers a service with the link, so that requests for it arrive here.
    pub fn claim(&mut self, service: ServiceId, address: Option<IpAddr>) -> Result<(), ClaimError> {
        match self.link.get() {
            Some(link) => link.claim(service, address),
            None => Err(ClaimError::System { service, source: Errno::ENODEV.into() }),
        }
    }

    /// Withdraws the registration of a service.
    pub fn release(&mut self, service: ServiceId, address: Option<IpAddr>) {
        if let Some(link) = self.link.get() {
            link.release(service, address);
        }
    }

    /// Destroys a queue pair and detaches it from its multicast groups.
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
        // The first shard watches the port state for all.
        let state_fd = link.state_fd().filter(|_| siblings.id().is_first());
        let state_fd = state_fd.map(|fd| fd.try_clone_to_owned()).transpose()?;
        let limits = link.info().burst;
        let is_bare = link.only_copies();
        let mut tx = if is_bare { TxQueue::with_deferred_icrc(limits) } else { TxQueue::new(limits) };
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

    /// Returns the index of this shard within its NIC.
    pub fn index(&self) -> usize {
        self.siblings.id().index() as usize
    }

    /// Returns the fabric if its time is virtual; in that case only the fabric drives the NIC.
    pub fn virtual_fabric(&self) -> Option<&FabricHandle> {
        self.fabric.as_ref().filter(|f| f.fabric().is_virtual())
    }

    /// Counts a turn of an application thread as polling, if the application polls at all. Otherwise a long
    /// turn would look like absence, and the background thread would take over and move the data to the cache
    /// of another core.
    fn note_presence(&self, now: Instant) {
        let polled = self.polled.load(Ordering::Relaxed);
        if polled != 0 && !IN_BACKGROUND.get() {
            // Fails if another thread has just announced that the application no longer polls.
            let _ = self.polled.compare_exchange(polled, now.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Runs `f` with the NIC, sends what results from it and releases the lock.
    pub fn with<R>(&self, f: impl FnOnce(&mut Nic, Instant, &Table, &mut TxQueue) -> R) -> R {
        let now = self.clock.now();
        let mut engine = self.engine.lock();
        let Engine { nic, tx, memory, .. } = &mut *engine;
        let result = f(nic, now, memory, tx);
        self.send(&mut engine, now, false);
        self.release(engine, now);
        result
    }

    /// Like [`with`](Self::with), for posting send requests of a queue pair. A queue pair with a lot in
    /// flight batches further requests, because one system call for several packets costs less than one for
    /// each.
    pub fn post<R>(&self, qpn: Qpn, f: impl FnOnce(&mut Nic, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut engine = self.engine.lock();
        let result = f(&mut engine.nic, now);
        if self.fabric.is_none() && engine.nic.may_batch(qpn) {
            self.note_deadline(&engine, now);
            self.let_go(engine);
            self.go_on(false);
        } else {
            self.send(&mut engine, now, false);
            self.release(engine, now);
        }
        result
    }

    /// Sends all delayed acknowledgements, unless another thread holds the lock for longer than `patience`.
    pub fn acknowledge(&self, patience: Duration) {
        if let Some(mut engine) = self.engine.try_lock_for(patience) {
            let now = self.clock.now();
            self.send(&mut engine, now, false);
            self.release(engine, now);
        }
    }

    /// Returns the NIC's counters, or `None` if another thread holds the lock for longer than `patience`.
    pub fn counters_within(&self, patience: Duration) -> Option<crate::transport::Counters> {
        let engine = self.engine.try_lock_for(patience)?;
        let counters = *engine.nic.counters();
        self.release(engine, self.clock.now());
        Some(counters)
    }

    /// Runs `f` with the NIC and its link; sends nothing.
    pub fn hold<R>(&self, f: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut engine = self.engine.lock();
        let result = f(&mut engine, now);
        self.release(engine, now);
        result
    }

    /// Acquires the lock soon even while another thread polls without a pause: a holder that releases it by
    /// [`let_go`](Self::let_go) hands it over. The caller releases it by [`unlock`](Self::unlock).
    pub fn lock_soon(&self) -> MutexGuard<'_, Engine> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let engine = self.engine.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// Releases the lock, fairly if a thread waits in [`lock_soon`](Self::lock_soon).
    fn let_go(&self, engine: MutexGuard<'_, Engine>) {
        match self.wanted.load(Ordering::Relaxed) {
            0 => drop(engine),
            _ => MutexGuard::unlock_fair(engine),
        }
    }

    /// Runs `f` with the NIC; sends nothing.
    pub fn look<R>(&self, f: impl FnOnce(&mut Nic) -> R) -> R {
        self.hold(|engine, _| f(&mut engine.nic))
    }

    /// Returns the counters of the link and, once the link is lost, the reason.
    pub fn link_state(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        let engine = self.engine.lock();
        let state = engine.link.state();
        self.release(engine, self.clock.now());
        state
    }

    /// Polls the link once on this thread, for an application that keeps polling.
    pub fn poll(&self) {
        if self.virtual_fabric().is_none() {
            let now = self.clock.now();
            self.polled.store(now.0, Ordering::Relaxed);
            self.drive(now, true);
        }
    }

    /// Like [`poll`](Self::poll) for an application that will not poll again, so the background thread keeps
    /// polling.
    pub fn look_once(&self) {
        if self.virtual_fabric().is_none() {
            self.drive(self.clock.now(), false);
        }
    }

    /// Announces that the application is about to wait, and wakes the background thread, which polls from now
    /// on.
    pub fn stop_polling(&self) {
        self.polled.store(0, Ordering::Relaxed);
        self.wake_thread();
    }

    /// Runs turns until no thread rings the doorbell any more. Returns false if another thread is running
    /// them.
    fn drive(&self, mut now: Instant, hold: bool) -> bool {
        for _ in 0..INLINE_TURNS {
            // A polling thread looks again soon: if it rang the doorbell each time, the holder would run
            // turns for nothing.
            let engine = if hold { self.engine.try_lock() } else { self.try_engine() };
            let Some(mut engine) = engine else { return false };
            self.answer_doorbell();
            self.note_presence(now);
            self.turn(&mut engine, now, if hold { Hold::Once } else { Hold::No });
            let more = self.unlock(engine, now);
            if let Some(fabric) = &self.fabric {
                fabric.kick();
                // The peer receives what was sent before this NIC sends more.
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

    /// Tries to lock the engine; when it is taken, rings the doorbell, so that the holder runs another turn.
    fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        self.engine.try_lock().or_else(|| {
            self.doorbell.store(true, Ordering::SeqCst);
            // The holder may have checked the doorbell just before it was set.
            fence(Ordering::SeqCst);
            self.engine.try_lock()
        })
    }

    /// Resets the doorbell: the turn that follows serves all threads that rang until now.
    fn answer_doorbell(&self) {
        if self.doorbell.load(Ordering::SeqCst) {
            self.doorbell.store(false, Ordering::SeqCst);
        }
    }

    /// Reports whether a thread found the lock taken; the former holder calls this after releasing it.
    fn was_rung(&self) -> bool {
        // Pairs with the fence in `try_engine`, which sets the doorbell and then tries the lock again.
        fence(Ordering::SeqCst);
        self.doorbell.load(Ordering::SeqCst)
    }

    /// Releases the lock and serves the threads that rang the doorbell meanwhile.
    fn release(&self, engine: MutexGuard<'_, Engine>, now: Instant) {
        let more = self.unlock(engine, now);
        self.go_on(more);
    }

    /// Releases the lock for a caller that calls [`go_on`](Self::go_on) later, and returns whether there is
    /// more to send.
    pub fn unlock(&self, engine: MutexGuard<'_, Engine>, now: Instant) -> bool {
        self.note_deadline(&engine, now);
        let more = engine.nic.wants_to_transmit_urgently();
        self.let_go(engine);
        more
    }

    /// Does the work that is left after the lock was released: sends `more`, and serves the threads that rang
    /// the doorbell. In virtual time the fabric does this.
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

    /// Runs one turn: receives packets, serves expired timers, sends. Returns whether packets were received.
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

    /// Fails the link and those of the sibling shards, which have the same socket address or interface.
    fn lose_link(&self, engine: &mut Engine, why: io::Error, now: Instant) {
        let why = Arc::new(why);
        engine.lose_link(why.clone(), now);
        self.siblings.lose_link(why);
    }

    /// Wakes the background thread if the NIC's next deadline is earlier than the end of the thread's sleep.
    /// Called under the lock, because the thread records its sleep under the lock.
    fn note_deadline(&self, engine: &Engine, now: Instant) {
        let sleeping = self.sleeping_until.load(Ordering::SeqCst);
        if sleeping != 0 && self.deadline(engine, now).is_some_and(|at| at.0 < sleeping) {
            self.wake_thread();
        }
    }

    fn deadline(&self, engine: &Engine, now: Instant) -> Option<Instant> {
        // Delayed acknowledgements leave with the application's next call or with the background thread.
        let held = engine.nic.has_held_acknowledgements().then(|| now + HELD);
        earliest([engine.nic.next_deadline(), engine.link.next_deadline(), held])
    }

    fn wake_thread(&self) {
        // The write fails only when the counter is full, and then the thread has been woken already.
        let _ = self.siblings.wake().write(1);
    }

    /// Ends [`run`](Self::run).
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake_thread();
    }

    /// Runs the background thread: it drives the NIC while no application thread polls, and sleeps while
    /// there is nothing to do.
    ///
    /// On a fabric the sending thread drives the receiving NIC, and this thread does only what is left over
    /// or due later: two threads that alternate would move all data from core to core.
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
                // The holder of the lock does what there is to do now.
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
            // After the application announced that it waits, received packets are no evidence that it missed
            // them.
            presence.missed(now, received && polled.0 != 0);
            if received {
                heard = now;
            }
            let more = received && must_look || engine.nic.wants_to_transmit_urgently();
            // While another shard's inbox is full the link is not read; it is polled again a moment later.
            let full = self.siblings.are_full();
            let until = match more {
                true => Some(Instant(1)),
                false => earliest([self.deadline(&engine, now), full.then(|| now + FULL_FOR), release_at]),
            };
            // Recorded under the lock: a thread that sets an earlier timer from now on sees it and wakes this
            // thread.
            self.sleeping_until.store(until.map_or(u64::MAX, |at| at.0), Ordering::SeqCst);
            // The descriptor of a link that is lost may stay readable for ever.
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
                    // Another thread spins on this core and gets a whole scheduler slice at each yield; a
                    // sleeping thread is scheduled when a packet arrives.
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

    /// Sleeps until `until`, a wake-up, a change of the port state or, with `watch`, until the link is
    /// readable.
    fn sleep(&self, now: Instant, until: Option<Instant>, watch: bool, bed: &mut Bed<'_>) {
        let timeout = until.map(|at| TimeSpec::from(at.since(now)));
        let result = ppoll(bed.fds(watch), timeout, None);
        let news = bed.has_news();
        self.sleeping_until.store(0, Ordering::SeqCst);
        match result {
            Ok(_) | Err(Errno::EINTR) => {}
            // ppoll fails only for lack of memory; a short sleep is better than a busy loop.
            Err(_) => std::thread::sleep(REST),
        }
        // Clears the eventfd counter, which is empty if something else ended the sleep.
        let _ = self.siblings.wake().read();
        if news && !self.note_port_state() {
            // The link is lost, so nothing reads the descriptor any more.
            bed.forget_state();
        }
    }

    /// Updates the NIC with the link's port state. Returns false if the link is lost.
    fn note_port_state(&self) -> bool {
        let mut engine = self.engine.lock();
        let Engine { nic, link, .. } = &mut *engine;
        let there = link.get().map(|link| nic.set_port_up(link.is_up())).is_some();
        self.release(engine, self.clock.now());
        there
    }
}

/// Poll set of a background thread: the wake-up, the port state, and after them the link's descriptors.
struct Bed<'a> {
    fds: Vec<PollFd<'a>>,
    wake: BorrowedFd<'a>,
    has_state: bool,
}

impl<'a> Bed<'a> {
    fn new(wake: &'a impl AsFd, state: Option<&'a OwnedFd>, link: &'a [OwnedFd]) -> Bed<'a> {
        let wake = wake.as_fd();
        // Without a port state descriptor, the wake-up descriptor takes its slot.
        let first = [wake, state.map_or(wake, AsFd::as_fd)].into_iter();
        let fds = first.chain(link.iter().map(AsFd::as_fd)).map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        Bed { fds: fds.collect(), wake, has_state: state.is_some() }
    }

    fn fds(&mut self, link: bool) -> &mut [PollFd<'a>] {
        let count = if link { self.fds.len() } else { 2 };
        &mut self.fds[..count]
    }

    /// Reports whether the port state may have changed.
    fn has_news(&self) -> bool {
        self.has_state && self.fds[1].any() == Some(true)
    }

    fn forget_state(&mut self) {
        self.fds[1] = PollFd::new(self.wake, PollFlags::POLLIN);
        self.has_state = false;
    }
}

/// Guard that fails the device when the background thread panics in a link, since nothing drives the NIC
/// reliably afterwards.
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
        // Must not block: the caller holds the lock of its own NIC.
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
