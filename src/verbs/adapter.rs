//! Adapters: devices with the names and attributes that libibverbs programs see.

use std::net::IpAddr;

use super::{devices, node_guid};
use crate::host::{Interface, interfaces, primary_address};
use crate::link::{LinkSpec, PacketConfig};
use crate::wire::Gid;

/// A device as libibverbs programs see it: a numbered name, one link, one port. The library that these
/// programs load, the directory tree that `urxe run` writes for them, and `urxe devinfo` all use this type,
/// so that they report the same attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// Link over which the adapter sends and receives packets.
    pub link: LinkSpec,
    /// Name of the network interface; empty if the link has none.
    pub interface: String,
    /// Whether the interface has a carrier; true if the adapter has no interface.
    pub active: bool,
    /// MAC address of the link; zero if there is none.
    pub mac: [u8; 6],
    /// GID table; never empty.
    pub gids: Vec<Gid>,
}

/// Reason why the adapters cannot be listed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// This machine has no such address or interface.
    #[error("no such link 'udp:{name}': available links are udp, {}", available.join(", "))]
    NotLocal {
        /// Requested address or interface name.
        name: String,
        /// Links that exist.
        available: Vec<String>,
    },
    /// A packet link was requested on an interface without an address.
    #[error("interface {interface} has no address: add ip=ADDRESS/PREFIX to the link")]
    NoAddress {
        /// Name of the interface.
        interface: String,
    },
    /// A frames link was specified without an address.
    #[error("a frames link requires ip=ADDRESS/PREFIX")]
    NoFramesAddress,
    /// A fabric exists only within one program, so it is not an adapter of this machine.
    #[error("a fabric exists within one program only: use udp[:ADDR], udp:IF, packet:IF or frames:…")]
    Fabric,
}

impl Adapter {
    /// Lists the adapters of a link. For `None` or a UDP link without an address, lists one adapter for each
    /// of this machine's [`devices`]. The n-th adapter is named `urxe{n}`.
    ///
    /// # Errors
    /// [`AdapterError::NotLocal`] if the machine has no such address or interface;
    /// [`AdapterError::NoAddress`] or [`AdapterError::NoFramesAddress`] if the link has no address;
    /// [`AdapterError::Fabric`] for a fabric.
    pub fn all(link: Option<&LinkSpec>) -> Result<Vec<Adapter>, AdapterError> {
        let one = match link {
            None | Some(LinkSpec::Udp(None)) => {
                let all = devices().into_iter();
                return Ok(all
                    .map(|d| Adapter::new_udp(d.link(), &d.interface, &d.interface.addresses))
                    .collect());
            }
            Some(link @ LinkSpec::Udp(Some(ip))) => Adapter::on_address(link, *ip, &interfaces())?,
            Some(link @ LinkSpec::UdpOn { interface, address }) => {
                let local = interfaces();
                let owner = named(interface, &local)?;
                let addresses = address.as_ref().map_or(&*owner.addresses, std::slice::from_ref);
                Adapter::new_udp(link.clone(), owner, addresses)
            }
            Some(LinkSpec::Packet(config)) => Adapter::on_interface(config)?,
            Some(LinkSpec::Frames(config)) => {
                let gids: Vec<Gid> = config.host_stack.addresses.iter().map(|a| a.ip.into()).collect();
                if gids.is_empty() {
                    return Err(AdapterError::NoFramesAddress);
                }
                let (link, mac) = (LinkSpec::Frames(config.clone()), config.host_stack.mac.0);
                Adapter { link, interface: String::new(), active: true, mac, gids }
            }
            Some(LinkSpec::Fabric) => return Err(AdapterError::Fabric),
        };
        Ok(vec![one])
    }

    fn new_udp(link: LinkSpec, owner: &Interface, addresses: &[IpAddr]) -> Adapter {
        let gids = addresses.iter().map(|ip| Gid::from(*ip)).collect();
        Adapter { link, interface: owner.name.clone(), active: owner.has_carrier, mac: [0; 6], gids }
    }

    fn on_address(link: &LinkSpec, ip: IpAddr, local: &[Interface]) -> Result<Adapter, AdapterError> {
        let available = || local.iter().flat_map(|i| &i.addresses).map(|ip| format!("udp:{ip}")).collect();
        let not_local = || AdapterError::NotLocal { name: ip.to_string(), available: available() };
        let owner = local.iter().find(|i| i.owns(ip)).ok_or_else(not_local)?;
        Ok(Adapter::new_udp(link.clone(), owner, &[ip]))
    }

    fn on_interface(config: &PacketConfig) -> Result<Adapter, AdapterError> {
        let link = LinkSpec::Packet(config.clone());
        let interface = config.interface.clone();
        let owner = interfaces().into_iter().find(|i| i.name == interface);
        if let Some(host_stack) = &config.host_stack
            && !host_stack.addresses.is_empty()
        {
            let gids = host_stack.addresses.iter().map(|a| a.ip.into()).collect();
            let active = owner.is_some_and(|i| i.has_carrier);
            return Ok(Adapter { link, interface, active, mac: host_stack.mac.0, gids });
        }
        let owner = owner.ok_or(AdapterError::NoAddress { interface })?;
        Ok(Adapter { mac: owner.mac, ..Adapter::new_udp(link, &owner, &owner.addresses) })
    }

    /// Returns the primary address, from which the LID and, without a MAC address, the node GUID are derived.
    pub fn address(&self) -> IpAddr {
        let addresses: Vec<IpAddr> = self.gids.iter().map(|gid| gid.ip()).collect();
        primary_address(&addresses).unwrap_or(self.gids[0].ip())
    }

    /// Returns the node GUID, which is unique in the network. A NIC opened on this adapter has the same node
    /// GUID.
    pub fn guid(&self) -> u64 {
        node_guid(self.mac, &[self.address()])
    }
}

/// Finds an interface by name.
fn named<'a>(name: &str, local: &'a [Interface]) -> Result<&'a Interface, AdapterError> {
    let available = || local.iter().map(|i| format!("udp:{}", i.name)).collect();
    let not_local = || AdapterError::NotLocal { name: name.to_owned(), available: available() };
    local.iter().find(|i| i.name == name).ok_or_else(not_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_loopback_address_belongs_to_lo() {
        let addresses = ["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()).to_vec();
        let local = [Interface {
            name: "lo".into(),
            index: 1,
            mac: [0; 6],
            is_loopback: true,
            has_carrier: true,
            has_new_carrier: false,
            addresses,
        }];
        let adapter_on = |ip: &str| {
            let link = format!("udp:{ip}").parse().unwrap();
            Adapter::on_address(&link, ip.parse().unwrap(), &local)
        };
        let adapter = adapter_on("127.9.8.7").unwrap();
        assert_eq!((adapter.interface.as_str(), adapter.guid()), ("lo", 0x5258_fffe_7f09_0807));
        let error = adapter_on("192.0.2.1").unwrap_err().to_string();
        assert_eq!(error, "no such link 'udp:192.0.2.1': available links are udp, udp:127.0.0.1, udp:::1");
        let error = named("eth7", &local).unwrap_err().to_string();
        assert_eq!(error, "no such link 'udp:eth7': available links are udp, udp:lo");
    }

    #[test]
    fn frames_link_gets_its_addresses_from_the_specification() {
        let link = "frames:dgram:/a,/b,ip=10.77.0.1/24,ip=fd00::1/64,mac=52:54:00:77:00:01".parse().unwrap();
        let all = Adapter::all(Some(&link)).unwrap();
        let gids: Vec<_> = all[0].gids.iter().map(|g| g.ip().to_string()).collect();
        assert_eq!((all.len(), all[0].interface.as_str()), (1, ""));
        assert_eq!(gids, ["10.77.0.1", "fd00::1"]);
        assert_eq!(all[0].guid(), 0x5054_00ff_fe77_0001);
        assert_eq!(Adapter::all(Some(&LinkSpec::Fabric)), Err(AdapterError::Fabric));
    }
}
