use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::transport::{Completion, CqId, Instant, WcStatus};

/// Which completions raise an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// The next one.
    Any,
    /// The next that the peer marked as solicited, or that is an error.
    Solicited,
}

/// Whoever is told that a completion queue has something.
pub trait CqListener: Send + Sync {
    /// The event that was asked for by [`CompletionQueue::arm`]; called once for each.
    fn completion(&self);
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// It waits in the queue.
    Stored,
    /// The queue was full.
    Lost {
        /// For the first time.
        first: bool,
    },
}

/// A completion queue: filled by the NIC, emptied by the application, from any thread.
pub struct CompletionQueue {
    id: CqId,
    /// Entries waiting, so that polling an empty queue takes no lock.
    len: AtomicUsize,
    state: Mutex<State>,
    listener: OnceLock<Arc<dyn CqListener>>,
}

#[derive(Default)]
struct State {
    capacity: usize,
    ring: VecDeque<Stamped>,
    armed: Option<Notify>,
    overflow: bool,
    /// A completion that finds it full takes the place of the oldest.
    overwrites: bool,
}

/// A completion and when it was put into its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamped {
    /// What ended.
    pub completion: Completion,
    /// By the NIC's clock.
    pub at: Instant,
}

/// The queue was full when a completion came, so completions are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the completion queue of {capacity} entries has overflowed")]
pub struct CqOverflow {
    /// Its size.
    pub capacity: usize,
}

impl CompletionQueue {
    /// A queue for `capacity` completions.
    pub fn new(capacity: usize) -> CompletionQueue {
        CompletionQueue::numbered(CqId::default(), capacity)
    }

    /// The same with a number, by which events name it.
    pub fn numbered(id: CqId, capacity: usize) -> CompletionQueue {
        CompletionQueue {
            id,
            len: AtomicUsize::new(0),
            // All of it at once, as hardware does: a ring that grew on the way would do so on the data path.
            state: Mutex::new(State {
                capacity,
                ring: VecDeque::with_capacity(capacity),
                ..State::default()
            }),
            listener: OnceLock::new(),
        }
    }

    /// The same, but a completion that finds it full takes the place of the oldest; none counts as lost.
    pub fn overwriting(mut self) -> CompletionQueue {
        self.state.get_mut().overwrites = true;
        self
    }

    /// Its number.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Entries that it holds at most.
    pub fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Changes how many entries it holds; those that wait stay.
    ///
    /// # Errors
    /// How many wait, if those are more.
    pub fn resize(&self, capacity: usize) -> Result<(), usize> {
        let mut state = self.state.lock();
        let waiting = state.ring.len();
        if waiting > capacity {
            return Err(waiting);
        }
        state.capacity = capacity;
        state.ring.reserve_exact(capacity - waiting);
        Ok(())
    }

    /// Sets who is told; once, at creation.
    pub fn set_listener(&self, listener: Arc<dyn CqListener>) {
        // The verbs layer calls this once, before the queue is shared; a second call would lose its listener.
        let first = self.listener.set(listener).is_ok();
        debug_assert!(first, "a completion queue has one listener");
    }

    /// Entries waiting.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether none is waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a completion at the time `now`.
    pub fn push(&self, now: Instant, completion: Completion) -> Pushed {
        let mut state = self.state.lock();
        if state.ring.len() >= state.capacity && state.overwrites {
            state.ring.pop_front();
        } else if state.ring.len() >= state.capacity {
            return Pushed::Lost { first: !std::mem::replace(&mut state.overflow, true) };
        }
        state.ring.push_back(Stamped { completion, at: now });
        self.len.store(state.ring.len(), Ordering::Release);
        let wanted = match state.armed {
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => completion.solicited || completion.status != WcStatus::Success,
            None => false,
        };
        if wanted {
            state.armed = None;
            drop(state);
            if let Some(listener) = self.listener.get() {
                listener.completion();
            }
        }
        Pushed::Stored
    }

    /// Moves up to `max` completions to the end of `out`; returns how many.
    ///
    /// # Errors
    /// [`CqOverflow`] once all entries from before the overflow are taken.
    pub fn poll(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize, CqOverflow> {
        let mut state = self.state.lock();
        let n = state.ring.len().min(max);
        if n == 0 && state.overflow {
            return Err(CqOverflow { capacity: state.capacity });
        }
        out.extend(state.ring.drain(..n).map(|entry| entry.completion));
        self.len.store(state.ring.len(), Ordering::Release);
        Ok(n)
    }

    /// Takes the oldest completion with its time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn take(&self) -> Result<Option<Stamped>, CqOverflow> {
        let mut state = self.state.lock();
        let taken = state.ring.pop_front();
        if taken.is_none() && state.overflow {
            return Err(CqOverflow { capacity: state.capacity });
        }
        self.len.store(state.ring.len(), Ordering::Release);
        Ok(taken)
    }

    /// Asks for one event at the next completion of that kind. A completion that is already there raises
    /// none: poll once more after arming, as in verbs.
    pub fn arm(&self, notify: Notify) {
        let mut state = self.state.lock();
        // Asking for any completion is the wider wish; it stays until an event answers it.
        if state.armed != Some(Notify::Any) {
            state.armed = Some(notify);
        }
    }

    /// Forgets the completions of a queue pair that is gone, as destroying it does in verbs.
    pub fn purge(&self, qpn: crate::wire::Qpn) {
        let mut state = self.state.lock();
        state.ring.retain(|c| c.completion.qpn != qpn);
        self.len.store(state.ring.len(), Ordering::Release);
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::transport::WcOpcode;
    use crate::wire::Qpn;

    #[derive(Default)]
    struct Rung(AtomicU32);

    impl CqListener for Rung {
        fn completion(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_error_answers_the_wish_for_solicited_completions() {
        let (rung, queue) = (Arc::new(Rung::default()), CompletionQueue::new(8));
        queue.set_listener(rung.clone());
        queue.arm(Notify::Solicited);
        let completion = |status, solicited| Completion {
            wr_id: 0,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qpn: Qpn::default(),
            src_qpn: Qpn::default(),
            vendor_err: 0,
            solicited,
            grh: false,
            pkey_index: 0,
        };
        let rings_after = |status, solicited| {
            queue.push(Instant(1), completion(status, solicited));
            rung.0.load(Ordering::Relaxed)
        };
        assert_eq!(rings_after(WcStatus::Success, false), 0);
        assert_eq!(rings_after(WcStatus::LocLenErr, false), 1);
        assert_eq!(rings_after(WcStatus::LocLenErr, true), 1, "it is asked for once");
    }
}
