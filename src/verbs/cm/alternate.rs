//! Alternate paths, to which connections migrate when the primary path fails (IBA 12.8, 17.2.8).

use std::net::IpAddr;

use super::state::{IdState, State};
use super::{CmEventKind, EventParam, IdError};
use crate::cm::{self, ConnId};
use crate::transport::{AddressVector, AlternatePath, MigrationState, QpAttr};
use crate::wire::mad::AprStatus;

impl State {
    pub fn load_alternate(&mut self, number: u64, from: IpAddr, to: IpAddr) -> Result<(), IdError> {
        let id = self.id(number)?;
        id.require("load_alternate", &[IdState::Connected])?;
        if id.qp.is_none() {
            return Err(IdError::NoQp);
        }
        let (index, connection) = id.connection("load_alternate")?;
        let Some(primary) = self.path(id) else { return Err(IdError::Ended) };
        if from.to_canonical().is_ipv4() != to.to_canonical().is_ipv4() {
            return Err(IdError::Family { src: from, dst: to });
        }
        let device = &mut self.devices[index];
        let sgid_index = device.gid_index(from).ok_or(IdError::NoDevice(from))?;
        let av = AddressVector { dgid: to.to_canonical().into(), sgid_index, ..primary.av };
        let alternate = cm::Path { av, ..primary };
        device.cm.load_alternate(device.now(), connection, &alternate)?;
        self.id_mut(number)?.alternate = Some(av);
        Ok(())
    }

    /// Handles the peer's offer of an alternate path, and accepts it if the attached queue pair can load the
    /// path.
    pub fn on_alternate_offered(&mut self, number: u64, index: usize, connection: ConnId, path: &cm::Path) {
        let status = match self.arm(number, path.av) {
            Ok(()) => AprStatus::Loaded,
            Err(_) => AprStatus::Unsupported,
        };
        let device = &mut self.devices[index];
        // Fails if the connection no longer exists, because the peer has aborted it.
        let _ = device.cm.respond_to_alternate(connection, status);
    }

    /// Handles the peer's response to this side's offer; `None` means that the peer did not respond.
    pub fn on_alternate_response(&mut self, number: u64, response: Option<AprStatus>) {
        let Some(av) = self.id_mut(number).ok().and_then(|id| id.alternate.take()) else { return };
        let status = match response {
            None => -libc::ETIMEDOUT,
            Some(AprStatus::Loaded) => self.arm(number, av).map_or_else(|e| -e.errno(), |()| 0),
            Some(rejected) => rejected.code().into(),
        };
        if let Ok(id) = self.id(number) {
            id.report(CmEventKind::AlternatePath, status, EventParam::None);
        }
    }

    /// Loads a path into the attached queue pair, which migrates to it once the primary path fails.
    fn arm(&self, number: u64, av: AddressVector) -> Result<(), IdError> {
        let id = self.id(number)?;
        let (index, connection) = id.connection("load_alternate")?;
        let timeout = id.ack_timeout.or(self.devices[index].cm.rts(connection)?.timeout).unwrap_or_default();
        let qp = id.qp.as_ref().ok_or(IdError::NoQp)?;
        let alt_path = AlternatePath { av, pkey_index: 0, timeout };
        let attr = QpAttr::default().alt_path(alt_path).path_mig_state(MigrationState::Rearm);
        super::qp_transitions::modify(qp, &attr)
    }
}
