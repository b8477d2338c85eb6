//! Turns on a fabric in real time: the sending thread runs the receiving NICs.

use std::cell::Cell;

use super::timing::MAX_INLINE_TURNS;
use crate::link::fabric::{Fabric, FabricHandle};

thread_local! {
    /// Address of the fabric whose kick runs on this thread; 0 for none.
    static KICKING: Cell<usize> = const { Cell::new(0) };
}

/// Guard that clears `KICKING`, even after a panic.
struct KickGuard;

impl Drop for KickGuard {
    fn drop(&mut self) {
        KICKING.set(0);
    }
}

impl Fabric {
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
            if turns == MAX_INLINE_TURNS {
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
}

impl FabricHandle {
    /// Runs, on this thread, the drivers of all ports that have input, and of those that get input as a
    /// result. A driver calls it after each turn, once it has released its lock; within another kick on this
    /// thread it returns immediately, because that kick handles the new input. After 64 turns, the remaining
    /// work is left to the drivers' own threads. In virtual time it has no effect.
    pub fn kick(&self) {
        if self.has_input() && !self.fabric.is_virtual() {
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
}
