//! The out-of-band TCP handshakes of stock RDMA programs, so that the other end of a run can be the stock
//! program on a kernel device.
//!
//! * [`pingpong`]: `ibv_rc_pingpong` of rdma-core and its like; [`pingpong::many`]: `ibv_srq_pingpong`.
//! * [`perftest`]: `ib_write_bw`, `ib_read_bw`, `ib_send_bw`, `ib_atomic_bw`, `ib_write_lat`, `ib_send_lat`.
//!
//! Both parts consist of a codec (bytes to typed values and back, no I/O) and a driver over anything that is
//! [`Read`] + [`Write`]. The driver never waits by itself: the caller sets the read and write timeouts of its
//! socket (`TcpStream::set_read_timeout`), and a wait that runs into one ends in [`ExchangeError::TimedOut`].
//!
//! The stock programs take every message with a single `read` and give up if it is short, so each message is
//! handed to the stream in one `write_all` and the stream must not be one that cuts it up.

use std::io::{self, ErrorKind, Read, Write};

pub mod perftest;
pub mod pingpong;

#[cfg(test)]
mod replay;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The peer closed the connection in the middle of the handshake.
    #[error("{what}: the peer closed the connection after {got} of {want} bytes")]
    Closed {
        /// The message that was due.
        what: &'static str,
        /// Bytes of it that arrived.
        got: usize,
        /// Its length.
        want: usize,
    },
    /// The stream's read or write timeout expired.
    #[error("{what}: timed out after {got} of {want} bytes")]
    TimedOut {
        /// The message that was due.
        what: &'static str,
        /// Bytes of it that were transferred.
        got: usize,
        /// Its length.
        want: usize,
    },
    /// Another I/O error.
    #[error("{what}: {source}")]
    Io {
        /// The message that was being transferred.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The peer sent something that is not the message that is due.
    #[error("{what}: {reason} in \"{bytes}\"")]
    Garbled {
        /// The message that was due.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
        /// The offending bytes, printable ones as they are and others escaped.
        bytes: String,
    },
    /// The peer is a perftest whose handshake is another one.
    #[error("the peer is perftest {got}, this side speaks the protocol of {want} (Debian 12's 4.5+0.17)")]
    Version {
        /// The version it announced.
        got: String,
        /// The one that is spoken here.
        want: &'static str,
    },
    /// A value of this side does not fit its place in the message.
    #[error("{what}: {value:#x} is outside {min:#x}..={max:#x}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// The value.
        value: u64,
        /// The smallest that is allowed.
        min: u64,
        /// The largest that is allowed.
        max: u64,
    },
    /// The peer's second copy of a QP's data differs from its first.
    #[error("QP {index}: the peer first sent \"{first}\", then \"{second}\"")]
    Changed {
        /// Which QP of the run.
        index: usize,
        /// The line as it was at first.
        first: String,
        /// The line that came later.
        second: String,
    },
}

impl ExchangeError {
    fn garbled(what: &'static str, reason: impl Into<String>, bytes: &[u8]) -> Self {
        Self::Garbled { what, reason: reason.into(), bytes: bytes.escape_ascii().to_string() }
    }
}

/// `value` if it is in `min..=max`.
fn in_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<u64, ExchangeError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(ExchangeError::OutOfRange { what, value, min, max })
    }
}

fn is_timeout(e: &io::Error) -> bool {
    // Linux says EAGAIN for a socket timeout, others ETIMEDOUT
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Reads one message of exactly `N` bytes.
fn read_message<const N: usize>(s: &mut impl Read, what: &'static str) -> Result<[u8; N], ExchangeError> {
    let mut buf = [0; N];
    let mut got = 0;
    while got < N {
        match s.read(&mut buf[got..]) {
            Ok(0) => return Err(ExchangeError::Closed { what, got, want: N }),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if is_timeout(&e) => return Err(ExchangeError::TimedOut { what, got, want: N }),
            Err(source) => return Err(ExchangeError::Io { what, source }),
        }
    }
    Ok(buf)
}

/// Writes one message, in one piece.
fn write_message(s: &mut impl Write, what: &'static str, bytes: &[u8]) -> Result<(), ExchangeError> {
    s.write_all(bytes).and_then(|()| s.flush()).map_err(|source| {
        if is_timeout(&source) {
            ExchangeError::TimedOut { what, got: 0, want: bytes.len() }
        } else {
            ExchangeError::Io { what, source }
        }
    })
}

/// Walks over a line of hexadecimal fields of fixed width.
struct Fields<'a> {
    what: &'static str,
    line: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn new(what: &'static str, line: &'a [u8]) -> Self {
        Self { what, line, at: 0 }
    }

    /// The next `digits` characters as a number; both letter cases.
    fn hex(&mut self, name: &str, digits: usize) -> Result<u64, ExchangeError> {
        let field = self.line.get(self.at..self.at + digits).ok_or_else(|| {
            ExchangeError::garbled(self.what, format!("{name} is missing at offset {}", self.at), self.line)
        })?;
        let mut value = 0;
        for &c in field {
            let digit = char::from(c).to_digit(16).ok_or_else(|| {
                let reason =
                    format!("{name} at offset {} is not hexadecimal (\"{}\")", self.at, field.escape_ascii());
                ExchangeError::garbled(self.what, reason, self.line)
            })?;
            value = value << 4 | u64::from(digit);
        }
        self.at += digits;
        Ok(value)
    }

    /// The next character, which has to be `c`.
    fn mark(&mut self, c: u8) -> Result<(), ExchangeError> {
        if self.line.get(self.at) != Some(&c) {
            let reason = format!("no '{}' at offset {}", c.escape_ascii(), self.at);
            return Err(ExchangeError::garbled(self.what, reason, self.line));
        }
        self.at += 1;
        Ok(())
    }

    /// A field and the colon after it.
    fn hex_colon(&mut self, name: &str, digits: usize) -> Result<u64, ExchangeError> {
        let v = self.hex(name, digits)?;
        self.mark(b':')?;
        Ok(v)
    }
}
