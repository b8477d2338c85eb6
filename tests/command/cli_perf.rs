//! Tests of `urxe perf` and `urxe pingpong` between two processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;
use urxe_test_support::tcp_port;

fn urxe(args: &str) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_urxe"));
    c.args(args.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// Returns whether a command succeeded, and its standard output and standard error.
fn result(out: &Output) -> (bool, String) {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.success(), text(&out.stdout) + &text(&out.stderr))
}

fn run(args: &str) -> (bool, String) {
    result(&urxe(args).output().unwrap())
}

/// Starts a server, waits until it listens, and returns it and its standard error.
fn server(args: &str) -> (Child, BufReader<ChildStderr>) {
    let mut child = urxe(args).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for a client"), "{line}");
    (child, stderr)
}

/// Runs a server and a client on two loopback addresses that no other test uses, and returns the client's
/// output.
fn pair(net: u8, serve: &str, client: &str) -> String {
    pair_on([&format!("127.0.{net}.1"), &format!("127.0.{net}.2")], serve, client)
}

/// Runs a server and a client on the given addresses, and returns the client's output.
fn pair_on([server_ip, client_ip]: [&str; 2], serve: &str, client: &str) -> String {
    let port = tcp_port::unused();
    let (mut server, mut stderr) =
        server(&format!("{serve} --link udp:{server_ip} -p {port} --server-bind 127.0.0.1"));
    let (ok, text) = run(&format!("{client} --link udp:{client_ip} -p {port} 127.0.0.1"));
    if !ok {
        // The server may still wait for a client.
        server.kill().unwrap();
    }
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let (server_ok, server_text) = result(&server.wait_with_output().unwrap());
    assert!(ok && server_ok, "client: {text}\nserver: {server_text}{rest}");
    text
}

#[test]
fn perf_runs_every_operation_between_two_processes() {
    for (verb, sizes) in [("send", "1,64K"), ("write", "1,64K"), ("read", "1,64K"), ("atomic", "8")] {
        let client = format!("perf {verb} --bw -s {sizes} -n 200 -q 2 --json");
        let out = pair(71, "perf", &client);
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let results = json["results"].as_array().unwrap();
        assert_eq!(results.len(), sizes.split(',').count(), "{out}");
        assert!(results.iter().all(|r| r["messages"] == 400 && r["gbit_s"].as_f64() > Some(0.0)), "{out}");
        let out = pair(71, "perf", &format!("perf {verb} --lat -s {sizes} -n 200 --json"));
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(json["results"][0]["latency_us"]["p50"].as_f64() > Some(0.0), "{out}");
    }
}

/// Returns what a JSON document says about rings in shared memory.
fn shared_memory(json: &str) -> Option<bool> {
    let json: serde_json::Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"));
    json.get("shared_memory").map(|value| value.as_bool().unwrap())
}

#[test]
fn perf_and_pingpong_take_rings_between_two_addresses_if_both_ends_permit_it() {
    let cases = [
        ("require", "require", Some(true)),
        ("auto", "require", Some(true)),
        ("auto", "auto", Some(true)),
        ("off", "auto", Some(false)),
        ("auto", "off", None),
        ("off", "off", None),
    ];
    for (n, (server, client, expected)) in cases.into_iter().enumerate() {
        let ips = [2 * n, 2 * n + 1].map(|n| format!("127.0.79.{}", n + 1));
        let option = |when| format!("--shared-memory {when}");
        for command in ["perf write -s 64K -n 200", "perf read --lat -n 50", "pingpong -n 100 -c"] {
            let serve = if command.starts_with("perf") { "perf" } else { command };
            let (serve, client) =
                (format!("{serve} {}", option(server)), format!("{command} {}", option(client)));
            let out = pair_on([&ips[0], &ips[1]], &serve, &format!("{client} --json"));
            assert_eq!(shared_memory(&out), expected, "{serve}, {client}: {out}");
        }
    }
}

#[test]
fn perf_and_pingpong_take_rings_on_one_address_and_say_so() {
    let ips = ["127.0.80.1"; 2];
    let all = "--shared-memory require";
    let commands = ["send", "write", "read", "atomic"].map(|verb| format!("perf {verb} -n 200"));
    let pingpongs =
        ["rc", "uc", "ud", "srq"].map(|service| format!("pingpong -n 100 --service {service} -s 1000"));
    for command in commands.iter().chain(&pingpongs) {
        let serve = if command.starts_with("perf") { "perf" } else { command };
        let out = pair_on(ips, &format!("{serve} {all}"), &format!("{command} {all}"));
        assert!(out.lines().any(|line| line == "packets took rings in shared memory"), "{command}: {out}");
    }
}

#[test]
fn perf_whose_peer_has_no_rings_fails_if_they_are_required() {
    let port = tcp_port::unused();
    let (mut server, _stderr) =
        server(&format!("perf --link udp:127.0.81.1 -p {port} --server-bind 127.0.0.1"));
    let client = "perf write --link udp:127.0.81.2 --ack-timeout 8 --shared-memory require";
    let (ok, text) = run(&format!("{client} -p {port} 127.0.0.1"));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(!ok && text.contains("link_tx_no_ring="), "{text}");
}

#[test]
fn perf_waits_until_a_broker_that_ends_has_released_the_port() {
    let socket = UdpSocket::bind(("127.0.81.3", 4791)).unwrap();
    let client = format!("perf write --link udp:127.0.81.3 -p {} 127.0.0.1", tcp_port::unused());
    let child = urxe(&client).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(socket);
    let (ok, text) = result(&child.wait_with_output().unwrap());
    assert!(!ok && text.contains("start the server there first"), "{text}");
}

#[test]
fn perf_runs_both_ends_on_the_fabric() {
    for verb in ["send", "write", "read", "atomic"] {
        for measure in ["--bw", "--lat"] {
            let (ok, text) = run(&format!("perf {verb} {measure} --link fabric -n 300"));
            assert!(ok && text.lines().count() == 3, "{text}");
        }
        let (ok, text) = run(&format!("perf {verb} --link fabric -D 0.2"));
        assert!(ok, "{text}");
    }
}

#[test]
fn perf_whose_output_is_closed_by_its_reader_ends_without_an_error() {
    for args in ["perf write --link fabric -n 10", "perf read --lat --link fabric -n 10"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = urxe(args).stdout(writer).output().unwrap();
        assert_eq!((out.status.code(), &*String::from_utf8_lossy(&out.stderr)), (Some(0), ""), "{args}");
    }
}

#[test]
fn perf_server_succeeds_when_the_output_of_its_client_is_closed() {
    for after_heading in [false, true] {
        let port = tcp_port::unused();
        let serve = format!("perf --link udp:127.0.82.3 -p {port} --server-bind 127.0.0.1");
        let (server, _stderr) = server(&serve);
        let (reader, writer) = std::io::pipe().unwrap();
        let reader = after_heading.then_some(reader);
        let args = format!("perf write 127.0.0.1 --link udp:127.0.82.4 -p {port} -s all -n 100");
        let client = urxe(&args).stdout(writer).spawn().unwrap();
        if let Some(reader) = reader {
            // The two lines of the heading.
            let mut lines = BufReader::with_capacity(1, reader).lines();
            (0..2).for_each(|_| drop(lines.next().unwrap().unwrap()));
        }
        let client = client.wait_with_output().unwrap();
        assert!(client.status.success(), "{}", result(&client).1);
        let server = server.wait_with_output().unwrap();
        assert!(server.status.success(), "{}", result(&server).1);
    }
}

#[test]
fn perf_that_fails_while_its_output_is_closed_reports_the_failure() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let args = format!("perf write 127.0.0.1 --link udp:127.0.82.2 -p {port} --fault drop=every:1000000");
    let client = urxe(&args).stdout(writer).spawn().unwrap();
    let (mut stream, _) = server.accept().unwrap();
    stream.write_all(b"nonsense\n").unwrap();
    let out = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && text.contains("received \"nonsense"), "{}: {text}", out.status);
}

#[test]
fn losses_on_the_wire_do_not_corrupt_data() {
    for verb in ["send", "write", "read", "atomic"] {
        let (ok, text) = run(&format!("perf {verb} --link fabric -n 200 --seed 3 --fault drop=every:97"));
        assert!(ok, "{text}");
    }
}

#[test]
fn perf_reports_fault_rule_matches_and_retransmissions_in_text_and_json() {
    let command = "perf write --link fabric -s 64K -n 200 --seed 3 --fault drop=3,opcode=write-middle \
        --fault rx:dup=1,opcode=flush";
    let output = urxe(command).output().unwrap();
    let (ok, text) = result(&output);
    assert!(ok && text.contains("fault drop=3,opcode=write-middle: matched "), "{text}");
    let count = |prefix: &str| -> u64 {
        let rest = text.split(prefix).nth(1).unwrap_or_else(|| panic!("{prefix:?} is not in {text}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    // Each NIC has its own counters: 200 messages of 16 packets each, of which the first and the last have
    // other opcodes.
    assert!(count("write-middle: matched ") >= 200 * 14, "{text}");
    assert_eq!(count(&format!("matched {} packets, affected ", count("write-middle: matched "))), 1);
    let causes = count("packets retransmitted: ");
    let of = |cause: &str| count(&format!("packets retransmitted: {causes} ({cause}"));
    assert!(causes >= 1 && text.contains(" after a loss, ") && of("") <= causes, "{text}");
    let warning = "urxe: warning: fault rule 'rx:dup=1,opcode=flush' matched no packet";
    assert!(String::from_utf8_lossy(&output.stderr).contains(warning), "{text}");
    assert_eq!(text.matches("warning").count(), 1, "{text}");

    let output = urxe(&format!("{command} --json")).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules = json["faults"]["rules"].as_array().unwrap();
    assert_eq!((rules.len(), &rules[0]["struck"], &rules[1]["matched"]), (2, &1.into(), &0.into()), "{json}");
    let of =
        |cause: &str| json["faults"]["retransmitted"][cause].as_u64().unwrap_or_else(|| panic!("{json}"));
    assert!(of("after_loss") + of("probes") >= 1, "{json}");
}

#[test]
fn interrupted_perf_prints_results_and_exits_with_130() {
    // The heading is printed when the run has begun.
    let (mut child, mut out) = endless_perf("");
    let mut text = String::new();
    while text.lines().count() < 2 {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    interrupt(&child);
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");

    // JSON output has no heading. A command that is interrupted before its run begins prints nothing: in this
    // case the delay is increased.
    let mut delay = Duration::from_millis(100);
    let results = loop {
        let (mut child, mut out) = endless_perf(" --json");
        wait_until_sigint_is_handled(&child);
        std::thread::sleep(delay);
        interrupt(&child);
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
        if !text.is_empty() {
            break serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
        delay *= 2;
    };
    assert!(results["results"].is_array(), "{results}");

    let port = tcp_port::unused();
    let both = format!("pingpong -n 100000000 -p {port}");
    let (mut server, _stderr) = server(&format!("{both} --link udp:127.0.78.1 --server-bind 127.0.0.1"));
    let mut client = urxe(&format!("{both} --link udp:127.0.78.2 127.0.0.1")).spawn().unwrap();
    let mut out = BufReader::new(client.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("remote address") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    interrupt(&client);
    out.read_to_string(&mut text).unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(130), "{text}");
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(text.contains(" iters in "), "{text}");
}

fn endless_perf(json: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = urxe(&format!("perf write --link fabric -D 3000{json}")).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn wait_until_sigint_is_handled(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let is_handled = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        // Bit 1 is signal 2.
        u64::from_str_radix(&mask, 16).unwrap() & 1 << 1 != 0
    };
    while !is_handled() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn interrupt(child: &Child) {
    use nix::sys::signal::{Signal, kill};
    kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

#[test]
fn path_mtu_mismatch_is_reported_by_both_ends() {
    let port = tcp_port::unused();
    let (server, mut stderr) =
        server(&format!("pingpong --mtu 256 --link udp:127.0.79.1 -p {port} --server-bind 127.0.0.1"));
    let (ok, text) = run(&format!("pingpong --mtu 4096 --link udp:127.0.79.2 -p {port} 127.0.0.1"));
    assert!(!ok && text.contains("(path MTU here: 4096)"), "{text}");
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("(path MTU here: 256)"), "{rest}");
    assert!(!server.wait_with_output().unwrap().status.success());
}

#[test]
fn pingpong_runs_between_two_processes() {
    let out = pair(73, "pingpong -c -n 100", "pingpong -c -n 100");
    assert!(out.contains("819200 bytes in") && out.contains("100 iters in"), "{out}");
    let out = pair(73, "pingpong -n 3 -s 1000000 --mtu 256", "pingpong -n 3 -s 1000000 --mtu 256 -c");
    assert!(out.contains("all 3 received messages are correct"), "{out}");
    let both = "pingpong --service srq -n 500 -q 20 -r 100 -s 3000 -c";
    let out = pair(73, both, both);
    assert_eq!(out.matches("remote address").count(), 20, "{out}");
    // As with the stock program, any of the queue pairs may have sent one message more at the end.
    assert!(out.contains("500 iters in") && out.contains("received messages are correct"), "{out}");
}

#[test]
fn error_for_invalid_options_is_one_line_with_the_reason() {
    let port = tcp_port::unused();
    for (args, expected) in [
        (format!("pingpong --link udp:127.0.74.1 -p {port} 127.0.0.1"), "start the server there first"),
        ("pingpong --link udp:127.0.74.1 -q 2 127.0.0.1".into(), "2 queue pairs require --service srq"),
        (
            "pingpong --service srq -r 16 --link udp:127.0.74.1 127.0.0.1".into(),
            "16 receives are too few for 16 queue pairs",
        ),
        (
            "pingpong --service srq -c -s 1000000000 --link udp:127.0.74.1 127.0.0.1".into(),
            "64 receives of 1000000000 bytes exceed the limit of --check",
        ),
        ("perf --link udp:127.0.74.1 127.0.0.1".into(), "invalid value"),
        ("perf atomic -s 16 --link fabric".into(), "atomic operations require 8 bytes"),
        ("perf write --lat -q 2 --link fabric".into(), "one queue pair"),
        ("perf write --link fabric localhost".into(), "both ends in this process"),
        ("pingpong --link fabric".into(), "connects NICs of one process only"),
        ("serve --link fabric".into(), "connects NICs of one process only"),
        ("perf write -s 0 --link fabric".into(), "invalid message size"),
        (format!("perf --link udp:127.0.74.1 --timeout 0.1 -p {port}"), "no client connected"),
    ] {
        let (ok, text) = run(&args);
        assert!(!ok && text.contains(expected), "{args}: {text}");
    }
}

#[test]
fn wait_for_an_unresponsive_peer_times_out_and_prints_what_was_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for (args, expected) in
        [("pingpong", "sent so far: local address"), ("perf write", "last sent: {\"hello\"")]
    {
        let (ok, text) = run(&format!("{args} --link udp:127.0.75.1 --timeout 0.3 -p {port} 127.0.0.1"));
        assert!(!ok && text.contains(expected), "{args}: {text}");
    }
}

/// Checks that a server on `net` reports clients that send `messages`, and then disconnect, with the given
/// errors, and serves the next client.
fn check_server_after(net: u8, command: &str, client: &str, messages: &[(&str, &str)]) {
    let port = tcp_port::unused();
    let (server, mut stderr) =
        server(&format!("{command} --link udp:127.0.{net}.1 -p {port} --server-bind 127.0.0.1"));
    for (message, expected) in messages {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(message.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let has_client = line.starts_with(&format!("client {}: ", stream.local_addr().unwrap()));
        assert!(has_client && line.contains(expected), "{expected}: {line}");
        assert!(line.ends_with("; waiting for another client\n"), "{line}");
    }
    let (ok, text) = run(&format!("{client} --link udp:127.0.{net}.2 -p {port} 127.0.0.1"));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(ok && server.wait_with_output().unwrap().status.success(), "client: {text}\nserver: {rest}");
}

#[test]
fn perf_server_reports_clients_that_do_not_begin_a_measurement_and_waits_for_the_next() {
    let params = r#"{"verb":"write","measure":"bw","max_size":8,"qps":1,"depth":8,"cq_mod":1}"#;
    let qps = r#"[{"gid":"::ffff:127.0.76.3","qpn":17,"psn":0,"va":0,"rkey":0}]"#;
    let hello = |version: u32| {
        format!(r#"{{"hello":{{"version":{version},"params":{params},"mtu":1024,"qps":{qps}}}}}"#) + "\n"
    };
    let too_long = format!("{}{}\n", hello(5), r#"{"run":{"size":9,"messages":1,"fresh":true}}"#);
    check_server_after(
        76,
        "perf",
        "perf write -n 100",
        &[
            ("", "the peer closed the TCP connection; last sent: nothing"),
            ("GET / HTTP/1.0\r\n\r\n", "not urxe perf of this version: received \"GET /"),
            (&hello(4), "protocol version 4 of the client differs"),
            (&hello(5), "the peer closed the TCP connection; last sent: {\"accepted"),
            (&too_long, "unexpected message from the peer: Run"),
        ],
    );
}

#[test]
fn pingpong_server_reports_clients_that_end_during_the_handshake_and_waits_for_the_next() {
    let address = "0000:000011:000000:00000000000000000000ffff7f004d03\0";
    let unset = format!("0000:000011:000000:{:032}\0", 0);
    check_server_after(
        77,
        "pingpong -c -n 100",
        "pingpong -c -n 100",
        &[
            ("", "the peer closed the connection after 0 of 52 bytes"),
            (&"x".repeat(52), "not hexadecimal"),
            (&unset, "the peer's address is ::, but"),
            (address, "ping-pong \"done\": the peer closed the connection"),
        ],
    );
}
