//! Tests of `--qlog` and of `urxe decode --qlog` and `--perfetto`, as users run them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use urxe_test_support::tcp_port;

fn urxe(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe"));
    command.args(args.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &str) -> String {
    let output = urxe(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Reads the records of a log.
fn records(path: &Path) -> Vec<Value> {
    let bytes = std::fs::read(path).unwrap();
    bytes.split(|byte| *byte == 0x1e).skip(1).map(|record| serde_json::from_slice(record).unwrap()).collect()
}

/// Returns the events that captures tell too, in order of their queue pairs and names.
fn story(path: &Path) -> Vec<String> {
    // A probe of a quiet connection may find that its packet need not be sent again.
    let timers = ["rdma:probe", "rdma:timeout", "rdma:retransmission"];
    let live_only = ["rdma:congestion_updated", "rdma:qp_state_updated", "rdma:work_request_posted"];
    let mut events: Vec<String> = records(path)
        .iter()
        .skip(1)
        .filter(|event| !live_only.iter().chain(&timers).any(|name| event["name"] == *name))
        // A log has the completions that the program asked for, a capture the acknowledged messages.
        .filter(|event| event["name"] != "rdma:work_request_completed")
        .map(|event| format!("{} {} {}", event["group_id"], event["name"], event["data"]))
        .collect();
    events.sort();
    events
}

#[test]
fn logs_of_perf_over_udp_agree_with_those_of_its_captures() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let files = |end: &str| {
        format!(
            "--qlog {} --capture {}",
            path(&format!("{end}.qlog")).display(),
            path(&format!("{end}.pcapng")).display()
        )
    };
    let port = tcp_port::unused();
    // Rare timeouts on a loaded machine would be probes for one end and losses for nobody.
    let common = format!("-p {port} --ack-timeout 20 --congestion none");
    let mut server =
        urxe(&format!("perf --link udp:127.0.87.1 --server-bind 127.0.0.1 {common} {}", files("server")))
            .spawn()
            .unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    stderr.read_line(&mut String::new()).unwrap();
    run(&format!("perf write -s 10000 -n 50 --link udp:127.0.87.2 {common} {} 127.0.0.1", files("client")));
    assert!(server.wait().unwrap().success());
    for end in ["server", "client"] {
        let captured = path(&format!("{end}-captured.qlog"));
        let [capture, live] = [path(&format!("{end}.pcapng")), path(&format!("{end}.qlog"))];
        run(&format!("decode --qlog {} {}", captured.display(), capture.display()));
        let (live, captured) = (story(&live), story(&captured));
        let accesses = live.iter().filter(|line| line.contains("rdma:memory_access")).count();
        assert!(
            live.len() >= 150 && (accesses >= 50) == (end == "server"),
            "{end}: {accesses} of {}",
            live.len()
        );
        let different = live.iter().zip(&captured).find(|(a, b)| a != b);
        assert_eq!((different, live.len()), (None, captured.len()), "{end}");
    }
    let trace = path("trace.json");
    run(&format!(
        "decode --perfetto {} {} {}",
        trace.display(),
        path("client.qlog").display(),
        path("server.pcapng").display()
    ));
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|entry| entry["cat"] == "work request"));
}

#[test]
fn demo_in_virtual_time_writes_the_same_log_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let logs = ["a", "b"].map(|name| {
        let path = dir.path().join(name);
        run(&format!("demo --no-capture --seed 3 --qlog {}", path.display()));
        records(&path)
    });
    assert_eq!(logs[0], logs[1]);
    assert!(logs[0].iter().any(|event| event["name"] == "rdma:rnr_nak_received"));
}

#[test]
fn log_that_cannot_be_created_and_standard_input_are_rejected_with_the_reason() {
    let error = |args: &str| String::from_utf8(urxe(args).output().unwrap().stderr).unwrap();
    let missing = error("demo --no-capture --qlog /nowhere/x.qlog");
    assert!(missing.contains("cannot write the event log /nowhere/x.qlog"), "{missing}");
    let stdin = error("decode --qlog x.qlog -");
    assert!(stdin.contains("write standard input to a file first"), "{stdin}");
}
