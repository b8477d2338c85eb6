//! A NIC and a guest side by side, for checks that send requests from either of them and compare the results
//! of both; and a table of such checks.
#![allow(dead_code, reason = "each test target uses its part")]

use super::peer::{How, Ip, SOON, Shell, Side, Site, Via};
use super::table::Table;
use std::collections::BTreeMap;
use std::time::Instant;
use urxe::verbs::*;

/// Path MTU.
pub const MTU: usize = 1024;

/// A NIC and the guest, not connected yet.
pub struct Pair<'a> {
    pub site: &'a Site,
    pub ip: Ip,
    pub side: Side,
    pub shell: Shell,
}

impl<'a> Pair<'a> {
    /// Opens a NIC on the site's link.
    pub fn open(site: &'a Site, ip: Ip) -> Pair<'a> {
        Pair::with(site, ip, site.open(ip))
    }

    /// Uses an existing NIC.
    pub fn with(site: &'a Site, ip: Ip, side: Side) -> Pair<'a> {
        Pair { site, ip, side, shell: site.shell(65536) }
    }

    /// Connects a new QP on each side; the shell's is `q`.
    pub fn connect(&mut self) -> Qp {
        self.connect_as(&How::new(self.ip, MTU))
    }

    /// As [`connect`](Self::connect), with local options, and further options for the shell's `connect`
    /// command.
    pub fn connect_with(&mut self, ours: ConnectOptions, theirs: &str) -> Qp {
        self.connect_as(&How { ours, theirs: theirs.into(), ..How::new(self.ip, MTU) })
    }

    /// As [`connect`](Self::connect), with any parameters.
    pub fn connect_as(&mut self, how: &How) -> Qp {
        self.site.connect(&self.side, &mut self.shell, how)
    }

    /// Returns `n` local completions.
    pub fn ours(&self, n: usize) -> Vec<(u64, WcStatus)> {
        self.side.poll(n, SOON).iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Returns `n` completions of the shell.
    pub fn theirs(&mut self, n: usize) -> Vec<(u64, String)> {
        self.shell.vsh.poll(n, SOON).unwrap().iter().map(|wc| (wc.wr_id, wc.status.clone())).collect()
    }

    /// Executes a command of the shell that must succeed.
    pub fn cmd(&mut self, line: &str) {
        self.shell.vsh.cmd(line).unwrap();
    }

    /// Returns the local counters and the guest's.
    pub fn counters(&self) -> (Counters, BTreeMap<String, u64>) {
        (self.side.counters(), self.site.guest.counters().unwrap())
    }

    /// Returns the first bytes of the local region.
    pub fn memory(&self, len: usize) -> Vec<u8> {
        let mut got = vec![0; len];
        self.side.mr.read(0, &mut got).unwrap();
        got
    }
}

/// Asserts that these are the completions of the shell.
pub fn is(seen: &[(u64, String)], want: &[(u64, &str)]) {
    let seen: Vec<_> = seen.iter().map(|(id, s)| (*id, s.as_str())).collect();
    assert_eq!(seen, want);
}

/// Returns the name of a status in the notation of the shell.
pub fn name(status: WcStatus) -> &'static str {
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
        _ => "another",
    }
}

/// The error, the side that sends the request, and the check.
pub type Check = (&'static str, &'static str, fn(&Site, Ip));

/// Runs all checks over both IP versions, and prints a table.
pub fn run(name: &str, via: Via, checks: &[Check]) {
    let site = Site::start(via);
    let mut table = Table::new(name, &["what", "requester", "IP", "s", "result"]);
    let mut failed = Vec::new();
    for ((what, requester, check), ip) in checks.iter().flat_map(|c| Ip::VERSIONS.map(|ip| (c, ip))) {
        let begin = Instant::now();
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&site, ip))).is_ok();
        if !passed {
            failed.push(format!("{what} by {requester} over {ip}, see above"));
        }
        let took = format!("{:.1}", begin.elapsed().as_secs_f64());
        let result = if passed { "ok" } else { "FAILED" };
        table.row(&[(*what).into(), (*requester).into(), ip.to_string(), took, result.into()]);
    }
    table.print();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
