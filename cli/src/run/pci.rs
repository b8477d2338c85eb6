//! PCI addresses for the devices in a sysfs tree.

use std::fs;

/// Place of a device: the only function on a bus of its own, behind a root port on bus 0. NCCL takes
/// functions of one bus for ports of one adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Device and function numbers of the root port.
    port: (u8, u8),
    bus: u8,
}

/// Directory of PCI bus 0, relative to `/sys`.
const ROOT: &str = "devices/pci0000:00";

impl Slot {
    /// Returns the address of the device in the kernel's format.
    pub fn address(&self) -> String {
        format!("{}:00.0", self.bus())
    }

    /// Returns the device's bus in the kernel's format.
    pub fn bus(&self) -> String {
        format!("0000:{:02x}", self.bus)
    }

    /// Returns the address of the root port.
    pub fn port(&self) -> String {
        format!("0000:00:{:02x}.{}", self.port.0, self.port.1)
    }

    /// Returns the path of the root port's directory, relative to `/sys`.
    pub fn port_path(&self) -> String {
        format!("{ROOT}/{}", self.port())
    }

    /// Returns the path of the device's directory, relative to `/sys`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.port_path(), self.address())
    }
}

/// Iterates over places in which this machine has no PCI device, with ascending bus numbers. Programs would
/// take a device in an occupied place for the machine's own.
pub fn free_slots() -> impl Iterator<Item = Slot> {
    let entries = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let taken: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    free_beside(taken)
}

/// Iterates over the places that none of the given PCI addresses is in.
fn free_beside(taken: Vec<String>) -> impl Iterator<Item = Slot> {
    let is_free = |prefix: &str| !taken.iter().any(|address| address.starts_with(prefix));
    let devices: Vec<u8> =
        (1..32).rev().filter(|device| is_free(&format!("0000:00:{device:02x}."))).collect();
    let buses: Vec<u8> = (1..=u8::MAX).filter(|bus| is_free(&format!("0000:{bus:02x}:"))).collect();
    let ports =
        (0..8).flat_map(move |function| devices.clone().into_iter().map(move |device| (device, function)));
    buses.into_iter().zip(ports).map(|(bus, port)| Slot { port, bus })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_a_free_bus_of_its_own_in_ascending_order() {
        let taken =
            ["0000:00:1f.0", "0000:00:1d.3", "0000:02:00.1", "0001:01:00.0"].map(String::from).to_vec();
        let free: Vec<String> = free_beside(taken).take(3).map(|slot| slot.path()).collect();
        let expected = ["00:1e.0/0000:01:00.0", "00:1c.0/0000:03:00.0", "00:1b.0/0000:04:00.0"];
        assert_eq!(free, expected.map(|path| format!("devices/pci0000:00/0000:{path}")));
        let all: Vec<Slot> = free_beside(Vec::new()).collect();
        assert_eq!(
            (all.len(), all[31].port().as_str(), all[31].bus().as_str()),
            (31 * 8, "0000:00:1f.1", "0000:20")
        );
    }
}
