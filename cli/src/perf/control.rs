//! Control protocol over TCP between two `urxe perf` processes. Each message is a line of JSON, and the
//! client sends first.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::plan::Params;
use crate::CliError;
use crate::interrupt::Interrupt;

/// Protocol version, incremented whenever a message or the expected test data changes.
pub const VERSION: u32 = 5;
/// Maximum length of a received line in bytes.
const MAX_LINE: usize = 4 << 20;
/// Interval at which a wait for a message checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Queue pair parameters that the peer needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpInfo {
    /// GID of the queue pair.
    pub gid: std::net::Ipv6Addr,
    /// Queue pair number (QPN).
    pub qpn: u32,
    /// Initial PSN of the queue pair's send queue.
    pub psn: u32,
    /// Address of the memory that the peer may access by WRITE, READ and atomics.
    pub va: u64,
    /// R_Key of that memory.
    pub rkey: u32,
}

/// Protocol message, sent as one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Sent by the client: the parameters of the run and the client's queue pairs.
    Hello {
        /// Protocol [`VERSION`].
        version: u32,
        /// Parameters of the run.
        params: Params,
        /// Client's path MTU in bytes.
        mtu: u32,
        /// Client's queue pairs.
        qps: Vec<QpInfo>,
    },
    /// Sent by the server: its queue pairs, which are already connected to the client's.
    Accepted {
        /// Path MTU of the run in bytes: the smaller of the two sides' path MTUs.
        mtu: u32,
        /// Server's queue pairs.
        qps: Vec<QpInfo>,
    },
    /// Sent by the server, which rejects the run.
    Rejected {
        /// Reason.
        reason: String,
    },
    /// Sent by the client: a chunk of the run begins.
    Run {
        /// Bytes per message.
        size: u32,
        /// Messages per queue pair.
        messages: u64,
        /// Whether this is the first chunk with this message size, before which the server reinitialises its
        /// memory.
        fresh: bool,
    },
    /// Sent by the server: its receives are posted.
    Ready,
    /// Sent by the client: all chunks of the given message size are complete, and the server must check its
    /// memory.
    Check {
        /// Bytes per message.
        size: u32,
        /// Number of messages per queue pair, over all chunks.
        messages: u64,
    },
    /// Sent by the server: the result of the check.
    Checked {
        /// Description of the first mismatch; `None` if all data is correct.
        mismatch: Option<String>,
    },
    /// Sent by the client: the run is over.
    Finished,
}

/// Control connection to the peer.
pub struct Control {
    stream: TcpStream,
    buffer: Vec<u8>,
    interrupt: Interrupt,
    timeout: Duration,
    last_sent: String,
}

impl Control {
    /// Wraps a connected stream; `timeout` limits each [`recv`](Self::recv).
    pub fn new(stream: TcpStream, interrupt: &Interrupt, timeout: Duration) -> Result<Control, CliError> {
        stream.set_read_timeout(Some(POLL_INTERVAL)).map_err(failed("set up"))?;
        let (buffer, last_sent) = (Vec::new(), "nothing".into());
        Ok(Control { stream, buffer, interrupt: interrupt.clone(), timeout, last_sent })
    }

    /// Returns both ends of a connection within this process.
    pub fn pair(interrupt: &Interrupt, timeout: Duration) -> Result<[Control; 2], CliError> {
        let (a, b) = UnixStream::pair().map_err(failed("create"))?;
        // Only calls that any stream socket supports are made on the stream.
        let control = |unix| Control::new(OwnedFd::from(unix).into(), interrupt, timeout);
        Ok([control(a)?, control(b)?])
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Message) -> Result<(), CliError> {
        let mut line = serde_json::to_string(message).map_err(|e| failed("write to")(e.into()))?;
        line.push('\n');
        self.stream.write_all(line.as_bytes()).map_err(failed("write to"))?;
        line.truncate(60);
        self.last_sent = line.trim_end().into();
        Ok(())
    }

    /// Receives the next message, and fails if none arrives within the timeout.
    pub fn recv(&mut self) -> Result<Message, CliError> {
        self.recv_within(Some(self.timeout))
    }

    /// Receives the next message, without a timeout if `limit` is `None`.
    pub fn recv_within(&mut self, limit: Option<Duration>) -> Result<Message, CliError> {
        let begin = Instant::now();
        loop {
            if let Some(end) = self.buffer.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return parse(&line);
            }
            if self.buffer.len() > MAX_LINE {
                return Err(CliError::Failed(format!(
                    "the peer on TCP is not urxe perf: received a line of more than {MAX_LINE} bytes"
                )));
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(CliError::Failed(format!(
                        "the peer closed the TCP connection; last sent: {}",
                        self.last_sent
                    )));
                }
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if is_retryable(e.kind()) => {}
                Err(e) => return Err(failed("read from")(e)),
            }
            if self.interrupt.is_set() {
                return Err(CliError::Failed("interrupted while waiting for the peer".into()));
            }
            if limit.is_some_and(|l| begin.elapsed() > l) {
                return Err(CliError::Failed(format!(
                    "no message from the peer on TCP for {:?}; last sent: {}; check that the peer is urxe \
                     perf",
                    self.timeout, self.last_sent
                )));
            }
        }
    }
}

fn is_retryable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn parse(line: &[u8]) -> Result<Message, CliError> {
    match serde_json::from_slice(line) {
        Ok(Message::Rejected { reason }) => {
            Err(CliError::Failed(format!("the peer rejected the run: {reason}")))
        }
        Ok(message) => Ok(message),
        Err(e) => {
            let start = line[..line.len().min(40)].escape_ascii();
            Err(CliError::Failed(format!(
                "the peer on TCP is not urxe perf of this version: received \"{start}\" ({e}); \
                 a peer of perftest programs is: urxe run -- ib_write_bw"
            )))
        }
    }
}

/// Returns the error for an unexpected message.
pub fn unexpected(message: &Message) -> CliError {
    CliError::Failed(format!("unexpected message from the peer: {message:?}"))
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> CliError {
    CliError::io(format!("cannot {what} the TCP connection to the peer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_invalid_ones_are_rejected() {
        let [mut a, mut b] = Control::pair(&Interrupt::default(), Duration::from_millis(200)).unwrap();
        a.send(&Message::Run { size: 8, messages: 100, fresh: true }).unwrap();
        a.send(&Message::Finished).unwrap();
        assert!(matches!(b.recv().unwrap(), Message::Run { size: 8, messages: 100, fresh: true }));
        assert!(matches!(b.recv().unwrap(), Message::Finished));
        assert!(b.recv().unwrap_err().to_string().contains("no message"));
        a.stream.write_all(b"6.06\0\0\n").unwrap();
        assert!(b.recv().unwrap_err().to_string().contains("urxe run -- ib_write_bw"));
        a.send(&Message::Rejected { reason: "too large".into() }).unwrap();
        assert!(b.recv().unwrap_err().to_string().contains("too large"));
        drop(a);
        assert!(b.recv().unwrap_err().to_string().contains("closed"));
    }
}
