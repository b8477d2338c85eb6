//! Datagram services: service ID resolution (SIDR) from both sides.

use super::event::Datagram;
use super::listen::{Asked, split};
use super::param::{ConnParam, UDP_QKEY};
use super::state::{Phase, State};
use super::{CmEventKind, EventParam, IdError};
use crate::cm::{ConnId, SidrAnswered, SidrReply, SidrRequest, SidrRequested};
use crate::transport::{AddressVector, QpType};
use crate::wire::mad::SidrStatus;
use crate::wire::{QKey, Qpn};

impl State {
    /// Requests the peer's queue pair (SIDR_REQ).
    pub fn ask(&mut self, number: u64, param: &ConnParam) -> Result<(), IdError> {
        let id = self.id(number)?;
        let (Some(index), Some(path), Some(peer)) = (id.device, self.path(id), id.peer) else {
            return Err(IdError::Ended);
        };
        let private_data = id.request_data(param)?;
        let request = SidrRequest::new(id.space.service(peer.port()), path, &private_data);
        let device = &mut self.devices[index];
        let question = device.cm.sidr_request(device.now(), &request)?;
        device.ids.insert(question, number);
        let id = self.id_mut(number)?;
        (id.connection, id.phase) = (Some(question), Phase::Connecting);
        Ok(())
    }

    /// Handles a peer's request for the queue pair behind a port.
    pub fn on_question(&mut self, device: usize, connection: ConnId, request: &SidrRequested) {
        let (header, data) = split(&request.private_data);
        let (service, av) = (request.service, request.from);
        let asked = Asked { device, connection, service, av, header, qp_type: QpType::Ud };
        let param = EventParam::Datagram(Datagram {
            private_data: data.to_vec(),
            address: av,
            qp_num: Qpn::default(),
            qkey: QKey::default(),
            group: None,
        });
        match self.admit(&asked) {
            Ok((new, waiting, listener)) => self.announce(new, waiting, listener, param),
            Err(_) => {
                let no = no(SidrStatus::Unsupported, &[]);
                let device = &mut self.devices[device];
                // Fails if the request is gone, because its peer has given up.
                let _ = device.cm.sidr_reply(device.now(), connection, &no);
            }
        }
    }

    /// Answers a request with the queue pair of the id.
    pub fn reply(&mut self, number: u64, param: &ConnParam) -> Result<(), IdError> {
        let id = self.id(number)?;
        let qpn = id.qp.as_ref().map(|qp| qp.qpn).or(param.qp_num).ok_or(IdError::NoQp)?;
        let has = || id.qp.as_ref()?.query()?.qkey;
        let qkey = param.qkey.or_else(has).unwrap_or(UDP_QKEY);
        let reply = SidrReply {
            status: SidrStatus::Valid,
            qpn,
            qkey,
            ece: id.ece,
            info: &[],
            private_data: &param.private_data,
        };
        self.answer(number, &reply, Phase::Connected)
    }

    /// Rejects a request.
    pub fn refuse(&mut self, number: u64, private_data: &[u8]) -> Result<(), IdError> {
        self.answer(number, &no(SidrStatus::Rejected, private_data), Phase::Ended)
    }

    fn answer(&mut self, number: u64, reply: &SidrReply<'_>, then: Phase) -> Result<(), IdError> {
        let (index, question) = self.id(number)?.connection("accept")?;
        let device = &mut self.devices[index];
        device.cm.sidr_reply(device.now(), question, reply)?;
        device.ids.remove(&question);
        let id = self.id_mut(number)?;
        (id.connection, id.phase) = (None, then);
        Ok(())
    }

    /// Handles the response to our request.
    pub fn on_answer(&mut self, number: u64, answer: &SidrAnswered) {
        self.forget_connection(number);
        let Ok(id) = self.id_mut(number) else { return };
        if answer.status != SidrStatus::Valid {
            let of = Datagram {
                private_data: answer.private_data.to_vec(),
                address: AddressVector::to(id.to.map(|to| to.dgid).unwrap_or_default()),
                qp_num: Qpn::default(),
                qkey: QKey::default(),
                group: None,
            };
            id.phase = Phase::Ended;
            let status = answer.status.code().into();
            return id.report(CmEventKind::Unreachable, status, EventParam::Datagram(of));
        }
        id.remote_ece = answer.ece;
        id.phase = Phase::Connected;
        let Some(to) = id.to else { return };
        let of = Datagram {
            private_data: answer.private_data.to_vec(),
            address: AddressVector { traffic_class: id.tos, ..to },
            qp_num: answer.qpn,
            qkey: answer.qkey,
            group: None,
        };
        id.report(CmEventKind::Established, 0, EventParam::Datagram(of));
    }
}

fn no(status: SidrStatus, private_data: &[u8]) -> SidrReply<'_> {
    let (qpn, qkey) = (Qpn::default(), QKey::default());
    SidrReply { status, qpn, qkey, ece: Default::default(), info: &[], private_data }
}
