//! Tests of `urxe doctor` in network namespaces, where it finds UDP port 4791 free, in use by a process, or
//! shared by a broker.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use urxe::broker::{SharedMemory, Sharing};
use urxe_test_support::netns::{self, Netns};

/// Runs `urxe doctor --json` in the namespace.
fn doctor(netns: &Netns) -> (Option<i32>, Vec<Value>) {
    let mut command = netns.command(env!("CARGO_BIN_EXE_urxe"));
    let output: Output = command.args(["doctor", "--json"]).output().unwrap();
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    (output.status.code(), document["machine"].as_array().unwrap().clone())
}

/// Returns statuses and messages of the checks with the given name.
fn named(checks: &[Value], name: &str) -> Vec<(String, String)> {
    let text = |check: &Value, field: &str| check[field].as_str().unwrap().to_owned();
    let named = checks.iter().filter(|check| check["name"] == name);
    named.map(|check| (text(check, "status"), text(check, "message"))).collect()
}

/// Binds the port of 127.0.0.1 once the broker that `urxe doctor` has started is gone: it exits after its
/// last client.
fn bind_when_free() -> UdpSocket {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match UdpSocket::bind(("127.0.0.1", 4791)) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound.unwrap(),
        }
    }
}

#[test]
fn port_in_use_by_another_process_is_a_problem_that_names_the_process() {
    if !netns::is_available() {
        return;
    }
    let netns = Netns::new();
    let (_, checks) = doctor(&netns);
    let ports = named(&checks, "port");
    assert_eq!(ports, [("ok".into(), "UDP port 4791 is free on 127.0.0.1 ::1".into())]);
    assert_eq!(named(&checks, "devices")[0].0, "ok", "{checks:?}");

    let socket = netns.run(bind_when_free);
    let (status, checks) = doctor(&netns);
    assert_eq!(status, Some(1));
    let ports = named(&checks, "port");
    let owner = format!("UDP port 4791 of 127.0.0.1 is in use by process {} (", std::process::id());
    assert!(ports.iter().any(|(status, text)| status == "problem" && text.starts_with(&owner)), "{ports:?}");
    let devices = named(&checks, "devices");
    assert!(devices[0].0 == "problem" && devices[0].1.contains("is in use by process"), "{devices:?}");

    drop(socket);
    let (_, checks) = doctor(&netns);
    assert_eq!(named(&checks, "port").len(), 1);
    assert_eq!(named(&checks, "devices")[0].0, "ok", "{checks:?}");
}

#[test]
fn port_shared_by_a_broker_is_ok() {
    if !netns::is_available() {
        return;
    }
    let netns = Netns::new();
    let sharing = Sharing {
        program: env!("CARGO_BIN_EXE_urxe").into(),
        any_user: false,
        shared_memory: SharedMemory::Off,
    };
    let links = netns.run(|| sharing.bind(&"udp:127.0.0.1".parse().unwrap(), 1, true).unwrap());
    let (_, checks) = doctor(&netns);
    let ports = named(&checks, "port");
    let is_shared =
        |(status, text): &(String, String)| status == "ok" && text.contains("127.0.0.1 is in use");
    assert!(ports.iter().any(is_shared), "{ports:?}");
    let broker = &named(&checks, "broker")[0];
    let running = "127.0.0.1: running, for uid 0, sockets in ";
    assert!(broker.0 == "ok" && broker.1.starts_with(running), "{broker:?}");
    assert!(broker.1.contains(", 1 of 63 partitions leased"), "{broker:?}");
    assert_eq!(named(&checks, "devices")[0].0, "ok", "{checks:?}");
    drop(links);
}

#[test]
fn namespace_without_an_interface_is_a_problem() {
    if !netns::is_available() {
        return;
    }
    let netns = Netns::new();
    netns.ip("link set lo down");
    let (status, checks) = doctor(&netns);
    assert_eq!(status, Some(1));
    let expected = "no device: no network interface is up";
    assert_eq!(named(&checks, "devices"), [("problem".into(), expected.into())]);
}
