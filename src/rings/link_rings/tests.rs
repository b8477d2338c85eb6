//! Tests of the routes and connections of rings, with links of one process and processes that break the
//! protocol.

use std::fmt;
use std::net::Ipv4Addr;

use rustix::net::{RecvFlags, SocketFlags, accept_with, connect, recv};

use super::find_route::is_of_this_host;
use super::offer::{addresses, offer};
use super::write::{RING_WINDOW, STALL_TIMEOUT};
use super::*;
use crate::burst::{BurstLimits, PeerPath, TxQueue};
use crate::host::unix_sockets::fd_message;
use crate::link::udp::UdpOptions;
use crate::rings::Route;
use crate::rings::memory::{CAPACITY, RingWriter};
use crate::transport::PeerWindow;
use crate::wire::{Bth, Flow, Headers, Opcode, Psn, Qpn};

fn rings(ip: &str, partition: u32) -> Rings {
    rings_with(ip, partition, SharedMemory::Auto).unwrap()
}

fn rings_with(ip: &str, partition: u32, shared_memory: SharedMemory) -> Option<Rings> {
    let bind_addr = BindAddr::new(ip.parse().unwrap(), &UdpOptions::default());
    Rings::new(bind_addr, partition, SocketNames::of(false).unwrap(), true, shared_memory).unwrap()
}

/// Returns a packet from one link to a queue pair in a partition of another.
fn packet(from: &Rings, to: &str, partition: u32, psn: u32) -> TxQueue {
    packet_to_qp(from, to, Qpn::new(partition << 18 | 5), psn)
}

fn packet_to_qp(from: &Rings, to: &str, dest_qp: Qpn, psn: u32) -> TxQueue {
    // RC SEND Only.
    packet_of(Opcode(0x04), from, to, dest_qp, psn)
}

fn packet_of(opcode: Opcode, from: &Rings, to: &str, dest_qp: Qpn, psn: u32) -> TxQueue {
    let bth = Bth { opcode, dest_qp, psn: Psn::new(psn), ..Bth::default() };
    let flow = Flow::new(from.bind_addr.ip(), to.parse().unwrap(), 4791);
    let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
    queue.push(&flow, Headers { bth, ..Headers::default() }, &[7; 64]);
    queue
}

/// Fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// It is in a ring.
    Yes,
    /// There was no room in the ring, or the ring was closed.
    Dropped,
    /// A ring is required, and there is none.
    NoRing,
    /// It must take the UDP socket.
    No,
}

fn write(from: &mut Rings, to: &str, partition: u32, psn: u32) -> Sent {
    let queue = packet(from, to, partition, psn);
    send_at(Instant(1), from, &queue)
}

fn send_at(now: Instant, from: &mut Rings, queue: &TxQueue) -> Sent {
    let burst = queue.bursts().next().unwrap();
    let sent = match from.route_of(&burst) {
        Route::Ring(ring) if from.write(now, ring, &burst) => Sent::Yes,
        Route::Ring(_) => Sent::Dropped,
        Route::Nowhere => Sent::NoRing,
        Route::Socket { .. } => Sent::No,
    };
    from.publish();
    sent
}

/// Returns the source addresses and PSNs of the packets that have arrived.
fn received(at: &mut Rings) -> Vec<(IpAddr, u32)> {
    let mut got = Vec::new();
    at.last_poll = Instant(0);
    at.receive(Instant(1_000_000), &mut |burst| {
        let psn = |packet| crate::wire::Packet::parse(packet).unwrap().bth().psn.get();
        got.extend(burst.packets().map(|(_, packet)| (burst.flow.src, psn(packet))));
    });
    got
}

/// Waits until a connection has been closed: a child that another test forks has a copy of the socket for a
/// while.
fn eventually(mut condition: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20), "not reached within 20 s");
        std::thread::yield_now();
    }
}

#[test]
fn offer_round_trips_through_text() {
    let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    assert_eq!(addresses(&offer(src, dst)), Some((src, dst)));
    for line in ["", "urxe-ring-2 10.0.0.1", "urxe-ring-1 10.0.0.1 10.0.0.2", "urxe-ring-2 x y"] {
        assert_eq!(addresses(line), None, "{line}");
    }
}

#[test]
fn packets_take_the_ring_of_their_address_and_partition_or_else_the_socket() {
    let (a_ip, b_ip) = ("127.18.240.1", "127.18.240.2");
    let (mut a, mut b, mut c) = (rings(a_ip, 1), rings(b_ip, 1), rings(b_ip, 2));
    assert_eq!(write(&mut a, b_ip, 3, 0), Sent::No, "nobody listens");
    assert_eq!([write(&mut a, b_ip, 1, 1), write(&mut a, b_ip, 2, 2)], [Sent::Yes; 2]);
    assert_eq!(write(&mut b, a_ip, 1, 3), Sent::Yes);
    assert_eq!(write(&mut a, b_ip, 1, 4), Sent::Yes);
    let from = |ip: &str, psn| (ip.parse().unwrap(), psn);
    assert_eq!(received(&mut b), [from(a_ip, 1), from(a_ip, 4)]);
    assert_eq!(received(&mut c), [from(a_ip, 2)]);
    assert_eq!(received(&mut a), [from(b_ip, 3)]);
    // The decision for a destination is kept: earlier packets may still be in the socket.
    let _late = rings(b_ip, 3);
    assert_eq!(write(&mut a, b_ip, 3, 5), Sent::No);
    // The broker's partition, in which nobody listens, and queue pairs of the same NIC.
    assert_eq!([write(&mut a, b_ip, 0, 6), write(&mut a, a_ip, 1, 7)], [Sent::No; 2]);
}

#[test]
fn address_that_a_packet_does_not_identify_has_rings_only_to_drop_what_requires_one() {
    for ip in ["0.0.0.0", "::", "fe80::1"] {
        assert!(rings_with(ip, 1, SharedMemory::Auto).is_none(), "{ip}");
        let required = rings_with(ip, 1, SharedMemory::Require).unwrap();
        assert!(required.listener.is_none() && required.is_required, "{ip}");
    }
    assert!(rings_with("127.18.248.1", 1, SharedMemory::Off).is_none());
}

#[test]
fn packets_of_this_host_without_the_required_ring_are_dropped_until_there_is_one() {
    let (a_ip, b_ip) = ("127.18.249.1", "127.18.249.2");
    let mut a = rings_with(a_ip, 1, SharedMemory::Require).unwrap();
    assert_eq!([write(&mut a, b_ip, 1, 1), write(&mut a, b_ip, 0, 2)], [Sent::NoRing; 2], "nobody listens");
    let mut b = rings_with(b_ip, 1, SharedMemory::Require).unwrap();
    assert_eq!(write(&mut a, b_ip, 1, 3), Sent::Yes, "the first decision is not kept");
    assert_eq!(received(&mut b), [(a_ip.parse().unwrap(), 3)]);
    drop(b);
    eventually(|| received(&mut a).is_empty() && a.connections.iter().all(Option::is_none));
    assert_eq!(write(&mut a, b_ip, 1, 4), Sent::NoRing, "the process has ended");
    // A process that accepts connections and refuses rings.
    let names = SocketNames::of(false).unwrap();
    let listener = seqpacket_socket().unwrap();
    names.bind(&listener, &socket_name((b_ip.parse().unwrap(), 1))).unwrap();
    listen(&listener, 1).unwrap();
    assert_eq!(write(&mut a, b_ip, 1, 5), Sent::Yes);
    drop(accept_with(&listener, SocketFlags::CLOEXEC).unwrap());
    eventually(|| received(&mut a).is_empty() && a.connections.iter().all(Option::is_none));
    drop(listener);
    assert_eq!(write(&mut a, b_ip, 1, 6), Sent::NoRing);
}

#[test]
fn packets_without_acknowledgements_take_a_ring_only_if_rings_are_required() {
    let b_ip = "127.18.252.2";
    let _b = rings(b_ip, 1);
    for (n, shared_memory, expected) in
        [(1, SharedMemory::Auto, Sent::No), (2, SharedMemory::Require, Sent::Yes)]
    {
        let mut a = rings_with("127.18.252.1", n, shared_memory).unwrap();
        // UC SEND Only, UD SEND Only.
        for opcode in [0x24, 0x64] {
            let queue = packet_of(Opcode(opcode), &a, b_ip, Qpn::new(1 << 18 | 5), 0);
            assert_eq!(send_at(Instant(1), &mut a, &queue), expected, "{opcode:x}");
        }
        assert_eq!(write(&mut a, b_ip, 1, 0), Sent::Yes);
    }
}

#[test]
fn qp1_multicast_own_nic_and_other_hosts_take_the_socket_also_if_rings_are_required() {
    let a_ip = "127.18.250.1";
    let mut a = rings_with(a_ip, 1, SharedMemory::Require).unwrap();
    let to_gsi = packet_to_qp(&a, "127.18.250.2", Qpn::GSI, 0);
    assert_eq!(send_at(Instant(1), &mut a, &to_gsi), Sent::No);
    // TEST-NET-3 (RFC 5737), of no host.
    let to = ["239.1.2.3", a_ip, "203.0.113.77"];
    assert_eq!(to.map(|to| write(&mut a, to, 1, 1)), [Sent::No; 3]);
}

#[test]
fn addresses_of_this_host_are_those_of_its_interfaces_and_all_of_loopback() {
    let own = BindAddr::new("127.0.0.1".parse().unwrap(), &UdpOptions::default());
    let is_own = |ip: IpAddr| is_of_this_host(ip, &own);
    for interface in pnet_datalink::interfaces().into_iter().filter(|i| i.is_up()) {
        for ip in interface.ips.iter().map(|net| net.ip()) {
            let on = UdpOptions { interface: Some(interface.name.clone()), ..UdpOptions::default() };
            let own = BindAddr::new(ip, &on);
            assert!(is_of_this_host(ip, &own), "{ip} on {}", interface.name);
        }
    }
    assert!(is_own("127.1.2.3".parse().unwrap()) && is_own("::1".parse().unwrap()));
    for ip in ["203.0.113.77", "2001:db8::1", "255.255.255.255"] {
        assert!(!is_own(ip.parse().unwrap()), "{ip}");
    }
}

#[test]
fn ring_is_read_to_its_end_after_the_writer_has_ended_and_closed_after_the_reader_has() {
    let (a_ip, b_ip) = ("127.18.241.1", "127.18.241.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    assert_eq!([1, 2].map(|psn| write(&mut a, b_ip, 1, psn)), [Sent::Yes; 2]);
    drop(a);
    assert_eq!(received(&mut b).len(), 2);
    eventually(|| received(&mut b).is_empty() && b.readers == 0);
    let mut a = rings(a_ip, 1);
    assert_eq!(write(&mut a, b_ip, 1, 3), Sent::Yes);
    assert_eq!(received(&mut b).len(), 1);
    drop(b);
    // Until the end is noticed, packets are lost like those to a process that has ended.
    eventually(|| received(&mut a).is_empty() && a.connections.iter().all(Option::is_none));
    assert_eq!(write(&mut a, b_ip, 1, 4), Sent::No);
    let mut b = rings(b_ip, 1);
    assert_eq!(write(&mut a, b_ip, 1, 5), Sent::Yes);
    assert_eq!(received(&mut b).len(), 1);
}

#[test]
fn process_on_a_partition_whose_last_process_still_ends_waits_for_its_name() {
    let (ip, names) = ("127.18.251.1", SocketNames::of(false).unwrap());
    let ending = seqpacket_socket().unwrap();
    names.bind(&ending, &socket_name((ip.parse().unwrap(), 1))).unwrap();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(ending);
    });
    let (mut new, mut other) = (rings(ip, 1), rings("127.18.251.2", 1));
    ends.join().unwrap();
    assert_eq!(write(&mut other, ip, 1, 1), Sent::Yes);
    assert_eq!(received(&mut new).len(), 1);
}

#[test]
fn sleeping_process_is_woken_through_its_descriptor() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let (a_ip, b_ip) = ("127.18.242.1", "127.18.242.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    let is_readable =
        |b: &Rings| poll(&mut [PollFd::new(b.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0;
    assert!(!b.prepare_to_sleep() && !is_readable(&b));
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::Yes);
    assert!(is_readable(&b), "a connection");
    assert!(b.prepare_to_sleep(), "a packet is waiting");
    assert_eq!(received(&mut b).len(), 1);
    while b.prepare_to_sleep() {}
    assert!(!is_readable(&b));
    assert_eq!(write(&mut a, b_ip, 1, 2), Sent::Yes);
    assert!(is_readable(&b));
    // Another thread reads the packet and its notification: the sleeping thread must wake up all the same,
    // because the next packet comes without a notification.
    assert_eq!(received(&mut b).len(), 1);
    assert!(is_readable(&b));
    while b.prepare_to_sleep() {}
    assert!(!is_readable(&b));
}

#[test]
fn refused_ring_is_replaced_by_the_socket() {
    let (a_ip, b_ip) = ("127.18.245.1", "127.18.245.2");
    let mut a = rings(a_ip, 1);
    // A process that accepts connections and closes them.
    let names = SocketNames::of(false).unwrap();
    let listener = seqpacket_socket().unwrap();
    names.bind(&listener, &socket_name((b_ip.parse().unwrap(), 1))).unwrap();
    listen(&listener, 1).unwrap();
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::Yes);
    drop(accept_with(&listener, SocketFlags::CLOEXEC).unwrap());
    eventually(|| received(&mut a).is_empty() && a.connections.iter().all(Option::is_none));
    assert_eq!(write(&mut a, b_ip, 1, 2), Sent::No);
    // Also for later connections: earlier packets may still be in the socket.
    a.on_connected(b_ip.parse().unwrap(), Qpn::new(1 << 18));
    assert_eq!(write(&mut a, b_ip, 1, 3), Sent::No);
}

#[test]
fn destinations_beyond_the_limit_take_the_socket_and_are_not_remembered() {
    let (a_ip, b_ip) = ("127.18.247.1", "127.18.247.2");
    let (mut a, _b) = (rings(a_ip, 1), rings(b_ip, 1));
    for n in 0.. {
        if a.routes.is_full() {
            break;
        }
        let to = (Ipv4Addr::new(10, 0, 0, 1 + (n >> 8) as u8).into(), n as u8);
        a.routes.set(to, Route::Socket { is_final: false });
    }
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::No);
    assert_eq!(a.routes.get((b_ip.parse().unwrap(), 1)), None);
}

/// Returns the windows that have changed, in the order of the addresses.
fn changed_windows(of: &mut Rings) -> Vec<(IpAddr, PeerWindow)> {
    let window_of = |change| match change {
        PeerChange::Window(address, window) => Some((address, window)),
        PeerChange::Full(_) | PeerChange::Room(_) => None,
    };
    let mut windows: Vec<_> = std::iter::from_fn(|| of.next_peer_change()).filter_map(window_of).collect();
    windows.sort_by_key(|(address, _)| *address);
    windows
}

#[test]
fn window_of_a_peer_is_that_of_rings_while_all_packets_in_both_directions_take_rings() {
    let (a_ip, b_ip, none_ip) = ("127.18.253.1", "127.18.253.2", "127.18.253.3");
    let (mut a, mut b, mut other) = (rings(a_ip, 1), rings(b_ip, 1), rings(b_ip, 2));
    let window = |ip: &str, window| vec![(ip.parse().unwrap(), window)];
    let (of_ring, at_most) = (PeerWindow::Bytes(RING_WINDOW), PeerWindow::AtMost(RING_WINDOW));
    assert_eq!(changed_windows(&mut a), []);
    assert_eq!(write(&mut a, none_ip, 1, 0), Sent::No);
    assert_eq!(changed_windows(&mut a), window(none_ip, PeerWindow::OfLink));
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::Yes);
    assert_eq!(changed_windows(&mut a), window(b_ip, at_most), "responses may take the socket");
    assert_eq!(received(&mut b).len(), 1);
    assert_eq!(write(&mut b, a_ip, 1, 2), Sent::Yes);
    assert_eq!(changed_windows(&mut b), window(a_ip, of_ring));
    assert_eq!(received(&mut a).len(), 1);
    assert_eq!(changed_windows(&mut a), window(b_ip, of_ring));
    // A second process with the same address.
    assert_eq!(write(&mut a, b_ip, 2, 3), Sent::Yes);
    assert_eq!(changed_windows(&mut a), window(b_ip, at_most));
    assert_eq!(received(&mut other).len(), 1);
    assert_eq!(write(&mut other, a_ip, 1, 4), Sent::Yes);
    assert_eq!(received(&mut a).len(), 1);
    assert_eq!(changed_windows(&mut a), window(b_ip, of_ring));
    // The second one ends. Late packets to it take the socket.
    drop(other);
    eventually(|| received(&mut a).is_empty() && a.connections.iter().flatten().count() == 2);
    assert_eq!(changed_windows(&mut a), window(b_ip, of_ring));
    assert_eq!(write(&mut a, b_ip, 2, 5), Sent::No);
    assert_eq!(changed_windows(&mut a), []);
    // A third one that listens for no rings.
    assert_eq!(write(&mut a, b_ip, 3, 5), Sent::No);
    assert_eq!(changed_windows(&mut a), window(b_ip, at_most));
    // A ring from an address to which no packets are sent.
    let mut stranger = rings("127.18.253.4", 1);
    assert_eq!(write(&mut stranger, a_ip, 1, 0), Sent::Yes);
    assert_eq!(received(&mut a).len(), 1);
    assert_eq!(changed_windows(&mut a), []);
    drop((b, stranger));
    eventually(|| received(&mut a).is_empty() && a.connections.iter().all(Option::is_none));
    assert_eq!(changed_windows(&mut a), window(b_ip, PeerWindow::OfLink));
    // Packets to the own address that take the socket.
    assert_eq!(write(&mut a, a_ip, 1, 6), Sent::No);
    assert_eq!(changed_windows(&mut a), window(a_ip, PeerWindow::OfLink));
}

#[test]
fn path_of_a_ring_without_room_for_a_turn_is_full_until_its_reader_has_made_room() {
    let (a_ip, b_ip) = ("127.18.236.1", "127.18.236.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    let path = PeerPath { src: a_ip.parse().unwrap(), dst: b_ip.parse().unwrap(), group: 1 };
    assert_eq!(write(&mut a, b_ip, 1, 0), Sent::Yes);
    while a.next_peer_change().is_some() {}
    let mut count = 1;
    while a.next_peer_change() != Some(PeerChange::Full(path)) {
        assert_eq!(write(&mut a, b_ip, 1, 0), Sent::Yes);
        count += 1;
    }
    assert!(a.next_deadline().is_some());
    // A turn that the NIC had built before.
    assert!((0..1000).all(|_| write(&mut a, b_ip, 1, 0) == Sent::Yes));
    assert_eq!(received(&mut a), []);
    assert_eq!(a.next_peer_change(), None, "no room");
    let mut got = 0;
    while got < count + 1000 {
        got += received(&mut b).len();
    }
    assert_eq!(received(&mut a), []);
    assert_eq!(a.next_peer_change(), Some(PeerChange::Room(path)));
    assert_eq!((a.next_peer_change(), a.next_deadline()), (None, None));
}

#[test]
fn full_ring_of_a_process_that_does_not_read_is_stalled_and_drops_packets_until_the_process_reads() {
    let (a_ip, b_ip) = ("127.18.235.1", "127.18.235.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    let count = (0..).take_while(|n| write(&mut a, b_ip, 1, *n) == Sent::Yes).count();
    let room_changes = |a: &mut Rings| {
        let is_room = |change: &PeerChange| !matches!(change, PeerChange::Window(..));
        std::iter::from_fn(|| a.next_peer_change()).filter(is_room).count()
    };
    let look = |a: &mut Rings, at: Duration| {
        a.receive(Instant(1) + at, &mut |_| {});
        room_changes(a)
    };
    assert_eq!(room_changes(&mut a), 1, "full");
    // The first look finds where the reader is.
    assert_eq!(look(&mut a, Duration::ZERO), 0);
    assert_eq!(look(&mut a, STALL_TIMEOUT - Duration::from_nanos(1)), 0, "the reader may go on");
    assert_eq!(look(&mut a, STALL_TIMEOUT), 1, "nothing is held back any more");
    assert!((0..1000).all(|_| write(&mut a, b_ip, 1, 0) == Sent::Dropped));
    assert_eq!((room_changes(&mut a), a.next_deadline()), (0, None));
    let mut got = 0;
    while got < count {
        got += received(&mut b).len();
    }
    assert_eq!(write(&mut a, b_ip, 1, 0), Sent::Yes);
    let more = (0..).take_while(|n| write(&mut a, b_ip, 1, *n) == Sent::Yes).count();
    assert!(more > 0 && room_changes(&mut a) == 1, "full again");
}

#[test]
fn full_path_whose_process_ends_has_room_again() {
    let (a_ip, b_ip) = ("127.18.234.1", "127.18.234.2");
    let (mut a, b) = (rings(a_ip, 1), rings(b_ip, 1));
    while write(&mut a, b_ip, 1, 0) == Sent::Yes {}
    drop(b);
    eventually(|| received(&mut a).is_empty() && a.connections.iter().all(Option::is_none));
    let changes: Vec<_> = std::iter::from_fn(|| a.next_peer_change()).collect();
    let full = changes.iter().position(|change| matches!(change, PeerChange::Full(_)));
    let room = changes.iter().position(|change| matches!(change, PeerChange::Room(_)));
    assert!(full.is_some() && full < room && a.next_deadline().is_none(), "{changes:?}");
}

/// Connects to a link, and sends an offer with descriptors.
fn send_offer(to: &Rings, offer: &impl fmt::Display, fds: &[BorrowedFd<'_>]) -> OwnedFd {
    let connection = seqpacket_socket().unwrap();
    connect(&connection, &to.names.address(&socket_name((to.bind_addr.ip(), 1))).unwrap()).unwrap();
    fd_message::send(&connection, offer, fds).unwrap();
    connection
}

#[test]
fn malformed_offers_close_their_connection_and_cost_nothing_else() {
    let (a_ip, b_ip) = ("127.18.243.1", "127.18.243.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    let (_writer, memory) = RingWriter::create(CAPACITY, false).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let offers: [(&str, &[BorrowedFd<'_>]); 6] = [
        ("urxe-ring-2 10.0.0.1 127.18.243.2", &[]),
        ("urxe-ring-2 10.0.0.1 127.18.243.2", &[null.as_fd()]),
        ("urxe-ring-2 10.0.0.1 127.18.243.2", &[memory.as_fd(), memory.as_fd()]),
        ("urxe-ring-2 10.0.0.1 127.18.243.9", &[memory.as_fd()]),
        ("urxe-ring-2 fd00::1 127.18.243.2", &[memory.as_fd()]),
        ("hello", &[memory.as_fd()]),
    ];
    for (line, fds) in offers {
        let connection = send_offer(&b, &line, fds);
        assert_eq!(received(&mut b), []);
        assert!(b.connections.iter().all(Option::is_none), "{line}");
        eventually(|| recv(&connection, &mut [0; 1][..], RecvFlags::empty()).map(|(n, _)| n) == Ok(0));
    }
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::Yes);
    assert_eq!(received(&mut b).len(), 1);
}

#[test]
fn forged_positions_close_the_ring_at_either_end() {
    let (a_ip, b_ip) = ("127.18.244.1", "127.18.244.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    // A process whose ring holds garbage.
    let (writer, memory) = RingWriter::create(CAPACITY, false).unwrap();
    writer.forge_head(1 << 40);
    let offer = offer(a.bind_addr.ip(), b.bind_addr.ip());
    let _connection = send_offer(&b, &offer, &[memory.as_fd()]);
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::Yes);
    assert_eq!(received(&mut b).len(), 1);
    assert_eq!(b.connections.iter().flatten().count(), 1, "the forged ring is closed, the other is not");
}
