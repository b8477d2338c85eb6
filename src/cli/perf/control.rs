//! Control protocol between two `urxe perf` over TCP: one JSON value per line, the client first.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::plan::{Measure, Verb};
use crate::cli::CliError;
use crate::cli::exchange::ExchangeError;
use crate::cli::interrupt::Interrupt;
use crate::cli::oob::read_some;

/// Version of the protocol, which changes whenever a message changes or the data that both sides expect.
pub const VERSION: u32 = 3;
/// Length of the longest accepted line in bytes.
const MAX_LINE: usize = 4 << 20;
/// Interval at which a wait checks for Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

/// One queue pair of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lane {
    /// GID of the queue pair.
    pub gid: std::net::Ipv6Addr,
    /// Queue pair number (QPN).
    pub qpn: u32,
    /// First PSN that the queue pair sends.
    pub psn: u32,
    /// Address of the memory that the peer may write, read and use atomics on.
    pub va: u64,
    /// R_Key of that memory.
    pub rkey: u32,
}

/// Message of the protocol, on one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Sent by the client: the parameters of the run and its queue pairs.
    Hello {
        /// Protocol [`VERSION`].
        version: u32,
        /// Operation to measure.
        verb: Verb,
        /// Bandwidth or latency.
        measure: Measure,
        /// Bytes of the longest message.
        max_size: u32,
        /// Work requests in flight per queue pair.
        depth: u32,
        /// Largest number of messages per completion.
        cq_mod: u32,
        /// Path MTU of the client in bytes.
        mtu: u32,
        /// Queue pairs of the client.
        lanes: Vec<Lane>,
    },
    /// Sent by the server: its queue pairs, which are connected already.
    Welcome {
        /// Path MTU of the run in bytes: the smaller of both sides'.
        mtu: u32,
        /// Queue pairs of the server.
        lanes: Vec<Lane>,
    },
    /// Sent by either side: it cannot continue.
    Refused {
        /// Reason.
        why: String,
    },
    /// Sent by the client: a piece of the run begins.
    Run {
        /// Bytes per message.
        size: u32,
        /// Messages per queue pair.
        messages: u64,
        /// Whether this is the first piece with this size, which starts with cleared buffers.
        fresh: bool,
    },
    /// Sent by the server: its receives are posted.
    Ready,
    /// Sent by the client: the piece is complete.
    End,
    /// Sent by the client: all pieces with this size are complete, and the server has to check its memory.
    Check {
        /// Bytes per message.
        size: u32,
        /// Messages per queue pair in all pieces.
        messages: u64,
    },
    /// Sent by the server: the result of the check.
    Checked {
        /// Description of the first wrong data; `None` if all data is right.
        wrong: Option<String>,
    },
    /// Sent by the client: the run is over.
    Bye,
}

/// A stream with a read timeout.
pub trait Wire: Read + Write + Send {
    /// Sets the read timeout.
    fn set_patience(&self, t: Duration) -> io::Result<()>;
}

impl Wire for TcpStream {
    fn set_patience(&self, t: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(t))
    }
}

impl Wire for UnixStream {
    fn set_patience(&self, t: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(t))
    }
}

/// Control connection to the peer.
pub struct Control {
    wire: Box<dyn Wire>,
    buffer: Vec<u8>,
    interrupt: Interrupt,
    patience: Duration,
    last: String,
}

impl Control {
    /// Wraps a connected stream; `patience` is the time limit of [`hear`](Self::hear).
    pub fn new(
        wire: impl Wire + 'static,
        interrupt: &Interrupt,
        patience: Duration,
    ) -> Result<Control, CliError> {
        wire.set_patience(SLICE).map_err(|e| failed("set up", e))?;
        let wire = Box::new(wire);
        Ok(Control {
            wire,
            buffer: Vec::new(),
            interrupt: interrupt.clone(),
            patience,
            last: "nothing".into(),
        })
    }

    /// Sends a message.
    pub fn say(&mut self, message: &Message) -> Result<(), CliError> {
        let mut line = serde_json::to_string(message).map_err(|e| failed("write to", e.into()))?;
        line.push('\n');
        self.wire.write_all(line.as_bytes()).map_err(|e| failed("write to", e))?;
        line.truncate(60);
        self.last = line.trim_end().into();
        Ok(())
    }

    /// Receives the next message; fails if none arrives within the time limit.
    pub fn hear(&mut self) -> Result<Message, CliError> {
        self.wait(Some(self.patience))
    }

    /// Receives the next message, without a time limit.
    pub fn hear_whenever(&mut self) -> Result<Message, CliError> {
        self.wait(None)
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<Message, CliError> {
        let begin = Instant::now();
        loop {
            if let Some(end) = self.buffer.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return parse(&line);
            }
            if self.buffer.len() > MAX_LINE {
                return Err(CliError::Failed("the peer on TCP is no urxe perf: its line never ends".into()));
            }
            match read_some(&mut *self.wire, &mut self.buffer, "urxe perf message") {
                Ok(_) => {}
                Err(ExchangeError::Closed { .. }) => {
                    return Err(CliError::Failed(format!(
                        "the peer closed the TCP connection; sent last: {}",
                        self.last
                    )));
                }
                Err(e) => return Err(e.into()),
            }
            if self.interrupt.is_set() {
                return Err(CliError::Failed("interrupted while waiting for the peer".into()));
            }
            if limit.is_some_and(|l| begin.elapsed() > l) {
                return Err(CliError::Failed(format!(
                    "the peer says nothing on TCP for {:?}; sent last: {}; is it a urxe perf (without --perftest)?",
                    self.patience, self.last
                )));
            }
        }
    }
}

fn parse(line: &[u8]) -> Result<Message, CliError> {
    match serde_json::from_slice(line) {
        Ok(Message::Refused { why }) => Err(CliError::Failed(format!("the peer says: {why}"))),
        Ok(message) => Ok(message),
        Err(e) => {
            let start = line[..line.len().min(40)].escape_ascii();
            Err(CliError::Failed(format!(
                "the peer on TCP is no urxe perf of this version: it said \"{start}\" ({e}); for the stock programs \
                 give --perftest"
            )))
        }
    }
}

/// Returns the error for a message out of turn.
pub fn unexpected(message: &Message) -> CliError {
    CliError::Failed(format!("the peer said {message:?} out of turn"))
}

fn failed(what: &str, source: io::Error) -> CliError {
    CliError::Io { what: format!("cannot {what} the TCP connection to the peer"), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_invalid_ones_are_errors() {
        let (a, b) = UnixStream::pair().unwrap();
        let soon = Duration::from_millis(200);
        let mut a = Control::new(a, &Interrupt::default(), soon).unwrap();
        let mut b = Control::new(b, &Interrupt::default(), soon).unwrap();
        a.say(&Message::Run { size: 8, messages: 100, fresh: true }).unwrap();
        a.say(&Message::Bye).unwrap();
        assert!(matches!(b.hear().unwrap(), Message::Run { size: 8, messages: 100, fresh: true }));
        assert!(matches!(b.hear().unwrap(), Message::Bye));
        assert!(b.hear().unwrap_err().to_string().contains("says nothing"));
        a.wire.write_all(b"6.06\0\0\n").unwrap();
        assert!(b.hear().unwrap_err().to_string().contains("--perftest"));
        a.say(&Message::Refused { why: "too large".into() }).unwrap();
        assert!(b.hear().unwrap_err().to_string().contains("too large"));
        drop(a);
        assert!(b.hear().unwrap_err().to_string().contains("closed"));
    }
}
