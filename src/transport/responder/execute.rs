//! Execution of requests that have passed the checks.

use super::check::flush_of;
use super::nak_reason::NakReason;
use super::{Message, NakOutstanding, Reply, Resource, ResourceKind, Responder, accessor};
use crate::burst::PayloadRun;
use crate::memory::{Access, AtomicOp, HostSlice};
use crate::transport::connection::Connection;
use crate::transport::{Completion, CountedOps, Env, MAX_MESSAGE, Placement, QpType, WcOpcode, WcStatus};
use crate::wire::{Operation, Packet, Position};

impl Responder {
    /// Executes a middle packet of a WRITE on a fast path, which most packets of long messages take. If any
    /// check fails, returns false and changes nothing; [`check`](Self::check) then finds the reason.
    #[inline]
    pub(super) fn continue_write(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> bool {
        let (bth, row, data) = (packet.bth(), packet.row(), env.payload_of(packet));
        let Some(Message::Write { reth, received }) = self.message else { return false };
        let now = received as usize + data.len();
        // XRC is excluded because each of its packets names a shared receive queue.
        if conn.qp_type != QpType::Rc
            || (row.operation, row.position) != (Operation::Write, Position::Middle)
            || bth.psn != self.expected
            || !conn.attr.access.allows(Access::REMOTE_WRITE)
            || data.len() != conn.attr.mtu.bytes()
            || now >= reth.dma_len as usize
        {
            return false;
        }
        let va = reth.va.wrapping_add(received.into());
        let found =
            env.memory.remote(conn.accessor(), reth.rkey, va, data.len() as u32, Access::REMOTE_WRITE);
        if found.is_err() || found.is_ok_and(|target| data.store_to(target).is_err()) {
            return false;
        }
        self.message = Some(Message::Write { reth, received: now as u32 });
        self.expected = bth.psn.next();
        self.nak_outstanding = NakOutstanding::No;
        if bth.ack_req {
            self.acknowledge(bth.psn, self.msn, conn, env);
        }
        true
    }

    /// Executes packets that repeat `packet`, the middle packet of a WRITE or SEND that was handled last,
    /// with consecutive PSNs. Returns how many of them it has executed; each of the others has to be
    /// handled by itself.
    #[inline]
    pub(in crate::transport) fn continue_run(
        &mut self,
        packet: &Packet<'_>,
        run: &PayloadRun<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> usize {
        let (bth, each) = (packet.bth(), conn.attr.mtu.bytes());
        if bth.psn.next() != self.expected
            || bth.ack_req
            || !self.kept.is_empty()
            || packet.payload().len() != each
        {
            return 0;
        }
        let len = run.count() * each;
        // If `packet` was a duplicate, it may not be of the message that is in progress.
        let target = match (packet.row().operation, self.message) {
            (Operation::Write, Some(Message::Write { reth, received }))
                if conn.attr.access.allows(Access::REMOTE_WRITE) =>
            {
                // At least one byte is left for the last packet.
                let left = (reth.dma_len - received).saturating_sub(1) as usize;
                let (va, len) = (reth.va.wrapping_add(received.into()), len.min(left) / each * each);
                env.memory.remote(conn.accessor(), reth.rkey, va, len as u32, Access::REMOTE_WRITE).ok()
            }
            (Operation::Send, Some(Message::Send { received })) => {
                let max = len.min((MAX_MESSAGE - u64::from(received)) as usize) as u32;
                self.receives.element_at(received, max, conn, env)
            }
            _ => None,
        };
        let Some(target) = target else { return 0 };
        let count = target.len() / each;
        let len = count * each;
        if count == 0 || run.store_to(target.split_at(len).0, each).is_err() {
            return 0;
        }
        if let Some(Message::Write { received, .. } | Message::Send { received }) = &mut self.message {
            *received += len as u32;
        }
        self.expected += count as u32;
        count
    }

    /// Executes a request that has passed [`check`](Self::check); `named` is the memory that the check
    /// returned. Returns the reason for a NAK if execution fails, for example because the memory is no longer
    /// accessible.
    pub(super) fn execute(
        &mut self,
        packet: &Packet<'_>,
        named: HostSlice,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        match packet.row().operation {
            Operation::Send => self.execute_send(packet, conn, env)?,
            Operation::Write => self.execute_write(packet, named, conn, env)?,
            _ => {
                let kind = result_of(packet, named, conn, env)?;
                self.respond(packet, kind, conn, env);
                return Ok(());
            }
        }
        self.expected = packet.bth().psn.next();
        if packet.bth().ack_req && conn.qp_type.is_reliable() {
            self.acknowledge(packet.bth().psn, self.msn, conn, env);
        }
        Ok(())
    }

    fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let received = match self.message {
            Some(Message::Send { received }) => received,
            _ => 0,
        };
        let data = env.payload_of(packet);
        self.receives.scatter(received, data, conn, env).map_err(|_| NakReason::LocalProtection)?;
        let received = received + data.len() as u32;
        if let Some(rkey) = packet.ieth() {
            let closed = env.memory.invalidate(rkey, accessor(conn, env), true);
            closed.map_err(|_| NakReason::Invalidation)?;
        }
        if packet.row().position.ends() {
            self.message = None;
            self.finish_message(env);
            let completion = Completion { byte_len: received, ..self.received(packet, WcOpcode::Recv, conn) };
            self.receives.complete(completion, conn, env);
        } else {
            self.message = Some(Message::Send { received });
        }
        Ok(())
    }

    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        named: HostSlice,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let data = env.payload_of(packet);
        let (reth, received, target) = match (packet.reth(), self.message) {
            (Some(reth), _) => {
                env.counters.rx_write_requests += 1;
                (reth, 0, named)
            }
            (None, Some(Message::Write { reth, received })) => {
                // The key is looked up for each packet, because the region may have been deregistered since
                // the first.
                let (va, len) = (reth.va.wrapping_add(received as u64), data.len() as u32);
                let found = env.memory.remote(accessor(conn, env), reth.rkey, va, len, Access::REMOTE_WRITE);
                (reth, received, found.map_err(|_| NakReason::Access)?)
            }
            (None, _) => return Err(NakReason::InvalidRequest),
        };
        data.store_to(target).map_err(|_| NakReason::RemoteOperational)?;
        let received = received + data.len() as u32;
        if packet.row().position.ends() {
            self.message = None;
            self.finish_message(env);
            conn.op_counters.completed(CountedOps::REMOTE_WRITE, received);
            if packet.imm().is_some() {
                let completion = self.received(packet, WcOpcode::RecvRdmaWithImm, conn);
                self.receives.complete(Completion { byte_len: received, ..completion }, conn, env);
            }
        } else {
            self.message = Some(Message::Write { reth, received });
        }
        Ok(())
    }

    /// Queues the response to an executed request, and saves it for replay. Keeps only as many as the
    /// requester may have in flight, because it cannot repeat older ones.
    fn respond(&mut self, packet: &Packet<'_>, kind: ResourceKind, conn: &Connection, env: &mut Env<'_>) {
        self.finish_message(env);
        let of = Resource { first: packet.bth().psn, msn: self.msn, kind };
        while self.resources.len() >= conn.attr.max_dest_rd_atomic as usize
            && self.resources.pop_front().is_some()
        {}
        self.resources.push_back(of);
        self.replies.push_back(Reply::Result { of, next: 0, is_replay: false });
        self.expected = of.last(conn).next();
    }

    fn finish_message(&mut self, env: &mut Env<'_>) {
        self.msn = (self.msn + 1) & 0xff_ffff;
        env.counters.rdma_recvs += 1;
    }

    /// Returns a receive completion, with the fields that the last packet of the message determines.
    pub(super) fn received(&self, packet: &Packet<'_>, opcode: WcOpcode, conn: &Connection) -> Completion {
        Completion {
            opcode,
            imm: packet.imm(),
            invalidated: packet.ieth(),
            solicited: packet.bth().solicited,
            pkey_index: conn.attr.pkey_index,
            grh: conn.quirks().grh_on_every_receive,
            ..conn.completion(0, WcStatus::Success)
        }
    }
}

/// Executes a request whose response is saved for replay, and returns the result. `named` is the memory that
/// the check returned.
fn result_of(
    packet: &Packet<'_>,
    named: HostSlice,
    conn: &Connection,
    env: &mut Env<'_>,
) -> Result<ResourceKind, NakReason> {
    let word = || named.is_word().then_some(named).ok_or(NakReason::RemoteOperational);
    Ok(match (packet.row().operation, packet.reth(), packet.atomic()) {
        (Operation::ReadRequest, Some(reth), _) => {
            env.counters.rx_read_requests += 1;
            ResourceKind::Read(reth, accessor(conn, env).pd)
        }
        (operation @ (Operation::CompareSwap | Operation::FetchAdd), _, Some(atomic)) => {
            let op = match operation {
                Operation::CompareSwap => {
                    AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_or_add }
                }
                _ => AtomicOp::FetchAdd(atomic.swap_or_add),
            };
            let original = word()?.atomic(op).map_err(|_| NakReason::RemoteOperational)?;
            env.counters.rx_atomic_requests += 1;
            ResourceKind::Atomic(original)
        }
        (Operation::AtomicWrite, ..) => {
            env.payload_of(packet).store_to(word()?).map_err(|_| NakReason::RemoteOperational)?;
            env.counters.rx_write_requests += 1;
            ResourceKind::EmptyRead
        }
        // A WRITE is globally visible as soon as it is executed, so only persistence requires any work.
        (Operation::Flush, ..) => {
            let (placement, _) = flush_of(packet).ok_or(NakReason::InvalidRequest)?;
            if placement.contains(Placement::PERSISTENT) && !named.persist() {
                return Err(NakReason::RemoteOperational);
            }
            ResourceKind::EmptyRead
        }
        _ => return Err(NakReason::InvalidRequest),
    })
}
