//! Unix socket under a [`FramesLink`](super::FramesLink): datagrams, or a stream with length prefixes.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::SocketAddrUnix;

use super::FramesWire;
use crate::host::frame_queue::FrameQueue;
use crate::host::unix_sockets::socket_dir::is_dead;

/// Largest frame in bytes: an IP packet of 65,535 bytes with its Ethernet header and two VLAN tags.
const MAX_FRAME: usize = 65_535 + 22;

/// Size in bytes of the length prefix before each frame in a stream.
const PREFIX_LEN: usize = 4;

#[derive(Debug)]
pub(super) struct Socket {
    kind: Kind,
    /// Path that this side has bound, and that it removes on drop.
    bound: Option<PathBuf>,
    /// For streams, received bytes that do not yet form a whole frame; for datagrams, room for one frame.
    buffer: Vec<u8>,
    filled: usize,
}

#[derive(Debug)]
enum Kind {
    Dgram { socket: UnixDatagram, remote: PathBuf, connected: bool },
    Stream { origin: Origin, stream: Option<UnixStream> },
}

/// Where the connections of a stream come from.
#[derive(Debug)]
enum Origin {
    Listener(UnixListener),
    Path(PathBuf),
}

impl Socket {
    pub fn open(wire: &FramesWire) -> io::Result<Socket> {
        let (kind, bound, room) = match wire {
            FramesWire::Dgram { local, remote } => {
                remove_stale(local)?;
                let socket = UnixDatagram::bind(local)?;
                socket.set_nonblocking(true)?;
                let kind = Kind::Dgram { socket, remote: remote.clone(), connected: false };
                (kind, Some(local.clone()), MAX_FRAME)
            }
            FramesWire::Listen(path) => {
                remove_stale(path)?;
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                let kind = Kind::Stream { origin: Origin::Listener(listener), stream: None };
                (kind, Some(path.clone()), 4 * MAX_FRAME)
            }
            FramesWire::Connect(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                let kind = Kind::Stream { origin: Origin::Path(path.clone()), stream: Some(stream) };
                (kind, None, 4 * MAX_FRAME)
            }
        };
        Ok(Socket { kind, bound, buffer: vec![0; room], filled: 0 })
    }

    /// Reports whether frames can be sent: a stream must be connected, whereas datagrams need no connection.
    pub fn is_connected(&self) -> bool {
        match &self.kind {
            Kind::Dgram { .. } => true,
            Kind::Stream { stream, .. } => stream.is_some(),
        }
    }

    /// Reports whether this is a connecting side that has lost its connection.
    pub fn wants_reconnect(&self) -> bool {
        matches!(self.kind, Kind::Stream { origin: Origin::Path(_), stream: None })
    }

    /// Returns the descriptor to poll: the connection's, or the listener's while there is no connection.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Dgram { socket, .. } => Some(socket.as_fd()),
            Kind::Stream { stream: Some(stream), .. } => Some(stream.as_fd()),
            Kind::Stream { origin: Origin::Listener(listener), .. } => Some(listener.as_fd()),
            Kind::Stream { origin: Origin::Path(_), stream: None } => None,
        }
    }

    /// Queues the frame that `write` appends, with a length prefix in a stream.
    pub fn queue(&self, tx: &mut FrameQueue, write: impl FnOnce(&mut Vec<u8>)) {
        if let Kind::Dgram { .. } = self.kind {
            return tx.push_with(write);
        }
        tx.push_with(|out| {
            let at = out.len();
            out.extend_from_slice(&[0; PREFIX_LEN]);
            write(out);
            let len = (out.len() - at - PREFIX_LEN) as u32;
            out[at..at + PREFIX_LEN].copy_from_slice(&len.to_be_bytes());
        });
    }

    /// Accepts or establishes a connection if there is none. Returns whether there is a new connection.
    pub fn connect(&mut self) -> bool {
        let Kind::Stream { origin, stream: stream @ None } = &mut self.kind else { return false };
        let new = match origin {
            Origin::Listener(listener) => listener.accept().map(|(stream, _)| stream),
            Origin::Path(path) => UnixStream::connect(path),
        };
        *stream = new.and_then(|new| new.set_nonblocking(true).map(|()| new)).ok();
        self.filled = 0;
        stream.is_some()
    }

    fn disconnect(&mut self) {
        if let Kind::Stream { stream, .. } = &mut self.kind {
            *stream = None;
        }
        self.filled = 0;
    }

    /// Sends until the peer's buffer is full or the queue is empty. Returns the number of frames dropped
    /// because no peer was connected.
    pub fn flush(&mut self, tx: &mut FrameQueue) -> u64 {
        let lost = match &mut self.kind {
            Kind::Dgram { socket, remote, connected } => {
                return send_datagrams(socket, remote, connected, tx);
            }
            Kind::Stream { stream: Some(stream), .. } => send_stream(stream, tx).is_err(),
            _ => true,
        };
        if !lost {
            return 0;
        }
        self.disconnect();
        let frames = tx.len() as u64;
        tx.clear();
        frames
    }

    /// Reads frames into `rx` until it holds `max` frames or no more are available.
    pub fn fill(&mut self, rx: &mut FrameQueue, max: usize) {
        let result = match &mut self.kind {
            Kind::Dgram { socket, .. } => {
                receive_datagrams(socket, &mut self.buffer, rx, max);
                Ok(())
            }
            Kind::Stream { stream: Some(stream), .. } => {
                receive_stream(stream, &mut self.buffer, &mut self.filled, rx, max)
            }
            _ => Ok(()),
        };
        if result.is_err() {
            self.disconnect();
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(path) = &self.bound {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes the file at `path` if it is a socket that no process has open.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    match SocketAddrUnix::new(path) {
        Ok(address) if is_socket && is_dead(&address)? => fs::remove_file(path),
        _ => Ok(()),
    }
}

fn send_datagrams(socket: &UnixDatagram, remote: &Path, connected: &mut bool, tx: &mut FrameQueue) -> u64 {
    let mut lost = 0;
    while let Some(frame) = tx.front() {
        // A connected socket makes `poll` report when the peer's queue (10 frames) has room.
        let just_connected = !*connected;
        if just_connected {
            *connected = socket.connect(remote).is_ok();
        }
        let sent = if *connected { socket.send(frame) } else { Err(ErrorKind::NotConnected.into()) };
        match sent {
            Ok(_) => tx.pop(),
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) if *connected && !just_connected => *connected = false,
            Err(_) => {
                tx.pop();
                lost += 1;
            }
        }
    }
    lost
}

fn receive_datagrams(socket: &UnixDatagram, buffer: &mut [u8], rx: &mut FrameQueue, max: usize) {
    while rx.len() < max {
        match socket.recv(buffer) {
            Ok(n) => rx.push(&buffer[..n]),
            // ECONNRESET means that the peer has closed its socket; a new peer may bind the same path.
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionReset) => {}
            Err(_) => return,
        }
    }
}

fn send_stream(stream: &mut UnixStream, tx: &mut FrameQueue) -> io::Result<()> {
    while !tx.is_empty() {
        match stream.write(tx.as_bytes()) {
            Ok(n) => tx.consume(n),
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive_stream(
    stream: &mut UnixStream,
    buffer: &mut [u8],
    filled: &mut usize,
    rx: &mut FrameQueue,
    max: usize,
) -> io::Result<()> {
    while rx.len() < max {
        match stream.read(&mut buffer[*filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => *filled += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        let mut at = 0;
        while let Some(head) = buffer[at..*filled].first_chunk::<PREFIX_LEN>() {
            let len = u32::from_be_bytes(*head) as usize;
            if len > MAX_FRAME {
                return Err(ErrorKind::InvalidData.into());
            }
            let Some(frame) = buffer[at + PREFIX_LEN..*filled].get(..len) else { break };
            rx.push(frame);
            at += PREFIX_LEN + len;
        }
        buffer.copy_within(at..*filled, 0);
        *filled -= at;
    }
    Ok(())
}
