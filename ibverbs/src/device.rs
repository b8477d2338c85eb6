//! Devices: one for each interface that is up, or what `URXE_LINK` names.

use std::ffi::{CString, c_char, c_int};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use urxe::link::capture::{CaptureError, CaptureFile};
use urxe::link::faults::{FaultCounters, RuleCount};
use urxe::link::{BindError, Wrapping};
use urxe::verbs::{Adapter, Context as Nic, ContextOptions, OpenError, WeakContext};

use crate::abi::ibv_device;
use crate::object::{Object, Shown};
use crate::settings::{Settings, variable};

export! {
    "IBVERBS_1.1":
        ibv_get_device_list = get_device_list,
        ibv_free_device_list = free_device_list,
        ibv_get_device_name = get_device_name,
        ibv_get_device_guid = get_device_guid;
    "IBVERBS_1.9": ibv_get_device_index = get_device_index;
}

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`.
const TRANSPORT_IB: c_int = 0;

#[repr(C)]
pub struct Device {
    c: Shown<ibv_device>,
    /// libmlx5 and libefa take what is behind for a pointer, to know their own devices by.
    zeros: [u64; 128],
    pub adapter: Adapter,
    settings: Settings,
    pub ifindex: u32,
    nic: Mutex<Option<Opened>>,
    disturbed: Mutex<Disturbed>,
}

/// Counters of the fault rules in `URXE_FAULTS`, for the report at exit.
#[derive(Default)]
struct Disturbed {
    process: u32,
    counters: Vec<FaultCounters>,
    /// Packets that NICs retransmitted which are closed, and the last one when a context of it was last closed.
    before: u64,
    last: u64,
}

/// The NIC that all contexts of a process share, if there are any, and whose it is: a child has a copy of its parent's that
/// nothing drives.
struct Opened {
    nic: WeakContext,
    process: u32,
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenDeviceError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl OpenDeviceError {
    pub fn errno(&self) -> c_int {
        match self {
            OpenDeviceError::Bind(e) => e.errno(),
            OpenDeviceError::Capture(
                CaptureError::Create { source, .. }
                | CaptureError::Write(source)
                | CaptureError::Incomplete { source, .. },
            ) => source.raw_os_error().unwrap_or(libc::EIO),
            OpenDeviceError::Open(e) => e.errno(),
        }
    }
}

/// The capture of all devices, and the process that has begun it.
static CAPTURE: Mutex<Option<(u32, CaptureFile)>> = Mutex::new(None);

/// The capture of all devices of this process, begun when the first is opened. It is written out several times a second, so
/// that little is missing if the program is killed, and when it exits, so that nothing is.
fn capture(settings: &Settings) -> Result<Option<CaptureFile>, CaptureError> {
    let Some(name) = &settings.capture else { return Ok(None) };
    let (mut capture, process) = (CAPTURE.lock(), std::process::id());
    if let Some((of, file)) = &*capture
        && *of == process
    {
        return Ok(Some(file.clone()));
    }
    let named = PathBuf::from(name.replace("%p", &process.to_string()));
    let (file, own) = match CaptureFile::create_own(&named) {
        // A pipe, which only one process can write to.
        Err(CaptureError::Create { source, .. }) if source.kind() == ErrorKind::ResourceBusy => {
            complain(&format!(
                "process {process} is not captured: another one writes to {}",
                named.display()
            ));
            return Ok(None);
        }
        created => created?,
    };
    if own != named {
        complain(&format!("process {process} is captured in {}", own.display()));
    }
    file.on_failure(|e| complain(&e.to_string()));
    file.flush_every(FLUSH)?;
    // What a child has of its parent's is for the parent to write out.
    std::mem::forget(capture.replace((process, file.clone())));
    Ok(Some(file))
}

/// What is left to do when the process exits, with devices open perhaps: programs that are done seldom close them, and
/// hardware has acknowledged what they have taken. A child inherits this from its parent.
fn prepare_for_exit() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: the function stays: the library is never unloaded.
        let registered = unsafe { libc::atexit(exit) };
        debug_assert_eq!(registered, 0);
    });
}

extern "C" fn exit() {
    let _uncancelled = crate::cancel::disable();
    for device in all() {
        // A child's copy of its parent's is for the parent.
        if let Some(opened) = device.nic.try_lock()
            && let Some(opened) = &*opened
            && opened.process == std::process::id()
        {
            opened.nic.acknowledge(AT_EXIT);
        }
    }
    report_faults();
    end_capture();
}

/// Says what each fault rule did in this process, if it has opened a device.
fn report_faults() {
    let (mut counters, mut retransmitted, process) = (Vec::new(), 0, std::process::id());
    for device in all().iter().filter(|device| !device.settings.faults.is_empty()) {
        // Without waiting for long: a thread that has a lock may never give it back, as this exit may be in the middle of its call.
        let now = device.nic.try_lock().and_then(|nic| match &*nic {
            Some(opened) if opened.process == process => opened.nic.counters_within(AT_EXIT),
            _ => None,
        });
        if let Some(mut disturbed) = device.disturbed.try_lock().filter(|d| d.process == process) {
            if let Some(now) = now {
                disturbed.last = now.retransmitted_pkts + now.ack_probe;
            }
            counters.extend(disturbed.counters.iter().cloned());
            retransmitted += disturbed.before + disturbed.last;
        }
    }
    if counters.is_empty() {
        return;
    }
    let rules = RuleCount::sum(&counters);
    rules.iter().for_each(|rule| complain(&rule.to_string()));
    complain(&format!("packets retransmitted: {retransmitted}"));
    rules.iter().filter_map(RuleCount::warning).for_each(|warning| complain(&warning));
}

/// How long an exit waits for whoever is at a NIC.
const AT_EXIT: Duration = Duration::from_millis(10);

/// Writes out what is captured, if this process began it: a child has no thread that would ever give up the locks.
fn end_capture() {
    if let Some(capture) = CAPTURE.try_lock()
        && let Some((process, file)) = &*capture
        && *process == std::process::id()
        && let Err(e) = file.flush()
    {
        complain(&e.to_string());
    }
}

/// How often a capture is written out.
const FLUSH: Duration = Duration::from_millis(200);

/// How long a NIC that is being closed may take to give up its port, in steps of a millisecond.
const CLOSING: u32 = 100;

// SAFETY: it is laid out so.
unsafe impl Object for Device {
    type C = ibv_device;
}

impl Device {
    fn new(index: usize, adapter: Adapter, settings: Settings) -> Device {
        // SAFETY: all of an `ibv_device` may be zeros.
        let mut c: ibv_device = unsafe { std::mem::zeroed() };
        (c.node_type, c.transport_type) = (NODE_CA, TRANSPORT_IB);
        let name = format!("urxe{index}");
        copy_text(&mut c.name, &name);
        copy_text(&mut c.dev_name, &format!("uverbs{index}"));
        let root = sysfs();
        copy_text(&mut c.dev_path, &format!("{root}/class/infiniband_verbs/uverbs{index}"));
        copy_text(&mut c.ibdev_path, &format!("{root}/class/infiniband/{name}"));
        let interface = CString::new(adapter.interface.as_str()).unwrap_or_default();
        // SAFETY: the name ends with a zero.
        let ifindex = unsafe { libc::if_nametoindex(interface.as_ptr()) };
        let (c, nic) = (Shown::new(c), Mutex::default());
        Device { c, zeros: [0; 128], adapter, settings, ifindex, nic, disturbed: Mutex::default() }
    }

    /// A context of its own on the device's NIC.
    pub fn open(&self) -> Result<Nic, OpenDeviceError> {
        let mut opened = self.nic.lock();
        let process = std::process::id();
        let before = opened.as_ref().filter(|o| o.process == process);
        if let Some(again) = before.and_then(|o| o.nic.reopen()).transpose()?
            // One whose link is gone for good is of no use to a program that opens it to begin anew.
            && again.link_state().1.is_none()
        {
            return Ok(again);
        }
        let mut new = self.open_first();
        // The last context of before may be closing in another thread.
        for _ in 0..before.map_or(0, |_| CLOSING) {
            if !matches!(&new, Err(e) if e.errno() == libc::EADDRINUSE) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            new = self.open_first();
        }
        let nic = new?;
        *opened = Some(Opened { nic: nic.downgrade(), process });
        Ok(nic)
    }

    /// See [`urxe::transport::Habits::reports_missed_completions`].
    pub fn reports_missed_completions(&self) -> bool {
        self.settings.personality.habits.reports_missed_completions
    }

    fn open_first(&self) -> Result<Nic, OpenDeviceError> {
        let Settings { shards, personality, seed, faults, sharing, offload, min_ack_timeout, .. } =
            &self.settings;
        let links = self.adapter.link.bind_with(*shards, sharing.as_ref(), *offload)?;
        prepare_for_exit();
        let capture = capture(&self.settings)?;
        let wrapping = Wrapping { capture, faults: faults.clone(), seed: seed.unwrap_or(0) };
        let (links, counters) = wrapping.around(links, &self.adapter.link.to_string());
        let mut disturbed = self.disturbed.lock();
        if disturbed.process != std::process::id() {
            *disturbed = Disturbed { process: std::process::id(), ..Disturbed::default() };
        }
        disturbed.counters.extend(counters);
        disturbed.before += std::mem::take(&mut disturbed.last);
        drop(disturbed);
        let options = ContextOptions {
            personality: *personality,
            seed: *seed,
            min_ack_timeout: *min_ack_timeout,
            ..ContextOptions::default()
        };
        Ok(Nic::open_shards(links, &options)?)
    }

    /// Keeps count of what a NIC retransmitted: it may be closed after this.
    pub fn note_retransmissions(&self, nic: &Nic) {
        if !self.settings.faults.is_empty() {
            let counters = nic.counters();
            self.disturbed.lock().last = counters.retransmitted_pkts + counters.ack_probe;
        }
    }

    pub fn as_c(&'static self) -> *mut ibv_device {
        debug_assert!(self.zeros.iter().all(|word| *word == 0));
        self.c.get()
    }
}

/// Where programs look for what the kernel says of devices: in the tree that `urxe run` has made, if there is one.
pub fn sysfs() -> String {
    let named = ["URXE_SYSFS", "SYSFS_PATH"].into_iter().find_map(|name| variable(name).ok().flatten());
    named.map_or_else(|| "/sys".into(), |path| path.trim_end_matches('/').to_owned())
}

/// Copies text to a field of C's, which ends with a zero.
pub fn copy_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (to, from) in field.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

/// What a program hears where it can hear no more than that something went wrong.
pub fn complain(text: &str) {
    eprintln!("urxe: {text}");
}

/// The devices; they stay for good.
pub fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let devices = Settings::read().and_then(|settings| {
            let adapters = Adapter::all(settings.link.as_ref()).map_err(|e| format!("URXE_LINK: {e}"))?;
            if adapters.is_empty() {
                complain(
                    "there is no device, as no interface is up and has an address: `ip address` lists them",
                );
            }
            let numbered = adapters.into_iter().enumerate();
            Ok(numbered.map(|(i, adapter)| Device::new(i, adapter, settings.clone())).collect())
        });
        devices.unwrap_or_else(|why| {
            complain(&why);
            Vec::new()
        })
    })
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let _uncancelled = crate::cancel::disable();
    let devices = all();
    // From malloc, as programs free what they are given in their own ways.
    // SAFETY: calloc takes any sizes.
    let list: *mut *mut ibv_device =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast();
    if list.is_null() {
        return crate::errno::null(libc::ENOMEM);
    }
    for (i, device) in devices.iter().enumerate() {
        // SAFETY: the list has room for all, and a null behind them.
        unsafe { *list.add(i) = device.as_c() };
    }
    if !count.is_null() {
        // SAFETY: the caller's integer.
        unsafe { *count = devices.len() as c_int };
    }
    list
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: it is from `get_device_list`, or null.
    unsafe { libc::free(list.cast()) };
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of the list.
    unsafe { (&raw const (*device).name).cast() }
}

unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: a device of the list.
    unsafe { Device::of(device) }.adapter.guid().to_be()
}

/// The kernel's number of a device, by which UCX asks it for more over netlink: the kernel knows none of these devices.
unsafe extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}
