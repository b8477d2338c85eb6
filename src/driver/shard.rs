//! A NIC shard: its lock, and access to the state that the lock protects.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::adaptive::timing::MAX_ACK_DELAY;
use super::mailbox::HandoffBatch;
use super::object_faults::ObjectFaults;
use super::outputs::CqTable;
use super::policy::Policy;
use super::{Clock, DriveState, Events, Outputs, Records, ShardMailbox};
use crate::burst::TxQueue;
use crate::fabric::FabricHandle;
use crate::link::{Link, LinkCounters, NicEvent};
use crate::memory::{Table, unblock_fault_signals};
use crate::nic::Nic;
use crate::sys::fork::ForkGeneration;
use crate::transport::{EgressRoom, Failure, Instant, earliest};

/// A NIC shard: the shard's NIC and link behind one lock, and the state by which threads agree on which of
/// them drives it.
pub(crate) struct Shard {
    /// Locked directly only to read: a [`ShardGuard`] also announces a change.
    pub(super) state: Mutex<ShardState>,
    pub clock: Clock,
    pub(super) policy: Policy,
    pub(super) drive_state: DriveState,
    pub(super) fabric: Option<FabricHandle>,
    /// Whether the link is a bare fabric port, without middleware that has to see arriving packets.
    pub(super) is_bare_port: bool,
    pub(super) mailbox: ShardMailbox,
    pub(super) stopping: AtomicBool,
    /// The process that opened the link. A forked child inherits the descriptors, but must not take packets
    /// away from its parent.
    pub(super) process: ForkGeneration,
    /// Duplicates of the link's descriptors, which let the background thread poll them without holding the
    /// lock.
    pub(super) link_fds: Vec<OwnedFd>,
    /// A duplicate of the link's port state descriptor, for the background thread.
    pub(super) state_fd: Option<OwnedFd>,
}

/// Reason for the loss of a shard's link, and the link's final counters.
type LostLink = Box<(Arc<io::Error>, LinkCounters)>;

/// The part of a shard that is protected by its lock.
pub(crate) struct ShardState {
    pub nic: Nic,
    pub(super) link: Result<Box<dyn Link>, LostLink>,
    /// Whether the link limits what the NIC may send
    /// ([`PortState::egress_room`](crate::link::PortState::egress_room)).
    pub(super) is_paced: bool,
    pub(super) tx: TxQueue,
    /// The table of regions and windows, shared by all shards. Reading it requires the lock of any shard,
    /// changing it the locks of all ([`Shards::change_memory`](super::Shards::change_memory)).
    pub memory: Arc<Table>,
    /// Packets handed over by other shards, while they are being processed.
    pub(super) handoffs: HandoffBatch,
    /// Destinations of the NIC's completions and events.
    pub(super) outputs: Outputs,
    pub(super) faults: ObjectFaults,
}

impl ShardState {
    /// Reports whether the NIC has packets to send that the link takes now.
    pub(super) fn wants_to_transmit(&mut self) -> bool {
        let room = self.egress_room();
        self.nic.wants_to_transmit_within(room)
    }

    /// Takes the changes of a link through the memory of the host: those of the paths to peers, for the NIC,
    /// and whether ICRCs can be deferred from now on.
    pub(super) fn take_link_changes(&mut self) {
        if let Some(mut memory) = self.link.as_mut().ok().and_then(|link| link.host_memory()) {
            if !self.tx.defers_icrcs() && memory.supports_deferred_icrc() {
                self.tx.defer_icrcs();
            }
            while let Some(change) = memory.next_peer_change() {
                self.nic.on_peer_change(change);
            }
        }
    }

    /// Returns the room of a link that limits what the NIC may send.
    pub(super) fn egress_room(&mut self) -> Option<EgressRoom> {
        if self.is_paced { self.link()?.port_state()?.egress_room() } else { None }
    }
}

/// Guard of a shard's lock. The NIC's outputs must be [delivered](ShardState::deliver) before the guard is
/// dropped.
pub(crate) struct ShardGuard<'a> {
    shard: &'a Shard,
    /// The locked state; `None` only while the guard is being dropped.
    state: Option<MutexGuard<'a, ShardState>>,
}

impl Deref for ShardGuard<'_> {
    type Target = ShardState;
    fn deref(&self) -> &ShardState {
        self.state.as_ref().expect("the lock is held until the guard is dropped")
    }
}

impl DerefMut for ShardGuard<'_> {
    fn deref_mut(&mut self) -> &mut ShardState {
        self.state.as_mut().expect("the lock is held until the guard is dropped")
    }
}

impl Drop for ShardGuard<'_> {
    /// Releases the lock, handing it over if a thread is waiting in [`Shard::lock_fairly`]. In virtual time,
    /// announces that the shard's deadline may have changed.
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        debug_assert!(!state.nic.has_outputs() || std::thread::panicking(), "outputs were not delivered");
        match self.shard.drive_state.has_fair_waiters() {
            true => MutexGuard::unlock_fair(state),
            false => drop(state),
        }
        if self.shard.policy == Policy::Clock
            && let Some(fabric) = &self.shard.fabric
        {
            fabric.touch();
        }
    }
}

impl Shard {
    pub fn new(
        mut nic: Nic,
        mut link: Box<dyn Link>,
        mailbox: ShardMailbox,
        memory: Arc<Table>,
        (events, refusals): (Events, Records<Failure>),
        clock: Clock,
        fabric: Option<FabricHandle>,
    ) -> io::Result<Shard> {
        let link_fds = link.fds().into_iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>()?;
        // The first shard watches the port state for all.
        let state_fd = link.port_state().and_then(|port| port.state_fd()).filter(|_| mailbox.id().is_first());
        let state_fd = state_fd.map(|fd| fd.try_clone_to_owned()).transpose()?;
        let limits = link.info().burst;
        let defers_icrc = link.host_memory().is_some_and(|mut memory| memory.supports_deferred_icrc());
        let policy = Policy::of(fabric.as_ref());
        let is_bare_port = defers_icrc && fabric.is_some();
        let mut tx = match defers_icrc {
            // In virtual time the fabric delivers copies.
            true if is_bare_port && policy != Policy::Clock => TxQueue::with_direct_delivery(limits),
            true => TxQueue::with_deferred_icrc(limits),
            false => TxQueue::new(limits),
        };
        tx.flush_icrc_twice = nic.config().personality.quirks.flush_icrc_twice;
        if let Some(observer) = link.nic_observer() {
            observer.on_nic_event(clock.now(), &NicEvent::Opened);
            if let Some(observer) = observer.qp_observer() {
                nic.set_observer(observer);
            }
        }
        Ok(Shard {
            state: Mutex::new(ShardState {
                nic,
                is_paced: link.port_state().is_some_and(|port| port.egress_room().is_some()),
                link: Ok(link),
                tx,
                memory,
                handoffs: HandoffBatch::default(),
                outputs: Outputs { queues: CqTable::default(), events, refusals },
                faults: ObjectFaults::default(),
            }),
            clock,
            policy,
            drive_state: DriveState::default(),
            fabric,
            is_bare_port,
            mailbox,
            stopping: AtomicBool::new(false),
            process: ForkGeneration::current(),
            link_fds,
            state_fd,
        })
    }

    /// Returns the index of this shard within its NIC.
    pub fn index(&self) -> usize {
        self.mailbox.id().index() as usize
    }

    /// Returns the fabric if it is in virtual time, in which case only the fabric drives the NIC.
    pub fn virtual_fabric(&self) -> Option<&FabricHandle> {
        self.fabric.as_ref().filter(|_| self.policy == Policy::Clock)
    }

    /// Runs `f` with the NIC and its link, sends the packets that result, and releases the lock.
    pub fn with_state_and_send<R>(&self, f: impl FnOnce(&mut ShardState, Instant) -> R) -> R {
        self.with_state(|state, now| {
            let result = f(state, now);
            self.send(state, now, false);
            result
        })
    }

    /// Runs `f` with the NIC and its link, without sending.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut ShardState, Instant) -> R) -> R {
        self.call(self.lock(), f)
    }

    fn call<R>(&self, mut state: ShardGuard<'_>, f: impl FnOnce(&mut ShardState, Instant) -> R) -> R {
        let now = self.clock.now();
        let result = f(&mut state, now);
        self.release(state, now);
        result
    }

    /// Runs `f` with the NIC, without sending.
    pub fn with_nic<R>(&self, f: impl FnOnce(&mut Nic) -> R) -> R {
        self.with_state(|state, _| f(&mut state.nic))
    }

    /// Runs `f` like [`with_state`](Self::with_state). Returns `None` if another thread holds the lock for
    /// longer than `timeout`.
    pub fn with_state_within<R>(
        &self,
        timeout: Duration,
        f: impl FnOnce(&mut ShardState, Instant) -> R,
    ) -> Option<R> {
        let state = self.guard(self.state.try_lock_for(timeout)?);
        Some(self.call(state, f))
    }

    fn guard<'a>(&'a self, state: MutexGuard<'a, ShardState>) -> ShardGuard<'a> {
        unblock_fault_signals();
        ShardGuard { shard: self, state: Some(state) }
    }

    /// Acquires the lock. The caller must release it with [`unlock`](Self::unlock) or
    /// [`release`](Self::release), or deliver the NIC's outputs itself.
    pub(super) fn lock(&self) -> ShardGuard<'_> {
        self.guard(self.state.lock())
    }

    /// Acquires the lock if no thread holds it.
    pub(super) fn try_lock(&self) -> Option<ShardGuard<'_>> {
        self.state.try_lock().map(|state| self.guard(state))
    }

    /// Acquires the lock even if another thread polls without a pause: when that thread releases the lock,
    /// ownership passes to this one.
    pub fn lock_fairly(&self) -> ShardGuard<'_> {
        self.guard(self.drive_state.wait_fairly(|| self.state.lock()))
    }

    /// Delivers the NIC's outputs and releases the lock. Returns whether there is more to send, which the
    /// caller must pass to [`drive_remaining`](Self::drive_remaining).
    pub fn unlock(&self, mut state: ShardGuard<'_>, now: Instant) -> bool {
        state.deliver(now);
        self.wake_for_deadline(&state, now);
        state.wants_to_transmit()
    }

    /// Delivers the NIC's outputs, releases the lock, and serves the threads that have rung the doorbell in
    /// the meantime.
    pub(super) fn release(&self, state: ShardGuard<'_>, now: Instant) {
        let more = self.unlock(state, now);
        self.drive_remaining(more);
    }

    /// Wakes the background thread if it sleeps beyond the NIC's next deadline. Called with the lock held,
    /// under which the thread also records its sleep.
    pub(super) fn wake_for_deadline(&self, state: &ShardState, now: Instant) {
        if self.drive_state.sleeps_beyond(|| self.deadline(state, now)) {
            self.wake_thread();
        }
    }

    pub(super) fn deadline(&self, state: &ShardState, now: Instant) -> Option<Instant> {
        // Delayed acknowledgements leave with the application's next call or with the background thread.
        let held = (state.nic.held_acknowledgements() > 0).then(|| now + MAX_ACK_DELAY);
        let link = state.link.as_ref().ok().and_then(|link| link.next_deadline());
        let fault = state.faults.next(now, state.nic.counters()).map(|(_, at)| at);
        earliest([state.nic.next_deadline(), link, held, fault])
    }

    pub(super) fn wake_thread(&self) {
        // The write fails only when the counter is full, and then the thread has been woken already.
        let _ = self.mailbox.wake().write(1);
    }
}
