//! FLUSH and ATOMIC WRITE, which rxe supports from Linux 6.2 on.

use super::pair::{Pair, name};
use super::peer::{How, Ip, Site};
use std::time::Duration;
use urxe::verbs::*;

/// Checks that rxe of Linux 6.1 ignores an opcode that it does not know, so that the requester's retries run
/// out.
pub fn by_urxe(site: &Site, ip: Ip) {
    let release = site.guest.check("uname -r", Duration::from_secs(10)).unwrap().stdout;
    let release = release.trim();
    assert!(
        release.starts_with("6.1."),
        "the guest has Linux {release} now: rxe has FLUSH and ATOMIC WRITE from 6.2 on, so test that they work"
    );
    let mut p = Pair::open(site, ip);
    let how = How::new(ip, super::pair::MTU);
    let options = ConnectOptions { timeout: AckTimeout::new(12), retry_cnt: 2, ..how.ours };
    let placement = Placement { global: true, persistent: false };
    for wr in
        [SendWr::flush(1, p.shell.at(0), 100, placement), SendWr::atomic_write(1, p.shell.at(8), [7; 8])]
    {
        let qp = p.connect_with(options, "");
        // The peer is reachable, and responds to opcodes that it knows.
        qp.post_send(&SendWr::write(0, &[p.side.mr.sge(0..4)], p.shell.at(0))).unwrap();
        assert_eq!(p.ours(1), [(0, WcStatus::Success)]);
        let before = p.side.counters();
        qp.post_send(&wr).unwrap();
        let wc = p.side.one().unwrap();
        let after = p.side.counters();
        let naks = after.rcvd_seq_err - before.rcvd_seq_err;
        let timeouts = after.local_ack_timeout_err - before.local_ack_timeout_err;
        eprintln!("Linux {release}, {:?}: {}, {timeouts} timeouts, {naks} NAKs", wr.op, name(wc.status));
        assert_eq!((wc.wr_id, name(wc.status)), (1, "RETRY_EXC_ERR"));
        assert_eq!((timeouts, naks), (3, 0));
        assert_eq!((qp.state(), p.shell.state("q").as_str()), (QpState::Err, "RTS"));
    }
}
