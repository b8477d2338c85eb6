//! What the table says of each wrong use: the kind of the error, and the values in it.

use super::*;
use crate::wire::{LKey, Qpn, RKey};

const PD: PdId = PdId(1);
const OTHER: PdId = PdId(2);
const US: Accessor = Accessor { pd: PD, qpn: Qpn::new(7) };
const NEIGHBOUR: Accessor = Accessor { pd: PD, qpn: Qpn::new(8) };
const STRANGER: Accessor = Accessor { pd: OTHER, qpn: Qpn::new(7) };

/// A table with a region of 64 bytes at 0x1000 that windows may be bound to.
fn table(access: Access) -> (Table, Buffer, RegionInfo) {
    let (mut table, memory) = (Table::new(), Buffer::zeroed(64));
    let span = Span { addr: memory.addr(), len: 64, iova: 0x1000, access };
    // SAFETY: every test keeps the buffer as long as the table.
    let info = unsafe { table.register(PD, span) }.unwrap();
    (table, memory, info)
}

fn bindable() -> (Table, Buffer, RegionInfo) {
    table(Access::ALL | Access::MW_BIND)
}

fn bind(rkey: RKey, region: LKey) -> Bind {
    Bind { rkey, region, addr: 0x1000, len: 64, access: Access::REMOTE_READ }
}

fn read(t: &Table, by: Accessor, key: RKey) -> Result<(), AccessError> {
    t.remote(by, key, 0x1000, 1, Access::REMOTE_READ).map(|_| ())
}

#[test]
fn a_table_counts_what_is_in_it() {
    let (mut t, _memory, info) = bindable();
    assert_eq!((t.len(), t.is_empty(), Table::new().is_empty()), (1, false, true));
    let window = t.alloc_window(PD, WindowKind::Type1).unwrap();
    let null = t.register_null(PD).unwrap();
    assert_eq!(t.len(), 3);
    assert!(t.free_window(window));
    t.deregister(null).unwrap();
    t.deregister(info.lkey).unwrap();
    assert!(t.is_empty());
}

#[test]
fn freed_slots_are_used_again_the_oldest_first() {
    let mut t = Table::new();
    let keys: Vec<_> = (0..3).map(|_| t.alloc_window(PD, WindowKind::Type1).unwrap()).collect();
    let indices: Vec<u32> = keys.iter().map(|k| k.index()).collect();
    assert!(t.free_window(keys[1]) && t.free_window(keys[0]));
    let next = |t: &mut Table| t.alloc_window(PD, WindowKind::Type1).unwrap();
    let again = [next(&mut t), next(&mut t), next(&mut t)].map(|k| k.index());
    assert_eq!(again[..2], [indices[1], indices[0]]);
    assert!(!indices.contains(&again[2]));
    // A handle of before, or of another kind, frees nothing.
    assert!(!t.free_window(keys[1]) && !t.free_window(RKey(0x7777_7700)));
    let null = t.register_null(PD).unwrap();
    assert!(!t.free_window(RKey(null.0)));
}

#[test]
fn an_old_handle_does_not_touch_what_is_in_its_place() {
    let (mut t, _memory, old) = table(Access::ALL);
    let memory = Buffer::zeroed(64);
    let translation = Some((memory.addr(), 64, 0x1000));
    // SAFETY: the memory outlives the table's use.
    let new = unsafe { t.reregister(old.lkey, &Reregistration { translation, ..Reregistration::default() }) }
        .unwrap();
    let unknown = Err(ManagementError::UnknownKey { key: old.lkey.0 });
    assert_eq!((t.deregister(old.lkey), t.revoke(old.lkey)), (unknown, unknown));
    assert_eq!(read(&t, US, new.rkey), Ok(()));
}

#[test]
fn errors_of_binding() {
    let (mut t, _memory, info) = bindable();
    let key = t.alloc_window(PD, WindowKind::Type2B).unwrap();
    let wrong = |t: &Table, b: Bind, by| t.bind(&b, by).unwrap_err();
    let missing = RKey(0x7777_7700);
    assert_eq!(wrong(&t, bind(missing, info.lkey), US), ManagementError::UnknownKey { key: missing.0 });
    assert_eq!(wrong(&t, bind(info.rkey, info.lkey), US), ManagementError::UnknownKey { key: info.rkey.0 });
    assert_eq!(
        wrong(&t, bind(key, info.lkey), STRANGER),
        ManagementError::WrongPd { key: key.0, object: PD, used: OTHER }
    );
    assert_eq!(wrong(&t, bind(key, LKey(key.0)), US), ManagementError::UnknownKey { key: key.0 });
    let none = Bind { len: 0, ..bind(key, info.lkey) };
    assert_eq!(wrong(&t, none, US), ManagementError::Range { key: key.0, addr: 0x1000, len: 0 });
    let long = Bind { len: 65, ..bind(key, info.lkey) };
    assert_eq!(wrong(&t, long, US), ManagementError::Range { key: info.lkey.0, addr: 0x1000, len: 65 });
    t.bind(&bind(key, info.lkey), US).unwrap();
    assert_eq!(wrong(&t, bind(key, info.lkey), US), ManagementError::InUse { key: key.0 });
    let one = t.alloc_window(PD, WindowKind::Type1).unwrap();
    let zero_based = Bind { access: Access::ZERO_BASED, ..bind(one, info.lkey) };
    assert_eq!(wrong(&t, zero_based, US), ManagementError::Access { key: one.0, access: Access::ZERO_BASED });
    for access in [Access::ALL, Access::MW_BIND | Access::ZERO_BASED] {
        let (mut t, _memory, info) = table(access);
        let key = t.alloc_window(PD, WindowKind::Type1).unwrap();
        assert_eq!(wrong(&t, bind(key, info.lkey), US), ManagementError::Access { key: info.lkey.0, access });
    }
}

#[test]
fn errors_of_invalidating() {
    let (mut t, _memory, info) = bindable();
    let wrong = |t: &Table, key, by| t.invalidate(key, by, false).unwrap_err();
    let plain = info.rkey;
    assert_eq!(wrong(&t, plain, US), ManagementError::NotInvalidatable { key: plain.0 });
    let stale = RKey(plain.0 + 1);
    assert_eq!(wrong(&t, stale, US), ManagementError::UnknownKey { key: stale.0 });
    let one = t.alloc_window(PD, WindowKind::Type1).unwrap();
    assert_eq!(wrong(&t, one, US), ManagementError::NotInvalidatable { key: one.0 });
    for (kind, in_another_domain) in [(WindowKind::Type2A, true), (WindowKind::Type2B, false)] {
        let key = t.alloc_window(PD, kind).unwrap();
        assert_eq!(wrong(&t, key, US), ManagementError::UnknownKey { key: key.0 });
        t.bind(&bind(key, info.lkey), US).unwrap();
        let (bound, used) = (US.qpn, NEIGHBOUR.qpn);
        assert_eq!(wrong(&t, key, NEIGHBOUR), ManagementError::WrongQp { key: key.0, bound, used });
        let elsewhere = t.invalidate(key, STRANGER, false);
        if in_another_domain {
            assert_eq!(elsewhere, Ok(()));
        } else {
            let (object, used) = (PD, OTHER);
            assert_eq!(elsewhere, Err(ManagementError::WrongPd { key: key.0, object, used }));
            t.invalidate(key, US, false).unwrap();
        }
        // Nothing is bound to the region any more.
        assert!(read(&t, US, key).is_err());
    }
    t.deregister(info.lkey).unwrap();
}

#[test]
fn errors_of_fast_regions() {
    let (mut t, memory) = (Table::new(), Buffer::zeroed(64));
    // SAFETY: the buffer outlives the table.
    let info = unsafe { t.register_fast(PD, memory.addr(), 64) }.unwrap();
    let reg = FastReg { key: info.lkey, offset: 0, len: 64, iova: 0x1000, access: Access::REMOTE_READ };
    let key = info.lkey.0;
    assert_eq!(t.open(&reg, STRANGER), Err(ManagementError::WrongPd { key, object: PD, used: OTHER }));
    let missing = FastReg { key: LKey(0x7777_7700), ..reg };
    assert_eq!(t.open(&missing, US), Err(ManagementError::UnknownKey { key: missing.key.0 }));
    let outside = FastReg { offset: 1, ..reg };
    assert_eq!(t.open(&outside, US), Err(ManagementError::Range { key, addr: 1, len: 64 }));
    let unfit = FastReg { access: Access::REMOTE_ATOMIC, ..reg };
    assert_eq!(t.open(&unfit, US), Err(ManagementError::Access { key, access: Access::REMOTE_ATOMIC }));
    t.open(&reg, US).unwrap();
    assert_eq!(t.open(&reg, US), Err(ManagementError::InUse { key }));
    let elsewhere = t.invalidate(info.rkey, STRANGER, false);
    assert_eq!(elsewhere, Err(ManagementError::WrongPd { key, object: PD, used: OTHER }));
    assert_eq!(read(&t, STRANGER, info.rkey), Err(AccessError::WrongPd { key, region: PD, used: OTHER }));
    t.invalidate(info.rkey, US, true).unwrap();
    assert_eq!(t.invalidate(info.rkey, US, false), Err(ManagementError::UnknownKey { key }));
    let closed_to_peers = FastReg { access: Access::LOCAL_WRITE, ..reg };
    t.open(&closed_to_peers, US).unwrap();
    let refused = t.invalidate(info.rkey, US, true);
    assert_eq!(refused, Err(ManagementError::Access { key, access: Access::LOCAL_WRITE }));
}

#[test]
fn errors_of_windows_in_use() {
    let (mut t, _memory, info) = bindable();
    let key = t.alloc_window(PD, WindowKind::Type2B).unwrap();
    assert_eq!(read(&t, US, key), Err(AccessError::UnknownKey { key: key.0 }));
    t.bind(&bind(key, info.lkey), US).unwrap();
    assert_eq!(read(&t, US, key), Ok(()));
    let (bound, used) = (US.qpn, NEIGHBOUR.qpn);
    assert_eq!(read(&t, NEIGHBOUR, key), Err(AccessError::WrongQp { key: key.0, bound, used }));
    assert_eq!(read(&t, STRANGER, key), Err(AccessError::WrongPd { key: key.0, region: PD, used: OTHER }));
    let write = t.remote(US, key, 0x1000, 1, Access::REMOTE_WRITE).unwrap_err();
    let (allowed, needed) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    assert_eq!(write, AccessError::Permission { key: key.0, allowed, needed });
    let bound = ManagementError::WindowsBound { key: info.lkey.0, count: 1 };
    assert_eq!(t.deregister(info.lkey), Err(bound));
    // SAFETY: nothing changes.
    assert_eq!(unsafe { t.reregister(info.lkey, &Reregistration::default()) }, Err(bound));
    let second = t.alloc_window(PD, WindowKind::Type1).unwrap();
    t.bind(&bind(second, info.lkey), US).unwrap();
    let both = ManagementError::WindowsBound { key: info.lkey.0, count: 2 };
    assert_eq!(t.deregister(info.lkey), Err(both));
    // Bound elsewhere, or to nothing, it holds its first region no more.
    t.bind(&Bind { len: 0, ..bind(second, info.lkey) }, US).unwrap();
    assert_eq!(t.deregister(info.lkey), Err(bound));
    assert_eq!(t.deregister(LKey(key.0)), Err(ManagementError::UnknownKey { key: key.0 }));
    t.revoke(info.lkey).unwrap();
    assert_eq!(t.revoke(info.lkey), Err(ManagementError::UnknownKey { key: info.lkey.0 }));
}

#[test]
fn null_regions_have_a_domain_and_a_run() {
    let mut t = Table::new();
    let null = t.register_null(PD).unwrap();
    let run = |t: &Table, by, len, needed| t.local(by, null, 5, len, needed).map(|s| s.len());
    assert_eq!(run(&t, US, 1 << 16, Access::LOCAL_READ), Ok(1 << 16));
    assert_eq!(run(&t, US, 1 << 16, Access::LOCAL_WRITE), Ok(1 << 16));
    assert!(matches!(run(&t, US, (1 << 16) + 1, Access::LOCAL_READ), Err(AccessError::OutOfRange { .. })));
    let unknown = AccessError::UnknownKey { key: null.0 };
    assert_eq!(run(&t, STRANGER, 1, Access::LOCAL_READ), Err(unknown));
    assert_eq!(read(&t, US, RKey(null.0)), Err(unknown));
    // What is written to it is not what it reads as.
    t.local(US, null, 0, 4, Access::LOCAL_WRITE).unwrap().store(&[7; 4]).unwrap();
    let mut zeros = [1; 4];
    t.local(US, null, 0, 4, Access::LOCAL_READ).unwrap().load(&mut zeros).unwrap();
    assert_eq!(zeros, [0; 4]);
}

#[test]
fn the_whole_of_a_region_and_of_everything() {
    let (mut t, memory, info) = bindable();
    let all = t.remote_all(US, info.rkey, Access::REMOTE_READ).unwrap();
    assert_eq!(
        (all.len(), all == t.remote(US, info.rkey, 0x1000, 64, Access::REMOTE_READ).unwrap()),
        (64, true)
    );
    let needed = Access::FLUSH_GLOBAL;
    assert!(matches!(t.remote_all(US, info.rkey, needed), Err(AccessError::Permission { .. })));
    // SAFETY: only memory of this test is named.
    let implicit = unsafe { t.register_implicit(PD, Access::REMOTE_READ) }.unwrap();
    let at = memory.addr() as u64;
    assert_eq!(t.remote(US, implicit.rkey, at, 64, Access::REMOTE_READ).unwrap(), all);
    assert!(t.remote_all(US, implicit.rkey, Access::REMOTE_READ).unwrap().is_empty());
    assert!(t.remote_all(US, implicit.rkey, Access::REMOTE_WRITE).is_err());
    // What is there to be read is not there to be written.
    static CONSTANT: [u8; 64] = [7; 64];
    // SAFETY: nothing is stored.
    let writable = unsafe { t.register_implicit(PD, Access::LOCAL_WRITE | Access::REMOTE_WRITE) }.unwrap();
    let at_constant = CONSTANT.as_ptr().expose_provenance() as u64;
    assert!(t.local(US, writable.lkey, at_constant, 64, Access::LOCAL_READ).is_ok());
    let refused = t.local(US, writable.lkey, at_constant, 64, Access::LOCAL_WRITE).unwrap_err();
    let not_mapped = AccessError::NotMapped { key: writable.lkey.0, addr: at_constant, len: 64 };
    assert_eq!(refused, not_mapped);
    let refused = t.remote(US, writable.rkey, at_constant, 64, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(refused, not_mapped);
    let nowhere = t.remote(US, implicit.rkey, 8, 8, Access::REMOTE_READ).unwrap_err();
    assert_eq!(nowhere, AccessError::NotMapped { key: implicit.rkey.0, addr: 8, len: 8 });
}

#[test]
fn access_errors_tell_what_a_bind_may_not() {
    let (key, pd) = (5, PdId(9));
    let (a, b) = (Qpn::new(1), Qpn::new(2));
    for (from, to) in [
        (AccessError::UnknownKey { key }, ManagementError::UnknownKey { key }),
        (AccessError::NotMapped { key, addr: 1, len: 2 }, ManagementError::UnknownKey { key }),
        (
            AccessError::WrongPd { key, region: pd, used: PD },
            ManagementError::WrongPd { key, object: pd, used: PD },
        ),
        (
            AccessError::WrongQp { key, bound: a, used: b },
            ManagementError::WrongQp { key, bound: a, used: b },
        ),
        (
            AccessError::OutOfRange { key, addr: 1, len: 2, start: 3, region_len: 4 },
            ManagementError::Range { key, addr: 1, len: 2 },
        ),
        (
            AccessError::Permission { key, allowed: Access(0), needed: Access(2) },
            ManagementError::Access { key, access: Access(2) },
        ),
    ] {
        assert_eq!(ManagementError::from(from), to);
    }
}

#[test]
fn keys_of_different_seeds_differ_and_no_key_follows_another() {
    let keys = |seed| {
        let mut t = Table::seeded(seed);
        (0..8).map(|_| t.alloc_window(PD, WindowKind::Type1).unwrap().0).collect::<Vec<_>>()
    };
    assert_eq!(keys(1), keys(1), "the same seed gives the same keys");
    let first: std::collections::HashSet<u32> = (0..256).map(|seed| keys(seed)[0]).collect();
    assert!(first.len() > 250, "{}", first.len());
    let generations: std::collections::HashSet<u8> = first.iter().map(|key| *key as u8).collect();
    assert!(generations.len() > 80, "{}", generations.len());
    let steps: std::collections::HashSet<u32> =
        keys(7).windows(2).map(|pair| (pair[1] >> 8).wrapping_sub(pair[0] >> 8)).collect();
    assert!(steps.len() > 3, "{steps:?}");
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn accesses_to_memory_that_is_gone_say_so() {
    use crate::memory::{Faulted, survive_faults};
    use crate::wire::icrc::Icrc;

    survive_faults();
    let (page, none, anonymous) =
        (page_size(), std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, of which nothing is used but by the slices.
    let addr = unsafe {
        let addr = libc::mmap(none, 2 * page, libc::PROT_READ | libc::PROT_WRITE, anonymous, -1, 0);
        assert_ne!(addr, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(addr.add(page), page, libc::PROT_NONE), 0);
        addr.expose_provenance()
    };
    for len in [1, 2, 3, 5, 8, 9, 20, 40, 200, 300, 700, 2000] {
        // The last byte of it is gone, or the last half.
        for there in [len - 1, len / 2] {
            // SAFETY: memory of this test; accesses to what is protected say so.
            let slice = unsafe { HostSlice::from_raw(addr + page - there, len) };
            let (mut bytes, mut out) = (vec![5; len], Vec::new());
            assert_eq!(slice.load(&mut bytes), Err(Faulted), "{len}");
            assert_eq!(slice.store(&bytes), Err(Faulted), "{len}");
            assert_eq!(slice.probe(), Err(Faulted), "{len}");
            assert!(slice.load_and_digest(&mut bytes, Icrc::default()).is_err(), "{len}");
            assert!(slice.append_and_digest(&mut out, Icrc::default()).is_err() && out.is_empty(), "{len}");
            assert_eq!(slice.split_at(there).0.probe(), Ok(()));
        }
    }
    // SAFETY: as above.
    let word = unsafe { HostSlice::from_raw(addr + page, 8) };
    assert_eq!(word.atomic(AtomicOp::FetchAdd(1)), Err(Faulted));
    assert_eq!(word.atomic(AtomicOp::CompareSwap { compare: 0, swap: 1 }), Err(Faulted));
    // SAFETY: nothing of it is used any more.
    assert_eq!(unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(addr), 2 * page) }, 0);
}
