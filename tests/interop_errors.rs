//! What goes wrong between urxe and the kernel's rxe goes wrong in the same way on both sides: receivers that are not
//! ready, refused accesses, silence, wrong ICRCs. Needs the test guest.

#[path = "support/guest.rs"]
mod guest;
#[path = "support/peer.rs"]
mod peer;
#[path = "support/table.rs"]
mod table;

use guest::pattern;
use peer::{How, Ip, SOON, Shell, Side, Site, Via, words};
use std::time::Duration;
use table::Table;
use urxe::link::faults::{Action, Direction, Faults, Rule, When};
use urxe::verbs::*;

const MTU: usize = 1024;
const SHORT: Duration = Duration::from_millis(300);

fn how() -> How {
    How::new(Ip::V4, MTU)
}

fn wc_of(side: &Side, n: usize) -> Vec<(u64, WcStatus)> {
    side.poll(n, SOON).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn shell_wc(shell: &mut Shell, n: usize) -> Vec<(u64, String)> {
    shell.vsh.poll(n, SOON).unwrap().iter().map(|wc| (wc.wr_id, wc.status.clone())).collect()
}

fn strs(v: &[(u64, String)]) -> Vec<(u64, &str)> {
    v.iter().map(|(id, s)| (*id, s.as_str())).collect()
}

#[test]
fn receivers_that_are_not_ready() {
    let site = Site::start(Via::Dgram);
    let side = site.open(Ip::V4);
    let mut shell = site.shell(65536);

    // urxe sends, and the guest posts its receive late: for one packet and for several.
    for len in [100, 5000] {
        let (before, theirs) = (side.counters(), site.guest.counters().unwrap());
        let qp = site.connect(&side, &mut shell, &how());
        let data = pattern(len, len as u8);
        side.mr.write(0, &data).unwrap();
        qp.post_send(&SendWr::send(1, &[side.mr.sge(0..len)])).unwrap();
        assert_eq!(side.poll(1, SHORT), [], "completed though nobody receives");
        shell.vsh.cmd("recv q m 0 8192 id=2").unwrap();
        assert_eq!(wc_of(&side, 1), [(1, WcStatus::Success)]);
        assert_eq!(strs(&shell_wc(&mut shell, 1)), [(2, "SUCCESS")]);
        assert_eq!(shell.vsh.get("m", 0, len).unwrap(), data);
        let (after, their_after) = (side.counters(), site.guest.counters().unwrap());
        assert!(after.rcvd_rnr_err > before.rcvd_rnr_err, "{after:?}");
        assert!(their_after["send_rnr_err"] > theirs["send_rnr_err"], "{their_after:?}");
    }

    // The other way round.
    for len in [100, 5000] {
        let (before, theirs) = (side.counters(), site.guest.counters().unwrap());
        let qp = site.connect(&side, &mut shell, &how());
        shell.vsh.cmd(&format!("pattern m 0 {len} {}", len as u8)).unwrap();
        shell.vsh.cmd(&format!("send q m 0 {len} id=1")).unwrap();
        assert_eq!(shell.vsh.poll(1, SHORT).unwrap(), [], "completed though nobody receives");
        qp.post_recv(&RecvWr { wr_id: 2, sges: &[side.mr.sge(0..8192)] }).unwrap();
        assert_eq!(strs(&shell_wc(&mut shell, 1)), [(1, "SUCCESS")]);
        assert_eq!(wc_of(&side, 1), [(2, WcStatus::Success)]);
        let mut got = vec![0; len];
        side.mr.read(0, &mut got).unwrap();
        assert_eq!(got, pattern(len, len as u8));
        let (after, their_after) = (side.counters(), site.guest.counters().unwrap());
        assert!(after.send_rnr_err > before.send_rnr_err, "{after:?}");
        assert!(their_after["rcvd_rnr_err"] > theirs["rcvd_rnr_err"], "{their_after:?}");
    }

    // A WRITE with immediate needs a receive as well.
    let qp = site.connect(&side, &mut shell, &how());
    qp.post_send(&SendWr::write_with_imm(1, &[side.mr.sge(0..3000)], shell.at(0), 9)).unwrap();
    assert_eq!(side.poll(1, SHORT), []);
    shell.vsh.cmd("recv q id=2").unwrap();
    assert_eq!(wc_of(&side, 1), [(1, WcStatus::Success)]);
    assert_eq!(strs(&shell_wc(&mut shell, 1)), [(2, "SUCCESS")]);
    shell.vsh.cmd(&format!("write q m 0 3000 {} imm=9 id=3", words(side.mr.remote(0)))).unwrap();
    assert_eq!(shell.vsh.poll(1, SHORT).unwrap(), []);
    qp.post_recv(&RecvWr { wr_id: 4, sges: &[] }).unwrap();
    assert_eq!(strs(&shell_wc(&mut shell, 1)), [(3, "SUCCESS")]);
    assert_eq!(wc_of(&side, 1), [(4, WcStatus::Success)]);

    // And nobody ever receives: the sender's QP ends, the other goes on.
    let options = ConnectOptions { rnr_retry: 2, ..ConnectOptions::default() };
    let qp = site.connect(&side, &mut shell, &How { ours: options, ..how() });
    for id in [1, 2] {
        qp.post_send(&SendWr::send(id, &[side.mr.sge(0..10)])).unwrap();
    }
    assert_eq!(wc_of(&side, 2), [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!((qp.state(), shell.state("q").as_str()), (QpState::Err, "RTS"));
    assert_eq!(side.counters().retry_rnr_exceeded_err, 1);

    let qp = site.connect(&side, &mut shell, &How { theirs: "rnr_retry=2".into(), ..how() });
    for id in [1, 2] {
        shell.vsh.cmd(&format!("send q m 0 10 id={id}")).unwrap();
    }
    assert_eq!(strs(&shell_wc(&mut shell, 2)), [(1, "RNR_RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!((qp.state(), shell.state("q").as_str()), (QpState::Rts, "ERR"));
}

#[test]
fn silence() {
    let site = Site::start(Via::Dgram);
    let side = site.open(Ip::V4);
    let mut shell = site.shell(65536);
    let options = ConnectOptions { timeout: AckTimeout::new(12), retry_cnt: 3, ..ConnectOptions::default() };

    // The guest's QP is gone.
    let qp = site.connect(&side, &mut shell, &How { ours: options, ..how() });
    shell.vsh.cmd("destroy q").unwrap();
    let before = side.counters();
    for id in [1, 2] {
        qp.post_send(&SendWr::write(id, &[side.mr.sge(0..3000)], shell.at(0))).unwrap();
    }
    assert_eq!(wc_of(&side, 2), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state(), QpState::Err);
    let after = side.counters();
    assert_eq!(after.local_ack_timeout_err - before.local_ack_timeout_err, 4, "three retries and the end");
    assert_eq!(after.retry_exceeded_err - before.retry_exceeded_err, 1);

    // Ours is gone.
    let qp = site.connect(&side, &mut shell, &How { theirs: "timeout=12 retry=3".into(), ..how() });
    drop(qp);
    let before = site.guest.counters().unwrap();
    for id in [1, 2] {
        shell.vsh.cmd(&format!("read q m 0 3000 {} id={id}", words(side.mr.remote(0)))).unwrap();
    }
    assert_eq!(strs(&shell_wc(&mut shell, 2)), [(1, "RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!(shell.state("q"), "ERR");
    assert!(site.guest.counters().unwrap()["retry_exceeded_err"] > before["retry_exceeded_err"]);
    assert!(side.counters().rx_unknown_qp >= 4, "{:?}", side.counters());
}

#[test]
fn wrong_icrcs() {
    let site = Site::start(Via::Dgram);
    for (direction, requester) in [(Direction::Tx, "urxe"), (Direction::Rx, "rxe")] {
        // The first packet of the direction is the request.
        let rule = Rule::new(direction, Action::Corrupt, When::Nth(1));
        let side = site.open_wrapped(Ip::V4, |link| Box::new(Faults::new(link, vec![rule], 1)));
        let mut shell = site.shell(65536);
        let qp = site.connect(&side, &mut shell, &how());
        let theirs = site.guest.counters().unwrap();
        let data = pattern(500, 99);
        if requester == "urxe" {
            side.mr.write(0, &data).unwrap();
            shell.vsh.cmd("recv q m 0 500 id=2").unwrap();
            qp.post_send(&SendWr::send(1, &[side.mr.sge(0..500)])).unwrap();
            assert_eq!(wc_of(&side, 1), [(1, WcStatus::Success)]);
            assert_eq!(strs(&shell_wc(&mut shell, 1)), [(2, "SUCCESS")]);
            assert_eq!(shell.vsh.get("m", 0, 500).unwrap(), data);
            let (ours, after) = (side.counters(), site.guest.counters().unwrap());
            // The guest saw nothing of the first one; the second came after our timeout.
            assert!(ours.local_ack_timeout_err >= 1 && ours.requester_retry >= 1, "{ours:?}");
            assert_eq!(after["rcvd_pkts"] - theirs["rcvd_pkts"], ours.sent_pkts - 1, "{theirs:?} {after:?}");
            assert_eq!(after["out_of_seq_request"], theirs["out_of_seq_request"]);
            assert_eq!(ours.rx_icrc_err, 0);
        } else {
            shell.vsh.set("m", 0, &data).unwrap();
            qp.post_recv(&RecvWr { wr_id: 2, sges: &[side.mr.sge(0..500)] }).unwrap();
            shell.vsh.cmd("send q m 0 500 id=1").unwrap();
            assert_eq!(strs(&shell_wc(&mut shell, 1)), [(1, "SUCCESS")]);
            assert_eq!(wc_of(&side, 1), [(2, WcStatus::Success)]);
            let mut got = vec![0; 500];
            side.mr.read(0, &mut got).unwrap();
            assert_eq!(got, data);
            let (ours, after) = (side.counters(), site.guest.counters().unwrap());
            assert_eq!(ours.rx_icrc_err, 1);
            assert_eq!(ours.rdma_recvs, 1);
            assert!(after["completer_retry_err"] > theirs["completer_retry_err"], "{theirs:?} {after:?}");
        }
    }
}

/// What a requester asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ask {
    Write,
    WriteImm,
    Read,
    Send,
    Add,
}

/// Whose and what kind of region the request names, or how else it is wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Wrong {
    /// A region with this access, `lwra` as the shell writes it.
    Access(&'static str),
    /// The key's last byte.
    Key,
    /// It begins inside the region and ends behind it.
    Range,
    /// The region is of another protection domain.
    Domain,
    /// What the QP allows.
    QpAccess(&'static str),
    /// An atomic on an odd address.
    Odd,
    /// A SEND longer than its receive.
    TooLong,
    /// The receive names a region that may not be written.
    Receive,
    /// No bytes at all, of a region that there is not: no error.
    Nothing,
}

struct Case {
    wrong: Wrong,
    ask: Ask,
    /// The requester's status: urxe's, asking rxe; rxe's, asking urxe.
    status: [&'static str; 2],
    /// The status of the responder's oldest receive: rxe's, urxe's.
    receive: [&'static str; 2],
}

const fn case(wrong: Wrong, ask: Ask, status: &'static str) -> Case {
    Case { wrong, ask, status: [status, status], receive: ["WR_FLUSH_ERR", "WR_FLUSH_ERR"] }
}

const CASES: &[Case] = &[
    case(Wrong::Access("l"), Ask::Write, "REM_ACCESS_ERR"),
    case(Wrong::Access("lr"), Ask::Write, "REM_ACCESS_ERR"),
    case(Wrong::Access("lra"), Ask::WriteImm, "REM_ACCESS_ERR"),
    case(Wrong::Access("lw"), Ask::Read, "REM_ACCESS_ERR"),
    case(Wrong::Access("lwr"), Ask::Add, "REM_ACCESS_ERR"),
    case(Wrong::Key, Ask::Write, "REM_ACCESS_ERR"),
    case(Wrong::Key, Ask::WriteImm, "REM_ACCESS_ERR"),
    case(Wrong::Key, Ask::Read, "REM_ACCESS_ERR"),
    case(Wrong::Key, Ask::Add, "REM_ACCESS_ERR"),
    case(Wrong::Range, Ask::Write, "REM_ACCESS_ERR"),
    case(Wrong::Range, Ask::Read, "REM_ACCESS_ERR"),
    case(Wrong::Range, Ask::Add, "REM_ACCESS_ERR"),
    case(Wrong::Domain, Ask::Write, "REM_ACCESS_ERR"),
    case(Wrong::Domain, Ask::Read, "REM_ACCESS_ERR"),
    case(Wrong::QpAccess("ra"), Ask::Write, "REM_INV_REQ_ERR"),
    case(Wrong::QpAccess("wa"), Ask::Read, "REM_INV_REQ_ERR"),
    case(Wrong::QpAccess("wr"), Ask::Add, "REM_INV_REQ_ERR"),
    // rxe's own library does not let such a request out.
    Case { status: ["REM_INV_REQ_ERR", ""], ..case(Wrong::Odd, Ask::Add, "") },
    // An invalid request as the specification has it (IBA 9.7.4.1.6); rxe says that it failed itself.
    Case {
        status: ["REM_OP_ERR", "REM_INV_REQ_ERR"],
        receive: ["LOC_QP_OP_ERR", "LOC_LEN_ERR"],
        ..case(Wrong::TooLong, Ask::Send, "")
    },
    Case {
        status: ["REM_OP_ERR", "REM_OP_ERR"],
        receive: ["LOC_QP_OP_ERR", "LOC_PROT_ERR"],
        ..case(Wrong::Receive, Ask::Send, "")
    },
    case(Wrong::Nothing, Ask::Write, "SUCCESS"),
    case(Wrong::Nothing, Ask::Read, "SUCCESS"),
];

/// The length of requests: of several packets where that may be.
const LEN: usize = 3000;
const AREA: usize = 8192;
/// Where the request is aimed at, in a region of `AREA` bytes.
fn aim(case: &Case) -> usize {
    match (case.wrong, case.ask) {
        (Wrong::Range, _) => AREA - 4 + if case.ask == Ask::Add { 4 } else { 0 },
        (Wrong::Odd, _) => 4,
        _ => 0,
    }
}

fn access(text: &str) -> Access {
    let bits = text.chars().map(|c| match c {
        'l' => Access::LOCAL_WRITE,
        'w' => Access::REMOTE_WRITE,
        'r' => Access::REMOTE_READ,
        'a' => Access::REMOTE_ATOMIC,
        _ => panic!("access {text}"),
    });
    bits.fold(Access::LOCAL_READ, |all, one| all | one)
}

/// As the shell writes it.
fn name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "SUCCESS",
        WcStatus::LocLenErr => "LOC_LEN_ERR",
        WcStatus::LocQpOpErr => "LOC_QP_OP_ERR",
        WcStatus::LocProtErr => "LOC_PROT_ERR",
        WcStatus::WrFlushErr => "WR_FLUSH_ERR",
        WcStatus::RemInvReqErr => "REM_INV_REQ_ERR",
        WcStatus::RemAccessErr => "REM_ACCESS_ERR",
        WcStatus::RemOpErr => "REM_OP_ERR",
        WcStatus::RetryExcErr => "RETRY_EXC_ERR",
        WcStatus::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
        _ => "another",
    }
}

/// What both sides saw: the requester's completions and state, the responder's receive and state.
#[derive(PartialEq, Debug)]
struct Seen {
    requester: Vec<(u64, String)>,
    responder: Vec<(u64, String)>,
    states: [String; 2],
    untouched: bool,
}

/// The case with urxe as requester: the region is rxe's.
fn ask_rxe(site: &Site, side: &Side, shell: &mut Shell, case: &Case) -> Seen {
    let (region, qp_access) = match case.wrong {
        Wrong::Access(a) => (format!("mr x {AREA} access={a}"), "wra"),
        Wrong::Domain => (format!("mr x {AREA} pd=pd2"), "wra"),
        Wrong::QpAccess(a) => (format!("mr x {AREA}"), a),
        Wrong::Receive => (format!("mr x {AREA} access="), "wra"),
        _ => (format!("mr x {AREA}"), "wra"),
    };
    let reply = shell.vsh.cmd(&region).unwrap();
    let key = reply.num("rkey") as u32 ^ u32::from(matches!(case.wrong, Wrong::Key | Wrong::Nothing));
    let to = RemoteAddr { va: reply.num("addr") + aim(case) as u64, rkey: RKey(key) };
    let qp = site.connect(side, shell, &How { theirs: format!("access={qp_access}"), ..how() });
    let receive = match case.wrong {
        Wrong::TooLong => "m 0 2999",
        Wrong::Receive => "x 0 4000",
        _ => "m 0 4000",
    };
    shell.vsh.cmd(&format!("recv q {receive} id=10")).unwrap();
    let len = if case.wrong == Wrong::Nothing { 0 } else { LEN };
    let sges = [side.mr.sge(0..if case.ask == Ask::Add { 8 } else { len })];
    side.mr.write(0, &[0xaa; LEN]).unwrap();
    let wr = match case.ask {
        Ask::Write => SendWr::write(1, &sges, to),
        Ask::WriteImm => SendWr::write_with_imm(1, &sges, to, 5),
        Ask::Read => SendWr::read(1, &sges, to),
        Ask::Send => SendWr::send(1, &sges),
        Ask::Add => SendWr::fetch_add(1, &sges, to, 1),
    };
    qp.post_send(&wr).unwrap();
    let own = [side.mr.sge(4096..4100)];
    qp.post_send(&SendWr::write(2, &own, shell.at(0))).unwrap();
    let requester = side.poll(2, SOON).iter().map(|wc| (wc.wr_id, name(wc.status).into())).collect();
    let responder = match case.wrong {
        Wrong::Nothing => vec![],
        _ => shell_wc(shell, 1),
    };
    let states = [qp.state().to_string(), shell.state("q")];
    let memory = shell.vsh.get("x", 0, AREA).unwrap();
    shell.vsh.cmd("destroy q").unwrap();
    shell.vsh.cmd("destroy x").unwrap();
    Seen { requester, responder, states, untouched: memory.iter().all(|b| *b == 0) }
}

/// The case with rxe as requester: the region is urxe's.
fn ask_urxe(site: &Site, side: &Side, shell: &mut Shell, case: &Case) -> Seen {
    let other = side.context.alloc_pd().unwrap();
    let mut options = ConnectOptions::default();
    let x = match case.wrong {
        Wrong::Access(a) => side.pd.reg_mr(AREA, access(a)),
        Wrong::Domain => other.reg_mr(AREA, Access::ALL),
        Wrong::Receive => side.pd.reg_mr(AREA, Access::LOCAL_READ),
        _ => side.pd.reg_mr(AREA, Access::ALL),
    }
    .unwrap();
    if let Wrong::QpAccess(a) = case.wrong {
        options.access = access(a);
    }
    let mut to = x.remote(aim(case));
    if matches!(case.wrong, Wrong::Key | Wrong::Nothing) {
        to.rkey = RKey(to.rkey.0 ^ 1);
    }
    let qp = site.connect(side, shell, &How { ours: options, ..how() });
    let receive = match case.wrong {
        Wrong::TooLong => side.mr.sge(0..2999),
        Wrong::Receive => x.sge(0..4000),
        _ => side.mr.sge(0..4000),
    };
    qp.post_recv(&RecvWr { wr_id: 10, sges: &[receive] }).unwrap();
    shell.vsh.cmd(&format!("fill m 0 {LEN} 0xaa")).unwrap();
    let len = if case.wrong == Wrong::Nothing { 0 } else { LEN };
    let line = match case.ask {
        Ask::Write => format!("write q m 0 {len} {}", words(to)),
        Ask::WriteImm => format!("write q m 0 {len} {} imm=5", words(to)),
        Ask::Read => format!("read q m 0 {len} {}", words(to)),
        Ask::Send => format!("send q m 0 {len}"),
        Ask::Add => format!("fadd q m 0 {} add=1", words(to)),
    };
    shell.vsh.cmd(&format!("{line} id=1")).unwrap();
    // Refused at once if the first one has failed already.
    let second = shell.vsh.raw(&format!("write q m 4096 4 {} id=2", words(side.mr.remote(0)))).unwrap();
    let n = if second.starts_with("ok") { 2 } else { 1 };
    let mut requester = shell_wc(shell, n);
    if n == 1 {
        requester.push((2, "WR_FLUSH_ERR".into()));
    }
    let responder = match case.wrong {
        Wrong::Nothing => vec![],
        _ => side.poll(1, SOON).iter().map(|wc| (wc.wr_id, name(wc.status).into())).collect(),
    };
    let states = [shell.state("q"), qp.state().to_string()];
    Seen { requester, responder, states, untouched: x.to_vec().iter().all(|b| *b == 0) }
}

#[test]
fn refusals() {
    let site = Site::start(Via::Dgram);
    let side = site.open(Ip::V4);
    let mut shell = site.shell(65536);
    shell.vsh.cmd("pd pd2").unwrap();
    let mut table =
        Table::new("errors", &["wrong", "asked for", "requester", "requester's status", "receive", "result"]);
    let mut failed = Vec::new();
    for case in CASES {
        for (i, requester) in ["urxe", "rxe"].into_iter().enumerate() {
            if case.status[i].is_empty() {
                continue;
            }
            let before = side.counters();
            let seen = match i {
                0 => ask_rxe(&site, &side, &mut shell, case),
                _ => ask_urxe(&site, &side, &mut shell, case),
            };
            let good = case.wrong == Wrong::Nothing;
            let pair = |a: &str, b: &str| vec![(1, a.to_string()), (2, b.to_string())];
            let state = if good { "RTS" } else { "ERR" };
            let want = Seen {
                requester: pair(case.status[i], if good { "SUCCESS" } else { "WR_FLUSH_ERR" }),
                responder: if good { vec![] } else { vec![(10, case.receive[i].to_string())] },
                states: [state.to_string(), state.to_string()],
                untouched: true,
            };
            let mut result = if seen == want { "ok".to_string() } else { "FAILED".to_string() };
            if seen != want {
                failed
                    .push(format!("{:?} {:?} by {requester}: {seen:?}, not {want:?}", case.wrong, case.ask));
            }
            if i == 1 && !good {
                let events: Vec<_> = std::iter::from_fn(|| side.context.next_event())
                    .filter(|e| !matches!(e, AsyncEvent::CommunicationEstablished(_)))
                    .collect();
                let c = side.counters();
                let refusals =
                    |c: &Counters| c.resp_invalid_request + c.resp_remote_access_err + c.resp_local_err;
                if refusals(&c) != refusals(&before) + 1 {
                    failed.push(format!("{:?} {:?}: refusals not counted: {c:?}", case.wrong, case.ask));
                    result = "FAILED".into();
                }
                let wants_event =
                    matches!(case.status[1], "REM_ACCESS_ERR") || case.receive[1] == "WR_FLUSH_ERR";
                if events.len() != usize::from(wants_event) {
                    failed.push(format!("{:?} {:?}: events {events:?}", case.wrong, case.ask));
                    result = "FAILED".into();
                }
            }
            let statuses = seen.requester.iter().map(|r| r.1.as_str()).collect::<Vec<_>>().join(", ");
            let receive = seen.responder.iter().map(|r| r.1.as_str()).collect::<Vec<_>>().join(", ");
            table.row(&[
                format!("{:?}", case.wrong),
                format!("{:?}", case.ask),
                requester.into(),
                statuses,
                receive,
                result,
            ]);
        }
    }
    table.print();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
