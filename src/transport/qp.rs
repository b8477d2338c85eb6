//! Queue pairs: state transitions, posting, packets and timers.

use super::congestion::{QpController, Rate};
use super::connection::{Alternate, Connection, Fatal, PathMatch};
use super::observer::{CongestionState, Observer, QpEvent};
use super::pacer::{self, Pacer};
use super::requester::Requester;
use super::responder::{Responder, is_receiving};
use super::slow_event::EventKind;
use super::{
    AddressVector, AsyncEvent, AttachCounterError, CompCounter, Completion, CountedOps, Counters,
    Destination, EarlySends, Env, Failure, FailureCause, Instant, ModifyError, Output, PolledSends,
    PortAddresses, PostError, PostListError, QpAttr, QpCounters, QpInit, QpState, QpType, RecvWr, SendWr,
    Traffic, Tuning, WcOpcode, WcStatus, earliest, state,
};
use crate::burst::{BurstLimits, PayloadRun, PeerPath};
use crate::wire::{Flow, Operation, Packet, Qpn, Transport};

/// Bytes of the responses to one READ alone that a queue pair sends in a turn. fio has one READ of 256 KiB in
/// flight: if all of it left in one turn, the peer would wait while it is copied; 15.4 Gb/s instead of 17.9.
/// With several READs in flight the peer has something to do, and parts cost 15 % of the throughput.
const RESPONSE_PART: usize = 64 << 10;

/// Kind of packets that a queue pair has pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pending {
    /// Nothing.
    Nothing,
    /// An acknowledgement, which may be delayed so that it is sent together with other packets.
    Acknowledgement,
    /// Packets that must not be delayed.
    Urgent,
}

/// Queue pair: a requester and a responder that share a connection.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) conn: Connection,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) pacer: Pacer,
    /// Whether the pacer lets requests precede READ responses, because responses were sent last.
    requests_first: bool,
    /// Whether a packet has arrived since the transition to RTR.
    established: bool,
    /// Whether the application asked to be notified when the send queue has drained.
    drain_notify: bool,
    /// Packets sent and received, which the NIC counts.
    pub traffic: Traffic,
}

impl QueuePair {
    /// Creates a queue pair in RESET.
    pub fn new(qpn: Qpn, init: &QpInit) -> QueuePair {
        QueuePair {
            conn: Connection::new(init, qpn),
            requester: Requester::new(init.send, &init.quirks),
            responder: Responder::new(init.recv, init.srq.is_some() || init.domain.is_some()),
            pacer: Pacer::default(),
            requests_first: false,
            established: false,
            drain_notify: false,
            traffic: Traffic::default(),
        }
    }

    /// Sets the observer of the queue pair.
    pub fn set_observer(&mut self, observer: Observer) {
        self.conn.observer = observer;
    }

    /// Counts a slow event or a dropped packet.
    #[cold]
    pub fn count(&self, count: impl FnOnce(&mut QpCounters)) {
        self.conn.history.count(count);
    }

    /// Returns the queue pair number (QPN).
    pub fn qpn(&self) -> Qpn {
        self.conn.qpn
    }

    /// Returns the counter of polled completions, if they free the slots of the send queue.
    pub fn polled_sends(&self) -> Option<&PolledSends> {
        self.requester.polled_sends()
    }

    /// Returns the queue pair's state.
    pub fn state(&self) -> QpState {
        self.conn.state
    }

    /// Returns the queue pair's service type.
    pub fn qp_type(&self) -> QpType {
        self.conn.qp_type
    }

    /// Attaches a completion counter until the queue pair is destroyed.
    ///
    /// # Errors
    /// [`AttachCounterError`]; then the counter is not attached.
    pub fn attach_counter(
        &mut self,
        counter: &CompCounter,
        ops: CountedOps,
    ) -> Result<(), AttachCounterError> {
        let state = self.conn.state;
        self.conn.op_counters.attach(counter, ops, state)
    }

    /// Reports whether the queue pair accepts requests (if `requests` is true) or responses (otherwise) of
    /// the given transport service.
    pub fn takes(&self, transport: Transport, requests: bool) -> bool {
        self.conn.transport() == transport && self.conn.qp_type.takes(requests)
    }

    /// Returns the path to the peer; `None` before RTR and for unconnected services.
    pub fn flow(&self) -> Option<&Flow> {
        self.conn.flow.as_ref()
    }

    /// Returns the number of the connected peer's queue pair; 0 before RTR and for unconnected services.
    pub fn dest_qpn(&self) -> Qpn {
        self.conn.attr.dest_qpn
    }

    /// Returns the flight cost of all packets sent but not yet acknowledged; 0 for an unreliable service.
    pub fn in_flight(&self) -> u64 {
        if self.conn.qp_type.is_reliable() { self.requester.in_flight(self.conn.attr.mtu) } else { 0 }
    }

    /// Reports whether posted sends may wait to be batched with later ones.
    pub fn may_batch(&self) -> bool {
        self.conn.state == QpState::Rts
            && self.conn.qp_type.is_reliable()
            && !self.responder.has_urgent_replies()
            && self.requester.may_batch(self.conn.attr.mtu)
    }

    /// Reports whether the per-peer window blocked the last turn.
    pub fn is_blocked_by_peer_window(&self) -> bool {
        self.requester.is_blocked_by_peer_window
    }

    /// Modifies the state and attributes as permitted by the table in [`state`]. `port` resolves an address
    /// vector to a flow; flushed work requests are reported through `env`.
    ///
    /// # Errors
    /// [`ModifyError`]; then nothing has changed.
    pub fn modify(
        &mut self,
        attr: &QpAttr,
        port: &PortAddresses,
        env: &mut Env<'_>,
    ) -> Result<(), ModifyError> {
        let from = self.conn.state;
        let to = state::check(self.conn.qp_type, from, attr)?;
        self.check_migration(attr)?;
        let dest = attr.dest_qpn.unwrap_or(self.conn.attr.dest_qpn);
        let flow = |av: &AddressVector| port.flow(av, self.conn.qpn, dest).map_err(ModifyError::Address);
        let primary = attr.av.as_ref().map(flow).transpose()?;
        let alternate = attr.alt_path.as_ref().map(|alt| flow(&alt.av)).transpose()?;
        if to == QpState::Rtr {
            self.conn.uses_marks = env.tuning.congestion.control.uses_marks();
        }
        if let Some(flow) = primary {
            self.conn.set_flow(flow);
            self.conn.av = attr.av;
        }
        if let Some((path, flow)) = attr.alt_path.zip(alternate) {
            self.conn.alternate = Some(Alternate { path, flow, pkey: self.conn.pkey });
        }
        let conn = &mut self.conn;
        conn.attr.update(attr);
        if matches!(to, QpState::Reset | QpState::Err) {
            self.responder.flush_pending_acks(conn, env);
        }
        conn.enter(to, "modify", env.now);
        if let Some(rate) = attr.rate_limit {
            self.pacer.set(rate);
        }
        if let Some(migration) = attr.path_mig_state {
            self.set_migration(migration, env);
        }
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                self.responder.start(&self.conn);
                self.requester.congestion = QpController::new(&env.tuning.congestion);
            }
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.conn),
            (_, QpState::Reset) => {
                self.requester.clear();
                self.responder.clear();
                self.conn.reset();
                self.pacer.set(0);
                self.established = false;
            }
            (from, QpState::Err) if from != QpState::Err => {
                self.record_failure_by(FailureCause::Modified, env.now);
                self.flush(env);
            }
            _ => {}
        }
        self.drain_notify = to == QpState::Sqd && attr.sqd_notify.unwrap_or(self.drain_notify);
        self.note_drained(env);
        Ok(())
    }

    fn note_drained(&mut self, env: &mut Env<'_>) {
        if self.drain_notify && self.conn.state == QpState::Sqd && self.requester.is_drained() {
            self.drain_notify = false;
            env.out.push(Output::Event(AsyncEvent::SqDrained(self.conn.qpn)));
        }
    }

    /// Reports whether the queue pair is in SQD and its send queue has not yet drained.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn is_draining(&self) -> bool {
        self.conn.state == QpState::Sqd && !self.requester.is_drained()
    }

    /// Moves the queue pair to the error state because its completion queue overflowed.
    pub fn fail(&mut self, env: &mut Env<'_>) {
        if !matches!(self.conn.state, QpState::Reset | QpState::Err) {
            env.out.push(Output::Event(AsyncEvent::QpFatal(self.conn.qpn)));
            self.record_failure_by(FailureCause::CqOverflow, env.now);
            self.settle(Err(Fatal), "CQ overflow", env);
        }
    }

    /// Reports whether a message was refused because no receive has ever been posted to the queue pair.
    pub fn lacks_receives(&self) -> bool {
        let refused = |kind: &EventKind| matches!(kind, EventKind::RnrNakSent(_));
        self.responder.receives.has_never_had_any() && self.conn.history.newest(refused).is_some()
    }

    /// Withdraws the payloads of requests that are not acknowledged, because the queue pair is about to be
    /// destroyed.
    pub fn withdraw(&self) {
        self.requester.withdraw();
    }

    /// Returns the record of the failure that moved the queue pair to an error state; `None` if it has not
    /// failed since RESET or RTS.
    pub fn failure(&self) -> Option<Failure> {
        self.conn.history.failure()
    }

    /// Records why the queue pair is about to enter ERR, unless it is there already.
    pub fn record_injected_failure(&self, cause: FailureCause, now: Instant) {
        if !matches!(self.conn.state, QpState::Reset | QpState::Err) {
            self.record_failure_by(cause, now);
        }
    }

    /// Records a failure that no work request caused, unless one is recorded already.
    fn record_failure_by(&self, cause: FailureCause, now: Instant) {
        if !self.conn.history.has_failure() {
            self.conn.history.set_failure(self.conn.failure(cause, now));
        }
    }

    /// Returns the current attributes.
    pub fn query(&self) -> QpAttr {
        let c = &self.conn;
        QpAttr {
            state: Some(c.state),
            cur_state: Some(c.state),
            av: c.av,
            alt_path: c.alternate.map(|a| a.path),
            path_mig_state: Some(c.migration),
            rate_limit: Some(self.pacer.limit()),
            rq_psn: Some(self.responder.expected),
            sq_psn: Some(self.requester.next_psn()),
            ..c.attr.query()
        }
    }

    /// Posts a send work request, using `port` to resolve its destination to a flow. In ERR and SQE, it is
    /// flushed at once.
    ///
    /// # Errors
    /// [`PostError`]; then the work request is not queued, except with [`EarlySends::RefusedAndHeld`].
    pub fn post_send(
        &mut self,
        wr: &SendWr<'_>,
        port: &PortAddresses,
        out: &mut Vec<Output>,
    ) -> Result<(), PostError> {
        let result = match self.conn.state {
            QpState::Rts | QpState::Sqd => self.enqueue(wr, port),
            QpState::Err | QpState::Sqe => {
                self.conn.op_counters.failed(CountedOps::of(&wr.op));
                out.push(Output::Sent(Completion {
                    opcode: wr.op.completion_opcode(),
                    ..self.conn.completion(wr.wr_id, WcStatus::WrFlushErr)
                }));
                Ok(())
            }
            state => self.post_early(state, wr, port),
        };
        if result.is_ok() {
            let (wr_id, opcode) = (wr.wr_id, wr.op.completion_opcode());
            let signaled = wr.flags.signaled || self.conn.signal_all;
            self.conn.observe(None, || QpEvent::Posted {
                is_recv: false,
                signaled,
                wr_id,
                opcode,
                len: wr.data.len(),
            });
        }
        result
    }

    /// Handles a send work request posted before RTS: queues or rejects it, depending on the device class
    /// (`early_sends`).
    #[cold]
    fn post_early(&mut self, state: QpState, wr: &SendWr<'_>, port: &PortAddresses) -> Result<(), PostError> {
        let (early, refused) = (self.conn.quirks().early_sends, Err(PostError::State(state)));
        if early != EarlySends::Refused {
            self.enqueue(wr, port)?;
            self.requester.is_held = true;
        }
        if early == EarlySends::Held { Ok(()) } else { refused }
    }

    /// Queues a send work request, using `port` to resolve its destination.
    #[inline(always)]
    fn enqueue(&mut self, wr: &SendWr<'_>, port: &PortAddresses) -> Result<(), PostError> {
        match self.path_of(wr, port) {
            Ok(flow) => self.requester.post(wr, flow, &self.conn),
            Err(error) => self.enqueue_to_fail(wr, error),
        }
    }

    /// Queues a send work request that cannot be executed if devices of this class report such an error in a
    /// completion, and rejects it otherwise.
    #[cold]
    fn enqueue_to_fail(&mut self, wr: &SendWr<'_>, error: PostError) -> Result<(), PostError> {
        let fails_later = matches!(error, PostError::Unsupported(..) | PostError::HandlePd { .. })
            && self.conn.quirks().late_refusals
            && self.conn.qp_type != QpType::XrcRecv;
        if fails_later { self.requester.post_to_fail(wr, &self.conn) } else { Err(error) }
    }

    /// Posts all the given send work requests, or none if one of them is rejected.
    ///
    /// # Errors
    /// [`PostListError`] of the first that is rejected.
    pub fn post_send_all<'w>(
        &mut self,
        wrs: impl Iterator<Item = SendWr<'w>>,
        port: &PortAddresses,
        out: &mut Vec<Output>,
    ) -> Result<(), PostListError> {
        let mark = self.requester.queue.mark();
        for (index, wr) in wrs.enumerate() {
            // A state that flushes at once rejects nothing, so `out` never contains part of a batch.
            if let Err(error) = self.post_send(&wr, port, out) {
                self.requester.queue.roll_back(&mark);
                return Err(PostListError { index, error });
            }
        }
        Ok(())
    }

    /// Resolves the destination of a datagram to a flow; returns `None` for a connected service.
    #[inline(always)]
    fn path_of(&self, wr: &SendWr<'_>, port: &PortAddresses) -> Result<Option<Flow>, PostError> {
        let conn = &self.conn;
        if !conn.qp_type.offers(&wr.op) {
            return Err(PostError::Unsupported(conn.qp_type, wr.op.completion_opcode()));
        }
        match (conn.qp_type, &wr.to) {
            (QpType::Rc | QpType::Uc, None) | (QpType::XrcSend, Some(Destination::Srq(_))) => Ok(None),
            // A local operation has no packets and so no destination.
            (QpType::XrcSend, None) if wr.op.is_local() => Ok(None),
            (QpType::Ud, Some(Destination::Qp { pd, .. })) if *pd != conn.pd => {
                Err(PostError::HandlePd { handle: *pd, qp: conn.pd })
            }
            (QpType::Ud, Some(Destination::Qp { av, qpn, .. })) => {
                port.flow(av, conn.qpn, *qpn).map(Some).map_err(PostError::Address)
            }
            _ => Err(PostError::Destination),
        }
    }

    /// Posts a receive work request. In ERR it is flushed at once.
    ///
    /// # Errors
    /// [`PostError`]; then the work request is not queued.
    pub fn post_recv(&mut self, wr: &RecvWr<'_>, out: &mut Vec<Output>) -> Result<(), PostError> {
        if self.conn.qp_type == QpType::XrcSend {
            return Err(PostError::Unsupported(QpType::XrcSend, WcOpcode::Recv));
        }
        match self.conn.state {
            QpState::Reset if !self.conn.quirks().early_receives => Err(PostError::State(QpState::Reset)),
            QpState::Err => {
                self.conn.op_counters.failed(CountedOps::RECV);
                out.push(Output::Received(Completion {
                    opcode: WcOpcode::Recv,
                    ..self.conn.completion(wr.wr_id, WcStatus::WrFlushErr)
                }));
                Ok(())
            }
            _ => {
                self.responder.receives.post(wr)?;
                self.conn.observe(None, || QpEvent::Posted {
                    is_recv: true,
                    signaled: true,
                    wr_id: wr.wr_id,
                    opcode: WcOpcode::Recv,
                    len: wr.sges.iter().map(|sge| u64::from(sge.length)).sum(),
                });
                Ok(())
            }
        }
    }

    /// Processes a packet that arrived on `flow`. The caller has checked the packet's ICRC, service, source
    /// and partition.
    pub fn handle_packet(&mut self, packet: &Packet<'_>, flow: &Flow, via: PathMatch, env: &mut Env<'_>) {
        let request = packet.row().operation.is_request();
        let ready = if request {
            is_receiving(self.conn.state)
        } else {
            matches!(self.conn.state, QpState::Rts | QpState::Sqd)
        };
        if !ready {
            env.counters.rx_wrong_state += 1;
            self.count(|c| c.rx_wrong_state += 1);
            return;
        }
        if !self.note_migration(packet.bth().mig_req, via, env) {
            env.counters.rx_wrong_source += 1;
            self.count(|c| c.rx_wrong_source += 1);
            return;
        }
        if !self.established {
            self.established = true;
            if self.conn.state == QpState::Rtr && self.conn.qp_type.is_connected() {
                env.out.push(Output::Event(AsyncEvent::CommunicationEstablished(self.conn.qpn)));
            }
        }
        let result = if request {
            self.responder.handle(packet, flow, &self.conn, env)
        } else {
            self.requester.handle(packet, &self.conn, env)
        };
        self.migrate_if_due(env);
        self.settle(result, if request { "invalid request" } else { "failed request" }, env);
        self.note_drained(env);
    }

    /// Processes packets that repeat `packet`, the one processed last, with consecutive PSNs. Returns how
    /// many of them it has processed; each of the others has to be passed to
    /// [`handle_packet`](Self::handle_packet).
    #[inline]
    pub fn handle_repeated(&mut self, packet: &Packet<'_>, run: &PayloadRun<'_>, env: &mut Env<'_>) -> usize {
        match packet.row().operation {
            Operation::Write | Operation::Send => self.responder.continue_run(packet, run, &self.conn, env),
            Operation::ReadResponse if matches!(self.conn.state, QpState::Rts | QpState::Sqd) => {
                self.requester.continue_read_run(packet, run, &self.conn, env)
            }
            _ => 0,
        }
    }

    /// Must be called after the last [`handle_packet`](Self::handle_packet) of a step, before any other
    /// method.
    #[inline]
    pub fn end_packets(&mut self, env: &mut Env<'_>) {
        self.requester.settle_progress(&self.conn, env);
    }

    /// Sends pending packets, and returns whether more could be sent immediately. The requester and the
    /// responder each send at most `budget` packets, so that a long READ response does not delay requests.
    pub fn transmit(&mut self, budget: usize, env: &mut Env<'_>) -> bool {
        let mut more = false;
        // A lone acknowledgement follows the requests: being shorter, it ends their burst instead of
        // splitting it.
        let acknowledge_last = !self.responder.has_urgent_replies() || self.requests_first;
        if acknowledge_last {
            more |= self.transmit_requests(budget, env);
        }
        if is_receiving(self.conn.state) || self.conn.state == QpState::Err {
            match self.transmit_replies(budget, env) {
                Ok(left) => more |= left,
                Err(fatal) => {
                    self.settle(Err(fatal), "unreadable memory of a response", env);
                    return true;
                }
            }
        }
        if !acknowledge_last {
            more |= self.transmit_requests(budget, env);
        }
        more
    }

    /// Returns how many packets may be sent at `rate` now.
    #[inline]
    fn allowed(&mut self, rate: Option<Rate>, env: &Env<'_>) -> usize {
        rate.map_or(usize::MAX, |rate| {
            self.pacer.allows(rate, env.now, self.conn.attr.mtu, &env.tuning.pacing)
        })
    }

    /// Charges the pacer and congestion control with the data sent at a rate of congestion control since the
    /// transmit queue had `before` bytes and packets. Such a rate includes IP and UDP headers, unlike a
    /// configured rate limit.
    fn account(&mut self, before: (usize, usize), env: &Env<'_>) {
        let (bytes, packets) = (env.tx.bytes() - before.0, env.tx.packets() - before.1);
        let is_v6 = self.conn.flow.is_some_and(|flow| flow.src.is_ipv6());
        self.pacer.spend(bytes + packets * if is_v6 { 48 } else { 28 }, env.now);
        self.requester.congestion.on_sent(bytes as u64, env.now, &env.tuning.congestion);
    }

    /// Sends pending replies. READ responses are data, which congestion control paces like requests.
    fn transmit_replies(&mut self, budget: usize, env: &mut Env<'_>) -> Result<bool, Fatal> {
        let rate = self.requester.congestion.response_rate(env.now, &env.tuning.congestion);
        let part = match self.responder.has_lone_read() {
            true => (RESPONSE_PART / self.conn.attr.mtu.bytes()).max(1),
            false => usize::MAX,
        };
        if rate.is_none() || !self.responder.has_read_replies() {
            return self.responder.transmit(&self.conn, budget, part, env);
        }
        let reads = self.allowed(rate, env).min(part);
        let before = (env.tx.bytes(), env.tx.packets());
        let left = self.responder.transmit(&self.conn, budget, reads, env)?;
        self.account(before, env);
        self.requests_first |= reads > 0;
        Ok(left && reads > 0)
    }

    /// Reports whether one READ alone is to be answered, of whose responses [`transmit`](Self::transmit)
    /// sends a part in each turn.
    pub fn has_lone_read(&self) -> bool {
        self.responder.has_lone_read()
    }

    /// Handles a congestion notification packet, which arrived on a path of this queue pair.
    pub fn handle_cnp(&mut self, now: Instant, tuning: &Tuning, counters: &mut Counters) {
        let is_sender = is_receiving(self.conn.state);
        match is_sender && self.requester.congestion.on_cnp(now, &tuning.congestion) {
            true => {
                counters.rp_cnp_handled += 1;
                self.count(|c| c.rp_cnp_handled += 1);
            }
            false => {
                counters.rp_cnp_ignored += 1;
                self.count(|c| c.rp_cnp_ignored += 1);
            }
        }
    }

    fn transmit_requests(&mut self, budget: usize, env: &mut Env<'_>) -> bool {
        if !matches!(self.conn.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        let paced = env.tuning.pace_unacknowledged && !self.conn.qp_type.is_reliable();
        let limit = self.pacer.rate(paced.then(|| pacer::unacknowledged(env.tuning)));
        let congestion = self.requester.congestion.rate(env.now, &env.tuning.congestion);
        let rate = match (limit, congestion) {
            (Some(limit), Some(congestion)) => Some(limit.min(congestion)),
            (limit, congestion) => limit.or(congestion),
        };
        self.observe_congestion(congestion, env);
        let allowed = budget.min(self.allowed(rate, env));
        if allowed == 0 {
            return false;
        }
        let before = (env.tx.bytes(), env.tx.packets());
        let result = self.requester.transmit(&self.conn, allowed, env);
        if congestion.is_some() {
            self.requests_first = false;
            self.account(before, env);
        } else if limit.is_some() {
            self.pacer.spend(env.tx.bytes() - before.0, env.now);
        }
        match result {
            Ok(more) => {
                self.note_drained(env);
                more
            }
            // An unreliable service moves only the send queue to the error state (IBA 10.3.1.7).
            Err(Fatal) if !self.conn.qp_type.is_reliable() && self.conn.quirks().send_queue_errors => {
                self.conn.enter(QpState::Sqe, "failed send", env.now);
                self.requester.flush(&self.conn, env);
                false
            }
            Err(fatal) => {
                self.settle(Err(fatal), "failed send", env);
                false
            }
        }
    }

    /// Tells the observer what congestion control allows, if that has changed.
    #[inline]
    fn observe_congestion(&self, rate: Option<Rate>, env: &Env<'_>) {
        if let Some(observation) = self.conn.observer.get() {
            let congestion = &self.requester.congestion;
            let state = CongestionState {
                rate: rate.map(Rate::bits_per_second),
                alpha: congestion.alpha(),
                window: congestion.window(env.window as u64),
            };
            if observation.is_new(state) {
                self.conn.observe(Some(env.now), || QpEvent::Congestion(state));
            }
        }
    }

    /// Returns the priority of the packet that the queue pair sends next. Only datagrams have priorities of
    /// their own.
    pub fn priority(&self) -> usize {
        let flow = self.flow().or_else(|| self.requester.next_datagram().map(|to| &to.flow));
        flow.map_or(0, |flow| super::priority_of(flow.traffic_class))
    }

    /// Returns the path of the packet that the queue pair sends next; `None` if it is not connected and has
    /// none to send.
    pub fn next_path(&self) -> Option<PeerPath> {
        let datagram = || self.requester.next_datagram().map(|to| (&to.flow, to.qpn));
        let (flow, dest) = self.flow().map(|flow| (flow, self.dest_qpn())).or_else(datagram)?;
        Some(PeerPath { src: flow.src, dst: flow.dst, group: BurstLimits::dest_group(dest) })
    }

    /// Handles the timers that have expired by `env.now`.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) {
        self.expire_pacer(env.now);
        if matches!(self.conn.state, QpState::Rts | QpState::Sqd) {
            let result = self.requester.handle_timeout(&self.conn, env);
            self.migrate_if_due(env);
            self.settle(result, "exhausted retries", env);
        }
    }

    /// Serves the pacer alone, and reports whether packets that waited for it may now be sent.
    pub fn expire_pacer(&mut self, now: Instant) -> bool {
        self.pacer.expire(self.requester.congestion.deadline(), now)
    }

    /// Returns the time at which `handle_timeout` must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let own = self.requester.recovery.next_deadline();
        // Few queue pairs are paced; without this branch the compiler compares an unset deadline, which
        // memcheck reports.
        match self.pacer.deadline(self.requester.congestion.deadline()) {
            None => own,
            paced => earliest([own, paced]),
        }
    }

    /// Returns the most urgent kind of packets that `transmit` may have to send.
    pub fn pending(&self) -> Pending {
        if self.requester.has_unsent() || self.responder.has_urgent_replies() {
            Pending::Urgent
        } else if self.responder.has_replies() {
            Pending::Acknowledgement
        } else {
            Pending::Nothing
        }
    }

    /// Migrates if the path has failed, that is, the retries are used up and an alternate path is armed.
    fn migrate_if_due(&mut self, env: &mut Env<'_>) {
        if std::mem::take(&mut self.requester.path_failed) {
            self.migrate(env);
        }
    }

    fn settle(&mut self, result: Result<(), Fatal>, cause: &'static str, env: &mut Env<'_>) {
        if result.is_err() && self.conn.state != QpState::Err {
            self.record_failure_by(FailureCause::Other(cause), env.now);
            self.conn.enter(QpState::Err, cause, env.now);
            self.flush(env);
        }
    }

    fn flush(&mut self, env: &mut Env<'_>) {
        self.requester.flush(&self.conn, env);
        self.responder.flush(&self.conn, env);
    }
}
