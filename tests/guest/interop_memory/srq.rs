//! Shared receive queues: messages to several QPs consume receives of one queue, oldest first.

use std::collections::BTreeMap;
use std::time::Duration;
use urxe::verbs::*;
use urxe_test_support::guest::pattern;
use urxe_test_support::pair::{MTU, Pair};
use urxe_test_support::peer::{ConnectParams, TIMEOUT};
use urxe_test_support::testbed::{Ip, Testbed};

const QPS: usize = 4;
const RECEIVES: usize = 12;
const SLOT: usize = 2048;
const LIMIT: usize = 5;
/// Event `IBV_EVENT_SRQ_LIMIT_REACHED` for the shared receive queue `s`, in the shell's notation.
const EVENT: &str = "15:s";

fn slot(n: usize) -> std::ops::Range<usize> {
    (1 + n) * SLOT..(2 + n) * SLOT
}

/// Returns the contents of message `n`, different for each `n`. Long messages take two packets.
fn message(n: usize) -> Vec<u8> {
    pattern(100 + 150 * n, n as u8)
}

fn params(ip: Ip, their_qp: &str) -> ConnectParams {
    ConnectParams { their_qp: their_qp.into(), ..ConnectParams::new(ip, MTU) }
}

pub fn at_rxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    p.cmd(&format!("srq s wr={RECEIVES} sge=2"));
    let mut qps = Vec::new();
    for i in 0..QPS {
        let params = params(ip, "srq=s");
        qps.push(p.setup.connect_named(&p.side, &mut p.shell, &format!("q{i}"), &params));
    }
    let their_qpns: Vec<u32> = qps.iter().map(|qp| qp.query().dest_qpn.unwrap().get()).collect();
    for n in 0..RECEIVES {
        let s = slot(n);
        // In two pieces.
        p.cmd(&format!("recv s m {} 64 m {} {} id={}", s.start, s.start + 64, SLOT - 64, 100 + n));
    }
    p.cmd(&format!("limit s {LIMIT}"));
    let send = |p: &mut Pair<'_>, n: usize| {
        p.side.mr.write(0, &message(n)).unwrap();
        let sges = [p.side.mr.sge(0..message(n).len())];
        qps[n % QPS].post_send(&SendWr::send(n as u64, &sges)).unwrap();
    };
    for n in 0..RECEIVES {
        send(&mut p, n);
        assert_eq!(p.completions(1), [(n as u64, WcStatus::Success)]);
        let wc = p.shell.one().unwrap();
        assert_eq!(
            (wc.wr_id, wc.status.as_str(), wc.len as usize),
            (100 + n as u64, "SUCCESS", message(n).len())
        );
        assert_eq!(wc.qpn, their_qpns[n % QPS]);
        assert_eq!(p.shell.vsh.get("m", slot(n).start, message(n).len()).unwrap(), message(n));
        // Raised once, when fewer receives than the limit are left.
        let events = p.shell.vsh.raw("async").unwrap();
        let is_limit_event_due = RECEIVES - n - 1 == LIMIT - 1;
        assert_eq!(
            events.contains(EVENT),
            is_limit_event_due,
            "{} receives left: {events}",
            RECEIVES - n - 1
        );
    }
    // No receive is left: RNR, until one is posted.
    let before = p.side.counters();
    send(&mut p, 0);
    assert_eq!(p.side.poll(1, Duration::from_millis(200)), [], "the SEND completed without a posted receive");
    p.cmd("recv s m 0 2048 id=200");
    assert_eq!(p.completions(1), [(0, WcStatus::Success)]);
    assert_eq!(p.shell.one().unwrap().wr_id, 200);
    assert!(p.side.counters().rcvd_rnr_err > before.rcvd_rnr_err);
}

pub fn at_urxe(setup: &Testbed, ip: Ip) {
    let mut p = Pair::open(setup, ip);
    let srq = p.side.pd.create_srq(RecvCaps { max_wr: RECEIVES as u32, max_sge: 2 }).unwrap();
    let mut qps = Vec::new();
    for i in 0..QPS {
        let cq = &p.side.cq;
        let qp = p.side.pd.create_qp(cq, cq, &QpOptions::default().srq(&srq)).unwrap();
        qps.push(p.setup.connect_qp(&p.side, &mut p.shell, &format!("q{i}"), &params(ip, "inline=0"), qp));
    }
    for n in 0..RECEIVES {
        let s = slot(n);
        let sges = [p.side.mr.sge(s.start..s.start + 64), p.side.mr.sge(s.start + 64..s.end)];
        srq.post_recv(&RecvWr::new(100 + n as u64, &sges)).unwrap();
    }
    srq.arm_limit(LIMIT as u32);
    let send = |p: &mut Pair<'_>, n: usize| {
        p.shell.vsh.set("m", 0, &message(n)).unwrap();
        p.cmd(&format!("send q{} m 0 {} id={n}", n % QPS, message(n).len()));
    };
    let limits = |p: &Pair<'_>| {
        let all = std::iter::from_fn(|| p.side.context.next_event());
        all.filter(|e| matches!(e, AsyncEvent::SrqLimit(_))).collect::<Vec<_>>()
    };
    for n in 0..RECEIVES {
        send(&mut p, n);
        assert_eq!(p.guest_completions(1), [(n as u64, "SUCCESS".into())]);
        let wc = p.side.one().unwrap();
        let len = message(n).len();
        let completion = (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize);
        assert_eq!(completion, (100 + n as u64, WcStatus::Success, WcOpcode::Recv, len));
        assert_eq!(wc.qpn, qps[n % QPS].qpn());
        let mut got = vec![0; len];
        p.side.mr.read(slot(n).start, &mut got).unwrap();
        assert_eq!(got, message(n));
        let is_limit_event_due = RECEIVES - n - 1 == LIMIT - 1;
        let want = if is_limit_event_due { vec![AsyncEvent::SrqLimit(srq.id())] } else { vec![] };
        assert_eq!(limits(&p), want, "{} receives left", srq.query().len);
    }
    let before = p.side.counters();
    send(&mut p, 0);
    assert_eq!(
        p.shell.vsh.poll(1, Duration::from_millis(200)).unwrap(),
        [],
        "the SEND completed without a posted receive"
    );
    srq.post_recv(&RecvWr::new(200, &[p.side.mr.sge(0..SLOT)])).unwrap();
    assert_eq!(p.guest_completions(1), [(0, "SUCCESS".into())]);
    assert_eq!(p.completions(1), [(200, WcStatus::Success)]);
    assert!(p.side.counters().send_rnr_err > before.send_rnr_err);

    // All at once: each QP's messages keep their order, and every receive is consumed once.
    for n in 0..RECEIVES {
        let s = slot(n);
        srq.post_recv(&RecvWr::new(n as u64, &[p.side.mr.sge(s)])).unwrap();
    }
    for n in 0..RECEIVES {
        p.cmd(&format!("send q{} m 0 {} signal=0 imm={n}", n % QPS, 200));
    }
    let all = p.side.poll(RECEIVES, TIMEOUT);
    let mut receives: Vec<u64> = all.iter().map(|wc| wc.wr_id).collect();
    receives.sort();
    assert_eq!(receives, (0..RECEIVES as u64).collect::<Vec<_>>());
    let mut by_qp: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for wc in &all {
        by_qp.entry(wc.qpn.get()).or_default().push(wc.imm.unwrap());
    }
    assert!(by_qp.len() == QPS && by_qp.values().all(|imms| imms.is_sorted()), "{by_qp:?}");
}
