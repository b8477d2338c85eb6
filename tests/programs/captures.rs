//! Tests that tshark decodes urxe's captures: those recorded by `urxe demo`, and those of MADs forwarded by
//! the broker of a shared address.

use std::net::IpAddr;
use std::process::{Command, Output};

use urxe::middleware::capture::{CaptureFile, Timestamps};
use urxe::verbs::{AddressVector, Gid, ServiceId};
use urxe::wire::mad::Dreq;
use urxe_test_support::shared_address::{
    TIMEOUT, bytes, foreign_host, open_shared, request, send_until_received,
};

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e} (tests/install programs)"))
}

#[test]
fn tshark_finds_no_malformed_packet_in_the_capture_of_the_demo() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.pcapng");
    let demo = run(Command::new(env!("CARGO_BIN_EXE_urxe")).args(["demo", "--capture"]).arg(&path));
    assert!(demo.status.success(), "{demo:?}");
    let count = |filter: &str| {
        let out = run(Command::new("tshark").args(["-Y", filter, "-r"]).arg(&path));
        assert!(out.status.success(), "{out:?}");
        out.stdout.iter().filter(|byte| **byte == b'\n').count()
    };
    assert!(count("infiniband") > 10);
    assert_eq!(count("_ws.malformed"), 0);
}

#[test]
fn tshark_decodes_forwarded_mads_in_the_capture() {
    let ip: IpAddr = "127.20.241.1".parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qp1.pcapng");
    let file = CaptureFile::create(&path, Timestamps::Wall).unwrap();
    let context = open_shared(ip, |link| Box::new(file.capture(link, "a")));
    let port = context.management_port().unwrap();
    let _claim = context.claim_service(ServiceId(0x106_04d2), None).unwrap();
    let peer = foreign_host("127.20.241.2");
    send_until_received(&peer, ip, &request(0x1111, 0x106_04d2), &port);
    port.send(
        &AddressVector::to(Gid::from(peer.context().query_gid(0).unwrap().ip())),
        &bytes(0x2222, Dreq::default()),
    )
    .unwrap();
    peer.recv(TIMEOUT).unwrap();
    file.flush().unwrap();
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args([
        "-T",
        "fields",
        "-e",
        "infiniband.mad.attributeid",
        "-e",
        "infiniband.cm.req.serviceid",
    ]);
    tshark.args([
        "-e",
        "infiniband.bth.destqp",
        "-e",
        "infiniband.deth.q_key",
        "-e",
        "infiniband.deth.srcqp",
    ]);
    let out = run(&mut tshark);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    println!("{text}");
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert!(lines.len() >= 2, "{text}");
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    for (line, attribute) in [(&lines[0], 0x10), (&lines[lines.len() - 1], 0x15)] {
        assert_eq!(number(line[0]), Ok(attribute), "{text}");
        assert_eq!([line[2], line[3], line[4]].map(number), [Ok(1), Ok(0x8001_0000), Ok(1)], "{text}");
    }
    assert_eq!(number(lines[0][1]), Ok(0x106_04d2), "{text}");
}
