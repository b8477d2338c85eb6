//! The key that a peer may have meant, when a request with its key is refused.

use std::fmt;

use super::{Accessor, Entry, Extent, LKey, PdId, RKey, Slot, Table};
use crate::memory::Access;
use crate::wire::Counted;

/// Maximum number of hexadecimal digits in which a key may differ from the one that was meant.
const MAX_DIGITS: u32 = 2;

/// Valid key that resembles the key of a refused request, or the history of that key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NearestKey {
    /// The key was valid until its region or window was deregistered, freed or invalidated.
    Gone,
    /// The region of the key is registered, but a fault has revoked it.
    Revoked,
    /// Another key is valid.
    Valid {
        /// The key.
        key: u32,
        /// Address of the first byte that it makes accessible.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// Permitted accesses.
        access: Access,
        /// Protection domain.
        pd: PdId,
        /// How it differs from the key that was used.
        difference: KeyDifference,
    },
}

/// Difference between a valid key and the key of a refused request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyDifference {
    /// The low byte, which changes with each registration.
    LowByte,
    /// The order of the bytes.
    ByteOrder,
    /// This number of hexadecimal digits.
    Digits(u32),
    /// The whole key differs, but the region contains the range of the request.
    RangeOnly,
}

impl fmt::Display for NearestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NearestKey::Valid { key, addr, len, access, pd, difference } = *self else {
            return f.write_str(match self {
                NearestKey::Gone => "it was valid until its region was deregistered or invalidated",
                _ => "a fault rule has revoked its region",
            });
        };
        let region = format!("{} at {addr:#x}, {access}, {pd}", Counted(len, "byte"));
        match difference {
            KeyDifference::LowByte => {
                write!(
                    f,
                    "it differs only in the low byte, which changes with each registration, from {key:#x} ({region})"
                )
            }
            KeyDifference::ByteOrder => write!(f, "it is {key:#x} ({region}) in the wrong byte order"),
            KeyDifference::Digits(count) => {
                write!(f, "it differs in {} from {key:#x} ({region})", Counted(count, "digit"))
            }
            KeyDifference::RangeOnly => {
                write!(f, "the range is part of the region of key {key:#x} ({region})")
            }
        }
    }
}

impl Table {
    /// Returns the key that the sender of a refused request may have meant, for the range of `len` bytes at
    /// `va`.
    #[cold]
    pub fn nearest(&self, by: Accessor, rkey: RKey, va: u64, len: u32) -> Option<NearestKey> {
        let key = LKey(rkey.0);
        let slot = self.slot_of(key).and_then(|slot| self.slots.get(slot as usize));
        let slot = slot.filter(|slot| slot.index == key.index() && key.index() != 0);
        let is_valid = match slot {
            Some(Slot { entry: None, .. }) => return Some(NearestKey::Gone),
            Some(slot) => match self.valid(slot, by) {
                Some((valid, ..)) if valid != key.0 => {
                    return self.described(valid, KeyDifference::LowByte, by);
                }
                Some(_) => true,
                None if matches!(&slot.entry, Some(Entry::Region(r)) if r.is_revoked()) => {
                    return Some(NearestKey::Revoked);
                }
                None => return Some(NearestKey::Gone),
            },
            None => false,
        };
        let valid = || self.slots.iter().filter_map(|slot| self.valid(slot, by));
        let digits =
            |other: u32| (0..8).filter(|digit| (other ^ key.0) >> (4 * digit) & 0xf != 0).count() as u32;
        let resembling = || {
            let reversed = valid().find(|(other, ..)| *other == key.0.swap_bytes());
            let reversed = reversed.map(|(other, ..)| (other, KeyDifference::ByteOrder));
            let alike = || valid().map(|(other, ..)| (digits(other), other)).min();
            let alike = || alike().filter(|(count, _)| *count <= MAX_DIGITS && key.0 != 0);
            reversed.or_else(|| alike().map(|(count, other)| (other, KeyDifference::Digits(count))))
        };
        let containing = || {
            let is_around = |extent: &Extent| extent.find(0, va, len.into()).is_ok();
            let found =
                valid().find(|(other, pd, extent)| *other != key.0 && *pd == by.pd && is_around(extent));
            found.map(|(other, ..)| (other, KeyDifference::RangeOnly))
        };
        let (other, difference) = if is_valid { containing() } else { resembling().or_else(containing) }?;
        self.described(other, difference, by)
    }

    /// Returns the valid key of a slot with its protection domain and extent, if it has one.
    fn valid(&self, slot: &Slot, by: Accessor) -> Option<(u32, PdId, Extent)> {
        let (low_byte, pd) = match slot.entry.as_ref()? {
            Entry::Region(region) => (slot.generation, region.pd),
            Entry::Fast(region) => (region.key(), region.pd),
            Entry::Window(window) => (window.key(), by.pd),
            Entry::Null(_) => return None,
        };
        let key = RKey::from_parts(slot.index, low_byte);
        Some((key.0, pd, self.remote_extent(key, Accessor { pd, ..by }).ok()?))
    }

    fn described(&self, key: u32, difference: KeyDifference, by: Accessor) -> Option<NearestKey> {
        let (slot, _) = self.entry(LKey(key))?;
        let (_, pd, extent) = self.valid(slot, by)?;
        let Extent { len, iova, access, .. } = extent;
        Some(NearestKey::Valid { key, addr: iova, len: len as u64, access, pd, difference })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Qpn;

    const BY: Accessor = Accessor { pd: PdId(1), qpn: Qpn::GSI };

    fn register(table: &mut Table, buf: &mut [u64], iova: u64) -> LKey {
        let addr = buf.as_mut_ptr().expose_provenance();
        let extent = Extent { addr, len: buf.len() * 8, iova, access: Access::ALL };
        // SAFETY: the tests keep `buf` alive and in place beyond the table.
        unsafe { table.register(PdId(1), extent) }.unwrap().lkey
    }

    #[test]
    fn refused_key_is_compared_with_the_valid_ones() {
        let mut buf = vec![0u64; 2];
        let mut table = Table::seeded(7);
        let key = register(&mut table, &mut buf, 0x1000);
        let nearest =
            |table: &Table, key: u32, va| table.nearest(BY, RKey(key), va, 8).map(|n| n.to_string());
        let region = format!(
            "{key} (16 bytes at 0x1000, LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC, PD 1)"
        );
        let cases = [
            (
                key.0 ^ 1,
                0,
                format!(
                    "it differs only in the low byte, which changes with each registration, from {region}"
                ),
            ),
            (key.0.swap_bytes(), 0, format!("it is {region} in the wrong byte order")),
            (key.0 ^ 0x500, 0, format!("it differs in 1 digit from {region}")),
            (key.0 ^ 0x5060_0000, 0, format!("it differs in 2 digits from {region}")),
            (0, 0x1008, format!("the range is part of the region of key {region}")),
        ];
        for (used, va, text) in cases {
            assert_eq!(nearest(&table, used, va), Some(text), "{used:#x}");
        }
        assert_eq!(nearest(&table, 0, 0x1009), None);
        assert_eq!(nearest(&table, key.0, 0), None);
        table.deregister(key).unwrap();
        assert_eq!(table.nearest(BY, RKey(key.0), 0, 8), Some(NearestKey::Gone));
    }

    #[test]
    fn range_outside_of_a_region_is_found_in_another() {
        let (mut first, mut second) = (vec![0u64; 2], vec![0u64; 2]);
        let mut table = Table::seeded(7);
        let key = register(&mut table, &mut first, 0x1000);
        let other = register(&mut table, &mut second, 0x2000);
        let found = table.nearest(BY, RKey(key.0), 0x2008, 8);
        let difference = KeyDifference::RangeOnly;
        assert!(
            matches!(found, Some(NearestKey::Valid { key, difference: d, .. }) if key == other.0 && d == difference)
        );
    }
}
