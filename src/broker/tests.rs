//! Broker tests: several processes that share an address get disjoint QPN partitions, and receive only their
//! own packets.

use std::collections::HashSet;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use super::*;
use crate::burst::{BurstLimits, RxBurst, TxQueue};
use crate::host::unix_sockets::{SocketNames, datagram_socket, fd_message, socket_dir};
use crate::link::udp::{UdpLink, UdpLinkError, UdpOptions};
use crate::link::{Link, MemoryPath, SharedAddress};
use crate::nic::QpnPartition;
use crate::transport::{Instant, PeerChange, PeerWindow};
use crate::wire::{Bth, Flow, Headers, Opcode, Qpn};

mod hostile;
mod services;

/// Starts a broker in a thread and waits until it listens. Clients cannot start one themselves: the returned
/// [`Sharing`] names a program that does not exist.
fn start_broker(ip: &str) -> (IpAddr, Sharing, thread::JoinHandle<Result<(), ServeError>>) {
    let address = ip.to_owned();
    let server = thread::spawn(move || serve(&address, false));
    let name = broker_name(&BindAddr::new(ip.parse().unwrap(), &UdpOptions::default()));
    let path = socket_dir::own().unwrap().join(name.replace('/', "-"));
    let path = path.display().to_string();
    // The flag means that the socket listens, which it does slightly after it is bound.
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&"00010000") && fields.last() == Some(&&*path)
    };
    let is_listening = || std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(listens);
    while !is_listening() {
        thread::yield_now();
    }
    (
        ip.parse().unwrap(),
        Sharing { program: "/nonexistent".into(), any_user: false, shared_memory: SharedMemory::Off },
        server,
    )
}

#[test]
fn message_of_a_broker_that_cannot_run_is_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    for (n, mode, expected) in
        [(1, 0o700, "127.201.7.1 cannot be served"), (2, 0o600, "the program cannot be executed")]
    {
        let program = dir.path().join(format!("broker-{n}"));
        std::fs::write(&program, "#!/bin/sh\necho urxe: $2 cannot be served >&2\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let text = format!("`{} broker 127.201.7.{n}`: {expected}", program.display());
        let sharing = Sharing { program, any_user: false, shared_memory: SharedMemory::Off };
        let error = join(IpAddr::from([127, 201, 7, n]), 1, &sharing).err().unwrap().to_string();
        assert!(error.ends_with(&text), "{error}");
    }
}

#[test]
fn link_without_rings_is_opened_unless_they_are_required() {
    let sharing = |shared_memory| Sharing { program: "/nonexistent".into(), any_user: false, shared_memory };
    let bind = |text: &str, shared_memory| {
        sharing(shared_memory).bind(&text.parse().unwrap(), 1, true).map(|_| ()).map_err(|e| e.to_string())
    };
    for (link, reason) in [
        ("udp:0.0.0.0", "0.0.0.0 cannot have the required rings in shared memory: wildcard and"),
        ("udp:fe80::1%lo", "fe80::1 cannot have the required rings in shared memory: wildcard and"),
        ("frames:connect:/nonexistent,ip=10.77.0.1/24", "it is not a udp link"),
    ] {
        let error = bind(link, SharedMemory::Require).unwrap_err();
        assert!(
            error.contains(reason) && error.ends_with("shared memory `auto` does not require them"),
            "{error}"
        );
        // Fails for another reason: there is no program, no such address, nobody listens.
        let error = bind(link, SharedMemory::Auto).unwrap_err();
        assert!(!error.contains("rings"), "{error}");
    }
}

#[test]
fn link_defers_icrcs_and_limits_the_window_of_the_peer_once_packets_have_taken_a_ring() {
    let (ip, sharing, server) = start_broker("127.18.205.1");
    let sharing = Sharing { shared_memory: SharedMemory::Auto, ..sharing };
    let [mut a, mut b, off] = [SharedMemory::Auto, SharedMemory::Auto, SharedMemory::Off].map(|memory| {
        let sharing = Sharing { shared_memory: memory, ..sharing.clone() };
        join(ip, 1, &sharing).unwrap().swap_remove(0)
    });
    assert_eq!(a.info().window, off.info().window);
    // The queue pairs of the packets of a turn are 9, 10 and so on.
    let send = |from: &mut SharedUdpLink, to: &[QpnPartition], with_deferred_icrc: bool| {
        let mut queue = TxQueue::new(BurstLimits::SEGMENTED);
        if with_deferred_icrc {
            queue.defer_icrcs();
        }
        for (qpn, to) in (9..).zip(to) {
            let bth = Bth { opcode: Opcode(4), dest_qp: Qpn::new(to.index() << 18 | qpn), ..Bth::default() };
            let headers = Headers { bth, ..Headers::default() };
            queue.push(&Flow::new(ip, ip, 4791), headers, &[7; 64]);
        }
        from.transmit(Instant(1), &queue).unwrap();
        (from.supports_deferred_icrc(), from.next_peer_change())
    };
    let (to_off, to_b) = (off.partition(), b.partition());
    assert_eq!(send(&mut a, &[to_off], false), (false, Some(PeerChange::Window(ip, PeerWindow::OfLink))));
    let (defers, window) = send(&mut a, &[to_b], false);
    assert!(
        defers && matches!(window, Some(PeerChange::Window(peer, PeerWindow::AtMost(_))) if peer == ip),
        "{window:?}"
    );
    // From now on, packets for the socket have deferred ICRCs as well.
    assert_eq!(send(&mut a, &[to_off], true), (true, None));
    assert_eq!(send(&mut a, &[to_b], true), (true, None));
    // Packets for both in one turn.
    assert_eq!(send(&mut a, &[to_off, to_b, to_off, to_b], false), (true, None));
    let mut off = off;
    for (link, expected) in [(&mut off, [9, 9, 9, 11]), (&mut b, [9, 9, 10, 12])] {
        let (mut qpns, mut now) = (Vec::new(), Instant(0));
        while qpns.len() < expected.len() {
            now = now + std::time::Duration::from_millis(1);
            let mut record = |burst: RxBurst<'_>| qpns.extend(burst.packets().map(|(_, packet)| packet[7]));
            link.receive(now, &mut record).unwrap();
        }
        assert_eq!(qpns, expected);
    }
    drop((a, b, off));
    server.join().unwrap().unwrap();
}

fn join(ip: IpAddr, shards: usize, sharing: &Sharing) -> Result<Vec<SharedUdpLink>, SharingError> {
    SharedUdpLink::bind(ip, &UdpOptions::default(), shards, sharing)
}

/// Drains a link, and returns the last byte of each received packet's destination QPN.
fn received(link: &mut SharedUdpLink) -> Vec<u8> {
    let mut all = Vec::new();
    let mut record = |burst: RxBurst<'_>| all.extend(burst.packets().map(|(_, packet)| packet[7]));
    while link.receive(Instant(1), &mut record).unwrap() > 0 {}
    all
}

/// Returns the beginning of a packet to `qpn`, as much of it as the steering program examines.
fn packet(qpn: u32) -> [u8; 20] {
    let mut packet = [0; 20];
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet
}

#[test]
fn packets_are_steered_to_process_and_shard_by_qpn() {
    let (ip, sharing, server) = start_broker("127.18.200.1");
    let mut one = join(ip, 1, &sharing).unwrap();
    let mut four = join(ip, 4, &sharing).unwrap();
    let mut other = join(ip, 1, &sharing).unwrap();
    let partitions = [&one, &four, &other].map(|links| links[0].partition());
    assert_eq!(partitions.iter().map(|s| s.index()).collect::<HashSet<_>>().len(), 3);
    assert!(partitions.iter().all(|s| s.index() != 0 && s.bits() == QpnPartition::BITS));
    assert!(four.iter().all(|link| link.partition() == partitions[1]));
    let from = UdpSocket::bind("127.18.200.2:0").unwrap();
    for partition in partitions {
        for low in 0..8 {
            from.send_to(&packet(partition.index() << 18 | 0x1200 | low), (ip, 4791)).unwrap();
        }
    }
    // For a partition that no process has, and for the broker. Partitions are granted in random order.
    let free =
        (1..QpnPartition::COUNT as u32).find(|index| partitions.iter().all(|s| s.index() != *index)).unwrap();
    from.send_to(&packet(free << 18 | 9), (ip, 4791)).unwrap();
    from.send_to(&packet(1), (ip, 4791)).unwrap();
    assert_eq!(received(&mut one[0]), (0..8).collect::<Vec<_>>());
    assert_eq!(received(&mut other[0]), (0..8).collect::<Vec<_>>());
    for (shard, link) in four.iter_mut().enumerate() {
        assert_eq!(received(link), [shard as u8, shard as u8 + 4]);
    }
    // Without the four shards, packets for them are dropped, and all others arrive.
    drop(four);
    from.send_to(&packet(partitions[1].index() << 18 | 3), (ip, 4791)).unwrap();
    from.send_to(&packet(partitions[2].index() << 18 | 3), (ip, 4791)).unwrap();
    assert_eq!((received(&mut one[0]), received(&mut other[0])), (vec![], vec![3]));
    drop((one, other));
    server.join().unwrap().unwrap();
    UdpLink::bind(ip, &UdpOptions::default()).unwrap();
}

#[test]
fn all_partitions_can_be_granted_and_a_reused_partition_has_no_old_packets() {
    let (ip, sharing, server) = start_broker("127.18.201.1");
    let mut all: Vec<SharedUdpLink> =
        (1..QpnPartition::COUNT).map(|_| join(ip, 1, &sharing).unwrap().swap_remove(0)).collect();
    let error = join(ip, 1, &sharing).err().unwrap();
    assert!(matches!(error, SharingError::Refused { errno: libc::EUSERS, .. }), "{error}");
    assert!(error.to_string().contains("all 63 QPN partitions of 127.18.201.1 are in use"), "{error}");
    let released = all.remove(20).partition();
    let from = UdpSocket::bind("127.18.201.2:0").unwrap();
    from.send_to(&packet(released.index() << 18 | 5), (ip, 4791)).unwrap();
    // The broker may not have noticed the disconnect yet.
    let mut again = loop {
        match join(ip, 1, &sharing) {
            Ok(links) => break links,
            Err(SharingError::Refused { errno: libc::EUSERS, .. }) => thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(again[0].partition(), released);
    assert!(received(&mut again[0]).is_empty());
    from.send_to(&packet(released.index() << 18 | 6), (ip, 4791)).unwrap();
    assert_eq!(received(&mut again[0]), [6]);
    drop((all, again));
    server.join().unwrap().unwrap();
}

#[test]
fn exclusively_bound_port_cannot_be_shared() {
    let (ip, sharing, server) = start_broker("127.18.202.1");
    let owner = UdpLink::bind(ip, &UdpOptions::default()).unwrap();
    let error = join(ip, 1, &sharing).err().unwrap();
    assert!(matches!(error, SharingError::Refused { errno: libc::EADDRINUSE, .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    server.join().unwrap().unwrap();
    drop(owner);
    let error = join(ip, 1, &sharing).err().unwrap();
    assert!(matches!(error, SharingError::System { .. }), "{error}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("/nonexistent is not a program"));
}

#[test]
fn shared_port_cannot_be_bound_by_another_link_or_a_second_broker() {
    let (ip, sharing, server) = start_broker("127.18.203.1");
    let links = join(ip, 1, &sharing).unwrap();
    let error = UdpLink::bind(ip, &UdpOptions::default()).err().unwrap();
    assert!(matches!(error, UdpLinkError::InUse { .. }), "{error}");
    assert!(matches!(serve("127.18.203.1", false), Err(ServeError::Another(_))));
    assert!(matches!(serve("localhost", false), Err(ServeError::Address(_))));
    drop(links);
    server.join().unwrap().unwrap();
}

#[test]
fn coalesced_burst_for_several_partitions_disables_coalescing() {
    let (ip, sharing, server) = start_broker("127.18.204.1");
    let mut all = [join(ip, 1, &sharing).unwrap(), join(ip, 1, &sharing).unwrap()];
    let [a, b] = [0, 1].map(|i| all[i][0].partition().index() << 18);
    // Coalesced as an adapter's driver does: by sizes and ports, which are the same for all.
    let sender = UdpSocket::bind("127.18.204.2:0").unwrap();
    let (segment, len) = (20_i32, size_of::<i32>() as libc::socklen_t);
    let option = (&raw const segment).cast();
    // SAFETY: the kernel reads `len` bytes from `segment`, an int of that size that outlives the call.
    let set = unsafe { libc::setsockopt(sender.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, option, len) };
    assert_eq!(set, 0);
    let burst = |qpns: &[u32]| {
        let bytes: Vec<u8> = qpns.iter().flat_map(|qpn| packet(*qpn)).collect();
        sender.send_to(&bytes, (ip, 4791)).unwrap();
    };
    let sizes = |link: &mut SharedUdpLink| {
        let mut sizes = Vec::new();
        while link.receive(Instant(1), &mut |burst| sizes.push(burst.data.len())).unwrap() > 0 {}
        sizes
    };
    burst(&[a | 1, a | 2, a | 3]);
    assert_eq!(sizes(&mut all[0][0]), [60]);
    burst(&[a | 1, b | 2, a | 3]);
    assert_eq!(sizes(&mut all[0][0]), [60], "the NIC drops packets of another partition");
    for (i, to) in [a, b].into_iter().enumerate() {
        burst(&[to | 4, to | 5, to | 6]);
        assert_eq!(sizes(&mut all[i][0]), [20, 20, 20]);
    }
    drop(all);
    server.join().unwrap().unwrap();
}
