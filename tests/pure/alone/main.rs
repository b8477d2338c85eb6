//! Tests that measure the whole process: allocations, open descriptors, CPU time. Each runs alone, which
//! takes a lock for runners that run tests in threads of one process.

mod allocation;
mod connections_in_sequence;
mod fabric_threads;

use parking_lot::{Mutex, MutexGuard};

/// Waits until no other test of this program runs.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock()
}
