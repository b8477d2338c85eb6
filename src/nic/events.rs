use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::transport::AsyncEvent;

/// Events kept for a reader. Nobody has to read them: only the newest are.
const MAX_EVENTS: usize = 4096;

/// Whoever is told whether asynchronous events wait.
pub trait EventListener: Send + Sync + fmt::Debug {
    /// The first has come, or the last has been taken.
    fn waiting(&self, any: bool);
}

/// The asynchronous events that nobody has taken yet; clones are the same queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Events(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<AsyncEvent>,
    listener: Option<Arc<dyn EventListener>>,
}

impl Events {
    pub fn set_listener(&mut self, listener: Arc<dyn EventListener>) {
        self.0.lock().listener = Some(listener);
    }

    pub fn raise(&mut self, event: AsyncEvent) {
        self.change(|queue| {
            if queue.len() == MAX_EVENTS {
                queue.pop_front();
            }
            queue.push_back(event);
        });
    }

    pub fn next(&mut self) -> Option<AsyncEvent> {
        self.change(VecDeque::pop_front)
    }

    /// Drops those that are about something that is gone.
    pub fn forget(&mut self, gone: impl Fn(&AsyncEvent) -> bool) {
        self.change(|queue| queue.retain(|event| !gone(event)));
    }

    fn change<R>(&mut self, f: impl FnOnce(&mut VecDeque<AsyncEvent>) -> R) -> R {
        let Waiting { queue, listener } = &mut *self.0.lock();
        let before = queue.is_empty();
        let result = f(queue);
        let after = queue.is_empty();
        if let Some(listener) = listener.as_ref().filter(|_| before != after) {
            listener.waiting(!after);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::transport::CqId;
    use crate::wire::Qpn;

    #[derive(Debug, Default)]
    struct Told(Mutex<Vec<bool>>);

    impl EventListener for Told {
        fn waiting(&self, any: bool) {
            self.0.lock().unwrap().push(any);
        }
    }

    #[test]
    fn a_listener_is_told_of_the_first_and_of_the_last() {
        let told = Arc::new(Told::default());
        let mut events = Events::default();
        events.set_listener(told.clone());
        events.raise(AsyncEvent::PortError);
        events.raise(AsyncEvent::CqError(CqId(1)));
        assert_eq!(events.next(), Some(AsyncEvent::PortError));
        assert_eq!(*told.0.lock().unwrap(), [true]);
        events.forget(|e| e.cq() == Some(CqId(1)));
        assert_eq!(*told.0.lock().unwrap(), [true, false]);
        assert_eq!(events.next(), None);
        assert_eq!(*told.0.lock().unwrap(), [true, false]);
    }

    #[test]
    fn clones_are_one_queue() {
        let mut events = Events::default();
        let mut clone = events.clone();
        clone.raise(AsyncEvent::PortError);
        events.raise(AsyncEvent::PortActive);
        assert_eq!(
            [clone.next(), events.next(), clone.next()],
            [Some(AsyncEvent::PortError), Some(AsyncEvent::PortActive), None]
        );
    }

    #[test]
    fn only_the_newest_are_kept() {
        let mut events = Events::default();
        (0..=MAX_EVENTS as u32).for_each(|n| events.raise(AsyncEvent::QpFatal(Qpn::new(n))));
        assert_eq!(events.next(), Some(AsyncEvent::QpFatal(Qpn::new(1))));
        assert_eq!(std::iter::from_fn(|| events.next()).count(), MAX_EVENTS - 1);
    }
}
