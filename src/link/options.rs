//! Options in the textual specification of a link: `ip=10.77.0.1/24,mac=52:54:00:77:00:01,mtu=4500`.

use std::fmt::Display;
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
        option: String,
    },
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    Value {
        /// The option as given, with its value.
        option: String,
        /// Requirement that the value does not meet.
        reason: String,
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
    /// An invalid MAC address.
    #[error("mac=: {0}")]
    Mac(#[from] MacError),
    /// The MAC address is a multicast address or all zeros.
    #[error("mac={0} is a group address or all zeros: use a unicast MAC address (even first byte)")]
    MacNotUnicast(Mac),
    /// A priority is given without a VLAN ID, which leaves no VLAN tag to carry it.
    #[error("pcp= is part of the VLAN tag: add the VLAN ID, such as vlan=5")]
    PriorityWithoutVlan,
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

/// Largest accepted threshold of priority flow control, in bytes.
const MAX_THRESHOLD: usize = u32::MAX as usize;

fn invalid(option: &str, reason: impl Into<String>) -> SpecError {
    SpecError::Value { option: option.to_owned(), reason: reason.into() }
}

/// Parses the value of an option: a number in a range.
fn number<N>(option: &str, what: &str, range: RangeInclusive<N>) -> Result<N, SpecError>
where
    N: FromStr + PartialOrd + Display,
{
    let number = option.split_once('=').and_then(|(_, text)| text.parse().ok());
    number
        .filter(|n| range.contains(n))
        .ok_or_else(|| invalid(option, format!("not a {what} from {} to {}", range.start(), range.end())))
}

/// Sets an option that may be given once.
fn set<T>(to: &mut Option<T>, option: &str, value: T) -> Result<(), SpecError> {
    match to.replace(value) {
        None => Ok(()),
        Some(_) => Err(SpecError::Twice { option: option.to_owned() }),
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
            let (name, text) = option.split_once('=').unwrap_or_default();
            match name {
                "ip" => out.addresses.push(text.parse()?),
                "gw" => out.gateways.push(text.parse().map_err(|_| invalid(option, "not an IP address"))?),
                "mac" => {
                    let mac: Mac = text.parse()?;
                    if mac.is_multicast() || mac == Mac::default() {
                        return Err(SpecError::MacNotUnicast(mac));
                    }
                    set(&mut out.mac, name, mac)?;
                }
                "mtu" => set(&mut out.mtu, name, number(option, "number of bytes", MIN_MTU..=MAX_MTU)?)?,
                "vlan" => set(&mut vlan, name, number(option, "VLAN ID", 1..=4094)?)?,
                "pcp" => set(&mut pcp, name, number(option, "priority", 0..=7)?)?,
                "speed" => {
                    set(&mut out.speed, name, 1_000_000 * number(option, "number of Mb/s", 1..=MAX_SPEED)?)?;
                }
                "pfc" if matches!(text, "on" | "off") => set(&mut pfc, name, text == "on")?,
                "pfc" => return Err(invalid(option, "write pfc=on or pfc=off")),
                "xoff" => set(&mut xoff, name, number(option, "number of bytes", 1..=MAX_THRESHOLD)?)?,
                "xon" => set(&mut xon, name, number(option, "number of bytes", 1..=MAX_THRESHOLD)?)?,
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
