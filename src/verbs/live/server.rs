//! Server of a NIC's state.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendFlags, SocketFlags, accept_with, listen, send};

use super::NAME;
use crate::host::unix_sockets::{SocketNames, is_trusted, peer_user, socket_dir, stream_socket};
use crate::middleware::faults::FaultCount;
use crate::sys::fork::{CloseOnForkFd, ForkGeneration};
use crate::sys::thread::spawn_background;
use crate::verbs::{Context, WeakContext};

/// Maximum wait for each lock of the NIC.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Time within which a reader must have read the state.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of connections not yet accepted.
const BACKLOG: i32 = 16;

/// Maximum number of attempts to bind a socket in the directory, which an exiting broker may remove concurrently.
const MAX_ATTEMPTS: usize = 100;

/// Serves the state of a NIC to [`find`](super::find) until it is dropped.
pub struct LiveServer {
    names: SocketNames,
    name: String,
    end: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread runs in; a forked child does not have it.
    process: ForkGeneration,
}

impl LiveServer {
    /// Starts a thread that serves the state of a NIC, which is called `device`. `faults` returns the counts of the faults
    /// that are injected. The server does not keep the NIC open.
    ///
    /// # Errors
    /// If no socket or thread can be created.
    pub fn start(
        context: &Context,
        device: &str,
        faults: impl Fn() -> Vec<FaultCount> + Send + 'static,
    ) -> io::Result<LiveServer> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAME}/{}/{number}", std::process::id());
        let (names, listener) = listener(&name)?;
        let end = Arc::new(EventFd::new()?);
        let (nic, device, stop) = (context.downgrade(), device.to_owned(), end.clone());
        let thread = spawn_background("urxe-live".into(), move || {
            while wait(&listener, &stop) {
                let Ok(connection) = accept_with(&listener, SocketFlags::CLOEXEC) else { continue };
                serve(&connection, &nic, &device, &faults);
            }
        })?;
        Ok(LiveServer { names, name, end, thread: Some(thread), process: ForkGeneration::current() })
    }
}

impl Drop for LiveServer {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.process.is_current() {
            // In a child of fork, the handle may refer to an unrelated thread.
            std::mem::forget(thread);
            return;
        }
        self.names.unbind(&self.name);
        // The write fails only when the counter is full, and then the thread ends anyway.
        let _ = self.end.write(1);
        // `faults` may hold what the server is part of, so that this may be the thread itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
        if let SocketNames::Private(directory) = &self.names {
            socket_dir::try_remove(directory);
        }
    }
}

/// Opens the listening socket. A forked child has no copy of it.
fn listener(name: &str) -> io::Result<(SocketNames, CloseOnForkFd)> {
    let mut attempts = 0..MAX_ATTEMPTS;
    loop {
        let names = SocketNames::of(false)?;
        let listener = stream_socket()?;
        match names.bind(&listener, name) {
            // A broker, which has just exited, has removed the directory.
            Err(e) if e.kind() == io::ErrorKind::NotFound && attempts.next().is_some() => {}
            bound => {
                bound?;
                listen(&listener, BACKLOG)?;
                return Ok((names, CloseOnForkFd::new(listener)));
            }
        }
    }
}

/// Waits for a connection. Returns false when the server is to end.
fn wait(listener: &CloseOnForkFd, end: &EventFd) -> bool {
    let mut fds = [listener.as_fd(), end.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        // For lack of memory only; a short sleep is better than a busy loop.
        Err(_) => std::thread::sleep(LOCK_TIMEOUT),
    }
    fds[1].any() != Some(true)
}

/// Sends the state to a process of this user or root. One that does not read it in time gets a part.
fn serve(connection: &OwnedFd, nic: &WeakContext, device: &str, faults: impl Fn() -> Vec<FaultCount>) {
    if !peer_user(connection).is_ok_and(|user| is_trusted(user, false)) {
        return;
    }
    let Some(snapshot) = nic.snapshot(device, faults(), LOCK_TIMEOUT) else { return };
    let Ok(bytes) = serde_json::to_vec(&snapshot) else { return };
    let (mut rest, deadline) = (&*bytes, Instant::now() + SEND_TIMEOUT);
    while !rest.is_empty() && Instant::now() < deadline {
        if set_socket_timeout(connection, Timeout::Send, Some(SEND_TIMEOUT)).is_err() {
            return;
        }
        match send(connection, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
