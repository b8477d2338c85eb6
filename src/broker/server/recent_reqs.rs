//! Recently requested services, by client. The REJ of a client that gives up before it has received the
//! server's communication ID carries only the client's own ID; this record tells which service the client had
//! requested.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::wire::mad::{CommId, ServiceId};

/// Maximum number of REQs remembered, more than are ever pending at the same time. A REJ from a client that
/// is no longer recorded is not forwarded, so the server has to detect by itself that the client has given
/// up.
const MAX_REQS: usize = 16_384;

/// Client address, and the communication ID that the client's connection manager has assigned.
type ClientId = (IpAddr, CommId);

/// Services requested by the most recent REQs, by client.
#[derive(Default)]
pub struct RecentReqs {
    services: HashMap<ClientId, ServiceId>,
    /// Clients, in the order first recorded.
    order: VecDeque<ClientId>,
}

impl RecentReqs {
    /// Records the service requested by the REQ with local communication ID `id` from `from`.
    pub fn record(&mut self, from: IpAddr, id: CommId, service: ServiceId) {
        if self.services.insert((from, id), service).is_some() {
            return;
        }
        self.order.push_back((from, id));
        if self.order.len() > MAX_REQS
            && let Some(oldest) = self.order.pop_front()
        {
            self.services.remove(&oldest);
        }
    }

    /// Returns the service that the client with communication ID `id` has requested, unless the record was
    /// evicted.
    pub fn find(&self, from: IpAddr, id: CommId) -> Option<ServiceId> {
        self.services.get(&(from, id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_recent_clients_are_remembered_with_their_latest_service() {
        let (mut recent_reqs, ip) = (RecentReqs::default(), IpAddr::from([10, 0, 0, 1]));
        let more = 100;
        for round in 0..2 {
            for id in 0..(MAX_REQS + more) as u32 {
                recent_reqs.record(ip, CommId(id), ServiceId(u64::from(id) + round));
            }
        }
        assert_eq!((recent_reqs.services.len(), recent_reqs.order.len()), (MAX_REQS, MAX_REQS));
        let last = (MAX_REQS + more - 1) as u32;
        assert_eq!(recent_reqs.find(ip, CommId(last)), Some(ServiceId(u64::from(last) + 1)));
        assert_eq!(recent_reqs.find(ip, CommId(0)), None);
        assert_eq!(recent_reqs.find([10, 0, 0, 2].into(), CommId(last)), None);
        recent_reqs.record(ip, CommId(last), ServiceId(7));
        assert_eq!(
            (recent_reqs.find(ip, CommId(last)), recent_reqs.order.len()),
            (Some(ServiceId(7)), MAX_REQS)
        );
    }
}
