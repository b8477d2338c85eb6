//! Recent REQs: a client that gives up before it has learned its server's communication ID names only its
//! own.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::wire::mad::{CommId, ServiceId};

/// Maximum number of REQs remembered, more than are pending at a time. For a client that is no longer
/// recorded, the server itself finds out that it is gone.
const MOST: usize = 16_384;

/// Address of a client, and the communication ID that its connection manager has assigned.
type Asker = (IpAddr, CommId);

/// Services of the most recent REQs, by client.
#[derive(Default)]
pub(super) struct Askers {
    services: HashMap<Asker, ServiceId>,
    /// Clients in order of arrival.
    order: VecDeque<Asker>,
}

impl Askers {
    /// Records the service that a client requests.
    pub fn note(&mut self, from: IpAddr, id: CommId, service: ServiceId) {
        if self.services.insert((from, id), service).is_some() {
            return;
        }
        self.order.push_back((from, id));
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.services.remove(&oldest);
        }
    }

    /// Returns the service that a client has requested.
    pub fn find(&self, from: IpAddr, id: CommId) -> Option<ServiceId> {
        self.services.get(&(from, id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_recent_clients_are_found_with_their_latest_service() {
        let (mut askers, ip) = (Askers::default(), IpAddr::from([10, 0, 0, 1]));
        let more = 100;
        for round in 0..2 {
            for id in 0..(MOST + more) as u32 {
                askers.note(ip, CommId(id), ServiceId(u64::from(id) + round));
            }
        }
        assert_eq!((askers.services.len(), askers.order.len()), (MOST, MOST));
        let last = (MOST + more - 1) as u32;
        assert_eq!(askers.find(ip, CommId(last)), Some(ServiceId(u64::from(last) + 1)));
        assert_eq!(askers.find(ip, CommId(0)), None);
        assert_eq!(askers.find([10, 0, 0, 2].into(), CommId(last)), None);
        askers.note(ip, CommId(last), ServiceId(7));
        assert_eq!((askers.find(ip, CommId(last)), askers.order.len()), (Some(ServiceId(7)), MOST));
    }
}
