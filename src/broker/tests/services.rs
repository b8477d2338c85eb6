//! QP1 on a shared address: the broker delivers each management message to the process that it is meant for.

use std::time::Duration;

use super::*;
use crate::broker::steering;
use crate::link::ClaimError;
use crate::verbs::errors::WaitError;
use crate::verbs::{AddressVector, Context, ContextOptions, Gid, ManagementPort};
use crate::wire::mad::{
    CommId, Dreq, Mad, Message, Rej, RejReason, Rejected, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq,
    SidrStatus,
};

const RECV_TIMEOUT: Duration = Duration::from_secs(10);
const NO_RECV_TIME: Duration = Duration::from_millis(100);

/// Opens a device on the shared address as a member process would: the broker grants it a QPN partition.
fn member(ip: IpAddr, shards: usize, sharing: &Sharing) -> Context {
    let links = join(ip, shards, sharing).unwrap();
    let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
    Context::open_shards(links, &ContextOptions::default()).unwrap()
}

/// Opens a device at another address, which is not shared, and returns its QP1 management port.
fn foreign_host(ip: &str) -> ManagementPort {
    let link = UdpLink::bind(ip.parse().unwrap(), &UdpOptions::default()).unwrap();
    Context::open(Box::new(link), &ContextOptions::default()).unwrap().management_port().unwrap()
}

fn to(ip: IpAddr) -> AddressVector {
    AddressVector::to(Gid::from(ip))
}

/// Sends a message with the given transaction ID, which tests use to recognize it at the receiver.
fn send(from: &ManagementPort, ip: IpAddr, transaction: u64, message: impl Into<Message>) {
    let mad = Mad { transaction, modifier: 0, message: message.into() };
    from.send(&to(ip), &mad.bytes()).unwrap();
}

fn recv(port: &ManagementPort) -> Mad {
    Mad::parse(&port.recv(RECV_TIMEOUT).unwrap().bytes).unwrap()
}

/// Returns a communication ID in the range of the process that owns `port`, with `low` as its lowest bits.
fn id_of(port: &ManagementPort, low: u32) -> CommId {
    let (value, bits) = port.comm_id_prefix();
    assert_eq!(bits, QpnPartition::BITS);
    CommId(value << (32 - bits) | low)
}

fn request(service: u64) -> Req {
    Req { local: CommId(5), service: ServiceId(service), ..Req::default() }
}

#[test]
fn responses_reach_the_process_that_owns_their_communication_id() {
    let (ip, sharing, server) = start_broker("127.18.220.1");
    let [one, four, other] = [1, 4, 1].map(|shards| member(ip, shards, &sharing));
    let ports = [&one, &four, &other].map(|context| context.management_port().unwrap());
    let peer = foreign_host("127.18.220.2");
    for round in 0..10 {
        for (i, port) in ports.iter().enumerate() {
            let (id, local) = (id_of(port, 0x1234 + round), CommId(9));
            let messages: [Message; 5] = [
                Rep { local, remote: id, ..Rep::default() }.into(),
                Rtu { local, remote: id, ..Rtu::default() }.into(),
                Dreq { local, remote: id, ..Dreq::default() }.into(),
                Rej { remote: id, message: Rejected::Req, ..Rej::default() }.into(),
                SidrRep { request: id, ..SidrRep::default() }.into(),
            ];
            for (n, message) in messages.into_iter().enumerate() {
                let transaction = (i * 100 + n) as u64;
                send(&peer, ip, transaction, message);
                assert_eq!(recv(port).transaction, transaction, "{message:?}");
            }
        }
    }
    // Each process sends to the others and to itself, as to any peer.
    for (i, from) in ports.iter().enumerate() {
        for port in &ports {
            send(from, ip, i as u64, Rtu { remote: id_of(port, 7), ..Rtu::default() });
            assert_eq!(recv(port).transaction, i as u64);
        }
    }
    assert!(ports.iter().all(|port| port.try_recv().is_none()));
    drop((ports, one, four, other));
    server.join().unwrap().unwrap();
}

#[test]
fn requests_reach_the_process_that_claimed_the_service() {
    let (ip, sharing, server) = start_broker("127.18.221.1");
    let [one, two] = [1, 2].map(|shards| member(ip, shards, &sharing));
    let ports = [&one, &two].map(|context| context.management_port().unwrap());
    let peer = foreign_host("127.18.221.2");
    let mut claims = vec![
        one.claim_service(ServiceId(0x106_1234), None).unwrap(),
        two.claim_service(ServiceId(0x106_1235), Some(ip)).unwrap(),
    ];
    let error = two.claim_service(ServiceId(0x106_1234), None).unwrap_err();
    assert!(matches!(&error, ClaimError::InUse { .. }), "{error}");
    assert_eq!(error.errno(), libc::EADDRINUSE);
    let error = two.claim_service(ServiceId(1), Some([127, 9, 9, 9].into())).unwrap_err();
    assert!(matches!(error, ClaimError::NotLocal { .. }), "{error}");
    for (i, port) in ports.iter().enumerate() {
        let service = 0x106_1234 + i as u64;
        for (transaction, message) in [
            (1, Message::from(request(service))),
            (2, SidrReq { service: ServiceId(service), ..SidrReq::default() }.into()),
        ] {
            send(&peer, ip, transaction, message);
            let received = port.recv(RECV_TIMEOUT).unwrap();
            assert_eq!(Mad::parse(&received.bytes).unwrap(), Mad { transaction, modifier: 0, message });
            // As if received directly: checked, and with the address of the sender.
            assert_eq!(received.from.dgid, peer.context().query_gid(0).unwrap());
            port.send(
                &received.from,
                &Mad { transaction, modifier: 0, message: Rej::default().into() }.bytes(),
            )
            .unwrap();
            assert_eq!(recv(&peer).transaction, transaction);
        }
    }
    // A released service is free immediately, also for another process.
    drop(claims.remove(0));
    claims.push(two.claim_service(ServiceId(0x106_1234), None).unwrap());
    send(&peer, ip, 3, request(0x106_1234));
    assert_eq!(recv(&ports[1]).transaction, 3);
    assert_eq!(ports[0].recv(NO_RECV_TIME), Err(WaitError::TimedOut(NO_RECV_TIME)));
    drop((claims, ports, one, two));
    server.join().unwrap().unwrap();
}

#[test]
fn request_for_an_unclaimed_service_is_rejected() {
    let (ip, sharing, server) = start_broker("127.18.222.1");
    let one = member(ip, 1, &sharing);
    let peer = foreign_host("127.18.222.2");
    send(&peer, ip, 1, request(0x106_0001));
    let Mad { transaction: 1, message: Message::Rej(rej), .. } = recv(&peer) else { panic!("no REJ") };
    assert_eq!(
        (rej.remote, rej.message, rej.reason),
        (CommId(5), Rejected::Req, RejReason::InvalidServiceId)
    );
    let service = ServiceId(0x111_0001);
    send(&peer, ip, 2, SidrReq { request: CommId(6), service, ..SidrReq::default() });
    let Mad { transaction: 2, message: Message::SidrRep(rep), .. } = recv(&peer) else {
        panic!("no SIDR_REP")
    };
    assert_eq!((rep.request, rep.status, rep.service), (CommId(6), SidrStatus::Unsupported, service));
    send(&peer, ip, 3, Dreq { local: CommId(7), remote: CommId(8), ..Dreq::default() });
    let Mad { transaction: 3, message: Message::Drep(drep), .. } = recv(&peer) else { panic!("no DREP") };
    assert_eq!((drep.local, drep.remote), (CommId(8), CommId(7)));
    // A message that requires no response gets none.
    send(&peer, ip, 4, Rtu { remote: CommId(8), ..Rtu::default() });
    assert_eq!(peer.recv(NO_RECV_TIME), Err(WaitError::TimedOut(NO_RECV_TIME)));
    drop(one);
    server.join().unwrap().unwrap();
}

/// A client that gives up before it receives a response cannot name the server's communication ID.
#[test]
fn cancellation_reaches_the_process_that_got_the_request() {
    let (ip, sharing, server) = start_broker("127.18.226.1");
    let [one, two] = [1, 2].map(|shards| member(ip, shards, &sharing));
    let ports = [&one, &two].map(|context| context.management_port().unwrap());
    let claims = [(&one, 100), (&two, 200)].map(|(c, id)| c.claim_service(ServiceId(id), None).unwrap());
    let (peer, other) = (foreign_host("127.18.226.2"), foreign_host("127.18.226.3"));
    let timeout = |local| Rej { local, reason: RejReason::Timeout, ..Rej::default() };
    for (i, port) in ports.iter().enumerate() {
        let (service, local, transaction) = (100 * (i as u64 + 1), CommId(5 + i as u32), 2 * i as u64);
        send(&peer, ip, transaction, Req { local, ..request(service) });
        assert_eq!(recv(port).transaction, transaction);
        // REJs of another client, or for a request that was never made, are not forwarded.
        send(&other, ip, 99, timeout(local));
        send(&peer, ip, 99, timeout(CommId(77)));
        send(&peer, ip, transaction + 1, timeout(local));
        let mad = recv(port);
        assert_eq!((mad.transaction, mad.message), (transaction + 1, timeout(local).into()));
    }
    assert!(ports.iter().all(|port| port.try_recv().is_none()));
    drop((claims, ports, one, two));
    server.join().unwrap().unwrap();
}

#[test]
fn broker_responds_to_messages_for_a_process_that_has_exited() {
    let (ip, sharing, server) = start_broker("127.18.225.1");
    let [remaining, ended] = [1, 2].map(|shards| member(ip, shards, &sharing));
    let port = ended.management_port().unwrap();
    let (closed, local) = (id_of(&port, 9), CommId(7));
    drop((port, ended));
    let peer = foreign_host("127.18.225.2");
    // The broker may not have noticed the disconnect yet.
    let response = loop {
        send(&peer, ip, 1, Dreq { local, remote: closed, ..Dreq::default() });
        if let Ok(mad) = peer.recv(NO_RECV_TIME) {
            break Mad::parse(&mad.bytes).unwrap().message;
        }
    };
    let Message::Drep(drep) = response else { panic!("{response:?}") };
    assert_eq!((drep.local, drep.remote), (closed, local));
    while peer.try_recv().is_some() {}
    send(&peer, ip, 2, Rep { local, remote: closed, ..Rep::default() });
    let rej = loop {
        match recv(&peer).message {
            Message::Rej(rej) => break rej,
            other => assert!(matches!(other, Message::Drep(_)), "{other:?}"),
        }
    };
    assert_eq!((rej.local, rej.remote, rej.message), (closed, local, Rejected::Rep));
    assert_eq!(rej.reason, RejReason::InvalidCommId);
    // The next process that gets the partition receives the messages itself.
    let mut others: Vec<Context> = Vec::new();
    loop {
        let next = member(ip, 1, &sharing);
        let port = next.management_port().unwrap();
        if id_of(&port, 9) == closed {
            send(&peer, ip, 3, Dreq { local, remote: closed, ..Dreq::default() });
            assert_eq!(recv(&port).transaction, 3);
            break;
        }
        others.push(next);
    }
    drop((remaining, others));
    server.join().unwrap().unwrap();
}

#[test]
fn all_of_many_simultaneous_requests_arrive() {
    let (ip, sharing, server) = start_broker("127.18.223.1");
    let one = member(ip, 1, &sharing);
    let port = one.management_port().unwrap();
    let _claim = one.claim_service(ServiceId(7), None).unwrap();
    let peer = foreign_host("127.18.223.2");
    for transaction in 0..256 {
        send(&peer, ip, transaction, request(7));
    }
    let mut received: Vec<u64> = (0..256).map(|_| recv(&port).transaction).collect();
    received.sort_unstable();
    assert_eq!(received, (0..256).collect::<Vec<_>>());
    drop((_claim, port, one));
    server.join().unwrap().unwrap();
}

#[test]
fn bpf_program_and_partition_byte_select_the_same_partition() {
    let mad = |qpn: u32, class: u8, attribute: u16, at: usize, id: u8| {
        let mut bytes = vec![0; 280];
        bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
        bytes[21] = class;
        bytes[36..38].copy_from_slice(&attribute.to_be_bytes());
        bytes[at] = id;
        bytes
    };
    for (packet, byte) in [
        (mad(1, 7, 0x13, 48, 0xa5), 0xa5),
        (mad(0x8000_0001, 7, 0x14, 48, 0xa5), 0xa5),
        (mad(1, 7, 0x18, 44, 0xa5), 0xa5),
        (mad(1, 7, 0x18, 48, 0xa5), 0),
        (mad(1, 7, 0x10, 48, 0xa5), 0),
        (mad(1, 7, 0x17, 48, 0xa5), 0),
        (mad(1, 4, 0x13, 48, 0xa5), 0),
        (mad(0x5a_0001, 7, 0x13, 48, 0xa5), 0x5a),
        (mad(2, 7, 0x13, 48, 0xa5), 0),
        (mad(1, 7, 0x13, 48, 0xa5)[..48].to_vec(), 0),
        (vec![0; 3], 0),
    ] {
        assert_eq!(steering::partition_byte(&packet), byte, "{:x?}", &packet[..packet.len().min(8)]);
    }
    let (ip, sharing, server) = start_broker("127.18.224.1");
    let mut all: Vec<SharedUdpLink> = (0..3).map(|_| join(ip, 1, &sharing).unwrap().swap_remove(0)).collect();
    let from = UdpSocket::bind("127.18.224.2:0").unwrap();
    for i in 0..3 {
        let first = (all[i].partition().index() << 2) as u8 | 1;
        for packet in [
            mad(1, 7, 0x13, 48, first),
            mad(1, 7, 0x18, 44, first),
            mad(u32::from(first) << 16 | 9, 7, 0, 30, 0),
        ] {
            assert!(all[i].partition().has(steering::partition_byte(&packet)));
            from.send_to(&packet, (ip, 4791)).unwrap();
            for (j, link) in all.iter_mut().enumerate() {
                assert_eq!(received(link).len(), usize::from(i == j), "{i} {j}");
            }
        }
    }
    drop(all);
    server.join().unwrap().unwrap();
}
