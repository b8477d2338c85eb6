//! Alternate paths (IBA 12.8): LAP offers a path, APR accepts or rejects it.

use super::connection::Offer;
use super::request::RESPONSE_TIMEOUT;
use super::{Cm, CmError, ConnId, Event, Path, State};
use crate::transport::{AddressVector, Instant};
use crate::wire::AckTimeout;
use crate::wire::mad::{Acknowledged, Apr, AprStatus, CommId, Lap, Mad, MessageKind, Mra};

impl Cm {
    /// Offers an alternate path to the peer (LAP). Only one offer may be outstanding.
    ///
    /// # Errors
    /// [`CmError`], if the connection is not established, or an offer is outstanding.
    pub fn load_alternate(&mut self, now: Instant, id: ConnId, path: &Path) -> Result<(), CmError> {
        let offered = self.path_info(path)?;
        let transaction = self.new_transaction(id.0);
        let action = "offer an alternate path";
        let conn = self.conn(id, &[State::Established], action)?;
        if conn.offer != Offer::None {
            return Err(CmError::State { connection: id, state: conn.state, action });
        }
        conn.offer = Offer::Sent { transaction, delayed: false };
        let lap = Lap {
            local: id.0,
            remote: conn.remote,
            remote_qpn: conn.qp_params.remote_qpn,
            remote_response_timeout: RESPONSE_TIMEOUT,
            local_lid: offered.local_lid,
            remote_lid: offered.remote_lid,
            local_gid: offered.local_gid,
            remote_gid: offered.remote_gid,
            flow_label: offered.flow_label,
            traffic_class: offered.traffic_class,
            hop_limit: offered.hop_limit,
            ack_timeout: offered.ack_timeout,
            ..Lap::default()
        };
        self.send_request(now, id.0, &Mad { transaction, modifier: 0, message: lap.into() });
        Ok(())
    }

    /// Handles a LAP: the peer offers an alternate path.
    pub(super) fn on_lap(&mut self, id: CommId, source: &AddressVector, transaction: u64, lap: &Lap) {
        let index = self.gid_index(lap.remote_gid, source.sgid_index);
        let service_timeout = self.config.service_timeout;
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let (to, remote) = (conn.to, conn.remote);
        let refuse = |cm: &mut Cm, status| {
            cm.send_uncached_response(to, transaction, Apr { local: id, remote, status, ..Apr::default() });
        };
        match conn.offer {
            Offer::Received { transaction: of } if of == transaction => {
                let message = Acknowledged::Lap;
                let mra = Mra { local: id, remote, message, service_timeout, ..Mra::default() };
                self.counters.duplicates += 1;
                return self.send_uncached_response(to, transaction, mra);
            }
            // If both ends offer at the same time, each waits for the response to its own offer.
            Offer::Sent { .. } | Offer::Received { .. } => return self.counters.unexpected += 1,
            Offer::None => {}
        }
        if let Some(response) = conn.cached_response.as_ref().filter(|a| a.to == MessageKind::Lap)
            && response.mad.transaction == transaction
        {
            let mad = *response.mad;
            self.counters.duplicates += 1;
            return self.send_response(to, &mad);
        }
        if conn.qp_params.qp.is_none_or(|qp| qp.qpn != lap.remote_qpn) {
            return refuse(self, AprStatus::InvalidQpn);
        }
        let Some(sgid_index) = index.filter(|_| !lap.local_gid.is_unset()) else {
            return refuse(self, AprStatus::InvalidGid);
        };
        conn.offer = Offer::Received { transaction };
        let av = AddressVector {
            dgid: lap.local_gid,
            sgid_index,
            hop_limit: lap.hop_limit,
            traffic_class: lap.traffic_class,
            flow_label: lap.flow_label,
        };
        let packet_life = AckTimeout::new(lap.ack_timeout.code().saturating_sub(1));
        let path = Path { av, packet_life, ..conn.qp_params.path };
        self.push_event(id, Event::AlternateOffered(path));
    }

    /// Responds to the peer's offer of an alternate path (APR).
    ///
    /// # Errors
    /// [`CmError`], if there is no offer.
    pub fn respond_to_alternate(&mut self, id: ConnId, status: AprStatus) -> Result<(), CmError> {
        let action = "respond to an alternate path";
        let conn = self.conn(id, &[State::Established], action)?;
        let Offer::Received { transaction } = conn.offer else {
            return Err(CmError::State { connection: id, state: conn.state, action });
        };
        conn.offer = Offer::None;
        let apr = Apr { local: id.0, remote: conn.remote, status, ..Apr::default() };
        self.send_cached_response(id.0, MessageKind::Lap, transaction, apr);
        Ok(())
    }

    /// Handles an APR: the peer responds to our offer.
    pub(super) fn on_apr(&mut self, id: CommId, transaction: u64, apr: &Apr) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        match conn.offer {
            Offer::Sent { transaction: of, .. } if of == transaction => conn.offer = Offer::None,
            _ => return self.counters.unexpected += 1,
        }
        self.stop_retransmission(id);
        self.push_event(id, Event::AlternateResponse(apr.status));
    }
}
