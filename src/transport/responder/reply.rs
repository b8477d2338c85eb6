//! Sends pending replies.

use super::nak_reason::NakReason;
use super::{Fatal, NakOutstanding, Reply, ResourceKind, Responder};
use crate::memory::{Access, Accessor, PdId};
use crate::transport::connection::Connection;
use crate::transport::{CountedOps, Env};
use crate::wire::{Aeth, AtomicAckEth, HeaderSet, Headers, Operation, Position, Psn, Reth, Syndrome};

impl Responder {
    /// Sends up to `budget` packets of pending replies, among them up to `reads` packets of READ responses.
    /// Returns `Ok(true)` if replies remain.
    pub fn transmit(
        &mut self,
        conn: &Connection,
        budget: usize,
        mut reads: usize,
        env: &mut Env<'_>,
    ) -> Result<bool, Fatal> {
        // Most turns have no replies.
        let Some(flow) = conn.flow.as_ref().filter(|_| self.has_replies()) else { return Ok(false) };
        let ack = Syndrome::Ack { credits: self.receives.credits(conn) };
        for _ in 0..budget {
            let Some(reply) = self.replies.front_mut() else { return Ok(false) };
            // Acknowledgements are short, and the requester that fills the queue waits for them.
            if reply.as_read().is_some() {
                if env.tx.is_full() || reads == 0 {
                    break;
                }
                reads -= 1;
            }
            let (of, next, is_replay) = match reply {
                Reply::Acknowledge { psn, syndrome, msn } => {
                    let syndrome = if *syndrome == Syndrome::ACK { ack } else { *syndrome };
                    let aeth = Aeth { syndrome, msn: *msn };
                    let h = answer(conn, Operation::Acknowledge, Position::Only, *psn, aeth);
                    env.tx.push(flow, h, &[]);
                    self.replies.pop_front();
                    if env.last_acks.is_some() && self.replies.is_empty() {
                        env.acknowledged.push(conn.qpn);
                    }
                    continue;
                }
                Reply::Result { of, next, is_replay } => (*of, next, *is_replay),
            };
            let (psn, aeth) = (of.first + *next, Aeth { syndrome: ack, msn: of.msn });
            match of.kind {
                ResourceKind::Atomic(original) => {
                    let h = answer(conn, Operation::AtomicAcknowledge, Position::Only, psn, aeth);
                    env.tx.push(flow, Headers { atomic_ack: AtomicAckEth { original }, ..h }, &[]);
                    self.replies.pop_front();
                }
                ResourceKind::EmptyRead => {
                    let h = answer(conn, Operation::ReadResponse, Position::Only, psn, aeth);
                    env.tx.push(flow, h, &[]);
                    self.replies.pop_front();
                }
                ResourceKind::Read(reth, pd) => {
                    let (at, count) = (*next, conn.attr.mtu.packets(reth.dma_len));
                    *next += 1;
                    let h = answer(conn, Operation::ReadResponse, Position::of(at, count), psn, aeth);
                    if let Err(nak_reason) = push_part(conn, &h, pd, &reth, at, env) {
                        // A replay may no longer be expected: the application may invalidate the key once its
                        // READs are complete, while a duplicate request is still in flight. Only requests
                        // with the expected PSN are NAKed.
                        if is_replay {
                            self.replies.pop_front();
                            continue;
                        }
                        // The region was deregistered after the request was accepted.
                        self.replies.clear();
                        (self.expected, self.nak_outstanding) = (psn, NakOutstanding::No);
                        self.kept.clear();
                        // The READ counts as not executed; a SEND that has begun since is not affected.
                        (self.msn, self.message) = (of.msn.wrapping_sub(1) & 0xff_ffff, None);
                        return self.refuse(nak_reason, false, conn, env).map(|()| false);
                    }
                    if at + 1 == count {
                        if !is_replay {
                            conn.op_counters.completed(CountedOps::REMOTE_READ, reth.dma_len);
                        }
                        self.replies.pop_front();
                    }
                }
            }
        }
        Ok(self.has_replies())
    }

    /// Sends the pending acknowledgements when the application moves the QP to RESET or ERR, because the peer
    /// would otherwise treat executed requests as lost. A pending READ, and all requests after it, get no
    /// response.
    pub fn flush_pending_acks(&mut self, conn: &Connection, env: &mut Env<'_>) {
        let read = self.replies.iter().position(|reply| reply.as_read().is_some());
        self.replies.truncate(read.unwrap_or(self.replies.len()));
        // Only READs can fail here.
        let _ = self.transmit(conn, usize::MAX, usize::MAX, env);
        self.replies.clear();
    }
}

fn answer(conn: &Connection, operation: Operation, position: Position, psn: Psn, aeth: Aeth) -> Headers {
    Headers { aeth, ..conn.headers(operation, position, HeaderSet::NONE, psn) }
}

/// Queues the response packet with the index `at` of a READ.
fn push_part(
    conn: &Connection,
    h: &Headers,
    pd: PdId,
    reth: &Reth,
    at: u32,
    env: &mut Env<'_>,
) -> Result<(), NakReason> {
    let mtu = conn.attr.mtu.bytes() as u32;
    let offset = at * mtu;
    let len = (reth.dma_len - offset).min(mtu);
    let va = reth.va.wrapping_add(offset as u64);
    let by = Accessor { pd, ..conn.accessor() };
    let found = env.memory.remote(by, reth.rkey, va, len, Access::REMOTE_READ);
    let slice = found.map_err(|_| NakReason::Access)?;
    let flow = conn.data_flow.ok_or(NakReason::Access)?;
    env.tx.push_host(&flow, h, &[slice]).map_err(|_| NakReason::RemoteOperational)
}
