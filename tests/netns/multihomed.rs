//! Tests of devices with several addresses: the GID table contains all addresses of the interface (link-local
//! IPv6, IPv4 and other IPv6), and every address can be used for connections and datagrams. Needs root.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use urxe::host::interfaces;
use urxe::link::{BindError, LinkSpec};
use urxe::verbs::*;

use urxe_test_support::netns::Veth;
use urxe_test_support::nic::Nic;

const TIMEOUT: Duration = Duration::from_secs(20);
const QKEY: QKey = QKey(0x7777);

/// Opens a device on a link in a namespace; the device's threads run outside the namespace.
fn open(net: &Veth, side: usize, link: &str, shards: usize) -> Context {
    let link: LinkSpec = link.parse().unwrap();
    let links = net.sides[side].run(|| link.bind(shards).unwrap_or_else(|e| panic!("{link}: {e}")));
    Context::open_shards(links, &ContextOptions::default()).unwrap()
}

/// Returns the addresses of an interface in a namespace. Waits for the link-local one, which the kernel
/// assigns when it detects a carrier.
fn addresses(net: &Veth, side: usize, interface: &str) -> Vec<IpAddr> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let all = net.sides[side].run(interfaces);
        let found = all.into_iter().find(|i| i.name == interface).unwrap();
        if matches!(found.addresses[0], IpAddr::V6(_)) {
            return found.addresses;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn node(context: &Context) -> TestEndpoint {
    TestEndpoint::new(context.clone()).unwrap()
}

/// Connects two endpoints, each with the GID at the given index.
fn connect((a, i): (&TestEndpoint, usize), (b, j): (&TestEndpoint, usize)) {
    let (to_a, to_b) = (a.qp.endpoint_at(i).unwrap(), b.qp.endpoint_at(j).unwrap());
    a.qp.connect(&to_b, &ConnectOptions::default()).unwrap();
    b.qp.connect(&to_a, &ConnectOptions::default()).unwrap();
}

/// Sends WRITEs in both directions at once, large enough to take many transmit turns.
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
        (0..TIMES).for_each(|n| assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, n));
        (0..TIMES).for_each(|n| assert_eq!(b.cq.wait(TIMEOUT).unwrap().wr_id, n));
        for (side, to) in [(0, of_b), (1, of_a)] {
            let mut got = vec![0; LEN];
            to[1].read(0, &mut got).unwrap();
            assert!(got.iter().all(|b| *b == byte(i, side)), "pair {i}, from side {side}");
        }
    }
}

/// Sends a datagram from each GID of `a`, and a response from `b` to its source.
fn exchange_datagrams(a: &Context, b: &Context) {
    let (a, b) = (Nic::new(a.clone(), 4096), Nic::new(b.clone(), 4096));
    let (a_qp, b_qp) = (a.qp(QpType::Ud), b.qp(QpType::Ud));
    [&a_qp, &b_qp].into_iter().for_each(|qp| qp.activate(QKEY).unwrap());
    for (i, gid) in b.context.gids().into_iter().enumerate() {
        b_qp.post_recv(&RecvWr::new(1, &[b.mr.sge(0..100)])).unwrap();
        a_qp.post_recv(&RecvWr::new(3, &[a.mr.sge(0..100)])).unwrap();
        let av = AddressVector::to(gid).sgid_index(i as u8);
        let to = Some(a.pd.create_ah(&av).unwrap().to(b_qp.qpn(), QKEY));
        a_qp.post_send(&SendWr::send(2, &[a.mr.sge(100..110)]).to(to)).unwrap();
        let wc = b.cq.wait(TIMEOUT).unwrap();
        assert_eq!((wc.wr_id, wc.grh, wc.over_ipv4), (1, true, gid.ip().is_ipv4()));
        assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 2);

        let mut header = [0; grh::LEN];
        b.mr.read(0, &mut header).unwrap();
        let back = b.pd.create_ah_from_wc(&wc, &header).unwrap();
        assert_eq!((usize::from(back.address().sgid_index), back.address().dgid), (i, a.context.gids()[i]));
        b_qp.post_send(&SendWr::send(4, &[b.mr.sge(100..110)]).to(back.to(a_qp.qpn(), QKEY))).unwrap();
        assert_eq!(b.cq.wait(TIMEOUT).unwrap().wr_id, 4);
        assert_eq!(a.cq.wait(TIMEOUT).unwrap().wr_id, 3);
    }
}

#[test]
fn two_devices_communicate_over_each_gid_at_once() {
    let net = Veth::new(1500);
    let host_addresses = [addresses(&net, 0, "v0"), addresses(&net, 1, "v1")];
    for shards in [1, 2] {
        let (a, b) = (open(&net, 0, "udp:v0", shards), open(&net, 1, "udp:v1", shards));
        for ((context, ips), n) in [&a, &b].into_iter().zip(&host_addresses).zip(1..) {
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
fn same_address_on_two_interfaces_can_be_opened_as_two_devices() {
    let net = Veth::new(1500);
    net.join(["w0", "w1"], 1500).unwrap();
    let [a, b] = &net.sides;
    for (side, n, devices) in [(a, 7, ["v0", "w0"]), (b, 8, ["v1", "w1"])] {
        for device in devices {
            side.ip(&format!("addr add fe80::{n}/64 dev {device} nodad"));
        }
    }
    let pairs = ["v", "w"].map(|prefix| {
        let a = open(&net, 0, &format!("udp:fe80::7%{prefix}0"), 1);
        let b = open(&net, 1, &format!("udp:fe80::8%{prefix}1"), 1);
        assert_eq!(a.gids(), [Gid::from("fe80::7".parse::<IpAddr>().unwrap())]);
        let (a, b) = (node(&a), node(&b));
        connect((&a, 0), (&b, 0));
        (a, b)
    });
    write_both_ways(&pairs);
}

#[test]
fn open_waits_for_a_tentative_address() {
    let net = Veth::new(1500);
    addresses(&net, 0, "v0");
    net.sides[0].ip("addr add fd77::7/64 dev v0");
    let a = open(&net, 0, "udp:v0", 1);
    let late = Gid::from("fd77::7".parse::<IpAddr>().unwrap());
    let index = a.gids().iter().position(|gid| *gid == late).expect("fd77::7 is not in the GID table");
    let b = open(&net, 1, "udp:fd77::2", 1);
    let (a, b) = (node(&a), node(&b));
    let options = ConnectOptions::default().sgid_index(index as u8);
    a.qp.connect(&b.qp.endpoint(), &options).unwrap();
    b.qp.connect(&a.qp.endpoint_at(index).unwrap(), &ConnectOptions::default()).unwrap();
    write_both_ways(&[(a, b)]);
}

/// Returns a network in which the kernel detects the carrier of `v0`, but does not act on it until the mode
/// changes.
fn with_unprocessed_carrier() -> Veth {
    let net = Veth::new(1500);
    net.sides[0].ip("link set v0 down");
    net.sides[0].ip("link set v0 up mode dormant");
    net
}

#[test]
fn open_waits_for_the_link_local_address_if_the_carrier_is_new() {
    let net = with_unprocessed_carrier();
    let gids = std::thread::scope(|scope| {
        let opened = scope.spawn(|| open(&net, 0, "udp:v0", 1).gids());
        std::thread::sleep(Duration::from_millis(50));
        net.sides[0].ip("link set v0 mode default state up");
        opened.join().unwrap()
    });
    assert!(matches!(gids[0].ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()), "{gids:?}");
}

#[test]
fn open_waits_only_shortly_if_the_kernel_does_not_act_on_a_carrier() {
    let net = with_unprocessed_carrier();
    let times = [(); 3].map(|()| {
        let start = Instant::now();
        let gids = open(&net, 0, "udp:v0", 1).gids();
        assert_eq!(gids, [Gid::from(IpAddr::from([10, 77, 0, 1]))]);
        start.elapsed()
    });
    // On a loaded machine, one of several must do.
    assert!(times.iter().any(|time| *time < Duration::from_secs(2)), "{times:?}");
}

#[test]
fn open_does_not_wait_for_an_address_without_carrier() {
    let net = Veth::new(1500);
    addresses(&net, 0, "v0");
    net.sides[1].ip("link set v1 down");
    net.sides[0].ip("addr add fd77::7/64 dev v0");
    // On a loaded machine, one of several must do.
    let (mut gids, mut times) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let start = Instant::now();
        gids = open(&net, 0, "udp:v0", 1).gids();
        times.push(start.elapsed());
    }
    assert!(times.iter().any(|time| *time < Duration::from_secs(2)), "{times:?}");
    assert!(gids.iter().any(|gid| gid.ip() == "fd77::7".parse::<IpAddr>().unwrap()), "{gids:?}");
}

#[test]
fn error_for_a_missing_interface_or_address_names_it() {
    let bind_error = |link: &str| match link.parse::<LinkSpec>().unwrap().bind(1) {
        Err(e @ BindError::Udp(_)) => (e.to_string(), e.errno()),
        other => panic!("{link}: {:?}", other.map(|_| ())),
    };
    let (text, errno) = bind_error("udp:no-such-one");
    assert!(text.starts_with("interface 'no-such-one' does not exist, is down or has"), "{text}");
    assert_eq!(errno, 19);
    assert!(bind_error("udp:fd77::99%lo").0.starts_with("fd77::99 is not an address of"));
}
