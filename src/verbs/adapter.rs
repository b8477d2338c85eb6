use std::net::IpAddr;

use super::{devices, node_guid};
use crate::link::{Interface, LinkSpec, PacketConfig, interfaces, main_address};
use crate::wire::Gid;

/// A device as programs of libibverbs see it: by a name that counts up, on one link, with one port. The library that they
/// load, what `urxe run` writes down for them and `urxe devinfo` all take it from here, so that they say the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// Where its packets go.
    pub link: LinkSpec,
    /// The interface that it is on; empty if none is known to the kernel.
    pub interface: String,
    /// Whether that carries packets; an adapter of no interface always does.
    pub active: bool,
    /// The MAC of its link, zeros for none.
    pub mac: [u8; 6],
    /// Its GID table; never empty.
    pub gids: Vec<Gid>,
}

/// Why there are no adapters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdapterError {
    /// Nothing has the address, or that name.
    #[error("there is no link 'udp:{place}': there are udp, {}", have.join(", "))]
    NotLocal {
        /// As asked for.
        place: String,
        /// Links that there are.
        have: Vec<String>,
    },
    /// A packet link without an address.
    #[error("interface {interface} has no address: add ip=ADDRESS/PREFIX to the link")]
    NoAddress {
        /// Its interface.
        interface: String,
    },
    /// A frames link without an address.
    #[error("a frames link needs ip=ADDRESS/PREFIX")]
    Station,
    /// A fabric is no port of a machine.
    #[error("a fabric is within one program: there are udp[:ADDR], udp:IF, packet:IF or frames:…")]
    Fabric,
}

impl Adapter {
    /// Those of a link; without one, or for a udp link with no address, one for each of the [`devices`] of this machine. The
    /// n-th is `urxe{n}`.
    ///
    /// # Errors
    /// [`AdapterError`].
    pub fn all(link: Option<&LinkSpec>) -> Result<Vec<Adapter>, AdapterError> {
        let one = match link {
            None | Some(LinkSpec::Udp(None)) => {
                let all = devices().into_iter();
                return Ok(all
                    .map(|d| Adapter::over_udp(d.link(), &d.interface, &d.interface.addresses))
                    .collect());
            }
            Some(link @ LinkSpec::Udp(Some(ip))) => Adapter::on_address(link, *ip, &interfaces())?,
            Some(link @ LinkSpec::UdpOn { interface, address }) => {
                let there = interfaces();
                let of = named(interface, &there)?;
                let addresses = address.as_ref().map_or(&*of.addresses, std::slice::from_ref);
                Adapter::over_udp(link.clone(), of, addresses)
            }
            Some(LinkSpec::Packet(config)) => Adapter::on_interface(config)?,
            Some(LinkSpec::Frames(config)) => {
                let gids: Vec<Gid> = config.station.addresses.iter().map(|a| a.ip.into()).collect();
                if gids.is_empty() {
                    return Err(AdapterError::Station);
                }
                let (link, mac) = (LinkSpec::Frames(config.clone()), config.station.mac.0);
                Adapter { link, interface: String::new(), active: true, mac, gids }
            }
            Some(LinkSpec::Fabric) => return Err(AdapterError::Fabric),
        };
        Ok(vec![one])
    }

    fn over_udp(link: LinkSpec, of: &Interface, addresses: &[IpAddr]) -> Adapter {
        let gids = addresses.iter().map(|ip| Gid::from(*ip)).collect();
        Adapter { link, interface: of.name.clone(), active: of.has_carrier, mac: [0; 6], gids }
    }

    fn on_address(link: &LinkSpec, ip: IpAddr, there: &[Interface]) -> Result<Adapter, AdapterError> {
        let have = || there.iter().flat_map(|i| &i.addresses).map(|ip| format!("udp:{ip}")).collect();
        let missing = || AdapterError::NotLocal { place: ip.to_string(), have: have() };
        let owner = there.iter().find(|i| i.owns(ip)).ok_or_else(missing)?;
        Ok(Adapter::over_udp(link.clone(), owner, &[ip]))
    }

    fn on_interface(config: &PacketConfig) -> Result<Adapter, AdapterError> {
        let link = LinkSpec::Packet(config.clone());
        let interface = config.interface.clone();
        let of = interfaces().into_iter().find(|i| i.name == interface);
        if let Some(station) = &config.station
            && !station.addresses.is_empty()
        {
            let gids = station.addresses.iter().map(|a| a.ip.into()).collect();
            let active = of.is_some_and(|i| i.has_carrier);
            return Ok(Adapter { link, interface, active, mac: station.mac.0, gids });
        }
        let of = of.ok_or(AdapterError::NoAddress { interface })?;
        Ok(Adapter { mac: of.mac, ..Adapter::over_udp(link, &of, &of.addresses) })
    }

    /// The address that stands for it.
    pub fn address(&self) -> IpAddr {
        let addresses: Vec<IpAddr> = self.gids.iter().map(|gid| gid.ip()).collect();
        main_address(&addresses).unwrap_or(self.gids[0].ip())
    }

    /// A number that no other device on the network has: what its NIC has when it is open.
    pub fn guid(&self) -> u64 {
        node_guid(self.mac, &[self.address()])
    }
}

/// The interface of a name.
fn named<'a>(name: &str, there: &'a [Interface]) -> Result<&'a Interface, AdapterError> {
    let have = || there.iter().map(|i| format!("udp:{}", i.name)).collect();
    let missing = || AdapterError::NotLocal { place: name.to_owned(), have: have() };
    there.iter().find(|i| i.name == name).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_loopback_address_is_of_the_loopback() {
        let addresses = ["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()).to_vec();
        let there = [Interface {
            name: "lo".into(),
            index: 1,
            mac: [0; 6],
            is_loopback: true,
            has_carrier: true,
            addresses,
        }];
        let on = |ip: &str| {
            let link = format!("udp:{ip}").parse().unwrap();
            Adapter::on_address(&link, ip.parse().unwrap(), &there)
        };
        let adapter = on("127.9.8.7").unwrap();
        assert_eq!((adapter.interface.as_str(), adapter.guid()), ("lo", 0x5258_fffe_7f09_0807));
        let why = on("192.0.2.1").unwrap_err().to_string();
        assert_eq!(why, "there is no link 'udp:192.0.2.1': there are udp, udp:127.0.0.1, udp:::1");
        let why = named("eth7", &there).unwrap_err().to_string();
        assert_eq!(why, "there is no link 'udp:eth7': there are udp, udp:lo");
    }

    #[test]
    fn a_station_brings_its_own_addresses() {
        let link = "frames:dgram:/a,/b,ip=10.77.0.1/24,ip=fd00::1/64,mac=52:54:00:77:00:01".parse().unwrap();
        let all = Adapter::all(Some(&link)).unwrap();
        let gids: Vec<_> = all[0].gids.iter().map(|g| g.ip().to_string()).collect();
        assert_eq!((all.len(), all[0].interface.as_str()), (1, ""));
        assert_eq!(gids, ["10.77.0.1", "fd00::1"]);
        assert_eq!(all[0].guid(), 0x5054_00ff_fe77_0001);
        assert_eq!(Adapter::all(Some(&LinkSpec::Fabric)), Err(AdapterError::Fabric));
    }
}
