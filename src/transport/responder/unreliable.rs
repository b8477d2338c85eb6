//! UC and UD responder, which sends no responses: faulty packets are dropped and counted (IBA 9.8.2 and
//! 9.8.3).

use super::nak_reason::NakReason;
use super::{Fatal, Responder};
use crate::burst::ReceivedPayload;
use crate::transport::connection::Connection;
use crate::transport::{Completion, Env, WcOpcode, WcStatus};
use crate::wire::{Flow, Operation, Packet, grh};

impl Responder {
    /// Processes a UC packet. A message is received completely or not at all: after a gap, packets are
    /// dropped until the next message begins, and that message takes over the receive of the incomplete one.
    pub(super) fn handle_unreliable(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn;
        let gap = psn != self.expected;
        env.counters.out_of_seq_request += gap as u64;
        if gap {
            // A PSN behind the expected one is that of a late packet.
            let missing = psn.since(self.expected).max(0) as u64;
            conn.history.count(|c| c.rx_missing += missing);
        }
        if gap || packet.row().position.starts() {
            self.message = None;
        }
        self.expected = psn.next();
        let verdict = self.check(packet, 0, conn, env);
        let verdict = verdict.and_then(|named| self.execute(packet, named, conn, env));
        let Err(nak_reason) = verdict else { return Ok(()) };
        self.message = None;
        match nak_reason {
            // The receive itself is faulty.
            NakReason::LocalProtection if !env.has_lost_payload() => {
                self.record_refusal(nak_reason, packet, conn, env);
                self.receives.fail(WcStatus::LocProtErr, conn, env);
                return Err(Fatal);
            }
            NakReason::ReceiverNotReady | NakReason::LengthError => {
                env.counters.rx_no_receive += 1;
                conn.history.count(|c| c.rx_no_receive += 1);
            }
            _ => {
                env.counters.rx_dropped_message += 1;
                conn.history.count(|c| c.rx_dropped_message += 1);
            }
        }
        Ok(())
    }

    /// Processes a UD packet, which is a complete message from any sender that knows the queue key.
    pub(super) fn handle_datagram(
        &mut self,
        packet: &Packet<'_>,
        flow: &Flow,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Fatal> {
        let row = packet.row();
        let data = env.payload_of(packet);
        let fits = row.operation == Operation::Send && row.payload.allows(data.len(), conn.attr.mtu.bytes());
        let Some(deth) = packet.deth().filter(|_| fits) else {
            env.counters.rx_dropped_message += 1;
            conn.history.count(|c| c.rx_dropped_message += 1);
            return Ok(());
        };
        if deth.qkey != conn.attr.qkey {
            env.counters.rx_qkey_violation += 1;
            conn.history.count(|c| c.rx_qkey_violation += 1);
            return Ok(());
        }
        let Some(room) = self.receives.len_of_next(env) else {
            env.counters.rx_no_receive += 1;
            conn.history.count(|c| c.rx_no_receive += 1);
            return Ok(());
        };
        let byte_len = (grh::LEN + data.len()) as u32;
        if u64::from(byte_len) > room {
            // Dropped silently, responder class D (IBA 9.9.3): no receive has been consumed yet, neither of
            // the QP's own queue nor of a shared one, so a sender that knows the queue key cannot bring the
            // QP down.
            env.counters.rx_no_receive += 1;
            conn.history.count(|c| c.rx_no_receive += 1);
            return Ok(());
        }
        let header = grh::of(flow, packet.wire_len());
        let stored = self
            .receives
            .scatter(0, ReceivedPayload::of(&header), conn, env)
            .and_then(|()| self.receives.scatter(grh::LEN as u32, data, conn, env));
        if stored.is_err() {
            if env.has_lost_payload() {
                env.counters.rx_dropped_message += 1;
                conn.history.count(|c| c.rx_dropped_message += 1);
                return Ok(());
            }
            self.record_refusal(NakReason::LocalProtection, packet, conn, env);
            self.receives.fail(WcStatus::LocProtErr, conn, env);
            return Err(Fatal);
        }
        env.counters.rdma_recvs += 1;
        let completion = Completion {
            byte_len,
            grh: true,
            over_ipv4: flow.dst.is_ipv4(),
            src_qpn: deth.src_qp,
            ..self.received(packet, WcOpcode::Recv, conn)
        };
        self.receives.complete(completion, conn, env);
        Ok(())
    }
}
