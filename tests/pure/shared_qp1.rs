//! Tests of QP1 of an address that several processes share, with the broker as a
//! process of its own: it may die, and captures contain the MADs that it forwards.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use urxe::broker::{SharedUdpLink, Sharing};
use urxe::link::Link;
use urxe::link::capture::{CaptureFile, Timestamps};
use urxe::link::udp::{UdpLink, UdpOptions};
use urxe::verbs::{
    AddressVector, ClaimError, Context, ContextOptions, Gid, MAD_LEN, ManagementPort, ServiceId,
};
use urxe::wire::mad::{CommId, Dreq, Mad, Message, RejReason, Req, Rtu};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Interval at which a peer retransmits.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

fn sharing() -> Sharing {
    Sharing { program: env!("CARGO_BIN_EXE_urxe").into(), any_user: false }
}

fn open_shared(ip: IpAddr, wrap: impl Fn(SharedUdpLink) -> Box<dyn Link>) -> Context {
    let links = SharedUdpLink::bind(ip, &UdpOptions::default(), 1, &sharing()).unwrap();
    Context::open_shards(links.into_iter().map(wrap).collect(), &ContextOptions::default()).unwrap()
}

fn boxed(link: SharedUdpLink) -> Box<dyn Link> {
    Box::new(link)
}

fn foreign_host(ip: &str) -> ManagementPort {
    let link = UdpLink::bind(ip.parse().unwrap(), &UdpOptions::default()).unwrap();
    Context::open(Box::new(link), &ContextOptions::default()).unwrap().management_port().unwrap()
}

fn broker_pid(ip: IpAddr) -> Option<Pid> {
    let line = format!("urxe\0broker\0{ip}\0");
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let is_broker = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|cmdline| cmdline.starts_with(line.as_bytes()))
    };
    pids.into_iter().find(is_broker).map(Pid::from_raw)
}

fn bytes(transaction: u64, message: impl Into<Message>) -> [u8; MAD_LEN] {
    Mad { transaction, modifier: 0, message: message.into() }.bytes()
}

fn request(transaction: u64, service: u64) -> [u8; MAD_LEN] {
    bytes(transaction, Req { local: CommId(1), service: ServiceId(service), ..Req::default() })
}

/// Sends a MAD at the interval of a peer until it arrives.
fn send_until_received(from: &ManagementPort, to: IpAddr, mad: &[u8; MAD_LEN], at: &ManagementPort) {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        from.send(&AddressVector::to(Gid::from(to)), mad).unwrap();
        if at.recv(RETRY_INTERVAL).is_ok_and(|got| got.bytes == *mad) {
            return;
        }
    }
    panic!("the MAD did not arrive within {TIMEOUT:?}");
}

#[test]
fn services_and_connections_survive_broker_death() {
    let ip: IpAddr = "127.18.240.1".parse().unwrap();
    let [a, b] = [(); 2].map(|()| open_shared(ip, boxed));
    let ports = [&a, &b].map(|context| context.management_port().unwrap());
    let claims =
        [(&a, 100), (&b, 200)].map(|(c, service)| c.claim_service(ServiceId(service), None).unwrap());
    let peer = foreign_host("127.18.240.2");
    for round in 0..3 {
        for (service, port) in [(100, &ports[0]), (200, &ports[1])] {
            send_until_received(&peer, ip, &request(round, service), port);
        }
        // No rejection is sent while a member claims the service.
        assert_eq!(peer.try_recv().map(|mad| Mad::parse(&mad.bytes)), None);
        kill(broker_pid(ip).expect("no broker process is running"), Signal::SIGKILL).unwrap();
        // The kernel delivers messages of existing connections without a broker.
        for port in &ports {
            let (value, bits) = port.comm_id_prefix();
            let remote = CommId(value << (32 - bits) | 77);
            let mad = bytes(round, Rtu { local: CommId(1), remote, ..Rtu::default() });
            peer.send(&AddressVector::to(Gid::from(ip)), &mad).unwrap();
            assert_eq!(port.recv(TIMEOUT).unwrap().bytes, mad);
        }
        assert!(matches!(b.claim_service(ServiceId(100), None), Err(ClaimError::InUse { .. })));
    }
    drop(claims);
    let start = Instant::now();
    let response = loop {
        peer.send(&AddressVector::to(Gid::from(ip)), &request(9, 100)).unwrap();
        match peer.recv(RETRY_INTERVAL) {
            Ok(mad) => break mad,
            Err(e) => assert!(start.elapsed() < TIMEOUT, "{e}"),
        }
    };
    let Message::Rej(rej) = Mad::parse(&response.bytes).unwrap().message else {
        panic!("the response is not a REJ")
    };
    assert_eq!(rej.reason, RejReason::InvalidServiceId);
}

#[test]
fn capture_contains_forwarded_mads_that_tshark_decodes() {
    let ip: IpAddr = "127.18.241.1".parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qp1.pcapng");
    let file = CaptureFile::create(&path, Timestamps::Wall).unwrap();
    let context = open_shared(ip, |link| Box::new(file.capture(link, "a")));
    let port = context.management_port().unwrap();
    let _claim = context.claim_service(ServiceId(0x106_04d2), None).unwrap();
    let peer = foreign_host("127.18.241.2");
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
    let out = tshark.output().unwrap();
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
