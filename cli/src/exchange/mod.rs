//! The out-of-band TCP handshakes of stock RDMA programs, so that the other end of a run can be the stock
//! program on a kernel device.
//!
//! * [`pingpong`]: `ibv_rc_pingpong` of rdma-core and similar programs; [`pingpong::srq`]:
//!   `ibv_srq_pingpong`.
//! * [`perftest`]: `ib_write_bw`, `ib_read_bw`, `ib_send_bw`, `ib_atomic_bw`, `ib_write_lat`, `ib_send_lat`.
//!
//! Both parts consist of a codec (bytes to typed values and back, no I/O) and a driver over any [`Read`] +
//! [`Write`]. The driver has no timeouts of its own: the caller sets the read and write timeouts of its
//! socket (`TcpStream::set_read_timeout`), and an expired timeout yields [`ExchangeError::TimedOut`].
//!
//! The stock programs read every message with a single `read` and fail if it is short. Each message is
//! therefore passed to the stream in one `write_all`, and the stream must not split it.

use std::io::{self, ErrorKind, Read, Write};

pub mod perftest;
pub mod pingpong;

#[cfg(test)]
mod replay;

/// Error of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The peer closed the connection in the middle of the handshake.
    #[error("{what}: the peer closed the connection after {got} of {want} bytes")]
    Closed {
        /// Name of the expected message.
        what: &'static str,
        /// Number of bytes that arrived.
        got: usize,
        /// Length of the message in bytes.
        want: usize,
    },
    /// The stream's read or write timeout expired.
    #[error("{what}: timed out after {got} of {want} bytes")]
    TimedOut {
        /// Name of the expected message.
        what: &'static str,
        /// Number of bytes that were transferred.
        got: usize,
        /// Length of the message in bytes.
        want: usize,
    },
    /// Another I/O error.
    #[error("{what}: {source}")]
    Io {
        /// Name of the message that was being transferred.
        what: &'static str,
        /// Error of the stream.
        source: io::Error,
    },
    /// The peer sent something other than the expected message.
    #[error("{what}: {reason} in \"{bytes}\"")]
    Malformed {
        /// Name of the expected message.
        what: &'static str,
        /// Description of the defect.
        reason: String,
        /// The offending bytes, with unprintable ones escaped.
        bytes: String,
    },
    /// The peer is a perftest of a version with another handshake.
    #[error(
        "the peer runs perftest {got}, this side implements the protocol of {want} (Debian 12's 4.5+0.17)"
    )]
    Version {
        /// Version that the peer announced.
        got: String,
        /// Version that this side implements.
        want: &'static str,
    },
    /// A local value does not fit into its field of the message.
    #[error("{what}: {value:#x} is outside {min:#x}..={max:#x}")]
    OutOfRange {
        /// Name of the field.
        what: &'static str,
        /// Value of the field.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
    /// The peer's second copy of a QP's data differs from its first.
    #[error("QP {index}: the peer first sent \"{first}\", then \"{second}\"")]
    Changed {
        /// Index of the QP in the run.
        index: usize,
        /// The first copy.
        first: String,
        /// The second copy.
        second: String,
    },
}

impl ExchangeError {
    fn malformed(what: &'static str, reason: impl Into<String>, bytes: &[u8]) -> Self {
        Self::Malformed { what, reason: reason.into(), bytes: bytes.escape_ascii().to_string() }
    }
}

/// Returns `value` if it is in `min..=max`, otherwise [`ExchangeError::OutOfRange`].
fn in_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<u64, ExchangeError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(ExchangeError::OutOfRange { what, value, min, max })
    }
}

fn is_timeout(e: &io::Error) -> bool {
    // Linux returns EAGAIN for a socket timeout, other systems return ETIMEDOUT.
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

/// Writes one message with a single `write_all`.
fn write_message(s: &mut impl Write, what: &'static str, bytes: &[u8]) -> Result<(), ExchangeError> {
    s.write_all(bytes).and_then(|()| s.flush()).map_err(|source| {
        if is_timeout(&source) {
            ExchangeError::TimedOut { what, got: 0, want: bytes.len() }
        } else {
            ExchangeError::Io { what, source }
        }
    })
}

/// Cursor over a line of fixed-width hexadecimal fields.
struct Fields<'a> {
    what: &'static str,
    line: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn new(what: &'static str, line: &'a [u8]) -> Self {
        Self { what, line, at: 0 }
    }

    /// Parses the next `digits` characters as a hexadecimal number, in either letter case.
    fn hex(&mut self, name: &str, digits: usize) -> Result<u64, ExchangeError> {
        let field = self.line.get(self.at..self.at + digits).ok_or_else(|| {
            ExchangeError::malformed(self.what, format!("{name} is missing at offset {}", self.at), self.line)
        })?;
        let mut value = 0;
        for &c in field {
            let digit = char::from(c).to_digit(16).ok_or_else(|| {
                let reason =
                    format!("{name} at offset {} is not hexadecimal (\"{}\")", self.at, field.escape_ascii());
                ExchangeError::malformed(self.what, reason, self.line)
            })?;
            value = value << 4 | u64::from(digit);
        }
        self.at += digits;
        Ok(value)
    }

    /// Consumes the next character, which must be `c`.
    fn expect_byte(&mut self, c: u8) -> Result<(), ExchangeError> {
        if self.line.get(self.at) != Some(&c) {
            let reason = format!("expected '{}' at offset {}", c.escape_ascii(), self.at);
            return Err(ExchangeError::malformed(self.what, reason, self.line));
        }
        self.at += 1;
        Ok(())
    }

    /// Parses a field and consumes the colon after it.
    fn hex_colon(&mut self, name: &str, digits: usize) -> Result<u64, ExchangeError> {
        let v = self.hex(name, digits)?;
        self.expect_byte(b':')?;
        Ok(v)
    }
}
