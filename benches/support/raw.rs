//! Raw UDP on loopback without a NIC on top: the reference that urxe's figures are compared with.
//!
//! Each function creates its own two sockets, on ports that the kernel chooses, and returns one or two
//! figures.

use std::io;
use std::mem::size_of;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Result of a stream of bursts.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    /// Gigabits of UDP payload received per second.
    pub gbps: f64,
    /// Share of the sent data that the receiver's socket dropped because its buffer was full.
    pub lost: f64,
}

/// Half round-trip times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct HalfRoundTrip {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
}

fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to an i32 that outlives the call, and `len` is its size.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns two connected sockets on 127.0.0.1.
fn pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    a.connect(b.local_addr()?)?;
    b.connect(a.local_addr()?)?;
    Ok((a, b))
}

/// Returns two connected sockets: the first sends trains of datagrams of `segment` bytes with UDP_SEGMENT,
/// and the second receives them with UDP_GRO.
pub fn segmented_pair(segment: usize) -> io::Result<(UdpSocket, UdpSocket)> {
    let (tx, rx) = pair()?;
    set(&tx, libc::SOL_UDP, libc::UDP_SEGMENT, segment as i32)?;
    set(&rx, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    Ok((tx, rx))
}

/// Streams contiguous datagrams of `segment` bytes, `segments` per call with UDP_SEGMENT, to a thread that
/// receives them with UDP_GRO into one buffer.
///
/// The sender stays at most 1 MiB ahead of the receiver, as with any reliable transport. An unlimited sender
/// would mostly measure how fast the kernel drops packets.
pub fn throughput(segment: usize, segments: usize, time: Duration) -> io::Result<Throughput> {
    const MAX_AHEAD: u64 = 1 << 20;
    let (tx, rx) = segmented_pair(segment)?;
    if set(&rx, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20).is_err() {
        set(&rx, libc::SOL_SOCKET, libc::SO_RCVBUF, 8 << 20)?;
    }
    rx.set_read_timeout(Some(Duration::from_millis(50)))?;
    let (received, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let data = vec![0x5a; segment * segments];
    thread::scope(|s| {
        s.spawn(|| {
            let mut buffer = vec![0; 65_536];
            while !done.load(Ordering::Relaxed) {
                if let Ok(n) = rx.recv(&mut buffer) {
                    received.fetch_add(n as u64, Ordering::Release);
                }
            }
        });
        let (start, mut sent, mut lost) = (Instant::now(), 0u64, 0u64);
        let outcome = loop {
            let elapsed = start.elapsed();
            if elapsed >= time {
                let arrived = received.load(Ordering::Acquire);
                break Ok(Throughput {
                    gbps: arrived as f64 * 8.0 / elapsed.as_secs_f64() / 1e9,
                    lost: lost as f64 / sent.max(1) as f64,
                });
            }
            let blocked_since = Instant::now();
            while sent - lost - received.load(Ordering::Acquire) > MAX_AHEAD {
                // On a single core the receiver has to run now. Data that does not arrive within 20 ms counts
                // as lost.
                thread::yield_now();
                if blocked_since.elapsed() > Duration::from_millis(20) {
                    lost = sent - received.load(Ordering::Acquire);
                }
            }
            match tx.send(&data) {
                Ok(n) => sent += n as u64,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => break Err(e),
            }
        };
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Minimum CPU times to send and to receive a burst, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct BurstCost {
    /// CPU time of sending.
    pub send: u64,
    /// CPU time of receiving.
    pub receive: u64,
}

/// Runs `send` and `receive` alternately on this thread, and returns the minimum CPU time of a call to each.
/// Unlike a mean, the minimum stays comparable while other processes load the machine.
pub fn cost(
    mut send: impl FnMut() -> io::Result<()>,
    mut receive: impl FnMut() -> io::Result<()>,
) -> io::Result<BurstCost> {
    let mut min = BurstCost { send: u64::MAX, receive: u64::MAX };
    for _ in 0..5000 {
        let start = cpu_time();
        send()?;
        let between = cpu_time();
        receive()?;
        min.send = min.send.min(between - start);
        min.receive = min.receive.min(cpu_time() - between);
    }
    Ok(min)
}

/// Returns the CPU time used by this thread, in nanoseconds.
pub fn cpu_time() -> u64 {
    let time =
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the clock exists on all Linux systems");
    Duration::from(time).as_nanos() as u64
}

/// Measures the CPU times to send a contiguous burst of `segments` datagrams of `segment` bytes with
/// UDP_SEGMENT and to receive it with UDP_GRO.
pub fn burst_cost(segment: usize, segments: usize) -> io::Result<BurstCost> {
    let (tx, rx) = segmented_pair(segment)?;
    let (data, mut buffer) = (vec![0x5a; segment * segments], vec![0; 65_536]);
    cost(|| tx.send(&data).map(drop), || rx.recv(&mut buffer).map(drop))
}

/// Measures half the round-trip time of a datagram of `bytes` bytes between two threads that both poll with
/// non-blocking receives.
pub fn ping_pong(bytes: usize, rounds: usize) -> io::Result<HalfRoundTrip> {
    const WARM_UP: usize = 2000;
    let (a, b) = pair()?;
    a.set_nonblocking(true)?;
    b.set_nonblocking(true)?;
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let mut buffer = [0; 65_536];
            while !done.load(Ordering::Relaxed) {
                if let Ok(n) = b.recv(&mut buffer) {
                    let _ = b.send(&buffer[..n]);
                }
            }
        });
        let mut buffer = [0; 65_536];
        let mut times = Vec::with_capacity(rounds);
        let outcome = (0..rounds + WARM_UP).try_for_each(|round| {
            let start = Instant::now();
            a.send(&buffer[..bytes])?;
            loop {
                match a.recv(&mut buffer) {
                    Ok(_) => break,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
            if round >= WARM_UP {
                times.push(start.elapsed().as_nanos() as u64 / 2);
            }
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        outcome?;
        times.sort_unstable();
        Ok(HalfRoundTrip { p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] })
    })
}
