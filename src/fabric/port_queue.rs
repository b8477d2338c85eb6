//! Queue of ports that a fabric's clock or its threads have to look at.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::port_shared::PortShared;

/// Queue of ports, each at most once. In real time, these are the ports with input, or a requested turn, that
/// their drivers have not yet noticed. In virtual time, these are the ports whose due times may have changed
/// since the agenda was last brought up to date: anything that may change a due time adds the port, so a step
/// looks only at the ports that had something to do.
#[derive(Default)]
pub struct PortQueue {
    ports: Mutex<VecDeque<Arc<PortShared>>>,
    /// Length of the queue, readable without the lock.
    len: AtomicUsize,
}

impl PortQueue {
    /// Adds a port, unless the queue has it.
    pub fn push(&self, port: &Arc<PortShared>) {
        if !port.queued.swap(true, Ordering::SeqCst) {
            let mut ports = self.ports.lock();
            ports.push_back(port.clone());
            self.len.store(ports.len(), Ordering::SeqCst);
        }
    }

    pub(crate) fn pop(&self) -> Option<Arc<PortShared>> {
        if self.len.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut ports = self.ports.lock();
        let port = ports.pop_front()?;
        self.len.store(ports.len(), Ordering::SeqCst);
        drop(ports);
        // Cleared before the caller checks for input, so that later input queues the port again.
        port.queued.store(false, Ordering::SeqCst);
        Some(port)
    }
}
