//! FLUSH and ATOMIC WRITE against an rxe that does not support them (before Linux 6.2).

use std::time::Duration;
use urxe::verbs::*;
use urxe_test_support::pair::{Pair, status_name};
use urxe_test_support::peer::ConnectParams;
use urxe_test_support::testbed::{Ip, Testbed};

/// Checks that rxe in Linux 6.1 drops requests with an unknown opcode, so that the requester exhausts its
/// retries.
pub fn by_urxe(setup: &Testbed, ip: Ip) {
    let release = setup.guest.check("uname -r", Duration::from_secs(10)).unwrap().stdout;
    let release = release.trim();
    assert!(
        release.starts_with("6.1."),
        "the guest has Linux {release}; rxe supports FLUSH and ATOMIC WRITE from 6.2 on: update this test"
    );
    let mut p = Pair::open(setup, ip);
    let params = ConnectParams::new(ip, urxe_test_support::pair::MTU);
    let options = params.ours.timeout(AckTimeout::new(12)).retry_cnt(2);
    let placement = Placement::GLOBAL;
    for wr in
        [SendWr::flush(1, p.shell.at(0), 100, placement), SendWr::atomic_write(1, p.shell.at(8), [7; 8])]
    {
        let qp = p.connect_with(options, "");
        // The peer is reachable, and responds to known opcodes.
        qp.post_send(&SendWr::write(0, &[p.side.mr.sge(0..4)], p.shell.at(0))).unwrap();
        assert_eq!(p.completions(1), [(0, WcStatus::Success)]);
        let before = p.side.counters();
        qp.post_send(&wr).unwrap();
        let wc = p.side.one().unwrap();
        let after = p.side.counters();
        let naks = after.rcvd_seq_err - before.rcvd_seq_err;
        let timeouts = after.local_ack_timeout_err - before.local_ack_timeout_err;
        eprintln!(
            "Linux {release}, {:?}: {}, {timeouts} timeouts, {naks} NAKs",
            wr.op,
            status_name(wc.status)
        );
        assert_eq!((wc.wr_id, status_name(wc.status)), (1, "RETRY_EXC_ERR"));
        assert_eq!((timeouts, naks), (3, 0));
        assert_eq!((qp.state(), p.shell.state("q").as_str()), (QpState::Err, "RTS"));
    }
}
