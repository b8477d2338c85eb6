//! Address exchange and connection setup for either side of a ping-pong.

use std::io::{Write, stdout};
use std::net::TcpStream;

use super::{Pingpong, QKEY, Service};
use crate::CliError;
use crate::oob::handshake_error;
use crate::oob_handshake::{self, SRQ_ADDRESSES};
use urxe::verbs::{AddressVector, Endpoint, Gid};

impl Pingpong<'_> {
    /// Exchanges queue pair addresses with the server, then connects the queue pairs.
    pub(super) fn connect_to_server(&mut self, mut stream: TcpStream) -> Result<(), CliError> {
        let (sgid_index, locals) = self.local_addresses(None)?;
        let remotes = oob_handshake::client(&mut stream, &locals, self.addresses())
            .map_err(|e| handshake_error(&sent(&locals), e))?;
        let (local, remote) = (locals[0].gid.ip(), remotes[0].gid.ip());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(CliError::Failed(format!(
                "the local GID is {local} and the remote GID {remote}: both must have the same IP version; \
                 use --gid here or -g at the peer"
            )));
        }
        self.connect(sgid_index, &remotes)
    }

    /// Receives a client's addresses, connects the queue pairs to them, and sends the local addresses.
    pub(super) fn connect_to_client(&mut self, mut stream: TcpStream) -> Result<(), CliError> {
        let count = self.addresses();
        let remotes = oob_handshake::recv_addresses(&mut stream, count);
        let remotes = remotes.map_err(|e| handshake_error("nothing", e))?;
        let (sgid_index, locals) = self.local_addresses(Some(remotes[0].gid))?;
        self.connect(sgid_index, &remotes)?;
        oob_handshake::reply(&mut stream, &locals, count).map_err(|e| handshake_error(&sent(&locals), e))
    }

    /// Returns the number of addresses that each side sends.
    fn addresses(&self) -> usize {
        if self.args.service == Service::Srq { SRQ_ADDRESSES } else { 1 }
    }

    /// Prints and returns the local queue pairs' addresses, with their GID index.
    fn local_addresses(&self, peer: Option<Gid>) -> Result<(u8, Vec<Endpoint>), CliError> {
        let (index, gid) = self.args.link.gid_for(&self.context, peer.map(Gid::ip))?;
        let locals: Vec<Endpoint> =
            self.qps.iter().map(|entry| Endpoint { gid, ..entry.qp.endpoint() }).collect();
        locals.iter().try_for_each(|local| self.print_address("local address: ", local))?;
        Ok((index, locals))
    }

    fn print_address(&self, heading: &str, address: &Endpoint) -> Result<(), CliError> {
        if !self.args.json {
            writeln!(stdout(), "  {heading} {}", format_address(address))?;
        }
        Ok(())
    }

    fn connect(&mut self, sgid_index: u8, remotes: &[Endpoint]) -> Result<(), CliError> {
        let program = self.args.service.stock_program();
        if remotes.len() != self.qps.len() {
            return Err(CliError::Failed(format!(
                "the peer has {} queue pairs, this side {}: use the same --qps on both sides (-q of \
                 {program})",
                remotes.len(),
                self.qps.len(),
            )));
        }
        let options = self.args.link.connect_options().sgid_index(sgid_index).mtu(self.mtu);
        let options = options.max_rd_atomic(1).max_dest_rd_atomic(1);
        for (entry, remote) in self.qps.iter().zip(remotes) {
            self.print_address("remote address:", remote)?;
            if remote.gid.is_unset() {
                return Err(CliError::Failed(format!(
                    "the peer sent no GID: start {program} with -g and a GID index"
                )));
            }
            if self.args.service == Service::Ud {
                let av = AddressVector::to(remote.gid).sgid_index(sgid_index);
                self.destination = Some(entry.qp.pd().create_ah(&av)?.to(remote.qpn, QKEY));
            } else {
                entry.qp.enter_rtr(remote, &options)?;
                entry.qp.enter_rts(&options)?;
            }
        }
        Ok(())
    }
}

/// Describes this side's first message, for error messages.
fn sent(locals: &[Endpoint]) -> String {
    format!("local address ({})", format_address(&locals[0]))
}

/// Formats an address as the stock programs do.
fn format_address(address: &Endpoint) -> String {
    let gid = std::net::Ipv6Addr::from(address.gid.0);
    format!("LID 0x0000, QPN 0x{:06x}, PSN 0x{:06x}, GID {gid}", address.qpn.get(), address.psn.get())
}
