//! `urxe serve`: a long-running endpoint that any peer can connect to.

mod peer;
mod server;

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;

use super::link::LinkArgs;
use super::oob::parse_seconds;
use super::oob_handshake;
use super::size::parse_size;
use super::{CliError, interrupt::Interrupt};
use server::Server;
use urxe::verbs::{Endpoint, Gid, Psn, Qpn};

const LONG_ABOUT: &str = "\
Runs an endpoint with one memory region that peers may access by READ, WRITE and atomics, and with queue \
pairs that echo every SEND. Peers connect with the TCP handshake of ibv_rc_pingpong, so the stock client \
works as a peer, or are specified with --peer. Neither carries the path MTU: it is 1024, the default of \
ibv_rc_pingpong, unless --mtu sets another value. Ctrl-C stops the server and prints a summary.";

const EXAMPLES: &str = "\
Examples:
  urxe serve --link udp:10.77.0.1
      then, on a machine with an RDMA device:  ibv_rc_pingpong -g 1 10.77.0.1
  urxe serve --link packet:tap0,ip=10.77.0.9/24 --mtu 1024 --peer 10.77.0.2,0x11,0x1234
      for a peer whose queue pair is connected manually
  urxe serve --capture serve.pcapng --fault drop=every:13
      with a capture and injected packet loss";

/// Run an endpoint with a region for READ, WRITE and atomics and an echo of SENDs
#[derive(Args)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub struct Serve {
    /// TCP port of the handshake; 0 selects a free port
    ///
    /// The default is that of ibv_rc_pingpong.
    #[arg(long, value_name = "PORT", default_value_t = oob_handshake::PORT)]
    port: u16,
    /// Size of the memory region that peers may access
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = parse_size)]
    size: usize,
    /// Maximum length of a SEND
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = parse_size)]
    message: usize,
    /// Maximum number of connected peers
    ///
    /// A further peer replaces the one that has been idle longest.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    qps: u32,
    /// Connect to this peer without a handshake; may be repeated
    #[arg(long = "peer", value_name = "GID,QPN,PSN", value_parser = parse_peer)]
    peers: Vec<Endpoint>,
    /// Exit when the first peer has been idle for a second
    ///
    /// Fails if the peer sends no packet.
    #[arg(long)]
    one_shot: bool,
    /// Timeout of a handshake
    ///
    /// With --one-shot also of the first packet.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
    /// Print the summary as one JSON object
    ///
    /// Everything else is printed to standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    link: LinkArgs,
}

/// Parses the endpoint of a peer.
fn parse_peer(text: &str) -> Result<Endpoint, String> {
    let fields: Vec<&str> = text.split(',').collect();
    let [gid, qpn, psn] = fields[..] else {
        return Err("expected GID,QPN,PSN, such as 10.77.0.2,0x11,0x1234".into());
    };
    let ip: IpAddr =
        gid.parse().map_err(|_| format!("invalid GID '{gid}': specify an IPv6 or IPv4 address"))?;
    let number = |name: &str, text: &str| {
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => text.parse(),
        };
        let valid = parsed.ok().filter(|n| *n <= 0xff_ffff);
        valid.ok_or(format!("invalid {name} '{text}': specify a number up to 0xffffff"))
    };
    let (qpn, psn) = (Qpn::new(number("QPN", qpn)?), Psn::new(number("PSN", psn)?));
    Ok(Endpoint { gid: Gid::from(ip), qpn, psn })
}

impl Serve {
    /// Runs the server until Ctrl-C; with `--one-shot`, only until the first peer is done.
    pub fn run(self) -> Result<(), CliError> {
        self.link.nic.address.check_network()?;
        let interrupt = Interrupt::install()?;
        let link = self.link.clone();
        let server = Server::start(self)?;
        let result = server.run(&interrupt);
        server.summary()?;
        link.finish()?;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_endpoint_is_parsed_or_its_invalid_field_is_named() {
        let e = parse_peer("10.77.0.2,0x11,4660").unwrap();
        assert_eq!((e.gid.ip().to_string(), e.qpn.get(), e.psn.get()), ("10.77.0.2".into(), 0x11, 0x1234));
        let e = parse_peer("fe80::1,17,0").unwrap();
        assert_eq!((e.gid.ip().is_ipv6(), e.qpn.get()), (true, 0x11));
        let error = |text: &str| parse_peer(text).unwrap_err();
        assert!(error("10.77.0.2").contains("GID,QPN,PSN"));
        assert!(error("host,1,1").contains("invalid GID 'host'"));
        assert!(error("10.77.0.2,0x1000000,1").contains("QPN '0x1000000'"));
        assert!(error("10.77.0.2,1,x").contains("PSN 'x'"));
    }
}
