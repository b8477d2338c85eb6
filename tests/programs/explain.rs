//! Tests of `urxe run --explain`: an unmodified program (ibverbs-utils) whose work requests fail gets a
//! report on standard error.

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
