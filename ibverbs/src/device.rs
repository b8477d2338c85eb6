//! Devices: one for each interface that is up, or what `URXE_LINK` names.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use urxe::link::capture::{CaptureError, CaptureFile, Timestamps};
use urxe::link::{BindError, Interface, LinkSpec, Wrapping, interfaces, main_address};
use urxe::verbs::{Context as Nic, ContextOptions, OpenError, WeakContext, devices, node_guid};

use crate::abi::ibv_device;
use crate::object::{Object, Shown};
use crate::settings::Settings;

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
    link: LinkSpec,
    settings: Settings,
    guid: u64,
    pub ifindex: u32,
    index: c_int,
    nic: Mutex<Option<Opened>>,
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
            OpenDeviceError::Capture(CaptureError::Create { source, .. } | CaptureError::Write(source)) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            OpenDeviceError::Open(e) => e.errno(),
        }
    }
}

/// The capture of all devices of this process, begun when the first is opened. It is written out several times a second, so
/// that little is missing however the program ends.
fn capture(settings: &Settings) -> Result<Option<CaptureFile>, CaptureError> {
    static CAPTURE: Mutex<Option<(u32, CaptureFile)>> = Mutex::new(None);
    let Some(name) = &settings.capture else { return Ok(None) };
    let (mut capture, process) = (CAPTURE.lock(), std::process::id());
    if let Some((of, file)) = &*capture
        && *of == process
    {
        return Ok(Some(file.clone()));
    }
    let file = CaptureFile::create(name.replace("%p", &process.to_string()), Timestamps::Wall)?;
    file.flush_every(FLUSH)?;
    // What a child has of its parent's is for the parent to write out.
    std::mem::forget(capture.replace((process, file.clone())));
    Ok(Some(file))
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
    fn new(index: usize, chosen: Chosen, settings: Settings) -> Device {
        let Chosen { link, guid, interface } = chosen;
        // SAFETY: all of an `ibv_device` may be zeros.
        let mut c: ibv_device = unsafe { std::mem::zeroed() };
        (c.node_type, c.transport_type) = (NODE_CA, TRANSPORT_IB);
        let name = format!("urxe{index}");
        copy_text(&mut c.name, &name);
        copy_text(&mut c.dev_name, &format!("uverbs{index}"));
        let root = sysfs();
        copy_text(&mut c.dev_path, &format!("{root}/class/infiniband_verbs/uverbs{index}"));
        copy_text(&mut c.ibdev_path, &format!("{root}/class/infiniband/{name}"));
        let interface = CString::new(interface).unwrap_or_default();
        // SAFETY: the name ends with a zero.
        let ifindex = unsafe { libc::if_nametoindex(interface.as_ptr()) };
        let (c, index, nic) = (Shown::new(c), index as c_int, Mutex::default());
        Device { c, zeros: [0; 128], link, settings, guid, ifindex, index, nic }
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

    fn open_first(&self) -> Result<Nic, OpenDeviceError> {
        let Settings { shards, personality, seed, faults, sharing, .. } = &self.settings;
        let links = match sharing {
            Some(sharing) => self.link.bind_shared(*shards, sharing)?,
            None => self.link.bind(*shards)?,
        };
        let capture = capture(&self.settings)?;
        let wrapping = Wrapping { capture, faults: faults.clone(), seed: seed.unwrap_or(0) };
        let (links, _) = wrapping.around(links, &self.link.to_string());
        let options = ContextOptions { personality: *personality, seed: *seed, ..ContextOptions::default() };
        Ok(Nic::open_shards(links, &options)?)
    }

    /// A number that no other device on the network has.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    pub fn as_c(&'static self) -> *mut ibv_device {
        debug_assert!(self.zeros.iter().all(|word| *word == 0));
        self.c.get()
    }
}

/// Where programs look for what the kernel says of devices.
pub fn sysfs() -> String {
    env::var("SYSFS_PATH").map_or_else(|_| "/sys".into(), |path| path.trim_end_matches('/').to_owned())
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
fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let devices = Settings::read().and_then(|settings| {
            let found = found(&settings)?;
            let numbered = found.into_iter().enumerate();
            Ok(numbered.map(|(i, chosen)| Device::new(i, chosen, settings.clone())).collect())
        });
        devices.unwrap_or_else(|why| {
            complain(&why);
            Vec::new()
        })
    })
}

/// What a device is made on.
struct Chosen {
    link: LinkSpec,
    /// What the NIC will have for its node GUID.
    guid: u64,
    interface: String,
}

/// The links that the settings name, or one for each interface.
fn found(settings: &Settings) -> Result<Vec<Chosen>, String> {
    let Some(link) = settings.link.clone().filter(|link| *link != LinkSpec::Udp(None)) else {
        let all = devices().into_iter();
        return Ok(all
            .map(|d| Chosen { link: d.link(), guid: d.node_guid(), interface: d.interface.name })
            .collect());
    };
    let there = interfaces();
    let (interface, mac, addresses) = match &link {
        LinkSpec::Udp(Some(ip)) => (owner_of(*ip, &there)?.name.clone(), [0; 6], vec![*ip]),
        LinkSpec::UdpOn { interface, address } => {
            let of = named(interface, &there)?;
            (of.name.clone(), [0; 6], address.map_or_else(|| of.addresses.clone(), |ip| vec![ip]))
        }
        LinkSpec::Packet(config) => {
            let (mac, addresses) = match &config.station {
                Some(station) => (station.mac.0, station.addresses.iter().map(|a| a.ip).collect()),
                None => {
                    let none = || {
                        let name = &config.interface;
                        format!("interface {name} has no address: add ip=ADDRESS/PREFIX to the link")
                    };
                    let of = there.iter().find(|i| i.name == config.interface).ok_or_else(none)?;
                    (of.mac, of.addresses.clone())
                }
            };
            (config.interface.clone(), mac, addresses)
        }
        LinkSpec::Frames(config) => {
            let addresses: Vec<IpAddr> = config.station.addresses.iter().map(|a| a.ip).collect();
            main_address(&addresses).ok_or("a frames link needs ip=ADDRESS/PREFIX")?;
            (String::new(), config.station.mac.0, addresses)
        }
        LinkSpec::Udp(None) | LinkSpec::Fabric => {
            return Err(
                "a fabric is within one program: URXE_LINK may be udp[:ADDR], udp:IF, packet:IF or frames:…".into()
            );
        }
    };
    Ok(vec![Chosen { link, guid: node_guid(mac, &addresses), interface }])
}

/// The interface that an address belongs to.
fn owner_of(ip: IpAddr, there: &[Interface]) -> Result<&Interface, String> {
    there.iter().find(|i| i.owns(ip)).ok_or_else(|| {
        let have: Vec<_> = there.iter().flat_map(|i| &i.addresses).map(|ip| format!("udp:{ip}")).collect();
        format!("there is no link 'udp:{ip}': URXE_LINK may be udp, {}", have.join(", "))
    })
}

/// The interface of a name.
fn named<'a>(name: &str, there: &'a [Interface]) -> Result<&'a Interface, String> {
    there.iter().find(|i| i.name == name).ok_or_else(|| {
        let have: Vec<_> = there.iter().map(|i| format!("udp:{}", i.name)).collect();
        format!("there is no link 'udp:{name}': URXE_LINK may be udp, {}", have.join(", "))
    })
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
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
    // SAFETY: it is from `get_device_list`, or null.
    unsafe { libc::free(list.cast()) };
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of the list.
    unsafe { (&raw const (*device).name).cast() }
}

unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: a device of the list.
    unsafe { Device::of(device) }.guid().to_be()
}

unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: a device of the list.
    unsafe { Device::of(device) }.index
}
