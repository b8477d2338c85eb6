//! Devices: one for each interface that is up, or only the one that `URXE_LINK` names.

use std::ffi::{c_char, c_int, c_void};
use std::io::ErrorKind;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use parking_lot::Mutex;
use urxe::broker::SharingError;
use urxe::link::BindError;
use urxe::middleware::Middleware;
use urxe::middleware::capture::{CaptureError, CaptureFile};
use urxe::middleware::faults::FaultCounters;
use urxe::middleware::qlog::{QlogError, QlogFile};
use urxe::verbs::Retransmissions;
use urxe::verbs::errors::OpenError;
use urxe::verbs::faults::{DeviceFaults, Fault, FaultCount};
use urxe::verbs::live::LiveServer;
use urxe::verbs::{Adapter, Context as Nic, ContextOptions, Personality, WeakContext};

use crate::abi::ibv_device;
use crate::call_faults;
use crate::counters::Publisher;
use crate::env::{Settings, variable};
use crate::fault_watch;
use crate::log::warn;
use crate::object::{FfiCell, FfiObject, ffi_object};

entry_points! {
    "IBVERBS_1.1" null ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device = get_device_list;
}

export! {
    "IBVERBS_1.1":
        ibv_free_device_list = free_list,
        ibv_get_device_name = get_device_name,
        ibv_get_device_guid = get_device_guid;
    "IBVERBS_1.9": ibv_get_device_index = get_device_index;
}

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`.
const TRANSPORT_IB: c_int = 0;

/// A device in the list, which lives as long as the process.
#[repr(C)]
pub(crate) struct Device {
    c: FfiCell<ibv_device>,
    /// Zeros after the C struct: libmlx5 and libefa read a pointer there to recognise their own devices.
    zeros: [u64; 128],
    name: String,
    pub adapter: Adapter,
    pub settings: Settings,
    pub ifindex: u32,
    nic: Mutex<Option<OpenNic>>,
    fault_stats: Mutex<FaultStats>,
}

ffi_object! { Device { c: ibv_device } }

const _: () = assert!(offset_of!(Device, zeros) == size_of::<ibv_device>());

/// Statistics that the process reports at exit if `URXE_FAULTS` contains fault rules.
#[derive(Default)]
struct FaultStats {
    process: u32,
    counters: Vec<FaultCounters>,
    /// Counters of faults on objects, of each NIC opened so far.
    objects: Vec<Arc<DeviceFaults>>,
    /// Number of retransmissions by NICs already closed; `current` is that of the open NIC, as of the last
    /// time one of its contexts was closed.
    closed: Retransmissions,
    current: Retransmissions,
}

/// NIC shared by all contexts that a process has open, and the PID of that process. A forked child inherits a
/// copy of its parent's NIC, which no thread drives.
struct OpenNic {
    nic: WeakContext,
    publisher: Option<Publisher>,
    /// Server of the NIC's state for `urxe ps` and `urxe top`.
    live: Option<LiveServer>,
    process: u32,
}

/// Reason why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenDeviceError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Share(#[from] SharingError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Qlog(#[from] QlogError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl OpenDeviceError {
    pub(crate) fn errno(&self) -> c_int {
        match self {
            OpenDeviceError::Bind(e) => e.errno(),
            OpenDeviceError::Share(e) => e.errno(),
            OpenDeviceError::Capture(
                CaptureError::Create { source, .. }
                | CaptureError::Write(source)
                | CaptureError::Incomplete { source, .. },
            ) => source.raw_os_error().unwrap_or(libc::EIO),
            OpenDeviceError::Qlog(
                QlogError::Create { source, .. } | QlogError::Incomplete { source, .. },
            )
            | OpenDeviceError::Io(source) => source.raw_os_error().unwrap_or(libc::EIO),
            OpenDeviceError::Capture(_) | OpenDeviceError::Qlog(_) => libc::EIO,
            OpenDeviceError::Open(e) => e.errno(),
        }
    }
}

/// Capture file shared by all devices, and the PID of the process that created it.
static CAPTURE: Mutex<Option<(u32, CaptureFile)>> = Mutex::new(None);

/// Returns this process's capture file, creating it when the first device is opened. The file is flushed
/// several times a second, so that few packets are missing if the program is killed, and at exit.
fn capture(settings: &Settings) -> Result<Option<CaptureFile>, CaptureError> {
    let Some(name) = &settings.capture else { return Ok(None) };
    let (mut capture, process) = (CAPTURE.lock(), std::process::id());
    if let Some((of, file)) = &*capture
        && *of == process
    {
        return Ok(Some(file.clone()));
    }
    let configured_path = PathBuf::from(name.replace("%p", &process.to_string()));
    let (file, path) = match CaptureFile::create_own(&configured_path) {
        // The name is a pipe, to which only one process can write.
        Err(CaptureError::Create { source, .. }) if source.kind() == ErrorKind::ResourceBusy => {
            warn(&format!(
                "process {process} is not captured: another process already writes to {}",
                configured_path.display()
            ));
            return Ok(None);
        }
        created => created?,
    };
    if path != configured_path {
        warn(&format!("process {process} writes its capture to {}", path.display()));
    }
    if let Some(rotation) = settings.capture_rotation {
        file.rotate(rotation);
    }
    file.on_failure(|e| warn(&e.to_string()));
    file.flush_every(FLUSH_INTERVAL)?;
    // A forked child must not write out the data buffered by its parent, so the inherited handle is leaked.
    std::mem::forget(capture.replace((process, file.clone())));
    Ok(Some(file))
}

/// Event log shared by all devices, and the PID of the process that created it.
static QLOG: Mutex<Option<(u32, QlogFile)>> = Mutex::new(None);

/// Returns this process's event log, like [`capture`].
fn qlog(settings: &Settings) -> Result<Option<QlogFile>, OpenDeviceError> {
    let Some(name) = &settings.qlog else { return Ok(None) };
    let (mut qlog, process) = (QLOG.lock(), std::process::id());
    if let Some((of, file)) = &*qlog
        && *of == process
    {
        return Ok(Some(file.clone()));
    }
    let configured_path = PathBuf::from(name.replace("%p", &process.to_string()));
    let (file, path) = QlogFile::create_own(&configured_path)?;
    if path != configured_path {
        warn(&format!("process {process} writes its event log to {}", path.display()));
    }
    file.on_failure(|e| warn(&e.to_string()));
    file.flush_every(FLUSH_INTERVAL)?;
    // As with the capture, a forked child leaks the inherited handle.
    std::mem::forget(qlog.replace((process, file.clone())));
    Ok(Some(file))
}

/// Registers a function to run at process exit, because programs seldom close their devices. The function
/// acknowledges received packets, as hardware would already have done, flushes the capture, and reports the
/// effect of the fault rules. A forked child inherits the registration.
fn prepare_for_exit() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: the function remains valid until the process ends, because the library is never unloaded
        // (`-z nodelete`).
        let registered = unsafe { libc::atexit(exit) };
        debug_assert_eq!(registered, 0);
    });
}

extern "C" fn exit() {
    let _uncancelled = crate::cancel::disable();
    for device in all() {
        // An inherited NIC belongs to the parent.
        if let Some(opened) = device.nic.try_lock()
            && let Some(opened) = &*opened
            && opened.process == std::process::id()
        {
            opened.nic.acknowledge(EXIT_LOCK_TIMEOUT);
            opened.publisher.iter().for_each(Publisher::publish);
        }
    }
    crate::explain::finish();
    report_faults();
    FaultCount::set_reported();
    end_files();
}

/// Reports the effect of each fault in this process: of packet rules if the process has opened a device.
fn report_faults() {
    let (mut counters, mut retransmitted) = (Vec::new(), Retransmissions::default());
    let process = std::process::id();
    let mut objects = Vec::new();
    for device in all().iter().filter(|device| !device.settings.faults.is_empty()) {
        // Locks are tried and waited for briefly only: their holder may never release them, as this exit may
        // interrupt its call.
        let now = device.nic.try_lock().and_then(|nic| match &*nic {
            Some(opened) if opened.process == process => opened.nic.counters_within(EXIT_LOCK_TIMEOUT),
            _ => None,
        });
        if let Some(mut fault_stats) = device.fault_stats.try_lock().filter(|d| d.process == process) {
            if let Some(now) = now {
                fault_stats.current = now.into();
            }
            counters.extend(fault_stats.counters.iter().cloned());
            objects.extend(fault_stats.objects.iter().flat_map(|faults| faults.counts()));
            retransmitted += fault_stats.closed;
            retransmitted += fault_stats.current;
        }
    }
    let packet_rules = FaultCounters::sum(&counters).into_iter();
    let counts: Vec<FaultCount> =
        packet_rules.chain(call_faults::counts()).chain(FaultCount::sum(objects)).collect();
    counts.iter().for_each(|count| warn(&count.to_string()));
    if !counters.is_empty() {
        warn(&retransmitted.to_string());
    }
    if !counts.is_empty() && all().iter().any(|device| device.settings.faults.iter().any(Fault::is_random)) {
        warn(&format!("seed of random faults: {}", call_faults::seeds().seed()));
    }
    counts.iter().filter_map(FaultCount::warning).for_each(|warning| warn(&warning));
}

/// Maximum wait at process exit for a thread that holds a NIC's lock.
const EXIT_LOCK_TIMEOUT: Duration = Duration::from_millis(10);

/// Flushes the capture and the event log if this process created them. In a forked child, the locks may be held by a thread that
/// does not exist there.
fn end_files() {
    if let Some(capture) = CAPTURE.try_lock()
        && let Some((process, file)) = &*capture
        && *process == std::process::id()
        && let Err(e) = file.flush()
    {
        warn(&e.to_string());
    }
    if let Some(qlog) = QLOG.try_lock()
        && let Some((process, file)) = &*qlog
        && *process == std::process::id()
        && let Err(e) = file.flush()
    {
        warn(&e.to_string());
    }
}

/// Interval between flushes of the capture and of the event log.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of retries, one per millisecond, while the UDP port is still held by a NIC that another
/// thread is closing.
const CLOSE_RETRIES: u32 = 100;

impl Device {
    fn new(index: usize, adapter: Adapter, settings: Settings) -> Device {
        // SAFETY: `ibv_device` consists of integers, byte arrays and optional function pointers, for which
        // zeros are valid.
        let mut c: ibv_device = unsafe { std::mem::zeroed() };
        (c.node_type, c.transport_type) = (NODE_CA, TRANSPORT_IB);
        let name = settings.names.name(index);
        copy_text(&mut c.name, &name);
        copy_text(&mut c.dev_name, &format!("uverbs{index}"));
        let root = sysfs();
        copy_text(&mut c.dev_path, &format!("{root}/class/infiniband_verbs/uverbs{index}"));
        copy_text(&mut c.ibdev_path, &format!("{root}/class/infiniband/{name}"));
        let ifindex = if_nametoindex(adapter.interface.as_str()).unwrap_or(0);
        let (c, nic) = (FfiCell::new(c), Mutex::default());
        Device { c, zeros: [0; 128], name, adapter, settings, ifindex, nic, fault_stats: Mutex::default() }
    }

    /// Opens a context on the device's NIC, which all contexts of the process share.
    pub(crate) fn open(&self) -> Result<Nic, OpenDeviceError> {
        let mut opened = self.nic.lock();
        let process = std::process::id();
        let previous = opened.as_ref().filter(|o| o.process == process);
        if let Some(reopened) = previous.and_then(|o| o.nic.reopen()).transpose()?
            // A NIC whose link has failed for good is useless to a program that reopens the device to
            // recover.
            && reopened.link_state().1.is_none()
        {
            return Ok(reopened);
        }
        let mut new = self.open_first();
        // Another thread may still be closing the last context of the previous NIC.
        for _ in 0..previous.map_or(0, |_| CLOSE_RETRIES) {
            if !matches!(&new, Err(e) if e.errno() == libc::EADDRINUSE) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            new = self.open_first();
        }
        let nic = new?;
        // A previous NIC's publisher ends before the new publisher starts, because both add to one file. A
        // publisher inherited from the parent process is leaked, because its lock may be held by a thread
        // that does not exist here.
        match opened.take() {
            Some(inherited) if inherited.process != process => {
                std::mem::forget((inherited.publisher, inherited.live));
            }
            previous => drop(previous),
        }
        let publisher = Publisher::start(&sysfs(), &self.name, &nic);
        let live = self.settings.live.then(|| self.serve_live(&nic)).flatten();
        *opened = Some(OpenNic { nic: nic.downgrade(), publisher, live, process });
        Ok(nic)
    }

    /// Serves the state of the NIC. The device works without that, if it is not possible.
    fn serve_live(&self, nic: &Nic) -> Option<LiveServer> {
        let name = self.name.clone();
        let faults = move || match all().iter().find(|device| device.name == name) {
            Some(device) => device.fault_counts(),
            None => Vec::new(),
        };
        LiveServer::start(nic, &self.name, faults).ok()
    }

    /// Returns the counts of the faults of the device's NICs, and of those on calls; none if they are locked.
    fn fault_counts(&self) -> Vec<FaultCount> {
        let Some(stats) = self.fault_stats.try_lock().filter(|stats| stats.process == std::process::id())
        else {
            return Vec::new();
        };
        let objects = FaultCount::sum(stats.objects.iter().flat_map(|faults| faults.counts()));
        FaultCounters::sum(&stats.counters).into_iter().chain(call_faults::counts()).chain(objects).collect()
    }

    /// Calls `f` with the publisher of the NIC's counters, if this process has one.
    pub(crate) fn with_publisher(&self, f: impl FnOnce(&Publisher)) {
        if let Some(OpenNic { publisher: Some(publisher), process, .. }) = &*self.nic.lock()
            && *process == std::process::id()
        {
            f(publisher);
        }
    }

    /// Ends the publisher of the NIC's counters if the last context of the NIC has been closed.
    pub(crate) fn end_publisher_of_closed_nic(&self) {
        if let Some(opened) = &mut *self.nic.lock()
            && opened.process == std::process::id()
            && !opened.nic.is_open()
        {
            (opened.publisher, opened.live) = (None, None);
        }
    }

    /// Reports whether DMA-bufs can be registered. Programs (NCCL) take that for support of GPUDirect, so it
    /// has to be asked for: memory of a GPU cannot be mapped.
    pub(crate) fn has_dma_buf(&self) -> bool {
        self.settings.dma_buf || self.settings.personality == Personality::MLX5
    }

    /// Warns once of an address without a GRH.
    pub(crate) fn warn_of_lid(&self, lid: u16) {
        static WARNED: Once = Once::new();
        if self.settings.warnings {
            WARNED.call_once(|| {
                warn(&format!(
                    "warning: the program addresses LID {lid} without a GRH, which RoCE requires \
                     (ah_attr.is_global): urxe run --lid-routing accepts LIDs of neighbours"
                ));
            });
        }
    }

    fn open_first(&self) -> Result<Nic, OpenDeviceError> {
        let (link, settings) = (&self.adapter.link, &self.settings);
        let links = match &settings.sharing {
            None => link.bind_with(settings.shards, settings.offload)?,
            Some(sharing) => sharing.bind(link, settings.shards, settings.offload)?,
        };
        prepare_for_exit();
        if !settings.faults.is_empty() {
            fault_watch::start();
        }
        let (capture, qlog) = (capture(settings)?, qlog(settings)?);
        let faults = Fault::packet_rules(&settings.faults);
        let seeds = call_faults::seeds().clone();
        let middleware = Middleware { capture, captures_at_nic: false, qlog, faults, seeds };
        let (links, counters) = middleware.wrap(links, &link.to_string());
        let mut fault_stats = self.fault_stats.lock();
        if fault_stats.process != std::process::id() {
            *fault_stats = FaultStats { process: std::process::id(), ..FaultStats::default() };
        }
        fault_stats.counters.extend(counters);
        let last = std::mem::take(&mut fault_stats.current);
        fault_stats.closed += last;
        drop(fault_stats);
        let options = ContextOptions::default()
            .personality(settings.personality)
            .seed(settings.seed)
            .min_ack_timeout(settings.min_ack_timeout)
            .elide_icrcs(settings.elide_icrcs)
            .congestion(settings.congestion)
            .faults(Fault::object_faults(&settings.faults));
        let nic = Nic::open_shards(links, &options)?;
        if settings.explain {
            crate::explain::watch(&nic);
        }
        if settings.warnings {
            nic.on_warning(|warning| warn(&format!("warning: {warning}")));
        }
        if !options.faults.is_empty() {
            self.fault_stats.lock().objects.push(nic.device_faults());
        }
        Ok(nic)
    }

    /// Records a NIC's retransmissions, because the NIC may be closed afterwards.
    pub(crate) fn record_retransmissions(&self, nic: &Nic) {
        if !self.settings.faults.is_empty() {
            self.fault_stats.lock().current = nic.counters().into();
        }
    }

    /// Returns the pointer to this device that programs hold.
    pub(crate) fn as_c(&'static self) -> *mut ibv_device {
        debug_assert!(self.zeros.iter().all(|word| *word == 0));
        self.c.get()
    }
}

/// Returns the root of the sysfs tree in which programs look for devices: the value of `URXE_SYSFS`, which
/// `urxe run` sets, or of `SYSFS_PATH`, or else `/sys`.
pub(crate) fn sysfs() -> String {
    let configured_path =
        ["URXE_SYSFS", "SYSFS_PATH"].into_iter().find_map(|name| variable(name).ok().flatten());
    configured_path.map_or_else(|| "/sys".into(), |path| path.trim_end_matches('/').to_owned())
}

/// Copies text to a C array, truncated to leave room for the terminating zero that the array already holds.
pub(crate) fn copy_text(field: &mut [c_char], text: &str) {
    let max_len = field.len() - 1;
    for (to, from) in field.iter_mut().zip(text.bytes().take(max_len)) {
        *to = from as c_char;
    }
}

/// Returns all devices. They live as long as the process.
pub(crate) fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let devices = crate::log::install().and_then(|()| Settings::read()).and_then(|settings| {
            let adapters = Adapter::all(settings.link.as_ref()).map_err(|e| format!("URXE_LINK: {e}"))?;
            if adapters.is_empty() {
                warn("no device: no network interface is up with an IP address; see `ip address`");
            }
            if !Fault::call_faults(&settings.faults).is_empty() {
                // The counts are reported even if a fault keeps the program from opening a device.
                prepare_for_exit();
            }
            let numbered = adapters.into_iter().enumerate();
            Ok(numbered.map(|(i, adapter)| Device::new(i, adapter, settings.clone())).collect())
        });
        devices.unwrap_or_else(|error| {
            warn(&error);
            Vec::new()
        })
    })
}

unsafe fn get_device_list(count: *mut c_int) -> Result<*mut *mut ibv_device, c_int> {
    let devices: Vec<_> = all().iter().map(Device::as_c).collect();
    // SAFETY: `ibv_get_device_list` requires a non-null `count` to point to a writable integer.
    unsafe { list(&devices, count) }
}

/// Allocates a list of pointers that ends with null, and stores its length at `count`.
///
/// # Safety
/// `count` points to a writable integer, or is null.
pub(crate) unsafe fn list<T>(elements: &[*mut T], count: *mut c_int) -> Result<*mut *mut T, c_int> {
    // From `malloc`, as some programs free the list themselves.
    // SAFETY: `calloc` has no preconditions; the result is checked for null.
    let list: *mut *mut T = unsafe { libc::calloc(elements.len() + 1, size_of::<*mut T>()) }.cast();
    if list.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the list has room for the elements and a null behind them. The caller guarantees that `count`
    // is writable if it is not null.
    unsafe {
        list.copy_from_nonoverlapping(elements.as_ptr(), elements.len());
        if !count.is_null() {
            *count = elements.len() as c_int;
        }
    }
    Ok(list)
}

/// Frees a [`list`] of devices or contexts (`ibv_free_device_list`, `rdma_free_devices`).
pub(crate) unsafe extern "C" fn free_list(list: *mut c_void) {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: both C functions require a list from `list`, which `calloc` allocated, or null.
    unsafe { libc::free(list) };
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: `device` comes from the list; devices are never freed. Only the address of a field
    // is computed.
    unsafe { (&raw const (*device).name).cast() }
}

unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    let _uncancelled = crate::cancel::disable();
    // SAFETY: `device` comes from the list; devices are never freed.
    unsafe { Device::from_raw_ref(device) }.adapter.guid().to_be()
}

/// Returns -1, because the kernel does not know these devices and has no index for them. UCX would use an
/// index for netlink queries.
unsafe extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}
