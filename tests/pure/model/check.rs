//! Checks that compare the results of a run with the model.

use urxe::transport::{WcOpcode, WcStatus, WrOp};

use super::memory::{self, Piece};
use super::plan::Kind;
use super::program::{Key, Send};
use super::receives::Pool;
use super::unreliable::completion;
use super::world::World;

impl World {
    /// Applies the memory changes of a completed work request of a reliable queue pair to the expected
    /// contents, and checks that memory contains them.
    pub fn apply(&mut self, qp: usize, index: usize) {
        let plan = &self.plan.qps[qp];
        let s = &plan.sends[index];
        let [us, them] =
            self.sides.get_disjoint_mut([plan.side, 1 - plan.side]).expect("the sides are distinct");
        if s.op.brings_data() {
            memory::store(&mut us.expected, &s.pieces, 0, &s.data);
            let read = |at, len| us.region.read(at, len);
            assert!(
                memory::holds(read, &s.pieces, &s.data),
                "wrong data in the elements of {index} of QP {qp}: {s:?}"
            );
        }
        if let Some(at) = s.place {
            them.expected[at..][..s.data.len()].copy_from_slice(&s.data);
            let stored = them.region.read(at, s.data.len());
            assert!(stored == s.data, "target of {index} of QP {qp} has other data: {s:?}");
        }
        if let Some((at, value)) = s.word {
            them.expected[at..][..8].copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// Checks all completions of a queue pair that has ended; `failing` tells whether the queue pair may have
    /// failed.
    pub fn check(&mut self, qp: usize, failing: bool) {
        match self.plan.qps[qp].kind {
            Kind::Rc | Kind::Xrc => {
                self.check_sends(qp, failing);
                self.check_receives(qp, failing);
                self.apply_failed(qp);
            }
            Kind::Uc | Kind::Ud => {
                self.check_unreliable_sends(qp);
                self.check_unreliable_receives(qp);
            }
        }
        let (q, plan) = (&self.qps[qp], &self.plan.qps[qp]);
        // An XRC target has no queue of its own whose last receive it could reach.
        let shared = self.plan.pools[plan.pool].shared && plan.kind != Kind::Xrc;
        let expected = usize::from(shared && !q.destroyed);
        assert_eq!(q.last_wqe_events, expected, "number of last-WQE-reached events of QP {qp}");
    }

    fn is_signaled(&self, qp: usize, s: &Send) -> bool {
        s.flags.signaled || self.plan.qps[qp].signal_all
    }

    /// Checks the send completions of a reliable queue pair, which must be in order: one per signaled
    /// request, then possibly an error; all remaining requests must be flushed.
    fn check_sends(&self, qp: usize, failing: bool) {
        let (q, plan) = (&self.qps[qp], &self.plan.qps[qp]);
        let mut got = q.sent.iter().peekable();
        let mut flushing = false;
        for (i, s) in plan.sends[..q.posted].iter().enumerate() {
            let Some(c) = got.next_if(|c| c.wr_id == i as u64) else {
                let required = self.is_signaled(qp, s) || flushing;
                assert!(
                    !required || q.destroyed,
                    "no completion of {i} of QP {qp}, next is {:?}: {s:?}",
                    got.peek()
                );
                continue;
            };
            assert_eq!((c.opcode, c.qpn), (s.op.completion_opcode(), q.number), "{c:?}");
            match c.status {
                WcStatus::Success => {
                    assert!(!flushing, "success after an error: {c:?}");
                    assert!(self.is_signaled(qp, s), "completion of an unsignaled request: {c:?}");
                    assert!(s.fault.is_none(), "invalid request succeeded: {c:?} of {s:?}");
                    assert_eq!(c.byte_len, s.len_of_completion(), "{c:?}");
                }
                WcStatus::WrFlushErr => {
                    assert!(failing, "{c:?} of {s:?}");
                    flushing = true;
                }
                status => {
                    assert!(failing && !flushing, "{c:?} of {s:?}");
                    let fault = s.fault == Some(status) || status == WcStatus::RetryExcErr;
                    assert!(fault, "{c:?} of {s:?}");
                    flushing = true;
                }
            }
        }
        assert_eq!(got.next(), None, "unexpected completion of QP {qp}");
    }

    /// Checks the receive completions of a reliable queue pair: one per message, in order, and then possibly
    /// an error; all remaining receives must be flushed.
    fn check_receives(&self, qp: usize, failing: bool) {
        let (q, plan) = (&self.qps[qp], &self.plan.qps[qp]);
        let pool = &self.plan.pools[plan.pool];
        for (c, m) in q.received.iter().zip(&plan.incoming[..q.arrived]) {
            let peer = self.qps[plan.peer.expect("a connected QP has a peer")].number;
            let mut expected = completion(q.number, peer);
            (expected.wr_id, expected.opcode, expected.byte_len) = (c.wr_id, m.opcode, m.byte_len);
            (expected.imm, expected.solicited) = (m.imm, m.solicited);
            expected.invalidated = (m.invalidated != Key::None).then(|| self.rkey(m.invalidated));
            assert_eq!(*c, expected, "wrong receive completion of QP {qp}");
            assert_eq!(m.fault, None, "message expected to fail was received: {c:?}");
        }
        assert!(
            failing || q.arrived == plan.incoming.len(),
            "QP {qp} received {} messages of {}",
            q.arrived,
            plan.incoming.len()
        );
        let rest = &q.received[q.arrived..];
        // A WRITE with immediate without access fails the receive that it consumes.
        let nakked_write = plan.peer.is_some_and(|peer| {
            let is_nakked = |s: &Send| {
                matches!(s.op, WrOp::WriteWithImm { .. }) && s.fault == Some(WcStatus::RemAccessErr)
            };
            self.plan.qps[peer].sends.iter().any(is_nakked)
        });
        for (i, c) in rest.iter().enumerate() {
            let fault = plan.incoming.get(q.arrived).and_then(|m| m.fault);
            let is_expected = c.status == WcStatus::WrFlushErr
                || i == 0 && fault == Some(c.status)
                || i == 0 && nakked_write && c.status == WcStatus::LocAccessErr;
            assert!(is_expected && c.qpn == q.number, "{c:?}");
        }
        if q.destroyed {
            assert!(rest.is_empty(), "{rest:?}");
        } else if pool.shared {
            assert!(rest.len() <= 1 && (failing || rest.is_empty()), "{rest:?}");
        } else {
            let ids = q.received.iter().map(|c| c.wr_id);
            let all = (0..pool.recvs.len()).map(|i| Pool::wr_id(plan.pool, i));
            assert!(ids.eq(all), "not all receives of QP {qp} completed: {:?}", q.received);
        }
    }

    /// Applies the memory changes of requests that have not completed successfully. The model cannot predict
    /// these changes: any number of whole packets may have been stored.
    fn apply_failed(&mut self, qp: usize) {
        let q = &self.qps[qp];
        for index in q.applied..self.plan.qps[qp].sends.len() {
            let plan = &self.plan.qps[qp];
            let (s, side, mtu) = (&plan.sends[index], plan.side, plan.mtu.bytes());
            if s.op.brings_data() {
                self.accept(side, &s.pieces.clone(), &s.data.clone(), mtu, &format!("result of {s:?}"));
            }
            let s = &self.plan.qps[qp].sends[index];
            if let Some(at) = s.place {
                let pieces = [Piece { at: Some(at), len: s.data.len() as u32 }];
                let is_nakked = s.fault == Some(WcStatus::RemAccessErr);
                let data = if is_nakked { Vec::new() } else { s.data.clone() };
                self.accept(1 - side, &pieces, &data, mtu, &format!("target of {s:?}"));
            }
            let s = &self.plan.qps[qp].sends[index];
            if let (Some((at, value)), None | Some(WcStatus::LocProtErr)) = (s.word, s.fault) {
                let target = &mut self.sides[1 - side];
                if target.region.read(at, 8) == value.to_ne_bytes() {
                    target.expected[at..][..8].copy_from_slice(&value.to_ne_bytes());
                }
            }
        }
        // The message in progress.
        let (q, plan) = (&self.qps[qp], &self.plan.qps[qp]);
        let Some(message) = plan.incoming.get(q.arrived).filter(|m| m.opcode == WcOpcode::Recv) else {
            return;
        };
        let (data, side, mtu) = (message.data.clone(), plan.side, plan.mtu.bytes());
        let pool = &self.plan.pools[plan.pool];
        // In a shared queue it may be any receive, if the receive was lost with its queue pair.
        let into: Vec<_> = match q.received.get(q.arrived) {
            Some(c) => vec![c.wr_id as u32 as usize],
            None if q.destroyed => (0..pool.posted).filter(|i| !pool.done[*i]).collect(),
            None => return,
        };
        for index in into {
            let pieces = self.plan.pools[self.plan.qps[qp].pool].recvs[index].pieces.clone();
            let now = self.sides[side].region.read(0, self.sides[side].region.len());
            let expected = &mut self.sides[side].expected;
            if let Some(n) = memory::stored_packets(expected, &now, &pieces, &data, mtu) {
                memory::store(expected, &pieces, 0, &data[..n]);
            }
        }
    }

    /// Determines how much of `data` has been stored, which must be a whole number of packets, and adds that
    /// part to the expected contents.
    fn accept(&mut self, side: usize, pieces: &[Piece], data: &[u8], mtu: usize, description: &str) {
        let s = &mut self.sides[side];
        let now = s.region.read(0, s.region.len());
        let n = memory::stored_packets(&s.expected, &now, pieces, data, mtu);
        let n = n.unwrap_or_else(|| panic!("stored data is not a number of whole packets: {description}"));
        memory::store(&mut s.expected, pieces, 0, &data[..n]);
    }

    /// Checks the send completions of an unreliable queue pair: all requests must succeed, except those with
    /// a fault, and those flushed after a fault until the send queue is recovered.
    fn check_unreliable_sends(&self, qp: usize) {
        let (q, plan) = (&self.qps[qp], &self.plan.qps[qp]);
        let mut got = q.sent.iter().peekable();
        let mut flushing = false;
        for (i, s) in plan.sends[..q.posted].iter().enumerate() {
            let Some(c) = got.next_if(|c| c.wr_id == i as u64) else {
                let required = self.is_signaled(qp, s) || s.fault.is_some();
                assert!(
                    !required || q.destroyed,
                    "no completion of {i} of QP {qp}, next is {:?}: {s:?}",
                    got.peek()
                );
                flushing = false;
                continue;
            };
            assert_eq!((c.opcode, c.qpn), (s.op.completion_opcode(), q.number), "{c:?}");
            match c.status {
                WcStatus::Success => {
                    assert!(s.fault.is_none() && self.is_signaled(qp, s), "{c:?} of {s:?}");
                    assert_eq!(c.byte_len, s.len_of_completion(), "{c:?}");
                }
                WcStatus::WrFlushErr => assert!(flushing || q.responder.failed, "{c:?} of {s:?}"),
                status => assert_eq!(Some(status), s.fault, "{c:?} of {s:?}"),
            }
            flushing = c.status != WcStatus::Success;
        }
        assert_eq!(got.next(), None, "unexpected completion of QP {qp}");
    }

    fn check_unreliable_receives(&self, qp: usize) {
        let q = &self.qps[qp];
        for (i, (c, e)) in q.received.iter().zip(&q.responder.expected).enumerate() {
            if e.status == WcStatus::Success {
                assert_eq!(c, e, "receive {i} of QP {qp}");
            } else {
                let part = |c: &urxe::transport::Completion| (c.wr_id, c.status, c.qpn);
                assert_eq!(part(c), part(e), "receive {i} of QP {qp}");
            }
        }
        assert_eq!(q.received.len(), q.responder.expected.len(), "receives of QP {qp}");
    }

    /// Checks that memory has the predicted contents, and that no guard byte has changed.
    pub fn check_memory(&self) {
        for (i, s) in self.sides.iter().enumerate() {
            assert!(s.region.guards_intact(), "guard bytes of side {i} were modified");
            let now = s.region.read(0, s.region.len());
            let difference = now.iter().zip(&s.expected).position(|(a, b)| a != b);
            assert_eq!(difference, None, "first byte of side {i} that differs from the model");
        }
    }
}

impl Send {
    /// Returns the length that the request's completion must report.
    fn len_of_completion(&self) -> u32 {
        match self.op {
            WrOp::AtomicWrite { .. } => 0,
            _ => self.data.len() as u32,
        }
    }
}
