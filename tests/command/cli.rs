//! Tests of the `urxe` command as users run it: output, exit status and error messages.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::errors::WaitError;
use urxe::verbs::*;
use urxe::wire::{Flow, IpIdent, Packet, icrc};
use urxe_cli::oob_handshake;

const TIMEOUT: Duration = Duration::from_secs(10);

pub fn urxe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe"));
    command.args(args);
    command
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Starts a server of `urxe pingpong`, and returns it and its TCP port.
fn pingpong_server(options: &[&str]) -> (Child, String) {
    let server = ["pingpong", "--server-bind", "127.0.0.1", "--port", "0"];
    let mut server = urxe(&[&server[..], options].concat());
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut waiting = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut waiting).unwrap();
    let port = waiting.trim().strip_prefix("waiting for a client on TCP 127.0.0.1:");
    let port = port.unwrap_or_else(|| panic!("{waiting}")).into();
    (server, port)
}

/// Runs a command that must fail with a one-line error message, and returns the message.
fn failure(args: &[&str]) -> String {
    let output = urxe(args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    assert!(stderr.starts_with("urxe: "), "{stderr}");
    stderr
}

#[test]
fn demo_shows_every_operation_and_the_lost_packet() {
    let dir = tempfile::tempdir().unwrap();
    let output = urxe(&["demo"]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for needle in [
        "RC SEND Only  ",
        "RC SEND Last Immediate",
        "RC RDMA WRITE First",
        "RC RDMA WRITE Only Immediate",
        "RC RDMA READ Request",
        "RC RDMA READ response Middle",
        "RC CmpSwap",
        "RC FetchAdd",
        "RC ATOMIC Acknowledge",
        "DROPPED by the fault rule",
        "NAK: PSN sequence error",
        "RNR NAK: wait 640µs",
        "↻ retransmission",
        "RC ATOMIC WRITE",
        "RC FLUSH",
        "RC SEND Only Invalidate",
        "All 10 operations completed with correct data",
        "wireshark demo.pcapng",
    ] {
        assert!(text.contains(needle), "{needle:?} is not in\n{text}");
    }
    assert_eq!(text.matches("DROPPED by the fault rule\n").count(), 1);
    assert!(!text.contains('\x1b'), "escape sequence in output that is not to a terminal");
    let packets = text.lines().filter(|l| l.contains("A → B") || l.contains("A ← B")).count();
    check_capture(&dir.path().join("demo.pcapng"), packets);
}

#[test]
fn urxe_log_prints_events_to_standard_error() {
    let run = |level: &str| {
        let output = urxe(&["demo", "--no-capture"]).env("URXE_LOG", level).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, events) = run("debug");
    assert_eq!(status, Some(0), "{events}");
    for needle in ["urxe::qp: state change", "urxe::nak: NAK received", "urxe::recovery: retransmission"] {
        assert!(events.contains(needle), "'{needle}' is missing: {events}");
    }
    assert_eq!(run("error"), (Some(0), String::new()));
    let (status, error) = run("loud");
    assert_eq!(status, Some(1));
    assert_eq!(error, "urxe: URXE_LOG is 'loud': it must be off, error, warn, info, debug or trace\n");
}

#[test]
fn demo_output_is_reproducible_from_its_seed() {
    let run = |seed: &str| {
        let output = urxe(&["demo", "--no-capture", "--seed", seed]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        // Memory addresses vary from run to run.
        let text = stdout(&output);
        text.split(' ').filter(|w| !w.starts_with("0x") || w.len() < 13).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(run("5"), run("5"));
    assert_ne!(run("5"), run("6"));
    for seed in ["0", "18446744073709551615"] {
        run(seed);
    }
}

/// Checks that a capture has `packets` complete packets with valid ICRCs, and that only the lost one has a
/// comment.
fn check_capture(path: &Path, packets: usize) {
    let file = std::fs::read(path).unwrap();
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let (mut count, mut comments) = (0, Vec::new());
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(b) = block.unwrap() else { continue };
        count += 1;
        let (ip, rest) = etherparse::Ipv4Header::from_slice(&b.data).unwrap();
        let (udp, bth) = etherparse::UdpHeader::from_slice(rest).unwrap();
        let flow = Flow::new(ip.source.into(), ip.destination.into(), udp.source_port);
        let ident = IpIdent::Exact { id: ip.identification, flags: IpIdent::DONT_FRAGMENT };
        assert_eq!((udp.destination_port, ip.dont_fragment), (4791, true));
        assert!(icrc::verify(&flow, ident, 0, bth), "packet {count}");
        Packet::parse(bth).unwrap();
        comments.extend(b.options.iter().find_map(|o| match o {
            EnhancedPacketOption::Comment(text) => Some(text.to_string()),
            _ => None,
        }));
    }
    assert_eq!(count, packets);
    assert_eq!(comments, ["fault drop=2,opcode=0x07, packet 2"]);
}

#[test]
fn devinfo_lists_all_links_and_describes_the_requested_one() {
    let output = urxe(&["devinfo"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for needle in ["fabric ", "udp:127.0.0.1 ", "packet:lo ", "frames:dgram:", "max_qp_rd_atom"] {
        assert!(text.contains(needle), "{needle:?} is not in\n{text}");
    }
    let output = urxe(&["devinfo", "--link", "udp:127.92.0.1"]).output().unwrap();
    let text = stdout(&output);
    for needle in [
        "PORT_ACTIVE",
        "active_mtu           4096 (5)",
        "GID[  0]             ::ffff:127.92.0.1, RoCE v2\n",
        "udp_source_port      4791",
        "node_guid",
        "max_mr_size",
    ] {
        assert!(text.contains(needle), "{needle:?} is not in\n{text}");
    }
    let output = urxe(&["devinfo", "-v"]).output().unwrap();
    assert!(output.status.success() && stdout(&output).matches("node_guid").count() > 1, "{output:?}");
}

/// Returns the JSON document that a successful command prints, and nothing else, to standard output.
fn json(args: &[&str]) -> serde_json::Value {
    let output = urxe(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {output:?}"))
}

#[test]
fn devinfo_json_has_the_links_and_limits_of_the_table() {
    let all = json(&["devinfo", "--json"]);
    let table = stdout(&urxe(&["devinfo"]).output().unwrap());
    let links = all["links"].as_array().unwrap();
    let lo = links.iter().find(|link| link["link"] == "udp:127.0.0.1").unwrap();
    assert_eq!((&lo["gids"][0], &lo["attributes"]), (&"127.0.0.1".into(), &serde_json::Value::Null), "{lo}");
    for link in links {
        let name = link["link"].as_str().unwrap();
        assert!(table.contains(name), "{name} is not in\n{table}");
        assert_eq!(link["state"] == "error", link["error"].is_string(), "{link}");
    }
    let max_qp = all["limits"]["max_qp"].as_u64().unwrap();
    assert!(table.contains(&format!("  max_qp               {max_qp}\n")), "{table}");
    let one = json(&["devinfo", "--json", "--link", "udp:127.92.0.12"]);
    let link = &one["links"][0];
    assert_eq!((&link["device"], &link["state"]), (&"urxe0".into(), &"ready".into()), "{one}");
    assert_eq!(link["attributes"]["active_mtu"], "4096 (5)", "{one}");
}

#[test]
fn pingpong_json_is_the_only_output_of_both_ends() {
    let options = ["--json", "--check", "-n", "20", "-s", "64", "--fault", "drop=7", "--link"];
    let (server, port) = pingpong_server(&[&options[..], &["udp:127.92.0.13"]].concat());
    let client = [&["pingpong", "--port", &port][..], &options, &["udp:127.92.0.14", "127.0.0.1"]].concat();
    let client = json(&client);
    let server = server.wait_with_output().unwrap();
    let server: serde_json::Value = serde_json::from_slice(&server.stdout).unwrap();
    for end in [client, server] {
        assert_eq!(
            (&end["service"], &end["iterations"], &end["size"]),
            (&"rc".into(), &20.into(), &64.into())
        );
        assert_eq!((&end["checked_messages"], &end["bytes"]), (&20.into(), &2560.into()), "{end}");
        assert!(end["mbit_s"].as_f64().unwrap() > 0.0 && end["us_per_iteration"].as_f64().unwrap() > 0.0);
        assert_eq!(end["faults"]["rules"][0]["rule"], "drop=7", "{end}");
    }
}

#[test]
fn pingpong_explains_a_failed_work_request() {
    let (mut server, port) = pingpong_server(&["--ip", "127.92.0.33"]);
    let client = ["pingpong", "--port", &port, "--ip", "127.92.0.34", "--ack-timeout", "8", "--explain"];
    let fault = ["--fault", "drop=1..,opcode=send", "127.0.0.1"];
    let output = urxe(&[&client[..], &fault].concat()).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("  transmission 8: sent ") && stderr.contains("drop=1..,opcode=send"),
        "{stderr}"
    );
}

#[test]
fn shared_memory_has_its_default_from_the_environment() {
    let run = |link: &str, value: &str| {
        let mut command = urxe(&["perf", "write", "-n", "10", "--timeout", "1", "--link", link]);
        let output = command.env("URXE_SHARED_MEMORY", value).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run("fabric", "require").0, Some(0));
    let (status, stderr) = run("udp:127.92.0.35", "maybe");
    assert!(
        status == Some(1) && stderr.contains("URXE_SHARED_MEMORY: 'maybe' is none of off, auto, require"),
        "{stderr}"
    );
}

#[test]
fn version_names_commit_features_and_target() {
    let version = stdout(&urxe(&["--version"]).output().unwrap());
    let lines: Vec<&str> = version.lines().collect();
    assert_eq!(lines[0], concat!("urxe ", env!("CARGO_PKG_VERSION")));
    let value = |n: usize, name: &str| lines[n].strip_prefix(name).unwrap_or_else(|| panic!("{version}"));
    let commit = value(1, "commit: ");
    assert!(
        commit == "unknown" || commit.len() >= 7 && commit.bytes().all(|b| b.is_ascii_hexdigit()),
        "{commit}"
    );
    assert!(!value(2, "features: ").is_empty(), "{version}");
    assert!(value(3, "target: ").contains("linux"), "{version}");
    assert_eq!(stdout(&urxe(&["-V"]).output().unwrap()), format!("{}\n", lines[0]));
}

#[test]
fn invalid_command_line_is_rejected_with_the_reason() {
    for (args, reason) in [
        (&["serve", "--link", "ib0"][..], "unknown link 'ib0'"),
        (&["serve", "--link", "udp:10.0.0"], "'10.0.0' is not an IP address"),
        (&["serve", "--fault", "lose=3"], "unknown action 'lose'"),
        (&["serve", "--mtu", "1500"], "invalid path MTU '1500'"),
        (
            &["serve", "--personality", "efa"],
            "unknown personality 'efa': use one of default, strict, mlx5, rxe, throughput",
        ),
        (&["serve", "--size", "1T"], "invalid size '1T'"),
        (&["serve", "--peer", "10.0.0.1"], "expected GID,QPN,PSN"),
        (&["demo", "--capture", "x", "--no-capture"], "cannot be used with"),
        (&["dance"], "unrecognized subcommand"),
    ] {
        let output = urxe(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.lines().next().unwrap().contains(reason), "{args:?}: {stderr}");
    }
}

#[test]
fn error_for_a_missing_or_busy_resource_is_one_line_with_the_reason() {
    let stderr = failure(&["serve", "--port", "0", "--link", "packet:nosuch0"]);
    assert!(stderr.contains("interface \"nosuch0\" does not exist") && stderr.contains("lo"), "{stderr}");

    let in_use: IpAddr = Ipv4Addr::new(127, 92, 0, 2).into();
    let _socket = UdpSocket::bind((in_use, 4791)).unwrap();
    let stderr = failure(&["serve", "--port", "0", "--link", "udp:127.92.0.2"]);
    assert!(
        stderr.contains(&format!("4791 of {in_use} is in use by process {}", std::process::id()))
            && !stderr.contains("--shared-memory"),
        "{stderr}"
    );
    let serve = Serve::start(&["serve", "--port", "0", "--link", "udp:127.92.0.40"]);
    let stderr = failure(&["serve", "--port", "0", "--link", "udp:127.92.0.40"]);
    assert!(stderr.contains("(urxe): ") && stderr.contains("with --shared-memory auto for each"), "{stderr}");
    drop(serve);

    let stderr = failure(&["serve", "--port", "0", "--link", "udp:203.0.113.77"]);
    assert!(stderr.contains("203.0.113.77 is not an address of this machine"), "{stderr}");

    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port().to_string();
    let stderr = failure(&["serve", "--port", &port, "--link", "udp:127.92.0.3"]);
    assert!(
        stderr.contains(&format!("TCP port {port} is already in use")) && stderr.contains("--port"),
        "{stderr}"
    );

    let stderr = failure(&["serve", "--port", "0", "--link", "udp:127.92.0.4", "--peer", "::1,1,1"]);
    assert!(
        stderr.contains("the peer's address is ::1") && stderr.contains("IPv4 addresses only"),
        "{stderr}"
    );

    let stderr = failure(&["serve", "--port", "0", "--link", "udp:127.92.0.5", "--gid", "3"]);
    assert!(
        stderr
            .contains("GID index 3 does not exist on udp 127.92.0.5: the GID table contains 0 (127.92.0.5)"),
        "{stderr}"
    );

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").display().to_string();
    let link = format!("frames:dgram:{socket},{socket}2,ip=10.9.9.9/24");
    let mut serve = Serve::start(&["serve", "--port", "0", "--link", &link]);
    assert!(
        serve.output.contains("of this machine (HOST)") && !serve.output.contains(" 10.9.9.9\nwaiting"),
        "{}",
        serve.output
    );
    serve.interrupt();
    assert_eq!(serve.end().0, Some(0));

    let missing = "/nonexistent/demo.pcapng";
    for args in [
        &["demo", "--capture", missing][..],
        &["serve", "--port", "0", "--link", "udp:127.92.0.6", "--capture", missing],
    ] {
        let stderr = failure(args);
        assert!(stderr.contains("cannot write the capture file /nonexistent/demo.pcapng"), "{stderr}");
    }

    let stderr = failure(&["serve", "--port", "0", "--link", "frames:connect:/nonexistent/s,ip=10.0.0.1/24"]);
    assert!(stderr.contains("no process listens on the socket"), "{stderr}");
}

#[test]
fn error_for_a_missing_permission_names_the_capability() {
    use std::os::unix::process::CommandExt;
    // The copy is at a path that every user may read. `cp` makes it: if this process had it open for writing,
    // a child that another thread forks would inherit the descriptor, and the copy could not be executed
    // (ETXTBSY).
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("urxe");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_urxe")).arg(&copy).status().unwrap();
    assert!(copied.success(), "{copied}");
    for path in [dir.path(), &copy] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&copy);
    command.args(["serve", "--port", "0", "--link", "packet:lo"]).current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("CAP_NET_RAW") && stderr.contains("--link udp"), "{stderr}");
}

#[test]
fn serve_with_an_unresponsive_peer_times_out_and_prints_what_it_has_sent() {
    let base = ["serve", "--port", "0", "--one-shot", "--timeout", "1", "--link"];
    let args = [&base[..], &["udp:127.92.0.7", "--peer", "127.92.0.8,0x11,5"]].concat();
    let stderr = failure(&args);
    assert!(
        stderr.contains("no packet from 127.92.0.8 QP 0x11 within 1s") && stderr.contains("sent nothing"),
        "{stderr}"
    );

    let mut serve = Serve::start(&[&base[..], &["udp:127.92.0.9"]].concat());
    let _silent = TcpStream::connect(("127.0.0.1", serve.port)).unwrap();
    let (status, _, stderr) = serve.end();
    assert_eq!(status, Some(1));
    assert!(stderr.contains("ping-pong address: timed out after 0 of 52 bytes"), "{stderr}");

    // The peer connects and sends, but then ends: the echo is never acknowledged.
    let ending = ["serve", "--port", "0", "--one-shot", "--explain", "--ip", "127.92.0.10"];
    let mut serve = Serve::start(&ending);
    let client = Client::connect(&serve, Ipv4Addr::new(127, 92, 0, 11));
    client.endpoint.qp.post_send(&SendWr::send(1, &[client.mr.sge(0..100)])).unwrap();
    drop(client);
    let (status, _, stderr) = serve.end();
    assert_eq!(status, Some(1), "{stderr}");
    assert!(
        stderr.contains("did not respond: the SEND of echo 1 to QP 0x")
            && stderr.contains("was sent 8 times"),
        "{stderr}"
    );
    assert!(stderr.contains("  transmission 8: sent "), "no explanation: {stderr}");
}

#[test]
fn serve_echoes_through_rings_that_both_ends_require_and_says_so() {
    let rings = ["--shared-memory", "require", "--link"];
    let serve = [&["serve", "--port", "0", "--one-shot"], &rings[..], &["udp:127.92.0.31"]].concat();
    let mut serve = Serve::start(&serve);
    let port = serve.port.to_string();
    let client =
        [&["pingpong", "-n", "50", "-p", &port], &rings[..], &["udp:127.92.0.32", "127.0.0.1"]].concat();
    let client = urxe(&client).output().unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let (status, out, stderr) = serve.end();
    assert!(status == Some(0) && out.contains("\npackets took rings in shared memory\n"), "{out}{stderr}");
}

/// A running `urxe serve`; killed on drop.
struct Serve {
    child: Child,
    out: BufReader<ChildStdout>,
    port: u16,
    remote: RemoteAddr,
    length: usize,
    /// Standard output up to the line that says that the server waits for peers.
    output: String,
}

impl Serve {
    fn start(args: &[&str]) -> Serve {
        let mut child = urxe(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        let mut wait = |log: &mut dyn BufRead| {
            while !text.contains("waiting for peers") {
                assert_ne!(log.read_line(&mut text).unwrap(), 0, "serve exited: {text}");
            }
        };
        match args.contains(&"--json") {
            false => wait(&mut out),
            true => wait(&mut BufReader::new(child.stderr.as_mut().unwrap())),
        }
        let word = |prefix: &str| {
            let at = text.find(prefix).unwrap_or_else(|| panic!("{prefix:?} is not in\n{text}"));
            text[at + prefix.len()..].split([' ', ',', '\n']).next().unwrap().to_owned()
        };
        let hex = |prefix: &str| u64::from_str_radix(word(prefix).trim_start_matches("0x"), 16).unwrap();
        let remote = RemoteAddr { va: hex("va "), rkey: RKey(hex("rkey ") as u32) };
        let (port, length) = (word("TCP      port ").parse().unwrap(), word("length ").parse().unwrap());
        Serve { child, out, port, remote, length, output: text }
    }

    fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
    }

    /// Waits for the process to exit, and returns its status, standard output and standard error.
    fn end(&mut self) -> (Option<i32>, String, String) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < TIMEOUT, "serve does not exit");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A peer of `urxe serve`, written with the crate's verbs API.
struct Client {
    mr: Mr,
    endpoint: TestEndpoint,
}

impl Client {
    fn connect(serve: &Serve, ip: Ipv4Addr) -> Client {
        Client::connect_with(serve, ip, &ContextOptions::default())
    }

    fn connect_with(serve: &Serve, ip: Ipv4Addr, options: &ContextOptions) -> Client {
        let link = UdpLink::bind(ip.into(), &UdpOptions::default()).unwrap();
        let endpoint = TestEndpoint::new(Context::open(Box::new(link), options).unwrap()).unwrap();
        let mr = endpoint.pd.reg_mr(1 << 16, Access::ALL).unwrap();
        let mut tcp = TcpStream::connect(("127.0.0.1", serve.port)).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let remote = oob_handshake::client(&mut tcp, &[endpoint.qp.endpoint()], 1).unwrap();
        let options = ConnectOptions::default().mtu(Mtu::Mtu1024);
        endpoint.qp.connect(&remote[0], &options).unwrap();
        Client { mr, endpoint }
    }

    fn run(&self, wr: &SendWr<'_>) -> Completion {
        self.endpoint.qp.post_send(wr).unwrap();
        self.endpoint.cq.wait(TIMEOUT).unwrap()
    }

    /// Sends a message whose contents depend on `seed`, and checks its echo.
    fn echo(&self, len: usize, imm: Option<u32>, seed: u8) {
        let data: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
        self.mr.write(0, &data).unwrap();
        let into = [self.mr.sge(32 << 10..64 << 10)];
        self.endpoint.qp.post_recv(&RecvWr::new(1, &into)).unwrap();
        let from = [self.mr.sge(0..len)];
        let wr = match imm {
            Some(imm) => SendWr::send_imm(2, &from, imm),
            None => SendWr::send(2, &from),
        };
        self.endpoint.qp.post_send(&wr).unwrap();
        for _ in 0..2 {
            let wc = self.endpoint.cq.wait(TIMEOUT).unwrap();
            if wc.opcode == WcOpcode::Recv {
                assert_eq!((wc.byte_len as usize, wc.imm), (len, imm));
            }
        }
        let mut back = vec![0; len];
        self.mr.read(32 << 10, &mut back).unwrap();
        assert_eq!(back, data);
    }
}

#[test]
fn serve_handles_every_operation_and_prints_summary_on_sigint() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("serve.pcapng");
    let mut serve = Serve::start(&[
        "serve",
        "--link",
        "udp:127.92.1.1",
        "--port",
        "0",
        "--size",
        "64K",
        "--fault",
        // The interval is longer than any message: otherwise the same packet could be lost at every try.
        "drop=every:29",
        "--capture",
        capture.to_str().unwrap(),
    ]);
    assert_eq!(serve.length, 64 << 10);
    let clients = [12, 13].map(|n| Client::connect(&serve, Ipv4Addr::new(127, 92, 1, n)));
    for round in 0..20 {
        for client in &clients {
            client.echo(1 + round * 1000, (round % 2 == 1).then_some(round as u32), round as u8);
        }
    }
    let [client, _] = &clients;
    let at = |offset| RemoteAddr { va: serve.remote.va + offset, rkey: serve.remote.rkey };
    let data: Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
    client.mr.write(0, &data).unwrap();
    client.run(&SendWr::write(3, &[client.mr.sge(0..20_000)], at(100)));
    client.run(&SendWr::write_imm(4, &[client.mr.sge(0..8)], at(0), 7));
    client.run(&SendWr::read(5, &[client.mr.sge(30_000..50_000)], at(100)));
    assert_eq!(client.mr.to_vec()[30_000..50_000], data);
    client.mr.write(0, &[0; 8]).unwrap();
    client.run(&SendWr::write(6, &[client.mr.sge(0..8)], at(0)));
    client.run(&SendWr::fetch_add(7, &[client.mr.sge(8..16)], at(0), 5));
    client.run(&SendWr::compare_swap(8, &[client.mr.sge(8..16)], at(0), 5, 9));
    assert_eq!(client.mr.buffer().load_u64(8), Ok(5));
    serve.interrupt();
    let (status, out, err) = serve.end();
    assert_eq!((status, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("2 peers; 40 SENDs echoed, 380040 bytes; 1 WRITEs with immediate"), "{out}");
    assert!(out.contains("rcvd_pkts") && out.contains("faults tx: "), "{out}");
    assert!(
        out.contains("fault drop=every:29: matched ") && out.contains("packets retransmitted: "),
        "{out}"
    );
    assert!(PcapNgReader::new(&std::fs::read(&capture).unwrap()[..]).is_ok());
}

/// Reports whether all threads of a process are stopped (SIGSTOP).
fn has_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // A thread that has ended in the meantime has no file.
    threads
        .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default())
        .all(|stat| {
            // The state follows the name in parentheses.
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
}

/// Stops the peer for longer than all retries take (8 timeouts of 67 ms), and checks that the connection
/// fails unless a longer minimum ACK timeout is configured.
#[test]
fn connection_to_a_stopped_peer_fails_unless_min_ack_timeout_is_longer() {
    for (address, min_ack_timeout) in [(18, None), (19, Some(Duration::from_secs(60)))] {
        let mut args = vec!["serve", "--link", "udp:127.92.1.4", "--port", "0"];
        // The peer's response must arrive after the stop too.
        args.extend(min_ack_timeout.iter().flat_map(|_| ["--min-ack-timeout", "60"]));
        let serve = Serve::start(&args);
        let options = ContextOptions::default().min_ack_timeout(min_ack_timeout);
        let client = Client::connect_with(&serve, Ipv4Addr::new(127, 92, 1, address), &options);
        client.echo(100, None, 1);
        let signal = |signal| kill(Pid::from_raw(serve.child.id() as i32), signal).unwrap();
        signal(Signal::SIGSTOP);
        // The signal may not have been delivered yet when the call returns.
        while !has_stopped(serve.child.id()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        client.endpoint.qp.post_send(&SendWr::write(1, &[client.mr.sge(0..100)], serve.remote)).unwrap();
        let stopped = client.endpoint.cq.wait_any(match min_ack_timeout {
            None => Duration::from_secs(60),
            Some(_) => Duration::from_secs(5),
        });
        signal(Signal::SIGCONT);
        match min_ack_timeout {
            None => assert_eq!(stopped.unwrap().status, WcStatus::RetryExcErr),
            Some(_) => {
                assert!(matches!(stopped, Err(WaitError::TimedOut(_))), "{stopped:?}");
                assert_eq!(
                    client.endpoint.cq.wait(Duration::from_secs(60)).unwrap().status,
                    WcStatus::Success
                );
                client.echo(100, None, 2);
            }
        }
    }
}

#[test]
fn serve_json_is_the_only_output_and_counts_what_peers_did() {
    let args = ["serve", "--json", "--link", "udp:127.92.1.20", "--port", "0", "--one-shot"];
    let mut serve = Serve::start(&args);
    let client = Client::connect(&serve, Ipv4Addr::new(127, 92, 1, 21));
    client.echo(3000, None, 1);
    let (status, out, _) = serve.end();
    assert_eq!(status, Some(0), "{out}");
    let summary: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&summary["peers"], &summary["echoed_sends"]), (&1.into(), &1.into()), "{summary}");
    assert_eq!(summary["echoed_bytes"], 3000, "{summary}");
    assert!(summary["counters"]["rcvd_pkts"].as_u64() >= Some(4), "{summary}");
}

#[test]
fn one_shot_serve_exits_once_its_first_peer_is_idle() {
    let mut serve = Serve::start(&["serve", "--link", "udp:127.92.1.2", "--port", "0", "--one-shot"]);
    let client = Client::connect(&serve, Ipv4Addr::new(127, 92, 1, 14));
    client.echo(5000, None, 1);
    let (status, out, err) = serve.end();
    assert_eq!((status, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("1 peers; 1 SENDs echoed, 5000 bytes"), "{out}");
}

#[test]
fn serve_at_its_peer_limit_evicts_the_peer_idle_longest() {
    let mut serve = Serve::start(&["serve", "--link", "udp:127.92.1.3", "--port", "0", "--qps", "2"]);
    let clients = [15, 16, 17].map(|n| Client::connect(&serve, Ipv4Addr::new(127, 92, 1, n)));
    clients[2].echo(10, None, 0);
    clients[1].echo(10, None, 0);
    serve.interrupt();
    let (status, out, _) = serve.end();
    assert_eq!(status, Some(0));
    assert!(out.contains("peer 1 evicted by a new peer") && out.contains("3 peers; 2 SENDs"), "{out}");
}
