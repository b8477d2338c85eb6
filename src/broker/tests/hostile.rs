//! Broker tests with hostile programs, which bind other processes' names, send malformed messages, pass
//! unwanted descriptors, or connect without sending anything.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, send,
    socket_with,
};

use super::*;
use crate::link::ClaimError;
use crate::link::udp::steer;
use crate::sys::memfd;
use crate::verbs::{AddressVector, Context, ContextOptions, Gid, ManagementPort};
use crate::wire::mad::{CommId, Mad, Req, ServiceId};

fn stream() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn abstract_name(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

fn port_of(link: Box<dyn Link>) -> ManagementPort {
    Context::open(link, &ContextOptions::default()).unwrap().management_port().unwrap()
}

/// Any user can bind abstract names. This test binds those of a broker, its partitions and a service.
#[test]
fn squatter_on_abstract_names_neither_blocks_an_address_nor_receives_requests() {
    let (address, service) = ("127.18.240.1", ServiceId(0x0106_1234));
    let listener = stream();
    bind(&listener, &abstract_name(&format!("urxe-broker/{address}"))).unwrap();
    listen(&listener, 16).unwrap();
    let tokens: Vec<OwnedFd> = (0..QpnPartition::COUNT)
        .map(|partition| {
            let socket = datagram_socket().unwrap();
            bind(&socket, &abstract_name(&format!("urxe-lease/{address}/{partition}"))).unwrap();
            socket
        })
        .collect();
    let forwarded_mads = datagram_socket().unwrap();
    bind(&forwarded_mads, &abstract_name(&format!("urxe-service/{address}/{:016x}", service.0))).unwrap();
    let (ip, sharing, server) = start_broker(address);
    let mut links = join(ip, 1, &sharing).unwrap();
    links[0].claim(service, None).unwrap();
    let port = port_of(Box::new(links.pop().unwrap()));
    let peer =
        port_of(Box::new(UdpLink::bind("127.18.240.2".parse().unwrap(), &UdpOptions::default()).unwrap()));
    let req = Req { local: CommId(5), service, ..Req::default() };
    let mad = Mad { transaction: 9, modifier: 0, message: req.into() };
    peer.send(&AddressVector::to(Gid::from(ip)), &mad.bytes()).unwrap();
    let received = port.recv(std::time::Duration::from_secs(10)).unwrap();
    assert_eq!(Mad::parse(&received.bytes).unwrap().transaction, 9);
    let mut bytes = [0; 512];
    let received = rustix::net::recv(&forwarded_mads, &mut bytes, rustix::net::RecvFlags::DONTWAIT);
    assert_eq!(received.map(|_| ()), Err(rustix::io::Errno::AGAIN));
    drop((port, tokens));
    server.join().unwrap().unwrap();
}

#[test]
fn address_on_which_no_process_has_a_lease_any_more_is_released() {
    let (ip, sharing, server) = start_broker("127.18.247.1");
    let first = join(ip, 1, &sharing).unwrap();
    let bind_addr = BindAddr::new(ip, &UdpOptions::default());
    let address = SocketNames::of(false).unwrap().address(&broker_name(&bind_addr)).unwrap();
    let connection = stream();
    connect(&connection, &address).unwrap();
    let memory = memfd::create("acknowledgements", 1).unwrap();
    let request = "urxe-broker-5 acquire 1 127.18.247.1 127.18.247.2";
    fd_message::send(&connection, &request, &[memory.as_fd()]).unwrap();
    let (line, fds) = fd_message::receive(&connection, false).unwrap().unwrap();
    assert!(line.contains("granted"), "{line}");
    let is_free = |ip: &str| UdpSocket::bind((ip, crate::wire::ROCE_PORT)).is_ok();
    assert!(!is_free("127.18.247.2"));
    drop((connection, fds));
    let begin = std::time::Instant::now();
    while !is_free("127.18.247.2") {
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "not released within 20 s");
        thread::yield_now();
    }
    assert!(!is_free("127.18.247.1"), "the other address is in use");
    drop(first);
    server.join().unwrap().unwrap();
}

#[test]
fn broker_rejects_malformed_messages_and_continues() {
    let (ip, sharing, server) = start_broker("127.18.241.1");
    let first = join(ip, 1, &sharing).unwrap();
    let bind_addr = BindAddr::new(ip, &UdpOptions::default());
    let address = SocketNames::of(false).unwrap().address(&broker_name(&bind_addr)).unwrap();
    let long = [b'x'; 9000];
    let with_nul = b"urxe-broker-5 acquire 1 127.18.241.1\0";
    let lines: [&[u8]; 7] = [
        b"GET / HTTP/1.0",
        b"urxe-broker-5 acquire 0 127.18.241.1",
        b"urxe-broker-5 reattach 1 1 127.18.241.1",
        b"urxe-broker-4 acquire 1 127.18.241.1",
        &[0xff, 0xfe, 0],
        &long,
        with_nul,
    ];
    for line in lines {
        let connection = stream();
        connect(&connection, &address).unwrap();
        send(&connection, line, SendFlags::NOSIGNAL).unwrap();
        // A message with an invalid length ends the connection; every other message gets a response with the
        // reason.
        let response = fd_message::receive(&connection, false);
        if line.len() < 9000 {
            let (response, fds) = response.unwrap().unwrap();
            assert!(response.contains("refused") && fds.is_empty(), "{response}");
        } else {
            assert!(!matches!(response, Ok(Some(_))));
        }
    }
    // Descriptors that were not requested, and one that is not a keepalive descriptor.
    let connection = stream();
    connect(&connection, &address).unwrap();
    let sockets: Vec<OwnedFd> = (0..100).map(|_| datagram_socket().unwrap()).collect();
    let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    fd_message::send(&connection, &"urxe-broker-5 reattach 1 1 127.18.241.1", &fds).unwrap();
    let (response, _) = fd_message::receive(&connection, false).unwrap().unwrap();
    assert!(response.contains("refused"), "{response}");
    // An idle connection delays no other.
    let idle = stream();
    connect(&idle, &address).unwrap();
    let second = join(ip, 1, &sharing).unwrap();
    drop((first, second, idle));
    server.join().unwrap().unwrap();
}

#[test]
fn joining_fails_with_a_hint_if_another_version_of_the_broker_shares_the_port() {
    let (ip, sharing, server) = start_broker("127.18.245.1");
    let group = steer::bind_group(ip, &UdpOptions::default(), QpnPartition::COUNT).unwrap();
    let error = join(ip, 1, &sharing).err().unwrap();
    assert!(matches!(error, SharingError::Refused { errno: libc::EADDRINUSE, .. }), "{error}");
    assert!(error.to_string().contains("another version of urxe"), "{error}");
    drop(group);
    server.join().unwrap().unwrap();
}

/// A matching process ID does not prove ownership of a partition; only the partition's token socket does.
#[test]
fn reattaching_to_a_partition_without_its_token_fails_despite_the_same_pid() {
    let (ip, sharing, server) = start_broker("127.18.242.1");
    let one = join(ip, 1, &sharing).unwrap();
    let partition = one[0].partition().index();
    let bind_addr = BindAddr::new(ip, &UdpOptions::default());
    let address = SocketNames::of(false).unwrap().address(&broker_name(&bind_addr)).unwrap();
    // A client with the same process ID claims a partition that this process owns.
    let connection = stream();
    connect(&connection, &address).unwrap();
    let (memory, keepalive) = (memfd::create("acknowledgements", 1).unwrap(), datagram_socket().unwrap());
    let fds = [memory.as_fd(), keepalive.as_fd()];
    fd_message::send(&connection, &format!("urxe-broker-5 reattach {partition} 1 {ip}"), &fds).unwrap();
    let (response, _) = fd_message::receive(&connection, false).unwrap().unwrap();
    assert!(response.contains("has no lease on partition"), "{response}");
    drop((one, connection));
    server.join().unwrap().unwrap();
}

#[test]
fn service_claimed_by_one_process_cannot_be_claimed_by_another_until_released() {
    let (ip, sharing, server) = start_broker("127.18.243.1");
    let mut all = [join(ip, 1, &sharing).unwrap(), join(ip, 1, &sharing).unwrap()];
    let service = ServiceId(77);
    all[0][0].claim(service, None).unwrap();
    assert!(matches!(all[1][0].claim(service, None), Err(ClaimError::InUse { .. })));
    all[0][0].release(service, None);
    all[1][0].claim(service, None).unwrap();
    drop(all);
    server.join().unwrap().unwrap();
}

#[test]
fn socket_file_of_a_killed_process_is_removed_when_the_broker_exits() {
    let (ip, sharing, server) = start_broker("127.18.244.1");
    let links = join(ip, 1, &sharing).unwrap();
    let names = SocketNames::of(false).unwrap();
    let SocketNames::Private(directory) = &names else { panic!("not a private name") };
    let file = directory.join(format!("urxe-service-{ip}-0000000001061234"));
    // The file of a killed process remains.
    let socket = datagram_socket().unwrap();
    names.bind(&socket, &format!("urxe-service/{ip}/0000000001061234")).unwrap();
    drop(socket);
    assert!(file.exists());
    drop(links);
    server.join().unwrap().unwrap();
    assert!(!file.exists());
}
