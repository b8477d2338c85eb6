//! Conformance cases: automatic path migration (APM).

use std::net::IpAddr;
use std::time::Duration;

use urxe::transport::{
    AddressVector, AlternatePath, AsyncEvent, MigrationState, ModifyError, QpAttr, QpState, QpType, WcOpcode,
    WcStatus, WrOp,
};
use urxe::wire::{AckTimeout, Ecn, PKey};

use crate::bench::{ALTERNATE, Bench, RQ, SQ, bad, ok};
use crate::notification_point::cnp;
use crate::pkt::*;

fn alternate() -> AlternatePath {
    let dgid = IpAddr::from(ALTERNATE.1).into();
    let av = AddressVector::to(dgid).sgid_index(1);
    AlternatePath { av, pkey_index: 0, timeout: AckTimeout::new(10) }
}

fn set(b: &mut Bench, state: MigrationState, alt_path: Option<AlternatePath>) -> Result<(), ModifyError> {
    b.modify(0, QpAttr::default().path_mig_state(state).alt_path(alt_path))
}

/// Clears MigReq, as a sender does unless its migration state is MIGRATED.
fn unmigrated(p: Pkt) -> Pkt {
    p.with(|h| h.bth.mig_req = false)
}

fn rearmed() -> Bench {
    let mut b = Bench::new();
    set(&mut b, MigrationState::Rearm, Some(alternate())).unwrap();
    b
}

/// Returns a bench whose QP has migration state ARMED: it was in REARM when a WRITE with MigReq 0 showed that
/// the peer was in REARM too.
fn armed() -> Bench {
    let mut b = rearmed();
    let to = b.remote(0, 1);
    b.exchange(&[unmigrated(write(Only, RQ, to, &[1]))], &[unmigrated(ack(RQ, 1))]);
    expect_migration_state(&b, MigrationState::Armed);
    b
}

#[track_caller]
fn expect_migration_state(b: &Bench, state: MigrationState) {
    assert_eq!(b.nic.query_qp(b.qpns[0]).unwrap().0.path_mig_state, Some(state));
}

cases! {
    request_with_migreq_clear_arms_a_qp_in_rearm => "apm.states" {
        let mut b = Bench::new();
        expect_migration_state(&b, MigrationState::Migrated);
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ, to, &[1])], &[ack(RQ, 1)]);
        set(&mut b, MigrationState::Rearm, Some(alternate())).unwrap();
        expect_migration_state(&b, MigrationState::Rearm);
        // MigReq is set: the peer has not loaded its alternate path yet.
        b.exchange(&[write(Only, RQ + 1, to, &[1])], &[unmigrated(ack(RQ + 1, 2))]);
        expect_migration_state(&b, MigrationState::Rearm);
        b.exchange(&[unmigrated(write(Only, RQ + 2, to, &[1]))], &[unmigrated(ack(RQ + 2, 3))]);
        expect_migration_state(&b, MigrationState::Armed);
    }

    ack_with_migreq_clear_arms_a_qp_in_rearm => "apm.states" {
        let mut b = rearmed();
        b.post(1, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[unmigrated(ack(SQ, 1))]);
        expect_migration_state(&b, MigrationState::Armed);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    invalid_migration_transition_fails_without_effect => "apm.states" {
        let mut b = Bench::new();
        let (from, to) = (MigrationState::Migrated, MigrationState::Rearm);
        let error = set(&mut b, to, None);
        assert_eq!(error, Err(ModifyError::Migration { from, to, reason: ": there is no alternate path" }));
        let error = set(&mut b, MigrationState::Armed, Some(alternate()));
        assert!(matches!(error, Err(ModifyError::Migration { .. })));
        // The rejected modify has loaded no alternate path.
        assert_eq!(b.nic.query_qp(b.qpns[0]).unwrap().0.alt_path, None);
        let invalid_gid =
            AlternatePath { av: alternate().av.sgid_index(7), ..alternate() };
        assert!(matches!(set(&mut b, to, Some(invalid_gid)), Err(ModifyError::Address(_))));
        let invalid_pkey = AlternatePath { pkey_index: 9, ..alternate() };
        assert!(matches!(set(&mut b, to, Some(invalid_pkey)), Err(ModifyError::Value { .. })));
        expect_migration_state(&b, MigrationState::Migrated);
    }

    alternate_path_is_loaded_on_transition_to_rtr => "apm.states" {
        for qp_type in [QpType::Rc, QpType::Uc] {
            let mut b = Bench::with(|s| (s.qp_type, s.state) = (qp_type, QpState::Init));
            let rtr = b.attr(0, QpState::Rtr).alt_path(alternate());
            b.modify(0, rtr).unwrap();
            let rts = b.attr(0, QpState::Rts).path_mig_state(MigrationState::Rearm);
            b.modify(0, rts).unwrap();
            expect_migration_state(&b, MigrationState::Rearm);
            assert_eq!(b.nic.query_qp(b.qpns[0]).unwrap().0.alt_path, Some(alternate()));
            b.set_state(QpState::Reset);
            expect_migration_state(&b, MigrationState::Migrated);
        }
    }

    requests_carry_migreq_only_in_state_migrated => "apm.migreq" {
        let mut b = Bench::new();
        let d = b.mr.read(0, 1);
        b.post(1, WrOp::Send, 0, 1);
        b.expect(&[send(Only, SQ, &d)]);
        set(&mut b, MigrationState::Rearm, Some(alternate())).unwrap();
        b.post(2, WrOp::Send, 0, 1);
        b.expect(&[unmigrated(send(Only, SQ + 1, &d))]);
        b.deliver(&[unmigrated(ack(SQ + 1, 2))]);
        expect_migration_state(&b, MigrationState::Armed);
        b.post(3, WrOp::Send, 0, 1);
        b.expect(&[unmigrated(send(Only, SQ + 2, &d))]);
        b.deliver(&[unmigrated(ack(SQ + 2, 3))]);
        b.sends(&(1..=3).map(|i| ok(i, WcOpcode::Send, 1)).collect::<Vec<_>>());
    }

    armed_qp_migrates_when_its_peer_migrates => "apm.peer" {
        let mut b = armed();
        let to = b.remote(0, 1);
        b.path = ALTERNATE;
        b.exchange(&[write(Only, RQ + 1, to, &[7])], &[ack(RQ + 1, 2)]);
        expect_migration_state(&b, MigrationState::Migrated);
        b.events(&[AsyncEvent::PathMigrated]);
        // The old path is no longer valid.
        b.path = ([10, 0, 0, 1], [10, 0, 0, 2]);
        b.exchange(&[write(Only, RQ + 2, to, &[8])], &[]);
        assert_eq!((b.count().rx_wrong_source, b.mr.read(0, 1)), (1, vec![7]));
    }

    packets_in_flight_are_retransmitted_on_the_new_path_after_migration => "apm.peer" {
        let mut b = armed();
        let (to, d) = (b.remote(9, 1), b.mr.read(0, 1));
        b.post(1, WrOp::Send, 0, 1);
        b.expect(&[unmigrated(send(Only, SQ, &d))]);
        b.path = ALTERNATE;
        b.exchange(&[write(Only, RQ + 1, to, &[7])], &[send(Only, SQ, &d), ack(RQ + 1, 2)]);
        b.events(&[AsyncEvent::PathMigrated]);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    burst_on_the_new_path_is_executed_completely => "apm.peer" {
        let mut b = armed();
        let to = b.remote(0, 1);
        b.path = ALTERNATE;
        let writes = [1, 2, 3].map(|i| write(Only, RQ + i, to, &[i as u8]));
        b.exchange(&writes, &[ack(RQ + 3, 4)]);
        assert_eq!((b.count().rx_wrong_source, b.mr.read(0, 1)), (0, vec![3]));
        expect_migration_state(&b, MigrationState::Migrated);
        b.events(&[AsyncEvent::PathMigrated]);
    }

    armed_uc_qp_migrates_when_its_peer_migrates => "apm.peer" {
        let mut b = Bench::with(|s| s.qp_type = QpType::Uc);
        set(&mut b, MigrationState::Rearm, Some(alternate())).unwrap();
        let to = b.remote(0, 1);
        b.exchange(&[unmigrated(write(Only, RQ, to, &[1]).uc())], &[]);
        expect_migration_state(&b, MigrationState::Armed);
        b.path = ALTERNATE;
        b.exchange(&[write(Only, RQ + 1, to, &[7]).uc()], &[]);
        expect_migration_state(&b, MigrationState::Migrated);
        b.events(&[AsyncEvent::PathMigrated]);
        b.post(1, WrOp::Send, 0, 1);
        b.expect(&[send(Only, SQ, &[7]).uc()]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    packet_with_migreq_on_the_old_path_of_an_armed_qp_raises_path_mig_err => "apm.error" {
        let mut b = armed();
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ + 1, to, &[7])], &[]);
        b.events(&[AsyncEvent::PathMigrateError]);
        expect_migration_state(&b, MigrationState::Armed);
        assert_eq!(b.mr.read(0, 1), [1]);
    }

    packet_on_alternate_path_without_migreq_is_dropped => "apm.error" {
        let mut b = armed();
        let to = b.remote(0, 1);
        b.path = ALTERNATE;
        b.exchange(&[unmigrated(write(Only, RQ + 1, to, &[7]))], &[]);
        expect_migration_state(&b, MigrationState::Armed);
        assert_eq!((b.count().rx_wrong_source, b.mr.read(0, 1)), (1, vec![1]));
    }

    armed_qp_migrates_when_its_retries_are_exhausted => "apm.failure" {
        let mut b = armed();
        let d = b.mr.read(0, 1);
        b.post(1, WrOp::Send, 0, 1);
        let first = unmigrated(send(Only, SQ, &d));
        b.expect(std::slice::from_ref(&first));
        for n in [1, 2, 4] {
            b.advance(Duration::from_millis(68) * n);
            b.expect(std::slice::from_ref(&first));
        }
        b.path = ALTERNATE;
        b.advance(Duration::from_millis(68) * 4);
        b.expect(&[send(Only, SQ, &d)]);
        b.events(&[AsyncEvent::PathMigrated]);
        expect_migration_state(&b, MigrationState::Migrated);
        b.state(QpState::Rts);
        // The timeout of the alternate path, 4.2 ms, and all three retries apply; then no other path remains.
        for n in [1, 2, 4] {
            b.advance(Duration::from_micros(4300) * n);
            b.expect(&[send(Only, SQ, &d)]);
        }
        b.advance(Duration::from_micros(4300) * 4);
        b.sends(&[bad(1, WcStatus::RetryExcErr)]);
        b.state(QpState::Err);
    }

    qp_that_is_not_armed_fails_when_its_retries_are_exhausted => "apm.failure" {
        let mut b = rearmed();
        b.post(1, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.advance(Duration::from_secs(2));
        b.sent();
        b.advance(Duration::from_secs(2));
        b.sent();
        b.advance(Duration::from_secs(2));
        b.sent();
        b.advance(Duration::from_secs(2));
        b.sends(&[bad(1, WcStatus::RetryExcErr)]);
        b.state(QpState::Err);
    }

    modify_to_migrated_migrates_an_armed_qp => "apm.application" {
        let mut b = armed();
        let d = b.mr.read(0, 1);
        b.path = ALTERNATE;
        set(&mut b, MigrationState::Migrated, None).unwrap();
        b.events(&[AsyncEvent::PathMigrated]);
        b.post(1, WrOp::Send, 0, 1);
        b.expect(&[send(Only, SQ, &d)]);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
        // In REARM the QP continues on its path.
        let mut b = rearmed();
        set(&mut b, MigrationState::Migrated, None).unwrap();
        expect_migration_state(&b, MigrationState::Migrated);
        b.post(1, WrOp::Send, 0, 1);
        assert_eq!(b.sent().len(), 1);
        b.deliver(&[ack(SQ, 1)]);
        b.sends(&[ok(1, WcOpcode::Send, 1)]);
    }

    migration_applies_the_attributes_of_the_alternate_path_and_consumes_it => "apm.attributes" {
        let mut b = Bench::new();
        b.nic.set_pkeys(&[PKey::DEFAULT, PKey(0x8123)]).unwrap();
        assert_eq!(b.next_event(), Some(AsyncEvent::PKeyChange));
        let alt = AlternatePath { pkey_index: 1, ..alternate() };
        set(&mut b, MigrationState::Rearm, Some(alt)).unwrap();
        // The P_Key table may not shrink below the entry that the alternate path refers to.
        assert!(b.nic.set_pkeys(&[PKey::DEFAULT]).is_err());
        let to = b.remote(0, 1);
        b.exchange(&[unmigrated(write(Only, RQ, to, &[1]))], &[unmigrated(ack(RQ, 1))]);
        b.path = ALTERNATE;
        b.exchange(&[write(Only, RQ + 1, to, &[7])], &[]);
        assert_eq!(b.count().rx_pkey_violation, 1);
        b.exchange(&[write(Only, RQ + 1, to, &[7]).pkey(0x8123)], &[ack(RQ + 1, 2).pkey(0x8123)]);
        b.events(&[AsyncEvent::PathMigrated]);
        let q = b.nic.query_qp(b.qpns[0]).unwrap().0;
        assert_eq!((q.pkey_index, q.timeout, q.alt_path), (Some(1), Some(AckTimeout::new(10)), None));
        assert_eq!(q.av, Some(alternate().av));
        assert!(set(&mut b, MigrationState::Rearm, None).is_err());
    }

    cnp_takes_the_path_of_the_marked_packet => "cnp.sent" {
        let mut b = armed();
        // The bench checks the addresses of all packets sent.
        (b.path, b.traffic_class) = (ALTERNATE, Ecn::Ce as u8);
        let to = b.remote(0, 1);
        b.exchange(&[write(Only, RQ + 1, to, &[1])], &[cnp(), ack(RQ + 1, 2)]);
        b.events(&[AsyncEvent::PathMigrated]);
    }

    packet_on_alternate_path_of_a_qp_not_armed_yet_is_dropped => "apm.before_armed" {
        let mut b = rearmed();
        let to = b.remote(0, 1);
        b.path = ALTERNATE;
        b.exchange(&[write(Only, RQ, to, &[7]), unmigrated(write(Only, RQ, to, &[7]))], &[]);
        assert_eq!(b.count().rx_wrong_source, 2);
        expect_migration_state(&b, MigrationState::Rearm);
    }
}
