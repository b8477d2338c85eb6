//! Tables on standard output.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::Op;
use crate::plan::{self, Item, LinkKind, MESSAGE, stream_series};
use crate::table::{Key, Spread, Table, bytes};
use crate::targets::{Figure, Limit, Target, Verdict};

/// Metrics that [`target_rows`] prints, each with its unit and the divisor that converts a value to that
/// unit.
const UNITS: [(&str, &str, f64); 7] = [
    ("Gb/s", "Gb/s", 1.0),
    ("Gb/s, first", "Gb/s, 1st", 1.0),
    ("requests/s", "k/s", 1000.0),
    ("M/s", "M/s", 1.0),
    ("p50", "µs, p50", 1000.0),
    ("p99", "µs, p99", 1000.0),
    ("µs/s", "µs/s", 1.0),
];

/// Prints the measurement method and the urxe configuration.
pub fn settings(items: &[Item]) {
    let rounds: BTreeSet<String> =
        items.iter().map(|item| format!("{} × {} s", item.rounds, item.seconds)).collect();
    let rounds: Vec<String> = rounds.into_iter().collect();
    println!(
        "Rounds, alternating between measurements: {}; all figures are medians over the rounds.
Two processes per measurement, one thread for the fabric and memory; none is pinned to a core.
Streams: 8 MiB or 512 messages in flight, at least 2, posted in lists of an eighth of that, the last
WR signaled; one buffer at each end, 16 READs in flight, ICRCs computed and verified.
Raw: 64 KiB or 64 datagrams per call from one buffer, at most 1 MiB ahead of the receiver, like UD senders.
Loss: both ends drop received packets at random, with a fixed seed; 0 % uses the same fault injection link.
",
        rounds.join(", ")
    );
}

/// Prints the rows that targets refer to, one by one.
pub fn target_rows(targets: &[Target], table: &Table) {
    let mut seen = BTreeSet::new();
    println!("{:<66} {:>9} {:<9} min to max", "median", "", "");
    for (key, metric) in
        targets.iter().flat_map(|target| [Some(&target.numerator), target.denominator.as_ref()]).flatten()
    {
        let Some((_, unit, scale)) = UNITS.iter().find(|(name, ..)| name == metric) else { continue };
        if !seen.insert((key.clone(), *metric)) {
            continue;
        }
        if let Some(Spread { median, min, max }) = table.spread(key, metric) {
            let [median, min, max] = [median, min, max].map(|v| v / scale);
            println!("{:<66} {median:>9.2} {unit:<9} {min:.2} to {max:.2}", key.name());
        }
    }
    println!();
}

/// Prints the items without results, grouped by reason.
pub fn unmeasured(table: &Table) {
    let mut reasons: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (key, row) in table.rows().filter(|(_, row)| row.rounds.is_empty()) {
        let failure = row.failures.last().map(|failure| format!("FAILED: {failure}"));
        let reason = row.skip_reason.clone().or(failure).unwrap_or_default();
        reasons.entry(reason).or_default().insert(&key.series);
    }
    for (reason, series) in reasons {
        println!("not measured: {reason}: {}\n", series.into_iter().collect::<Vec<_>>().join("; "));
    }
}

/// Prints a table of one metric by series and message size.
pub fn matrix(title: &str, metric: &str, table: &Table, is_selected: impl Fn(&Key) -> bool) {
    let keys: Vec<&Key> = table
        .rows()
        .map(|(k, _)| k)
        .filter(|k| k.size > 0 && is_selected(k) && table.spread(k, metric).is_some())
        .collect();
    if keys.is_empty() {
        return;
    }
    let sizes: BTreeSet<usize> = keys.iter().map(|k| k.size).collect();
    let mut series: Vec<&str> = Vec::new();
    keys.iter().for_each(|k| {
        if !series.contains(&k.series.as_str()) {
            series.push(&k.series);
        }
    });
    print!("{title:<52}");
    sizes.iter().for_each(|size| print!(" {:>11}", bytes(*size)));
    println!();
    for name in series {
        print!("{name:<52}");
        for size in &sizes {
            match table.spread(&Key::new(name, *size), metric) {
                Some(v) if v.max > v.min => {
                    let plus_minus = format!("±{:.0}%", (v.max - v.min) / 2.0 / v.median * 100.0);
                    print!(" {:>6}{plus_minus:<5}", figure(v.median));
                }
                Some(v) => print!(" {:>6}{:<5}", figure(v.median), ""),
                None => print!(" {:>6}{:<5}", "", ""),
            }
        }
        println!();
    }
    println!();
}

/// Formats a value with about three significant digits.
fn figure(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

pub fn half_round_trips(table: &Table) {
    let columns = ["p1", "p50", "p90", "p99", "p99.9"];
    let keys: Vec<&Key> = table.rows().map(|(k, _)| k).filter(|k| table.spread(k, "p50").is_some()).collect();
    if keys.is_empty() {
        return;
    }
    print!("{:<52}", "half round trip of 8 bytes, busy-polled, µs");
    columns.iter().for_each(|c| print!(" {c:>8}"));
    println!();
    for key in keys {
        print!("{:<52}", key.series);
        for column in columns {
            let cell = table.spread(key, column).map(|v| format!("{:.2}", v.median / 1000.0));
            print!(" {:>8}", cell.unwrap_or_default());
        }
        println!();
    }
    println!();
}

/// Prints the times to compute and to verify an ICRC, in nanoseconds and as a share of the time per packet at
/// the measured throughput.
pub fn icrc(table: &Table) {
    let write = |size| Key::new(stream_series(LinkKind::Udp4, Op::Write, 4096), size);
    let long = table.spread(&write(MESSAGE), "Gb/s").map(|v| ("64 KiB", 4096.0 * 8.0 / v.median));
    let short = table.spread(&write(8), "M/s").map(|v| ("8 bytes", 1000.0 / v.median));
    for (payload, packet) in [(4096, long), (64, short)] {
        let key = Key::new(plan::ICRC, payload);
        let Some((computed, verified)) = table.spread(&key, "made").zip(table.spread(&key, "verified"))
        else {
            continue;
        };
        let (computed, verified) = (computed.median, verified.median);
        print!(
            "ICRC of a packet of {payload} bytes: computed in {computed:.0} ns, verified in {verified:.0} ns"
        );
        if let Some((message, time)) = packet {
            let [computed, verified] = [computed, verified].map(|v| v / time * 100.0);
            print!(
                "; per-packet time of {message} WRITEs over udp is {time:.0} ns: \
                 {computed:.0} % and {verified:.0} %"
            );
        }
        println!();
    }
    println!();
}

/// Prints the rows on the cost of many queue pairs, whose metrics no other row has.
pub fn other_metrics(table: &Table) {
    for (key, row) in table.rows().filter(|(key, _)| [plan::CONNECTIONS, plan::IDLE].contains(&&*key.series))
    {
        let names: BTreeSet<&String> = row.rounds.values().flat_map(|m| m.keys()).collect();
        let figure = |name: &&String| Some(format!("{name} {:.1}", table.spread(key, name)?.median));
        let figures: Vec<String> = names.iter().filter_map(figure).collect();
        println!("{}: {}\n", key.name(), figures.join("; "));
    }
}

/// Prints the targets and whether they are met.
pub fn verdicts(targets: &[Target], table: &Table) {
    println!("{:<66} {:>9}  {:<18} {:<14}", "target", "median", "min to max", "");
    for target in targets {
        let (sign, limit) = match target.limit {
            Limit::AtLeast(limit) => ("at least", limit),
            Limit::AtMost(limit) => ("at most", limit),
        };
        let is_selected = |(key, _): &Figure| table.rows().any(|(k, _)| k == key);
        if !is_selected(&target.numerator)
            || target.denominator.as_ref().is_some_and(|denominator| !is_selected(denominator))
        {
            // Excluded by --only.
            continue;
        }
        let verdict = match target.verdict(table) {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::NotMeasured => "not measured",
        };
        let (value, spread) = match target.value(table) {
            Some(v) => (
                figure_or_count(v.median),
                format!("{} to {}", figure_or_count(v.min), figure_or_count(v.max)),
            ),
            None => ("-".into(), String::new()),
        };
        println!("{:<66} {value:>9}  {spread:<18} {sign} {limit}: {verdict}", target.what);
    }
}

fn figure_or_count(v: f64) -> String {
    if v.abs() >= 100.0 || v == 0.0 { format!("{v:.0}") } else { format!("{v:.2}") }
}
