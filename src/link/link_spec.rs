//! Which link, as its text says: `udp:10.0.0.1`, `packet:eth0`.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use super::udp::{Sharing, UdpLink, UdpLinkError, UdpOptions};
use super::{FramesConfig, FramesError, FramesLink, Link, PacketConfig, PacketError, PacketLink, SpecError};

/// Why a link that was chosen by its text was not opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The udp link could not be bound.
    #[error("{}{}", .0, .0.source().map_or(String::new(), |cause| format!(": {cause}")))]
    Udp(#[from] UdpLinkError),
    /// The packet link could not be opened.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The frames link could not be opened.
    #[error(transparent)]
    Frames(#[from] FramesError),
    /// A fabric is no port.
    #[error("a fabric is within one process; this is a port")]
    Fabric,
    /// More than one shard where there can be but one.
    #[error("several shards need a udp or packet link, and this is {link}")]
    Shards {
        /// Which.
        link: LinkSpec,
    },
}

/// An interface's name has fewer bytes than IFNAMSIZ.
const MAX_NAME: usize = 15;

/// Which link: `fabric`, `udp[:ADDR]`, `udp:IF`, `packet:IF` or `frames:…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkSpec {
    /// In memory, within this process.
    Fabric,
    /// A plain UDP socket, on this address or the machine's first.
    Udp(Option<IpAddr>),
    /// Plain UDP sockets on an interface: on all its addresses, or on one that others may have too.
    UdpOn {
        /// Its name.
        interface: String,
        /// The one address; unless given, all.
        address: Option<IpAddr>,
    },
    /// A packet socket on an interface.
    Packet(PacketConfig),
    /// Ethernet frames over a unix socket.
    Frames(FramesConfig),
}

impl FromStr for LinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkSpec, String> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(k, r)| (k, Some(r)));
        match (kind, rest) {
            ("fabric", None) => Ok(LinkSpec::Fabric),
            ("fabric", Some(_)) => Err("the fabric takes no options: write --link fabric".into()),
            ("udp", None) => Ok(LinkSpec::Udp(None)),
            ("udp", Some(place)) => udp(place),
            ("frames", _) => text.parse().map(LinkSpec::Frames).map_err(|e: SpecError| e.to_string()),
            ("packet", _) => text.parse().map(LinkSpec::Packet).map_err(|e: SpecError| e.to_string()),
            _ => Err(format!(
                "there is no link '{kind}': there are fabric, udp[:ADDR], udp:IF, packet:IF and frames:…"
            )),
        }
    }
}

/// An address, an interface, or one of an interface.
fn udp(place: &str) -> Result<LinkSpec, String> {
    // fd00::1 as it is, or in brackets as in a URL.
    let bare = place.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(place);
    if let Ok(ip) = bare.parse() {
        return Ok(LinkSpec::Udp(Some(ip)));
    }
    let is_name = |name: &str| {
        let looks_like_an_address = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let strange = |c: char| c.is_whitespace() || c.is_control() || "/:,%[]".contains(c);
        !looks_like_an_address && name.len() <= MAX_NAME && !name.contains(strange)
    };
    if let Some((ip, interface)) = bare.split_once('%')
        && let (Ok(ip), true) = (ip.parse(), is_name(interface))
    {
        return Ok(LinkSpec::UdpOn { interface: interface.to_owned(), address: Some(ip) });
    }
    if is_name(place) {
        return Ok(LinkSpec::UdpOn { interface: place.to_owned(), address: None });
    }
    Err(format!(
        "'{place}' is no IP address and no interface: write udp, udp:10.0.0.1, udp:fd00::1, udp:fe80::1%eth0 or udp:eth0 \
         (the port is always 4791)"
    ))
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkSpec::Fabric => f.write_str("fabric"),
            LinkSpec::Udp(None) => f.write_str("udp"),
            LinkSpec::Udp(Some(ip)) => write!(f, "udp:{ip}"),
            LinkSpec::UdpOn { interface, address: None } => write!(f, "udp:{interface}"),
            LinkSpec::UdpOn { interface, address: Some(ip) } => write!(f, "udp:{ip}%{interface}"),
            LinkSpec::Packet(config) => write!(f, "packet:{}", config.interface),
            LinkSpec::Frames(config) => write!(f, "{}", config.wire),
        }
    }
}

impl LinkSpec {
    /// The VLAN that its station is in.
    pub fn vlan(&self) -> Option<u16> {
        let station = match self {
            LinkSpec::Packet(config) => config.station.as_ref(),
            LinkSpec::Frames(config) => Some(&config.station),
            LinkSpec::Fabric | LinkSpec::Udp(_) | LinkSpec::UdpOn { .. } => None,
        };
        station.and_then(|s| s.vlan).map(|tag| tag.id)
    }

    /// Whether it can be opened with more than one shard.
    pub fn has_shards(&self) -> bool {
        matches!(self, LinkSpec::Udp(_) | LinkSpec::UdpOn { .. } | LinkSpec::Packet(_))
    }

    /// Whether its addresses are urxe's alone, and the kernel knows nothing of them.
    pub fn is_station(&self) -> bool {
        match self {
            LinkSpec::Packet(config) => config.station.as_ref().is_some_and(|s| !s.addresses.is_empty()),
            LinkSpec::Frames(_) => true,
            _ => false,
        }
    }

    /// Opens it, a link for each shard.
    ///
    /// # Errors
    /// [`BindError`]; always for the fabric, of which ports are made.
    pub fn bind(&self, shards: usize) -> Result<Vec<Box<dyn Link>>, BindError> {
        self.bind_with(shards, None, true)
    }

    /// [`bind`](Self::bind) beside other processes that share the address, if it is a udp link.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_shared(&self, shards: usize, sharing: &Sharing) -> Result<Vec<Box<dyn Link>>, BindError> {
        self.bind_with(shards, Some(sharing), true)
    }

    /// Either of these, and without `offload` each packet goes to and comes from the kernel by itself, so that another
    /// program's capture of the interface shows packets as they are on the wire.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_with(
        &self,
        shards: usize,
        sharing: Option<&Sharing>,
        offload: bool,
    ) -> Result<Vec<Box<dyn Link>>, BindError> {
        let options = UdpOptions { segmentation: offload, ..UdpOptions::default() };
        if shards > 1 && !self.has_shards() {
            return Err(BindError::Shards { link: self.clone() });
        }
        match self {
            LinkSpec::Fabric => Err(BindError::Fabric),
            LinkSpec::Udp(ip) => on_address(ip.unwrap_or_else(default_address), &options, shards, sharing),
            LinkSpec::UdpOn { interface, address } => {
                let options = options.on_interface(interface)?;
                match (address, sharing) {
                    (Some(ip), _) => on_address(*ip, &options, shards, sharing),
                    (None, None) => Ok(boxed(UdpLink::bind_interface(interface, &options, shards)?)),
                    (None, Some(sharing)) => {
                        Ok(boxed(UdpLink::bind_interface_shared(interface, &options, shards, sharing)?))
                    }
                }
            }
            LinkSpec::Packet(config) => {
                let config = PacketConfig { offload: offload && config.offload, ..config.clone() };
                Ok(boxed(PacketLink::open_shards(config, shards)?))
            }
            LinkSpec::Frames(config) => Ok(boxed(vec![FramesLink::open(config.clone())?])),
        }
    }
}

fn on_address(
    ip: IpAddr,
    options: &UdpOptions,
    shards: usize,
    sharing: Option<&Sharing>,
) -> Result<Vec<Box<dyn Link>>, BindError> {
    Ok(boxed(match sharing {
        None => UdpLink::bind_shards(ip, options, shards)?,
        Some(sharing) => UdpLink::bind_shared(ip, options, shards, sharing)?,
    }))
}

fn boxed<L: Link + 'static>(links: Vec<L>) -> Vec<Box<dyn Link>> {
    links.into_iter().map(|link| Box::new(link) as _).collect()
}

/// The first IPv4 address that is no loopback one, or 127.0.0.1.
pub fn default_address() -> IpAddr {
    let interfaces = pnet_datalink::interfaces();
    let addresses = interfaces.iter().filter(|i| i.is_up()).flat_map(|i| &i.ips).map(|n| n.ip());
    let usable = |ip: &IpAddr| matches!(ip, IpAddr::V4(v4) if !v4.is_loopback() && !v4.is_link_local());
    addresses.into_iter().find(usable).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::VlanTag;

    #[test]
    fn links_read_as_they_are_written() {
        let udp = |ip: &str| LinkSpec::Udp(Some(ip.parse().unwrap()));
        assert_eq!("fabric".parse(), Ok(LinkSpec::Fabric));
        assert_eq!("udp".parse(), Ok(LinkSpec::Udp(None)));
        assert_eq!("udp:10.0.0.1".parse(), Ok(udp("10.0.0.1")));
        assert_eq!("udp:fd00::1".parse(), Ok(udp("fd00::1")));
        assert_eq!("udp:[fd00::1]".parse(), Ok(udp("fd00::1")));
        for (text, address) in [("udp:eth0", None), ("udp:fe80::1%eth0", Some("fe80::1".parse().unwrap()))] {
            let on = LinkSpec::UdpOn { interface: "eth0".into(), address };
            assert_eq!((on.to_string().as_str(), text.parse().as_ref()), (text, Ok(&on)));
        }
        let frames: LinkSpec = "frames:dgram:/a,/b,ip=10.77.0.1/24".parse().unwrap();
        assert_eq!(frames.to_string(), "frames:dgram:/a,/b");
    }

    #[test]
    fn station_links_take_a_vlan_and_its_priority() {
        let vlan = |text: &str| match text.parse::<LinkSpec>()? {
            LinkSpec::Packet(config) => Ok(config.station.and_then(|s| s.vlan)),
            LinkSpec::Frames(config) => Ok(config.station.vlan),
            other => Err(other.to_string()),
        };
        let tag = |id, priority| Ok(Some(VlanTag { id, priority }));
        assert_eq!(vlan("packet:eth0,ip=10.0.0.1/24,vlan=5,pcp=3"), tag(5, 3));
        assert_eq!(vlan("frames:dgram:/a,/b,ip=10.0.0.1/24,vlan=4094"), tag(4094, 0));
        assert_eq!(vlan("packet:eth0,ip=10.0.0.1/24"), Ok(None));
        for (options, why) in [
            ("ip=10.0.0.1/24,vlan=0", "vlan=0: not a VLAN from 1 to 4094"),
            ("ip=10.0.0.1/24,vlan=4095", "vlan=4095: not a VLAN"),
            ("ip=10.0.0.1/24,vlan=5,pcp=8", "pcp=8: not a priority from 0 to 7"),
            ("ip=10.0.0.1/24,pcp=1", "give the VLAN too"),
            ("ip=10.0.0.1/24,vlan=5,vlan=6", "given twice"),
            ("vlan=5", "describe a station"),
        ] {
            let got = vlan(&format!("packet:eth0,{options}")).unwrap_err();
            assert!(got.contains(why), "{options}: {got}");
        }
    }

    #[test]
    fn bad_links_say_why() {
        let why = |text: &str| text.parse::<LinkSpec>().unwrap_err();
        assert!(why("ib0").contains("no link 'ib0'"));
        for text in ["", "10.0.0.300", "a-name-of-16-byte", "eth0/24", "fe80::1%", "10.0.0%eth0"] {
            assert!(why(&format!("udp:{text}")).contains(&format!("'{text}' is no IP address")), "{text}");
        }
        assert!(why("udp:10.0.0.1:4791").contains("the port is always 4791"));
        assert!(why("fabric:2").contains("no options"));
        assert!(why("frames:dgram:/a,/b").contains("ip=ADDRESS/PREFIX"));
    }
}
