//! Records captures of traffic between the rxes of two guests: `tests/rxe-guest/record [NAME...]`.
//!
//! Every scenario checks its results, so that a capture shows what the README describes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use urxe_test_support::guest::{self, Guest, GuestConfig, Vsh};
use urxe_test_support::wire::{End, Fault, Wire};

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

const S5: Duration = Duration::from_secs(5);
const S20: Duration = Duration::from_secs(20);

/// Two guests on a wire: `a` is guest 1, `b` is guest 2.
struct Env {
    mtu: u16,
    a: Guest,
    b: Guest,
    wire: Wire,
}

impl Env {
    fn new(mtu: u16) -> Result<Self> {
        let wire = Wire::start()?;
        let start = |end, n| Guest::start(GuestConfig { mtu, ..GuestConfig::new(wire.net(end), n) });
        let (a, b) = std::thread::scope(|s| {
            let b = s.spawn(|| start(End::B, 2));
            (start(End::A, 1), b.join().expect("booting guest 2 panicked"))
        });
        Ok(Self { mtu, a: a?, b: b?, wire })
    }
}

/// Resources of a scenario that uses verbs: a shell in each guest, each with an MR `m` of 128 KiB.
struct Verbs<'e> {
    env: &'e Env,
    a: Vsh,
    b: Vsh,
    /// Address and R_Key of `b`'s MR `m`, as arguments for one-sided operations at `a`.
    remote: String,
    log: Vec<String>,
}

impl<'e> Verbs<'e> {
    fn new(env: &'e Env) -> Result<Self> {
        let (mut a, mut b) = (env.a.vsh()?, env.b.vsh()?);
        a.cmd("mr m 131072")?;
        a.cmd("pattern m 0 131072 0")?;
        let m = b.cmd("mr m 131072")?;
        let remote = format!("addr={} rkey={}", m.get("addr"), m.get("rkey"));
        let log = vec!["a, b: mr m 131072 (REMOTE: that of b)".into()];
        Ok(Self { env, a, b, remote, log })
    }

    /// Executes a shell command on one side. `REMOTE` in the command is replaced with the address and R_Key
    /// of `b`'s MR.
    fn run(&mut self, side: End, line: &str) -> Result<guest::Reply> {
        let name = if side == End::A { 'a' } else { 'b' };
        self.log.push(format!("{name}: {line}"));
        let line = line.replace("REMOTE", &self.remote);
        Ok(if side == End::A { self.a.cmd(&line)? } else { self.b.cmd(&line)? })
    }

    fn a(&mut self, line: &str) -> Result<guest::Reply> {
        self.run(End::A, line)
    }

    fn b(&mut self, line: &str) -> Result<guest::Reply> {
        self.run(End::B, line)
    }

    /// Creates a QP `q` on each side, and connects the two.
    fn connect(&mut self, kind: &str, v6: bool, keys: &str) -> Result<()> {
        let qa = self.a.cmd(&format!("qp q {kind}"))?.get("qpn").to_string();
        let qb = self.b.cmd(&format!("qp q {kind}"))?.get("qpn").to_string();
        let (ia, ib) = if v6 { ("fd77::1", "fd77::2") } else { ("10.77.0.1", "10.77.0.2") };
        let gid = |ip: &str| if v6 { ip.to_string() } else { format!("::ffff:{ip}") };
        let sgid = (self.env.a.gid_index(ia)?, self.env.b.gid_index(ib)?);
        // The PSNs start near the end of their range unless the scenario sets them, so that they wrap.
        let psns = (0xff_fffa, 0x00_0abc);
        let line = |qpn: &str, ip, sgid, rq, sq| {
            format!("connect q qpn={qpn} gid={} sgid={sgid} rq_psn={rq:#x} sq_psn={sq:#x} {keys}", gid(ip))
        };
        self.a.cmd(&line(&qb, ib, sgid.0, psns.1, psns.0))?;
        self.b.cmd(&line(&qa, ia, sgid.1, psns.0, psns.1))?;
        self.log
            .push(format!("a, b: qp q {kind}; connect q {} {keys}", if v6 { "(IPv6)" } else { "(IPv4)" }));
        self.log.push(format!("      a's sq_psn={:#x}, b's sq_psn={:#x}", psns.0, psns.1));
        Ok(())
    }

    /// Posts `n` receives at `b`, in the half of the MR that one-sided operations do not use.
    fn recvs(&mut self, n: usize) -> Result<()> {
        self.log.push(format!("b: recv q m 65536 65536, {n} times"));
        (0..n).try_for_each(|_| Ok(self.b.cmd("recv q m 65536 65536").map(drop)?))
    }

    /// Checks that completions with the given statuses arrive on one side, in order.
    fn expect(&mut self, side: End, statuses: &[&str]) -> Result<()> {
        let v = if side == End::A { &mut self.a } else { &mut self.b };
        let got: Vec<String> = v.poll(statuses.len(), S20)?.into_iter().map(|c| c.status).collect();
        if got == statuses {
            let name = if side == End::A { 'a' } else { 'b' };
            self.log.push(format!("{name}: poll: {}", got.join(" ")));
            return Ok(());
        }
        Err(format!("{side:?}: completions {got:?}, expected {statuses:?}; commands {:#?}", self.log).into())
    }

    /// Executes a command at `a`, and waits for its successful completion there.
    fn one(&mut self, line: &str) -> Result<()> {
        self.a(line)?;
        self.expect(End::A, &["SUCCESS"])
    }

    /// Executes a command at `a`, and waits for successful completions at both `a` and `b`.
    fn both(&mut self, line: &str) -> Result<()> {
        self.one(line)?;
        self.expect(End::B, &["SUCCESS"])
    }

    fn faults(&mut self, from: End, faults: &[(usize, Fault)]) {
        for (n, f) in faults {
            self.log.push(format!("wire: {f:?} frame {n} from {from:?}"));
        }
        self.env.wire.faults(from, faults);
    }
}

type Script = dyn Fn(&mut Verbs) -> Result<()>;

enum Steps {
    /// A server run in `b`, the TCP port on which it listens (0 if none), and a client run in `a`.
    Tools(String, u16, String),
    Verbs(Box<Script>),
}

struct Scenario {
    name: String,
    about: String,
    /// MTU of the interface.
    mtu: u16,
    what: Steps,
}

/// Runs all RC or UC operations, with messages of one packet and of three.
fn all_ops(v: &mut Verbs, rc: bool, mtu: usize) -> Result<()> {
    v.recvs(7)?;
    let len = 2 * mtu + 101; // three packets, the last one padded
    for line in ["send q m 0 99".into(), format!("send q m 0 {len}"), "send q m 0 0".into()] {
        v.both(&line)?;
    }
    v.both("send q m 0 10 m 100 7 m 200 3 imm=0x12345678")?;
    v.both(&format!("send q m 0 {len} imm=0x01020304 se=1"))?;
    for line in
        ["write q m 0 99 REMOTE".into(), format!("write q m 0 {len} REMOTE"), "write q m 0 0 REMOTE".into()]
    {
        v.one(&line)?;
    }
    v.both("write q m 0 10 REMOTE imm=0xdeadbeef")?;
    v.both(&format!("write q m 0 {len} REMOTE imm=0xfeedf00d"))?;
    if rc {
        v.one("read q m 32768 63 REMOTE")?;
        v.one(&format!("read q m 32768 {len} REMOTE"))?;
        v.one("fadd q m 40960 REMOTE add=5")?;
        v.one("cswap q m 40960 REMOTE cmp=0 swap=7")?; // the comparison fails
        v.one(&format!(
            "cswap q m 40960 REMOTE cmp={:#x} swap=7",
            u64::from_le_bytes([5, 1, 2, 3, 4, 5, 6, 7])
        ))?;
        let before = v.a.get("m", 40960, 8)?;
        if before != [5, 1, 2, 3, 4, 5, 6, 7] {
            return Err(format!("the old value of the compare-swap is {before:?}").into());
        }
    }
    Ok(())
}

fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |name: &str, about: &str, mtu, what| {
        all.push(Scenario { name: name.into(), about: about.into(), mtu, what });
    };

    // All operations, at each MTU.
    for mtu in [256, 512, 1024, 2048, 4096] {
        for v6 in [false, true] {
            let (ip, suffix) = if v6 { ("IPv6", "v6") } else { ("IPv4", "v4") };
            let about = format!(
                "RC over {ip}, path MTU {mtu}, PSNs that wrap: SEND and WRITE (ONLY, three packets, empty), both \
                 with immediate, READ, FETCH ADD, COMPARE SWAP (no match, match); padding; several SGEs"
            );
            let verbs = move |v: &mut Verbs| {
                v.connect("rc", v6, &format!("mtu={mtu}"))?;
                all_ops(v, true, mtu)
            };
            let netdev = if mtu > 1024 { 4500 } else { 1500 };
            add(&format!("rc_{mtu}_{suffix}"), &about, netdev, Steps::Verbs(Box::new(verbs)));
        }
    }
    for (mtu, v6, suffix) in [(256, true, "v6"), (1024, false, "v4"), (4096, false, "v4")] {
        let verbs = move |v: &mut Verbs| {
            v.connect("uc", v6, &format!("mtu={mtu}"))?;
            all_ops(v, false, mtu)
        };
        let about =
            format!("UC, path MTU {mtu}: SEND and WRITE (ONLY, three packets, empty), with immediate");
        let netdev = if mtu > 1024 { 4500 } else { 1500 };
        add(&format!("uc_{mtu}_{suffix}"), &about, netdev, Steps::Verbs(Box::new(verbs)));
    }

    let mut verbs = |name: &str, about: &str, f: fn(&mut Verbs) -> Result<()>| {
        add(name, about, 1500, Steps::Verbs(Box::new(f)));
    };
    verbs("rc_padding", "RC SEND ONLY of 1 to 5 bytes: pad count", |v| {
        v.connect("rc", false, "")?;
        v.recvs(5)?;
        (1..=5).try_for_each(|n| v.both(&format!("send q m 0 {n}")))
    });
    verbs(
        "rc_pipelined",
        "8 WRITEs, one signaled, then 4 READs, all posted back to back: positions of AckReq, ACKs",
        |v| {
            v.connect("rc", false, "mtu=256")?;
            for i in 0..8 {
                v.a(&format!("write q m 0 500 REMOTE signal={}", i / 7))?;
            }
            v.expect(End::A, &["SUCCESS"])?;
            for _ in 0..4 {
                v.a("read q m 4096 500 REMOTE")?;
            }
            v.expect(End::A, &["SUCCESS"; 4])
        },
    );
    verbs(
        "rc_long",
        "WRITE and READ of 70 packets: AckReq within a long message; the responses of one READ",
        |v| {
            v.connect("rc", false, "mtu=256")?;
            v.one("write q m 0 17920 REMOTE")?;
            v.one("read q m 32768 17920 REMOTE")
        },
    );
    verbs("rc_tclass", "RC with a traffic class, hop limit and flow label: IPv6", |v| {
        v.connect("rc", true, "tc=0x6a hop=7 flow=0x12345")?;
        v.recvs(1)?;
        v.both("send q m 0 100")
    });
    verbs("rc_tos", "RC with a traffic class and hop limit: IPv4", |v| {
        v.connect("rc", false, "tc=0x6a hop=7")?;
        v.recvs(1)?;
        v.both("send q m 0 100")
    });
    verbs(
        "rc_send_inv",
        "SEND WITH INVALIDATE of a key that b does not have: it is ACKed, and the receive fails",
        |v| {
            v.connect("rc", false, "")?;
            v.recvs(1)?;
            v.one("sendinv q m 0 100 rkey=0x1234")?;
            v.expect(End::B, &["REM_INV_REQ_ERR"])
        },
    );

    verbs(
        "rnr_nak",
        "SEND of three packets without a receive: RNR NAKs (timer code 18: 5.12 ms), then a receive is posted",
        |v| {
            v.connect("rc", false, "rnr=18")?;
            v.a("send q m 0 3000")?;
            v.a("sleep 20")?;
            v.recvs(1)?;
            v.expect(End::A, &["SUCCESS"])?;
            v.expect(End::B, &["SUCCESS"])
        },
    );
    verbs("rnr_nak_write_imm", "WRITE WITH IMMEDIATE of one packet without a receive: RNR NAKs, IPv6", |v| {
        v.connect("rc", true, "rnr=18")?;
        v.a("write q m 0 100 REMOTE imm=1")?;
        v.a("sleep 20")?;
        v.recvs(1)?;
        v.expect(End::A, &["SUCCESS"])?;
        v.expect(End::B, &["SUCCESS"])
    });
    verbs("rnr_retry_exceeded", "rnr_retry=2 and no receive", |v| {
        v.connect("rc", false, "rnr=18 rnr_retry=2")?;
        v.a("send q m 0 100")?;
        v.expect(End::A, &["RNR_RETRY_EXC_ERR"])
    });
    verbs("nak_remote_access_write", "WRITE with a wrong R_Key: NAK remote access error", |v| {
        v.connect("rc", false, "")?;
        v.a("write q m 0 100 addr=0x1000 rkey=0x12345")?;
        v.expect(End::A, &["REM_ACCESS_ERR"])
    });
    verbs("nak_remote_access_read", "READ beyond the end of the region: NAK remote access error", |v| {
        v.connect("rc", true, "")?;
        let addr = v.b.cmd("mr small 4096")?;
        v.a(&format!("read q m 0 4097 addr={} rkey={}", addr.get("addr"), addr.get("rkey")))?;
        v.expect(End::A, &["REM_ACCESS_ERR"])
    });
    verbs("nak_remote_access_atomic", "FETCH ADD on a region without remote atomic access", |v| {
        v.connect("rc", false, "")?;
        let addr = v.b.cmd("mr ro 4096 access=lwr")?;
        v.a(&format!("fadd q m 0 addr={} rkey={} add=1", addr.get("addr"), addr.get("rkey")))?;
        v.expect(End::A, &["REM_ACCESS_ERR"])
    });
    verbs(
        "nak_recv_too_small",
        "SEND longer than the receive: NAK remote operational error (not invalid request)",
        |v| {
            v.connect("rc", false, "")?;
            v.b("recv q m 0 100")?;
            v.a("send q m 0 3000")?;
            v.expect(End::A, &["REM_OP_ERR"])?;
            v.expect(End::B, &["LOC_QP_OP_ERR"])
        },
    );
    verbs("retry_exceeded", "All SENDs lost: timeout=8 (1 ms), retry=2", |v| {
        v.connect("rc", false, "timeout=8 retry=2")?;
        v.recvs(1)?;
        v.faults(End::A, &(1..=3).map(|n| (n, Fault::Drop)).collect::<Vec<_>>());
        v.a("send q m 0 100")?;
        v.expect(End::A, &["RETRY_EXC_ERR"])
    });

    // Losses and other faults: (name, description, sender of the affected packets, faults, requests of a);
    // timeout 12 is 17 ms.
    type Lossy = (&'static str, &'static str, End, &'static [(usize, Fault)], &'static [&'static str]);
    let lossy: [Lossy; 15] = [
        (
            "loss_send_first",
            "First packet of a SEND lost: NAK sequence error",
            End::A,
            &[(1, Fault::Drop)],
            &["send q m 0 3000"],
        ),
        (
            "loss_send_middle",
            "Second packet of a SEND lost: NAK sequence error",
            End::A,
            &[(2, Fault::Drop)],
            &["send q m 0 3000"],
        ),
        (
            "loss_send_last",
            "Last packet of a SEND lost: timeout",
            End::A,
            &[(3, Fault::Drop)],
            &["send q m 0 3000"],
        ),
        (
            "loss_write_middle",
            "Two packets of a WRITE lost: NAK sequence error twice",
            End::A,
            &[(3, Fault::Drop), (9, Fault::Drop)],
            &["write q m 0 6000 REMOTE"],
        ),
        (
            "loss_ack",
            "The ACK of a SEND lost: duplicate requests, ACKed again",
            End::B,
            &[(1, Fault::Drop)],
            &["send q m 0 3000"],
        ),
        (
            "loss_ack_coalesced",
            "The first ACK of three WRITEs lost: the next one acknowledges both",
            End::B,
            &[(1, Fault::Drop)],
            &["write q m 0 3000 REMOTE", "write q m 0 100 REMOTE", "write q m 0 100 REMOTE"],
        ),
        (
            "loss_nak",
            "Second packet of a SEND and the NAK for it lost: only one NAK for one gap, so a timeout",
            End::A,
            &[(2, Fault::Drop)],
            &["send q m 0 3000"],
        ),
        (
            "loss_read_request",
            "READ request lost: timeout",
            End::A,
            &[(1, Fault::Drop)],
            &["read q m 0 3000 REMOTE"],
        ),
        (
            "loss_read_request_gap",
            "READ request lost, followed by a WRITE: NAK sequence error",
            End::A,
            &[(1, Fault::Drop)],
            &["read q m 8192 3000 REMOTE", "write q m 0 100 REMOTE"],
        ),
        (
            "loss_read_response",
            "Second of three READ responses lost: the remainder is requested again",
            End::B,
            &[(2, Fault::Drop)],
            &["read q m 0 3000 REMOTE"],
        ),
        (
            "loss_read_response_last",
            "Last of three READ responses lost",
            End::B,
            &[(3, Fault::Drop)],
            &["read q m 0 3000 REMOTE"],
        ),
        (
            "loss_atomic_ack",
            "Response of a FETCH ADD lost: duplicate, response repeated from the saved result",
            End::B,
            &[(1, Fault::Drop)],
            &["fadd q m 0 REMOTE add=1"],
        ),
        (
            "dup_send",
            "Second packet of a SEND arrives twice",
            End::A,
            &[(2, Fault::Duplicate)],
            &["send q m 0 3000"],
        ),
        (
            "dup_read",
            "READ request arrives twice",
            End::A,
            &[(1, Fault::Duplicate)],
            &["read q m 0 3000 REMOTE"],
        ),
        (
            "reorder_send",
            "First and second packet of a SEND swapped",
            End::A,
            &[(1, Fault::Reorder)],
            &["send q m 0 3000"],
        ),
    ];
    for (name, about, from, faults, ops) in lossy {
        let f = move |v: &mut Verbs| {
            v.connect("rc", false, "timeout=12")?;
            v.recvs(1)?;
            v.faults(from, faults);
            if name == "loss_nak" {
                v.faults(End::B, &[(1, Fault::Drop)]);
            }
            for op in ops {
                v.a(op)?;
            }
            v.expect(End::A, &vec!["SUCCESS"; ops.len()])
        };
        add(name, about, 1500, Steps::Verbs(Box::new(f)));
    }
    let random = |v: &mut Verbs| {
        v.connect("rc", true, "timeout=12 mtu=256")?;
        v.recvs(3)?;
        v.log.push("wire: loses 8 % at random, both ways".into());
        v.env.wire.drop_randomly(End::A, 80, 1);
        v.env.wire.drop_randomly(End::B, 80, 2);
        let ops = [
            "send q m 0 2000",
            "read q m 32768 2000 REMOTE",
            "write q m 0 2000 REMOTE",
            "fadd q m 0 REMOTE add=1",
        ];
        for op in ops.iter().cycle().take(12) {
            v.a(op)?;
        }
        v.expect(End::A, &["SUCCESS"; 12])
    };
    add(
        "loss_random",
        "8 % of all packets lost, 12 operations posted at once",
        1500,
        Steps::Verbs(Box::new(random)),
    );

    let uc_loss = |v: &mut Verbs| {
        v.connect("uc", false, "")?;
        v.recvs(3)?;
        v.faults(End::A, &[(2, Fault::Drop)]);
        for op in ["send q m 0 3000", "send q m 0 2500", "send q m 0 100"] {
            v.a(op)?;
        }
        v.expect(End::A, &["SUCCESS"; 3])?;
        v.expect(End::B, &["SUCCESS"])
    };
    let about =
        "UC: middle packet of the first of three SENDs lost; rxe also loses the next multi-packet message";
    add("uc_loss", about, 1500, Steps::Verbs(Box::new(uc_loss)));

    for v6 in [false, true] {
        let f = move |v: &mut Verbs| {
            let mut qpn = String::new();
            for side in [End::A, End::B] {
                qpn = v.run(side, "qp q ud")?.get("qpn").to_string();
                v.run(side, "connect q qkey=0x11111111 sq_psn=0xffffff")?;
            }
            v.recvs(8)?;
            let (a, b) = if v6 { ("fd77::1", "fd77::2") } else { ("10.77.0.1", "10.77.0.2") };
            let gid = if v6 { b.into() } else { format!("::ffff:{b}") };
            let to = format!("gid={gid} sgid={}", v.env.a.gid_index(a)?);
            for s in ["m 0 0", "m 0 101", "m 0 1024", "m 0 100 imm=0xcafe", "m 0 100 tc=0x60 hop=3"] {
                v.both(&format!("send q {s} {to} qpn={qpn}"))?;
            }
            v.one(&format!("send q m 0 100 {to} qpn={qpn} qkey=0x2222"))?;
            v.one(&format!("send q m 0 100 {to} qpn=0xdead"))
        };
        let name = if v6 { "ud_v6" } else { "ud_v4" };
        let about = "UD SENDs: empty, padded, a full packet, immediate, traffic class; then a wrong Q_Key and an unknown QP, both dropped";
        add(name, about, 1500, Steps::Verbs(Box::new(f)));
    }

    // Stock programs.
    let mut tools = |name: &str, about: &str, port, server: &str, client: &str| {
        add(name, about, 1500, Steps::Tools(server.into(), port, client.into()));
    };
    for (k, more) in [("rc", ""), ("uc", ""), ("ud", ""), ("srq", " -q 2")] {
        let c = format!("ibv_{k}_pingpong -d rxe0 -g 1 -n 3 -s 1000{more}");
        tools(&format!("{k}_pingpong"), "ibverbs-utils", 18515, &c, &format!("{c} 10.77.0.2"));
    }
    for k in ["rc", "ud"] {
        let c = format!("ibv_{k}_pingpong -d rxe0 -g 0 -n 3 -s 1000");
        tools(
            &format!("{k}_pingpong_v6"),
            "ibverbs-utils, link-local IPv6",
            18515,
            &c,
            &format!("{c} 10.77.0.2"),
        );
    }
    for (name, c) in [
        ("perftest_send_bw", "ib_send_bw -n 5 -s 3000"),
        ("perftest_write_bw", "ib_write_bw -n 5 -s 3000"),
        ("perftest_write_lat", "ib_write_lat -n 5 -s 64"),
        ("perftest_read_bw", "ib_read_bw -n 5 -s 3000"),
        ("perftest_fadd", "ib_atomic_bw -n 5 -A FETCH_AND_ADD"),
        ("perftest_cswap", "ib_atomic_bw -n 5 -A CMP_AND_SWAP"),
        ("perftest_uc_send_lat", "ib_send_lat -n 5 -s 2500 -c UC"),
        ("perftest_ud_send_bw", "ib_send_bw -n 5 -s 1000 -c UD"),
        ("perftest_cm", "ib_send_bw -n 5 -s 2000 -R"),
    ] {
        let c = format!("{c} -d rxe0 -x 1 -F");
        tools(name, "perftest", 18515, &c, &format!("{c} 10.77.0.2"));
    }
    let mut cm =
        |name: &str, about: &str, port, server: &str, client: &str| tools(name, about, port, server, client);
    cm(
        "cm_rping",
        "rdma_cm: connect, SEND, READ and WRITE, disconnect",
        7174,
        "rping -s -a 10.77.0.2 -C 2 -S 128",
        "rping -c -a 10.77.0.2 -C 2 -S 128",
    );
    cm(
        "cm_rping_v6",
        "The same over IPv6",
        7174,
        "rping -s -a fd77::2 -C 2 -S 128",
        "rping -c -a fd77::2 -C 2 -S 128",
    );
    cm(
        "cm_ucmatose",
        "rdma_cm: connect, SENDs both ways, disconnect",
        7471,
        "ucmatose -b 10.77.0.2 -C 3 -S 100 -c 1",
        "ucmatose -s 10.77.0.2 -C 3 -S 100 -c 1",
    );
    cm(
        "cm_rdma_client",
        "rdma_cm: connect, a SEND each way, disconnect",
        7471,
        "rdma_server",
        "rdma_client -s 10.77.0.2",
    );
    cm(
        "cm_reject",
        "rdma_cm: REQ to a port without a listener, REJ",
        0,
        "true",
        "! ucmatose -s 10.77.0.2 -C 1 -c 1 -p 7999",
    );
    cm(
        "cm_rstream",
        "rsocket: WRITE WITH IMMEDIATE",
        7471,
        "rstream -S 500 -C 3 -I 1",
        "rstream -s 10.77.0.2 -S 500 -C 3 -I 1",
    );
    cm(
        "sidr_udaddy",
        "rdma_cm, UD: SIDR REQ and REP, SENDs both ways",
        7174,
        "udaddy -b 10.77.0.2 -C 3 -S 100 -c 1",
        "udaddy -s 10.77.0.2 -C 3 -S 100 -c 1",
    );
    cm(
        "ud_mckey",
        "UD multicast: a group joined by rdma_cm, 3 SENDs",
        0,
        "mckey -b 10.77.0.2 -m 239.1.2.3 -C 3 -S 100",
        "mckey -b 10.77.0.1 -m 239.1.2.3 -s -C 3 -S 100",
    );
    all
}

/// Records a scenario, and returns its commands for the README.
fn record(env: &Env, s: &Scenario, file: &Path) -> Result<Vec<String>> {
    match &s.what {
        Steps::Verbs(f) => {
            let mut v = Verbs::new(env)?;
            env.wire.record(file)?;
            f(&mut v)?;
            std::thread::sleep(Duration::from_millis(100)); // for late responses
            env.wire.stop_recording();
            env.wire.clear();
            Ok(v.log)
        }
        Steps::Tools(server, port, client) => {
            env.wire.record(file)?;
            let mut p = env.b.spawn(server)?;
            p.close_stdin()?;
            if *port != 0 {
                env.b.wait_listening(*port, S5)?;
            } else {
                std::thread::sleep(Duration::from_secs(1));
            }
            env.a.check(client, S20)?;
            let out = p.wait(S20)?;
            env.wire.stop_recording();
            if out.status != 0 {
                return Err(format!("{server}: {out:?}").into());
            }
            Ok(vec![format!("b: {server}"), format!("a: {client}")])
        }
    }
}

const HEAD: &str = "# Captures of rxe to rxe

Recorded by `tests/rxe-guest/record` (`tests/rxe-guest/record.rs`) between two guests with Debian 12's kernel, rdma-core and
perftest; `tests/rxe-guest/README.md` documents the commands of `vsh`. a is 10.77.0.1, fd77::1,
MAC 52:54:00:77:00:01; b is 10.77.0.2, fd77::2, MAC 52:54:00:77:00:02. Link type Ethernet, whole frames without FCS,
nanoseconds, only RoCEv2. The files contain the frames that the wire dropped too: they were sent and did not arrive.
Every ICRC is valid (`tests/rxe-guest/icrc.py pcaps/*.pcap`). `mixed/` contains captures of rxe and urxe, `own/` of urxe
alone, `broken/` some in which something is wrong.
";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((dir, names)) = args.split_first() else {
        return Err("usage: record-pcaps DIRECTORY [NAME...]".into());
    };
    let dir = Path::new(dir);
    std::fs::create_dir_all(dir)?;
    let mut scenarios = scenarios();
    scenarios.sort_by_key(|s| s.mtu); // a stable sort, so that only two boots are needed
    if let Some(unknown) = names.iter().find(|n| scenarios.iter().all(|s| s.name != **n)) {
        return Err(format!("no scenario {unknown}").into());
    }
    // The README's sections, of which those of the new captures are replaced.
    let readme = std::fs::read_to_string(dir.join("README.md")).unwrap_or_default();
    let mut sections: BTreeMap<String, String> = readme
        .split("\n## ")
        .skip(1)
        .filter_map(|s| s.split_once(".pcap\n").map(|(n, t)| (n.to_string(), t.trim().to_string())))
        .filter(|(n, _)| scenarios.iter().any(|s| s.name == *n))
        .collect();
    let mut env: Option<Env> = None;
    let mut failed = Vec::new();
    for s in scenarios.iter().filter(|s| names.is_empty() || names.contains(&s.name)) {
        if env.as_ref().is_none_or(|e| e.mtu != s.mtu) {
            drop(env.take()); // before the new guests start, to limit the memory in use
            env = Some(Env::new(s.mtu)?);
        }
        let file = dir.join(format!("{}.pcap", s.name));
        match record(env.as_ref().expect("created above"), s, &file) {
            Ok(log) => {
                let size = std::fs::metadata(&file)?.len();
                println!("{}: {size} bytes", s.name);
                let mut text = format!("{}. Interface MTU {}.\n", s.about, s.mtu);
                for line in log {
                    write!(text, "\n    {line}")?;
                }
                sections.insert(s.name.clone(), text);
            }
            Err(e) => {
                println!("{}: FAILED: {e}", s.name);
                failed.push(s.name.as_str());
                env = None; // the guests may be in any state
            }
        }
    }
    let mut text = HEAD.to_string();
    for (name, section) in &sections {
        write!(text, "\n## {name}.pcap\n\n{section}\n")?;
    }
    std::fs::write(dir.join("README.md"), text)?;
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {failed:?}").into()) }
}
