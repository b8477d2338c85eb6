//! Source of a responder's receives: its own queue or a shared receive queue.

use crate::burst::ReceivedPayload;
use crate::memory::{AccessError, Accessor, HostSlice};
use crate::transport::connection::Connection;
use crate::transport::credits;
use crate::transport::recv_queue::{Receive, RecvQueue};
use crate::transport::{
    AsyncEvent, Completion, CountedOps, Env, Output, PostError, RecvCaps, RecvWr, SrqId, WcOpcode, WcStatus,
};

#[derive(Debug, Default)]
pub(in crate::transport) struct RecvSource {
    own: RecvQueue,
    /// Whether receives are taken from a shared receive queue ([`Env::srq`]).
    shared: bool,
    /// Receive that the current message has consumed.
    current: Receive,
    /// XRC shared receive queue from which `current` was taken; the completion is delivered to that queue's
    /// CQ.
    from: Option<SrqId>,
    /// Whether `current` is in use: its message is incomplete, or was dropped, leaving the receive to the
    /// next message.
    has_current: bool,
}

impl RecvSource {
    pub fn new(caps: RecvCaps, shared: bool) -> RecvSource {
        RecvSource { own: RecvQueue::new(caps), shared, ..RecvSource::default() }
    }

    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.shared {
            return Err(PostError::SharedQueue);
        }
        self.own.post(wr, self.has_current as usize)
    }

    /// Reports whether the receives are the queue pair's own, and none has ever been posted.
    pub fn has_never_had_any(&self) -> bool {
        !self.shared && self.own.is_unused()
    }

    /// Returns the number of receives in the queue pair's own queue.
    #[cfg(feature = "live")]
    pub fn posted(&self) -> usize {
        self.own.len()
    }

    /// Reports whether a receive belongs to a message that is incomplete.
    #[cfg(feature = "live")]
    pub fn has_current(&self) -> bool {
        self.has_current
    }

    /// Returns the credit code for the available receives, including the current message's. A shared receive
    /// queue advertises no credits, because its receives are not reserved for a single QP (IBA 9.7.7.2).
    pub fn credits(&self, conn: &Connection) -> u8 {
        if self.shared || !conn.quirks().credits {
            return credits::NONE;
        }
        credits::code(self.own.len() + self.has_current as usize)
    }

    /// Returns the capacity in bytes of the current message's receive, or of the next receive if no message
    /// has taken one.
    pub fn len_of_next(&self, env: &Env<'_>) -> Option<u64> {
        if self.has_current {
            return Some(self.current.len);
        }
        match &env.srq {
            Some(srq) => srq.front_len(),
            None => self.own.front_len(),
        }
    }

    /// Takes a receive from the queue unless one is in use. Returns false if none is available.
    fn take(&mut self, env: &mut Env<'_>) -> bool {
        if !self.has_current {
            self.has_current = match &mut env.srq {
                Some(srq) => {
                    self.from = srq.domain.map(|_| srq.id);
                    srq.take(&mut self.current, env.out)
                }
                None => self.own.take(&mut self.current),
            };
        }
        self.has_current
    }

    /// Stores `data` at byte offset `at` of the current message.
    pub fn scatter(
        &mut self,
        at: u32,
        data: ReceivedPayload<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), AccessError> {
        if !self.take(env) {
            return Ok(());
        }
        self.current.scatter(at, data, receive_accessor(conn, env), env.memory)
    }

    /// Returns the memory at byte offset `at` of the current message, up to the end of the scatter/gather
    /// element and at most `max` bytes. Returns `None` if there is none, or if it may not be written.
    pub fn element_at(&self, at: u32, max: u32, conn: &Connection, env: &Env<'_>) -> Option<HostSlice> {
        self.has_current.then(|| self.current.element_at(at, max, receive_accessor(conn, env), env.memory))?
    }

    /// Returns the reason for which the memory of the receive in use may not be written; `None` if it may.
    pub fn denied(&self, conn: &Connection, env: &Env<'_>) -> Option<AccessError> {
        self.has_current.then(|| self.current.denied(receive_accessor(conn, env), env.memory))?
    }

    /// Completes the receive in use, or the next one, with all fields of `completion` except `wr_id`.
    pub fn complete(&mut self, completion: Completion, conn: &Connection, env: &mut Env<'_>) {
        if self.take(env) {
            self.has_current = false;
            match completion.status {
                WcStatus::Success => conn.op_counters.completed(CountedOps::RECV, completion.byte_len),
                _ => conn.op_counters.failed(CountedOps::RECV),
            }
            let completion = Completion { wr_id: self.current.wr_id, ..completion };
            env.out.push(match self.from {
                Some(srq) => Output::ReceivedFrom(srq, completion),
                None => Output::Received(completion),
            });
        }
    }

    /// Completes the receive in use, or the next one, with the given error status.
    pub fn fail(&mut self, status: WcStatus, conn: &Connection, env: &mut Env<'_>) {
        self.complete(Completion { opcode: WcOpcode::Recv, ..conn.completion(0, status) }, conn, env);
    }

    /// Completes all receives owned by the queue pair with WR_FLUSH_ERR, in order.
    pub fn flush(&mut self, conn: &Connection, env: &mut Env<'_>) {
        if self.shared {
            if self.has_current {
                self.fail(WcStatus::WrFlushErr, conn, env);
            }
            // An XRC target has no queue of its own, so no last receive.
            if conn.domain().is_none() {
                env.out.push(Output::Event(AsyncEvent::LastWqeReached(conn.qpn)));
            }
            return;
        }
        while self.has_current || self.own.len() > 0 {
            self.fail(WcStatus::WrFlushErr, conn, env);
        }
    }

    /// Drops all receives owned by the queue pair.
    pub fn clear(&mut self) {
        self.own.clear();
        self.has_current = false;
    }
}

/// Returns the accessor for a receive's memory: the queue pair with its own protection domain or, if it uses
/// a shared receive queue, with that of the queue.
fn receive_accessor(conn: &Connection, env: &Env<'_>) -> Accessor {
    Accessor { pd: env.srq.as_ref().map_or(conn.pd, |srq| srq.pd), ..conn.accessor() }
}
