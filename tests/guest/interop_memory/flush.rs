//! FLUSH and ATOMIC WRITE between urxe and an rxe that supports them, from Linux 6.2 on. rxe's ICRC of a
//! FLUSH covers the transport headers twice; the `rxe` personality sends the same ICRC, and also accepts the
//! correct one.

use super::flush_unsupported;
use urxe::verbs::*;
use urxe_test_support::guest::{Suite, Wc};
use urxe_test_support::pair::{MTU, Pair, status_name};
use urxe_test_support::peer::{ConnectParams, REGION, Side, remote_args};
use urxe_test_support::testbed::{Ip, Testbed};

const ALL: Access = Access::ALL.union(Access::FLUSH_GLOBAL).union(Access::FLUSH_PERSISTENT);
const GLOBAL: Placement = Placement::GLOBAL;
const PERSISTENT: Placement = Placement::PERSISTENT;
const BOTH: Placement = Placement::all();

/// Opens a NIC with the given personality as the guest's peer.
fn pair(setup: &Testbed, ip: Ip, personality: Personality) -> Pair<'_> {
    let options = ContextOptions::default().personality(personality);
    Pair::with_side(setup, ip, Side::new(Context::open(setup.link(ip), &options).unwrap(), REGION))
}

fn params(ip: Ip) -> ConnectParams {
    let params = ConnectParams::new(ip, MTU);
    let ours = params.ours.access(ALL);
    ConnectParams { ours, their_qp: "ex=1".into(), theirs: "access=wrafp".into(), ..params }
}

fn flush_region(at: RemoteAddr, placement: Placement) -> SendWr<'static> {
    let RemoteAddr { va, rkey } = at;
    SendWr::new(1, WrOp::Flush { va, rkey, len: 0, placement, whole_region: true }, &[])
}

fn execute(p: &Pair<'_>, qp: &Qp, wr: &SendWr<'_>) -> &'static str {
    qp.post_send(wr).unwrap();
    status_name(p.side.one().unwrap().status)
}

pub fn by_urxe(setup: &Testbed, ip: Ip) {
    if Suite::from_env() == Suite::Bookworm {
        return flush_unsupported::by_urxe(setup, ip);
    }
    let mut p = pair(setup, ip, Personality::RXE);
    let params = params(ip);
    let theirs = p.shell.vsh.cmd("mr f 4096 access=lwraf").unwrap();
    let at = RemoteAddr { va: theirs.num("addr"), rkey: RKey(theirs.num("rkey") as u32) };
    let qp = p.connect_as(&params);
    assert_eq!(execute(&p, &qp, &SendWr::write(1, &[p.side.mr.sge(0..4096)], at)), "SUCCESS");
    assert_eq!(execute(&p, &qp, &SendWr::flush(1, at, 4096, GLOBAL)), "SUCCESS");
    assert_eq!(execute(&p, &qp, &SendWr::flush(1, at, 1, GLOBAL)), "SUCCESS");
    assert_eq!(execute(&p, &qp, &flush_region(at, GLOBAL)), "SUCCESS");
    let value = SendWr::atomic_write(1, RemoteAddr { va: at.va + 64, ..at }, *b"all of 8");
    assert_eq!(execute(&p, &qp, &value), "SUCCESS");
    assert_eq!(p.shell.vsh.get("f", 64, 8).unwrap(), b"all of 8");
    // In one burst with others.
    let wrs = [1, 2, 3, 4].map(|id| SendWr::flush(id, at, 100, GLOBAL));
    wrs.iter().for_each(|wr| qp.post_send(wr).unwrap());
    assert_eq!(p.completions(4), [1, 2, 3, 4].map(|id| (id, WcStatus::Success)));
    // The guest's memory is not persistent, so no region there can be flushed with this placement.
    for placement in [PERSISTENT, BOTH] {
        let qp = p.connect_as(&params);
        assert_eq!(
            execute(&p, &qp, &SendWr::flush(1, at, 100, placement)),
            "REM_ACCESS_ERR",
            "{placement:?}"
        );
    }
    let qp = p.connect_as(&params);
    assert_eq!(
        execute(&p, &qp, &SendWr::flush(1, p.shell.at(0), 100, GLOBAL)),
        "REM_ACCESS_ERR",
        "no access"
    );
    assert_eq!(p.side.counters().local_ack_timeout_err, 0);
}

pub fn by_rxe(setup: &Testbed, ip: Ip) {
    let mut p = pair(setup, ip, Personality::RXE);
    let params = params(ip);
    let mr = p.side.pd.reg_mr(4096, ALL).unwrap();
    let at = remote_args(mr.remote(0));
    let _qp = p.connect_as(&params);
    let execute = |p: &mut Pair<'_>, line: &str| -> Wc {
        p.cmd(line);
        p.shell.one().unwrap()
    };
    for kind in [1, 2, 3] {
        for range in ["len=4096 level=0", "len=1 level=0", "len=0 level=1"] {
            let wc = execute(&mut p, &format!("flush q {at} type={kind} {range}"));
            assert_eq!((wc.status.as_str(), wc.op.as_str()), ("SUCCESS", "FLUSH"), "type {kind}, {range}");
        }
    }
    let wc = execute(&mut p, &format!("awrite q {at} value=0x0807060504030201"));
    assert_eq!((wc.status.as_str(), wc.op.as_str()), ("SUCCESS", "ATOMIC_WRITE"));
    let mut got = [0; 8];
    mr.read(0, &mut got).unwrap();
    assert_eq!(got, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(p.side.counters().rx_icrc_err, 0);
    // A region without the access right.
    let no_flush_access = remote_args(p.side.mr.remote(0));
    let _qp = p.connect_as(&params);
    assert_eq!(execute(&mut p, &format!("flush q {no_flush_access} len=100")).status, "REM_ACCESS_ERR");
}

/// Checks that rxe still computes the wrong ICRC for a FLUSH. If this fails, the kernel has been fixed, and
/// the quirk's documentation should name the version.
pub fn strict_by_rxe(setup: &Testbed, ip: Ip) {
    let mut p = pair(setup, ip, Personality::STRICT);
    let params = ConnectParams { theirs: "access=wrafp timeout=12 retry=2".into(), ..params(ip) };
    let mr = p.side.pd.reg_mr(4096, ALL).unwrap();
    let _qp = p.connect_as(&params);
    p.cmd(&format!("flush q {} len=100", remote_args(mr.remote(0))));
    assert_eq!(p.shell.one().unwrap().status, "RETRY_EXC_ERR");
    assert!(p.side.counters().rx_icrc_err >= 3, "{:?}", p.side.counters());
}
