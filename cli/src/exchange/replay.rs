//! Streams for tests: replays of recorded handshakes of the stock programs, and peers with scripted input.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

/// Sender of a line in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// Parses a recording: each line is `C` or `S` and the bytes, with `\xNN` for unprintable ones; `N*` precedes
/// a message that is sent N times, and `end` at the end.
pub(super) fn recording(text: &str) -> Vec<(Side, Vec<u8>)> {
    let mut out = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (side, message) = line.split_once(' ').expect("side and message");
        let side = if side == "C" { Side::Client } else { Side::Server };
        if message != "end" {
            let times = message.split_once('*').and_then(|(n, m)| Some((n.parse().ok()?, m)));
            let (n, message) = times.unwrap_or((1, message));
            out.extend(std::iter::repeat_n((side, unescape(message)), n));
        }
    }
    out
}

fn unescape(s: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = s.as_bytes();
    while let [c, tail @ ..] = rest {
        if *c == b'\\' {
            let digits = std::str::from_utf8(&tail[1..3]).expect("ASCII");
            out.push(u8::from_str_radix(digits, 16).expect("two digits"));
            rest = &tail[3..];
        } else {
            out.push(*c);
            rest = tail;
        }
    }
    out
}

/// The other end of a recorded handshake. The bytes written to it must be those that the recorded
/// program wrote at the same point. A read out of turn, which would block indefinitely, fails with a timeout.
pub(super) struct Replay {
    events: VecDeque<(Side, Vec<u8>)>,
    local: Side,
    /// Largest number of bytes that a single read returns.
    chunk: usize,
}

impl Replay {
    pub(super) fn new(text: &str, local: Side) -> Self {
        Self { events: recording(text).into(), local, chunk: usize::MAX }
    }

    /// Limits every read to one byte.
    pub(super) fn byte_by_byte(mut self) -> Self {
        self.chunk = 1;
        self
    }

    /// Reports whether the whole handshake has been replayed.
    pub(super) fn is_finished(&self) -> bool {
        self.events.is_empty()
    }
}

impl Read for Replay {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some((side, message)) = self.events.front_mut() else { return Ok(0) };
        if *side == self.local {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = message.len().min(buf.len()).min(self.chunk);
        buf[..n].copy_from_slice(&message[..n]);
        message.drain(..n);
        if message.is_empty() {
            self.events.pop_front();
        }
        Ok(n)
    }
}

impl Write for Replay {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let at = self
            .events
            .iter()
            .position(|(side, _)| *side == self.local)
            .expect("no further message of this side");
        // Only the final "done" messages of both sides may cross.
        assert!(self.events.iter().take(at).all(|(_, m)| m == b"done\0"), "write before the preceding read");
        let (_, message) = self.events.remove(at).expect("index of an event");
        assert_eq!(message.escape_ascii().to_string(), buf.escape_ascii().to_string());
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A peer that sends `input` regardless of what it receives, and then closes the connection or fails with the
/// error `end`.
pub(super) struct ScriptedPeer {
    input: VecDeque<u8>,
    end: Option<ErrorKind>,
    pub(super) write_error: Option<ErrorKind>,
}

impl ScriptedPeer {
    /// Creates a peer that closes the connection after `input`.
    pub(super) fn closing(input: &[u8]) -> Self {
        Self { input: input.iter().copied().collect(), end: None, write_error: None }
    }

    /// Creates a peer whose connection fails with `end` after `input`.
    pub(super) fn failing(input: &[u8], end: ErrorKind) -> Self {
        Self { end: Some(end), ..Self::closing(input) }
    }
}

impl Read for ScriptedPeer {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = buf.len().min(self.input.len());
        for b in &mut buf[..n] {
            *b = self.input.pop_front().unwrap_or_default();
        }
        match self.end {
            Some(kind) if n == 0 => Err(kind.into()),
            _ => Ok(n),
        }
    }
}

impl Write for ScriptedPeer {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_error.map_or(Ok(buf.len()), |kind| Err(kind.into()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns all bytes that `side` sends in a recording.
pub(super) fn sent_bytes(text: &str, side: Side) -> Vec<u8> {
    recording(text).into_iter().filter(|(s, _)| *s == side).flat_map(|(_, m)| m).collect()
}
