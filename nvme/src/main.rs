//! Userspace NVMe over Fabrics target: serves a file as a namespace over RDMA. The Linux kernel's initiator
//! can connect to it.
//!
//! ```sh
//! truncate -s 1G disk.img
//! cargo run --release --package urxe-nvme -- --link udp:192.0.2.1 disk.img                 # target
//! nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.urxe:disk.img                 # host
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use urxe::verbs::cm::{ConnectionManager, Listener};
use urxe_cli::interrupt::Interrupt;
use urxe_cli::link::LinkArgs;

use urxe_nvme::namespace::Namespace;
use urxe_nvme::subsystem::Subsystem;

/// NVMe over Fabrics target that serves a file as a namespace over RDMA until Ctrl-C
#[derive(Parser)]
#[command(name = "nvme_target", max_term_width = 100, after_help = EXAMPLES)]
// The host chooses the path MTU and, by the address that it connects to, the GID. The ACK timeout does not apply
// to connections that the host opens.
#[command(mut_arg("mtu", |arg| arg.hide(true)), mut_arg("gid", |arg| arg.hide(true)))]
#[command(mut_arg("ack_timeout", |arg| arg.hide(true)))]
struct Cli {
    /// File or block device to serve
    file: PathBuf,
    /// NVMe qualified name of the subsystem [default: nqn.2014-08.org.urxe: followed by the file's name]
    #[arg(long, value_parser = parse_nqn)]
    nqn: Option<String>,
    /// Local address to listen on [default: all]
    #[arg(long, value_name = "ADDR")]
    listen: Option<IpAddr>,
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 4420, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Block size in bytes: 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = parse_block)]
    block_size: usize,
    /// Reject all writes
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    link: LinkArgs,
}

const EXAMPLES: &str = "\
Examples:
  nvme_target --link udp:192.0.2.1 disk.img
      then, on a machine with an RDMA device:
      modprobe nvme-rdma
      nvme discover -t rdma -a 192.0.2.1 -s 4420
      nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.urxe:disk.img
  nvme_target --link packet:tap0,ip=10.77.0.9/24 --capture nvme.pcapng disk.img
      with an IP address of its own, and a capture file for Wireshark";

fn parse_nqn(text: &str) -> Result<String, String> {
    match text.len() {
        _ if !text.starts_with("nqn.") => Err("an NVMe qualified name must begin with 'nqn.'".into()),
        224.. => Err("an NVMe qualified name has at most 223 bytes".into()),
        _ => Ok(text.into()),
    }
}

fn parse_block(text: &str) -> Result<usize, String> {
    let len = text.parse().ok().filter(|len| matches!(len, 512 | 1024 | 2048 | 4096));
    len.ok_or_else(|| format!("'{text}' is not a supported block size: use 512, 1024, 2048 or 4096"))
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nvme_target: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Box<dyn Error>> {
    if cli.link.mtu.is_some() || cli.link.gid.is_some() {
        return Err("--mtu and --gid do not apply: the host chooses the path MTU and the GID".into());
    }
    let file = cli.file.display();
    let namespace =
        Namespace::open(&cli.file, cli.block_size, cli.read_only).map_err(|e| format!("{file}: {e}"))?;
    let nqn = match &cli.nqn {
        Some(nqn) => nqn.clone(),
        None => {
            let name = cli.file.file_name().unwrap_or_default().to_string_lossy();
            parse_nqn(&format!("nqn.2014-08.org.urxe:{name}"))?
        }
    };
    let interrupt = Interrupt::install()?;
    let context = cli.link.open()?;
    let ips = match cli.listen {
        Some(ip) => vec![ip],
        None => context.gids().iter().map(|gid| gid.ip()).collect(),
    };
    // Link-local addresses are not listed, because a host needs an interface to use them.
    let is_global = |ip: &IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let addresses = ips.into_iter().filter(is_global).map(|ip| SocketAddr::new(ip, cli.port)).collect();
    let manager = ConnectionManager::new(vec![context])?;
    let at = SocketAddr::new(cli.listen.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), cli.port);
    let listener = Listener::bind(&manager, at)?;
    let size = namespace.blocks() * namespace.block_len() as u64;
    let subsystem = Arc::new(Subsystem::new(nqn, namespace, addresses));
    eprintln!("serving {file}: {size} bytes, subsystem {}", subsystem.nqn);
    for at in &subsystem.addresses {
        eprintln!("listening on {at}");
    }
    urxe_nvme::server::serve(&listener, &subsystem, &|| interrupt.is_set(), &|line| eprintln!("{line}"))?;
    Ok(cli.link.finish()?)
}
