//! Local operations (LOCAL_INV, BIND_MW, REG_MR): work requests without packets, which are executed when the
//! cursor reaches them and complete in order.

use super::build::Blocked;
use super::{Cursor, Requester};
use crate::transport::connection::Connection;
use crate::transport::failure::LocalCheck;
use crate::transport::{Completion, Env, Output, QpState, WcStatus, WrOp};

impl Requester {
    /// Executes the local operation at the cursor, unless it was executed before a go-back.
    pub(super) fn execute_local_op(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Blocked> {
        let index = self.snd_nxt.wqe;
        let Some(wqe) = self.queue.get(index) else { return Err(Blocked::Idle) };
        if index >= self.local_ops_done {
            // RNR wait and local failure need no check here: the cursor is then at a different work request.
            if conn.state == QpState::Sqd || wqe.flags.fence && !self.reads.is_empty() {
                return Err(Blocked::Idle);
            }
            if wqe.waits_for_all() && index != self.queue.start() {
                // The acknowledgement that LOCAL_INV waits for may not have been requested yet.
                return Err(if self.recovery.awaits_ack_request() { Blocked::Probe } else { Blocked::Idle });
            }
            let done = match wqe.op {
                WrOp::BindMw(bind) => env.memory.bind(&bind, conn.accessor()),
                WrOp::RegMr(reg) => env.memory.fast_reg(&reg, conn.accessor()),
                WrOp::LocalInv(rkey) => env.memory.invalidate(rkey, conn.accessor(), false),
                _ => Ok(()),
            };
            done.map_err(|error| {
                conn.history.set_failed_check(index, LocalCheck::Management(error));
                Blocked::Failed(WcStatus::MwBindErr)
            })?;
            self.local_ops_done = index + 1;
        }
        self.snd_nxt = Cursor { wqe: index + 1, packet: 0 };
        let report = if conn.qp_type.is_reliable() { Output::Sent } else { Output::Emitted };
        self.retire_local_ops(conn, report, env);
        Ok(())
    }

    /// Completes the executed local operations at the front of the send queue.
    pub(super) fn retire_local_ops(
        &mut self,
        conn: &Connection,
        report: fn(Completion) -> Output,
        env: &mut Env<'_>,
    ) {
        while self.queue.start() < self.local_ops_done && self.queue.front().is_some_and(|w| w.op.is_local())
        {
            self.retire_one(conn, report, env);
        }
    }
}
