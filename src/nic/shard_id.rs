//! Shard identity: a NIC's index among the shards of a device, which determines its queue pair numbers.

use super::QpnPartition;

/// Identity of a NIC among the shards of one device. A shard uses those of the device's queue pair numbers
/// whose lowest bits are its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardId {
    index: u8,
    count: u8,
    partition: QpnPartition,
}

impl ShardId {
    /// Identity of the only shard of a device that uses all queue pair numbers.
    pub const WHOLE: ShardId = ShardId { index: 0, count: 1, partition: QpnPartition::WHOLE };

    /// Maximum number of shards.
    pub const MAX_COUNT: usize = 64;

    /// Returns shard `index` of `count`; `None` if `count` is not a power of two up to
    /// [`MAX_COUNT`](Self::MAX_COUNT) or `index` is out of range.
    pub fn new(index: usize, count: usize) -> Option<ShardId> {
        let fits = count.is_power_of_two() && count <= ShardId::MAX_COUNT && index < count;
        fits.then_some(ShardId { index: index as u8, count: count as u8, partition: QpnPartition::WHOLE })
    }

    /// Returns the identity of the same shard in a device that uses only the QPN partition `partition`.
    pub fn with_partition(self, partition: QpnPartition) -> ShardId {
        ShardId { partition, ..self }
    }

    /// Returns the device's QPN partition.
    pub fn partition(self) -> QpnPartition {
        self.partition
    }

    /// Returns the index of the shard, which is in the lowest bits of its queue pair numbers.
    pub fn index(self) -> u32 {
        self.index.into()
    }

    /// Returns the number of bits in the index: the binary logarithm of the number of shards.
    pub fn bits(self) -> u32 {
        self.count.trailing_zeros()
    }

    /// Reports whether this is the first shard, which raises the events for the device as a whole.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// Reports whether this is the device's only shard.
    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// Returns the index of the shard that has a queue pair. `qpn` is the least significant byte of the queue
    /// pair number.
    pub fn of(self, qpn: u8) -> usize {
        usize::from(qpn & (self.count - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_count_must_be_a_power_of_two() {
        for (index, count, fits) in
            [(0, 1, true), (63, 64, true), (1, 1, false), (0, 3, false), (0, 0, false)]
        {
            assert_eq!(ShardId::new(index, count).is_some(), fits, "{index} of {count}");
        }
        assert_eq!(ShardId::new(0, 128), None);
        assert_eq!(ShardId::new(5, 8).map(|s| (s.bits(), s.of(0xfe))), Some((3, 6)));
    }
}
