//! Fixture for tests against the kernel's rxe: a guest, and the wire between it and urxe on the host.
//! `peer.rs` adds verbs objects on both sides, `stock.rs` adds programs.

use super::guest::{Guest, GuestConfig, Net};
use super::netns::Netns;
use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

/// Addresses of the guest, IPv4 and IPv6.
pub const GUEST: [&str; 2] = ["10.77.0.1", "fd77::1"];
/// Addresses of the host, IPv4 and IPv6.
pub const HOST: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// TCP port on which stock servers in the guest listen.
pub const PORT: u16 = 18515;
/// Interface MTU, large enough for a path MTU of 4096.
const MTU: u16 = 4500;

/// Kind of link through which urxe reaches the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// Ethernet frames in unix datagrams.
    Dgram,
    /// Ethernet frames in a unix stream.
    Stream,
    /// A packet socket on a tap in a namespace, with the interface's addresses.
    Packet,
    /// A packet socket on a tap in a namespace, with a host stack that has its own addresses.
    PacketHostStack,
    /// A UDP socket bound to the tap's address.
    Udp,
}

impl LinkKind {
    fn is_on_tap(self) -> bool {
        matches!(self, LinkKind::Packet | LinkKind::PacketHostStack | LinkKind::Udp)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkKind::Dgram => "frames dgram",
            LinkKind::Stream => "frames stream",
            LinkKind::Packet => "packet",
            LinkKind::PacketHostStack => "packet, host stack",
            LinkKind::Udp => "udp",
        })
    }
}

/// Kind of IP address used by both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    V4,
    /// fd77::/64
    Ula,
    LinkLocal,
}

impl Ip {
    pub const ALL: [Ip; 3] = [Ip::V4, Ip::Ula, Ip::LinkLocal];
    /// One kind of address for each IP version.
    pub const VERSIONS: [Ip; 2] = [Ip::V4, Ip::Ula];

    /// Returns the address of host `n`.
    pub fn of(self, n: u8) -> IpAddr {
        match self {
            Ip::V4 => IpAddr::from([10, 77, 0, n]),
            Ip::Ula => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n.into()).into(),
            Ip::LinkLocal => Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe77, n.into()).into(),
        }
    }

    /// Returns the GID for the address of host `n`.
    pub fn gid(self, n: u8) -> Ipv6Addr {
        match self.of(n) {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ip::V4 => "IPv4",
            Ip::Ula => "IPv6 ULA",
            Ip::LinkLocal => "IPv6 LL",
        })
    }
}

/// A guest, and the wire to it. A wire with a tap needs root. The tap is in a network namespace, which the
/// thread that starts the testbed enters and never leaves, because sockets belong to the namespace of the
/// thread that opens them.
pub struct Testbed {
    pub guest: Guest,
    pub via: LinkKind,
    /// Last byte of urxe's addresses: 3 with a host stack on the tap, whose interface has 2; otherwise 2.
    pub host: u8,
    config: GuestConfig,
    dir: tempfile::TempDir,
    netns: Option<Netns>,
}

impl Testbed {
    /// Starts a guest on a wire that a link of the given kind can use.
    pub fn start(via: LinkKind) -> Testbed {
        Testbed::start_with(via, false)
    }

    /// Like [`start`](Self::start), and records all frames of the guest in [`recording`](Self::recording).
    pub fn start_recorded(via: LinkKind) -> Testbed {
        Testbed::start_with(via, true)
    }

    fn start_with(via: LinkKind, recorded: bool) -> Testbed {
        let dir = tempfile::Builder::new().prefix("urxe-testbed-").tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (net, netns) = match via {
            LinkKind::Dgram => (Net::Dgram { local: path("guest"), remote: path("urxe") }, None),
            LinkKind::Stream => (Net::StreamListen { path: path("guest") }, None),
            LinkKind::Packet | LinkKind::PacketHostStack | LinkKind::Udp => {
                let netns = namespace_with_tap();
                (Net::Tap { ifname: "tap0".into(), netns: Some(netns.name().into()) }, Some(netns))
            }
        };
        let pcap = recorded.then(|| path("guest.pcap"));
        let config = GuestConfig { mtu: MTU, oob: vec![(0, PORT)], pcap, ..GuestConfig::new(net, 1) };
        let guest = Guest::start(config.clone()).unwrap();
        // After the guest is started: the thread that starts all guests of this process inherits the
        // namespace of the thread that starts the first one.
        if let Some(netns) = &netns {
            netns.enter();
        }
        let host = if via == LinkKind::PacketHostStack { 3 } else { 2 };
        Testbed { guest, via, host, config, dir, netns }
    }

    /// Returns the pcap file with the frames of the current guest, if they are recorded.
    pub fn recording(&self) -> Option<&Path> {
        self.config.pcap.as_deref()
    }

    /// Kills the guest unless it was killed before, and boots another one with the same addresses.
    pub fn reboot(&mut self) {
        self.guest.kill();
        self.guest = Guest::start(self.config.clone()).unwrap();
    }

    /// Returns the specification of a link of the given kind on the testbed's wire. A UDP link has only an
    /// address of kind `ip`, other links have one of each kind.
    pub fn link_spec(&self, via: LinkKind, ip: Ip) -> String {
        let n = self.host;
        let all = format!("ip={}/24,ip={}/64,ip={}/64", Ip::V4.of(n), Ip::Ula.of(n), Ip::LinkLocal.of(n));
        self.link_spec_with(via, ip, &all)
    }

    /// Like [`link_spec`](Self::link_spec), with the given options instead of the addresses if the link has a
    /// host stack.
    pub fn link_spec_with(&self, via: LinkKind, ip: Ip, options: &str) -> String {
        assert!(
            via == self.via || via.is_on_tap() && self.via.is_on_tap(),
            "{via} on the wire of {}",
            self.via
        );
        let n = self.host;
        let stack = format!("{options},mac=52:54:00:77:00:{n:02},mtu={MTU}");
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        match via {
            LinkKind::Dgram => format!("frames:dgram:{},{},{stack}", path("urxe"), path("guest")),
            LinkKind::Stream => format!("frames:connect:{},{stack}", path("guest")),
            LinkKind::Packet => "packet:tap0".into(),
            LinkKind::PacketHostStack => format!("packet:tap0,{stack}"),
            LinkKind::Udp => format!("udp:{}", ip.of(n)),
        }
    }

    /// Returns a command that runs `program` in the namespace from which the guest is reachable.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.netns {
            None => Command::new(program),
            Some(netns) => netns.command(program),
        }
    }
}

/// Creates a namespace with a tap interface that has the host's addresses.
fn namespace_with_tap() -> Netns {
    let netns = Netns::new();
    netns.ip("tuntap add tap0 mode tap");
    netns.ip(&format!("link set tap0 address 52:54:00:77:00:02 mtu {MTU} addrgenmode none"));
    // No other host has these addresses, so duplicate address detection is skipped.
    netns.ip("addr add 10.77.0.2/24 dev tap0");
    netns.ip("addr add fd77::2/64 dev tap0 nodad");
    netns.ip("addr add fe80::5054:ff:fe77:2/64 dev tap0 nodad");
    netns.ip("link set tap0 up");
    netns
}
