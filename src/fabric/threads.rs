//! Threads that run one at a time, in an order determined by the seed: those of a program on a fabric in
//! virtual time.
//!
//! A thread runs until it waits. Then another one runs, drawn by the seed from those that are ready: threads
//! that have not begun, and waiting threads that have not looked for what they wait for since the last
//! change. If no thread is ready, the clock advances to the next event or to the earliest deadline, which is
//! a change as well.
//!
//! A thread that was not [added](Threads::add) takes part while it waits. Otherwise no other thread runs
//! while it runs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::sys::rng::SimRng;
use crate::transport::Instant;

/// Stream of the random numbers that determine the order.
const STREAM: u64 = 0x7468_7265_6164;

/// Deadline of a wait without a timeout.
const NEVER: Instant = Instant(u64::MAX);

thread_local! {
    /// The threads to which this thread belongs, by address, and its number among them.
    static CURRENT: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// Reason why a waiting thread runs again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    /// Something has changed, or an event has occurred: the thread must check whether it still has to wait.
    Change,
    /// The clock has reached the deadline.
    Deadline,
    /// All threads wait without a deadline, and no event is pending.
    Idle,
}

#[derive(Debug)]
enum Phase {
    /// It has not begun.
    Ready,
    Running,
    /// It waits. It has looked for what it waits for when there were `seen` changes.
    Waiting {
        deadline: Instant,
        seen: u64,
    },
    /// The wait is over.
    Woken(Wake),
}

#[derive(Debug)]
struct State {
    rng: SimRng,
    threads: BTreeMap<u64, Phase>,
    /// The thread that runs; `None` if it is one that was not added.
    running: Option<u64>,
    /// Whether the running thread may have changed something that another one waits for.
    has_acted: bool,
    /// Number of changes.
    changes: u64,
    last: u64,
}

impl State {
    fn add(&mut self, phase: Phase) -> u64 {
        self.last += 1;
        self.threads.insert(self.last, phase);
        self.last
    }

    /// Draws the next thread to run from those that are ready.
    fn draw(&mut self) -> Option<u64> {
        let changes = self.changes;
        let is_ready = |phase: &Phase| match phase {
            Phase::Ready | Phase::Woken(_) => true,
            Phase::Waiting { seen, .. } => *seen < changes,
            Phase::Running => false,
        };
        let ready: Vec<u64> =
            self.threads.iter().filter(|(_, phase)| is_ready(phase)).map(|(id, _)| *id).collect();
        let at = (ready.len() > 1).then(|| self.rng.below(ready.len() as u64) as usize);
        ready.get(at.unwrap_or(0)).copied()
    }

    fn earliest_deadline(&self) -> Instant {
        let deadlines = self.threads.values().filter_map(|phase| match phase {
            Phase::Waiting { deadline, .. } => Some(*deadline),
            _ => None,
        });
        deadlines.min().unwrap_or(NEVER)
    }

    /// Ends all waits with a deadline no later than `now`.
    fn wake(&mut self, now: Instant, wake: Wake) {
        for phase in self.threads.values_mut() {
            if matches!(phase, Phase::Waiting { deadline, .. } if *deadline <= now) {
                *phase = Phase::Woken(wake);
            }
        }
    }
}

/// Threads of which one runs at a time.
pub(crate) struct Threads {
    state: Mutex<State>,
    /// Notified when another thread is to run.
    switched: Condvar,
    /// Number of threads that were added and have not ended.
    added: AtomicUsize,
}

impl Threads {
    pub fn new(seed: u64) -> Threads {
        let rng = SimRng::new(seed, STREAM);
        let (threads, running) = (BTreeMap::new(), None);
        let state = State { rng, threads, running, has_acted: false, changes: 0, last: 0 };
        Threads { state: Mutex::new(state), switched: Condvar::new(), added: AtomicUsize::new(0) }
    }

    /// Reports whether there are threads that were added and have not ended.
    pub fn are_in_use(&self) -> bool {
        self.added.load(Ordering::SeqCst) > 0
    }

    /// Returns the number of the current thread, if it was added.
    fn current(&self) -> Option<u64> {
        CURRENT.get().filter(|(threads, _)| *threads == self.identity()).map(|(_, id)| id)
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Adds a thread, which must call [`run`](Self::run).
    pub fn add(&self) -> u64 {
        self.added.fetch_add(1, Ordering::SeqCst);
        self.state.lock().add(Phase::Ready)
    }

    /// Runs `f` as the thread with the number `id`, when it is that thread's turn. `advance` advances the
    /// clock to the next event, but no further than to the given instant, and returns the reason to wake
    /// threads.
    pub fn run<R>(&self, id: u64, advance: &dyn Fn(Instant) -> Wake, f: impl FnOnce() -> R) -> R {
        CURRENT.set(Some((self.identity(), id)));
        self.await_turn(self.state.lock(), id);
        let result = f();
        CURRENT.set(None);
        let mut state = self.state.lock();
        self.added.fetch_sub(1, Ordering::SeqCst);
        state.threads.remove(&id);
        state.changes += 1;
        self.switch(&mut state, advance);
        result
    }

    /// Waits until `take` returns a value or the deadline has passed. `advance` advances the clock up to the
    /// instant that it is given.
    ///
    /// # Errors
    /// The reason why the wait ended without a value, never [`Wake::Change`].
    pub fn wait<R>(
        &self,
        deadline: Instant,
        advance: &dyn Fn(Instant) -> Wake,
        mut take: impl FnMut() -> Option<R>,
    ) -> Result<R, Wake> {
        let (id, _guest) = match self.current() {
            Some(id) => (id, None),
            None => {
                let guest = Guest::enter(self);
                (guest.id, Some(guest))
            }
        };
        let result = loop {
            if let Some(taken) = take() {
                break Ok(taken);
            }
            match self.wait_for_turn(id, deadline, advance) {
                Wake::Change => {}
                wake => break Err(wake),
            }
        };
        self.state.lock().has_acted = true;
        result
    }

    /// Lets other threads run, and returns after the next change or at the deadline.
    pub fn pause(&self, deadline: Instant, advance: &dyn Fn(Instant) -> Wake) {
        if let Some(id) = self.current()
            && self.wait_for_turn(id, deadline, advance) == Wake::Deadline
        {
            // After a change, two threads that poll would wake each other, and the clock would stand still.
            self.state.lock().has_acted = true;
        }
    }

    /// Lets other threads run until this one is to run again.
    fn wait_for_turn(&self, id: u64, deadline: Instant, advance: &dyn Fn(Instant) -> Wake) -> Wake {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.has_acted) {
            state.changes += 1;
        }
        let seen = state.changes;
        state.threads.insert(id, Phase::Waiting { deadline, seen });
        self.switch(&mut state, advance);
        self.await_turn(state, id)
    }

    /// Selects the next thread to run, and advances the clock until there is one.
    fn switch(&self, state: &mut MutexGuard<'_, State>, advance: &dyn Fn(Instant) -> Wake) {
        state.running = loop {
            if state.threads.is_empty() {
                break None;
            }
            if let Some(next) = state.draw() {
                break Some(next);
            }
            let limit = state.earliest_deadline();
            // No thread runs meanwhile.
            match MutexGuard::unlocked(state, || advance(limit)) {
                Wake::Change => state.changes += 1,
                wake => state.wake(limit, wake),
            }
        };
        self.switched.notify_all();
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, id: u64) -> Wake {
        while state.running != Some(id) {
            self.switched.wait(&mut state);
        }
        match state.threads.insert(id, Phase::Running) {
            Some(Phase::Woken(wake)) => wake,
            Some(Phase::Ready) => {
                state.has_acted = true;
                Wake::Change
            }
            _ => Wake::Change,
        }
    }
}

/// Participation of a thread that was not added, while it waits.
struct Guest<'a> {
    threads: &'a Threads,
    id: u64,
}

impl Guest<'_> {
    fn enter(threads: &Threads) -> Guest<'_> {
        let mut state = threads.state.lock();
        // Another thread runs only if this one was started without being added.
        while state.running.is_some() {
            threads.switched.wait(&mut state);
        }
        let id = state.add(Phase::Running);
        state.running = Some(id);
        state.has_acted = true;
        // A wait within a wait is by the same thread.
        CURRENT.set(Some((threads.identity(), id)));
        Guest { threads, id }
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        CURRENT.set(None);
        let mut state = self.threads.state.lock();
        state.threads.remove(&self.id);
        state.running = None;
        self.threads.switched.notify_all();
    }
}
