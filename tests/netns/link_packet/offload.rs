//! Tests of GSO super-packets, which the kernels between sender and receiver may leave whole, segment, or
//! coalesce again.

use std::net::IpAddr;
use std::time::{Duration, Instant as Clock};

use urxe::link::udp::{UdpLink, UdpLinkError, UdpOptions};
use urxe::link::{Link, LinkCounters, PortState};
use urxe::transport::TxQueue;
use urxe::verbs::*;
use urxe::wire::{Bth, Flow, Headers, Opcode, Packet, icrc};

use super::{now, open};
use urxe_test_support::netns::Veth;
use urxe_test_support::nic;

pub const FAMILIES: [&str; 2] = ["10.77.0.", "fd77::"];

pub fn addresses(family: &str) -> [IpAddr; 2] {
    [1, 2].map(|n| format!("{family}{n}").parse().unwrap())
}

/// Reports whether packet sockets support UDP super-packets, as they do from Linux 6.4 on.
pub fn kernel_supports_udp_gso() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let is_supported = (numbers.next(), numbers.next()) >= (Some(6), Some(4));
    if !is_supported {
        println!(
            "Linux {} does not support UDP GSO on packet sockets: no super-packets are expected",
            release.trim()
        );
    }
    is_supported
}

/// Returns byte `at` of the payload of packet `number`.
pub fn byte(number: usize, at: usize) -> u8 {
    (at * 7 + at / 256 + number) as u8
}

/// Queues packets with the given payload lengths.
pub fn queue(link: &dyn Link, flow: &Flow, lens: &[usize]) -> TxQueue {
    let mut queue = TxQueue::new(link.info().burst);
    for (number, len) in lens.iter().enumerate() {
        let payload: Vec<u8> = (0..*len).map(|at| byte(number, at)).collect();
        let headers = Headers { bth: Bth { opcode: Opcode(4), ..Bth::default() }, ..Headers::default() };
        queue.push(flow, headers, &payload);
    }
    queue
}

/// Receives until packets with the given payload lengths have arrived, in order and intact. Returns the
/// number of packets in each burst.
pub fn expect(tx: &mut dyn Link, rx: &mut dyn Link, flow: &Flow, lens: &[usize]) -> Vec<usize> {
    expect_while(rx, flow, lens, |start| {
        tx.receive(now(start), &mut |_| panic!("the sender received a packet")).unwrap();
    })
}

/// Like [`expect`], but for a sender that needs no polling.
pub fn expect_from_peer(rx: &mut dyn Link, flow: &Flow, lens: &[usize]) -> Vec<usize> {
    expect_while(rx, flow, lens, |_| {})
}

fn expect_while(
    rx: &mut dyn Link,
    flow: &Flow,
    lens: &[usize],
    mut poll_sender: impl FnMut(Clock),
) -> Vec<usize> {
    let start = Clock::now();
    let (mut next, mut bursts) = (0, Vec::new());
    while next < lens.len() {
        let timed_out = start.elapsed() > Duration::from_secs(5);
        let counters = rx.port_state().map(|port| port.counters());
        assert!(!timed_out, "{next} of {} {flow:?} at {}: {counters:?}", lens.len(), rx.info().name);
        rx.receive(now(start), &mut |burst| {
            let [expected, actual] = [flow, &burst.flow].map(|f| (f.src, f.dst, f.src_port));
            assert_eq!(expected, actual);
            bursts.push(burst.packets().count());
            for (i, data) in burst.packets() {
                assert!(icrc::verify(&burst.flow, burst.ident, i, data), "packet {next}, {i} of its burst");
                let payload = Packet::parse(data).unwrap().payload().to_vec();
                assert_eq!(payload.len(), lens[next]);
                assert!(payload.iter().enumerate().all(|(at, b)| *b == byte(next, at)), "packet {next}");
                next += 1;
            }
        })
        .unwrap();
        poll_sender(start);
    }
    bursts
}

/// Sends packets with the given payload lengths. Returns the number of packets in each transmitted burst and
/// in each received one.
fn carry(tx: &mut dyn Link, rx: &mut dyn Link, flow: &Flow, lens: &[usize]) -> [Vec<usize>; 2] {
    let queue = queue(tx, flow, lens);
    tx.transmit(now(Clock::now()), &queue).unwrap();
    [queue.bursts().map(|b| b.packets).collect(), expect(tx, rx, flow, lens)]
}

/// Sends one packet, so that the links resolve each other's MAC addresses. Packets sent earlier would be
/// queued and then sent one by one.
pub fn resolve_neighbours(a: &mut dyn Link, b: &mut dyn Link, flow: &Flow) {
    carry(a, b, flow, &[1]);
}

/// Payload lengths of consecutive packets: odd and even, minimal and maximal, with and without a shorter last
/// packet.
const SHAPES: [&[usize]; 9] = [
    &[1024; 20],
    &[1000, 1000, 1000, 3],
    &[1001, 1001, 1000],
    &[0; 64],
    &[8; 100],
    &[1; 2],
    &[5, 5, 5, 900, 900, 900, 900, 900, 6],
    &[1400; 120],
    &[1, 2, 3, 4, 5, 500, 400],
];

fn udp(net: &Veth, side: usize, ip: IpAddr, segmentation: bool) -> Box<dyn Link> {
    let options = UdpOptions::default().segmentation(segmentation);
    let start = Clock::now();
    loop {
        match net.sides[side].run(|| UdpLink::bind(ip, &options)) {
            Ok(link) => return Box::new(link),
            // Processes that other tests start may hold the previous socket's port for a short time.
            Err(UdpLinkError::InUse { .. }) if start.elapsed() < Duration::from_secs(5) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

pub fn ethtool(net: &Veth, side: usize, options: &str) {
    let (mut ethtool, device) = (net.sides[side].command("ethtool"), Veth::DEVICES[side]);
    let out = ethtool.args(["-K", device]).args(options.split(' ')).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "ethtool (apt-get install ethtool) -K {device} {options}: {stderr}");
}

#[test]
fn gso_packets_of_every_shape_arrive_intact() {
    let net = Veth::new(1500);
    let (mut a, mut b) = (open(&net, 0, "packet:v0"), open(&net, 1, "packet:v1"));
    for [x, y] in FAMILIES.map(addresses) {
        resolve_neighbours(&mut a, &mut b, &Flow::new(x, y, 4000));
        resolve_neighbours(&mut b, &mut a, &Flow::new(y, x, 4000));
        for lens in SHAPES {
            let flows = [Flow::new(x, y, 4000), Flow::new(y, x, 4001)];
            for [sent, received] in
                [carry(&mut a, &mut b, &flows[0], lens), carry(&mut b, &mut a, &flows[1], lens)]
            {
                assert!(sent.len() < lens.len());
                assert_eq!(received, if kernel_supports_udp_gso() { sent } else { vec![1; lens.len()] });
            }
        }
    }
    assert_eq!([a.counters(), b.counters()], [LinkCounters::default(); 2]);
}

/// Connects each kind of sender to each kind of receiver, with segmentation by the kernel or by the device.
#[test]
fn packet_and_udp_links_with_and_without_segmentation_interoperate() {
    let kinds = ["packet", "packet,offload=off", "udp", "udp, no segmentation"];
    for kernel_segments in [false, true] {
        let net = Veth::new(1500);
        if kernel_segments {
            ethtool(&net, 0, "tx-udp-segmentation off");
            ethtool(&net, 1, "tx-udp-segmentation off");
        }
        for [x, y] in FAMILIES.map(addresses) {
            let open = |side: usize, kind: &str| -> Box<dyn Link> {
                match kind.strip_prefix("packet") {
                    Some(options) => Box::new(open(&net, side, &format!("packet:v{side}{options}"))),
                    None => udp(&net, side, [x, y][side], kind == "udp"),
                }
            };
            for (there, back) in kinds.iter().flat_map(|a| kinds.map(|b| (*a, b))) {
                let (mut a, mut b) = (open(0, there), open(1, back));
                resolve_neighbours(&mut *a, &mut *b, &Flow::new(x, y, 4791));
                resolve_neighbours(&mut *b, &mut *a, &Flow::new(y, x, 4791));
                for lens in SHAPES {
                    carry(&mut *a, &mut *b, &Flow::new(x, y, 4791), lens);
                    let [sent, received] = carry(&mut *b, &mut *a, &Flow::new(y, x, 4791), lens);
                    let sends_gso = back == "udp" || back == "packet" && kernel_supports_udp_gso();
                    let is_unsegmented = sends_gso && !kernel_segments && there != "udp, no segmentation";
                    assert_eq!(
                        received,
                        if is_unsegmented { sent } else { vec![1; lens.len()] },
                        "{back} to {there}"
                    );
                }
                let counters = [a, b].map(|mut link| link.port_state().unwrap().counters());
                assert_eq!(counters, [LinkCounters::default(); 2], "{there} and {back}");
            }
        }
    }
}

/// Makes the receiver's kernel coalesce packets that were sent one at a time, which it does whatever their
/// IPv4 IDs.
#[test]
fn packets_coalesced_by_the_kernel_are_split() {
    let net = Veth::new(1500);
    ethtool(&net, 0, "tx-udp-segmentation off");
    ethtool(&net, 1, "gro on rx-udp-gro-forwarding on");
    // The kernel delays packets in order to coalesce more of them.
    let delay_gro =
        "echo 2000000 >/sys/class/net/v1/gro_flush_timeout; echo 1 >/sys/class/net/v1/napi_defer_hard_irqs";
    let out = net.sides[1].command("sh").args(["-c", delay_gro]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for [x, y] in FAMILIES.map(addresses) {
        for (segmentation, options) in
            [(true, ""), (false, ""), (true, ",offload=off"), (false, ",offload=off")]
        {
            let mut a = udp(&net, 0, x, segmentation);
            let mut b = open(&net, 1, &format!("packet:v1{options}"));
            resolve_neighbours(&mut *a, &mut b, &Flow::new(x, y, 4791));
            let mut is_coalesced = false;
            for lens in SHAPES {
                let [_, received] = carry(&mut *a, &mut b, &Flow::new(x, y, 4791), lens);
                is_coalesced |= received.len() < lens.len();
            }
            assert!(
                is_coalesced,
                "no packets were coalesced: {x}, segmentation {segmentation}, options '{options}'"
            );
        }
    }
}

#[test]
fn packets_longer_than_interface_mtu_are_dropped_and_counted() {
    let net = Veth::new(1500);
    for (options, n) in [("", 5), (",offload=off", 5)] {
        let mut a = open(&net, 0, &format!("packet:v0{options}"));
        let [x, y] = addresses(FAMILIES[0]);
        let flow = Flow::new(x, y, 4000);
        let long = queue(&a, &flow, &[1457; 5]);
        a.transmit(now(Clock::now()), &long).unwrap();
        let mut expected = LinkCounters::default();
        expected.tx_oversized = n;
        assert_eq!(a.counters(), expected);
    }
}

/// Transfers messages of an odd length between two NICs; the payload is sent directly from user memory.
#[test]
fn messages_arrive_intact_with_and_without_offload() {
    let net = Veth::new(4500);
    let len = 777_777;
    for options in [["", ""], ["", ",offload=off"], [",offload=off", ""]] {
        let context =
            |side: usize| nic::open([open(&net, side, &format!("packet:v{side}{}", options[side]))]);
        let [a, b] = nic::pair([0, 1].map(context));
        let [x, y] = [&a, &b].map(|n| n.pd.reg_mr(len, Access::ALL).unwrap());
        let sent: Vec<u8> = (0..len).map(|at| byte(1, at)).collect();
        x.write(0, &sent).unwrap();
        let wait = || a.cq.wait(Duration::from_secs(10)).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        let pieces = [x.sge(0..1001), x.sge(1001..500_000), x.sge(500_000..len)];
        a.qp.post_send(&SendWr::write(1, &pieces, y.remote(0))).unwrap();
        wait();
        assert!(y.to_vec() == sent, "{options:?}");
        x.write(0, &vec![0; len]).unwrap();
        a.qp.post_send(&SendWr::read(2, &pieces, y.remote(0))).unwrap();
        wait();
        assert!(x.to_vec() == sent, "{options:?}");
    }
}
