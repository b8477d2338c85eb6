//! Timers: retransmission of unanswered messages, failure once the retries are exhausted, and the end of
//! time-wait.

use super::connection::Offer;
use super::{Cm, ConnId, Event, State};
use crate::transport::{Instant, earliest};
use crate::wire::mad::CommId;

impl Cm {
    /// Returns the next instant at which [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let [next, time_wait] = [&self.timers, &self.time_waits].map(|timers| timers.first().map(|t| t.0));
        earliest([next, time_wait, self.pending_listeners.deadline()])
    }

    /// Handles all deadlines that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.expire(now, id);
        }
        while let Some(&(at, id)) = self.time_waits.first()
            && at <= now
        {
            self.close_connection(id, Event::TimeWaitOver);
        }
        self.process_queued_requests(now);
    }

    fn expire(&mut self, now: Instant, id: CommId) {
        self.arm(id, None);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if let (State::ReqSent | State::SidrReqSent, Some(pending)) = (conn.state, &conn.pending_request)
            && conn.retry_policy.retries.checked_sub(pending.retries_left) == Some(1)
        {
            self.unanswered.push_back((ConnId(id), pending.retries_left));
        }
        match &mut conn.pending_request {
            Some(pending_request) if pending_request.retries_left > 0 => {
                pending_request.retries_left -= 1;
                let (state, retries_left) = (conn.state, pending_request.retries_left);
                trace_event!(DEBUG, "urxe::cm", "retransmission", id = ?id, state = %state, retries_left = retries_left);
                let (to, mad, wait) = (conn.to, *pending_request.mad, conn.retry_policy.response_timeout);
                self.arm(id, Some(now + wait));
                self.counters.retransmitted += 1;
                self.send(to, &mad);
            }
            _ => self.on_retries_exhausted(now, id),
        }
    }

    fn on_retries_exhausted(&mut self, now: Instant, id: CommId) {
        self.counters.timed_out += 1;
        let Some(conn) = self.connections.get_mut(&id) else { return };
        trace_event!(DEBUG, "urxe::cm", "retries exhausted", id = ?id, state = %conn.state);
        conn.pending_request = None;
        match conn.state {
            State::ReqSent | State::ReqDelayed | State::RepSent | State::RepDelayed => {
                self.send_timeout(id);
                self.close_connection(id, Event::Unreachable);
            }
            State::SidrReqSent => self.close_connection(id, Event::Unreachable),
            State::DreqSent => self.finish_disconnect(now, id),
            State::Established => {
                conn.offer = Offer::None;
                self.push_event(id, Event::AlternateTimeout);
            }
            // These states wait for the program without a deadline, or are in time-wait.
            State::ReqRcvd
            | State::DelayingReq
            | State::RepRcvd
            | State::DelayingRep
            | State::DreqRcvd
            | State::SidrReqRcvd
            | State::TimeWait => {}
        }
    }
}
