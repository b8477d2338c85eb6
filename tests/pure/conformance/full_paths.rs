//! Conformance cases: paths that the link reports as full, because the buffer between both ends has no room.

use urxe::transport::{
    Destination, PeerChange, PeerPath, QpAttr, QpState, QpType, SendFlags, SendWr, WcOpcode, WrOp,
};
use urxe::wire::Qpn;

use crate::bench::{Bench, QKEY, flushed, ok};

/// Leading bits of the QPN of a process at the peer.
const GROUP: u8 = 5;
/// Number of a queue pair of that process.
const IN_GROUP: u32 = (GROUP as u32) << 18;

/// Returns the path to a process at the peer.
fn path(b: &Bench, group: u8) -> PeerPath {
    let flow = b.flow();
    PeerPath { src: flow.dst, dst: flow.src, group }
}

/// Returns a bench of two queue pairs, of which the second is connected to another process than the first.
fn connected_to_two_processes(qp_type: QpType) -> Bench {
    let mut b = Bench::with(|s| (s.qps, s.qp_type, s.state) = (2, qp_type, QpState::Reset));
    for qp in 0..2 {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let mut attr = b.attr(qp, state);
            if qp == 1
                && let Some(dest) = &mut attr.dest_qpn
            {
                *dest = Qpn::new(dest.get() | IN_GROUP);
            }
            b.modify(qp, attr).unwrap();
        }
        (0..3).for_each(|i| b.post_on(qp, &SendWr::new(i, WrOp::Send, &[]).inline(b"short")).unwrap());
    }
    b
}

/// Returns, for each packet sent, whether it is for the process of the second queue pair.
fn sent_to_group(b: &mut Bench) -> Vec<bool> {
    b.sent().iter().map(|p| p.qp & IN_GROUP as usize != 0).collect()
}

cases! {
    full_path_holds_back_its_queue_pairs_alone => "req.path.full" {
        for qp_type in [QpType::Rc, QpType::Uc] {
            let mut b = connected_to_two_processes(qp_type);
            let (full, other) = (path(&b, GROUP), path(&b, GROUP + 1));
            b.nic.on_peer_change(PeerChange::Full(full));
            assert_eq!(sent_to_group(&mut b), [false; 3], "{qp_type:?}");
            assert!(!b.nic.wants_to_transmit(), "the second queue pair waits for the link");
            b.nic.on_peer_change(PeerChange::Room(other));
            b.expect_nothing();
            b.nic.on_peer_change(PeerChange::Room(full));
            assert_eq!(sent_to_group(&mut b), [true; 3], "{qp_type:?}");
            b.discard();
        }
    }

    work_requests_for_a_full_path_are_flushed_when_their_queue_pair_fails => "req.path.full" {
        let mut b = connected_to_two_processes(QpType::Rc);
        let full = path(&b, GROUP);
        b.nic.on_peer_change(PeerChange::Full(full));
        assert_eq!(sent_to_group(&mut b), [false; 3]);
        b.modify(1, QpAttr::new(QpState::Err)).unwrap();
        b.expect_nothing();
        b.sends(&[0, 1, 2].map(flushed));
        b.discard();
    }

    datagrams_for_a_full_path_wait_for_it_and_lose_no_order => "req.path.full" {
        let mut b = Bench::with(|s| s.qp_type = QpType::Ud);
        let Destination::Qp { pd, av, qpn, qkey } = b.to(QKEY) else { unreachable!() };
        let in_group = Qpn::new(qpn.get() | IN_GROUP);
        for (wr_id, qpn) in [qpn, qpn, in_group, qpn, in_group].into_iter().enumerate() {
            let wr = SendWr::new(wr_id as u64, WrOp::Send, &[]).inline(b"short");
            b.post_on(0, &wr.flags(SendFlags::SIGNALED).to(Some(Destination::Qp { pd, av, qpn, qkey }))).unwrap();
        }
        let full = path(&b, GROUP);
        b.nic.on_peer_change(PeerChange::Full(full));
        assert_eq!(sent_to_group(&mut b), [false, false]);
        b.nic.on_peer_change(PeerChange::Room(full));
        assert_eq!(sent_to_group(&mut b), [true, false, true]);
        b.sends(&[0, 1, 2, 3, 4].map(|wr_id| ok(wr_id, WcOpcode::Send, 5)));
    }
}
