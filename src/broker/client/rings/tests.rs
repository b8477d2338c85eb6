//! Tests of the routes and connections of rings, with links of one process and processes that break the protocol.

use super::*;
use crate::link::udp::UdpOptions;
use crate::transport::{Payload, TxQueue};
use crate::wire::{Bth, Flow, Headers, Opcode, Psn};

fn rings(ip: &str, partition: u32) -> Rings {
    let bind_addr = BindAddr::new(ip.parse().unwrap(), &UdpOptions::default());
    Rings::new(bind_addr, partition, SocketNames::of(false).unwrap(), true).unwrap().unwrap()
}

/// Returns a packet from one link to a queue pair in a partition of another.
fn packet(from: &Rings, to: &str, partition: u32, psn: u32) -> TxQueue {
    let dest_qp = Qpn::new(partition << 18 | 5);
    let bth = Bth { opcode: Opcode(4), dest_qp, psn: Psn::new(psn), ..Bth::default() };
    let flow = Flow::new(from.bind_addr.ip(), to.parse().unwrap(), 4791);
    let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
    queue.push(&flow, Headers { bth, ..Headers::default() }, Payload::Bytes(&[7; 64]));
    queue
}

fn write(from: &mut Rings, to: &str, partition: u32, psn: u32) -> Sent {
    let queue = packet(from, to, partition, psn);
    let sent = from.write(&queue.bursts().next().unwrap());
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

/// Waits until a connection has been closed: a child that another test forks has a copy of the socket for a while.
fn eventually(mut condition: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20), "not reached within 20 s");
        std::thread::yield_now();
    }
}

#[test]
fn offer_round_trips_through_text() {
    let offer = RingOffer { src: "10.0.0.1".parse().unwrap(), dst: "10.0.0.2".parse().unwrap() };
    assert_eq!(offer.to_string().parse(), Ok(offer));
    for line in ["", "urxe-ring-1 10.0.0.1", "urxe-ring-2 10.0.0.1 10.0.0.2", "urxe-ring-1 x y"] {
        assert!(line.parse::<RingOffer>().is_err(), "{line}");
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
    // The broker's partition, which has QP1, and queue pairs of the same NIC.
    assert_eq!([write(&mut a, b_ip, 0, 6), write(&mut a, a_ip, 1, 7)], [Sent::No; 2]);
}

#[test]
fn ring_is_read_to_its_end_after_the_writer_has_ended_and_closed_after_the_reader_has() {
    let (a_ip, b_ip) = ("127.18.241.1", "127.18.241.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    assert_eq!([1, 2].map(|psn| write(&mut a, b_ip, 1, psn)), [Sent::Yes; 2]);
    drop(a);
    assert_eq!(received(&mut b).len(), 2);
    eventually(|| received(&mut b).is_empty() && !b.has_readers());
    let mut a = rings(a_ip, 1);
    assert_eq!(write(&mut a, b_ip, 1, 3), Sent::Yes);
    assert_eq!(received(&mut b).len(), 1);
    drop(b);
    // Until the end is noticed, packets are lost like those to a process that has ended.
    eventually(|| received(&mut a).is_empty() && a.connections.iter().all(Option::is_none));
    assert_eq!(write(&mut a, b_ip, 1, 4), Sent::No);
    let mut b = rings(b_ip, 1);
    assert_eq!(write(&mut a, b_ip, 1, 5), Sent::No);
    a.on_connected(b_ip.parse().unwrap(), Qpn::new(1 << 18));
    assert_eq!(write(&mut a, b_ip, 1, 6), Sent::Yes);
    assert_eq!(received(&mut b).len(), 1);
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
    // Another thread reads the packet and its notification: the sleeping thread must wake up all the same, because
    // the next packet comes without a notification.
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
    let listener = socket().unwrap();
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
    a.routes.extend((0..MAX_ROUTES as u32).map(|n| {
        let to = (std::net::Ipv4Addr::from(0x0a00_0000 + n).into(), 1);
        (to, Route::Socket { is_final: false })
    }));
    let routes = a.routes.len();
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::No);
    assert_eq!(a.routes.len(), routes);
}

#[test]
fn full_ring_of_a_process_that_does_not_read_costs_one_wait() {
    let (a_ip, b_ip) = ("127.18.246.1", "127.18.246.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    let count = (0..).take_while(|n| write(&mut a, b_ip, 1, *n) == Sent::Yes).count();
    // Only the first turn without room waits.
    assert!((0..1000).all(|_| write(&mut a, b_ip, 1, 0) == Sent::Dropped));
    let queue = packet(&a, b_ip, 1, 0);
    assert_eq!(a.write(&queue.bursts().next().unwrap()), Sent::Dropped);
    assert_eq!(a.wait_left, MAX_WAIT);
    let mut got = 0;
    while got < count {
        got += received(&mut b).len();
    }
    assert_eq!(write(&mut a, b_ip, 1, 0), Sent::Yes);
}

/// Connects to a link, and sends an offer with descriptors.
fn send_offer(to: &Rings, offer: &impl fmt::Display, fds: &[BorrowedFd<'_>]) -> OwnedFd {
    let connection = socket().unwrap();
    connect(&connection, &to.names.address(&socket_name((to.bind_addr.ip(), 1))).unwrap()).unwrap();
    fd_message::send(&connection, offer, fds).unwrap();
    connection
}

#[test]
fn malformed_offers_close_their_connection_and_cost_nothing_else() {
    let (a_ip, b_ip) = ("127.18.243.1", "127.18.243.2");
    let (mut a, mut b) = (rings(a_ip, 1), rings(b_ip, 1));
    let (_writer, memory) = RingWriter::create(false).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let offers: [(&str, &[BorrowedFd<'_>]); 6] = [
        ("urxe-ring-1 10.0.0.1 127.18.243.2", &[]),
        ("urxe-ring-1 10.0.0.1 127.18.243.2", &[null.as_fd()]),
        ("urxe-ring-1 10.0.0.1 127.18.243.2", &[memory.as_fd(), memory.as_fd()]),
        ("urxe-ring-1 10.0.0.1 127.18.243.9", &[memory.as_fd()]),
        ("urxe-ring-1 fd00::1 127.18.243.2", &[memory.as_fd()]),
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
    let (writer, memory) = RingWriter::create(false).unwrap();
    writer.forge_head(1 << 40);
    let offer = RingOffer { src: a.bind_addr.ip(), dst: b.bind_addr.ip() };
    let _connection = send_offer(&b, &offer, &[memory.as_fd()]);
    assert_eq!(write(&mut a, b_ip, 1, 1), Sent::Yes);
    assert_eq!(received(&mut b).len(), 1);
    assert_eq!(b.connections.iter().flatten().count(), 1, "the forged ring is closed, the other is not");
}
