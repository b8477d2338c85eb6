//! `urxe devinfo`: what links there are, and what a NIC on each would be.
#![forbid(unsafe_code)]

use std::io::{Write, stdout};
use std::net::IpAddr;

use clap::Args;

use super::CliError;
use super::link::{LinkArgs, LinkSpec};
use crate::link::fabric::Fabric;
use crate::verbs::Context;

const LONG: &str = "\
Without --link: a line for each link that could be opened on this machine, with what keeps it from being \
opened, if something does, and the limits that all share. With --link: everything about a NIC on that link, \
as ibv_devinfo -v has it; with -v: the same for all links.";

const EXAMPLES: &str = "\
Examples:
  urxe devinfo
  urxe devinfo --link udp:127.0.0.1
  urxe devinfo --link packet:eth0";

/// The links that could be opened here, and what a NIC on one of them is like
#[derive(Args)]
#[command(long_about = LONG, after_help = EXAMPLES)]
pub struct Devinfo {
    /// Only this link, in full (see `urxe serve --help` for how links are written)
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Every link in full
    #[arg(short, long)]
    verbose: bool,
}

impl Devinfo {
    /// Runs it.
    pub fn run(self) -> Result<(), CliError> {
        let mut out = anstream::AutoStream::auto(stdout());
        if let Some(link) = self.link {
            return describe(&mut out, &link.to_string(), &LinkArgs::on(link).open()?);
        }
        let fabric = Context::on_fabric(&Fabric::new())?;
        let links = candidates();
        if self.verbose {
            describe(&mut out, "fabric", &fabric)?;
            for (name, link) in links {
                match open(link) {
                    Ok(context) => describe(&mut out, &name, &context)?,
                    Err(why) => writeln!(out, "{name}\n  {:<20} none: {why}\n", "state")?,
                }
            }
            return Ok(());
        }
        writeln!(out, "{:<36} {:<6} {:>4}  addresses, which are the GIDs", "link", "state", "MTU")?;
        line(&mut out, "fabric", Ok(fabric.clone()))?;
        for (name, link) in links {
            line(&mut out, &name, open(link))?;
        }
        let frames = "frames:dgram:LOCAL,REMOTE,ip=A/LEN";
        writeln!(out, "{frames:<36} {:<6} {:>4}  those given with ip=\n", "-", "")?;
        limits(&mut out, &fabric)
    }
}

/// The links of this machine, or why one is none: UDP on every address, and every interface that is up. (One
/// without an IP address could still be a station of its own.)
fn candidates() -> Vec<(String, Result<LinkSpec, String>)> {
    let interfaces = pnet_datalink::interfaces();
    let up = || interfaces.iter().filter(|i| i.is_up());
    let ips = up().flat_map(|i| &i.ips).map(|n| n.ip()).filter(|ip| !ip.is_multicast());
    let udp = ips.map(|ip| (format!("udp:{ip}"), Ok(LinkSpec::Udp(Some(ip)))));
    let packet = up().map(|i| format!("packet:{}", i.name)).map(|name| (name.clone(), name.parse()));
    udp.chain(packet).collect()
}

fn open(link: Result<LinkSpec, String>) -> Result<Context, CliError> {
    LinkArgs::on(link.map_err(CliError::Usage)?).open()
}

fn line(out: &mut impl Write, name: &str, opened: Result<Context, CliError>) -> Result<(), CliError> {
    match opened {
        Ok(context) => {
            let gids: Vec<String> = context.gids().iter().map(|g| g.ip().to_string()).collect();
            let mtu = context.query_port().active_mtu.bytes();
            writeln!(out, "{name:<36} {:<6} {mtu:>4}  {}", state(&context), gids.join(" "))?;
        }
        Err(e) => writeln!(out, "{name:<36} {:<6} {:>4}  {e}", "no", "")?,
    }
    Ok(())
}

fn state(context: &Context) -> &'static str {
    match (context.query_port().active, context.link_state().1) {
        (true, _) => "ready",
        (false, None) => "down",
        (false, Some(_)) => "gone",
    }
}

/// All about one NIC.
fn describe(out: &mut impl Write, link: &str, context: &Context) -> Result<(), CliError> {
    let (device, port, info) = (context.query_device(), context.query_port(), context.link_info());
    let guid = device
        .node_guid
        .to_be_bytes()
        .chunks(2)
        .map(|b| format!("{:02x}{:02x}", b[0], b[1]))
        .collect::<Vec<_>>();
    writeln!(out, "{link}")?;
    let mut row = |name: &str, value: String| writeln!(out, "  {name:<20} {value}");
    row("device", device.name.clone())?;
    row("version", device.version.to_owned())?;
    row("node_guid", guid.join(":"))?;
    row("personality", device.personality.to_owned())?;
    row("state", if port.active { "PORT_ACTIVE".into() } else { "PORT_DOWN".to_owned() })?;
    row("link_layer", "Ethernet (RoCE v2, UDP port 4791)".to_owned())?;
    row("max_mtu", port.max_mtu.bytes().to_string())?;
    row("active_mtu", port.active_mtu.bytes().to_string())?;
    row("ip_mtu", info.mtu.to_string())?;
    row("max_msg_sz", format!("{:#x}", port.max_msg_size))?;
    let burst = match info.burst.packets {
        1 => "one packet a call".to_owned(),
        n => format!("{n} packets or {} bytes a call", info.burst.bytes),
    };
    row("bursts", burst)?;
    row("window", format!("{} bytes in flight", info.window))?;
    if let Some(port) = info.src_port {
        row("udp_source_port", format!("{port} always"))?;
    }
    row("gid_tbl_len", port.gid_table_len.to_string())?;
    for (i, gid) in context.gids().into_iter().enumerate() {
        let family = if matches!(gid.ip(), IpAddr::V4(_)) { "IPv4" } else { "IPv6" };
        row(&format!("GID[{i:>3}]"), format!("{gid}, RoCE v2, {family} {}", gid.ip()))?;
    }
    limits(out, context)?;
    Ok(writeln!(out)?)
}

fn limits(out: &mut impl Write, context: &Context) -> Result<(), CliError> {
    let device = context.query_device();
    let l = device.limits;
    let rows = [
        ("max_qp", l.max_qp as u64),
        ("max_qp_wr", l.max_qp_wr as u64),
        ("max_sge", l.max_sge as u64),
        ("max_inline_data", l.max_inline as u64),
        ("max_srq", l.max_srq as u64),
        ("max_srq_wr", l.max_srq_wr as u64),
        ("max_srq_sge", l.max_srq_sge as u64),
        ("max_cq", l.max_cq as u64),
        ("max_cqe", l.max_cqe as u64),
        ("max_mr", l.max_mr as u64),
        ("max_mr_size", l.max_mr_size),
        ("max_pd", l.max_pd as u64),
        ("max_mcast_grp", l.max_mcast_grp as u64),
        ("max_mcast_qp_attach", l.max_mcast_qp_attach as u64),
        ("max_total_mcast_qp_attach", l.max_total_mcast_qp_attach as u64),
        ("max_qp_rd_atom", l.max_qp_rd_atom as u64),
        ("max_res_rd_atom", device.max_res_rd_atom as u64),
        ("num_comp_vectors", l.num_comp_vectors as u64),
        ("hca_core_clock_khz", device.hca_core_clock_khz),
    ];
    for (name, value) in rows {
        writeln!(out, "  {name:<20} {value}")?;
    }
    Ok(())
}
