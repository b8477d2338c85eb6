//! Conformance cases: fast registration, null regions, re-registration.

use urxe::memory::{Access, Bind, Buffer, FastReg, PdId, RegionInfo, ReregMr, WindowKind};
use urxe::transport::{AsyncEvent, SendFlags, Sge, WcOpcode, WcStatus, WrOp};
use urxe::wire::{LKey, NakCode, RKey};

use crate::bench::{Bench, RQ, SQ, bad, ok};
use crate::pkt::*;
use urxe_test_support::engine::PD;

const LEN: usize = 256;

/// Returns memory for fast registration, its region (not yet registered), and the work request that registers
/// bytes 64 to 127 at address 0x9000.
fn fast(b: &mut Bench, pd: PdId) -> (Buffer, RegionInfo, FastReg) {
    let memory = Buffer::zeroed(LEN);
    // SAFETY: `Buffer` owns the memory, and every case keeps it alive until its last access through the
    // bench.
    let info = unsafe { b.memory.register_fast(pd, memory.addr(), LEN) }.unwrap();
    let key = LKey(info.lkey.0 & !0xff | 0x55);
    (memory, info, FastReg { key, offset: 64, len: 64, iova: 0x9000, access: Access::ALL })
}

fn registered(b: &mut Bench) -> (Buffer, RegionInfo, FastReg) {
    let (memory, info, reg) = fast(b, PD);
    b.post_no_data(900, WrOp::RegMr(reg));
    b.expect_nothing();
    b.sends(&[ok(900, WcOpcode::RegMr, 0)]);
    (memory, info, reg)
}

fn is_registered(b: &Bench, reg: &FastReg) -> bool {
    let peer = b.memory.remote(b.accessor(), RKey(reg.key.0), reg.iova, 1, Access::REMOTE_READ).is_ok();
    assert_eq!(peer, b.memory.local(b.accessor(), reg.key, reg.iova, 1, Access::LOCAL_READ).is_ok());
    peer
}

#[track_caller]
fn expect_bind_error(b: &mut Bench, op: WrOp) {
    b.post_no_data(1, op);
    b.expect_nothing();
    b.sends(&[bad(1, WcStatus::MwBindErr)]);
}

cases! {
    fast_registration_grants_local_and_remote_access => "fast.reg" {
        let mut b = Bench::new();
        let (memory, _, reg) = fast(&mut b, PD);
        assert!(!is_registered(&b, &reg));
        b.post_no_data(1, WrOp::RegMr(reg));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        b.exchange(&[write(Only, RQ, (0x9000, RKey(reg.key.0), 2), &[7, 8])], &[ack(RQ, 1)]);
        let mut got = [0; 2];
        memory.read(64, &mut got).unwrap();
        assert_eq!(got, [7, 8]);
        let sge = [Sge { addr: 0x9001, length: 1, lkey: reg.key }];
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        b.expect(&[send(Only, SQ, &[8])]);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(2, WcOpcode::Send, 1)]);
    }

    work_request_after_a_fast_registration_may_use_its_key => "fast.reg" {
        let mut b = Bench::new();
        let (memory, _, reg) = fast(&mut b, PD);
        memory.write(64, b"abc").unwrap();
        b.post_no_data(1, WrOp::RegMr(reg));
        let sge = [Sge { addr: 0x9000, length: 3, lkey: reg.key }];
        b.post_sges(2, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        b.expect(&[send(Only, SQ, b"abc")]);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(1, WcOpcode::RegMr, 0), ok(2, WcOpcode::Send, 3)]);
    }

    fast_registration_of_the_whole_memory_succeeds => "fast.reg" {
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        b.post_no_data(1, WrOp::RegMr(FastReg { offset: 0, len: LEN as u64, ..reg }));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        assert!(
            b.memory.remote(b.accessor(), RKey(reg.key.0), 0x9000, LEN as u32, Access::REMOTE_READ).is_ok()
        );
    }

    access_outside_the_registered_range_or_rights_fails => "fast.reg" {
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        let reg = FastReg { access: Access::LOCAL_WRITE | Access::REMOTE_READ, ..reg };
        b.post_no_data(1, WrOp::RegMr(reg));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        let key = RKey(reg.key.0);
        for (va, len, access) in [
            (0x8fff, 1, Access::REMOTE_READ),
            (0x9000, 65, Access::REMOTE_READ),
            (0x9000, 1, Access::REMOTE_WRITE),
        ] {
            assert!(b.memory.remote(b.accessor(), key, va, len, access).is_err());
        }
        assert!(b.memory.remote(b.accessor(), key, 0x9000, 64, Access::REMOTE_READ).is_ok());
        assert!(
            b.memory
                .remote(
                    urxe::memory::Accessor { pd: PdId(2), ..b.accessor() },
                    key,
                    0x9000,
                    1,
                    Access::REMOTE_READ
                )
                .is_err()
        );
    }

    invalid_fast_registration_fails_with_a_bind_error => "fast.reg.invalid" {
        let mut b = Bench::new();
        let (_m, _, reg) = registered(&mut b);
        expect_bind_error(&mut b, WrOp::RegMr(FastReg { key: LKey(reg.key.0 + 1), ..reg }));
        assert!(is_registered(&b, &reg));
        for (offset, len) in [(64, 193), (257, 1), (u64::MAX, 2), (0, 0), (1, u64::MAX)] {
            let mut b = Bench::new();
            let (_m, _, reg) = fast(&mut b, PD);
            expect_bind_error(&mut b, WrOp::RegMr(FastReg { offset, len, ..reg }));
            assert!(!is_registered(&b, &reg));
        }
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PdId(2));
        expect_bind_error(&mut b, WrOp::RegMr(reg));
        // Remote write requires local write.
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        expect_bind_error(&mut b, WrOp::RegMr(FastReg { access: Access::REMOTE_WRITE, ..reg }));
        // The key of an ordinary region, the key of a window, and a key of no object.
        let mut b = Bench::new();
        let key = b.mr.info.lkey;
        expect_bind_error(&mut b, WrOp::RegMr(FastReg { key, ..reg }));
        let mut b = Bench::new();
        let window = b.memory.alloc_window(PD, WindowKind::Type1).unwrap();
        expect_bind_error(&mut b, WrOp::RegMr(FastReg { key: LKey(window.0), ..reg }));
        expect_bind_error(&mut Bench::new(), WrOp::RegMr(FastReg { key: LKey(0x7777_7700), ..reg }));
    }

    local_invalidate_revokes_access => "fast.inv" {
        let mut b = Bench::new();
        let (_m, info, reg) = registered(&mut b);
        b.post_no_data(1, WrOp::LocalInv(RKey(reg.key.0)));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::LocalInv, 0)]);
        assert!(!is_registered(&b, &reg));
        // The region may be registered again under another key; its handle remains the first key.
        let second = FastReg { key: LKey(reg.key.0 + 1), ..reg };
        b.post_no_data(2, WrOp::RegMr(second));
        b.expect_nothing();
        b.sends(&[ok(2, WcOpcode::RegMr, 0)]);
        assert!(is_registered(&b, &second) && !is_registered(&b, &reg));
        assert_eq!(b.memory.deregister(info.lkey), Ok(()));
        assert!(!is_registered(&b, &second));
        // The next object in this slot gets a key that differs from its last one.
        let next: Vec<_> = (0..4).map(|_| b.memory.alloc_window(PD, WindowKind::Type1).unwrap().0).collect();
        assert!(next.contains(&(second.key.0 + 1)) && !next.contains(&second.key.0), "{next:x?}");
    }

    send_with_invalidate_revokes_access => "fast.inv" {
        let mut b = Bench::new();
        let (_m, _, reg) = registered(&mut b);
        b.recv(1, 0, 4);
        b.exchange(&[send_inv(Only, RQ, &[1], RKey(reg.key.0))], &[ack(RQ, 1)]);
        assert_eq!(b.raw_recv().invalidated, Some(RKey(reg.key.0)));
        assert!(!is_registered(&b, &reg));
    }

    remote_invalidate_of_a_region_without_remote_access_fails_the_receive => "fast.inv" {
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        b.post_no_data(1, WrOp::RegMr(FastReg { access: Access::LOCAL_WRITE, ..reg }));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::RegMr, 0)]);
        b.recv(1, 0, 4);
        b.exchange(&[send_inv(Only, RQ, &[1], RKey(reg.key.0))], &[ack(RQ, 0)]);
        b.recvs(&[bad(1, WcStatus::RemInvReqErr)]);
        assert!(b.memory.local(b.accessor(), reg.key, 0x9000, 1, Access::LOCAL_READ).is_ok());
    }

    local_invalidate_of_stale_key_fails => "fast.inv" {
        for wrong in [0x54, 0x56] {
            let mut b = Bench::new();
            let (_m, _, reg) = registered(&mut b);
            expect_bind_error(&mut b, WrOp::LocalInv(RKey(reg.key.0 & !0xff | wrong)));
            assert!(is_registered(&b, &reg));
        }
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PD);
        expect_bind_error(&mut b, WrOp::LocalInv(RKey(reg.key.0)));
        // A region of another protection domain.
        let mut b = Bench::new();
        let (_m, _, reg) = fast(&mut b, PdId(2));
        let accessor = urxe::memory::Accessor { pd: PdId(2), ..b.accessor() };
        b.memory.fast_reg(&reg, accessor).unwrap();
        expect_bind_error(&mut b, WrOp::LocalInv(RKey(reg.key.0)));
    }

    invalidation_of_a_region_with_a_bound_window_fails => "fast.windows" {
        let mut b = Bench::new();
        let (_m, info, reg) = fast(&mut b, PD);
        let reg = FastReg { access: Access::ALL | Access::MW_BIND, ..reg };
        b.memory.fast_reg(&reg, b.accessor()).unwrap();
        let rkey = b.memory.alloc_window(PD, WindowKind::Type2B).unwrap();
        let bind = Bind { rkey, region: reg.key, addr: 0x9000, len: 8, access: Access::REMOTE_READ };
        b.memory.bind(&bind, b.accessor()).unwrap();
        assert!(b.memory.deregister(info.lkey).is_err());
        expect_bind_error(&mut b, WrOp::LocalInv(RKey(reg.key.0)));
        assert!(is_registered(&b, &reg));
        b.memory.invalidate(rkey, b.accessor(), false).unwrap();
        b.memory.invalidate(RKey(reg.key.0), b.accessor(), false).unwrap();
        assert!(!is_registered(&b, &reg));
    }

    null_region_discards_writes_and_reads_as_zeros => "mr.null" {
        let mut b = Bench::new();
        let null = b.memory.register_null(PD).unwrap();
        let part = |length| Sge { addr: 0xdead_0000, length, lkey: null };
        b.recv_sges(1, &[b.mr.sge(0, 2), part(300), b.mr.sge(2, 2)]).unwrap();
        b.exchange(&message(256, &[7; 304], send, RQ), &[ack(RQ + 1, 1)]);
        b.recvs(&[ok(1, WcOpcode::Recv, 304)]);
        assert_eq!(b.mr.read(0, 4), [7; 4]);
        let sges = [b.mr.sge(0, 1), part(3), b.mr.sge(1, 1)];
        b.post_sges(2, WrOp::Send, &sges, SendFlags::SIGNALED).unwrap();
        b.expect(&[send(Only, SQ, &[7, 0, 0, 0, 7])]);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(2, WcOpcode::Send, 5)]);
    }

    null_region_is_usable_only_locally_and_in_its_pd => "mr.null" {
        let mut b = Bench::new();
        let null = b.memory.register_null(PD).unwrap();
        let other = b.memory.register_null(PdId(2)).unwrap();
        let sge = [Sge { addr: 0, length: 4, lkey: other }];
        assert!(b.memory.local(b.accessor(), LKey(null.0 + 1), 0, 4, Access::LOCAL_READ).is_err());
        b.exchange(&[write(Only, RQ, (0, RKey(null.0), 1), &[1])], &[nak(RQ, 0, NakCode::RemoteAccessError)]);
        b.events(&[AsyncEvent::QpAccessError]);
        let mut c = Bench::new();
        std::mem::swap(&mut b.memory, &mut c.memory);
        std::mem::swap(&mut b.mr, &mut c.mr);
        c.post_sges(1, WrOp::Send, &sge, SendFlags::SIGNALED).unwrap();
        c.expect_nothing();
        c.sends(&[bad(1, WcStatus::LocProtErr)]);
        std::mem::swap(&mut b.memory, &mut c.memory);
        std::mem::swap(&mut b.mr, &mut c.mr);
    }

    reregistration_changes_access_memory_or_pd => "mr.rereg" {
        let mut b = Bench::new();
        let r = b.region(PD, 64, 0x1000, Access::ALL);
        let old = b.regions[r].info;
        let reregister = |b: &mut Bench, lkey, change: ReregMr| {
            // SAFETY: the memory is either unchanged or that of `other`, which outlives the last access
            // through the bench.
            unsafe { b.memory.reregister(lkey, &change) }.unwrap()
        };
        let info =
            reregister(&mut b, old.lkey, ReregMr { access: Some(Access::REMOTE_READ), ..ReregMr::default() });
        let permits =
            |b: &Bench, rkey, va, needed| b.memory.remote(b.accessor(), rkey, va, 8, needed).is_ok();
        assert_eq!(info, old, "the keys remain valid");
        assert!(
            permits(&b, info.rkey, 0x1000, Access::REMOTE_READ)
                && !permits(&b, info.rkey, 0x1000, Access::REMOTE_WRITE)
        );
        let other = Buffer::zeroed(16);
        let translation = Some((other.addr(), 16, 0x5000));
        let info = reregister(&mut b, info.lkey, ReregMr { translation, ..ReregMr::default() });
        assert!(info != old && !permits(&b, old.rkey, 0x5008, Access::REMOTE_READ));
        assert!(permits(&b, info.rkey, 0x5008, Access::REMOTE_READ));
        assert!(
            !permits(&b, info.rkey, 0x5009, Access::REMOTE_READ)
                && !permits(&b, info.rkey, 0x1000, Access::REMOTE_READ)
        );
        let info = reregister(&mut b, info.lkey, ReregMr { pd: Some(PdId(2)), ..ReregMr::default() });
        assert!(!permits(&b, info.rkey, 0x5000, Access::REMOTE_READ));
        // SAFETY: the request changes no memory, so the registered memory remains valid.
        let stale = unsafe { b.memory.reregister(old.lkey, &ReregMr::default()) };
        assert!(stale.is_err());
    }

    reregistration_of_a_region_with_a_bound_window_fails => "mr.rereg" {
        let mut b = Bench::new();
        let r = b.region(PD, 64, 0x1000, Access::ALL | Access::MW_BIND);
        let region = b.regions[r].info.lkey;
        let rkey = b.memory.alloc_window(PD, WindowKind::Type1).unwrap();
        let bind = Bind { rkey, region, addr: 0x1000, len: 8, access: Access::REMOTE_READ };
        b.memory.bind(&bind, b.accessor()).unwrap();
        // SAFETY: the request changes no memory, so the registered memory remains valid.
        assert!(unsafe { b.memory.reregister(region, &ReregMr::default()) }.is_err());
        assert!(b.memory.local(b.accessor(), region, 0x1000, 1, Access::LOCAL_READ).is_ok());
    }
}
