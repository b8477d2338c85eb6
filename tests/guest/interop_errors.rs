//! Tests of errors between urxe and the kernel's rxe in both directions: receivers that are not ready,
//! refused accesses, unresponsive peers, wrong ICRCs. Statuses and QP states are checked on both sides. Needs
//! the test guest.
//!
//! Repeated with Linux 6.12.

use std::time::Duration;
use urxe::middleware::faults::{Action, Direction, Faults, Rule, When};
use urxe::verbs::*;
use urxe_test_support::guest::pattern;
use urxe_test_support::pair::{MTU, Pair, assert_completions, run, status_name};
use urxe_test_support::peer::{ConnectParams, TIMEOUT, remote_args};
use urxe_test_support::table::Table;
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

const SHORT: Duration = Duration::from_millis(300);

/// Returns connection options with a long timeout, because an emulated guest on a busy machine may not
/// respond within the default of 67 ms.
fn long_timeout() -> ConnectOptions {
    ConnectParams::new(Ip::V4, MTU).ours
}

/// Opens a pair over a wire that corrupts the ICRC of the first packet in the given direction.
fn with_wrong_icrc(setup: &Testbed, ip: Ip, direction: Direction) -> Pair<'_> {
    let rule = Rule::new(direction, Action::Corrupt, When::Nth(1));
    let side = setup.open_wrapped(ip, |link| Box::new(Faults::new(link, vec![rule], 1)));
    Pair::with_side(setup, ip, side)
}

#[test]
fn rnr_nak_has_the_same_result_with_either_side_as_requester() {
    run(
        "receivers that are not ready",
        LinkKind::Dgram,
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

/// Message lengths: one packet, and several packets.
const LENGTHS: [usize; 2] = [100, 5000];

fn late_receive_at_rxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    for len in LENGTHS {
        let (before, theirs) = p.counters();
        let qp = p.connect();
        let data = pattern(len, len as u8);
        p.side.mr.write(0, &data).unwrap();
        qp.post_send(&SendWr::send(1, &[p.side.mr.sge(0..len)])).unwrap();
        assert_eq!(p.side.poll(1, SHORT), [], "the SEND completed without a posted receive");
        p.cmd("recv q m 0 8192 id=2");
        assert_eq!(p.completions(1), [(1, WcStatus::Success)]);
        assert_completions(&p.guest_completions(1), &[(2, "SUCCESS")]);
        assert_eq!(p.shell.vsh.get("m", 0, len).unwrap(), data);
        let (after, their_after) = p.counters();
        assert!(after.rcvd_rnr_err > before.rcvd_rnr_err, "{after:?}");
        assert!(their_after["send_rnr_err"] > theirs["send_rnr_err"], "{their_after:?}");
    }
}

fn late_receive_at_urxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    for len in LENGTHS {
        let (before, theirs) = p.counters();
        let qp = p.connect();
        p.cmd(&format!("pattern m 0 {len} {}", len as u8));
        p.cmd(&format!("send q m 0 {len} id=1"));
        assert_eq!(p.shell.vsh.poll(1, SHORT).unwrap(), [], "the SEND completed without a posted receive");
        qp.post_recv(&RecvWr::new(2, &[p.side.mr.sge(0..8192)])).unwrap();
        assert_completions(&p.guest_completions(1), &[(1, "SUCCESS")]);
        assert_eq!(p.completions(1), [(2, WcStatus::Success)]);
        assert_eq!(p.memory(len), pattern(len, len as u8));
        let (after, their_after) = p.counters();
        assert!(after.send_rnr_err > before.send_rnr_err, "{after:?}");
        assert!(their_after["rcvd_rnr_err"] > theirs["rcvd_rnr_err"], "{their_after:?}");
    }
}

fn late_immediate_at_rxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    let qp = p.connect();
    qp.post_send(&SendWr::write_imm(1, &[p.side.mr.sge(0..3000)], p.shell.at(0), 9)).unwrap();
    assert_eq!(p.side.poll(1, SHORT), []);
    p.cmd("recv q id=2");
    assert_eq!(p.completions(1), [(1, WcStatus::Success)]);
    assert_completions(&p.guest_completions(1), &[(2, "SUCCESS")]);
}

fn late_immediate_at_urxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    let qp = p.connect();
    p.cmd(&format!("write q m 0 3000 {} imm=9 id=3", remote_args(p.side.mr.remote(0))));
    assert_eq!(p.shell.vsh.poll(1, SHORT).unwrap(), []);
    qp.post_recv(&RecvWr::new(4, &[])).unwrap();
    assert_completions(&p.guest_completions(1), &[(3, "SUCCESS")]);
    assert_eq!(p.completions(1), [(4, WcStatus::Success)]);
}

/// Checks that a SEND fails while rxe has no posted receive, and that urxe's QP enters ERR but rxe's stays in
/// RTS.
fn no_receive_at_rxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    let qp = p.connect_with(ConnectOptions::default().rnr_retry(2), "");
    for id in [1, 2] {
        qp.post_send(&SendWr::send(id, &[p.side.mr.sge(0..10)])).unwrap();
    }
    assert_eq!(p.completions(2), [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!((qp.state(), p.shell.state("q").as_str()), (QpState::Err, "RTS"));
    assert_eq!(p.side.counters().retry_rnr_exceeded_err, 1);
}

fn no_receive_at_urxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    let qp = p.connect_with(ConnectOptions::default(), "rnr_retry=2");
    for id in [1, 2] {
        p.cmd(&format!("send q m 0 10 id={id}"));
    }
    assert_completions(&p.guest_completions(2), &[(1, "RNR_RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!((qp.state(), p.shell.state("q").as_str()), (QpState::Rts, "ERR"));
}

#[test]
fn unresponsive_peer_exhausts_retries_at_both_sides() {
    run(
        "unresponsive peers",
        LinkKind::Dgram,
        &[
            ("the peer's QP is destroyed", "urxe", rxe_qp_destroyed),
            ("the peer's QP is destroyed", "rxe", urxe_qp_destroyed),
        ],
    );
}

fn rxe_qp_destroyed(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    let options = ConnectOptions::default().timeout(AckTimeout::new(12)).retry_cnt(3);
    let qp = p.connect_with(options, "");
    p.cmd("destroy q");
    let before = p.side.counters();
    for id in [1, 2] {
        qp.post_send(&SendWr::write(id, &[p.side.mr.sge(0..3000)], p.shell.at(0))).unwrap();
    }
    assert_eq!(p.completions(2), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state(), QpState::Err);
    let after = p.side.counters();
    assert_eq!(
        after.local_ack_timeout_err - before.local_ack_timeout_err,
        4,
        "the timeouts of three retries, and the last one"
    );
    assert_eq!(after.retry_exceeded_err - before.retry_exceeded_err, 1);
}

fn urxe_qp_destroyed(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    drop(p.connect_with(ConnectOptions::default(), "timeout=12 retry=3"));
    let (_, before) = p.counters();
    for id in [1, 2] {
        p.cmd(&format!("read q m 0 3000 {} id={id}", remote_args(p.side.mr.remote(0))));
    }
    assert_completions(&p.guest_completions(2), &[(1, "RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]);
    assert_eq!(p.shell.state("q"), "ERR");
    let (ours, after) = p.counters();
    assert!(after["retry_exceeded_err"] > before["retry_exceeded_err"]);
    assert!(ours.rx_unknown_qp >= 4, "{ours:?}");
}

#[test]
fn packet_with_wrong_icrc_is_dropped_and_retransmitted() {
    run(
        "wrong ICRCs",
        LinkKind::Dgram,
        &[
            ("first SEND corrupted", "urxe", wrong_icrc_to_rxe),
            ("first SEND corrupted", "rxe", wrong_icrc_to_urxe),
        ],
    );
}

fn wrong_icrc_to_rxe(setup: &Testbed, ip: Ip) {
    let mut p = with_wrong_icrc(setup, ip, Direction::Tx);
    let qp = p.connect();
    let (_, theirs) = p.counters();
    let data = pattern(500, 99);
    p.side.mr.write(0, &data).unwrap();
    p.cmd("recv q m 0 500 id=2");
    qp.post_send(&SendWr::send(1, &[p.side.mr.sge(0..500)])).unwrap();
    assert_eq!(p.completions(1), [(1, WcStatus::Success)]);
    assert_completions(&p.guest_completions(1), &[(2, "SUCCESS")]);
    assert_eq!(p.shell.vsh.get("m", 0, 500).unwrap(), data);
    let (ours, after) = p.counters();
    // The guest dropped the first packet without a response; the second arrived after the local timeout.
    assert!(ours.local_ack_timeout_err >= 1 && ours.requester_retry >= 1, "{ours:?}");
    assert_eq!(after["rcvd_pkts"] - theirs["rcvd_pkts"], ours.sent_pkts - 1, "{theirs:?} {after:?}");
    assert_eq!(after["out_of_seq_request"], theirs["out_of_seq_request"]);
    assert_eq!(ours.rx_icrc_err, 0);
}

fn wrong_icrc_to_urxe(setup: &Testbed, ip: Ip) {
    let mut p = with_wrong_icrc(setup, ip, Direction::Rx);
    let qp = p.connect();
    let (_, theirs) = p.counters();
    let data = pattern(500, 99);
    p.shell.vsh.set("m", 0, &data).unwrap();
    qp.post_recv(&RecvWr::new(2, &[p.side.mr.sge(0..500)])).unwrap();
    p.cmd("send q m 0 500 id=1");
    assert_completions(&p.guest_completions(1), &[(1, "SUCCESS")]);
    assert_eq!(p.completions(1), [(2, WcStatus::Success)]);
    assert_eq!(p.memory(500), data);
    let (ours, after) = p.counters();
    assert_eq!(ours.rx_icrc_err, 1);
    assert_eq!(ours.rdma_recvs, 1);
    assert!(after["completer_retry_err"] > theirs["completer_retry_err"], "{theirs:?} {after:?}");
}

/// Operation of a requester.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Operation {
    Write,
    WriteImm,
    Read,
    Send,
    Add,
}

/// Defect of the request, or of the region or QP that it accesses.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Defect {
    /// The region permits only the given access, in the shell's notation (letters of `lwra`).
    Access(&'static str),
    /// The last byte of the key is wrong.
    Key,
    /// The range begins inside the region and ends beyond it.
    Range,
    /// The region belongs to a different protection domain.
    Domain,
    /// The QP permits only the given access.
    QpAccess(&'static str),
    /// The request is an atomic on an unaligned address.
    Misaligned,
    /// The request is a SEND that is longer than its receive.
    TooLong,
    /// The receive names a region without write access.
    ReceiveAccess,
    /// The request has length 0 and an invalid key, which is not an error because no memory is accessed.
    ZeroLength,
}

struct Case {
    defect: Defect,
    op: Operation,
    /// Expected status of the request, when urxe sends it and when rxe sends it.
    status: [&'static str; 2],
    /// Expected status of the responder's oldest receive, with rxe and with urxe as responder.
    receive: [&'static str; 2],
}

const fn case(defect: Defect, op: Operation, status: &'static str) -> Case {
    Case { defect, op, status: [status, status], receive: ["WR_FLUSH_ERR", "WR_FLUSH_ERR"] }
}

const CASES: &[Case] = &[
    case(Defect::Access("l"), Operation::Write, "REM_ACCESS_ERR"),
    case(Defect::Access("lr"), Operation::Write, "REM_ACCESS_ERR"),
    case(Defect::Access("lra"), Operation::WriteImm, "REM_ACCESS_ERR"),
    case(Defect::Access("lw"), Operation::Read, "REM_ACCESS_ERR"),
    case(Defect::Access("lwr"), Operation::Add, "REM_ACCESS_ERR"),
    case(Defect::Key, Operation::Write, "REM_ACCESS_ERR"),
    case(Defect::Key, Operation::WriteImm, "REM_ACCESS_ERR"),
    case(Defect::Key, Operation::Read, "REM_ACCESS_ERR"),
    case(Defect::Key, Operation::Add, "REM_ACCESS_ERR"),
    case(Defect::Range, Operation::Write, "REM_ACCESS_ERR"),
    case(Defect::Range, Operation::Read, "REM_ACCESS_ERR"),
    case(Defect::Range, Operation::Add, "REM_ACCESS_ERR"),
    case(Defect::Domain, Operation::Write, "REM_ACCESS_ERR"),
    case(Defect::Domain, Operation::Read, "REM_ACCESS_ERR"),
    case(Defect::QpAccess("ra"), Operation::Write, "REM_INV_REQ_ERR"),
    case(Defect::QpAccess("wa"), Operation::Read, "REM_INV_REQ_ERR"),
    case(Defect::QpAccess("wr"), Operation::Add, "REM_INV_REQ_ERR"),
    // rxe's own library refuses to post such a request.
    Case { status: ["REM_INV_REQ_ERR", ""], ..case(Defect::Misaligned, Operation::Add, "") },
    // An invalid request in the specification (IBA 9.7.4.1.6); rxe reports a remote operational error.
    Case {
        status: ["REM_OP_ERR", "REM_INV_REQ_ERR"],
        receive: ["LOC_QP_OP_ERR", "LOC_LEN_ERR"],
        ..case(Defect::TooLong, Operation::Send, "")
    },
    Case {
        status: ["REM_OP_ERR", "REM_OP_ERR"],
        receive: ["LOC_QP_OP_ERR", "LOC_PROT_ERR"],
        ..case(Defect::ReceiveAccess, Operation::Send, "")
    },
    case(Defect::ZeroLength, Operation::Write, "SUCCESS"),
    case(Defect::ZeroLength, Operation::Read, "SUCCESS"),
];

/// Length in bytes of every request that is not an atomic; greater than the path MTU.
const LEN: usize = 3000;
const REGION_LEN: usize = 8192;
/// Returns the offset of the request's target in a region of `REGION_LEN` bytes.
fn target_offset(case: &Case) -> usize {
    match (case.defect, case.op) {
        (Defect::Range, _) => REGION_LEN - 4 + if case.op == Operation::Add { 4 } else { 0 },
        (Defect::Misaligned, _) => 4,
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

/// Observed outcome of a case: completions and QP states of both sides, and whether memory is unmodified.
#[derive(PartialEq, Debug)]
struct Outcome {
    requester: Vec<(u64, String)>,
    responder: Vec<(u64, String)>,
    states: [String; 2],
    unmodified: bool,
}

/// Runs the case with urxe as requester and rxe as responder.
fn request_to_rxe(p: &mut Pair<'_>, case: &Case) -> Outcome {
    let (region, qp_access) = match case.defect {
        Defect::Access(a) => (format!("mr x {REGION_LEN} access={a}"), "wra"),
        Defect::Domain => (format!("mr x {REGION_LEN} pd=pd2"), "wra"),
        Defect::QpAccess(a) => (format!("mr x {REGION_LEN}"), a),
        Defect::ReceiveAccess => (format!("mr x {REGION_LEN} access="), "wra"),
        _ => (format!("mr x {REGION_LEN}"), "wra"),
    };
    let reply = p.shell.vsh.cmd(&region).unwrap();
    let key = reply.num("rkey") as u32 ^ u32::from(matches!(case.defect, Defect::Key | Defect::ZeroLength));
    let to = RemoteAddr { va: reply.num("addr") + target_offset(case) as u64, rkey: RKey(key) };
    let qp = p.connect_with(long_timeout(), &format!("access={qp_access}"));
    let receive = match case.defect {
        Defect::TooLong => "m 0 2999",
        Defect::ReceiveAccess => "x 0 4000",
        _ => "m 0 4000",
    };
    p.cmd(&format!("recv q {receive} id=10"));
    let len = if case.defect == Defect::ZeroLength { 0 } else { LEN };
    let sges = [p.side.mr.sge(0..if case.op == Operation::Add { 8 } else { len })];
    p.side.mr.write(0, &[0xaa; LEN]).unwrap();
    let wr = match case.op {
        Operation::Write => SendWr::write(1, &sges, to),
        Operation::WriteImm => SendWr::write_imm(1, &sges, to, 5),
        Operation::Read => SendWr::read(1, &sges, to),
        Operation::Send => SendWr::send(1, &sges),
        Operation::Add => SendWr::fetch_add(1, &sges, to, 1),
    };
    qp.post_send(&wr).unwrap();
    let own = [p.side.mr.sge(4096..4100)];
    qp.post_send(&SendWr::write(2, &own, p.shell.at(0))).unwrap();
    let requester =
        p.side.poll(2, TIMEOUT).iter().map(|wc| (wc.wr_id, status_name(wc.status).into())).collect();
    let responder = match case.defect {
        Defect::ZeroLength => vec![],
        _ => p.guest_completions(1),
    };
    let states = [qp.state().to_string(), p.shell.state("q")];
    let memory = p.shell.vsh.get("x", 0, REGION_LEN).unwrap();
    p.cmd("destroy q");
    p.cmd("destroy x");
    Outcome { requester, responder, states, unmodified: memory.iter().all(|b| *b == 0) }
}

/// Runs the case with rxe as requester and urxe as responder. Also returns urxe's events, which would be
/// discarded with the QP.
fn request_to_urxe(p: &mut Pair<'_>, case: &Case) -> (Outcome, Vec<AsyncEvent>) {
    let other = p.side.context.alloc_pd().unwrap();
    let mut options = long_timeout();
    let x = match case.defect {
        Defect::Access(a) => p.side.pd.reg_mr(REGION_LEN, access(a)),
        Defect::Domain => other.reg_mr(REGION_LEN, Access::ALL),
        Defect::ReceiveAccess => p.side.pd.reg_mr(REGION_LEN, Access::LOCAL_READ),
        _ => p.side.pd.reg_mr(REGION_LEN, Access::ALL),
    }
    .unwrap();
    if let Defect::QpAccess(a) = case.defect {
        options.access = access(a);
    }
    let mut to = x.remote(target_offset(case));
    if matches!(case.defect, Defect::Key | Defect::ZeroLength) {
        to.rkey = RKey(to.rkey.0 ^ 1);
    }
    let qp = p.connect_with(options, "");
    let receive = match case.defect {
        Defect::TooLong => p.side.mr.sge(0..2999),
        Defect::ReceiveAccess => x.sge(0..4000),
        _ => p.side.mr.sge(0..4000),
    };
    qp.post_recv(&RecvWr::new(10, &[receive])).unwrap();
    p.cmd(&format!("fill m 0 {LEN} 0xaa"));
    let len = if case.defect == Defect::ZeroLength { 0 } else { LEN };
    let line = match case.op {
        Operation::Write => format!("write q m 0 {len} {}", remote_args(to)),
        Operation::WriteImm => format!("write q m 0 {len} {} imm=5", remote_args(to)),
        Operation::Read => format!("read q m 0 {len} {}", remote_args(to)),
        Operation::Send => format!("send q m 0 {len}"),
        Operation::Add => format!("fadd q m 0 {} add=1", remote_args(to)),
    };
    p.cmd(&format!("{line} id=1"));
    // The post fails if the first request has failed already.
    let second =
        p.shell.vsh.raw(&format!("write q m 4096 4 {} id=2", remote_args(p.side.mr.remote(0)))).unwrap();
    let n = if second.starts_with("ok") { 2 } else { 1 };
    let mut requester = p.guest_completions(n);
    if n == 1 {
        requester.push((2, "WR_FLUSH_ERR".into()));
    }
    let responder = match case.defect {
        Defect::ZeroLength => vec![],
        _ => p.side.poll(1, TIMEOUT).iter().map(|wc| (wc.wr_id, status_name(wc.status).into())).collect(),
    };
    let states = [p.shell.state("q"), qp.state().to_string()];
    let events = std::iter::from_fn(|| p.side.context.next_event());
    let events = events.filter(|e| !matches!(e, AsyncEvent::CommunicationEstablished(_))).collect();
    (Outcome { requester, responder, states, unmodified: x.to_vec().iter().all(|b| *b == 0) }, events)
}

#[test]
fn rejected_requests_have_the_expected_status_at_both_sides() {
    let setup = Testbed::start(LinkKind::Dgram);
    let mut table = Table::new(
        "errors",
        &["defect", "operation", "IP", "requester", "requester's status", "receive", "result"],
    );
    let mut failed = Vec::new();
    for ip in Ip::VERSIONS {
        let mut p = Pair::open(&setup, ip);
        p.cmd("pd pd2");
        for case in CASES {
            for (i, requester) in ["urxe", "rxe"].into_iter().enumerate() {
                if case.status[i].is_empty() {
                    continue;
                }
                let (outcome, deviations) = run_case(&mut p, case, i);
                let words =
                    |all: &[(u64, String)]| all.iter().map(|r| r.1.as_str()).collect::<Vec<_>>().join(", ");
                table.row(&[
                    format!("{:?}", case.defect),
                    format!("{:?}", case.op),
                    ip.to_string(),
                    requester.into(),
                    words(&outcome.requester),
                    words(&outcome.responder),
                    if deviations.is_empty() { "ok" } else { "FAILED" }.into(),
                ]);
                let name = format!("{:?} {:?} by {requester} over {ip}", case.defect, case.op);
                failed.extend(deviations.iter().map(|w| format!("{name}: {w}")));
            }
        }
    }
    table.print();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs a case with urxe (0) or rxe (1) as requester. Returns the outcome, and a description of each
/// deviation from the expected one.
fn run_case(p: &mut Pair<'_>, case: &Case, requester: usize) -> (Outcome, Vec<String>) {
    let before = p.side.counters();
    let (outcome, events) =
        if requester == 0 { (request_to_rxe(p, case), vec![]) } else { request_to_urxe(p, case) };
    let is_valid = case.defect == Defect::ZeroLength;
    let (state, second) = if is_valid { ("RTS", "SUCCESS") } else { ("ERR", "WR_FLUSH_ERR") };
    let expected = Outcome {
        requester: vec![(1, case.status[requester].into()), (2, second.into())],
        responder: if is_valid { vec![] } else { vec![(10, case.receive[requester].into())] },
        states: [state.into(), state.into()],
        unmodified: true,
    };
    let mut deviations = Vec::new();
    if outcome != expected {
        deviations.push(format!("{outcome:?}, expected {expected:?}"));
    }
    if requester == 1 && !is_valid {
        let c = p.side.counters();
        let error_count = |c: &Counters| c.resp_invalid_request + c.resp_remote_access_err + c.resp_local_err;
        if error_count(&c) != error_count(&before) + 1 {
            deviations.push(format!("the error was not counted: {c:?}"));
        }
        let expects_event = case.status[1] == "REM_ACCESS_ERR" || case.receive[1] == "WR_FLUSH_ERR";
        if events.len() != usize::from(expects_event) {
            deviations.push(format!("unexpected events {events:?}"));
        }
    }
    (outcome, deviations)
}
