//! Recorders with the network stacks of two namespaces as client and peer. Needs root, iproute2 and dumpcap
//! (package `tshark`).

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use urxe::verbs::*;
use urxe_test_support::netns::Veth;
use urxe_test_support::nic::{Nic, on_udp};

use super::Result;
use super::corpus::shot::{Shot, from_pcap};

/// Length of a recording in seconds.
const SECONDS: u32 = 5;

/// Records a case at the client.
pub fn record(name: &str) -> Result<Vec<Shot>> {
    let (own, peer, filter) = match name {
        "peer-silent-arp" => ("10.77.0.1", "10.77.0.9", "arp or udp port 4791"),
        "peer-silent-nd" => ("fd77::1", "fd77::9", "src host fd77::1"),
        "port-unreachable" => ("10.77.0.1", "10.77.0.2", "arp or udp port 4791 or icmp"),
        "port-unreachable-v6" => ("fd77::1", "fd77::2", "host fd77::1 and (udp port 4791 or icmp6)"),
        other => return Err(format!("no recorder for {other}").into()),
    };
    let veth = Veth::new(1500);
    let device = Veth::DEVICES[0];
    let file = tempfile::NamedTempFile::new()?;
    let mut recorder = veth.sides[0]
        .command("dumpcap")
        .args(["-q", "-P", "-i", device, "-f", filter, "-a", &format!("duration:{SECONDS}"), "-w"])
        .arg(file.path())
        .stderr(Stdio::piped())
        .spawn()?;
    // The recording has begun once dumpcap names its file.
    let mut lines = BufReader::new(recorder.stderr.take().expect("a pipe")).lines();
    while !lines.next().ok_or("dumpcap has ended")??.starts_with("File:") {}
    veth.sides[0].run(|| request(own, peer));
    lines.for_each(drop);
    if !recorder.wait()?.success() {
        return Err("dumpcap failed".into());
    }
    let mac = veth.sides[0].command("cat").arg(format!("/sys/class/net/{device}/address")).output()?;
    let mac: Vec<u8> = String::from_utf8(mac.stdout)?
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<std::result::Result<_, _>>()?;
    let own = mac.try_into().map_err(|mac| format!("{mac:?} is not a MAC address"))?;
    Ok(from_pcap(&std::fs::read(file.path())?, own))
}

/// Sends a WRITE to a queue pair that does not exist.
fn request(own: &str, peer: &str) {
    let nic = Nic::new(on_udp(own, 1), 4096);
    let qp = nic.qp(QpType::Rc);
    let gid = Gid::from(peer.parse::<IpAddr>().expect("an address"));
    let options = ConnectOptions::default().mtu(Mtu::Mtu256).timeout(AckTimeout::new(16)).retry_cnt(6);
    let peer = Endpoint { gid, qpn: Qpn::new(0x2b7), psn: Psn::new(0x1234) };
    qp.connect(&peer, &options).expect("a new queue pair");
    let to = RemoteAddr { va: 0x7f00_0000_1000, rkey: RKey(0x1f00) };
    qp.post_send(&SendWr::write(1, &[nic.mr.sge(0..200)], to)).expect("room for the WRITE");
    let done = nic.cq.wait_any(Duration::from_secs(30)).expect("a completion");
    assert_ne!(done.status, WcStatus::Success);
}
