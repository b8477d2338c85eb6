//! NIC under measurement, with its queue pairs and their connections.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use urxe::broker::{SharedMemory, Sharing};
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::link::{Link, LinkSpec, PacketConfig, PacketLink};
use urxe::middleware::faults::{Action, Direction, Faults, Rule, When};
use urxe::verbs::*;

use crate::Result;
use crate::job::{LinkAddrs, Metrics, Role};
use crate::urxe_command;

/// Q_Key of datagrams.
pub const QKEY: QKey = QKey(0x6666_6666);

/// Queue depth with a single queue pair; with several, the depth is 128.
const QUEUE_DEPTH: u32 = 1024;

/// Connection parameters that the other end needs.
#[derive(Clone, Serialize, Deserialize)]
pub struct ConnInfo {
    ip: IpAddr,
    /// Queue pair number and initial PSN of each queue pair.
    qps: Vec<(u32, u32)>,
    va: u64,
    rkey: u32,
}

impl ConnInfo {
    /// Returns the address and the R_Key of the region.
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { va: self.va, rkey: RKey(self.rkey) }
    }

    /// Returns the number of the first queue pair.
    pub fn qpn(&self) -> Qpn {
        Qpn::new(self.qps[0].0)
    }

    pub fn gid(&self) -> Gid {
        Gid::from(self.ip)
    }
}

/// Opens the NIC of one end; `loss` is the probability that it drops a received packet.
pub fn open(link: &LinkAddrs, role: Role, loss: Option<f64>, options: &ContextOptions) -> Result<Context> {
    let link: Box<dyn Link> = match link {
        LinkAddrs::Udp(ips) => Box::new(UdpLink::bind(ips[role as usize], &UdpOptions::default())?),
        LinkAddrs::SharedMemory(ips) => {
            let program = urxe_command::program();
            let sharing = Sharing { program, any_user: false, shared_memory: SharedMemory::Auto };
            sharing.bind(&LinkSpec::Udp(Some(ips[role as usize])), 1, true)?.swap_remove(0)
        }
        LinkAddrs::Packet(interfaces) => {
            let config: PacketConfig = format!("packet:{}", interfaces[role as usize]).parse()?;
            Box::new(PacketLink::open(config)?)
        }
    };
    let link: Box<dyn Link> = match loss {
        None => link,
        Some(p) => {
            let rule = Rule::new(Direction::Rx, Action::Drop, When::Probability(p));
            Box::new(Faults::new(link, vec![rule], 0x5eed + role as u64))
        }
    };
    Ok(Context::open(link, options)?)
}

/// Opens the NIC of one end over UDP with `shards` shards.
pub fn open_shards(ips: [IpAddr; 2], role: Role, shards: usize) -> Result<Context> {
    let links = UdpLink::bind_shards(ips[role as usize], &UdpOptions::default(), shards)?;
    let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
    Ok(Context::open_shards(links, &ContextOptions::default())?)
}

/// One end: a device, queue pairs that share a completion queue, and a memory region.
pub struct Nic {
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub qps: Vec<Qp>,
    pub mr: Mr,
    pub ip: IpAddr,
}

impl Nic {
    /// Creates the queue pairs, their completion queue and a memory region of `len` bytes. All pages are
    /// written once, because untouched pages all map to the shared zero page.
    pub fn new(
        context: Context,
        qp_type: QpType,
        qps: usize,
        len: usize,
        region: impl Into<MrOptions>,
    ) -> Result<Nic> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq((4 * qps).max(4096))?);
        let max_wr = if qps == 1 { QUEUE_DEPTH } else { 128 };
        let options = QpOptions::default()
            .qp_type(qp_type)
            .send(SendCaps { max_wr, max_sge: 1, max_inline: 64 })
            .recv(RecvCaps { max_wr, max_sge: 1 });
        let qps =
            (0..qps).map(|_| pd.create_qp(&cq, &cq, &options)).collect::<std::result::Result<_, _>>()?;
        let mr = pd.reg_mr(len, region)?;
        mr.write(0, &vec![0x5a; len])?;
        let addresses = &context.link_info().addresses;
        let ip = addresses
            .iter()
            .find(|ip| ip.is_ipv4())
            .or(addresses.first())
            .copied()
            .ok_or("the link has no IP address")?;
        Ok(Nic { context, pd, cq, qps, mr, ip })
    }

    pub fn conn_info(&self) -> ConnInfo {
        let qps = self.qps.iter().map(|qp| (qp.qpn().get(), qp.endpoint().psn.get())).collect();
        let to = self.mr.remote(0);
        ConnInfo { ip: self.ip, qps, va: to.va, rkey: to.rkey.0 }
    }

    /// Connects each queue pair to the peer's queue pair with the same index.
    pub fn connect(&self, peer: &ConnInfo, mtu: usize) -> Result<()> {
        let options = ConnectOptions::default().mtu(Mtu::from_bytes(mtu));
        for (qp, (qpn, psn)) in self.qps.iter().zip(&peer.qps) {
            let peer = Endpoint { gid: peer.gid(), qpn: Qpn::new(*qpn), psn: Psn::new(*psn) };
            qp.connect(&peer, &options)?;
        }
        Ok(())
    }

    /// Returns the destination for datagrams to the other end's first queue pair.
    pub fn destination(&self, peer: &ConnInfo) -> Result<Destination> {
        let v4 = peer.ip.is_ipv4();
        let index = self
            .context
            .gids()
            .iter()
            .position(|gid| gid.ip().is_ipv4() == v4)
            .ok_or("no GID of the peer's IP version")?;
        let av = AddressVector::to(peer.gid()).sgid_index(index as u8);
        Ok(self.pd.create_ah(&av)?.to(peer.qpn(), QKEY))
    }

    /// Polls up to 64 completions, all of which must be successful.
    pub fn poll_successful(&self, out: &mut Vec<Completion>) -> Result<()> {
        out.clear();
        self.cq.poll(64, out)?;
        match out.iter().find(|c| c.status != WcStatus::Success) {
            Some(bad) => {
                Err(format!("a work request failed: {}; {}", bad.status, self.nonzero_counters()).into())
            }
            None => Ok(()),
        }
    }

    /// Formats the nonzero counters, to explain a failure.
    pub fn nonzero_counters(&self) -> String {
        let (counters, link) = (self.context.counters(), self.context.link_state().0);
        let all = counters.iter().chain(link.iter()).filter(|(_, n)| *n > 0);
        all.map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
    }

    /// Returns the nonzero counters for retries, timeouts, RNR NAKs and socket overflows.
    pub fn error_counters(&self, role: Role) -> Metrics {
        let (c, link) = (self.context.counters(), self.context.link_state().0);
        let all = [
            ("retries", c.requester_retry),
            ("timeouts", c.local_ack_timeout_err),
            ("rnr", c.rcvd_rnr_err),
            ("overflow", link.rx_overflow),
        ];
        all.into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| (format!("{role:?} {name}"), n as f64))
            .collect()
    }
}
