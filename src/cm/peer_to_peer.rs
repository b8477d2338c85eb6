//! Simultaneous (peer-to-peer) connect (IBA 12.10.4): two ends that request the same service from each other
//! at the same time establish one connection.

use super::Cm;
use crate::transport::AddressVector;
use crate::wire::mad::{CommId, Mad, Req};

impl Cm {
    /// Finds our own outstanding request for the same service to the same peer, which `req` has crossed.
    pub(super) fn find_peer_to_peer(&self, req: &Req, source: &AddressVector) -> Option<CommId> {
        let (service, gid) = (req.service, source.dgid);
        let range = (service, gid, CommId(0))..=(service, gid, CommId(u32::MAX));
        let awaits_rep = |id: &CommId| {
            let conn = self.connections.get(id);
            conn.is_some_and(|c| c.state.awaits_rep())
        };
        // A request that returns to its own sender does not cross itself.
        let is_same_request = |id: &CommId| *id == req.local && self.config.ca_guid == req.ca_guid;
        self.peer_to_peer.range(range).map(|(_, _, id)| *id).find(|id| awaits_rep(id) && !is_same_request(id))
    }

    /// Resolves two requests that cross. The end with the larger CA GUID wins; a tie is broken by the larger
    /// queue pair number, then by the larger GID (in case two hosts wrongly share a GUID). The winner remains
    /// the client and ignores the other request. The loser becomes the server, and reports the winner's
    /// request to its program.
    pub(super) fn on_peer_to_peer_req(&mut self, id: CommId, source: &AddressVector, mad: &Mad, req: &Req) {
        let Some(ours) = self.connections.get(&id) else { return };
        let (our_qpn, our_gid) = (ours.qp_params.qp.map(|qp| qp.qpn), self.gid(ours.to.sgid_index));
        if (self.config.ca_guid, our_qpn, our_gid) >= (req.ca_guid, Some(req.qpn), Some(source.dgid)) {
            self.counters.duplicates += 1;
            return;
        }
        match self.check_req(source, mad, req) {
            Err(cause) => self.refuse(source, mad, req, cause),
            Ok(conn) => {
                self.stop_retransmission(id);
                self.peer_to_peer.remove(&(req.service, source.dgid, id));
                self.connections.insert(id, conn);
                self.by_remote.insert(((req.ca_guid, source.dgid), req.local), id);
                self.link_qp(id);
                self.report_request(id, true, mad, req);
            }
        }
    }
}
