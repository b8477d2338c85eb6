//! Enumeration of the devices that can be opened without privileges.

use std::net::IpAddr;

use super::{Context, ContextOptions, OpenError, node_guid};
use crate::host::{Interface, interfaces};
use crate::link::LinkSpec;
use crate::link::udp::{UdpLink, UdpLinkError, UdpOptions};
use crate::wire::Gid;

/// A device that can be opened without privileges: a network interface, used through the UDP link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Name of the device: `urxe0`, `urxe1`, ...
    pub name: String,
    /// Network interface whose addresses become the device's GIDs.
    pub interface: Interface,
}

/// Reason why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum DeviceError {
    /// The socket could not be bound.
    Link(#[from] UdpLinkError),
    /// The context could not be opened on the link.
    Open(#[from] OpenError),
}

/// Returns this machine's devices: one for each interface that is up, including the loopback interface only
/// if there is no other.
///
/// Other links (in-memory fabrics, raw sockets, frames) are created by their own constructors and opened with
/// [`Context::open`] or [`Context::on_fabric`].
pub fn devices() -> Vec<Device> {
    number(interfaces())
}

fn number(mut interfaces: Vec<Interface>) -> Vec<Device> {
    // An interface with only a link-local address is more often an internal end (of a bridge, of a container)
    // than a network.
    interfaces.retain(Interface::is_routable);
    if interfaces.iter().any(|i| !i.is_loopback) {
        interfaces.retain(|i| !i.is_loopback);
    }
    let name = |i| format!("urxe{i}");
    interfaces.into_iter().enumerate().map(|(i, interface)| Device { name: name(i), interface }).collect()
}

impl Device {
    /// Returns the GIDs that the device will have once opened, provided that all of the interface's addresses
    /// can be bound.
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        self.interface.addresses.iter().map(|ip| Gid::from(*ip))
    }

    /// Returns the specification of the UDP link on the interface.
    pub fn link(&self) -> LinkSpec {
        LinkSpec::UdpOn { interface: self.interface.name.clone(), address: None }
    }

    /// Returns the node GUID that [`query_device`](Context::query_device) reports once the device is open.
    pub fn node_guid(&self) -> u64 {
        node_guid([0; 6], &self.interface.addresses)
    }

    /// Returns the interface's primary address: the first one that is not link-local, otherwise the first
    /// one.
    pub fn address(&self) -> IpAddr {
        self.interface.primary_address()
    }

    /// Opens the device by binding UDP port 4791 on its addresses.
    ///
    /// # Errors
    /// [`DeviceError`], for instance if another process has bound the port.
    pub fn open(&self, options: &ContextOptions) -> Result<Context, DeviceError> {
        self.open_shards(1, options)
    }

    /// Opens the device like [`open`](Self::open), but with several shards: see [`Context::open_shards`].
    ///
    /// # Errors
    /// [`DeviceError::Link`] if an address cannot be bound, for instance because another process has the
    /// port; [`DeviceError::Open`] if the context cannot be opened on the link.
    pub fn open_shards(&self, count: usize, options: &ContextOptions) -> Result<Context, DeviceError> {
        let links = UdpLink::bind_interface(&self.interface.name, &UdpOptions::default(), count)?;
        Ok(Context::open_shards(links.into_iter().map(|link| Box::new(link) as _).collect(), options)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, is_loopback: bool, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        Interface {
            name: name.into(),
            index: 1,
            mac: [0; 6],
            is_loopback,
            has_carrier: true,
            has_new_carrier: false,
            addresses,
        }
    }

    #[test]
    fn devices_are_numbered_and_loopback_is_the_fallback() {
        let lo = interface("lo", true, &["127.0.0.1", "::1"]);
        let veth = interface("veth0", false, &["fe80::1"]);
        let eth = ["eth0", "eth1"].map(|name| interface(name, false, &["fe80::1", "10.0.0.1"]));
        let names = |all: &[&Interface]| {
            let devices = number(all.iter().map(|i| (*i).clone()).collect());
            devices.iter().map(|d| format!("{} {}", d.name, d.link())).collect::<Vec<_>>()
        };
        assert_eq!(names(&[&veth, &lo]), ["urxe0 udp:lo"]);
        assert_eq!(names(&[&eth[0], &veth, &eth[1], &lo]), ["urxe0 udp:eth0", "urxe1 udp:eth1"]);
        let device = &number(vec![eth[0].clone()])[0];
        assert_eq!(device.gids().next().unwrap().ip(), device.interface.addresses[0]);
        assert_eq!((device.address(), device.node_guid()), ([10, 0, 0, 1].into(), 0x5258_fffe_0a00_0001));
    }
}
