//! Tests of packet links between two network namespaces joined by a veth pair. Needs root.

mod flow_control;
mod no_offload;
mod offload;
mod shards;
mod tap;

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant as Clock};

use offload::kernel_supports_udp_gso;
use urxe::link::{Link, LinkCounters, Multicast, PacketConfig, PacketError, PacketLink, PortState};
use urxe::transport::{Instant, TxQueue};
use urxe::wire::{Flow, icrc};
use urxe_test_support::netns::Veth;
use urxe_test_support::numbered::{expect, now, packets};

fn try_open(net: &Veth, side: usize, spec: &str) -> Result<PacketLink, PacketError> {
    let config: PacketConfig = spec.parse().unwrap();
    net.sides[side].run(|| PacketLink::open(config))
}

fn open(net: &Veth, side: usize, spec: &str) -> PacketLink {
    try_open(net, side, spec).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

/// Joins a multicast group on a thread in the namespace of `side`: the link opens a socket, which belongs to
/// the namespace of its thread.
fn join(net: &Veth, side: usize, link: &mut PacketLink, start: Clock, group: &str) {
    let group = group.parse().unwrap();
    net.sides[side].run(|| link.join(now(start), group)).unwrap();
}

fn ping(net: &Veth, side: usize, target: &str) -> bool {
    let mut ping = net.sides[side].command("ping");
    let out = ping.args(["-c", "1", "-W", "3", "-s", "1000", target]).output().unwrap();
    assert!(
        !String::from_utf8_lossy(&out.stderr).contains("No such file"),
        "this test needs ping (apt-get install iputils-ping)"
    );
    out.status.success()
}

/// Exchanges packets in both directions over IPv4 and IPv6; returns the smallest number of bursts in which
/// 200 packets arrived.
fn exchange(a: &mut PacketLink, b: &mut PacketLink, hosts: [u32; 2]) -> usize {
    let start = Clock::now();
    let mut min_bursts = usize::MAX;
    for net in ["10.77.0.", "fd77::"] {
        let [x, y]: [IpAddr; 2] = hosts.map(|n| format!("{net}{n}").parse().unwrap());
        let mut queue = TxQueue::new(a.info().burst);
        let flow = Flow { traffic_class: 0x68, hop_limit: 17, ..Flow::new(x, y, 4000) };
        packets(&mut queue, &flow, 200, 1024);
        for _ in 0..2 {
            // The first packets wait for the neighbour.
            a.transmit(now(start), &queue).unwrap();
            min_bursts = min_bursts.min(expect(b, a, start, &flow, 200));
        }
        queue.clear();
        let back = Flow::new(y, x, 4001);
        packets(&mut queue, &back, 100, 100);
        packets(&mut queue, &Flow { flow_label: 0, ..back }, 1, 5);
        b.transmit(now(start), &queue).unwrap();
        let mut got = 0;
        while got < 101 {
            assert!(start.elapsed() < Duration::from_secs(20));
            a.receive(now(start), &mut |r| got += r.packets().count()).unwrap();
            b.receive(now(start), &mut |_| {}).unwrap();
        }
    }
    // The kernel sends router solicitations now and then, which a host stack receives.
    for mut counters in [a.counters(), b.counters()] {
        counters.rx_foreign = 0;
        assert_eq!(counters, LinkCounters::default());
    }
    min_bursts
}

#[test]
fn kernel_segmented_packets_arrive_over_packet_sockets_with_interface_addresses() {
    let net = Veth::new(1500);
    let (mut a, mut b) = (open(&net, 0, "packet:v0"), open(&net, 1, "packet:v1"));
    assert_eq!(a.info().mtu, 1500);
    assert!(a.info().addresses.iter().any(|a| a.to_string() == "10.77.0.1"));
    let bursts = exchange(&mut a, &mut b, [1, 2]);
    assert_eq!(a.offloads(), kernel_supports_udp_gso());
    assert_eq!(bursts < 10, a.offloads(), "{bursts} bursts of 200 packets");
}

#[test]
fn packets_sent_without_offload_arrive_on_packet_links_that_use_interface_addresses() {
    let net = Veth::new(1500);
    let (mut a, mut b) = (open(&net, 0, "packet:v0,offload=off"), open(&net, 1, "packet:v1,offload=off"));
    assert_eq!(exchange(&mut a, &mut b, [1, 2]), 200);
}

#[test]
fn gso_packets_are_segmented_for_receiver_without_offload() {
    // The kernel segments for a device without the offload: identifications increase, as the ICRC expects.
    let net = Veth::new(1500);
    offload::ethtool(&net, 0, "tx-udp-segmentation off");
    let (mut a, mut b) = (open(&net, 0, "packet:v0"), open(&net, 1, "packet:v1"));
    assert_eq!(exchange(&mut a, &mut b, [1, 2]), 200);
    assert_eq!(a.offloads(), kernel_supports_udp_gso());
}

#[test]
fn packet_links_with_own_host_stacks_exchange_packets() {
    let net = Veth::new(1500);
    for offload in ["on", "off"] {
        let spec =
            |dev: &str, n: u32| format!("packet:{dev},ip=10.77.0.{n}/24,ip=fd77::{n}/64,offload={offload}");
        let (mut a, mut b) = (open(&net, 0, &spec("v0", 11)), open(&net, 1, &spec("v1", 12)));
        let bursts = exchange(&mut a, &mut b, [11, 12]);
        assert_eq!(bursts < 200, offload == "on" && kernel_supports_udp_gso(), "{bursts}");
        // One end of each kind.
        drop(b);
        let mut b = open(&net, 1, &format!("packet:v1,offload={offload}"));
        exchange(&mut a, &mut b, [11, 2]);
    }
}

#[test]
fn own_host_stack_answers_ping_of_the_kernel() {
    let net = Veth::new(1500);
    let mut a = open(&net, 0, "packet:v0,ip=10.77.0.11/24,ip=fd77:0:0:0::11/64,mac=52:54:00:77:00:0b");
    let start = Clock::now();
    for target in ["10.77.0.11", "fd77::11"] {
        let is_answered = std::thread::scope(|s| {
            let ping = s.spawn(|| ping(&net, 1, target));
            while !ping.is_finished() {
                a.receive(now(start), &mut |_| panic!("unexpected packet")).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            ping.join().unwrap()
        });
        assert!(is_answered, "{target}; {:?}", a.counters());
    }
    // The kernel sends router solicitations now and then.
    let mut counters = a.counters();
    counters.rx_foreign = 0;
    assert_eq!(counters, LinkCounters::default());
}

#[test]
fn open_link_suppresses_icmp_port_unreachable() {
    let net = Veth::new(1500);
    let is_port_unreachable = |net: &Veth| {
        net.sides[1].run(|| {
            let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
            socket.connect("10.77.0.1:4791").unwrap();
            (0..5).any(|_| {
                let sent = socket.send(&[0; 40]);
                std::thread::sleep(Duration::from_millis(20));
                sent.is_err()
            })
        })
    };
    assert!(is_port_unreachable(&net), "without a link, the kernel sends ICMP port unreachable");
    let mut a = open(&net, 0, "packet:v0");
    assert!(!is_port_unreachable(&net));
    let mut got = 0;
    a.receive(Instant(0), &mut |b| got += b.packets().count()).unwrap();
    assert_eq!(got, 5);
}

#[test]
fn packets_to_an_unresponsive_neighbour_are_dropped_and_counted() {
    let net = Veth::new(1500);
    let mut a = open(&net, 0, "packet:v0");
    let mut queue = TxQueue::new(a.info().burst);
    for dst in ["10.77.0.99", "fd77::99", "10.78.0.1"] {
        let dst: IpAddr = dst.parse().unwrap();
        let src = if dst.is_ipv4() { "10.77.0.1" } else { "fd77::1" };
        packets(&mut queue, &Flow::new(src.parse().unwrap(), dst, 1), 2, 100);
    }
    let start = Clock::now();
    a.transmit(now(start), &queue).unwrap();
    while let Some(when) = a.next_deadline() {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(when.since(now(start)));
        a.receive(now(start), &mut |_| {}).unwrap();
    }
    assert_eq!(a.counters().tx_unresolved, 6);
}

#[test]
fn packets_beyond_the_subnet_are_sent_to_the_router() {
    let net = Veth::new(1500);
    net.sides[0].ip("route add 10.99.0.0/16 via 10.77.0.2");
    let mut a = open(&net, 0, "packet:v0");
    // A host stack with the router's MAC receives the packets sent beyond the subnet.
    let mac = urxe::wire::Mac(open(&net, 1, "packet:v1").info().mac);
    let mut b = open(&net, 1, &format!("packet:v1,ip=10.99.0.1/32,mac={mac}"));
    let mut queue = TxQueue::new(a.info().burst);
    let flow = Flow::new("10.77.0.1".parse().unwrap(), "10.99.0.1".parse().unwrap(), 1);
    packets(&mut queue, &flow, 3, 100);
    let start = Clock::now();
    a.transmit(now(start), &queue).unwrap();
    expect(&mut b, &mut a, start, &flow, 3);
    assert_eq!(a.counters(), LinkCounters::default());
}

/// Sends three packets from `src` to a group through link `a`, and returns the number of packets that each
/// link receives until none has arrived for 100 ms, of which it was polled 100 times at least.
fn send_to_group(a: &mut PacketLink, b: &mut PacketLink, src: &str, group: &str, start: Clock) -> [usize; 2] {
    let flow = Flow { hop_limit: 1, ..Flow::new(src.parse().unwrap(), group.parse().unwrap(), 4000) };
    let mut queue = TxQueue::new(a.info().burst);
    packets(&mut queue, &flow, 3, 500);
    a.transmit(now(start), &queue).unwrap();
    let (mut got, mut polls, mut last) = ([0; 2], 0, Clock::now());
    while last.elapsed() < Duration::from_millis(100) || polls < 100 {
        polls += 1;
        for (link, got) in [&mut *a, &mut *b].into_iter().zip(&mut got) {
            link.receive(now(start), &mut |burst| {
                assert_eq!(burst.flow, flow);
                for (i, data) in burst.packets() {
                    assert!(icrc::verify(&burst.flow, burst.ident, i, data));
                    *got += 1;
                    (polls, last) = (0, Clock::now());
                }
            })
            .unwrap();
        }
    }
    got
}

#[test]
fn multicast_reaches_joined_members_only() {
    let net = Veth::new(1500);
    let station = |dev: &str, n: u32| format!("packet:{dev},ip=10.77.0.{n}/24,ip=fd77::{n}/64");
    let links = [
        ["packet:v0".to_owned(), "packet:v1".to_owned()],
        [station("v0", 1), station("v1", 2)],
        ["packet:v0,offload=off".to_owned(), station("v1", 2)],
    ];
    for [a, b] in links {
        let (mut a, mut b) = (open(&net, 0, &a), open(&net, 1, &b));
        let start = Clock::now();
        for (src, group) in [("10.77.0.1", "239.1.2.3"), ("fd77::1", "ff15::7")] {
            let ip: IpAddr = group.parse().unwrap();
            assert_eq!(send_to_group(&mut a, &mut b, src, group, start), [0, 0]);
            join(&net, 1, &mut b, start, group);
            join(&net, 1, &mut b, start, group);
            assert_eq!(send_to_group(&mut a, &mut b, src, group, start), [0, 3]);
            join(&net, 0, &mut a, start, group);
            assert_eq!(send_to_group(&mut a, &mut b, src, group, start), [3, 3]);
            b.leave(ip);
            assert_eq!(send_to_group(&mut a, &mut b, src, group, start), [3, 0]);
            a.leave(ip);
        }
        // Multicast needs no neighbour resolution.
        assert_eq!([a.counters().tx_unresolved, b.counters().tx_unresolved], [0, 0]);
    }
}

#[test]
fn link_with_interface_address_joins_groups_through_the_kernel() {
    let net = Veth::new(1500);
    let is_member = |group: &str| {
        let out = net.sides[0].command("ip").args(["maddr", "show", "dev", "v0"]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).contains(group)
    };
    // A child process that another test starts has the sockets of the memberships until it executes a
    // program.
    let ends = |group: &str| {
        let start = Clock::now();
        while is_member(group) && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        !is_member(group)
    };
    let mut a = open(&net, 0, "packet:v0");
    for group in ["239.1.2.3", "ff15::7"] {
        assert!(!is_member(group));
        join(&net, 0, &mut a, Clock::now(), group);
        assert!(is_member(group));
        a.leave(group.parse().unwrap());
        assert!(ends(group));
        join(&net, 0, &mut a, Clock::now(), group);
    }
    assert!(a.join(Instant(0), "10.77.0.2".parse().unwrap()).is_err());
    drop(a);
    assert!(ends("239.1.2.3") && ends("ff15::7"), "the memberships end with the link");
}

/// Connects the links through a bridge that forwards packets to a group only to ports on which IGMP or MLD
/// has reported a member.
#[test]
fn snooping_switch_forwards_joined_groups() {
    let net = Veth::new(1500);
    for command in [
        "link add br0 type bridge mcast_snooping 1 mcast_query_response_interval 100",
        "link set br0 type bridge mcast_startup_query_interval 100 mcast_startup_query_count 10 mcast_querier 1",
        "addr flush dev v0",
        "link set v0 master br0",
        "link set v0 type bridge_slave mcast_flood off mcast_fast_leave on",
        "link set br0 up",
        "link add v2 type veth peer name v3",
        "link set v3 master br0",
        "link set v3 up",
        "link set v2 up",
        "addr add 10.77.0.1/24 dev v2",
        "addr add fd77::1/64 dev v2 nodad",
    ] {
        net.sides[0].ip(command);
    }
    // The bridge starts snooping after the response time of its first query.
    std::thread::sleep(Duration::from_secs(3));
    let mut a = open(&net, 0, "packet:v2,offload=off");
    for spec in ["packet:v1,ip=10.77.0.9/24,ip=fd77::9/64,mac=52:54:00:77:00:09", "packet:v1"] {
        let mut b = open(&net, 1, spec);
        let start = Clock::now();
        for (src, group) in [("10.77.0.1", "239.1.2.3"), ("fd77::1", "ff15::7")] {
            let ip: IpAddr = group.parse().unwrap();
            // Flooded packets and router solicitations of the kernel are not addressed to the link.
            let before = b.counters().rx_foreign;
            assert_eq!(send_to_group(&mut a, &mut b, src, group, start), [0, 0]);
            assert!(b.counters().rx_foreign - before < 3, "the switch forwards a group without members");
            join(&net, 1, &mut b, start, group);
            // The kernel delays its reports.
            let is_forwarded = (0..30).any(|_| send_to_group(&mut a, &mut b, src, group, start) == [0, 3]);
            assert!(is_forwarded, "{spec}: the switch does not forward {group}");
            b.leave(ip);
        }
    }
}

#[test]
fn error_for_a_missing_interface_address_or_permission_explains_the_cause() {
    let net = Veth::new(1500);
    let open_error = |spec: &str| try_open(&net, 0, spec).unwrap_err().to_string();
    let message = open_error("packet:eth7");
    assert!(message.contains("eth7") && message.contains("lo, v0"), "{message}");
    net.sides[0].ip("link set v0 down");
    assert!(open_error("packet:v0").contains("ip link set v0 up"));
    net.sides[0].ip("link set v0 up");
    net.sides[0].ip("addr flush dev v0");
    assert!(open_error("packet:v0").contains("ip addr add"));
    let error = net.sides[0].run(|| {
        // SAFETY: the raw system call takes integers only and changes the user of this thread only, which
        // ends here.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        PacketLink::open("packet:v0,ip=10.77.0.1".parse().unwrap()).unwrap_err().to_string()
    });
    assert!(error.contains("CAP_NET_RAW") && error.contains("--link udp"), "{error}");
}

#[test]
fn link_local_address_of_interface_is_first_in_gid_table() {
    let net = Veth::new(1500);
    let start = Clock::now();
    // The kernel assigns one a moment after the interface is up.
    loop {
        let addresses = open(&net, 0, "packet:v0").info().addresses.clone();
        if addresses.len() == 3 {
            assert!(addresses[0].to_string().starts_with("fe80:"), "{addresses:?}");
            assert_eq!(addresses[1..], ["10.77.0.1", "fd77::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{addresses:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn receive_fails_after_the_interface_is_removed() {
    let net = Veth::new(1500);
    let mut a = open(&net, 0, "packet:v0");
    net.sides[0].ip("link set v0 down");
    a.receive(Instant(0), &mut |_| {}).expect("a link that is down still works");
    net.sides[0].ip("link set v0 up");
    a.receive(Instant(0), &mut |_| {}).unwrap();
    net.sides[0].ip("link del v0");
    let result = net.sides[0].run(|| a.receive(Instant(0), &mut |_| {}));
    assert!(result.is_err());
}
