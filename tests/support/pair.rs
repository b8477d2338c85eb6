//! A NIC and a guest, for checks in which either sends requests; and a function that runs such checks and
//! prints a table.

use super::peer::{ConnectParams, Shell, Side, TIMEOUT};
use super::table::Table;
use super::testbed::{Ip, LinkKind, Testbed};
use std::collections::BTreeMap;
use std::time::Instant;
use urxe::verbs::*;

/// Path MTU.
pub const MTU: usize = 1024;

/// A NIC and a verbs shell in the guest, initially not connected.
pub struct Pair<'a> {
    pub setup: &'a Testbed,
    pub ip: Ip,
    pub side: Side,
    pub shell: Shell,
}

impl<'a> Pair<'a> {
    /// Opens a NIC on the testbed's link.
    pub fn open(setup: &'a Testbed, ip: Ip) -> Pair<'a> {
        Pair::with_side(setup, ip, setup.open(ip))
    }

    /// Creates a pair with an existing NIC.
    pub fn with_side(setup: &'a Testbed, ip: Ip, side: Side) -> Pair<'a> {
        Pair { setup, ip, side, shell: setup.shell(65536) }
    }

    /// Connects a new local QP to a new QP of the shell, named `q`.
    pub fn connect(&mut self) -> Qp {
        self.connect_as(&ConnectParams::new(self.ip, MTU))
    }

    /// Like [`connect`](Self::connect), with options for the local side, and further options for the shell's
    /// `connect` command.
    pub fn connect_with(&mut self, ours: ConnectOptions, theirs: &str) -> Qp {
        self.connect_as(&ConnectParams { ours, theirs: theirs.into(), ..ConnectParams::new(self.ip, MTU) })
    }

    /// Like [`connect`](Self::connect), with all parameters given by the caller.
    pub fn connect_as(&mut self, params: &ConnectParams) -> Qp {
        self.setup.connect(&self.side, &mut self.shell, params)
    }

    /// Returns the `wr_id` and status of the next `n` local completions.
    pub fn completions(&self, n: usize) -> Vec<(u64, WcStatus)> {
        self.side.poll(n, TIMEOUT).iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Returns the `wr_id` and status of the shell's next `n` completions.
    pub fn guest_completions(&mut self, n: usize) -> Vec<(u64, String)> {
        self.shell.vsh.poll(n, TIMEOUT).unwrap().iter().map(|wc| (wc.wr_id, wc.status.clone())).collect()
    }

    /// Executes a shell command, which must succeed.
    pub fn cmd(&mut self, line: &str) {
        self.shell.vsh.cmd(line).unwrap();
    }

    /// Returns the local counters and the guest's.
    pub fn counters(&self) -> (Counters, BTreeMap<String, u64>) {
        (self.side.counters(), self.setup.guest.counters().unwrap())
    }

    /// Returns the first `len` bytes of the local region.
    pub fn memory(&self, len: usize) -> Vec<u8> {
        let mut got = vec![0; len];
        self.side.mr.read(0, &mut got).unwrap();
        got
    }
}

/// Asserts that the shell's completions have the expected `wr_id`s and statuses.
pub fn assert_completions(actual: &[(u64, String)], expected: &[(u64, &str)]) {
    let actual: Vec<_> = actual.iter().map(|(id, s)| (*id, s.as_str())).collect();
    assert_eq!(actual, expected);
}

/// Returns the shell's name for a status, or `other` for statuses that no check expects.
pub fn status_name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "SUCCESS",
        WcStatus::LocLenErr => "LOC_LEN_ERR",
        WcStatus::LocQpOpErr => "LOC_QP_OP_ERR",
        WcStatus::LocProtErr => "LOC_PROT_ERR",
        WcStatus::MwBindErr => "MW_BIND_ERR",
        WcStatus::WrFlushErr => "WR_FLUSH_ERR",
        WcStatus::RemInvReqErr => "REM_INV_REQ_ERR",
        WcStatus::RemAccessErr => "REM_ACCESS_ERR",
        WcStatus::RemOpErr => "REM_OP_ERR",
        WcStatus::RetryExcErr => "RETRY_EXC_ERR",
        WcStatus::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
        _ => "other",
    }
}

/// A check: its name, the side that sends the request, and the function that runs it.
pub type Check = (&'static str, &'static str, fn(&Testbed, Ip));

/// Runs all checks over both IP versions, and prints a table.
pub fn run(name: &str, via: LinkKind, checks: &[Check]) {
    let setup = Testbed::start(via);
    let mut table = Table::new(name, &["check", "requester", "IP", "s", "result"]);
    let mut failed = Vec::new();
    for ((name, requester, check), ip) in checks.iter().flat_map(|c| Ip::VERSIONS.map(|ip| (c, ip))) {
        let begin = Instant::now();
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&setup, ip))).is_ok();
        if !passed {
            failed.push(format!("{name}, requester {requester}, over {ip}: see the panic above"));
        }
        let elapsed = format!("{:.1}", begin.elapsed().as_secs_f64());
        let result = if passed { "ok" } else { "FAILED" };
        table.row(&[(*name).into(), (*requester).into(), ip.to_string(), elapsed, result.into()]);
    }
    table.print();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
