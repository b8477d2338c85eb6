//! Tests of the guest fixture, with guests that run the kernel's rxe: communication between guests and with
//! the host, recovery from losses, the verbs shell, and error reports.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use urxe_test_support::guest::{self, ErrorKind, Guest, GuestConfig, Net, Vsh, hash, pattern};
use urxe_test_support::netns::{self, Netns};
use urxe_test_support::wire::{End, Fault, Wire};

const S10: Duration = Duration::from_secs(10);
const S60: Duration = Duration::from_secs(60);

/// Boots guests 1 and 2 in parallel, one at each end of a wire.
fn pair(oob: &[u16]) -> (Guest, Guest, Wire) {
    let wire = Wire::start().unwrap();
    let start = |end, n| {
        let oob = oob.iter().map(|&p| (0, p)).collect();
        Guest::start(GuestConfig { oob, ..GuestConfig::new(wire.net(end), n) })
    };
    let (a, b) = std::thread::scope(|s| {
        let b = s.spawn(|| start(End::B, 2));
        (start(End::A, 1), b.join().unwrap())
    });
    let (a, b) = (a.unwrap(), b.unwrap());
    eprintln!(
        "guests are up after {:.2} and {:.2} s",
        a.boot_time().as_secs_f64(),
        b.boot_time().as_secs_f64()
    );
    (a, b, wire)
}

/// Runs the stock `ibv_rc_pingpong` between guests 1 and 2.
fn pingpong(a: &Guest, b: &Guest) {
    let mut server = b.spawn("ibv_rc_pingpong -d rxe0 -g 1 -n 10").unwrap();
    b.wait_listening(18515, S10).unwrap();
    a.check("ibv_rc_pingpong -d rxe0 -g 1 -n 10 10.77.0.2", S60).unwrap();
    let out = server.wait(S10).unwrap();
    assert_eq!(out.status, 0, "{out:?}");
}

/// Connects an RC QP named `q` on each side, using the GIDs of the given addresses.
fn connect(a: &Guest, va: &mut Vsh, b: &Guest, vb: &mut Vsh, ips: [&str; 2], gids: [&str; 2], mtu: u32) {
    let qa = va.cmd("qp q rc").unwrap().num("qpn");
    let qb = vb.cmd("qp q rc").unwrap().num("qpn");
    let one = |v: &mut Vsh, qpn, gid, sgid, rq_psn, sq_psn| {
        let l =
            format!("connect q qpn={qpn} gid={gid} sgid={sgid} mtu={mtu} rq_psn={rq_psn} sq_psn={sq_psn}");
        v.cmd(&l).unwrap();
    };
    one(va, qb, gids[1], a.gid_index(ips[0]).unwrap(), 200, 100);
    one(vb, qa, gids[0], b.gid_index(ips[1]).unwrap(), 100, 200);
}

#[test]
fn two_guests_transfer_data_and_recover_from_losses() {
    let (a, b, wire) = pair(&[9000]);

    // Both started from the same snapshot, with the present time and different random numbers.
    let random = [&a, &b].map(|g| g.check("cat /proc/sys/kernel/random/uuid", S10).unwrap().stdout);
    assert_ne!(random[0], random[1]);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = now();
    let guest: u64 = a.check("date +%s", S10).unwrap().stdout.trim().parse().unwrap();
    assert!((before - 60..=now() + 60).contains(&guest), "{guest} is not about {before}");

    // A stock program on both sides; it exchanges its parameters over the same wire.
    pingpong(&a, &b);

    // A WRITE of several packets, over IPv4 and then over both kinds of IPv6 addresses.
    let ll = [&a, &b].map(|g| g.link_local().to_string());
    for ips in [["10.77.0.1", "10.77.0.2"], ["fd77::1", "fd77::2"], [&ll[0], &ll[1]]] {
        let gids = ips.map(|i| if i.contains(':') { i.to_string() } else { format!("::ffff:{i}") });
        let (mut va, mut vb) = (a.vsh().unwrap(), b.vsh().unwrap());
        connect(&a, &mut va, &b, &mut vb, ips, [&gids[0], &gids[1]], 1024);
        va.cmd("mr m 65536").unwrap();
        let mr = vb.cmd("mr m 65536").unwrap();
        va.cmd("pattern m 0 5000 7").unwrap();
        let before = a.counters().unwrap();
        va.cmd(&format!("write q m 0 5000 addr={} rkey={} id=77", mr.get("addr"), mr.get("rkey"))).unwrap();
        let wc = va.poll(1, S10).unwrap();
        assert_eq!(wc.len(), 1);
        assert_eq!((wc[0].wr_id, wc[0].status.as_str(), wc[0].op.as_str()), (77, "SUCCESS", "RDMA_WRITE"));
        assert_eq!(vb.get("m", 0, 5000).unwrap(), pattern(5000, 7));
        assert_eq!(vb.cmd("hash m 0 5000").unwrap().num("hash"), hash(&pattern(5000, 7)));
        // 5 packets and their ACK, unless a timer of the emulated guest expired early
        let after = a.counters().unwrap();
        assert!(after["sent_pkts"] >= before["sent_pkts"] + 5, "{before:?} {after:?}");
        assert!(after["rcvd_pkts"] > before["rcvd_pkts"], "{before:?} {after:?}");
    }

    // A lost packet is retransmitted, and the counters show it.
    let (mut va, mut vb) = (a.vsh().unwrap(), b.vsh().unwrap());
    connect(
        &a,
        &mut va,
        &b,
        &mut vb,
        ["10.77.0.1", "10.77.0.2"],
        ["::ffff:10.77.0.1", "::ffff:10.77.0.2"],
        256,
    );
    va.cmd("mr m 4096").unwrap();
    vb.cmd("mr m 4096").unwrap();
    vb.cmd("recv q m 0 1000 m 2000 1000").unwrap();
    let before = b.counters().unwrap()["out_of_seq_request"];
    wire.faults(End::A, &[(3, Fault::Drop)]);
    va.cmd("send q m 0 1500 m 3000 10 imm=0x12345678").unwrap();
    assert_eq!(va.poll(1, S10).unwrap()[0].status, "SUCCESS");
    let got = &vb.poll(1, S10).unwrap()[0];
    assert_eq!((got.op.as_str(), got.len, got.imm), ("RECV", 1510, Some(0x1234_5678)));
    assert!(b.counters().unwrap()["out_of_seq_request"] > before);

    // The host reaches the guest's TCP port, and the guest the host's.
    let _server = a.spawn("echo hello | nc -l -p 9000").unwrap();
    let line = (0..50).find_map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        let mut line = String::new();
        BufReader::new(TcpStream::connect(("127.0.0.1", a.host_port(9000).unwrap())).ok()?)
            .read_line(&mut line)
            .ok()?;
        (!line.is_empty()).then_some(line)
    });
    assert_eq!(line.as_deref(), Some("hello\n"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"hello back\n").unwrap());
    let out = b.check(&format!("nc -w 5 10.0.2.2 {port} </dev/null"), S10).unwrap();
    assert_eq!(out.stdout, "hello back\n");
    host.join().unwrap();
}

/// Executes the vsh commands documented in tests/rxe-guest/README.md, between QPs of one guest.
#[test]
fn verbs_shell_executes_documented_commands() {
    let dir = tempfile::tempdir().unwrap();
    let net = Net::Dgram { local: dir.path().join("a"), remote: dir.path().join("b") };
    let g = Guest::start(GuestConfig::new(net, 6)).unwrap();
    let sgid = g.gid_index("10.77.0.6").unwrap();
    assert_eq!((g.gid_index(&g.link_local().to_string()).unwrap(), sgid), (0, 1));
    assert_eq!(g.gid_index("fd77::6").unwrap(), 2);
    assert!(g.gid_index("10.9.9.9").is_err());
    let to = format!("gid=::ffff:10.77.0.6 sgid={sgid}");
    let mut v = g.vsh().unwrap();
    let gids = v.cmd("gid").unwrap();
    assert_eq!((gids.get("1"), gids.get("2")), ("::ffff:10.77.0.6", "fd77::6"));
    let m = v.cmd("mr m 8192").unwrap();
    let remote = |off: u64| format!("addr={:#x} rkey={}", m.num("addr") + off, m.get("rkey"));
    let connect = |v: &mut Vsh, name: &str, peer: u64| {
        v.cmd(&format!("connect {name} qpn={peer} {to} timeout=12")).unwrap();
        assert_eq!(v.cmd(&format!("query {name}")).unwrap().get("state"), "RTS");
    };
    let poll = |v: &mut Vsh, cq: &str| {
        let wc = v.poll_cq(cq, 1, S10).unwrap();
        assert_eq!(wc.len(), 1, "no completion on {cq}");
        wc.into_iter().next().unwrap()
    };

    // Memory.
    v.set("m", 10, &[1, 2, 0xfe]).unwrap();
    v.cmd("fill m 13 2 0x77").unwrap();
    assert_eq!(v.get("m", 9, 7).unwrap(), [0, 1, 2, 0xfe, 0x77, 0x77, 0]);
    assert!(v.fails("get m 8000 193").unwrap().contains("beyond the end"));
    assert_eq!(v.fails("get x 0 1").unwrap(), "no mr x");
    assert_eq!(v.fails("mr m 1").unwrap(), "m exists");

    // Named objects; an SRQ; they are in use until the QPs are destroyed.
    for line in ["pd p", "cq rx", "srq s wr=4", "cq tx cqe=16"] {
        v.cmd(line).unwrap();
    }
    let b = v.cmd("qp b rc srq=s scq=tx rcq=rx").unwrap().num("qpn");
    let a = v.cmd("qp a rc").unwrap().num("qpn");
    connect(&mut v, "a", b);
    connect(&mut v, "b", a);
    assert_eq!(v.fails("destroy rx").unwrap(), "destroy_cq: Device or resource busy (16)");
    v.cmd("recv s m 4096 10 m 5000 100 id=9").unwrap();
    v.cmd("pattern m 0 300 1").unwrap();
    v.cmd("send a m 0 8 m 100 7 imm=0xfffffffe se=1 inline=1").unwrap();
    assert_eq!(poll(&mut v, "cq").status, "SUCCESS");
    let wc = poll(&mut v, "rx");
    assert_eq!((wc.wr_id, wc.op.as_str(), wc.len, wc.imm), (9, "RECV", 15, Some(0xffff_fffe)));
    assert_eq!(wc.qpn, b as u32);
    assert_eq!(v.get("m", 4104, 2).unwrap(), pattern(300, 1)[100..102]);
    assert_eq!(v.get("m", 5000, 5).unwrap(), pattern(300, 1)[102..107]);

    // READ, WRITE with immediate, atomics.
    v.cmd(&format!("read a m 6000 100 m 6200 100 {}", remote(0))).unwrap();
    assert_eq!(poll(&mut v, "cq").op, "RDMA_READ");
    assert_eq!(v.get("m", 6200, 100).unwrap(), pattern(300, 1)[100..200]);
    v.cmd("recv s id=10").unwrap();
    v.cmd(&format!("write a m 0 20 imm=5 {}", remote(7000))).unwrap();
    assert_eq!(poll(&mut v, "cq").op, "RDMA_WRITE");
    let wc = poll(&mut v, "rx");
    assert_eq!((wc.wr_id, wc.op.as_str(), wc.len, wc.imm), (10, "RECV_RDMA_WITH_IMM", 20, Some(5)));
    v.set("m", 7200, &100u64.to_le_bytes()).unwrap();
    for (line, op, old) in
        [("fadd a m 7300 add=7", "FETCH_ADD", 100), ("cswap a m 7300 cmp=107 swap=9", "COMP_SWAP", 107)]
    {
        v.cmd(&format!("{line} {}", remote(7200))).unwrap();
        assert_eq!(poll(&mut v, "cq").op, op);
        assert_eq!(v.get("m", 7300, 8).unwrap(), u64::to_le_bytes(old));
    }
    assert_eq!(v.get("m", 7200, 8).unwrap(), 9u64.to_le_bytes());

    // A region with its own addresses and without the right to write; the QP goes to ERR and reports it.
    let ro = v.cmd("mr ro 4096 access=lr iova=0x10000").unwrap();
    assert_eq!(ro.num("addr"), 0x10000);
    v.cmd(&format!("read a m 0 8 addr=0x10ff8 rkey={}", ro.get("rkey"))).unwrap();
    assert_eq!(poll(&mut v, "cq").status, "SUCCESS");
    v.cmd(&format!("write a m 0 8 addr=0x10000 rkey={}", ro.get("rkey"))).unwrap();
    assert_eq!(poll(&mut v, "cq").status, "REM_ACCESS_ERR");
    assert_eq!(v.cmd("query a").unwrap().get("state"), "ERR");
    v.cmd("send a m 0 1 id=1234").unwrap();
    let wc = poll(&mut v, "cq");
    assert_eq!((wc.wr_id, wc.status.as_str(), wc.op.as_str()), (1234, "WR_FLUSH_ERR", ""));
    v.cmd("reset a").unwrap();
    assert_eq!(v.fails("send a m 0 1").unwrap(), "post_send: Invalid argument (22)");

    // Retries to a peer that does not exist; RNR.
    let (c, d) = (v.cmd("qp c rc").unwrap().num("qpn"), v.cmd("qp d rc").unwrap().num("qpn"));
    v.cmd(&format!("connect c qpn={d} {to} timeout=8 retry=1 rnr_retry=1")).unwrap();
    v.cmd("send c m 0 1").unwrap();
    assert_eq!(poll(&mut v, "cq").status, "RETRY_EXC_ERR");
    v.cmd("reset c").unwrap();
    v.cmd(&format!("connect c qpn={d} {to} rnr_retry=1")).unwrap();
    v.cmd(&format!("connect d qpn={c} {to} rnr=1")).unwrap();
    v.cmd("send c m 0 1").unwrap();
    assert_eq!(poll(&mut v, "cq").status, "RNR_RETRY_EXC_ERR");

    // UD: receives have 40 bytes of GRH.
    let (e, f) = (v.cmd("qp e ud").unwrap().num("qpn"), v.cmd("qp f ud rcq=rx").unwrap().num("qpn"));
    v.cmd("connect e sq_psn=5").unwrap();
    v.cmd("connect f").unwrap();
    v.cmd("recv f m 0 200").unwrap();
    v.cmd(&format!("send e m 4096 100 qpn={f} {to}")).unwrap();
    let wc = poll(&mut v, "rx");
    assert_eq!((wc.len, wc.src_qp), (140, Some(e as u32)));

    for name in ["a", "b", "c", "d", "e", "f", "s", "rx", "tx", "p", "ro", "m"] {
        v.cmd(&format!("destroy {name}")).unwrap();
    }
    assert_eq!(v.fails("query a").unwrap(), "no a");
    g.check("/bin/ip link set eth0 down", S10).unwrap();
    // IBV_EVENT_PORT_ERR, possibly after other events
    assert!((0..5).any(|_| v.raw("async 1000").unwrap().contains(" 10:")));
    assert_eq!(v.fails("dance x").unwrap(), "what is dance");
}

#[test]
fn guests_communicate_over_a_unix_stream() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wire");
    let a = Guest::start(GuestConfig::new(Net::StreamListen { path: path.clone() }, 1)).unwrap();
    let b = Guest::start(GuestConfig::new(Net::StreamConnect { path }, 2)).unwrap();
    pingpong(&a, &b);
}

#[test]
fn guest_reaches_host_over_a_tap() {
    if !netns::is_available() {
        return;
    }
    let netns = Netns::new();
    for line in ["tuntap add tap0 mode tap", "addr add 10.77.0.9/24 dev tap0", "link set tap0 up"] {
        netns.ip(line);
    }
    let net = Net::Tap { ifname: "tap0".into(), netns: Some(netns.name().into()) };
    let g = Guest::start(GuestConfig::new(net, 5)).unwrap();
    g.check("ping -c 3 -w 10 10.77.0.9", S60).unwrap();
}

#[test]
fn guest_commands_report_exit_status_output_and_errors() {
    let dir = tempfile::tempdir().unwrap();
    let net = Net::Dgram { local: dir.path().join("a"), remote: dir.path().join("b") };
    let g = Guest::start(GuestConfig { mtu: 4500, ..GuestConfig::new(net, 3) }).unwrap();
    let out = g.exec("echo out; echo err >&2; exit 3", S10).unwrap();
    assert_eq!((out.status, out.stdout.as_str(), out.stderr.as_str()), (3, "out\n", "err\n"));
    assert_eq!(g.check("exit 1", S10).unwrap_err().kind, ErrorKind::Failed);
    assert_eq!(g.exec("sleep 60", Duration::from_millis(200)).unwrap_err().kind, ErrorKind::Timeout);

    let mut p = g.spawn("while read x; do echo got $x; done").unwrap();
    p.write(b"one\ntwo\n").unwrap();
    assert_eq!(p.read_line(S10).unwrap().as_deref(), Some("got one"));
    assert_eq!(p.read_line(S10).unwrap().as_deref(), Some("got two"));
    assert_eq!(p.kill().unwrap().status, 128 + 9);
    // Much data in both directions at once.
    let mut p = g.spawn("cat; sleep 60 & exit 0").unwrap();
    let data = vec![b'x'; 1 << 20];
    p.write(&data).unwrap();
    p.close_stdin().unwrap();
    assert_eq!(p.wait(S60).unwrap().stdout.len(), data.len());

    // MTU 4500 makes 4096 the active path MTU; several shells; errors are reported.
    let (mut v, mut w) = (g.vsh().unwrap(), g.vsh().unwrap());
    assert_eq!(v.cmd("device").unwrap().num("active_mtu"), 4096);
    v.send("qp q rc").unwrap();
    w.cmd("qp q rc").unwrap();
    v.send("query q").unwrap();
    assert!(v.response(S10).unwrap().starts_with("ok qpn="));
    assert!(v.response(S10).unwrap().contains("state=RESET"));
    assert_eq!(v.fails("rts q").unwrap(), "rts: Invalid argument (22)");
    assert_eq!(v.poll(1, Duration::from_millis(50)).unwrap(), []);

    // The guest dies while a command runs.
    let mut p = g.spawn("sleep 60").unwrap();
    let _ = g.exec("echo b >/proc/sysrq-trigger", S10);
    assert_eq!(p.wait(S10).unwrap_err().kind, ErrorKind::Terminated);
    assert_eq!(g.exec("true", S10).unwrap_err().kind, ErrorKind::Terminated);
}

/// Both counters go on from the values in the snapshot; a guest that finds them unstable falls back to
/// jiffies.
#[test]
fn processors_use_the_tsc_as_their_clock() {
    let dir = tempfile::tempdir().unwrap();
    for cpus in [1, 2] {
        let net = Net::Dgram { local: dir.path().join(format!("{cpus}")), remote: dir.path().join("b") };
        let guest = Guest::start(GuestConfig { cpus, ..GuestConfig::new(net, 7) }).unwrap();
        let out = guest
            .check(
                "nproc; sleep 1; cat /sys/devices/system/clocksource/clocksource0/current_clocksource",
                S10,
            )
            .unwrap();
        assert_eq!(out.stdout, format!("{cpus}\ntsc\n"));
    }
}

#[test]
fn failed_boot_reports_the_reason() {
    let net = Net::Tap { ifname: "tap0".into(), netns: Some("nonexistent".into()) };
    let e = Guest::start(GuestConfig::new(net, 4))
        .err()
        .expect("the boot must fail without the network namespace");
    assert_eq!(e.kind, ErrorKind::Boot, "{e}");
    assert!(e.to_string().contains("nonexistent"), "{e}");
}

#[test]
fn requester_that_waits_without_a_running_timer_has_lost_a_wakeup() {
    let idle = |next_psn| guest::Requester {
        next_psn,
        unacknowledged: next_psn,
        with_nic: 0,
        waits_for_nic: false,
        waits_for_ack: false,
    };
    assert!(!idle(103).has_lost_wakeup());
    assert!(guest::Requester { waits_for_nic: true, ..idle(103) }.has_lost_wakeup());
    assert!(guest::Requester { waits_for_ack: true, ..idle(103) }.has_lost_wakeup());
    // Seen once in 23 runs beside `stress -c 6`: the requester had gone back by 24 packets before the
    // acknowledgement.
    let retransmitting =
        guest::Requester { unacknowledged: 3_739_771, waits_for_nic: true, ..idle(3_739_747) };
    assert!(retransmitting.has_lost_wakeup());
    assert!(!guest::Requester { waits_for_nic: false, ..retransmitting }.has_lost_wakeup());
    assert!(guest::Requester { unacknowledged: 5, waits_for_ack: true, ..idle(0xff_fff0) }.has_lost_wakeup());
    // These are acknowledged later, or the timer retransmits them.
    assert!(!guest::Requester { waits_for_ack: true, unacknowledged: 102, ..idle(103) }.has_lost_wakeup());
    assert!(
        !guest::Requester { waits_for_ack: true, unacknowledged: 0xff_fff0, ..idle(5) }.has_lost_wakeup()
    );
    assert!(!guest::Requester { waits_for_nic: true, with_nic: 16, ..idle(103) }.has_lost_wakeup());
    let (a, b, _wire) = pair(&[]);
    let (mut va, mut vb) = (a.vsh().unwrap(), b.vsh().unwrap());
    for v in [&mut va, &mut vb] {
        v.cmd("mr m 4096").unwrap();
    }
    connect(
        &a,
        &mut va,
        &b,
        &mut vb,
        ["10.77.0.1", "10.77.0.2"],
        ["::ffff:10.77.0.1", "::ffff:10.77.0.2"],
        1024,
    );
    vb.cmd("recv q m 0 4096").unwrap();
    va.cmd("send q m 0 3000").unwrap();
    va.cmd("poll 1 10000").unwrap();
    let all = a.requesters().unwrap();
    // Three packets from PSN 100 on.
    assert!(all.contains(&idle(103)), "{all:?}");
    assert_eq!(a.lost_wakeups().unwrap().1, []);
}
