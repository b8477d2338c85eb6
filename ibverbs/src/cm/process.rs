//! What each process has one of: the connection manager, with all devices, and the ids by name.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use urxe::verbs::cm::ConnectionManager;

use crate::abi::{ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use crate::cm::id::Id;
use crate::context::{Context, Names, Unacked, close_device, open_device, queue_at};
use crate::device::{self, complain};
use crate::domain::{alloc_pd, open_xrcd};
use crate::errno::null;
use crate::object::Object;

export! {
    "RDMACM_1.0":
        rdma_get_devices = get_devices,
        rdma_free_devices = free_devices;
}

/// Of one process. A child has none of its parent's.
pub struct Process {
    number: u32,
    pub manager: ConnectionManager,
    devices: Vec<Device>,
    /// Ids by their numbers.
    pub ids: Names<u64>,
    /// Events that were given out and not acknowledged, by the id that waits for them.
    pub unacked: Unacked,
}

/// A device, open for as long as the process lives, and the domains of those who bring none.
struct Device {
    context: *mut ibv_context,
    pd: Mutex<*mut ibv_pd>,
    xrcd: Mutex<*mut ibv_xrcd>,
}

impl Drop for Device {
    /// Only of a process that came to nothing, so nothing was made in it.
    fn drop(&mut self) {
        // SAFETY: it was opened, and nobody else has it.
        unsafe { close_device(self.context) };
    }
}

// SAFETY: the pointers are to what this library gives out to all threads of a program.
unsafe impl Send for Device {}
// SAFETY: the same.
unsafe impl Sync for Device {}

static PROCESS: Mutex<Option<&'static Process>> = Mutex::new(None);

impl Process {
    /// This process's, with all devices that can be opened.
    ///
    /// # Errors
    /// An error number: there is no device, or the manager could not be made.
    pub fn this() -> Result<&'static Process, c_int> {
        let mut process = PROCESS.lock();
        match *process {
            Some(process) if !process.is_inherited() => return Ok(process),
            _ => {}
        }
        let new: &'static Process = Box::leak(Box::new(Process::open()?));
        // A child inherits this from its parent.
        if process.replace(new).is_none() {
            // SAFETY: the function stays: the library is never unloaded.
            let registered = unsafe { libc::atexit(end_connections) };
            debug_assert_eq!(registered, 0);
        }
        Ok(new)
    }

    fn open() -> Result<Process, c_int> {
        // SAFETY: devices of the list; what is wrong with one is said where it is opened.
        let opened = device::all().iter().map(|device| unsafe { open_device(device.as_c()) });
        let devices: Vec<Device> = opened
            .filter(|context| !context.is_null())
            .map(|context| Device { context, pd: Mutex::new(null_mut()), xrcd: Mutex::new(null_mut()) })
            .collect();
        if devices.is_empty() {
            return Err(libc::ENODEV);
        }
        // SAFETY: open contexts.
        let nics = devices.iter().map(|d| unsafe { Context::of(d.context) }.nic.clone()).collect();
        let manager = ConnectionManager::new(nics).map_err(|e| {
            complain(&format!("the connection manager: {e}"));
            e.errno()
        })?;
        let number = std::process::id();
        Ok(Process { number, manager, devices, ids: Names::default(), unacked: Unacked::default() })
    }

    /// Whether it is the parent's: what is of it stays as it is in the child.
    pub fn is_inherited(&self) -> bool {
        self.number != std::process::id()
    }

    /// The device of an index of the manager's.
    pub fn context(&self, index: usize) -> *mut ibv_context {
        self.devices.get(index).map_or(null_mut(), |device| device.context)
    }

    /// The default protection domain of a device; null, with `errno` set, if there can be none.
    pub fn pd(&self, context: *mut ibv_context) -> *mut ibv_pd {
        let Some(device) = self.devices.iter().find(|device| device.context == context) else {
            return null(libc::EINVAL);
        };
        let mut pd = device.pd.lock();
        if pd.is_null() {
            // SAFETY: an open context.
            *pd = unsafe { alloc_pd(context) };
        }
        *pd
    }

    /// The default XRC domain of a device; null, with `errno` set, if there can be none.
    pub fn xrcd(&self, context: *mut ibv_context) -> *mut ibv_xrcd {
        let Some(device) = self.devices.iter().find(|device| device.context == context) else {
            return null(libc::EINVAL);
        };
        let mut xrcd = device.xrcd.lock();
        if xrcd.is_null() {
            // With no file it is this process's alone; both attributes are given.
            let mut attr = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: an open context.
            *xrcd = unsafe { open_xrcd(context, &mut attr) };
        }
        *xrcd
    }
}

/// How long an exit waits for the end of each id.
const AT_EXIT: Duration = Duration::from_millis(250);

/// Ends what the program has left when it exits, as the kernel does of descriptors: peers need not find out by themselves.
/// On a thread of its own: one that exits in a signal handler may have interrupted itself with a lock of the library, for
/// which it would wait for ever.
extern "C" fn end_connections() {
    let _uncancelled = crate::cancel::disable();
    let Some(process) = PROCESS.try_lock().and_then(|process| *process) else { return };
    if process.is_inherited() {
        return;
    }
    let (tell, ended) = mpsc::channel();
    let end = move || {
        crate::rsocket::close_all(&|| {
            let _ = tell.send(());
        });
        process.ids.each(|address| {
            // SAFETY: no id is freed before its name is gone.
            unsafe { Id::of(queue_at(address)) }.id.destroy();
            // The process may have no more patience.
            let _ = tell.send(());
        });
    };
    if spawn("urxe-exit", end).is_ok() {
        while ended.recv_timeout(AT_EXIT).is_ok() {}
    }
}

/// A thread that takes none of the program's signals.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    // SAFETY: sets of signals may be zeros, and are filled in; a thread inherits the mask, which is the caller's again then.
    unsafe {
        let (mut all, mut programs): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&mut all);
        // Blocked, a fault would end the process though there is a handler for it.
        libc::sigdelset(&mut all, libc::SIGSEGV);
        libc::sigdelset(&mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut programs);
        let spawned = Builder::new().name(name.into()).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &programs, std::ptr::null_mut());
        spawned
    }
}

unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let _uncancelled = crate::cancel::disable();
    let process = match Process::this() {
        Ok(process) => process,
        Err(e) => return null(e),
    };
    // SAFETY: calloc takes any sizes.
    let list: *mut *mut ibv_context =
        unsafe { libc::calloc(process.devices.len() + 1, size_of::<*mut ibv_context>()) }.cast();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    for (i, device) in process.devices.iter().enumerate() {
        // SAFETY: the list has room for all, and a null behind them.
        unsafe { *list.add(i) = device.context };
    }
    if !count.is_null() {
        // SAFETY: the caller's integer.
        unsafe { *count = process.devices.len() as c_int };
    }
    list
}

unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: it is from `get_devices`, or null.
    unsafe { libc::free(list.cast()) };
}
