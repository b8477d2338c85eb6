//! Datagram services: both sides of service ID resolution (SIDR).

use super::event::Datagram;
use super::param::{ConnParam, UDP_QKEY};
use super::state::{IdState, State};
use super::{CmEventKind, Ece, EventParam, IdError};
use crate::cm::padded;
use crate::transport::AddressVector;
use crate::wire::mad::{SidrRep, SidrStatus};

impl State {
    /// Answers a request with the id's queue pair.
    pub fn accept_sidr(&mut self, number: u64, param: &ConnParam) -> Result<(), IdError> {
        let id = self.id(number)?;
        let qpn = id.qp.as_ref().map(|qp| qp.qpn).or(param.qp_num).ok_or(IdError::NoQp)?;
        let own_qkey = || id.qp.as_ref()?.query()?.qkey;
        let qkey = param.qkey.or_else(own_qkey).unwrap_or(UDP_QKEY);
        let (vendor_id, private_data) = (id.ece.vendor_id, padded(&param.private_data)?);
        let rep = SidrRep { qpn, qkey, vendor_id, private_data, ..SidrRep::default() };
        self.send_sidr_reply(number, &rep, id.ece.options, IdState::Connected)
    }

    /// Rejects a request.
    pub fn send_reject(&mut self, number: u64, private_data: &[u8]) -> Result<(), IdError> {
        let (status, private_data) = (SidrStatus::Rejected, padded(private_data)?);
        let rep = SidrRep { status, private_data, ..SidrRep::default() };
        self.send_sidr_reply(number, &rep, 0, IdState::Ended)
    }

    fn send_sidr_reply(
        &mut self,
        number: u64,
        rep: &SidrRep,
        ece_options: u32,
        then: IdState,
    ) -> Result<(), IdError> {
        let (index, connection) = self.id(number)?.connection("accept")?;
        let device = &mut self.devices[index];
        device.cm.sidr_reply(device.now(), connection, rep, ece_options)?;
        self.release_connection(number);
        self.id_mut(number)?.state = then;
        Ok(())
    }

    /// Handles the response to this side's request.
    pub fn on_sidr_response(&mut self, number: u64, response: &SidrRep, ece: Ece) {
        self.release_connection(number);
        let Ok(id) = self.id_mut(number) else { return };
        if response.status != SidrStatus::Valid {
            let address = AddressVector::to(id.to.map(|to| to.dgid).unwrap_or_default());
            let param = Datagram::at(address, &response.private_data);
            id.state = IdState::Ended;
            let status = response.status.code().into();
            return id.report(CmEventKind::Unreachable, status, EventParam::Datagram(param));
        }
        id.remote_ece = ece;
        id.state = IdState::Connected;
        let Some(to) = id.to else { return };
        let destination = Datagram::at(AddressVector { traffic_class: id.tos, ..to }, &response.private_data);
        let param = Datagram { qp_num: response.qpn, qkey: response.qkey, ..destination };
        id.report(CmEventKind::Established, 0, EventParam::Datagram(param));
    }
}
