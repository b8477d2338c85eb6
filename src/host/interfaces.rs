//! The network interfaces in the current network namespace, each with its addresses in GID table order.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

/// A network interface that is up and has an address.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// MAC address, all zeros if the interface has none.
    pub mac: [u8; 6],
    /// Whether this is a loopback interface.
    pub is_loopback: bool,
    /// Whether the interface has a carrier.
    pub has_carrier: bool,
    /// Whether the interface has a carrier (IFF_LOWER_UP), but is not yet operational (IFF_RUNNING), so that
    /// `has_carrier` is false.
    pub(crate) has_new_carrier: bool,
    /// The addresses in GID table order: link-local IPv6 first, then IPv4, then other IPv6, each group in
    /// the order that the system lists them. The kernel's rxe uses the same order, and programs rely on
    /// GID indices.
    pub addresses: Vec<IpAddr>,
}

/// Returns all interfaces that are up and have an address, in the order that the system lists them, except
/// that loopback interfaces come last.
pub fn interfaces() -> Vec<Interface> {
    let with_addresses = pnet_datalink::interfaces().into_iter().filter(|i| i.is_up() && !i.ips.is_empty());
    let mut all: Vec<Interface> = with_addresses
        .map(|i| {
            let mut addresses: Vec<IpAddr> = i.ips.iter().map(|net| net.ip()).collect();
            addresses.sort_by_key(gid_table_order);
            // An address can be listed more than once, with several prefixes.
            let mut seen = HashSet::new();
            addresses.retain(|ip| seen.insert(*ip));
            let (is_loopback, has_carrier) = (i.is_loopback(), i.is_running());
            let has_new_carrier = i.is_lower_up() && !has_carrier && !i.is_dormant();
            let mac = i.mac.map_or([0; 6], |mac| mac.octets());
            Interface {
                name: i.name,
                index: i.index,
                mac,
                is_loopback,
                has_carrier,
                has_new_carrier,
                addresses,
            }
        })
        .collect();
    all.sort_by_key(|i| i.is_loopback);
    all
}

impl Interface {
    /// Returns the primary address: the first one that is usable without naming the interface (not link-local
    /// IPv6), or else the first one.
    pub fn primary_address(&self) -> IpAddr {
        primary_address(&self.addresses).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    /// Reports whether any address is usable without naming the interface (not link-local IPv6).
    pub fn is_routable(&self) -> bool {
        !self.addresses.iter().all(is_link_local)
    }

    /// Reports whether packets to `ip` are for this interface. The loopback interface owns all of
    /// 127.0.0.0/8, although it lists only one address.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip) || self.is_loopback && ip.is_ipv4() && ip.is_loopback()
    }
}

/// Returns the primary address of a device with the given addresses: the first one that is not link-local
/// IPv6, or else the first one.
pub fn primary_address(addresses: &[IpAddr]) -> Option<IpAddr> {
    addresses.iter().find(|ip| !is_link_local(ip)).or(addresses.first()).copied()
}

/// Returns the sort key that puts addresses in GID table order.
pub(crate) fn gid_table_order(ip: &IpAddr) -> u8 {
    match ip {
        ip if is_link_local(ip) => 0,
        IpAddr::V4(_) => 1,
        IpAddr::V6(_) => 2,
    }
}

/// Reports whether `ip` is a link-local IPv6 address. Link-local IPv4 addresses do not count: they are usable
/// without naming an interface.
pub(crate) fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_is_listed_last_and_owns_its_whole_network() {
        let all = interfaces();
        let last = all.last().expect("every machine has a loopback interface");
        assert!(last.is_loopback && last.primary_address() == Ipv4Addr::LOCALHOST, "{all:?}");
        assert!(last.owns([127, 9, 9, 9].into()) && !last.owns([192, 0, 2, 1].into()));
    }

    #[test]
    fn gid_table_lists_link_local_addresses_first_and_global_ipv6_addresses_last() {
        let text = ["2001:db8::1", "10.0.0.1", "fe80::1", "169.254.1.1", "fd00::1"];
        let mut addresses = text.map(|ip| ip.parse().unwrap());
        addresses.sort_by_key(gid_table_order);
        let sorted = ["fe80::1", "10.0.0.1", "169.254.1.1", "2001:db8::1", "fd00::1"];
        assert_eq!(addresses, sorted.map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!(primary_address(&addresses), Some(addresses[1]));
        assert_eq!(primary_address(&addresses[..1]), Some(addresses[0]));
    }
}
