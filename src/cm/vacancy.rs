//! Pending listeners: requests for a service whose listener is expected shortly are queued for a grace
//! period.
//!
//! Programs tell their clients a port before they listen on it, or end a listener and listen on the same port
//! again. A client that is faster would be rejected; instead, its request waits for the listener.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Arrival, Cm, nobody};
use crate::transport::Instant;
use crate::wire::Gid;
use crate::wire::mad::{CommId, Mad, Message, Req, ServiceId};

/// Grace period in which a service's listener is expected; requests are rejected after it.
const VACANCY: Duration = Duration::from_secs(1);

/// Maximum number of services in their grace period, and of queued requests. A request beyond it is rejected
/// like one for an unknown service.
const MOST: usize = 256;

/// Services in their grace period, and the requests queued for them.
#[derive(Debug, Default)]
pub(super) struct Vacancies {
    until: BTreeMap<ServiceId, Instant>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    until: Instant,
    service: ServiceId,
    arrival: Arrival,
    mad: Mad,
}

impl Vacancies {
    pub fn open(&mut self, now: Instant, service: ServiceId) {
        if self.until.len() >= MOST {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() < MOST {
            self.until.insert(service, now + VACANCY);
        }
    }

    /// Ends the grace period of the services that `is_served` selects: a listener, or a peer-to-peer request,
    /// now exists.
    pub fn fill(&mut self, is_served: impl Fn(ServiceId) -> bool) {
        self.until.retain(|service, _| !is_served(*service));
        self.waiting.iter_mut().filter(|w| is_served(w.service)).for_each(|w| w.until = Instant(0));
    }

    /// Queues a request, once for all its retransmissions. Returns `false` if the service has no grace period
    /// or the queue is full.
    fn keep(&mut self, now: Instant, service: ServiceId, arrival: &Arrival, mad: &Mad) -> bool {
        let Some(until) = self.until.get(&service).copied().filter(|until| *until > now) else {
            return false;
        };
        let known = |w: &Waiting| w.mad == *mad && w.arrival == *arrival;
        if self.waiting.iter().any(known) {
            return true;
        }
        let has_room = self.waiting.len() < MOST;
        if has_room {
            self.waiting.push_back(Waiting { until, service, arrival: *arrival, mad: *mad });
        }
        has_room
    }

    /// Drops the queued request of a client that gives up.
    pub fn withdraw(&mut self, from: Gid, id: CommId) {
        let asks = |mad: &Mad| matches!(&mad.message, Message::Req(req) if req.local == id);
        self.waiting.retain(|w| w.arrival.from.dgid != from || !asks(&w.mad));
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|w| w.until).min()
    }

    /// Removes and returns the requests whose wait is over, in the order of arrival.
    fn take_due(&mut self, now: Instant) -> Vec<Waiting> {
        let (due, rest) = std::mem::take(&mut self.waiting).into_iter().partition(|w| w.until <= now);
        self.waiting = rest;
        Vec::from(due)
    }
}

impl Cm {
    /// Starts the grace period of a service: a program has bound its port, and is likely to listen soon.
    pub fn expect_listener(&mut self, now: Instant, service: ServiceId) {
        if self.find_listener(service).is_none() {
            self.vacancies.open(now, service);
        }
    }

    /// Queues a request that finds no listener, or rejects it.
    pub(super) fn wait_for_listener(
        &mut self,
        now: Instant,
        service: ServiceId,
        arrival: &Arrival,
        mad: &Mad,
    ) {
        if !self.vacancies.keep(now, service, arrival, mad) {
            self.refuse_absent(arrival, mad);
        }
    }

    /// Handles the queued requests whose service is available now or whose grace period has ended.
    pub(super) fn end_waits(&mut self, now: Instant) {
        if self.vacancies.deadline().is_none_or(|at| at > now) {
            return;
        }
        for Waiting { service, arrival, mad, .. } in self.vacancies.take_due(now) {
            let crosses = |req: &Req| self.find_crossing(req, &arrival).is_some();
            let is_peers = matches!(&mad.message, Message::Req(req) if crosses(req));
            match &mad.message {
                _ if self.find_listener(service).is_none() && !is_peers => self.refuse_absent(&arrival, &mad),
                Message::Req(req) => self.on_req(now, &arrival, &mad, req),
                Message::SidrReq(req) => self.on_sidr_req(now, &arrival, &mad, req),
                _ => {}
            }
        }
    }

    /// Rejects a request for a service without a listener.
    fn refuse_absent(&mut self, arrival: &Arrival, mad: &Mad) {
        self.counters.no_service += 1;
        if let Some(answer) = nobody::answer(&mad.message) {
            self.answer_once(arrival.from, mad.transaction, answer);
        }
    }
}
