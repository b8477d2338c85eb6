//! Tests of [`UdpLink`] over loopback, and over veth pairs in network namespaces.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant as Clock};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::cmsg::Control;
use super::socket::IpFields;
use super::*;
use crate::host::socket_calls::set_option;
use crate::memory::{Access, Accessor, Extent, HostSlice, PdId, Table};
use crate::netns::{self, Netns};
use crate::wire::{Bth, Headers, IpIdent, Opcode, Packet, icrc};

// Every test has its own addresses in 127/8, so that tests can run in parallel.

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// Binds a link, retrying for up to two seconds: a dropped link's port can remain in use for a moment,
/// because a child process that another test has forked holds all descriptors until it calls exec.
fn link(addr: &str) -> UdpLink {
    let start = Clock::now();
    loop {
        match UdpLink::bind(ip(addr), &UdpOptions::default()) {
            Err(UdpLinkError::InUse { .. }) if start.elapsed() < Duration::from_secs(2) => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.unwrap(),
        }
    }
}

fn without_segmentation(addr: &str) -> UdpLink {
    UdpLink::bind(ip(addr), &UdpOptions { segmentation: false, ..UdpOptions::default() }).unwrap()
}

fn flow(from: &UdpLink, to: &UdpLink) -> Flow {
    Flow::new(from.info.addresses[0], to.info.addresses[0], ROCE_PORT)
}

fn headers(psn: u32) -> Headers {
    let bth = Bth { opcode: Opcode(0x04), psn: crate::wire::Psn::new(psn), ..Bth::default() };
    Headers { bth, ..Headers::default() }
}

fn payload(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 256) as u8).collect()
}

/// Registers `len` bytes of memory filled with a pattern. Returns the memory, the table that it is registered
/// in, and a slice of all its bytes.
fn region(len: usize) -> (Box<[u8]>, Table, HostSlice) {
    let mut memory = payload(len, 5).into_boxed_slice();
    let mut table = Table::new();
    let addr = memory.as_mut_ptr().expose_provenance();
    // SAFETY: the memory is returned beside the table and lives as long in every test, and nothing writes to
    // it.
    let info =
        unsafe { table.register(PdId(1), Extent { addr, len, iova: addr as u64, access: Access::ALL }) }
            .unwrap();
    let slice = table
        .local(
            Accessor { pd: PdId(1), qpn: crate::wire::Qpn::new(2) },
            info.lkey,
            addr as u64,
            len as u32,
            Access::LOCAL_READ,
        )
        .unwrap();
    (memory, table, slice)
}

/// A received burst: flow, segment size, and packets.
struct RxRecord {
    flow: Flow,
    segment: usize,
    packets: Vec<Vec<u8>>,
}

/// Receives until `packets` packets have arrived, or none has arrived for 300 ms and 100 polls. Panics if an
/// ICRC is wrong.
fn receive(link: &mut UdpLink, packets: usize) -> Vec<RxRecord> {
    let (mut received, mut count, mut last, mut polls) = (Vec::new(), 0, Clock::now(), 0);
    while count < packets && (last.elapsed() < Duration::from_millis(300) || polls < 100) {
        polls += 1;
        let mut seen = 0;
        let n = link
            .receive(Instant(0), &mut |burst| {
                for (index, packet) in burst.packets() {
                    assert!(icrc::verify(&burst.flow, burst.ident, index, packet), "packet {index}");
                    seen += 1;
                }
                let packets = burst.packets().map(|(_, p)| p.to_vec()).collect();
                received.push(RxRecord { flow: burst.flow, segment: burst.segment, packets });
            })
            .unwrap();
        assert_eq!(n, seen);
        count += n;
        if n > 0 {
            (last, polls) = (Clock::now(), 0);
        }
    }
    received
}

fn data(packet: &[u8]) -> &[u8] {
    Packet::parse(packet).unwrap().payload()
}

#[test]
fn burst_from_user_memory_arrives_whole() {
    let (mut a, mut b) = (link("127.10.0.1"), link("127.10.0.2"));
    let (memory, _table, all) = region(15 * 4096 - 96);
    let mut q = TxQueue::new(a.info.burst);
    let (mut rest, mut psn) = (all, 0);
    while !rest.is_empty() {
        // Two pieces of memory per packet, as from two SGEs.
        let (one, remaining) = rest.split_at(rest.len().min(4096));
        let (head, tail) = one.split_at(1000);
        q.push_host(&flow(&a, &b), &headers(psn), &[head, tail]).unwrap();
        (rest, psn) = (remaining, psn + 1);
    }
    assert_eq!(q.bursts().len(), 1);
    a.transmit(Instant(0), &q).unwrap();

    let received = receive(&mut b, 15);
    assert_eq!(received.len(), 1, "the burst is received coalesced");
    assert_eq!((received[0].packets.len(), received[0].segment), (15, 4096 + 16));
    let expected = Flow::new(ip("127.10.0.1"), ip("127.10.0.2"), ROCE_PORT);
    assert_eq!(received[0].flow, expected);
    let joined: Vec<u8> = received[0].packets.iter().flat_map(|p| data(p)).copied().collect();
    assert_eq!(joined, &*memory);
    assert_eq!(a.counters(), LinkCounters::default());
    assert_eq!(b.counters(), LinkCounters::default());
}

#[test]
fn many_bursts_are_sent_in_order_by_one_call() {
    let (mut a, mut b, mut c) = (link("127.11.0.1"), link("127.11.0.2"), link("127.11.0.3"));
    let mut q = TxQueue::new(a.info.burst);
    for i in 0..300 {
        let to = if i % 3 == 0 { &c } else { &b };
        q.push(&flow(&a, to), headers(i), &payload(20 + i as usize % 50, i as usize));
    }
    assert!(q.bursts().len() > 2 * 64, "more bursts than one system call sends");
    for _ in 0..2 {
        a.transmit(Instant(0), &q).unwrap();
        for (link, expected) in [(&mut b, 200), (&mut c, 100)] {
            let received = receive(link, expected);
            let psns: Vec<u32> = received
                .iter()
                .flat_map(|g| &g.packets)
                .map(|p| Packet::parse(p).unwrap().bth().psn.get())
                .collect();
            assert_eq!(psns.len(), expected);
            assert!(psns.is_sorted());
        }
    }
}

#[test]
fn traffic_class_and_hop_limit_arrive_unchanged() {
    let (mut a, mut b) = (link("127.12.0.1"), link("127.12.0.2"));
    let flow = Flow { traffic_class: 0x6a, hop_limit: 17, ..flow(&a, &b) };
    for packets in [1, 3] {
        let mut q = TxQueue::new(a.info.burst);
        (0..packets).for_each(|i| q.push(&flow, headers(i), &[1; 300]));
        a.transmit(Instant(0), &q).unwrap();
        let received = receive(&mut b, packets as usize);
        assert_eq!((received.len(), received[0].flow), (1, flow));
    }
}

/// Receives a datagram and returns its traffic class and hop limit. IP_RECVTOS and IP_RECVTTL must be enabled
/// on the socket.
fn ip_fields(socket: &UdpSocket) -> (u8, u8) {
    let (mut data, mut control) = ([0u8; 512], Control::new());
    let mut slice = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: all zeros is a valid msghdr: null pointers and zero lengths.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut slice, 1);
    (header.msg_control, header.msg_controllen) = (control.bytes.as_mut_ptr().cast(), Control::ROOM as _);
    // SAFETY: the header points to `slice`, `data` and `control`, with their true lengths; all outlive the
    // call.
    assert!(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) } > 0);
    let found: Vec<_> =
        control.messages(header.msg_controllen).map(|(_, kind, data)| (kind, data[0])).collect();
    let value = |name| found.iter().find(|(kind, _)| *kind == name).unwrap().1;
    (value(libc::IP_TOS), value(libc::IP_TTL))
}

#[test]
fn packets_have_the_header_fields_of_their_flow_whatever_the_socket_defaults() {
    let mut a = link("127.12.1.1");
    let b = UdpSocket::bind("127.12.1.2:4791").unwrap();
    b.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for name in [libc::IP_RECVTOS, libc::IP_RECVTTL] {
        set_option(&b, libc::IPPROTO_IP, name, &1).unwrap();
    }
    let to = |traffic_class, hop_limit| Flow {
        traffic_class,
        hop_limit,
        ..Flow::new(ip("127.12.1.1"), ip("127.12.1.2"), ROCE_PORT)
    };
    let mut send = |flow: &Flow, packets: u32| {
        let mut q = TxQueue::new(a.info.burst);
        (0..packets).for_each(|i| q.push(flow, headers(i), &[1; 300]));
        a.transmit(Instant(0), &q).unwrap();
        let all: Vec<_> = (0..packets).map(|_| ip_fields(&b)).collect();
        all.windows(2).for_each(|two| assert_eq!(two[0], two[1]));
        (all[0], a.sender.defaults)
    };
    for packets in [1, 3] {
        for (class, limit) in [(0, 255), (0x68, 255), (0, 64), (2, 3)] {
            let ip_fields = IpFields { traffic_class: class, hop_limit: limit };
            // More often than it takes for the socket to adopt the fields.
            let all: Vec<_> = (0..20).map(|_| send(&to(class, limit), packets)).collect();
            assert!(all.iter().all(|(sent, _)| *sent == (class, limit)), "{all:?}");
            assert!(
                all[19].1 == ip_fields && (all[0].1 != ip_fields || ip_fields == IpFields::DEFAULT),
                "{packets} of {ip_fields:?}"
            );
            // Other header fields in between.
            assert_eq!(send(&to(5 << 2, 77), packets).0, (5 << 2, 77));
            assert_eq!(send(&to(0, 0), packets).0, (0, 64));
        }
    }
}

/// Sends a burst of five packets from `a` to `b`. Returns the IPv4 identification and flags of each packet
/// received, as inferred from its ICRC.
fn identifications(a: &mut UdpLink, b: &mut UdpLink) -> Vec<(u16, u16)> {
    let mut q = TxQueue::new(BurstLimits::SEGMENTED);
    (0..5).for_each(|i| q.push(&flow(a, b), headers(i), &payload(1024, i as usize)));
    a.transmit(Instant(0), &q).unwrap();
    let received = receive(b, 5);
    received.iter().flat_map(|g| g.packets.iter().map(|p| icrc::identify(&g.flow, 77, p).unwrap())).collect()
}

#[test]
fn ipv4_ids_count_up_in_a_burst_with_dont_fragment_set() {
    let df = IpIdent::DONT_FRAGMENT;
    let (mut a, mut b) = (link("127.13.0.1"), without_segmentation("127.13.0.2"));
    // The identifications that the ICRCs were computed for. The kernel segments before a socket that does not
    // coalesce.
    assert_eq!(identifications(&mut a, &mut b), [(0, df), (1, df), (2, df), (3, df), (4, df)]);
    // Packets sent singly all have identification 0, and ICRCs computed for it.
    assert_eq!(identifications(&mut b, &mut a), [(0, df); 5]);
    assert_eq!(b.info.burst, BurstLimits::SINGLE);
}

#[test]
fn packets_are_sent_singly_where_gso_is_unsupported() {
    let (mut a, mut b) = (link("127.19.0.1"), link("127.19.0.2"));
    a.sender.no_gso_to.push(ip("127.19.0.2"));
    assert_eq!(identifications(&mut a, &mut b), [(0, IpIdent::DONT_FRAGMENT); 5]);
}

#[test]
fn packets_above_the_mtu_do_not_disable_segmentation() {
    in_namespace(&[], || {
        let run = |args: &[&str]| assert!(Command::new("ip").args(args).status().unwrap().success());
        run(&["link", "set", "lo", "mtu", "1500"]);
        let mut a = link("127.0.0.1");
        assert_eq!(a.info.mtu, 1500);
        let mut q = TxQueue::new(a.info.burst);
        (0..4).for_each(|i| q.push(&flow(&a, &a), headers(i), &[1; 2048]));
        a.transmit(Instant(0), &q).unwrap();
        q.clear();
        (0..4).for_each(|i| q.push(&flow(&a, &a), headers(i), &[1; 1024]));
        a.transmit(Instant(0), &q).unwrap();
        assert_eq!(a.counters(), LinkCounters { tx_oversized: 4, ..LinkCounters::default() });
        assert!(a.sender.no_gso_to.is_empty());
        assert_eq!(receive(&mut a, 4).iter().map(|g| g.packets.len()).sum::<usize>(), 4);
    });
}

#[test]
fn packets_with_payload_from_many_slices_arrive_whole() {
    let (mut a, mut b) = (link("127.14.0.1"), link("127.14.0.2"));
    let (memory, _table, mut rest) = region(64 * 17 * 48);
    let mut q = TxQueue::new(a.info.burst);
    for psn in 0..64 {
        let slices: Vec<HostSlice> = (0..17)
            .map(|_| {
                let (one, remaining) = rest.split_at(48);
                rest = remaining;
                one
            })
            .collect();
        q.push_host(&flow(&a, &b), &headers(psn), &slices).unwrap();
    }
    a.transmit(Instant(0), &q).unwrap();
    let received = receive(&mut b, 64);
    let joined: Vec<u8> = received.iter().flat_map(|g| &g.packets).flat_map(|p| data(p)).copied().collect();
    assert_eq!(joined, &*memory);
}

#[test]
fn unsendable_packets_are_counted_and_the_rest_is_sent() {
    let (mut a, mut b) = (link("127.15.0.1"), link("127.15.0.2"));
    let good = flow(&a, &b);
    let mut q = TxQueue::new(a.info.burst);
    q.push(&good, headers(0), &[1; 65_510]);
    q.push(&good, headers(1), &[1; 10]);
    q.push(&Flow { src_port: 50_000, ..good }, headers(2), &[1; 10]);
    q.push(&Flow { src: ip("198.51.100.9"), ..good }, headers(3), &[1; 10]);
    q.push(&Flow { src: ip("198.51.100.9"), ..good }, headers(4), &[1; 10]);
    q.push(&good, headers(5), &[1; 10]);
    a.transmit(Instant(0), &q).unwrap();
    assert_eq!(receive(&mut b, 2).iter().map(|g| g.packets.len()).sum::<usize>(), 2);
    let c = a.counters();
    // Kernels differ in the error for a source address that is not local.
    assert_eq!((c.tx_oversized, c.tx_dropped + c.tx_unreachable), (1, 3));
}

#[test]
fn port_in_use_and_non_local_address_give_specific_errors() {
    let _a = link("127.16.0.1");
    let error = UdpLink::bind(ip("127.16.0.1"), &UdpOptions::default()).err().unwrap();
    let UdpLinkError::InUse { owner: PortOwner::Process { pid, .. }, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*pid, std::process::id());
    assert!(error.to_string().contains(&format!("in use by process {pid} (")), "{error}");

    let error = UdpLink::bind(ip("198.51.100.9"), &UdpOptions::default()).err().unwrap();
    assert!(matches!(error, UdpLinkError::NotLocal { .. }), "{error}");
}

#[test]
fn empty_datagram_is_counted_as_malformed() {
    let mut a = link("127.17.0.1");
    let other = UdpSocket::bind("127.17.0.2:0").unwrap();
    other.send_to(&[], "127.17.0.1:4791").unwrap();
    other.send_to(&[7; 12], "127.17.0.1:4791").unwrap();
    let mut sizes = Vec::new();
    while sizes.is_empty() {
        a.receive(Instant(0), &mut |b| sizes.push(b.data.len())).unwrap();
    }
    assert_eq!((sizes, a.counters().rx_malformed), (vec![12], 1));
    assert_eq!(a.receive(Instant(0), &mut |_| panic!("no datagram is expected")).unwrap(), 0);
}

/// Sends as many packets of `payload` bytes as the window permits, and only then reads them. Returns the
/// number received and the number sent.
fn unread_window(a: &mut UdpLink, b: &mut UdpLink, payload: usize) -> (usize, usize) {
    let (flow, bytes) = (flow(a, b), vec![9; payload]);
    let count = b.info.window / (payload + 16).max(MIN_CHARGE);
    let mut q = TxQueue::new(a.info.burst);
    for first in (0..count).step_by(15) {
        q.clear();
        (first..count.min(first + 15)).for_each(|i| q.push(&flow, headers(i as u32), &bytes));
        a.transmit(Instant(0), &q).unwrap();
    }
    (receive(b, count).iter().map(|g| g.packets.len()).sum(), count)
}

#[test]
fn one_unread_window_fits_into_the_receive_buffer_and_overflow_is_counted() {
    for (i, segmentation) in [true, false].into_iter().enumerate() {
        // The limit for an unprivileged process on a stock system.
        let options = UdpOptions { buffer: 212_992, segmentation, interface: None };
        let bind = |host: usize| UdpLink::bind(ip(&format!("127.18.{i}.{host}")), &options).unwrap();
        let (mut a, mut b) = (bind(1), bind(2));
        for payload in [4156, 4096, 3684, 2048, 1024, 650, 512, 256, 64, 8] {
            let (arrived, sent) = unread_window(&mut a, &mut b, payload);
            assert_eq!(arrived, sent, "payload {payload}, segmentation {segmentation}");
        }
        assert_eq!(b.counters().rx_overflow, 0);
        // More than any receive buffer that the kernel may have granted.
        b.info.window *= 40;
        let (arrived, sent) = unread_window(&mut a, &mut b, 4096);
        assert!(arrived < sent);
        // For a coalesced run, the kernel may count each packet or the run.
        let lost = b.counters().rx_overflow;
        assert!((1..=(sent - arrived) as u64).contains(&lost), "{lost} of {}", sent - arrived);
    }
}

#[test]
fn eight_unread_windows_fit_if_the_system_grants_the_receive_buffer() {
    // UC and UD send no more than a window per millisecond: the receiver may be away for this many
    // milliseconds.
    const WINDOWS: usize = 8;
    let options = UdpOptions { buffer: 212_992, segmentation: true, interface: None };
    let bind = |host| UdpLink::bind(ip(host), &options).unwrap();
    let (mut a, mut b) = (bind("127.18.2.1"), bind("127.18.2.2"));
    let rmem_max = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    if rmem_max.trim().parse::<usize>().unwrap() < 4 * options.buffer {
        return eprintln!("skipped: net.core.rmem_max is {rmem_max}");
    }
    b.info.window *= WINDOWS;
    let (arrived, sent) = unread_window(&mut a, &mut b, 4096);
    assert_eq!((arrived, b.counters().rx_overflow), (sent, 0));
    // They do not fit into a buffer sized for acknowledged traffic only.
    crate::host::socket_calls::set_receive_buffer(&b.socket, options.buffer).unwrap();
    let (arrived, sent) = unread_window(&mut a, &mut b, 4096);
    assert!(arrived < sent && b.counters().rx_overflow > 0);
}

/// Runs `test` in a new network namespace with the given addresses on its loopback interface. Skips the test
/// if the process may not create namespaces.
fn in_namespace(addresses: &[&str], test: impl FnOnce() + Send) {
    if !netns::is_available() {
        return;
    }
    let netns = Netns::new();
    for address in addresses {
        netns.ip(&format!("addr add {address} dev lo"));
    }
    // The kernel creates the local route of an IPv6 address slightly later than the address.
    let is_local = |ip: &str| {
        let output = netns.command("ip").args(["route", "get", ip, "from", ip]).output().unwrap().stdout;
        output.starts_with(b"local ")
    };
    let start = Clock::now();
    for (ip, _) in addresses.iter().filter_map(|a| a.split_once('/')) {
        while !is_local(ip) {
            assert!(start.elapsed() < Duration::from_secs(5), "no local route of {ip}");
            thread::sleep(Duration::from_millis(1));
        }
    }
    netns.run(test);
}

#[test]
fn ipv6_link_sends_and_receives_like_ipv4() {
    in_namespace(&["fd00::1/128", "fd00::2/128"], || {
        let (mut a, mut b) = (link("fd00::1"), link("fd00::2"));
        assert_eq!((a.info.mtu, &a.info.name[..]), (65_536, "udp fd00::1"));
        let flow = Flow { traffic_class: 0xb9, hop_limit: 33, ..flow(&a, &b) };
        let mut q = TxQueue::new(a.info.burst);
        (0..15).for_each(|i| q.push(&flow, headers(i), &payload(4096, 3)));
        a.transmit(Instant(0), &q).unwrap();
        let received = receive(&mut b, 15);
        assert_eq!((received.len(), received[0].packets.len(), received[0].flow), (1, 15, flow));
        assert!(received[0].packets.iter().all(|p| data(p) == payload(4096, 3)));

        // rxe sends no UDP checksum over IPv6 either.
        let rxe = UdpSocket::bind("[fd00::2]:0").unwrap();
        set_option(&rxe, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, &1).unwrap();
        rxe.send_to(&[1; 16], "[fd00::1]:4791").unwrap();
        let mut sizes = Vec::new();
        let start = Clock::now();
        while sizes.is_empty() && start.elapsed() < Duration::from_secs(1) {
            a.receive(Instant(0), &mut |b| sizes.push((b.data.len(), b.flow.src))).unwrap();
        }
        assert_eq!(sizes, [(16, ip("fd00::2"))]);

        // The namespace has no route beyond its own addresses.
        q.clear();
        q.push(&Flow { dst: ip("fd77::1"), ..flow }, headers(0), &[1; 8]);
        q.push(&Flow { dst: ip("10.0.0.1"), ..flow }, headers(0), &[1; 8]);
        a.transmit(Instant(0), &q).unwrap();
        assert_eq!((a.counters().tx_unreachable, a.counters().tx_dropped), (1, 1));
    });
}

#[test]
fn link_local_address_sends_and_receives_on_its_interface() {
    in_namespace(&["fe80::7/64"], || {
        for name in ["fe80::7", "::"] {
            let mut a = link(name);
            let me = ip("fe80::7");
            assert!(a.info.addresses.contains(&me));
            let mut q = TxQueue::new(a.info.burst);
            q.push(&Flow::new(me, me, ROCE_PORT), headers(1), &[1; 8]);
            a.transmit(Instant(0), &q).unwrap();
            let received = receive(&mut a, 1);
            assert_eq!((received.len(), a.counters()), (1, LinkCounters::default()), "{name}");
            assert_eq!((received[0].flow.src, received[0].flow.dst), (me, me));
        }
    });
}

#[test]
fn wildcard_link_sends_from_and_receives_at_any_address() {
    in_namespace(&["10.9.0.1/32", "10.9.0.2/32"], || {
        let mut any = UdpLink::bind(Ipv4Addr::UNSPECIFIED.into(), &UdpOptions::default()).unwrap();
        // The loopback address comes last.
        assert_eq!(any.info.addresses, [ip("10.9.0.1"), ip("10.9.0.2"), ip("127.0.0.1")]);
        let flow = Flow::new(ip("10.9.0.2"), ip("10.9.0.1"), ROCE_PORT);
        let mut q = TxQueue::new(any.info.burst);
        (0..4).for_each(|i| q.push(&flow, headers(i), &payload(700, 1)));
        any.transmit(Instant(0), &q).unwrap();
        let received = receive(&mut any, 4);
        assert_eq!((received.len(), received[0].packets.len(), received[0].flow), (1, 4, flow));

        // Wildcards of both families coexist, but a wildcard conflicts with a specific address.
        UdpLink::bind(Ipv6Addr::UNSPECIFIED.into(), &UdpOptions::default()).unwrap();
        let error = UdpLink::bind(ip("10.9.0.1"), &UdpOptions::default()).err().unwrap();
        assert!(matches!(error, UdpLinkError::InUse { owner: PortOwner::Process { .. }, .. }), "{error}");
    });
}

/// Sends five packets to a group. Returns the number that each link in `to` receives.
fn to_group(from: &mut UdpLink, src: &str, group: &str, to: &mut [&mut UdpLink]) -> Vec<usize> {
    let flow = Flow::new(ip(src), ip(group), ROCE_PORT);
    let mut q = TxQueue::new(from.info.burst);
    (0..5).for_each(|i| q.push(&flow, headers(i), &payload(1000, i as usize)));
    from.transmit(Instant(0), &q).unwrap();
    let count = |link: &mut UdpLink| {
        let received = receive(link, 5);
        assert!(received.iter().all(|g| g.flow == flow), "from {src} to {group}");
        received.iter().map(|g| g.packets.len()).sum()
    };
    to.iter_mut().map(|link| count(link)).collect()
}

#[test]
fn group_packets_reach_members_and_the_sender_only_if_it_joined() {
    let group = "239.40.0.1";
    let [mut a, mut b, mut c] = ["127.40.0.1", "127.40.0.2", "127.40.0.3"].map(link);
    for member in [&mut b, &mut c] {
        member.join(Instant(0), ip(group)).unwrap();
        member.join(Instant(0), ip(group)).unwrap();
    }
    let is_readable = |link: &UdpLink| {
        let fd = PollFd::new(link.fds()[1], PollFlags::POLLIN);
        poll(&mut [fd], PollTimeout::ZERO).unwrap() == 1
    };
    assert!(!is_readable(&b));
    to_group(&mut a, "127.40.0.1", group, &mut []);
    assert!(is_readable(&b), "the descriptor is readable when a packet has arrived");
    assert_eq!(receive(&mut b, 5).len(), 1, "the burst is received coalesced");
    receive(&mut c, 5);

    let mut non_member = link("127.40.0.4");
    assert_eq!(to_group(&mut a, "127.40.0.1", group, &mut [&mut non_member, &mut b, &mut c]), [0, 5, 5]);
    assert_eq!(receive(&mut a, 1).len(), 0);
    a.join(Instant(0), ip(group)).unwrap();
    c.leave(ip(group));
    c.leave(ip(group));
    let mut q = TxQueue::new(a.info.burst);
    q.push(&Flow { hop_limit: 1, ..Flow::new(ip("127.40.0.1"), ip(group), ROCE_PORT) }, headers(1), &[1]);
    a.transmit(Instant(0), &q).unwrap();
    assert_eq!([receive(&mut a, 1).len(), receive(&mut b, 1).len(), receive(&mut c, 1).len()], [1, 1, 0]);
    // No packets of other groups arrive.
    assert_eq!(to_group(&mut b, "127.40.0.2", "239.40.0.2", &mut [&mut a]), [0]);
    assert_eq!([&mut a, &mut b, &mut c].map(|l| l.counters()), [LinkCounters::default(); 3]);

    let error = a.join(Instant(0), ip("127.0.0.1")).unwrap_err();
    assert!(matches!(error, JoinError::NotMulticast(_)), "{error}");
    let error = a.join(Instant(0), ip("ff15::1")).unwrap_err();
    assert!(matches!(error, JoinError::NoAddress(_)), "{error}");
}

/// Runs `test` in a network namespace with the interfaces d1 and d2. Interface dN has the addresses 10.N.0.1,
/// 10.N.0.2, fd0N::1 and fd0N::2.
fn with_two_interfaces(test: impl FnOnce() + Send) {
    in_namespace(&[], || {
        let run = |args: &str| {
            assert!(Command::new("ip").args(args.split(' ')).status().unwrap().success(), "ip {args}");
        };
        for n in [1, 2] {
            // The peer interface only keeps the other one up.
            run(&format!("link add d{n} type veth peer name e{n}"));
            run(&format!("link set e{n} addrgenmode none up"));
            run(&format!("link set d{n} up"));
            for host in [1, 2] {
                run(&format!("addr add 10.{n}.0.{host}/24 dev d{n}"));
                run(&format!("addr add fd0{n}::{host}/64 dev d{n} nodad"));
            }
        }
        test();
    });
}

#[test]
fn group_is_joined_on_the_interface_of_the_bind_address() {
    with_two_interfaces(|| {
        for (net, groups) in [("10.", vec!["239.1.2.3", "224.0.0.200"]), ("fd0", vec!["ff15::7", "ff12::7"])]
        {
            let end = if net == "10." { ".0." } else { "::" };
            let at = |wire: u32, host: u32| format!("{net}{wire}{end}{host}");
            let mut a = link(&at(1, 1));
            let [mut b, mut other] = [at(1, 2), at(2, 1)].map(|ip| link(&ip));
            for group in groups {
                for member in [&mut b, &mut other] {
                    member.join(Instant(0), ip(group)).unwrap();
                }
                assert_eq!(to_group(&mut a, &at(1, 1), group, &mut [&mut b, &mut other]), [5, 0], "{group}");
                assert_eq!(to_group(&mut other, &at(2, 1), group, &mut [&mut b]), [0], "{group}");
                assert_eq!(
                    receive(&mut other, 5).iter().map(|g| g.packets.len()).sum::<usize>(),
                    5,
                    "{group}"
                );
            }
        }
    });
}

#[test]
fn wildcard_link_joins_a_group_on_every_interface() {
    with_two_interfaces(|| {
        for (any, own, groups) in [
            ("0.0.0.0", ["10.1.0.2", "10.2.0.2"], ["239.1.2.3", "239.1.2.4"]),
            ("::", ["fd01::2", "fd02::2"], ["ff15::3", "ff15::4"]),
        ] {
            let mut any = link(any);
            any.join(Instant(0), ip(groups[0])).unwrap();
            // A member at the other end of the second wire.
            let config = "packet:e2,ip=10.2.0.9/24,ip=fd02::9/64".parse().unwrap();
            let mut remote = crate::link::PacketLink::open(config).unwrap();
            remote.join(Instant(0), ip(groups[0])).unwrap();
            for src in own {
                let flow = Flow::new(ip(src), ip(groups[0]), ROCE_PORT);
                let mut q = TxQueue::new(any.info.burst);
                (0..3).for_each(|i| q.push(&flow, headers(i), &[1; 100]));
                any.transmit(Instant(0), &q).unwrap();
                let received = receive(&mut any, 3);
                assert_eq!((received.len(), received[0].packets.len(), received[0].flow), (1, 3, flow));
                let (mut out, mut polls, start) = (0, 0, Clock::now());
                while out < 3 && (start.elapsed() < Duration::from_millis(300) || polls < 100) {
                    polls += 1;
                    let count = &mut |burst: RxBurst<'_>| {
                        assert_eq!(burst.flow.src, ip(src));
                        out += burst.packets().count();
                    };
                    remote.receive(Instant(1), count).unwrap();
                }
                assert_eq!(out == 3, src == own[1], "packets are sent on the interface of {src}");
            }
            // Not in groups that another socket of this machine has joined.
            let other = UdpSocket::bind((any.local.ip, 0)).unwrap();
            match ip(groups[1]) {
                IpAddr::V4(g) => other.join_multicast_v4(&g, &"10.1.0.1".parse().unwrap()).unwrap(),
                IpAddr::V6(g) => other.join_multicast_v6(&g, any.local.interface_of(ip(own[0]))).unwrap(),
            }
            let flow = Flow::new(ip(own[0]), ip(groups[1]), ROCE_PORT);
            let mut q = TxQueue::new(any.info.burst);
            q.push(&flow, headers(1), &[1; 100]);
            any.transmit(Instant(0), &q).unwrap();
            assert!(receive(&mut any, 1).is_empty());
            any.leave(ip(groups[0]));
            q.clear();
            q.push(&Flow { dst: ip(groups[0]), ..flow }, headers(1), &[1; 100]);
            any.transmit(Instant(0), &q).unwrap();
            assert!(receive(&mut any, 1).is_empty());
            assert_eq!(any.counters(), LinkCounters::default());
        }
    });
}

#[test]
fn probe_reports_the_window_and_segmentation_of_a_bound_link() {
    let small = UdpOptions::default().buffer(64 << 10);
    for (address, options) in [("127.18.246.2", UdpOptions::default()), ("127.18.246.3", small)] {
        let probe = UdpLink::probe(&options).unwrap();
        let link = UdpLink::bind(ip(address), &options).unwrap();
        assert_eq!(link.info().window, probe.window);
        let is_segmented = link.info().burst.packets == BurstLimits::SEGMENTED.packets;
        assert_eq!(is_segmented, probe.segmentation && probe.coalescing);
        assert!(probe.send_buffer > 0 && probe.requested_send_buffer == 2 * options.buffer, "{probe:?}");
    }
}
