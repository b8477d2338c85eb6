//! Fuzz target: a broker, and hostile processes that send arbitrary and almost valid messages with arbitrary
//! descriptors over their connections. The broker must not panic, must serve honest processes in between, and
//! must not keep descriptors.
#![no_main]

#[path = "input.rs"]
mod input;
#[path = "shared.rs"]
mod shared;

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use input::Input;
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with, socketpair,
};
use urxe::broker::SharedMemory;

/// Number of executions after which an honest process joins, and descriptors are counted.
const CHECK_INTERVAL: u64 = 256;
/// Bound of this process's descriptors: two addresses with 64 sockets, each twice, and those of the fuzzer.
const MAX_DESCRIPTORS: usize = 1000;
/// Maximum wait for a response, which the broker owes for most messages.
const RESPONSE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Time within which an honest process gets a partition. The broker makes it wait for those of processes that
/// have just disconnected.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

fn message(p: &mut Input<'_>) -> Vec<u8> {
    let number = |p: &mut Input<'_>| match p.below(8) {
        0 => p.u64().to_string(),
        1 => format!("-{}", p.u8()),
        n => [1, 2, 4, 32, 63, 64][n - 2].to_string(),
    };
    let address = |p: &mut Input<'_>| match p.below(6) {
        0 => "0.0.0.0".into(),
        1 => "fe80::1%lo".into(),
        2 => format!("127.{}.{}.2", p.u8(), p.u8()),
        3 => "%".into(),
        _ => shared::address().to_string(),
    };
    let mut line = match p.below(8) {
        0 => return (0..p.u16() % 9000).map(|_| p.u8()).collect(),
        1 => format!("urxe-broker-{} acquire 1 {}", p.u8(), address(p)),
        2 | 3 => format!("urxe-broker-5 acquire {} {}", number(p), address(p)),
        _ => format!("urxe-broker-5 reattach {} {} {}", number(p), number(p), address(p)),
    };
    for _ in 0..[0, 0, 0, 1, 2, 200, 0, 0][p.below(8)] {
        line += " ";
        line += &address(p);
    }
    let mut bytes = line.into_bytes();
    if p.chance(8) {
        let at = p.u16() as usize % bytes.len();
        bytes[at] = p.u8();
    }
    bytes
}

/// Returns descriptors of several kinds. A keepalive descriptor is a socket with an unread message of
/// descriptors.
fn descriptors(p: &mut Input<'_>) -> Vec<OwnedFd> {
    let count = [0, 0, 0, 1, 1, 2, 3, 253][p.below(8)];
    let kind = p.u8();
    let pair = || socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok();
    let make = || match kind & 3 {
        0 => eventfd(0, EventfdFlags::CLOEXEC).ok(),
        1 => pair().map(|(a, _)| a),
        2 => {
            let (a, b) = pair()?;
            send(&b, &[kind], &[eventfd(0, EventfdFlags::CLOEXEC).ok()?]);
            Some(a)
        }
        _ => std::fs::File::open("/dev/null").ok().map(OwnedFd::from),
    };
    let first = (!p.chance(8)).then(|| memory(p)).flatten();
    first.into_iter().chain((0..count).map_while(|_| make())).collect()
}

/// Returns memory like that of the last acknowledgements of a process with up to 32 shards.
fn memory(p: &mut Input<'_>) -> Option<OwnedFd> {
    let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).ok()?;
    let records: Vec<u8> = (0..p.u8()).map(|_| p.u8()).collect();
    rustix::io::write(&fd, &records).ok()?;
    rustix::fs::ftruncate(&fd, [0, 1 << 14, 1 << 19][p.below(3)]).ok()?;
    Some(fd)
}

fn send(to: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

/// Receives and drops a response with its descriptors. Returns false at the end of the connection.
fn receive(from: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    if !poll(&mut fds, Some(&RESPONSE_TIMEOUT)).is_ok_and(|ready| ready > 0) {
        return true;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let (mut control, mut text) = (RecvAncillaryBuffer::new(&mut space), [0; 8192]);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut text)], &mut control, flags);
    received.is_ok_and(|received| received.bytes > 0)
}

fuzz_target!(|data: &[u8]| {
    static LEASE: OnceLock<std::sync::Mutex<urxe::broker::SharedUdpLink>> = OnceLock::new();
    LEASE.get_or_init(|| shared::start_broker(SharedMemory::Off).into());
    let mut p = Input::new(data);
    let name = format!("urxe-broker/{}", shared::address());
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("the name is short");
    let connections: Vec<OwnedFd> = (0..1 + p.below(3))
        .filter_map(|_| {
            let flags = SocketFlags::CLOEXEC;
            let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
            connect(&connection, &name).is_ok().then_some(connection)
        })
        .collect();
    for _ in 0..8 {
        if p.is_empty() || connections.is_empty() {
            break;
        }
        let connection = &connections[p.below(connections.len())];
        let (bytes, fds) = (message(&mut p), descriptors(&mut p));
        if !send(connection, &bytes, &fds) || !receive(connection) {
            break;
        }
    }
    drop(connections);
    thread_local!(static EXECUTIONS: Cell<u64> = const { Cell::new(0) });
    EXECUTIONS.set(EXECUTIONS.get() + 1);
    if EXECUTIONS.get().is_multiple_of(CHECK_INTERVAL) {
        let begin = Instant::now();
        while let Err(e) = shared::join(shared::address().into(), SharedMemory::Off) {
            assert!(begin.elapsed() < JOIN_TIMEOUT, "an honest process gets no partition: {e}");
        }
        // The broker may still be serving a request whose sender has disconnected.
        let count = || std::fs::read_dir("/proc/self/fd").map_or(usize::MAX, Iterator::count);
        while count() >= MAX_DESCRIPTORS {
            assert!(begin.elapsed() < JOIN_TIMEOUT, "{} descriptors", count());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
});
