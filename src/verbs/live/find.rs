//! Search for the NICs of this host, and their state.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect};

use super::{NAME, NicSnapshot};
use crate::host::unix_sockets::{is_own_user, socket_dir, stream_socket};

/// Maximum length of a state in bytes: that of a hundred thousand queue pairs.
const MAX_LEN: usize = 256 << 20;

/// NIC of a process of this host.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct FoundNic {
    /// Process ID in the PID namespace of this process.
    pub pid: u32,
    /// User of the process.
    pub user: u32,
    /// State of the NIC, or why there is none.
    pub state: Result<NicSnapshot, Silence>,
}

impl FoundNic {
    /// Returns a NIC with the given state, for tests of what shows it.
    #[doc(hidden)]
    pub fn new(pid: u32, state: Result<NicSnapshot, Silence>) -> FoundNic {
        FoundNic { pid, user: 0, state }
    }
}

/// Reason why a process does not report the state of its NIC.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Silence {
    /// The process is stopped, by a signal or a debugger.
    #[error("the process is stopped (by SIGSTOP, Ctrl-Z or a debugger)")]
    Stopped,
    /// The process did not answer in time.
    #[error("the process did not answer within {0:?}")]
    Timeout(Duration),
    /// The process answered with something else.
    #[error("the process sent no valid state, perhaps because it runs another version of urxe: {0}")]
    Invalid(String),
    /// The process could not be asked.
    #[error("the process could not be asked: {0}")]
    Failed(String),
}

/// Finds the NICs of this user's processes on this host, and of all users for root, in the order of their process IDs. Waits for up to `limit` for
/// all answers together.
pub fn find(limit: Duration) -> Vec<FoundNic> {
    // All processes are asked before the first answer is read.
    let (mut asked, mut dead) = (Vec::new(), BTreeSet::new());
    for (path, pid, user) in sockets() {
        match ask(&path, pid, user) {
            Some(connection) => asked.push(connection),
            None => dead.extend(path.parent().filter(|_| is_own_user(user)).map(Path::to_path_buf)),
        }
    }
    // Killed processes and those that exit without closing a NIC leave their sockets.
    dead.iter().for_each(|directory| socket_dir::try_remove(directory));
    let deadline = Instant::now() + limit;
    let mut found: Vec<_> = asked.into_iter().filter_map(|asked| asked.answer(deadline, limit)).collect();
    found.sort_by_key(|nic| nic.pid);
    found
}

/// Socket of a NIC, and a connection to it.
struct Asked {
    pid: u32,
    user: u32,
    connection: Result<OwnedFd, Errno>,
}

/// Returns the sockets of NICs: path, process ID in the name, and user.
fn sockets() -> Vec<(PathBuf, u32, u32)> {
    let mut sockets = Vec::new();
    for (directory, user) in socket_dir::all() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name
                .to_str()
                .and_then(|name| name.strip_prefix(NAME)?.strip_prefix('-')?.split_once('-')?.0.parse().ok());
            sockets.extend(pid.map(|pid| (entry.path(), pid, user)));
        }
    }
    sockets
}

/// Connects to a socket. Returns `None` if no process has it open.
fn ask(path: &Path, pid: u32, user: u32) -> Option<Asked> {
    let connection = stream_socket().and_then(|socket| {
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    });
    if matches!(connection, Err(Errno::CONNREFUSED | Errno::NOENT)) {
        return None;
    }
    // In another PID namespace, the process has another ID than in its own, which is in the name.
    let peer = connection.as_ref().ok().and_then(|socket| getsockopt(socket, PeerCredentials).ok());
    let known = peer.and_then(|peer| u32::try_from(peer.pid()).ok()).filter(|pid| *pid != 0);
    Some(Asked { pid: known.unwrap_or(pid), user, connection })
}

impl Asked {
    /// Reads the answer. Returns `None` if the NIC has been closed meanwhile.
    fn answer(self, deadline: Instant, limit: Duration) -> Option<FoundNic> {
        let Asked { pid, user, connection } = self;
        let read = connection.map_err(io::Error::from).and_then(|socket| read_until(socket, deadline));
        let state = match read {
            Ok(bytes) if bytes.is_empty() => return None,
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| Silence::Invalid(e.to_string())),
            Err(_) if is_stopped(pid) => Err(Silence::Stopped),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(Silence::Timeout(limit))
            }
            Err(e) => Err(Silence::Failed(e.to_string())),
        };
        Some(FoundNic { pid, user, state })
    }
}

/// Reads to the end of a connection, but not beyond the deadline.
fn read_until(socket: OwnedFd, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        // A timeout of 0 would be none.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if bytes.len() > MAX_LEN {
            return Err(io::Error::other(format!("the state has more than {MAX_LEN} bytes")));
        }
    }
}

/// Reports whether a process is stopped by a signal or traced by a debugger.
fn is_stopped(pid: u32) -> bool {
    // The name in parentheses, which precedes the state, may contain anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}
