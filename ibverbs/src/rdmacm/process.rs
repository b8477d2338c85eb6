//! Per-process state: the connection manager, the open devices, and the ids by number.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use urxe::sys::fork::ForkGeneration;
use urxe::sys::thread::spawn_background;
use urxe::verbs::cm::ConnectionManager;

use crate::abi::{ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use crate::context::Context;
use crate::device;
use crate::errno::null;
use crate::event_objects::{ObjectTable, UnackedEvents};
use crate::log::warn;
use crate::open::{ibv_close_device, ibv_open_device};
use crate::pd::{ibv_alloc_pd, ibv_open_xrcd};

entry_points! {
    "RDMACM_1.0" null rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context = get_devices;
}

export! {
    "RDMACM_1.0": rdma_free_devices = device::free_list;
}

/// State of a process. A forked child creates its own and does not use its parent's.
pub(crate) struct ProcessGlobals {
    process: ForkGeneration,
    pub manager: ConnectionManager,
    /// Devices of the connection manager, by its device index.
    pub devices: Vec<OpenDevice>,
    /// Ids, by the number that events carry.
    pub ids: ObjectTable<u64>,
    /// Unacknowledged events, by the id whose destruction waits for them.
    pub unacked: UnackedEvents,
}

/// A device that stays open for the life of the process, with the default PD and XRC domain for programs that
/// supply none.
pub(crate) struct OpenDevice {
    pub context: *mut ibv_context,
    pd: Mutex<*mut ibv_pd>,
    xrcd: Mutex<*mut ibv_xrcd>,
}

impl Drop for OpenDevice {
    /// Closes the device. This runs only if the connection manager cannot be created, before any object
    /// exists on the device.
    fn drop(&mut self) {
        // SAFETY: `open` opened this context and no other code has the pointer.
        unsafe { ibv_close_device(self.context) };
    }
}

// SAFETY: the context and the domains are objects of this library, all of whose state may be used from any
// thread.
unsafe impl Send for OpenDevice {}
// SAFETY: all state of the context and of the domains may be used from several threads at once, and the
// pointers to the domains are behind mutexes.
unsafe impl Sync for OpenDevice {}

static PROCESS: Mutex<Option<&'static ProcessGlobals>> = Mutex::new(None);

impl ProcessGlobals {
    /// Returns the state of this process. The first call creates it and opens all devices that can be opened.
    ///
    /// # Errors
    /// An error number: there is no device, or the connection manager could not be created.
    pub(crate) fn current() -> Result<&'static ProcessGlobals, c_int> {
        let mut process = PROCESS.lock();
        match *process {
            Some(process) if !process.is_inherited() => return Ok(process),
            _ => {}
        }
        let new: &'static ProcessGlobals = Box::leak(Box::new(ProcessGlobals::open()?));
        // A forked child inherits the registration.
        if process.replace(new).is_none() {
            // SAFETY: the function remains valid until the process ends, because the library is never
            // unloaded (`-z nodelete`).
            let registered = unsafe { libc::atexit(disconnect_all) };
            debug_assert_eq!(registered, 0);
        }
        Ok(new)
    }

    fn open() -> Result<ProcessGlobals, c_int> {
        // SAFETY: the pointers are those of the device list, whose devices are never freed. The call
        // reports failures itself.
        let contexts = device::all().iter().map(|device| unsafe { ibv_open_device(device.as_c()) });
        let devices: Vec<OpenDevice> = contexts
            .filter(|context| !context.is_null())
            .map(|context| OpenDevice { context, pd: Mutex::new(null_mut()), xrcd: Mutex::new(null_mut()) })
            .collect();
        if devices.is_empty() {
            return Err(libc::ENODEV);
        }
        // SAFETY: `ibv_open_device` returned these contexts, and `devices` keeps them open.
        let nics = devices.iter().map(|d| unsafe { Context::from_raw_ref(d.context) }.nic.clone()).collect();
        let manager = ConnectionManager::new(nics).map_err(|e| {
            warn(&format!("cannot create the connection manager: {e}"));
            e.errno()
        })?;
        Ok(ProcessGlobals {
            process: ForkGeneration::current(),
            manager,
            devices,
            ids: ObjectTable::default(),
            unacked: UnackedEvents::default(),
        })
    }

    /// Reports whether this process is a forked child that inherited the state from its parent. The child
    /// does not modify it.
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns the default protection domain of a device, creating it if necessary. Returns null with `errno`
    /// set on failure.
    pub(crate) fn pd(&self, context: *mut ibv_context) -> *mut ibv_pd {
        // SAFETY: the context is that of a device that stays open as long as the process lives.
        self.default(context, |device| &device.pd, || unsafe { ibv_alloc_pd(context) })
    }

    /// Returns the default XRC domain of a device, creating it if necessary. Returns null with `errno` set on
    /// failure.
    pub(crate) fn xrcd(&self, context: *mut ibv_context) -> *mut ibv_xrcd {
        // A private domain of this process, without a file; the call requires both attributes.
        let mut attr = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: the context is that of a device that stays open as long as the process lives, and `attr` is
        // a local.
        self.default(context, |device| &device.xrcd, || unsafe { ibv_open_xrcd(context, &mut attr) })
    }

    /// Returns the default object of a device, which `create` makes unless there is one.
    fn default<T>(
        &self,
        context: *mut ibv_context,
        of: impl FnOnce(&OpenDevice) -> &Mutex<*mut T>,
        create: impl FnOnce() -> *mut T,
    ) -> *mut T {
        let Some(device) = self.devices.iter().find(|device| device.context == context) else {
            return null(libc::EINVAL);
        };
        let mut object = of(device).lock();
        if object.is_null() {
            *object = create();
        }
        *object
    }
}

/// Stages of the exit handler, in the order in which they run.
#[derive(Clone, Copy)]
pub(crate) enum ExitStage {
    Rsockets,
    Ids,
}

/// Function that ends all connections of one kind at exit. It calls its second argument whenever it has made
/// progress, so that the exiting thread keeps waiting.
pub(crate) type ExitAction = fn(&'static ProcessGlobals, &dyn Fn());

static EXIT_ACTIONS: [OnceLock<ExitAction>; 2] = [const { OnceLock::new() }; 2];

/// Sets the exit action of a stage. Called when an object to which the action applies is created; only the
/// first call has an effect.
pub(crate) fn set_exit_action(stage: ExitStage, action: ExitAction) {
    EXIT_ACTIONS[stage as usize].get_or_init(|| action);
}

/// Maximum time without progress before an exit stops waiting for connections to end.
const EXIT_TIMEOUT: Duration = Duration::from_millis(250);

/// Ends the program's remaining connections at exit, as the kernel does when descriptors are closed, so that
/// peers notice without a timeout. It does so on a separate thread: if a signal handler calls `exit`, the
/// interrupted code may hold a lock of the library, on which the exiting thread would wait forever.
extern "C" fn disconnect_all() {
    let _uncancelled = crate::cancel::disable();
    let Some(process) = PROCESS.try_lock().and_then(|process| *process) else { return };
    if process.is_inherited() {
        return;
    }
    let (progress_tx, progress_rx) = crossbeam_channel::unbounded();
    let disconnect = move || {
        let on_progress = || {
            // The receiver may have stopped waiting.
            let _ = progress_tx.send(());
        };
        EXIT_ACTIONS.iter().filter_map(OnceLock::get).for_each(|action| action(process, &on_progress));
    };
    if spawn_background("urxe-exit".into(), disconnect).is_ok() {
        while progress_rx.recv_timeout(EXIT_TIMEOUT).is_ok() {}
    }
}

unsafe fn get_devices(count: *mut c_int) -> Result<*mut *mut ibv_context, c_int> {
    let contexts: Vec<_> = ProcessGlobals::current()?.devices.iter().map(|device| device.context).collect();
    // SAFETY: `rdma_get_devices` requires a non-null `count` to point to a writable integer.
    unsafe { device::list(&contexts, count) }
}
