//! FLUSH and ATOMIC WRITE between urxe and an rxe that supports them, from Linux 6.2 on. rxe's ICRC of a
//! FLUSH covers the transport headers twice: the `rxe` personality sends it in this form and accepts both.

use super::guest::{Suite, Wc};
use super::pair::{MTU, Pair, name};
use super::peer::{How, Ip, REGION, Side, Site, words};
use super::unknown;
use urxe::verbs::*;

const ALL: Access = Access(Access::ALL.0 | Access::FLUSH_GLOBAL.0 | Access::FLUSH_PERSISTENT.0);
const GLOBAL: Placement = Placement { global: true, persistent: false };
const PERSISTENT: Placement = Placement { global: false, persistent: true };
const BOTH: Placement = Placement { global: true, persistent: true };

/// Opens a NIC of this personality beside the guest.
fn pair(site: &Site, ip: Ip, personality: Personality) -> Pair<'_> {
    let options = ContextOptions { personality, ..ContextOptions::default() };
    Pair::with(site, ip, Side::with_options(site.link(ip), REGION, &options))
}

fn how(ip: Ip) -> How {
    let how = How::new(ip, MTU);
    let ours = ConnectOptions { access: ALL, ..how.ours };
    How { ours, their_qp: "ex=1".into(), theirs: "access=wrafp".into(), ..how }
}

fn whole(at: RemoteAddr, placement: Placement) -> SendWr<'static> {
    let RemoteAddr { va, rkey } = at;
    SendWr::new(1, WrOp::Flush { va, rkey, len: 0, placement, whole_region: true }, &[])
}

fn done(p: &Pair<'_>, qp: &Qp, wr: &SendWr<'_>) -> &'static str {
    qp.post_send(wr).unwrap();
    name(p.side.one().unwrap().status)
}

pub fn by_urxe(site: &Site, ip: Ip) {
    if Suite::chosen() == Suite::Bookworm {
        return unknown::by_urxe(site, ip);
    }
    let mut p = pair(site, ip, Personality::RXE);
    let how = how(ip);
    let theirs = p.shell.vsh.cmd("mr f 4096 access=lwraf").unwrap();
    let at = RemoteAddr { va: theirs.num("addr"), rkey: RKey(theirs.num("rkey") as u32) };
    let qp = p.connect_as(&how);
    assert_eq!(done(&p, &qp, &SendWr::write(1, &[p.side.mr.sge(0..4096)], at)), "SUCCESS");
    assert_eq!(done(&p, &qp, &SendWr::flush(1, at, 4096, GLOBAL)), "SUCCESS");
    assert_eq!(done(&p, &qp, &SendWr::flush(1, at, 1, GLOBAL)), "SUCCESS");
    assert_eq!(done(&p, &qp, &whole(at, GLOBAL)), "SUCCESS");
    let value = SendWr::atomic_write(1, RemoteAddr { va: at.va + 64, ..at }, *b"all of 8");
    assert_eq!(done(&p, &qp, &value), "SUCCESS");
    assert_eq!(p.shell.vsh.get("f", 64, 8).unwrap(), b"all of 8");
    // In one burst with others.
    let wrs = [1, 2, 3, 4].map(|id| SendWr::flush(id, at, 100, GLOBAL));
    wrs.iter().for_each(|wr| qp.post_send(wr).unwrap());
    assert_eq!(p.ours(4), [1, 2, 3, 4].map(|id| (id, WcStatus::Success)));
    // The guest's memory is not persistent, so no region there can be flushed with this placement.
    for placement in [PERSISTENT, BOTH] {
        let qp = p.connect_as(&how);
        assert_eq!(done(&p, &qp, &SendWr::flush(1, at, 100, placement)), "REM_ACCESS_ERR", "{placement:?}");
    }
    let qp = p.connect_as(&how);
    assert_eq!(done(&p, &qp, &SendWr::flush(1, p.shell.at(0), 100, GLOBAL)), "REM_ACCESS_ERR", "no access");
    assert_eq!(p.side.counters().local_ack_timeout_err, 0);
}

pub fn by_rxe(site: &Site, ip: Ip) {
    let mut p = pair(site, ip, Personality::RXE);
    let how = how(ip);
    let mr = p.side.pd.reg_mr(4096, ALL).unwrap();
    let at = words(mr.remote(0));
    let _qp = p.connect_as(&how);
    let done = |p: &mut Pair<'_>, line: &str| -> Wc {
        p.cmd(line);
        p.shell.one().unwrap()
    };
    for kind in [1, 2, 3] {
        for range in ["len=4096 level=0", "len=1 level=0", "len=0 level=1"] {
            let wc = done(&mut p, &format!("flush q {at} type={kind} {range}"));
            assert_eq!((wc.status.as_str(), wc.op.as_str()), ("SUCCESS", "FLUSH"), "type {kind}, {range}");
        }
    }
    let wc = done(&mut p, &format!("awrite q {at} value=0x0807060504030201"));
    assert_eq!((wc.status.as_str(), wc.op.as_str()), ("SUCCESS", "ATOMIC_WRITE"));
    let mut got = [0; 8];
    mr.read(0, &mut got).unwrap();
    assert_eq!(got, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(p.side.counters().rx_icrc_err, 0);
    // A region without the access right.
    let closed = words(p.side.mr.remote(0));
    let _qp = p.connect_as(&how);
    assert_eq!(done(&mut p, &format!("flush q {closed} len=100")).status, "REM_ACCESS_ERR");
}

/// Checks the defect in rxe itself: if this fails, that kernel has been fixed, and the quirk should record
/// the version.
pub fn strict_by_rxe(site: &Site, ip: Ip) {
    let mut p = pair(site, ip, Personality::STRICT);
    let how = How { theirs: "access=wrafp timeout=12 retry=2".into(), ..how(ip) };
    let mr = p.side.pd.reg_mr(4096, ALL).unwrap();
    let _qp = p.connect_as(&how);
    p.cmd(&format!("flush q {} len=100", words(mr.remote(0))));
    assert_eq!(p.shell.one().unwrap().status, "RETRY_EXC_ERR");
    assert!(p.side.counters().rx_icrc_err >= 3, "{:?}", p.side.counters());
}
