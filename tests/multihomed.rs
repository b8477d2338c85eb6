//! Tests of devices with several addresses: a device has all addresses of its interface, link-local IPv6,
//! IPv4 and other IPv6. Needs root for network namespaces.

#[path = "support/veth.rs"]
mod veth;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use urxe::link::{BindError, LinkSpec, interfaces};
use urxe::verbs::*;

use veth::{Veth, ip};

const SOON: Duration = Duration::from_secs(20);
const KEY: QKey = QKey(0x7777);

/// Opens a device on a link of a namespace; its threads run outside of it.
fn open(net: &Veth, side: usize, link: &str, shards: usize) -> Context {
    let link: LinkSpec = link.parse().unwrap();
    let links = net.within(side, || link.bind(shards).unwrap_or_else(|e| panic!("{link}: {e}")));
    Context::open_shards(links, &ContextOptions::default()).unwrap()
}

/// Returns the addresses of an interface in a namespace, once it has a link-local one, which the kernel
/// assigns when it detects a carrier.
fn addresses(net: &Veth, side: usize, interface: &str) -> Vec<IpAddr> {
    let deadline = Instant::now() + SOON;
    loop {
        let all = net.within(side, interfaces);
        let of = all.into_iter().find(|i| i.name == interface).unwrap();
        if matches!(of.addresses[0], IpAddr::V6(_)) {
            return of.addresses;
        }
        assert!(Instant::now() < deadline, "{of:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn node(context: &Context) -> TestEndpoint {
    TestEndpoint::new(context.clone()).unwrap()
}

/// Connects two nodes through the GIDs at these indices.
fn connect((a, i): (&TestEndpoint, usize), (b, j): (&TestEndpoint, usize)) {
    let (to_a, to_b) = (a.qp.endpoint_at(i).unwrap(), b.qp.endpoint_at(j).unwrap());
    a.qp.connect(&to_b, &ConnectOptions::default()).unwrap();
    b.qp.connect(&to_a, &ConnectOptions::default()).unwrap();
}

/// Sends WRITEs in both directions at once, so large that they take many transmit turns.
fn write_both_ways(pairs: &[(TestEndpoint, TestEndpoint)]) {
    const LEN: usize = 300_000;
    const TIMES: u64 = 8;
    let memory = |node: &TestEndpoint| [(); 2].map(|()| node.pd.reg_mr(LEN, Access::ALL).unwrap());
    let regions: Vec<_> = pairs.iter().map(|(a, b)| (memory(a), memory(b))).collect();
    let byte = |pair: usize, side: usize| (1 + 2 * pair + side) as u8;
    for (i, ((a, b), (of_a, of_b))) in pairs.iter().zip(&regions).enumerate() {
        for (side, node, from, to) in [(0, a, of_a, of_b), (1, b, of_b, of_a)] {
            from[0].write(0, &vec![byte(i, side); LEN]).unwrap();
            for n in 0..TIMES {
                node.qp.post_send(&SendWr::write(n, &[from[0].sge(0..LEN)], to[1].remote(0))).unwrap();
            }
        }
    }
    for (i, ((a, b), (of_a, of_b))) in pairs.iter().zip(&regions).enumerate() {
        (0..TIMES).for_each(|n| assert_eq!(a.cq.wait(SOON).unwrap().wr_id, n));
        (0..TIMES).for_each(|n| assert_eq!(b.cq.wait(SOON).unwrap().wr_id, n));
        for (side, to) in [(0, of_b), (1, of_a)] {
            let mut got = vec![0; LEN];
            to[1].read(0, &mut got).unwrap();
            assert!(got.iter().all(|b| *b == byte(i, side)), "pair {i}, from side {side}");
        }
    }
}

/// Sends a datagram from each GID, and answers it to its source.
fn exchange_datagrams(a: &Context, b: &Context) {
    let datagrams = |context: &Context| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let options = QpOptions { qp_type: QpType::Ud, ..QpOptions::default() };
        let qp = pd.create_qp(&cq, &cq, &options).unwrap();
        qp.activate(KEY).unwrap();
        let mr = pd.reg_mr(4096, Access::ALL).unwrap();
        (pd, cq, qp, mr)
    };
    let (a_pd, a_cq, a_qp, a_mr) = datagrams(a);
    let (b_pd, b_cq, b_qp, b_mr) = datagrams(b);
    for (i, gid) in b.gids().into_iter().enumerate() {
        b_qp.post_recv(&RecvWr { wr_id: 1, sges: &[b_mr.sge(0..100)] }).unwrap();
        a_qp.post_recv(&RecvWr { wr_id: 3, sges: &[a_mr.sge(0..100)] }).unwrap();
        let av = AddressVector { sgid_index: i as u8, ..AddressVector::to(gid) };
        let to = Some(a_pd.create_ah(&av).unwrap().to(b_qp.qpn(), KEY));
        a_qp.post_send(&SendWr { to, ..SendWr::send(2, &[a_mr.sge(100..110)]) }).unwrap();
        let came = b_cq.wait(SOON).unwrap();
        assert_eq!((came.wr_id, came.grh, came.over_ipv4), (1, true, gid.ip().is_ipv4()));
        assert_eq!(a_cq.wait(SOON).unwrap().wr_id, 2);

        let mut header = [0; grh::LEN];
        b_mr.read(0, &mut header).unwrap();
        let back = b_pd.create_ah_from_wc(&came, &header).unwrap();
        assert_eq!((usize::from(back.address().sgid_index), back.address().dgid), (i, a.gids()[i]));
        b_qp.post_send(&SendWr {
            to: Some(back.to(a_qp.qpn(), KEY)),
            ..SendWr::send(4, &[b_mr.sge(100..110)])
        })
        .unwrap();
        assert_eq!(b_cq.wait(SOON).unwrap().wr_id, 4);
        assert_eq!(a_cq.wait(SOON).unwrap().wr_id, 3);
    }
}

#[test]
fn two_devices_communicate_over_each_gid_at_once() {
    let net = Veth::new(1500);
    let theirs = [addresses(&net, 0, "v0"), addresses(&net, 1, "v1")];
    for shards in [1, 2] {
        let (a, b) = (open(&net, 0, "udp:v0", shards), open(&net, 1, "udp:v1", shards));
        for ((context, ips), n) in [&a, &b].into_iter().zip(&theirs).zip(1..) {
            let gids: Vec<IpAddr> = context.gids().iter().map(|gid| gid.ip()).collect();
            assert_eq!(&gids, ips);
            assert!(matches!(gids[0], IpAddr::V6(ip) if ip.is_unicast_link_local()), "{gids:?}");
            assert_eq!(
                gids[1..],
                [format!("10.77.0.{n}"), format!("fd77::{n}")].map(|t| t.parse::<IpAddr>().unwrap())
            );
            assert_eq!(context.main_gid(), Some(1));
        }
        let pairs: Vec<_> = (0..3).map(|_| (node(&a), node(&b))).collect();
        pairs.iter().enumerate().for_each(|(i, (a, b))| connect((a, i), (b, i)));
        write_both_ways(&pairs);
        exchange_datagrams(&a, &b);
        assert_eq!((a.link_state().0.tx_dropped, b.link_state().0.tx_dropped), (0, 0));
    }
}

#[test]
fn same_address_on_two_interfaces_makes_two_devices() {
    let net = Veth::new(1500);
    let [a, b] = &net.names;
    ip(&format!("-n {a} link add w0 type veth peer name w1 netns {b}"));
    for (name, n, devices) in [(a, 7, ["v0", "w0"]), (b, 8, ["v1", "w1"])] {
        for device in devices {
            ip(&format!("-n {name} link set {device} up"));
            ip(&format!("-n {name} addr add fe80::{n}/64 dev {device} nodad"));
        }
    }
    let pairs = ["v", "w"].map(|net_of| {
        let a = open(&net, 0, &format!("udp:fe80::7%{net_of}0"), 1);
        let b = open(&net, 1, &format!("udp:fe80::8%{net_of}1"), 1);
        assert_eq!(a.gids(), [Gid::from("fe80::7".parse::<IpAddr>().unwrap())]);
        let (a, b) = (node(&a), node(&b));
        connect((&a, 0), (&b, 0));
        (a, b)
    });
    write_both_ways(&pairs);
}

#[test]
fn tentative_address_is_waited_for() {
    let net = Veth::new(1500);
    addresses(&net, 0, "v0");
    ip(&format!("-n {} addr add fd77::7/64 dev v0", net.names[0]));
    let a = open(&net, 0, "udp:v0", 1);
    let late = Gid::from("fd77::7".parse::<IpAddr>().unwrap());
    let place = a.gids().iter().position(|gid| *gid == late).expect("it is in the table");
    let b = open(&net, 1, "udp:fd77::2", 1);
    let (a, b) = (node(&a), node(&b));
    let options = ConnectOptions { sgid_index: Some(place as u8), ..ConnectOptions::default() };
    a.qp.connect(&b.qp.endpoint(), &options).unwrap();
    b.qp.connect(&a.qp.endpoint_at(place).unwrap(), &ConnectOptions::default()).unwrap();
    write_both_ways(&[(a, b)]);
}

#[test]
fn address_is_not_waited_for_without_carrier() {
    let net = Veth::new(1500);
    addresses(&net, 0, "v0");
    ip(&format!("-n {} link set v1 down", net.names[1]));
    ip(&format!("-n {} addr add fd77::7/64 dev v0", net.names[0]));
    let begun = Instant::now();
    let gids = open(&net, 0, "udp:v0", 1).gids();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(gids.iter().any(|gid| gid.ip() == "fd77::7".parse::<IpAddr>().unwrap()), "{gids:?}");
}

#[test]
fn missing_interface_or_address_is_reported() {
    let why = |link: &str| match link.parse::<LinkSpec>().unwrap().bind(1) {
        Err(e @ BindError::Udp(_)) => (e.to_string(), e.errno()),
        other => panic!("{link}: {:?}", other.map(|_| ())),
    };
    let (text, errno) = why("udp:no-such-one");
    assert!(text.starts_with("no interface 'no-such-one' is up and has an IP address"), "{text}");
    assert_eq!(errno, 19);
    assert!(why("udp:fd77::99%lo").0.starts_with("fd77::99 is no address of"));
}
