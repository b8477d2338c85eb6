//! Records captures of traffic between urxe and the rxe of one guest: `tests/rxe-guest/record mixed`. They
//! show how rxe handles memory windows, SEND with invalidate and shared receive queues, as requester and as
//! responder.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::verbs::memory::{Bind, WindowKind};
use urxe::verbs::*;
use urxe_test_support::guest;
use urxe_test_support::peer::{ConnectParams, Shell, Side, TIMEOUT, remote_args};
use urxe_test_support::testbed::{Ip, LinkKind, Testbed};

/// State of a scenario: a shell on rxe with the QP `q`, and a QP of urxe connected to `q`, with a path MTU of
/// 1024.
struct Run<'a> {
    setup: &'a Testbed,
    ip: Ip,
    side: Side,
    shell: Shell,
    qp: Qp,
    log: Vec<String>,
}

impl Run<'_> {
    /// Executes a command in rxe's shell.
    fn rxe(&mut self, line: &str) -> guest::Reply {
        self.log.push(format!("rxe: {line}"));
        self.shell.vsh.cmd(line).unwrap()
    }

    /// Asserts that the next completions at rxe have the given statuses.
    fn expect_rxe(&mut self, statuses: &[&str]) {
        let got = self.shell.vsh.poll(statuses.len(), TIMEOUT).unwrap();
        assert_eq!(got.iter().map(|wc| wc.status.as_str()).collect::<Vec<_>>(), statuses);
        self.log.push(format!("rxe: poll: {}", statuses.join(" ")));
    }

    fn urxe(&mut self, what: &str, wr: &SendWr<'_>) {
        self.log.push(format!("urxe: {what}"));
        self.qp.post_send(wr).unwrap();
    }

    fn expect_urxe(&mut self, statuses: &[WcStatus]) {
        let got: Vec<_> = self.side.poll(statuses.len(), TIMEOUT).iter().map(|wc| wc.status).collect();
        assert_eq!(got, statuses);
        let names: Vec<_> = statuses.iter().map(|s| format!("{s:?}")).collect();
        self.log.push(format!("urxe: poll: {}", names.join(" ")));
    }

    /// Posts a work request at urxe, and waits for its successful completion.
    fn execute_urxe(&mut self, what: &str, wr: &SendWr<'_>) {
        self.urxe(what, wr);
        self.expect_urxe(&[WcStatus::Success]);
    }

    fn post_urxe_recv(&mut self) {
        self.log.push("urxe: recv".into());
        self.qp.post_recv(&RecvWr::new(9, &[self.side.mr.sge(16384..32768)])).unwrap();
    }
}

struct Scenario {
    name: &'static str,
    about: &'static str,
    ip: Ip,
    run: fn(&mut Run<'_>),
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "mw_at_rxe",
        about: "Memory windows of both types bound at rxe: WRITE, READ, FETCH ADD and COMPARE SWAP through them; SEND WITH \
                INVALIDATE of the second one, Only and Last; then its old key: NAK remote access error",
        ip: Ip::V4,
        run: windows_at_rxe,
    },
    Scenario {
        name: "mw_at_urxe",
        about: "The same with windows bound at urxe: all requests of rxe, with SEND WITH INVALIDATE",
        ip: Ip::Ula,
        run: windows_at_urxe,
    },
    Scenario {
        name: "srq_at_rxe",
        about: "Three QPs of rxe on one shared receive queue of three; a fourth SEND: RNR NAKs until there is a receive",
        ip: Ip::Ula,
        run: shared_at_rxe,
    },
    Scenario {
        name: "srq_at_urxe",
        about: "Three QPs of urxe on one shared receive queue of three; a fourth SEND: RNR NAKs until there is a receive",
        ip: Ip::V4,
        run: shared_at_urxe,
    },
];

fn windows_at_rxe(r: &mut Run<'_>) {
    let x = r.rxe("mr x 8192 access=lwrab").num("addr");
    for kind in [1, 2] {
        r.rxe(&format!("mw w{kind} {kind}"));
        for len in [101, 3000] {
            let rkey = r.rxe(&format!("bind q w{kind} x 1024 4096")).num("rkey") as u32;
            r.expect_rxe(&["SUCCESS"]);
            let at = RemoteAddr { va: x + 1024, rkey: RKey(rkey) };
            let (sges, word) = ([r.side.mr.sge(0..len)], [r.side.mr.sge(0..8)]);
            r.execute_urxe(&format!("write {len}"), &SendWr::write(1, &sges, at));
            r.execute_urxe(&format!("read {len}"), &SendWr::read(2, &sges, at));
            r.execute_urxe("fadd", &SendWr::fetch_add(3, &word, at, 5));
            r.execute_urxe("cswap", &SendWr::compare_swap(4, &word, at, 0, 7));
            if kind == 2 {
                r.rxe("recv q m 0 8192");
                r.execute_urxe(&format!("sendinv {len}"), &SendWr::send_inval(5, &sges, at.rkey));
                r.expect_rxe(&["SUCCESS"]);
            }
            if (kind, len) == (2, 3000) {
                r.urxe("write 8", &SendWr::write(6, &word, at));
                r.expect_urxe(&[WcStatus::RemAccessErr]);
            }
        }
    }
}

fn windows_at_urxe(r: &mut Run<'_>) {
    let x = r.side.pd.reg_mr(8192, Access::ALL | Access::MW_BIND).unwrap();
    let (region, addr, len) = (x.lkey(), x.addr() + 1024, 4096);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let first = r.side.pd.alloc_mw(WindowKind::Type1).unwrap();
    let second = r.side.pd.alloc_mw(WindowKind::Type2B).unwrap();
    for kind in [1, 2] {
        for n in [101, 3000] {
            r.log.push(format!("urxe: bind, type {kind}"));
            let bind = Bind { rkey: second.rkey(), region, addr, len, access };
            let rkey = if kind == 1 {
                r.qp.bind_mw(&first, 1, &bind, SendFlags::SIGNALED).unwrap()
            } else {
                let rkey = second.next_rkey();
                r.qp.post_send(&SendWr::bind_mw(1, Bind { rkey, ..bind })).unwrap();
                rkey
            };
            r.expect_urxe(&[WcStatus::Success]);
            let to = remote_args(RemoteAddr { va: addr, rkey });
            for line in [
                format!("write q m 0 {n} {to}"),
                format!("read q m 0 {n} {to}"),
                format!("fadd q m 0 {to} add=5"),
                format!("cswap q m 0 {to} cmp=0 swap=7"),
            ] {
                r.rxe(&line);
                r.expect_rxe(&["SUCCESS"]);
            }
            if kind == 2 {
                r.post_urxe_recv();
                r.rxe(&format!("sendinv q m 0 {n} rkey={:#x}", rkey.0));
                r.expect_rxe(&["SUCCESS"]);
                r.expect_urxe(&[WcStatus::Success]);
            }
            if (kind, n) == (2, 3000) {
                r.rxe(&format!("write q m 0 8 {to}"));
                r.expect_rxe(&["REM_ACCESS_ERR"]);
            }
        }
    }
}

/// Time without a posted receive, longer than the RNR timer of 40.96 ms (code 24).
const NOT_READY: Duration = Duration::from_millis(60);

fn shared_at_rxe(r: &mut Run<'_>) {
    r.rxe("srq s");
    let params =
        ConnectParams { their_qp: "srq=s".into(), theirs: "rnr=24".into(), ..ConnectParams::new(r.ip, 1024) };
    let qps = [0, 1, 2].map(|i| {
        r.log.push(format!("rxe: qp q{i} rc srq=s"));
        r.setup.connect_named(&r.side, &mut r.shell, &format!("q{i}"), &params)
    });
    (0..3).for_each(|_| drop(r.rxe("recv s m 0 8192")));
    for i in [2, 0, 1, 2] {
        let len = 100 + 500 * i;
        r.log.push(format!("urxe: send {len}, QP {i}"));
        qps[i].post_send(&SendWr::send(1, &[r.side.mr.sge(0..len)])).unwrap();
        std::thread::sleep(NOT_READY);
    }
    r.rxe("recv s m 0 8192");
    r.expect_urxe(&[WcStatus::Success; 4]);
    r.expect_rxe(&["SUCCESS"; 4]);
}

fn shared_at_urxe(r: &mut Run<'_>) {
    let srq = r.side.pd.create_srq(RecvCaps { max_wr: 8, max_sge: 1 }).unwrap();
    let mut params = ConnectParams::new(r.ip, 1024);
    params.ours.min_rnr_timer = RnrTimer::new(24);
    let qps = [0, 1, 2].map(|i| {
        r.log.push(format!("rxe: qp q{i} rc"));
        let cq = &r.side.cq;
        let qp = r.side.pd.create_qp(cq, cq, &QpOptions::default().srq(&srq)).unwrap();
        r.setup.connect_qp(&r.side, &mut r.shell, &format!("q{i}"), &params, qp)
    });
    let receive = || srq.post_recv(&RecvWr::new(1, &[r.side.mr.sge(0..8192)])).unwrap();
    (0..3).for_each(|_| receive());
    let mut log = vec!["urxe: recv, 3 times".into()];
    for i in [2, 0, 1, 2] {
        log.push(format!("rxe: send q{i} m 0 {}", 100 + 500 * i));
        r.shell.vsh.cmd(&log[log.len() - 1]["rxe: ".len()..]).unwrap();
        std::thread::sleep(NOT_READY);
    }
    receive();
    log.push("urxe: recv".into());
    r.log.extend(log);
    r.expect_urxe(&[WcStatus::Success; 4]);
    r.expect_rxe(&["SUCCESS"; 4]);
    drop(qps);
}

const HEAD: &str = "# Captures of rxe and urxe

Recorded by `tests/rxe-guest/record mixed` (`tests/rxe-guest/record_mixed.rs`) with one guest, as urxe sees them: pcapng, link type
RAW, path MTU 1024. rxe is 10.77.0.1, fd77::1; urxe is 10.77.0.2, fd77::2. `tests/rxe-guest/README.md` documents the commands of `vsh`.
";

fn main() {
    let dir = std::env::args().nth(1).expect("usage: record-mixed DIRECTORY");
    let dir = Path::new(&dir);
    let setup = Testbed::start(LinkKind::Dgram);
    let release = setup.guest.check("uname -r", TIMEOUT).unwrap().stdout;
    let mut readme = format!("{HEAD}\nrxe of Linux {}.\n", release.trim());
    for s in SCENARIOS {
        let file = dir.join(format!("{}.pcapng", s.name));
        let capture = CaptureFile::create(&file, Timestamps::Wall).unwrap();
        let side = setup.open_wrapped(s.ip, |link| Box::new(capture.capture(link, "urxe")));
        let mut shell = setup.shell(65536);
        let qp = setup.connect(&side, &mut shell, &ConnectParams::new(s.ip, 1024));
        let mut run = Run { setup: &setup, ip: s.ip, side, shell, qp, log: Vec::new() };
        (s.run)(&mut run);
        std::thread::sleep(Duration::from_millis(100)); // for late responses
        let log = std::mem::take(&mut run.log);
        drop(run);
        capture.flush().unwrap();
        println!("{}: {} bytes", s.name, std::fs::metadata(&file).unwrap().len());
        write!(readme, "\n## {}.pcapng\n\n{}.\n\n    {}\n", s.name, s.about, log.join("\n    ")).unwrap();
    }
    std::fs::write(dir.join("README.md"), readme).unwrap();
}
