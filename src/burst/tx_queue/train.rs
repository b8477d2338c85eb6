//! Packet trains: packets of equal length in succession that differ only in PSN, address and payload.

use super::{SHORT, TxQueue, emit};
use crate::burst::tx_burst::{Piece, group_of, is_acknowledged};
use crate::memory::{HostSlice, payload_epoch};
use crate::wire::{Flow, Headers, ICRC_LEN};

impl TxQueue {
    internal! {
        /// Adds packets that carry `each` bytes of `data` apiece, with consecutive PSNs and, if they have RETHs, addresses
        /// starting from those in `headers`. `each` must be a multiple of 4, and the length of `data` a multiple of `each`.
        /// Returns the number of packets added; it stops early if user memory cannot be read.
        fn push_train(&mut self, flow: &Flow, mut headers: Headers, data: HostSlice, each: usize) -> usize {
            if self.with_deferred_icrc && each > SHORT && data.probe().is_ok() {
                self.push_deferred_train(flow, headers, data, each);
                return data.len() / each;
            }
            let (mut count, mut rest) = (0, data);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(each);
                if self.push_host(flow, &headers, &[now]).is_err() {
                    break;
                }
                count += 1;
                advance(&mut headers, each);
                rest = later;
            }
            count
        }
    }

    /// Adds the packets like [`push_train`](Self::push_train), with their ICRCs deferred and their payloads
    /// left in user memory.
    fn push_deferred_train(&mut self, flow: &Flow, mut headers: Headers, data: HostSlice, each: usize) {
        self.epoch.get_or_insert_with(payload_epoch);
        let group = group_of(headers.bth.opcode, headers.bth.dest_qp);
        let is_acknowledged = is_acknowledged(headers.bth.opcode);
        let header_len = headers.len();
        let packet_len = header_len + each + ICRC_LEN;
        let mut rest = data;
        while !rest.is_empty() {
            self.join_burst(flow, group, false, packet_len, true);
            let count = 1 + self.extend_burst(packet_len, rest.len() / each - 1);
            let first = self.take(header_len);
            self.add_arena_piece(first);
            let mut at = first;
            // One allocation for all packets: the ICRC of each and the headers of the next are adjacent.
            self.take(count * (ICRC_LEN + header_len) - header_len);
            self.pieces.reserve(2 * count);
            for left in (0..count).rev() {
                emit(&headers, 0, &mut self.arena[at..at + header_len]);
                advance(&mut headers, each);
                let (now, later) = rest.split_at(each);
                rest = later;
                let icrc = at + header_len;
                self.arena[icrc..icrc + ICRC_LEN].fill(0);
                at = icrc + ICRC_LEN;
                let end = if left == 0 { at } else { at + header_len };
                let tail = Piece::Inline(icrc as u32..end as u32);
                self.pieces.extend([Piece::Host { slice: now, is_acknowledged }, tail]);
            }
        }
    }

    /// Counts further packets, at most `max`, as part of the last burst, whose last packet has the same
    /// length. Returns how many fit.
    fn extend_burst(&mut self, packet_len: usize, max: usize) -> usize {
        let limits = self.limits;
        let Some(burst) = self.bursts.last_mut().filter(|burst| !burst.closed) else { return 0 };
        let room = limits.bytes.saturating_sub(burst.bytes) / packet_len;
        let count = room.min(limits.packets.saturating_sub(burst.packets)).min(max);
        burst.packets += count;
        burst.bytes += count * packet_len;
        self.packets += count;
        self.bytes += count * packet_len;
        count
    }
}

fn advance(headers: &mut Headers, payload: usize) {
    headers.bth.psn += 1;
    headers.reth.va = headers.reth.va.wrapping_add(payload as u64);
}
