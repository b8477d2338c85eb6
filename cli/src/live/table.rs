//! Text of the NICs: tables for a terminal, or for a file.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Nic, QpView, View};
use urxe::verbs::live::{NicSnapshot, QpSnapshot};

/// Titles of the columns of a queue pair.
pub const TITLES: [&str; 13] =
    ["QP", "SVC", "STATE", "PEER", "TX", "RX", "OUT", "RECV", "RETX", "RNR", "CNP", "DROP", "LAST"];

/// Returns the columns of a queue pair, without what it waits for.
pub fn columns(qp: &QpSnapshot, view: &QpView) -> [String; 13] {
    let c = &qp.counters;
    let drops = c.rx_missing
        + c.rx_no_receive
        + c.rx_dropped_message
        + c.rx_wrong_state
        + c.rx_wrong_source
        + c.rx_pkey_violation
        + c.rx_qkey_violation;
    let rate = |of: fn(&super::Rates) -> f64| view.rates.as_ref().map_or("-".into(), |rates| bits(of(rates)));
    let last = [qp.last_sent, qp.last_received].into_iter().flatten().min();
    [
        format!("{:#08x}", qp.qpn),
        qp.service.clone(),
        qp.state.clone(),
        qp.peer.as_ref().map_or("-".into(), |peer| format!("{} {:#08x}", peer.address, peer.qpn)),
        rate(|rates| rates.sent_bytes),
        rate(|rates| rates.received_bytes),
        qp.posted_sends.to_string(),
        qp.posted_receives.to_string(),
        c.retransmitted_pkts.to_string(),
        (c.rcvd_rnr_err + c.send_rnr_err).to_string(),
        (c.rp_cnp_handled + c.rp_cnp_ignored + c.np_cnp_sent).to_string(),
        drops.to_string(),
        last.map_or("-".into(), time),
    ]
}

/// Returns the line of a NIC.
pub fn nic_line(nic: &Nic) -> String {
    let (pid, state) = (nic.found.pid, &nic.found.state);
    match state {
        Err(silence) => format!("process {pid}  {silence}"),
        Ok(NicSnapshot { command, device, link, is_up, is_complete, .. }) => {
            let port = if *is_up { "ACTIVE" } else { "DOWN" };
            let part = if *is_complete { "" } else { "  (incomplete: a thread holds the NIC's lock)" };
            printable(&format!("process {pid}  {command}  {device}  {link}  {port}{part}"))
        }
    }
}

/// Returns the counts of the NIC's faults and its dropped packets; empty if there are none.
pub fn nic_notes(nic: &Nic) -> Vec<String> {
    let Ok(state) = &nic.found.state else { return Vec::new() };
    let faults = state.faults.iter().map(|fault| {
        format!("fault {}: matched {}, affected {}", printable(&fault.rule), fault.matched, fault.struck)
    });
    let is_drop = |name: &str| name.starts_with("link_") || name.starts_with("rx_");
    let is_counted = |name: &str| name.ends_with("_requests") || name == "rx_handed_over";
    let drops = state.counters.iter().filter(|(name, n)| **n > 0 && is_drop(name) && !is_counted(name));
    let drops: Vec<String> = drops.map(|(name, n)| format!("{name} {n}")).collect();
    let drops = (!drops.is_empty()).then(|| printable(&format!("dropped: {}", drops.join(", "))));
    faults.chain(drops).collect()
}

/// Returns the whole view as text.
pub fn text(view: &View) -> String {
    if view.nics.is_empty() {
        return "no process of this user has a NIC (urxe run, serve, perf and pingpong have one)\n".into();
    }
    let mut out = String::new();
    let rows = |nic: &Nic| -> Vec<[String; 13]> {
        let qps = nic.found.state.iter().flat_map(|state| &state.qps);
        qps.zip(&nic.qps).map(|(qp, view)| columns(qp, view)).collect()
    };
    let all: Vec<Vec<[String; 13]>> = view.nics.iter().map(rows).collect();
    let widths = widths(all.iter().flatten());
    for (nic, rows) in view.nics.iter().zip(&all) {
        let _ = writeln!(out, "{}", nic_line(nic));
        for note in nic_notes(nic) {
            let _ = writeln!(out, "  {note}");
        }
        if !rows.is_empty() {
            let _ = writeln!(out, "  {}", line(&TITLES.map(String::from), &widths));
        }
        for (row, QpView { why, .. }) in rows.iter().zip(&nic.qps) {
            let _ = writeln!(out, "  {}\n      {}", line(row, &widths), printable(why));
        }
    }
    out
}

/// Returns the details of a queue pair, line by line.
pub fn details(qp: &QpSnapshot, why: &str) -> Vec<String> {
    let c = &qp.counters;
    let ago = |last: Option<u64>| last.map_or("never".into(), |ago| format!("{} ago", time(ago)));
    let timeout = qp.ack_timeout.map_or("infinite".into(), time);
    let rnr_limit = if qp.rnr_retry == 7 {
        "no limit".into()
    } else {
        format!("{} left of {}", qp.rnr_retries_left, qp.rnr_retry)
    };
    let mut lines = vec![
        format!("QP {:#08x}  {}  {}", qp.qpn, qp.service, qp.state),
        why.to_owned(),
        qp.peer
            .as_ref()
            .map_or("not connected".into(), |peer| format!("peer: QP {:#08x} at {}", peer.qpn, peer.address)),
        format!(
            "PSN: next {:#08x}, oldest unacknowledged {:#08x}, expected of the peer {:#08x}",
            qp.next_psn, qp.unacked_psn, qp.expected_psn
        ),
        format!(
            "sends: {} not complete, of which {} outstanding with {} bytes, and {} not yet sent",
            qp.posted_sends, qp.outstanding, qp.outstanding_bytes, qp.unsent
        ),
        format!(
            "receives: {} {}{}",
            qp.posted_receives,
            if qp.shared_receives { "in the shared receive queue" } else { "posted" },
            if qp.is_receiving {
                "; a message is arriving"
            } else if qp.has_incomplete_receive {
                "; one belongs to an incomplete message"
            } else {
                ""
            },
        ),
        format!(
            "last packet: sent {}, received {}; last progress {}",
            ago(qp.last_sent),
            ago(qp.last_received),
            ago(qp.last_progress)
        ),
        format!(
            "retries: {} left of {}, ACK timeout {timeout}; RNR retries: {rnr_limit}",
            qp.retries_left, qp.retry_cnt
        ),
        format!(
            "sent: {} packets, {} bytes; received: {} packets, {} bytes",
            c.sent_pkts, c.sent_bytes, c.rcvd_pkts, c.rcvd_bytes
        ),
    ];
    lines.extend(qp.rate_limit.map(|rate| format!("rate limit: {}", bits(rate / 8.0))));
    lines.extend(qp.failure.as_ref().map(|failure| format!("failure: {failure}")));
    lines.extend(counts(qp));
    lines.extend((!qp.events.is_empty()).then(|| "events, newest last:".to_owned()));
    lines.extend(qp.events.iter().map(|event| format!("  {event}")));
    lines
}

/// Returns the other counters that are not 0.
fn counts(qp: &QpSnapshot) -> Option<String> {
    let Ok(serde_json::Value::Object(counters)) = serde_json::to_value(qp.counters) else { return None };
    let is_shown = |name: &str| !matches!(name, "sent_pkts" | "sent_bytes" | "rcvd_pkts" | "rcvd_bytes");
    let counts = counters.iter().filter(|(name, n)| n.as_u64() != Some(0) && is_shown(name));
    let counts: Vec<String> = counts.map(|(name, n)| format!("{name} {n}")).collect();
    (!counts.is_empty()).then(|| format!("counters: {}", counts.join(", ")))
}

/// Returns the whole view as text, with the details of each queue pair.
pub fn detailed_text(view: &View) -> String {
    let mut out = String::new();
    for nic in &view.nics {
        let _ = writeln!(out, "{}", nic_line(nic));
        for note in nic_notes(nic) {
            let _ = writeln!(out, "  {note}");
        }
        for (qp, QpView { why, .. }) in nic.found.state.iter().flat_map(|state| &state.qps).zip(&nic.qps) {
            for line in details(qp, why) {
                let _ = writeln!(out, "  {}", printable(&line));
            }
        }
    }
    if out.is_empty() { text(view) } else { out }
}

/// Returns the widths of columns.
pub fn widths<'a>(rows: impl Iterator<Item = &'a [String; 13]>) -> [usize; 13] {
    rows.fold(TITLES.map(str::len), |mut widths, row| {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.len().max(*width));
        widths
    })
}

/// Returns a row with padding: texts to the right of it, numbers to the left.
pub fn line(row: &[String; 13], widths: &[usize; 13]) -> String {
    let cells = row.iter().zip(widths).enumerate().map(|(index, (cell, width))| match index {
        0..4 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// Returns a rate in bits per second.
fn bits(bytes_per_second: f64) -> String {
    let bits = bytes_per_second * 8.0;
    match bits {
        ..1e3 => format!("{bits:.0} b/s"),
        ..1e6 => format!("{:.1} kb/s", bits * 1e-3),
        ..1e9 => format!("{:.1} Mb/s", bits * 1e-6),
        _ => format!("{:.2} Gb/s", bits * 1e-9),
    }
}

/// Returns a time in nanoseconds as text.
pub fn time(nanoseconds: u64) -> String {
    let time = Duration::from_nanos(nanoseconds);
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        1..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// Replaces control characters, with which the command line of another user's process could control the terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
