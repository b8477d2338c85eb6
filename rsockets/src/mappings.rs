//! Mapped memory (`riomap`): local memory that the peer may write to directly, and peer memory that this end
//! may write to.

use std::collections::VecDeque;

use crate::protocol::{MAPPING_LEN, Mapping, ProtocolError, TARGET_SGE_LEN, TargetSge};

/// Memory that the peer has mapped for the local end.
#[derive(Debug, Default)]
pub(crate) struct RemoteMap(Vec<Mapping>);

impl RemoteMap {
    pub(crate) fn new(len: usize) -> RemoteMap {
        RemoteMap(vec![Mapping::default(); len])
    }

    /// Returns the number of entries in the table.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns an entry that the peer reports as changed.
    ///
    /// # Errors
    /// [`ProtocolError::Entry`] if the table has no such entry.
    pub(crate) fn entry(&mut self, index: usize) -> Result<&mut Mapping, ProtocolError> {
        let len = self.0.len();
        self.0.get_mut(index).ok_or(ProtocolError::Entry { got: index, len })
    }

    /// Returns the memory from the given offset to the end of its mapping, or `None` if nothing is mapped
    /// there.
    pub(crate) fn find(&self, offset: u64) -> Option<TargetSge> {
        self.0.iter().find_map(|Mapping { offset: start, target }| {
            let inside = offset.checked_sub(*start)?;
            let remaining = u64::from(target.len).checked_sub(inside).filter(|remaining| *remaining > 0)?;
            Some(TargetSge { addr: target.addr.wrapping_add(inside), key: target.key, len: remaining as u32 })
        })
    }
}

/// Memory that this end has mapped for the peer, and the changes not yet announced to the peer.
#[derive(Debug)]
pub(crate) struct LocalMap<R> {
    /// Location of the peer's mapped-memory table.
    table: TargetSge,
    entries: Vec<Option<Entry<R>>>,
    /// Indices of the entries to announce, oldest first.
    unannounced: VecDeque<usize>,
}

#[derive(Debug)]
struct Entry<R> {
    addr: u64,
    mapping: Mapping,
    /// The memory registration, which lasts as long as the entry.
    _region: R,
}

impl<R> LocalMap<R> {
    /// Creates an empty map. The peer has a table of `len` entries directly after its target SGL.
    pub(crate) fn new(target_sgl: TargetSge, len: usize) -> LocalMap<R> {
        let addr = target_sgl.addr.wrapping_add(u64::from(target_sgl.len) * TARGET_SGE_LEN as u64);
        let table = TargetSge { addr, key: target_sgl.key, len: len as u32 };
        LocalMap { table, entries: Vec::new(), unannounced: VecDeque::new() }
    }

    /// Returns the index of the first free entry, or `None` if the peer's table is full.
    pub(crate) fn free_entry(&self) -> Option<usize> {
        let free = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        (free < self.table.len as usize).then_some(free)
    }

    /// Adds a mapping in a [free entry](Self::free_entry).
    pub(crate) fn add(&mut self, index: usize, addr: u64, mapping: Mapping, region: R) {
        if index == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[index] = Some(Entry { addr, mapping, _region: region });
        self.unannounced.push_back(index);
    }

    /// Removes the mapping of the memory at `addr`, whose length must be `len` unless `len` is 0. Reports
    /// whether such a mapping existed.
    pub(crate) fn remove(&mut self, addr: u64, len: usize) -> bool {
        let is_it = |e: &Option<Entry<R>>| {
            e.as_ref().is_some_and(|e| e.addr == addr && (len == 0 || e.mapping.target.len as usize == len))
        };
        let Some(index) = self.entries.iter().position(is_it) else { return false };
        self.entries[index] = None;
        self.unannounced.push_back(index);
        true
    }

    /// Takes the next entry to announce. Returns its index, its content (zeros for a removed entry), and its
    /// location in the peer's table.
    pub(crate) fn next(&mut self) -> Option<(usize, Mapping, TargetSge)> {
        let index = self.unannounced.pop_front()?;
        let mapping = self.entries[index].as_ref().map_or(Mapping::default(), |entry| entry.mapping);
        let addr = self.table.addr.wrapping_add((index * MAPPING_LEN) as u64);
        Some((index, mapping, TargetSge { addr, key: self.table.key, len: MAPPING_LEN as u32 }))
    }

    /// Reports whether all changes have been announced.
    pub(crate) fn is_announced(&self) -> bool {
        self.unannounced.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(offset: u64, addr: u64, len: u32) -> Mapping {
        Mapping { offset, target: TargetSge { addr, key: 3, len } }
    }

    #[test]
    fn only_offsets_inside_a_mapping_are_translated_to_addresses() {
        let mut remote_map = RemoteMap::new(2);
        assert_eq!(remote_map.find(0), None);
        *remote_map.entry(0).unwrap() = mapping(100, 0x1000, 50);
        *remote_map.entry(1).unwrap() = mapping(150, 0x8000, 10);
        assert_eq!(remote_map.find(99), None);
        assert_eq!(remote_map.find(149), Some(TargetSge { addr: 0x1031, key: 3, len: 1 }));
        assert_eq!(remote_map.find(150), Some(TargetSge { addr: 0x8000, key: 3, len: 10 }));
        assert_eq!(remote_map.find(160), None);
        *remote_map.entry(0).unwrap() = mapping(u64::MAX, u64::MAX, u32::MAX);
        assert_eq!(remote_map.find(u64::MAX), Some(TargetSge { addr: u64::MAX, key: 3, len: u32::MAX }));
    }

    #[test]
    fn mapping_for_an_entry_outside_the_table_is_rejected() {
        let mut remote_map = RemoteMap::new(2);
        assert!(remote_map.entry(1).is_ok());
        assert_eq!(remote_map.entry(2), Err(ProtocolError::Entry { got: 2, len: 2 }));
        assert!(RemoteMap::default().entry(0).is_err());
        assert_eq!(remote_map.find(0), None);
    }

    #[test]
    fn full_table_accepts_a_mapping_after_one_is_removed() {
        let mut local_map = LocalMap::new(TargetSge { addr: 0x1000, key: 9, len: 2 }, 2);
        for (index, target) in [mapping(0, 1, 8), mapping(8, 2, 8)].into_iter().enumerate() {
            assert_eq!(local_map.free_entry(), Some(index));
            local_map.add(index, target.target.addr, target, ());
        }
        assert_eq!(local_map.free_entry(), None);
        let to = |index: u64| TargetSge { addr: 0x1020 + 24 * index, key: 9, len: 24 };
        assert_eq!(local_map.next(), Some((0, mapping(0, 1, 8), to(0))));
        assert_eq!(local_map.next(), Some((1, mapping(8, 2, 8), to(1))));
        assert!(local_map.is_announced());
        assert!(!local_map.remove(1, 7) && local_map.remove(1, 8) && !local_map.remove(1, 8));
        assert_eq!(local_map.next(), Some((0, Mapping::default(), to(0))));
        assert_eq!(local_map.free_entry(), Some(0));
        local_map.add(0, 3, mapping(16, 3, 8), ());
        assert_eq!(local_map.next(), Some((0, mapping(16, 3, 8), to(0))));
        assert_eq!(local_map.next(), None);
    }
}
