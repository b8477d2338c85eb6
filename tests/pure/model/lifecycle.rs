//! Actions of an application on its queue pairs, from creation to destruction.

use std::time::Duration;

use urxe::memory::PdId;
use urxe::transport::state::accepted_attrs;
use urxe::transport::{
    AddressVector, Destination, PostError, QpAttr, QpInit, QpState, QpType, RecvCaps, RecvWr, SendCaps,
    SendWr, Sge, WrData, WrOp,
};
use urxe::wire::{AckTimeout, LKey, Mtu, Psn, Qpn, RnrTimer};

use super::grants::GrantedRange;
use super::memory::Piece;
use super::plan::{Failure, Kind, QpPlan};
use super::program::{MAX_INLINE, Target, set_key};
use super::receives::Pool;
use super::world::{ACCESS, DOMAIN, Side, Stage, World};
use urxe_test_support::engine::PD;

/// 4.096 µs · 2^8.
const TIMEOUT: u8 = 8;

/// Time between the completion of an unreliable group's work requests and the end of the group, long enough
/// for all delayed packets to arrive.
const DRAIN_TIME: Duration = Duration::from_micros(400);

fn to(state: QpState) -> QpAttr {
    QpAttr::new(state)
}

impl Side {
    /// Returns scatter/gather elements for the pieces. They use the key in `under`, which covers the given
    /// range, or without it the key of the region that covers all memory. With `bad`, the key is invalid.
    fn sges(&self, pieces: &[Piece], bad: bool, under: Option<(LKey, GrantedRange)>) -> Vec<Sge> {
        let sge = |p: &Piece| match (p.at, under) {
            (Some(at), _) if bad => Sge { lkey: LKey(0xffff_ff00), ..self.region.sge(at, p.len) },
            (Some(at), None) => self.region.sge(at, p.len),
            (Some(at), Some((lkey, range))) => {
                Sge { addr: range.base + (at - range.at) as u64, length: p.len, lkey }
            }
            (None, _) => Sge { addr: 0x1234, length: p.len, lkey: self.null },
        };
        pieces.iter().map(sge).collect()
    }
}

impl QpPlan {
    /// Returns the queue pair type; an XRC queue pair is a target if `pool`, its receive queue, is an XRC
    /// one.
    fn qp_type(&self, pool: &Pool) -> QpType {
        match self.kind {
            Kind::Rc => QpType::Rc,
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
            Kind::Xrc if pool.xrc => QpType::XrcRecv,
            Kind::Xrc => QpType::XrcSend,
        }
    }
}

impl World {
    /// Performs the periodic actions.
    pub fn tick(&mut self) {
        for group in 0..self.groups.len() {
            let after = self.plan.groups[group].after;
            if self.groups[group].stage == Stage::Waiting
                && after.is_none_or(|g| self.groups[g].stage == Stage::Ended)
            {
                self.start(group);
            }
        }
        (0..self.plan.pools.len()).for_each(|pool| self.post_receives(pool, false));
        for qp in 0..self.qps.len() {
            self.change_state(qp);
            self.post_sends(qp);
        }
    }

    pub fn state(&self, qp: usize) -> Option<QpState> {
        self.sides[self.plan.qps[qp].side].nic.qp_state(self.qps[qp].qpn?)
    }

    pub fn modify(&mut self, qp: usize, attr: &QpAttr) {
        let (q, plan) = (&mut self.qps[qp], &self.plan.qps[qp]);
        let Some(qpn) = q.qpn else { return };
        let s = &mut self.sides[plan.side];
        s.nic.modify_qp(self.now, qpn, attr, &s.memory, &mut s.tx).unwrap().unwrap();
        if attr.state == Some(QpState::Err) && !plan.kind.is_reliable() {
            q.responder.fail(qpn, (plan.pool, &mut self.plan.pools[plan.pool]));
        }
    }

    fn start(&mut self, group: usize) {
        let qps = self.plan.groups[group].qps.clone();
        for &qp in &qps {
            self.create(qp);
        }
        for &qp in &qps {
            self.connect(qp);
        }
        self.groups[group].stage = Stage::Running;
    }

    fn create(&mut self, qp: usize) {
        let plan = &self.plan.qps[qp];
        let (s, pool) = (&mut self.sides[plan.side], &self.plan.pools[plan.pool]);
        let qp_type = plan.qp_type(pool);
        let target = qp_type == QpType::XrcRecv;
        let init = QpInit {
            qp_type,
            // The protection domain of the target itself is irrelevant: memory is checked in that of the
            // shared receive queue.
            pd: if target { PdId(77) } else { PD },
            send: SendCaps { max_wr: plan.max_send, max_sge: 4, max_inline: MAX_INLINE },
            recv: RecvCaps { max_wr: pool.depth, max_sge: 4 },
            signal_all: plan.signal_all,
            srq: pool.srq.filter(|_| !target),
            domain: target.then_some(DOMAIN),
            quirks: self.params.quirks,
            port_mtu: if plan.kind == Kind::Ud { plan.mtu } else { Mtu::Mtu4096 },
        };
        let qpn = s.nic.create_qp(&init, s.send_cq.handle, s.recv_cq.handle).unwrap();
        let q = &mut self.qps[qp];
        (q.qpn, q.number) = (Some(qpn), qpn);
        q.failure_at = plan.failure.map(|(after, failure)| (self.now + after, failure));
    }

    fn connect(&mut self, qp: usize) {
        let p = &self.plan.qps[qp];
        let first = to(QpState::Init).pkey_index(0).port(1);
        let last = to(QpState::Rts).sq_psn(Psn::new(p.psn));
        if p.kind == Kind::Ud {
            let init = first.qkey(p.qkey);
            return [init, to(QpState::Rtr), last].iter().for_each(|attr| self.modify(qp, attr));
        }
        let peer = p.peer.expect("a connected queue pair has a peer");
        let service = p.qp_type(&self.plan.pools[p.pool]);
        let init = first.access(ACCESS);
        let rtr = to(QpState::Rtr)
            .av(AddressVector::to(self.sides[1 - p.side].ip.into()))
            .path_mtu(p.mtu)
            .dest_qpn(self.qps[peer].qpn)
            .rq_psn(Psn::new(self.plan.qps[peer].psn))
            .max_dest_rd_atomic(p.depth)
            .min_rnr_timer(RnrTimer::new(p.rnr_timer));
        let rts = last.timeout(AckTimeout::new(TIMEOUT)).retry_cnt(7).rnr_retry(7).max_rd_atomic(p.depth);
        let steps = [(QpState::Reset, init), (QpState::Init, rtr), (QpState::Rtr, rts)];
        for (from, attr) in steps {
            let next = attr.state.expect("each step sets a state");
            self.modify(qp, &attr.only(accepted_attrs(service, from, next)));
        }
    }

    /// Occasionally moves a queue pair to SQD and back, and recovers it from SQE.
    fn change_state(&mut self, qp: usize) {
        let next = match self.state(qp) {
            Some(QpState::Rts) if self.rng.percent(3) => QpState::Sqd,
            Some(QpState::Sqd) if self.rng.percent(50) => QpState::Rts,
            Some(QpState::Sqe) if self.rng.percent(30) => QpState::Rts,
            _ => return,
        };
        self.modify(qp, &to(next));
    }

    /// Posts receives until the queue is full, or, unless `all` is set, until it stops at random.
    fn post_receives(&mut self, pool_index: usize, all: bool) {
        let pool = &mut self.plan.pools[pool_index];
        let Some(&user) = pool.users.first() else { return };
        let (s, user) = (&mut self.sides[pool.side], &mut self.qps[user]);
        while let Some(recv) = pool.recvs.get(pool.posted)
            && (all || self.rng.percent(70))
        {
            let sges = s.sges(&recv.pieces, recv.bad_lkey, None);
            let wr = RecvWr::new(Pool::wr_id(pool_index, pool.posted), &sges);
            let posted = match (pool.srq, user.qpn) {
                (Some(srq), _) => s.nic.with_srq(srq, |srq, _| srq.post(&wr)).unwrap(),
                (None, Some(qpn)) => s.nic.post_recv(qpn, &wr).unwrap(),
                (None, None) => return,
            };
            match posted {
                Ok(()) => user.responder.posted(pool.posted, user.number, (pool_index, &mut *pool)),
                Err(e) => {
                    assert!(matches!(e, PostError::QueueFull(_)), "{e}");
                    return;
                }
            }
            pool.posted += 1;
        }
    }

    fn post_sends(&mut self, qp: usize) {
        while self.post_send(qp) {}
    }

    /// Tries to post the next work request, which may have to wait for messages or for space in the queue; at
    /// random, does not try one time in five. Returns whether the work request was posted.
    fn post_send(&mut self, qp: usize) -> bool {
        let Some(state) = self.state(qp) else { return false };
        let (q, plan) = (&self.qps[qp], &self.plan.qps[qp]);
        let Some(send) = plan.sends.get(q.posted) else { return false };
        if send.after > q.arrived && state != QpState::Err || !self.rng.percent(80) {
            return false;
        }
        let s = &self.sides[plan.side];
        let mut op = send.op;
        set_key(&mut op, self.rkey(send.key));
        if let WrOp::BindMw(bind) = &mut op {
            bind.region = s.region.info.lkey;
        }
        let under = send.under.map(|range| (LKey(self.rkey(range.key).0), range));
        let list = s.sges(&send.pieces, send.bad_lkey, under);
        let data = if send.inline { WrData::Inline(&send.data) } else { WrData::Sges(&list) };
        let to = send.to.map(|to| {
            let (side, qpn) = match to.target {
                Target::Qp(peer) => (self.plan.qps[peer].side, self.qps[peer].number),
                Target::UnknownQp(side) => (side, Qpn::new(0xff_fffe)),
            };
            let av = AddressVector::to(self.sides[side].ip.into());
            Destination::Qp { pd: PD, av, qpn, qkey: to.qkey }
        });
        let to = match (plan.kind, plan.peer) {
            (Kind::Xrc, Some(peer)) => {
                let srq = self.plan.pools[self.plan.qps[peer].pool].srq;
                Some(Destination::Srq(srq.expect("a target has a shared pool")))
            }
            _ => to,
        };
        let wr = SendWr::new(q.posted as u64, op, &[]).data(data).flags(send.flags).to(to);
        let nic = &mut self.sides[plan.side].nic;
        match nic.post_send(q.number, &wr).unwrap() {
            Ok(()) => {
                let q = &mut self.qps[qp];
                if matches!(state, QpState::Rts | QpState::Sqd) {
                    q.psns.push((q.next_psn, q.posted));
                    q.next_psn += send.packets(plan.mtu.bytes());
                }
                q.posted += 1;
                true
            }
            Err(e) => {
                assert!(matches!(e, PostError::QueueFull(_)), "{e}");
                false
            }
        }
    }

    /// Applies the planned failures of queue pairs. Some time after one end of a reliable connection has
    /// failed, moves both ends to ERR, as an application would do.
    pub fn apply_failures(&mut self) {
        for qp in 0..self.qps.len() {
            if let Some((_, failure)) = self.qps[qp].failure_at.filter(|d| d.0 <= self.now) {
                self.qps[qp].failure_at = None;
                let running = matches!(self.state(qp), Some(QpState::Rts | QpState::Sqd));
                match failure {
                    Failure::Destroyed if running => self.destroy(qp),
                    _ => self.modify(qp, &to(QpState::Err)),
                }
            }
        }
        for group in 0..self.groups.len() {
            if !self.plan.groups[group].kind.is_reliable() || self.groups[group].stage != Stage::Running {
                continue;
            }
            let qps = self.plan.groups[group].qps.clone();
            let failed = qps.iter().any(|q| matches!(self.state(*q), None | Some(QpState::Err)));
            // The delay is short, or so long that the other end has run out of retries.
            let order = 16 + self.rng.below(11);
            let delay = Duration::from_nanos(self.rng.below(1 << order));
            let g = &mut self.groups[group];
            if failed && !g.closed && g.close_at.is_none() {
                g.close_at = Some(self.now + delay);
            }
            if g.close_at.is_some_and(|at| at <= self.now) {
                (g.close_at, g.closed) = (None, true);
                qps.iter().for_each(|q| self.modify(*q, &to(QpState::Err)));
            }
        }
    }

    fn destroy(&mut self, qp: usize) {
        self.poll();
        let (q, plan) = (&mut self.qps[qp], &self.plan.qps[qp]);
        let qpn = q.qpn.take().expect("the queue pair exists");
        self.sides[plan.side].nic.destroy_qp(qpn);
        q.responder.failed = true;
        q.destroyed = true;
    }

    /// Ends the groups whose work requests have completed.
    pub fn end_groups(&mut self) {
        for group in 0..self.groups.len() {
            if self.groups[group].stage == Stage::Running && self.has_ended(group) {
                self.end(group);
            }
        }
    }

    fn has_ended(&mut self, group: usize) -> bool {
        let plan = &self.plan.groups[group];
        let done = plan.qps.iter().all(|&qp| {
            let (q, p) = (&self.qps[qp], &self.plan.qps[qp]);
            let sent = q.posted == p.sends.len()
                && q.sent.last().map(|c| c.wr_id + 1).unwrap_or(0) == q.posted as u64;
            let stopped = self.state(qp) == Some(QpState::Err);
            q.destroyed || sent && (stopped || q.arrived >= p.incoming.len())
        });
        let g = &mut self.groups[group];
        match plan.kind {
            Kind::Rc | Kind::Xrc => done && g.close_at.is_none(),
            _ => done && *g.idle_since.get_or_insert(self.now) + DRAIN_TIME <= self.now,
        }
    }

    /// Moves a group's queue pairs to ERR, checks their results, and destroys them.
    fn end(&mut self, group: usize) {
        let qps: Vec<_> =
            self.plan.groups[group].qps.iter().copied().filter(|q| !self.qps[*q].destroyed).collect();
        for &qp in &qps {
            self.qps[qp].failure_at = None;
            self.modify(qp, &to(QpState::Err));
            if !self.plan.pools[self.plan.qps[qp].pool].shared {
                self.post_receives(self.plan.qps[qp].pool, true);
            }
        }
        self.poll();
        for qp in self.plan.groups[group].qps.clone() {
            self.check(qp, self.plan.groups[group].failing);
        }
        for &qp in &qps {
            self.destroy(qp);
        }
        self.groups[group].stage = Stage::Ended;
    }
}
