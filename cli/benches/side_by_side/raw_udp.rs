//! Raw UDP: the performance of kernel sockets without a NIC on top.

use std::io::ErrorKind;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

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
    control.start()?;
    let mut buffer = [0; 64];
    match job.role {
        Role::Active => ping::time_round_trips(rounds, |_| {
            socket.send(&buffer[..8])?;
            for _ in 0..ping::MAX_POLLS {
                match socket.recv(&mut buffer) {
                    Ok(_) => return Ok(()),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Err(format!("no response after {} polls", ping::MAX_POLLS).into())
        }),
        Role::Passive => {
            while !control.is_stopped() {
                if let Ok(n) = socket.recv(&mut buffer) {
                    socket.send(&buffer[..n])?;
                }
            }
            Ok(Metrics::new())
        }
    }
}
