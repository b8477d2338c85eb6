//! Tests of stream rsockets on the library: Debian's unmodified example programs between two processes, an
//! ordinary TCP program with Debian's preload library, and cases that these programs do not cover
//! (`c/rsockets.c`).

use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use urxe_test_support::programs::{
    CProgram, Library, MIN_ACK_TIMEOUT, Running, TCP_PORTS, addresses, in_namespace, port, text, urxe,
    wait_for_service,
};

use urxe::link::LinkSpec;
use urxe::verbs::cm::{ConnParam, ConnectionManager};
use urxe::verbs::{Access, Context, ContextOptions, QpOptions, RKey, RecvWr, SendWr, WrOp};

/// Time limit for each program.
const LIMIT: Duration = Duration::from_secs(60);
/// Debian's preload library that redirects socket calls to rsockets.
const PRELOADED: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Runs a program as the server and as the client on two addresses, and returns the output of both.
fn run_both(program: &str, args: &[&str]) -> [Output; 2] {
    let (library, port, [a, b]) = (Library::new(), port(), addresses());
    let number = port.to_string();
    let start = |address: &str, role: &[&str]| {
        let mut command = library.program(program, address);
        command.args(role).args(["-p", &number]).args(args);
        Running::new(command)
    };
    let serving = start(&a, &["-b", &a]);
    wait_for_service(&[TCP_PORTS], port);
    let client = start(&b, &["-s", &a]).finish(LIMIT);
    [serving.finish(Duration::from_secs(10)), client]
}

/// Runs a program with each of the given argument lists. Both ends must print their throughput and nothing
/// else.
fn succeed(program: &str, all: &[&[&str]]) {
    for args in all {
        let ends = run_both(program, args);
        let printed = ends.each_ref().map(text);
        let all_succeeded = |out: &Output| out.status.success() && text(out).lines().count() == 2;
        assert!(
            ends.iter().all(all_succeeded),
            "{program} {args:?}: {:?}\n{printed:#?}",
            ends.map(|out| out.status)
        );
        assert!(printed.iter().all(|printed| printed.contains("custom")), "{program} {args:?}: {printed:?}");
    }
}

#[test]
fn rstream_succeeds_with_each_kind_of_call() {
    let kinds: [&[&str]; 4] = [&["-T", "b"], &["-T", "n"], &["-T", "a"], &["-T", "r"]];
    for kind in kinds {
        let sizes: [&[&str]; 3] = [
            &["-S", "64", "-C", "1", "-I", "200"],
            &["-S", "64", "-C", "1000", "-I", "1"],
            &["-S", "300000", "-C", "5", "-I", "2"],
        ];
        for size in sizes {
            succeed("rstream", &[&[kind, size, &["-T", "v"]].concat()]);
        }
    }
}

#[test]
fn rstream_succeeds_with_small_buffers() {
    succeed("rstream", &[&["-B", "4096", "-S", "20000", "-I", "3", "-C", "3", "-T", "v"]]);
}

#[test]
fn riostream_transfers_its_data() {
    let sizes: [&[&str]; 3] = [
        &["-S", "64", "-C", "100", "-I", "3"],
        &["-S", "100000", "-C", "5", "-I", "2"],
        &["-S", "5000", "-C", "5", "-I", "2", "-T", "b"],
    ];
    for size in sizes {
        succeed("riostream", &[&[size, &["-T", "v"]].concat()]);
    }
}

#[test]
fn rcopy_copies_a_file() {
    let (library, port, [a, b], dir) = (Library::new(), port(), addresses(), tempfile::tempdir().unwrap());
    let number = port.to_string();
    let [source, copy] = ["source", "copy"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let bytes: Vec<u8> = (0..4u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&source, &bytes).unwrap();
    let mut command = library.program("rcopy", &a);
    command.args(["-p", &number]);
    // The server never ends by itself.
    let _serving = Running::new(command);
    wait_for_service(&[TCP_PORTS], port);
    let mut command = library.program("rcopy", &b);
    command.args([&source, &format!("{a}:{copy}"), "-p", &number]);
    let out = Running::new(command).finish(LIMIT);
    assert!(out.status.success(), "{}\n{}", out.status, text(&out));
    assert!(std::fs::read(&copy).is_ok_and(|copied| copied == bytes), "{}", text(&out));
}

/// Runs iperf, which does not support RDMA: it must listen on a connection manager port rather than a TCP
/// port, and its data must appear in a packet capture of the NIC.
#[test]
fn tcp_program_uses_rdma_with_the_preloaded_library() {
    const BYTES: u64 = 4 << 20;
    let (port, [a, b], dir) = (port(), addresses(), tempfile::tempdir().unwrap());
    let (number, capture) = (port.to_string(), dir.path().join("capture"));
    let start = |address: &str, urxe_args: &[&str], args: &[&str]| {
        let mut command = urxe(&["run", "--ip", address]);
        command.args(urxe_args).args(["--", "iperf", "-p", &number]).args(args);
        command.env("LD_PRELOAD", PRELOADED);
        Running::new(command)
    };
    let _serving = start(&a, &[], &["-s", "-B", &a]);
    wait_for_service(&[TCP_PORTS], port);
    let listeners = std::fs::read_to_string("/proc/net/tcp").unwrap();
    assert!(!listeners.contains(&format!(":{port:04X} ")), "the program listens on TCP:\n{listeners}");
    let bytes = BYTES.to_string();
    let client_command = start(&b, &["--capture", capture.to_str().unwrap()], &["-c", &a, "-n", &bytes]);
    let out = client_command.finish(LIMIT);
    let printed = text(&out);
    assert!(out.status.success() && printed.contains("4.00 MBytes"), "{}\n{printed}", out.status);
    let captured = std::fs::metadata(&capture).map_or(0, |file| file.len());
    assert!(captured > BYTES, "captured {captured} bytes, expected more than {BYTES}\n{printed}");
}

/// Runs in its own network namespace, with two IPv6 addresses.
#[test]
fn rsockets_programs_succeed_over_ipv6() {
    let script = r#"
        two_ipv6_addresses
        both() {
            run fd77::1 $1 -b fd77::1 -f ipv6 -T v -I 5 -C 20 -S 5000 >"$DIR/server" 2>&1 &
            until grep -q "urxe-service" /proc/net/unix; do sleep 0.02; done
            run fd77::2 $1 -s fd77::1 -f ipv6 -T v -I 5 -C 20 -S 5000 || exit 1
            wait $! || { cat "$DIR/server"; exit 1; }
            until ! grep -q "urxe-service" /proc/net/unix; do sleep 0.02; done
        }
        both rstream
        both riostream
    "#;
    let printed = in_namespace(script, &[]);
    assert_eq!(printed.matches("custom").count(), 2, "{printed}");
}

/// Runs one case of `c/rsockets.c`.
fn run_case(name: &str) {
    let [address, _] = addresses();
    CProgram::build("rsockets").run(&address, &[name, &address]);
}

#[test]
fn nonblocking_connect_fails_with_einprogress_and_completes_later() {
    run_case("connecting");
}

#[test]
fn invalid_calls_fail_with_the_expected_errno() {
    run_case("refused");
}

#[test]
fn each_direction_can_be_shut_down_separately() {
    run_case("half closed");
}

#[test]
fn scattered_buffers_are_sent_and_received() {
    run_case("pieces");
}

#[test]
fn threads_send_and_receive_in_both_directions_at_once() {
    run_case("both ways");
}

#[test]
fn data_sent_before_a_close_arrives() {
    run_case("full");
}

#[test]
fn rsockets_are_polled_together_with_other_descriptors() {
    run_case("polled");
}

#[test]
fn riowrite_writes_to_mapped_memory() {
    run_case("mapped");
}

#[test]
fn memory_mapped_before_the_connection_is_established_is_announced() {
    run_case("mapped early");
}

#[test]
fn data_sent_before_an_exit_arrives() {
    run_case("exits");
}

#[test]
fn forked_child_does_not_affect_its_parents_sockets() {
    run_case("forked");
}

#[test]
fn event_wakes_all_threads_that_wait_for_the_socket() {
    run_case("beside");
}

#[test]
fn interrupted_call_restarts_with_sa_restart() {
    run_case("interrupted");
}

#[test]
fn socket_with_keepalive_can_be_closed() {
    run_case("kept and closed");
}

/// Runs one case of `c/rsockets.c` as the server and another as the client. `server_ends` is false for a
/// server that does not exit on its own.
fn run_two_cases(server: &str, client: &str, server_ends: bool) {
    let (library, program, port) = (Library::new(), CProgram::build("rsockets"), port());
    let ([a, b], number) = (addresses(), port.to_string());
    let start = |address: &str, name: &str| {
        let mut command = library.program(program.program(), address);
        // A dead peer is to be noticed soon.
        command.args([name, &a, &number]).env_remove(MIN_ACK_TIMEOUT);
        Running::new(command)
    };
    let serving = start(&a, server);
    wait_for_service(&[TCP_PORTS], port);
    let mut ends = vec![start(&b, client).finish(LIMIT)];
    if server_ends {
        ends.push(serving.finish(LIMIT));
    }
    for end in ends {
        assert!(end.status.success(), "{server}, {client}: {:?}\n{}", end.status, text(&end));
    }
}

#[test]
fn dead_peer_is_detected_only_if_keepalive_is_enabled() {
    run_two_cases("is killed", "notices", false);
    run_two_cases("is stopped", "notices", false);
    run_two_cases("is stopped", "hears", false);
    run_two_cases("is silent", "keeps on", true);
    run_two_cases("is stopped", "does not notice", false);
}

/// Acts as a peer that completes the handshake, and then posts an RDMA WRITE with the given immediate data.
fn send_immediate(manager: &ConnectionManager, to: SocketAddr, immediate: u32) {
    let soon = Duration::from_secs(10);
    let context = manager.devices().remove(0);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let memory = pd.reg_mr(4096, Access::ALL).unwrap();
    let target = |len: u32| {
        [&memory.addr().to_be_bytes()[..], &memory.rkey().0.to_be_bytes(), &len.to_be_bytes()].concat()
    };
    // Version 1, 64 credits, no mapped memory, a target SGL of two entries, and the first target.
    let conn_data = [&[1, 2, 0, 64, 0, 0, 0, 0][..], &target(2), &target(4000)].concat();
    let qp = |_: &Context| {
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default())?;
        // In INIT the queue pair accepts receives, for the messages of the other end. It stays in INIT when
        // it is attached.
        qp.enter_init(Access::ALL).unwrap();
        (0..4).for_each(|_| qp.post_recv(&RecvWr::new(1, &[])).unwrap());
        Ok(qp)
    };
    let session = manager.connect(to, qp, &ConnParam::with_data(&conn_data), soon).unwrap();
    let op = WrOp::WriteWithImm { va: 0, rkey: RKey(0), imm: immediate };
    let wr = SendWr::new(2, op, &[]);
    session.qp().post_send(&wr).unwrap();
    session.wait_for_disconnect(soon).unwrap();
    session.disconnect(soon).unwrap();
}

#[test]
fn invalid_message_ends_the_connection() {
    let (library, program, port) = (Library::new(), CProgram::build("rsockets"), port());
    let [a, b] = addresses();
    let mut command = library.program(program.program(), &a);
    command.args(["hostile", &a, &port.to_string()]).env("MALLOC_PERTURB_", "85");
    let serving = Running::new(command);
    wait_for_service(&[TCP_PORTS], port);
    let link = format!("udp:{b}").parse::<LinkSpec>().unwrap().bind(1).unwrap();
    let context = Context::open_shards(link, &ContextOptions::default()).unwrap();
    let manager = ConnectionManager::new(vec![context]).unwrap();
    let to = SocketAddr::new(a.parse().unwrap(), port);
    // Unknown types and control messages, more data than the peer has granted, and an entry of a table that
    // does not exist.
    for immediate in [0x2000_0000, 0x6000_0001, 0x1fff_ffff, 0xc000_0000, 0xe000_0009] {
        send_immediate(&manager, to, immediate);
    }
    let out = serving.finish(LIMIT);
    assert!(out.status.success(), "{}\n{}", out.status, text(&out));
}
