//! Tests of QP1 on an address that several processes share; the broker is a separate process, which a test
//! can kill.

use std::net::IpAddr;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use urxe::broker::SharedUdpLink;
use urxe::link::Link;
use urxe::verbs::{AddressVector, ClaimError, Gid, ServiceId};
use urxe::wire::mad::{CommId, Mad, Message, RejReason, Rtu};
use urxe_test_support::shared_address::{
    RETRY_INTERVAL, TIMEOUT, bytes, foreign_host, open_shared, request, send_until_received,
};

fn boxed(link: SharedUdpLink) -> Box<dyn Link> {
    Box::new(link)
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

#[test]
fn services_and_connections_survive_broker_death() {
    let ip: IpAddr = "127.20.240.1".parse().unwrap();
    let [a, b] = [(); 2].map(|()| open_shared(ip, boxed));
    let ports = [&a, &b].map(|context| context.management_port().unwrap());
    let claims =
        [(&a, 100), (&b, 200)].map(|(c, service)| c.claim_service(ServiceId(service), None).unwrap());
    let peer = foreign_host("127.20.240.2");
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
            // Repeated requests may still arrive before it.
            let mut received = port.recv(TIMEOUT).unwrap().bytes;
            while matches!(Mad::parse(&received).map(|mad| mad.message), Ok(Message::Req(_))) {
                received = port.recv(TIMEOUT).unwrap().bytes;
            }
            assert_eq!(received, mad);
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
