//! Tests of datagram rsockets between two processes under `urxe run` on separate addresses: the cases of
//! `c/datagrams.c`, invalid messages to UDP sockets and queue pairs, Debian's `udpong`, and an ordinary UDP
//! program with Debian's preload library.

use std::net::UdpSocket;
use std::process::Output;
use std::time::{Duration, Instant};

use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use urxe::link::LinkSpec;
use urxe::transport::{AddressVector, QpType};
use urxe::verbs::cm::UDP_QKEY;
use urxe::verbs::{Access, Context, ContextOptions, Gid, QpOptions, Qpn, RecvWr, SendWr, grh};

use urxe_test_support::programs::{self, CProgram, Running, addresses, text, urxe};

/// Time limit for each program.
const LIMIT: Duration = Duration::from_secs(60);
/// Debian's preload library that redirects socket calls to rsockets.
const PRELOADED: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Returns a UDP port that is free at the given address.
fn port(address: &str) -> u16 {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.local_addr().unwrap().port()
}

/// Waits until the UDP port is bound.
fn wait_for_udp(port: u16) {
    let hex = format!(":{port:04X} ");
    let is_bound = || std::fs::read_to_string("/proc/net/udp").is_ok_and(|list| list.contains(&hex));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_bound() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running echo server and its address.
struct Serving {
    program: CProgram,
    server: Running,
    addresses: [String; 2],
    port: u16,
}

impl Serving {
    fn start() -> Serving {
        let (program, addresses) = (CProgram::build("datagrams"), addresses());
        let port = port(&addresses[0]);
        let server = Serving::run(&program, &addresses[0], &["serve", &addresses[0], &port.to_string()]);
        wait_for_udp(port);
        Serving { program, server, addresses, port }
    }

    fn run(program: &CProgram, address: &str, args: &[&str]) -> Running {
        let mut command = urxe(&["run", "--ip", address, "--", program.program()]);
        // Freed memory is overwritten, so that a use after free is likely to be noticed.
        command.args(args).env("MALLOC_PERTURB_", "85");
        Running::new(command)
    }

    /// Runs one case of `c/datagrams.c` as a client of this server, on a different address.
    fn run_case(&self, name: &str) -> Output {
        let ([server, own_address], port) = (&self.addresses, self.port.to_string());
        let out = Serving::run(&self.program, own_address, &[name, server, &port, own_address]).finish(LIMIT);
        assert!(out.status.success(), "{name}: {:?}\n{}", out.status, text(&out));
        out
    }

    /// Checks that the server still works, and stops it.
    fn end(self) {
        self.run_case("end");
        let out = self.server.finish(Duration::from_secs(10));
        assert!(out.status.success(), "{:?}\n{}", out.status, text(&out));
    }
}

/// Runs one case of `c/datagrams.c` against a new server.
fn run_case(name: &str) {
    let serving = Serving::start();
    serving.run_case(name);
    serving.end();
}

#[test]
fn datagrams_of_all_sizes_keep_their_boundaries() {
    run_case("sizes");
}

#[test]
fn sending_a_datagram_that_is_too_long_fails_with_emsgsize() {
    run_case("long");
}

#[test]
fn datagram_is_scattered_over_buffers_and_truncated_to_their_size() {
    run_case("pieces");
}

#[test]
fn connected_socket_receives_from_its_peer_only() {
    run_case("connected");
}

#[test]
fn waiting_thread_is_woken_by_a_datagram() {
    run_case("waiting");
}

#[test]
fn many_sockets_exchange_datagrams_with_one_socket() {
    run_case("many");
}

#[test]
fn restarted_peer_is_resolved_again() {
    run_case("again");
}

#[test]
fn receive_buffer_may_hold_more_datagrams_than_a_queue_pair_has_receives() {
    run_case("large");
}

#[test]
fn socket_connected_to_the_wildcard_address_reaches_a_local_socket() {
    run_case("wildcard");
}

#[test]
fn ipv6_socket_exchanges_datagrams_over_ipv4() {
    run_case("mapped");
}

#[test]
fn close_wakes_waiting_threads() {
    run_case("closed");
}

#[test]
fn invalid_calls_fail_with_the_expected_errno() {
    run_case("refused");
}

/// Runs in its own network namespace, with two IPv6 addresses.
#[test]
fn udpong_over_ipv6_receives_its_datagrams() {
    let script = r#"
        ip link set lo up && ip addr add fd77::1/128 dev lo nodad && ip addr add fd77::2/128 dev lo nodad || exit 3
        "$URXE" run --ip fd77::1 -- "$PROGRAM" serve fd77::1 7000 & server=$!
        until grep -q ":1B58 " /proc/net/udp6; do sleep 0.02; done
        for corner in sizes long pieces connected waiting again wildcard refused end; do
            "$URXE" run --ip fd77::2 -- "$PROGRAM" "$corner" fd77::1 7000 fd77::2 || { echo "$corner"; exit 1; }
        done
        wait $server
    "#;
    in_namespace(script);
}

/// Runs in its own network namespace; the C program deletes the interface.
#[test]
fn waiting_call_fails_with_enetdown_once_when_the_device_is_removed() {
    let script = r#"
        ip link add v0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev v0 || exit 3
        ip link set v1 up && ip link set v0 up || exit 3
        "$URXE" run --ip 10.77.0.1 -- "$PROGRAM" lost 10.77.0.2 7000 10.77.0.1
    "#;
    in_namespace(script);
}

fn in_namespace(script: &str) {
    let program = CProgram::build("datagrams");
    programs::in_namespace(script, &[("PROGRAM", program.program())]);
}

/// Returns pseudorandom bytes.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pcg32::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Returns a UDP message that announces the given queue pair and carries `data`.
fn message(qpn: u32, ip: &str, data: &[u8]) -> Vec<u8> {
    let ip = ip.parse::<std::net::Ipv4Addr>().unwrap().octets();
    [&[0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0][..], &qpn.to_be_bytes(), &ip, data].concat()
}

#[test]
fn invalid_udp_messages_are_dropped_without_loss_of_others() {
    let serving = Serving::start();
    let [server, own_address] = &serving.addresses;
    let socket = UdpSocket::bind((own_address.as_str(), 0)).unwrap();
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, (server.as_str(), serving.port)).unwrap();
    };
    let good = message(0x1234, own_address, b"data");
    let send_invalid = || {
        (0..50).for_each(|seed| send(&random(seed * 31 % 1500, seed as u64)));
        (0..16).for_each(|len| send(&good[..len]));
        for (at, byte) in
            [(0, 0x56), (4, 0), (4, 5), (4, 6), (4, 255), (5, 1), (5, 8), (6, 0), (6, 15), (6, 255)]
        {
            let mut bad = good.clone();
            bad[at] = byte;
            send(&bad);
        }
        // Queue pair numbers with too many bits, and the reserved ones: QP0, QP1, and the one for multicast.
        for qpn in [0x0100_0000, 0, 1, 0x00ff_ffff, u32::MAX] {
            send(&message(qpn, own_address, b"data"));
        }
        // An unsolicited response.
        let mut response = message(0x1234, own_address, b"");
        response[5] = 7;
        send(&response);
        // Longer than any message of the protocol.
        send(&[&good[..], &[7; 30_000]].concat());
    };
    send_invalid();
    // The server responds to none of them. The response to a valid message contains the queue pair number.
    send(&good);
    let mut buffer = [0; 2048];
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (len, from) = socket.recv_from(&mut buffer).expect("no response to a valid message");
    assert_eq!((len, from.port()), (16, serving.port));
    assert_eq!(buffer[..8], [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0]);
    let ip = server.parse::<std::net::Ipv4Addr>().unwrap().octets();
    assert_eq!(buffer[12..16], ip, "the response must contain the address of the server");
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(socket.recv_from(&mut buffer).is_err(), "unexpected response: {:02x?}", &buffer[..32]);
    serving.run_case("sizes");
    send_invalid();
    serving.run_case("pieces");
    serving.end();
}

/// Acts as a peer that sends datagrams from its own queue pair, all but a few of them invalid.
#[test]
fn invalid_datagrams_of_a_queue_pair_are_dropped_without_loss_of_others() {
    let serving = Serving::start();
    let [server, own_address] = &serving.addresses;
    let link = format!("udp:{own_address}").parse::<LinkSpec>().unwrap().bind(1).unwrap();
    let context = Context::open_shards(link, &ContextOptions::default()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let memory = pd.reg_mr(8192, Access::LOCAL_WRITE).unwrap();
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default().qp_type(QpType::Ud)).unwrap();
    qp.activate(UDP_QKEY).unwrap();
    qp.post_recv(&RecvWr::new(1, &[memory.sge(4096..8192)])).unwrap();
    // The peer announces its queue pair by UDP and receives the number of the server's; its message is
    // echoed.
    let socket = UdpSocket::bind((own_address.as_str(), 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.send_to(&message(qp.qpn().get(), own_address, b"hello"), (server.as_str(), serving.port)).unwrap();
    let mut printed = [0; 64];
    assert_eq!(socket.recv(&mut printed).unwrap(), 16);
    let server_qpn = Qpn::new(u32::from_be_bytes(printed[8..12].try_into().unwrap()));
    let wait = || {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut completions = Vec::new();
        while completions.is_empty() {
            assert!(Instant::now() < deadline, "no completion");
            cq.poll(1, &mut completions).unwrap();
        }
        completions.remove(0)
    };
    let header = |ip: &str, port: u16| {
        let ip = ip.parse::<std::net::Ipv4Addr>().unwrap().octets();
        [&[4, 8][..], &port.to_be_bytes(), &ip].concat()
    };
    let expect_echo = |data: &[u8]| {
        let completion = wait();
        assert_eq!((completion.wr_id, completion.src_qpn), (1, server_qpn));
        let expected = [&header(server, serving.port)[..], data].concat();
        assert_eq!(completion.byte_len as usize, grh::LEN + expected.len());
        let mut bytes = vec![0; expected.len()];
        memory.read(4096 + grh::LEN, &mut bytes).unwrap();
        assert_eq!(bytes, expected);
    };
    expect_echo(b"hello");
    qp.post_recv(&RecvWr::new(1, &[memory.sge(4096..8192)])).unwrap();
    let dgid = Gid::from(server.parse::<std::net::IpAddr>().unwrap());
    let to = AddressVector::to(dgid).sgid_index(0).hop_limit(64).traffic_class(0).flow_label(0);
    let path = pd.create_ah(&to).unwrap();
    let send = |bytes: &[u8]| {
        memory.write(0, bytes).unwrap();
        let sges = [memory.sge(0..bytes.len())];
        let to = Some(path.to(server_qpn, UDP_QKEY));
        qp.post_send(&SendWr::send(2, &sges).to(to)).unwrap();
        assert_eq!(wait().wr_id, 2, "unexpected completion of a receive");
    };
    let good = header(own_address, socket.local_addr().unwrap().port());
    // No more than the server has posted receives, because it may not be scheduled.
    (0..200).for_each(|seed| {
        let mut bytes = random(seed % 100, seed as u64);
        // The first byte must not be a valid version by accident.
        bytes.iter_mut().take(1).for_each(|version| *version |= 0x80);
        send(&bytes);
    });
    (0..8).for_each(|len| send(&good[..len]));
    for (at, byte) in [(0, 5), (0, 6), (1, 0), (1, 7), (1, 9), (1, 255)] {
        let mut bad = good.clone();
        bad[at] = byte;
        send(&bad);
    }
    // An address of another family than the socket's.
    let port = socket.local_addr().unwrap().port();
    let header6 =
        |ip: std::net::Ipv6Addr| [&[6, 24][..], &port.to_be_bytes(), &[0; 4], &ip.octets()].concat();
    send(&[&header6("fd99::9".parse().unwrap())[..], b"no"].concat());
    send(&[&good[..], b"well"].concat());
    expect_echo(b"well");
    // An IPv4-mapped IPv6 address denotes the same peer.
    qp.post_recv(&RecvWr::new(1, &[memory.sge(4096..8192)])).unwrap();
    let mapped = own_address.parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped();
    send(&[&header6(mapped)[..], b"mapped"].concat());
    expect_echo(b"mapped");
    // Frees the address for the next client.
    drop((path, qp, memory, cq, pd, context));
    serving.run_case("sizes");
    serving.end();
}

/// Runs udpong and checks that the client prints its measurement. The server never exits on its own. A
/// preloaded library lengthens the timeouts of `rpoll`, because udpong can hang after a late echo (see
/// `rpoll_timeout.c`).
#[test]
fn udpong_receives_its_datagrams_with_each_kind_of_call() {
    let kinds: [&[&str]; 6] = [
        &["-S", "64", "-C", "1000", "-T", "e"],
        &["-S", "2000", "-C", "500", "-T", "e", "-T", "b"],
        &["-S", "1000", "-C", "500", "-T", "e", "-T", "n"],
        &["-S", "1000", "-C", "500", "-T", "e", "-T", "a"],
        &["-S", "1000", "-C", "1000"],
        &["-S", "2000", "-C", "100", "-B", "8192"],
    ];
    let [a, b] = addresses();
    let longer_timeout = CProgram::build_with("rpoll_timeout", &["-shared", "-fPIC"]);
    for kind in kinds {
        let port = port(&a);
        let number = port.to_string();
        let start = |address: &str, args: &[&str]| {
            let mut command = urxe(&["run", "--ip", address, "--", "udpong", "-p", &number]);
            command.args(args).args(kind).env("LD_PRELOAD", longer_timeout.program());
            Running::new(command)
        };
        let _serving = start(&a, &["-b", &a]);
        wait_for_udp(port);
        let out = start(&b, &["-s", &a]).finish(LIMIT);
        let printed = text(&out);
        let all_succeeded =
            out.status.success() && printed.lines().count() == 2 && printed.contains("custom");
        assert!(all_succeeded, "{kind:?}: {:?}\n{printed}", out.status);
    }
}

/// Runs a Python program without RDMA support: its data must appear in a packet capture of the NIC.
#[test]
fn udp_program_uses_rdma_with_the_preloaded_library() {
    const SERVER: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
while True:
    data, peer = s.recvfrom(2000)
    s.sendto(data.upper(), peer)
    if data == b'end': break
";
    const CLIENT: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
for i in range(50):
    s.sendto(b'q%d' % i + b'x' * 1000, (sys.argv[1], int(sys.argv[2])))
    data, peer = s.recvfrom(2000)
    assert data == b'Q%d' % i + b'X' * 1000, data
    assert peer == (sys.argv[1], int(sys.argv[2])), peer
s.sendto(b'end', (sys.argv[1], int(sys.argv[2])))
assert s.recvfrom(2000)[0] == b'END'
";
    let ([a, b], dir) = (addresses(), tempfile::tempdir().unwrap());
    let (port, capture) = (port(&a), dir.path().join("capture"));
    let number = port.to_string();
    let start = |address: &str, urxe_args: &[&str], program: &str| {
        let mut command = urxe(&["run", "--ip", address]);
        command.args(urxe_args).args(["--", "python3", "-c", program, &a, &number]);
        command.env("LD_PRELOAD", PRELOADED);
        Running::new(command)
    };
    let serving = start(&a, &[], SERVER);
    wait_for_udp(port);
    let out = start(&b, &["--capture", capture.to_str().unwrap()], CLIENT).finish(LIMIT);
    assert!(out.status.success(), "{}\n{}", out.status, text(&out));
    let out = serving.finish(Duration::from_secs(10));
    assert!(out.status.success(), "{}\n{}", out.status, text(&out));
    let captured = std::fs::metadata(&capture).map_or(0, |file| file.len());
    assert!(captured > 2 * 45 * 1000, "captured {captured} bytes, expected about 100000");
}
