//! Tests of `urxe decode` as users run it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};

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
fn ladder_shows_the_packets_of_the_finding() {
    let output = decode(&["--why", &pcap("broken/ack-lost.server.pcapng")]);
    let text = stdout(&output);
    let marked: Vec<&str> = text.lines().filter(|line| line.contains('*')).collect();
    let [ack, resend] = &marked[..] else { panic!("{text}") };
    assert!(ack.contains("6 *◀──") && ack.ends_with("ACK +2"), "{ack}");
    assert!(resend.contains("7 *↻ SEND +2 ──") && resend.ends_with("▶"), "{resend}");
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
