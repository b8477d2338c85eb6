//! Raw UDP: the performance of kernel sockets without a NIC on top.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags, recvmsg, sendto};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::control::Control;
use crate::job::{Job, Metrics, Role, Train};
use crate::ping;
use crate::progress::{Meter, Progress, SendWindow};

#[derive(Serialize, Deserialize)]
struct ConnInfo {
    addr: SocketAddr,
    /// Number of bytes that may be in flight to this socket.
    window: usize,
}

/// Sets an integer socket option.
pub fn set(socket: &impl AsRawFd, level: i32, name: i32, value: i32) -> Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to an i32 that outlives the call, and `len` is its size.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Enlarges the receive buffer to the size that urxe requests, or to the kernel's limit if that is lower, and
/// returns the number of bytes that may be in flight to the socket.
pub fn enlarge_receive_buffer(socket: &impl AsRawFd) -> Result<usize> {
    const WANTED: i32 = 8 << 20;
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, WANTED).is_err() {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, WANTED)?;
    }
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes to an i32 that outlives the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw mut value).cast(),
            &mut len,
        )
    };
    match done {
        0 => Ok((value as usize / 8).min(1 << 20)),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

fn open(job: &Job, control: &Control, ips: [IpAddr; 2]) -> Result<(UdpSocket, usize)> {
    let socket = UdpSocket::bind((ips[job.role as usize], 0))?;
    let peer = control
        .exchange(&ConnInfo { addr: socket.local_addr()?, window: enlarge_receive_buffer(&socket)? })?;
    socket.connect(peer.addr)?;
    Ok((socket, peer.window))
}

/// Measures trains of contiguous datagrams, sent with UDP_SEGMENT and received with UDP_GRO into one buffer.
pub fn stream(job: &Job, control: &Control, ips: [IpAddr; 2], train: Train) -> Result<Metrics> {
    let progress = Progress::map(&job.progress)?;
    let (socket, window) = open(job, control, ips)?;
    match job.role {
        Role::Active => {
            set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, train.datagram as i32)?;
            let data = vec![0x5a; train.datagram * train.count];
            control.start()?;
            send_stream(job, train, window, &progress, || Ok(socket.send(&data)?))
        }
        Role::Passive => {
            set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            control.start()?;
            let mut buffer = vec![0; 65_536];
            while !control.is_stopped() {
                if let Ok(n) = socket.recv(&mut buffer) {
                    progress.add(n as u64);
                }
            }
            Ok(Metrics::new())
        }
    }
}

/// Calls `send`, which returns the number of bytes sent, as often as the receiver permits, and measures the
/// throughput.
pub fn send_stream(
    job: &Job,
    train: Train,
    window: usize,
    progress: &Progress,
    mut send: impl FnMut() -> Result<usize>,
) -> Result<Metrics> {
    let (mut meter, mut send_window) = (Meter::start(job.seconds), SendWindow::new(window as u64));
    loop {
        let arrived = progress.get();
        if !meter.record(arrived) {
            break;
        }
        match send_window.may_send(arrived) {
            true => send_window.record_sent(send()? as u64),
            // If the two ends share a core, the receiver has to run now.
            false => thread::yield_now(),
        }
    }
    let bytes = meter.rate()?;
    Ok(Metrics::from([
        ("Gb/s".into(), bytes * 8.0 / 1e9),
        ("M/s".into(), bytes / train.datagram as f64 / 1e6),
        ("lost".into(), send_window.lost_share()),
    ]))
}

/// Measures round trips of eight-byte datagrams between two processes that both poll.
pub fn ping(job: &Job, control: &Control, ips: [IpAddr; 2], rounds: usize) -> Result<Metrics> {
    let (socket, _) = open(job, control, ips)?;
    socket.set_nonblocking(true)?;
    let (data, mut buffer) = ([0; 8], [0; 64]);
    ping_pong(job, control, rounds, || Ok(socket.send(&data)?), || socket.recv(&mut buffer))
}

/// Measures round trips of datagrams as long as urxe's packets, with the socket options and the calls of
/// urxe's link: the socket is not connected, and the kernel reports the sender and the header fields of each
/// datagram.
pub fn ping_like_link(
    job: &Job,
    control: &Control,
    ips: [IpAddr; 2],
    datagram: usize,
    rounds: usize,
) -> Result<Metrics> {
    let socket = UdpSocket::bind((ips[job.role as usize], 0))?;
    for (level, name, value) in [
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        (libc::SOL_UDP, libc::UDP_GRO, 1),
    ] {
        set(&socket, level, name, value)?;
    }
    let peer = control
        .exchange(&ConnInfo { addr: socket.local_addr()?, window: enlarge_receive_buffer(&socket)? })?
        .addr;
    let (data, mut buffer, mut space) = (vec![0x5a; datagram], vec![0; 65_536], [MaybeUninit::uninit(); 128]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let send = || Ok(sendto(&socket, &data, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &peer)?);
    let receive = || {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        Ok(recvmsg(&socket, &mut slices, &mut ancillary, RecvFlags::DONTWAIT)?.bytes)
    };
    ping_pong(job, control, rounds, send, receive)
}

/// Runs one end of a ping-pong. `receive` fails with [`ErrorKind::WouldBlock`] if no datagram has arrived.
fn ping_pong(
    job: &Job,
    control: &Control,
    rounds: usize,
    mut send: impl FnMut() -> Result<usize>,
    mut receive: impl FnMut() -> io::Result<usize>,
) -> Result<Metrics> {
    control.start()?;
    match job.role {
        Role::Active => ping::time_round_trips(rounds, |_| {
            send()?;
            for _ in 0..ping::MAX_POLLS {
                match receive() {
                    Ok(_) => return Ok(()),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Err(format!("no response after {} polls", ping::MAX_POLLS).into())
        }),
        Role::Passive => {
            while !control.is_stopped() {
                if receive().is_ok() {
                    send()?;
                }
            }
            Ok(Metrics::new())
        }
    }
}
