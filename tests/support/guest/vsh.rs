//! The verbs shell in the guest; `tests/rxe-guest/README.md` documents its commands.

use super::{ErrorKind, GuestError, GuestProcess, Result, SHORT, error};
use std::collections::BTreeMap;
use std::time::Duration;

/// Words of a `vsh` response: `key=value` pairs, and single words, which are keys with an empty value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply(pub BTreeMap<String, String>);

impl Reply {
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let pair = |w: &str| match w.split_once('=') {
            Some((k, v)) => (k.to_string(), v.to_string()),
            None => (w.to_string(), String::new()),
        };
        Self(words.map(pair).collect())
    }

    /// Returns the value of `key`, which must be present.
    pub fn get(&self, key: &str) -> &str {
        self.0.get(key).map(String::as_str).unwrap_or_else(|| panic!("no {key} in the response {self:?}"))
    }

    /// Returns the value of `key`, which must be a decimal number or a hexadecimal one with the prefix `0x`.
    pub fn num(&self, key: &str) -> u64 {
        let v = self.get(key);
        let n = match v.strip_prefix("0x") {
            Some(h) => u64::from_str_radix(h, 16),
            None => v.parse(),
        };
        n.unwrap_or_else(|_| panic!("{key}={v:?} is not a number"))
    }
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Work request ID.
    pub wr_id: u64,
    /// Status without `IBV_WC_`: `SUCCESS`, `REM_ACCESS_ERR`, …
    pub status: String,
    /// Opcode without `IBV_WC_`: `SEND`, `RDMA_WRITE`, `RECV`, …; empty unless the status is `SUCCESS`.
    pub op: String,
    /// Length in bytes of a receive or READ; 0 unless the status is `SUCCESS`.
    pub len: u32,
    /// `wc_flags` of the completion; 0 unless the status is `SUCCESS`.
    pub flags: u32,
    /// Immediate data in host byte order.
    pub imm: Option<u32>,
    /// R_Key invalidated by the received SEND with invalidate.
    pub inv: Option<u32>,
    /// Number of the local QP.
    pub qpn: u32,
    /// Number of the sending QP, for a receive with a GRH (UD).
    pub src_qp: Option<u32>,
    /// Vendor error code.
    pub vendor: u32,
}

impl Wc {
    fn parse(word: &str) -> Self {
        let r = Reply::parse(word.split(','));
        let opt = |k: &str| r.0.contains_key(k).then(|| r.num(k) as u32);
        Self {
            wr_id: r.num("wr_id"),
            status: r.get("status").into(),
            op: r.0.get("op").cloned().unwrap_or_default(),
            len: opt("len").unwrap_or(0),
            flags: opt("flags").unwrap_or(0),
            imm: opt("imm"),
            inv: opt("inv"),
            qpn: r.num("qpn") as u32,
            src_qp: opt("src_qp"),
            vendor: r.num("vendor") as u32,
        }
    }
}

/// A running verbs shell.
pub struct Vsh(pub(super) GuestProcess);

impl Vsh {
    /// Sends a command line without reading the response. Several commands may be outstanding.
    pub fn send(&mut self, line: &str) -> Result<()> {
        self.0.write(format!("{line}\n").as_bytes())
    }

    /// Reads the next response and returns it verbatim: `ok …` or `err …`.
    pub fn response(&mut self, timeout: Duration) -> Result<String> {
        match self.0.read_line(timeout)? {
            Some(line) => Ok(line),
            None => Err(self.0.link.terminated(format!("vsh has exited: {:?}", self.0))),
        }
    }

    /// Executes one command and returns its response verbatim.
    pub fn raw(&mut self, line: &str) -> Result<String> {
        self.send(line)?;
        self.response(SHORT)
    }

    /// Executes a command that must succeed, and returns the words of its response.
    pub fn cmd(&mut self, line: &str) -> Result<Reply> {
        Ok(Reply::parse(self.ok(line, SHORT)?.split_whitespace()))
    }

    /// Executes a command that must fail, and returns the reason reported by the shell.
    pub fn fails(&mut self, line: &str) -> Result<String> {
        let response = self.raw(line)?;
        match response.strip_prefix("err ") {
            Some(reason) => Ok(reason.into()),
            None => {
                error(ErrorKind::Failed, format!("vsh: `{line}` succeeded, expected an error: {response}"))
            }
        }
    }

    fn ok(&mut self, line: &str, timeout: Duration) -> Result<String> {
        self.send(line)?;
        let response = self.response(timeout)?;
        match response.strip_prefix("ok") {
            Some(rest) => Ok(rest.trim().into()),
            None => error(ErrorKind::Failed, format!("vsh: `{line}`: {response}")),
        }
    }

    /// Polls the CQ `cq` until `n` completions have arrived or `timeout` has passed, and returns them.
    pub fn poll(&mut self, n: usize, timeout: Duration) -> Result<Vec<Wc>> {
        self.poll_cq("cq", n, timeout)
    }

    /// Like [`poll`](Self::poll), for the CQ with the given name.
    pub fn poll_cq(&mut self, cq: &str, n: usize, timeout: Duration) -> Result<Vec<Wc>> {
        let line = format!("poll {n} {} cq={cq}", timeout.as_millis());
        Ok(self.ok(&line, timeout + SHORT)?.split_whitespace().map(Wc::parse).collect())
    }

    /// Returns `len` bytes at offset `off` of the region `mr`.
    pub fn get(&mut self, mr: &str, off: usize, len: usize) -> Result<Vec<u8>> {
        let hex = self.ok(&format!("get {mr} {off} {len}"), SHORT)?;
        let bad = |_| GuestError {
            kind: ErrorKind::Io,
            message: format!("vsh: not hexadecimal: {hex}"),
            log: String::new(),
        };
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(bad)).collect()
    }

    /// Writes `data` at offset `off` of the region `mr`.
    pub fn set(&mut self, mr: &str, off: usize, data: &[u8]) -> Result<()> {
        for (i, c) in data.chunks(16384).enumerate() {
            let hex: String = c.iter().map(|b| format!("{b:02x}")).collect();
            self.ok(&format!("set {mr} {} {hex}", off + i * 16384), SHORT)?;
        }
        Ok(())
    }
}

/// Returns the hash that the command `hash` of `vsh` computes for `data` (64-bit FNV-1a).
pub fn hash(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the bytes that the command `pattern` of `vsh` writes.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(i as u8).wrapping_add((i >> 8) as u8)).collect()
}
