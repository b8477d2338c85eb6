//! QPN partitions, which let several processes share an address.

use crate::burst::BurstLimits;

/// QPN partition: all queue pair numbers with the partition's index in the highest bits. NICs with different
/// partitions can share an address, because a packet's destination QPN determines which NIC it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpnPartition {
    index: u8,
    bits: u8,
}

impl QpnPartition {
    /// All queue pair numbers.
    pub const WHOLE: QpnPartition = QpnPartition { index: 0, bits: 0 };

    /// Number of QPN bits that identify the partition.
    pub const BITS: u32 = BurstLimits::DEST_GROUP_BITS;

    /// Number of partitions.
    pub const COUNT: usize = 1 << QpnPartition::BITS;

    /// Returns partition `index` of [`COUNT`](Self::COUNT); `None` if it is out of range. The first contains
    /// the management queue pairs, QP0 and QP1.
    pub fn new(index: usize) -> Option<QpnPartition> {
        (index < QpnPartition::COUNT)
            .then_some(QpnPartition { index: index as u8, bits: QpnPartition::BITS as u8 })
    }

    /// Returns the index of the partition, which is in the highest bits of its queue pair numbers.
    pub fn index(self) -> u32 {
        self.index.into()
    }

    /// Returns the number of bits in the index: 0 if the partition contains all queue pair numbers.
    pub fn bits(self) -> u32 {
        self.bits.into()
    }

    /// Reports whether a queue pair number is in this partition. `qpn` is the most significant byte of the
    /// number.
    pub fn has(self, qpn: u8) -> bool {
        u32::from(qpn) >> (8 - self.bits()) == self.index()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_belongs_to_exactly_one_partition() {
        for first in 0..=255_u8 {
            let of: Vec<usize> =
                (0..QpnPartition::COUNT).filter(|i| QpnPartition::new(*i).unwrap().has(first)).collect();
            assert_eq!(of, [usize::from(first) >> 2]);
            assert!(QpnPartition::WHOLE.has(first));
        }
        assert_eq!(QpnPartition::new(QpnPartition::COUNT), None);
    }
}
