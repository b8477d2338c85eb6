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
use super::mailbox::{HandoffBatch, ShardMailbox};
use super::poll_detector::PollDetector;
use crate::link::fabric::{Driver, FabricHandle, Handover};
use crate::link::process::ForkGeneration;
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
const LOCK_BUSY_SLEEP: Duration = Duration::from_micros(200);

/// Time for which the background thread sleeps after it found the lock taken, while only timers need it: on a
/// fabric with no delayed packets under way the sending thread drives the receiving NIC. The timers are no
/// finer than this.
const LOCK_BUSY_TIMER_SLEEP: Duration = Duration::from_millis(1);

/// Idle timeout: time for which the background thread keeps polling the link after each packet before it
/// sleeps again, provided that its last sleep was shorter than this. A wake-up costs both ends several
/// microseconds, as much as a burst. When no packet arrives in this time, the thread sleeps as before.
const IDLE_TIMEOUT: Duration = Duration::from_micros(200);

/// Time for which acknowledgements are delayed, waiting for the application's next call, before the
/// background thread sends them, while it is not backing off for a polling application.
const MAX_ACK_DELAY: Duration = Duration::from_millis(4);

/// Time for which the background thread delays acknowledgements while the application is distrusted, that is,
/// polls for something other than received packets. Such an application is about to respond, and its response
/// carries the acknowledgements. The peer then receives both at once, in time for its own response to do the
/// same: two applications that poll a completion queue only for their sends, and otherwise wait for memory to
/// change, need no background thread.
const RESPONSE_ACK_DELAY: Duration = Duration::from_micros(30);

/// Time for which the background thread does not busy-poll after it found that another thread occupies its
/// core.
const CROWDED_CORE_BACKOFF: Duration = Duration::from_millis(100);

/// Number of bytes sent in one turn from which on the turn takes long enough that the application thread in
/// it would be mistaken for absent.
const LONG_TURN_BYTES: usize = 128 << 10;

/// Time until a shard polls its link again after it found the inbox of another shard full.
const INBOX_FULL_RETRY: Duration = Duration::from_micros(200);

/// Largest number of received packets whose acknowledgements are delayed until the application's next call. A
/// polling application may respond to what it finds, and the acknowledgements then travel with the response.
/// A longer burst is a stream, whose sender waits for the acknowledgements.
const MAX_DELAYED_ACK_PACKETS: usize = 4;

/// Number of turns that one call drives inline while other threads keep ringing the doorbell; after that the
/// background thread continues.
const MAX_INLINE_TURNS: usize = 64;

thread_local! {
    /// Whether the current thread is the background thread of a shard.
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// A shard of a NIC: the engine and its link behind one lock, and the state with which threads agree on who
/// drives it.
pub(super) struct Shard {
    state: Mutex<ShardState>,
    pub clock: Clock,
    fabric: Option<FabricHandle>,
    /// Whether the link is a bare port of the fabric, without middleware that has to see arriving packets.
    is_bare_port: bool,
    /// Set by a thread that wanted to drive and found the lock taken; the holder checks it after releasing
    /// the lock.
    doorbell: AtomicBool,
    /// Number of threads that wait for the lock and need a fair release, because another thread may take it
    /// again at once.
    fair_waiters: AtomicU32,
    /// Whether the application responds to received packets without polling for them, as determined by the
    /// background thread ([`PollDetector::is_distrusted`]).
    responds_without_polling: AtomicBool,
    /// Time at which an application thread last polled, in nanoseconds of the clock; 0 once the application
    /// announced that it waits.
    last_poll: AtomicU64,
    /// Time until which the background thread sleeps, in nanoseconds of the clock; 0 while it is awake or
    /// while it yields to a thread that is using the NIC, which then serves the timers.
    sleeping_until: AtomicU64,
    mailbox: ShardMailbox,
    stopping: AtomicBool,
    /// The process that the link belongs to. A child of fork has the descriptors too, and would take packets
    /// from its parent.
    process: ForkGeneration,
    /// Duplicates of the link's descriptors, so that the background thread can sleep on them without the
    /// lock.
    link_fds: Vec<OwnedFd>,
    /// A duplicate of the link's port state descriptor, for the background thread.
    state_fd: Mutex<Option<OwnedFd>>,
}

/// The part of a shard that its lock protects.
pub(super) struct ShardState {
    pub nic: Nic,
    link: LinkSlot,
    tx: TxQueue,
    /// The table of regions and windows, which all shards share: it may be read with the lock of any shard,
    /// and is changed with the locks of all
    /// ([`Shards::change_memory`](super::shards::Shards::change_memory)).
    pub memory: Arc<Table>,
    /// Packets handed off by other shards, while they are processed.
    handoffs: HandoffBatch,
}

/// How long a turn delays acknowledgements so that they can travel with a response.
#[derive(Clone, Copy)]
enum AckDelay {
    Off,
    /// For one turn: those that are already delayed are sent.
    OneTurn,
    /// Until a response carries them.
    UntilResponse,
}

/// The link, or its final state after it was lost.
enum LinkSlot {
    Attached(Box<dyn Link>),
    Lost { why: Arc<io::Error>, counters: LinkCounters },
}

impl LinkSlot {
    fn get(&mut self) -> Option<&mut dyn Link> {
        match self {
            LinkSlot::Attached(link) => Some(&mut **link),
            LinkSlot::Lost { .. } => None,
        }
    }

    fn is_attached(&self) -> bool {
        matches!(self, LinkSlot::Attached(_))
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            LinkSlot::Attached(link) => link.next_deadline(),
            LinkSlot::Lost { .. } => None,
        }
    }

    fn link_status(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        match self {
            LinkSlot::Attached(link) => (link.counters(), None),
            LinkSlot::Lost { why, counters } => (*counters, Some(why.clone())),
        }
    }
}

impl ShardState {
    /// Replaces the link by the reason for its loss and fails the device. Does nothing when the link is
    /// already lost.
    fn lose_link(&mut self, why: Arc<io::Error>, now: Instant) {
        let LinkSlot::Attached(link) = &self.link else { return };
        self.link = LinkSlot::Lost { counters: link.counters(), why };
        self.tx.clear();
        self.nic.fail(now, &self.memory, &mut self.tx);
    }
}

impl ShardState {
    /// Attaches a queue pair to a multicast group; the link joins the group with the first queue pair
    /// attached to it.
    pub fn attach_mcast(&mut self, now: Instant, qpn: Qpn, gid: Gid) -> Result<(), AttachError> {
        let first =
            self.nic.attach_mcast(qpn, gid).expect("the NIC has the queue pair as long as its handle")?;
        let group = gid.ip();
        let join = |link: &mut LinkSlot| match link.get() {
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
        mailbox: ShardMailbox,
        memory: Arc<Table>,
        clock: Clock,
        fabric: Option<FabricHandle>,
    ) -> io::Result<Shard> {
        let link_fds = link.fds().into_iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>()?;
        // The first shard watches the port state for all.
        let state_fd = link.state_fd().filter(|_| mailbox.id().is_first());
        let state_fd = state_fd.map(|fd| fd.try_clone_to_owned()).transpose()?;
        let limits = link.info().burst;
        let is_bare_port = link.supports_deferred_icrc();
        let mut tx = if is_bare_port { TxQueue::with_deferred_icrc(limits) } else { TxQueue::new(limits) };
        tx.set_flush_icrc_twice(nic.sends_flush_icrc_twice());
        Ok(Shard {
            state: Mutex::new(ShardState {
                nic,
                link: LinkSlot::Attached(link),
                tx,
                memory,
                handoffs: HandoffBatch::default(),
            }),
            clock,
            fabric,
            is_bare_port,
            doorbell: AtomicBool::new(false),
            fair_waiters: AtomicU32::new(0),
            responds_without_polling: AtomicBool::new(false),
            last_poll: AtomicU64::new(0),
            sleeping_until: AtomicU64::new(0),
            mailbox,
            stopping: AtomicBool::new(false),
            process: ForkGeneration::current(),
            link_fds,
            state_fd: Mutex::new(state_fd),
        })
    }

    /// Returns the index of this shard within its NIC.
    pub fn index(&self) -> usize {
        self.mailbox.id().index() as usize
    }

    /// Returns the fabric if its time is virtual; in that case only the fabric drives the NIC.
    pub fn virtual_fabric(&self) -> Option<&FabricHandle> {
        self.fabric.as_ref().filter(|f| f.fabric().is_virtual())
    }

    /// Counts a turn of an application thread as polling, if the application polls at all. Otherwise a long
    /// turn would look like absence, and the background thread would take over and move the data to the cache
    /// of another core.
    fn note_polling(&self, now: Instant) {
        let last_poll = self.last_poll.load(Ordering::Relaxed);
        if last_poll != 0 && !IN_BACKGROUND.get() {
            // Fails if another thread has just announced that the application no longer polls.
            let _ = self.last_poll.compare_exchange(last_poll, now.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Runs `f` with the NIC, sends what results from it and releases the lock.
    pub fn with_nic_and_send<R>(&self, f: impl FnOnce(&mut Nic, Instant, &Table, &mut TxQueue) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let ShardState { nic, tx, memory, .. } = &mut *state;
        let result = f(nic, now, memory, tx);
        self.send(&mut state, now, false);
        self.release(state, now);
        result
    }

    /// Like [`with_nic_and_send`](Self::with_nic_and_send), for posting send requests of a queue pair. A
    /// queue pair with a lot in flight batches further requests, because one system call for several packets
    /// costs less than one for each.
    pub fn post<R>(&self, qpn: Qpn, f: impl FnOnce(&mut Nic, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let result = f(&mut state.nic, now);
        if self.fabric.is_none() && state.nic.may_batch(qpn) {
            self.wake_for_deadline(&state, now);
            self.unlock_fairly(state);
            self.drive_remaining(false);
        } else {
            self.send(&mut state, now, false);
            self.release(state, now);
        }
        result
    }

    /// Sends all delayed acknowledgements, unless another thread holds the lock for longer than `timeout`.
    pub fn acknowledge(&self, timeout: Duration) {
        if let Some(mut state) = self.state.try_lock_for(timeout) {
            let now = self.clock.now();
            self.send(&mut state, now, false);
            self.release(state, now);
        }
    }

    /// Returns the NIC's counters, or `None` if another thread holds the lock for longer than `timeout`.
    pub fn counters_within(&self, timeout: Duration) -> Option<crate::transport::Counters> {
        let state = self.state.try_lock_for(timeout)?;
        let counters = *state.nic.counters();
        self.release(state, self.clock.now());
        Some(counters)
    }

    /// Runs `f` with the NIC and its link; sends nothing.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut ShardState, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let result = f(&mut state, now);
        self.release(state, now);
        result
    }

    /// Acquires the lock soon even while another thread polls without a pause: a holder that releases it by
    /// [`unlock_fairly`](Self::unlock_fairly) hands it over. The caller releases it by
    /// [`unlock`](Self::unlock).
    pub fn lock_fairly(&self) -> MutexGuard<'_, ShardState> {
        self.fair_waiters.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        self.fair_waiters.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Releases the lock, fairly if a thread waits in [`lock_fairly`](Self::lock_fairly).
    fn unlock_fairly(&self, state: MutexGuard<'_, ShardState>) {
        match self.fair_waiters.load(Ordering::Relaxed) {
            0 => drop(state),
            _ => MutexGuard::unlock_fair(state),
        }
    }

    /// Runs `f` with the NIC; sends nothing.
    pub fn with_nic<R>(&self, f: impl FnOnce(&mut Nic) -> R) -> R {
        self.with_state(|state, _| f(&mut state.nic))
    }

    /// Returns the counters of the link and, once the link is lost, the reason.
    pub fn link_state(&self) -> (LinkCounters, Option<Arc<io::Error>>) {
        let state = self.state.lock();
        let link_status = state.link.link_status();
        self.release(state, self.clock.now());
        link_status
    }

    /// Polls the link once on this thread, for an application that keeps polling.
    pub fn poll(&self) {
        if self.virtual_fabric().is_none() {
            let now = self.clock.now();
            self.last_poll.store(now.0, Ordering::Relaxed);
            self.drive(now, true);
        }
    }

    /// Like [`poll`](Self::poll) for an application that will not poll again, so the background thread keeps
    /// polling.
    pub fn poll_once(&self) {
        if self.virtual_fabric().is_none() {
            self.drive(self.clock.now(), false);
        }
    }

    /// Announces that the application is about to wait, and wakes the background thread, which polls from now
    /// on.
    pub fn stop_polling(&self) {
        self.last_poll.store(0, Ordering::Relaxed);
        self.wake_thread();
    }

    /// Runs turns until no thread rings the doorbell any more. Returns false if another thread is running
    /// them.
    fn drive(&self, mut now: Instant, hold: bool) -> bool {
        for _ in 0..MAX_INLINE_TURNS {
            // A polling thread looks again soon: if it rang the doorbell each time, the holder would run
            // turns for nothing.
            let state = if hold { self.state.try_lock() } else { self.try_lock_or_ring() };
            let Some(mut state) = state else { return false };
            self.clear_doorbell();
            self.note_polling(now);
            self.turn(&mut state, now, if hold { AckDelay::OneTurn } else { AckDelay::Off });
            let more = self.unlock(state, now);
            if let Some(fabric) = &self.fabric {
                fabric.kick();
                // The peer receives what was sent before this NIC sends more.
                if more && fabric.request_turn() {
                    return true;
                }
            }
            if !more && !self.doorbell_rung() {
                return true;
            }
            now = self.clock.now();
        }
        self.wake_thread();
        true
    }

    /// Tries to lock the engine; when it is taken, rings the doorbell, so that the holder runs another turn.
    fn try_lock_or_ring(&self) -> Option<MutexGuard<'_, ShardState>> {
        self.state.try_lock().or_else(|| {
            self.doorbell.store(true, Ordering::SeqCst);
            // The holder may have checked the doorbell just before it was set.
            fence(Ordering::SeqCst);
            self.state.try_lock()
        })
    }

    /// Resets the doorbell: the turn that follows serves all threads that rang until now.
    fn clear_doorbell(&self) {
        if self.doorbell.load(Ordering::SeqCst) {
            self.doorbell.store(false, Ordering::SeqCst);
        }
    }

    /// Reports whether a thread found the lock taken; the former holder calls this after releasing it.
    fn doorbell_rung(&self) -> bool {
        // Pairs with the fence in `try_lock_or_ring`, which sets the doorbell and then tries the lock again.
        fence(Ordering::SeqCst);
        self.doorbell.load(Ordering::SeqCst)
    }

    /// Releases the lock and serves the threads that rang the doorbell meanwhile.
    fn release(&self, state: MutexGuard<'_, ShardState>, now: Instant) {
        let more = self.unlock(state, now);
        self.drive_remaining(more);
    }

    /// Releases the lock for a caller that calls [`drive_remaining`](Self::drive_remaining) later, and
    /// returns whether there is more to send.
    pub fn unlock(&self, state: MutexGuard<'_, ShardState>, now: Instant) -> bool {
        self.wake_for_deadline(&state, now);
        let more = state.nic.wants_to_transmit_urgently();
        self.unlock_fairly(state);
        more
    }

    /// Does the work that is left after the lock was released: sends `more`, and serves the threads that rang
    /// the doorbell. In virtual time the fabric does this.
    pub fn drive_remaining(&self, more: bool) {
        if self.virtual_fabric().is_some() {
            return;
        }
        if more || self.doorbell_rung() {
            self.drive(self.clock.now(), false);
        } else if let Some(fabric) = &self.fabric {
            fabric.kick();
        }
    }

    /// Runs one turn: receives packets, serves expired timers, sends. Returns whether packets were received.
    fn turn(&self, state: &mut ShardState, now: Instant, hold: AckDelay) -> bool {
        if let Some(why) = self.mailbox.loss().filter(|_| state.link.is_attached()) {
            state.lose_link(why.clone(), now);
        }
        let ShardState { nic, link, tx, memory, handoffs, .. } = state;
        let had_delayed_acks = nic.has_held_acknowledgements();
        let collected =
            self.mailbox.collect(handoffs, |part, first| nic.handle_part(now, part, first, memory, tx));
        let received = match link.get() {
            Some(link) if !self.mailbox.are_others_full() && self.process.is_current() => {
                link.receive(now, &mut |burst| {
                    let handed_over = self.mailbox.deliver_or_hand_off(&burst, |part, first| {
                        nic.handle_part(now, part, first, memory, tx)
                    });
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
                self.lose_link(state, e, now);
                0
            });
        let ShardState { nic, tx, memory, .. } = state;
        let hold = match hold {
            AckDelay::Off => false,
            AckDelay::OneTurn if self.responds_without_polling.load(Ordering::Relaxed) => !had_delayed_acks,
            AckDelay::OneTurn => !had_delayed_acks && received <= MAX_DELAYED_ACK_PACKETS,
            AckDelay::UntilResponse => true,
        };
        nic.handle_timeouts_unless_deferred(now, received > 0, memory, tx);
        self.send(state, now, hold);
        received > 0
    }

    fn send(&self, state: &mut ShardState, now: Instant, hold: bool) {
        let ShardState { nic, link, tx, memory, .. } = state;
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
            if tx.bytes() >= LONG_TURN_BYTES {
                self.note_polling(self.clock.now());
            }
            tx.clear();
        }
        nic.emitted(now);
        if let Some(e) = lost {
            self.lose_link(state, e, now);
        }
    }

    /// Fails the link and those of the sibling shards, which have the same socket address or interface.
    fn lose_link(&self, state: &mut ShardState, why: io::Error, now: Instant) {
        let why = Arc::new(why);
        state.lose_link(why.clone(), now);
        self.mailbox.lose_link(why);
    }

    /// Wakes the background thread if the NIC's next deadline is earlier than the end of the thread's sleep.
    /// Called under the lock, because the thread records its sleep under the lock.
    fn wake_for_deadline(&self, state: &ShardState, now: Instant) {
        let sleeping = self.sleeping_until.load(Ordering::SeqCst);
        if sleeping != 0 && self.deadline(state, now).is_some_and(|at| at.0 < sleeping) {
            self.wake_thread();
        }
    }

    fn deadline(&self, state: &ShardState, now: Instant) -> Option<Instant> {
        // Delayed acknowledgements leave with the application's next call or with the background thread.
        let held = state.nic.has_held_acknowledgements().then(|| now + MAX_ACK_DELAY);
        earliest([state.nic.next_deadline(), state.link.next_deadline(), held])
    }

    fn wake_thread(&self) {
        // The write fails only when the counter is full, and then the thread has been woken already.
        let _ = self.mailbox.wake().write(1);
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
        let mut poll_set = PollSet::new(self.mailbox.wake(), state_fd.as_ref(), &self.link_fds);
        let (mut keeps_polling, mut last_packet, mut crowded_until) = (false, Instant(0), Instant(0));
        let (mut poll_detector, mut acks_due) = (PollDetector::default(), None);
        while !self.stopping.load(Ordering::SeqCst) {
            let now = self.clock.now();
            let last_poll = Instant(self.last_poll.load(Ordering::Relaxed));
            if last_poll.0 != 0
                && let Some(backoff) = poll_detector.backoff(now, last_poll)
            {
                self.sleep(now, Some(now + backoff), false, &mut poll_set);
                continue;
            }
            let must_poll_link = self.fabric.as_ref().is_none_or(FabricHandle::has_pending_input);
            let state = match last_poll.0 {
                0 if must_poll_link => Some(self.state.lock()),
                _ if must_poll_link && poll_detector.is_distrusted(now) => Some(self.state.lock()),
                _ => self.try_lock_or_ring(),
            };
            let Some(mut state) = state else {
                // The holder of the lock does what there is to do now.
                let backoff = if must_poll_link { LOCK_BUSY_SLEEP } else { LOCK_BUSY_TIMER_SLEEP };
                self.sleep(now, Some(now + backoff), false, &mut poll_set);
                continue;
            };
            self.clear_doorbell();
            let now = self.clock.now();
            let acks_overdue = acks_due.is_some_and(|at| now >= at);
            let responds_without_polling = poll_detector.is_distrusted(now);
            self.responds_without_polling.store(responds_without_polling, Ordering::Relaxed);
            let hold = if responds_without_polling && !acks_overdue {
                AckDelay::UntilResponse
            } else {
                AckDelay::Off
            };
            let received = self.turn(&mut state, now, hold);
            let delays_acks = state.nic.has_held_acknowledgements();
            acks_due = delays_acks.then(|| acks_due.unwrap_or(now + RESPONSE_ACK_DELAY));
            // After the application announced that it waits, received packets are no evidence that it missed
            // them.
            poll_detector.on_not_polling(now, received && last_poll.0 != 0);
            if received {
                last_packet = now;
            }
            let more = received && must_poll_link || state.nic.wants_to_transmit_urgently();
            // While another shard's inbox is full the link is not read; it is polled again a moment later.
            let full = self.mailbox.are_others_full();
            let until = match more {
                true => Some(Instant(1)),
                false => {
                    earliest([self.deadline(&state, now), full.then(|| now + INBOX_FULL_RETRY), acks_due])
                }
            };
            // Recorded under the lock: a thread that sets an earlier timer from now on sees it and wakes this
            // thread.
            self.sleeping_until.store(until.map_or(u64::MAX, |at| at.0), Ordering::SeqCst);
            // The descriptor of a link that is lost may stay readable for ever.
            let watch = state.link.is_attached() && !full;
            self.unlock_fairly(state);
            if let Some(fabric) = &self.fabric {
                fabric.kick();
            }
            if more || self.doorbell_rung() {
                continue;
            }
            let now = self.clock.now();
            if keeps_polling && watch && now.since(last_packet) < IDLE_TIMEOUT {
                std::thread::yield_now();
                let after = self.clock.now();
                if after.since(now) > IDLE_TIMEOUT {
                    // Another thread spins on this core and gets a whole scheduler slice at each yield; a
                    // sleeping thread is scheduled when a packet arrives.
                    crowded_until = after + CROWDED_CORE_BACKOFF;
                    keeps_polling = false;
                }
                continue;
            }
            self.sleep(now, until, watch, &mut poll_set);
            let after = self.clock.now();
            keeps_polling = must_poll_link && after.since(now) < IDLE_TIMEOUT && after >= crowded_until;
        }
    }

    /// Sleeps until `until`, a wake-up, a change of the port state or, with `watch`, until the link is
    /// readable.
    fn sleep(&self, now: Instant, until: Option<Instant>, watch: bool, poll_set: &mut PollSet<'_>) {
        let timeout = until.map(|at| TimeSpec::from(at.since(now)));
        let result = ppoll(poll_set.fds(watch), timeout, None);
        let port_changed = poll_set.port_state_changed();
        self.sleeping_until.store(0, Ordering::SeqCst);
        match result {
            Ok(_) | Err(Errno::EINTR) => {}
            // ppoll fails only for lack of memory; a short sleep is better than a busy loop.
            Err(_) => std::thread::sleep(LOCK_BUSY_TIMER_SLEEP),
        }
        // Clears the eventfd counter, which is empty if something else ended the sleep.
        let _ = self.mailbox.wake().read();
        if port_changed && !self.update_port_state() {
            // The link is lost, so nothing reads the descriptor any more.
            poll_set.remove_port_state();
        }
    }

    /// Updates the NIC with the link's port state. Returns false if the link is lost.
    fn update_port_state(&self) -> bool {
        let mut state = self.state.lock();
        let ShardState { nic, link, .. } = &mut *state;
        let attached = link.get().map(|link| nic.set_port_up(link.is_up())).is_some();
        self.release(state, self.clock.now());
        attached
    }
}

/// Poll set of a background thread: the wake-up, the port state, and after them the link's descriptors.
struct PollSet<'a> {
    fds: Vec<PollFd<'a>>,
    wake: BorrowedFd<'a>,
    has_port_state: bool,
}

impl<'a> PollSet<'a> {
    fn new(wake: &'a impl AsFd, port_state: Option<&'a OwnedFd>, link: &'a [OwnedFd]) -> PollSet<'a> {
        let wake = wake.as_fd();
        // Without a port state descriptor, the wake-up descriptor takes its slot.
        let first = [wake, port_state.map_or(wake, AsFd::as_fd)].into_iter();
        let fds = first.chain(link.iter().map(AsFd::as_fd)).map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        PollSet { fds: fds.collect(), wake, has_port_state: port_state.is_some() }
    }

    fn fds(&mut self, link: bool) -> &mut [PollFd<'a>] {
        let count = if link { self.fds.len() } else { 2 };
        &mut self.fds[..count]
    }

    /// Reports whether the port state may have changed.
    fn port_state_changed(&self) -> bool {
        self.has_port_state && self.fds[1].any() == Some(true)
    }

    fn remove_port_state(&mut self) {
        self.fds[1] = PollFd::new(self.wake, PollFlags::POLLIN);
        self.has_port_state = false;
    }
}

/// Guard that fails the device when the background thread panics in a link, since nothing drives the NIC
/// reliably afterwards.
struct OnPanic<'a>(&'a Shard);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shard = self.0;
            let mut state = shard.state.lock();
            let why = io::Error::other("the NIC's thread has panicked");
            shard.lose_link(&mut state, why, shard.clock.now());
        }
    }
}

impl Driver for Shard {
    fn port_up(&self, up: bool) {
        self.with_nic(|nic| nic.set_port_up(up));
    }

    fn addresses_changed(&self, addresses: &[IpAddr]) {
        let gids: Vec<Gid> = addresses.iter().map(|ip| Gid::from(*ip)).collect();
        self.with_nic(|nic| nic.set_gids(&gids));
    }

    fn device_lost(&self, why: io::Error) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        self.lose_link(&mut state, why, now);
        self.send(&mut state, now, false);
        self.release(state, now);
    }

    fn inject_event(&self, event: AsyncEvent) -> bool {
        self.with_nic_and_send(|nic, now, memory, tx| nic.inject_event(now, event, memory, tx))
    }

    fn try_drive(&self) -> bool {
        self.drive(self.clock.now(), false)
    }

    fn try_receive_direct(&self, now: Instant, give: &mut Handover<'_>) -> bool {
        if !self.is_bare_port {
            return false;
        }
        // Must not block: the caller holds the lock of its own NIC.
        let Some(mut state) = self.state.try_lock() else { return false };
        let ShardState { nic, link, tx, memory, .. } = &mut *state;
        let attached = link.is_attached();
        if attached {
            give(&mut |burst| nic.handle_burst(now, &burst, memory, tx));
        }
        attached
    }

    fn wake(&self) {
        self.wake_thread();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.state.lock();
        if state.nic.wants_to_transmit_urgently() {
            Some(Instant(0))
        } else {
            self.deadline(&state, self.clock.now())
        }
    }
}
