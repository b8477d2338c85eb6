//! Conformance cases: fast registration, null regions, re-registration.

use urxe::memory::{Access, Bind, Buffer, FastReg, PdId, RegionInfo, ReregMr, WindowKind};
use urxe::transport::{AsyncEvent, SendFlags, Sge, WcOpcode, WcStatus, WrOp};
use urxe::wire::{LKey, NakCode, RKey};

use crate::bench::{Bench, RQ, SQ, bad, ok};
use crate::pkt::*;
use crate::support::PD;

const LEN: usize = 256;

/// Returns memory allocated for fast registration of which no part is registered yet, its handle, and the
/// work request that registers bytes 64 to 128 at 0x9000.
fn fast(b: &mut Bench, pd: PdId) -> (Buffer, RegionInfo, FastReg) {
    let memory = Buffer::zeroed(LEN);
    // SAFETY: `Buffer` owns the memory, and every case keeps it alive until its last access through the
    // bench.
    let info = unsafe { b.memory.register_fast(pd, memory.addr(), LEN) }.unwrap();
    let key = LKey(info.lkey.0 & !0xff | 0x55);
    (memory, info, FastReg { key, offset: 64, len: 64, iova: 0x9000, access: Access::ALL })
}

fn open(b: &mut Bench) -> (Buffer, RegionInfo, FastReg) {
    let (memory, info, reg) = fast(b, PD);
    b.manage(900, WrOp::RegMr(reg));
    b.silence();
    b.sends(&[ok(900, WcOpcode::RegMr, 0)]);
    (memory, info, reg)
}

fn is_open(b: &Bench, reg: &FastReg) -> bool {
    let peer = b.memory.remote(b.us(), RKey(reg.key.0), reg.iova, 1, Access::REMOTE_READ).is_ok();
    assert_eq!(peer, b.memory.local(b.us(), reg.key, reg.iova, 1, Access::LOCAL_READ).is_ok());
    peer
}

#[track_caller]
fn refused(b: &mut Bench, op: WrOp) {
    b.manage(1, op);
    b.silence();
    b.sends(&[bad(1, WcStatus::MwBindErr)]);
}

cases! {
    fast_registration_grants_local_and_remote_access => "fast.reg" {
        let mut b = Bench::new();
        let (memory, _, reg) = fast(&mut b, PD);
        assert!(!is_open(&b, &reg));
        b.manage(1, WrOp::RegMr(reg));
        b.silence();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        b.ask(&[write(Only, RQ, (0x9000, RKey(reg.key.0), 2), &[7, 8])], &[ack(RQ, 1)]);
        let mut got = [0; 2];
        memory.read(64, &mut got).unwrap();
        assert_eq!(got, [7, 8]);
        let sge = [Sge { addr: 0x9001, length: 1, lkey: reg.key }];
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        b.expect(&[send(Only, SQ, &[8])]);
        b.peer(&[ack(SQ, 1)]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
    }

    next_work_request_may_use_registered_key => "fast.reg" {
        let mut b = Bench::new();
        let (memory, _, reg) = fast(&mut b, PD);
        memory.write(64, b"abc").unwrap();
        b.manage(1, WrOp::RegMr(reg));
        let sge = [Sge { addr: 0x9000, length: 3, lkey: reg.key }];
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        b.expect(&[send(Only, SQ, b"abc")]);
        b.peer(&[ack(SQ, 1)]);
        b.sends(&[ok(1, WcOpcode::RegMr, 0), ok(2, WcOpcode::Send, 3)]);
    }

    fast_registration_of_the_whole_memory_succeeds => "fast.reg" {
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        b.manage(1, WrOp::RegMr(FastReg { offset: 0, len: LEN as u64, ..reg }));
        b.silence();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        assert!(b.memory.remote(b.us(), RKey(reg.key.0), 0x9000, LEN as u32, Access::REMOTE_READ).is_ok());
    }

    access_beyond_registered_range_or_rights_is_refused => "fast.reg" {
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        let reg = FastReg { access: Access::LOCAL_WRITE | Access::REMOTE_READ, ..reg };
        b.manage(1, WrOp::RegMr(reg));
        b.silence();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        let key = RKey(reg.key.0);
        for (va, len, access) in [(0x8fff, 1, Access::REMOTE_READ), (0x9000, 65, Access::REMOTE_READ), (0x9000, 1, Access::REMOTE_WRITE)] {
            assert!(b.memory.remote(b.us(), key, va, len, access).is_err());
        }
        assert!(b.memory.remote(b.us(), key, 0x9000, 64, Access::REMOTE_READ).is_ok());
        assert!(b.memory.remote(urxe::memory::Accessor { pd: PdId(2), ..b.us() }, key, 0x9000, 1, Access::REMOTE_READ).is_err());
    }

    invalid_fast_registration_is_refused => "fast.reg.refused" {
        let mut b = Bench::new();
        let (_m, _, reg) = open(&mut b);
        refused(&mut b, WrOp::RegMr(FastReg { key: LKey(reg.key.0 + 1), ..reg }));
        assert!(is_open(&b, &reg));
        for (offset, len) in [(64, 193), (257, 1), (u64::MAX, 2), (0, 0), (1, u64::MAX)] {
            let mut b = Bench::new();
            let (_m, _, reg) = fast(&mut b, PD);
            refused(&mut b, WrOp::RegMr(FastReg { offset, len, ..reg }));
            assert!(!is_open(&b, &reg));
        }
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PdId(2));
        refused(&mut b, WrOp::RegMr(reg));
        // Remote write requires local write.
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        refused(&mut b, WrOp::RegMr(FastReg { access: Access::REMOTE_WRITE, ..reg }));
        // The key of a plain region, of a window, and of no object.
        let mut b = Bench::new();
        let key = b.mr.info.lkey;
        refused(&mut b, WrOp::RegMr(FastReg { key, ..reg }));
        let mut b = Bench::new();
        let window = b.memory.alloc_window(PD, WindowKind::Type1).unwrap();
        refused(&mut b, WrOp::RegMr(FastReg { key: LKey(window.0), ..reg }));
        refused(&mut Bench::new(), WrOp::RegMr(FastReg { key: LKey(0x7777_7700), ..reg }));
    }

    local_invalidate_revokes_access => "fast.inv" {
        let mut b = Bench::new();
        let (_m, info, reg) = open(&mut b);
        b.manage(1, WrOp::LocalInv(RKey(reg.key.0)));
        b.silence();
        b.sends(&[ok(1, WcOpcode::LocalInv, 0)]);
        assert!(!is_open(&b, &reg));
        // The region may be registered again under another key; its handle remains the first key.
        let again = FastReg { key: LKey(reg.key.0 + 1), ..reg };
        b.manage(2, WrOp::RegMr(again));
        b.silence();
        b.sends(&[ok(2, WcOpcode::RegMr, 0)]);
        assert!(is_open(&b, &again) && !is_open(&b, &reg));
        assert_eq!(b.memory.deregister(info.lkey), Ok(()));
        assert!(!is_open(&b, &again));
        // The next object in this slot gets a key that differs from its last one.
        let next: Vec<_> = (0..4).map(|_| b.memory.alloc_window(PD, WindowKind::Type1).unwrap().0).collect();
        assert!(next.contains(&(again.key.0 + 1)) && !next.contains(&again.key.0), "{next:x?}");
    }

    send_with_invalidate_revokes_access => "fast.inv" {
        let mut b = Bench::new();
        let (_m, _, reg) = open(&mut b);
        b.recv(1, 0, 4);
        b.ask(&[send_inv(Only, RQ, &[1], RKey(reg.key.0))], &[ack(RQ, 1)]);
        assert_eq!(b.raw_recv().invalidated, Some(RKey(reg.key.0)));
        assert!(!is_open(&b, &reg));
    }

    remote_invalidate_of_local_registration_is_refused => "fast.inv" {
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        b.manage(1, WrOp::RegMr(FastReg { access: Access::LOCAL_WRITE, ..reg }));
        b.silence();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        b.recv(1, 0, 4);
        b.ask(&[send_inv(Only, RQ, &[1], RKey(reg.key.0))], &[ack(RQ, 0)]);
        b.recvs(&[bad(1, WcStatus::RemInvReqErr)]);
        assert!(b.memory.local(b.us(), reg.key, 0x9000, 1, Access::LOCAL_READ).is_ok());
    }

    local_invalidate_of_stale_key_fails => "fast.inv" {
        for wrong in [0x54, 0x56] {
            let mut b = Bench::new();
            let (_m, _, reg) = open(&mut b);
            refused(&mut b, WrOp::LocalInv(RKey(reg.key.0 & !0xff | wrong)));
            assert!(is_open(&b, &reg));
        }
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        refused(&mut b, WrOp::LocalInv(RKey(reg.key.0)));
        // A region of another protection domain.
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PdId(2));
        let by = urxe::memory::Accessor { pd: PdId(2), ..b.us() };
        b.memory.fast_reg(&reg, by).unwrap();
        refused(&mut b, WrOp::LocalInv(RKey(reg.key.0)));
    }

    invalidate_with_bound_window_is_refused => "fast.windows" {
        let mut b = Bench::new();
        let (_m, info, reg) = fast(&mut b, PD);
        let reg = FastReg { access: Access::ALL | Access::MW_BIND, ..reg };
        b.memory.fast_reg(&reg, b.us()).unwrap();
        let rkey = b.memory.alloc_window(PD, WindowKind::Type2B).unwrap();
        let bind = Bind { rkey, region: reg.key, addr: 0x9000, len: 8, access: Access::REMOTE_READ };
        b.memory.bind(&bind, b.us()).unwrap();
        assert!(b.memory.deregister(info.lkey).is_err());
        refused(&mut b, WrOp::LocalInv(RKey(reg.key.0)));
        assert!(is_open(&b, &reg));
        b.memory.invalidate(rkey, b.us(), false).unwrap();
        b.memory.invalidate(RKey(reg.key.0), b.us(), false).unwrap();
        assert!(!is_open(&b, &reg));
    }

    null_region_discards_writes_and_reads_as_zeros => "mr.null" {
        let mut b = Bench::new();
        let null = b.memory.register_null(PD).unwrap();
        let part = |length| Sge { addr: 0xdead_0000, length, lkey: null };
        b.recv_sges(1, &[b.mr.sge(0, 2), part(300), b.mr.sge(2, 2)]).unwrap();
        b.ask(&message(256, &[7; 304], send, RQ), &[ack(RQ + 1, 1)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 304)]);
        assert_eq!(b.mr.read(0, 4), [7; 4]);
        let sges = [b.mr.sge(0, 1), part(3), b.mr.sge(1, 1)];
        b.post_sges(2, WrOp::Send, &sges, SendFlags::SIGNALED).unwrap();
        b.expect(&[send(Only, SQ, &[7, 0, 0, 0, 7])]);
        b.peer(&[ack(SQ, 1)]);
        b.sends(&[ok(2, WcOpcode::Send, 5)]);
    }

    null_region_is_local_and_bound_to_its_domain => "mr.null" {
        let mut b = Bench::new();
        let null = b.memory.register_null(PD).unwrap();
        let other = b.memory.register_null(PdId(2)).unwrap();
        let sge = [Sge { addr: 0, length: 4, lkey: other }];
        assert!(b.memory.local(b.us(), LKey(null.0 + 1), 0, 4, Access::LOCAL_READ).is_err());
        b.ask(&[write(Only, RQ, (0, RKey(null.0), 1), &[1])], &[nak(RQ, 0, NakCode::RemoteAccessError)]);
        b.events(&[AsyncEvent::QpAccessError]);
        let mut c = Bench::new();
        std::mem::swap(&mut b.memory, &mut c.memory);
        std::mem::swap(&mut b.mr, &mut c.mr);
        c.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        c.silence();
        c.sends(&[bad(1, WcStatus::LocProtErr)]);
        std::mem::swap(&mut b.memory, &mut c.memory);
        std::mem::swap(&mut b.mr, &mut c.mr);
    }

    reregistration_changes_access_memory_or_domain => "mr.rereg" {
        let mut b = Bench::new();
        let r = b.region(PD, 64, 0x1000, Access::ALL);
        let old = b.more[r].info;
        let anew = |b: &mut Bench, lkey, change: ReregMr| {
            // SAFETY: the memory is either unchanged or that of `other`, which outlives the last access
            // through the bench.
            unsafe { b.memory.reregister(lkey, &change) }.unwrap()
        };
        let info = anew(&mut b, old.lkey, ReregMr { access: Some(Access::REMOTE_READ), ..ReregMr::default() });
        let may = |b: &Bench, rkey, va, needed| b.memory.remote(b.us(), rkey, va, 8, needed).is_ok();
        assert_eq!(info, old, "the memory is the same");
        assert!(may(&b, info.rkey, 0x1000, Access::REMOTE_READ) && !may(&b, info.rkey, 0x1000, Access::REMOTE_WRITE));
        let other = Buffer::zeroed(16);
        let translation = Some((other.addr(), 16, 0x5000));
        let info = anew(&mut b, info.lkey, ReregMr { translation, ..ReregMr::default() });
        assert!(info != old && !may(&b, old.rkey, 0x5008, Access::REMOTE_READ));
        assert!(may(&b, info.rkey, 0x5008, Access::REMOTE_READ));
        assert!(!may(&b, info.rkey, 0x5009, Access::REMOTE_READ) && !may(&b, info.rkey, 0x1000, Access::REMOTE_READ));
        let info = anew(&mut b, info.lkey, ReregMr { pd: Some(PdId(2)), ..ReregMr::default() });
        assert!(!may(&b, info.rkey, 0x5000, Access::REMOTE_READ));
        // SAFETY: the request changes nothing, so the registered memory stays as valid as before.
        let stale = unsafe { b.memory.reregister(old.lkey, &ReregMr::default()) };
        assert!(stale.is_err());
    }

    reregistration_with_bound_window_is_refused => "mr.rereg" {
        let mut b = Bench::new();
        let r = b.region(PD, 64, 0x1000, Access::ALL | Access::MW_BIND);
        let region = b.more[r].info.lkey;
        let rkey = b.memory.alloc_window(PD, WindowKind::Type1).unwrap();
        let bind = Bind { rkey, region, addr: 0x1000, len: 8, access: Access::REMOTE_READ };
        b.memory.bind(&bind, b.us()).unwrap();
        // SAFETY: the request changes nothing, so the registered memory stays as valid as before.
        assert!(unsafe { b.memory.reregister(region, &ReregMr::default()) }.is_err());
        assert!(b.memory.local(b.us(), region, 0x1000, 1, Access::LOCAL_READ).is_ok());
    }
}
