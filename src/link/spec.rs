//! The options that a link's text takes: `ip=10.77.0.1/24,mac=52:54:00:77:00:01,mtu=4500`.

use std::net::IpAddr;

use super::station::{AddressError, IfAddr, StationConfig};
use crate::wire::frame::VlanTag;
use crate::wire::{Mac, MacError};

/// The smallest IP packet size that every IPv6 link must carry; RoCE's smallest MTU fits too.
pub const MIN_MTU: usize = 576;
/// What fits an IP packet.
pub const MAX_MTU: usize = 65_535;

/// What is wrong with the text that describes a link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// It is of another kind.
    #[error("{text:?} is not of the form {form}")]
    Form {
        /// As given.
        text: String,
        /// How it should look.
        form: &'static str,
    },
    /// An option that there is not.
    #[error("unknown option {option:?}: there are ip=, mac=, gw=, vlan=, pcp= and mtu=")]
    UnknownOption {
        /// As given.
        option: String,
    },
    /// An option that is given twice.
    #[error("option {option}= is given twice")]
    Twice {
        /// Its name.
        option: &'static str,
    },
    /// No address where one is needed.
    #[error("no address: add at least one ip=ADDRESS/PREFIX, as ip=10.77.0.1/24 or ip=fd00::1/64")]
    NoAddress,
    /// A station's option where there is no station.
    #[error("mac=, gw= and vlan= describe a station of its own: give its address too, as ip=10.77.0.1/24")]
    StationWithoutAddress,
    /// A bad address.
    #[error("ip=: {0}")]
    Address(#[from] AddressError),
    /// A bad router.
    #[error("gw={0}: not an IP address")]
    Gateway(String),
    /// A bad MAC.
    #[error("mac=: {0}")]
    Mac(#[from] MacError),
    /// A MAC that no station may have.
    #[error("mac={0} names a group or nobody: a station's MAC has an even first byte")]
    MacNotUnicast(Mac),
    /// A bad VLAN.
    #[error("vlan={0}: not a VLAN from 1 to 4094")]
    Vlan(String),
    /// A bad priority.
    #[error("pcp={0}: not a priority from 0 to 7")]
    Priority(String),
    /// A priority without the tag that carries it.
    #[error("pcp= is a part of the VLAN tag: give the VLAN too, as vlan=5")]
    PriorityWithoutVlan,
    /// A bad MTU.
    #[error("mtu={0}: not a number of bytes from {MIN_MTU} to {MAX_MTU}")]
    Mtu(String),
}

/// The options as given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    pub addresses: Vec<IfAddr>,
    pub gateways: Vec<IpAddr>,
    pub mac: Option<Mac>,
    pub mtu: Option<usize>,
    pub vlan: Option<VlanTag>,
}

impl Options {
    pub fn parse<'a>(options: impl Iterator<Item = &'a str>) -> Result<Options, SpecError> {
        let mut out = Options::default();
        let (mut vlan, mut pcp) = (None, None);
        for option in options {
            match option.split_once('=') {
                Some(("ip", ip)) => out.addresses.push(ip.parse()?),
                Some(("gw", ip)) => {
                    out.gateways.push(ip.parse().map_err(|_| SpecError::Gateway(ip.to_owned()))?);
                }
                Some(("mac", mac)) => {
                    let mac: Mac = mac.parse()?;
                    if mac.is_multicast() || mac == Mac::default() {
                        return Err(SpecError::MacNotUnicast(mac));
                    }
                    if out.mac.replace(mac).is_some() {
                        return Err(SpecError::Twice { option: "mac" });
                    }
                }
                Some(("mtu", mtu)) => {
                    let bytes = mtu.parse().ok().filter(|m| (MIN_MTU..=MAX_MTU).contains(m));
                    let bytes = bytes.ok_or_else(|| SpecError::Mtu(mtu.to_owned()))?;
                    if out.mtu.replace(bytes).is_some() {
                        return Err(SpecError::Twice { option: "mtu" });
                    }
                }
                Some(("vlan", id)) => {
                    let good = id.parse().ok().filter(|id| (1..=4094).contains(id));
                    if vlan.replace(good.ok_or_else(|| SpecError::Vlan(id.to_owned()))?).is_some() {
                        return Err(SpecError::Twice { option: "vlan" });
                    }
                }
                Some(("pcp", priority)) => {
                    let good = priority.parse().ok().filter(|p| *p <= 7);
                    if pcp.replace(good.ok_or_else(|| SpecError::Priority(priority.to_owned()))?).is_some() {
                        return Err(SpecError::Twice { option: "pcp" });
                    }
                }
                _ => return Err(SpecError::UnknownOption { option: option.to_owned() }),
            }
        }
        if vlan.is_none() && pcp.is_some() {
            return Err(SpecError::PriorityWithoutVlan);
        }
        out.vlan = vlan.map(|id| VlanTag { id, priority: pcp.unwrap_or(0) });
        Ok(out)
    }

    /// The station that the options describe; `None` without an address.
    pub fn station(&self) -> Option<StationConfig> {
        (!self.addresses.is_empty()).then(|| StationConfig {
            mac: self.mac.unwrap_or_else(|| StationConfig::derived_mac(&self.addresses)),
            addresses: self.addresses.clone(),
            gateways: self.gateways.clone(),
            vlan: self.vlan,
        })
    }
}
