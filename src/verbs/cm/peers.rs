//! Peers that ask each other at the same time, and have one connection of it (IBA 12.10.4).

use super::listen::split;
use super::state::{Phase, State};
use super::{ConnParam, IdError};
use crate::cm::{ConnId, Requested};
use crate::wire::mad::RejReason;

/// What one of two peers has asked with, should it turn out to be the one who answers.
pub(super) struct Peering {
    param: ConnParam,
    /// The other's private data, once its request has come.
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

    /// The other's request counts, and not our own: it is answered at once, as this side wants the same.
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
