//! Requests without a listener: queued during the service's grace period, otherwise rejected.

use super::pending_listener::QueuedRequest;
use super::{Cm, unmatched};
use crate::transport::{AddressVector, Instant};
use crate::wire::mad::{Mad, Message, Req, ServiceId};

impl Cm {
    /// Starts the grace period of a service: a program has bound its port, and is likely to listen soon.
    pub fn expect_listener(&mut self, now: Instant, service: ServiceId) {
        if !self.listeners.contains(&service) {
            self.pending_listeners.start_grace_period(now, service);
        }
    }

    /// Queues a request without a listener if the service is in its grace period; otherwise rejects it.
    pub(super) fn queue_or_reject(
        &mut self,
        now: Instant,
        service: ServiceId,
        source: &AddressVector,
        mad: &Mad,
    ) {
        if !self.pending_listeners.enqueue(now, service, source, mad) {
            self.reject_no_service(source, mad);
        }
    }

    /// Handles the queued requests whose service has become available or whose grace period has ended.
    pub(super) fn process_queued_requests(&mut self, now: Instant) {
        if self.pending_listeners.deadline().is_none_or(|at| at > now) {
            return;
        }
        for QueuedRequest { service, source, mad, .. } in self.pending_listeners.take_due(now) {
            let matches_peer_to_peer = |req: &Req| self.find_peer_to_peer(req, &source).is_some();
            let is_peer_to_peer = matches!(&mad.message, Message::Req(req) if matches_peer_to_peer(req));
            match &mad.message {
                _ if !self.listeners.contains(&service) && !is_peer_to_peer => {
                    self.reject_no_service(&source, &mad)
                }
                Message::Req(req) => self.on_req(now, &source, &mad, req),
                Message::SidrReq(req) => self.on_sidr_req(now, &source, &mad, req),
                _ => {}
            }
        }
    }

    /// Rejects a request for a service without a listener.
    fn reject_no_service(&mut self, source: &AddressVector, mad: &Mad) {
        self.counters.no_service += 1;
        if let Some(response) = unmatched::response(&mad.message) {
            self.send_uncached_response(*source, mad.transaction, response);
        }
    }
}
