//! Connection managers: their devices, and the background thread that processes their messages and events.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::pthread::pthread_self;
use nix::sys::time::TimeSpec;
use parking_lot::{Mutex, MutexGuard};

use super::param::default_qp_type;
use super::state::State;
use super::{CmId, EventChannel, IdError, PortSpace};
use crate::cm::CmCounters;
use crate::driver::ALL_SHARDS;
use crate::fabric::{Driver, Fabric};
use crate::sys::fork::ForkGeneration;
use crate::sys::thread::spawn_background;
use crate::transport::QpType;
use crate::verbs::faults::{Call, Injector};
use crate::verbs::{Context, ManagementPort};

/// A connection manager, which creates ids on a set of devices and processes their messages and events. Cheap
/// to clone; it lives as long as any of its clones or ids.
#[derive(Clone)]
pub struct ConnectionManager(Arc<Owner>);

impl ConnectionManager {
    /// Creates a connection manager for the given devices, possibly none. It opens QP1 on each device, so a
    /// device can have only one connection manager.
    ///
    /// # Errors
    /// [`IdError::System`], or the errors of [`add_device`](Self::add_device).
    pub fn new(devices: Vec<Context>) -> Result<ConnectionManager, IdError> {
        let wake =
            EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map_err(io::Error::from)?;
        let sleep = Sleep {
            wake,
            ports: Mutex::default(),
            until: Mutex::default(),
            stopping: AtomicBool::new(false),
        };
        let owner = Arc::new_cyclic(|owner: &Weak<Owner>| {
            let shared = Shared {
                state: Mutex::new(State::new(owner.clone())),
                retired: Mutex::default(),
                sleep,
                fabric: OnceLock::new(),
                calls: OnceLock::new(),
                process: ForkGeneration::current(),
            };
            Owner { shared: Arc::new(shared), thread: Mutex::default() }
        });
        let manager = ConnectionManager(owner);
        for device in devices {
            manager.add_device(device)?;
        }
        Ok(manager)
    }

    /// Adds a device, and returns its index. Ids that listen on the wildcard address also listen on the new
    /// device.
    ///
    /// # Errors
    /// [`IdError::Device`] if the QP1 of the device is in use, [`IdError::Open`] if the system is out of file
    /// descriptors.
    pub fn add_device(&self, device: Context) -> Result<usize, IdError> {
        // A second context receives asynchronous events of its own, beside those of the program.
        let port = Arc::new(device.reopen_internally()?.management_port()?);
        let calls = &device.0.calls;
        if !calls.is_empty() {
            // A device added later does not replace the faults.
            let _ = self.0.calls.set(calls.clone());
        }
        let fabric = device.0.shards.virtual_fabric().map(|handle| handle.fabric().clone());
        let index = self.0.with_state(|state| state.add_device(device, port.clone()))?;
        match fabric {
            Some(fabric) => {
                if self.0.fabric.set(fabric.clone()).is_ok() {
                    let driver: Arc<dyn Driver> = self.0.shared.clone();
                    fabric.add_auxiliary_driver(Arc::downgrade(&driver));
                }
            }
            None => {
                self.0.sleep.ports.lock().push(port);
                self.0.start()?;
                self.0.sleep.wake();
            }
        }
        Ok(index)
    }

    /// Returns the devices.
    pub fn devices(&self) -> Vec<Context> {
        let contexts =
            |state: &mut State| state.devices.iter().map(|device| device.context.clone()).collect();
        self.0.with_state(|state| Ok(contexts(state))).unwrap_or_default()
    }

    /// Returns the number of ids, including those of requests not yet delivered.
    pub fn ids(&self) -> usize {
        self.0.with_state(|state| Ok(state.ids().count())).unwrap_or_default()
    }

    /// Returns the number of connections and requests on all devices, except those in time-wait.
    pub fn connections(&self) -> usize {
        let counts = |state: &mut State| {
            let counts = state.devices.iter().map(|device| device.cm.connection_counts());
            Ok(counts.map(|(all, in_time_wait)| all - in_time_wait).sum())
        };
        self.0.with_state(counts).unwrap_or_default()
    }

    /// Returns the connection manager counters of a device.
    pub fn counters(&self, device: usize) -> Option<CmCounters> {
        self.0
            .with_state(|state| Ok(state.devices.get(device).map(|device| *device.cm.counters())))
            .ok()
            .flatten()
    }

    /// Creates an id with its port space's default transport service (`rdma_create_id`).
    ///
    /// # Errors
    /// [`IdError::Inherited`] in a child of fork.
    pub fn create_id(&self, channel: &EventChannel, space: PortSpace) -> Result<CmId, IdError> {
        self.create_id_with_qp_type(channel, space, default_qp_type(space))
    }

    /// Creates an id with the given transport service.
    ///
    /// # Errors
    /// [`IdError::Inherited`] in a child of fork.
    pub fn create_id_with_qp_type(
        &self,
        channel: &EventChannel,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<CmId, IdError> {
        self.0.inject(Call::rdma_create_id)?;
        channel.set_manager(&self.0);
        self.0.with_state(|state| Ok(state.create(&self.0, channel, space, qp_type)))
    }
}

impl fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionManager({:?})", self.devices())
    }
}

/// Owner of a manager's state and background thread, shared by the manager's handles and ids. Dropping it
/// waits for the background thread to end, so that the devices can then be opened again.
pub(super) struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Deref for Owner {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Owner {
    fn start(&self) -> Result<(), IdError> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = self.shared.clone();
            *thread = Some(spawn_background("urxe-cm".into(), move || shared.run())?);
        }
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get_mut().take() else { return };
        if !self.process.is_current() {
            // Dropping the handle would detach the thread, and in a child of fork the thread's ID may be that
            // of another one.
            std::mem::forget(thread);
            return;
        }
        self.sleep.stopping.store(true, Ordering::SeqCst);
        self.sleep.wake();
        // The thread itself may drop the last reference, while it handles a request; it cannot join itself.
        if thread.as_pthread_t() != pthread_self() {
            let _ = thread.join();
        }
    }
}

/// State shared by a manager's ids and its background thread.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Ids whose last handle was dropped. They are kept outside `state`, which may be locked at that time.
    retired: Mutex<Vec<u64>>,
    sleep: Sleep,
    /// Fabric whose steps drive the manager in virtual time.
    pub fabric: OnceLock<Fabric>,
    /// Faults on calls of the first device that has any.
    calls: OnceLock<Injector>,
    process: ForkGeneration,
}

impl Shared {
    /// Applies the faults on a call.
    pub fn inject(&self, call: Call) -> Result<(), IdError> {
        self.calls.get().map_or(Ok(()), |calls| calls.inject(call)).map_err(IdError::Injected)
    }

    /// Runs `f` on the locked state, then sends the resulting messages and reports the resulting events.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut State) -> Result<R, IdError>) -> Result<R, IdError> {
        // In a child of fork the lock may be held for ever, by a thread that does not exist there.
        if !self.process.is_current() {
            return Err(IdError::Inherited);
        }
        let mut state = self.state.lock();
        self.end_retired(&mut state);
        let result = f(&mut state);
        self.sleep.wake_within(self.finish(state));
        result
    }

    /// Sends the pending messages, reports the pending events, and unlocks the state. Objects owned by ended
    /// ids are dropped after unlocking, because they may hold the last handles of other ids. Returns the time
    /// until the next deadline.
    fn finish<'s>(&'s self, mut state: MutexGuard<'s, State>) -> Option<Duration> {
        loop {
            self.end_retired(&mut state);
            state.turn();
            let garbage = std::mem::take(&mut state.garbage);
            let left = state.time_left();
            drop(state);
            drop(garbage);
            if self.retired.lock().is_empty() {
                return left;
            }
            // A thread that holds the lock checks `retired` again before it finishes.
            match self.state.try_lock() {
                Some(again) => state = again,
                None => return left,
            }
        }
    }

    /// Destroys the ids whose last handle was dropped.
    fn end_retired(&self, state: &mut State) {
        let retired = std::mem::take(&mut *self.retired.lock());
        retired.into_iter().for_each(|number| state.destroy(number));
    }

    /// Queues an id for destruction after its last handle was dropped, and destroys it immediately if the
    /// state is not locked.
    pub fn retire(&self, number: u64) {
        if !self.process.is_current() {
            return;
        }
        self.retired.lock().push(number);
        if let Some(state) = self.state.try_lock() {
            self.sleep.wake_within(self.finish(state));
        }
    }

    /// Processes messages and events until the owner stops the thread.
    fn run(&self) {
        while !self.sleep.stopping.load(Ordering::SeqCst) {
            let left = self.finish(self.state.lock());
            self.sleep.sleep(left);
        }
    }

    /// Hands the devices back to their background threads immediately, because the caller is about to wait
    /// for an event.
    pub fn stop_polling(&self) {
        for port in self.sleep.ports.lock().iter() {
            port.context().0.shards.stop_polling(ALL_SHARDS);
        }
    }
}

impl Driver for Shared {
    fn try_drive(&self) -> bool {
        self.state.try_lock().map(|state| self.finish(state)).is_some()
    }

    /// Does nothing, because only real-time drivers must be woken.
    fn wake(&self) {}

    fn next_deadline(&self) -> Option<crate::transport::Instant> {
        self.state.try_lock()?.deadline()
    }
}

/// State used to put the background thread to sleep and to wake it.
struct Sleep {
    wake: EventFd,
    ports: Mutex<Vec<Arc<ManagementPort>>>,
    /// Time at which the thread wakes on its own; `None` while it is awake or has no deadline.
    until: Mutex<Option<Instant>>,
    stopping: AtomicBool,
}

impl Sleep {
    fn wake(&self) {
        let _ = self.wake.write(1);
    }

    /// Wakes the thread if it would otherwise sleep for longer than `left`. Called by other threads.
    fn wake_within(&self, left: Option<Duration>) {
        let Some(at) = left.map(|left| Instant::now() + left) else { return };
        let mut until = self.until.lock();
        if until.is_none_or(|until| at < until) {
            *until = Some(at);
            self.wake();
        }
    }

    fn sleep(&self, left: Option<Duration>) {
        // A thread that has found an earlier deadline in the meantime has also written to `wake`.
        *self.until.lock() = left.map(|left| Instant::now() + left);
        let ports = self.ports.lock().clone();
        let of_ports = ports.iter().flat_map(|port| [port.as_fd(), port.context().event_fd()]);
        let fds = [self.wake.as_fd()].into_iter().chain(of_ports);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if ppoll(&mut fds, left.map(TimeSpec::from), None).is_err() {
            // ppoll fails only for lack of memory; a short sleep is better than a busy loop.
            std::thread::sleep(Duration::from_millis(1));
        }
        // From here on a deadline found by another thread must wake this one, which has not seen it.
        *self.until.lock() = None;
        let _ = self.wake.read();
    }
}
