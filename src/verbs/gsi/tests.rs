//! Tests of the management port on fabrics and UDP links: MAD exchange, loss, partition keys and the
//! descriptor.

use std::net::IpAddr;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::link::Link;
use crate::link::udp::{UdpLink, UdpOptions};
use crate::verbs::{ContextOptions, Fabric, FabricConfig, PKey, Personality};

const TIMEOUT: Duration = Duration::from_secs(10);

fn mad(first: u8) -> [u8; MAD_LEN] {
    std::array::from_fn(|i| first.wrapping_add(i as u8))
}

fn path(from: &Context, to: &Context) -> AddressVector {
    let dgid = to.query_gid(0).unwrap();
    AddressVector { sgid_index: from.gid_towards(dgid).unwrap(), ..AddressVector::to(dgid) }
}

fn on_fabric() -> (Fabric, Context, Context) {
    let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
    let [a, b] = [(); 2].map(|()| Context::on_fabric(&fabric).unwrap());
    (fabric, a, b)
}

fn on_udp(ip: &str, shards: usize) -> Context {
    let ip: IpAddr = ip.parse().unwrap();
    let links = UdpLink::bind_shards(ip, &UdpOptions::default(), shards).unwrap();
    let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
    Context::open_shards(links, &ContextOptions::default()).unwrap()
}

/// Sends datagrams from `a` to `b`, and answers each along the path reported with it.
fn exchange(a: &Context, b: &Context) {
    let (first, second) = (a.management_port().unwrap(), b.management_port().unwrap());
    assert_eq!((first.try_recv(), first.comm_id_prefix()), (None, (0, 0)));
    for i in 0..100 {
        first.send(&path(a, b), &mad(i)).unwrap();
        let received = second.recv(TIMEOUT).unwrap();
        assert_eq!((received.bytes, received.src_qpn, received.pkey_index), (mad(i), Qpn::GSI, 0));
        assert_eq!((Some(received.from.dgid), received.from.sgid_index), (a.query_gid(0), 0));
        second.send(&received.from, &mad(i + 1)).unwrap();
        assert_eq!(first.recv(TIMEOUT).unwrap().bytes, mad(i + 1));
    }
}

#[test]
fn port_sends_any_number_of_mads_with_every_personality() {
    for personality in Personality::ALL {
        let fabric = Fabric::virtual_time(FabricConfig::default()).unwrap();
        let a = fabric.open(&ContextOptions::default().personality(personality)).unwrap();
        let (port, to) = (a.management_port().unwrap(), path(&a, &a));
        for i in 0..3 * SEND_DEPTH {
            port.send(&to, &mad(i as u8)).unwrap_or_else(|e| panic!("{}, MAD {i}: {e}", personality.name));
            assert!(port.recv(TIMEOUT).is_ok(), "{}, MAD {i}", personality.name);
        }
    }
}

#[test]
fn mad_makes_a_round_trip_on_a_fabric() {
    let (_fabric, a, b) = on_fabric();
    exchange(&a, &b);
    let fabric = Fabric::new();
    exchange(&Context::on_fabric(&fabric).unwrap(), &Context::on_fabric(&fabric).unwrap());
}

#[test]
fn mad_makes_a_round_trip_over_udp_with_any_shard_count() {
    exchange(&on_udp("127.18.210.1", 1), &on_udp("127.18.210.2", 1));
    exchange(&on_udp("127.18.211.1", 2), &on_udp("127.18.211.2", 4));
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        let context = on_udp("::1", 1);
        exchange_with_itself(&context);
    }
}

fn exchange_with_itself(context: &Context) {
    let port = context.management_port().unwrap();
    port.send(&path(context, context), &mad(9)).unwrap();
    assert_eq!(port.recv(TIMEOUT).unwrap().bytes, mad(9));
}

#[test]
fn second_management_port_cannot_be_opened_until_the_first_is_dropped() {
    let (_fabric, a, b) = on_fabric();
    let first = a.management_port().unwrap();
    let error = a.reopen().unwrap().management_port().unwrap_err();
    assert!(matches!(error, CreateError::Exhausted { max: 1, .. }), "{error}");
    assert!(error.to_string().contains("QP1"), "{error}");
    drop(first);
    exchange(&b, &a);
    exchange(&b, &a);
}

#[test]
fn mads_beyond_the_receive_queue_are_dropped_and_counted() {
    let (fabric, a, b) = on_fabric();
    let (from, to) = (a.management_port().unwrap(), b.management_port().unwrap());
    for i in 0..3 * RECV_DEPTH {
        from.send(&path(&a, &b), &mad(i as u8)).unwrap();
        fabric.run_until_idle(TIMEOUT);
    }
    assert_eq!(b.counters().rx_no_receive, 2 * u64::from(RECV_DEPTH));
    for i in 0..RECV_DEPTH {
        assert_eq!(to.try_recv().unwrap().bytes, mad(i as u8));
    }
    assert_eq!(to.try_recv(), None);
    from.send(&path(&a, &b), &mad(1)).unwrap();
    assert_eq!(to.recv(TIMEOUT).unwrap().bytes, mad(1));
}

#[test]
fn messages_of_wrong_length_or_qkey_are_dropped_and_counted() {
    let (fabric, a, b) = on_fabric();
    let to = b.management_port().unwrap();
    let (pd, cq) = (a.alloc_pd().unwrap(), a.create_cq(64).unwrap());
    let options = QpOptions { qp_type: QpType::Ud, ..QpOptions::default() };
    let qp = pd.create_qp(&cq, &cq, &options).unwrap();
    // Only a queue pair with such a key sends a key whose highest bit is set (IBA 10.2.5).
    qp.activate(QKey::GSI).unwrap();
    let region = pd.reg_mr(4096, Access::LOCAL_WRITE).unwrap();
    let ah = pd.create_ah(&path(&a, &b)).unwrap();
    let send = |len: usize, qkey| {
        let sges = [region.sge(0..len)];
        let to = Some(ah.to(Qpn::GSI, qkey));
        qp.post_send(&SendWr { to, ..SendWr::send(1, &sges) }).unwrap();
        fabric.run_until_idle(TIMEOUT);
    };
    for len in [0, 4, 255, 257, 1024, 4096] {
        send(len, QKey::GSI);
    }
    assert_eq!(b.counters().rx_dropped_message, 6);
    send(256, QKey(7));
    assert_eq!((to.try_recv(), b.counters().rx_qkey_violation), (None, 1));
    send(256, QKey::GSI);
    assert_eq!(to.try_recv().map(|mad| (mad.src_qpn, mad.bytes)), Some((qp.qpn(), [0; MAD_LEN])));
}

#[test]
fn qp1_accepts_every_partition_key_of_the_port() {
    let (fabric, a, b) = on_fabric();
    let (first, second) = (a.management_port().unwrap(), b.management_port().unwrap());
    let send = |start| {
        first.send(&path(&a, &b), &mad(start)).unwrap();
        fabric.run_until_idle(TIMEOUT);
    };
    b.set_pkeys(&[PKey::DEFAULT, PKey(0x1234), PKey(0x8005)]).unwrap();
    send(1);
    a.set_pkeys(&[PKey(0x0005)]).unwrap();
    send(2);
    a.set_pkeys(&[PKey(0x9234)]).unwrap();
    send(3);
    a.set_pkeys(&[PKey(0x9235)]).unwrap();
    send(4);
    let received: Vec<_> =
        std::iter::from_fn(|| second.try_recv()).map(|m| (m.bytes[0], m.pkey_index)).collect();
    assert_eq!(received, [(1, 0), (2, 2), (3, 1)]);
    assert_eq!(b.counters().rx_pkey_violation, 1);
    // QP1 is not tied to any of the keys, and sends with the first one.
    b.set_pkeys(&[PKey::DEFAULT]).unwrap();
    a.set_pkeys(&[PKey::DEFAULT]).unwrap();
    second.send(&path(&b, &a), &mad(5)).unwrap();
    assert_eq!(first.recv(TIMEOUT).unwrap().bytes[0], 5);
}

#[test]
fn descriptor_is_readable_while_mads_may_be_queued() {
    let (a, b) = (on_udp("127.18.212.1", 1), on_udp("127.18.212.2", 1));
    let (from, to) = (a.management_port().unwrap(), b.management_port().unwrap());
    let is_readable = |limit: u16| {
        let mut fds = [PollFd::new(to.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(limit)).unwrap() == 1
    };
    assert!(!is_readable(0));
    for round in 0..20 {
        from.send(&path(&a, &b), &mad(round)).unwrap();
        from.send(&path(&a, &b), &mad(round)).unwrap();
        assert!(is_readable(10_000));
        let mut received = 0;
        while received < 2 {
            assert!(is_readable(10_000));
            received += std::iter::from_fn(|| to.try_recv()).count();
        }
        assert!(!is_readable(0), "round {round}");
    }
}

#[test]
fn dropping_the_management_port_discards_queued_mads_and_keeps_the_device() {
    let (fabric, a, b) = on_fabric();
    let from = a.management_port().unwrap();
    let to = b.management_port().unwrap();
    from.send(&path(&a, &b), &mad(1)).unwrap();
    fabric.run_until_idle(TIMEOUT);
    drop(to);
    from.send(&path(&a, &b), &mad(2)).unwrap();
    fabric.run_until_idle(TIMEOUT);
    assert_eq!(b.counters().rx_unknown_qp, 1);
    let to = b.management_port().unwrap();
    assert_eq!(to.try_recv(), None);
    // On an address that is not shared, any number of claims for a service succeed.
    let service = ServiceId(7);
    let claims = [b.claim_service(service, None).unwrap(), b.claim_service(service, None).unwrap()];
    drop(claims);
}
