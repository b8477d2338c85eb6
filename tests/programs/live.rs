//! `urxe ps` and `urxe top` on programs that hang, and the fault counts of programs that are killed.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use urxe_test_support::programs::{Running, addresses, port, text, urxe, wait_for_listener};

/// Time within which the state must be as expected.
const LIMIT: Duration = Duration::from_secs(120);

/// `ib_send_bw -c UC` of which one packet is lost, so that the server waits for ever for a message.
struct Hung {
    server: Running,
    client: Running,
}

impl Hung {
    fn start() -> Hung {
        let ([address, other], port) = (addresses(), port().to_string());
        let program = ["--", "ib_send_bw", "-c", "UC", "-n", "50", "-s", "8192", "-p", &port];
        let run = |address: &str, options: &[&str], peer: &[&str]| {
            Running::new(urxe(&[&["run", "--ip", address], options, &program, peer].concat()))
        };
        let server = run(&address, &[], &[]);
        wait_for_listener(&port);
        // Packet 12 belongs to the second message, which has packets 9 to 16.
        let client = run(&other, &["--fault", "drop=12"], &["127.0.0.1"]);
        Hung { server, client }
    }
}

/// Returns what the queue pairs of a process wait for.
fn reasons(pid: u32) -> Vec<String> {
    let out =
        urxe(&["top", "--once", "--json", "--interval", "0.1", "--pid", &pid.to_string()]).output().unwrap();
    let document: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out)));
    let qps = document["nics"][0]["qps"].as_array().cloned().unwrap_or_default();
    qps.iter().map(|qp| qp["why"].as_str().unwrap_or_default().to_owned()).collect()
}

fn wait_for_reason(pid: u32, expected: &[&str]) {
    let begin = Instant::now();
    loop {
        let reasons = reasons(pid);
        if reasons.iter().any(|reason| expected.iter().all(|part| reason.contains(part))) {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "{reasons:?} lacks {expected:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn top_shows_that_a_hung_ib_send_bw_waits_for_a_lost_packet() {
    let Hung { server, client } = Hung::start();
    let lost =
        "1 packet of the peer was lost; the transport does not resend, so its message ended incomplete";
    wait_for_reason(server.id(), &["UC: ", lost, "waits with 1 receive posted", "last packet "]);
    wait_for_reason(client.id(), &["UC: all sent and complete, but 1 of the packets did not reach the peer"]);
}

#[test]
fn fault_counts_of_a_killed_program_are_printed() {
    for signal in ["-TERM", "-KILL"] {
        let Hung { server, client } = Hung::start();
        let pid = client.id();
        wait_for_reason(server.id(), &["1 packet of the peer was lost"]);
        let status = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
        assert!(status.success());
        let printed = text(&client.finish(LIMIT));
        let title = format!("process {pid} ended by a signal or _exit; its faults:");
        assert!(printed.contains(&title) && printed.contains("fault drop=12: matched "), "{printed}");
        assert!(printed.contains(" packets, affected 1\n"), "{printed}");
    }
}

#[test]
fn program_without_live_views_is_not_shown() {
    let [address, _] = addresses();
    let ports = port().to_string();
    let program = ["run", "--no-live", "--ip", &address, "--", "ib_send_bw", "-p", &ports];
    let server = Running::new(urxe(&program));
    wait_for_listener(&ports);
    assert_eq!(reasons(server.id()), Vec::<String>::new());
}
