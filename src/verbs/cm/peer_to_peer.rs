//! Simultaneous (peer-to-peer) connect (IBA 12.10.4): two ids request a connection from each other, and a
//! single connection results.

use super::listen::split_private_data;
use super::state::{IdState, State};
use super::{ConnParam, IdError};
use crate::cm::{ConnId, Requested};
use crate::wire::mad::RejReason;

/// State of a peer-to-peer request, used if this side becomes the server.
pub(super) struct PeerToPeer {
    param: ConnParam,
    /// Private data of the peer's request; empty until the request arrives.
    pub private_data: Vec<u8>,
}

impl State {
    pub fn connect_peer(&mut self, number: u64, param: &ConnParam) -> Result<(), IdError> {
        let id = self.id(number)?;
        if id.qp.is_none() {
            return Err(IdError::NoQp);
        }
        if id.is_datagram() {
            return Err(IdError::State { call: "connect_peer", state: "is a datagram id" });
        }
        self.request(number, param, true)?;
        self.id_mut(number)?.peer_to_peer =
            Some(PeerToPeer { param: param.clone(), private_data: Vec::new() });
        Ok(())
    }

    /// Accepts the peer's request, which replaces this side's own. No event is reported, because the program
    /// has requested the same connection.
    pub fn on_peer_to_peer_request(&mut self, index: usize, connection: ConnId, request: &Requested) {
        let accepted = match self.devices[index].ids.get(&connection).copied() {
            Some(number) => self.accept_peer_request(number, request),
            None => Err(IdError::Ended),
        };
        if accepted.is_err() {
            self.devices[index].send_reject(connection, RejReason::Consumer);
        }
    }

    fn accept_peer_request(&mut self, number: u64, request: &Requested) -> Result<(), IdError> {
        let id = self.id_mut(number)?;
        let peer_to_peer = id.peer_to_peer.as_mut().ok_or(IdError::Ended)?;
        peer_to_peer.private_data = split_private_data(&request.info.private_data).1.to_vec();
        let param = peer_to_peer.param.clone();
        id.requested_depths = (request.info.responder_resources, request.info.initiator_depth);
        id.remote_ece = request.ece;
        id.state = IdState::Requested;
        self.accept(number, &param)
    }
}
