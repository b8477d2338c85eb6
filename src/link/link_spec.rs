//! Textual specification of a link: `udp:10.0.0.1`, `packet:eth0`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use super::udp::{UdpLink, UdpLinkError, UdpOptions};
use super::{FramesConfig, FramesError, FramesLink, Link, PacketConfig, PacketError, PacketLink, SpecError};

/// Error returned when a link cannot be opened from its specification.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The UDP link could not be bound.
    #[error(transparent)]
    Udp(#[from] UdpLinkError),
    /// The packet link could not be opened.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The frames link could not be opened.
    #[error(transparent)]
    Frames(#[from] FramesError),
    /// The specification is `fabric`: only the program itself can create the ports of a fabric.
    #[error("a fabric exists only within one process: create its ports with Fabric::port")]
    Fabric,
    /// More than one shard was requested for a link that supports only one.
    #[error("link {link} supports only one shard: use a udp or packet link")]
    Shards {
        /// The link.
        link: Box<LinkSpec>,
    },
}

/// Maximum length of an interface name in bytes: IFNAMSIZ minus the terminating zero.
const MAX_NAME: usize = 15;

/// Specification of a link: `fabric`, `udp[:ADDR]`, `udp:IF`, `packet:IF` or `frames:...`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LinkSpec {
    /// In-memory fabric within this process.
    Fabric,
    /// A plain UDP socket on the given address, or on the machine's [default address](default_address).
    Udp(Option<IpAddr>),
    /// Plain UDP sockets on an interface, either on all its addresses or on one of them.
    UdpOn {
        /// Name of the interface.
        interface: String,
        /// The only address to use; `None` for all addresses of the interface.
        address: Option<IpAddr>,
    },
    /// A packet socket on an interface.
    Packet(PacketConfig),
    /// Ethernet frames over a Unix socket.
    Frames(FramesConfig),
}

impl FromStr for LinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkSpec, String> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(k, r)| (k, Some(r)));
        match (kind, rest) {
            ("fabric", None) => Ok(LinkSpec::Fabric),
            ("fabric", Some(_)) => Err("fabric has no options: write --link fabric".into()),
            ("udp", None) => Ok(LinkSpec::Udp(None)),
            ("udp", Some(text)) => udp(text),
            ("frames", _) => text.parse().map(LinkSpec::Frames).map_err(|e: SpecError| e.to_string()),
            ("packet", _) => text.parse().map(LinkSpec::Packet).map_err(|e: SpecError| e.to_string()),
            _ => Err(format!(
                "unknown link '{kind}': expected fabric, udp[:ADDR], udp:IF, packet:IF or frames:…"
            )),
        }
    }
}

/// Parses the part after `udp:`: an address, an interface, or an address with its interface.
fn udp(text: &str) -> Result<LinkSpec, String> {
    // IPv6 addresses are accepted plain (fd00::1) or in brackets as in a URL.
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse() {
        return Ok(LinkSpec::Udp(Some(ip)));
    }
    let is_name = |name: &str| {
        let looks_like_an_address = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let is_invalid = |c: char| c.is_whitespace() || c.is_control() || "/:,%[]".contains(c);
        !looks_like_an_address && name.len() <= MAX_NAME && !name.contains(is_invalid)
    };
    if let Some((ip, interface)) = bare.split_once('%')
        && let (Ok(ip), true) = (ip.parse(), is_name(interface))
    {
        return Ok(LinkSpec::UdpOn { interface: interface.to_owned(), address: Some(ip) });
    }
    if is_name(text) {
        return Ok(LinkSpec::UdpOn { interface: text.to_owned(), address: None });
    }
    Err(format!(
        "'{text}' is not an IP address or interface name: write udp, udp:10.0.0.1, udp:fd00::1, \
         udp:fe80::1%eth0 or udp:eth0 (the port is always 4791)"
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
    /// Returns the VLAN ID of the link's host stack; `None` if there is no host stack or no VLAN.
    pub fn vlan(&self) -> Option<u16> {
        match self {
            LinkSpec::Packet(config) => config.host_stack.as_ref()?.vlan.map(|tag| tag.id),
            LinkSpec::Frames(config) => config.host_stack.vlan.map(|tag| tag.id),
            LinkSpec::Fabric | LinkSpec::Udp(_) | LinkSpec::UdpOn { .. } => None,
        }
    }

    /// Reports whether the link can be opened with more than one shard.
    pub fn has_shards(&self) -> bool {
        matches!(self, LinkSpec::Udp(_) | LinkSpec::UdpOn { .. } | LinkSpec::Packet(_))
    }

    /// Reports whether the link has a host stack of its own, whose addresses the kernel does not know.
    pub fn has_host_stack(&self) -> bool {
        match self {
            LinkSpec::Packet(config) => config.host_stack.as_ref().is_some_and(|s| !s.addresses.is_empty()),
            LinkSpec::Frames(_) => true,
            _ => false,
        }
    }

    /// Opens the link once per shard.
    ///
    /// # Errors
    /// [`BindError`]; always for the fabric, whose ports are created otherwise (`Fabric::port`).
    pub fn bind(&self, shards: usize) -> Result<Vec<Box<dyn Link>>, BindError> {
        self.bind_with(shards, true)
    }

    /// Opens the link like [`bind`](Self::bind). Without `offload`, packets pass to and from the kernel one
    /// at a time, and a capture on the interface shows them as they are on the wire.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_with(&self, shards: usize, offload: bool) -> Result<Vec<Box<dyn Link>>, BindError> {
        let options = UdpOptions { segmentation: offload, ..UdpOptions::default() };
        if shards > 1 && !self.has_shards() {
            return Err(BindError::Shards { link: Box::new(self.clone()) });
        }
        match self {
            LinkSpec::Fabric => Err(BindError::Fabric),
            LinkSpec::Udp(ip) => {
                Ok(boxed(UdpLink::bind_shards(ip.unwrap_or_else(default_address), &options, shards)?))
            }
            LinkSpec::UdpOn { interface, address: Some(ip) } => {
                Ok(boxed(UdpLink::bind_shards(*ip, &options.on_interface(interface)?, shards)?))
            }
            LinkSpec::UdpOn { interface, address: None } => {
                Ok(boxed(UdpLink::bind_interface(interface, &options, shards)?))
            }
            LinkSpec::Packet(config) => {
                let config = PacketConfig { offload: offload && config.offload, ..config.clone() };
                Ok(boxed(PacketLink::open_shards(config, shards)?))
            }
            LinkSpec::Frames(config) => Ok(boxed(vec![FramesLink::open(config.clone())?])),
        }
    }
}

/// Boxes each link as a trait object.
pub(crate) fn boxed<L: Link + 'static>(links: Vec<L>) -> Vec<Box<dyn Link>> {
    links.into_iter().map(|link| Box::new(link) as _).collect()
}

/// Returns the first IPv4 address of any interface that is up, skipping loopback and link-local addresses;
/// 127.0.0.1 if there is none.
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
    fn link_specs_round_trip_through_text() {
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
    fn vlan_and_priority_of_a_host_stack_are_parsed_and_invalid_ones_rejected() {
        let vlan = |text: &str| match text.parse::<LinkSpec>()? {
            LinkSpec::Packet(config) => Ok(config.host_stack.and_then(|s| s.vlan)),
            LinkSpec::Frames(config) => Ok(config.host_stack.vlan),
            other => Err(other.to_string()),
        };
        let tag = |id, priority| Ok(Some(VlanTag { id, priority }));
        assert_eq!(vlan("packet:eth0,ip=10.0.0.1/24,vlan=5,pcp=3"), tag(5, 3));
        assert_eq!(vlan("frames:dgram:/a,/b,ip=10.0.0.1/24,vlan=4094"), tag(4094, 0));
        assert_eq!(vlan("packet:eth0,ip=10.0.0.1/24"), Ok(None));
        for (options, expected) in [
            ("ip=10.0.0.1/24,vlan=0", "vlan=0: not a VLAN ID from 1 to 4094"),
            ("ip=10.0.0.1/24,vlan=4095", "vlan=4095: not a VLAN ID"),
            ("ip=10.0.0.1/24,vlan=5,pcp=8", "pcp=8: not a priority from 0 to 7"),
            ("ip=10.0.0.1/24,pcp=1", "add the VLAN ID"),
            ("ip=10.0.0.1/24,vlan=5,vlan=6", "given twice"),
            ("vlan=5", "configure a host stack"),
        ] {
            let error = vlan(&format!("packet:eth0,{options}")).unwrap_err();
            assert!(error.contains(expected), "{options}: {error}");
        }
    }

    #[test]
    fn error_for_an_invalid_link_spec_explains_the_cause() {
        let error = |text: &str| text.parse::<LinkSpec>().unwrap_err();
        assert!(error("ib0").contains("unknown link 'ib0'"));
        for text in ["", "10.0.0.300", "a-name-of-16-byte", "eth0/24", "fe80::1%", "10.0.0%eth0"] {
            assert!(
                error(&format!("udp:{text}")).contains(&format!("'{text}' is not an IP address")),
                "{text}"
            );
        }
        assert!(error("udp:10.0.0.1:4791").contains("the port is always 4791"));
        assert!(error("fabric:2").contains("no options"));
        assert!(error("frames:dgram:/a,/b").contains("ip=ADDRESS/PREFIX"));
    }
}
