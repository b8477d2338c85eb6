//! Tests of `urxe decode` as users run it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::{stdout, urxe};

fn pcap(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../pcaps").join(name);
    path.to_str().unwrap().to_owned()
}

fn decode(args: &[&str]) -> Output {
    urxe(&[&["decode"], args].concat()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn exit_status_says_whether_something_is_wrong() {
    let clean = decode(&[&pcap("cm_rping.pcap")]);
    assert_eq!(clean.status.code(), Some(0));
    assert!(stdout(&clean).contains("nothing wrong found"), "{}", stdout(&clean));
    let lossy = decode(&[&pcap("loss_send_middle.pcap")]);
    assert_eq!((lossy.status.code(), &stderr(&lossy)[..]), (Some(1), "urxe: 1 problem\n"));
    let missing = decode(&["/nonexistent.pcap"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stdout(&missing).contains("cannot read /nonexistent.pcap"), "{}", stdout(&missing));
    assert_eq!(decode(&[]).status.code(), Some(2));
}

#[test]
fn the_cause_is_in_the_first_five_lines() {
    for (file, cause) in [
        ("nak_remote_access_write.pcap", "10.77.0.2 refuses WRITE Only of 100 bytes at 0x1000 with key"),
        ("broken/mtu-black-hole.client.pcapng", "packets above 1400 bytes of payload do not pass"),
        ("broken/peer-silent-cm.pcapng", "10.77.0.2 never answered to its request for a connection: 16 REQs"),
    ] {
        let text = stdout(&decode(&[&pcap(file)]));
        assert!(text.lines().take(5).any(|line| line.contains(cause)), "{text}");
    }
}

#[test]
fn ladder_of_one_capture_marks_the_packets_of_the_finding() {
    let output = decode(&["--why", &pcap("broken/ack-lost.server.pcapng")]);
    let text = stdout(&output);
    let marked: Vec<&str> = text.lines().filter(|line| line.contains('*')).collect();
    let [ack, resend] = &marked[..] else { panic!("{text}") };
    assert!(ack.contains("6 *◀──") && ack.ends_with("ACK +2"), "{ack}");
    assert!(resend.contains("7 *↻ SEND +2, 4.19 ms after the first ──") && resend.ends_with("▶"), "{resend}");
}

#[test]
fn ladder_of_both_ends_shows_what_was_lost_whichever_capture_comes_first() {
    let ends = [pcap("broken/ack-lost.client.pcapng"), pcap("broken/ack-lost.server.pcapng")];
    let text = stdout(&decode(&["--why", &ends[0], &ends[1]]));
    // The clocks of the two differ by 1.7 s.
    for line in [
        "requests   client sent       6   server received       6   lost 0",
        "responses  server sent       6   client received       5   lost 1: +2 at 125 µs",
        "clocks     that of server is 1.70 s ahead",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let lost: Vec<&str> = text.lines().filter(|line| line.contains("✗ lost")).collect();
    assert!(lost.len() == 1 && lost[0].contains("-       6 *") && lost[0].ends_with("ACK +2"), "{text}");
    let ladder = |text: &str| {
        text.lines().skip_while(|line| !line.contains("requests ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ladder(&text), ladder(&stdout(&decode(&["--why", &ends[1], &ends[0]]))));
}

#[test]
fn capture_of_both_ends_in_one_file_counts_each_packet_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fabric.pcapng");
    let path = path.to_str().unwrap();
    // All packets that are sent again were dropped: the timers are longer than a loaded machine delays a packet.
    let perf = ["perf", "write", "--link", "fabric", "--size", "65536", "--mtu", "1024", "-n", "20"];
    let perf =
        urxe(&[&perf[..], &["--ack-timeout", "20", "--fault", "drop=100", "--capture", path]].concat())
            .output();
    let printed = stdout(&perf.unwrap());
    let resent = printed.split("packets retransmitted: ").nth(1).unwrap().split(' ').next().unwrap();
    let output = decode(&["--json", path]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["queue_pairs"][0]["resent"][0].to_string(), resent, "{report:#}");
    let problems =
        report["findings"].as_array().unwrap().iter().filter(|finding| finding["severity"] != "note");
    assert!(problems.map(|finding| &finding["diagnosis"]).eq(["request-lost"]), "{report:#}");
    let text = stdout(&decode(&["--why", path]));
    let lost: Vec<&str> = text.lines().filter(|line| line.contains("✗ lost")).collect();
    assert!(lost.len() == 1 && lost[0].contains("WRITE +99 "), "{text}");
    assert!(text.contains("└ client: fault drop=100, packet 100"), "{text}");
}

#[test]
fn ladder_is_shown_around_the_finding_with_the_given_number() {
    let file = pcap("broken/request-lost-twice.client.pcap");
    let text = stdout(&decode(&["--around", "1", &file]));
    assert!(text.contains("↻ "), "{text}");
    let none = decode(&["--around", "99", &file]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("--around 99: findings have numbers from 1 to "), "{}", stderr(&none));
}

#[test]
fn payload_of_a_message_is_the_same_from_each_of_its_packets() {
    let file = pcap("loss_write_middle.pcap");
    let report = |packet: &str| stdout(&decode(&["--bytes", packet, &file]));
    let first = report("1");
    assert!(first.starts_with("WRITE from "), "{first}");
    assert_eq!(first, report("4"));
    let bytes: usize = first.lines().skip(1).map(|line| line[10..57].split_whitespace().count()).sum();
    assert_eq!(bytes, 6000, "{first}");
    let none = decode(&["--bytes", "99", &file]);
    assert!(stderr(&none).contains("so none with number 99"), "{}", stderr(&none));
}

#[test]
fn findings_of_a_growing_capture_are_printed_while_it_grows() {
    let bytes = std::fs::read(pcap("loss_send_middle.pcap")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("growing.pcap");
    let mut file = std::fs::File::create(&path).unwrap();
    // Ends within a packet.
    file.write_all(&bytes[..bytes.len() / 3]).unwrap();
    let mut child = urxe(&["decode", "--live", path.to_str().unwrap()]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    file.write_all(&bytes[bytes.len() / 3..]).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("problem: QP "));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert!(lines.any(|line| line.starts_with("[1] problem: QP ")));
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn standard_input_is_read_and_json_has_the_packets() {
    let bytes = std::fs::read(pcap("loss_ack.pcap")).unwrap();
    let mut child = urxe(&["decode", "--json", "-"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let report: serde_json::Value =
        serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(report["findings"][0]["diagnosis"], "ack-lost");
    assert_eq!(report["findings"][0]["packets"][0]["packet"], 4);
    assert_eq!(report["captures"][0]["icrc_right"], report["captures"][0]["roce"]);
    let why = decode(&["--why", "-"]);
    assert!(stderr(&why).contains("--why reads captures twice"), "{}", stderr(&why));
}

#[test]
fn one_queue_pair_is_selected_by_its_number() {
    let all = stdout(&decode(&[&pcap("cm_rping.pcap")]));
    assert!(all.contains("0x4b 10.77.0.1"), "{all}");
    assert!(stdout(&decode(&["--qp", "0x4b", &pcap("cm_rping.pcap")])).contains("0x4b 10.77.0.1"));
    let none = decode(&["--qp", "5", &pcap("cm_rping.pcap")]);
    assert_eq!(stderr(&none), "urxe: no packet of queue pair 0x5 is in the captures\n");
}

#[test]
fn captures_that_are_rotated_have_all_packets_and_each_file_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let perf = [
        "perf",
        "write",
        "--link",
        "fabric",
        "--size",
        "65536",
        "-n",
        "100",
        "--capture",
        &path("out.pcapng"),
    ];
    let perf = urxe(&[&perf[..], &["--capture-rotate", "size=2M,files=100"]].concat()).output().unwrap();
    assert!(perf.status.success(), "{}", stderr(&perf));
    let mut names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(names.len() > 3 && names.contains(&path("out-00001.pcapng").into()), "{names:?}");
    let names: Vec<&str> = names.iter().map(|name| name.to_str().unwrap()).collect();
    let report: serde_json::Value =
        serde_json::from_slice(&decode(&[&["--json"], &names[..]].concat()).stdout).unwrap();
    let captures = report["captures"].as_array().unwrap();
    assert!(captures.iter().all(|capture| capture["error"].is_null()), "{captures:?}");
    let roce: u64 = captures.iter().map(|capture| capture["roce"].as_u64().unwrap()).sum();
    // Each WRITE of 65536 bytes is 16 packets, which both ends capture, and there are acknowledgements.
    assert!(roce > 2 * 16 * 100, "{roce}");
}
