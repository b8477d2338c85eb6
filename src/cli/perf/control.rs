//! What two `urxe perf` say to each other over TCP: a JSON value a line, the client first.

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

/// Changes whenever a message does, or the data that both sides expect.
pub const VERSION: u32 = 3;
/// The longest line that is believed.
const MAX_LINE: usize = 4 << 20;
/// How often a wait looks whether Ctrl-C came.
const SLICE: Duration = Duration::from_millis(100);

/// One queue pair of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lane {
    /// Its GID.
    pub gid: std::net::Ipv6Addr,
    /// Its number.
    pub qpn: u32,
    /// Its first PSN.
    pub psn: u32,
    /// Where the peer may write, read and count.
    pub va: u64,
    /// With this key.
    pub rkey: u32,
}

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Client: what is to be done, and its queue pairs.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Operation.
        verb: Verb,
        /// Measure.
        measure: Measure,
        /// Bytes of the longest message.
        max_size: u32,
        /// Work requests in flight of a queue pair.
        depth: u32,
        /// Messages for one completion, at most.
        cq_mod: u32,
        /// Path MTU.
        mtu: u32,
        /// Queue pairs.
        lanes: Vec<Lane>,
    },
    /// Server: its queue pairs, connected already.
    Welcome {
        /// The smaller path MTU.
        mtu: u32,
        /// Queue pairs.
        lanes: Vec<Lane>,
    },
    /// Either side: it cannot go on.
    Refused {
        /// Why.
        why: String,
    },
    /// Client: a piece of a run comes.
    Run {
        /// Bytes of a message.
        size: u32,
        /// Messages of each queue pair.
        messages: u64,
        /// The first piece with this size: start from clean buffers.
        fresh: bool,
    },
    /// Server: receives are posted.
    Ready,
    /// Client: the piece is over.
    End,
    /// Client: all pieces with this size are over; so many messages of each queue pair.
    Check {
        /// Bytes of a message.
        size: u32,
        /// Of each queue pair.
        messages: u64,
    },
    /// Server: what it found in its memory; `None` if all is as it should be.
    Checked {
        /// What is wrong.
        wrong: Option<String>,
    },
    /// Client: that was all.
    Bye,
}

/// A stream with a timeout.
pub trait Wire: Read + Write + Send {
    /// Sets how long a read may wait.
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

/// The connection.
pub struct Control {
    wire: Box<dyn Wire>,
    buffer: Vec<u8>,
    interrupt: Interrupt,
    patience: Duration,
    last: String,
}

impl Control {
    /// On a connected stream.
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

    /// Says something.
    pub fn say(&mut self, message: &Message) -> Result<(), CliError> {
        let mut line = serde_json::to_string(message).map_err(|e| failed("write to", e.into()))?;
        line.push('\n');
        self.wire.write_all(line.as_bytes()).map_err(|e| failed("write to", e))?;
        line.truncate(60);
        self.last = line.trim_end().into();
        Ok(())
    }

    /// What the peer says next, within the patience.
    pub fn hear(&mut self) -> Result<Message, CliError> {
        self.wait(Some(self.patience))
    }

    /// What the peer says next, whenever that is.
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

/// A message that does not belong here.
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
    fn what_is_said_is_heard_and_what_makes_no_sense_is_not() {
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
