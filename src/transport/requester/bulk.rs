//! Bulk send: sends the middle packets of a long message together, because they differ only in PSN and
//! payload.

use super::build::{MAX_PSNS, request_headers};
use super::{Cursor, Requester, ack_request};
use crate::transport::Env;
use crate::transport::congestion::packet_cost;
use crate::transport::connection::Connection;
use crate::wire::Position;

/// Minimum number of packets in a bulk send; fewer are sent one by one.
const MIN_PACKETS: u64 = 2;

impl Requester {
    /// Sends middle packets of the message at the cursor in one batch, each exactly as it would be sent
    /// alone. Returns the number of packets sent, or `None` if a bulk send is not possible.
    ///
    /// Retransmissions are not sent in bulk. The batch ends before the last packet of the message, a packet
    /// that requests an acknowledgement, and a packet that must wait.
    pub(super) fn send_bulk(&mut self, conn: &Connection, budget: usize, env: &mut Env<'_>) -> Option<usize> {
        let Cursor { wqe: index, packet } = self.snd_nxt;
        let wqe = self.queue.get(index)?;
        let psn = wqe.first_psn + packet;
        if !conn.qp_type.is_reliable()
            || wqe.op.awaits_response()
            || self.recovery.is_in_rnr_wait()
            || self.failed.is_some()
            || self.recovery.is_ack_request_overdue(env.now)
            || self.recovery.is_retransmission(psn)
            || wqe.op.takes_receive() && self.credit.excludes(wqe.number)
        {
            return None;
        }
        let mtu = conn.attr.mtu.bytes();
        let (start, each) = (wqe.cost_at(packet, conn.attr.mtu), packet_cost(mtu as u64));
        let flight = start.checked_sub(self.acked_cost)?;
        // The packet that closes the congestion window and the one that ends a part of it carry AckReq.
        let others = env.others_in_flight;
        let window =
            self.congestion.window(env.window as u64).min((env.window as u64).saturating_sub(others));
        let until_closed = (window.saturating_sub(flight) / each).saturating_sub(1);
        let position = ack_request::PacketPosition { start_cost: start, packet, psn };
        let until_marked =
            conn.quirks().ack_requests.packets_until_mark(position, each, env.window, conn.attr.mtu);
        let middle = wqe.packets.saturating_sub(packet + 1);
        let middle = middle.min(MAX_PSNS.saturating_sub(psn.since(self.snd_una) as u32));
        let count = until_closed.min(until_marked).min(middle.into()).min(budget as u64);
        let count = count.min(env.tx.room_for(mtu) as u64);
        if count < MIN_PACKETS {
            return None;
        }
        let count = count as u32;
        let (at, len) = (packet * mtu as u32, count * mtu as u32);
        let headers = request_headers(conn, wqe, wqe.op.on_wire()?, Position::Middle, psn, at, mtu as u32);
        let found = self.queue.gather(wqe, at, len, conn.accessor(), env);
        let (Ok(()), [data], Some(flow)) = (found, &env.scratch[..], &conn.data_flow) else { return None };
        // If memory is not readable, the packets before are sent, and `send_one` fails the next one.
        let count = env.tx.push_train(flow, headers, *data, mtu) as u32;
        if count == 0 {
            return None;
        }
        self.recovery.on_sent_without_ack_req(conn, env.now, env.tuning);
        self.snd_nxt.packet = packet + count;
        if self.snd_max.is_before(psn + count) {
            self.snd_max = psn + count;
        }
        Some(count as usize)
    }
}
