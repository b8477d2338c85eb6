//! Tests of memory features through the verbs API: memory windows, fast-registered regions, null regions,
//! device memory, FLUSH and others.

use std::time::Duration;

use urxe::verbs::errors::{CreateError, PostError, WaitError};
use urxe::verbs::memory::{Bind, WindowKind};
use urxe::verbs::*;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns two connected endpoints whose queue pairs permit all kinds of remote access.
fn pair() -> (TestEndpoint, TestEndpoint) {
    let access = Access::ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    fabric.pair_builder().connect(ConnectOptions::default().access(access)).build().unwrap()
}

fn execute(node: &TestEndpoint, wr: &SendWr<'_>) -> Completion {
    node.qp.post_send(wr).unwrap();
    node.cq.wait(TIMEOUT).unwrap()
}

/// Posts a work request that must fail, and returns the error status of its completion.
fn failed_status(node: &TestEndpoint, wr: &SendWr<'_>) -> WcStatus {
    node.qp.post_send(wr).unwrap();
    match node.cq.wait(TIMEOUT) {
        Err(WaitError::Failed(wc)) => wc.status,
        other => panic!("{other:?}"),
    }
}

fn bytes(mr: &Mr, at: usize, len: usize) -> Vec<u8> {
    mr.to_vec()[at..at + len].to_vec()
}

#[test]
fn type_1_window_grants_access_until_rebound() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    src.write(0, b"window").unwrap();
    let mr = b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let mw = b.pd.alloc_mw(WindowKind::Type1).unwrap();
    let bind = Bind {
        rkey: RKey(0),
        region: mr.lkey(),
        addr: mr.addr() + 100,
        len: 6,
        access: Access::REMOTE_WRITE,
    };
    assert_eq!(mw.bind(&mr, 100..106, Access::REMOTE_WRITE), Bind { rkey: mw.rkey(), ..bind });
    let rkey = b.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED).unwrap();
    assert_eq!((b.cq.wait(TIMEOUT).unwrap().opcode, mw.rkey()), (WcOpcode::BindMw, rkey));
    let to = RemoteAddr { va: mr.addr() + 100, rkey };
    execute(&a, &SendWr::write(2, &[src.sge(0..6)], to));
    assert_eq!(bytes(&mr, 99, 8), b"\0window\0");
    // After the window is bound again, the old key is stale.
    let new_rkey = b.qp.bind_mw(&mw, 3, &bind, SendFlags::SIGNALED).unwrap();
    b.cq.wait(TIMEOUT).unwrap();
    execute(&a, &SendWr::write(4, &[src.sge(0..6)], RemoteAddr { rkey: new_rkey, ..to }));
    assert_eq!(failed_status(&a, &SendWr::write(5, &[src.sge(0..6)], to)), WcStatus::RemAccessErr);
    let refused = b.qp.bind_mw(&b.pd.alloc_mw(WindowKind::Type2B).unwrap(), 6, &bind, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::WindowKind(WindowKind::Type2B)));
}

#[test]
fn type_2_window_grants_access_until_remote_invalidate() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let mr = b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let mw = b.pd.alloc_mw(WindowKind::Type2B).unwrap();
    let bind = mw.bind(&mr, 8..72, Access::REMOTE_READ | Access::ZERO_BASED);
    assert_eq!((bind.rkey, bind.addr, bind.len), (mw.rkey(), mr.addr() + 8, 64));
    execute(&b, &SendWr::bind_mw(1, bind));
    mr.write(8, b"once").unwrap();
    let from = RemoteAddr { va: 0, rkey: mw.rkey() };
    execute(&a, &SendWr::read(2, &[src.sge(0..4)], from));
    assert_eq!(bytes(&src, 0, 4), b"once");
    b.qp.post_recv(&RecvWr::new(3, &[mr.sge(200..210)])).unwrap();
    execute(&a, &SendWr::send_inval(4, &[src.sge(0..4)], mw.rkey()));
    let wc = b.cq.wait(TIMEOUT).unwrap();
    assert_eq!((wc.wr_id, wc.invalidated), (3, Some(mw.rkey())));
    assert_eq!(failed_status(&a, &SendWr::read(5, &[src.sge(0..4)], from)), WcStatus::RemAccessErr);
}

#[test]
fn deregistration_of_a_region_with_bound_windows_fails() {
    let (_a, b) = pair();
    let mut memory = vec![0u64; 8];
    // SAFETY: `memory` outlives the region, and only the region accesses it.
    let mr = unsafe {
        b.pd.reg_mr_raw(memory.as_mut_ptr().cast(), 64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
    };
    let mw = b.pd.alloc_mw(WindowKind::Type2A).unwrap();
    let bind = mw.bind(&mr, 0..64, Access::REMOTE_READ);
    execute(&b, &SendWr::bind_mw(1, bind));
    let (mr, e) = mr.dereg().unwrap_err();
    assert_eq!(e.to_string(), format!("the region of key {:#x} has 1 window bound to it", mr.lkey().0));
    execute(&b, &SendWr::local_inv(2, bind.rkey));
    mr.dereg().unwrap();
}

#[test]
fn fast_registration_grants_access_until_invalidated() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    src.write(0, b"fast").unwrap();
    let mr = b.pd.alloc_mr(4096).unwrap();
    let reg = mr.reg(1000, 96, 0x7000_0000, Access::ALL);
    execute(&b, &SendWr::reg_mr(1, reg));
    execute(&a, &SendWr::write(2, &[src.sge(0..4)], RemoteAddr { va: 0x7000_0001, rkey: mr.rkey() }));
    let mut got = [0; 4];
    mr.buffer().read(1001, &mut got).unwrap();
    assert_eq!(&got, b"fast");
    execute(&b, &SendWr::local_inv(3, mr.rkey()));
    let part = [src.sge(0..4)];
    let stale = SendWr::write(4, &part, RemoteAddr { va: 0x7000_0001, rkey: mr.rkey() });
    assert_eq!(failed_status(&a, &stale), WcStatus::RemAccessErr);
}

#[test]
fn write_flush_and_atomic_write_complete_in_order() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let dst = b.pd.reg_mr(4096, Access::ALL | flushes).unwrap();
    let placement = Placement::all();
    a.qp.post_send(&SendWr::write(1, &[src.sge(0..64)], dst.remote(0))).unwrap();
    a.qp.post_send(&SendWr::flush(2, dst.remote(0), 64, placement)).unwrap();
    a.qp.post_send(&SendWr::atomic_write(3, dst.remote(64), *b"all of 8")).unwrap();
    let got: Vec<_> = (0..3).map(|_| a.cq.wait(TIMEOUT).unwrap()).map(|wc| (wc.wr_id, wc.opcode)).collect();
    assert_eq!(got, [(1, WcOpcode::RdmaWrite), (2, WcOpcode::Flush), (3, WcOpcode::AtomicWrite)]);
    assert_eq!(bytes(&dst, 64, 8), b"all of 8");
}

/// Checks that a FLUSH writes data in a mapped file back to the file.
#[test]
fn flush_writes_mapped_bytes_to_the_file() {
    use std::io::{Read, Seek};
    let (a, b) = pair();
    let src = a.pd.reg_mr(8192, Access::ALL).unwrap();
    src.write(0, &[7; 8192]).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let len = std::num::NonZeroUsize::new(8192).unwrap();
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel picks affects no other memory; it is unmapped below
    // after its region is dropped.
    let map = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
    let access = Access::ALL | Access::FLUSH_PERSISTENT;
    // SAFETY: the mapping covers the 8192 bytes and outlives the region.
    let mr = unsafe { b.pd.reg_mr_raw(map.as_ptr().cast(), 8192, access) }.unwrap();
    let placement = Placement::PERSISTENT;
    execute(&a, &SendWr::write(1, &[src.sge(0..8000)], mr.remote(100)));
    execute(&a, &SendWr::flush(2, mr.remote(100), 8000, placement));
    drop(mr);
    // SAFETY: the region is dropped, so that no reference to the mapping exists.
    unsafe { munmap(map, 8192) }.unwrap();
    let mut got = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut got).unwrap();
    assert!(got[..100] == [0; 100] && got[100..8100] == [7; 8000] && got[8100..] == [0; 92]);
}

/// Runs in real time, where the payload is copied at transmission, and in virtual time, where it is copied
/// when its packet is built.
#[cfg(target_arch = "x86_64")]
#[test]
fn access_to_protected_memory_fails_the_work_request_on_either_side() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    let real_time = || Fabric::new().pair().unwrap();
    let len = std::num::NonZeroUsize::new(65_536).unwrap();
    for make_pair in [pair as fn() -> (TestEndpoint, TestEndpoint), real_time] {
        let cases = [8, 700, 40_000]
            .map(|len| [(true, true), (true, false), (false, true), (false, false)].map(|case| (len, case)));
        for (len_used, (is_local, is_write)) in cases.into_iter().flatten() {
            let (a, b) = make_pair();
            let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping at an address that the kernel picks affects no other memory; it is
            // unmapped below after its region is dropped.
            let map = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }.unwrap();
            let owner = if is_local { &a } else { &b };
            // SAFETY: the mapping covers the bytes and outlives the region; on this architecture accesses of
            // protected memory fail without a fault of the process.
            let protected = unsafe { owner.pd.reg_mr_raw(map.as_ptr().cast(), 65_536, Access::ALL) }.unwrap();
            let other = if is_local { &b } else { &a }.pd.reg_mr(65_536, Access::ALL).unwrap();
            // SAFETY: only the region accesses the mapping.
            unsafe { mprotect(map, 65_536, ProtFlags::PROT_NONE) }.unwrap();
            let protected_sges = [Sge { addr: protected.addr(), length: len_used, lkey: protected.lkey() }];
            let other_sges = [other.sge(0..len_used as usize)];
            let (sges, remote, status) = match is_local {
                true => (&protected_sges, other.remote(0), WcStatus::LocProtErr),
                false => (&other_sges, protected.remote(0), WcStatus::RemOpErr),
            };
            let wr = if is_write { SendWr::write(1, sges, remote) } else { SendWr::read(1, sges, remote) };
            assert_eq!(
                failed_status(&a, &wr),
                status,
                "{len_used} bytes, protected memory is local: {is_local}, WRITE: {is_write}"
            );
            drop(protected);
            // SAFETY: the region is dropped, so that no reference to the mapping exists.
            unsafe { munmap(map, 65_536) }.unwrap();
        }
    }
}

#[test]
fn device_memory_is_accessed_by_peers_within_limits() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    src.write(0, b"device").unwrap();
    let dm = b.context.alloc_dm(128).unwrap();
    let mr = b.pd.reg_dm_mr(&dm, 32..128, Access::ALL | Access::ZERO_BASED).unwrap();
    assert_eq!((mr.addr(), mr.len()), (0, 96));
    execute(&a, &SendWr::write(1, &[src.sge(0..6)], mr.remote(2)));
    let mut got = [0; 6];
    dm.read(34, &mut got).unwrap();
    assert_eq!(&got, b"device");
    // Another region of the same memory, and the limit of the device.
    dm.write(0, b"host").unwrap();
    let whole = b.pd.reg_dm_mr(&dm, 0..128, Access::ALL | Access::ZERO_BASED).unwrap();
    execute(&a, &SendWr::read(2, &[src.sge(0..4)], whole.remote(0)));
    assert_eq!(bytes(&src, 0, 4), b"host");
    let max = b.context.query_device().limits.max_dm_size as usize;
    assert!(matches!(b.context.alloc_dm(max + 1), Err(CreateError::Value { .. })));
    assert!(matches!(b.context.alloc_dm(max), Err(CreateError::Exhausted { .. })));
    assert!(b.pd.reg_dm_mr(&dm, 0..129, Access::ALL | Access::ZERO_BASED).is_err());
    assert!(b.pd.reg_dm_mr(&dm, 0..128, Access::ALL).is_err());
    drop((mr, whole, dm));
    assert!(b.context.alloc_dm(max).is_ok());
}

#[test]
fn null_region_discards_part_of_a_message() {
    let (a, b) = pair();
    let (src, dst) = (a.pd.reg_mr(64, Access::ALL).unwrap(), b.pd.reg_mr(64, Access::ALL).unwrap());
    src.write(0, b"header and body").unwrap();
    let null = b.pd.alloc_null_mr().unwrap();
    b.qp.post_recv(&RecvWr::new(1, &[null.sge(11), dst.sge(0..10)])).unwrap();
    execute(&a, &SendWr::send(2, &[src.sge(0..15)]));
    assert_eq!(b.cq.wait(TIMEOUT).unwrap().byte_len, 15);
    assert_eq!(bytes(&dst, 0, 4), b"body");
}

#[test]
fn reregistration_changes_length_access_and_pd() {
    let (a, mut b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let mut mr = b.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    let old = mr.remote(0);
    mr.rereg(None, Some(8192), Some(Access::ALL)).unwrap();
    assert_eq!(mr.len(), 8192);
    execute(&a, &SendWr::write(1, &[src.sge(0..64)], mr.remote(8000)));
    // Into another protection domain and back.
    let other = b.context.alloc_pd().unwrap();
    mr.rereg(Some(&other), None, None).unwrap();
    mr.rereg(Some(&b.pd), None, None).unwrap();
    execute(&a, &SendWr::write(2, &[src.sge(0..64)], mr.remote(0)));
    assert_eq!(failed_status(&a, &SendWr::write(3, &[src.sge(0..64)], old)), WcStatus::RemAccessErr);
    b.context = Context::on_fabric(&Fabric::new()).unwrap();
    let foreign_pd = b.context.alloc_pd().unwrap();
    assert!(matches!(mr.rereg(Some(&foreign_pd), None, None), Err(CreateError::OtherContext(_))));
}

#[test]
fn region_is_addressed_from_zero_or_chosen_iova() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let zero = b.pd.reg_mr(64, Access::ALL | Access::ZERO_BASED).unwrap();
    let far = b.pd.reg_mr(64, MrOptions::new(Access::ALL).iova(0xffff_0000_0000_0000)).unwrap();
    assert_eq!((zero.addr(), far.addr()), (0, 0xffff_0000_0000_0000));
    src.write(0, b"here").unwrap();
    for (i, mr) in [zero, far].iter().enumerate() {
        execute(&a, &SendWr::write(i as u64, &[src.sge(0..4)], mr.remote(60)));
        assert_eq!(bytes(mr, 60, 4), b"here");
    }
}

#[test]
fn registration_ignores_optional_access_flags_and_fails_for_unknown_ones() {
    let (_, b) = pair();
    let accepted = Access::ALL | Access::ON_DEMAND | Access::HUGETLB | Access::RELAXED_ORDERING;
    assert!(b.pd.reg_mr(64, accepted).is_ok());
    // Flags of the optional range may be ignored, whatever they are.
    assert!(b.pd.reg_mr(64, Access::ALL | Access::from_bits_retain(1 << 29)).is_ok());
    let refused = b.pd.reg_mr(64, Access::ALL | Access::from_bits_retain(1 << 10)).unwrap_err();
    assert!(refused.to_string().ends_with("it has unknown flags"), "{refused}");
    assert!(b.pd.reg_mr(64, Access::REMOTE_ATOMIC).is_err());
}

#[test]
fn implicit_on_demand_region_covers_the_whole_address_space() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    src.write(0, b"anywhere").unwrap();
    let access = Access::ALL | Access::ON_DEMAND;
    // SAFETY: the call is refused, so no memory becomes accessible.
    let refused = unsafe { b.pd.reg_mr_implicit(Access::ALL) };
    assert!(refused.is_err());
    // SAFETY: the only peer is this test, which accesses only memory that it has mapped itself.
    let all = unsafe { b.pd.reg_mr_implicit(access) }.unwrap();
    let len = std::num::NonZeroUsize::new(8192).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel picks affects no other memory; only the peer
    // accesses it, and it is unmapped below.
    let map = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }.unwrap();
    let at = RemoteAddr { va: map.as_ptr() as u64 + 4090, rkey: all.rkey() };
    execute(&a, &SendWr::write(1, &[src.sge(0..8)], at));
    execute(&a, &SendWr::read(2, &[src.sge(8..16)], at));
    assert_eq!(bytes(&src, 8, 8), b"anywhere");
    // SAFETY: the peer's accesses are complete, so that no reference to the mapping exists.
    unsafe { munmap(map, 8192) }.unwrap();
    // Access to unmapped memory is refused, and the process survives.
    assert_eq!(failed_status(&a, &SendWr::read(3, &[src.sge(8..16)], at)), WcStatus::RemAccessErr);
}

#[test]
fn write_to_read_only_memory_of_an_on_demand_region_fails() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    // SAFETY: the only peer is this test, which accesses only constants of its own.
    let all = unsafe { b.pd.reg_mr_implicit(Access::ALL | Access::ON_DEMAND) }.unwrap();
    static CONSTANT: [u8; 16] = *b"sixteen of these";
    let at = RemoteAddr { va: CONSTANT.as_ptr() as u64, rkey: all.rkey() };
    execute(&a, &SendWr::read(1, &[src.sge(0..16)], at));
    assert_eq!(bytes(&src, 0, 16), CONSTANT);
    assert_eq!(failed_status(&a, &SendWr::write(2, &[src.sge(0..16)], at)), WcStatus::RemAccessErr);
}

#[test]
fn region_of_length_0_allows_only_accesses_of_length_0() {
    let (a, b) = pair();
    let (local, remote) =
        (a.pd.reg_mr(0, Access::LOCAL_WRITE).unwrap(), b.pd.reg_mr(0, Access::ALL).unwrap());
    assert_eq!((local.len(), remote.len()), (0, 0));
    let (empty, at) = ([local.sge(0..0)], remote.remote(0));
    for wr in [SendWr::write(1, &empty, at), SendWr::read(2, &empty, at)] {
        assert_eq!(execute(&a, &wr).byte_len, 0);
    }
    let full = a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    assert_eq!(failed_status(&a, &SendWr::write(3, &[full.sge(0..1)], at)), WcStatus::RemAccessErr);
    let (a, _b) = pair();
    let local = a.pd.reg_mr(0, Access::LOCAL_WRITE).unwrap();
    let beyond = [Sge { addr: local.addr(), length: 1, lkey: local.lkey() }];
    assert_eq!(failed_status(&a, &SendWr::send(4, &beyond)), WcStatus::LocProtErr);
}
