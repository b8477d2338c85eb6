//! Local operations (LOCAL_INV, BIND_MW, REG_MR): work requests without packets. They are executed when the
//! cursor reaches them and complete in order.

use super::build::Stop;
use super::{Cursor, Requester};
use crate::transport::connection::Connection;
use crate::transport::{Completion, Env, Output, QpState, WcStatus, WrOp};

impl Requester {
    /// Executes the local operation at the cursor, unless it was executed before a go-back.
    pub(super) fn manage(&mut self, conn: &Connection, env: &mut Env<'_>) -> Result<(), Stop> {
        let index = self.cursor.wqe;
        let Some(wqe) = self.queue.get(index) else { return Err(Stop::Idle) };
        if index >= self.managed {
            // RNR wait and local failure need no check here: the cursor is then at a different work request.
            if conn.state == QpState::Sqd || wqe.flags.fence && !self.reads.is_empty() {
                return Err(Stop::Idle);
            }
            if wqe.waits_for_all() && index != self.queue.start() {
                // The acknowledgement that LOCAL_INV waits for may not have been requested yet.
                return Err(if self.ask.is_pending() { Stop::Probe } else { Stop::Idle });
            }
            let done = match wqe.op {
                WrOp::BindMw(bind) => env.memory.bind(&bind, conn.accessor()),
                WrOp::RegMr(reg) => env.memory.open(&reg, conn.accessor()),
                WrOp::LocalInv(rkey) => env.memory.invalidate(rkey, conn.accessor(), false),
                _ => Ok(()),
            };
            done.map_err(|_| Stop::Failed(WcStatus::MwBindErr))?;
            self.managed = index + 1;
        }
        self.cursor = Cursor { wqe: index + 1, packet: 0 };
        let report = if conn.qp_type.is_reliable() { Output::Sent } else { Output::Emitted };
        self.retire_managed(conn, report, env);
        Ok(())
    }

    /// Completes the executed local operations at the front of the send queue.
    pub(super) fn retire_managed(
        &mut self,
        conn: &Connection,
        report: fn(Completion) -> Output,
        env: &mut Env<'_>,
    ) {
        while self.queue.start() < self.managed && self.queue.front().is_some_and(|w| w.op.is_local()) {
            self.retire_one(conn, report, env);
        }
    }
}
