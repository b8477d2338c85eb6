//! Raw packet sockets over a veth pair, with a virtio-net header before each train of datagrams: the upper
//! bound for the packet link's throughput.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void};

use crate::Result;
use crate::control::Control;
use crate::job::{Job, Metrics, Role, Train};
use crate::progress::Progress;
use crate::raw_udp::{enlarge_receive_buffer, send_stream, set};

/// Constants from linux/if_packet.h that libc lacks.
const PACKET_VNET_HDR: c_int = 15;
const PACKET_IGNORE_OUTGOING: c_int = 23;
/// Constants from linux/virtio_net.h, for a GSO packet of equal-sized UDP datagrams whose checksums the
/// device computes.
const GSO_UDP_L4: u8 = 5;
const NEEDS_CSUM: u8 = 1;

const VNET: usize = 10;
const ETHERNET: usize = 14;
const HEADERS: usize = ETHERNET + 20 + 8;
/// Destination MAC address that no interface on this link has, so that the receiving kernel does not process
/// the packets.
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x66, 0, 0x99];

/// Opens a packet socket on an interface of this network namespace.
fn open(interface: &str) -> Result<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, c_int::from(all)) };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: `socket` has just returned the descriptor, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    set(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: sockaddr_ll consists of integers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = index as c_int;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, which outlives the call and which the kernel only reads.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error().into()),
    }
}

/// Returns the headers that precede a train's payload: virtio-net, Ethernet, IPv4 and UDP.
fn train_headers(train: Train) -> Vec<u8> {
    let payload = train.datagram * train.count;
    let mut headers = vec![0; VNET + HEADERS];
    headers[0] = NEEDS_CSUM;
    headers[1] = GSO_UDP_L4;
    headers[2..4].copy_from_slice(&(HEADERS as u16).to_ne_bytes());
    headers[4..6].copy_from_slice(&(train.datagram as u16).to_ne_bytes());
    headers[6..8].copy_from_slice(&((ETHERNET + 20) as u16).to_ne_bytes());
    headers[8..10].copy_from_slice(&6u16.to_ne_bytes());
    let ethernet = &mut headers[VNET..];
    ethernet[..6].copy_from_slice(&MAC);
    ethernet[6..12].copy_from_slice(&[0x52, 0x54, 0, 0x66, 0, 1]);
    ethernet[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    let ip = &mut ethernet[ETHERNET..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((payload + 28) as u16).to_be_bytes());
    ip[6] = 0x40;
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..20].copy_from_slice(&[10, 66, 0, 101, 10, 66, 0, 102]);
    let sum = ones_complement_sum(&ip[..20]);
    ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
    // Checksum of the pseudo-header only: the device that sends the datagrams completes it.
    let length = (payload + 8) as u16;
    let pseudo = [&ip[12..20], &[0, 17], &length.to_be_bytes()].concat();
    let udp = &mut ip[20..];
    udp[..4].copy_from_slice(&[0x12, 0xb7, 0x12, 0xb7]);
    udp[4..6].copy_from_slice(&length.to_be_bytes());
    udp[6..8].copy_from_slice(&ones_complement_sum(&pseudo).to_be_bytes());
    headers
}

fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

pub fn stream(job: &Job, control: &Control, interfaces: &[String; 2], train: Train) -> Result<Metrics> {
    let progress = Progress::map(&job.progress)?;
    let socket = open(&interfaces[job.role as usize])?;
    let window: usize = control.exchange(&enlarge_receive_buffer(&socket)?)?;
    control.start()?;
    match job.role {
        Role::Active => {
            let mut frame = train_headers(train);
            let headers_len = frame.len();
            frame.resize(headers_len + train.datagram * train.count, 0x5a);
            send_stream(job, train, window, &progress, || {
                // SAFETY: pointer and length describe `frame`, which outlives the call and which the kernel
                // only reads.
                let n = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
                match usize::try_from(n) {
                    Ok(n) => Ok(n - headers_len),
                    Err(_) => Err(io::Error::last_os_error().into()),
                }
            })
        }
        Role::Passive => {
            set_timeout(&socket)?;
            let mut buffer = vec![0u8; 1 << 17];
            while !control.is_stopped() {
                let at = buffer.as_mut_ptr().cast::<c_void>();
                // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, which is borrowed
                // exclusively.
                let n = unsafe { libc::recv(socket.as_raw_fd(), at, buffer.len(), 0) };
                let is_ours = buffer[VNET..VNET + 6] == MAC;
                if n > (VNET + HEADERS) as isize && is_ours {
                    progress.add(n as u64 - (VNET + HEADERS) as u64);
                }
            }
            Ok(Metrics::new())
        }
    }
}

/// Sets a receive timeout, so that the receiver regularly checks whether the measurement is over.
fn set_timeout(socket: &OwnedFd) -> Result<()> {
    let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    let (at, len) = ((&raw const time).cast(), size_of::<libc::timeval>() as libc::socklen_t);
    // SAFETY: pointer and length describe a timeval that outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}
