use std::net::IpAddr;

use pnet_datalink::interfaces;

use super::{Context, ContextOptions, OpenError};
use crate::link::udp::{UdpLink, UdpLinkError, UdpOptions};
use crate::wire::Gid;

/// A device that this machine offers without any privilege: an IP address, over the udp link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name: `urxe_` and the interface's.
    pub name: String,
    /// Its address, and thereby its GID.
    pub address: IpAddr,
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

/// The devices of this machine, one for each address of an interface that is up; loopback comes last.
///
/// Other links (in-memory fabrics, raw sockets, frames) are made by their own constructors and opened with
/// [`Context::open`] or [`Context::on_fabric`].
pub fn devices() -> Vec<Device> {
    let mut up: Vec<_> = interfaces().into_iter().filter(|i| i.is_up()).collect();
    up.sort_by_key(|i| i.is_loopback());
    up.iter()
        .flat_map(|i| i.ips.iter().map(|net| Device { name: format!("urxe_{}", i.name), address: net.ip() }))
        // A link-local IPv6 address means nothing without its interface, which a GID cannot name.
        .filter(|d| !matches!(d.address, IpAddr::V6(ip) if ip.is_unicast_link_local()))
        .collect()
}

impl Device {
    /// The interface that has its address.
    pub fn interface(&self) -> &str {
        self.name.strip_prefix("urxe_").unwrap_or(&self.name)
    }

    /// Its GID.
    pub fn gid(&self) -> Gid {
        self.address.into()
    }

    /// Opens it: binds UDP port 4791 of its address.
    ///
    /// # Errors
    /// [`DeviceError`], for instance if another process has the port.
    pub fn open(&self, options: &ContextOptions) -> Result<Context, DeviceError> {
        let link = UdpLink::bind(self.address, &UdpOptions::default())?;
        Ok(Context::open(Box::new(link), options)?)
    }

    /// The same with several shards; see [`Context::open_shards`].
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn open_shards(&self, count: usize, options: &ContextOptions) -> Result<Context, DeviceError> {
        let links = UdpLink::bind_shards(self.address, &UdpOptions::default(), count)?;
        Ok(Context::open_shards(links.into_iter().map(|link| Box::new(link) as _).collect(), options)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_a_device_and_the_last() {
        let devices = devices();
        let last = devices.last().expect("every machine has loopback");
        assert!(last.address.is_loopback(), "{devices:?}");
        assert_eq!(last.gid().ip(), last.address);
        assert!(last.name.starts_with("urxe_lo"), "{last:?}");
    }
}
