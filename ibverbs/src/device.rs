//! Devices: one for each interface that is up, or what `URXE_LINK` names.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::net::IpAddr;
use std::sync::OnceLock;

use urxe::verbs::devices;

use crate::abi::ibv_device;
use crate::object::{Object, Shown};

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
    pub address: IpAddr,
    pub ifindex: u32,
    index: c_int,
}

// SAFETY: it is laid out so.
unsafe impl Object for Device {
    type C = ibv_device;
}

impl Device {
    fn new(index: usize, address: IpAddr, interface: &str) -> Device {
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
        Device { c: Shown::new(c), zeros: [0; 128], address, ifindex, index: index as c_int }
    }

    /// A number that no other device on the network has: made from its address, as the udp link has no MAC.
    pub fn guid(&self) -> u64 {
        let low = match self.address {
            IpAddr::V4(ip) => ip.to_bits(),
            IpAddr::V6(ip) => ip.to_bits() as u32,
        };
        0x5258_fffe_0000_0000 | u64::from(low)
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
        let found = devices().into_iter().map(|device| {
            let interface = device.name.trim_start_matches("urxe_").to_owned();
            (device.address, interface)
        });
        let found: Vec<_> = found.collect();
        let chosen = match env::var("URXE_LINK").as_deref() {
            Err(_) | Ok("udp") => one_for_each_interface(&found),
            Ok(link) => asked_for(link, &found).into_iter().collect(),
        };
        chosen.iter().enumerate().map(|(i, (address, name))| Device::new(i, *address, name)).collect()
    })
}

/// Its first IPv4 address, or its first IPv6 one; the loopback only where there is nothing else.
fn one_for_each_interface(found: &[(IpAddr, String)]) -> Vec<(IpAddr, String)> {
    let mut chosen: Vec<(IpAddr, String)> = Vec::new();
    for (address, name) in found {
        match chosen.iter_mut().find(|(_, other)| other == name) {
            None => chosen.push((*address, name.clone())),
            Some(other) if address.is_ipv4() && other.0.is_ipv6() => other.0 = *address,
            Some(_) => {}
        }
    }
    if chosen.iter().any(|(address, _)| !address.is_loopback()) {
        chosen.retain(|(address, _)| !address.is_loopback());
    }
    chosen
}

/// The device of `udp:ADDRESS`.
fn asked_for(link: &str, found: &[(IpAddr, String)]) -> Option<(IpAddr, String)> {
    let address: Option<IpAddr> = link.strip_prefix("udp:").and_then(|ip| ip.parse().ok());
    let device = address.and_then(|ip| {
        // All of 127.0.0.0/8 belongs to the loopback, though it lists one address.
        let owns = |(address, _): &&(IpAddr, String)| {
            *address == ip || ip.is_ipv4() && address.is_ipv4() && ip.is_loopback() && address.is_loopback()
        };
        found.iter().find(owns).map(|(_, interface)| (ip, interface.clone()))
    });
    if device.is_none() {
        let have: Vec<_> = found.iter().map(|(address, _)| format!("udp:{address}")).collect();
        complain(&format!("there is no link '{link}': URXE_LINK may be udp, {}", have.join(", ")));
    }
    device
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
