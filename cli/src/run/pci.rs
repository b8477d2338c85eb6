//! PCI addresses for the devices in a sysfs tree.

use std::fs;

/// Slot on a PCI root bus; a device is function 0 of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    bus: u8,
    device: u8,
}

impl Slot {
    /// Returns the address of function 0 in the kernel's format.
    pub fn address(&self) -> String {
        format!("0000:{:02x}:{:02x}.0", self.bus, self.device)
    }

    /// Returns the bus address in the kernel's format.
    pub fn bus(&self) -> String {
        format!("0000:{:02x}", self.bus)
    }

    /// Returns the path of function 0's directory, relative to `/sys`.
    pub fn path(&self) -> String {
        format!("devices/pci{}/{}", self.bus(), self.address())
    }
}

/// Iterates over the slots in which this machine has no PCI device. Programs would take a device in an occupied
/// slot for the machine's own.
pub fn free_slots() -> impl Iterator<Item = Slot> {
    let entries = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let taken: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    free_beside(taken)
}

/// Iterates over the slots that none of the given PCI addresses is in, in descending order on each bus,
/// beginning with bus 0.
fn free_beside(taken: Vec<String>) -> impl Iterator<Item = Slot> {
    let slots = (0..=u8::MAX).flat_map(|bus| (1..32).rev().map(move |device| Slot { bus, device }));
    let is_free = move |slot: &Slot| {
        let address = slot.address();
        let (of_all_functions, _) = address.split_at(address.len() - 1);
        !taken.iter().any(|other| other.starts_with(of_all_functions))
    };
    slots.filter(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_real_devices_are_skipped() {
        let taken = ["0000:00:1f.0", "0000:00:1d.3", "0001:00:1e.0"].map(String::from).to_vec();
        let free: Vec<String> = free_beside(taken).take(3).map(|slot| slot.address()).collect();
        assert_eq!(free, ["0000:00:1e.0", "0000:00:1c.0", "0000:00:1b.0"]);
        let (on_next_bus, count) =
            (free_beside(Vec::new()).nth(31).unwrap(), free_beside(Vec::new()).count());
        assert_eq!((on_next_bus.path().as_str(), count), ("devices/pci0000:01/0000:01:1f.0", 256 * 31));
    }
}
