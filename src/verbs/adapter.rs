use std::net::IpAddr;

use super::{devices, node_guid};
use crate::link::{Interface, LinkSpec, PacketConfig, interfaces, main_address};
use crate::wire::Gid;

/// A device as programs of libibverbs see it: by a name that counts up, on one link, with one port. The library that they
/// load and what `urxe run` writes down for them both take it from here, so that both say the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// Where its packets go.
    pub link: LinkSpec,
    /// The interface that it is on; empty if none is known to the kernel.
    pub interface: String,
    /// Whether that carries packets; an adapter of no interface always does.
    pub active: bool,
    /// Its MAC address, zeros where it has none.
    pub mac: [u8; 6],
    /// Its addresses, in the order of its GID table; never empty.
    pub addresses: Vec<IpAddr>,
}

/// Why there are no adapters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdapterError {
    /// Nothing has the address or the name.
    #[error("there is no link 'udp:{what}': URXE_LINK may be udp, {}", have.join(", "))]
    NotThere {
        /// As asked for.
        what: String,
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
    #[error("a fabric is within one program: URXE_LINK may be udp[:ADDR], udp:IF, packet:IF or frames:…")]
    Fabric,
}

impl Adapter {
    /// Those of a link; without one, or for a udp link with no address, one for each interface of this machine. The n-th is
    /// `urxe{n}`.
    ///
    /// # Errors
    /// [`AdapterError`].
    pub fn all(link: Option<&LinkSpec>) -> Result<Vec<Adapter>, AdapterError> {
        let Some(link) = link.filter(|link| **link != LinkSpec::Udp(None)) else {
            return Ok(devices().into_iter().map(|d| Adapter::over_udp(d.link(), d.interface)).collect());
        };
        Adapter::one(link, interfaces()).map(|one| vec![one])
    }

    fn one(link: &LinkSpec, there: Vec<Interface>) -> Result<Adapter, AdapterError> {
        match link {
            LinkSpec::Udp(Some(ip)) => {
                let all = there.iter().flat_map(|i| &i.addresses);
                let have = || all.map(|ip| format!("udp:{ip}")).collect();
                let missing = || AdapterError::NotThere { what: ip.to_string(), have: have() };
                let owner = there.iter().find(|i| i.owns(*ip)).ok_or_else(missing)?;
                Ok(Adapter { addresses: vec![*ip], ..Adapter::over_udp(link.clone(), owner.clone()) })
            }
            LinkSpec::UdpOn { interface, address } => {
                let have = || there.iter().map(|i| format!("udp:{}", i.name)).collect();
                let missing = || AdapterError::NotThere { what: interface.clone(), have: have() };
                let named = there.iter().find(|i| i.name == *interface).ok_or_else(missing)?;
                let all = Adapter::over_udp(link.clone(), named.clone());
                Ok(Adapter { addresses: address.map_or(all.addresses, |ip| vec![ip]), ..all })
            }
            LinkSpec::Packet(config) => Adapter::on_interface(config, &there),
            LinkSpec::Frames(config) => {
                let addresses: Vec<IpAddr> = config.station.addresses.iter().map(|a| a.ip).collect();
                main_address(&addresses).ok_or(AdapterError::Station)?;
                let (link, mac) = (link.clone(), config.station.mac.0);
                Ok(Adapter { link, interface: String::new(), active: true, mac, addresses })
            }
            LinkSpec::Udp(None) | LinkSpec::Fabric => Err(AdapterError::Fabric),
        }
    }

    fn over_udp(link: LinkSpec, on: Interface) -> Adapter {
        Adapter { link, interface: on.name, active: true, mac: [0; 6], addresses: on.addresses }
    }

    fn on_interface(config: &PacketConfig, there: &[Interface]) -> Result<Adapter, AdapterError> {
        let of = there.iter().find(|i| i.name == config.interface);
        let (mac, addresses) = match (&config.station, of) {
            (Some(station), _) => (station.mac.0, station.addresses.iter().map(|a| a.ip).collect()),
            (None, Some(of)) => (of.mac, of.addresses.clone()),
            (None, None) => ([0; 6], Vec::new()),
        };
        if addresses.is_empty() {
            return Err(AdapterError::NoAddress { interface: config.interface.clone() });
        }
        // Those that are listed are up. One without addresses of its own may be, and carry a station's.
        let is_up = |i: &pnet_datalink::NetworkInterface| i.name == config.interface && i.is_up();
        let active = of.is_some() || pnet_datalink::interfaces().iter().any(is_up);
        let link = LinkSpec::Packet(config.clone());
        Ok(Adapter { link, interface: config.interface.clone(), active, mac, addresses })
    }

    /// Its GID table.
    pub fn gids(&self) -> Vec<Gid> {
        self.addresses.iter().map(|ip| Gid::from(*ip)).collect()
    }

    /// The address that stands for it.
    pub fn address(&self) -> IpAddr {
        main_address(&self.addresses).unwrap_or(self.addresses[0])
    }

    /// A number that no other device on the network has, which the NIC has for its node GUID.
    pub fn guid(&self) -> u64 {
        node_guid(self.mac, &self.addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        Interface { name: name.into(), index: 1, mac: [2; 6], is_loopback: name == "lo", addresses }
    }

    fn adapter(link: &str) -> Result<Adapter, AdapterError> {
        let there =
            [interface("eth0", &["fe80::1", "10.0.0.1", "fd00::1"]), interface("lo", &["127.0.0.1", "::1"])];
        Adapter::one(&link.parse().unwrap(), there.into())
    }

    fn table(of: &Adapter) -> String {
        of.gids().iter().map(|gid| gid.ip().to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_adapter_has_the_addresses_that_its_link_has() {
        for (link, addresses) in [
            ("udp:eth0", "fe80::1 10.0.0.1 fd00::1"),
            ("udp:10.0.0.1", "10.0.0.1"),
            ("udp:fe80::1%eth0", "fe80::1"),
            ("packet:eth0", "fe80::1 10.0.0.1 fd00::1"),
            ("packet:eth7,ip=10.1.0.1/24,mac=02:00:00:00:00:01", "10.1.0.1"),
            ("frames:dgram:/a,/b,ip=10.77.0.1/24,ip=fd00::1/64", "10.77.0.1 fd00::1"),
        ] {
            let adapter = adapter(link).unwrap();
            assert_eq!(table(&adapter), addresses, "{link}");
            let interface = link.split([':', '%', ',']).find(|word| word.starts_with("eth"));
            let of = if link == "udp:10.0.0.1" { "eth0" } else { interface.unwrap_or("") };
            assert_eq!(adapter.interface, of, "{link}");
        }
        assert_eq!(adapter("udp:eth0").unwrap().address(), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn any_loopback_address_is_of_the_loopback() {
        let adapter = adapter("udp:127.9.8.7").unwrap();
        assert_eq!((adapter.interface.as_str(), adapter.guid()), ("lo", 0x5258_fffe_7f09_0807));
    }

    #[test]
    fn what_is_not_there_is_said() {
        let why = |link| adapter(link).unwrap_err().to_string();
        assert!(
            why("udp:192.0.2.1")
                .starts_with("there is no link 'udp:192.0.2.1': URXE_LINK may be udp, udp:fe80::1, udp:10")
        );
        assert_eq!(why("udp:eth1"), "there is no link 'udp:eth1': URXE_LINK may be udp, udp:eth0, udp:lo");
        assert!(why("packet:eth1").contains("interface eth1 has no address"));
        assert_eq!(adapter("fabric"), Err(AdapterError::Fabric));
    }
}
