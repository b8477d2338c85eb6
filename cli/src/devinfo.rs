//! `urxe devinfo`: lists this machine's links and the attributes of a NIC on each.

mod fields;

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::net::IpAddr;

use clap::Args;
use serde::{Serialize, Serializer};

use super::broker::sharing;
use super::nic_args::AddressArgs;
use super::{CliError, json};
use fields::Field;
use urxe::broker::SharedMemory;
use urxe::fabric::Fabric;
use urxe::link::LinkSpec;
use urxe::verbs::{Adapter, Context, ContextOptions};

const LONG_ABOUT: &str = "\
Without --link or --ip: lists the links of this machine, with the reason for each that cannot be opened, and the \
limits common to all links. The first links are those of the devices that programs see under `urxe run`. \
With --link or --ip: prints all attributes of a NIC on that link, as ibv_devinfo -v does; with -v: the same for all \
links. The NICs send nothing, so there are no options for traffic.";

const EXAMPLES: &str = "\
Examples:
  urxe devinfo
  urxe devinfo --link udp:127.0.0.1
  urxe devinfo --link packet:eth0
  urxe devinfo --json | jq -r '.links[].link'";

/// List the links of this machine and the attributes of a NIC on them
#[derive(Args)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub struct Devinfo {
    #[command(flatten)]
    address: AddressArgs,
    /// Print all attributes of every link
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// JSON document of `urxe devinfo --json`.
#[derive(Serialize)]
struct Document {
    /// Links in the order in which the table lists them.
    links: Vec<LinkReport>,
    /// Limits common to all links, by their names in `ibv_devinfo -v`.
    limits: BTreeMap<&'static str, u64>,
}

/// A link in the JSON document.
#[derive(Serialize)]
struct LinkReport {
    /// Device name in libibverbs programs; absent if they have no device on this link.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Link in the notation of `--link`.
    link: String,
    /// `ready`, `down`, `lost` or `error`.
    state: &'static str,
    /// Reason why the link cannot be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Active path MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<usize>,
    /// GID table, as IP addresses.
    gids: Vec<IpAddr>,
    /// Attributes with the names and notation of `ibv_devinfo -v`, with `--link` or `--verbose`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "sorted")]
    attributes: Option<Vec<Field>>,
}

/// A link to list: its device name if libibverbs programs have a device on it, its text, and its
/// specification or the reason why it is invalid.
type Candidate = (Option<String>, String, Result<LinkSpec, String>);

impl Devinfo {
    /// Prints the list of links, or all attributes of one link or of every link.
    pub fn run(self) -> Result<(), CliError> {
        let mut out = anstream::AutoStream::auto(stdout());
        if let Some(link) = self.address.link() {
            let text = link.to_string();
            let context = open(Ok(link))?;
            let report = LinkReport::new(Some("urxe0".into()), text, Ok(&context), true);
            return match self.json {
                true => json::print(&Document { links: vec![report], limits: limits(&context).into() }),
                false => report.describe(&mut out),
            };
        }
        let adapters = Adapter::all(None).map_err(|e| CliError::Usage(e.to_string()))?;
        let named = adapters.into_iter().enumerate();
        let named = named.map(|(i, a)| (Some(format!("urxe{i}")), a.link.to_string(), Ok(a.link)));
        let fabric = (None, "fabric".to_owned(), Ok(LinkSpec::Fabric));
        let report = |(device, text, link): Candidate| {
            LinkReport::new(device, text, open(link).as_ref(), self.verbose)
        };
        let mut reports = named.chain([fabric]).chain(candidates()).map(report);
        let limits = || Ok::<_, CliError>(limits(&Context::on_fabric(&Fabric::new())?));
        if self.json {
            return json::print(&Document { links: reports.collect(), limits: limits()?.into() });
        }
        if self.verbose {
            return reports.try_for_each(|report| report.describe(&mut out));
        }
        writeln!(out, "{:<6} {:<36} {:<6} {:>4}  addresses (GIDs)", "device", "link", "state", "MTU")?;
        reports.try_for_each(|report| report.print_line(&mut out))?;
        let frames = "frames:dgram:LOCAL,REMOTE,ip=A/LEN";
        writeln!(out, "{:<6} {frames:<36} {:<6} {:>4}  those specified with ip=\n", "-", "-", "")?;
        for (name, value) in limits()? {
            writeln!(out, "  {name:<20} {value}")?;
        }
        Ok(())
    }
}

impl LinkReport {
    fn new(
        device: Option<String>,
        link: String,
        opened: Result<&Context, &CliError>,
        with_attributes: bool,
    ) -> LinkReport {
        let attributes = opened.ok().filter(|_| with_attributes);
        let attributes = attributes.map(|context| fields::all(device.as_deref().unwrap_or("-"), context));
        LinkReport {
            device,
            link,
            state: opened.map_or("error", state),
            error: opened.err().map(ToString::to_string),
            mtu: opened.ok().map(|context| context.query_port().active_mtu.bytes()),
            gids: opened.map_or(Vec::new(), |context| context.gids().iter().map(|gid| gid.ip()).collect()),
            attributes,
        }
    }

    /// Prints all attributes.
    fn describe(&self, out: &mut impl Write) -> Result<(), CliError> {
        writeln!(out, "{}", self.link)?;
        for (name, value) in self.attributes.iter().flatten() {
            writeln!(out, "  {name:<20} {value}")?;
        }
        if let Some(error) = &self.error {
            if let Some(device) = &self.device {
                writeln!(out, "  {:<20} {device}", "hca_id")?;
            }
            writeln!(out, "  {:<20} none: {error}", "state")?;
        }
        Ok(writeln!(out)?)
    }

    /// Prints a line of the table.
    fn print_line(&self, out: &mut impl Write) -> Result<(), CliError> {
        let LinkReport { link, state, mtu, gids, .. } = self;
        let gids = || gids.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        let (device, mtu) =
            (self.device.as_deref().unwrap_or("-"), mtu.map_or(String::new(), |mtu| mtu.to_string()));
        let last = self.error.clone().unwrap_or_else(gids);
        Ok(writeln!(out, "{device:<6} {link:<36} {state:<6} {mtu:>4}  {last}")?)
    }
}

/// Serializes attributes in the order of their names.
fn sorted<S: Serializer>(attributes: &Option<Vec<Field>>, serializer: S) -> Result<S::Ok, S::Error> {
    attributes.iter().flatten().cloned().collect::<BTreeMap<_, _>>().serialize(serializer)
}

/// Returns this machine's links, each with its specification or the reason why it is unavailable: UDP on
/// every address, and a packet socket on every interface that is up, even without an IP address, because a
/// packet link can have its own address.
fn candidates() -> Vec<Candidate> {
    let interfaces = pnet_datalink::interfaces();
    let up = || interfaces.iter().filter(|i| i.is_up());
    let udp = up().flat_map(|i| {
        i.ips.iter().map(|net| match net.ip() {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => format!("udp:{ip}%{}", i.name),
            ip => format!("udp:{ip}"),
        })
    });
    let packet = up().map(|i| format!("packet:{}", i.name));
    udp.chain(packet).map(|text| (None, text.clone(), text.parse())).collect()
}

/// Opens a NIC on a link as libibverbs programs do, sharing its addresses with programs that already use
/// them.
pub fn open(link: Result<LinkSpec, String>) -> Result<Context, CliError> {
    let link = link.map_err(CliError::Usage)?;
    if link == LinkSpec::Fabric {
        return Ok(Context::on_fabric(&Fabric::new())?);
    }
    let links = sharing(SharedMemory::Off, false)?.bind(&link, 1, true)?;
    Ok(Context::open_shards(links, &ContextOptions::default())?)
}

fn state(context: &Context) -> &'static str {
    match (context.query_port().active, context.link_state().1) {
        (true, _) => "ready",
        (false, None) => "down",
        (false, Some(_)) => "lost",
    }
}

/// Returns the limits common to all links.
fn limits(context: &Context) -> [(&'static str, u64); 19] {
    let device = context.query_device();
    let l = device.limits;
    [
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
    ]
}
