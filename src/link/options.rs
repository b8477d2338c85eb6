//! Options in the textual specification of a link: `ip=10.77.0.1/24,mac=52:54:00:77:00:01,mtu=4500`.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::host::host_stack::{HostStackConfig, IfAddr, IfAddrError};
use crate::host::pfc::PfcConfig;
use crate::wire::frame::VlanTag;
use crate::wire::{Mac, MacError};

/// Smallest accepted MTU, in bytes: the packet size that every IPv4 host must accept (RFC 791), which leaves
/// room for RoCE's smallest MTU of 256.
pub const MIN_MTU: usize = 576;
/// Largest accepted MTU, in bytes: the size of the largest IP packet.
pub const MAX_MTU: usize = 65_535;

/// Error in the textual specification of a link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text is not of the expected form.
    #[error("{text:?} is not of the form {form}")]
    Form {
        /// The text as given.
        text: String,
        /// The expected form.
        form: &'static str,
    },
    /// An unknown option.
    #[error("unknown option {option:?}: expected ip=, mac=, gw=, vlan=, pcp=, mtu=, speed= or pfc=")]
    UnknownOption {
        /// The option as given.
        option: String,
    },
    /// An option is given more than once.
    #[error("option {option}= is given twice")]
    Twice {
        /// Name of the option.
        option: &'static str,
    },
    /// No address is given, although the link needs one.
    #[error("no address: add at least one ip=ADDRESS/PREFIX, such as ip=10.77.0.1/24 or ip=fd00::1/64")]
    NoAddress,
    /// A host stack option is given, but there is no host stack, because no address is given.
    #[error(
        "mac=, gw= and vlan= configure a host stack, which needs an address: add for example ip=10.77.0.1/24"
    )]
    HostStackWithoutAddress,
    /// An invalid address.
    #[error("ip=: {0}")]
    Address(#[from] IfAddrError),
    /// An invalid gateway address.
    #[error("gw={0}: not an IP address")]
    Gateway(String),
    /// An invalid MAC address.
    #[error("mac=: {0}")]
    Mac(#[from] MacError),
    /// The MAC address is a multicast address or all zeros.
    #[error("mac={0} is a group address or all zeros: use a unicast MAC address (even first byte)")]
    MacNotUnicast(Mac),
    /// An invalid VLAN ID.
    #[error("vlan={0}: not a VLAN ID from 1 to 4094")]
    Vlan(String),
    /// An invalid priority (PCP).
    #[error("pcp={0}: not a priority from 0 to 7")]
    Priority(String),
    /// A priority is given without a VLAN ID, which leaves no VLAN tag to carry it.
    #[error("pcp= is part of the VLAN tag: add the VLAN ID, such as vlan=5")]
    PriorityWithoutVlan,
    /// An invalid MTU.
    #[error("mtu={0}: not a number of bytes from {MIN_MTU} to {MAX_MTU}")]
    Mtu(String),
    /// An invalid speed.
    #[error("speed={0}: not a number of Mb/s from 1 to {MAX_SPEED}")]
    Speed(String),
    /// An invalid value of the option for priority flow control.
    #[error("pfc={0}: write pfc=on or pfc=off")]
    Pfc(String),
    /// An invalid threshold of priority flow control.
    #[error("{option}={text}: not a number of bytes from 1 to {}", u32::MAX)]
    Threshold {
        /// Name of the option.
        option: &'static str,
        /// Value as given.
        text: String,
    },
    /// A threshold is given without priority flow control.
    #[error("xoff= and xon= are thresholds of priority flow control: add pfc=on")]
    ThresholdWithoutPfc,
    /// Sending is allowed again above the threshold that pauses it.
    #[error("xon={xon} is above xoff={xoff}: give a lower one")]
    XonAboveXoff {
        /// Bytes at which the neighbour may send again.
        xon: usize,
        /// Bytes above which the neighbour is paused.
        xoff: usize,
    },
}

/// Largest accepted speed, in Mb/s.
const MAX_SPEED: u64 = 10_000_000;

/// Parses a number in a range.
fn number<N: FromStr + PartialOrd>(
    text: &str,
    range: RangeInclusive<N>,
    error: impl FnOnce(String) -> SpecError,
) -> Result<N, SpecError> {
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| error(text.to_owned()))
}

/// Parses a threshold of priority flow control.
fn threshold(option: &'static str, text: &str) -> Result<usize, SpecError> {
    number(text, 1..=u32::MAX, |text| SpecError::Threshold { option, text }).map(|bytes| bytes as usize)
}

/// Sets an option that may be given once.
fn set<T>(to: &mut Option<T>, option: &'static str, value: Result<T, SpecError>) -> Result<(), SpecError> {
    match to.replace(value?) {
        None => Ok(()),
        Some(_) => Err(SpecError::Twice { option }),
    }
}

/// The parsed options.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    pub addresses: Vec<IfAddr>,
    pub gateways: Vec<IpAddr>,
    pub mac: Option<Mac>,
    pub mtu: Option<usize>,
    pub vlan: Option<VlanTag>,
    /// Speed in bits per second.
    pub speed: Option<u64>,
    pub pfc: Option<PfcConfig>,
}

impl Options {
    pub fn parse<'a>(options: impl Iterator<Item = &'a str>) -> Result<Options, SpecError> {
        let mut out = Options::default();
        let (mut vlan, mut pcp) = (None, None);
        let (mut pfc, mut xoff, mut xon) = (None, None, None);
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
                    set(&mut out.mac, "mac", Ok(mac))?;
                }
                Some(("mtu", mtu)) => {
                    set(&mut out.mtu, "mtu", number(mtu, MIN_MTU..=MAX_MTU, SpecError::Mtu))?
                }
                Some(("vlan", id)) => set(&mut vlan, "vlan", number(id, 1..=4094, SpecError::Vlan))?,
                Some(("pcp", text)) => set(&mut pcp, "pcp", number(text, 0..=7, SpecError::Priority))?,
                Some(("speed", speed)) => {
                    let mbps = number(speed, 1..=MAX_SPEED, SpecError::Speed);
                    set(&mut out.speed, "speed", mbps.map(|mbps| mbps * 1_000_000))?;
                }
                Some(("pfc", "on")) => set(&mut pfc, "pfc", Ok(true))?,
                Some(("pfc", "off")) => set(&mut pfc, "pfc", Ok(false))?,
                Some(("pfc", switch)) => return Err(SpecError::Pfc(switch.to_owned())),
                Some(("xoff", bytes)) => set(&mut xoff, "xoff", threshold("xoff", bytes))?,
                Some(("xon", bytes)) => set(&mut xon, "xon", threshold("xon", bytes))?,
                _ => return Err(SpecError::UnknownOption { option: option.to_owned() }),
            }
        }
        if vlan.is_none() && pcp.is_some() {
            return Err(SpecError::PriorityWithoutVlan);
        }
        out.vlan = vlan.map(|id| VlanTag { id, priority: pcp.unwrap_or(0) });
        let has_pfc = pfc == Some(true);
        match (xoff, xon) {
            (None, None) => {}
            _ if !has_pfc => return Err(SpecError::ThresholdWithoutPfc),
            (Some(xoff), Some(xon)) if xon > xoff => return Err(SpecError::XonAboveXoff { xon, xoff }),
            _ => {}
        }
        out.pfc = has_pfc.then(|| PfcConfig::default().xoff(xoff).xon(xon));
        Ok(out)
    }

    /// Returns the host stack configuration that the options describe; `None` if they contain no address.
    pub fn host_stack(&self) -> Option<HostStackConfig> {
        let config = HostStackConfig::new(self.addresses.clone()).gateways(self.gateways.clone());
        let mac = self.mac.unwrap_or(config.mac);
        (!self.addresses.is_empty()).then(|| config.vlan(self.vlan).mac(mac))
    }
}
