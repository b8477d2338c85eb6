//! Address exchange and connection setup of the two sides of a ping-pong.

use std::net::TcpStream;

use super::{QKEY, Service, Side};
use crate::CliError;
use crate::exchange::pingpong::{self, srq};
use crate::oob::handshake_error;
use urxe::verbs::{AckTimeout, AddressVector, ConnectOptions, Endpoint, Gid, Psn, Qpn};

impl Side<'_> {
    /// Returns the GID index and the addresses of the local queue pairs, and prints the addresses.
    fn local(&self, peer: Option<Gid>) -> Result<(u8, Vec<pingpong::Destination>), CliError> {
        let (index, gid) = self.args.link.gid_for(&self.context, peer.map(Gid::ip))?;
        let address = |entry: &super::PingpongQp| {
            let endpoint = entry.qp.endpoint();
            let local = pingpong::Destination {
                lid: 0,
                qpn: endpoint.qpn.get(),
                psn: endpoint.psn.get(),
                gid: gid.0,
            };
            println!("  local address:  {}", format_address(&local));
            local
        };
        Ok((index, self.qps.iter().map(address).collect()))
    }

    fn connect(&mut self, sgid_index: u8, remotes: &[pingpong::Destination]) -> Result<(), CliError> {
        if remotes.len() != self.qps.len() {
            return Err(CliError::Failed(format!(
                "the peer has {} queue pairs, this side {}: use the same --qps on both sides (-q of {})",
                remotes.len(),
                self.qps.len(),
                self.args.service.stock_program()
            )));
        }
        for (entry, remote) in self.qps.iter().zip(remotes) {
            println!("  remote address: {}", format_address(remote));
            if Gid(remote.gid).is_unset() {
                return Err(CliError::Failed(format!(
                    "the peer sent no GID: start {} with -g and a GID index",
                    self.args.service.stock_program()
                )));
            }
            if self.args.service == Service::Ud {
                let av = AddressVector { sgid_index, ..AddressVector::to(Gid(remote.gid)) };
                let handle = entry.qp.pd().create_ah(&av)?;
                self.destination = Some(handle.to(Qpn::new(remote.qpn), QKEY));
                continue;
            }
            let peer =
                Endpoint { gid: Gid(remote.gid), qpn: Qpn::new(remote.qpn), psn: Psn::new(remote.psn) };
            let options = ConnectOptions {
                sgid_index: Some(sgid_index),
                mtu: Some(self.mtu),
                max_rd_atomic: 1,
                max_dest_rd_atomic: 1,
                timeout: AckTimeout::new(self.args.ack_timeout),
                ..self.args.link.connect_options()
            };
            entry.qp.to_rtr(&peer, &options)?;
            entry.qp.to_rts(&options)?;
        }
        Ok(())
    }

    pub(super) fn client_handshake(&mut self, mut stream: TcpStream) -> Result<(), CliError> {
        let (index, locals) = self.local(None)?;
        let sent = format!("local address ({})", format_address(&locals[0]));
        let remotes = match self.args.service {
            Service::Srq => srq::client(&mut stream, &locals),
            _ => pingpong::client(&mut stream, &locals[0]).map(|one| vec![one]),
        };
        let remotes = remotes.map_err(|e| handshake_error(&sent, e))?;
        self.check_ip_version(&locals, &remotes)?;
        self.connect(index, &remotes)
    }

    pub(super) fn server_handshake(&mut self, stream: TcpStream) -> Result<(), CliError> {
        let nothing_sent = |e| handshake_error("nothing", e);
        let sent = |locals: &[_]| format!("local address ({})", format_address(&locals[0]));
        if self.args.service == Service::Srq {
            let server = srq::Server::accept(stream).map_err(nothing_sent)?;
            let locals = self.connect_to_client(server.remote())?;
            return server.reply(&locals).map_err(|e| handshake_error(&sent(&locals), e));
        }
        let server = pingpong::Server::accept(stream).map_err(nothing_sent)?;
        let locals = self.connect_to_client(std::slice::from_ref(server.remote()))?;
        server.reply(&locals[0]).map_err(|e| handshake_error(&sent(&locals), e))?;
        Ok(())
    }

    /// Connects the server's queue pairs to the client's addresses and returns the local addresses.
    fn connect_to_client(
        &mut self,
        remotes: &[pingpong::Destination],
    ) -> Result<Vec<pingpong::Destination>, CliError> {
        let (index, locals) = self.local(remotes.first().map(|one| Gid(one.gid)))?;
        self.connect(index, remotes)?;
        Ok(locals)
    }

    fn check_ip_version(
        &self,
        locals: &[pingpong::Destination],
        remotes: &[pingpong::Destination],
    ) -> Result<(), CliError> {
        let Some(remote) = remotes.first() else { return Ok(()) };
        let (local, remote) = (Gid(locals[0].gid).ip(), Gid(remote.gid).ip());
        if local.is_ipv4() == remote.is_ipv4() {
            return Ok(());
        }
        Err(CliError::Failed(format!(
            "the local GID is {local} and the remote GID {remote}: both must have the same IP version; use \
             --gid here or -g at the peer"
        )))
    }
}

fn format_address(d: &pingpong::Destination) -> String {
    let gid = std::net::Ipv6Addr::from(d.gid);
    format!("LID 0x{:04x}, QPN 0x{:06x}, PSN 0x{:06x}, GID {gid}", d.lid, d.qpn, d.psn)
}
