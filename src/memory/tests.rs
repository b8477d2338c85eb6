//! Tests of the key table against the key and window rules of the InfiniBand specification, in particular the
//! error for each kind of invalid use.

use super::*;
use crate::wire::{LKey, Qpn, RKey};

const PD: PdId = PdId(1);
const PD_2: PdId = PdId(2);
const US: Accessor = Accessor { pd: PD, qpn: Qpn::new(7) };
const OTHER_QP: Accessor = Accessor { pd: PD, qpn: Qpn::new(8) };
const OTHER_PD: Accessor = Accessor { pd: PD_2, qpn: Qpn::new(7) };

/// Returns a table with a 64-byte region at iova 0x1000 that permits `access`, the region's memory, and its
/// keys.
fn table(access: Access) -> (Table, Buffer, RegionInfo) {
    let (mut table, memory) = (Table::new(), Buffer::zeroed(64));
    let extent = Extent { addr: memory.addr(), len: 64, iova: 0x1000, access };
    // SAFETY: every test keeps the buffer as long as the table.
    let info = unsafe { table.register(PD, extent) }.unwrap();
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
fn table_length_counts_regions_and_windows() {
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
fn windows_whose_keys_share_a_hint_are_all_found() {
    let mut t = Table::new();
    // Several keys for each hint: only one of them can be in it.
    let keys: Vec<_> = (0..300).map(|_| t.alloc_window(PD, WindowKind::Type1).unwrap()).collect();
    for key in keys.iter().step_by(3) {
        assert!(t.free_window(*key) && !t.free_window(*key), "{key:?}");
    }
    assert_eq!(t.len(), 200);
    assert!((0..300).filter(|i| i % 3 != 0).all(|i| t.free_window(keys[i])));
    assert!(t.is_empty());
}

#[test]
fn freed_slots_are_reused_oldest_first() {
    let mut t = Table::new();
    let keys: Vec<_> = (0..3).map(|_| t.alloc_window(PD, WindowKind::Type1).unwrap()).collect();
    let indices: Vec<u32> = keys.iter().map(|k| k.index()).collect();
    assert!(t.free_window(keys[1]) && t.free_window(keys[0]));
    let next = |t: &mut Table| t.alloc_window(PD, WindowKind::Type1).unwrap();
    let again = [next(&mut t), next(&mut t), next(&mut t)].map(|k| k.index());
    assert_eq!(again[..2], [indices[1], indices[0]]);
    assert!(!indices.contains(&again[2]));
    // A stale handle, or one of another kind, frees nothing.
    assert!(!t.free_window(keys[1]) && !t.free_window(RKey(0x7777_7700)));
    let null = t.register_null(PD).unwrap();
    assert!(!t.free_window(RKey(null.0)));
}

#[test]
fn stale_handle_does_not_affect_the_new_region_in_its_slot() {
    let (mut t, _memory, old) = table(Access::ALL);
    let memory = Buffer::zeroed(64);
    let translation = Some((memory.addr(), 64, 0x1000));
    // SAFETY: the memory outlives all uses of the table.
    let new = unsafe { t.reregister(old.lkey, &ReregMr { translation, ..ReregMr::default() }) }.unwrap();
    let unknown = Err(ManagementError::UnknownKey { key: old.lkey.0 });
    assert_eq!((t.deregister(old.lkey), t.revoke(old.lkey)), (unknown, unknown));
    assert_eq!(read(&t, US, new.rkey), Ok(()));
}

#[test]
fn invalid_bind_fails_with_the_error_for_its_cause() {
    let (mut t, _memory, info) = bindable();
    let key = t.alloc_window(PD, WindowKind::Type2B).unwrap();
    let wrong = |t: &Table, b: Bind, by| t.bind(&b, by).unwrap_err();
    let missing = RKey(0x7777_7700);
    assert_eq!(wrong(&t, bind(missing, info.lkey), US), ManagementError::UnknownKey { key: missing.0 });
    assert_eq!(wrong(&t, bind(info.rkey, info.lkey), US), ManagementError::UnknownKey { key: info.rkey.0 });
    assert_eq!(
        wrong(&t, bind(key, info.lkey), OTHER_PD),
        ManagementError::WrongPd { key: key.0, object: PD, used: PD_2 }
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
fn invalid_invalidation_fails_with_the_error_for_its_cause() {
    let (mut t, _memory, info) = bindable();
    let wrong = |t: &Table, key, by| t.invalidate(key, by, false).unwrap_err();
    let plain = info.rkey;
    assert_eq!(wrong(&t, plain, US), ManagementError::NotInvalidatable { key: plain.0 });
    let stale = RKey(plain.0 + 1);
    assert_eq!(wrong(&t, stale, US), ManagementError::UnknownKey { key: stale.0 });
    let one = t.alloc_window(PD, WindowKind::Type1).unwrap();
    assert_eq!(wrong(&t, one, US), ManagementError::NotInvalidatable { key: one.0 });
    for (kind, in_another_pd) in [(WindowKind::Type2A, true), (WindowKind::Type2B, false)] {
        let key = t.alloc_window(PD, kind).unwrap();
        assert_eq!(wrong(&t, key, US), ManagementError::UnknownKey { key: key.0 });
        t.bind(&bind(key, info.lkey), US).unwrap();
        let (bound, used) = (US.qpn, OTHER_QP.qpn);
        assert_eq!(wrong(&t, key, OTHER_QP), ManagementError::WrongQp { key: key.0, bound, used });
        let by_other_pd = t.invalidate(key, OTHER_PD, false);
        if in_another_pd {
            assert_eq!(by_other_pd, Ok(()));
        } else {
            let (object, used) = (PD, PD_2);
            assert_eq!(by_other_pd, Err(ManagementError::WrongPd { key: key.0, object, used }));
            t.invalidate(key, US, false).unwrap();
        }
        // The window is not bound any more.
        assert!(read(&t, US, key).is_err());
    }
    t.deregister(info.lkey).unwrap();
}

#[test]
fn invalid_fast_registration_fails_with_the_error_for_its_cause() {
    let (mut t, memory) = (Table::new(), Buffer::zeroed(64));
    // SAFETY: the buffer outlives the table.
    let info = unsafe { t.register_fast(PD, memory.addr(), 64) }.unwrap();
    let reg = FastReg { key: info.lkey, offset: 0, len: 64, iova: 0x1000, access: Access::REMOTE_READ };
    let key = info.lkey.0;
    assert_eq!(t.fast_reg(&reg, OTHER_PD), Err(ManagementError::WrongPd { key, object: PD, used: PD_2 }));
    let missing = FastReg { key: LKey(0x7777_7700), ..reg };
    assert_eq!(t.fast_reg(&missing, US), Err(ManagementError::UnknownKey { key: missing.key.0 }));
    let outside = FastReg { offset: 1, ..reg };
    assert_eq!(t.fast_reg(&outside, US), Err(ManagementError::Range { key, addr: 1, len: 64 }));
    let not_permitted = FastReg { access: Access::REMOTE_ATOMIC, ..reg };
    assert_eq!(
        t.fast_reg(&not_permitted, US),
        Err(ManagementError::Access { key, access: Access::REMOTE_ATOMIC })
    );
    t.fast_reg(&reg, US).unwrap();
    assert_eq!(t.fast_reg(&reg, US), Err(ManagementError::InUse { key }));
    let by_other_pd = t.invalidate(info.rkey, OTHER_PD, false);
    assert_eq!(by_other_pd, Err(ManagementError::WrongPd { key, object: PD, used: PD_2 }));
    assert_eq!(read(&t, OTHER_PD, info.rkey), Err(AccessError::WrongPd { key, region: PD, used: PD_2 }));
    t.invalidate(info.rkey, US, true).unwrap();
    assert_eq!(t.invalidate(info.rkey, US, false), Err(ManagementError::UnknownKey { key }));
    let local_only = FastReg { access: Access::LOCAL_WRITE, ..reg };
    t.fast_reg(&local_only, US).unwrap();
    let error = t.invalidate(info.rkey, US, true);
    assert_eq!(error, Err(ManagementError::Access { key, access: Access::LOCAL_WRITE }));
}

#[test]
fn bound_window_rejects_wrong_users_and_prevents_deregistration_of_its_region() {
    let (mut t, _memory, info) = bindable();
    let key = t.alloc_window(PD, WindowKind::Type2B).unwrap();
    assert_eq!(read(&t, US, key), Err(AccessError::UnknownKey { key: key.0 }));
    t.bind(&bind(key, info.lkey), US).unwrap();
    assert_eq!(read(&t, US, key), Ok(()));
    let (bound, used) = (US.qpn, OTHER_QP.qpn);
    assert_eq!(read(&t, OTHER_QP, key), Err(AccessError::WrongQp { key: key.0, bound, used }));
    assert_eq!(read(&t, OTHER_PD, key), Err(AccessError::WrongPd { key: key.0, region: PD, used: PD_2 }));
    let write = t.remote(US, key, 0x1000, 1, Access::REMOTE_WRITE).unwrap_err();
    let (allowed, needed) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    assert_eq!(write, AccessError::Permission { key: key.0, allowed, needed });
    let bound = ManagementError::WindowsBound { key: info.lkey.0, count: 1 };
    assert_eq!(t.deregister(info.lkey), Err(bound));
    // SAFETY: the call is refused, and changes nothing.
    assert_eq!(unsafe { t.reregister(info.lkey, &ReregMr::default()) }, Err(bound));
    let second = t.alloc_window(PD, WindowKind::Type1).unwrap();
    t.bind(&bind(second, info.lkey), US).unwrap();
    let both = ManagementError::WindowsBound { key: info.lkey.0, count: 2 };
    assert_eq!(t.deregister(info.lkey), Err(both));
    // A window that is bound elsewhere, or unbound, does not keep its first region.
    t.bind(&Bind { len: 0, ..bind(second, info.lkey) }, US).unwrap();
    assert_eq!(t.deregister(info.lkey), Err(bound));
    assert_eq!(t.deregister(LKey(key.0)), Err(ManagementError::UnknownKey { key: key.0 }));
    t.revoke(info.lkey).unwrap();
    assert_eq!(t.revoke(info.lkey), Err(ManagementError::UnknownKey { key: info.lkey.0 }));
}

#[test]
fn null_region_checks_pd_and_length_and_reads_zeros() {
    let mut t = Table::new();
    let null = t.register_null(PD).unwrap();
    let run = |t: &Table, by, len, needed| t.local(by, null, 5, len, needed).map(|s| s.len());
    assert_eq!(run(&t, US, 1 << 16, Access::LOCAL_READ), Ok(1 << 16));
    assert_eq!(run(&t, US, 1 << 16, Access::LOCAL_WRITE), Ok(1 << 16));
    assert!(matches!(run(&t, US, (1 << 16) + 1, Access::LOCAL_READ), Err(AccessError::OutOfRange { .. })));
    let unknown = AccessError::UnknownKey { key: null.0 };
    assert_eq!(run(&t, OTHER_PD, 1, Access::LOCAL_READ), Err(unknown));
    assert_eq!(read(&t, US, RKey(null.0)), Err(unknown));
    // Data written to a null region cannot be read back.
    t.local(US, null, 0, 4, Access::LOCAL_WRITE).unwrap().store(&[7; 4], CopySource::Read).unwrap();
    let mut zeros = [1; 4];
    t.local(US, null, 0, 4, Access::LOCAL_READ).unwrap().load(&mut zeros).unwrap();
    assert_eq!(zeros, [0; 4]);
}

#[test]
fn remote_all_returns_the_whole_region_or_an_empty_slice_if_it_is_implicit() {
    let (mut t, memory, info) = bindable();
    let all = t.remote_all(US, info.rkey, Access::REMOTE_READ).unwrap();
    assert_eq!(
        (all.len(), all == t.remote(US, info.rkey, 0x1000, 64, Access::REMOTE_READ).unwrap()),
        (64, true)
    );
    let needed = Access::FLUSH_GLOBAL;
    assert!(matches!(t.remote_all(US, info.rkey, needed), Err(AccessError::Permission { .. })));
    // SAFETY: the test accesses only its own memory through the region.
    let implicit = unsafe { t.register_implicit(PD, Access::REMOTE_READ) }.unwrap();
    let at = memory.addr() as u64;
    assert_eq!(t.remote(US, implicit.rkey, at, 64, Access::REMOTE_READ).unwrap(), all);
    assert!(t.remote_all(US, implicit.rkey, Access::REMOTE_READ).unwrap().is_empty());
    assert!(t.remote_all(US, implicit.rkey, Access::REMOTE_WRITE).is_err());
    // Read-only memory is readable but not writable.
    static CONSTANT: [u8; 64] = [7; 64];
    // SAFETY: nothing is stored through the region.
    let writable = unsafe { t.register_implicit(PD, Access::LOCAL_WRITE | Access::REMOTE_WRITE) }.unwrap();
    let at_constant = CONSTANT.as_ptr().expose_provenance() as u64;
    assert!(t.local(US, writable.lkey, at_constant, 64, Access::LOCAL_READ).is_ok());
    let error = t.local(US, writable.lkey, at_constant, 64, Access::LOCAL_WRITE).unwrap_err();
    let not_mapped = AccessError::NotMapped { key: writable.lkey.0, addr: at_constant, len: 64 };
    assert_eq!(error, not_mapped);
    let error = t.remote(US, writable.rkey, at_constant, 64, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(error, not_mapped);
    let unmapped = t.remote(US, implicit.rkey, 8, 8, Access::REMOTE_READ).unwrap_err();
    assert_eq!(unmapped, AccessError::NotMapped { key: implicit.rkey.0, addr: 8, len: 8 });
}

#[test]
fn access_errors_convert_to_management_errors() {
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
            AccessError::Permission { key, allowed: Access::LOCAL_READ, needed: Access::REMOTE_WRITE },
            ManagementError::Access { key, access: Access::REMOTE_WRITE },
        ),
    ] {
        assert_eq!(ManagementError::from(from), to);
    }
}

#[test]
fn keys_depend_on_the_seed_and_are_not_consecutive() {
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

#[cfg(all(target_arch = "x86_64", not(any(miri, urxe_plain_access))))]
#[test]
fn accesses_to_protected_memory_return_faulted() {
    use crate::memory::{Faulted, install_fault_handler};
    use crate::wire::icrc::Icrc;

    install_fault_handler();
    let (page, none, anonymous) =
        (page_size(), std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: creates a new mapping, which only the slices below access, and protects its second page.
    let addr = unsafe {
        let addr = libc::mmap(none, 2 * page, libc::PROT_READ | libc::PROT_WRITE, anonymous, -1, 0);
        assert_ne!(addr, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(addr.add(page), page, libc::PROT_NONE), 0);
        addr.expose_provenance()
    };
    for len in [1, 2, 3, 5, 8, 9, 20, 40, 200, 300, 700, 2000] {
        // Either the last byte or the last half is inaccessible.
        for accessible in [len - 1, len / 2] {
            // SAFETY: the slice lies in the mapping of this test, and accesses to its protected page return
            // an error.
            let slice = unsafe { HostSlice::from_raw(addr + page - accessible, len) };
            let (mut bytes, mut out) = (vec![5; len], Vec::new());
            assert_eq!(slice.load(&mut bytes), Err(Faulted), "{len}");
            for source in [CopySource::Read, CopySource::Unread] {
                assert_eq!(slice.store(&bytes, source), Err(Faulted), "{len}");
            }
            assert_eq!(slice.probe(), Err(Faulted), "{len}");
            assert!(slice.load_and_crc(&mut bytes, Icrc::default()).is_err(), "{len}");
            assert!(slice.append(&mut out, Some(&mut Icrc::default())).is_err() && out.is_empty(), "{len}");
            assert!(slice.append(&mut out, None).is_err() && out.is_empty(), "{len}");
            assert_eq!(slice.split_at(accessible).0.probe(), Ok(()));
        }
    }
    // SAFETY: the word lies in the protected page of the same mapping.
    let word = unsafe { HostSlice::from_raw(addr + page, 8) };
    assert_eq!(word.atomic(AtomicOp::FetchAdd(1)), Err(Faulted));
    assert_eq!(word.atomic(AtomicOp::CompareSwap { compare: 0, swap: 1 }), Err(Faulted));
    // SAFETY: the mapping belongs to this test, and nothing accesses it any more.
    assert_eq!(unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(addr), 2 * page) }, 0);
}
