use std::net::IpAddr;

use super::{Context, ContextOptions, OpenError, node_guid};
use crate::link::udp::{UdpLink, UdpLinkError, UdpOptions};
use crate::link::{Interface, LinkSpec, interfaces};
use crate::wire::Gid;

/// A device that this machine offers without any privilege: an interface, over the udp link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name: `urxe0`, `urxe1`…
    pub name: String,
    /// Its interface, whose addresses are its GIDs.
    pub interface: Interface,
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The socket could not be had.
    #[error(transparent)]
    Link(#[from] UdpLinkError),
    /// The context could not be opened on it.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The devices of this machine, one for each interface that is up; the loopback only where there is nothing else.
///
/// Other links (in-memory fabrics, raw sockets, frames) are made by their own constructors and opened with
/// [`Context::open`] or [`Context::on_fabric`].
pub fn devices() -> Vec<Device> {
    number(interfaces())
}

fn number(mut interfaces: Vec<Interface>) -> Vec<Device> {
    // With nothing but a link-local address, it is an end of something (a bridge, a container) more often than a network.
    interfaces.retain(Interface::is_routable);
    if interfaces.iter().any(|i| !i.is_loopback) {
        interfaces.retain(|i| !i.is_loopback);
    }
    let name = |i| format!("urxe{i}");
    interfaces.into_iter().enumerate().map(|(i, interface)| Device { name: name(i), interface }).collect()
}

impl Device {
    /// Its GIDs, if all its addresses can be had.
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        self.interface.addresses.iter().map(|ip| Gid::from(*ip))
    }

    /// Its link.
    pub fn link(&self) -> LinkSpec {
        LinkSpec::UdpOn { interface: self.interface.name.clone(), address: None }
    }

    /// Its node GUID, which an open context's [`query_device`](Context::query_device) has too.
    pub fn node_guid(&self) -> u64 {
        node_guid([0; 6], &self.interface.addresses)
    }

    /// The address that stands for it.
    pub fn address(&self) -> IpAddr {
        self.interface.main_address()
    }

    /// Opens it: binds UDP port 4791 of its addresses.
    ///
    /// # Errors
    /// [`DeviceError`], for instance if another process has the port.
    pub fn open(&self, options: &ContextOptions) -> Result<Context, DeviceError> {
        self.open_shards(1, options)
    }

    /// [`open`](Self::open) with several shards; see [`Context::open_shards`].
    ///
    /// # Errors
    /// [`DeviceError`].
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
        Interface { name: name.into(), index: 1, mac: [0; 6], is_loopback, has_carrier: true, addresses }
    }

    #[test]
    fn interfaces_are_numbered_and_the_loopback_is_for_where_there_is_nothing_else() {
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
