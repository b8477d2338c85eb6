//! Tests of `urxe run --explain`: unmodified programs (ibverbs-utils, perftest, rdmacm-utils) whose work requests
//! fail, or which refuse requests, get reports on standard error.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use urxe_test_support::programs::{Running, addresses, port, text, urxe, wait_for_listener};

/// Limit for a step that takes less than a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Limit for a client to fail, which takes a second on an idle machine.
const CLIENT_LIMIT: Duration = Duration::from_secs(30);

/// Runs `ibv_rc_pingpong` with more iterations than it completes, kills the server once packets have been
/// exchanged, and returns the output of the client.
///
/// Repeats this if the server was killed after it had acknowledged a SEND and before its own: the client then
/// has no work request that could fail.
fn client_of_killed_server(options: &[&str], client_options: &[&str]) -> String {
    let mut outputs = (0..5).filter_map(|_| try_client_of_killed_server(options, client_options));
    outputs.next().expect("the client fails when its server is killed")
}

/// Returns `None` if the client has not ended within [`CLIENT_LIMIT`].
fn try_client_of_killed_server(options: &[&str], client_options: &[&str]) -> Option<String> {
    let (directory, [server, client], port) = (tempfile::tempdir().unwrap(), addresses(), port().to_string());
    let capture = directory.path().join("client.pcapng");
    let pingpong = ["ibv_rc_pingpong", "-g", "0", "-n", "100000000", "-p", &port];
    let serving = Running::new(urxe(&[&["run", "--ip", &server, "--"], &pingpong[..]].concat()));
    wait_for_listener(&port);
    let run = ["run", "--ip", &client, "--capture", capture.to_str().unwrap()];
    let running =
        Running::new(urxe(&[&run[..], options, &["--"], &pingpong, client_options, &["127.0.0.1"]].concat()));
    let deadline = Instant::now() + LIMIT;
    while capture.metadata().map_or(0, |file| file.len()) < 8192 {
        assert!(Instant::now() < deadline, "no packets were exchanged");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Kills the server.
    drop(serving);
    let out = running.finish(CLIENT_LIMIT);
    assert!(!out.status.success());
    if out.status.signal() == Some(libc::SIGKILL) {
        return None;
    }
    let printed = text(&out);
    assert!(printed.contains("Failed status transport retry counter exceeded (12)"), "{printed}");
    Some(printed)
}

#[test]
fn program_whose_peer_is_killed_gets_one_report_of_the_failed_work_request() {
    // `-t` makes the program use the extended completion queue.
    for client_options in [&[][..], &["-t"]] {
        let printed = client_of_killed_server(&["--explain"], client_options);
        let found: Vec<_> = printed.lines().filter(|line| line.starts_with("urxe: ")).collect();
        let [title] = found[..] else { panic!("{printed}") };
        assert!(title.starts_with("urxe: SEND of QP 0x"), "{printed}");
        assert!(title.ends_with(" failed: transport retry counter exceeded"), "{printed}");
        for part in [
            "  work request: wr_id 0x2, 4096 bytes, PSN ",
            " at 127.",
            "  cause: the peer did not respond before the retries were used up",
            "  transmission 8: sent ",
            "  last ACK: PSN ",
            "  silence: neither an ACK nor a NAK for ",
            "  retries: 7 of 7 (retry_cnt) used, RNR retries unlimited (rnr_retry 7), ACK timeout ",
        ] {
            assert!(printed.contains(part), "{part:?} is not in:\n{printed}");
        }
    }
}

#[test]
fn program_gets_no_report_without_the_option() {
    let printed = client_of_killed_server(&[], &[]);
    assert!(!printed.contains("cause: "), "{printed}");
}

#[test]
fn report_names_the_fault_rule_that_lost_the_packets() {
    let ([server, client], port) = (addresses(), port().to_string());
    let pingpong = ["ibv_rc_pingpong", "-g", "0", "-n", "1000", "-p", &port];
    let _serving = Running::new(urxe(&[&["run", "--ip", &server, "--"], &pingpong[..]].concat()));
    wait_for_listener(&port);
    // Only requests: if the ACK after the client's last acknowledged SEND were lost, the server would fail,
    // and the client would have no work request left that could fail.
    let run = ["run", "--ip", &client, "--explain", "--fault", "drop=100..,opcode=send", "--"];
    let out = Running::new(urxe(&[&run[..], &pingpong, &["127.0.0.1"]].concat())).finish(LIMIT);
    let printed = text(&out);
    assert!(
        !out.status.success() && printed.contains("  fault rule 'drop=100..,opcode=send' dropped "),
        "{}: {printed}",
        out.status
    );
}

/// Runs `urxe run` with `arguments`, and returns what it prints to standard error once `is_complete`.
fn standard_error(
    arguments: &[&str],
    meanwhile: impl FnOnce(),
    is_complete: impl Fn(&str) -> bool,
) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stderr");
    let mut command = urxe(&[&["run"], arguments].concat());
    command.stderr(std::fs::File::create(&file).unwrap());
    let _running = Running::new(command);
    meanwhile();
    let deadline = Instant::now() + LIMIT;
    loop {
        let printed = std::fs::read_to_string(&file).unwrap();
        if is_complete(&printed) {
            return printed;
        }
        assert!(Instant::now() < deadline, "{printed}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn server_without_receives_gets_a_report_of_the_request_that_it_refused() {
    let ([server, client], port) = (addresses(), port().to_string());
    let write = ["ib_write_bw", "-F", "-s", "64", "-n", "1000", "-p", &port];
    let mut running = None;
    let start = || {
        wait_for_listener(&port);
        let wrong_key = "corrupt=100,at=rkey,xor=0x10,icrc=repair,opcode=write";
        let run = ["run", "--ip", &client, "--fault", wrong_key, "--"];
        running = Some(Running::new(urxe(&[&run[..], &write, &["127.0.0.1"]].concat())));
    };
    let serve = [&["--ip", &server, "--explain", "--"], &write[..]].concat();
    let printed = standard_error(&serve, start, |printed| printed.contains("  remedy: "));
    let lines: Vec<&str> = printed.lines().take(5).collect();
    assert!(lines[0].starts_with("urxe: QP 0x") && lines[0].contains(" refused a request"), "{printed}");
    let cause = lines.iter().find(|line| line.starts_with("  cause: RC RDMA WRITE Only with PSN ")).unwrap();
    for part in [" does not refer to a region", "differs only in the low byte", "REMOTE_WRITE"] {
        assert!(cause.contains(part), "{part:?} is not in:\n{printed}");
    }
}

#[test]
fn path_that_loses_large_packets_is_named_in_the_first_five_lines() {
    let ([server, client], port) = (addresses(), port().to_string());
    // All sizes from 2 bytes on, of which those beyond 1024 bytes have larger packets.
    let send = ["ib_send_bw", "-F", "-a", "-n", "10", "-m", "4096", "-p", &port];
    let _serving = Running::new(urxe(&[&["run", "--ip", &server, "--"], &send[..]].concat()));
    wait_for_listener(&port);
    let run = ["--ip", &client, "--explain", "--fault", "drop=1..,payload=1025..", "--"];
    let client = [&run[..], &send, &["127.0.0.1"]].concat();
    let printed = standard_error(&client, || {}, |printed| printed.contains("  remedy: "));
    let report = printed.lines().skip_while(|line| !line.contains(" failed: transport retry counter"));
    let path = report.take(5).find(|line| line.starts_with("  path MTU: 4096 bytes; ")).unwrap();
    let text = "has 2048 bytes of payload, of which size none was ever acknowledged, but smaller ones up to 1024 bytes were";
    assert!(path.contains(text) && path.contains("MTU black hole"), "{printed}");
}

#[test]
fn stopped_peer_is_named() {
    let ([server, client], port) = (addresses(), port().to_string());
    // The client always has a WRITE in flight.
    let write = ["ib_write_bw", "-F", "-s", "64", "-D", "60", "-p", &port];
    let serving = Running::new(urxe(&[&["run", "--ip", &server, "--"], &write[..]].concat()));
    wait_for_listener(&port);
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("client.pcapng");
    let stop = || {
        let deadline = Instant::now() + LIMIT;
        while capture.metadata().map_or(0, |file| file.len()) < 8192 {
            assert!(Instant::now() < deadline, "no packets were exchanged");
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = nix::unistd::Pid::from_raw(serving.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    };
    let run = ["--ip", &client, "--explain", "--capture", capture.to_str().unwrap(), "--"];
    let client = [&run[..], &write, &["127.0.0.1"]].concat();
    let printed = standard_error(&client, stop, |printed| printed.contains("  remedy: "));
    let line = format!("  peer's process: process {} (ib_write_bw) is stopped", serving.id());
    assert!(printed.lines().any(|found| found.starts_with(&line)), "{printed}");
}

#[test]
fn connection_request_without_an_answer_is_reported_in_one_line() {
    let [nobody, client] = addresses();
    let rping = ["--ip", &client, "--explain", "--", "rping", "-c", "-C", "1", "-a", &nobody];
    let printed = standard_error(&rping, || {}, |printed| printed.contains('\n'));
    let text = format!(
        "urxe: connection with {nobody}:7174: two requests (REQ) were not answered, 14 more may follow: "
    );
    assert!(printed.starts_with(&text), "{printed}");
    assert!(printed.contains("nothing listens on UDP port 4791"), "{printed}");
}

#[test]
fn rejected_connection_request_is_explained_in_words() {
    let [server, client] = addresses();
    let serve = urxe(&["run", "--ip", &server, "--", "rping", "-s", "-a", &server, "-p", "9000"]);
    let _serving = Running::new(serve);
    urxe_test_support::programs::wait_for_service(&[0x0106], 9000);
    let rping = ["--ip", &client, "--explain", "--", "rping", "-c", "-C", "1", "-a", &server, "-p", "9001"];
    let printed = standard_error(&rping, || {}, |printed| printed.contains("connection with"));
    let text = format!(
        "connection with {server}:9001: rejected by the peer: invalid service ID (REJ 8): no program"
    );
    assert!(printed.contains(&text), "{printed}");
}
