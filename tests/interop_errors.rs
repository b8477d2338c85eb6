//! Errors between urxe and the kernel's rxe have the same result on both sides: receivers that are not ready,
//! refused accesses, unresponsive peers, wrong ICRCs. Needs the test guest.

#[path = "support/guest.rs"]
mod guest;
#[path = "support/pair.rs"]
mod pair;
#[path = "support/peer.rs"]
mod peer;
#[path = "support/table.rs"]
mod table;

use guest::pattern;
use pair::{MTU, Pair, is, name, run};
use peer::{How, Ip, SOON, Site, Via, words};
use std::time::Duration;
use table::Table;
use urxe::link::faults::{Action, Direction, Faults, Rule, When};
use urxe::verbs::*;

const SHORT: Duration = Duration::from_millis(300);

/// Connection options with a long timeout, because an emulated guest on a busy machine may well not respond
/// within the usual 67 ms.
fn patient() -> ConnectOptions {
    How::new(Ip::V4, MTU).ours
}

/// Opens a pair over a wire that corrupts the first packet of this direction.
fn with_wrong_icrc(site: &Site, ip: Ip, direction: Direction) -> Pair<'_> {
    let rule = Rule::new(direction, Action::Corrupt, When::Nth(1));
    let side = site.open_wrapped(ip, |link| Box::new(Faults::new(link, vec![rule], 1)));
    Pair::with(site, ip, side)
}

#[test]
fn rnr_has_the_same_result_at_both_sides() {
    run(
        "receivers that are not ready",
        Via::Dgram,
        &[
            ("SEND before its receive", "urxe", late_receive_at_rxe),
            ("SEND before its receive", "rxe", late_receive_at_urxe),
            ("WRITE with immediate before its receive", "urxe", late_immediate_at_rxe),
            ("WRITE with immediate before its receive", "rxe", late_immediate_at_urxe),
            ("SEND without a receive", "urxe", no_receive_at_rxe),
            ("SEND without a receive", "rxe", no_receive_at_urxe),
        ],
    );
}

/// One packet, and several.
const LENGTHS: [usize; 2] = [100, 5000];

fn late_receive_at_rxe(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    for len in LENGTHS {
        let (before, theirs) = p.counters();
        let qp = p.connect();
        let data = pattern(len, len as u8);
        p.side.mr.write(0, &data).unwrap();
        qp.post_send(&SendWr::send(1, &[p.side.mr.sge(0..len)])).unwrap();
        assert_eq!(p.side.poll(1, SHORT), [], "completed though nobody receives");
        p.cmd("recv q m 0 8192 id=2");
        assert_eq!(p.ours(1), [(1, WcStatus::Success)]);
        is(&p.theirs(1), &[(2, "SUCCESS")]);
        assert_eq!(p.shell.vsh.get("m", 0, len).unwrap(), data);
        let (after, their_after) = p.counters();
        assert!(after.rcvd_rnr_err > before.rcvd_rnr_err, "{after:?}");
        assert!(their_after["send_rnr_err"] > theirs["send_rnr_err"], "{their_after:?}");
    }
}

fn late_receive_at_urxe(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    for len in LENGTHS {
        let (before, theirs) = p.counters();
        let qp = p.connect();
        p.cmd(&format!("pattern m 0 {len} {}", len as u8));
        p.cmd(&format!("send q m 0 {len} id=1"));
        assert_eq!(p.shell.vsh.poll(1, SHORT).unwrap(), [], "completed though nobody receives");
        qp.post_recv(&RecvWr { wr_id: 2, sges: &[p.side.mr.sge(0..8192)] }).unwrap();
        is(&p.theirs(1), &[(1, "SUCCESS")]);
        assert_eq!(p.ours(1), [(2, WcStatus::Success)]);
        assert_eq!(p.memory(len), pattern(len, len as u8));
        let (after, their_after) = p.counters();
        assert!(after.send_rnr_err > before.send_rnr_err, "{after:?}");
        assert!(their_after["rcvd_rnr_err"] > theirs["rcvd_rnr_err"], "{their_after:?}");
    }
}

fn late_immediate_at_rxe(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    let qp = p.connect();
    qp.post_send(&SendWr::write_with_imm(1, &[p.side.mr.sge(0..3000)], p.shell.at(0), 9)).unwrap();
    assert_eq!(p.side.poll(1, SHORT), []);
    p.cmd("recv q id=2");
    assert_eq!(p.ours(1), [(1, WcStatus::Success)]);
    is(&p.theirs(1), &[(2, "SUCCESS")]);
}

fn late_immediate_at_urxe(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    let qp = p.connect();
    p.cmd(&format!("write q m 0 3000 {} imm=9 id=3", words(p.side.mr.remote(0))));
    assert_eq!(p.shell.vsh.poll(1, SHORT).unwrap(), []);
    qp.post_recv(&RecvWr { wr_id: 4, sges: &[] }).unwrap();
    is(&p.theirs(1), &[(3, "SUCCESS")]);
    assert_eq!(p.ours(1), [(4, WcStatus::Success)]);
}

/// The sender's QP fails, the other continues.
fn no_receive_at_rxe(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    let qp = p.connect_with(ConnectOptions { rnr_retry: 2, ..ConnectOptions::default() }, "");
    for id in [1, 2] {
        qp.post_send(&SendWr::send(id, &[p.side.mr.sge(0..10)])).unwrap();
    }
    assert_eq!(p.ours(2), [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!((qp.state(), p.shell.state("q").as_str()), (QpState::Err, "RTS"));
    assert_eq!(p.side.counters().retry_rnr_exceeded_err, 1);
}

fn no_receive_at_urxe(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    let qp = p.connect_with(ConnectOptions::default(), "rnr_retry=2");
    for id in [1, 2] {
        p.cmd(&format!("send q m 0 10 id={id}"));
    }
    is(&p.theirs(2), &[(1, "RNR_RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!((qp.state(), p.shell.state("q").as_str()), (QpState::Rts, "ERR"));
}

#[test]
fn unresponsive_peer_exhausts_retries_at_both_sides() {
    run(
        "silence",
        Via::Dgram,
        &[("the peer's QP is gone", "urxe", rxe_is_gone), ("the peer's QP is gone", "rxe", urxe_is_gone)],
    );
}

fn rxe_is_gone(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    let options = ConnectOptions { timeout: AckTimeout::new(12), retry_cnt: 3, ..ConnectOptions::default() };
    let qp = p.connect_with(options, "");
    p.cmd("destroy q");
    let before = p.side.counters();
    for id in [1, 2] {
        qp.post_send(&SendWr::write(id, &[p.side.mr.sge(0..3000)], p.shell.at(0))).unwrap();
    }
    assert_eq!(p.ours(2), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state(), QpState::Err);
    let after = p.side.counters();
    assert_eq!(after.local_ack_timeout_err - before.local_ack_timeout_err, 4, "three retries and the end");
    assert_eq!(after.retry_exceeded_err - before.retry_exceeded_err, 1);
}

fn urxe_is_gone(site: &Site, ip: Ip) {
    let mut p = Pair::open(site, ip);
    drop(p.connect_with(ConnectOptions::default(), "timeout=12 retry=3"));
    let (_, before) = p.counters();
    for id in [1, 2] {
        p.cmd(&format!("read q m 0 3000 {} id={id}", words(p.side.mr.remote(0))));
    }
    is(&p.theirs(2), &[(1, "RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!(p.shell.state("q"), "ERR");
    let (ours, after) = p.counters();
    assert!(after["retry_exceeded_err"] > before["retry_exceeded_err"]);
    assert!(ours.rx_unknown_qp >= 4, "{ours:?}");
}

#[test]
fn packet_with_wrong_icrc_is_dropped_and_retransmitted() {
    run(
        "wrong ICRCs",
        Via::Dgram,
        &[("first SEND spoilt", "urxe", wrong_icrc_to_rxe), ("first SEND spoilt", "rxe", wrong_icrc_to_urxe)],
    );
}

fn wrong_icrc_to_rxe(site: &Site, ip: Ip) {
    let mut p = with_wrong_icrc(site, ip, Direction::Tx);
    let qp = p.connect();
    let (_, theirs) = p.counters();
    let data = pattern(500, 99);
    p.side.mr.write(0, &data).unwrap();
    p.cmd("recv q m 0 500 id=2");
    qp.post_send(&SendWr::send(1, &[p.side.mr.sge(0..500)])).unwrap();
    assert_eq!(p.ours(1), [(1, WcStatus::Success)]);
    is(&p.theirs(1), &[(2, "SUCCESS")]);
    assert_eq!(p.shell.vsh.get("m", 0, 500).unwrap(), data);
    let (ours, after) = p.counters();
    // The guest dropped the first packet without a response; the second arrived after the local timeout.
    assert!(ours.local_ack_timeout_err >= 1 && ours.requester_retry >= 1, "{ours:?}");
    assert_eq!(after["rcvd_pkts"] - theirs["rcvd_pkts"], ours.sent_pkts - 1, "{theirs:?} {after:?}");
    assert_eq!(after["out_of_seq_request"], theirs["out_of_seq_request"]);
    assert_eq!(ours.rx_icrc_err, 0);
}

fn wrong_icrc_to_urxe(site: &Site, ip: Ip) {
    let mut p = with_wrong_icrc(site, ip, Direction::Rx);
    let qp = p.connect();
    let (_, theirs) = p.counters();
    let data = pattern(500, 99);
    p.shell.vsh.set("m", 0, &data).unwrap();
    qp.post_recv(&RecvWr { wr_id: 2, sges: &[p.side.mr.sge(0..500)] }).unwrap();
    p.cmd("send q m 0 500 id=1");
    is(&p.theirs(1), &[(1, "SUCCESS")]);
    assert_eq!(p.ours(1), [(2, WcStatus::Success)]);
    assert_eq!(p.memory(500), data);
    let (ours, after) = p.counters();
    assert_eq!(ours.rx_icrc_err, 1);
    assert_eq!(ours.rdma_recvs, 1);
    assert!(after["completer_retry_err"] > theirs["completer_retry_err"], "{theirs:?} {after:?}");
}

/// Operation of a requester.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ask {
    Write,
    WriteImm,
    Read,
    Send,
    Add,
}

/// Error of the request: the region that it names, or another one.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Wrong {
    /// A region with this access, `lwra` in the shell's notation.
    Access(&'static str),
    /// The key's last byte is wrong.
    Key,
    /// The range begins inside the region and ends behind it.
    Range,
    /// The region is of another protection domain.
    Domain,
    /// The QP allows only this access.
    QpAccess(&'static str),
    /// An atomic on an odd address.
    Odd,
    /// A SEND longer than its receive.
    TooLong,
    /// The receive names a region without write access.
    Receive,
    /// A request of length 0 for a region that does not exist: no error.
    Nothing,
}

struct Case {
    wrong: Wrong,
    ask: Ask,
    /// Status of the requester: urxe's with rxe as responder; rxe's with urxe as responder.
    status: [&'static str; 2],
    /// Status of the responder's oldest receive: rxe's, urxe's.
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
    // rxe's own library refuses to post such a request.
    Case { status: ["REM_INV_REQ_ERR", ""], ..case(Wrong::Odd, Ask::Add, "") },
    // An invalid request in the specification (IBA 9.7.4.1.6); rxe reports a remote operational error.
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

/// Length of requests: several packets where possible.
const LEN: usize = 3000;
const AREA: usize = 8192;
/// Returns the offset of the request's target in a region of `AREA` bytes.
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

/// Observations of both sides: the requester's completions and state, the responder's receive and state.
#[derive(PartialEq, Debug)]
struct Seen {
    requester: Vec<(u64, String)>,
    responder: Vec<(u64, String)>,
    states: [String; 2],
    untouched: bool,
}

/// Runs the case with urxe as requester and a region of rxe.
fn ask_rxe(p: &mut Pair<'_>, case: &Case) -> Seen {
    let (region, qp_access) = match case.wrong {
        Wrong::Access(a) => (format!("mr x {AREA} access={a}"), "wra"),
        Wrong::Domain => (format!("mr x {AREA} pd=pd2"), "wra"),
        Wrong::QpAccess(a) => (format!("mr x {AREA}"), a),
        Wrong::Receive => (format!("mr x {AREA} access="), "wra"),
        _ => (format!("mr x {AREA}"), "wra"),
    };
    let reply = p.shell.vsh.cmd(&region).unwrap();
    let key = reply.num("rkey") as u32 ^ u32::from(matches!(case.wrong, Wrong::Key | Wrong::Nothing));
    let to = RemoteAddr { va: reply.num("addr") + aim(case) as u64, rkey: RKey(key) };
    let qp = p.connect_with(patient(), &format!("access={qp_access}"));
    let receive = match case.wrong {
        Wrong::TooLong => "m 0 2999",
        Wrong::Receive => "x 0 4000",
        _ => "m 0 4000",
    };
    p.cmd(&format!("recv q {receive} id=10"));
    let len = if case.wrong == Wrong::Nothing { 0 } else { LEN };
    let sges = [p.side.mr.sge(0..if case.ask == Ask::Add { 8 } else { len })];
    p.side.mr.write(0, &[0xaa; LEN]).unwrap();
    let wr = match case.ask {
        Ask::Write => SendWr::write(1, &sges, to),
        Ask::WriteImm => SendWr::write_with_imm(1, &sges, to, 5),
        Ask::Read => SendWr::read(1, &sges, to),
        Ask::Send => SendWr::send(1, &sges),
        Ask::Add => SendWr::fetch_add(1, &sges, to, 1),
    };
    qp.post_send(&wr).unwrap();
    let own = [p.side.mr.sge(4096..4100)];
    qp.post_send(&SendWr::write(2, &own, p.shell.at(0))).unwrap();
    let requester = p.side.poll(2, SOON).iter().map(|wc| (wc.wr_id, name(wc.status).into())).collect();
    let responder = match case.wrong {
        Wrong::Nothing => vec![],
        _ => p.theirs(1),
    };
    let states = [qp.state().to_string(), p.shell.state("q")];
    let memory = p.shell.vsh.get("x", 0, AREA).unwrap();
    p.cmd("destroy q");
    p.cmd("destroy x");
    Seen { requester, responder, states, untouched: memory.iter().all(|b| *b == 0) }
}

/// Runs the case with rxe as requester and a region of urxe. Also returns urxe's events, which are lost with
/// the QP.
fn ask_urxe(p: &mut Pair<'_>, case: &Case) -> (Seen, Vec<AsyncEvent>) {
    let other = p.side.context.alloc_pd().unwrap();
    let mut options = patient();
    let x = match case.wrong {
        Wrong::Access(a) => p.side.pd.reg_mr(AREA, access(a)),
        Wrong::Domain => other.reg_mr(AREA, Access::ALL),
        Wrong::Receive => p.side.pd.reg_mr(AREA, Access::LOCAL_READ),
        _ => p.side.pd.reg_mr(AREA, Access::ALL),
    }
    .unwrap();
    if let Wrong::QpAccess(a) = case.wrong {
        options.access = access(a);
    }
    let mut to = x.remote(aim(case));
    if matches!(case.wrong, Wrong::Key | Wrong::Nothing) {
        to.rkey = RKey(to.rkey.0 ^ 1);
    }
    let qp = p.connect_with(options, "");
    let receive = match case.wrong {
        Wrong::TooLong => p.side.mr.sge(0..2999),
        Wrong::Receive => x.sge(0..4000),
        _ => p.side.mr.sge(0..4000),
    };
    qp.post_recv(&RecvWr { wr_id: 10, sges: &[receive] }).unwrap();
    p.cmd(&format!("fill m 0 {LEN} 0xaa"));
    let len = if case.wrong == Wrong::Nothing { 0 } else { LEN };
    let line = match case.ask {
        Ask::Write => format!("write q m 0 {len} {}", words(to)),
        Ask::WriteImm => format!("write q m 0 {len} {} imm=5", words(to)),
        Ask::Read => format!("read q m 0 {len} {}", words(to)),
        Ask::Send => format!("send q m 0 {len}"),
        Ask::Add => format!("fadd q m 0 {} add=1", words(to)),
    };
    p.cmd(&format!("{line} id=1"));
    // Refused at once if the first request has failed already.
    let second = p.shell.vsh.raw(&format!("write q m 4096 4 {} id=2", words(p.side.mr.remote(0)))).unwrap();
    let n = if second.starts_with("ok") { 2 } else { 1 };
    let mut requester = p.theirs(n);
    if n == 1 {
        requester.push((2, "WR_FLUSH_ERR".into()));
    }
    let responder = match case.wrong {
        Wrong::Nothing => vec![],
        _ => p.side.poll(1, SOON).iter().map(|wc| (wc.wr_id, name(wc.status).into())).collect(),
    };
    let states = [p.shell.state("q"), qp.state().to_string()];
    let events = std::iter::from_fn(|| p.side.context.next_event());
    let events = events.filter(|e| !matches!(e, AsyncEvent::CommunicationEstablished(_))).collect();
    (Seen { requester, responder, states, untouched: x.to_vec().iter().all(|b| *b == 0) }, events)
}

#[test]
fn refused_requests_have_the_expected_status_at_both_sides() {
    let site = Site::start(Via::Dgram);
    let mut table = Table::new(
        "errors",
        &["wrong", "asked for", "IP", "requester", "requester's status", "receive", "result"],
    );
    let mut failed = Vec::new();
    for ip in Ip::VERSIONS {
        let mut p = Pair::open(&site, ip);
        p.cmd("pd pd2");
        for case in CASES {
            for (i, requester) in ["urxe", "rxe"].into_iter().enumerate() {
                if case.status[i].is_empty() {
                    continue;
                }
                let (seen, wrong) = refusal(&mut p, case, i);
                let words =
                    |all: &[(u64, String)]| all.iter().map(|r| r.1.as_str()).collect::<Vec<_>>().join(", ");
                table.row(&[
                    format!("{:?}", case.wrong),
                    format!("{:?}", case.ask),
                    ip.to_string(),
                    requester.into(),
                    words(&seen.requester),
                    words(&seen.responder),
                    if wrong.is_empty() { "ok" } else { "FAILED" }.into(),
                ]);
                let name = format!("{:?} {:?} by {requester} over {ip}", case.wrong, case.ask);
                failed.extend(wrong.iter().map(|w| format!("{name}: {w}")));
            }
        }
    }
    table.print();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs a case with urxe (0) or rxe (1) as requester; returns the observations and their deviations.
fn refusal(p: &mut Pair<'_>, case: &Case, requester: usize) -> (Seen, Vec<String>) {
    let before = p.side.counters();
    let (seen, events) = if requester == 0 { (ask_rxe(p, case), vec![]) } else { ask_urxe(p, case) };
    let good = case.wrong == Wrong::Nothing;
    let (state, second) = if good { ("RTS", "SUCCESS") } else { ("ERR", "WR_FLUSH_ERR") };
    let want = Seen {
        requester: vec![(1, case.status[requester].into()), (2, second.into())],
        responder: if good { vec![] } else { vec![(10, case.receive[requester].into())] },
        states: [state.into(), state.into()],
        untouched: true,
    };
    let mut wrong = Vec::new();
    if seen != want {
        wrong.push(format!("{seen:?}, not {want:?}"));
    }
    if requester == 1 && !good {
        let c = p.side.counters();
        let refusals = |c: &Counters| c.resp_invalid_request + c.resp_remote_access_err + c.resp_local_err;
        if refusals(&c) != refusals(&before) + 1 {
            wrong.push(format!("refusals not counted: {c:?}"));
        }
        let wants_event = case.status[1] == "REM_ACCESS_ERR" || case.receive[1] == "WR_FLUSH_ERR";
        if events.len() != usize::from(wants_event) {
            wrong.push(format!("events {events:?}"));
        }
    }
    (seen, wrong)
}
