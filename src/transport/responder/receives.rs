//! Where a responder has its receives from: a queue of its own, or one that it shares.

use crate::memory::{AccessError, Accessor};
use crate::transport::connection::Connection;
use crate::transport::credits;
use crate::transport::recv_queue::{Receive, RecvCaps, RecvQueue};
use crate::transport::requester::failure;
use crate::transport::{AsyncEvent, Completion, Env, Output, PostError, RecvWr, SrqId, WcOpcode, WcStatus};

#[derive(Debug)]
pub(super) struct Receives {
    own: RecvQueue,
    /// Receives come from the queue in [`Env::srq`].
    shared: bool,
    /// Taken out of the queue by a message.
    current: Receive,
    /// The XRC queue that `current` is from: its completions go where that queue's go.
    from: Option<SrqId>,
    /// `current` is in use: its message is not complete, or was given up and left it to the next.
    taken: bool,
}

impl Receives {
    pub fn new(caps: RecvCaps, shared: bool) -> Receives {
        Receives { own: RecvQueue::new(caps), shared, current: Receive::default(), from: None, taken: false }
    }

    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.shared {
            return Err(PostError::SharedQueue);
        }
        self.own.post(wr, self.taken as usize)
    }

    /// The credit code of what is there, with that of the running message. A shared queue's are nobody's alone
    /// (IBA 9.7.7.2).
    pub fn credits(&self, conn: &Connection) -> u8 {
        if self.shared || !conn.habits().credits {
            return credits::NONE;
        }
        credits::code(self.own.len() + self.taken as usize)
    }

    /// Bytes that the receive of the running message holds, or that of the next.
    pub fn len_of_next(&self, env: &Env<'_>) -> Option<u64> {
        if self.taken {
            return Some(self.current.len);
        }
        match &env.srq {
            Some(srq) => srq.front_len(),
            None => self.own.front_len(),
        }
    }

    /// Sees to it that there is a receive in use, if there is one at all.
    fn take(&mut self, env: &mut Env<'_>) -> bool {
        if !self.taken {
            self.taken = match &mut env.srq {
                Some(srq) => {
                    self.from = srq.domain().map(|_| srq.id());
                    srq.take(&mut self.current, env.out)
                }
                None => self.own.take(&mut self.current),
            };
        }
        self.taken
    }

    /// Stores bytes of the running message.
    pub fn scatter(
        &mut self,
        at: u32,
        data: &[u8],
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), AccessError> {
        if !self.take(env) {
            return Ok(());
        }
        let pd = env.srq.as_ref().map_or(conn.pd, |srq| srq.pd());
        self.current.scatter(at, data, Accessor { pd, ..conn.accessor() }, env.memory)
    }

    /// Completes the receive in use, or the next, as `completion` says, but for its number.
    pub fn complete(&mut self, completion: Completion, env: &mut Env<'_>) {
        if self.take(env) {
            self.taken = false;
            let completion = Completion { wr_id: self.current.wr_id, ..completion };
            env.out.push(match self.from {
                Some(srq) => Output::ReceivedFrom(srq, completion),
                None => Output::Received(completion),
            });
        }
    }

    /// Completes it with an error.
    pub fn fail(&mut self, status: WcStatus, conn: &Connection, env: &mut Env<'_>) {
        self.complete(Completion { opcode: WcOpcode::Recv, ..failure(conn, 0, status) }, env);
    }

    /// Completes all that are the queue pair's own as flushed, in order.
    pub fn flush(&mut self, conn: &Connection, env: &mut Env<'_>) {
        if self.shared {
            if self.taken {
                self.fail(WcStatus::WrFlushErr, conn, env);
            }
            // An XRC target has no queue of its own to be the last of.
            if conn.domain().is_none() {
                env.out.push(Output::Event(AsyncEvent::LastWqeReached(conn.qpn)));
            }
            return;
        }
        while self.taken || self.own.len() > 0 {
            self.fail(WcStatus::WrFlushErr, conn, env);
        }
    }

    /// Forgets all that are the queue pair's own.
    pub fn clear(&mut self) {
        self.own.clear();
        self.taken = false;
    }
}
