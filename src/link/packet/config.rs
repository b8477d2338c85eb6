//! Configuration of a packet link, its textual form, and the errors when a link is opened.
#![forbid(unsafe_code)]

use std::io;
use std::str::FromStr;

use crate::host::host_stack::HostStackConfig;
use crate::host::pfc::PfcConfig;
use crate::link::options::{MIN_MTU, Options, SpecError};
use crate::sys::setters::setters;

/// Configuration of a [`PacketLink`](super::PacketLink): `packet:eth0` on the interface's own addresses,
/// `packet:eth0,ip=10.77.0.9/24,mac=52:54:00:77:00:09` as a separate host stack on it. Further options:
/// `gw=`, `vlan=` and `pcp=` (host stack only), `mtu=` (at most the interface's), `offload=off` (one packet
/// per frame), `fanout=off` (each shard's socket filters all frames itself), `speed=` (in Mb/s), `pfc=on`,
/// `xoff=` and `xon=`.
///
/// ```
/// # use urxe::link::*;
/// assert_eq!("packet:eth0,offload=off".parse(), Ok(PacketConfig::new("eth0").offload(false)));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PacketConfig {
    /// Name of the interface.
    pub interface: String,
    /// Separate host stack on the interface; `None` to use the interface's own MAC and addresses.
    pub host_stack: Option<HostStackConfig>,
    /// Size of the largest IP packet, in bytes; `None` for the interface's MTU.
    pub mtu: Option<usize>,
    /// Whether super-packets may be passed to the kernel and accepted from it.
    pub offload: bool,
    /// Whether the kernel may distribute frames to the shards (`PACKET_FANOUT`), in which case it examines
    /// each frame only once.
    pub fanout: bool,
    /// Nominal speed in bits per second; `None` for 100 Gb/s.
    pub speed: Option<u64>,
    /// Priority flow control; `None` if pause frames are ignored.
    pub pfc: Option<PfcConfig>,
}

setters!(PacketConfig { offload: bool, fanout: bool } optional {
    host_stack: HostStackConfig,
    mtu: usize,
    speed: u64,
    pfc: PfcConfig,
});

impl PacketConfig {
    /// Returns the configuration of a link on the interface's own addresses with the interface's MTU, with
    /// offload and fanout enabled.
    pub fn new(interface: impl Into<String>) -> PacketConfig {
        PacketConfig {
            interface: interface.into(),
            host_stack: None,
            mtu: None,
            offload: true,
            fanout: true,
            speed: None,
            pfc: None,
        }
    }
}

/// Error returned when a packet link cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The interface does not exist.
    #[error("interface {name:?} does not exist: the interfaces are {existing}")]
    NoInterface {
        /// Name as given.
        name: String,
        /// Names of the existing interfaces.
        existing: String,
    },
    /// The interface is down.
    #[error("interface {name} is down: bring it up (ip link set {name} up)")]
    Down {
        /// Name of the interface.
        name: String,
    },
    /// The interface is not an Ethernet interface.
    #[error("interface {name} has no MAC address: packet links need Ethernet; use `--link udp`")]
    NotEthernet {
        /// Name of the interface.
        name: String,
    },
    /// The interface has no IP address.
    #[error(
        "interface {name} has no IP address: add one (ip addr add 10.77.0.1/24 dev {name}), or give the link \
         an address of its own (packet:{name},ip=10.77.0.1/24)"
    )]
    NoAddress {
        /// Name of the interface.
        name: String,
    },
    /// The process lacks CAP_NET_RAW.
    #[error(
        "a packet socket on {name} needs CAP_NET_RAW: run as root, grant it (setcap cap_net_raw+ep PROGRAM), \
         or use `--link udp`, which needs no privilege"
    )]
    NotPermitted {
        /// Name of the interface.
        name: String,
    },
    /// The MTU of the interface is too small.
    #[error("interface {name} has MTU {mtu}, but RoCEv2 needs {MIN_MTU}: ip link set {name} mtu 1500")]
    Mtu {
        /// Name of the interface.
        name: String,
        /// MTU of the interface, in bytes.
        mtu: usize,
    },
    /// Any other system call failure.
    #[error("cannot {what} on interface {name}: {source}")]
    Io {
        /// Name of the interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The underlying system error.
        source: io::Error,
    },
}

impl FromStr for PacketConfig {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<PacketConfig, SpecError> {
        let invalid = || SpecError::Form {
            text: s.to_owned(),
            form: "packet:INTERFACE or packet:INTERFACE,ip=ADDRESS/PREFIX,mac=MAC",
        };
        let mut parts = s.strip_prefix("packet:").ok_or_else(invalid)?.split(',').peekable();
        let interface =
            parts.next().filter(|i| !i.is_empty() && !i.contains('=')).ok_or_else(invalid)?.to_owned();
        let (mut offload, mut fanout) = (true, true);
        let common = parts.filter(|option| {
            match *option {
                "offload=on" => offload = true,
                "offload=off" => offload = false,
                "fanout=on" => fanout = true,
                "fanout=off" => fanout = false,
                _ => return true,
            }
            false
        });
        let options = Options::parse(common)?;
        let host_stack = options.host_stack();
        if host_stack.is_none()
            && (options.mac.is_some() || options.vlan.is_some() || !options.gateways.is_empty())
        {
            return Err(SpecError::HostStackWithoutAddress);
        }
        let Options { mtu, speed, pfc, .. } = options;
        Ok(PacketConfig { interface, host_stack, mtu, offload, fanout, speed, pfc })
    }
}
