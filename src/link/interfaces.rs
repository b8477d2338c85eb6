//! The interfaces of this machine (network namespace), with their addresses in the order of a GID table.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

/// An interface that is up and has an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its MAC address, zeros where it has none.
    pub mac: [u8; 6],
    /// Whether it leads nowhere but to this machine.
    pub is_loopback: bool,
    /// Whether its cable is plugged in.
    pub has_carrier: bool,
    /// Its addresses, as the GID table of a device on it has them: link-local IPv6 first, then IPv4, then other IPv6, each
    /// in the system's order. So has the kernel's rxe, and programs know the index of the GID that they want.
    pub addresses: Vec<IpAddr>,
}

/// All of them, in the system's order but the loopback last.
pub fn interfaces() -> Vec<Interface> {
    let with_addresses = pnet_datalink::interfaces().into_iter().filter(|i| i.is_up() && !i.ips.is_empty());
    let mut all: Vec<Interface> = with_addresses
        .map(|i| {
            let mut addresses: Vec<IpAddr> = i.ips.iter().map(|net| net.ip()).collect();
            addresses.sort_by_key(place_in_gid_table);
            // One address may be there more than once, with several prefixes.
            let mut seen = HashSet::new();
            addresses.retain(|ip| seen.insert(*ip));
            let (is_loopback, has_carrier) = (i.is_loopback(), i.is_running());
            let mac = i.mac.map_or([0; 6], |mac| mac.octets());
            Interface { name: i.name, index: i.index, mac, is_loopback, has_carrier, addresses }
        })
        .collect();
    all.sort_by_key(|i| i.is_loopback);
    all
}

impl Interface {
    /// The address that stands for it: its first that means something without its name, or its first.
    pub fn main_address(&self) -> IpAddr {
        main_address(&self.addresses).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    /// Whether it has an address that means something without its name.
    pub fn is_routable(&self) -> bool {
        !self.addresses.iter().all(is_link_local)
    }

    /// Whether packets to `ip` are for it. All of 127.0.0.0/8 belongs to the loopback, though it lists one address.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip) || self.is_loopback && ip.is_ipv4() && ip.is_loopback()
    }
}

/// The address that stands for a device which has all of these: its first that is not of one link, or its first.
pub fn main_address(addresses: &[IpAddr]) -> Option<IpAddr> {
    addresses.iter().find(|ip| !is_link_local(ip)).or(addresses.first()).copied()
}

/// Sorts addresses as kernel devices have them in their GID tables.
pub(super) fn place_in_gid_table(ip: &IpAddr) -> u8 {
    match ip {
        ip if is_link_local(ip) => 0,
        IpAddr::V4(_) => 1,
        IpAddr::V6(_) => 2,
    }
}

/// Of IPv6: one of IPv4 means something without an interface.
fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_the_last_and_owns_all_of_its_net() {
        let all = interfaces();
        let last = all.last().expect("every machine has a loopback interface");
        assert!(last.is_loopback && last.main_address() == Ipv4Addr::LOCALHOST, "{all:?}");
        assert!(last.owns([127, 9, 9, 9].into()) && !last.owns([192, 0, 2, 1].into()));
    }

    #[test]
    fn link_local_addresses_are_first_and_global_ipv6_last() {
        let text = ["2001:db8::1", "10.0.0.1", "fe80::1", "169.254.1.1", "fd00::1"];
        let mut addresses = text.map(|ip| ip.parse().unwrap());
        addresses.sort_by_key(place_in_gid_table);
        let sorted = ["fe80::1", "10.0.0.1", "169.254.1.1", "2001:db8::1", "fd00::1"];
        assert_eq!(addresses, sorted.map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!(main_address(&addresses), Some(addresses[1]));
        assert_eq!(main_address(&addresses[..1]), Some(addresses[0]));
    }
}
