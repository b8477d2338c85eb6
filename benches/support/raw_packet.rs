//! Raw packet sockets on the two ends of a veth pair without a NIC on top: the reference that packet links
//! are compared with.

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urxe::wire::frame::{append_headers, udp_pseudo_sum};
use urxe::wire::{Flow, Mac};

use crate::netns::Veth;
use crate::raw;

/// Constants from linux/if_packet.h and linux/virtio_net.h.
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const VNET_LEN: usize = 10;
const NEEDS_CSUM: u8 = 1;
const GSO_UDP_L4: u8 = 5;
const HEADERS: usize = 14 + 20 + 8;

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to an i32 that outlives the call, and `len` is its size.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })
        .map(drop)
}

/// Opens a packet socket on an interface of this thread's namespace.
fn open(interface: &str, vnet: bool) -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointers, and it has just returned the descriptor, so nothing else owns it.
    let fd = unsafe {
        OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))?)
    };
    set(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    set(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, vnet.into())?;
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4 << 20)?;
    // SAFETY: pointer and length describe a timeval that outlives the call.
    unsafe {
        let timeout = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
        let len = size_of::<libc::timeval>() as libc::socklen_t;
        checked(libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const timeout).cast(),
            len,
        ))?;
    }
    // SAFETY: sockaddr_ll consists of integers, for which zeros are valid; name and address outlive the calls
    // that read them.
    unsafe {
        let mut address: libc::sockaddr_ll = zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
        address.sll_ifindex = libc::if_nametoindex(CString::new(interface)?.as_ptr()) as i32;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        checked(libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len))?;
    }
    Ok(fd)
}

fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe a live slice, which the kernel only reads.
    let n = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

fn recv(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe a slice that is borrowed exclusively, to which the kernel writes.
    let n = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Returns a frame with `segments` datagrams of `segment` bytes, preceded by a virtio-net header.
fn frame(segment: usize, segments: usize) -> Vec<u8> {
    let ip = |n: u8| IpAddr::from([10, 77, 0, n]);
    let flow = Flow::new(ip(1), ip(2), 4791);
    let bytes = segment * segments;
    let mut out = Vec::new();
    if segments > 1 {
        out.extend([NEEDS_CSUM, GSO_UDP_L4]);
        for field in [HEADERS, segment, HEADERS - 8, 6] {
            out.extend((field as u16).to_ne_bytes());
        }
    } else {
        out.extend([0; VNET_LEN]);
    }
    // Sent to the broadcast address, as nothing here needs the peer's MAC address.
    append_headers(&mut out, Mac::BROADCAST, Mac([2, 0, 0, 0, 0, 1]), &flow, 0, bytes);
    let at = out.len() - 2;
    out[at..].copy_from_slice(&udp_pseudo_sum(&flow, bytes as u16 + 8).to_be_bytes());
    out.resize(out.len() + bytes, 0x5a);
    out
}

/// Measures the throughput in Gb/s of UDP payload from one thread to another in contiguous trains of
/// `segments` datagrams of `segment` bytes, one train per system call; the sender stays at most 1 MiB ahead.
pub fn throughput(net: &Veth, segment: usize, segments: usize, time: Duration) -> io::Result<f64> {
    const MAX_AHEAD: u64 = 1 << 20;
    let (tx, rx) = (net.sides[0].run(|| open("v0", true))?, net.sides[1].run(|| open("v1", true))?);
    let frame = frame(segment, segments);
    let overhead = VNET_LEN + HEADERS;
    let (received, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| {
            let mut buffer = vec![0; 70_000];
            while !done.load(Ordering::Relaxed) {
                match recv(&rx, &mut buffer) {
                    // Other packets arrive on this interface too.
                    Ok(n) if n > overhead + 1000 || segment < 1000 => {
                        received.fetch_add((n - overhead) as u64, Ordering::Release);
                    }
                    _ => {}
                }
            }
        });
        let (start, mut sent, mut lost) = (Instant::now(), 0u64, 0u64);
        let outcome = loop {
            let elapsed = start.elapsed();
            if elapsed >= time {
                break Ok(received.load(Ordering::Acquire) as f64 * 8.0 / elapsed.as_secs_f64() / 1e9);
            }
            let blocked_since = Instant::now();
            while sent - lost - received.load(Ordering::Acquire).min(sent - lost) > MAX_AHEAD {
                // On a single core the receiver has to run now. Data that does not arrive within 20 ms counts
                // as lost.
                thread::yield_now();
                if blocked_since.elapsed() > Duration::from_millis(20) {
                    lost = sent - received.load(Ordering::Acquire).min(sent);
                }
            }
            match send(&tx, &frame) {
                Ok(n) => sent += (n - overhead) as u64,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(e) => break Err(e),
            }
        };
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Measures the CPU times to send and to receive a train of `segments` datagrams of `segment` bytes.
pub fn run_cost(net: &Veth, segment: usize, segments: usize) -> io::Result<raw::BurstCost> {
    let (tx, rx) = (net.sides[0].run(|| open("v0", true))?, net.sides[1].run(|| open("v1", true))?);
    let frame = frame(segment, segments);
    let mut buffer = vec![0; 70_000];
    raw::cost(|| send(&tx, &frame).map(drop), || recv(&rx, &mut buffer).map(drop))
}
