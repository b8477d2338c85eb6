//! The services that clients have asked for: a client that gives up before it has learned its server's ID names only its own.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::wire::mad::{CommId, ServiceId};

/// More than ask at a time. A server finds out by itself that a client is gone that is not known here any more.
const MOST: usize = 16_384;

/// An address, and the ID that its connection manager has given.
type Asker = (IpAddr, CommId);

/// The services that clients asked for last.
#[derive(Default)]
pub(super) struct Askers {
    services: HashMap<Asker, ServiceId>,
    /// In the order in which they came.
    order: VecDeque<Asker>,
}

impl Askers {
    /// Notes what a client asks for.
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

    /// What a client has asked for.
    pub fn find(&self, from: IpAddr, id: CommId) -> Option<ServiceId> {
        self.services.get(&(from, id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_are_known_by_their_last_question() {
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
