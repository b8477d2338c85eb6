//! Notification point (annex A17.9): answers packets marked "congestion experienced" with congestion
//! notification packets (CNPs), at most one per interval.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::table::Entry;
use crate::burst::TxQueue;
use crate::transport::{CnpScope, Congestion, CongestionParameter, Instant, PathMatch, QpState};
use crate::wire::{Bth, CNP_PAYLOAD_LEN, Flow, Headers, Opcode, PKey, Qpn};

/// Maximum number of CNPs that wait for the next transmit turn. A marked packet beyond causes none, but the
/// next one does.
const MAX_PENDING: usize = 256;
/// Maximum number of address pairs whose interval has not elapsed. Others get no CNP meanwhile.
const MAX_PAIRS: usize = 1024;

/// CNP to send.
#[derive(Debug)]
struct Cnp {
    flow: Flow,
    dest: Qpn,
    pkey: PKey,
}

/// Pending CNPs, and the times of the last ones by address pair and for the port. Those by queue pair are in
/// the queue pairs' entries.
#[derive(Debug, Default)]
pub(super) struct NotificationPoints {
    pending: VecDeque<Cnp>,
    pairs: HashMap<(IpAddr, IpAddr), Instant>,
    port: Option<Instant>,
}

impl NotificationPoints {
    /// Queues a CNP for a marked packet that arrived on `flow`, if the packet is from a connected queue pair
    /// and the interval of `scope` has elapsed.
    #[cold]
    pub fn on_marked(
        &mut self,
        now: Instant,
        flow: &Flow,
        via: PathMatch,
        entry: &mut Entry,
        scope: CnpScope,
        congestion: &Congestion,
    ) {
        let connection = entry.qp.flow().filter(|_| entry.qp.state() != QpState::Err).copied();
        let Some(connection) = connection else { return };
        if self.pending.len() >= MAX_PENDING {
            return;
        }
        let interval = Duration::from_micros(congestion.get(CongestionParameter::MinTimeBetweenCnps).into());
        let due = match scope {
            CnpScope::Qp => is_due(&mut entry.last_cnp, now, interval),
            CnpScope::Port => is_due(&mut self.port, now, interval),
            CnpScope::AddressPair => self.is_pair_due((flow.dst, flow.src), now, interval),
        };
        if due {
            entry.qp.count(|c| c.np_cnp_sent += 1);
            // Not ECN-capable: the lowest two bits are 0.
            let traffic_class = (congestion.get(CongestionParameter::CnpDscp) << 2) as u8;
            let vlan_priority = Some(congestion.get(CongestionParameter::Cnp8021pPrio) as u8);
            let flow = Flow { src: flow.dst, dst: flow.src, traffic_class, vlan_priority, ..connection };
            let (dest, pkey) = (entry.qp.dest_qpn(), entry.qp.pkey_via(via));
            self.pending.push_back(Cnp { flow, dest, pkey });
        }
    }

    fn is_pair_due(&mut self, pair: (IpAddr, IpAddr), now: Instant, interval: Duration) -> bool {
        if let Some(last) = self.pairs.get_mut(&pair) {
            let elapsed = now.since(*last) >= interval;
            *last = if elapsed { now } else { *last };
            return elapsed;
        }
        // A table of twice the entries never grows.
        self.pairs.reserve((2 * MAX_PAIRS).saturating_sub(self.pairs.len()));
        if self.pairs.len() >= MAX_PAIRS {
            self.pairs.retain(|_, last| now.since(*last) < interval);
        }
        let has_room = self.pairs.len() < MAX_PAIRS;
        if has_room {
            self.pairs.insert(pair, now);
        }
        has_room
    }

    #[inline]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Appends the pending CNPs to `tx`. Returns their number.
    pub fn transmit(&mut self, tx: &mut TxQueue) -> u64 {
        let count = self.pending.len() as u64;
        for Cnp { flow, dest, pkey } in self.pending.drain(..) {
            let bth = Bth { opcode: Opcode::CNP, becn: true, pkey, dest_qp: dest, ..Bth::default() };
            let headers = Headers { bth, ..Headers::default() };
            tx.push(&flow, headers, &[0; CNP_PAYLOAD_LEN]);
        }
        count
    }
}

/// Reports whether the interval since `last` has elapsed. If so, sets `last` to the current time.
fn is_due(last: &mut Option<Instant>, now: Instant, interval: Duration) -> bool {
    let due = last.is_none_or(|last| now.since(last) >= interval);
    if due {
        *last = Some(now);
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_address_pairs_is_bounded_and_entries_are_replaced_after_the_interval() {
        let pair = |n: u32| (IpAddr::from([10, 0, 0, 1]), IpAddr::from(n.to_be_bytes()));
        let (mut points, interval) = (NotificationPoints::default(), Duration::from_micros(4));
        let max = MAX_PAIRS as u32;
        assert!((0..max).all(|n| points.is_pair_due(pair(n), Instant(0), interval)));
        let capacity = points.pairs.capacity();
        assert!(!points.is_pair_due(pair(max), Instant(3999), interval), "no room");
        assert!(!points.is_pair_due(pair(0), Instant(3999), interval), "within the interval");
        assert!(points.is_pair_due(pair(0), Instant(4000), interval));
        assert!(points.is_pair_due(pair(max), Instant(4000), interval));
        assert_eq!(points.pairs.len(), 2);
        // Removed entries may leave less room than there was, by the random order of hashes, but never more.
        assert!(points.pairs.capacity() <= capacity, "the table has not grown");
    }
}
