//! Windows, fast regions, null regions, device memory and their like, as a user of the verbs API meets them.

use std::time::Duration;

use urxe::verbs::*;

const SOON: Duration = Duration::from_secs(5);

/// Two connected nodes whose queue pairs allow all there is.
fn pair() -> (Node, Node) {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let a = Node::new(Context::on_fabric(&fabric).unwrap()).unwrap();
    let b = Node::new(Context::on_fabric(&fabric).unwrap()).unwrap();
    let options = ConnectOptions {
        access: Access::ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
        ..ConnectOptions::default()
    };
    a.qp.connect(&b.qp.endpoint(), &options).unwrap();
    b.qp.connect(&a.qp.endpoint(), &options).unwrap();
    (a, b)
}

fn done(node: &Node, wr: &SendWr<'_>) -> Completion {
    node.qp.post_send(wr).unwrap();
    node.cq.wait(SOON).unwrap()
}

/// The status with which a work request fails.
fn fails(node: &Node, wr: &SendWr<'_>) -> WcStatus {
    node.qp.post_send(wr).unwrap();
    match node.cq.wait(SOON) {
        Err(WaitError::Failed(wc)) => wc.status,
        other => panic!("{other:?}"),
    }
}

fn bytes(mr: &Mr, at: usize, len: usize) -> Vec<u8> {
    mr.to_vec()[at..at + len].to_vec()
}

#[test]
fn a_window_of_type_1() {
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
    let rkey = b.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED).unwrap();
    assert_eq!((b.cq.wait(SOON).unwrap().opcode, mw.rkey()), (WcOpcode::BindMw, rkey));
    let to = RemoteAddr { va: mr.addr() + 100, rkey };
    done(&a, &SendWr::write(2, &[src.sge(0..6)], to));
    assert_eq!(bytes(&mr, 99, 8), b"\0window\0");
    // Bound anew, the old key is stale.
    let again = b.qp.bind_mw(&mw, 3, &bind, SendFlags::SIGNALED).unwrap();
    b.cq.wait(SOON).unwrap();
    done(&a, &SendWr::write(4, &[src.sge(0..6)], RemoteAddr { rkey: again, ..to }));
    assert_eq!(fails(&a, &SendWr::write(5, &[src.sge(0..6)], to)), WcStatus::RemAccessErr);
    let refused = b.qp.bind_mw(&b.pd.alloc_mw(WindowKind::Type2B).unwrap(), 6, &bind, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::WindowKind(WindowKind::Type2B)));
}

#[test]
fn a_window_of_type_2_until_the_peer_gives_it_back() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let mr = b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let mw = b.pd.alloc_mw(WindowKind::Type2B).unwrap();
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    let bind = Bind { rkey: mw.next_rkey(), region: mr.lkey(), addr: mr.addr() + 8, len: 64, access };
    done(&b, &SendWr::bind_mw(1, bind));
    mr.write(8, b"once").unwrap();
    let from = RemoteAddr { va: 0, rkey: mw.rkey() };
    done(&a, &SendWr::read(2, &[src.sge(0..4)], from));
    assert_eq!(bytes(&src, 0, 4), b"once");
    b.qp.post_recv(&RecvWr { wr_id: 3, sges: &[mr.sge(200..210)] }).unwrap();
    done(&a, &SendWr::send_with_inv(4, &[src.sge(0..4)], mw.rkey()));
    let wc = b.cq.wait(SOON).unwrap();
    assert_eq!((wc.wr_id, wc.invalidated), (3, Some(mw.rkey())));
    assert_eq!(fails(&a, &SendWr::read(5, &[src.sge(0..4)], from)), WcStatus::RemAccessErr);
}

#[test]
fn a_region_is_not_deregistered_under_its_windows() {
    let (_a, b) = pair();
    let mut memory = vec![0u64; 8];
    // SAFETY: `memory` outlives the region, and nobody else uses it.
    let mr = unsafe {
        b.pd.reg_mr_raw(memory.as_mut_ptr().cast(), 64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
    };
    let mw = b.pd.alloc_mw(WindowKind::Type2A).unwrap();
    let (rkey, addr) = (mw.next_rkey(), mr.addr());
    let bind = Bind { rkey, region: mr.lkey(), addr, len: 64, access: Access::REMOTE_READ };
    done(&b, &SendWr::bind_mw(1, bind));
    let (mr, e) = mr.dereg().unwrap_err();
    assert_eq!(e.to_string(), format!("1 windows are bound to the region of key {:#x}", mr.lkey().0));
    done(&b, &SendWr::local_inv(2, rkey));
    mr.dereg().unwrap();
}

#[test]
fn fast_registration() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    src.write(0, b"fast").unwrap();
    let mr = b.pd.alloc_mr(4096).unwrap();
    let reg = mr.reg(1000, 96, 0x7000_0000, Access::ALL);
    done(&b, &SendWr::reg_mr(1, reg));
    done(&a, &SendWr::write(2, &[src.sge(0..4)], RemoteAddr { va: 0x7000_0001, rkey: mr.rkey() }));
    let mut got = [0; 4];
    mr.buffer().read(1001, &mut got).unwrap();
    assert_eq!(&got, b"fast");
    done(&b, &SendWr::local_inv(3, mr.rkey()));
    let part = [src.sge(0..4)];
    let stale = SendWr::write(4, &part, RemoteAddr { va: 0x7000_0001, rkey: mr.rkey() });
    assert_eq!(fails(&a, &stale), WcStatus::RemAccessErr);
}

#[test]
fn flush_and_atomic_write() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let dst = b.pd.reg_mr(4096, Access::ALL | flushes).unwrap();
    let placement = Placement { global: true, persistent: true };
    a.qp.post_send(&SendWr::write(1, &[src.sge(0..64)], dst.remote(0))).unwrap();
    a.qp.post_send(&SendWr::flush(2, dst.remote(0), 64, placement)).unwrap();
    a.qp.post_send(&SendWr::atomic_write(3, dst.remote(64), *b"all of 8")).unwrap();
    let got: Vec<_> = (0..3).map(|_| a.cq.wait(SOON).unwrap()).map(|wc| (wc.wr_id, wc.opcode)).collect();
    assert_eq!(got, [(1, WcOpcode::RdmaWrite), (2, WcOpcode::Flush), (3, WcOpcode::AtomicWrite)]);
    assert_eq!(bytes(&dst, 64, 8), b"all of 8");
}

/// What FLUSH is for: bytes of a mapped file.
#[test]
fn flush_reaches_the_file() {
    use std::io::{Read, Seek};
    let (a, b) = pair();
    let src = a.pd.reg_mr(8192, Access::ALL).unwrap();
    src.write(0, &[7; 8192]).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let len = std::num::NonZeroUsize::new(8192).unwrap();
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, unmapped below after its region is gone.
    let map = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
    let access = Access::ALL | Access::FLUSH_PERSISTENT;
    // SAFETY: the mapping outlives the region.
    let mr = unsafe { b.pd.reg_mr_raw(map.as_ptr().cast(), 8192, access) }.unwrap();
    let placement = Placement { global: false, persistent: true };
    done(&a, &SendWr::write(1, &[src.sge(0..8000)], mr.remote(100)));
    done(&a, &SendWr::flush(2, mr.remote(100), 8000, placement));
    drop(mr);
    // SAFETY: the region is gone.
    unsafe { munmap(map, 8192) }.unwrap();
    let mut got = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut got).unwrap();
    assert!(got[..100] == [0; 100] && got[100..8100] == [7; 8000] && got[8100..] == [0; 92]);
}

/// In real time payload is copied when it leaves, in virtual time when its packet is made.
#[cfg(target_arch = "x86_64")]
#[test]
fn memory_that_is_protected_fails_the_work_request_on_either_side() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    let real_time = || Fabric::new().pair().unwrap();
    let len = std::num::NonZeroUsize::new(65_536).unwrap();
    for make in [pair as fn() -> (Node, Node), real_time] {
        for (len_used, is_local) in [(8, true), (700, true), (40_000, true), (8, false), (40_000, false)] {
            let (a, b) = make();
            let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping, unmapped below after its region is gone.
            let map = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }.unwrap();
            let owner = if is_local { &a } else { &b };
            // SAFETY: the mapping outlives the region; what is protected fails the access on this machine.
            let lost = unsafe { owner.pd.reg_mr_raw(map.as_ptr().cast(), 65_536, Access::ALL) }.unwrap();
            let other = if is_local { &b } else { &a }.pd.reg_mr(65_536, Access::ALL).unwrap();
            // SAFETY: nothing but the region uses it.
            unsafe { mprotect(map, 65_536, ProtFlags::PROT_NONE) }.unwrap();
            let of_lost = [Sge { addr: lost.addr(), length: len_used, lkey: lost.lkey() }];
            let of_other = [other.sge(0..len_used as usize)];
            let (wr, status) = match is_local {
                true => (SendWr::write(1, &of_lost, other.remote(0)), WcStatus::LocProtErr),
                false => (SendWr::read(1, &of_other, lost.remote(0)), WcStatus::RemOpErr),
            };
            assert_eq!(fails(&a, &wr), status, "{len_used} bytes, local: {is_local}");
            drop(lost);
            // SAFETY: the region is gone.
            unsafe { munmap(map, 65_536) }.unwrap();
        }
    }
}

#[test]
fn device_memory() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    src.write(0, b"device").unwrap();
    let dm = b.context.alloc_dm(128).unwrap();
    let mr = b.pd.reg_dm_mr(&dm, 32..128, Access::ALL | Access::ZERO_BASED).unwrap();
    assert_eq!((mr.addr(), mr.len()), (0, 96));
    done(&a, &SendWr::write(1, &[src.sge(0..6)], mr.remote(2)));
    let mut got = [0; 6];
    dm.read(34, &mut got).unwrap();
    assert_eq!(&got, b"device");
    // Another region of the same memory, and the device's limit.
    dm.write(0, b"host").unwrap();
    let whole = b.pd.reg_dm_mr(&dm, 0..128, Access::ALL | Access::ZERO_BASED).unwrap();
    done(&a, &SendWr::read(2, &[src.sge(0..4)], whole.remote(0)));
    assert_eq!(bytes(&src, 0, 4), b"host");
    let most = b.context.query_device().limits.max_dm_size as usize;
    assert!(matches!(b.context.alloc_dm(most + 1), Err(CreateError::Value { .. })));
    assert!(matches!(b.context.alloc_dm(most), Err(CreateError::Exhausted { .. })));
    assert!(b.pd.reg_dm_mr(&dm, 0..129, Access::ALL | Access::ZERO_BASED).is_err());
    assert!(b.pd.reg_dm_mr(&dm, 0..128, Access::ALL).is_err());
    drop((mr, whole, dm));
    assert!(b.context.alloc_dm(most).is_ok());
}

#[test]
fn a_null_region_takes_what_nobody_wants() {
    let (a, b) = pair();
    let (src, dst) = (a.pd.reg_mr(64, Access::ALL).unwrap(), b.pd.reg_mr(64, Access::ALL).unwrap());
    src.write(0, b"header and body").unwrap();
    let null = b.pd.alloc_null_mr().unwrap();
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[null.sge(11), dst.sge(0..10)] }).unwrap();
    done(&a, &SendWr::send(2, &[src.sge(0..15)]));
    assert_eq!(b.cq.wait(SOON).unwrap().byte_len, 15);
    assert_eq!(bytes(&dst, 0, 4), b"body");
}

#[test]
fn registered_anew() {
    let (a, mut b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let mut mr = b.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    let old = mr.remote(0);
    mr.rereg(None, Some(8192), Some(Access::ALL)).unwrap();
    assert_eq!(mr.len(), 8192);
    done(&a, &SendWr::write(1, &[src.sge(0..64)], mr.remote(8000)));
    // Into another domain and back.
    let other = b.context.alloc_pd().unwrap();
    mr.rereg(Some(&other), None, None).unwrap();
    mr.rereg(Some(&b.pd), None, None).unwrap();
    done(&a, &SendWr::write(2, &[src.sge(0..64)], mr.remote(0)));
    assert_eq!(fails(&a, &SendWr::write(3, &[src.sge(0..64)], old)), WcStatus::RemAccessErr);
    b.context = Context::on_fabric(&Fabric::new()).unwrap();
    let stranger = b.context.alloc_pd().unwrap();
    assert!(matches!(mr.rereg(Some(&stranger), None, None), Err(CreateError::OtherContext(_))));
}

#[test]
fn addresses_of_the_users_choosing() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    let zero = b.pd.reg_mr(64, Access::ALL | Access::ZERO_BASED).unwrap();
    let far = b.pd.reg_mr_iova(64, 0xffff_0000_0000_0000, Access::ALL).unwrap();
    assert_eq!((zero.addr(), far.addr()), (0, 0xffff_0000_0000_0000));
    src.write(0, b"here").unwrap();
    for (i, mr) in [zero, far].iter().enumerate() {
        done(&a, &SendWr::write(i as u64, &[src.sge(0..4)], mr.remote(60)));
        assert_eq!(bytes(mr, 60, 4), b"here");
    }
}

#[test]
fn flags_that_need_nothing_and_flags_that_nobody_knows() {
    let (_, b) = pair();
    let taken = Access::ALL | Access::ON_DEMAND | Access::HUGETLB | Access::RELAXED_ORDERING;
    assert!(b.pd.reg_mr(64, taken).is_ok());
    // The optional range may be ignored, whatever is in it.
    assert!(b.pd.reg_mr(64, Access::ALL | Access(1 << 29)).is_ok());
    let refused = b.pd.reg_mr(64, Access::ALL | Access(1 << 10)).unwrap_err();
    assert!(refused.to_string().ends_with("some of it is not known"), "{refused}");
    assert!(b.pd.reg_mr(64, Access::REMOTE_ATOMIC).is_err());
}

#[test]
fn all_of_the_process_on_demand() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    src.write(0, b"anywhere").unwrap();
    let access = Access::ALL | Access::ON_DEMAND;
    // SAFETY: it is refused.
    let refused = unsafe { b.pd.reg_mr_implicit(Access::ALL) };
    assert!(refused.is_err());
    // SAFETY: the peer is this test, which names memory of its own.
    let all = unsafe { b.pd.reg_mr_implicit(access) }.unwrap();
    let len = std::num::NonZeroUsize::new(8192).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, used by the peer only, unmapped below.
    let map = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }.unwrap();
    let at = RemoteAddr { va: map.as_ptr() as u64 + 4090, rkey: all.rkey() };
    done(&a, &SendWr::write(1, &[src.sge(0..8)], at));
    done(&a, &SendWr::read(2, &[src.sge(8..16)], at));
    assert_eq!(bytes(&src, 8, 8), b"anywhere");
    // SAFETY: nobody uses it any more.
    unsafe { munmap(map, 8192) }.unwrap();
    // What is not mapped is refused, and the process lives.
    assert_eq!(fails(&a, &SendWr::read(3, &[src.sge(8..16)], at)), WcStatus::RemAccessErr);
}

#[test]
fn what_is_only_readable_is_not_written_on_demand() {
    let (a, b) = pair();
    let src = a.pd.reg_mr(64, Access::ALL).unwrap();
    // SAFETY: the peer is this test, which names constants of its own.
    let all = unsafe { b.pd.reg_mr_implicit(Access::ALL | Access::ON_DEMAND) }.unwrap();
    static CONSTANT: [u8; 16] = *b"sixteen of these";
    let at = RemoteAddr { va: CONSTANT.as_ptr() as u64, rkey: all.rkey() };
    done(&a, &SendWr::read(1, &[src.sge(0..16)], at));
    assert_eq!(bytes(&src, 0, 16), CONSTANT);
    assert_eq!(fails(&a, &SendWr::write(2, &[src.sge(0..16)], at)), WcStatus::RemAccessErr);
}

#[test]
fn region_without_bytes_takes_accesses_of_length_0_and_no_other() {
    let (a, b) = pair();
    let (ours, theirs) = (a.pd.reg_mr(0, Access::LOCAL_WRITE).unwrap(), b.pd.reg_mr(0, Access::ALL).unwrap());
    assert_eq!((ours.len(), theirs.len()), (0, 0));
    let (nothing, at) = ([ours.sge(0..0)], theirs.remote(0));
    for wr in [SendWr::write(1, &nothing, at), SendWr::read(2, &nothing, at)] {
        assert_eq!(done(&a, &wr).byte_len, 0);
    }
    let full = a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    assert_eq!(fails(&a, &SendWr::write(3, &[full.sge(0..1)], at)), WcStatus::RemAccessErr);
    let (a, _b) = pair();
    let ours = a.pd.reg_mr(0, Access::LOCAL_WRITE).unwrap();
    let beyond = [Sge { addr: ours.addr(), length: 1, lkey: ours.lkey() }];
    assert_eq!(fails(&a, &SendWr::send(4, &beyond)), WcStatus::LocProtErr);
}
