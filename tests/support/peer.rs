//! Verbs objects of urxe and of the kernel's rxe on a testbed, and functions that connect their QPs.

use super::guest::{Vsh, Wc};
use super::nic;
use super::testbed::{Ip, Testbed};
pub use nic::Nic as Side;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::link::{FramesLink, Link, LinkSpec, PacketLink};
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;

/// Time limit for a single step; long because the guest is emulated and other tests run at the same time.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Default length of the region on each side: a source and a target of 1 MiB each, and 64 KiB more.
pub const REGION: usize = (2 << 20) + 65536;

/// Functions that open the local end of the wire and connect QPs of urxe and rxe.
impl Testbed {
    /// Opens the local end of the wire. A UDP link has only an address of kind `ip`, other links have one of
    /// each kind.
    pub fn link(&self, ip: Ip) -> Box<dyn Link> {
        open_link(&self.link_spec(self.via, ip))
    }

    /// Like [`link`](Self::link), with the given options if the link has a host stack.
    pub fn link_with(&self, ip: Ip, options: &str) -> Box<dyn Link> {
        open_link(&self.link_spec_with(self.via, ip, options))
    }

    /// Opens a NIC on the local end of the wire.
    pub fn open(&self, ip: Ip) -> Side {
        self.open_wrapped(ip, |link| link)
    }

    /// Opens a NIC on the local end of the wire, wrapped by `wrap`.
    pub fn open_wrapped(&self, ip: Ip, wrap: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>) -> Side {
        Side::new(nic::open([wrap(self.link(ip))]), REGION)
    }

    /// Starts a verbs shell in the guest with a region `m` of `len` bytes.
    pub fn shell(&self, len: usize) -> Shell {
        let mut vsh = self.guest.vsh().unwrap();
        let mr = vsh.cmd(&format!("mr m {len}")).unwrap();
        let to = RemoteAddr { va: mr.num("addr"), rkey: RKey(mr.num("rkey") as u32) };
        Shell { vsh, to }
    }

    /// Connects a new local QP to a new QP `q` of the shell, which replaces any earlier `q`.
    pub fn connect(&self, side: &Side, shell: &mut Shell, params: &ConnectParams) -> Qp {
        // The command fails the first time, when the shell has no `q`.
        let _ = shell.vsh.raw("destroy q").unwrap();
        self.connect_named(side, shell, "q", params)
    }

    /// Like [`connect`](Self::connect), with a name for the shell's QP; the shell must not have a QP with
    /// that name.
    pub fn connect_named(&self, side: &Side, shell: &mut Shell, name: &str, params: &ConnectParams) -> Qp {
        let qp = side.pd.create_qp(&side.cq, &side.cq, &params.options).unwrap();
        self.connect_qp(side, shell, name, params, qp)
    }

    /// Like [`connect_named`](Self::connect_named), with an existing local QP.
    pub fn connect_qp(
        &self,
        side: &Side,
        shell: &mut Shell,
        name: &str,
        params: &ConnectParams,
        qp: Qp,
    ) -> Qp {
        let line = format!("qp {name} rc {}", params.their_qp);
        let theirs = shell.vsh.cmd(&line).unwrap().num("qpn") as u32;
        let sgid_index = side.gid_index(params.ip.of(self.host));
        let ours = qp.endpoint();
        let our_psn = params.our_psn.unwrap_or(ours.psn.get());
        let sgid = self.guest.gid_index(&params.ip.of(1).to_string()).unwrap();
        let (gid, qpn) = (params.ip.gid(self.host), qp.qpn().get());
        let line = format!(
            "connect {name} qpn={qpn} gid={gid} sgid={sgid} mtu={} rq_psn={our_psn} sq_psn={} {}",
            params.mtu, params.their_psn, params.theirs
        );
        shell.vsh.cmd(&line).unwrap();
        let peer = Endpoint {
            gid: Gid::from(params.ip.of(1)),
            qpn: Qpn::new(theirs),
            psn: Psn::new(params.their_psn),
        };
        let options = params.ours.mtu(Mtu::from_bytes(params.mtu)).sgid_index(sgid_index);
        qp.enter_init(options.access).unwrap();
        qp.enter_rtr(&peer, &options).unwrap();
        let attr = QpAttr::new(QpState::Rts)
            .sq_psn(Psn::new(our_psn))
            .timeout(options.timeout)
            .retry_cnt(options.retry_cnt)
            .rnr_retry(options.rnr_retry)
            .max_rd_atomic(options.max_rd_atomic);
        qp.modify(&attr).unwrap();
        qp
    }
}

fn open_link(spec: &str) -> Box<dyn Link> {
    match spec.parse().unwrap_or_else(|e| panic!("{spec}: {e}")) {
        LinkSpec::Frames(config) => Box::new(FramesLink::open(config).unwrap_or_else(|e| panic!("{e}"))),
        LinkSpec::Packet(config) => Box::new(PacketLink::open(config).unwrap_or_else(|e| panic!("{e}"))),
        LinkSpec::Udp(Some(ip)) => {
            let link = UdpLink::bind(ip, &UdpOptions::default());
            Box::new(link.unwrap_or_else(|e| panic!("{e}")))
        }
        other => panic!("no link of a testbed: {other}"),
    }
}

/// Parameters of a connection between a local QP and one of the shell.
#[derive(Clone)]
pub struct ConnectParams {
    pub ip: Ip,
    pub mtu: usize,
    pub ours: ConnectOptions,
    /// Options of the local QP.
    pub options: QpOptions,
    /// Options for the shell's `qp` command.
    pub their_qp: String,
    /// Further options for the shell's `connect` command.
    pub theirs: String,
    /// First PSN that the local QP sends; `None` for the random one that it has chosen.
    pub our_psn: Option<u32>,
    pub their_psn: u32,
}

impl ConnectParams {
    pub fn new(ip: Ip, mtu: usize) -> ConnectParams {
        // Half a second: an emulated guest on a busy machine may not respond within the usual 67 ms.
        let ours = ConnectOptions::default().timeout(AckTimeout::new(17));
        let (options, their_qp) = (QpOptions::default(), "inline=256".into());
        ConnectParams {
            ip,
            mtu,
            ours,
            options,
            their_qp,
            theirs: String::new(),
            our_psn: None,
            their_psn: 0x00ab_cdef,
        }
    }
}

impl Side {
    pub fn gid_index(&self, ip: IpAddr) -> u8 {
        let found = self.context.gids().iter().position(|g| g.ip() == ip);
        found.unwrap_or_else(|| panic!("no GID for {ip}: {:?}", self.context.gids())) as u8
    }

    /// Returns the next `n` completions in order of arrival, or fewer after `timeout`.
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
        self.poll(1, TIMEOUT).pop().ok_or_else(|| {
            format!(
                "urxe: no completion within {TIMEOUT:?}; {:?} {:?}",
                self.context.counters(),
                self.context.link_state()
            )
        })
    }

    pub fn counters(&self) -> Counters {
        self.context.counters()
    }
}

/// A verbs shell in the guest, and its region.
pub struct Shell {
    pub vsh: Vsh,
    /// Remote address of the shell's region.
    pub to: RemoteAddr,
}

impl Shell {
    pub fn at(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { va: self.to.va + offset as u64, ..self.to }
    }

    /// Returns one completion.
    pub fn one(&mut self) -> Result<Wc, String> {
        let got = self.vsh.poll(1, TIMEOUT).map_err(|e| e.to_string())?;
        got.into_iter().next().ok_or_else(|| format!("rxe: no completion within {TIMEOUT:?}"))
    }

    pub fn state(&mut self, qp: &str) -> String {
        self.vsh.cmd(&format!("query {qp}")).unwrap().get("state").to_string()
    }
}

/// Returns the arguments `addr=` and `rkey=` that name local memory in a shell command.
pub fn remote_args(at: RemoteAddr) -> String {
    format!("addr={:#x} rkey={:#x}", at.va, at.rkey.0)
}
