//! Table of queue pairs.

use std::cell::Cell;

use super::cq_handle::CqHandle;
use super::peer_share::PeerShare;
use super::{QpnPartition, ShardId};
use crate::transport::{Instant, QueuePair, SrqId};
use crate::wire::{Permutation, Qpn};

/// Queue pair, with its scheduling state.
#[derive(Debug)]
pub(super) struct Entry {
    pub qp: QueuePair,
    pub send_cq: CqHandle,
    pub recv_cq: CqHandle,
    pub srq: Option<SrqId>,
    /// Whether the queue pair is in the ready list.
    pub queued: bool,
    /// Whether the queue pair waits until the link has room for packets of its priority (`egress.rs`).
    pub parked: bool,
    /// Whether the queue pair is in the list of delayed acknowledgements.
    pub ack_delayed: bool,
    /// Whether the queue pair is dirty: it has accepted packets from the current burst.
    pub dirty: bool,
    /// Whether the queue pair must enter ERR at its next turn, because its completion queue has overflowed
    /// or a test has injected an error.
    pub must_enter_error: bool,
    /// The queue pair's share of the per-peer window.
    pub share: PeerShare,
    /// Time of the queue pair's earliest entry in the timer heap.
    pub timer_at: Option<Instant>,
    /// Time of the last congestion notification packet (CNP), if the queue pair has an interval of its own.
    pub last_cnp: Option<Instant>,
}

impl Entry {
    pub fn new(qp: QueuePair, send_cq: CqHandle, recv_cq: CqHandle, srq: Option<SrqId>) -> Entry {
        Entry {
            qp,
            send_cq,
            recv_cq,
            srq,
            queued: false,
            parked: false,
            ack_delayed: false,
            dirty: false,
            must_enter_error: false,
            share: PeerShare::default(),
            timer_at: None,
            last_cnp: None,
        }
    }
}

/// Queue pairs, indexed by number.
///
/// A number contains the shard in its lowest bits, the slot above and, above that, a generation count that
/// advances whenever the slot is reused, so that packets for a destroyed queue pair do not reach its
/// successor. Slot and count are permuted with a key, so that no number can be guessed from another. If the
/// device has only a QPN partition, the partition's index is in the highest bits.
#[derive(Debug)]
pub(super) struct QpTable {
    shard: ShardId,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// QP1.
    gsi: Option<Box<Entry>>,
    max: u32,
    slot_bits: u32,
    permutation: Permutation,
    /// Slot found by the last lookup. Consecutive lookups are often for the same queue pair, and inverting
    /// the permutation each time would take 5 to 8 % of the instructions of an 8-byte WRITE.
    recent: Cell<usize>,
}

#[derive(Debug)]
struct Slot {
    /// Generation count: how many times the slot has been used.
    round: u32,
    /// Number of the queue pair in the slot or, if the slot is free, of the last one that was in it.
    qpn: Qpn,
    entry: Option<Box<Entry>>,
}

/// Number of reserved queue pair numbers: 0 and 1, for the management queue pairs.
const RESERVED: u32 = Permutation::FIRST;

/// Length of a queue pair number, in bits.
const QPN_BITS: u32 = 24;

/// Maximum number of bits for partition, slot and shard together, which leaves some of the 24 for the
/// generation count. Without a partition, it is exceeded if the maximum number of queue pairs requires it.
const MAX_INDEX_BITS: u32 = 20;

/// Returns the number of bits for the slot, and the number of slots, for a shard with up to `max` queue
/// pairs.
fn slots(shard: ShardId, max: u32) -> (u32, u32) {
    let whole = (max + RESERVED).next_power_of_two().trailing_zeros();
    let most = match shard.partition() {
        QpnPartition::WHOLE => whole.max(MAX_INDEX_BITS),
        partition => MAX_INDEX_BITS - partition.bits(),
    };
    let bits = whole.min(most - shard.bits());
    // The last slot is not used: with the highest count, its number would be the multicast QPN.
    (bits, max.min((1 << bits) - RESERVED - 1))
}

/// Returns the number of bits that the slot and the generation count take together in a queue pair number.
fn index_bits(shard: ShardId) -> u32 {
    QPN_BITS - shard.partition().bits() - shard.bits()
}

impl QpTable {
    pub fn new(shard: ShardId, max: u32, seed: u64) -> QpTable {
        let (slot_bits, max) = slots(shard, max);
        // Each NIC numbers differently, so that a packet that reaches the wrong NIC is not accepted by
        // chance.
        let permutation = Permutation::new(index_bits(shard), seed);
        QpTable {
            shard,
            slots: Vec::new(),
            free: Vec::new(),
            gsi: None,
            max,
            slot_bits,
            permutation,
            recent: Cell::new(0),
        }
    }

    fn qpn(&self, slot: u32, round: u32) -> Qpn {
        let bits = index_bits(self.shard);
        let index = (round << self.slot_bits | (slot + RESERVED)) & ((1 << bits) - 1);
        let low = self.permutation.apply(index) << self.shard.bits() | self.shard.index();
        Qpn::new(self.shard.partition().index() << (QPN_BITS - self.shard.partition().bits()) | low)
    }

    /// Returns the maximum number of queue pairs.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Adds a queue pair with a new number. Returns the number, or `None` if the table is full.
    pub fn insert(&mut self, make: impl FnOnce(Qpn) -> Entry) -> Option<Qpn> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if (self.slots.len() as u32) < self.max => {
                self.slots.push(Slot { round: 0, qpn: Qpn::MULTICAST, entry: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let round = self.slots[slot as usize].round.wrapping_add(1);
        let qpn = self.qpn(slot, round);
        self.slots[slot as usize] = Slot { round, qpn, entry: Some(Box::new(make(qpn))) };
        Some(qpn)
    }

    /// Adds QP1, which has no slot. Returns false if it already exists.
    pub fn insert_gsi(&mut self, entry: Entry) -> bool {
        let free = self.gsi.is_none();
        if free {
            self.gsi = Some(Box::new(entry));
        }
        free
    }

    /// Returns the largest number of queue pairs that have existed at any one time.
    pub fn slots(&self) -> usize {
        self.slots.len() + usize::from(self.gsi.is_some())
    }

    fn slot(&self, qpn: Qpn) -> Option<usize> {
        let is_in = |slot: usize| self.slots.get(slot).is_some_and(|s| s.qpn == qpn);
        if is_in(self.recent.get()) {
            return Some(self.recent.get());
        }
        let slot = self.place(qpn).filter(|slot| is_in(*slot))?;
        self.recent.set(slot);
        Some(slot)
    }

    /// Returns the slot that a queue pair number maps to, whether or not the number is in use.
    fn place(&self, qpn: Qpn) -> Option<usize> {
        let index = qpn.get() >> self.shard.bits() & ((1 << index_bits(self.shard)) - 1);
        let slot = self.permutation.invert(index)? & ((1 << self.slot_bits) - 1);
        Some(slot.checked_sub(RESERVED)? as usize)
    }

    pub fn get(&self, qpn: Qpn) -> Option<&Entry> {
        match self.slot(qpn) {
            Some(slot) => self.slots[slot].entry.as_deref(),
            None => self.gsi.as_deref().filter(|_| qpn == Qpn::GSI),
        }
    }

    pub fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Entry> {
        match self.slot(qpn) {
            Some(slot) => self.slots[slot].entry.as_deref_mut(),
            None => self.gsi.as_deref_mut().filter(|_| qpn == Qpn::GSI),
        }
    }

    pub fn remove(&mut self, qpn: Qpn) -> Option<Box<Entry>> {
        if qpn == Qpn::GSI {
            return self.gsi.take();
        }
        let slot = self.slot(qpn)?;
        let entry = self.slots[slot].entry.take()?;
        self.free.push(slot as u32);
        Some(entry)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.slots.iter_mut().filter_map(|s| s.entry.as_deref_mut()).chain(self.gsi.as_deref_mut())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().filter_map(|s| s.entry.as_deref()).chain(self.gsi.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::QpInit;

    fn insert(table: &mut QpTable) -> Option<Qpn> {
        table.insert(|qpn| Entry::new(QueuePair::new(qpn, &QpInit::rc()), CqHandle(0), CqHandle(0), None))
    }

    #[test]
    fn lowest_bits_of_a_qpn_are_the_shard_index() {
        for (count, max) in [(1, 100), (2, 100), (64, 65_536), (64, (1 << 20) - 16)] {
            for index in [0, count - 1] {
                let shard = ShardId::new(index, count).unwrap();
                let mut table = QpTable::new(shard, max, 7);
                let qpns: Vec<Qpn> = (0..20).map(|_| insert(&mut table).unwrap()).collect();
                for (i, qpn) in qpns.iter().enumerate() {
                    assert_eq!(shard.of(qpn.get() as u8), index, "{count} shards");
                    assert_eq!(qpns.iter().position(|other| other == qpn), Some(i));
                    assert_eq!(table.get(*qpn).map(|e| e.qp.qpn()), Some(*qpn));
                    assert!(qpn.get() >= RESERVED);
                }
                table.remove(qpns[3]).unwrap();
                assert_ne!(insert(&mut table), Some(qpns[3]), "packets for the old one reach the new one");
            }
        }
    }

    #[test]
    fn highest_bits_of_a_qpn_are_the_partition_index() {
        for (partition, count, max) in [(1, 1, 65_536), (63, 1, (1 << 20) - 16), (5, 4, 65_536), (0, 32, 10)]
        {
            let partition = QpnPartition::new(partition).unwrap();
            let shard = ShardId::new(count - 1, count).unwrap().with_partition(partition);
            let mut table = QpTable::new(shard, max, 0xffff_ffff);
            assert!(table.max() >= 10.min(max) && table.max() <= 1 << 14, "{}", table.max());
            let mut seen = std::collections::HashSet::new();
            // Enough rounds for the generation count to wrap.
            for _ in 0..8 {
                let qpns: Vec<Qpn> = std::iter::from_fn(|| insert(&mut table)).collect();
                assert_eq!(qpns.len(), table.max() as usize);
                for qpn in qpns {
                    assert!(partition.has((qpn.get() >> 16) as u8) && shard.of(qpn.get() as u8) == count - 1);
                    assert!(![0, 1, Qpn::MULTICAST.get()].contains(&qpn.get()));
                    seen.insert(qpn);
                    assert_eq!(table.remove(qpn).map(|e| e.qp.qpn()), Some(qpn));
                }
            }
            assert!(seen.len() >= 8 * table.max() as usize);
        }
    }

    #[test]
    fn insert_into_a_full_table_fails() {
        let mut table = QpTable::new(ShardId::new(1, 2).unwrap(), 3, 0);
        assert_eq!(
            (0..4).map(|_| insert(&mut table).is_some()).collect::<Vec<_>>(),
            [true, true, true, false]
        );
    }
}
