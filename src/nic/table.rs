use std::cell::Cell;
use std::sync::Arc;

use super::peers::Share;
use super::{CompletionQueue, Seat, ShardId};
use crate::transport::{Instant, QueuePair, SrqId};
use crate::wire::{Permutation, Qpn};

/// A queue pair and what the NIC keeps beside it.
#[derive(Debug)]
pub(super) struct Entry {
    pub qp: QueuePair,
    pub send_cq: Arc<CompletionQueue>,
    pub recv_cq: Arc<CompletionQueue>,
    pub srq: Option<SrqId>,
    /// It is in the list of those that have something to send.
    pub queued: bool,
    /// It is in the list of those that have but an acknowledgement to send.
    pub held: bool,
    /// It has taken packets of the burst that is being handled.
    pub stirred: bool,
    /// A completion of it was lost: it is to fail at its next turn.
    pub lost: bool,
    /// What it has in flight, among all that its peer is sent.
    pub share: Share,
    /// The earliest entry of the timer heap that is for it.
    pub timer_at: Option<Instant>,
}

impl Entry {
    pub fn new(
        qp: QueuePair,
        send_cq: Arc<CompletionQueue>,
        recv_cq: Arc<CompletionQueue>,
        srq: Option<SrqId>,
    ) -> Entry {
        Entry {
            qp,
            send_cq,
            recv_cq,
            srq,
            queued: false,
            held: false,
            stirred: false,
            lost: false,
            share: Share::default(),
            timer_at: None,
        }
    }
}

/// The queue pairs by number.
///
/// A number is the shard in its lowest bits, a slot above and, above that, a count that moves on whenever the slot is
/// used again: packets for a queue pair that is gone do not reach its successor. Slot and count are permuted by a key, so
/// that no number can be guessed from another. Where the device has not all numbers, its seat is in the highest bits.
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
    /// The slot of the last lookup. Lookups of one queue pair come in runs, and the permutation is 5 to 8 % of the
    /// instructions of an 8-byte WRITE if each lookup inverts it.
    recent: Cell<usize>,
}

#[derive(Debug)]
struct Slot {
    round: u32,
    /// The number of the queue pair that is in the slot, or was last.
    qpn: Qpn,
    entry: Option<Box<Entry>>,
}

/// QP0 and QP1 are the management queue pairs.
const RESERVED: u32 = Permutation::FIRST;

/// Bits of a number.
const QPN_BITS: u32 = 24;

/// Seat, slot and shard together take no more bits than this, or, without a seat, than the slots of a NIC of one shard do:
/// some of the 24 are to count.
const MAX_INDEX_BITS: u32 = 20;

/// The bits of a slot, and how many slots a NIC that may have `max` queue pairs has of them.
fn slots(shard: ShardId, max: u32) -> (u32, u32) {
    let whole = (max + RESERVED).next_power_of_two().trailing_zeros();
    let most = match shard.seat() {
        Seat::WHOLE => whole.max(MAX_INDEX_BITS),
        seat => MAX_INDEX_BITS - seat.bits(),
    };
    let bits = whole.min(most - shard.bits());
    // The last with the highest count would be the number that stands for multicast.
    (bits, max.min((1 << bits) - RESERVED - 1))
}

/// The bits of slot and count.
fn index_bits(shard: ShardId) -> u32 {
    QPN_BITS - shard.seat().bits() - shard.bits()
}

impl QpTable {
    pub fn new(shard: ShardId, max: u32, seed: u64) -> QpTable {
        let (slot_bits, max) = slots(shard, max);
        // Different NICs number differently, or a packet that reaches the wrong one might be taken.
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
        Qpn::new(self.shard.seat().index() << (QPN_BITS - self.shard.seat().bits()) | low)
    }

    /// How many queue pairs there can be at once.
    pub fn max(&self) -> u32 {
        self.max
    }

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

    /// Puts QP1 in its place, which is no slot; false if it is taken.
    pub fn insert_gsi(&mut self, entry: Entry) -> bool {
        let free = self.gsi.is_none();
        if free {
            self.gsi = Some(Box::new(entry));
        }
        free
    }

    /// Queue pairs that there have been at once.
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

    /// The slot that a number would be in.
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
    use crate::memory::PdId;
    use crate::transport::{Habits, QpInit, QpType, RecvCaps, SendCaps};
    use crate::wire::Mtu;

    fn insert(table: &mut QpTable) -> Option<Qpn> {
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PdId(1),
            send: SendCaps { max_wr: 1, max_sge: 1, max_inline: 0 },
            recv: RecvCaps::default(),
            signal_all: false,
            srq: None,
            domain: None,
            port_mtu: Mtu::Mtu1024,
            habits: Habits::STRICT,
        };
        let cq = Arc::new(CompletionQueue::new(1));
        table.insert(|qpn| Entry::new(QueuePair::new(qpn, &init), cq.clone(), cq.clone(), None))
    }

    #[test]
    fn the_lowest_bits_of_a_number_are_the_shard() {
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
    fn the_highest_bits_of_a_number_are_the_seat() {
        for (seat, count, max) in [(1, 1, 65_536), (63, 1, (1 << 20) - 16), (5, 4, 65_536), (0, 32, 10)] {
            let seat = Seat::new(seat).unwrap();
            let shard = ShardId::new(count - 1, count).unwrap().seated(seat);
            let mut table = QpTable::new(shard, max, 0xffff_ffff);
            assert!(table.max() >= 10.min(max) && table.max() <= 1 << 14, "{}", table.max());
            let mut seen = std::collections::HashSet::new();
            // More often than the count has values, so that it begins anew.
            for _ in 0..8 {
                let qpns: Vec<Qpn> = std::iter::from_fn(|| insert(&mut table)).collect();
                assert_eq!(qpns.len(), table.max() as usize);
                for qpn in qpns {
                    assert!(seat.has((qpn.get() >> 16) as u8) && shard.of(qpn.get() as u8) == count - 1);
                    assert!(![0, 1, Qpn::MULTICAST.get()].contains(&qpn.get()));
                    seen.insert(qpn);
                    assert_eq!(table.remove(qpn).map(|e| e.qp.qpn()), Some(qpn));
                }
            }
            assert!(seen.len() >= 8 * table.max() as usize);
        }
    }

    #[test]
    fn a_full_table_says_so() {
        let mut table = QpTable::new(ShardId::new(1, 2).unwrap(), 3, 0);
        assert_eq!(
            (0..4).map(|_| insert(&mut table).is_some()).collect::<Vec<_>>(),
            [true, true, true, false]
        );
    }
}
