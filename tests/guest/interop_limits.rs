//! Tests of urxe against the kernel's rxe at their limits: wrapping PSNs, many QPs, the longest message,
//! `max_rd_atomic`, and requests in both directions at once. Needs the test guest.
//!
//! Repeated with Linux 6.12.

use std::collections::BTreeMap;
use std::time::Duration;
use urxe::verbs::*;
use urxe_test_support::guest::{hash, pattern};
use urxe_test_support::nic;
use urxe_test_support::peer::{ConnectParams, REGION, Shell, Side, remote_args};
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

const MINUTE: Duration = Duration::from_secs(60);

/// Polls `n` completions, which must be successful, and returns their `wr_id`s by QP number, in order of
/// completion.
fn urxe_completions(side: &Side, n: usize) -> BTreeMap<u32, Vec<u64>> {
    let got = side.poll(n, MINUTE);
    assert_eq!(got.len(), n, "{:?}", side.counters());
    let mut by_qp = BTreeMap::<u32, Vec<u64>>::new();
    for wc in got {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        by_qp.entry(wc.qpn.get()).or_default().push(wc.wr_id);
    }
    by_qp
}

fn rxe_completions(shell: &mut Shell, n: usize) -> BTreeMap<u32, Vec<u64>> {
    let got = shell.vsh.poll(n, MINUTE).unwrap();
    assert_eq!(got.len(), n);
    let mut by_qp = BTreeMap::<u32, Vec<u64>>::new();
    for wc in got {
        assert_eq!(wc.status, "SUCCESS", "{wc:?}");
        by_qp.entry(wc.qpn).or_default().push(wc.wr_id);
    }
    by_qp
}

fn urxe_hash(side: &Side, off: usize, len: usize) -> u64 {
    let mut got = vec![0; len];
    side.mr.read(off, &mut got).unwrap();
    hash(&got)
}

fn rxe_hash(shell: &mut Shell, off: usize, len: usize) -> u64 {
    shell.vsh.cmd(&format!("hash m {off} {len}")).unwrap().num("hash")
}

#[test]
fn data_is_correct_when_psns_wrap_in_both_directions() {
    let setup = Testbed::start(LinkKind::Dgram);
    let side = setup.open(Ip::V4);
    let mut shell = setup.shell(REGION);
    // The PSN wraps in the middle of a message of 64 packets, at its last packet, or after it.
    for (urxe_first, rxe_first) in [(0xff_ffe0, 0xff_fff0), (0xff_ffc1, 0xff_ffc0), (0xff_ffff, 0)] {
        let params = ConnectParams {
            our_psn: Some(urxe_first),
            their_psn: rxe_first,
            ..ConnectParams::new(Ip::V4, 1024)
        };
        for kind in ["write", "read", "send", "add"] {
            const LEN: usize = 65536;
            let dst = 2 * LEN;
            let qp = setup.connect(&side, &mut shell, &params);
            let seed = urxe_first as u8 ^ kind.len() as u8;
            side.mr.write(0, &pattern(LEN, seed)).unwrap();
            shell.vsh.cmd(&format!("pattern m 0 {LEN} {}", seed ^ 0x80)).unwrap();
            shell.vsh.cmd("fill m 400000 8 0").unwrap();
            side.mr.write(400_000, &[0; 8]).unwrap();
            let to = remote_args(side.mr.remote(if kind == "read" { 0 } else { dst }));
            let sge = |at: usize, len: usize| [side.mr.sge(at..at + len)];
            for id in 0..3 {
                match kind {
                    "write" => qp.post_send(&SendWr::write(id, &sge(0, LEN), shell.at(dst))),
                    "read" => qp.post_send(&SendWr::read(id, &sge(dst, LEN), shell.at(0))),
                    "send" => {
                        qp.post_recv(&RecvWr::new(10 + id, &sge(dst, LEN))).unwrap();
                        shell.vsh.cmd(&format!("recv q m {dst} {LEN} id={}", 10 + id)).unwrap();
                        qp.post_send(&SendWr::send(id, &sge(0, LEN)))
                    }
                    _ => qp.post_send(&SendWr::fetch_add(id, &sge(dst, 8), shell.at(400_000), 1)),
                }
                .unwrap();
                let line = match kind {
                    "write" => format!("write q m 0 {LEN} {to}"),
                    "read" => format!("read q m {dst} {LEN} {to}"),
                    "send" => format!("send q m 0 {LEN}"),
                    _ => format!("fadd q m {dst} {} add=1", remote_args(side.mr.remote(400_000))),
                };
                shell.vsh.cmd(&format!("{line} id={id}")).unwrap();
            }
            let n = if kind == "send" { 6 } else { 3 };
            urxe_completions(&side, n);
            rxe_completions(&mut shell, n);
            if kind == "add" {
                assert_eq!(shell.vsh.get("m", 400_000, 8).unwrap(), 3u64.to_le_bytes());
                assert_eq!(side.mr.buffer().load_u64(400_000), Ok(3));
                continue;
            }
            assert_eq!(urxe_hash(&side, dst, LEN), hash(&pattern(LEN, seed ^ 0x80)), "{kind}");
            assert_eq!(rxe_hash(&mut shell, dst, LEN), hash(&pattern(LEN, seed)), "{kind}");
            // Both directions have wrapped.
            if kind == "write" {
                assert!(qp.query().sq_psn.unwrap().get() < 0x1000, "{:?}", qp.query());
            }
        }
    }
}

#[test]
fn sixteen_concurrent_qps_transfer_correct_data() {
    const QPS: usize = 16;
    const LEN: usize = 30_000;
    const STEP: usize = 32_768;
    let setup = Testbed::start(LinkKind::Stream);
    let side = setup.open(Ip::Ula);
    let mut shell = setup.shell(4 * QPS * STEP);
    let mr = side.pd.reg_mr(4 * QPS * STEP, Access::ALL).unwrap();
    let qps: Vec<Qp> = (0..QPS)
        .map(|i| setup.connect_named(&side, &mut shell, &format!("q{i}"), &ConnectParams::new(Ip::Ula, 2048)))
        .collect();
    // Areas: the local source, the target of rxe's READs; rxe's source and the target of its WRITEs likewise.
    let area = |a: usize, i: usize| (a * QPS + i) * STEP;
    for i in 0..QPS {
        mr.write(area(0, i), &pattern(LEN, i as u8)).unwrap();
        shell.vsh.cmd(&format!("pattern m {} {LEN} {}", area(0, i), 100 + i)).unwrap();
    }
    for (i, qp) in qps.iter().enumerate() {
        let sge = |a| [mr.sge(area(a, i)..area(a, i) + LEN)];
        qp.post_send(&SendWr::write(1, &sge(0), shell.at(area(1, i)))).unwrap();
        qp.post_send(&SendWr::read(2, &sge(1), shell.at(area(0, i)))).unwrap();
        let [src, target] = [area(0, i), area(3, i)];
        let to = remote_args(mr.remote(area(2, i)));
        shell.vsh.cmd(&format!("write q{i} m {src} {LEN} {to} id=1")).unwrap();
        let to = remote_args(mr.remote(area(0, i)));
        shell.vsh.cmd(&format!("read q{i} m {target} {LEN} {to} id=2")).unwrap();
    }
    for by_qp in [urxe_completions(&side, 2 * QPS), rxe_completions(&mut shell, 2 * QPS)] {
        assert_eq!(by_qp.len(), QPS);
        assert!(by_qp.values().all(|ids| *ids == [1, 2]), "completions out of order: {by_qp:?}");
    }
    for i in 0..QPS {
        let (urxe_data, rxe_data) = (hash(&pattern(LEN, i as u8)), hash(&pattern(LEN, 100 + i as u8)));
        let at = |a| {
            let mut got = vec![0; LEN];
            mr.read(area(a, i), &mut got).unwrap();
            hash(&got)
        };
        assert_eq!([at(1), at(2)], [rxe_data, rxe_data], "QP {i} at urxe");
        let got = [rxe_hash(&mut shell, area(1, i), LEN), rxe_hash(&mut shell, area(3, i), LEN)];
        assert_eq!(got, [urxe_data, urxe_data], "QP {i} at rxe");
    }
}

/// Transfers messages of 8 MiB, the longest that rxe accepts.
#[test]
fn message_of_the_maximum_length_of_rxe_is_transferred() {
    const LEN: usize = 8 << 20;
    let setup = Testbed::start(LinkKind::Dgram);
    let side = Side::new(nic::open([setup.link(Ip::V4)]), 2 * LEN);
    let mut shell = setup.shell(2 * LEN);
    let (urxe_data, rxe_data) = (hash(&pattern(LEN, 3)), hash(&pattern(LEN, 5)));
    side.mr.write(0, &pattern(LEN, 3)).unwrap();
    shell.vsh.cmd(&format!("pattern m 0 {LEN} 5")).unwrap();
    let (source, target) = ([side.mr.sge(0..LEN)], [side.mr.sge(LEN..2 * LEN)]);
    for kind in ["write", "read", "send"] {
        for requester in ["urxe", "rxe"] {
            let qp = setup.connect(&side, &mut shell, &ConnectParams::new(Ip::V4, 4096));
            side.mr.write(LEN, &[0; LEN]).unwrap();
            shell.vsh.cmd(&format!("fill m {LEN} {LEN} 0")).unwrap();
            let (mut urxe_count, mut rxe_count) = (0, 0);
            if requester == "urxe" {
                let wr = match kind {
                    "write" => SendWr::write(1, &source, shell.at(LEN)),
                    "read" => SendWr::read(1, &target, shell.at(0)),
                    _ => {
                        shell.vsh.cmd(&format!("recv q m {LEN} {LEN}")).unwrap();
                        rxe_count = 1;
                        SendWr::send(1, &source)
                    }
                };
                urxe_count = 1;
                qp.post_send(&wr).unwrap();
            } else {
                let line = match kind {
                    "write" => format!("write q m 0 {LEN} {}", remote_args(side.mr.remote(LEN))),
                    "read" => format!("read q m {LEN} {LEN} {}", remote_args(side.mr.remote(0))),
                    _ => {
                        qp.post_recv(&RecvWr::new(1, &target)).unwrap();
                        urxe_count = 1;
                        format!("send q m 0 {LEN}")
                    }
                };
                rxe_count = 1;
                shell.vsh.cmd(&line).unwrap();
            }
            urxe_completions(&side, urxe_count);
            rxe_completions(&mut shell, rxe_count);
            if (kind == "read") == (requester == "urxe") {
                assert_eq!(urxe_hash(&side, LEN, LEN), rxe_data, "{kind} by {requester}");
            } else {
                assert_eq!(rxe_hash(&mut shell, LEN, LEN), urxe_data, "{kind} by {requester}");
            }
        }
    }
}

/// Posts more READs and atomics than `max_rd_atomic` allows in flight.
#[test]
fn reads_and_atomics_beyond_max_rd_atomic_complete() {
    const LEN: usize = 10_000;
    const STEP: usize = 16_384;
    let setup = Testbed::start(LinkKind::Dgram);
    let side = setup.open(Ip::V4);
    let mut shell = setup.shell(REGION);
    for depth in [1, 2, 16] {
        let urxe_options = ConnectOptions::default().max_rd_atomic(depth).max_dest_rd_atomic(depth);
        let rxe_args = format!("rd={depth} dest_rd={depth}");
        let params =
            ConnectParams { ours: urxe_options, theirs: rxe_args, ..ConnectParams::new(Ip::V4, 1024) };
        let qp = setup.connect(&side, &mut shell, &params);
        side.mr.write(0, &pattern(STEP, depth)).unwrap();
        side.mr.write(STEP, &[0; 8]).unwrap();
        shell.vsh.cmd(&format!("pattern m 0 {STEP} {}", depth + 100)).unwrap();
        shell.vsh.cmd(&format!("fill m {STEP} 8 0")).unwrap();
        for i in 0..32usize {
            let at = (2 + i) * STEP;
            let line = if i % 4 == 3 {
                let sges = [side.mr.sge(at..at + 8)];
                qp.post_send(&SendWr::fetch_add(i as u64, &sges, shell.at(STEP), 1)).unwrap();
                format!("fadd q m {at} {} add=1", remote_args(side.mr.remote(STEP)))
            } else {
                let sges = [side.mr.sge(at..at + LEN)];
                qp.post_send(&SendWr::read(i as u64, &sges, shell.at(i))).unwrap();
                format!("read q m {at} {LEN} {}", remote_args(side.mr.remote(i)))
            };
            shell.vsh.cmd(&format!("{line} id={i}")).unwrap();
        }
        let ids: Vec<u64> = (0..32).collect();
        assert_eq!(urxe_completions(&side, 32).into_values().collect::<Vec<_>>(), std::slice::from_ref(&ids));
        assert_eq!(rxe_completions(&mut shell, 32).into_values().collect::<Vec<_>>(), [ids]);
        for i in 0..32 {
            let at = (2 + i) * STEP;
            if i % 4 == 3 {
                let want = (i as u64 / 4).to_le_bytes();
                assert_eq!(shell.vsh.get("m", at, 8).unwrap(), want, "depth {depth}, {i}");
                assert_eq!(side.mr.buffer().load_u64(at), Ok(i as u64 / 4), "depth {depth}, {i}");
            } else {
                let want = |seed| hash(&pattern(STEP, seed)[i..i + LEN]);
                assert_eq!(urxe_hash(&side, at, LEN), want(depth + 100), "depth {depth}, {i}");
                assert_eq!(rxe_hash(&mut shell, at, LEN), want(depth), "depth {depth}, {i}");
            }
        }
    }
}

/// Keeps requests of every kind in flight in both directions on one connection.
#[test]
fn concurrent_requests_of_both_sides_complete() {
    const LEN: usize = 20_000;
    const STEP: usize = 32_768;
    const ROUNDS: usize = 6;
    let setup = Testbed::start(LinkKind::Dgram);
    let side = setup.open(Ip::LinkLocal);
    let mut shell = setup.shell(REGION);
    let qp = setup.connect(&side, &mut shell, &ConnectParams::new(Ip::LinkLocal, 1024));
    // The source is at 0; it is followed by the targets of the peer's WRITEs, of local READs and of receives.
    let area = |kind: usize, i: usize| (1 + kind * ROUNDS + i) * STEP;
    side.mr.write(0, &pattern(LEN, 1)).unwrap();
    shell.vsh.cmd(&format!("pattern m 0 {LEN} 2")).unwrap();
    let sge = |at: usize| [side.mr.sge(at..at + LEN)];
    for i in 0..ROUNDS {
        qp.post_recv(&RecvWr::new(100 + i as u64, &sge(area(2, i)))).unwrap();
        shell.vsh.cmd(&format!("recv q m {} {LEN} id={}", area(2, i), 100 + i)).unwrap();
    }
    for i in 0..ROUNDS {
        let id = i as u64;
        qp.post_send(&SendWr::write(id, &sge(0), shell.at(area(0, i)))).unwrap();
        qp.post_send(&SendWr::read(id, &sge(area(1, i)), shell.at(0))).unwrap();
        qp.post_send(&SendWr::send_imm(id, &sge(0), i as u32)).unwrap();
        let (to, from) = (remote_args(side.mr.remote(area(0, i))), remote_args(side.mr.remote(0)));
        shell.vsh.cmd(&format!("write q m 0 {LEN} {to} id={i}")).unwrap();
        shell.vsh.cmd(&format!("read q m {} {LEN} {from} id={i}", area(1, i))).unwrap();
        shell.vsh.cmd(&format!("send q m 0 {LEN} imm={i} id={i}")).unwrap();
    }
    urxe_completions(&side, 4 * ROUNDS);
    rxe_completions(&mut shell, 4 * ROUNDS);
    for kind in 0..3 {
        for i in 0..ROUNDS {
            let at = area(kind, i);
            assert_eq!(urxe_hash(&side, at, LEN), hash(&pattern(LEN, 2)), "kind {kind}, {i}");
            assert_eq!(rxe_hash(&mut shell, at, LEN), hash(&pattern(LEN, 1)), "kind {kind}, {i}");
        }
    }
}
