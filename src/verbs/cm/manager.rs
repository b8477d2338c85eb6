//! A connection manager: its devices, and the thread that serves them.

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

use super::param::usual_service;
use super::state::State;
use super::{CmId, EventChannel, IdError, PortSpace};
use crate::cm::CmCounters;
use crate::link::background;
use crate::link::fabric::{Driver, Fabric};
use crate::link::process::Process;
use crate::transport::QpType;
use crate::verbs::{Context, ManagementPort};

/// What makes and serves ids on some devices. Cheap to clone; it lives as long as an id of it.
#[derive(Clone)]
pub struct ConnectionManager(Arc<Owner>);

impl ConnectionManager {
    /// A connection manager of these devices, of each of which it takes the QP1, so there is one for each. There may be
    /// none at first.
    ///
    /// # Errors
    /// [`IdError::System`], [`IdError::Device`].
    pub fn new(devices: Vec<Context>) -> Result<ConnectionManager, IdError> {
        let sleep = Sleep {
            wake: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
                .map_err(io::Error::from)?,
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
                process: Process::current(),
            };
            Owner { shared: Arc::new(shared), thread: Mutex::default() }
        });
        let manager = ConnectionManager(owner);
        for device in devices {
            manager.add_device(device)?;
        }
        Ok(manager)
    }

    /// Adds a device, on which ids that listen on any address do so from now on too; returns its index.
    ///
    /// # Errors
    /// [`IdError::Device`] if somebody else has its QP1, [`IdError::Open`] where the system has no descriptor left.
    pub fn add_device(&self, device: Context) -> Result<usize, IdError> {
        // With asynchronous events of its own, beside the program's.
        let port = Arc::new(device.reopen()?.management_port()?);
        let fabric = device.0.shards.virtual_fabric().map(|handle| handle.fabric().clone());
        let index = self.0.call(|state| state.add_device(device, port.clone()))?;
        match fabric {
            Some(fabric) => {
                if self.0.fabric.set(fabric.clone()).is_ok() {
                    let driver: Arc<dyn Driver> = self.0.shared.clone();
                    fabric.accompany(Arc::downgrade(&driver));
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

    /// Its devices.
    pub fn devices(&self) -> Vec<Context> {
        self.0.call(|state| Ok(state.contexts())).unwrap_or_default()
    }

    /// How many ids there are: those that programs have, and those of requests that nobody has taken.
    pub fn ids(&self) -> usize {
        self.0.call(|state| Ok(state.ids().count())).unwrap_or_default()
    }

    /// How many connections and requests its devices keep, but for those of which nothing is left but packets that may be
    /// late.
    pub fn connections(&self) -> usize {
        self.0.call(|state| Ok(state.connections())).unwrap_or_default()
    }

    /// What a device's connection manager has seen and done.
    pub fn counters(&self, device: usize) -> Option<CmCounters> {
        self.0.call(|state| Ok(state.devices.get(device).map(|device| *device.cm.counters()))).ok().flatten()
    }

    /// An id (`rdma_create_id`).
    ///
    /// # Errors
    /// [`IdError::Inherited`].
    pub fn create_id(&self, channel: &EventChannel, space: PortSpace) -> Result<CmId, IdError> {
        self.create_id_of(channel, space, usual_service(space))
    }

    /// An id of another service than its port space's usual one.
    ///
    /// # Errors
    /// [`IdError::Inherited`].
    pub fn create_id_of(
        &self,
        channel: &EventChannel,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<CmId, IdError> {
        channel.serve(&self.0);
        self.0.call(|state| Ok(state.create(&self.0, channel, space, qp_type)))
    }
}

impl fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionManager({:?})", self.devices())
    }
}

/// What programs have of it, by the manager and by ids. With this it ends, before whoever drops it goes on: its devices can
/// then be opened anew.
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
            *thread = Some(background::spawn("urxe-cm".into(), move || shared.run())?);
        }
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get_mut().take() else { return };
        if !self.process.is_current() {
            // To drop it would detach it, and a child may have another thread in its place.
            std::mem::forget(thread);
            return;
        }
        self.sleep.stopping.store(true, Ordering::SeqCst);
        self.sleep.wake();
        // A request that comes now may make it the last on the thread itself.
        if thread.as_pthread_t() != pthread_self() {
            let _ = thread.join();
        }
    }
}

/// What its ids share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Ids whose last handle is gone. Not in `state`, which may be locked where that happens.
    retired: Mutex<Vec<u64>>,
    sleep: Sleep,
    /// Where time is virtual, who drives it.
    fabric: OnceLock<Fabric>,
    process: Process,
}

impl Shared {
    /// Does something with all there is, and what follows from that.
    pub fn call<R>(&self, f: impl FnOnce(&mut State) -> Result<R, IdError>) -> Result<R, IdError> {
        // The lock may be another thread's for ever that a child of fork does not have.
        if !self.process.is_current() {
            return Err(IdError::Inherited);
        }
        let mut state = self.state.lock();
        self.end_retired(&mut state);
        let result = f(&mut state);
        self.sleep.no_longer_than(self.finish(state));
        result
    }

    /// Sends and reports what there is to, then unlocks. What goes with ids that ended is dropped without the lock: it may
    /// be the last handle of others. Returns when there is more to do.
    fn finish<'s>(&'s self, mut state: MutexGuard<'s, State>) -> Option<Duration> {
        loop {
            self.end_retired(&mut state);
            state.turn();
            let garbage = state.take_garbage();
            let left = state.time_left();
            drop(state);
            drop(garbage);
            if self.retired.lock().is_empty() {
                return left;
            }
            // Whoever has it looks again before he is done.
            match self.state.try_lock() {
                Some(again) => state = again,
                None => return left,
            }
        }
    }

    /// Ends the ids that nobody has any more.
    fn end_retired(&self, state: &mut State) {
        let retired = std::mem::take(&mut *self.retired.lock());
        retired.into_iter().for_each(|number| state.destroy(number));
    }

    /// The last handle of an id is gone.
    pub fn retire(&self, number: u64) {
        if !self.process.is_current() {
            return;
        }
        self.retired.lock().push(number);
        if let Some(state) = self.state.try_lock() {
            self.sleep.no_longer_than(self.finish(state));
        }
    }

    /// One look at the devices; returns when the next is due.
    fn turn(&self) -> Option<Duration> {
        self.finish(self.state.lock())
    }

    /// Until its owner is gone.
    fn run(&self) {
        while !self.sleep.stopping.load(Ordering::SeqCst) {
            let left = self.turn();
            self.sleep.sleep(left);
        }
    }

    /// The fabric whose steps drive it, where time is virtual.
    pub fn virtual_fabric(&self) -> Option<Fabric> {
        self.fabric.get().cloned()
    }

    /// For one who is about to wait for an event: the devices' own threads are to look at once again.
    pub fn stop_polling(&self) {
        for port in self.sleep.ports.lock().iter() {
            port.context().0.shards.stop_polling_all();
        }
    }
}

impl Driver for Shared {
    fn try_drive(&self) -> bool {
        self.state.try_lock().map(|state| self.finish(state)).is_some()
    }

    /// Only real time needs that.
    fn wake(&self) {}

    fn next_deadline(&self) -> Option<crate::transport::Instant> {
        self.state.try_lock()?.deadline()
    }
}

/// What the thread sleeps on.
struct Sleep {
    wake: EventFd,
    ports: Mutex<Vec<Arc<ManagementPort>>>,
    /// When it wakes by itself.
    until: Mutex<Option<Instant>>,
    stopping: AtomicBool,
}

impl Sleep {
    fn wake(&self) {
        let _ = self.wake.write(1);
    }

    /// For other threads than the one that sleeps.
    fn no_longer_than(&self, left: Option<Duration>) {
        let Some(at) = left.map(|left| Instant::now() + left) else { return };
        let mut until = self.until.lock();
        if until.is_none_or(|until| at < until) {
            *until = Some(at);
            self.wake();
        }
    }

    fn sleep(&self, left: Option<Duration>) {
        // Whoever found it earlier meanwhile has woken it, too.
        *self.until.lock() = left.map(|left| Instant::now() + left);
        let ports = self.ports.lock().clone();
        let of_ports = ports.iter().flat_map(|port| [port.as_fd(), port.context().event_fd()]);
        let fds = [self.wake.as_fd()].into_iter().chain(of_ports);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if ppoll(&mut fds, left.map(TimeSpec::from), None).is_err() {
            // It fails for want of memory only; a short rest is better than a loop.
            std::thread::sleep(Duration::from_millis(1));
        }
        // From here on it does not know of what others find.
        *self.until.lock() = None;
        let _ = self.wake.read();
    }
}
