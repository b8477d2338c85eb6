//! `urxe ps` and `urxe top`: the state of NICs in other processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use urxe_test_support::programs::{Running, addresses, port, text, urxe, wait_for_listener};

/// Time within which the state must be as expected.
const LIMIT: Duration = Duration::from_secs(60);

fn run(args: &[&str]) -> Output {
    let out = urxe(args).output().unwrap();
    assert!(out.status.success(), "urxe {args:?}: {}", text(&out));
    out
}

/// Returns the NIC of a process as `urxe ps` shows it; null if there is none.
fn nic_of(pid: u32) -> Value {
    let out = run(&["ps", "--json", "--pid", &pid.to_string()]);
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    document["nics"][0].clone()
}

/// Waits until the NIC of a process is as expected.
fn wait_for(pid: u32, what: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let nic = nic_of(pid);
        if is_expected(&nic) {
            return nic;
        }
        assert!(begin.elapsed() < LIMIT, "no NIC with {what}: {nic:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server and a client of `urxe pingpong` that exchange messages for a long time, with their addresses.
struct Pair {
    ends: [Running; 2],
    addresses: [String; 2],
}

impl Pair {
    fn start() -> Pair {
        let (addresses, port) = (addresses(), port());
        let port = port.to_string();
        let common = ["pingpong", "--iters", "100000000", "--min-ack-timeout", "60", "--port", &port];
        let end = |address: &str, more: &[&str]| {
            let mut command = urxe(&[&common[..], &["--ip", address], more].concat());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Running::new(command)
        };
        let server = end(&addresses[0], &["--server-bind", "127.0.0.1"]);
        wait_for_listener(&port);
        let client = end(&addresses[1], &["127.0.0.1"]);
        Pair { ends: [server, client], addresses }
    }

    /// Waits until both ends have received packets, and returns their NICs.
    fn nics(&self) -> [Value; 2] {
        self.ends.each_ref().map(|end| {
            wait_for(end.id(), "received packets", |nic| {
                nic["qps"][0]["counters"]["rcvd_pkts"].as_u64() > Some(100)
            })
        })
    }
}

fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn both_ends_of_a_connection_are_shown_with_each_other_as_peer() {
    let pair = Pair::start();
    let nics = pair.nics();
    for (nic, other, own, peer) in [
        (&nics[0], &nics[1], &pair.addresses[0], &pair.addresses[1]),
        (&nics[1], &nics[0], &pair.addresses[1], &pair.addresses[0]),
    ] {
        let qp = &nic["qps"][0];
        assert_eq!((nic["device"].as_str(), nic["is_up"].as_bool()), (Some("urxe0"), Some(true)), "{nic:#}");
        assert_eq!(nic["link"], format!("udp {own}"));
        assert!(nic["command"].as_str().unwrap().contains("pingpong --iters"), "{nic:#}");
        assert_eq!((qp["service"].as_str(), qp["state"].as_str()), (Some("RC"), Some("RTS")));
        assert_eq!(qp["peer"]["address"], *peer.as_str());
        assert_eq!(qp["peer"]["qpn"], other["qps"][0]["qpn"]);
        assert!(
            qp["posted_receives"].as_u64() > Some(0) && qp["counters"]["sent_bytes"].as_u64() > Some(0),
            "{qp:#}"
        );
        assert!(!qp["why"].as_str().unwrap().is_empty());
    }
    let out = run(&["ps", "--pid", &pair.ends[0].id().to_string()]);
    let shown = text(&out);
    assert!(shown.contains("SVC") && shown.contains(&format!("process {}", pair.ends[0].id())), "{shown}");
}

#[test]
fn top_shows_rates_and_a_stopped_process() {
    let pair = Pair::start();
    pair.nics();
    let [server, client] = pair.ends.each_ref().map(Running::id);
    let out = run(&["top", "--once", "--json", "--interval", "0.2", "--pid", &client.to_string()]);
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rate = document["nics"][0]["qps"][0]["rates"]["sent_bytes_per_second"].as_f64();
    assert!(rate.is_some(), "{document:#}");
    signal(server, "-STOP");
    let nic = wait_for(server, "an error", |nic| nic["error"].is_string());
    assert!(nic["error"].as_str().unwrap().contains("is stopped"), "{nic:#}");
    // The peer, which has not been stopped, waits for the stopped one.
    let is_quiet = |nic: &Value| nic["qps"][0]["last_received"].as_u64() > Some(100_000_000);
    wait_for(client, "a silent peer", is_quiet);
    signal(server, "-CONT");
    wait_for(server, "a state", |nic| nic["error"].is_null());
}

#[test]
fn process_that_has_ended_is_not_shown() {
    let pair = Pair::start();
    let pid = pair.ends[0].id();
    pair.nics();
    drop(pair);
    wait_for(pid, "nothing", Value::is_null);
}

#[test]
fn metrics_have_the_names_of_node_exporter() {
    let pair = Pair::start();
    pair.nics();
    let port = port().to_string();
    let mut command = urxe(&["top", "--metrics", &port]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _metrics = Running::new(command);
    wait_for_listener(&port);
    let request = |target: &str| {
        let mut connection = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        write!(connection, "GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = request("/metrics");
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("text/plain; version=0.0.4"),
        "{answer}"
    );
    let pid = pair.ends[0].id();
    let value = |name: &str| {
        let start = format!("{name}{{device=\"urxe0\",port=\"1\",pid=\"{pid}\"");
        let line = answer
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("{start}: {answer}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert!(value("node_infiniband_port_data_received_bytes_total") > 0.0);
    assert!(value("node_infiniband_port_packets_transmitted_total") > 0.0);
    assert!(value("node_infiniband_state_id") == 4.0 && value("urxe_qp_sent_pkts_total") > 0.0);
    assert!(answer.contains("# TYPE node_infiniband_port_data_received_bytes_total counter\n"), "{answer}");
    assert!(request("/other").starts_with("HTTP/1.1 404 "));
}
