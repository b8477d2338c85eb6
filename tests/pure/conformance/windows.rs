//! Conformance cases: memory windows, and the ordering of local operations (BIND_MW, LOCAL_INV) in the send
//! queue.

use urxe::memory::{Access, Bind, ManagementError, PdId, WindowKind};
use urxe::transport::{AsyncEvent, PostError, QpState, QpType, SendFlags, WcOpcode, WcStatus, WrOp};
use urxe::wire::{NakCode, RKey};

use crate::bench::{Bench, RQ, SQ, bad, flushed, ok};
use crate::pkt::*;
use urxe_test_support::engine::PD;

const REMOTE_ALL: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Returns the key that follows `key` in the same slot of the key table; the two differ only in the low 8
/// bits.
fn next_key(key: RKey) -> RKey {
    RKey(key.0 & !0xff | (key.0 + 1) & 0xff)
}

/// Returns a 256-byte region at 0x1000 that permits binds but no remote access, and the work request that
/// binds a new window to bytes 64 to 127 of the region.
fn bindable(b: &mut Bench, kind: WindowKind) -> (usize, Bind) {
    let r = b.region(PD, 256, 0x1000, Access::LOCAL_WRITE | Access::MW_BIND);
    let rkey = next_key(b.memory.alloc_window(PD, kind).unwrap());
    (r, Bind { rkey, region: b.regions[r].info.lkey, addr: 0x1040, len: 64, access: REMOTE_ALL })
}

/// Returns the region and the bind of [`bindable`] after executing the bind.
fn bound(b: &mut Bench, kind: WindowKind) -> (usize, Bind) {
    let (r, bind) = bindable(b, kind);
    b.post_no_data(900, WrOp::BindMw(bind));
    b.expect_nothing();
    b.sends(&[ok(900, WcOpcode::BindMw, 0)]);
    (r, bind)
}

const KINDS: [WindowKind; 3] = [WindowKind::Type1, WindowKind::Type2A, WindowKind::Type2B];

/// Asserts that the NIC refuses a WRITE of one byte with the key `rkey`.
#[track_caller]
fn expect_access_nak(b: &mut Bench, va: u64, rkey: RKey) {
    b.exchange(&[write(Only, RQ, (va, rkey, 1), &[9])], &[nak(RQ, 0, NakCode::RemoteAccessError)]);
    b.state(QpState::Err);
    b.events(&[AsyncEvent::QpAccessError]);
}

/// Asserts that the bind fails with a memory management error, and that the window is not bound.
#[track_caller]
fn expect_bind_error(b: &mut Bench, bind: Bind) {
    b.post_no_data(1, WrOp::BindMw(bind));
    b.expect_nothing();
    b.sends(&[bad(1, WcStatus::MwBindErr)]);
    b.state(QpState::Err);
    assert!(b.memory.remote(b.accessor(), bind.rkey, bind.addr, 1, Access::LOCAL_READ).is_err());
}

cases! {
    bind_grants_remote_access_to_its_range => "mw.bind" {
        for kind in KINDS {
            let mut b = Bench::new();
            let (r, bind) = bound(&mut b, kind);
            let d = b.regions[r].read(64, 8);
            b.exchange(
                &[read(RQ, (0x1040, bind.rkey, 8)), write(Only, RQ + 1, (0x107f, bind.rkey, 1), &[7])],
                &[resp(Only, RQ, 1, &d), ack(RQ + 1, 2)],
            );
            b.exchange(
                &[fetch_add(RQ + 2, (0x1048, bind.rkey), 1)],
                &[atomic_ack(RQ + 2, 3, {
                    u64::from_ne_bytes(b.regions[r].read(72, 8).try_into().unwrap())
                })],
            );
            assert_eq!(b.regions[r].read(127, 1), [7]);
        }
    }

    send_fails_if_its_lkey_is_a_window_key => "mw.bind" {
        let mut b = Bench::new();
        let (_, bind) = bound(&mut b, WindowKind::Type1);
        let sge = urxe::transport::Sge { addr: 0x1040, length: 8, lkey: urxe::wire::LKey(bind.rkey.0) };
        b.post_sges(1, WrOp::Send, &[sge], SendFlags::SIGNALED).unwrap();
        b.expect_nothing();
        b.sends(&[bad(1, WcStatus::LocProtErr)]);
    }

    access_outside_the_window_range_or_rights_is_nakked => "mw.access" {
        for (va, len) in [(0x103f, 1), (0x1080, 1), (0x1040, 65), (0x107f, 2)] {
            let mut b = Bench::new();
            let (_, bind) = bound(&mut b, WindowKind::Type2B);
            b.exchange(
                &[write(Only, RQ, (va, bind.rkey, len), &vec![1; len as usize])],
                &[nak(RQ, 0, NakCode::RemoteAccessError)],
            );
            b.events(&[AsyncEvent::QpAccessError]);
        }
        for needed in [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC] {
            let mut b = Bench::new();
            let (_, mut bind) = bindable(&mut b, WindowKind::Type1);
            bind.access = REMOTE_ALL - needed;
            b.post_no_data(1, WrOp::BindMw(bind));
            b.expect_nothing();
            b.sends(&[ok(1, WcOpcode::BindMw, 0)]);
            let (va, key) = (0x1040, bind.rkey);
            let p = match needed {
                Access::REMOTE_WRITE => write(Only, RQ, (va, key, 8), &[1; 8]),
                Access::REMOTE_READ => read(RQ, (va, key, 8)),
                _ => fetch_add(RQ, (va, key), 1),
            };
            b.exchange(&[p], &[nak(RQ, 0, NakCode::RemoteAccessError)]);
            b.events(&[AsyncEvent::QpAccessError]);
        }
    }

    bind_does_not_grant_access_through_the_region => "mw.access" {
        let mut b = Bench::new();
        let (r, _) = bound(&mut b, WindowKind::Type1);
        let key = b.regions[r].info.rkey;
        expect_access_nak(&mut b, 0x1040, key);
    }

    access_with_the_old_window_key_is_nakked_after_bind => "mw.bind" {
        for kind in KINDS {
            let mut b = Bench::new();
            let (_, bind) = bound(&mut b, kind);
            expect_access_nak(&mut b, 0x1040, RKey(bind.rkey.0 - 1));
        }
    }

    bind_to_region_without_required_access_fails => "mw.bind.region" {
        for access in
            [Access::LOCAL_WRITE, Access::MW_BIND, Access::MW_BIND | Access::LOCAL_WRITE | Access::ZERO_BASED]
        {
            let mut b = Bench::new();
            let (_, bind) = bindable(&mut b, WindowKind::Type1);
            let r = b.region(PD, 256, 0x1000, access);
            let region = b.regions[r].info.lkey;
            expect_bind_error(&mut b, Bind { region, ..bind });
        }
        // Remote read alone does not require local write.
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        let r = b.region(PD, 256, 0x1000, Access::MW_BIND);
        b.post_no_data(
            1,
            WrOp::BindMw(Bind { region: b.regions[r].info.lkey, access: Access::REMOTE_READ, ..bind }),
        );
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::BindMw, 0)]);
    }

    bind_outside_region_fails => "mw.bind.region" {
        for (addr, len) in [(0xfff, 2), (0x1100, 1), (0x1000, 257), (u64::MAX, 2), (0x1001, u64::MAX)] {
            let mut b = Bench::new();
            let (_, bind) = bindable(&mut b, WindowKind::Type2B);
            expect_bind_error(&mut b, Bind { addr, len, ..bind });
        }
    }

    bind_to_missing_or_foreign_region_fails => "mw.bind.region" {
        let mut b = Bench::new();
        let (r, bind) = bindable(&mut b, WindowKind::Type1);
        b.memory.deregister(b.regions[r].info.lkey).unwrap();
        expect_bind_error(&mut b, bind);
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        let r = b.region(PdId(2), 256, 0x1000, Access::LOCAL_WRITE | Access::MW_BIND);
        let region = b.regions[r].info.lkey;
        expect_bind_error(&mut b, Bind { region, ..bind });
    }

    bind_of_missing_or_foreign_window_fails => "mw.bind.window" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        expect_bind_error(&mut b, Bind { rkey: RKey(0x7777_7700), ..bind });
        // The key of a region is no valid window.
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        b.post_no_data(1, WrOp::BindMw(Bind { rkey: b.mr.info.rkey, ..bind }));
        b.expect_nothing();
        b.sends(&[bad(1, WcStatus::MwBindErr)]);
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        let rkey = next_key(b.memory.alloc_window(PdId(2), WindowKind::Type1).unwrap());
        expect_bind_error(&mut b, Bind { rkey, ..bind });
    }

    second_bind_of_type_2_window_fails => "mw.bind.window" {
        for kind in [WindowKind::Type2A, WindowKind::Type2B] {
            let mut b = Bench::new();
            let (_, bind) = bound(&mut b, kind);
            expect_bind_error(&mut b, Bind { rkey: next_key(bind.rkey), ..bind });
            // The first bind is still in effect.
            assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 64, Access::REMOTE_READ).is_ok());
            let mut b = Bench::new();
            let (_, bind) = bindable(&mut b, kind);
            expect_bind_error(&mut b, Bind { len: 0, ..bind });
        }
    }

    type_1_window_may_be_rebound => "mw.type1" {
        let mut b = Bench::new();
        let (_, first) = bound(&mut b, WindowKind::Type1);
        let second = Bind { rkey: next_key(first.rkey), addr: 0x1000, len: 8, ..first };
        b.post_no_data(1, WrOp::BindMw(second));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::BindMw, 0)]);
        b.exchange(&[write(Only, RQ, (0x1000, second.rkey, 8), &[1; 8])], &[ack(RQ, 1)]);
        let unbind = Bind { rkey: next_key(second.rkey), len: 0, ..second };
        b.post_no_data(2, WrOp::BindMw(unbind));
        b.expect_nothing();
        b.sends(&[ok(2, WcOpcode::BindMw, 0)]);
        for key in [first.rkey, second.rkey, unbind.rkey] {
            assert!(b.memory.remote(b.accessor(), key, 0x1000, 1, Access::LOCAL_READ).is_err());
        }
    }

    zero_based_bind_of_type_1_window_fails => "mw.type1" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        expect_bind_error(&mut b, Bind { access: REMOTE_ALL | Access::ZERO_BASED, ..bind });
    }

    type_1_window_is_usable_by_every_qp_of_its_pd => "mw.type1" {
        let mut b = Bench::with(|s| s.qps = 2);
        let (_, bind) = bound(&mut b, WindowKind::Type1);
        b.exchange(&[write(Only, RQ, (0x1040, bind.rkey, 1), &[1]).qp(1)], &[ack(RQ, 1).qp(1)]);
    }

    type_2_window_is_usable_by_its_qp_only => "mw.type2" {
        for kind in [WindowKind::Type2A, WindowKind::Type2B] {
            let mut b = Bench::with(|s| s.qps = 2);
            let (_, bind) = bound(&mut b, kind);
            b.exchange(&[write(Only, RQ, (0x1040, bind.rkey, 1), &[1])], &[ack(RQ, 1)]);
            b.exchange(
                &[write(Only, RQ, (0x1040, bind.rkey, 1), &[1]).qp(1)],
                &[nak(RQ, 0, NakCode::RemoteAccessError).qp(1)],
            );
            assert_eq!(b.next_event(), Some(AsyncEvent::QpAccessError(b.qpns[1])));
        }
    }

    type_2b_window_is_usable_in_its_pd_only => "mw.type2" {
        for (kind, usable) in [(WindowKind::Type2A, true), (WindowKind::Type2B, false)] {
            let mut b = Bench::new();
            let (_, bind) = bound(&mut b, kind);
            let other_pd = urxe::memory::Accessor { pd: PdId(2), ..b.accessor() };
            let result = b.memory.remote(other_pd, bind.rkey, 0x1040, 1, Access::REMOTE_READ);
            assert_eq!(result.is_ok(), usable, "{kind:?}");
        }
    }

    zero_based_window_is_addressed_from_0 => "mw.zero_based" {
        let mut b = Bench::new();
        let (r, bind) = bindable(&mut b, WindowKind::Type2B);
        b.post_no_data(1, WrOp::BindMw(Bind { access: REMOTE_ALL | Access::ZERO_BASED, ..bind }));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::BindMw, 0)]);
        b.exchange(&[write(Only, RQ, (0, bind.rkey, 2), &[5, 6])], &[ack(RQ, 1)]);
        assert_eq!(b.regions[r].read(64, 2), [5, 6]);
        b.exchange(
            &[write(Only, RQ + 1, (64, bind.rkey, 1), &[5])],
            &[nak(RQ + 1, 1, NakCode::RemoteAccessError)],
        );
        b.events(&[AsyncEvent::QpAccessError]);
    }

    deregistration_of_a_region_with_bound_windows_fails => "mw.bound" {
        let mut b = Bench::new();
        let (r, bind) = bound(&mut b, WindowKind::Type2B);
        let lkey = b.regions[r].info.lkey;
        let expected = Err(ManagementError::WindowsBound { key: lkey.0, count: 1 });
        assert_eq!(b.memory.deregister(lkey), expected);
        b.post_no_data(1, WrOp::LocalInv(bind.rkey));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::LocalInv, 0)]);
        assert_eq!(b.memory.deregister(lkey), Ok(()));
    }

    revoking_a_region_invalidates_its_windows => "mw.bound" {
        let mut b = Bench::new();
        let (r, bind) = bound(&mut b, WindowKind::Type1);
        b.memory.revoke(b.regions[r].info.lkey).unwrap();
        expect_access_nak(&mut b, 0x1040, bind.rkey);
    }

    region_can_be_deregistered_after_its_window_is_freed => "mw.bound" {
        let mut b = Bench::new();
        let (r, mut bind) = bindable(&mut b, WindowKind::Type2B);
        let handle = RKey(bind.rkey.0 - 1);
        bind.rkey = RKey(bind.rkey.0 + 77);
        b.post_no_data(1, WrOp::BindMw(bind));
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::BindMw, 0)]);
        assert!(b.memory.free_window(handle) && !b.memory.free_window(handle));
        assert_eq!(b.memory.deregister(b.regions[r].info.lkey), Ok(()));
        // The next object in the slot gets a key that differs from the last one.
        let keys: Vec<_> = (0..4).map(|_| b.memory.alloc_window(PD, WindowKind::Type1).unwrap()).collect();
        assert!(keys.contains(&next_key(bind.rkey)) && !keys.contains(&bind.rkey), "{keys:?}");
    }

    local_invalidate_revokes_window_access => "mw.invalidate" {
        for kind in [WindowKind::Type2A, WindowKind::Type2B] {
            let mut b = Bench::new();
            let (_, bind) = bound(&mut b, kind);
            b.post_no_data(1, WrOp::LocalInv(bind.rkey));
            b.expect_nothing();
            b.sends(&[ok(1, WcOpcode::LocalInv, 0)]);
            // The window may be bound again.
            let second = Bind { rkey: next_key(bind.rkey), ..bind };
            b.post_no_data(2, WrOp::BindMw(second));
            b.expect_nothing();
            b.sends(&[ok(2, WcOpcode::BindMw, 0)]);
            b.exchange(&[write(Only, RQ, (0x1040, second.rkey, 1), &[1])], &[ack(RQ, 1)]);
            b.exchange(
                &[write(Only, RQ + 1, (0x1040, bind.rkey, 1), &[1])],
                &[nak(RQ + 1, 1, NakCode::RemoteAccessError)],
            );
            b.events(&[AsyncEvent::QpAccessError]);
        }
    }

    invalid_local_invalidate_fails_with_memory_management_error => "mw.invalidate" {
        let wrong: [fn(&mut Bench) -> RKey; 6] = [
            |b| bound(b, WindowKind::Type1).1.rkey,
            |b| next_key(bound(b, WindowKind::Type2B).1.rkey),
            |b| bindable(b, WindowKind::Type2B).1.rkey,
            |b| b.mr.info.rkey,
            |_| RKey(0x7777_7700),
            |_| RKey(0),
        ];
        for key in wrong {
            let mut b = Bench::new();
            let key = key(&mut b);
            b.post_no_data(1, WrOp::LocalInv(key));
            b.expect_nothing();
            b.sends(&[bad(1, WcStatus::MwBindErr)]);
            b.state(QpState::Err);
        }
        // Invalidation by another QP.
        let mut b = Bench::with(|s| s.qps = 2);
        let (_, bind) = bound(&mut b, WindowKind::Type2B);
        let wr = urxe::transport::SendWr::local_inv(1, bind.rkey);
        b.post_on(1, &wr).unwrap();
        b.expect_nothing();
        b.sends(&[bad(1, WcStatus::MwBindErr)]);
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_ok());
    }

    bind_between_messages_consumes_no_psn_and_completes_in_order => "local.order" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        b.post(1, WrOp::Send, 0, 4);
        b.post_no_data(2, WrOp::BindMw(bind));
        b.post(3, WrOp::Send, 4, 4);
        let d = b.mr.read(0, 8);
        b.expect(&[send(Only, SQ, &d[..4]), send(Only, SQ + 1, &d[4..])]);
        // The bind is executed at once, and completes after the first SEND.
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_ok());
        b.sends(&[]);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(1, WcOpcode::Send, 4), ok(2, WcOpcode::BindMw, 0)]);
        b.deliver(&[ack(SQ + 1, 2)]);
        b.sends(&[ok(3, WcOpcode::Send, 4)]);
    }

    bind_posted_after_a_read_completes_after_it => "local.order" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        b.post(1, WrOp::Read { va: 0, rkey: RKey(5) }, 0, 4);
        b.post_no_data(2, WrOp::BindMw(bind));
        b.post_no_data(3, WrOp::BindMw(Bind { len: 0, ..bind }));
        b.expect(&[read(SQ, (0, RKey(5), 4))]);
        b.sends(&[]);
        // The second bind fails, in order.
        b.deliver(&[resp(Only, SQ, 1, &[1; 4])]);
        b.sends(&[ok(1, WcOpcode::RdmaRead, 4), ok(2, WcOpcode::BindMw, 0), bad(3, WcStatus::MwBindErr)]);
        b.state(QpState::Err);
    }

    bind_is_not_executed_again_after_go_back_n => "local.order" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        b.post(1, WrOp::Send, 0, 4);
        b.post_no_data(2, WrOp::BindMw(bind));
        b.post(3, WrOp::Send, 4, 4);
        let both = b.sent();
        b.exchange(&[nak(SQ, 0, NakCode::PsnSequenceError)], &both);
        b.deliver(&[ack(SQ + 1, 2)]);
        // A second execution of the bind would have failed.
        b.sends(&[ok(1, WcOpcode::Send, 4), ok(2, WcOpcode::BindMw, 0), ok(3, WcOpcode::Send, 4)]);
        b.state(QpState::Rts);
    }

    unsignaled_bind_raises_no_completion => "local.order" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        b.post_sges(1, WrOp::BindMw(bind), &[], SendFlags::default()).unwrap();
        b.expect_nothing();
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_ok());
    }

    binds_that_fill_the_send_queue_complete_after_an_earlier_send => "local.order" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        b.post(0, WrOp::Send, 0, 4);
        (1..64).for_each(|i| b.post_no_data(i, WrOp::BindMw(bind)));
        assert_eq!(
            b.post_sges(64, WrOp::BindMw(bind), &[], SendFlags::SIGNALED),
            Err(PostError::QueueFull(64))
        );
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack(SQ, 1)]);
        let mut all = vec![ok(0, WcOpcode::Send, 4)];
        all.extend((1..64).map(|i| ok(i, WcOpcode::BindMw, 0)));
        b.sends(&all);
    }

    bind_and_invalidate_are_executed_on_uc => "local.order" {
        let mut b = Bench::with(|s| s.qp_type = QpType::Uc);
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        b.post(1, WrOp::Send, 0, 4);
        b.post_no_data(2, WrOp::BindMw(bind));
        b.post_no_data(3, WrOp::LocalInv(bind.rkey));
        b.post(4, WrOp::Send, 0, 4);
        assert_eq!(b.sent().len(), 2);
        b.sends(&[
            ok(1, WcOpcode::Send, 4),
            ok(2, WcOpcode::BindMw, 0),
            ok(3, WcOpcode::LocalInv, 0),
            ok(4, WcOpcode::Send, 4),
        ]);
    }

    posting_a_bind_or_invalidate_with_data_or_to_a_ud_qp_fails => "local.order" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        for op in [WrOp::BindMw(bind), WrOp::LocalInv(bind.rkey)] {
            let sge = [b.mr.sge(0, 4)];
            let error = Err(PostError::NoData(op.completion_opcode()));
            assert_eq!(b.post_sges(1, op, &sge, SendFlags::SIGNALED), error);
            let mut b = Bench::with(|s| s.qp_type = QpType::Ud);
            let error = Err(PostError::Unsupported(QpType::Ud, op.completion_opcode()));
            assert_eq!(b.post_sges(1, op, &[], SendFlags::SIGNALED), error);
        }
    }

    fenced_bind_waits_for_the_read => "local.fence" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        b.post(1, WrOp::Read { va: 0, rkey: RKey(5) }, 0, 4);
        let flags = SendFlags { fence: true, ..SendFlags::SIGNALED };
        b.post_sges(2, WrOp::BindMw(bind), &[], flags).unwrap();
        b.expect(&[read(SQ, (0, RKey(5), 4))]);
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_err());
        b.deliver(&[resp(Only, SQ, 1, &[1; 4])]);
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::RdmaRead, 4), ok(2, WcOpcode::BindMw, 0)]);
    }

    local_invalidate_waits_for_all_earlier_requests => "local.fence" {
        let mut b = Bench::new();
        let (_, bind) = bound(&mut b, WindowKind::Type2B);
        let flags = SendFlags::default();
        let sge = [b.mr.sge(0, 4)];
        b.post_sges(1, WrOp::Send, &sge, flags).unwrap();
        b.post_no_data(2, WrOp::LocalInv(bind.rkey));
        b.post(3, WrOp::Send, 4, 4);
        let d = b.mr.read(0, 8);
        // The SEND carries AckReq although it is unsignaled, because the local invalidate waits for it.
        b.expect(&[send(Only, SQ, &d[..4])]);
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_ok());
        b.exchange(&[ack(SQ, 1)], &[send(Only, SQ + 1, &d[4..])]);
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_err());
        b.sends(&[ok(2, WcOpcode::LocalInv, 0)]);
        b.deliver(&[ack(SQ + 1, 2)]);
        b.sends(&[ok(3, WcOpcode::Send, 4)]);
    }

    earlier_send_without_ackreq_is_probed_before_a_local_invalidate => "local.fence" {
        let mut b = Bench::new();
        let (_, bind) = bound(&mut b, WindowKind::Type2B);
        let sge = [b.mr.sge(0, 4)];
        b.post_sges(1, WrOp::Send, &sge, SendFlags::default()).unwrap();
        let d = b.mr.read(0, 4);
        b.expect(&[send(Only, SQ, &d).ackreq(false)]);
        b.post_no_data(2, WrOp::LocalInv(bind.rkey));
        b.expect(&[send(Only, SQ, &d)]);
        b.expect_nothing();
        b.deliver(&[ack(SQ, 1)]);
        b.expect_nothing();
        b.sends(&[ok(2, WcOpcode::LocalInv, 0)]);
    }

    probe_of_the_last_packet_before_a_bind_is_sent_after_the_probe_interval => "req.ackreq.probe" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type2B);
        let sge = [b.mr.sge(0, 300)];
        b.post_sges(1, WrOp::Send, &sge, SendFlags::default()).unwrap();
        b.post_no_data(2, WrOp::BindMw(bind));
        let (_, another) = bindable(&mut b, WindowKind::Type1);
        b.post_no_data(3, WrOp::BindMw(another));
        let mut packets = message(256, &b.mr.read(0, 300), send, SQ);
        let probe = packets.pop().unwrap();
        packets.push(probe.clone().ackreq(false));
        b.expect(&packets);
        b.advance(std::time::Duration::from_millis(1));
        b.expect(&[probe]);
        b.exchange(&[ack(SQ + 1, 1)], &[]);
        b.sends(&[ok(2, WcOpcode::BindMw, 0), ok(3, WcOpcode::BindMw, 0)]);
    }

    bind_is_not_executed_in_sqd_or_during_an_rnr_wait => "local.order" {
        let mut b = Bench::new();
        let (_, bind) = bindable(&mut b, WindowKind::Type1);
        b.set_state(QpState::Sqd);
        b.post_no_data(1, WrOp::BindMw(bind));
        b.expect_nothing();
        b.sends(&[]);
        b.set_state(QpState::Rts);
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::BindMw, 0)]);
        b.post(2, WrOp::Send, 0, 4);
        let first = b.sent();
        b.deliver(&[rnr(SQ, 0, 12)]);
        b.post_no_data(3, WrOp::BindMw(Bind { len: 0, ..bind }));
        b.expect_nothing();
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_ok());
        b.advance(std::time::Duration::from_millis(1));
        b.expect(&first);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(2, WcOpcode::Send, 4), ok(3, WcOpcode::BindMw, 0)]);
    }

    invalid_bind_or_invalidate_fails_in_order => "local.error" {
        let mut b = Bench::new();
        b.post(1, WrOp::Send, 0, 4);
        b.post_no_data(2, WrOp::LocalInv(RKey(0x77)));
        b.post(3, WrOp::Send, 0, 4);
        let d = b.mr.read(0, 4);
        b.expect(&[send(Only, SQ, &d)]);
        b.sends(&[]);
        b.deliver(&[ack(SQ, 1)]);
        b.expect_nothing();
        b.sends(&[ok(1, WcOpcode::Send, 4), bad(2, WcStatus::MwBindErr), flushed(3)]);
        b.state(QpState::Err);
    }

    send_with_invalidate_revokes_window_access => "inv.send" {
        for kind in [WindowKind::Type2A, WindowKind::Type2B] {
            let mut b = Bench::new();
            let (_, bind) = bound(&mut b, kind);
            b.recv(1, 0, 600);
            b.exchange(
                &[send(First, RQ, &[1; 256]), send_inv(Last, RQ + 1, &[2; 4], bind.rkey)],
                &[ack(RQ + 1, 1)],
            );
            let c = b.raw_recv();
            assert_eq!(
                (c.status, c.byte_len, c.imm, c.invalidated),
                (WcStatus::Success, 260, None, Some(bind.rkey))
            );
            b.exchange(
                &[write(Only, RQ + 2, (0x1040, bind.rkey, 1), &[9])],
                &[nak(RQ + 2, 1, NakCode::RemoteAccessError)],
            );
            b.events(&[AsyncEvent::QpAccessError]);
        }
    }

    duplicate_send_with_invalidate_has_no_effect => "inv.send" {
        let mut b = Bench::new();
        let (_, bind) = bound(&mut b, WindowKind::Type2B);
        b.recv(1, 0, 4);
        b.recv(2, 0, 4);
        let p = send_inv(Only, RQ, &[1], bind.rkey);
        b.exchange(std::slice::from_ref(&p), &[ack(RQ, 1)]);
        assert_eq!(b.raw_recv().wr_id, 1);
        // The window is bound again under the same key, and the packet arrives again.
        b.post_no_data(3, WrOp::BindMw(bind));
        b.expect_nothing();
        b.sends(&[ok(3, WcOpcode::BindMw, 0)]);
        b.exchange(&[p], &[ack(RQ, 1)]);
        assert!(b.memory.remote(b.accessor(), bind.rkey, 0x1040, 1, Access::REMOTE_READ).is_ok());
    }

    receive_fails_if_send_with_invalidate_names_an_invalid_key => "inv.invalid_key" {
        let wrong: [fn(&mut Bench) -> RKey; 4] = [
            |b| bound(b, WindowKind::Type1).1.rkey,
            |b| next_key(bound(b, WindowKind::Type2B).1.rkey),
            |b| b.mr.info.rkey,
            |_| RKey(0x7777_7700),
        ];
        for key in wrong {
            let mut b = Bench::new();
            let key = key(&mut b);
            b.recv(1, 0, 4);
            b.recv(2, 0, 4);
            b.exchange(&[send_inv(Only, RQ, &[1], key)], &[ack(RQ, 0)]);
            b.recvs(&[bad(1, WcStatus::RemInvReqErr), flushed(2)]);
            b.state(QpState::Err);
        }
    }

    key_to_invalidate_is_carried_in_the_last_packet => "inv.requester" {
        let mut b = Bench::new();
        b.post(1, WrOp::SendWithInv(RKey(0x1234)), 0, 300);
        let d = b.mr.read(0, 300);
        b.expect(&[send(First, SQ, &d[..256]), send_inv(Last, SQ + 1, &d[256..], RKey(0x1234))]);
        b.deliver(&[ack(SQ + 1, 1)]);
        b.sends(&[ok(1, WcOpcode::Send, 300)]);
        b.post(2, WrOp::SendWithInv(RKey(0x99)), 0, 0);
        b.expect(&[send_inv(Only, SQ + 2, &[], RKey(0x99))]);
        b.deliver(&[ack(SQ + 2, 2)]);
        b.sends(&[ok(2, WcOpcode::Send, 0)]);
        for qp_type in [QpType::Uc, QpType::Ud] {
            let mut b = Bench::with(|s| s.qp_type = qp_type);
            let error = Err(PostError::Unsupported(qp_type, WcOpcode::Send));
            assert_eq!(b.post_sges(1, WrOp::SendWithInv(RKey(1)), &[], SendFlags::SIGNALED), error);
        }
    }
}
