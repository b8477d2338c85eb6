//! Requests beyond the backlog of a listener: a C program gets the same events from the kernel's connection
//! manager, in a guest with rxe, and from urxe, under `urxe run`.

use std::process::Command;
use std::time::Duration;

use urxe_test_support::addresses::address;
use urxe_test_support::guest::{Guest, GuestConfig, Net};
use urxe_test_support::programs::{built, text};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn requests_beyond_the_backlog_cause_the_same_events_as_with_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("backlog");
    let source = concat!(env!("URXE_REPOSITORY"), "/tests/guest/interop_backlog.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).args([source, "-lrdmacm", "-libverbs"]);
    let out = cc.output().expect("this test needs a C compiler (apt-get install gcc libc6-dev)");
    assert!(out.status.success(), "{} (apt-get install librdmacm-dev)", text(&out));

    let net = Net::StreamListen { path: dir.path().join("net") };
    let guest = Guest::start(GuestConfig::new(net, 1)).unwrap();
    guest.install(&program, "/tmp/backlog").unwrap();
    let kernel = guest.check("/tmp/backlog 10.77.0.1", LIMIT).unwrap().stdout;

    let mut urxe = Command::new(built("urxe").unwrap());
    let ip = address().to_string();
    let out = urxe.args(["run", "--ip", &ip, "--"]).arg(&program).arg(&ip).output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(String::from_utf8_lossy(&out.stdout), kernel);
    assert!(kernel.contains("second client gets a response: 0\n"), "{kernel}");
}
