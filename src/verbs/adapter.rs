use std::net::IpAddr;

use pnet_datalink::{NetworkInterface, interfaces};

use super::{Device, devices};
use crate::link::{LinkSpec, PacketConfig};
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
    /// Its GID table; never empty.
    pub gids: Vec<Gid>,
}

/// Why there are no adapters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdapterError {
    /// Nothing has the address.
    #[error("there is no link 'udp:{ip}': URXE_LINK may be udp, {}", have.join(", "))]
    NotLocal {
        /// As asked for.
        ip: IpAddr,
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
    #[error("a fabric is within one program: URXE_LINK may be udp[:ADDR], packet:IF or frames:…")]
    Fabric,
}

impl Adapter {
    /// Those of a link; without one, or for a udp link with no address, one for each interface of this machine. The n-th is
    /// `urxe{n}`.
    ///
    /// # Errors
    /// [`AdapterError`].
    pub fn all(link: Option<&LinkSpec>) -> Result<Vec<Adapter>, AdapterError> {
        let one = match link {
            None | Some(LinkSpec::Udp(None)) => return Ok(one_for_each_interface(&devices())),
            Some(LinkSpec::Udp(Some(ip))) => Adapter::on_address(*ip, &devices())?,
            Some(LinkSpec::Packet(config)) => Adapter::on_interface(config)?,
            Some(LinkSpec::Frames(config)) => {
                let gids: Vec<Gid> = config.station.addresses.iter().map(|a| a.ip.into()).collect();
                if gids.is_empty() {
                    return Err(AdapterError::Station);
                }
                let link = LinkSpec::Frames(config.clone());
                Adapter { link, interface: String::new(), active: true, gids }
            }
            Some(LinkSpec::Fabric) => return Err(AdapterError::Fabric),
        };
        Ok(vec![one])
    }

    fn over_udp(ip: IpAddr, interface: &str) -> Adapter {
        let link = LinkSpec::Udp(Some(ip));
        Adapter { link, interface: interface.to_owned(), active: true, gids: vec![ip.into()] }
    }

    fn on_address(ip: IpAddr, there: &[Device]) -> Result<Adapter, AdapterError> {
        // All of 127.0.0.0/8 belongs to the loopback, though it lists one address.
        let of_loopback =
            |other: IpAddr| ip.is_ipv4() && other.is_ipv4() && ip.is_loopback() && other.is_loopback();
        let owner = there.iter().find(|d| d.address == ip || of_loopback(d.address));
        let have = || there.iter().map(|d| format!("udp:{}", d.address)).collect();
        let owner = owner.ok_or_else(|| AdapterError::NotLocal { ip, have: have() })?;
        Ok(Adapter::over_udp(ip, owner.interface()))
    }

    fn on_interface(config: &PacketConfig) -> Result<Adapter, AdapterError> {
        let interface = interfaces().into_iter().find(|i| i.name == config.interface);
        let own = || interface.iter().flat_map(|i| &i.ips).map(|net| net.ip().into()).collect();
        let gids: Vec<Gid> = match &config.station {
            Some(station) => station.addresses.iter().map(|a| a.ip.into()).collect(),
            None => own(),
        };
        if gids.is_empty() {
            return Err(AdapterError::NoAddress { interface: config.interface.clone() });
        }
        let active = interface.as_ref().is_some_and(NetworkInterface::is_up);
        Ok(Adapter {
            link: LinkSpec::Packet(config.clone()),
            interface: config.interface.clone(),
            active,
            gids,
        })
    }

    /// The address of its first GID.
    pub fn address(&self) -> IpAddr {
        self.gids[0].ip()
    }

    /// A number that no other device on the network has: made from its address, as the udp link has no MAC.
    pub fn guid(&self) -> u64 {
        let low = match self.address() {
            IpAddr::V4(ip) => ip.to_bits(),
            IpAddr::V6(ip) => ip.to_bits() as u32,
        };
        0x5258_fffe_0000_0000 | u64::from(low)
    }
}

/// Its first IPv4 address, or its first IPv6 one; the loopback only where there is nothing else.
fn one_for_each_interface(there: &[Device]) -> Vec<Adapter> {
    let mut chosen: Vec<&Device> = Vec::new();
    for device in there {
        match chosen.iter_mut().find(|other| other.name == device.name) {
            None => chosen.push(device),
            Some(other) if device.address.is_ipv4() && other.address.is_ipv6() => *other = device,
            Some(_) => {}
        }
    }
    if chosen.iter().any(|d| !d.address.is_loopback()) {
        chosen.retain(|d| !d.address.is_loopback());
    }
    chosen.into_iter().map(|d| Adapter::over_udp(d.address, d.interface())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, address: &str) -> Device {
        Device { name: format!("urxe_{name}"), address: address.parse().unwrap() }
    }

    #[test]
    fn an_interface_has_one_adapter_and_loopback_only_where_it_is_alone() {
        let there = [
            device("eth0", "fd00::1"),
            device("eth0", "10.0.0.1"),
            device("eth0", "10.0.0.2"),
            device("eth1", "fd01::1"),
            device("lo", "127.0.0.1"),
        ];
        let of = |there: &[Device]| -> Vec<_> {
            let all = one_for_each_interface(there).into_iter();
            all.map(|a| (a.interface.clone(), a.address().to_string())).collect()
        };
        let pairs = |list: &[(&str, &str)]| -> Vec<_> {
            list.iter().map(|(name, ip)| ((*name).to_owned(), (*ip).to_owned())).collect()
        };
        assert_eq!(of(&there), pairs(&[("eth0", "10.0.0.1"), ("eth1", "fd01::1")]));
        assert_eq!(of(&there[4..]), pairs(&[("lo", "127.0.0.1")]));
    }

    #[test]
    fn any_loopback_address_is_of_the_loopback() {
        let there = [device("lo", "127.0.0.1"), device("lo", "::1")];
        let adapter = Adapter::on_address("127.9.8.7".parse().unwrap(), &there).unwrap();
        assert_eq!((adapter.interface.as_str(), adapter.guid()), ("lo", 0x5258_fffe_7f09_0807));
        let why = Adapter::on_address("192.0.2.1".parse().unwrap(), &there).unwrap_err().to_string();
        assert_eq!(why, "there is no link 'udp:192.0.2.1': URXE_LINK may be udp, udp:127.0.0.1, udp:::1");
    }

    #[test]
    fn a_station_brings_its_own_addresses() {
        let link = "frames:dgram:/a,/b,ip=10.77.0.1/24,ip=fd00::1/64".parse().unwrap();
        let all = Adapter::all(Some(&link)).unwrap();
        let gids: Vec<_> = all[0].gids.iter().map(|g| g.ip().to_string()).collect();
        assert_eq!((all.len(), all[0].interface.as_str()), (1, ""));
        assert_eq!(gids, ["10.77.0.1", "fd00::1"]);
        assert_eq!(Adapter::all(Some(&LinkSpec::Fabric)), Err(AdapterError::Fabric));
    }
}
