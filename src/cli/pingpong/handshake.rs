//! Address exchange and connection setup of the two sides of a ping-pong.

use std::net::TcpStream;

use super::{QKEY, Service, Side};
use crate::cli::CliError;
use crate::cli::exchange::pingpong::{self, many};
use crate::cli::oob::silent;
use crate::verbs::{AckTimeout, AddressVector, ConnectOptions, Endpoint, Gid, Psn, Qpn};

impl Side<'_> {
    /// Returns the GID index and the addresses of the local queue pairs, and prints the addresses.
    fn local(&self, peer: Option<Gid>) -> Result<(u8, Vec<pingpong::Destination>), CliError> {
        let (index, gid) = self.args.link.gid_for(&self.context, peer.map(Gid::ip))?;
        let address = |lane: &super::Lane| {
            let own = lane.qp.endpoint();
            let local = pingpong::Destination { lid: 0, qpn: own.qpn.get(), psn: own.psn.get(), gid: gid.0 };
            println!("  local address:  {}", line(&local));
            local
        };
        Ok((index, self.lanes.iter().map(address).collect()))
    }

    fn connect(&mut self, sgid_index: u8, remotes: &[pingpong::Destination]) -> Result<(), CliError> {
        if remotes.len() != self.lanes.len() {
            return Err(CliError::Failed(format!(
                "the peer has {} queue pairs and this side {}: give both the same --qps (-q of {})",
                remotes.len(),
                self.lanes.len(),
                self.args.service.stock()
            )));
        }
        for (lane, remote) in self.lanes.iter().zip(remotes) {
            println!("  remote address: {}", line(remote));
            if Gid(remote.gid).is_unset() {
                return Err(CliError::Failed(format!(
                    "the peer announced no GID: start {} with -g and the index of its GID",
                    self.args.service.stock()
                )));
            }
            if self.args.service == Service::Ud {
                let av = AddressVector { sgid_index, ..AddressVector::to(Gid(remote.gid)) };
                let handle = lane.qp.pd().create_ah(&av)?;
                self.to = Some(handle.to(Qpn::new(remote.qpn), QKEY));
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
            lane.qp.to_rtr(&peer, &options)?;
            lane.qp.to_rts(&options)?;
        }
        Ok(())
    }

    pub(super) fn client_handshake(&mut self, mut stream: TcpStream) -> Result<(), CliError> {
        let (index, locals) = self.local(None)?;
        let sent = format!("our address ({})", line(&locals[0]));
        let remotes = match self.args.service {
            Service::Srq => many::client(&mut stream, &locals),
            _ => pingpong::client(&mut stream, &locals[0]).map(|one| vec![one]),
        };
        let remotes = remotes.map_err(|e| silent(&sent, e))?;
        self.same_family(&locals, &remotes)?;
        self.connect(index, &remotes)
    }

    pub(super) fn server_handshake(&mut self, stream: TcpStream) -> Result<(), CliError> {
        let nothing = |e| silent("nothing", e);
        let sent = |locals: &[_]| format!("our address ({})", line(&locals[0]));
        if self.args.service == Service::Srq {
            let server = many::Server::accept(stream).map_err(nothing)?;
            let locals = self.meet(server.remote())?;
            return server.reply(&locals).map_err(|e| silent(&sent(&locals), e));
        }
        let server = pingpong::Server::accept(stream).map_err(nothing)?;
        let locals = self.meet(std::slice::from_ref(server.remote()))?;
        server.reply(&locals[0]).map_err(|e| silent(&sent(&locals), e))?;
        Ok(())
    }

    /// Connects the server's queue pairs to the client's addresses and returns the local addresses.
    fn meet(&mut self, remotes: &[pingpong::Destination]) -> Result<Vec<pingpong::Destination>, CliError> {
        let (index, locals) = self.local(remotes.first().map(|one| Gid(one.gid)))?;
        self.connect(index, remotes)?;
        Ok(locals)
    }

    fn same_family(
        &self,
        locals: &[pingpong::Destination],
        remotes: &[pingpong::Destination],
    ) -> Result<(), CliError> {
        let Some(remote) = remotes.first() else { return Ok(()) };
        let (ours, theirs) = (Gid(locals[0].gid).ip(), Gid(remote.gid).ip());
        if ours.is_ipv4() == theirs.is_ipv4() {
            return Ok(());
        }
        Err(CliError::Failed(format!(
            "our GID is {ours} and the peer's is {theirs}: both have to be of one IP version; choose with --gid here \
             or -g there"
        )))
    }
}

fn line(d: &pingpong::Destination) -> String {
    let gid = std::net::Ipv6Addr::from(d.gid);
    format!("LID 0x{:04x}, QPN 0x{:06x}, PSN 0x{:06x}, GID {gid}", d.lid, d.qpn, d.psn)
}
