//! urxe on one side of a wire and a guest with the kernel's rxe on the other, ready to be connected.
#![allow(dead_code, reason = "each test target uses its part")]

use super::guest::{Guest, GuestConfig, Net, Vsh, Wc};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::link::{FramesLink, Link, PacketLink};
use urxe::verbs::*;

/// Limit for any single step. It is long because the guest is emulated and other tests run at the same time.
pub const SOON: Duration = Duration::from_secs(30);

/// Default length of the region on either side: a source and a target of one MiB each, and some space behind.
pub const REGION: usize = (2 << 20) + 65536;

/// Link through which urxe reaches the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// Frames as unix datagrams.
    Dgram,
    /// Frames in a unix stream.
    Stream,
    /// A packet socket on a tap in a namespace, with the interface's own addresses.
    PacketOwn,
    /// A packet socket on a tap in a namespace, with addresses and a host stack of its own.
    PacketStation,
    /// A UDP socket with the tap's address.
    Udp,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Via::Dgram => "frames dgram",
            Via::Stream => "frames stream",
            Via::PacketOwn => "packet",
            Via::PacketStation => "packet station",
            Via::Udp => "udp",
        })
    }
}

/// Kind of addresses in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    V4,
    /// fd77::/64
    Ula,
    LinkLocal,
}

impl Ip {
    pub const ALL: [Ip; 3] = [Ip::V4, Ip::Ula, Ip::LinkLocal];
    /// One kind of each IP version.
    pub const VERSIONS: [Ip; 2] = [Ip::V4, Ip::Ula];

    /// Returns the address of host `n`.
    pub fn of(self, n: u8) -> IpAddr {
        match self {
            Ip::V4 => IpAddr::from([10, 77, 0, n]),
            Ip::Ula => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n.into()).into(),
            Ip::LinkLocal => Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe77, n.into()).into(),
        }
    }

    /// Returns the address of host `n` in the form of a GID.
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

/// A namespace with a tap in it. The thread that creates it moves in and stays, because sockets belong to the
/// namespace of the thread that opens them.
struct Tap {
    netns: String,
}

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    let out = out.unwrap_or_else(|e| panic!("this test needs iproute2 (run tests/guest/install): {e}"));
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success(),
        "this test makes a network namespace and needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN): ip {args}: {why}"
    );
}

impl Tap {
    fn enter() -> Tap {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let tap = Tap { netns: format!("urxe-interop-{}-{n}", std::process::id()) };
        let ns = &tap.netns;
        ip(&format!("netns add {ns}"));
        let file = std::fs::File::open(format!("/run/netns/{ns}")).expect("the namespace just made");
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("entering a network namespace needs root (CAP_SYS_ADMIN)");
        ip("link set lo up");
        ip("tuntap add tap0 mode tap");
        ip("link set tap0 address 52:54:00:77:00:02 mtu 4500 addrgenmode none");
        // No other host has these addresses, so duplicate address detection is skipped.
        ip("addr add 10.77.0.2/24 dev tap0");
        ip("addr add fd77::2/64 dev tap0 nodad");
        ip("addr add fe80::5054:ff:fe77:2/64 dev tap0 nodad");
        ip("link set tap0 up");
        tap
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The namespace remains until the next reboot if this fails.
        let _ = Command::new("ip").args(["netns", "del", &self.netns]).output();
    }
}

/// A guest and the link to it. It must be created on the thread that uses it.
pub struct Site {
    pub via: Via,
    pub guest: Guest,
    /// Last byte of the local addresses: 3 for a host stack of its own on the tap, whose own is 2.
    pub host: u8,
    dir: tempfile::TempDir,
    _tap: Option<Tap>,
}

impl Site {
    pub fn start(via: Via) -> Site {
        let dir = tempfile::Builder::new().prefix("urxe-peer-").tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (net, tap) = match via {
            Via::Dgram => (Net::Dgram { local: path("guest"), remote: path("urxe") }, None),
            Via::Stream => (Net::StreamListen { path: path("guest") }, None),
            Via::PacketOwn | Via::PacketStation | Via::Udp => {
                let tap = Tap::enter();
                (Net::Tap { ifname: "tap0".into(), netns: Some(tap.netns.clone()) }, Some(tap))
            }
        };
        let guest = Guest::start(GuestConfig { mtu: 4500, ..GuestConfig::new(net, 1) }).unwrap();
        let host = if via == Via::PacketStation { 3 } else { 2 };
        Site { via, guest, host, dir, _tap: tap }
    }

    /// Opens the local end of the wire; a UDP socket has only the address `ip`, the others have all.
    pub fn link(&self, ip: Ip) -> Box<dyn Link> {
        let n = self.host;
        let addresses =
            format!("ip={}/24,ip={}/64,ip={}/64", Ip::V4.of(n), Ip::Ula.of(n), Ip::LinkLocal.of(n));
        self.link_with(ip, &addresses)
    }

    /// As [`link`](Self::link), with these options if the local end has a host stack of its own.
    pub fn link_with(&self, ip: Ip, options: &str) -> Box<dyn Link> {
        let n = self.host;
        let station = format!("{options},mac=52:54:00:77:00:{n:02},mtu=4500");
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let frames = |wire: String| {
            let config = format!("frames:{wire},{station}").parse().unwrap();
            Box::new(FramesLink::open(config).unwrap_or_else(|e| panic!("{e}")))
        };
        let packet = |config: &str| {
            let config = config.parse().unwrap();
            Box::new(PacketLink::open(config).unwrap_or_else(|e| panic!("{e}")))
        };
        match self.via {
            Via::Dgram => frames(format!("dgram:{},{}", path("urxe"), path("guest"))),
            Via::Stream => frames(format!("connect:{}", path("guest"))),
            Via::PacketOwn => packet("packet:tap0"),
            Via::PacketStation => packet(&format!("packet:tap0,{station}")),
            Via::Udp => {
                let link = UdpLink::bind(ip.of(n), &UdpOptions::default());
                Box::new(link.unwrap_or_else(|e| panic!("{e}")))
            }
        }
    }

    /// Opens a NIC on the link.
    pub fn open(&self, ip: Ip) -> Side {
        self.open_wrapped(ip, |link| link)
    }

    /// Opens a NIC on the link with a wrapper around it.
    pub fn open_wrapped(&self, ip: Ip, wrap: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>) -> Side {
        Side::new(wrap(self.link(ip)), REGION)
    }

    /// Starts a verbs shell in the guest with a region `m` of `len` bytes.
    pub fn shell(&self, len: usize) -> Shell {
        let mut vsh = self.guest.vsh().unwrap();
        let mr = vsh.cmd(&format!("mr m {len}")).unwrap();
        let to = RemoteAddr { va: mr.num("addr"), rkey: RKey(mr.num("rkey") as u32) };
        Shell { vsh, to }
    }

    /// Connects a new QP on each side: the local one, and `q` of the shell in place of any earlier `q`.
    pub fn connect(&self, side: &Side, shell: &mut Shell, how: &How) -> Qp {
        // There is none the first time.
        let _ = shell.vsh.raw("destroy q").unwrap();
        self.connect_named(side, shell, "q", how)
    }

    /// As [`connect`](Self::connect), with a name for the shell's QP, which must be new.
    pub fn connect_named(&self, side: &Side, shell: &mut Shell, name: &str, how: &How) -> Qp {
        let qp = side.pd.create_qp(&side.cq, &side.cq, &how.options).unwrap();
        self.connect_qp(side, shell, name, how, qp)
    }

    /// As [`connect_named`](Self::connect_named), with an existing local QP.
    pub fn connect_qp(&self, side: &Side, shell: &mut Shell, name: &str, how: &How, qp: Qp) -> Qp {
        let line = format!("qp {name} rc {}", how.their_qp);
        let theirs = shell.vsh.cmd(&line).unwrap().num("qpn") as u32;
        let sgid_index = side.gid_index(how.ip.of(self.host));
        let ours = qp.endpoint();
        let our_psn = how.our_psn.unwrap_or(ours.psn.get());
        let sgid = self.guest.gid_index(&how.ip.of(1).to_string()).unwrap();
        let (gid, qpn) = (how.ip.gid(self.host), qp.qpn().get());
        let line = format!(
            "connect {name} qpn={qpn} gid={gid} sgid={sgid} mtu={} rq_psn={our_psn} sq_psn={} {}",
            how.mtu, how.their_psn, how.theirs
        );
        shell.vsh.cmd(&line).unwrap();
        let peer =
            Endpoint { gid: Gid::from(how.ip.of(1)), qpn: Qpn::new(theirs), psn: Psn::new(how.their_psn) };
        let options =
            ConnectOptions { mtu: Mtu::from_bytes(how.mtu), sgid_index: Some(sgid_index), ..how.ours };
        qp.to_init(options.access).unwrap();
        qp.to_rtr(&peer, &options).unwrap();
        let attr = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(our_psn)),
            timeout: Some(options.timeout),
            retry_cnt: Some(options.retry_cnt),
            rnr_retry: Some(options.rnr_retry),
            max_rd_atomic: Some(options.max_rd_atomic),
            ..QpAttr::default()
        };
        qp.modify(&attr).unwrap();
        qp
    }
}

/// Parameters of the connection between two QPs.
#[derive(Clone)]
pub struct How {
    pub ip: Ip,
    pub mtu: usize,
    pub ours: ConnectOptions,
    /// Options of the local QP.
    pub options: QpOptions,
    /// Options for the shell's `qp` command.
    pub their_qp: String,
    /// Further options for the shell's `connect` command.
    pub theirs: String,
    /// First local PSN; `None`: the QP's own.
    pub our_psn: Option<u32>,
    pub their_psn: u32,
}

impl How {
    pub fn new(ip: Ip, mtu: usize) -> How {
        // Half a second: an emulated guest on a busy machine may well not respond within the usual 67 ms.
        let ours = ConnectOptions { timeout: AckTimeout::new(17), ..ConnectOptions::default() };
        let (options, their_qp) = (QpOptions::default(), "inline=256".into());
        How { ip, mtu, ours, options, their_qp, theirs: String::new(), our_psn: None, their_psn: 0x00ab_cdef }
    }
}

/// The urxe side.
pub struct Side {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
}

impl Side {
    pub fn new(link: Box<dyn Link>, len: usize) -> Side {
        Side::with_options(link, len, &ContextOptions::default())
    }

    pub fn with_options(link: Box<dyn Link>, len: usize, options: &ContextOptions) -> Side {
        let context = Context::open(link, options).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4096).unwrap();
        let mr = pd.reg_mr(len, Access::ALL).unwrap();
        Side { context, pd, cq, mr }
    }

    pub fn gid_index(&self, ip: IpAddr) -> u8 {
        let found = self.context.gids().iter().position(|g| g.ip() == ip);
        found.unwrap_or_else(|| panic!("no GID for {ip}: {:?}", self.context.gids())) as u8
    }

    /// Returns `n` completions, in the order of arrival; fewer if no more arrive in time.
    pub fn poll(&self, n: usize, timeout: Duration) -> Vec<Completion> {
        let deadline = Instant::now() + timeout;
        let mut got = Vec::new();
        while got.len() < n {
            match self.cq.wait_any(deadline.saturating_duration_since(Instant::now())) {
                Ok(wc) => got.push(wc),
                Err(WaitError::TimedOut(_)) => break,
                Err(e) => panic!("{e}"),
            }
        }
        got
    }

    /// Returns one completion.
    pub fn one(&self) -> Result<Completion, String> {
        self.poll(1, SOON).pop().ok_or_else(|| {
            format!(
                "urxe: no completion in {SOON:?}; {:?} {:?}",
                self.context.counters(),
                self.context.link_state()
            )
        })
    }

    pub fn counters(&self) -> Counters {
        self.context.counters()
    }
}

/// The guest's side.
pub struct Shell {
    pub vsh: Vsh,
    /// Address of its region.
    pub to: RemoteAddr,
}

impl Shell {
    pub fn at(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { va: self.to.va + offset as u64, ..self.to }
    }

    /// Returns one completion.
    pub fn one(&mut self) -> Result<Wc, String> {
        let got = self.vsh.poll(1, SOON).map_err(|e| e.to_string())?;
        got.into_iter().next().ok_or_else(|| format!("rxe: no completion in {SOON:?}"))
    }

    pub fn state(&mut self, qp: &str) -> String {
        self.vsh.cmd(&format!("query {qp}")).unwrap().get("state").to_string()
    }
}

/// Returns `addr= rkey=` of a local region, for a work request of the shell.
pub fn words(at: RemoteAddr) -> String {
    format!("addr={:#x} rkey={:#x}", at.va, at.rkey.0)
}
