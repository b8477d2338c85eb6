//! Requests that arrive behind a gap, kept until the missing ones arrive (selective repeat).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::burst::PayloadSource;
use crate::transport::congestion::packet_cost;
use crate::wire::{BTH_LEN, Packet, Psn};

/// Maximum flight cost of the packets that all queue pairs of the process keep: what 64 peers may have in
/// flight with the default window.
const MAX_TOTAL: usize = 64 << 20;

/// Flight cost of the packets that all queue pairs of the process keep.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct KeptPacket {
    psn: Psn,
    cost: usize,
    bytes: Vec<u8>,
}

/// Packets of one queue pair that have arrived behind a gap, in the order of their PSNs.
#[derive(Debug, Default)]
pub(super) struct Kept {
    packets: VecDeque<KeptPacket>,
    /// Flight cost of the packets.
    cost: usize,
}

impl Kept {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the PSN of the first packet.
    pub fn first(&self) -> Option<Psn> {
        self.packets.front().map(|kept| kept.psn)
    }

    /// Keeps a copy of a packet and of its payload, in one of the `spare` buffers if there is one. Drops the
    /// packet if its PSN is kept already, if the kept packets would exceed the flight cost `limit`, or if
    /// the payload can no longer be read.
    pub fn insert(
        &mut self,
        packet: &Packet<'_>,
        payload: PayloadSource<'_>,
        limit: usize,
        spare: &mut Vec<Vec<u8>>,
    ) {
        let len = packet.payload().len();
        let (psn, cost) = (packet.bth().psn, packet_cost(len as u64) as usize);
        let at = self.packets.partition_point(|kept| kept.psn.is_before(psn));
        if self.packets.get(at).is_some_and(|kept| kept.psn == psn) || self.cost + cost > limit {
            return;
        }
        if TOTAL.fetch_add(cost, Ordering::Relaxed) + cost > MAX_TOTAL {
            TOTAL.fetch_sub(cost, Ordering::Relaxed);
            return;
        }
        let mut bytes = spare.pop().unwrap_or_default();
        bytes.clear();
        packet.append_to(&mut bytes);
        let start = BTH_LEN + packet.row().headers.wire_len();
        if payload.fill(&mut bytes[start..start + len]).is_err() {
            TOTAL.fetch_sub(cost, Ordering::Relaxed);
            return;
        }
        self.cost += cost;
        self.packets.insert(at, KeptPacket { psn, cost, bytes });
    }

    /// Removes the packets before `psn`, which have arrived again meanwhile, and returns the one with this
    /// PSN, if it is kept.
    pub fn take(&mut self, psn: Psn) -> Option<Vec<u8>> {
        loop {
            if self.packets.front()?.psn.is_after(psn) {
                return None;
            }
            let first = self.packets.pop_front()?;
            self.cost -= first.cost;
            TOTAL.fetch_sub(first.cost, Ordering::Relaxed);
            if first.psn == psn {
                return Some(first.bytes);
            }
        }
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        *self = Kept::default();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.cost, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::CopySource;

    /// Keeps empty SEND Only packets with consecutive PSNs until one is rejected, and returns the number of
    /// those kept.
    fn fill(kept: &mut Kept, limit: usize) -> usize {
        for psn in 0u32.. {
            let mut bytes = [0; 16];
            bytes[0] = 4;
            bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
            let count = kept.packets.len();
            let payload = PayloadSource::Packet(CopySource::Read);
            kept.insert(&Packet::parse(&bytes).unwrap(), payload, limit, &mut Vec::new());
            if kept.packets.len() == count {
                break;
            }
        }
        kept.packets.len()
    }

    /// A single test, because tests in parallel would share the total.
    #[test]
    fn packets_are_kept_up_to_the_limit_of_the_queue_pair_and_of_all_together() {
        let [mut one, mut other] = [Kept::default(), Kept::default()];
        assert_eq!(fill(&mut one, 10 << 10), 10);
        assert_eq!(fill(&mut other, usize::MAX), (64 << 10) - 10);
        assert!(one.take(Psn::new(10)).is_none() && one.is_empty(), "those before are dropped");
        one = Kept::default();
        assert_eq!(fill(&mut one, usize::MAX), 10);
        other.clear();
        drop(one);
        assert_eq!(fill(&mut Kept::default(), usize::MAX), 64 << 10);
    }
}
