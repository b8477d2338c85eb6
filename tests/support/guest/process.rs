//! Commands in the guest, run by the agent in it; `tests/rxe-guest/agent.c` documents the protocol.

use super::{ErrorKind, GuestError, Result, SHORT, error, log_tail};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

enum Event {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Exit(i32),
}

struct Sessions {
    next: u32,
    open: HashMap<u32, Sender<Event>>,
    /// Whether the connection to the agent has ended, which means that no session can be opened.
    closed: bool,
}

pub struct Link {
    writer: Mutex<UnixStream>,
    sessions: Mutex<Sessions>,
    pub dir: PathBuf,
}

impl Link {
    /// Starts a thread that dispatches the agent's messages to their sessions.
    pub fn new(stream: UnixStream, dir: PathBuf) -> io::Result<Arc<Self>> {
        // A guest that reads no data for this long hangs.
        stream.set_write_timeout(Some(SHORT))?;
        let sessions = Mutex::new(Sessions { next: 1, open: HashMap::new(), closed: false });
        let link = Arc::new(Self { writer: Mutex::new(stream.try_clone()?), sessions, dir });
        let for_reader = Arc::clone(&link);
        std::thread::Builder::new().name("guest".into()).spawn(move || {
            for_reader.read_all(stream);
            let mut s = for_reader.sessions.lock();
            s.closed = true;
            s.open.clear(); // disconnects the channels of the receivers
        })?;
        Ok(link)
    }

    fn read_all(&self, mut stream: UnixStream) {
        while let Ok((kind, sid, data)) = read_frame(&mut stream) {
            let mut s = self.sessions.lock();
            let event = match kind {
                b'O' => Event::Stdout(data),
                b'E' => Event::Stderr(data),
                b'X' if data.len() == 4 => Event::Exit(i32::from_be_bytes(data.try_into().unwrap())),
                _ => return,
            };
            let last = matches!(event, Event::Exit(_));
            if let Some(to) = s.open.get(&sid) {
                let _ = to.send(event); // the receiver may have been dropped
            }
            if last {
                s.open.remove(&sid);
            }
        }
    }

    fn send(&self, kind: u8, sid: u32, data: &[u8]) -> Result<()> {
        let mut frame = vec![kind];
        frame.extend(sid.to_be_bytes());
        frame.extend((data.len() as u32).to_be_bytes());
        frame.extend(data);
        self.writer
            .lock()
            .write_all(&frame)
            .map_err(|e| self.terminated(format!("cannot write to the guest's agent: {e}")))
    }

    pub fn spawn(self: &Arc<Self>, cmd: &str) -> Result<GuestProcess> {
        let (tx, rx) = mpsc::channel();
        let sid = {
            let mut s = self.sessions.lock();
            if s.closed {
                drop(s);
                return Err(self.terminated("the guest has terminated".into()));
            }
            s.next += 1;
            let sid = s.next;
            s.open.insert(sid, tx);
            sid
        };
        self.send(b'C', sid, cmd.as_bytes())?;
        Ok(GuestProcess {
            link: Arc::clone(self),
            sid,
            rx,
            cmd: cmd.into(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            status: None,
        })
    }

    /// Reseeds the random number generator of the guest's kernel.
    pub fn reseed(&self) -> Result<()> {
        self.send(b'R', 0, &[])
    }

    pub fn terminated(&self, message: String) -> GuestError {
        GuestError { kind: ErrorKind::Terminated, message, log: log_tail(&self.dir) }
    }
}

fn read_frame(s: &mut UnixStream) -> io::Result<(u8, u32, Vec<u8>)> {
    let mut h = [0; 9];
    s.read_exact(&mut h)?;
    let word = |at: usize| u32::from_be_bytes(h[at..at + 4].try_into().unwrap());
    if word(5) > 1 << 20 {
        return Err(io::Error::other("the agent sent a frame longer than 1 MiB: the stream is out of sync"));
    }
    let mut data = vec![0; word(5) as usize];
    s.read_exact(&mut data)?;
    Ok((h[0], word(1), data))
}

// ---- commands ----

/// Exit status and output of a command in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit status, or 128 + n if signal n terminated the command.
    pub status: i32,
    /// Standard output that `read_line` has not yet returned.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A command that runs in the guest; it is killed on drop.
pub struct GuestProcess {
    pub(super) link: Arc<Link>,
    sid: u32,
    rx: Receiver<Event>,
    cmd: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<i32>,
}

impl GuestProcess {
    /// Waits for output from the command or for its exit, and stores the event. Fails at `deadline`.
    fn process_event(&mut self, deadline: Instant) -> Result<()> {
        match self.rx.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Stdout(d)) => self.stdout.extend(d),
            Ok(Event::Stderr(d)) => self.stderr.extend(d),
            Ok(Event::Exit(status)) => self.status = Some(status),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(self.link.terminated(format!("`{}`: the guest has terminated", self.cmd)));
            }
            Err(RecvTimeoutError::Timeout) => {
                let tail =
                    |b: &[u8]| String::from_utf8_lossy(&b[b.len().saturating_sub(2000)..]).into_owned();
                let message = format!(
                    "`{}` timed out\n--- end of its stdout:\n{}\n--- end of its stderr:\n{}",
                    self.cmd,
                    tail(&self.stdout),
                    tail(&self.stderr)
                );
                return Err(GuestError { kind: ErrorKind::Timeout, message, log: log_tail(&self.link.dir) });
            }
        }
        Ok(())
    }

    /// Returns the next line of the command's standard output without the newline, or `None` at the end of
    /// the output.
    pub fn read_line(&mut self, timeout: Duration) -> Result<Option<String>> {
        let deadline = Instant::now() + timeout;
        let mut searched = 0;
        loop {
            if let Some(n) = self.stdout[searched..].iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.stdout.drain(..=searched + n).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..line.len() - 1]).into_owned()));
            }
            searched = self.stdout.len();
            if self.status.is_some() {
                let rest = std::mem::take(&mut self.stdout);
                return Ok((!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned()));
            }
            self.process_event(deadline)?;
        }
    }

    /// Reads lines from the command's standard output until one contains `text`, and returns that line.
    pub fn wait_for(&mut self, text: &str, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.read_line(deadline.saturating_duration_since(Instant::now()))? {
                Some(line) if line.contains(text) => return Ok(line),
                Some(_) => {}
                None => {
                    let message = format!("`{}` exited without printing {text:?}: {self:?}", self.cmd);
                    return error(ErrorKind::Terminated, message);
                }
            }
        }
    }

    /// Writes to the command's standard input.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        data.chunks(16000).try_for_each(|c| self.link.send(b'I', self.sid, c))
    }

    /// Closes the command's standard input.
    pub fn close_stdin(&mut self) -> Result<()> {
        self.link.send(b'Z', self.sid, &[])
    }

    /// Reports whether the command has exited, without waiting.
    pub fn has_ended(&mut self) -> bool {
        while self.status.is_none() && self.process_event(Instant::now()).is_ok() {}
        self.status.is_some()
    }

    /// Waits for the command to exit, and returns its status and output. After a timeout the command keeps
    /// running, and the caller may wait for it again.
    pub fn wait(&mut self, timeout: Duration) -> Result<Output> {
        let (status, stdout) = self.wait_raw(timeout)?;
        let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
        Ok(Output { status, stdout: text(stdout), stderr: text(std::mem::take(&mut self.stderr)) })
    }

    /// Like [`wait`](Self::wait), but returns the status, and the standard output as bytes.
    pub fn wait_raw(&mut self, timeout: Duration) -> Result<(i32, Vec<u8>)> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.status {
                return Ok((status, std::mem::take(&mut self.stdout)));
            }
            self.process_event(deadline)?;
        }
    }

    /// Sends a signal to the command and to all processes started by it.
    pub fn signal(&mut self, signal: u8) -> Result<()> {
        self.link.send(b'S', self.sid, &[signal])
    }

    /// Kills the command and all processes started by it, and waits for the command to exit.
    pub fn kill(&mut self) -> Result<Output> {
        if self.status.is_none() {
            self.signal(9)?;
        }
        self.wait(SHORT)
    }
}

impl fmt::Debug for GuestProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestProcess")
            .field("cmd", &self.cmd)
            .field("status", &self.status)
            .field("stdout", &String::from_utf8_lossy(&self.stdout))
            .field("stderr", &String::from_utf8_lossy(&self.stderr))
            .finish()
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.signal(9); // the guest may have terminated
        }
        self.link.sessions.lock().open.remove(&self.sid);
    }
}
