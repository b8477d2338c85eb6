//! Simultaneous (peer-to-peer) connect (IBA 12.10.4): two ids request each other, and one connection results.

use super::listen::split;
use super::state::{Phase, State};
use super::{ConnParam, IdError};
use crate::cm::{ConnId, Requested};
use crate::wire::mad::RejReason;

/// State of a peer-to-peer request, for the case that this side becomes the server.
pub(super) struct Peering {
    param: ConnParam,
    /// Private data of the peer's request, once that has arrived.
    pub private_data: Vec<u8>,
}

impl State {
    pub fn connect_peer(&mut self, number: u64, param: &ConnParam) -> Result<(), IdError> {
        let id = self.id(number)?;
        if id.qp.is_none() {
            return Err(IdError::NoQp);
        }
        if id.is_datagram() {
            return Err(IdError::State { call: "connect_peer", state: "is for datagrams" });
        }
        self.request(number, param, true)?;
        self.id_mut(number)?.peering = Some(Peering { param: param.clone(), private_data: Vec::new() });
        Ok(())
    }

    /// Accepts the peer's request, which replaces our own. The program is not asked, because it wants the
    /// same connection.
    pub fn on_crossed(&mut self, index: usize, connection: ConnId, request: &Requested) {
        let answered = match self.devices[index].ids.get(&connection).copied() {
            Some(number) => self.answer_peer(number, request),
            None => Err(IdError::Ended),
        };
        if answered.is_err() {
            self.devices[index].refuse(connection, RejReason::Consumer);
        }
    }

    fn answer_peer(&mut self, number: u64, request: &Requested) -> Result<(), IdError> {
        let id = self.id_mut(number)?;
        let peering = id.peering.as_mut().ok_or(IdError::Ended)?;
        peering.private_data = split(&request.private_data).1.to_vec();
        let param = peering.param.clone();
        id.asked = (request.responder_resources, request.initiator_depth);
        id.remote_ece = request.ece;
        id.phase = Phase::Requested;
        self.accept(number, &param)
    }
}
