//! Shard turns on a fabric in real time, where the sending thread runs the receiving NICs.

use std::cell::Cell;

use super::inline::MAX_INLINE_TURNS;
use crate::fabric::{Fabric, FabricHandle};

thread_local! {
    /// Identity of the fabric whose kick is running on this thread; 0 if none is.
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
        while let Some(port) = self.queue().pop() {
            if !port.has_work(|| self.now()) {
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
            if driver.try_drive() && port.has_input(|| self.now()) {
                self.queue().push(&port);
            }
        }
    }

    fn wake_ready(&self) {
        while let Some(port) = self.queue().pop() {
            if port.has_work(|| self.now())
                && let Some(driver) = port.driver()
            {
                driver.wake();
            }
        }
    }
}

impl FabricHandle {
    /// Runs, on this thread, the drivers of all ports with input, including those that get input as a result.
    /// Drivers call this after each turn, once they have released their lock; a nested call on the same
    /// thread returns immediately, because the outer kick handles the new input. After 64 turns, the
    /// remaining work is left to the drivers' own threads. Has no effect in virtual time.
    pub fn kick(&self) {
        if self.has_input() && !self.fabric.is_virtual() {
            self.fabric.queue().push(&self.port);
        }
        self.fabric.kick();
    }

    /// Requests another turn for a driver that has more to send. Within a kick on this thread, returns true:
    /// the driver gets its turn after the ports queued so far, and the caller should return. Otherwise
    /// returns false.
    pub fn request_turn(&self) -> bool {
        let within = KICKING.get() == self.fabric.identity();
        if within {
            self.fabric.schedule_turn(&self.port);
        }
        within
    }
}
